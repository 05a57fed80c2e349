"""Describe operators on windows or ends of an axis: convolutions, poolings, Pad and Resize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from onegru.dataflow.operator import Op, Shape, Size
from onegru.dataflow.table.base import SUMS, AttributeOrInput, Call, Move, Operator, UnknownOpError, register


class Window(Operator):
    """Convolution or pooling: y[t] depends on x[t·stride + k·dilation - pad_begin], k = 0 … size - 1."""

    dtype: str | int | None = 0
    resizes: ClassVar[bool] = True
    averages: bool = False  # whether a pooling computes means
    has_zero_points: bool = False  # whether a quantized number stands for zero

    def sizes_of_window(self, call: Call) -> list[Size]:
        """Return the sizes of the window along each axis after the channels."""
        sizes = call.numbers("kernel_shape")
        return list(sizes or call.shape(1)[2 - call.rank() :])

    def counts(self, call: Call, name: str, default: int = 1) -> list[int]:
        """Return an attribute with a number for each axis after the channels."""
        return call.numbers(name) or [default] * (call.rank() - 2)

    def pads(self, call: Call) -> list[int]:
        """Return the leading padding of each axis after the channels, then the trailing padding of each."""
        count, auto = call.rank() - 2, str(call.get("auto_pad", "NOTSET")).upper()
        if not auto.startswith("SAME"):
            return [0] * (2 * count) if auto == "VALID" else call.numbers("pads") or [0] * (2 * count)
        dilations, strides = self.counts(call, "dilations"), self.counts(call, "strides")
        window = [size if isinstance(size, int) else 0 for size in self.sizes_of_window(call)]
        reaches = [(size - 1) * by for size, by in zip(window, dilations, strict=True)]
        if self.window == "pool" and any(by != 1 for by in dilations):
            raise UnknownOpError  # runtimes differ
        for axis, (stride, size) in enumerate(zip(strides, call.shape()[2:], strict=True)):
            if stride != 1 and not isinstance(size, int):
                raise UnknownOpError  # the padding depends on an unknown size
            if stride != 1 and isinstance(size, int):
                reaches[axis] = max((-(-size // stride) - 1) * stride + reaches[axis] + 1 - size, 0)
        ends = [reach // 2 + (reach % 2 if auto == "SAME_UPPER" else 0) for reach in reaches]
        return [*(reach - end for reach, end in zip(reaches, ends, strict=True)), *ends]

    def pads_without(self, call: Call, axis: int) -> list[int]:
        """Return the padding with zero along an axis, so that each output step has all its input steps."""
        pads, count = self.pads(call), call.rank() - 2
        pads[axis - 2] = pads[axis - 2 + count] = 0
        return pads

    def channels(self, call: Call) -> Size:
        """Return the number of output channels."""
        return call.shape()[1] if self.window == "pool" else call.shape(1)[0]

    def shape(self, call: Call, output: int) -> Shape | None:
        window = self.sizes_of_window(call)
        strides, dilations = self.counts(call, "strides"), self.counts(call, "dilations")
        spatial, auto = len(window), str(call.get("auto_pad", "NOTSET")).upper()
        pads = [0] * (2 * spatial) if auto == "VALID" else call.numbers("pads") or [0] * (2 * spatial)
        sizes: list[Size] = [call.shape()[0], self.channels(call)]
        for k, (size, whole, stride) in enumerate(zip(window, call.shape()[2:], strides, strict=True)):
            is_unknown = stride != 1 and (not isinstance(whole, int) or call.get("ceil_mode"))
            is_ambiguous = self.window == "pool" and auto.startswith("SAME") and dilations[k] != 1
            named = f"{call.op.outputs[0]}#{k + 2}"
            if not isinstance(size, int) or is_unknown or is_ambiguous:
                sizes.append(named)
            elif auto.startswith("SAME"):
                sizes.append(-(-whole // stride) if isinstance(whole, int) else whole)
            else:
                more = pads[k] + pads[k + spatial] - (size - 1) * dilations[k]
                if isinstance(whole, int):
                    left = whole + more - 1
                    sizes.append(left // stride + 1 if left >= 0 else named)
                else:
                    sizes.append(named if more else whole)
        return tuple(sizes)

    def moves(self, call: Call) -> Iterator[Move]:
        pads = self.pads(call)
        if min(pads, default=0) < 0:
            raise UnknownOpError
        yield from self._of_channels()
        window, count = self.sizes_of_window(call), call.rank() - 2
        strides, dilations = self.counts(call, "strides"), self.counts(call, "dilations")
        for k, known in enumerate(window):
            size = known if isinstance(known, int) else 0
            if strides[k] != 1:
                message = f"has stride {strides[k]} along time"
                yield Move(0, k + 2, k + 2, 0, "remembers", message)
                continue
            begin, end = pads[k], pads[k + count]
            message = f"reads {size} steps" + (f", {end} of them ahead" if end > 0 else "")
            yield Move(0, k + 2, k + 2, 0, "", message, begin, end, (size - 1) * dilations[k])

    def _of_channels(self) -> Iterator[Move]:
        yield Move(0, 0, 0)
        yield Move(0, 1, 1) if self.window == "pool" else Move(0, 1, None, 0, "mixes", SUMS)

    def pads_with_zeros(self, call: Call) -> bool:
        if self.window == "conv":
            return not self.has_zero_points
        return self.averages and call.get("count_include_pad", 0) == 1


class FusedConvolution(Window):
    """Conv with an activation of its output, from ONNX Runtime's optimizer."""

    def supports(self, op: Op) -> bool:
        return super().supports(op) and str(op.attributes.get("activation")) in _KEEPS_ZERO


