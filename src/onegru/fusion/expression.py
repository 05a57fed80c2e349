"""What the values of a model compute, as polynomials: one rule for each kind of operator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.fusion.flow import (
    Flow,
    LoopIndex,
    Op,
    Shape,
    Size,
    einsum_terms,
    index_slice,
    slice_ranges,
    split_sizes,
    squeezed_axes,
)
from onegru.fusion.polynomial import Algebra, Matrix, Polynomial, TooComplexError, add, constant, same, scale

#: What an axis of a value is in a view: "R" a row of the batch, "F" columns, else the index that is taken.
Role = str | int | LoopIndex


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Columns of a value, in each row.

    Attributes:
        name: the value.
        roles: what each of its axes is.
        index: the index of each column along each "F" axis, [axes, columns].
    """

    name: str
    roles: tuple[Role, ...]
    index: Array

    @property
    def key(self) -> tuple[str, tuple[Role, ...], bytes]:
        """Equal for equal views."""
        return self.name, self.roles, self.index.tobytes() if len(self.index) else b""

    @property
    def width(self) -> int:
        """How many columns."""
        return int(self.index.shape[1])


def whole_view(flow: Flow, name: str) -> View | None:
    """All of the last axis of a value, whose other axes are rows; None if its size is not fixed."""
    shape = flow.shape(name)
    if not shape or not isinstance(shape[-1], int):
        return None
    return View(name, ("R",) * (len(shape) - 1) + ("F",), np.arange(shape[-1])[None])


