"""What `stream` says of an operator along time, held against ONNX Runtime's results in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.models.streams import B, H, I, StreamNet, chunks_agree, verdict

Make = Callable[[StreamNet, str], str]

_FAR = 2**31 - 1


def features_last(net: StreamNet, x: str) -> str:
    """[T, B, I] to [B, I, T]."""
    return net.op("Transpose", x, perm=[1, 2, 0])


def time_first(net: StreamNet, x: str) -> str:
    """[B, I, T] to [T, B, I]."""
    return net.op("Transpose", x, perm=[2, 0, 1])


def conv(kernel: int = 3, before: int | None = None, **attributes: Any) -> Make:
    def make(net: StreamNet, x: str) -> str:
        dilation = attributes.get("dilations", [1])[0]
        ahead = (kernel - 1) * dilation if before is None else before
        pads = [ahead, (kernel - 1) * dilation - ahead]
        weights = net.random(I, I, kernel)
        return time_first(net, net.op("Conv", features_last(net, x), weights, pads=pads, **attributes))

    return make


def padded(net: StreamNet, x: str) -> str:
    pads = net.op("Pad", features_last(net, x), net.const([0, 0, 2, 0, 0, 0]))
    return time_first(net, net.op("Conv", pads, net.random(I, I, 3)))


def sliced(start: int, end: int, step: int) -> Make:
    def make(net: StreamNet, x: str) -> str:
        bounds = [net.const([value]) for value in (start, end, 0, step)]
        return net.op("Slice", x, *bounds)

    return make


def reversed_lengths(net: StreamNet, x: str) -> str:
    count = net.op("Shape", x, start=0, end=1)
    lengths = net.op("Expand", count, net.const([B]))
    return net.op("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


def reduced(kind: str) -> Make:
    return lambda net, x: net.op("Sub", x, net.op(kind, x, axes=[0], keepdims=1))


def attention(net: StreamNet, x: str) -> str:
    rows = net.op("Transpose", x, perm=[1, 0, 2])
    scores = net.op("MatMul", rows, net.op("Transpose", rows, perm=[0, 2, 1]))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), rows)
    return net.op("Transpose", mixed, perm=[1, 0, 2])


def pooled(net: StreamNet, x: str) -> str:
    y = net.op("MaxPool", features_last(net, x), kernel_shape=[2], pads=[1, 0])
    return time_first(net, y)


def folded(net: StreamNet, x: str) -> str:
    """Time and batch are one axis for a GRU along the features, as in dual-path models."""
    rows = net.op("Reshape", x, net.const([-1, I, 1]))
    W, R = net.random(2, 3 * 2, 1), net.random(2, 3 * 2, 2)
    turned = net.op("Transpose", rows, perm=[1, 0, 2])
    y = net.op("GRU", turned, W, R, hidden_size=2, direction="bidirectional")
    y = net.op("Transpose", y, perm=[2, 0, 1, 3])
    y = net.op("ReduceMean", y, axes=[2, 3], keepdims=0)
    steps = net.op("Concat", net.op("Shape", x, start=0, end=1), net.const([B, I]), axis=0)
    return net.op("Reshape", y, steps)


def groups(net: StreamNet, x: str) -> str:
    y = net.op("Reshape", x, net.const([0, 0, 2, I // 2]))
    y = net.op("Einsum", y, net.random(2, I // 2, I // 2), equation="tbgi,gih->tbgh")
    return net.op("Reshape", y, net.const([0, 0, I]))


def newest(net: StreamNet, x: str) -> str:
    """The newest step with every step."""
    return net.op("Add", x, net.op("Gather", x, net.const([-1]), axis=0))


def ones(net: StreamNet, x: str) -> str:
    shape = net.op("Shape", x)
    return net.op("Mul", x, net.op("ConstantOfShape", shape, value=_one()))


def _one() -> object:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ones(1, np.float32))


def counted(net: StreamNet, x: str) -> str:
    """Divided by the number of steps."""
    count = net.op("Cast", net.op("Shape", x, start=0, end=1), to=1)
    return net.op("Div", x, count)


def positions(net: StreamNet, x: str) -> str:
    count = net.op("Squeeze", net.op("Shape", x, start=0, end=1))
    place = net.op("Range", net.const(0), count, net.const(1))
    return net.op("Add", x, net.op("Reshape", net.op("Cast", place, to=1), net.const([-1, 1, 1])))


def from_state(net: StreamNet, x: str) -> str:
    """The state of the last run with every step of this one."""
    return net.op("Add", x, "h")


def branch(net: StreamNet, x: str) -> str:
    from onnx import TensorProto, helper

    def body(kind: str) -> object:
        node = helper.make_node(kind, [x], [f"{kind}_out"])
        return helper.make_graph(
            [node], kind, [], [helper.make_tensor_value_info(f"{kind}_out", TensorProto.FLOAT, None)]
        )

    condition = net.op("Greater", net.op("Size", x), net.const(3 * B * I))
    return net.op("If", condition, then_branch=body("Relu"), else_branch=body("Identity"))


def tile(net: StreamNet, x: str) -> str:
    return net.op("Slice", net.op("Tile", x, net.const([1, 1, 2])), *map(net.const, ([0], [I], [2])))


PASSES: dict[str, Make] = {
    "nothing": lambda net, x: x,
    "pointwise": lambda net, x: net.op("Tanh", net.op("Mul", x, net.random(I))),
    "dense": lambda net, x: net.op("Add", net.op("MatMul", x, net.random(I, I)), net.random(I)),
    "rows of a Gemm": lambda net, x: net.op(
        "Reshape",
        net.op("Gemm", net.op("Reshape", x, net.const([-1, I])), net.random(I, I)),
        net.op("Shape", x),
    ),
    "a kernel of 1": conv(1),
    "groups of features": groups,
    "features reversed": lambda net, x: net.op("Slice", x, *map(net.const, ([-1], [-_FAR], [2], [-1]))),
    "features gathered": lambda net, x: net.op("Gather", x, net.const([3, 2, 1, 0]), axis=2),
    "features halved and joined": lambda net, x: net.op(
        "Concat",
        net.op("Slice", x, *map(net.const, ([2], [4], [2]))),
        net.op("Slice", x, *map(net.const, ([0], [2], [2]))),
        axis=2,
    ),
    "the mean of features": lambda net, x: net.op("Sub", x, net.op("ReduceMean", x, axes=[-1])),
    "softmax of features": lambda net, x: net.op("Softmax", x, axis=-1),
    "a norm of features": lambda net, x: net.op("LayerNormalization", x, net.random(I), axis=-1),
    "a GRU along features": folded,
    "ones": ones,
    "repeated features": tile,
    "all of time": sliced(0, _FAR, 1),
}

WARNED: dict[str, Make] = {
    "a causal Conv": conv(),
    "a wide Conv": conv(2, dilations=[3]),
    "a Pad and a Conv": padded,
    "a Conv that looks ahead": conv(before=0),
    "a Conv without pads": lambda net, x: time_first(
        net, net.op("Conv", features_last(net, x), net.random(I, I, 3))
    ),
    "pooling": pooled,
    "every second step": sliced(0, _FAR, 2),
    "all but the first": sliced(1, _FAR, 1),
    "a sum from the first": lambda net, x: net.op("CumSum", x, net.const(0)),
    "a GRU that keeps its state": lambda net, x: net.gru(x),
    "a branch": branch,
    "zeros in front": lambda net, x: net.op("Concat", net.const(np.zeros((2, B, I)), "float32"), x, axis=0),
}

REFUSED: dict[str, Make] = {
    "Slice": sliced(-1, -_FAR - 1, -1),
    "ReverseSequence": reversed_lengths,
    "GRU": lambda net, x: net.op(
        "Slice", net.gru(x, D=2, direction="bidirectional"), *map(net.const, ([0], [I], [2]))
    ),
    "ReduceMean": reduced("ReduceMean"),
    "ReduceMax": reduced("ReduceMax"),
    "Softmax": lambda net, x: net.op("Softmax", x, axis=0),
    "MatMul": attention,
    "Add": newest,
    "Div": counted,
    "InstanceNormalization": lambda net, x: time_first(
        net, net.op("InstanceNormalization", features_last(net, x), net.random(I), net.random(I))
    ),
}


def before_and_after(make: Make) -> list[tuple[str, StreamNet, str]]:
    """The operators before a GRU, and after one."""
    first, second = StreamNet(), StreamNet()
    before = first.gru(make(first, "x"), "h", "h_out")
    after = make(second, second.gru("x", "h", "h_out"))
    return [("before", first, before), ("after", second, after)]


@pytest.mark.parametrize("name", PASSES)
def test_what_passes(name: str) -> None:
    for place, net, y in before_and_after(PASSES[name]):
        model = net.end(y)
        assert verdict(model) == ("passes", ""), place
        assert chunks_agree(model, {"h_out": "h"}), place


@pytest.mark.parametrize("name", WARNED)
def test_what_is_warned_of(name: str) -> None:
    for place, net, y in before_and_after(WARNED[name]):
        model = net.end(y)
        kind, words = verdict(model)
        assert kind == "warned", (place, words)
        assert "chunks may change the results, because " in words
        assert not chunks_agree(model, {"h_out": "h"}), place


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for place, net, y in before_and_after(REFUSED[name]):
        model = net.end(y)
        kind, words = verdict(model)
        assert kind == "refused", (place, words)
        assert f"cannot be streamed, because {name} node '{name}_" in words
        assert not chunks_agree(model, {"h_out": "h"}), place
        assert verdict(model, {"h_out": "h"})[0] == "warned"  # who names the states has the say
    assert not PASSES.keys() & REFUSED.keys()


@pytest.mark.parametrize("make", [positions, from_state])
def test_what_differs_is_never_silent(make: Make) -> None:
    net = StreamNet()
    model = net.end(net.gru(make(net, "x"), "h", "h_out"))
    assert not chunks_agree(model, {"h_out": "h"})
    assert verdict(model)[0] != "passes"


def test_the_index_of_each_step() -> None:
    net = StreamNet()
    kind, words = verdict(net.end(net.gru(positions(net, "x"), "h", "h_out")))
    assert (
        kind == "refused" and "computes with the index of each step, which starts over in each run" in words
    )


def test_what_forgets_steps_and_counts_them_is_refused() -> None:
    """A convolution may be given its past, but no chunk knows how many steps the whole has."""
    net = StreamNet()
    model = net.end(net.gru(counted(net, conv()(net, "x")), "h", "h_out"))
    assert not chunks_agree(model, {"h_out": "h"})
    kind, words = verdict(model)
    assert kind == "refused" and "because Div node 'Div_5' uses the number of steps" in words
    kind, words = verdict(model, {"h_out": "h"})
    assert kind == "warned" and "Conv node 'Conv_1' reads 3 steps; no state" in words and "Div_5" in words


def test_an_input_with_time_along_two_axes() -> None:
    net = StreamNet()
    net.inputs["mask"], net.outputs["other"] = ["T", "T"], None
    net.op("Relu", "mask", output="other")
    kind, words = verdict(net.end(net.gru("x", "h", "h_out")))
    assert kind == "refused" and "because input node 'mask' has several time axes" in words


def test_each_step_with_every_other() -> None:
    net = StreamNet()
    rows = net.op("Transpose", net.gru("x", "h", "h_out"), perm=[1, 0, 2])
    scores = net.op("MatMul", rows, net.op("Transpose", rows, perm=[0, 2, 1]))
    model = net.end(net.op("Transpose", scores, perm=[1, 0, 2]))
    assert not chunks_agree(model, {"h_out": "h"})
    kind, words = verdict(model)
    assert kind == "refused" and "combines each step of a run with every other" in words


def test_an_operator_that_is_not_known() -> None:
    net = StreamNet()
    chosen = net.op("Compress", net.gru("x", "h", "h_out"), net.const([1, 0], "bool"), axis=0)
    model = net.end(chosen)
    assert not chunks_agree(model, {"h_out": "h"})
    assert "Compress node 'Compress_3' has an unknown effect along time" in verdict(model)[1]


def test_steps_by_indices() -> None:
    net = StreamNet()
    turned = net.op("GatherND", net.gru("x", "h", "h_out"), net.const([[1], [0]]))
    model = net.end(turned)
    assert not chunks_agree(model, {"h_out": "h"})
    assert "GatherND node 'GatherND_3' selects steps by their index in a run" in verdict(model)[1]


def test_only_the_newest_step_passes() -> None:
    net = StreamNet()
    y = net.gru("x", "h", "h_out")
    model = net.end(net.op("Gather", y, net.const(-1), axis=0))
    assert verdict(model) == ("passes", "")
    assert chunks_agree(model, {"h_out": "h"})


def cached(net: StreamNet, x: str, count: int = 2, kept: int = 0) -> str:
    """A causal convolution whose past is an input, and whose last frames are an output."""
    net.inputs["cache"] = net.outputs["cache_out"] = [B, I, count]
    joined = net.op("Concat", "cache", features_last(net, x), axis=2)
    bounds = (-count, _FAR) if not kept else (kept, kept + count)
    tail = net.op("Slice", joined, *map(net.const, ([bounds[0]], [bounds[1]], [2])))
    net.op("Identity", tail, output="cache_out")
    return time_first(net, net.op("Conv", joined, net.random(I, I, 3)))


_CACHED = {"h_out": "h", "cache_out": "cache"}


def test_a_cache_is_carried() -> None:
    for place in ("before", "after"):
        net = StreamNet()
        y = net.gru(cached(net, "x") if place == "before" else "x", "h", "h_out")
        model = net.end(y if place == "before" else cached(net, y))
        assert verdict(model) == ("passes", ""), place
        assert chunks_agree(model, _CACHED)


def test_two_caches_in_one_state() -> None:
    """As GTCRN has them: slices of one input along time, joined again."""
    net = StreamNet()
    net.inputs["cache"], net.outputs["cache_out"] = [B, I, 4], [B, I, 4]
    y, tails = "x", []
    for first in (0, 2):
        past = net.op("Slice", "cache", *map(net.const, ([first], [first + 2], [2])))
        joined = net.op("Concat", past, features_last(net, y), axis=2)
        tails.append(net.op("Slice", joined, *map(net.const, ([-2], [_FAR], [2]))))
        y = time_first(net, net.op("Conv", joined, net.random(I, I, 3)))
    net.op("Concat", *tails, axis=2, output="cache_out")
    model = net.end(net.gru(y, "h", "h_out"))
    assert verdict(model) == ("passes", "")
    assert chunks_agree(model, _CACHED)


def test_caches_that_are_wrong() -> None:
    """One frame too few, other frames than the last, and a cache that is not carried."""
    short, other, loose = StreamNet(), StreamNet(), StreamNet()
    models = [
        (short.end(short.gru(cached(short, "x", 1), "h", "h_out")), _CACHED),
        (other.end(other.gru(cached(other, "x", kept=1), "h", "h_out")), _CACHED),
        (loose.end(loose.gru(cached(loose, "x"), "h", "h_out")), {"h_out": "h"}),
    ]
    for model, states in models:
        kind, words = verdict(model, states)
        assert kind == "warned", words
        assert "no state carries" in words
    for model, _ in models[:2]:
        assert not chunks_agree(model, _CACHED)


def test_one_frame_at_a_time() -> None:
    """With one step for each run nothing is turned round or mixed, but a convolution still forgets."""
    for name, make in {**PASSES, **REFUSED}.items():
        if name in ("GRU", "rows of a Gemm", "ones"):
            continue
        net = StreamNet(1)
        model = net.end(net.gru(make(net, "x"), "h", "h_out"))
        assert verdict(model) == ("passes", ""), name
    for make in (conv(), padded, pooled, lambda net, x: net.gru(x)):
        net = StreamNet(1)
        assert verdict(net.end(net.gru(make(net, "x"), "h", "h_out")))[0] == "warned"
    net = StreamNet(1)
    assert verdict(net.end(net.gru(cached(net, "x"), "h", "h_out"))) == ("passes", "")


def test_a_published_encoder() -> None:
    """As DeepFilterNet 3's, exported with the state of its GRU outside and its convolutions inside."""
    net = StreamNet()
    net.inputs["x"] = ["T", B, 1, 2 * I]
    rows = net.op("Transpose", "x", perm=[1, 2, 0, 3])
    rows = net.op("Pad", rows, net.const([0, 0, 2, 1, 0, 0, 0, 1]))
    y = net.op("Relu", net.op("Conv", rows, net.random(3, 1, 3, 3)))
    y = net.op("Conv", y, net.random(2, 3, 1, 3), strides=[1, 2], pads=[0, 1, 0, 1])
    y = net.op("Transpose", y, perm=[2, 0, 1, 3])
    y = net.op("Reshape", y, net.const([0, 0, 2 * I]))
    y = net.op("MatMul", y, net.random(2 * I, I))
    model = net.end(net.gru(y, "h", "h_out"))
    kind, words = verdict(model)
    assert kind == "warned" and "Pad node 'Pad_1' pads time in each run; no state carries" in words
    assert words.count(" node ") == 1, "the Conv has what the Pad put there"
    assert not chunks_agree(model, {"h_out": "h"})


