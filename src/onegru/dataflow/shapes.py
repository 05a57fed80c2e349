"""The sizes and shapes of what operators give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from onegru.core.activations import AS_OPERATORS
from onegru.dataflow.elements import Elements, movers
from onegru.dataflow.operator import Facts, LoopIndex, Op, Shape, Size
from onegru.operators.onnx import AUGRU_DOMAINS

# Rules for sizes: of the elements of the inputs, the elements of the output.

_Sizes = tuple[Size, ...]

_LONGEST_NAME = 200  # of a product of sizes


def _arithmetic(combine: Callable[[int, int], int], neutral: int | None = None) -> Any:
    def rule(flow: Facts, op: Op, parts: list[_Sizes]) -> _Sizes | None:
        first, second = parts
        length = max(len(first), len(second))
        result: list[Size] = []
        for a, b in zip(first * (length // len(first)), second * (length // len(second)), strict=True):
            if isinstance(a, int) and isinstance(b, int):
                result.append(combine(a, b))
            elif b == neutral:
                result.append(a)
            elif a == neutral and op.kind in ("Add", "Mul"):
                result.append(b)
            elif op.kind == "Mul" and len(name := f"{a}*{b}") <= _LONGEST_NAME:
                result.append(name)
            else:
                return None
        return tuple(result)

    return rule


def _gather_sizes(flow: Facts, op: Op, parts: list[_Sizes]) -> _Sizes | None:
    data, indices = parts
    return tuple(data[index] for index in indices if isinstance(index, int)) if _fixed(indices) else None


def _slice_sizes(flow: Facts, op: Op, parts: list[_Sizes]) -> _Sizes | None:
    starts, ends = flow.ints(op, "starts", 1), flow.ints(op, "ends", 2)
    steps = flow.ints(op, "steps", 4) or [1]
    if starts is None or ends is None or len(starts) != 1:
        return None
    return parts[0][starts[0] : ends[0] if abs(ends[0]) < 2**31 - 1 else None : steps[0]]


def _concat_sizes(flow: Facts, op: Op, parts: list[_Sizes]) -> _Sizes:
    return tuple(size for part in parts for size in part)


def _fixed(sizes: _Sizes) -> bool:
    return all(isinstance(size, int) for size in sizes)


SAME_SIZES = movers(Elements.KEPT, casts=True, without=("Flatten",))

SIZE_RULES: dict[str, Callable[[Facts, Op, list[_Sizes]], _Sizes | None]] = {
    **dict.fromkeys(SAME_SIZES, lambda flow, op, parts: parts[0]),
    "Gather": _gather_sizes,
    "Slice": _slice_sizes,
    "Concat": _concat_sizes,
    "Add": _arithmetic(lambda a, b: a + b, 0),
    "Sub": _arithmetic(lambda a, b: a - b, 0),
    "Mul": _arithmetic(lambda a, b: a * b, 1),
    "Div": _arithmetic(lambda a, b: a // b if a * b >= 0 else -(-a // b), 1),
    "Max": _arithmetic(max),
    "Min": _arithmetic(min),
}


# Rules for shapes: of the shapes of the inputs, that of one output.


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The shape of an operator that works element by element."""
    shapes = list(shapes)
    rank = max(map(len, shapes))
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        others = [size for size in sizes if size != 1]
        fixed = [size for size in others if isinstance(size, int)]
        result.append(fixed[0] if fixed else others[0] if others else 1)
    return tuple(result)


