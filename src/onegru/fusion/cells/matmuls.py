"""Recognize matmuls with constant matrices."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onegru.core.dtypes import Array, contiguous
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import LoopIndex, Op, Size
from onegru.dataflow.table import Call, Elements, UnknownOpError, movers, operator_of
from onegru.dataflow.view import COLUMNS, ROWS, Role, View
from onegru.fusion.cells.algebra import Matrix
from onegru.fusion.cells.blend import PRODUCT, READERS_OF_STATE
from onegru.fusion.cells.polynomial import Polynomial, add, constant, one_atom, scale
from onegru.fusion.cells.views import Views

_ALL_ELEMENTS = Elements.KEPT | Elements.PERMUTED
_MOVE = movers(_ALL_ELEMENTS, casts=True, without=("Identity", "Flatten"))
_MOVE_OR_CUT = movers(_ALL_ELEMENTS | Elements.CUT, casts=True)
_MOVE_CUT_OR_JOIN = movers(_ALL_ELEMENTS | Elements.CUT | Elements.JOINED, without=("Flatten",))
_MATMULS = ("MatMul", "com.microsoft::FusedMatMul", "Gemm", "com.microsoft::FusedGemm", "Einsum")


@dataclass(eq=False)
class Matmuls(Views):
    """The matmuls in a flow."""

    def __post_init__(self) -> None:
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
            if op.kind not in _MATMULS:
                continue
            are_constant = [bool(name) and self.flow.constant(name) is not None for name in op.inputs[:2]]
            if not any(are_constant):
                continue
            if not all(are_constant):
                self._learn_width(op, are_constant.index(False))
            for name, is_constant in zip(op.inputs[:2], are_constant, strict=True):
                may_be_state = all(are_constant) and name == op.inputs[0]
                for source in self._joined_values(name):
                    if is_constant and not (may_be_state and self._is_blended(source)):
                        continue  # a weight
                    producer = self.flow.find_producer(source)
                    if producer is None or producer.kind != PRODUCT:  # the matmul with r∘h must show r
                        found.add(source)
        return found

    def _learn_width(self, op: Op, index: int) -> None:
        """Set an unknown width of a matmul's input, and of its sources, to the height of the matrix."""
        shape, matrix = self.flow.shape(op.inputs[index]), self.shape(op.inputs[1 - index])
        is_transposed = bool(op.attributes.get("transB"))
        if op.kind == "Einsum" or op.attributes.get("transA") or not shape or len(matrix) < 2:
            return
        if index:  # a matrix that multiplies columns
            axis, height = max(len(shape) - 2 + is_transposed, 0), matrix[-1]
        else:
            axis, height = len(shape) - 1, matrix[-1 if is_transposed else -2]
        name: str | None = op.inputs[index]
        while name is not None and isinstance(height, int):
            owner = self.flow.owner(name)
            shape = owner.shape(name)
            if not shape or not isinstance(shape[axis], str):
                break
            owner.set_shape(name, (*shape[:axis], height, *shape[axis + 1 :]))
            name, axis = self._size_source(owner, name, axis)

    def _size_source(self, flow: Flow, name: str, axis: int) -> tuple[str | None, int]:
        """Return the value and axis that determine an axis's size; None if there is no single value."""
        if name in self.sliced:
            source = self.sliced[name]
            return source.name, axis + (axis >= source.axis and not source.keeps_axis)
        op = flow.producers.get(name)
        if op is None or op.kind not in _MOVE_OR_CUT:
            return flow.aliases.get(name), axis
        try:
            moves = [item for item in operator_of(op.kind).moves(Call(op, flow)) if item.to == axis]
        except (UnknownOpError, *BROKEN):
            return None, axis
        found = [item for item in moves if op.outputs[item.output] == name and item.input == 0]
        if len(found) != 1 or found[0].hazard or found[0].message:
            return None, axis
        return op.inputs[0], found[0].axis

    def _joined_values(self, name: str) -> list[str]:
        """Return the values that a value is concatenated from."""
        waiting = [self.flow.resolve(name)]
        found: list[str] = []
        while waiting and len(found) < 64:
            last = waiting.pop()
            op = self.flow.find_producer(last)
            if op is not None and op.kind == "Concat":
                waiting += [self.flow.resolve(item) for item in op.inputs]
            elif op is not None and op.kind in _MOVE:
                waiting.append(self.flow.resolve(op.inputs[0]))
            else:
                found.append(last)
        return found

    def _is_blended(self, name: str) -> bool:
        """Whether a constant may be the old state of a cell."""
        return any(op.kind in READERS_OF_STATE for op in self.flow.owner(name).consumers.get(name, ()))

    def contract(self, view: View, equation: str, value: str, weights: str) -> Polynomial:
        """Return a view of the product of a value with constant weights, by Einsum's equation."""
        value_letters, _, rest = equation.partition(",")
        weight_letters, _, out_letters = rest.partition("->")
        array = self.flow.constant(weights)
        if array is None or (array.dtype.kind != "f" and array.dtype.name != "bfloat16"):
            raise UnknownOpError
        while array.ndim > len(weight_letters) and array.shape[0] == 1:
            array = array[0]
        if array.ndim != len(weight_letters):
            raise UnknownOpError
        summed = [letter for letter in value_letters if letter not in out_letters]
        batched = set(value_letters) & set(weight_letters) & set(out_letters)
        if batched or not set(summed) <= set(weight_letters):
            raise UnknownOpError
        kept = [letter for letter in out_letters if letter in weight_letters]
        roles = dict(zip(out_letters, view.roles, strict=True))
        column_indices = _column_indices(view, roles, dict(zip(weight_letters, array.shape, strict=True)))
        if not set(weight_letters) <= {*kept, *summed}:
            raise UnknownOpError
        sizes = [array.shape[weight_letters.index(letter)] for letter in summed]
        count = int(np.prod(sizes, dtype=float))
        if count * view.width > array.size:
            raise UnknownOpError
        indices = [item.ravel() for item in np.indices(sizes)]
        row_indices = np.stack(indices) if sizes else np.zeros((0, 1), int)
        value_roles: list[Role] = [COLUMNS if letter in summed else roles[letter] for letter in value_letters]
        order = [summed.index(letter) for letter in value_letters if letter in summed]
        operand = View(value, tuple(value_roles), row_indices[order])
        shape = self.shape(value)
        known = dict(zip(summed, sizes, strict=True))
        if any(letter in known and shape[axis] != known[letter] for axis, letter in enumerate(value_letters)):
            raise UnknownOpError
        key = (self._content_key(weights), weight_letters, tuple(summed), tuple(column_indices))

        def make(rows: Array) -> Array:
            by_letter = {letter: index[None] for letter, index in column_indices.items()}
            by_letter.update(zip(summed, row_indices[:, rows, None], strict=True))
            return np.asarray(array[tuple(map(by_letter.__getitem__, weight_letters))], np.float64)

        column_key = b"".join(item.tobytes() for item in column_indices.values())
        result = constant(0)
        for rows, part in self._pieces(operand):
            whole = len(rows) == count
            matrix_key = (key, column_key, b"" if whole else rows.tobytes())
            matrix = Matrix(matrix_key, lambda rows=rows: make(rows))  # type: ignore[misc]
            result = add(result, self._matmul(part, matrix))
        return result

    def _matmul(self, view: View, matrix: Matrix) -> Polynomial:
        """Return the matmul of a view with a matrix."""
        p = self.polynomial(view)
        kinds = {self.algebra.atoms[atom_id].kind for atom_id in p.atoms()}
        gated = set.intersection(*map(set, p.terms)) if p.terms else set()  # r∘h, if r has several terms
        is_gated = any(self.algebra.atoms[atom_id].kind == "value" for atom_id in gated)
        is_input = ("matmul" in kinds or len(p.terms) > 3) and not is_gated
        if p.is_constant:
            row = np.broadcast_to(p.constant, view.width)
            return constant(row @ matrix.make())
        if is_input:  # its computation does not matter
            p = self._as_atom(view)
        offset = p.constant
        if np.any(offset):  # its matmul is a bias
            rest = Polynomial({monomial: item for monomial, item in p.terms.items() if monomial})
            found = self.algebra.atom_of(rest)
            if not is_gated and (found is None or found[0].kind != "value"):  # not a value of the model
                return self._matmul_of(self._as_atom(view), matrix, view)
            bias = constant(np.broadcast_to(offset, view.width) @ matrix.make())
            return add(self._matmul_of(rest, matrix, view, is_whole=False), bias)
        return self._matmul_of(p, matrix, view)

    def _as_atom(self, view: View) -> Polynomial:
        return self.atom(view.renamed(self.flow.resolve(view.name)))

    def between_reshapes(self, op: Op, view: View) -> Polynomial:
        """Return a view of matmuls between a Reshape that merges batch axes and `op`, which splits them."""
        shape, width = self.shape(op.outputs[0]), self.shape(op.inputs[0])[1:]
        if shape[-1:] != width or view.roles[-1] != COLUMNS or COLUMNS in view.roles[:-1]:
            raise UnknownOpError
        result = constant(0)
        merged = View(op.inputs[0], (ROWS, COLUMNS), view.coordinates)
        for monomial, item in self.polynomial(merged).terms.items():
            atom = self.algebra.atoms[monomial[0]] if monomial else None
            if atom is None:
                result = add(result, Polynomial({(): item}))
                continue
            name = self.flow.resolve(atom.view.name) if atom.kind == "matmul" and atom.view else ""
            before = self.flow.find_producer(name) if name and len(monomial) == 1 else None
            if before is None or before.kind != "Reshape" or atom.view.roles != (ROWS, COLUMNS):
                raise UnknownOpError
            source = self.shape(before.inputs[0])
            same = [a == b and isinstance(a, int) for a, b in zip(source, shape, strict=False)][:-1]
            if len(source) != len(shape) or same.count(False) > 1 or source[-1:] != self.shape(name)[1:]:
                raise UnknownOpError  # the rows may differ
            assert atom.matrix is not None
            source_view = View(before.inputs[0], view.roles, atom.view.coordinates)
            result = add(result, scale(self._matmul(source_view, atom.matrix), item))
        return result

    def _matmul_of(self, p: Polynomial, matrix: Matrix, view: View, *, is_whole: bool = True) -> Polynomial:
        """Return the matmul of `p`, which is the whole view, or a part of it."""
        single = p.single()
        if single is not None and (single[1] != 1 or not is_whole):
            atom = self.algebra.atoms[single[0]]
            is_value = atom.kind == "value" and atom.view.has_columns
            if is_value and self._rows_of(atom.view) == self._rows_of(view):  # the coefficient stays outside
                return scale(self.algebra.matmul(one_atom(atom.id), matrix, atom.view), single[1])
        return self.algebra.matmul(p, matrix, view if is_whole else None)

    def _rows_of(self, view: View) -> list[Size]:
        sizes = zip(self.shape(view.name), view.roles, strict=True)
        return [size for size, role in sizes if role == ROWS and size != 1]

    def _pieces(self, view: View) -> list[tuple[Array, View]]:
        """Return the views that a view is concatenated from, with the columns of each."""
        pieces, done = [(np.arange(view.width), view)], 0
        while done < len(pieces) < 64:
            columns, piece = pieces[done]
            found = self._joined_views(piece)
            if found is None:
                done += 1
            else:
                pieces[done : done + 1] = [(columns[inner], deeper) for inner, deeper in found]
        return pieces

    def _joined_views(self, view: View) -> list[tuple[Array, View]] | None:
        """Return the views that a view is directly concatenated from; None for no concatenation."""
        for _ in range(16):
            name = self.flow.resolve(view.name)
            op = self.flow.find_producer(name)
            if name in self.boundaries or op is None or op.kind not in _MOVE_CUT_OR_JOIN:
                return None
            try:
                found = self.sources(op, view.renamed(name))
            except UnknownOpError:
                return None
            if found is None or len(found) > 1:
                return found
            view = found[0][1]
        return None

    def _content_key(self, name: str) -> str:
        """Return a key that is equal for constants with equal content."""
        name = self.flow.resolve(name)
        array = self.flow.constant(name)
        assert array is not None
        known = self.algebra.digests
        if id(array) not in known or known[id(array)][0] is not array:
            data = contiguous(array).reshape(-1).view(np.uint8)
            digest = hashlib.blake2b(data.data if data.size else b"", digest_size=16)
            known[id(array)] = (array, f"{digest.hexdigest()}{array.shape}{array.dtype}")
        return known[id(array)][1]


def _column_indices(view: View, roles: Mapping[str, Role], shape: Mapping[str, int]) -> dict[str, Array]:
    """Return the index of each column of a product along the axes that it shares with its weights."""
    columns, column_indices = iter(view.coordinates), dict[str, Array]()
    for letter, role in roles.items():
        if role == COLUMNS:
            if letter not in shape:
                raise UnknownOpError
            column_indices[letter] = next(columns)
        elif letter in shape:
            if (role == ROWS and shape[letter] != 1) or isinstance(role, LoopIndex):
                raise UnknownOpError
            column_indices[letter] = np.full(view.width, 0 if role == ROWS else role)
    return column_indices
