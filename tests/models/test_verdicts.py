"""What `stream`, `inspect` and rewriting say of one model: they never contradict each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import SpecError, SpecWarning
from onegru.timeline.check import check_unchanged
from tests.rewriting.test_streaming import CAUSAL, NEVER, built
from tests.support.comparison import assert_bits
from tests.support.files.onnx_models import save
from tests.support.models.streams import B, H, I, StreamNet

C = 2  # steps in a cache


def enhancer(steps: int | str = 1, shapes_known: bool = True) -> onnx.ModelProto:
    """As denoisers are published: caches in one tensor, written part by part; states next to each other."""
    net = StreamNet(steps)
    net.inputs = {"x": [steps, B, I], "conv_cache": [2, C, B, I], "inter_cache": [2, 1, B, H]}
    net.outputs = {"conv_cache_out": [2, C, B, I], "inter_cache_out": [2, 1, B, H]}
    y, caches, states = "x", "conv_cache", "inter_cache"
    for place in range(2):
        index = net.const(place)
        both = net.op("Concat", net.op("Gather", caches, index, axis=0), y, axis=0)
        late = net.op("Slice", both, net.const([1]), net.const([2**31 - 1]), net.const([0]))
        first, second = (net.op("Mul", part, net.random(I)) for part in (both, both))
        parts = [net.op("Slice", first, net.const([n]), net.const([n + 1]), net.const([0])) for n in (0, 1)]
        now = net.op("Slice", second, net.const([C]), net.const([C + 1]), net.const([0]))
        y = net.op("Sum", *parts, now)
        caches = net.op("ScatterND", caches, net.const([[place]]), net.op("Unsqueeze", late, net.const([0])))
        y = net.gru(y, net.op("Gather", states, index, axis=0), f"last{place}")
        last = net.op("Unsqueeze", f"last{place}", net.const([0]))
        states = net.op("ScatterND", states, net.const([[place]]), last)
    net.op("Identity", caches, output="conv_cache_out")
    net.op("Identity", states, output="inter_cache_out")
    model = net.end(y)
    if not shapes_known:  # as a file that was not simplified: names for nothing, and no shapes within
        del model.graph.value_info[:]
        for value in model.graph.output:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"ScatterND{value.name}_dim_{axis}"
    return model


def outside() -> onnx.ModelProto:
    """A GRU whose state is outside, with any number of steps."""
    net = StreamNet()
    return net.end(net.gru("x", "h", "h_out"))


def half(steps: int | str = "T") -> onnx.ModelProto:
    """The same after a convolution whose past is inside."""
    net = StreamNet(steps)
    x = net.op("Transpose", "x", perm=[1, 2, 0])
    late = net.op("Conv", x, net.random(I, I, 3), pads=[2, 0])
    return net.end(net.gru(net.op("Transpose", late, perm=[2, 0, 1]), "h", "h_out"))


def doubtful() -> onnx.ModelProto:
    """Its own cache, which a plan cannot follow, and a GRU whose state nobody carries."""
    net = StreamNet()
    net.inputs = {"x": ["T", B, I], "cache": [C, B, I]}
    net.outputs = {"cache_out": [C, B, I]}
    both = net.op("Concat", "cache", "x", axis=0)
    net.op("Slice", both, net.const([-C]), net.const([99]), net.const([0]), output="cache_out")
    late = net.op("Slice", both, net.const([0]), net.const([-C]), net.const([0]))
    return net.end(net.gru(late, direction="reverse"))


def mixed() -> onnx.ModelProto:
    """A GRU whose state is outside, and a mean over time."""
    net = StreamNet()
    return net.end(net.op("ReduceMean", net.gru("x", "h", "h_out"), axes=[0], keepdims=1))


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "state outside": (outside, "yes"),
    "one frame": (enhancer, "yes"),
    "one frame, shapes unknown": (lambda: enhancer(shapes_known=False), "yes"),
    "past inside": (half, "rewritten"),
    "one frame, past inside": (lambda: half(1), "rewritten"),
    "whole": (lambda: built([CAUSAL["GRU"]], 4), "rewritten"),
    "doubtful": (doubtful, "unchanged"),
    "mean over time": (mixed, "no"),
    "backwards": (lambda: built([NEVER["reverse GRU"], CAUSAL["GRU"]], 4), "no"),
}


def says(model: onegru.Model, rewrite: bool = False) -> tuple[str, dict[str, str]]:
    """What `stream` does: "passes", "warned" or "refused"; and what it carries."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            pairs = model.stream(rewrite=rewrite).pairs
        except SpecError:
            return "refused", {}
    return "warned" if any(item.category is SpecWarning for item in seen) else "passes", pairs


