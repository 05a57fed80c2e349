"""States that are found by their names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onegru
from onegru import SpecError
from onegru.timeline.check import check_unchanged
from onegru.timeline.pairs import is_next_name
from tests.support.models.streams import B, H, I, StreamNet


@pytest.mark.parametrize(
    ("taker", "output"),
    [
        ("conv_cache", "conv_cache_out"),
        ("state_in", "state_out"),
        ("in_state", "out_state"),
        ("h0", "hn"),
        ("c_0", "c_n"),
        ("h_in", "h_out"),
        ("cache", "new_cache"),
        ("cache", "cache_new"),
        ("prevHidden", "nextHidden"),
        ("x_prev", "x_next"),
        ("tra_cache", "tra_cache_out"),
        ("state_in_1", "state_out_1"),
        ("onnx::state.in", "onnx::state.out"),
        ("statein", "stateout"),
        ("past", "past_new"),
    ],
)
def test_names_that_belong_together(taker: str, output: str) -> None:
    assert is_next_name(taker, output)


@pytest.mark.parametrize(
    ("taker", "output"),
    [
        ("input", "output"),  # the signal
        ("x", "x_out"),
        ("noisy_in", "noisy_out"),
        ("x", "y"),
        ("in", "out"),
        ("state", "cache"),
        ("state", "state"),
        ("state_in_1", "state_out_2"),
        ("state_out", "state_in"),
        ("prev", "next"),
        ("", ""),
        ("mix", "enh"),
    ],
)
def test_names_that_do_not(taker: str, output: str) -> None:
    assert not is_next_name(taker, output)


def model_with(pairs: dict[str, tuple[str, str]], shapes: dict[str, list[int | str]]) -> onegru.Model:
    """One GRU, and values that are each the sum of some with x's mean: name → (source, its kind)."""
    net = StreamNet()
    for name, shape in shapes.items():
        (net.outputs if name in pairs else net.inputs)[name] = shape
    for name, (source, kind) in pairs.items():
        net.op(kind, source, output=name)
    return onegru.load(net.end(net.gru("x", "h", "h_out")))


def test_pairs_of_one_shape_that_depend_on_each_other() -> None:
    cache: list[int | str] = [B, 3]
    stream = model_with({"cache_out": ("cache", "Relu")}, {"cache": cache, "cache_out": cache}).stream()
    assert stream.pairs == {"h_out": "h", "cache_out": "cache"}
    assert repr(stream).endswith("h_out → h, cache_out → cache (by name))")


@pytest.mark.parametrize(
    ("pairs", "shapes"),
    [
        ({"cache_out": ("cache", "Transpose")}, {"cache": [B, 3], "cache_out": [3, B]}),
        ({"cache_out": ("other", "Relu")}, {"cache": [B, 3], "other": [B, 3], "cache_out": [B, 3]}),
        (  # either could be the next
            {"cache_out": ("cache", "Relu"), "cache_new": ("cache", "Tanh")},
            {"cache": [B, 3], "cache_out": [B, 3], "cache_new": [B, 3]},
        ),
    ],
)
def test_pairs_that_are_not_guessed(pairs: dict, shapes: dict) -> None:  # type: ignore[type-arg]
    assert model_with(pairs, shapes).stream().pairs == {"h_out": "h"}


