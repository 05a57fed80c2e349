"""Traces of layers and stacks: against loops over the oracle's cells, and against the layers themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import onegru
from onegru.core.compare import difference
from onegru.core.dtypes import Array
from onegru.layers.gates.data import join_runs
from tests.support.cases import DTYPES, Case, augru_cases, gru_cases
from tests.support.layers import draw, make_gru, make_stack
from tests.support.oracle import REVERSED, numbers, onnx_cells, rounded
from tests.support.suite.selection import examples

#: How far a gate may be from the oracle's, in units in the last place of all types but float64: both sides
#: compute in float64 and round once. Measured over 3000 cases: 0; a sum in another order may tip a rounding.
SPACINGS = 1

#: In float64, relative to the number plus `size_of` the sums that it is made of. Measured: 7.4e-15, from sums
#: in another order.
FLOAT64 = 2e-14

#: The most that (1 - z)∘n + z∘h, of rounded gates, is from h, relative to 1 + (1 + |z|)(|n| + |h|), beyond
#: what the rounding of a shown state changes in a step. Measured over 10,000 cases: 7.7e-4, 6.4e-3, 5.7e-6
#: and 1.3e-15.
EQUATION = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 3e-5, "float64": 2e-14}

#: The same for Sigmoid, Tanh and states of at most 1, absolute. Measured: 6.8e-4, 5.9e-3, 1.8e-7 and 3.4e-16:
#: a unit in the last place of 1 or less, of the gates' rounding and of h's own.
EQUATION_USUAL = {"float16": 1.5e-3, "bfloat16": 1.2e-2, "float32": 4e-7, "float64": 1e-15}


def layer_of(case: Case) -> tuple[onegru.GRU, dict[str, Any]]:
    """The layer of a case, and the arguments of a call."""
    options = {
        key: value
        for key, value in case.attributes.items()
        if key not in ("hidden_size", "layout", "output_sequence", "attention")
    }
    options["linear_before_reset"] = bool(options.get("linear_before_reset", False))
    inputs = case.inputs
    attention = inputs.get("A")
    layer = onegru.GRU(
        np.asarray(inputs["W"]),
        np.asarray(inputs["R"]),
        inputs["B"],
        attention=None if attention is None else case.attributes.get("attention", True),
        **options,
    )
    call = {"X": inputs["X"], "initial_h": inputs["initial_h"], "sequence_lens": inputs["sequence_lens"]}
    return layer, {**call, "attention": attention, "layout": case.attributes.get("layout", 0)}


def step(gates: tuple[list[float], ...], h: list[float]) -> list[float]:
    """h after a step."""
    _, z, _, n = gates
    return [(1 - z[i]) * n[i] + z[i] * h[i] for i in range(len(h))]


def loop(case: Case, trace: onegru.reports.GateTrace) -> dict[str, Array]:
    """The gates at each step, by plain loops from the trace's h; NaN in the padding.

    Layers of 16 bits carry h in float32. A trace shows it rounded, and the gates that follow from that;
    "moved" is how far the step's h is from the one that follows from the state as it is carried. Activations
    without bounds make much of it: gates of 10^4 have been seen 3 % away.
    """
    batch_first = case.attributes.get("layout", 0) == 1
    X, A, initial = (
        array if array is None or not batch_first else array.swapaxes(0, 1)
        for array in (case.inputs["X"], case.inputs.get("A"), case.inputs["initial_h"])
    )
    assert X is not None
    attributes = case.attributes
    cells = onnx_cells(
        np.asarray(case.inputs["W"]),
        np.asarray(case.inputs["R"]),
        case.inputs["B"],
        attributes.get("activations"),
        attributes.get("activation_alpha"),
        attributes.get("activation_beta"),
        attributes.get("clip"),
        attributes.get("linear_before_reset", 0),
        attributes.get("attention") == "dien",
    )
    found = {name: np.full(trace.h.shape, np.nan) for name in ("raw_z", "z", "r", "n", "before", "moved")}
    rounds = trace.h.dtype.itemsize == 2
    lengths = case.inputs["sequence_lens"]
    for d, backwards in enumerate(REVERSED[attributes["direction"]]):
        for row in range(X.shape[1]):
            length = len(X) if lengths is None else int(lengths[row])
            h = [0.0] * trace.spec.hidden_size if initial is None else numbers(initial[d, row])
            carried = h
            for t in reversed(range(length)) if backwards else range(length):
                a = None if A is None else float(A[t, row, 0])
                x = numbers(X[t, row])
                gates = cells[d].gates(x, h, a)
                shown, carried = step(gates, h), step(cells[d].gates(x, carried, a), carried)
                moved = np.abs(np.subtract(shown, carried)) if rounds else np.zeros(len(h))
                for name, values in zip(found, (*gates, h, moved), strict=True):
                    found[name][t, d, row] = values
                h = numbers(trace.h[t, d, row])
    return found


def near(got: Array, wanted: Array, case: Case) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    if got.dtype == np.float64:
        np.testing.assert_allclose(got, wanted, rtol=FLOAT64, atol=FLOAT64 * size_of(case))
    else:
        assert difference(got, rounded(wanted, got.dtype)).max_ulp <= SPACINGS


def size_of(case: Case) -> float:
    """A bound on the terms of the sums."""
    arrays = (array.astype(np.float64) for array in case.inputs.values() if array is not None)
    return 1.0 + sum(float(np.abs(array).max(initial=0)) for array in arrays) ** 2


def check(case: Case) -> None:
    layer, call = layer_of(case)
    trace = layer.trace(**call)
    Y, _ = layer(**call)
    own = Y.transpose(1, 2, 0, 3) if call["layout"] else Y
    assert trace.h.dtype == Y.dtype and trace.h.tobytes() == own.tobytes()
    wanted = loop(case, trace)
    with np.errstate(all="ignore"):
        for name in ("z", "r", "n"):
            near(getattr(trace, name), wanted[name], case)
        if trace.raw_z is None:
            assert case.function == "gru"
        else:
            near(trace.raw_z, wanted["raw_z"], case)
        np.testing.assert_array_equal(trace.previous_h.astype(np.float64), wanted["before"])
        z, n, h, before = (a.astype(np.float64) for a in (trace.z, trace.n, trace.h, trace.previous_h))
        inside = ~np.isnan(wanted["before"])
        apart = np.abs((1 - z) * n + z * before - h)[inside]
        size = (1 + (1 + np.abs(z)) * (np.abs(n) + np.abs(before)))[inside]
        bound = EQUATION[Y.dtype.name] * size + wanted["moved"][inside]
    assert np.all((apart <= bound) | ~np.isfinite(apart + bound))
    if "activations" not in case.attributes and np.abs(before[inside]).max(initial=0) <= 1:
        assert apart.max(initial=0) <= EQUATION_USUAL[Y.dtype.name]
    assert not h[~inside].any()


@examples(80)
@given(gru_cases())
def test_gates_are_the_equations(case: Case) -> None:
    check(case)


@examples(40)
@given(augru_cases())
def test_gates_with_attention(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_every_engine_and_storage(dtype: str, engine: str) -> None:
    layer = make_gru(direction="bidirectional", dtype=dtype, engine=engine)
    X, (state,) = draw(layer)
    trace = layer.trace(X, state, sequence_lens=[6, 0, 3])
    assert trace.h.tobytes() == layer(X, state, sequence_lens=[6, 0, 3])[0].tobytes()
    if dtype == "float32":
        small = make_gru(direction="bidirectional", weight_storage="bfloat16").trace(X, state)
        assert 1e-5 < np.abs(small.z - layer.trace(X, state).z).max() < 1e-2  # of the rounded weights


def test_a_long_trace_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_gru(direction="reverse")
    X, _ = draw(layer, T=50)
    whole = layer.trace(X, sequence_lens=[50, 7, 0])
    monkeypatch.setattr("onegru.engines.reference._TRACED_BYTES", 3000)
    parts = layer.trace(X, sequence_lens=[50, 7, 0])
    for name in "zrn":
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-6)


def test_layouts_are_the_same_trace() -> None:
    layer = make_gru(attention=True, layout=1)
    X, (state,) = draw(layer)
    scores = np.linspace(0, 1, 18, dtype=np.float32).reshape(6, 3)
    first = layer.trace(X, state, attention=scores, layout=0)
    second = layer.trace(X.swapaxes(0, 1), state.swapaxes(0, 1), attention=scores.T)
    for name in ("z", "r", "n", "h", "raw_z", "initial_h"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert np.all(first.z <= first.raw_z) and np.all(first.z[-1, 0, -1] == 0)  # where attention is 1


@pytest.mark.parametrize("layout", [0, 1])
def test_a_stack_gives_a_trace_of_each_layer(layout: int) -> None:
    stack = make_stack(3, ("bidirectional", "forward"))
    X, states = draw(stack)
    if layout:
        X, states = X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states]
    traces = stack.trace(X, states, sequence_lens=[6, 2, 0], layout=layout)
    Y, Y_h = stack(X, states, sequence_lens=[6, 2, 0], layout=layout)
    assert [trace.spec for trace in traces] == [layer.spec for layer in stack]
    np.testing.assert_array_equal(traces[-1].h, Y.transpose(1, 2, 0, 3) if layout else Y)
    last = traces[0].h[[5, 1], 0, [0, 1]]
    np.testing.assert_array_equal(last, (Y_h[0].swapaxes(0, 1) if layout else Y_h[0])[0, :2])
    with pytest.raises(onegru.SpecError, match=r"^layer 0: X: "):
        stack.trace(X[:, :, :2])


def test_runs_that_go_on_from_each_other_are_one() -> None:
    layer = make_gru(attention=True)
    X, (state,) = draw(layer)
    A = X[:, :, 0]
    whole = layer.trace(X, state, attention=A)

    def part(begin: int, end: int, h: Array) -> onegru.reports.GateTrace:
        return layer.trace(X[begin:end], h, attention=A[begin:end])

    parts = [part(0, 1, state), part(1, 4, whole.h[0]), part(4, 6, whole.h[3])]
    joined = join_runs(parts)
    for name in ("z", "raw_z", "r", "n", "h", "initial_h", "lengths"):
        np.testing.assert_allclose(getattr(joined, name), getattr(whole, name), rtol=1e-6)
    assert join_runs([parts[1], parts[0]]) is parts[0]
    np.testing.assert_array_equal(join_runs([parts[2], *parts[:2]]).h, whole.h[:4])


def test_what_a_trace_says_of_itself() -> None:
    layer = make_gru(direction="bidirectional")
    trace = layer.trace(draw(layer)[0])
    assert repr(trace) == "GateTrace(T=6, D=2, B=3, H=4, float32)"
    assert trace.directions == ("forward", "reverse")
    assert trace.lengths.tolist() == [6, 6, 6] and trace.initial_h.shape == (2, 3, 4)
    card = trace._repr_html_()
    assert "reverse" in card and "<img" not in card


def test_wrong_parts_are_refused() -> None:
    trace = make_gru().trace(np.zeros((2, 1, 5), np.float32))
    parts = {name: getattr(trace, name) for name in ("spec", "z", "r", "n", "h", "initial_h", "lengths")}
    changes: dict[str, tuple[Any, str]] = {
        "spec": (None, "spec: None"),
        "z": (trace.z[:1], "r: shape"),
        "h": (trace.h.astype(np.float64), "h: type float64"),
        "lengths": ([3], "lengths: "),
        "raw_z": (trace.z, "raw_z: "),
        "name": (1, "name: 1"),
    }
    for name, (value, message) in changes.items():
        with pytest.raises(onegru.SpecError, match=f"^{message}"):
            onegru.reports.GateTrace(**{**parts, name: value})


@pytest.mark.parametrize("shape", [(0, 2, 5), (3, 0, 5), (0, 0, 5)])
def test_nothing_to_see(shape: tuple[int, ...]) -> None:
    layer = make_gru(direction="bidirectional")
    trace = layer.trace(np.zeros(shape, np.float32))
    assert trace.z.shape == (shape[0], 2, shape[1], 4)
    assert all(item.steps == 0 and item.gates[0].mean is None for item in trace.summary())
    assert "GRU" in trace._repr_html_() or "Gates" in trace._repr_html_()
    if shape[1]:
        assert "an empty sequence" in trace.to_html()
    else:
        with pytest.raises(onegru.SpecError, match=r"^batch: empty; must have at least one row"):
            trace.to_html()


def test_a_trace_tells_what_weights_are_kept_in() -> None:
    X = np.random.default_rng(0).standard_normal((3, 1, make_gru().spec.input_size)).astype(np.float32)
    assert make_gru().trace(X).source == ""
    assert make_gru(weight_storage="int8").trace(X).source == "weights in int8"


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("storage", ["int8", "int8_g32", "int8_g64", "bfloat16"])
def test_gates_are_those_of_the_weights_that_are_kept(storage: Any, engine: Any) -> None:
    rng = np.random.default_rng(0)
    W, R = (rng.standard_normal((1, 3 * 80, n)).astype(np.float32) * 0.2 for n in (70, 80))
    trace = onegru.GRU(W, R, weight_storage=storage, engine=engine).trace(
        rng.standard_normal((4, 2, 70)).astype(np.float32)
    )
    before = np.concatenate([trace.initial_h[None], trace.h[:-1]])
    np.testing.assert_allclose((1 - trace.z) * trace.n + trace.z * before, trace.h, atol=2e-6)
