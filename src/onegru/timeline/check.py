"""Check whether an unchanged model can run in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onegru.core.errors import BROKEN, SpecError, SpecWarning
from onegru.formats.graph import Graph
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.finding import Finding
from onegru.timeline.losses import LossFinder
from onegru.timeline.pairs import pair_by_name
from onegru.timeline.read import ModelFlow, read_model_flow

_MOST_NAMED = 5  # nodes in a message


@dataclass(frozen=True, slots=True)
class UnchangedCheck:
    """Whether a model can run in chunks unchanged, and which results would change."""

    path: str  # the file of the model
    pairs: Mapping[str, str]  # the state input for each state output
    named: tuple[str, ...] = ()  # the outputs in `pairs` that were found by their names
    # operators that would change results in chunks; None if the operators cannot be followed
    losses: tuple[Finding, ...] | None = None
    input_axes: Mapping[str, int] = field(default_factory=dict)  # the known time axes of inputs
    output_axes: Mapping[str, int | None] = field(default_factory=dict)  # the same for outputs
    is_single_step: bool = False  # whether a run has exactly one step
    is_followed: bool = False  # whether a time axis is known, so that losses were searched

    @property
    def refusal(self) -> str:
        """Return the reason why chunks never give the results of one run; "" if they may."""
        never = [loss for loss in self.losses or () if loss.hazard in ("reverses", "mixes")]
        return _listed(never) if never else ""

    @property
    def warning(self) -> str:
        """Return the reason why chunks may change the results; "" if they do not."""
        if self.losses is None:
            return "onegru cannot follow its operators, so chunks may change the results"
        return f"chunks may change the results, because {_listed(self.losses)}" if self.losses else ""

    @property
    def is_sound(self) -> bool:
        """Whether the model needs no other states."""
        return bool(self.pairs) and self.is_followed and not self.warning

    @property
    def states(self) -> str:
        """Return the states as text."""
        return ", ".join(f"{output} → {taker}" for output, taker in self.pairs.items())


def check_unchanged(graph: Graph, state: Mapping[str, str] | None = None) -> UnchangedCheck:
    """Find the external states of a model, and the operators that would change results in chunks."""
    model_flow, named = read_model_flow(graph), dict[str, str]()
    if state is None:
        named = _named_states(graph, model_flow)
        state = {**dict(graph.states), **named}
    found = UnchangedCheck(graph.path, state, tuple(named))
    if model_flow is None:
        return found
    states = {model_flow.inputs[taker]: model_flow.outputs[output] for output, taker in state.items()}
    try:
        finder = LossFinder(TimeAnalysis(model_flow.flow, states, model_flow.opset))
        losses = finder.findings()
        inputs = {name: finder.timed(value) for name, value in model_flow.inputs.items()}
        outputs = {name: finder.timed(value) for name, value in model_flow.outputs.items()}
    except BROKEN:
        return found
    return replace(
        found,
        losses=tuple(losses),
        input_axes={name: axes[0] for name, axes in inputs.items() if axes and name not in state.values()},
        output_axes={name: axes[0] if axes else None for name, axes in outputs.items() if name not in state},
        is_single_step=finder.is_single_step,
        is_followed=bool(finder.time),
    )


def warn_of_losses(found: UnchangedCheck, *, refuses: bool) -> None:
    """Warn of operators that would change results in chunks, or raise SpecError."""
    if refuses and found.refusal:
        raise SpecError(
            f"{found.path}: cannot be streamed, because {found.refusal}; run it as a whole, or name its "
            "states (state=) to stream it anyway"
        )
    if found.warning:
        warnings.warn(f"{found.path}: {found.warning}", SpecWarning, stacklevel=4)


def _named_states(graph: Graph, model_flow: ModelFlow | None) -> dict[str, str]:
    """Return the outputs that are states by their names, and their inputs."""
    if model_flow is None:
        return {}
    known = {name for pair in graph.states for name in pair}
    inputs = [info for info in graph.inputs if info.name not in known]
    outputs = [info for info in graph.outputs if info.name not in known]
    return pair_by_name(inputs, outputs, model_flow)


def _listed(losses: Sequence[Finding]) -> str:
    words = "; ".join(map(str, losses[:_MOST_NAMED]))
    return f"{words}; and {len(losses) - _MOST_NAMED} more" if len(losses) > _MOST_NAMED else words