def with_lengths(minus: int, fixed: bool = False) -> onnx.ModelProto:
    """A GRU whose rows all have as many steps as a run, less a few; or fixed numbers of steps."""
    net = StreamNet()
    steps = net.op("Gather", net.op("Shape", "x"), net.const([0]), axis=0)
    if minus:
        steps = net.op("Sub", steps, net.const([minus]))
    lengths = net.op("Expand", net.op("Cast", steps, to=onnx.TensorProto.INT32), net.const([B]))
    if fixed:
        lengths = net.const([5, 3], "int32")
    y = net.gru("x", "h", "h_out")
    next(node for node in net.nodes if node.op_type == "GRU").input[4] = lengths
    return net.end(y)


def test_lengths_of_a_run_s_own_steps_pass() -> None:
    model = with_lengths(0)
    assert verdict(model) == ("passes", "")
    assert chunks_agree(model, {"h_out": "h"})


def test_lengths_of_steps_that_wait_in_a_cache_pass() -> None:
    net = StreamNet()
    net.inputs["cache"] = net.outputs["cache_out"] = [2, B, I]
    joined = net.op("Concat", "cache", "x", axis=0)
    net.op("Slice", joined, *map(net.const, ([-2], [_FAR], [0])), output="cache_out")
    late = net.op("Slice", joined, *map(net.const, ([0], [-2], [0])))
    steps = net.op("Cast", net.op("Shape", "x", start=0, end=1), to=onnx.TensorProto.INT32)
    lengths = net.op("Expand", steps, net.const([B]))
    y = net.gru(late, "h", "h_out")
    next(node for node in net.nodes if node.op_type == "GRU").input[4] = lengths
    model = net.end(y)
    assert verdict(model) == ("passes", "")
    assert chunks_agree(model, _CACHED)