@pytest.mark.parametrize("name", MODELS)
def test_three_agree(name: str, tmp_path: Path) -> None:
    make, wanted = MODELS[name]
    path, target = save(tmp_path, make()), tmp_path / "target.onnx"
    words = onegru.inspect(path).streaming
    assert words.startswith({"rewritten": "supported after"}.get(wanted, wanted)), words
    model = onegru.load(path)
    said, pairs = says(model)
    if wanted == "no":
        assert said == "refused"
    elif wanted == "yes":
        assert said == "passes"
    elif wanted == "unchanged":
        assert said == "warned"
        assert all(f"{output} → {state}" in words for output, state in pairs.items())
    else:
        assert said in ("warned", "refused")
    can_be = wanted in ("yes", "rewritten")
    assert says(model, rewrite=True)[0] == ("passes" if can_be else "refused")
    if not can_be:
        with pytest.raises(SpecError, match="cannot run in chunks, because"):
            onegru.make_streaming(path, target)
        return
    onegru.make_streaming(path, target)
    assert onegru.inspect(target).streaming == "yes; the file specifies which output feeds which input"
    assert says(onegru.load(target))[0] == "passes"
    if wanted == "yes":
        assert onegru.load(target).stream().pairs == pairs


@pytest.mark.parametrize("shapes_known", [True, False])
def test_frame_by_frame(shapes_known: bool, tmp_path: Path) -> None:
    """A published form gives what carrying its states by hand gives, also after its metadata name them."""
    path, target = save(tmp_path, enhancer(shapes_known=shapes_known)), tmp_path / "target.onnx"
    model = onegru.load(path)
    wanted = {"conv_cache_out": "conv_cache", "inter_cache_out": "inter_cache"}
    notes = onegru.make_streaming(path, target).notes
    own = "conv_cache_out → conv_cache, inter_cache_out → inter_cache"
    assert f"its own states ({own}) are sufficient; the metadata now name them" in notes
    streams = [model.stream(), onegru.load(target).stream()]
    assert all(stream.pairs == wanted for stream in streams)
    shapes: dict[str, Any] = {info.name: info.shape for info in model.inputs if info.name != "x"}
    state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for frame in np.random.default_rng(4).standard_normal((5, 1, B, I)).astype(np.float32):
        expected = model.run({"x": frame, **state})
        state = {taker: expected[output] for output, taker in wanted.items()}
        for stream in streams:
            assert_bits(stream.step({"x": frame})["y"], expected["y"])


def test_a_state_of_another_size() -> None:
    """Which the first step finds, where the file tells no sizes of outputs."""
    net = StreamNet(1)
    net.inputs["cache"] = [1, B, I]
    long = net.op("Concat", "cache", "x", axis=0)
    net.op("Compress", long, net.const([True, True], "bool"), axis=0, output="cache_out")  # of any size
    net.outputs["cache_out"] = ["made_up", B, I]
    stream = onegru.load(net.end(net.gru("x", "h", "h_out"))).stream()
    x = np.zeros((1, B, I), np.float32)
    with pytest.raises(
        SpecError,
        match=r"^state: 'cache_out' is \[2, 2, 4\]; must be \[1, 2, 4\], the shape of its input 'cache'",
    ):
        stream.step({"x": x})
    assert stream.state == {}


@pytest.mark.parametrize("pads", [[2, 0], [0, 0]])
def test_one_frame_that_forgets(pads: list[int]) -> None:
    """Steps in front of the only one, which no state holds: zeros, or none."""
    net = StreamNet(1)
    y = net.op("Transpose", net.gru("x", "h", "h_out"), perm=[1, 2, 0])
    y = net.op("Conv", y, net.random(I, H, 3), pads=pads)
    found = check_unchanged(onegru.load(net.end(y)).graph)
    assert found.is_single_step
    assert "reads 3 steps; no state carries the steps of earlier runs" in found.warning
