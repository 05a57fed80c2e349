"""`Flow`: the operators of one graph as plain data, independent of the file format.

Operators have ONNX's names and meaning; front ends translate. A `Flow` is one graph, or the body of a loop,
whose names may come from the graphs around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import BROKEN
from onegru.dataflow.memoized import memoized
from onegru.dataflow.neutral import one_number, scaled_by_ones
from onegru.dataflow.operator import MOST_SIZES, LoopIndex, Op, Shape, Size, as_ints, as_sizes
from onegru.dataflow.table import Call, Elements, UnknownOpError, evaluate, movers, operator_of

# Operators whose outputs have only elements of their first input.
_MOVING = movers(
    Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.REPEATED,
    casts=True,
    without=("Identity", "Flatten"),
)
_ANSWERS = ("origin", "exact origin", "dtype", "shape", "sizes", "array")  # stored until a change
_MOST_FOLDED = 2**27  # elements of all folded constants


class Flow:
    """Graph of operators."""

    def __init__(
        self,
        ops: Iterable[Op],
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, Callable[[], Array]],
        shapes: Mapping[str, Shape] | None = None,
        dtypes: Mapping[str, str] | None = None,
        outer: Flow | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.ops = list(ops)
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.outer = outer
        self.aliases = dict(aliases or {})
        self.indices: dict[str, LoopIndex] = {}
        self._constants = dict(constants)
        self._stated = dict(shapes or {})
        self._dtypes = dict(dtypes or {})
        self._loaded: dict[str, Array] = {}
        self._folded = 0
        self._changes: list[int] = outer._changes if outer is not None else [0]  # one count for nested graphs
        self._answers_at = -1  # the count when the stored answers were valid
        self.reconnect()

    def reconnect(self) -> None:
        """Find the producers and consumers of each value again, after a change of the operators."""
        self.producers = {name: op for op in self.ops for name in op.outputs if name}
        self.consumers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.reads()):
                self.consumers.setdefault(name, []).append(op)
        self._positions = {id(op): index for index, op in enumerate(self.ops)}
        self._changes[0] += 1

    def _until_changed(self) -> Mapping[str, dict[str, Any]]:
        """Return the answers that are valid until this graph, an enclosing one or a body changes."""
        if self._answers_at != self._changes[0]:
            self._answers_at = self._changes[0]
            self._answers: dict[str, dict[str, Any]] = {name: {} for name in _ANSWERS}
            self._folded = 0
        return self._answers

    _origins = property(lambda self: self._until_changed()["origin"])
    _exact_origins = property(lambda self: self._until_changed()["exact origin"])
    _types = property(lambda self: self._until_changed()["dtype"])
    _shapes = property(lambda self: self._until_changed()["shape"])
    _sizes = property(lambda self: self._until_changed()["sizes"])
    _arrays = property(lambda self: self._until_changed()["array"])

    def _note_change(self, name: str) -> None:
        """Discard all answers if one was about this value, because others may depend on it."""
        if any(name in answers for answers in self._until_changed().values()):
            self._changes[0] += 1

    def position(self, op: Op) -> int:
        """Return the index of an operator in the order."""
        return self._positions[id(op)]

    def depth_and_position(self, op: Op) -> tuple[int, int]:
        """Return the depth and index of an operator in this or an enclosing graph, the outermost first."""
        flow: Flow | None = self
        depth = 0
        while flow is not None:
            if id(op) in flow._positions:
                return -depth, flow._positions[id(op)]
            flow, depth = flow.outer, depth + 1
        raise KeyError(op.kind)

    def is_used(self, name: str) -> bool:
        """Whether this graph uses a value, or has it as an output."""
        return bool(name) and (name in self.outputs or bool(self.consumers.get(name)))

    def free(self) -> set[str]:
        """Return the values that come from enclosing graphs."""
        own = self.producers.keys() | self._constants.keys() | set(self.inputs)
        used = {name for op in self.ops for name in op.reads()} | set(self.outputs)
        return used - own - {""}

    def owner(self, name: str) -> Flow:
        """Return the graph that defines a value."""
        flow = self
        while name not in flow.producers and name not in flow._constants and name not in flow.inputs:
            if flow.outer is None:
                return self
            flow = flow.outer
        return flow

    def resolve(self, name: str) -> str:
        """Return the original name of a value, before aliases, copies, and products with ones."""
        return self.owner(name)._find_origin(name)

    @memoized("_origins", if_circular=lambda flow, name: name)
    def _find_origin(self, name: str) -> str:
        if name in self.aliases:
            return self.resolve(self.aliases[name])
        op = self.producers.get(name)
        passed = None if op is None else self._alias_target(op) or scaled_by_ones(self, op)
        return name if passed is None else self.resolve(passed)

    def _exact_origin(self, name: str) -> str:
        """Return the original name of a value as `resolve`, but only before aliases and copies."""
        return self.owner(name)._find_exact_origin(name)

    @memoized("_exact_origins", if_circular=lambda flow, name: name)
    def _find_exact_origin(self, name: str) -> str:
        op = self.producers.get(name)
        passed = self.aliases.get(name) or (None if op is None else self._alias_target(op))
        return name if passed is None else self._exact_origin(passed)

    def _alias_target(self, op: Op) -> str | None:
        """Return the value that an operator passes on unchanged; None for other operators."""
        # Keras' exporter casts values to their own type, and checks for each step whether it exists.
        if op.kind == "Identity":
            return op.inputs[0]
        if op.kind == "Cast" and op.attributes.get("dtype") == (self.dtype(op.inputs[0]) or ""):
            return op.inputs[0]
        if op.kind == "Where" and (array := self.constant(op.inputs[0])) is not None and array.size:
            for is_chosen, name in ((array.all(), op.inputs[1]), (not array.any(), op.inputs[2])):
                shape = self.shape(name)
                if is_chosen and shape is not None and shape == self.shape(op.outputs[0]):
                    return name
        return None

    def find_producer(self, name: str) -> Op | None:
        """Return the operator of a value, which may be in an enclosing graph; None if it has none."""
        return self.owner(name).producers.get(name)

    def dtype(self, name: str) -> str | None:
        """Return a value's element type by NumPy's name; None if unknown."""
        return self.owner(name)._find_dtype(name)

    @memoized("_types")
    def _find_dtype(self, name: str) -> str | None:
        op = self.producers.get(name)
        if name in self._dtypes:
            return self._dtypes[name]
        if name in self.aliases:
            return self.dtype(self.aliases[name])
        found = None if op is None else operator_of(op.kind).dtype_of(op)
        if isinstance(found, str):
            return found
        if op is not None and found is not None and found < len(op.inputs):
            return self.dtype(op.inputs[found])
        array = self.constant(name)
        return None if array is None else array.dtype.name

    # Constants

    def holds(self, name: str) -> bool:
        """Whether the file stores a value, in contrast to a computed one."""
        return name in self.owner(name)._constants

    def constant(self, name: str) -> Array | None:
        """Return a constant, or a value that depends only on constants and known sizes; else None."""
        return self.owner(name)._find_array(name)

    @memoized("_arrays")
    def _find_array(self, name: str) -> Array | None:
        if name in self.aliases:
            return self.constant(self.aliases[name])
        if name in self._constants:
            if name not in self._loaded:
                self._loaded[name] = self._constants[name]()
            return self._loaded[name]
        op = self.producers.get(name)
        if op is None or not operator_of(op.kind).computes or op.bodies:
            return self._from_sizes(name)
        if (arrays := _known_inputs(self, op)) is None:
            return self._from_sizes(name)
        self._evaluate(op, arrays)
        found: Array | None = self._arrays[name]
        return found

    def _evaluate(self, op: Op, arrays: Sequence[Array | None]) -> None:
        try:
            results = evaluate(op.kind, op.attributes, arrays, len(op.outputs))
        except UnknownOpError:
            results = ()
        self._arrays.update(dict.fromkeys(op.outputs))
        for name, result in zip(op.outputs, results, strict=False):
            self._folded += result.size
            self._arrays[name] = None if self._folded > _MOST_FOLDED else result

    def _from_sizes(self, name: str) -> Array | None:
        sizes = self.as_sizes(name)
        if sizes is None or not all(isinstance(size, int) for size in sizes):
            return None
        shape = self.shape(name)
        array = np.array(sizes, np.int64)
        return array.reshape(()) if shape == () else array

    def ints(self, op: Op, attribute: str, index: int) -> list[int] | None:
        """Return integers from an operator's attribute, or else from the constant input with this index."""
        if attribute in op.attributes:
            value = op.attributes[attribute]
            return list(value) if isinstance(value, Sequence) else [value]
        if len(op.inputs) <= index or not op.inputs[index]:
            return None
        return as_ints(self.constant(op.inputs[index]))

    def number(self, name: str) -> float | None:
        """Return the value of a constant with one element; else None."""
        array = self.constant(name) if name else None
        return float(array.ravel()[0]) if array is not None and array.size == 1 else None

    # Sizes: integers that are computed from shapes

    def as_sizes(self, name: str) -> tuple[Size, ...] | None:
        """Return a small integer tensor as its elements, if they are sizes or constants; else None."""
        return self.owner(name)._find_sizes(name)

    @memoized("_sizes")
    def _find_sizes(self, name: str) -> tuple[Size, ...] | None:
        if name in self.aliases:
            return self.as_sizes(self.aliases[name])
        if name in self._constants:
            return as_sizes(self.constant(name))
        op = self.producers.get(name)
        if op is None:
            return None
        if op.kind == "Shape":
            shape = self.shape(op.inputs[0])
            first, last = op.attributes.get("start", 0), op.attributes.get("end")
            return None if shape is None else shape[first:last]
        if not operator_of(op.kind).follows_sizes or not op.inputs:
            return None
        parts = [self.as_sizes(item) for item in op.inputs if item]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):  # such as half of a known size
            return as_sizes(self.constant(name)) if _is_short(self.shape(name)) else None
        try:
            found = operator_of(op.kind).as_sizes(Call(op, self, ()), known)
        except (UnknownOpError, *BROKEN):
            return None
        return found if found is not None and len(found) <= MOST_SIZES else None

    def fill_value(self, name: str) -> Size | float | None:
        """Return the number or size that all elements equal; None if they differ or are unknown."""
        casts: list[str] = []
        for _ in range(100):
            name = self._exact_origin(name)
            array, op = self.constant(name), self.find_producer(name)
            if array is None and (sizes := self.as_sizes(name)) is not None:
                return sizes[0] if len(set(sizes)) == 1 else None
            if array is None and op is not None and op.kind == "ConstantOfShape":
                array = np.asarray(op.attributes.get("value", 0.0))
            if array is not None:
                return one_number(array, casts)
            if op is None or op.kind not in _MOVING:
                return None
            casts += [str(op.attributes.get("dtype"))] if op.kind == "Cast" else []
            name = op.inputs[0]
        return None

    # Shapes

    def shape(self, name: str) -> Shape | None:
        """Return a value's shape; None if even its rank is unknown."""
        return self.owner(name)._find_shape(name)

    @memoized("_shapes", if_circular=lambda flow, name: flow._stated.get(name))
    def _find_shape(self, name: str) -> Shape | None:
        stated = self._stated.get(name)
        if name in self.aliases:
            return _merged(self.shape(self.aliases[name]), stated)
        if name in self._constants:
            return stated if stated is not None else getattr(self.constant(name), "shape", None)
        op = self.producers.get(name)
        if op is None or not operator_of(op.kind).has_shape:
            return stated
        shapes = [self.shape(item) if item else () for item in op.inputs]
        if any(shape is None for shape in shapes):
            return stated
        try:
            call = Call(op, self, shapes)
            found = call.operator.shape(call, op.outputs.index(name))
        except (UnknownOpError, *BROKEN):
            return stated
        if found is not None and stated is not None and len(found) == len(stated):  # a rule may lack names
            pairs = enumerate(zip(found, stated, strict=True))
            found = tuple(b if a == f"{name}#{axis}" else a for axis, (a, b) in pairs)
        return _merged(found, stated)

    def set_shape(self, name: str, shape: Shape) -> None:
        """Set a value's shape."""
        self._stated[name] = shape
        self._note_change(name)

    def set_alias(self, name: str, other: str) -> None:
        """Set another name for a value of a body that always equals the other."""
        self.aliases[name] = other
        self._note_change(name)

    def set_indices(self, indices: Mapping[str, LoopIndex]) -> None:
        """Set the values that are iteration indices of the loop with this body."""
        self.indices = dict(indices)
        self._changes[0] += 1

    def set_dtype(self, name: str, dtype: str) -> None:
        """Set a value's element type, unless it is known."""
        self._dtypes.setdefault(name, dtype)
        self._note_change(name)

    # Changes

    def add_constant(self, name: str, array: Array) -> None:
        """Add a constant."""
        self._constants[name] = lambda: array
        self._loaded[name] = array
        self._note_change(name)

    @property
    def constants(self) -> Mapping[str, Callable[[], Array]]:
        """Return the readers of the constants, by name."""
        return self._constants