class Expressions:
    """The polynomials of the values of a flow.

    Args:
        flow: the graph, or a loop's body.
        algebra: the atoms, for all flows of a model.
        indices: values that are indices of a loop's iteration.
        slices: for an input of a body that is a slice: the value, its axis of time, 1 or -1 for the
            direction, and whether the slice has that axis.
    """

    def __init__(
        self,
        flow: Flow,
        algebra: Algebra,
        indices: Mapping[str, LoopIndex] | None = None,
        slices: Mapping[str, tuple[str, int, int, bool]] | None = None,
    ) -> None:
        self.flow = flow
        self.algebra = algebra
        self.indices = dict(indices or {})
        self.slices = dict(slices or {})
        self.boundaries = self._find_boundaries()
        self._known: dict[Any, Polynomial] = {}
        self._depth = 0

    def _find_boundaries(self) -> set[str]:
        """Values that products with constants take: states and inputs of cells, not to be looked into."""
        found: set[str] = set()
        for op in self.flow.ops:
            if op.kind not in _PRODUCTS:
                continue
            is_constant = [bool(name) and self.flow.constant(name) is not None for name in op.inputs[:2]]
            if not any(is_constant):
                continue
            for name, fixed in zip(op.inputs[:2], is_constant, strict=True):
                for base in self._bases(name):
                    if fixed and not (all(is_constant) and name == op.inputs[0] and self._is_blended(base)):
                        continue  # a weight, unless it is a state that is given as a constant
                    producer = self.flow.producer(base)
                    if producer is None or producer.kind != "Mul":
                        found.add(base)
        return found

    def _bases(self, name: str) -> list[str]:
        """The values that one is put together from."""
        waiting = [self.flow.resolve(name)]
        found: list[str] = []
        while waiting and len(found) < 64:
            last = waiting.pop()
            op = self.flow.producer(last)
            if op is not None and op.kind == "Concat":
                waiting += [self.flow.resolve(item) for item in op.inputs]
            elif op is not None and op.kind in ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Cast"):
                waiting.append(self.flow.resolve(op.inputs[0]))
            else:
                found.append(last)
        return found

    def _is_blended(self, name: str) -> bool:
        return any(op.kind in ("Mul", "Sub", "Where") for op in self.flow.owner(name).consumers.get(name, ()))

    def of(self, name: str) -> tuple[View, Polynomial] | None:
        """The polynomial of a value, looked into even if it is a boundary; None if it has none."""
        view = whole_view(self.flow, name)
        if view is None or view.width == 0:
            return None
        try:
            return view, self._operator(view)
        except TooComplexError:
            return None

    def polynomial(self, view: View) -> Polynomial:
        """The polynomial of a view; an atom if it can't be told."""
        name = self.flow.resolve(view.name)
        view = View(name, view.roles, view.index)
        key = view.key if len(view.index) else (*view.key, view.width)
        if key not in self._known:
            self._known[key] = self._atom(view)  # ends a circle
            self._known[key] = self._find(view)
        return self._known[key]

    def _find(self, view: View) -> Polynomial:
        if view.name in self.boundaries or self._depth > 150:
            return self._atom(view)
        if (array := self.flow.constant(view.name)) is not None:
            return self._constant(view, array)
        self._depth += 1
        try:
            return self._operator(view)
        except TooComplexError:
            return self._atom(view)
        finally:
            self._depth -= 1

    def _atom(self, view: View) -> Polynomial:
        is_bool = self.flow.dtype(view.name) == "bool"
        return self.algebra.value(view.key, view, view.name, is_bool)

    def _constant(self, view: View, array: Array) -> Polynomial:
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            return self._atom(view)
        if any(isinstance(role, LoopIndex) for role in view.roles):
            return self._atom(view)
        found = array[tuple(role if isinstance(role, int) else slice(None) for role in view.roles)]
        kept = [role for role in view.roles if not isinstance(role, int)]
        rows, columns = ([axis for axis, role in enumerate(kept) if role == kind] for kind in "RF")
        found = found.transpose(rows + columns).astype(np.float64)
        sizes = found.shape[len(rows) :]
        flat = found.reshape(-1, int(np.prod(sizes)))
        taken = flat[:, np.ravel_multi_index(tuple(view.index), sizes) if columns else np.zeros(1, int)]
        if not len(taken) or not np.isfinite(taken).all() or np.any(taken != taken[0]):
            return self._atom(view)  # differs from row to row
        return constant(taken[0] if columns else taken[0, 0])

    def _operator(self, view: View) -> Polynomial:
        op = self.flow.producer(view.name)
        if op is None or op.kind not in _RULES:
            raise TooComplexError
        return _RULES[op.kind](self, op, view)

    # Views through operators

    def whole(self, name: str) -> View | None:
        """All columns of a value; None if their number is not known."""
        return whole_view(self.flow, name)

    def slice_of(self, view: View) -> View:
        """What a slice is taken of."""
        name, axis, step, is_kept = self.slices[view.name]
        index = LoopIndex(1, 0) if step > 0 else LoopIndex(-1, -1, -1)
        after = view.roles[axis + 1 if is_kept else axis :]
        return View(name, (*view.roles[:axis], index, *after), view.index)

    def through(self, op: Op, view: View) -> list[tuple[Array, View]] | None:
        """What an operator that only moves elements takes its columns from: (columns, view) pairs."""
        rule = _VIEWS.get(op.kind)
        return None if rule is None else rule(self, op, view)

    def shape(self, name: str) -> Shape:
        """A value's shape."""
        shape = self.flow.shape(name)
        if shape is None:
            raise TooComplexError
        return shape

    def input_view(self, view: View, name: str, output_shape: Shape) -> View:
        """The view of an input of an operator that works element by element, with broadcasting."""
        shape = self.shape(name)
        missing = len(output_shape) - len(shape)
        roles: list[Role] = []
        kept: list[int] = []
        column = 0
        for axis, role in enumerate(view.roles):
            if role == "F":
                column += 1
            if axis < missing:
                continue
            size, whole = shape[axis - missing], output_shape[axis]
            if size == 1 and whole != 1:
                roles.append(0)
                continue
            if role == "F":
                kept.append(column - 1)
            roles.append(role)
        return View(name, tuple(roles), view.index[kept])

    # Products with constants

    def contract(
        self, view: View, terms: list[str], names: tuple[str, str], swap: bool = False
    ) -> Polynomial:
        """A product of a value with a constant, given as an Einsum's letters."""
        value_letters, constant_letters, out_letters = terms
        value, weights = names
        array = self.flow.constant(weights)
        if array is None or (array.dtype.kind != "f" and array.dtype.name != "bfloat16"):
            raise TooComplexError
        while array.ndim > len(constant_letters) and array.shape[0] == 1:
            array = array[0]
        if array.ndim != len(constant_letters):
            raise TooComplexError
        summed = [letter for letter in value_letters if letter not in out_letters]
        if set(value_letters) & set(constant_letters) & set(out_letters) or not set(summed) <= set(
            constant_letters
        ):
            raise TooComplexError
        own = [letter for letter in out_letters if letter in constant_letters]
        roles, columns, fixed = dict(zip(out_letters, view.roles, strict=True)), iter(view.index), {}
        for letter, role in zip(out_letters, view.roles, strict=True):
            if role == "F":
                if letter not in own:
                    raise TooComplexError
                fixed[letter] = next(columns)
            elif letter in own:
                size = array.shape[constant_letters.index(letter)]
                if (role == "R" and size != 1) or isinstance(role, LoopIndex):
                    raise TooComplexError
                fixed[letter] = np.full(view.width, 0 if role == "R" else role)
        if [letter for letter in constant_letters if letter not in own + summed]:
            raise TooComplexError
        sizes = [array.shape[constant_letters.index(letter)] for letter in summed]
        count = int(np.prod(sizes))
        grid = np.stack([item.ravel() for item in np.indices(sizes)]) if sizes else np.zeros((0, 1), int)
        value_roles: list[Role] = ["F" if letter in summed else roles[letter] for letter in value_letters]
        order = [summed.index(letter) for letter in value_letters if letter in summed]
        operand = View(value, tuple(value_roles), grid[order])
        shape = self.shape(value)
        if any(shape[axis] != size for axis, size in _sizes_at(value_letters, summed, sizes)):
            raise TooComplexError
        key = (self._content(weights), constant_letters, tuple(summed), tuple(fixed))

        def make(rows: Array, taken: dict[str, Array] = fixed) -> Array:
            flat: list[Array] = []
            for letter in constant_letters:
                if letter in summed:
                    flat.append(grid[summed.index(letter)][rows][:, None])
                else:
                    flat.append(taken[letter][None, :])
            return np.asarray(array[tuple(flat)], np.float64)

        column_key = b"".join(item.tobytes() for item in fixed.values())
        result = constant(0)
        for rows, part in self._pieces(operand):
            whole = len(rows) == count
            matrix_key = (key, column_key, b"" if whole else rows.tobytes())
            matrix = Matrix(matrix_key, lambda rows=rows: make(rows))  # type: ignore[misc]
            result = add(result, self._product(part, matrix))
        return result

    def _product(self, view: View, matrix: Matrix) -> Polynomial:
        p = self.polynomial(view)
        kinds = {self.algebra.atoms[number].kind for number in p.atoms()}
        nested = "dot" in kinds or len(p.terms) > 3
        if p.is_constant:
            row = np.broadcast_to(p.constant, view.width)
            return constant(row @ matrix.make())
        if nested:
            p = self._atom(View(self.flow.resolve(view.name), view.roles, view.index))
        fixed = p.constant
        if np.any(fixed):  # the constant part is a bias
            rest = Polynomial({monomial: item for monomial, item in p.terms.items() if monomial})
            bias = constant(np.broadcast_to(fixed, view.width) @ matrix.make())
            return add(self._product_of(rest, matrix, view), bias)
        return self._product_of(p, matrix, view)

    def _product_of(self, p: Polynomial, matrix: Matrix, view: View) -> Polynomial:
        single = p.single()
        if single is not None:  # the coefficient stays outside
            atom = Polynomial({(single[0],): np.ones(())})
            return scale(self.algebra.dot(atom, matrix, view), single[1])
        return self.algebra.dot(p, matrix, view)

    def _pieces(self, view: View) -> list[tuple[Array, View]]:
        """The values that a row is put together from, with the columns that each gives."""
        pieces, done = [(np.arange(view.width), view)], 0
        while done < len(pieces) < 64:
            columns, part = pieces[done]
            found = self._parts(part)
            if found is None:
                done += 1
            else:
                pieces[done : done + 1] = [(columns[inner], deeper) for inner, deeper in found]
        return pieces

    def _parts(self, view: View) -> list[tuple[Array, View]] | None:
        """The parts of a row, if it is put together somewhere before it is reshaped."""
        for _ in range(16):
            name = self.flow.resolve(view.name)
            op = self.flow.producer(name)
            if name in self.boundaries or op is None or op.kind not in _GLUE:
                return None
            try:
                found = self.through(op, View(name, view.roles, view.index))
            except TooComplexError:
                return None
            if found is None or len(found) > 1:
                return found
            view = found[0][1]
        return None

    def _content(self, name: str) -> str:
        """Equal for constants of equal content."""
        name = self.flow.resolve(name)
        array = self.flow.constant(name)
        assert array is not None
        known = self.algebra.digests
        holder = id(array)
        if holder not in known or known[holder][0] is not array:
            data = np.ascontiguousarray(array)
            digest = hashlib.blake2b(data.view(np.uint8).data if data.size else b"", digest_size=16)
            known[holder] = (array, f"{digest.hexdigest()}{array.shape}{array.dtype}")
        return known[holder][1]