@pytest.mark.parametrize("model", [with_lengths(1), with_lengths(0, fixed=True)], ids=["one less", "fixed"])
def test_lengths_that_begin_with_each_run(model: onnx.ModelProto) -> None:
    assert not chunks_agree(model, {"h_out": "h"})
    kind, words = verdict(model)
    assert kind == "warned" and "stops at lengths that count from the first step of each run" in words


def test_states_that_are_changed_between_runs() -> None:
    first, last = StreamNet(), StreamNet()
    changed = [
        (
            first.end(first.gru("x", first.op("Tanh", "h"), "h_out")),
            "starts from a value that each run computes",
        )
    ]
    y = last.gru("x", "h", "own")
    last.op("Tanh", "own", output="h_out")
    changed.append((last.end(y), "ends in a state that is changed before the next run"))
    for model, reason in changed:
        assert not chunks_agree(model, {"h_out": "h"})
        kind, words = verdict(model, {"h_out": "h"})
        assert kind == "warned" and reason in words


def test_a_state_that_is_moved_passes() -> None:
    net = StreamNet()
    net.inputs["h"] = net.outputs["h_out"] = [B, 1, H]
    y = net.gru("x", net.op("Transpose", "h", perm=[1, 0, 2]), "own")
    net.op("Transpose", "own", perm=[1, 0, 2], output="h_out")
    model = net.end(y)
    assert verdict(model) == ("passes", "")
    assert chunks_agree(model, {"h_out": "h"})


