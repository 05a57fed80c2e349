"""What each operator does along each axis of what it takes.

A rule returns `Move`s: where an axis of an input goes in an output, and what would be wrong with it if that
axis were time. An axis that a rule does not name is new in the output: where it is time, a plan refuses the
operator. `ATTRIBUTES` and `INPUTS` say what the rules have understood of a node; of what has more, nothing is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onegru.core.activations import AS_OPERATORS
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
    """Each axis of the first input stays; the others are single numbers."""
    others = [step.shape(place) for place, name in enumerate(step.op.inputs) if place and name]
    if any(size != 1 for shape in others for size in shape):
        raise UnknownOpError
    return _along(step, ())


def _dropout(step: Step) -> Iterator[Move]:
    mode = step.op.inputs[2] if len(step.op.inputs) > 2 else ""
    if (mode and step.flow.fill(mode) != 0) or (step.opset < 7 and not step.number("is_test", 0)):
        raise UnknownOpError  # it draws numbers
    return _along(step, ())


def _channels(step: Step) -> Iterator[Move]:
    return _along(step, [1] if len(step.shape()) > 1 else [], why=_OF_ITS_OWN)


def _batch_norm(step: Step) -> Iterator[Move]:
    is_training = step.number("training_mode", 0) or (step.opset < 7 and not step.number("is_test", 0))
    if is_training or any(step.op.outputs[1:]) or step.number("spatial", 1) != 1:
        raise UnknownOpError
    return _channels(step)


def _quantized(step: Step) -> Iterator[Move]:
    """One scale for all, or one for each place along an axis."""
    sizes = [
        size for place in range(1, len(step.op.inputs)) if step.op.inputs[place] for size in step.shape(place)
    ]
    if step.number("block_size", 0):
        raise UnknownOpError
    return _along(step, [step.number("axis", 1)] if any(size != 1 for size in sizes) else [], why=_OF_ITS_OWN)


def _layer_norm(step: Step) -> Iterator[Move]:
    rank = len(step.shape())
    yield from _along(step, range(step.number("axis", -1) % rank, rank), why=_OVER)
    for place in range(1, len(step.op.inputs)):  # scale and bias may have as many axes as what they scale
        size = len(step.shape(place)) if step.op.inputs[place] else 0
        yield from (Move(place, axis, rank - size + axis) for axis in range(size))


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
_OF_ITS_OWN = "has numbers of its own for each step"


def _over_axis(default: int, why: str = _OVER) -> Rule:
    return lambda step: _along(step, [step.number("axis", default)], why=why)


def _arg(step: Step) -> Iterator[Move]:
    return _along(step, [step.number("axis", 0)], why=_OVER, keeps=bool(step.number("keepdims", 1)))


def _softmax(step: Step) -> Iterator[Move]:
    if step.opset >= 13:
        return _along(step, [step.number("axis", -1)], why=_OVER)
    rank = len(step.shape())
    return _along(step, range(step.number("axis", 1) % rank, rank), why=_OVER)


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


def _matmul_integer(step: Step) -> Iterator[Move]:
    yield from _matmul(step)
    rank = max(len(step.shape(0)), len(step.shape(1)), 2)
    for place, name in enumerate(step.op.inputs[2:], 2):  # one zero point, or one for each row or column
        shape = step.shape(place) if name else ()
        if len(shape) > 1 or (len(shape) == 1 and min(len(step.shape(0)), len(step.shape(1))) < 2):
            raise UnknownOpError
        if len(shape) == 1:
            yield Move(place, 0, rank - 4 + place)


def _gemm(step: Step) -> Iterator[Move]:
    for place, name in enumerate(("transA", "transB")):
        summed = (1 - place) ^ step.number(name, 0)
        yield Move(place, summed, None, 0, "mixes", "sums over all steps of a run")
        yield Move(place, 1 - summed, place)
    if len(step.op.inputs) > 2 and step.op.inputs[2]:
        rank = len(step.shape(2))
        yield from (Move(2, axis, 2 - rank + axis) for axis in range(rank) if step.shape(2)[axis] != 1)


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
    is_said = "axes" in step.op.attributes or any(step.op.inputs[1:])
    if gone is None or not (is_said or all(isinstance(size, int) for size in step.shape())):
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
    elif indices is not None and indices.size == 1 and size in (1, indices.item() + 1):
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
    """An axis stays if its scale is 1, or if its size is; whether a size stays is asked where it is time."""
    shape, out = step.shape(), step.flow.shape(step.op.outputs[0])
    mode = step.text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or step.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnknownOpError
    scales = step.op.attributes.get("scales")
    if scales is None:
        place = 1 if len(step.op.inputs) < 3 else 2
        found = step.flow.constant(step.op.inputs[place]) if len(step.op.inputs) > place else None
        scales = found.ravel() if found is not None and found.dtype.kind == "f" and found.size else None
    for axis, size in enumerate(shape):
        if scales is not None:
            is_same = len(scales) == len(shape) and scales[axis] == 1
        else:
            is_same = out is not None and len(out) == len(shape) and out[axis] == size
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
    if auto.startswith("SAME"):
        dilations, strides = (step.numbers(name, [1] * count) for name in ("dilations", "strides"))
        reaches = [(size - 1) * by for size, by in zip(_window_sizes(step), dilations, strict=True)]
        if "Pool" in step.op.kind and any(by != 1 for by in dilations):
            raise UnknownOpError  # runtimes do not agree
        for axis, (stride, size) in enumerate(zip(strides, step.shape()[2:], strict=True)):
            if stride != 1 and (not isinstance(size, int) or "Transpose" in step.op.kind):
                raise UnknownOpError  # how many it puts there depends on a size that is not known
            if stride != 1 and isinstance(size, int):
                reaches[axis] = max((-(-size // stride) - 1) * stride + reaches[axis] + 1 - size, 0)
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
    is_deconvolution = "Transpose" in kind or "BackpropData" in kind
    pads = [0] * (2 * count) if is_deconvolution else window_pads(step)
    if min(pads, default=0) < 0:
        raise UnknownOpError
    yield Move(0, 0, 0)
    if is_pool:
        yield Move(0, 1, 1)
    else:
        yield Move(0, 1, None, 0, "mixes", "sums over all steps of a run")
    for axis, (size, dilation, stride) in enumerate(zip(sizes, dilations, strides, strict=True)):
        reach = (size - 1) * dilation
        before, behind = pads[axis], pads[axis + count]
        if stride != 1 or is_deconvolution:
            moved = stride != 1 or size != 1 or _changes_size(step, axis)
            why = f"has stride {stride} along time" if stride != 1 else "spreads each step over later ones"
            yield Move(0, axis + 2, axis + 2, 0, "remembers" if moved else "", why)
            continue
        why = f"reads {size} steps"
        if behind > 0:
            why += f", {behind} of them ahead"
        yield Move(0, axis + 2, axis + 2, 0, "", why, before, behind, reach)


def _changes_size(step: Step, axis: int) -> bool:
    """Whether a deconvolution pads or cuts an axis behind the channels by itself."""
    count = len(step.shape()) - 2
    more = step.numbers("output_padding", [0] * count)
    pads = [
        *step.numbers("pads", [0] * (2 * count)),
        *step.numbers("pads_begin", [0] * count),
        *step.numbers("pads_end", [0] * count),
    ]
    is_given = bool(step.numbers("output_shape")) or (len(step.op.inputs) > 2 and "openvino" in step.op.kind)
    return is_given or bool(more[axis] or any(pads[axis::count]))


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
    if kind_of(step.op) in ("AUGRU", "openvino::AUGRUSequence"):
        yield Move(6, time, y_time, 0)
        yield Move(6, batch, y_batch, 0)
    if not step.op.kind.startswith("openvino::"):
        places = [first for first, _ in RECURRENT[kind_of(step.op)] if any(step.op.inputs[first : first + 1])]
        yield from (Move(place, 0 if batch_first else 1, y_batch, 0) for place in places)


def _cell(step: Step) -> Iterator[Move]:
    for output in range(len(step.op.outputs)):
        yield Move(0, 0, 0, output)
    yield Move(0, 1, None, 0, "mixes", "sums over all steps of a run")


def least_rank(step: Step, output: int) -> int:
    """How many axes an output has at least, the new ones at its end included."""
    kind, rank = kind_of(step.op), len(step.shape())
    if kind in RECURRENT:
        return 3 if output else 4
    if kind == "Unsqueeze":
        return rank + len(step.numbers("axes", place=1))
    if kind == "Gather":
        return rank + len(step.shape(1)) - 1
    is_kept = RULES[kind] is _reduce and step.number("keepdims", 1)
    return rank if is_kept or RULES[kind] in (_spatial, _slice) else 0


def _named(rule: Rule, words: str) -> dict[str, Rule]:
    return dict.fromkeys(words.split(), rule)


#: By ONNX's names; those of an IR's layers that have no name in ONNX with "openvino::".
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(AS_OPERATORS, _pass),
    **_named(
        _pass,
        "Identity Cast Neg Reciprocal Exp Log Abs Sqrt Not Selu Celu Erf Gelu Mish HardSwish Sign Floor "
        "Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh IsNaN IsInf Add Sub Mul Div Mod "
        "Max Min Sum Mean Pow PRelu Where And Or Xor Less LessOrEqual Greater GreaterOrEqual Equal "
        "BitShift CastLike openvino::Gelu openvino::Swish openvino::HSwish openvino::Mish openvino::Erf "
        "openvino::Floor openvino::Ceiling openvino::Sign openvino::Sin openvino::Cos openvino::Divide "
        "openvino::SquaredDifference openvino::Mod openvino::FloorMod openvino::NotEqual "
        "openvino::LogicalXor",
    ),
    **_named(_first, "Clip"),
    **{"Dropout": _dropout, "BatchNormalization": _batch_norm, "openvino::BatchNormInference": _channels},
    **{"QuantizeLinear": _quantized, "DequantizeLinear": _quantized},
    **{"MatMul": _matmul, "MatMulInteger": _matmul_integer},
    **_named(_over_axis(1), "LRN"),
    **_named(
        _reduce,
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceSumSquare openvino::ReduceMean openvino::ReduceSum openvino::ReduceMax openvino::ReduceMin "
        "openvino::ReduceProd openvino::ReduceL1 openvino::ReduceL2",
    ),
    **_named(_spatial, "GlobalAveragePool GlobalMaxPool GlobalLpPool"),
    **_named(lambda step: _along(step, range(1, len(step.shape())), why=_OVER), "InstanceNormalization"),
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
    **_named(_layer_norm, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
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
    **dict.fromkeys(("Reshape", "Expand", "Tile", "openvino::Tile"), (1, 2, 3)),
    **{
        "Pad": (1, 3),
        "ConstantOfShape": (0,),
        "Slice": (1, 2, 3, 4),
        "ReverseSequence": (1,),
        "Resize": (1, 2, 3),
    },
    **{"Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "openvino::Pad": (1, 2)},
}


_RESIZE = "antialias coordinate_transformation_mode cubic_coeff_a exclude_outside mode"
_WINDOW = "auto_pad ceil_mode count_include_pad dilations group kernel_shape p pads storage_order strides"
_RECURRENT = (
    "activation_alpha activation_beta activations clip direction hidden_size layout linear_before_reset"
)

#: The attributes that rules have understood, by kind. Other kinds have none.
ATTRIBUTES: Mapping[str, frozenset[str]] = {
    kind: frozenset(words.split())
    for kinds, words in (
        ("Cast", "dtype saturate"),
        ("CastLike", "saturate"),
        ("Elu LeakyRelu ThresholdedRelu Celu", "alpha"),
        ("Selu HardSigmoid", "alpha gamma beta"),
        ("Gelu", "approximate alpha"),
        ("Mod", "fmod"),
        ("BitShift", "direction"),
        ("IsInf", "detect_negative detect_positive"),
        ("Clip", "min max"),
        ("Dropout", "ratio seed is_test"),
        ("BatchNormalization", "epsilon momentum training_mode spatial is_test"),
        ("QuantizeLinear DequantizeLinear", "axis block_size output_dtype precision saturate"),
        ("LRN", "alpha beta bias size"),
        (
            "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1",
            "axes keepdims noop_with_empty_axes",
        ),
        ("ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare", "axes keepdims noop_with_empty_axes"),
        ("GlobalLpPool", "p"),
        ("InstanceNormalization", "epsilon"),
        ("GroupNormalization", "epsilon num_groups stash_type"),
        ("MeanVarianceNormalization", "axes"),
        ("Softmax LogSoftmax Hardmax Concat Gather Flatten", "axis"),
        ("LpNormalization", "axis p"),
        ("TopK", "axis k largest sorted"),
        ("ArgMax ArgMin", "axis keepdims select_last_index"),
        ("LayerNormalization RMSNormalization SimplifiedLayerNormalization", "axis epsilon stash_type"),
        ("CumSum", "exclusive reverse"),
        ("Conv ConvInteger MaxPool AveragePool LpPool", _WINDOW),
        ("ConvTranspose", f"{_WINDOW} output_padding output_shape"),
        ("Pad", "mode pads paddings value"),
        ("GRU LSTM RNN AUGRU", f"{_RECURRENT} input_forget output_sequence"),
        ("Resize", f"{_RESIZE} extrapolation_value keep_aspect_ratio_policy nearest_mode"),
        ("Upsample", "mode scales"),
        ("Gemm", "alpha beta transA transB"),
        ("Einsum", "equation"),
        ("Transpose", "perm"),
        ("Squeeze Unsqueeze", "axes"),
        ("Slice", "starts ends axes"),
        ("ReverseSequence", "batch_axis time_axis"),
        ("Split", "axis split num_outputs"),
        ("Reshape", "allowzero shape"),
        ("Shape", "start end"),
        ("ConstantOfShape", "value"),
    )
    for kind in kinds.split()
}

#: How many inputs rules have understood, where it is not any number.
INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "LayerNormalization", "InstanceNormalization"), 3),
    **dict.fromkeys(("Clip", "Dropout", "QuantizeLinear", "DequantizeLinear", "Gemm"), 3),
    **{
        "BatchNormalization": 5,
        "GRU": 6,
        "RNN": 6,
        "LSTM": 8,
        "AUGRU": 7,
        "MatMulInteger": 4,
        "ConvInteger": 4,
    },
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Gather", "Squeeze", "Unsqueeze", "Split", "CumSum"), 2),
    **{"MatMul": 2, "Pad": 4, "Slice": 5, "Resize": 4, "Upsample": 2, "TopK": 2, "ReverseSequence": 2},
}


def is_understood(op: Op) -> bool:
    """Whether a rule knows all that an operator of an ONNX file says."""
    if hasattr(op.origin, "data"):  # an IR's layer: its rules ask for what they need
        return True
    kind = kind_of(op)
    known = ATTRIBUTES.get(kind, frozenset())
    return known.issuperset(op.attributes) and len(op.inputs) <= INPUTS.get(kind, len(op.inputs))


def keeps_zeros(op: Op) -> bool:
    """Whether an operator is a convolution that gives zeros for zeros, as it adds no bias."""
    kinds = ("Conv", "openvino::Convolution", "openvino::GroupConvolution")
    return kind_of(op) in kinds and len(op.inputs) < 3


def counts_padding(step: Step) -> bool:
    """Whether a pooling takes what it pads with as zeros that count."""
    if step.op.kind == "openvino::AvgPool":
        return step.text("exclude-pad").lower() in ("false", "0")
    return step.op.kind == "AveragePool" and step.number("count_include_pad", 0) == 1


def state_form(op: Op) -> tuple[int, bool]:
    """The input with a recurrence's R, and whether its batch comes first."""
    if op.kind.startswith("openvino::"):
        return LENGTHS[op.kind] + 2, True
    return 2, op.attributes.get("layout", 0) == 1


def kind_of(op: Op) -> str:
    """An operator's kind, by which it has a rule."""
    domain, _, kind = op.kind.rpartition("::")
    if kind == "AUGRU" and domain.startswith("onegru"):
        return kind
    if domain in ("ai.onnx.ml", "com.microsoft") and kind in ("Gelu", "FastGelu", "QuickGelu"):
        return "Gelu"
    return op.kind