def _sizes_at(letters: str, summed: list[str], sizes: list[int]) -> list[tuple[int, int]]:
    return [(axis, sizes[summed.index(letter)]) for axis, letter in enumerate(letters) if letter in summed]


# Operators that move elements


def _same_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    return [(np.arange(view.width), View(op.inputs[0], view.roles, view.index))]


def _cast_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    before, after = at.flow.dtype(op.inputs[0]), op.attributes.get("dtype")
    if after not in ("float16", "bfloat16", "float32", "float64") or before not in ("bool", after):
        raise TooComplexError  # one that rounds is no part of a cell
    return _same_view(at, op, view)


def _transpose_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    perm = op.attributes.get("perm", tuple(range(len(view.roles)))[::-1])
    shape = at.shape(op.inputs[0])
    order = [axis for axis in perm if view.roles[perm.index(axis)] == "R" and shape[axis] != 1]
    if order != sorted(order):
        raise TooComplexError
    roles: list[Role] = ["R"] * len(perm)
    columns: dict[int, Array] = {}
    rows = iter(view.index)
    for axis, source in enumerate(perm):
        roles[source] = view.roles[axis]
        if view.roles[axis] == "F":
            columns[source] = next(rows)
    index = [columns[axis] for axis in sorted(columns)]
    return [(np.arange(view.width), View(op.inputs[0], tuple(roles), _stacked(index, view)))]


