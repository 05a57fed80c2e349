"""What each operator does along each axis of what it takes.

A rule returns `Move`s: where an axis of an input goes in an output, and what would be wrong with it if that
axis were time. An axis that a rule does not name is new in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onegru.dataflow.operator import Op
from onegru.dataflow.shapes import einsum_terms, is_reversal, squeezed_axes
from onegru.timeline.step import Kind, Move, Step, UnknownOpError, slice_bounds

Rule = Callable[[Step], Iterable[Move]]


def _pass(step: Step) -> Iterator[Move]:
    """Element by element; sizes are aligned at the end."""
    known = [shape for shape in step.shapes if shape is not None]
    rank = max(map(len, known), default=0)
    wide = {rank - len(shape) + axis for shape in known for axis, size in enumerate(shape) if size != 1}
    for place, shape in enumerate(step.shapes):
        if shape is None:
            if step.op.inputs[place]:
                raise UnknownOpError
            continue
        for axis, size in enumerate(shape):
            to = rank - len(shape) + axis
            if size == 1 and to in wide:
                continue
            for output in range(len(step.op.outputs)):
                yield Move(place, axis, to, output)


def _first(step: Step) -> Iterator[Move]:
    """Each axis of the first input stays."""
    return _along(step, ())


def _along(
    step: Step, axes: Iterable[int], kind: Kind = "mixes", why: str = "", keeps: bool = True
) -> Iterator[Move]:
    """These axes of the first input have something done to them, the others stay.

    Args:
        step: the operator.
        axes: the axes.
        kind: what is wrong with that if one of them is time.
        why: the same in words.
        keeps: whether the axes stay; else they go.
    """
    rank = len(step.shape())
    done = {axis % rank for axis in axes}
    place = 0
    for axis in range(rank):
        if axis not in done or keeps:
            for output in range(len(step.op.outputs)):
                if axis in done:
                    yield Move(0, axis, place, output, kind, why)
                else:
                    yield Move(0, axis, place, output)
            place += 1
        else:
            yield Move(0, axis, None, 0, kind, why)


def _reduce(step: Step) -> Iterator[Move]:
    keeps = step.number("keepdims", 1) if step.op.origin is None or not hasattr(step.op.origin, "data") else 0
    if step.text("keep_dims", "false").lower() in ("true", "1"):
        keeps = 1
    axes = step.numbers("axes", place=1) or range(len(step.shape()))
    if not step.numbers("axes", place=1) and step.op.attributes.get("noop_with_empty_axes"):
        axes = []
    for move in _along(step, axes, why=_OVER, keeps=bool(keeps)):
        yield Move(move.place, move.axis, None if move.kind else move.to, 0, move.kind, move.why)


_OVER = "computes over all steps of a run at once"


def _over_axis(default: int, why: str = _OVER) -> Rule:
    return lambda step: _along(step, [step.number("axis", default)], why=why)


def _arg(step: Step) -> Iterator[Move]:
    return _along(step, [step.number("axis", 0)], why=_OVER, keeps=bool(step.number("keepdims", 1)))


def _softmax(step: Step) -> Iterator[Move]:
    if step.opset >= 13:
        return _along(step, [step.number("axis", -1)], why=_OVER)
    rank = len(step.shape())
    return _along(step, range(step.number("axis", 1) % rank, rank), why=_OVER)


def _from_axis(default: int) -> Rule:
    def rule(step: Step) -> Iterator[Move]:
        rank = len(step.shape())
        return _along(step, range(step.number("axis", default) % rank, rank), why=_OVER)

    return rule


def _spatial(step: Step) -> Iterator[Move]:
    """Everything behind channels is reduced, and stays as an axis of size 1."""
    for move in _along(step, range(2, len(step.shape())), why=_OVER):
        yield Move(0, move.axis, None if move.kind else move.to, 0, move.kind, move.why)


def _cumsum(step: Step) -> Iterator[Move]:
    return _along(step, step.numbers("axis", place=1), "remembers", "adds up from the first step of each run")


def _matmul(step: Step) -> Iterator[Move]:
    ranks = [len(step.shape(place)) for place in (0, 1)]
    out = max(*ranks, 2)
    for place, rank in enumerate(ranks):
        batch = range(rank - 2)
        other = step.shape(1 - place)
        for axis in batch:
            beside = axis - rank
            if step.shape(place)[axis] != 1 or len(other) < -beside or other[beside] == 1:
                yield Move(place, axis, out + beside - (min(ranks) == 1))
        summed = rank - 1 if place == 0 else max(rank - 2, 0)
        yield Move(place, summed, None, 0, "mixes", "sums over all steps of a run")
        if rank > 1:
            kept = rank - 2 if place == 0 else rank - 1
            yield Move(place, kept, (out - 2 + (place if ranks[0] > 1 else 0)))


def _gemm(step: Step) -> Iterator[Move]:
    for place, name in enumerate(("transA", "transB")):
        summed = (1 - place) ^ step.number(name, 0)
        yield Move(place, summed, None, 0, "mixes", "sums over all steps of a run")
        yield Move(place, 1 - summed, place)


def _einsum(step: Step) -> Iterator[Move]:
    shapes = [step.shape(place) for place in range(len(step.op.inputs))]
    terms = einsum_terms(step.op, [len(shape) for shape in shapes])
    if terms is None or any(len(set(term)) < len(term) for term in terms):
        raise UnknownOpError
    largest: dict[str, int | str] = {}
    for term, shape in zip(terms[:-1], shapes, strict=True):
        largest.update((key, size) for key, size in zip(term, shape, strict=True) if size != 1)
    for place, term in enumerate(terms[:-1]):
        for axis, letter in enumerate(term):
            if shapes[place][axis] == 1 and letter in largest:
                continue  # of which there is one for all
            if letter in terms[-1]:
                yield Move(place, axis, terms[-1].index(letter))
            else:
                yield Move(place, axis, None, 0, "mixes", "sums over all steps of a run")


def _transpose(step: Step) -> Iterator[Move]:
    perm = step.numbers("perm", range(len(step.shape()))[::-1])
    for to, axis in enumerate(perm):
        yield Move(0, axis % len(perm), to)


def _squeeze(step: Step) -> Iterator[Move]:
    gone = squeezed_axes(step.flow, step.op, step.shape())
    if gone is None:
        raise UnknownOpError
    return _along(step, gone, "", keeps=False)


def _unsqueeze(step: Step) -> Iterator[Move]:
    axes, rank = step.numbers("axes", place=1), len(step.shape())
    inserted = {axis % (rank + len(axes)) for axis in axes}
    places = [to for to in range(rank + len(axes)) if to not in inserted]
    for axis, to in enumerate(places):
        yield Move(0, axis, to)


def _slice(step: Step) -> Iterator[Move]:
    for axis, size in enumerate(step.shape()):
        bounds = slice_bounds(step, axis)
        if bounds is None:
            yield Move(0, axis, axis, 0, "unknown", "takes steps by bounds that are computed")
            continue
        start, end, stride = bounds
        if stride < 0 and size != 1:
            yield Move(0, axis, axis, 0, "reverses", "turns time round")
        elif stride > 1 and size != 1:
            yield Move(0, axis, axis, 0, "remembers", f"takes one of {stride} steps of each run")
        elif (start, end) == (0, None) or size == 1:
            yield Move(0, axis, axis)
        elif end is None and start == (size - 1 if isinstance(size, int) else -1):
            yield Move(0, axis, None)  # the newest step
        elif start >= 0 and (end is None or isinstance(size, int) or end < 0):
            left = 0 if end is None else end - size if isinstance(size, int) else end
            why = f"drops {start - left} steps of each run"
            yield Move(0, axis, axis, why=why, before=-start, behind=left)
        else:
            yield Move(0, axis, axis, 0, "remembers", "takes steps by their places in a run")


def _gather(step: Step) -> Iterator[Move]:
    shape, indices = step.shape(0), step.flow.constant(step.op.inputs[1])
    along = step.number("axis", 0) % len(shape)
    rank = len(step.shape(1))
    for axis in range(len(shape)):
        if axis != along:
            yield Move(0, axis, axis if axis < along else axis + rank - 1)
    for axis in range(rank):
        yield Move(1, axis, along + axis)
    to = along + rank - 1 if rank else None
    size = shape[along]
    if is_reversal(step.flow, step.op) == along or _falls(indices):
        yield Move(0, along, to, 0, "reverses", "turns time round")
    elif indices is not None and indices.size == 1 and size in (1, indices.item() + 1, -indices.item()):
        yield Move(0, along, to if size == 1 else None)
    elif indices is not None and indices.size == 1 and indices.item() == -1:
        yield Move(0, along, None)  # the newest step
    elif indices is None or not np.array_equal(indices.ravel(), np.arange(_fixed(size))):
        yield Move(0, along, to, 0, "remembers", "takes steps by their places in a run")
    else:
        yield Move(0, along, to)


def _falls(indices: Any) -> bool:
    """Whether there are several indices, each below the one before it."""
    return indices is not None and indices.size > 1 and bool(np.all(np.diff(indices.ravel()) < 0))


def _fixed(size: int | str) -> int:
    return size if isinstance(size, int) and size < 2**20 else -1


def _reverse_sequence(step: Step) -> Iterator[Move]:
    return _along(step, [step.number("time_axis", 0)], "reverses", "turns time round")


def _split(step: Step) -> Iterator[Move]:
    axis = step.number("axis", 0)
    if len(step.op.outputs) == 1:
        return _first(step)
    return _along(step, [axis], "remembers", "takes steps by their places in a run")


def _concat(step: Step) -> Iterator[Move]:
    for place in range(len(step.op.inputs)):
        for axis in range(len(step.shape(place))):
            yield Move(place, axis, axis)


def _gathered(name: str) -> Rule:
    def rule(step: Step) -> Iterator[Move]:
        counts = step.numbers(name, place=1)
        rank = len(step.shape())
        counts = [1] * (rank - len(counts)) + counts
        return _along(step, [axis for axis in range(rank) if counts[axis] != 1], why="repeats steps of a run")

    return rule


def _expand(step: Step) -> Iterator[Move]:
    shape, sizes = step.shape(), step.flow.sizes(step.op.inputs[1])
    target = step.flow.shape(step.op.outputs[0])
    rank = len(target) if target is not None else max(len(sizes or ()), len(shape))
    if target is None and sizes is None:
        raise UnknownOpError
    for axis, size in enumerate(shape):
        to = rank - len(shape) + axis
        if size != 1 or target is None or target[to] == 1:
            yield Move(0, axis, to)


def _resize(step: Step) -> Iterator[Move]:
    shape, out = step.shape(), step.flow.shape(step.op.outputs[0])
    scales = next((a for n in step.op.inputs[:0:-1] if n and (a := step.flow.constant(n)) is not None), None)
    for axis, size in enumerate(shape):
        is_same = out is not None and isinstance(size, int) and out[axis] == size
        if scales is not None and scales.dtype.kind == "f" and scales.size == len(shape):
            is_same = is_same or scales.ravel()[axis] == 1
        yield Move(0, axis, axis, 0, "" if is_same else "mixes", "" if is_same else "resizes time")


def _window_sizes(step: Step) -> list[int]:
    """The sizes of a window along each axis behind the channels."""
    sizes = step.numbers("kernel_shape") or step.numbers("kernel")
    return sizes or [size if isinstance(size, int) else 0 for size in step.shape(1)[2 - len(step.shape()) :]]


def window_pads(step: Step) -> list[int]:
    """What a convolution or a pooling puts in front of each axis behind the channels, then behind each."""
    count = len(step.shape()) - 2
    pads = step.numbers("pads") or [
        *step.numbers("pads_begin", [0] * count),
        *step.numbers("pads_end", [0] * count),
    ]
    auto = step.text("auto_pad", "NOTSET").upper()
    if auto.startswith("SAME"):  # of a stride of 1
        dilations = step.numbers("dilations", [1] * count)
        reaches = [(size - 1) * by for size, by in zip(_window_sizes(step), dilations, strict=True)]
        behind = [reach // 2 + (reach % 2 if auto == "SAME_UPPER" else 0) for reach in reaches]
        return [*(reach - end for reach, end in zip(reaches, behind, strict=True)), *behind]
    return [0] * (2 * count) if auto == "VALID" else pads


def _window(step: Step) -> Iterator[Move]:
    """Convolutions and pooling."""
    kind = step.op.kind.removeprefix("openvino::")
    rank, is_pool = len(step.shape()), "Pool" in kind
    count = rank - 2
    sizes = _window_sizes(step)
    dilations = step.numbers("dilations", [1] * count)
    strides = step.numbers("strides", [1] * count)
    pads = window_pads(step)
    yield Move(0, 0, 0)
    if is_pool:
        yield Move(0, 1, 1)
    else:
        yield Move(0, 1, None, 0, "mixes", "sums over all steps of a run")
    for axis, (size, dilation, stride) in enumerate(zip(sizes, dilations, strides, strict=True)):
        reach = (size - 1) * dilation
        before, behind = pads[axis], pads[axis + count]
        if stride != 1 or "Transpose" in kind or "BackpropData" in kind:
            moved = stride != 1 or size != 1
            why = f"has stride {stride} along time" if stride != 1 else "spreads each step over later ones"
            yield Move(0, axis + 2, axis + 2, 0, "remembers" if moved else "", why)
            continue
        why = f"reads {size} steps"
        if behind > 0:
            why += f", {behind} of them ahead"
        yield Move(0, axis + 2, axis + 2, 0, "", why, before, behind, reach)


def _pad(step: Step) -> Iterator[Move]:
    rank = len(step.shape())
    if step.op.kind == "Pad":
        pads, axes = step.numbers("pads", place=1) or step.numbers("paddings"), step.numbers("axes", place=3)
    else:
        pads, axes = [*step.numbers("", place=1), *step.numbers("", place=2)], []
    axes = [axis % rank for axis in axes] or list(range(rank))
    for axis in range(rank):
        before, behind = (
            (pads[axes.index(axis)], pads[axes.index(axis) + len(axes)]) if axis in axes else (0, 0)
        )
        yield Move(0, axis, axis, 0, "", "pads time in each run", before, behind)


def _recurrent(step: Step) -> Iterator[Move]:
    batch_first = step.op.kind.startswith("openvino::") or step.number("layout", 0) == 1
    time, batch = (1, 0) if batch_first else (0, 1)
    y_time, y_batch = (2 if step.op.kind.startswith("openvino::") else 1, 0) if batch_first else (0, 2)
    is_forward = step.text("direction", "forward").lower() in ("forward", "foward")
    yield Move(
        0, time, y_time, 0, "" if is_forward else "reverses", "" if is_forward else "runs from the last step"
    )
    yield Move(0, batch, y_batch, 0)
    for output in range(1, len(step.op.outputs)):
        yield Move(0, batch, 0 if batch_first else 1, output)
    yield Move(0, 2, None, 0, "mixes", "sums over all steps of a run")


def _cell(step: Step) -> Iterator[Move]:
    for output in range(len(step.op.outputs)):
        yield Move(0, 0, 0, output)
    yield Move(0, 1, None, 0, "mixes", "sums over all steps of a run")


def _named(rule: Rule, words: str) -> dict[str, Rule]:
    return dict.fromkeys(words.split(), rule)


#: By ONNX's names; those of an IR's layers that have no name in ONNX with "openvino::".
RULES: Mapping[str, Rule] = {
    **_named(
        _pass,
        "Identity Cast Neg Reciprocal Exp Log Abs Sqrt Not Sigmoid Tanh Relu Elu Selu Celu Erf Gelu Mish "
        "Softsign Softplus HardSigmoid HardSwish ThresholdedRelu LeakyRelu Sign Floor Ceil Round Sin Cos Tan "
        "Asin Acos Atan Sinh Cosh Asinh Acosh Atanh IsNaN IsInf Add Sub Mul Div Mod Max Min Sum Mean Pow "
        "PRelu Where And Or Xor Less LessOrEqual Greater GreaterOrEqual Equal BitShift CastLike "
        "openvino::Gelu openvino::Swish openvino::HSwish openvino::Mish openvino::Erf openvino::Floor "
        "openvino::Ceiling openvino::Sign openvino::Sin openvino::Cos openvino::SquaredDifference "
        "openvino::Mod openvino::FloorMod openvino::NotEqual openvino::LogicalXor openvino::Divide",
    ),
    **_named(
        _first,
        "Clip Dropout BatchNormalization QuantizeLinear DequantizeLinear LRN openvino::BatchNormInference",
    ),
    **_named(_matmul, "MatMul MatMulInteger"),
    **_named(
        _reduce,
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceSumSquare openvino::ReduceMean openvino::ReduceSum openvino::ReduceMax openvino::ReduceMin "
        "openvino::ReduceProd openvino::ReduceL1 openvino::ReduceL2",
    ),
    **_named(_spatial, "GlobalAveragePool GlobalMaxPool GlobalLpPool"),
    **_named(lambda step: _along(step, range(2, len(step.shape())), why=_OVER), "InstanceNormalization"),
    **_named(lambda step: _along(step, range(1, len(step.shape())), why=_OVER), "GroupNormalization"),
    **_named(lambda step: _along(step, range(len(step.shape())), why=_OVER), "DynamicQuantizeLinear"),
    **_named(
        lambda step: _along(step, step.numbers("axes", (0, 2, 3), place=1), why=_OVER),
        "MeanVarianceNormalization openvino::MVN openvino::NormalizeL2",
    ),
    **_named(_softmax, "Softmax LogSoftmax Hardmax"),
    **_named(_over_axis(1), "openvino::SoftMax openvino::Softmax"),
    **_named(_over_axis(-1), "LpNormalization TopK openvino::LogSoftmax"),
    **_named(_arg, "ArgMax ArgMin"),
    **_named(_from_axis(-1), "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **_named(_cumsum, "CumSum openvino::CumSum"),
    **_named(
        _window,
        "Conv ConvTranspose ConvInteger MaxPool AveragePool LpPool openvino::Convolution openvino::MaxPool "
        "openvino::GroupConvolution openvino::AvgPool openvino::ConvolutionBackpropData "
        "openvino::GroupConvolutionBackpropData",
    ),
    **_named(_pad, "Pad openvino::Pad"),
    **_named(
        _recurrent,
        "GRU LSTM RNN AUGRU openvino::GRUSequence openvino::AUGRUSequence openvino::LSTMSequence "
        "openvino::RNNSequence",
    ),
    **_named(_cell, "openvino::GRUCell openvino::AUGRUCell openvino::LSTMCell openvino::RNNCell"),
    **_named(_resize, "Resize Upsample openvino::Interpolate"),
    **_named(_gathered("repeats"), "Tile openvino::Tile"),
    **{"Gemm": _gemm, "Einsum": _einsum, "Transpose": _transpose, "Squeeze": _squeeze},
    **{"Unsqueeze": _unsqueeze, "Slice": _slice, "Gather": _gather, "ReverseSequence": _reverse_sequence},
    **{"Split": _split, "Concat": _concat, "Expand": _expand},
    **_named(lambda step: (), "Shape Size ConstantOfShape Range"),
}

#: Where each recurrence takes its initial states, and where it gives its last ones.
RECURRENT: Mapping[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(("GRU", "RNN", "AUGRU"), ((5, 1),)),
    "LSTM": ((5, 1), (6, 2)),
    **dict.fromkeys(("openvino::GRUSequence", "openvino::AUGRUSequence", "openvino::RNNSequence"), ((1, 1),)),
    "openvino::LSTMSequence": ((1, 1), (2, 2)),
}

#: The inputs with the lengths of rows; the fifth in ONNX.
LENGTHS: Mapping[str, int] = {
    **dict.fromkeys(("openvino::GRUSequence", "openvino::AUGRUSequence", "openvino::RNNSequence"), 2),
    "openvino::LSTMSequence": 3,
}

#: Inputs of which only the numbers count, as sizes and places.
SIZES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Pad", "openvino::Tile"), (1, 2, 3)),
    **{"ConstantOfShape": (0,), "Slice": (1, 2, 3, 4), "ReverseSequence": (1,), "Resize": (1, 2, 3)},
    **{"Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "openvino::Pad": (1, 2)},
}


def kind_of(op: Op) -> str:
    """An operator's kind, by which it has a rule."""
    domain, _, kind = op.kind.rpartition("::")
    if kind == "AUGRU" and domain.startswith("onegru"):
        return kind
    if domain in ("ai.onnx.ml", "com.microsoft") and kind in ("Gelu", "FastGelu", "QuickGelu"):
        return "Gelu"
    return op.kind
