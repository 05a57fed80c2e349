"""Files of gates: what is written is read, and what is broken is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from tests.support.cases import DTYPES
from tests.support.layers import draw, make_gru

PARTS = ("z", "r", "n", "h", "initial_h", "lengths")


def trace_of(dtype: str = "float32", **options: Any) -> onegru.reports.GateTrace:
    layer = make_gru(dtype=dtype, activations=["HardSigmoid", "Elu"], activation_alpha=[0.3, 0.7], **options)
    X, (state,) = draw(layer)
    arguments: dict[str, Any] = {"attention": X[:, :, 0]} if options.get("attention") else {}
    return layer.trace(X, state, sequence_lens=[6, 0, 3], **arguments)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read(dtype: str, attention: bool, tmp_path: Path) -> None:
    trace = trace_of(dtype, attention=attention, clip=0.5)
    trace.save(tmp_path / "gates.npz")
    again = onegru.reports.GateTrace.load(tmp_path / "gates.npz")
    assert type(again) is onegru.reports.GateTrace
    assert (again.spec, again.name, again.source) == (trace.spec, trace.name, trace.source)
    for name in (*PARTS, *(["raw_z"] if attention else [])):
        mine, theirs = getattr(trace, name), getattr(again, name)
        assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()
    if not attention:
        assert again.raw_z is None


def test_the_arrays_are_numpys_own(tmp_path: Path) -> None:
    trace = trace_of()
    trace.save(tmp_path / "gates.npz")
    with np.load(tmp_path / "gates.npz") as arrays:
        np.testing.assert_array_equal(arrays["z"], trace.z)


def about_of(changes: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    from onegru.layers.gates.files import writer

    writer(trace_of())(buffer)
    buffer.seek(0)
    with np.load(buffer) as arrays:
        kept = dict(arrays)
    about = json.loads(kept["about"].tobytes())
    about["spec"].update(changes)
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


BROKEN: dict[str, dict[str, Any]] = {
    "no state": {"h": None},
    "another array": {"x": np.zeros(1)},
    "a shape": {"z": np.zeros((2, 1, 3, 4), np.float32)},
    "a type": {"z": np.zeros((6, 1, 3, 4))},
    "lengths": {"lengths": np.array([6, 7, 0])},
    "no text": {"about": np.zeros(3)},
    "no JSON": {"about": np.frombuffer(b"{", np.uint8)},
    "another JSON": {"about": np.frombuffer(b"[1]", np.uint8)},
    "a hidden size": {"about": about_of({"hidden_size": 5})},
    "a hidden size in words": {"about": about_of({"hidden_size": "4"})},
    "activations": {"about": about_of({"activations": [[{"name": "No", "alpha": None}]]})},
    "attention": {"about": about_of({"attention": True})},
    "an unknown field": {"about": about_of({"more": 1})},
    "another type": {"about": about_of({"dtype": "bfloat16"})},
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "gates.npz"
    trace_of().save(path)
    with np.load(path) as loaded:
        arrays = {**dict(loaded), **BROKEN[what]}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(onegru.FormatError, match=r"gates\.npz: not a file of gate values; ") as caught:
        onegru.reports.GateTrace.load(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(onegru.FormatError, match="not a file of gate values, or truncated"):
        onegru.reports.GateTrace.load(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        onegru.reports.GateTrace.load(tmp_path / "none.npz")
    with pytest.raises(onegru.SpecError, match=r"^path: 3"):
        onegru.reports.GateTrace.load(3)  # type: ignore[arg-type]