def _stacked(rows: list[Array], view: View) -> Array:
    return np.stack(rows) if rows else np.zeros((0, view.width), np.int64)


def _squeeze_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    shape = at.shape(op.inputs[0])
    axes = squeezed_axes(at.flow, op, shape)
    if axes is None:
        raise TooComplexError
    rest = iter(view.roles)
    roles = tuple(0 if axis in axes else next(rest) for axis in range(len(shape)))
    return [(np.arange(view.width), View(op.inputs[0], roles, view.index))]


def _unsqueeze_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    axes = at.flow.ints(op, "axes", 1)
    if axes is None:
        raise TooComplexError
    inserted = {axis % len(view.roles) for axis in axes}
    roles, kept, column = [], [], 0
    for axis, role in enumerate(view.roles):
        if axis not in inserted:
            roles.append(role)
            kept += [column] if role == "F" else []
        column += role == "F"
    return [(np.arange(view.width), View(op.inputs[0], tuple(roles), view.index[kept]))]


def _reshape_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    source, target = at.shape(op.inputs[0]), at.shape(op.outputs[0])
    first = view.roles.index("F") if "F" in view.roles else len(view.roles)
    sizes = target[first:]
    if any(role != "F" for role in view.roles[first:]) or not all(isinstance(size, int) for size in sizes):
        raise TooComplexError
    fixed = [size for size in sizes if isinstance(size, int)]
    count, split, product = int(np.prod(fixed)), len(source), 1
    while split and product < count and isinstance(source[split - 1], int):
        split -= 1
        product *= int(source[split])
    if product != count:
        raise TooComplexError
    before, after = list(source[:split]), list(target[:first])
    roles = list(view.roles[:first])
    if all(role == "R" for role in roles):
        inner: list[Role] = ["R"] * split
    else:  # indices are only followed through axes that stay
        kept = [(size, role) for size, role in zip(after, roles, strict=True) if size != 1 or role != "R"]
        wide = [size for size in before if size != 1]
        if [size for size, _ in kept if size != 1] != wide or any(size == 1 for size, _ in kept):
            raise TooComplexError
        passed = iter(role for _, role in kept)
        inner = ["R" if size == 1 else next(passed) for size in before]
    flat = np.ravel_multi_index(tuple(view.index), tuple(fixed)) if fixed else np.zeros(view.width, np.int64)
    wanted = [int(size) for size in source[split:]]
    index = np.stack(np.unravel_index(flat, wanted)) if wanted else np.zeros((0, view.width), np.int64)
    return [(np.arange(view.width), View(op.inputs[0], (*inner, *["F"] * len(wanted)), index))]