def _same(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    return shapes[0] if output == 0 or op.kind == "Dropout" else None


def _elementwise(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    return broadcast(shapes)


def _matmul(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    first, second = shapes
    if not first or not second:
        return None
    rows = first[-2:-1]
    columns = second[-1:] if len(second) > 1 else ()
    return (*broadcast([first[:-2], second[:-2]] if first[:-2] or second[:-2] else [()]), *rows, *columns)


def _gemm(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    rows = shapes[0][1 if op.attributes.get("transA") else 0]
    return rows, shapes[1][0 if op.attributes.get("transB") else 1]


def _einsum(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    terms = einsum_terms(op, [len(shape) for shape in shapes])
    if terms is None:
        return None
    sizes: dict[str, Size] = {}
    for term, shape in zip(terms[:-1], shapes, strict=True):
        sizes.update((key, size) for key, size in zip(term, shape, strict=True) if sizes.get(key, 1) == 1)
    return tuple(sizes[letter] for letter in terms[-1])


def einsum_terms(op: Op, ranks: Sequence[int] = ()) -> list[str] | None:
    """The letters of an Einsum's inputs and of its output; None if it needs ranks that do not fit it.

    Args:
        op: the Einsum.
        ranks: those of its inputs, with which an ellipsis becomes letters, and an output left out is known.
    """
    left, arrow, right = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if arrow and "." not in left + right:
        return [*terms, right]
    free = [rank - len(term) + 3 if "." in term else 0 for rank, term in zip(ranks, terms, strict=False)]
    if len(ranks) != len(terms) or min(free) < 0:
        return None
    ellipsis = "".join(chr(0x3B1 + place) for place in range(max(free)))
    if not arrow:
        right = ellipsis + "".join(sorted(c for c in left if c.isalpha() and left.count(c) == 1))
    ends = [ellipsis[len(ellipsis) - count :] for count in free]
    terms = [term.replace("...", end) for term, end in zip(terms, ends, strict=True)]
    return [*terms, right.replace("...", ellipsis)]


def _range(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    first, last, step = (flow.sizes(name) for name in op.inputs)
    if first != (0,) or step != (1,) or last is None or len(last) != 1:
        return None
    return last


def _transpose(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    perm = op.attributes.get("perm", range(len(shapes[0]))[::-1])
    return tuple(shapes[0][axis] for axis in perm)


def _reshape(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    wanted = flow.sizes(op.inputs[1])
    if wanted is None:
        return None
    sizes = [
        shapes[0][axis] if size == 0 and not op.attributes.get("allowzero") else size
        for axis, size in enumerate(wanted)
    ]
    if -1 in sizes:
        given = list(shapes[0])
        for size in [size for size in sizes if size != -1]:
            if size in given and isinstance(size, str):
                given.remove(size)
            elif isinstance(size, str):
                return tuple(f"{op.outputs[0]}#{axis}" if s == -1 else s for axis, s in enumerate(sizes))
        rest = [size for size in sizes if isinstance(size, int) and size != -1]
        names = [size for size in given if isinstance(size, str)]
        fixed = math.prod(size for size in given if isinstance(size, int))
        left, over = divmod(fixed, math.prod(rest))
        filled: Size = left
        if over or len(names) > 1 or (names and left != 1):
            filled = f"{op.outputs[0]}#{sizes.index(-1)}"
        elif names:
            filled = names[0]
        sizes[sizes.index(-1)] = filled
    return tuple(sizes)


def squeezed_axes(flow: Facts, op: Op, shape: Shape) -> list[int] | None:
    """The axes that a Squeeze takes away; None if they are not known."""
    axes = flow.ints(op, "axes", 1)
    if axes is None:
        if len(op.inputs) > 1 and op.inputs[1]:
            return None
        return [axis for axis, size in enumerate(shape) if size == 1]
    return [axis % len(shape) for axis in axes]


def _squeeze(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    axes = squeezed_axes(flow, op, shapes[0])
    return None if axes is None else tuple(s for axis, s in enumerate(shapes[0]) if axis not in axes)


def _unsqueeze(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    axes = flow.ints(op, "axes", 1)
    if axes is None:
        return None
    rank, rest = len(shapes[0]) + len(axes), iter(shapes[0])
    inserted = {axis % rank for axis in axes}
    return tuple(1 if axis in inserted else next(rest) for axis in range(rank))


def slice_ranges(flow: Facts, op: Op, shape: Shape) -> dict[int, tuple[int, int, int] | None] | None:
    """For each axis that a Slice cuts, first index, count and step; None for one that is taken whole.

    None if a bound is not known.
    """
    starts, ends = (flow.ints(op, name, place) for name, place in (("starts", 1), ("ends", 2)))
    if starts is None or ends is None:
        return None
    axes = flow.ints(op, "axes", 3) or list(range(len(starts)))
    steps = flow.ints(op, "steps", 4) or [1] * len(starts)
    ranges: dict[int, tuple[int, int, int] | None] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis]
        if start == 0 and end >= 2**31 - 1 and step == 1:
            ranges[axis % len(shape)] = None
        elif isinstance(size, int):
            indices = range(size)[start:end:step]
            ranges[axis % len(shape)] = (indices.start, len(indices), step)
        elif step == 1 and start >= 0 and end > start and end < 2**31 - 1:
            ranges[axis % len(shape)] = (start, end - start, 1)  # as far as the axis goes
        elif step == -1 and start in (-1, 2**31 - 1, 2**63 - 1) and end < -(2**31) + 2:
            ranges[axis % len(shape)] = (-1, -1, -1)  # backwards, however long it is
        elif step == 1 and start < 0 and (end >= 2**31 - 1 or start < end < 0):
            ranges[axis % len(shape)] = (start, (0 if end > 0 else end) - start, 1)  # the last ones
        else:
            return None
    return ranges


def index_slice(flow: Facts, op: Op, shape: Shape) -> tuple[int, LoopIndex] | None:
    """The axis of which a Slice takes the one slice that a loop's iteration says, and its index."""
    if len(op.inputs) < 4 or not flow.indices or (flow.ints(op, "steps", 4) or [1]) != [1]:
        return None
    first, last = (flow.indices.get(flow.resolve(name)) for name in op.inputs[1:3])
    axes = flow.ints(op, "axes", 3)
    if first is None or last is None or axes is None or len(axes) != 1:
        return None
    is_one = last == LoopIndex(first.sign, first.base + 1, first.size)
    return (axes[0] % len(shape), first) if is_one else None


def _slice(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    if (single := index_slice(flow, op, shapes[0])) is not None:
        return (*shapes[0][: single[0]], 1, *shapes[0][single[0] + 1 :])
    ranges, sizes = slice_ranges(flow, op, shapes[0]), list(shapes[0])
    if ranges is None:
        for axis in flow.ints(op, "axes", 3) or range(len(sizes)):
            sizes[axis] = f"{op.outputs[0]}#{axis % len(sizes)}"
        return tuple(sizes)
    for axis, cut in ranges.items():
        if cut is not None and cut[1] >= 0:
            sizes[axis] = cut[1]
    return tuple(sizes)


def _gather(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    axis = op.attributes.get("axis", 0) % len(shapes[0])
    return (*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])


def split_sizes(flow: Facts, op: Op, shape: Shape) -> list[int] | None:
    """The sizes of the parts of a Split; None if they are not known."""
    sizes = flow.ints(op, "split", 1)
    if sizes is not None:
        return sizes
    whole = shape[op.attributes.get("axis", 0)]
    count = len(op.outputs)
    if not isinstance(whole, int) or (len(op.inputs) > 1 and op.inputs[1]):
        return None
    part = -(-whole // count)
    return [part] * (count - 1) + [whole - part * (count - 1)]


def _split(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    sizes = split_sizes(flow, op, shapes[0])
    if sizes is None:
        return None
    axis = op.attributes.get("axis", 0) % len(shapes[0])
    return (*shapes[0][:axis], sizes[output], *shapes[0][axis + 1 :])


def _concat(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    axis = op.attributes["axis"] % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    whole: Size = f"{op.outputs[0]}#{axis}"
    if _fixed(tuple(sizes)):
        whole = sum(size for size in sizes if isinstance(size, int))
    return (*shapes[0][:axis], whole, *shapes[0][axis + 1 :])


def _expand(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    sizes = flow.sizes(op.inputs[1])
    return None if sizes is None else broadcast([shapes[0], sizes])


def _tile(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    repeats = flow.sizes(op.inputs[1])
    if repeats is None or len(repeats) != len(shapes[0]):
        return None
    found: Shape | None = _arithmetic(lambda a, b: a * b, 1)(flow, Op("Mul", (), ()), [shapes[0], repeats])
    return found


def _rank(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape:
    first, last = op.attributes.get("start", 0), op.attributes.get("end")
    return (len(shapes[0][first:last]),)


def _constant_of_shape(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    return flow.sizes(op.inputs[0])


def _reduced(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    axes = flow.ints(op, "axes", 1)
    if not axes:
        return None
    axes, sizes = [axis % len(shapes[0]) for axis in axes], enumerate(shapes[0])
    if op.attributes.get("keepdims", 1):
        return tuple(1 if axis in axes else size for axis, size in sizes)
    return tuple(size for axis, size in sizes if axis not in axes)


#: Operators that give a number for each element of their first input, and those of all inputs, broadcast.
SAME_SHAPE = (
    *("Identity", "Cast", "Neg", "Reciprocal", "Exp", "Log", "Abs", "Sqrt", "Not", "Clip"),
    *AS_OPERATORS,
    *("HardSwish", "Gelu", "Selu", "Celu", "Mish", "Erf"),
)
BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow", "PRelu", "Where", "And", "Or"),
    *("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
)


_NORMS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "Softmax", "LogSoftmax")


def _recurrent(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    """Y, then the last states."""
    X, R = shapes[0], shapes[2]
    if len(X) != 3 or len(R) != 3:
        return None
    if op.attributes.get("layout") == 1:
        return (X[0], X[1], R[0], R[2]) if output == 0 else (X[0], R[0], R[2])
    return (X[0], R[0], X[1], R[2]) if output == 0 else (R[0], X[1], R[2])


def _ir_recurrent(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    """Y, then Ho; X, the first state, the lengths and the weights come first."""
    X, R = shapes[0], shapes[4]
    if len(X) != 3 or len(R) != 3:
        return None
    return (X[0], R[0], X[1], R[2]) if output == 0 else (X[0], R[0], R[2])


def _padded(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    rank = len(shapes[0])
    pads = flow.ints(op, "pads", 1) or flow.ints(op, "paddings", 1)
    axes = flow.ints(op, "axes", 3) or list(range(rank))
    if pads is None or len(pads) != 2 * len(axes):
        return None
    sizes = list(shapes[0])
    for place, axis in enumerate(axes):
        sizes[axis] = _longer(op, axis % rank, sizes[axis], pads[place] + pads[place + len(axes)])
    return tuple(sizes)


def _windowed(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    """A convolution or a pooling."""
    spatial, is_pool = len(shapes[0]) - 2, "Pool" in op.kind
    kernel = op.attributes.get("kernel_shape") or (() if is_pool else shapes[1][2:])
    strides, dilations = (op.attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    pads, auto = op.attributes.get("pads") or [0] * (2 * spatial), op.attributes.get("auto_pad", "NOTSET")
    sizes: list[Size] = [shapes[0][0], shapes[0][1] if is_pool else shapes[1][0]]
    for axis in range(spatial):
        size, whole, stride = kernel[axis], shapes[0][axis + 2], strides[axis]
        more = 0 if auto == "VALID" else pads[axis] + pads[axis + spatial]
        is_open = stride != 1 and (not isinstance(whole, int) or op.attributes.get("ceil_mode"))
        is_odd = is_pool and auto.startswith("SAME") and dilations[axis] != 1  # runtimes do not agree
        if not isinstance(size, int) or is_open or is_odd:
            sizes.append(f"{op.outputs[0]}#{axis + 2}")
        elif auto.startswith("SAME"):
            sizes.append(-(-whole // stride) if isinstance(whole, int) else whole)
        elif isinstance(whole, int):
            left = whole + more - (size - 1) * dilations[axis] - 1
            sizes.append(left // stride + 1 if left >= 0 else f"{op.outputs[0]}#{axis + 2}")
        else:
            sizes.append(_longer(op, axis + 2, whole, more - (size - 1) * dilations[axis]))
    return tuple(sizes)


def _deconvolved(flow: Facts, op: Op, shapes: list[Shape], output: int) -> Shape | None:
    spatial, kernel = len(shapes[0]) - 2, shapes[1][2:]
    strides, dilations, added = (
        op.attributes.get(key) or [default] * spatial
        for key, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = op.attributes.get("pads") or [0] * (2 * spatial)
    is_plain = op.attributes.get("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in op.attributes
    channels = shapes[1][1]
    if not is_plain or not isinstance(channels, int):
        return None
    sizes: list[Size] = [shapes[0][0], channels * op.attributes.get("group", 1)]
    for axis, (whole, size) in enumerate(zip(shapes[0][2:], kernel, strict=True)):
        if not isinstance(whole, int) or not isinstance(size, int):
            is_same = size == strides[axis] == 1 and not (added[axis] or pads[axis] or pads[axis + spatial])
            sizes.append(whole if is_same else f"{op.outputs[0]}#{axis + 2}")
            continue
        less = pads[axis] + pads[axis + spatial]
        sizes.append((whole - 1) * strides[axis] + added[axis] + (size - 1) * dilations[axis] + 1 - less)
    return tuple(sizes)


def _longer(op: Op, axis: int, size: Size, more: int) -> Size:
    return size + more if isinstance(size, int) else f"{op.outputs[0]}#{axis}" if more else size


SHAPE_RULES: dict[str, Callable[[Facts, Op, list[Shape], int], Shape | None]] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN", *(f"{domain}::AUGRU" for domain in AUGRU_DOMAINS)), _recurrent),
    **dict.fromkeys(("openvino::GRUSequence", "openvino::AUGRUSequence"), _ir_recurrent),
    **dict.fromkeys((*SAME_SHAPE, *_NORMS, "ReverseSequence", "Dropout"), _same),
    **dict.fromkeys(BROADCAST, _elementwise),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduced),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Concat": _concat,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Pad": _padded,
    **dict.fromkeys(("Conv", "AveragePool", "MaxPool", "LpPool"), _windowed),
    "ConvTranspose": _deconvolved,
    "Shape": _rank,
    "ConstantOfShape": _constant_of_shape,
}


# Reversals


def is_reversal(flow: Facts, op: Op) -> int | None:
    """The axis that an operator turns round as a whole; None if it does something else."""
    shape = flow.shape(op.inputs[0]) if op.inputs else None
    if shape is None:
        return None
    if op.kind == "ReverseSequence":
        axis = int(op.attributes.get("time_axis", 0))
        size = flow.fill(op.inputs[1])
        return axis if size is not None and size == shape[axis] else None
    if op.kind == "Slice":
        ranges = slice_ranges(flow, op, shape)
        cut = [(axis, item) for axis, item in (ranges or {}).items() if item is not None]
        if len(cut) == 1 and cut[0][1][2] == -1:
            axis, (start, count, _) = cut[0]
            size = shape[axis]
            whole = (start, count) == (-1, -1) or (
                isinstance(size, int) and (start, count) == (size - 1, size)
            )
            return axis if whole else None
    if op.kind == "Gather":
        axis = op.attributes.get("axis", 0) % len(shape)
        indices, size = flow.constant(op.inputs[1]), shape[axis]
        if indices is not None and isinstance(size, int) and indices.ndim == 1:
            return axis if np.array_equal(indices % size, np.arange(size)[::-1]) else None
    return None
