"""State of a graph during the search for recurrences."""

from __future__ import annotations

from collections import ChainMap

from onegru.dataflow.flow import Flow
from onegru.dataflow.table import UnknownOpError
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.drawn_inputs import RunLoop
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.node import NewOps
from onegru.fusion.numeric_check import Compared, compare
from onegru.fusion.search import Fused, NearMiss, Search


class GraphSearch:
    """A graph or subgraph that is being changed."""

    def __init__(self, flow: Flow, search: Search, exprs: Expressions | None = None) -> None:
        self.flow = flow
        self.search = search
        self.exprs = exprs or Expressions(flow, search.algebra)
        self.new_ops = NewOps()

    def add_near_miss(self, location: str, reason: str) -> None:
        """Record a near miss."""
        self.search.near_misses.append(NearMiss(location, reason))

    def emitter(self, location: str, dtype: str) -> Emitter:
        """Return an emitter for new operators."""
        emitter = Emitter(self.flow, f"onegru/{location}", self.search.names, dtype, self.new_ops.known)
        emitter.allows_lengths, emitter.opset = self.search.allows_lengths, self.search.opset
        emitter.indices = self.exprs.indices
        return emitter

    def check_numerically(
        self, emitter: Emitter, location: str, run_loop: RunLoop | None = None
    ) -> Compared | None:
        """Compare the new operators with the old ones, and accept them if they agree."""
        # With `only_layers`, the new operators are accepted without a check, because there is no algebra.
        if self.search.only_layers:
            self.new_ops.add(emitter)
            return Compared("")
        ops = self.new_ops.leading_to(emitter.ops, self.flow)
        constants = ChainMap(emitter.constants, self.new_ops.constants)
        found: Compared | None = None
        with self.search.guarded(location):
            try:
                found = compare(self.flow, ops, constants, run_loop, self.exprs.indices, emitter.dtype)
            except UnknownOpError as error:
                raise MissError(f"it looks like a GRU, but the numeric check cannot run: {error}") from error
        if found is None:
            return None
        if found.difference:
            self.search.refuted += 1
            words = "the numeric check contradicts the match, which is a bug in onegru; please report it"
            self.add_near_miss(location, f"{words}: {found.difference}")
            return None
        self.new_ops.add(emitter)
        return found

    def add_fused(
        self,
        cell: Cell,
        location: str,
        form: str,
        steps: int | None,
        nodes: int,
        reverse: bool,
        input_size: int,
        check: Compared,
    ) -> None:
        """Record a fused recurrence."""
        f, g = map(str, cell.activations)
        self.search.fused.append(
            Fused(
                place=location,
                form=form,
                steps=steps,
                nodes=nodes,
                operator="GRU" if cell.attention is None else "AUGRU",
                hidden_size=cell.hidden_size,
                input_size=input_size,
                direction="reverse" if reverse else "forward",
                linear_before_reset=cell.linear_before_reset,
                activations=(f, g),
                masked=bool(cell.masks),
                outputs=check.outputs,
                input_dependent=check.input_dependent,
            )
        )

    def dtype_of(self, cell: Cell) -> str:
        """Return the element type of a cell."""
        return self.flow.dtype(cell.output) or self.flow.dtype(cell.state.name) or self.search.dtype
