"""Recognize matmuls with constant matrices."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from onegru.core.dtypes import Array, contiguous
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import Slices
from onegru.dataflow.operator import LoopIndex, Op, Size
from onegru.dataflow.table import Call, Elements, UnknownOpError, movers, operator_of
from onegru.dataflow.view import COLUMNS, ROWS, Role, View
from onegru.fusion.cells.algebra import Algebra, Matrix
from onegru.fusion.cells.polynomial import Polynomial, add, constant, scale
from onegru.fusion.cells.views import Views

_GLUE = movers(Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.JOINED, without=("Flatten",))
_ON_THE_WAY = movers(Elements.KEPT | Elements.PERMUTED, casts=True, without=("Identity", "Flatten"))
_KEEPING = movers(Elements.KEPT | Elements.PERMUTED | Elements.CUT, casts=True)
_PRODUCTS = ("MatMul", "com.microsoft::FusedMatMul", "Gemm", "com.microsoft::FusedGemm", "Einsum")


class Products(Views):
    """The matmuls in a flow."""

    def __init__(
        self,
        flow: Flow,
        algebra: Algebra,
        indices: Mapping[str, LoopIndex] | None = None,
        slices: Mapping[str, Slices] | None = None,
    ) -> None:
        super().__init__(flow, indices, slices)
        self.algebra = algebra
        self.boundaries = self._find_boundaries()

    @abstractmethod
    def polynomial(self, view: View) -> Polynomial:
        """Return the polynomial of a view; an atom if it is unknown."""

    def atom(self, view: View) -> Polynomial:
        """Return a view as an atom, regardless of its operator."""
        is_bool = self.flow.dtype(view.name) == "bool"
        return self.algebra.value(view.key, view, view.name, is_bool)

    def _find_boundaries(self) -> set[str]:
        """Return the inputs of matmuls with constants: states and inputs of cells, which stay atoms."""
        found: set[str] = set()
        for op in self.flow.ops:
            if op.kind not in _PRODUCTS:
                continue
            is_constant = [bool(name) and self.flow.constant(name) is not None for name in op.inputs[:2]]
            if not any(is_constant):
                continue
            if not all(is_constant):
                self._learn_width(op, is_constant.index(False))
            for name, fixed in zip(op.inputs[:2], is_constant, strict=True):
                for base in self._bases(name):
                    if fixed and not (all(is_constant) and name == op.inputs[0] and self._is_blended(base)):
                        continue  # a weight, unless it is a constant state
                    producer = self.flow.producer(base)
                    if producer is None or producer.kind != "Mul":
                        found.add(base)
        return found

    def _learn_width(self, op: Op, index: int) -> None:
        """Set an unknown width of a matmul's input to the height of the constant matrix."""
        shape, matrix = self.flow.shape(op.inputs[index]), self.shape(op.inputs[1 - index])
        is_turned = bool(op.attributes.get("transB"))
        if op.kind == "Einsum" or op.attributes.get("transA") or not shape or len(matrix) < 2:
            return
        if index:  # a matrix that multiplies columns
            axis, height = max(len(shape) - 2 + is_turned, 0), matrix[-1]
        else:
            axis, height = len(shape) - 1, matrix[-1 if is_turned else -2]
        name: str | None = op.inputs[index]
        while name is not None and isinstance(height, int):
            owner = self.flow.owner(name)
            shape = owner.shape(name)
            if not shape or not isinstance(shape[axis], str):
                break
            owner.set_shape(name, (*shape[:axis], height, *shape[axis + 1 :]))
            name, axis = self._moved_from(owner, name, axis)

    def _moved_from(self, flow: Flow, name: str, axis: int) -> tuple[str | None, int]:
        """Return the value and axis that determine an axis's size; None if there is no single value."""
        if name in self.slices:
            source = self.slices[name]
            return source.name, axis + (axis >= source.axis and not source.is_kept)
        op = flow.producers.get(name)
        if op is None or op.kind not in _KEEPING:
            return flow.aliases.get(name), axis
        try:
            moves = [item for item in operator_of(op.kind).along(Call(op, flow)) if item.to == axis]
        except (UnknownOpError, *BROKEN):
            return None, axis
        found = [item for item in moves if op.outputs[item.output] == name and item.input == 0]
        if len(found) != 1 or found[0].hazard or found[0].message:
            return None, axis
        return op.inputs[0], found[0].axis

    def _bases(self, name: str) -> list[str]:
        """Return the values that a value is concatenated from."""
        waiting = [self.flow.resolve(name)]
        found: list[str] = []
        while waiting and len(found) < 64:
            last = waiting.pop()
            op = self.flow.producer(last)
            if op is not None and op.kind == "Concat":
                waiting += [self.flow.resolve(item) for item in op.inputs]
            elif op is not None and op.kind in _ON_THE_WAY:
                waiting.append(self.flow.resolve(op.inputs[0]))
            else:
                found.append(last)
        return found

    def _is_blended(self, name: str) -> bool:
        return any(op.kind in ("Mul", "Sub", "Where") for op in self.flow.owner(name).consumers.get(name, ()))

    def contract(
        self, view: View, terms: list[str], names: tuple[str, str], swap: bool = False
    ) -> Polynomial:
        """Return the product of a value with a constant, in Einsum notation."""
        value_letters, constant_letters, out_letters = terms
        value, weights = names
        array = self.flow.constant(weights)
        if array is None or (array.dtype.kind != "f" and array.dtype.name != "bfloat16"):
            raise UnknownOpError
        while array.ndim > len(constant_letters) and array.shape[0] == 1:
            array = array[0]
        if array.ndim != len(constant_letters):
            raise UnknownOpError
        summed = [letter for letter in value_letters if letter not in out_letters]
        if set(value_letters) & set(constant_letters) & set(out_letters) or not set(summed) <= set(
            constant_letters
        ):
            raise UnknownOpError
        own = [letter for letter in out_letters if letter in constant_letters]
        roles = dict(zip(out_letters, view.roles, strict=True))
        fixed = _fixed_indices(view, roles, dict(zip(constant_letters, array.shape, strict=True)))
        if [letter for letter in constant_letters if letter not in own + summed]:
            raise UnknownOpError
        sizes = [array.shape[constant_letters.index(letter)] for letter in summed]
        count = int(np.prod(sizes, dtype=float))
        if count * view.width > array.size:
            raise UnknownOpError
        grid = np.stack([item.ravel() for item in np.indices(sizes)]) if sizes else np.zeros((0, 1), int)
        value_roles: list[Role] = [COLUMNS if letter in summed else roles[letter] for letter in value_letters]
        order = [summed.index(letter) for letter in value_letters if letter in summed]
        operand = View(value, tuple(value_roles), grid[order])
        shape = self.shape(value)
        if any(shape[axis] != size for axis, size in _sizes_at(value_letters, summed, sizes)):
            raise UnknownOpError
        key = (self._content(weights), constant_letters, tuple(summed), tuple(fixed))

        def make(rows: Array, indices: dict[str, Array] = fixed) -> Array:
            flat: list[Array] = []
            for letter in constant_letters:
                if letter in summed:
                    flat.append(grid[summed.index(letter)][rows][:, None])
                else:
                    flat.append(indices[letter][None, :])
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
        gated = set.intersection(*map(set, p.terms)) if p.terms else set()  # r∘h, if r has several terms
        is_gated = any(self.algebra.atoms[number].kind == "value" for number in gated)
        nested = ("dot" in kinds or len(p.terms) > 3) and not is_gated
        if p.is_constant:
            row = np.broadcast_to(p.constant, view.width)
            return constant(row @ matrix.make())
        if nested:
            p = self._as_atom(view)
        fixed = p.constant
        if np.any(fixed):  # the constant part is a bias
            rest = Polynomial({monomial: item for monomial, item in p.terms.items() if monomial})
            found = self.algebra.atom_of(rest)
            if not is_gated and (found is None or found[0].kind != "value"):  # not a value of the model
                return self._product_of(self._as_atom(view), matrix, view)
            bias = constant(np.broadcast_to(fixed, view.width) @ matrix.make())
            return add(self._product_of(rest, matrix, view, is_whole=False), bias)
        return self._product_of(p, matrix, view)

    def _as_atom(self, view: View) -> Polynomial:
        return self.atom(View(self.flow.resolve(view.name), view.roles, view.index))

    def of_rows(self, op: Op, view: View) -> Polynomial:
        """Return a view of matmuls between a Reshape that merges batch axes and `op`, which splits them."""
        shape, width = self.shape(op.outputs[0]), self.shape(op.inputs[0])[1:]
        if shape[-1:] != width or view.roles[-1] != COLUMNS or COLUMNS in view.roles[:-1]:
            raise UnknownOpError
        result = constant(0)
        for monomial, item in self.polynomial(View(op.inputs[0], (ROWS, COLUMNS), view.index)).terms.items():
            atom = self.algebra.atoms[monomial[0]] if monomial else None
            if atom is None:
                result = add(result, Polynomial({(): item}))
                continue
            name = self.flow.resolve(atom.view.name) if atom.kind == "dot" and atom.view else ""
            before = self.flow.producer(name) if name and len(monomial) == 1 else None
            if before is None or before.kind != "Reshape" or atom.view.roles != (ROWS, COLUMNS):
                raise UnknownOpError
            source = self.shape(before.inputs[0])
            same = [a == b and isinstance(a, int) for a, b in zip(source, shape, strict=False)][:-1]
            if len(source) != len(shape) or same.count(False) > 1 or source[-1:] != self.shape(name)[1:]:
                raise UnknownOpError  # the rows may differ
            assert atom.matrix is not None
            source_view = View(before.inputs[0], view.roles, atom.view.index)
            result = add(result, scale(self._product(source_view, atom.matrix), item))
        return result

    def _product_of(self, p: Polynomial, matrix: Matrix, view: View, *, is_whole: bool = True) -> Polynomial:
        """Return the matmul of `p`, which is the whole view, or a part of it."""
        single = p.single()
        if single is not None and (single[1] != 1 or not is_whole):
            atom = self.algebra.atoms[single[0]]
            is_value = atom.kind == "value" and bool(len(atom.view.index))
            if is_value and self._rows_of(atom.view) == self._rows_of(view):  # the coefficient stays outside
                one = Polynomial({(atom.number,): np.ones(())})
                return scale(self.algebra.dot(one, matrix, atom.view), single[1])
        return self.algebra.dot(p, matrix, view if is_whole else None)

    def _rows_of(self, view: View) -> list[Size]:
        sizes = zip(self.shape(view.name), view.roles, strict=True)
        return [size for size, role in sizes if role == ROWS and size != 1]

    def _pieces(self, view: View) -> list[tuple[Array, View]]:
        """Return the values that a row is concatenated from, with the columns of each."""
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
        """Return the parts of a row, if it is concatenated before it is reshaped."""
        for _ in range(16):
            name = self.flow.resolve(view.name)
            op = self.flow.producer(name)
            if name in self.boundaries or op is None or op.kind not in _GLUE:
                return None
            try:
                found = self.through(op, View(name, view.roles, view.index))
            except UnknownOpError:
                return None
            if found is None or len(found) > 1:
                return found
            view = found[0][1]
        return None

    def _content(self, name: str) -> str:
        """Return a key that is equal for constants with equal content."""
        name = self.flow.resolve(name)
        array = self.flow.constant(name)
        assert array is not None
        known = self.algebra.digests
        holder = id(array)
        if holder not in known or known[holder][0] is not array:
            data = contiguous(array).reshape(-1).view(np.uint8)
            digest = hashlib.blake2b(data.data if data.size else b"", digest_size=16)
            known[holder] = (array, f"{digest.hexdigest()}{array.shape}{array.dtype}")
        return known[holder][1]


def _fixed_indices(view: View, roles: Mapping[str, Role], shape: Mapping[str, int]) -> dict[str, Array]:
    """Return the index of each column of a product, along the axes that it shares with a constant."""
    columns, fixed = iter(view.index), dict[str, Array]()
    for letter, role in roles.items():
        if role == COLUMNS:
            if letter not in shape:
                raise UnknownOpError
            fixed[letter] = next(columns)
        elif letter in shape:
            if (role == ROWS and shape[letter] != 1) or isinstance(role, LoopIndex):
                raise UnknownOpError
            fixed[letter] = np.full(view.width, 0 if role == ROWS else role)
    return fixed


def _sizes_at(letters: str, summed: list[str], sizes: list[int]) -> list[tuple[int, int]]:
    return [(axis, sizes[summed.index(letter)]) for axis, letter in enumerate(letters) if letter in summed]
