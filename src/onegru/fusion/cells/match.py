"""Find z, r and n in the sum of a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onegru.core.dtypes import Array, to_float32
from onegru.core.spec import Attention
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.view import View
from onegru.fusion.cells.activation import Activations, FoundActivation
from onegru.fusion.cells.algebra import Algebra, Atom
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.gate_sums import GateSum, join_inputs
from onegru.fusion.cells.layer import layer_cell
from onegru.fusion.cells.masks import split_masks
from onegru.fusion.cells.polynomial import (
    CLOSE,
    Monomial,
    Polynomial,
    add,
    constant,
    divided,
    drop,
    one_atom,
    quotient,
    same,
    scalar,
    scale,
)


def find_cell(exprs: Expressions, name: str) -> Cell | None:
    """Return the cell with a value as its new state; None if no cell is recognizable there."""
    if (layer := layer_cell(exprs, name)) is not None:
        return layer
    view, p = exprs.whole(name), exprs.definition(name)
    if view is None or p is None:
        return None
    miss: MissError | None = None
    for atom_id in sorted(p.atoms()):
        atom = exprs.algebra.atoms[atom_id]
        if atom.kind != "value" or not _is_whole(atom.view, view.width):
            continue
        try:
            cell = _Matcher(exprs, name, view.width, atom).match(p)
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


def _is_whole(view: View, width: int) -> bool:
    return view.width == width and np.array_equal(view.coordinates, [view.columns])


class _UpdateGate(NamedTuple):
    """The update gate with its attention."""

    z: FoundActivation
    attention: View | None = None
    is_inverted: bool = False  # whether `attention` is 1 - a instead of a
    variant: Attention = "openvino"


class _ResetAndCandidate(NamedTuple):
    """The reset gate, with the sums in its argument and in the candidate's argument."""

    r: FoundActivation
    r_sum: GateSum
    n_sum: GateSum