def _flatten_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    if op.attributes.get("axis", 1) != 1 or len(at.shape(op.inputs[0])) != 2:
        raise TooComplexError
    return _same_view(at, op, view)


def _cut_axis(view: View, axis: int, start: int, count: int, step: int, size: Size) -> tuple[Role, Any]:
    """The role of an axis behind a cut, and its columns if it has any."""
    role = view.roles[axis]
    if role == "F":
        place = sum(other == "F" for other in view.roles[:axis])
        if start < 0:
            raise TooComplexError
        return "F", start + step * view.index[place]
    if isinstance(role, int) and start >= 0:
        return start + step * role, None
    if role == "R" and count == 1 and start >= 0:
        return start, None
    if role == "R" and count == size and step == 1 and start == 0:
        return "R", None
    raise TooComplexError


def backwards(role: Role, size: Size) -> Role:
    """The index along an axis of what is turned round along it."""
    if isinstance(role, LoopIndex):
        if role.size == 0:
            return LoopIndex(-role.sign, -1 - role.base, size)
        if role.size in (size, -1):
            return LoopIndex(-role.sign, -1 - role.base)
    if isinstance(role, int) and isinstance(size, int):
        return size - 1 - role
    raise TooComplexError


def is_reversal(flow: Flow, op: Op) -> int | None:
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


def _reverse_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]] | None:
    """The view of what is turned round, where a view takes one slice of it."""
    axis = is_reversal(at.flow, op)
    if axis is None or view.roles[axis] in ("R", "F"):
        return None
    role = backwards(view.roles[axis], at.shape(op.inputs[0])[axis])
    return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: role}, {}))]


def _reverse_sequence_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    found = _reverse_view(at, op, view)
    if found is None:
        raise TooComplexError
    return found


def _replaced(view: View, name: str, roles: dict[int, Role], columns: dict[int, Array]) -> View:
    index = view.index.copy()
    for axis, taken in columns.items():
        index[sum(other == "F" for other in view.roles[:axis])] = taken
    return View(name, tuple(roles.get(axis, role) for axis, role in enumerate(view.roles)), index)


def _slice_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    if (turned := _reverse_view(at, op, view)) is not None:
        return turned
    shape = at.shape(op.inputs[0])
    if (single := index_slice(at.flow, op, shape)) is not None:
        if view.roles[single[0]] not in ("R", 0):
            raise TooComplexError
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {single[0]: single[1]}, {}))]
    ranges = slice_ranges(at.flow, op, shape)
    if ranges is None:
        raise TooComplexError
    roles: dict[int, Role] = {}
    columns: dict[int, Array] = {}
    for axis, cut in ranges.items():
        if cut is None:
            continue
        roles[axis], taken = _cut_axis(view, axis, *cut, shape[axis])
        if taken is not None:
            columns[axis] = taken
    return [(np.arange(view.width), _replaced(view, op.inputs[0], roles, columns))]