class LazyFlow(Flow):
    """Graph for queries of shapes and constants only: it reads operators on demand."""

    def __init__(
        self,
        inputs: Sequence[str],
        producers: Mapping[str, Callable[[], Op]],
        constants: Mapping[str, Callable[[], Array]],
        shapes: Mapping[str, Shape],
        dtypes: Mapping[str, str],
    ) -> None:
        super().__init__((), inputs, (), constants, shapes, dtypes)
        self.producers = _LazyOps(producers)


class _LazyOps(dict[str, Op]):
    """Operators by their outputs, read on first access."""

    def __init__(self, readers: Mapping[str, Callable[[], Op]]) -> None:
        self._readers = readers

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    def __missing__(self, name: str) -> Op:
        op = self._readers[name]()
        self.update(dict.fromkeys(filter(None, op.outputs), op))
        return op

    def get(self, name: str, default: Any = None) -> Any:
        """Return the operator; `default` if the value has none."""
        return self[name] if name in self._readers else default


def _is_short(shape: Shape | None) -> bool:
    """Whether a value of this shape may be a list of sizes."""
    return shape is not None and len(shape) < 2 and all(isinstance(n, int) and n <= MOST_SIZES for n in shape)


def _known_inputs(flow: Flow, op: Op) -> list[Array | None] | None:
    """Return an operator's inputs, with None for omitted ones; None if one is not constant."""
    arrays: list[Array | None] = []
    for index, item in enumerate(op.inputs):
        arrays.append(_known_input(flow, op, index))
        if item and arrays[-1] is None:
            return None
    return arrays


def _known_input(flow: Flow, op: Op, index: int) -> Array | None:
    """Return an operator's constant input; an empty array where only its element type matters."""
    name = op.inputs[index]
    if index not in operator_of(op.kind).type_inputs:
        return flow.constant(name) if name else None
    dtype = flow.dtype(name)
    try:
        return None if dtype is None else np.zeros(0, numpy_dtype(dtype))
    except TypeError:  # a type that NumPy lacks
        return None


def _merged(found: Shape | None, stated: Shape | None) -> Shape | None:
    """Merge two sources of a shape."""
    if found is None or stated is None or len(found) != len(stated):
        return stated if found is None else found
    pairs = zip(found, stated, strict=True)
    return tuple(b if isinstance(a, str) and isinstance(b, int) else a for a, b in pairs)