class _Matcher:
    """The search for a cell with one new state and one old state."""

    def __init__(self, exprs: Expressions, name: str, hidden_size: int, state: Atom) -> None:
        self.algebra: Algebra = exprs.algebra
        self.name = name
        self.is_float64 = exprs.flow.dtype(name) == "float64"
        self.activations = Activations(exprs.algebra, self.is_float64)
        self.hidden_size = hidden_size
        self.state = state
        self.h = one_atom(state.id)

    def depends(self, atom_id: int) -> bool:
        """Whether an atom depends on the state."""
        return self.state.view.name in self.algebra.atoms[atom_id].values

    def match(self, p: Polynomial) -> Cell | None:
        """Return the cell with the new state p; None if p is no sum of the old state and a candidate."""
        blend = self._blend(p)
        if blend is None:
            return None
        keep, candidate = blend
        keep, masks = split_masks(self.algebra, keep, self.state.view.name)
        z, attention, is_inverted, variant = self._update_gate(keep)
        n = self._activation(candidate, "the candidate")
        for gate, subject in ((z, "its update gate"), (n, "its candidate")):
            if gate.factor != 1.0:  # only the reset gate's factor can move into R
                raise MissError(f"{subject} is {gate.factor:.15g} times {gate.function}")
        z_sum = self._gate_sum(z.argument, "the update gate")
        r, r_sum, n_sum = self._reset_and_candidate(n.argument, z)
        sums = [z_sum, r_sum, n_sum]
        if r.function != z.function:
            raise MissError(f"its gates are {z.function} and {r.function}; must be the same function")
        for gate in (z, n):
            clip, function = gate.clip, gate.function
            if clip is not None and function.name == "ThresholdedRelu" and clip == function.alpha:
                raise MissError("its ThresholdedRelu is clipped at its threshold")
        if not r.clip == n.clip == z.clip:
            raise MissError("its activations have different clip values")
        self._check_numbers(z, r, n)
        inputs, W, shared = join_inputs(self.algebra, self.hidden_size, sums)
        R = np.concatenate([item.R for item in sums])
        B = np.concatenate([*(item.bias for item in sums), np.zeros(2 * self.hidden_size), n_sum.inner_bias])
        return Cell(
            output=self.name,
            state=self.state.view,
            inputs=inputs,
            W=W,
            R=R,
            B=B,
            activations=(z.function, n.function),
            linear_before_reset=r_sum.linear_before_reset,
            clip=z.clip,
            attention=attention,
            inverts_attention=is_inverted,
            masks=masks,
            attention_kind=variant,
            shared=shared,
        )

    def _check_numbers(self, *gates: FoundActivation) -> None:
        """Raise MissError for float64 parameters that a node's float32 attributes would round."""
        numbers = [number for gate in gates for number in (*gate.exact_parameters, gate.clip)]
        for number in numbers if self.is_float64 else ():
            if number is not None and to_float32(number) != number:
                words = "which a node's attributes would round; its outputs are float64"
                raise MissError(f"{number!r} of its activations is not a float32 number, {words}")

    def _blend(self, p: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """Return the factor of the old state, and the candidate: p = keep∘h + (1 - keep)∘candidate."""
        atom_id, algebra = self.state.id, self.algebra
        rest = Polynomial({m: item for m, item in p.terms.items() if atom_id not in m})
        keep = quotient(Polynomial({m: item for m, item in p.terms.items() if atom_id in m}), atom_id)
        if keep is not None and keep.is_constant:
            return None
        if keep is None:
            if any(n != atom_id and self.depends(n) for m in p.terms if atom_id in m for n in m):
                raise MissError("it squares its old state")
            return None
        if not any(map(self.depends, keep.atoms() | rest.atoms())):
            return None
        share = add(constant(1), keep, -1.0)  # of the candidate
        gates = keep.atoms()
        # Terms that no unit lacks. The candidate is the quotient by one of them.
        leads = [m for m in sorted(share.terms, key=len) if np.all(np.abs(share.terms[m]) > CLOSE)]
        found: dict[Monomial, Array] = {}
        for monomial, coefficient in rest.terms.items() if leads else ():
            left = divided(monomial, leads[0])
            if left is not None and not gates & set(left):
                found[left] = coefficient / share.terms[leads[0]]
        candidate = Polynomial(found)
        both = add(algebra.multiply(keep, self.h), algebra.multiply(share, candidate))
        if not found or not same(p, both):
            inner = algebra.inner_atoms(p)
            if not any(algebra.atoms[item].kind == "matmul" for item in inner):
                return None
            raise MissError("the term added to the old state is not (1 - z) times one candidate")
        return keep, candidate

    def _update_gate(self, keep: Polynomial) -> _UpdateGate:
        """Return the update gate and its attention."""
        find = self.activations.find
        whole = find(keep)
        if whole is not None and whole.function.name != "Affine":
            return _UpdateGate(whole)
        for atom_id in sorted(keep.atoms()):
            atom = self.algebra.atoms[atom_id]
            is_score = atom.kind == "value" and not (atom.view.has_columns and self.hidden_size > 1)
            if not is_score or self.depends(atom_id):
                continue
            # keep is without_a + a∘with_a
            without_a = Polynomial({m: item for m, item in keep.terms.items() if atom_id not in m})
            with_a = Polynomial({drop(m, atom_id): item for m, item in keep.terms.items() if atom_id in m})
            if any(monomial.count(atom_id) > 1 for monomial in keep.terms):
                continue
            if not without_a.terms and (found := find(with_a)) is not None:
                return _UpdateGate(found, atom.view, True)
            if same(without_a, scale(with_a, -1.0)) and (found := find(without_a)) is not None:
                return _UpdateGate(found, atom.view)
            rest = add(constant(1), with_a)  # 1 - a·(1 - z) = 1 - a + a·z
            if same(without_a, constant(1)) and (found := find(rest)) is not None:
                return _UpdateGate(found, atom.view, variant="dien")
            if same(add(without_a, with_a), constant(1)) and (found := find(without_a)) is not None:
                return _UpdateGate(found, atom.view, True, "dien")
        if whole is not None:
            return _UpdateGate(whole)
        raise MissError("its update gate is not one of the activations of a GRU")

    def _activation(self, p: Polynomial, subject: str) -> FoundActivation:
        found = self.activations.find(p)
        if found is None:
            raise MissError(f"{subject} is not one of the activations of a GRU")
        return found

    # Sums of matmuls

    def _gate_sum(self, q: Polynomial, subject: str) -> GateSum:
        """Return a gate's argument as a sum."""
        gate_sum = GateSum(self.hidden_size)
        for monomial, coefficient in q.terms.items():
            if not self._add_term(gate_sum, monomial, coefficient):
                raise MissError(f"{subject} is not a function of a sum of products with x and h")
        return gate_sum

    def _add_term(self, gate_sum: GateSum, monomial: Monomial, coefficient: Array) -> bool:
        """Add a term to a gate; return False if it is neither a matmul with x or h nor a bias."""
        if not monomial:
            gate_sum.bias = gate_sum.bias + np.broadcast_to(coefficient, self.hidden_size)
            return True
        if not any(map(self.depends, monomial)):
            gate_sum.x[monomial] = coefficient
            return True
        if len(monomial) > 1:
            return False
        atom = self.algebra.atoms[monomial[0]]
        if atom.id == self.state.id:
            gate_sum.R = gate_sum.R + np.diag(np.broadcast_to(coefficient, self.hidden_size))
            return True
        if atom.kind != "matmul" or not same(atom.arguments[0], self.h):
            return False
        gate_sum.R = gate_sum.R + (atom.weights() * coefficient).T
        return True

    def _reset_and_candidate(self, q: Polynomial, z: FoundActivation) -> _ResetAndCandidate:
        """Return the reset gate, and the sums of the reset gate and of the candidate."""
        after = self._reset_after(q, z)
        if after is not None:
            return after
        gate_sum, reset = GateSum(self.hidden_size), None
        for monomial, coefficient in q.terms.items():
            if self._is_matmul_of_gated_state(monomial):
                atom = self.algebra.atoms[monomial[0]]
                gate = quotient(atom.arguments[0], self.state.id)
                if gate is None or (reset is not None and not same(gate, reset)):
                    raise MissError("the candidate's matmul is not with r∘h")
                reset = gate
                gate_sum.R = gate_sum.R + (atom.weights() * coefficient).T
            elif not self._add_term(gate_sum, monomial, coefficient):
                raise MissError("the candidate is not a function of a sum of products with x and r∘h")
            elif monomial and self.depends(monomial[0]):
                raise MissError("its candidate uses the state without a reset gate")
        if reset is None:
            words = "its candidate does not use the state" if not gate_sum.R.any() else "it has no reset gate"
            raise MissError(words)
        r = self._reset_gate(reset, z)
        gate_sum.R = gate_sum.R * r.factor
        return _ResetAndCandidate(r, self._gate_sum(r.argument, "the reset gate"), gate_sum)

    def _reset_gate(self, reset: Polynomial, z: FoundActivation) -> FoundActivation:
        """Return the reset gate, if possible as a multiple of the update gate's function."""
        factors = [1.0]  # of the function, as the coefficients suggest
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
        first: FoundActivation | None = None
        for factor in factors:
            found = self.activations.find(scale(reset, 1 / factor)) if factor else None
            if found is not None:
                found = replace(self.activations.with_parameters_of(found, z), factor=found.factor * factor)
                first = first or found
                if (found.function, found.clip) == (z.function, z.clip):
                    return found
        if first is None:
            raise MissError("the reset gate is not one of the activations of a GRU")
        return first

    def _is_matmul_of_gated_state(self, monomial: Monomial) -> bool:
        """Whether a term is a matmul of r∘h."""
        if len(monomial) != 1 or not self.depends(monomial[0]):
            return False
        atom = self.algebra.atoms[monomial[0]]
        return atom.kind == "matmul" and not same(atom.arguments[0], self.h)

    def _reset_after(self, q: Polynomial, z: FoundActivation) -> _ResetAndCandidate | None:
        """Return both gates for a term r∘(h·R + b); None if there is no such term."""
        factors = {atom_id for monomial in q.terms if len(monomial) > 1 for atom_id in monomial}
        matmuls = sorted(filter(self._is_matmul_of_state, factors))
        if not matmuls:
            return None
        if len(matmuls) == 1:
            return self._reset_after_of(q, z, matmuls)
        miss: MissError | None = None
        for chosen in (matmuls, *([atom_id] for atom_id in matmuls)):
            try:
                return self._reset_after_of(q, z, chosen)
            except MissError as error:
                miss = miss or error
        assert miss is not None
        raise miss

    def _is_matmul_of_state(self, atom_id: int) -> bool:
        """Whether an atom is a matmul of h."""
        atom = self.algebra.atoms[atom_id]
        return atom.kind == "matmul" and same(atom.arguments[0], self.h)

    def _reset_after_of(self, q: Polynomial, z: FoundActivation, matmuls: list[int]) -> _ResetAndCandidate:
        reset: Polynomial | None = None
        R = np.zeros((self.hidden_size, self.hidden_size))
        rest = q
        for atom_id in matmuls:
            share = Polynomial({drop(m, atom_id): item for m, item in q.terms.items() if atom_id in m})
            if reset is not None and not same(share, reset):
                raise MissError("matmuls with h have different reset gates")
            reset = share
            R = R + self.algebra.atoms[atom_id].weights().T
            term = self.algebra.multiply(share, one_atom(atom_id))
            rest = add(rest, term, -1.0)
        assert reset is not None
        r = self._reset_gate(reset, z)
        # The rest is a sum without h, and the reset gate times a bias.
        inner = np.zeros(self.hidden_size)
        gates = {n for n in reset.atoms() if self.depends(n)}
        lead = next((m for m in sorted(reset.terms, key=lambda m: (len(m), m)) if set(m) & gates), None)
        if lead is None:
            raise MissError("its reset gate does not depend on the state")
        if not np.all(reset.terms[lead]):
            raise MissError("the reset gate of a unit does not depend on the state")
        if lead in rest.terms:
            inner = np.broadcast_to(rest.terms[lead] / reset.terms[lead], self.hidden_size)
            rest = add(rest, scale(reset, inner), -1.0)
        gate_sum = GateSum(self.hidden_size)
        for monomial, coefficient in rest.terms.items():
            if any(map(self.depends, monomial)):
                raise MissError("its candidate uses the state outside the reset gate's matmul")
            self._add_term(gate_sum, monomial, coefficient)
        gate_sum.R, gate_sum.inner_bias = R * r.factor, inner * r.factor
        r_sum = self._gate_sum(r.argument, "the reset gate")
        r_sum.linear_before_reset = True
        return _ResetAndCandidate(r, r_sum, gate_sum)