def _split_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    shape = at.shape(op.inputs[0])
    sizes = split_sizes(at.flow, op, shape)
    if sizes is None:
        raise TooComplexError
    axis, output = op.attributes.get("axis", 0) % len(shape), op.outputs.index(view.name)
    role, taken = _cut_axis(view, axis, sum(sizes[:output]), sizes[output], 1, shape[axis])
    columns = {} if taken is None else {axis: taken}
    return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: role}, columns))]


def _gather_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    if (turned := _reverse_view(at, op, view)) is not None:
        return turned
    shape = at.shape(op.inputs[0])
    axis = op.attributes.get("axis", 0) % len(shape)
    indices = at.flow.constant(op.inputs[1])
    rank = len(at.shape(op.inputs[1]))
    before = view.roles[:axis]
    if indices is None:
        role: Role | None = at.indices.get(at.flow.resolve(op.inputs[1]))
        if role is None or rank > 1 or (rank == 1 and view.roles[axis] not in ("R", 0)):
            raise TooComplexError
        return [
            (
                np.arange(view.width),
                View(op.inputs[0], (*before, role, *view.roles[axis + rank :]), view.index),
            )
        ]
    size = shape[axis]
    wrapped = np.where(indices < 0, indices + (size if isinstance(size, int) else 0), indices)
    if wrapped.size and int(wrapped.min()) < 0:
        raise TooComplexError
    if rank == 0:
        roles = (*before, int(wrapped), *view.roles[axis:])
        return [(np.arange(view.width), View(op.inputs[0], roles, view.index))]
    if rank != 1:
        raise TooComplexError
    taken = view.roles[axis]
    if taken == "F":
        place = sum(other == "F" for other in before)
        columns = {axis: wrapped[view.index[place]]}
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {}, columns))]
    if isinstance(taken, int) or len(wrapped) == 1:
        chosen = int(wrapped[taken if isinstance(taken, int) else 0])
        return [(np.arange(view.width), _replaced(view, op.inputs[0], {axis: chosen}, {}))]
    raise TooComplexError


def _concat_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    shapes = [at.shape(name) for name in op.inputs]
    axis = op.attributes["axis"] % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    if not all(isinstance(size, int) for size in sizes):
        raise TooComplexError
    ends = np.cumsum([int(size) for size in sizes])
    role = view.roles[axis]
    if isinstance(role, int):
        chosen = int(np.searchsorted(ends, role, "right"))
        start = int(ends[chosen - 1]) if chosen else 0
        return [(np.arange(view.width), _replaced(view, op.inputs[chosen], {axis: role - start}, {}))]
    if role != "F":
        raise TooComplexError
    place = sum(other == "F" for other in view.roles[:axis])
    owners = np.searchsorted(ends, view.index[place], "right")
    parts = []
    for chosen in np.unique(owners):
        columns = np.flatnonzero(owners == chosen)
        index = view.index[:, columns].copy()
        index[place] -= int(ends[chosen - 1]) if chosen else 0
        parts.append((columns, View(op.inputs[chosen], view.roles, index)))
    return parts


def _expand_view(at: Expressions, op: Op, view: View) -> list[tuple[Array, View]]:
    inner = at.input_view(view, op.inputs[0], at.shape(op.outputs[0]))
    return [(np.arange(view.width), inner)]


