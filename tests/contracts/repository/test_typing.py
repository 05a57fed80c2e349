"""Test a type checker on a program that uses onegru, and an editor on its objects."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import onegru
from onegru import _native
from tests.support.layers import make_gru, make_stack


def test_dir_holds_what_users_need() -> None:
    names = [name for name in dir(onegru) if not name.startswith("__")]
    assert sorted({*names} - {"backend"}) == sorted(onegru.__all__)
    for name in names:
        if name not in onegru._MODULES:
            assert not isinstance(getattr(onegru, name), ModuleType)


def test_sizes_are_attributes() -> None:
    layer, stack = make_gru(inputs=5, hidden=4), make_stack(2)
    assert (layer.input_size, layer.hidden_size) == (5, 4)
    stream = layer.stream(3)
    assert (stream.batch_size, stream.input_size, stream.hidden_size) == (3, 5, 4)
    first, last = stack.layers
    for item in (stack, stack.stream(2)):
        assert (item.input_size, item.hidden_size) == (first.input_size, last.hidden_size)
    assert stack.stream(2).batch_size == 2


def test_a_stack_is_a_sequence_of_layers() -> None:
    stack = make_stack(3)
    assert len(stack) == 3
    assert tuple(stack) == stack.layers
    assert (stack[0], stack[-1]) == (stack.layers[0], stack.layers[2])
    with pytest.raises(IndexError):
        stack[3]


def test_weights_are_shown_by_their_shapes() -> None:
    layer = make_gru(inputs=500, hidden=400)
    assert repr(layer.weights) == "Weights(W [1, 1200, 500], R [1, 1200, 400], B [1, 2400], float32)"
    assert repr(np.asarray(layer.weights.W)) not in repr((layer, layer.weights, sys.modules[__name__]))


@pytest.mark.skipif("abi3" in Path(_native.__file__).name, reason="the stable ABI shows no descriptors")
def test_a_layer_tells_how_it_is_called() -> None:
    layer = make_gru()
    expected = [(p.name, p.kind, p.default) for p in inspect.signature(layer.run).parameters.values()]
    for called in (layer, layer.__call__):
        parameters = inspect.signature(called).parameters.values()
        assert [(p.name, p.kind, p.default) for p in parameters] == expected
    assert layer.__call__.__doc__ == layer.run.__doc__

    class Own(onegru.GRU):
        def __call__(self, X: object) -> object:  # type: ignore[override]
            """Custom call."""
            return X

    own = Own.from_canonical(layer.spec, layer.weights)
    assert list(inspect.signature(own).parameters) == ["X"]
    assert own.__call__.__doc__ == "Custom call."
    assert list(inspect.signature(onegru.GRU).parameters)[:3] == ["W", "R", "B"]
