"""Find z, r and n in the sum of a cell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onegru.core.dtypes import Array, to_float32
from onegru.core.spec import Attention
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.view import View
from onegru.fusion.cells.activation import Act, Activations
from onegru.fusion.cells.algebra import Algebra, Atom
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.layer import layer_cell
from onegru.fusion.cells.masks import split_masks
from onegru.fusion.cells.parts import GatePart, join_inputs
from onegru.fusion.cells.polynomial import (
    CLOSE,
    Monomial,
    Polynomial,
    add,
    constant,
    divided,
    drop,
    quotient,
    same,
    scalar,
    scale,
)


def find_cell(at: Expressions, name: str) -> Cell | None:
    """Return the cell with a value as its new state; None if no cell is recognizable there."""
    if (layer := layer_cell(at, name)) is not None:
        return layer
    found = at.of(name)
    if found is None:
        return None
    view, p = found
    miss: MissError | None = None
    for number in sorted(p.atoms()):
        atom = at.algebra.atoms[number]
        if atom.kind != "value" or not _is_state(atom.view, view.width):
            continue
        try:
            cell = _Matcher(at, name, view.width, atom).match(p)
        except MissError as error:
            miss = miss or error
        except UnknownOpError:
            continue
        else:
            if cell is not None:
                return cell
    if miss is not None:
        raise miss
    return None


def _is_state(view: View, width: int) -> bool:
    return view.width == width and len(view.index) == 1 and np.array_equal(view.index[0], np.arange(width))


class _Matcher:
    """The search for a cell with one new state and one old state."""

    def __init__(self, at: Expressions, name: str, width: int, state: Atom) -> None:
        self.algebra: Algebra = at.algebra
        self.name = name
        self.is_float64 = at.flow.dtype(name) == "float64"
        self.activations = Activations(at.algebra, self.is_float64)
        self.width = width
        self.state = state
        self.h = Polynomial({(state.number,): np.ones(())})

    def depends(self, number: int) -> bool:
        """Whether an atom depends on the state."""
        return self.state.view.name in self.algebra.atoms[number].values

    def match(self, p: Polynomial) -> Cell | None:
        blend = self._blend(p)
        if blend is None:
            return None
        keep, candidate = blend
        keep, masks = split_masks(self.algebra, keep, self.state.view.name)
        z, attention, keeps, kind = self._update_gate(keep)
        n = self._activation(candidate, "the candidate")
        for act, what in ((z, "its update gate"), (n, "its candidate")):
            if act.factor != 1.0:  # only the reset gate's factor can move into R
                raise MissError(f"{what} is {act.factor:.15g} times {act.function}")
        zx = self._linear(z.argument, "the update gate")
        r, n_parts = self._candidate(n.argument, z)
        parts = [zx, *n_parts]
        if r.function != z.function:
            raise MissError(f"its gates are {z.function} and {r.function}; must be the same function")
        for act in (z, n):
            if (
                act.clip is not None
                and act.function.name == "ThresholdedRelu"
                and act.clip == act.function.alpha
            ):
                raise MissError("its ThresholdedRelu is clipped at its threshold")
        if not r.clip == n.clip == z.clip:
            raise MissError("its activations have different clip values")
        self._check_numbers(z, r, n)
        after = n_parts[0].after
        inputs, W, shared = join_inputs(self.algebra, self.width, parts)
        R = np.concatenate([part.R for part in parts])
        B = np.concatenate([*(part.bias for part in parts), np.zeros(2 * self.width), n_parts[1].inner])
        return Cell(
            self.name,
            self.state.view,
            inputs,
            W,
            R,
            B,
            (z.function, n.function),
            after,
            z.clip,
            attention,
            keeps,
            masks,
            attention_kind=kind,
            shared=shared,
        )

    def _check_numbers(self, *acts: Act) -> None:
        """Raise MissError for float64 parameters that a node's float32 attributes would round."""
        numbers = [number for act in acts for number in (*act.numbers, act.clip) if number is not None]
        for number in numbers if self.is_float64 else ():
            if to_float32(number) != number:
                words = "which a node's attributes would round; its outputs are float64"
                raise MissError(f"{number!r} of its activations is not a float32 number, {words}")

    def _blend(self, p: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """Return the factor of the old state, and the candidate: p = keep∘h + (1 - keep)∘candidate."""
        number, algebra = self.state.number, self.algebra
        rest = Polynomial({m: item for m, item in p.terms.items() if number not in m})
        kept = quotient(Polynomial({m: item for m, item in p.terms.items() if number in m}), number)
        if kept is not None and kept.is_constant:
            return None
        if kept is None:
            if any(n != number and self.depends(n) for m in p.terms if number in m for n in m):
                raise MissError("it squares its old state")
            return None
        if not any(map(self.depends, kept.atoms() | rest.atoms())):
            return None
        share = add(constant(1), kept, -1.0)
        gates = kept.atoms()
        leads = [m for m in sorted(share.terms, key=len) if np.all(np.abs(share.terms[m]) > CLOSE)]
        found: dict[Monomial, Array] = {}
        for monomial, coefficient in rest.terms.items() if leads else ():
            left = divided(monomial, leads[0])
            if left is not None and not gates & set(left):
                found[left] = coefficient / share.terms[leads[0]]
        candidate = Polynomial(found)
        both = add(algebra.multiply(kept, self.h), algebra.multiply(share, candidate))
        if not found or not same(p, both):
            inner = algebra.inner_atoms(p)
            if not any(algebra.atoms[item].kind == "dot" for item in inner):
                return None
            raise MissError("the term added to the old state is not (1 - z) times one candidate")
        return kept, candidate

    def _update_gate(self, keep: Polynomial) -> tuple[Act, View | None, bool, Attention]:
        """Return the update gate, its attention, whether this is 1 - a, and the attention variant."""
        whole = self.activations.find(keep)
        if whole is not None and whole.function.name != "Affine":
            return whole, None, False, "openvino"
        for number in sorted(keep.atoms()):
            atom = self.algebra.atoms[number]
            if atom.kind != "value" or self.depends(number) or (len(atom.view.index) and self.width > 1):
                continue
            without = Polynomial({m: item for m, item in keep.terms.items() if number not in m})
            part = Polynomial({drop(m, number): item for m, item in keep.terms.items() if number in m})
            if any(monomial.count(number) > 1 for monomial in keep.terms):
                continue
            if not without.terms and (found := self.activations.find(part)) is not None:
                return found, atom.view, True, "openvino"
            if same(without, scale(part, -1.0)) and (found := self.activations.find(without)) is not None:
                return found, atom.view, False, "openvino"
            rest = add(constant(1), part)  # 1 - a·(1 - z) = 1 - a + a·z
            if same(without, constant(1)) and (found := self.activations.find(rest)) is not None:
                return found, atom.view, False, "dien"
            if (
                same(add(without, part), constant(1))
                and (found := self.activations.find(without)) is not None
            ):
                return found, atom.view, True, "dien"
        if whole is not None:
            return whole, None, False, "openvino"
        raise MissError("its update gate is not one of the activations of a GRU")

    def _activation(self, p: Polynomial, what: str) -> Act:
        found = self.activations.find(p)
        if found is None:
            raise MissError(f"{what} is not one of the activations of a GRU")
        return found

    # Sums of matmuls

    def _linear(self, q: Polynomial, what: str) -> GatePart:
        """Return the parameters of a gate's argument."""
        part = GatePart(self.width)
        for monomial, coefficient in q.terms.items():
            if not self._add_term(part, monomial, coefficient):
                raise MissError(f"{what} is not a function of a sum of products with x and h")
        return part

    def _add_term(self, part: GatePart, monomial: Monomial, coefficient: Array) -> bool:
        """Add a term to a gate; return False if it is neither a matmul with x or h nor a bias."""
        if not monomial:
            part.bias = part.bias + np.broadcast_to(coefficient, self.width)
            return True
        if not any(map(self.depends, monomial)):
            part.x[monomial] = coefficient
            return True
        if len(monomial) > 1:
            return False
        atom = self.algebra.atoms[monomial[0]]
        if atom.number == self.state.number:
            part.R = part.R + np.diag(np.broadcast_to(coefficient, self.width))
            return True
        if atom.kind != "dot" or not same(atom.arguments[0], self.h):
            return False
        assert atom.matrix is not None
        part.R = part.R + (atom.matrix.make() * coefficient).T
        return True

    def _candidate(self, q: Polynomial, z: Act) -> tuple[Act, tuple[GatePart, GatePart]]:
        """Return the reset gate, and the parameters of the reset gate and of the candidate."""
        after = self._reset_after(q, z)
        if after is not None:
            return after
        part, reset = GatePart(self.width), None
        for monomial, coefficient in q.terms.items():
            if self._is_before(monomial):
                atom = self.algebra.atoms[monomial[0]]
                gate = quotient(atom.arguments[0], self.state.number)
                if gate is None or (reset is not None and not same(gate, reset)):
                    raise MissError("the candidate's matmul is not with r∘h")
                reset = gate
                assert atom.matrix is not None
                part.R = part.R + (atom.matrix.make() * coefficient).T
            elif not self._add_term(part, monomial, coefficient):
                raise MissError("the candidate is not a function of a sum of products with x and r∘h")
            elif monomial and self.depends(monomial[0]):
                raise MissError("its candidate uses the state without a reset gate")
        if reset is None:
            words = "its candidate does not use the state" if not part.R.any() else "it has no reset gate"
            raise MissError(words)
        r = self._reset_gate(reset, z)
        part.R = part.R * r.factor
        return r, (self._linear(r.argument, "the reset gate"), part)

    def _reset_gate(self, reset: Polynomial, z: Act) -> Act:
        """Return the reset gate with the update gate's function, if it is a multiple of it."""
        factors = [1.0]
        for monomial, item in reset.terms.items():
            number = scalar(item)
            if monomial and number:
                factors += [number, number / 2]
                atom = self.algebra.atoms[monomial[0]]
                if atom.kind == "Clip" and np.isfinite(atom.parameters[1]):
                    factors.append(number * atom.parameters[1])
                if z.function.name == "ScaledTanh":
                    factors.append(number / 2 / z.function.parameters[0])
                if z.function.name == "Affine":
                    factors.append(number / z.function.parameters[0])
        first: Act | None = None
        for factor in factors:
            found = self.activations.find(scale(reset, 1 / factor)) if factor else None
            if found is not None:
                found = replace(self.activations.fitted(found, z), factor=found.factor * factor)
                first = first or found
                if (found.function, found.clip) == (z.function, z.clip):
                    return found
        if first is None:
            raise MissError("the reset gate is not one of the activations of a GRU")
        return first

    def _is_before(self, monomial: Monomial) -> bool:
        if len(monomial) != 1 or not self.depends(monomial[0]):
            return False
        atom = self.algebra.atoms[monomial[0]]
        return atom.kind == "dot" and not same(atom.arguments[0], self.h)

    def _reset_after(self, q: Polynomial, z: Act) -> tuple[Act, tuple[GatePart, GatePart]] | None:
        """Return the result of `_candidate` for a term r∘(h·R + b); None if there is no such term."""
        products = sorted(
            {
                number
                for monomial in q.terms
                if len(monomial) > 1
                for number in monomial
                if self._is_product(number)
            }
        )
        if not products:
            return None
        if len(products) == 1:
            return self._reset_after_of(q, z, products)
        miss: MissError | None = None
        for chosen in (products, *([number] for number in products)):
            try:
                return self._reset_after_of(q, z, chosen)
            except MissError as error:
                miss = miss or error
        assert miss is not None
        raise miss

    def _is_product(self, number: int) -> bool:
        """Whether an atom is a matmul of the state with a matrix."""
        atom = self.algebra.atoms[number]
        return atom.kind == "dot" and same(atom.arguments[0], self.h)

    def _reset_after_of(
        self, q: Polynomial, z: Act, products: list[int]
    ) -> tuple[Act, tuple[GatePart, GatePart]]:
        reset: Polynomial | None = None
        R = np.zeros((self.width, self.width))
        rest = q
        for number in products:
            share = Polynomial({drop(m, number): item for m, item in q.terms.items() if number in m})
            if reset is not None and not same(share, reset):
                raise MissError("matmuls with h have different reset gates")
            reset = share
            matrix = self.algebra.atoms[number].matrix
            assert matrix is not None
            R = R + matrix.make().T
            term = self.algebra.multiply(share, Polynomial({(number,): np.ones(())}))
            rest = add(rest, term, -1.0)
        assert reset is not None
        r = self._reset_gate(reset, z)
        # The rest is a sum without h, and the reset gate times a bias.
        inner = np.zeros(self.width)
        gates = {n for n in reset.atoms() if self.depends(n)}
        lead = next((m for m in sorted(reset.terms, key=lambda m: (len(m), m)) if set(m) & gates), None)
        if lead is None:
            raise MissError("its reset gate does not depend on the state")
        if not np.all(reset.terms[lead]):
            raise MissError("the reset gate of a unit does not depend on the state")
        if lead in rest.terms:
            inner = np.broadcast_to(rest.terms[lead] / reset.terms[lead], self.width)
            rest = add(rest, scale(reset, inner), -1.0)
        part = GatePart(self.width)
        for monomial, coefficient in rest.terms.items():
            if any(map(self.depends, monomial)):
                raise MissError("its candidate uses the state outside the reset gate's matmul")
            self._add_term(part, monomial, coefficient)
        part.R, part.inner = R * r.factor, inner * r.factor
        gate_part = self._linear(r.argument, "the reset gate")
        gate_part.after = True
        return r, (gate_part, part)