_VIEWS: dict[str, Callable[[Expressions, Op, View], list[tuple[Array, View]]]] = {
    "Identity": _same_view,
    "Dropout": _same_view,
    "Cast": _cast_view,
    "Transpose": _transpose_view,
    "Squeeze": _squeeze_view,
    "Unsqueeze": _unsqueeze_view,
    "Reshape": _reshape_view,
    "Flatten": _flatten_view,
    "Slice": _slice_view,
    "Split": _split_view,
    "Gather": _gather_view,
    "Concat": _concat_view,
    "Expand": _expand_view,
    "ReverseSequence": _reverse_sequence_view,
}
_GLUE = ("Identity", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Split", "Slice", "Gather")
_PRODUCTS = ("MatMul", "Gemm", "Einsum")


# Rules: the polynomial of a view of an operator's output


def _moved(at: Expressions, op: Op, view: View) -> Polynomial:
    parts = at.through(op, view)
    if parts is None or len(parts) != 1:
        raise TooComplexError
    return at.polynomial(parts[0][1])


def _inputs(at: Expressions, op: Op, view: View) -> list[Polynomial]:
    shape = at.shape(op.outputs[0])
    return [at.polynomial(at.input_view(view, name, shape)) for name in op.inputs if name]


def _combined(combine: Callable[[Algebra, Polynomial, Polynomial], Polynomial]) -> Any:
    def rule(at: Expressions, op: Op, view: View) -> Polynomial:
        result, *rest = _inputs(at, op, view)
        for other in rest:
            result = combine(at.algebra, result, other)
        return result

    return rule


def _applied(function: Callable[[Algebra, Polynomial, Mapping[str, Any]], Polynomial]) -> Any:
    def rule(at: Expressions, op: Op, view: View) -> Polynomial:
        return function(at.algebra, at.polynomial(View(op.inputs[0], view.roles, view.index)), op.attributes)

    return rule


def _hard_sigmoid(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return algebra.clip(add(scale(p, alpha), constant(beta)), 0.0, 1.0)


def _leaky_relu(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
    return algebra.function("LeakyRelu", p, parameters=(float(attributes.get("alpha", 0.01)),))


def _with_alpha(name: str) -> Any:
    return _applied(
        lambda algebra, p, attributes: algebra.function(
            name, p, parameters=(float(attributes.get("alpha", 1.0)),)
        )
    )


def _clip(at: Expressions, op: Op, view: View) -> Polynomial:
    bounds = []
    for name, place, default in (("min", 1, -np.inf), ("max", 2, np.inf)):
        bound: float | None = op.attributes.get(name, default)
        if len(op.inputs) > place and op.inputs[place]:
            bound = at.flow.number(op.inputs[place])
        if bound is None:
            raise TooComplexError
        bounds.append(float(bound))
    limit = 3.4e38  # what exporters write for none
    low, high = (-np.inf if bounds[0] < -limit else bounds[0]), (np.inf if bounds[1] > limit else bounds[1])
    return at.algebra.clip(at.polynomial(View(op.inputs[0], view.roles, view.index)), low, high)


def _prelu(at: Expressions, op: Op, view: View) -> Polynomial:
    p, slope = _inputs(at, op, view)
    number = float(slope.constant.ravel()[0])
    if not slope.is_constant or np.any(slope.constant != number):
        raise TooComplexError
    return at.algebra.function("LeakyRelu", p, parameters=(number,))


_COMPARED = {"Greater": 1.0, "GreaterOrEqual": 1.0, "Less": -1.0, "LessOrEqual": -1.0}


def _where(at: Expressions, op: Op, view: View) -> Polynomial:
    shape = at.shape(op.outputs[0])
    condition = at.input_view(view, op.inputs[0], shape)
    p, q = (at.polynomial(at.input_view(view, name, shape)) for name in op.inputs[1:])
    producer = at.flow.producer(at.flow.resolve(condition.name))
    if producer is not None and producer.kind in _COMPARED:
        first, second = _inputs(at, producer, View(producer.outputs[0], condition.roles, condition.index))
        w = scale(add(first, second, -1.0), _COMPARED[producer.kind])
        try:
            return at.algebra.positive(w, p, q)
        except TooComplexError:
            pass
    m = at.polynomial(condition)
    if same(p, q):
        return p
    if m.is_constant or not all(at.algebra.atoms[number].is_bool for number in m.atoms()):
        raise TooComplexError
    return add(at.algebra.multiply(m, add(p, q, -1.0)), q)


def _not(at: Expressions, op: Op, view: View) -> Polynomial:
    return add(constant(1), at.polynomial(View(op.inputs[0], view.roles, view.index)), -1.0)


def _matmul(at: Expressions, op: Op, view: View) -> Polynomial:
    first, second = op.inputs
    ranks = len(at.shape(first)), len(at.shape(second))
    if at.flow.constant(second) is not None:
        lead = "abcdefg"[: ranks[0] - 1]
        if ranks[1] < 2 or len(view.roles) != ranks[0]:
            raise TooComplexError
        return at.contract(view, [f"{lead}k", "kn", f"{lead}n"], (first, second))
    if at.flow.constant(first) is not None and ranks[0] == 2:  # a column: W·x
        if ranks[1] == 1:
            return at.contract(view, ["k", "nk", "n"], (second, first))
        if ranks[1] == 2:
            return at.contract(view, ["kb", "nk", "nb"], (second, first))
    raise TooComplexError


def _gemm(at: Expressions, op: Op, view: View) -> Polynomial:
    if op.attributes.get("transA"):
        raise TooComplexError
    letters = "nk" if op.attributes.get("transB") else "kn"
    result = at.contract(view, ["bk", letters, "bn"], (op.inputs[0], op.inputs[1]))
    result = scale(result, float(op.attributes.get("alpha", 1.0)))
    if len(op.inputs) > 2 and op.inputs[2]:
        bias = at.polynomial(at.input_view(view, op.inputs[2], at.shape(op.outputs[0])))
        result = add(result, bias, float(op.attributes.get("beta", 1.0)))
    return result


def _einsum(at: Expressions, op: Op, view: View) -> Polynomial:
    terms = einsum_terms(op)
    if terms is None or len(op.inputs) != 2:
        raise TooComplexError
    for first, second in ((0, 1), (1, 0)):
        if at.flow.constant(op.inputs[second]) is not None:
            letters = [terms[first], terms[second], terms[2]]
            return at.contract(view, letters, (op.inputs[first], op.inputs[second]))
    raise TooComplexError


def _subtract(algebra: Algebra, p: Polynomial, q: Polynomial) -> Polynomial:
    return add(p, q, -1.0)


_RULES: dict[str, Callable[[Expressions, Op, View], Polynomial]] = {
    **dict.fromkeys(_VIEWS, _moved),
    "Add": _combined(lambda algebra, p, q: add(p, q)),
    "Sum": _combined(lambda algebra, p, q: add(p, q)),
    "Sub": _combined(_subtract),
    "Mul": _combined(Algebra.multiply),
    "And": _combined(Algebra.multiply),
    "Div": _combined(Algebra.divide),
    "Max": _combined(Algebra.larger),
    "Min": _combined(Algebra.smaller),
    "Neg": _applied(lambda algebra, p, attributes: scale(p, -1.0)),
    "Reciprocal": _applied(lambda algebra, p, attributes: algebra.divide(constant(1), p)),
    "Exp": _applied(lambda algebra, p, attributes: algebra.exp(p)),
    "Log": _applied(lambda algebra, p, attributes: algebra.log(p)),
    "Abs": _applied(lambda algebra, p, attributes: algebra.absolute(p)),
    "Sigmoid": _applied(lambda algebra, p, attributes: algebra.sigmoid(p)),
    "Tanh": _applied(lambda algebra, p, attributes: algebra.tanh(p)),
    "Relu": _applied(lambda algebra, p, attributes: algebra.clip(p, 0.0, np.inf)),
    "HardSigmoid": _applied(_hard_sigmoid),
    "LeakyRelu": _applied(_leaky_relu),
    "PRelu": _prelu,
    "Elu": _with_alpha("Elu"),
    "ThresholdedRelu": _with_alpha("ThresholdedRelu"),
    "Softsign": _applied(lambda algebra, p, attributes: algebra.odd("Softsign", p)),
    "Softplus": _applied(lambda algebra, p, attributes: algebra.function("Softplus", p)),
    "Clip": _clip,
    "Where": _where,
    "Not": _not,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
}