class GroupConvolution(Window):
    """OpenVINO's convolution whose weights begin with groups: [groups, out, in, …]."""

    def channels(self, call: Call) -> Size:
        groups, out = call.shape(1)[:2]
        return groups * out if isinstance(groups, int) and isinstance(out, int) else f"{call.op.outputs[0]}#1"


class Deconvolution(Window):
    """Transposed convolution: with stride 1, a convolution with a reversed kernel and full padding."""

    # Its own padding cuts these steps off again.

    has_bias: bool = True  # whether its third input is a bias; otherwise the sizes of its output

    def shape(self, call: Call, output: int) -> Shape | None:
        spatial, kernel = call.rank() - 2, call.shape(1)[2:]
        strides, dilations = self.counts(call, "strides"), self.counts(call, "dilations")
        added, pads = self.counts(call, "output_padding", 0), call.numbers("pads") or [0] * (2 * spatial)
        is_plain = call.get("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in call.op.attributes
        channels = call.shape(1)[1]
        if not is_plain or not isinstance(channels, int) or len(kernel) != spatial:
            return None
        sizes: list[Size] = [call.shape()[0], channels * call.get("group", 1)]
        for k, (whole, size) in enumerate(zip(call.shape()[2:], kernel, strict=True)):
            less = pads[k] + pads[k + spatial]
            if isinstance(whole, int) and isinstance(size, int):
                sizes.append((whole - 1) * strides[k] + added[k] + (size - 1) * dilations[k] + 1 - less)
            else:
                reach = (size - 1) * dilations[k] if isinstance(size, int) else -1
                is_same = strides[k] == 1 and not added[k] and reach == less
                sizes.append(whole if is_same else f"{call.op.outputs[0]}#{k + 2}")
        return tuple(sizes)

    def moves(self, call: Call) -> Iterator[Move]:
        yield from self._of_channels()
        strides = self.counts(call, "strides")
        for k, size in enumerate(self.sizes_of_window(call)):
            message = "spreads each step over later ones"
            if strides[k] != 1:
                yield Move(0, k + 2, k + 2, 0, "remembers", f"has stride {strides[k]} along time")
            elif (spread := self._spread(call, k, size)) is None:
                yield Move(0, k + 2, k + 2, 0, "remembers", message)
            else:
                yield Move(0, k + 2, k + 2, 0, "", message, *spread)

    def _spread(self, call: Call, k: int, size: Size) -> tuple[int, int, int] | None:
        """Return the steps added at both ends of an axis, and its reach; None if unknown."""
        count, auto = call.rank() - 2, str(call.get("auto_pad", "NOTSET")).upper()
        pads = call.numbers("pads") or [0] * (2 * count)
        is_given = bool(call.numbers("output_shape")) or (not self.has_bias and call.is_given(2))
        if is_given or not isinstance(size, int) or self.counts(call, "output_padding", 0)[k]:
            return None
        if (auto.startswith("SAME") and size != 1) or (auto == "VALID" and any(pads)):
            return None
        reach = (size - 1) * self.counts(call, "dilations")[k]
        spread = reach - pads[k], reach - pads[k + count], reach
        return spread if min(spread) >= 0 <= min(pads) else None

    def pads_without(self, call: Call, axis: int) -> list[int]:
        pads, count = self.pads(call), call.rank() - 2
        size, dilation = self.sizes_of_window(call)[axis - 2], self.counts(call, "dilations")[axis - 2]
        assert isinstance(size, int)
        pads[axis - 2] = pads[axis - 2 + count] = (size - 1) * dilation
        return pads


class OpenVinoDeconvolution(Deconvolution):
    has_bias: bool = False

    def shape(self, call: Call, output: int) -> Shape | None:
        return None


class Pad(Operator):
    parameters: Mapping[str, AttributeOrInput] = {
        "pads": AttributeOrInput(1, since=11),
        "axes": AttributeOrInput(3),
    }
    size_inputs: tuple[int, ...] = (1, 3)
    max_inputs: int = 4
    dtype: str | int | None = 0
    resizes: ClassVar[bool] = True

    def pads(self, call: Call) -> list[tuple[int, int]]:
        """Return the leading and trailing padding of each axis."""
        pads = call.known_ints("pads") or call.numbers("paddings")
        axes = [axis % call.rank() for axis in call.known_ints("axes") or range(call.rank())]
        if len(pads) != 2 * len(axes):
            raise UnknownOpError
        both = dict(zip(axes, zip(pads, pads[len(axes) :], strict=False), strict=True))
        return [both.get(axis, (0, 0)) for axis in range(call.rank())]

    def shape(self, call: Call, output: int) -> Shape | None:
        sizes: list[Size] = []
        for axis, (size, ends) in enumerate(zip(call.shape(), self.pads(call), strict=True)):
            named: Size = f"{call.op.outputs[0]}#{axis}" if sum(ends) else size
            sizes.append(size + sum(ends) if isinstance(size, int) else named)
        return tuple(sizes)

    def moves(self, call: Call) -> Iterator[Move]:
        for axis, (begin, end) in enumerate(self.pads(call)):
            yield Move(0, axis, axis, 0, "", "pads time in each run", begin, end)

    def pads_with_zeros(self, call: Call) -> bool:
        value = call.op.inputs[2] if call.is_given(2) else ""
        number = call.facts.fill_value(value) if value else call.get("value", 0.0)
        return str(call.get("mode", "constant")).lower() == "constant" and number == 0


class Resize(Operator):
    size_inputs: tuple[int, ...] = (1, 2, 3)
    dtype: str | int | None = 0
    resizes: ClassVar[bool] = True

    def axes(self, call: Call) -> list[int]:
        """Return the axes of its scales or sizes."""
        return [axis % call.rank() for axis in call.numbers("axes", range(call.rank()))]

    def shape(self, call: Call, output: int) -> Shape | None:
        shape, axes, scales = list(call.shape()), self.axes(call), self.scales(call)
        if not self._is_plain(call):
            return None
        if scales is None:
            sizes = call.facts.as_sizes(call.op.inputs[3]) if call.is_given(3) else None
        else:
            sizes = tuple(
                self._scaled(shape[axis], scale) or f"{call.op.outputs[0]}#{axis}"
                for axis, scale in zip(axes, scales, strict=True)
            )
        if sizes is None:
            return None
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
        return tuple(shape)

    def _is_plain(self, call: Call) -> bool:
        is_cropped = call.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        return not is_cropped and call.get("keep_aspect_ratio_policy", "stretch") == "stretch"

    def _scaled(self, size: Size, scale: float) -> Size | None:
        """Return a size times a scale; None if unknown, or if rounding decides it."""
        if isinstance(size, str) or scale == 1:
            return size if scale == 1 else None
        exact, rounded = size * scale, np.float32(size) * np.float32(scale)
        return int(exact) if int(exact) == int(rounded) else None

    def moves(self, call: Call) -> Iterator[Move]:
        """Yield the moves of axes. An axis stays if its scale is 1, or if its size stays."""
        shape, out, axes = call.shape(), call.facts.shape(call.op.outputs[0]), self.axes(call)
        if not self._is_plain(call):
            raise UnknownOpError
        scales = self.scales(call)
        factors = {} if scales is None else dict(zip(axes, scales, strict=True))
        for axis, size in enumerate(shape):
            is_sized = out is not None and len(out) == len(shape) and out[axis] == size
            is_same = axis not in axes or (factors[axis] == 1 if factors else is_sized)
            yield Move(0, axis, axis) if is_same else Move(0, axis, axis, 0, "mixes", "resizes time")

    def scales(self, call: Call) -> Sequence[float] | None:
        """Return the scale of each axis; None if sizes determine it."""
        if (scales := call.get("scales")) is not None:
            return list(scales)
        found = call.constant(1 if len(call.op.inputs) < 3 else 2)
        is_empty = found is None or found.dtype.kind != "f" or not found.size
        return None if found is None or is_empty else [float(scale) for scale in found.ravel()]


class Interpolate(Operator):
    """OpenVINO's Interpolate along these axes, by scales or else by sizes."""

    dtype: str | int | None = 0
    resizes: ClassVar[bool] = True

    def moves(self, call: Call) -> Iterator[Move]:
        if any(call.numbers("pads_begin") + call.numbers("pads_end")):
            raise UnknownOpError
        axes = [axis % call.rank() for axis in call.numbers("axes")]
        scales = dict(zip(axes, call.get("scales", [0] * len(axes)), strict=True))
        for axis in range(call.rank()):
            is_same = scales.get(axis, 1) == 1
            yield Move(0, axis, axis) if is_same else Move(0, axis, axis, 0, "mixes", "resizes time")


# Names of attributes.
_WINDOW = "auto_pad ceil_mode count_include_pad dilations group kernel_shape p pads storage_order strides"
# Fused activations, and whether they return zero for zero.
_KEEPS_ZERO = dict.fromkeys(("Relu", "LeakyRelu", "Tanh"), True)
_KEEPS_ZERO |= dict.fromkeys(("Sigmoid", "HardSigmoid", "Clip"), False)
_RESIZING = "antialias coordinate_transformation_mode cubic_coeff_a exclude_outside mode extrapolation_value"

register(
    Window("Conv", _WINDOW, max_inputs=3, window="conv"),
    # A fourth input would be added to its output.
    FusedConvolution(
        "com.microsoft::FusedConv", f"{_WINDOW} activation activation_params", max_inputs=3, window="conv"
    ),
    Window("ConvInteger", _WINDOW, max_inputs=4, window="conv", dtype="int32", has_zero_points=True),
    Deconvolution("ConvTranspose", f"{_WINDOW} output_padding output_shape", max_inputs=3, window="conv"),
    *(Window(kind, _WINDOW, window="pool") for kind in ("MaxPool", "LpPool", "openvino::MaxPool")),
    *(Window(kind, _WINDOW, window="pool", averages=True) for kind in ("AveragePool", "openvino::AvgPool")),
    Window("openvino::Convolution", _WINDOW, max_inputs=2, window="conv"),
    GroupConvolution("openvino::GroupConvolution", _WINDOW, max_inputs=2, window="conv"),
    *(
        OpenVinoDeconvolution(f"openvino::{kind}BackpropData", f"{_WINDOW} output_padding", window="conv")
        for kind in ("Convolution", "GroupConvolution")
    ),
    Pad("Pad", "mode value paddings"),
    Resize("Resize", f"{_RESIZING} axes keep_aspect_ratio_policy nearest_mode", max_inputs=4),
    Resize("Upsample", "mode scales", max_inputs=2),
    Interpolate("openvino::Interpolate", "axes scales pads_begin pads_end"),
)


def adds_no_bias(op: Op, operator: Operator) -> bool:
    """Whether an operator is a convolution that returns zeros for zeros."""
    if not isinstance(operator, Window) or isinstance(operator, Deconvolution) or operator.window != "conv":
        return False
    keeps_zero = _KEEPS_ZERO.get(str(op.attributes.get("activation", "Relu")), False)
    return keeps_zero and not operator.has_zero_points and len(op.inputs) < 3
