"""Runs on inputs of one set of sizes, which the native module checks and copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import _native
from onegru.core.dtypes import Array
from tests.support.files.openvino_models import I, draw, small


class Subclass(np.ndarray[Any, Any]):
    pass


def general(model: onegru.Model, inputs: Mapping[str, object]) -> dict[str, Array]:
    assert model._run_whole is not None
    return model._handed_out(model._run_whole(model._fed(inputs)))


def prepared(folder: Path, *feeds: dict[str, Array]) -> onegru.Model:
    model = onegru.load(small(folder))
    for feed in feeds * 2:
        model.run(feed)
    return model


def test_it_returns_the_bits_of_the_general_run(tmp_path: Path) -> None:
    feed = {"x": draw(3, 2, I)}
    model = prepared(tmp_path, feed)
    assert model._quick_run is not None
    for seed in range(5):
        feed = {"x": draw(3, 2, I, seed=seed)}
        found, expected = model._quick_run(feed), general(model, feed)
        assert found is not None and found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
            assert found[name].flags.owndata


def test_sizes_can_alternate(tmp_path: Path) -> None:
    feeds = [{"x": draw(3, 2, I)}, {"x": draw(1, 4, I)}]
    model = prepared(tmp_path, *feeds)
    assert model._quick_run is not None
    assert [model._quick_run(feed) is None for feed in feeds] == [True, False]
    for feed in feeds * 2:
        np.testing.assert_array_equal(model.run(feed)["out"], general(model, feed)["out"])


X = draw(3, 2, I)
DECLINED: dict[str, Any] = {
    "no dictionary": MappingProxyType({"x": X}),
    "no input": {},
    "another name": {"y": X},
    "one more": {"x": X, "y": X},
    "a list": {"x": X.tolist()},
    "another type": {"x": X.astype(np.float64)},
    "another byte order": {"x": X.astype(">f4")},
    "other sizes": {"x": X[:, :1]},
    "another rank": {"x": X[0]},
    "other strides": {"x": np.asfortranarray(X)},
    "a subclass": {"x": X.view(Subclass)},
    "a name that is no text": {1: X},
}


@pytest.mark.parametrize("what", DECLINED)
def test_it_declines(tmp_path: Path, what: str) -> None:
    model = prepared(tmp_path, {"x": X})
    assert model._quick_run is not None and model._quick_run({"x": X}) is not None
    assert model._quick_run(DECLINED[what]) is None


class Recorded:
    """A call with a function for the other runtime, and what becomes of it."""

    def __init__(self, run: Any) -> None:
        self.x, self.y = np.zeros(2, np.float32), np.zeros((2, 3), np.int16)
        self.lost: list[object] = []
        self.call = _native.SizedCall()
        self.call.prepare([("x", self.x)], [("y", self.y)], lambda: run(self), "request", self.lost)

    def __call__(self) -> Any:
        return self.call({"x": np.ones(2, np.float32)})


def write(recorded: Recorded) -> None:
    recorded.y[...] = recorded.x.sum()


def raise_error(recorded: Recorded) -> None:
    write(recorded)
    raise ValueError


def fail_in_a_node(recorded: Recorded) -> None:
    write(recorded)
    assert not _native.graph_fail("a message", True, 1)


def call_again(recorded: Recorded) -> None:
    assert recorded() is None
    write(recorded)


def test_a_call() -> None:
    assert _native.SizedCall()({}) is None
    np.testing.assert_array_equal(Recorded(write)()["y"], np.full((2, 3), 2, np.int16))
    np.testing.assert_array_equal(Recorded(call_again)()["y"], np.full((2, 3), 2, np.int16))


@pytest.mark.parametrize("run", [raise_error, fail_in_a_node])
def test_a_run_that_fails_is_left_to_the_caller(run: Any) -> None:
    recorded = Recorded(run)
    assert recorded() is None and recorded.lost == []
    assert _native.watched_failure() == ""


def test_an_output_that_was_not_written_is_a_lost_error() -> None:
    recorded = Recorded(lambda recorded: None)
    assert recorded() is None and recorded.lost == ["request"]
    recorded = Recorded(write)
    recorded.lost.append("another")
    assert recorded() is None and recorded.y[0, 0] == 0


def test_an_interrupt_is_raised() -> None:
    def interrupt(recorded: Recorded) -> None:
        raise KeyboardInterrupt

    recorded = Recorded(interrupt)
    with pytest.raises(KeyboardInterrupt):
        recorded()
    assert recorded.lost == []


def test_wrong_ports_are_refused() -> None:
    for port in (("x", [1.0]), (1, X), ("x", X.T)):
        with pytest.raises(ValueError, match="ports: must be pairs"):
            _native.SizedCall().prepare([port], [], print, "request", [])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="lost: must be a list"):
        _native.SizedCall().prepare([], [], print, "request", ())  # type: ignore[arg-type]
