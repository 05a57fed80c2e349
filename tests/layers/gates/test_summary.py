"""The figures of a trace, on gates made by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import onegru
from onegru.core.activations import Activation
from onegru.core.dtypes import Array
from onegru.layers.gates.summary import largest_differences


def trace_of(
    h: Array, z: float = 0.5, lengths: list[int] | None = None, f: str = "Sigmoid"
) -> onegru.reports.GateTrace:
    """A trace with this state [T, B, H], from zeros, and gates that are the same everywhere."""
    T, B, H = h.shape
    h = h[:, None].astype(np.float32)
    gate = np.full_like(h, z)
    activations = ((Activation(f), Activation("Tanh")),)
    spec = onegru.Spec(1, H, "float32", activations=activations)
    return onegru.reports.GateTrace(
        spec, gate, gate, h, h, np.zeros((1, B, H), np.float32), np.array(lengths or [T] * B, np.int64)
    )


def test_figures_by_hand() -> None:
    #: Unit 0 moves by 0.5 each step, unit 1 never, unit 2 once by 0.25.
    h = np.array([[[0.5, 0, 0]], [[1.0, 0, 0.25]]])
    (item,) = trace_of(h, z=0.01).summary()
    assert (item.direction, item.steps, item.dead) == ("forward", 2, (1,))
    assert item.active == ((0, 0.5), (2, 0.125), (1, 0.0))
    z, _, n, state = item.gates
    assert (z.gate, z.low, z.high) == ("z", 1.0, 0.0) and z.mean == pytest.approx(0.01)
    assert (state.least, state.most) == (0.0, 1.0) and state.mean == pytest.approx(1.75 / 6)
    assert n.high == pytest.approx(1 / 6)  # only 1.0 is above 0.9, of -1 to 1


def test_functions_without_two_ends_have_no_shares() -> None:
    (item,) = trace_of(np.zeros((1, 1, 2)), f="Relu").summary()
    assert item.gates[0].low is None and item.gates[2].low == 0.0


def test_a_signalling_nan_brings_no_warning() -> None:
    h = np.zeros((2, 1, 3), np.float32)
    h.view(np.uint32)[0, 0, 1] = 0x7FA00000
    trace = trace_of(h)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (item,) = trace.summary()
        assert largest_differences(trace, 0, trace)[0]["h"] == 0
        assert trace.to_html(against=trace)
    assert np.isnan(item.gates[3].mean or 0) and item.dead == (0, 2)


def test_rows_and_lengths() -> None:
    h = np.zeros((3, 2, 1))
    h[:2, 0] = [[0.5], [0.25]]
    h[2, 0] = 9.0  # past the row's end
    trace = trace_of(h, lengths=[2, 3])
    assert [item.steps for item in (*trace.summary(), *trace.summary(0), *trace.summary(1))] == [5, 2, 3]
    assert trace.summary()[0].gates[3].most == 0.5
    assert trace.summary(1)[0].dead == (0,) and trace.summary()[0].dead == ()
    with pytest.raises(onegru.SpecError, match=r"^row: 2; must be in 0…1"):
        trace.summary(2)


def test_both_directions_by_themselves() -> None:
    h = np.zeros((2, 2, 1, 1), np.float32)
    h[:, 1, 0, 0] = [1.0, 0.5]  # backwards: from 0 to 0.5 to 1
    spec = onegru.Spec(
        1, 1, "float32", "bidirectional", activations=onegru.Spec(1, 1, "float32").activations * 2
    )
    trace = onegru.reports.GateTrace(spec, h, h, h, h, np.zeros((2, 1, 1), np.float32), np.array([2]))
    forward, reverse = trace.summary()
    assert forward.dead == (0,) and reverse.active == ((0, 0.5),)


def test_differences_are_those_of_steps_that_both_have() -> None:
    a, b = np.zeros((4, 2, 3)), np.zeros((3, 1, 3))
    a[2, 1, 0], a[3, 1, 0] = 0.5, 9.0
    assert largest_differences(trace_of(a), 1, trace_of(b)) == ({"z": 0.0, "r": 0.0, "n": 0.5, "h": 0.5},)
    for other, message in (
        (trace_of(np.zeros((2, 1, 4))), "against: hidden size 4; must be 3"),
        (trace_of(np.zeros((2, 0, 3))), "against: has 0 rows; must have 1 row, or at least 2"),
    ):
        with pytest.raises(onegru.SpecError, match=message):
            largest_differences(trace_of(a), 1, other)
