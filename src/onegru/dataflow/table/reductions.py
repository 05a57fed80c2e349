"""Describe operators that compute over whole axes: reductions, normalizations and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.quantized import dequantize
from onegru.dataflow.operator import Op, Shape
from onegru.dataflow.table.base import (
    ArrayCall,
    AttributeOrInput,
    Call,
    Move,
    Operator,
    SameShape,
    UnknownOpError,
    Vectorization,
    input_moves,
    register,
)

_AT_ONCE = "computes over all steps of a run at once"
_PER_STEP = "has a separate parameter for each step"


class Reduction(Operator):
    """Operator that combines elements along axes."""

    parameters: Mapping[str, AttributeOrInput] = {"axes": AttributeOrInput(1, since=18)}
    dtype: str | int | None = 0

    def __init__(self, kind: str, combine: Callable[..., Any] | None = None) -> None:
        super().__init__(kind, "keepdims noop_with_empty_axes")
        self.combine = combine  # None if onegru does not compute it
        self.computes = combine is not None

    def axes(self, call: Call) -> list[int]:
        """Return the axes along which it combines."""
        axes = call.known_ints("axes")
        if not axes:
            axes = [] if call.get("noop_with_empty_axes") else list(range(call.rank()))
        return [axis % call.rank() for axis in axes]

    def shape(self, call: Call, output: int) -> Shape | None:
        gone, keeps = self.axes(call), call.get("keepdims", 1)
        shape = enumerate(call.shape())
        return tuple(1 if axis in gone else size for axis, size in shape if keeps or axis not in gone)

    def least_rank(self, call: Call, output: int) -> int:
        return call.rank() if call.get("keepdims", 1) else 0

    def value(self, call: ArrayCall) -> Sequence[Array]:
        axes, x = self.axes(call), call.array()
        if self.combine is None or not call.known_ints("axes"):
            raise UnknownOpError  # all of them or none
        y = self.combine(x, axis=tuple(axes), keepdims=bool(call.get("keepdims", 1)))
        return [np.asarray(y).astype(x.dtype, copy=False)]

    def moves(self, call: Call) -> Iterator[Move]:
        gone, to = self.axes(call), 0
        for axis in range(call.rank()):
            yield Move(0, axis, None, 0, "mixes", _AT_ONCE) if axis in gone else Move(0, axis, to)
            to += axis not in gone or bool(call.get("keepdims", 1))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        if not call.known_ints("axes"):
            raise UnknownOpError("its axes are not known")
        return Vectorization({"axes": [axis + 1 for axis in self.axes(call)]})


class ReduceSum(Reduction):
    parameters: Mapping[str, AttributeOrInput] = {"axes": AttributeOrInput(1, since=13)}


class GlobalPool(Operator):
    """Operator that reduces all axes after the channels to size 1."""

    dtype: str | int | None = 0

    def shape(self, call: Call, output: int) -> Shape | None:
        return (*call.shape()[:2], *[1] * (call.rank() - 2))

    def moves(self, call: Call) -> Iterator[Move]:
        yield from (Move(0, axis, axis) for axis in range(min(call.rank(), 2)))
        yield from (Move(0, axis, None, 0, "mixes", _AT_ONCE) for axis in range(2, call.rank()))


class ArgReduction(Operator):
    dtype: str | int | None = "int64"

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axis = call.shape(), call.axis(0)
        return (*shape[:axis], *[1] * bool(call.get("keepdims", 1)), *shape[axis + 1 :])

    def moves(self, call: Call) -> Iterable[Move]:
        return input_moves(call, [call.axis(0)], message=_AT_ONCE, keeps=bool(call.get("keepdims", 1)))


class Mixing(Operator):
    """Operator that keeps the first input's shape; an element depends on all elements along some axes."""

    dtype: str | int | None = 0
    first_axis: int = 0  # the first of these axes; they include all later ones

    def shape(self, call: Call, output: int) -> Shape | None:
        return call.shape() if output == 0 else None

    def axes(self, call: Call) -> Iterable[int]:
        """Return the axes along which it computes."""
        return range(self.first_axis, call.rank())

    def moves(self, call: Call) -> Iterable[Move]:
        return input_moves(call, self.axes(call), message=_AT_ONCE)


class OverAxis(Mixing):
    """Operator along one axis, an attribute."""

    default_axis: int = -1

    def axes(self, call: Call) -> Iterable[int]:
        return [call.axis(self.default_axis)]


class TopK(OverAxis):
    resizes: ClassVar[bool] = True

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axis = call.shape(), call.axis(self.default_axis)
        count = call.facts.as_sizes(call.op.inputs[1])
        return None if count is None else (*shape[:axis], count[0], *shape[axis + 1 :])


class Softmax(Mixing):
    """Softmax before opset 13, over all axes from one on."""

    def axes(self, call: Call) -> Iterable[int]:
        return [call.axis(-1)] if call.opset >= 13 else range(call.axis(1), call.rank())


class OverAxes(Mixing):
    """Operator with a parameter for its axes."""

    parameters: Mapping[str, AttributeOrInput] = {"axes": AttributeOrInput(1)}

    def axes(self, call: Call) -> Iterable[int]:
        axes = call.known_ints("axes")
        return (0, 2, 3) if axes is None else axes