@pytest.mark.parametrize(("words", "expected"), [("x", {}), ("cache", {"cache_next": "cache"})])
def test_a_forecast_is_no_state(words: str, expected: dict[str, str]) -> None:
    """A model that would take and give nothing but states has a signal, unless they are called memories."""
    rng, V = np.random.default_rng(0), onnx.helper.make_tensor_value_info
    weights = {name: rng.standard_normal((1, 9, 3)).astype(np.float32) for name in "WR"}
    nodes = [
        onnx.helper.make_node("GRU", [words, "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=3),
        onnx.helper.make_node("Reshape", ["Y", "shape"], [f"{words}_next"]),
    ]
    inputs, outputs = (
        [V(name, 1, [1, 1, 3]) for name in names] for names in ((words, "h"), (f"{words}_next", "h_out"))
    )
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    tensors.append(onnx.numpy_helper.from_array(np.array([1, 1, 3]), "shape"))
    graph = onnx.helper.make_graph(nodes, "forecast", inputs, outputs, tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    stream = onegru.load(model).stream()
    assert stream.pairs == {"h_out": "h"} | expected
    if not expected:
        assert list(stream.step({"x": np.ones((1, 1, 3), np.float32)})) == ["x_next"]
        with pytest.raises(SpecError, match="'x': missing"):
            stream.step({})


def test_an_error_names_the_state_that_was_not_guessed() -> None:
    """A memory of one frame: its next value is only this frame, so that its name decides."""
    cache: list[int | str] = [B, 3]
    model = model_with(
        {"cache_out": ("frame", "Relu"), "y2": ("cache", "Neg")},
        {"cache": cache, "frame": cache, "cache_out": cache, "y2": cache},
    )
    x, frame = np.ones((2, B, I), np.float32), np.full((B, 3), 0.5, np.float32)
    with pytest.raises(SpecError, match=r"'cache': missing; .*, use stream") as refused:
        model.stream().step({"x": x, "frame": frame})
    assert str(refused.value).endswith('stream({"h_out": "h", "cache_out": "cache"})')
    stream = model.stream({"h_out": "h", "cache_out": "cache"})
    stream.step({"x": x, "frame": frame})
    assert np.array_equal(stream.step({"x": x, "frame": frame})["y2"], -frame)
    with pytest.raises(SpecError, match=r"'frame': missing; .*float32 \[2, 3\]$"):
        stream.step({"x": x})


@pytest.mark.parametrize(
    ("given", "is_paired"),
    [
        (["ScatterNDcache_out_dim_0", "ScatterNDcache_out_dim_1"], True),
        ([B, "any"], True),
        (["T", 3], False),  # the size of an input
        ([B, 4], False),
        ([B, 3, "one"], False),
        (None, True),
    ],
)
def test_sizes_of_outputs_that_are_not_known(given: list[int | str] | None, is_paired: bool) -> None:
    """The output of an operator whose shape nobody infers."""
    net = StreamNet()
    net.inputs["cache"] = [B, 3]
    flat = net.op("Relu", "cache")
    net.op("Compress", flat, net.const([True] * B, "bool"), axis=0, output="cache_out")
    net.outputs["cache_out"] = None
    model = net.end(net.gru("x", "h", "h_out"))
    shape = model.graph.output[1].type.tensor_type.shape
    shape.Clear()
    for size in given or ():
        shape.dim.add(**({"dim_value": size} if isinstance(size, int) else {"dim_param": size}))
    if given is None:
        model.graph.output[1].type.tensor_type.ClearField("shape")
    found = check_unchanged(onegru.load(model).graph).pairs
    assert found == {"h_out": "h"} | ({"cache_out": "cache"} if is_paired else {})


def test_states_without_a_gru_s() -> None:
    """As where a GRU's state lies in one tensor with others, written by operators that are not followed."""
    net = StreamNet(1)
    net.inputs = {"x": [1, B, I], "state_in": [2, B, H]}
    net.outputs = {"state_out": [2, B, H]}
    h = net.op("Slice", "state_in", *map(net.const, ([0], [1], [0])))
    y = net.gru("x", h, "last")
    rest = net.op("ScatterND", "state_in", net.const([[0]]), "last")
    net.op("Identity", rest, output="state_out")
    model = net.end(y)
    assert onegru.load(model).stream().pairs == {"state_out": "state_in"}


def test_a_gru_s_states_stay_as_they_were_proved() -> None:
    """Names do not make a pair of states that two GRUs swap."""
    net = StreamNet()
    net.inputs["h1"], net.outputs["h1_out"] = [1, B, H], [1, B, H]
    net.op("Add", net.gru("x", "h", "h1_out"), net.gru("x", "h1", "h_out"), output="y")
    net.outputs["y"] = None
    stream = onegru.load(net.model()).stream()
    assert stream.pairs == {"h1_out": "h", "h_out": "h1"}
    net = StreamNet()
    net.op("Add", net.gru("x", "h", "h_out"), net.gru("x", "h"), output="y")
    net.outputs["y"] = None
    with pytest.raises(SpecError, match="no state inputs found"):
        onegru.load(net.model()).stream()
