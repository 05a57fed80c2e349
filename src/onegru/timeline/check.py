"""Whether a model may be fed in chunks of time, and which of its inputs are states by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from onegru.core.errors import BROKEN, SpecError, SpecWarning
from onegru.formats.graph import Graph
from onegru.timeline.pairs import pair_by_name
from onegru.timeline.read import Timeline
from onegru.timeline.walk import Finding, find_losses

_MOST_NAMED = 5  # nodes in a message


def named_states(graph: Graph, timeline: Timeline | None) -> dict[str, str]:
    """The outputs that are states by their names, and the inputs that take them."""
    if timeline is None:
        return {}
    known = {name for pair in graph.states for name in pair}
    inputs = [info for info in graph.inputs if info.name not in known]
    outputs = [info for info in graph.outputs if info.name not in known]
    return pair_by_name(inputs, outputs, timeline.flow, (timeline.inputs, timeline.outputs))


def check_time(graph: Graph, timeline: Timeline | None, pairs: Mapping[str, str], *, refuses: bool) -> None:
    """Tell what chunks of time would lose.

    Args:
        graph: the model.
        timeline: its operators.
        pairs: the input that takes each state output.
        refuses: whether nodes that reverse time or mix it are refused; else they are warned of.

    Raises:
        SpecError: a node reverses time, or mixes all steps of a run.

    Warns:
        SpecWarning: chunks will not give what one run gives, or may not.
    """
    losses = [] if timeline is None else _losses(timeline, pairs)
    if timeline is None or losses is None:
        message = "its operators cannot be followed, so chunks may not give what one run gives"
        warnings.warn(f"{graph.path}: {message}", SpecWarning, stacklevel=4)
        return
    never = [loss for loss in losses if loss.kind in ("reverses", "mixes")]
    if refuses and never:
        raise SpecError(
            f"{graph.path}: cannot be streamed, as {_words(never)}; run it as a whole, or name its states "
            "(state=) to stream it all the same"
        )
    if losses:
        message = f"{graph.path}: chunks may not give what one run gives, as {_words(losses)}"
        warnings.warn(message, SpecWarning, stacklevel=4)


def _losses(timeline: Timeline, pairs: Mapping[str, str]) -> list[Finding] | None:
    """What chunks lose; None if operators contradict each other."""
    states = {timeline.inputs[taker]: timeline.outputs[output] for output, taker in pairs.items()}
    try:
        return find_losses(timeline.flow, states, timeline.opset)
    except BROKEN:
        return None


def _words(losses: list[Finding]) -> str:
    words = "; ".join(map(str, losses[:_MOST_NAMED]))
    return f"{words}; and {len(losses) - _MOST_NAMED} more" if len(losses) > _MOST_NAMED else words