class LayerNorm(Mixing):
    def axes(self, call: Call) -> Iterable[int]:
        return range(call.axis(-1), call.rank())

    def moves(self, call: Call) -> Iterator[Move]:
        yield from super().moves(call)
        for index in range(1, len(call.op.inputs)):  # scale and bias may have the rank of the scaled value
            size = call.rank(index) if call.is_given(index) else 0
            yield from (Move(index, axis, call.rank() - size + axis) for axis in range(size))


class BatchNorm(Mixing):
    def moves(self, call: Call) -> Iterable[Move]:
        is_training = call.get("training_mode", 0) or (call.opset < 7 and not call.get("is_test", 0))
        if is_training or any(call.op.outputs[1:]) or call.get("spatial", 1) != 1:
            raise UnknownOpError
        return input_moves(call, [1] if call.rank() > 1 else [], message=_PER_STEP)


class LinearQuantization(SameShape):
    """QuantizeLinear or DequantizeLinear: one scale for all, or one for each index along an axis."""

    max_inputs: int = 3

    def moves(self, call: Call) -> Iterable[Move]:
        if call.get("block_size", 0):
            raise UnknownOpError
        sizes = [size for k in range(1, len(call.op.inputs)) if call.is_given(k) for size in call.shape(k)]
        axes = [call.axis(1)] if any(size != 1 for size in sizes) else []
        return input_moves(call, axes, message=_PER_STEP)


class Dequantization(LinearQuantization):
    computes: bool = True

    def dtype_of(self, op: Op) -> str | int | None:
        return None if op.attributes.get("output_dtype") else 1

    def value(self, call: ArrayCall) -> Sequence[Array]:
        if call.get("output_dtype") or not self.supports(call.op) or len(call.inputs) > self.max_inputs:
            raise UnknownOpError
        attributes = call.get("axis", 1), call.get("block_size", 0)
        found = dequantize(call.array(), call.array(1), call.constant(2), *attributes)
        if found is None:
            raise UnknownOpError
        return [found]


class DynamicQuantization(Operator):
    def moves(self, call: Call) -> Iterable[Move]:
        return input_moves(call, range(call.rank()), message=_AT_ONCE)


class Accumulation(SameShape):
    """Operator that combines each element with all before it along an axis."""

    parameters: Mapping[str, AttributeOrInput] = {"axis": AttributeOrInput(1)}
    max_inputs: int = 2
    computes: bool = True
    dtype: str | int | None = 0

    def __init__(self, kind: str, combine: np.ufunc) -> None:
        super().__init__(kind, "exclusive reverse", start_value=combine.identity)
        self.combine = combine

    def value(self, call: ArrayCall) -> Sequence[Array]:
        (axis,), x = call.known_ints("axis") or (0,), call.array()
        x = np.flip(x, axis) if call.get("reverse") else x
        y = self.combine.accumulate(x, axis, dtype=x.dtype)
        if call.get("exclusive"):  # the elements before each
            y = np.roll(y, 1, axis)
            y[(slice(None),) * (axis % y.ndim) + (slice(0, 1),)] = self.start_value
        return [np.flip(y, axis) if call.get("reverse") else y]

    def moves(self, call: Call) -> Iterable[Move]:
        axes = call.known_ints("axis") or ()
        return input_moves(call, axes, "remembers", "accumulates from the first step of each run")


_LAYER_NORM = "axis epsilon stash_type"

register(
    *(Reduction("ReduceMean", np.mean), ReduceSum("ReduceSum", np.sum)),
    *(Reduction("ReduceMax", np.max), Reduction("ReduceMin", np.min)),
    Reduction("ReduceL2", lambda x, **axes: np.sqrt(np.sum(x * x, **axes))),
    *(Reduction(f"Reduce{name}") for name in ("Prod", "L1", "LogSum", "LogSumExp", "SumSquare")),
    *(GlobalPool("GlobalAveragePool"), GlobalPool("GlobalMaxPool"), GlobalPool("GlobalLpPool", "p")),
    *(ArgReduction(kind, "axis keepdims select_last_index") for kind in ("ArgMax", "ArgMin")),
    Mixing("InstanceNormalization", "epsilon", max_inputs=3, first_axis=1),
    Mixing("GroupNormalization", "epsilon num_groups stash_type", first_axis=1),
    OverAxes("MeanVarianceNormalization"),
    *(OverAxes(f"openvino::{kind}", "normalize_variance eps eps_mode") for kind in ("MVN", "NormalizeL2")),
    *(OverAxes(f"openvino::{kind}") for kind in ("LRN", "Roll", "ShuffleChannels")),
    *(Softmax(kind, "axis") for kind in ("Softmax", "LogSoftmax", "Hardmax")),
    *(OverAxis("LpNormalization", "axis p"), OverAxis("LRN", "alpha beta bias size", default_axis=1)),
    TopK("TopK", "axis k largest sorted", max_inputs=2),
    LayerNorm("LayerNormalization", _LAYER_NORM, max_inputs=3),
    *(LayerNorm(kind, _LAYER_NORM) for kind in ("RMSNormalization", "SimplifiedLayerNormalization")),
    BatchNorm("BatchNormalization", "epsilon momentum training_mode spatial is_test", max_inputs=5),
    BatchNorm("openvino::BatchNormInference", "epsilon"),
    LinearQuantization("QuantizeLinear", "axis block_size output_dtype precision saturate"),
    Dequantization("DequantizeLinear", "axis block_size output_dtype"),
    DynamicQuantization("DynamicQuantizeLinear"),
    *(Accumulation("CumSum", np.add), Accumulation("CumProd", np.multiply)),
)