def test_an_unknown_operator_before_the_only_gru() -> None:
    """Whose shape onnx does not find: the axes of all that follows are not known."""
    net = StreamNet()
    branches = [
        helper.make_graph([helper.make_node(kind, ["x"], [kind])], kind, [], [onnx.ValueInfoProto(name=kind)])
        for kind in ("CumSum", "Tanh")
    ]
    branches[0].node[0].input.append(net.const(0))
    flag = net.op(
        "Less", net.op("ReduceMax", "h", keepdims=0), net.const(9.0, "float32")
    )  # known in a run only
    net.nodes.append(
        helper.make_node("If", [flag], ["chosen"], "If_0", then_branch=branches[0], else_branch=branches[1])
    )
    model = net.end(net.gru("chosen", "h", "h_out"))
    assert not chunks_agree(model, {"h_out": "h"})
    kind, words = verdict(model)
    assert kind == "warned" and "If node 'If_0' has an unknown effect along time" in words


def test_time_that_no_input_has() -> None:
    """A Reshape that makes steps of a batch and features."""
    net = StreamNet()
    net.inputs["x"] = [I, B, "T"]
    model = net.end(net.gru(net.op("Reshape", "x", net.const([-1, B, I])), "h", "h_out"))
    kind, words = verdict(model)
    assert kind == "warned" and "Reshape node 'Reshape_0' " in words
    net = StreamNet()
    net.inputs["x"] = [1, B, "T"]
    steps = net.op("Reshape", net.op("Transpose", "x", perm=[2, 1, 0]), net.const([-1, 1, I]))
    net.inputs["h"] = net.outputs["h_out"] = [1, 1, H]
    kind, words = verdict(net.end(net.gru(steps, "h", "h_out")))
    assert kind == "warned" and "Reshape node 'Reshape_1' has an unknown effect along time" in words


def test_a_mix_of_time_whose_past_is_carried() -> None:
    """The Concat with the past makes one axis of what the Reshape gives and of time."""
    net = StreamNet()
    rows = net.op("Transpose", net.gru("x", "h", "h_out"), perm=[1, 0, 2])
    model = net.end(cached(net, net.op("Reshape", rows, net.const([-1, B, H]))))
    assert not chunks_agree(model, _CACHED)
    kind, words = verdict(model, _CACHED)
    assert kind == "warned" and "splits the time axis into several axes" in words
