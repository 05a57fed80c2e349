"""Recognize states by the names of inputs and outputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from onegru.core.shapes import fits
from onegru.dataflow.flow import Flow
from onegru.dataflow.table import operator_of
from onegru.dataflow.walk import reachable
from onegru.formats.graph import Dimension, TensorInfo
from onegru.timeline.analysis import MOVE_KINDS
from onegru.timeline.read import ModelFlow

# Words that differ between the names of a state's input and output, as in `state_in` and `state_out`.
_IN, _OUT = {"in", "input", "i"}, {"out", "output", "o"}
# Words for the state before and after a step, as in `h_prev` and `h_next`; PyTorch's `h_0` and `h_n`.
_BEFORE = {"prev", "previous", "past", "old", "last", "init", "initial", "0"}
_AFTER = {"new", "next", "n", "final", "updated", "cur", "current", "present"}

# Words for states.
_MEMORY = re.compile(
    r"(h|c|hx|cx|hn|cn|hc|hidden|cell|states?|caches?|mem|memory|memories|buf|buffer|buffers|hist|history|ctx"
    r"|context|kv|gru|lstm|rnn|tail|overlap|past)\d*"
)


def pair_by_name(
    inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo], model_flow: ModelFlow
) -> dict[str, str]:
    """Return the state outputs with their inputs, recognized by name."""
    # An input and an output pair must have one type, and equal sizes where the output's are known; the first
    # step of a stream checks the rest. Their names differ by a word such as `in` and `out`, `prev` and
    # `next`. The output must depend on the input, and the pair must be unique. Outputs that consist of last
    # states of GRU nodes are excluded, because these were checked before. If all inputs or all outputs would
    # be states, a stream would have no signal; then only names of memories (h, state, cache) count: a
    # forecaster's x and x_next are its signal.
    takers, givers, flow = list(inputs), list(outputs), model_flow.flow
    known = {size for info in takers for size in info.shape or ()}
    candidates = [
        (giver.name, taker.name)
        for taker in takers
        for giver in givers
        if taker.shape is not None
        and taker.is_tensor
        and taker.dtype == giver.dtype
        and None not in taker.shape
        and _may_take(taker.shape, giver.shape, known)
        and fits(flow.shape(model_flow.outputs[giver.name]) or taker.shape, taker.shape)
        and is_next_name(taker.name, giver.name)
    ]
    counts = Counter(name for pair in candidates for name in set(pair))
    found = {
        output: taker
        for output, taker in candidates
        if counts[output] == counts[taker] == 1
        and model_flow.inputs[taker] in values_before(flow, model_flow.outputs[output])
        and not _is_last_state(flow, model_flow.outputs[output])
    }
    if len(found) < min(len(takers), len(givers)):
        return found
    return {output: taker for output, taker in found.items() if _is_of_memory(_words_in(taker))}


def _may_take(
    target: tuple[Dimension, ...], source: tuple[Dimension, ...] | None, known: Collection[Dimension]
) -> bool:
    """Whether an output can feed an input: each size is equal, or unknown."""
    # Exporters invent names for unknown sizes of outputs; no input has these names.
    return source is None or (
        len(source) == len(target)
        and all(
            have == want or have is None or (isinstance(have, str) and have not in known)
            for have, want in zip(source, target, strict=True)
        )
    )


def is_next_name(taker: str, output: str) -> bool:
    """Whether an output's name marks it as the next value of an input."""
    return any(
        bool(base) and base == other and (is_clear or other_is_clear or _is_of_memory(base))
        for base, is_clear in _bases(taker, _IN, _BEFORE)
        for other, other_is_clear in _bases(output, _OUT, _AFTER)
        if taker != output
    )


def _words_in(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())


def _is_of_memory(words: Iterable[str]) -> bool:
    return any(_MEMORY.fullmatch(word) for word in words)


def _bases(name: str, port: set[str], time: set[str]) -> list[tuple[tuple[str, ...], bool]]:
    """Return a name's words, also without a word for a port or a time, and whether this marks a state."""
    # Words for a port, "0" and "n" do not: x_in, x_0 and x_n may be a signal.
    words = _words_in(name)
    found = [(tuple(words), False)]
    for index, word in enumerate(words):
        rest = (*words[:index], *words[index + 1 :])
        if word in port | time:
            found.append((rest, word in time and not word.isdigit() and len(word) > 1))
        for ending in sorted(port | time):
            stem = word.removesuffix(ending)
            if stem and stem != word and _MEMORY.fullmatch(stem):  # h0, hn, statein
                found.append(((*words[:index], stem, *words[index + 1 :]), False))
    return found


def values_before(flow: Flow, name: str) -> set[str]:
    """Return the values that a value depends on."""
    producers = flow.producers
    return set(reachable([name], lambda value: producers[value].reads() if value in producers else ()))


def _is_last_state(flow: Flow, name: str) -> bool:
    """Whether a value consists only of last states of recurrences, moved and joined."""

    def pieces(value: str) -> Iterable[str]:
        op = flow.producers.get(value)
        if op is None or op.kind not in MOVE_KINDS:
            return ()
        return op.inputs if op.kind == "Concat" else op.inputs[:1]

    ops = ((value, flow.producers.get(value)) for value in reachable([name], pieces))
    return all(
        op is not None
        and (op.kind in MOVE_KINDS or (bool(operator_of(op.kind).states) and op.outputs.index(value) > 0))
        for value, op in ops
    )
