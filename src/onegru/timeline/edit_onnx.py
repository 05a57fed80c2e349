"""The changes that make an ONNX model run in chunks of time: states, caches, open sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.dataflow.operator import Op, Size
from onegru.formats.graph import STREAM_KEY, Graph
from onegru.formats.onnx.order import needed_nodes, node_inputs
from onegru.formats.onnx.validate import drop_named, replace_nodes
from onegru.formats.onnx.values import Names
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.plan import Cache, StreamingPlan
from onegru.timeline.rules import RECURRENT, kind_of, window_pads
from onegru.timeline.starts import evaluated
from onegru.timeline.step import slice_bounds

_END = 2**63 - 1
_MOST_ELEMENTS = 1 << 20  # of a state that is followed element by element


@dataclass(frozen=True, slots=True)
class State:
    """What a streaming model carries from one run to the next.

    Attributes:
        input: the input that takes it.
        output: the output that gives the next one.
        node: the node whose state or earlier steps it is.
        first: its shape before the first run; names stand for sizes of the other inputs.
        steps: how many steps of time it holds; None for the state of a recurrence.
        start: what it is before the first run, perhaps one row for all; None for zeros.
    """

    input: str
    output: str
    node: str
    first: tuple[int | str, ...]
    steps: int | None = None
    start: Array | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """A model that was changed.

    Attributes:
        model: the model.
        states: the new states.
        time: the axis of time of each input that has one.
        delays: the outputs that come later than in a whole run, and by how many steps.
        axes: the axis of time of each output that has one; None for one of the newest step.
    """

    model: ModelProto
    states: tuple[State, ...]
    time: Mapping[str, int]
    delays: Mapping[str, int]
    axes: Mapping[str, int | None]


class StreamingRewriter:
    """Makes the changes of a plan in an ONNX model whose operators the analysis read."""

    def __init__(self, model: ModelProto, analysis: TimeAnalysis, plan: StreamingPlan) -> None:
        self.model = model
        self.opset = analysis.opset
        self.analysis = analysis
        self.flow = analysis.flow
        self.plan = plan
        self.names = Names(model)
        dims = (dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim)
        self.sizes = {dim.dim_param for dim in dims if dim.dim_param}
        self.before: dict[int, list[NodeProto]] = {}
        self.after: list[NodeProto] = []
        self.states: list[State] = []
        self.constants: dict[tuple[int, ...], str] = {}
        self.joined: dict[tuple[str, int, int, bool], str] = {}
        self.parts: dict[str, list[tuple[str, Op, int]]] = {}
        self.held: dict[str, str] = {}

    def edited(self, graph: Graph) -> Streaming:
        """The model, all changes made."""
        plan, model = self.plan, self.model
        outputs = {value.name for value in model.graph.output}
        for op, axis in plan.unpadded:
            self._unpad(op, axis)
        for op in plan.full_length:
            op.origin.input[4] = ""
        for op, place in plan.zero_states:
            op.origin.input[place] = ""
        for op in plan.latest:
            self._take_latest(op)
        for op, place in plan.reshaped:
            if self.flow.holds(op.inputs[1]):
                self._open_reshape(op, place)
            else:
                self._keep_place(op, place)
        for cache in plan.caches:
            self._add_cache(cache)
        for name, steps in plan.held.items():
            self._hold(name, steps)
        for op in plan.recurrent:
            self._open_states(op)
        for name, parts in self.parts.items():
            self._join_states(name, parts)
        for name, held in self.held.items():
            self._rename(name, held)
        nodes = [part for node in model.graph.node for part in (*self.before.get(id(node), ()), node)]
        wanted = [value.name for value in model.graph.output]
        kept = needed_nodes([*nodes, *self.after], wanted)
        used = {*wanted, *(value.name for value in model.graph.input)}.union(*map(node_inputs, kept))
        drop_named(model.graph.initializer, {tensor.name for tensor in model.graph.initializer} - used)
        replace_nodes(model.graph, kept)
        for value in model.graph.input:
            if value.name in plan.inputs:
                _open(value, plan.inputs[value.name], "frames")
        for value in model.graph.output:
            self._name_output(value)
            if value.name in plan.outputs:
                axis = plan.outputs[value.name]
                dims = value.type.tensor_type.shape.dim
                if plan.delays and axis < len(dims):  # of the first chunk they have fewer
                    dims[axis].dim_param = f"{value.name}_frames"
                _open(value, axis, "frames")
        del model.graph.value_info[:]
        axes = {name: plan.outputs.get(name) for name in outputs if name in {*plan.outputs, *plan.newest}}
        self._describe(graph)
        return Streaming(model, tuple(self.states), plan.inputs, plan.delays, axes)

    def _name_output(self, value: ValueInfoProto) -> None:
        """Give the open sizes of an output the names that they have in inputs."""
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") is None and len(self.analysis.factors(value.name, axis)) == 1:
                name = self._size(value.name, axis)
                if isinstance(name, str) and name.removeprefix("dim:") in self.sizes:
                    dim.dim_param = name.removeprefix("dim:")

    def _describe(self, graph: Graph) -> None:
        """Note in the file which output feeds which input, and what each is at first."""
        outside = {value.name: value.type.tensor_type.shape.dim for value in self.model.graph.input}
        known = {item.input for item in self.states}
        states = [
            *self.states,
            *(
                State(taken, given, "", tuple(dim.dim_param or dim.dim_value for dim in outside[taken]))
                for given, taken in graph.states
                if taken not in known
            ),
        ]
        initial = {item.input: item.start for item in states if item.start is not None}
        for tensor in self.model.graph.initializer:
            if tensor.name in outside:  # a default
                initial[tensor.name] = onnx.numpy_helper.to_array(tensor)
        document = {
            "states": [
                {"input": item.input, "output": item.output, "shape": item.first}
                | ({"initial": initial[item.input].astype(float).tolist()} if item.input in initial else {})
                for item in states
            ],
            "time": dict(self.plan.inputs),
            "delays": dict(self.plan.delays),
        }
        for prop in list(self.model.metadata_props):
            if prop.key == STREAM_KEY:
                self.model.metadata_props.remove(prop)
        self.model.metadata_props.add(key=STREAM_KEY, value=json.dumps(document))

    # Names and values

    def _integers(self, *values: int) -> str:
        if values not in self.constants:
            name = self.names.fresh(
                "onegru/" + "_".join("end" if value == _END else str(value) for value in values)
            )
            self.model.graph.initializer.append(
                onnx.numpy_helper.from_array(np.array(values, np.int64), name)
            )
            self.constants[values] = name
        return self.constants[values]

    def _node(self, kind: str, inputs: Sequence[str], base: str, **attributes: Any) -> NodeProto:
        output = self.names.fresh(base)
        return onnx.helper.make_node(
            kind, list(inputs), [output], name=self.names.fresh(f"{base}/{kind}"), **attributes
        )

    def _slice(self, value: str, axis: int, start: int, end: int, base: str) -> NodeProto:
        """A part of a value."""
        if self.opset < 10:
            return self._node("Slice", [value], base, axes=[axis], starts=[start], ends=[end])
        return self._node("Slice", [value, *map(self._integers, (start, end, axis))], base)

    def _label(self, op: Op) -> str:
        return op.name or next(filter(None, op.outputs))

    def _size(self, value: str, axis: int) -> Size | tuple[Size, ...]:
        """A size of a value; several factors if it is their product and some are open."""
        stated = (self.flow.shape(value) or {axis: ""})[axis]
        if isinstance(stated, int) or stated.removeprefix("dim:") in self.sizes:
            return stated
        sizes = tuple(map(self._size_of, self.analysis.factors(value, axis)))
        sizes = tuple(size for size in sizes if size != 1) or (1,)
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == len(sizes):
            return math.prod(numbers)
        return sizes[0] if len(sizes) == 1 else sizes

    def _size_of(self, factor: int) -> Size:
        """The size of a factor: a number, or the name that it has in an input, if there is one."""
        sizes = self.analysis.axes.sizes_of(factor)
        if isinstance(sizes[0], int) or self.analysis.axes.is_changed(factor):
            return sizes[0]
        known = [size for size in sizes if isinstance(size, int) or size.removeprefix("dim:") in self.sizes]
        return min(known or sizes, key=lambda size: isinstance(size, str))

    def _first_shape(self, op: Op, value: str, axis: int, steps: int) -> tuple[int | str, ...]:
        rank = len(self.analysis.known[value] or ())
        found: list[int | str] = []
        for place in range(rank):
            size = steps if place == axis else self._size(value, place)
            if isinstance(size, tuple):
                raise self._unknown(op, "its earlier steps have a size that is a product of open ones")
            found.append(self._named(op, size))
        return tuple(found)

    def _named(self, op: Op, size: Size) -> int | str:
        """A size as an input has it.

        Raises:
            SpecError: no input has it.
        """
        if isinstance(size, int):
            return size
        name = size.removeprefix("dim:")
        if name not in self.sizes:
            raise self._unknown(op, f"its state has a size that no input has ({name})")
        return name

    def _unknown(self, op: Op, why: str) -> SpecError:
        return SpecError(f"{op.kind} node {self._label(op)!r}: cannot run in chunks, as {why}")

    def _dtype(self, op: Op, value: str) -> int:
        dtype = self.flow.dtype(value)
        if dtype is None:
            raise self._unknown(op, f"the element type of {value!r} is not known")
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    # Changes

    def _unpad(self, op: Op, axis: int) -> None:
        """Let an operator no longer pad or cut time."""
        node: NodeProto = op.origin
        if op.kind in ("Pad", "Slice", "Concat"):
            value = op.inputs[1] if op.kind == "Concat" else op.inputs[0]
            others = self._others(op, axis)
            if not others:
                node.CopyFrom(onnx.helper.make_node("Identity", [value], list(node.output), name=node.name))
            elif op.kind == "Pad":
                self._set(node, "pads", 1, others)
            else:
                starts, ends, axes = others[0::3], others[1::3], others[2::3]
                for name, place, numbers in (("starts", 1, starts), ("ends", 2, ends), ("axes", 3, axes)):
                    self._set(node, name, place, numbers)
                if len(node.input) > 4:
                    node.input[4] = ""
            return
        pads = window_pads(self.analysis.step(op))
        spatial, count = axis - 2, len(pads) // 2
        pads[spatial] = pads[spatial + count] = 0
        kept = [item for item in node.attribute if item.name not in ("pads", "auto_pad")]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])

    def _others(self, op: Op, axis: int) -> list[int]:
        """What a Pad or a Slice does along other axes: pads, or start, end and axis of each."""
        step = self.analysis.step(op)
        rank = len(step.shape())
        if op.kind == "Concat":
            return []
        if op.kind == "Pad":
            moves = [move for move in self.analysis.moves[id(op)] or () if move.axis != axis]
            pads = [0] * (2 * rank)
            for move in moves:
                pads[move.axis], pads[move.axis + rank] = move.before, move.behind
            return pads if any(pads) else []
        front = self.plan.dropped.get((id(op), axis))
        found: list[int] = [] if front is None else [front, _END, axis]
        for other in (item for item in range(rank) if item != axis):
            bounds = slice_bounds(step, other)
            if bounds is None or bounds[2] != 1:
                raise self._unknown(op, "it cuts time, and another axis in steps")
            if bounds != (0, None, 1):
                found += [bounds[0], _END if bounds[1] is None else bounds[1], other]
        return found

    def _set(self, node: NodeProto, name: str, place: int, numbers: Sequence[int]) -> None:
        """Change an attribute, or the input that has its place in later opsets."""
        for item in node.attribute:
            if item.name == name:
                item.CopyFrom(onnx.helper.make_attribute(name, list(numbers)))
                return
        if node.op_type == "Slice" and self.opset < 10:  # axes may be left out
            node.attribute.append(onnx.helper.make_attribute(name, list(numbers)))
            return
        while len(node.input) <= place:
            node.input.append("")
        node.input[place] = self._integers(*numbers)
        if node.op_type == "Pad" and len(node.input) > 3:
            del node.input[3:]  # all axes

    def _take_latest(self, op: Op) -> None:
        """Let a Gather count from the end of time."""
        index = self.flow.constant(op.inputs[1])
        assert index is not None
        name = self.names.fresh("onegru/latest")
        self.model.graph.initializer.append(onnx.numpy_helper.from_array(np.full_like(index, -1), name))
        op.origin.input[1] = name

    def _keep_place(self, op: Op, place: int) -> None:
        """Let a Reshape with computed sizes take the steps of what it reshapes."""
        sizes: list[int] = []
        before, after = self.analysis.known.get(op.inputs[0]) or (), self.analysis.known[op.outputs[0]] or ()
        shape = self.flow.shape(op.outputs[0]) or ()
        for axis, size in enumerate(shape):
            if axis == place:
                sizes.append(0 if axis < len(before) and before[axis] == after[axis] else -1)
            elif axis < len(before) and before[axis] == after[axis]:
                sizes.append(0)
            else:
                sizes.append(size if isinstance(size, int) else -2)
        if len(shape) != len(after) or -2 in sizes:
            raise self._unknown(op, "its sizes have a number of steps that is not that of what it takes")
        self._reshape_to(op, sizes)

    def _open_reshape(self, op: Op, place: int) -> None:
        """Let a Reshape compute the number of steps."""
        array = self.flow.constant(op.inputs[1])
        assert array is not None
        sizes = [int(size) for size in array.ravel()]
        before, after = self.analysis.known.get(op.inputs[0]) or (), self.analysis.known[op.outputs[0]] or ()
        if place < len(before) and before[place] == after[place]:
            sizes[place] = 0  # as many as the input has there
        elif -1 not in sizes:
            sizes[place] = -1
        else:
            other, known = sizes.index(-1), self.flow.shape(op.outputs[0]) or ()
            if other < len(before) and before[other] == after[other]:
                sizes[other] = 0
            elif len(known) == len(sizes) and isinstance(size := known[other], int):
                sizes[other] = size
            else:
                raise self._unknown(op, "its sizes have the number of steps written down")
            sizes[place] = -1
        self._reshape_to(op, sizes)

    def _reshape_to(self, op: Op, sizes: Sequence[int]) -> None:
        """Give a Reshape constant sizes, where 0 is the size that its input has there."""
        node: NodeProto = op.origin
        node.input[1] = self._integers(*sizes)
        drop_named(node.attribute, {"allowzero"})

    def _add_cache(self, cache: Cache) -> None:
        """Put the last steps of a value in front of those of a chunk."""
        op, place, axis, first, steps, waits = cache
        node: NodeProto = op.origin
        value, now = op.inputs[place], node.input[place]
        key = (now, first, steps, waits)
        if key in self.joined:
            node.input[place] = self.joined[key]
            return
        label = self._label(op)
        taken, given = (self.names.fresh(f"{_plain(label)}_cache_{way}") for way in ("in", "out"))
        shape = self._first_shape(op, value, axis, first)
        is_open = steps != first
        declared = [
            f"{taken}_frames" if is_open and item == axis else size for item, size in enumerate(shape)
        ]
        later = [f"{given}_frames" if is_open and item == axis else size for item, size in enumerate(shape)]
        dtype = self._dtype(op, value)
        joined = self._node("Concat", [taken, now], f"{label}/joined", axis=axis)
        new = [joined]
        if waits:
            new.append(self._slice(joined.output[0], axis, 0, -steps, f"{label}/waited"))
        node.input[place] = self.joined[key] = new[-1].output[0]
        last = self._slice(joined.output[0], axis, -steps, _END, f"{label}/last")
        last.output[0] = given
        self.before.setdefault(id(node), []).extend(new)
        self.after.append(last)
        self._declare(taken, given, dtype, declared, later)
        self.states.append(State(taken, given, label, shape, steps))

    def _hold(self, name: str, steps: int) -> None:
        """Let the steps of an output wait for later ones."""
        op = self.flow.producers[name]
        node = self._node("Identity", [name], f"{name}/held")
        end = Op("Identity", (name,), (node.output[0],), origin=node, name=self._label(op))
        first = len(self.after)
        self._add_cache(Cache(end, 0, self.plan.outputs[name], steps, steps, waits=True))
        self.after[first:first] = [*self.before.pop(id(node), ()), node]
        self.held[name] = node.output[0]

    def _rename(self, name: str, held: str) -> None:
        """Let an output be what waited, and all operators read what did not."""
        own = self.names.fresh(f"{name}/now")
        nodes = [*self.model.graph.node, *(item for items in self.before.values() for item in items)]
        for node in (*nodes, *self.after):
            if name in set(node_inputs(node)) - {*node.input}:
                raise self._unknown(self.flow.producers[name], f"a body reads {name!r}, an output")
            for names in (node.input, node.output):
                for place, item in enumerate(names):
                    if item in (name, held):
                        names[place] = own if item == name else name

    def _declare(
        self, taken: str, given: str, dtype: int, shape: Sequence[int | str], later: Sequence[int | str]
    ) -> None:
        self.model.graph.input.append(onnx.helper.make_tensor_value_info(taken, dtype, list(shape)))
        self.model.graph.output.append(onnx.helper.make_tensor_value_info(given, dtype, list(later)))

    def _open_states(self, op: Op) -> None:
        """Let a recurrence take its initial states from inputs, and give its last ones."""
        node: NodeProto = op.origin
        label = self._label(op)
        for (first, last), what in zip(RECURRENT[kind_of(op)], ("state", "cell"), strict=False):
            old = node.input[first] if len(node.input) > first else ""
            node.output.extend([""] * (last + 1 - len(node.output)))
            node.input.extend([""] * (first + 1 - len(node.input)))
            if (outside := self.analysis.outside(old, self.plan.inputs)) is not None:
                self.parts.setdefault(outside, []).append((old, op, last))
                continue
            taken, given = (self.names.fresh(f"{_plain(label)}_{what}_{way}") for way in ("in", "out"))
            before, rows, behind = self._state_shape(op)
            start = self.analysis.start_of(op, old) if old else None
            if start is not None and (many := start.shape[len(before)]) > 1:
                if len(rows) > 1:
                    raise self._unknown(op, "it starts from different numbers in each row")
                rows = (many,)
            shape = (*before, *rows, *behind)
            if len(rows) == 1:
                node.input[first] = taken
                self._give(node, last, given)
            else:  # one input has them as several axes
                sizes = [-1 if isinstance(size, str) else size for size in rows]
                one = self._node("Reshape", [taken, self._integers(*before, -1, *behind)], f"{taken}/rows")
                self.before.setdefault(id(node), []).append(one)
                node.input[first] = one.output[0]
                node.output[last] = node.output[last] or self.names.fresh(f"{given}/rows")
                many = self._integers(*before, *sizes, *behind)
                self.after.append(self._node("Reshape", [node.output[last], many], f"{given}/axes"))
                self.after[-1].output[0] = given
            self._declare(taken, given, self._dtype(op, op.inputs[0]), shape, shape)
            if start is not None:  # the other axes of the rows have one number for all
                start = start.reshape(*before, *[1] * (len(rows) - 1), -1, *behind) if start.any() else None
            self.states.append(State(taken, given, label, shape, start=start))

    def _join_states(self, name: str, parts: list[tuple[str, Op, int]]) -> None:
        """Let the model return the last states of recurrences that start from the parts of an input."""
        op, flow = parts[0][1], self.flow
        shape = [size if isinstance(size, int) else 2 for size in flow.shape(name) or ()]
        count = math.prod(shape)
        numbers = (
            np.arange(count, dtype=np.float64).reshape(shape) if count <= _MOST_ELEMENTS else np.zeros(0)
        )
        found = [(evaluated(flow, start, 2, {name: numbers}), one, last) for start, one, last in parts]
        found.sort(key=lambda item: 0 if item[0] is None or not item[0].size else item[0].flat[0])
        axes = [axis for axis in range(len(shape)) if _is_joined([item[0] for item in found], axis, numbers)]
        if not axes or not self.analysis.starts_alone(name):
            raise self._unknown(
                op, f"input {name!r}, where it starts, serves several states or something else"
            )
        given = self.names.fresh(f"{_plain(self._label(op))}_state_out" if len(found) == 1 else f"{name}_out")
        for _, one, last in found:
            one.origin.output[last] = one.origin.output[last] or self.names.fresh(f"{given}/part")
        ends = [one.origin.output[last] for _, one, last in found]
        self.after.append(self._node("Concat", ends, f"{given}/joined", axis=axes[0]))
        self.after[-1].output[0] = given
        value = next(item for item in self.model.graph.input if item.name == name)
        self.model.graph.output.append(ValueInfoProto(name=given, type=value.type))
        dims = tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        self.states.append(State(name, given, self._label(op), dims))

    def _give(self, node: NodeProto, place: int, name: str) -> None:
        """Let the model return what a node gives."""
        if not node.output[place]:
            node.output[place] = name
            return
        self.after.append(self._node("Identity", [node.output[place]], f"{name}/same"))
        self.after[-1].output[0] = name

    def _state_shape(self, op: Op) -> tuple[tuple[int, ...], tuple[int | str, ...], tuple[int, ...]]:
        """The sizes of a state: before its rows, of its rows, which may be several axes, and behind them."""
        R = self.flow.shape(op.inputs[2])
        if R is None or not isinstance(R[-1], int) or not isinstance(R[0], int):
            raise self._unknown(op, "the shape of R is not known")
        is_batch_first = op.attributes.get("layout", 0) == 1
        size = self._size(op.inputs[0], 0 if is_batch_first else 1)
        rows = tuple(self._named(op, item) for item in (size if isinstance(size, tuple) else (size,)))
        if sum(isinstance(item, str) for item in rows) > 1:
            raise self._unknown(op, f"its rows are a product of open sizes ({', '.join(map(str, rows))})")
        return ((), rows, (R[0], R[-1])) if is_batch_first else ((R[0],), rows, (R[-1],))


def _is_joined(parts: Sequence[Array | None], axis: int, whole: Array) -> bool:
    """Whether arrays are all that a whole one consists of."""
    arrays = [part for part in parts if part is not None and part.dtype == whole.dtype]
    try:
        return len(arrays) == len(parts) and np.array_equal(np.concatenate(arrays, axis), whole)
    except ValueError:  # of other shapes
        return False


def _plain(label: str) -> str:
    """A node's name without the slashes of PyTorch's exporter."""
    return label.strip("/").replace("/", "_")


def _open(value: ValueInfoProto, axis: int, name: str) -> None:
    """Let an axis have any size."""
    dims = value.type.tensor_type.shape.dim
    if axis < len(dims) and not dims[axis].dim_param:
        dims[axis].dim_param = name
