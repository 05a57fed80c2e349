"""Compare a streaming model with its source on random chunks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onegru.core.compare import QUANTIZED, TOLERANCE_FUSED, Comparison
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, MissingExtraError, OneGRUError, SpecError
from onegru.core.wording import count
from onegru.formats.graph import Graph
from onegru.formats.opened import Opened
from onegru.models.inputs.lengths import find_lengths
from onegru.models.inputs.random import Drawn, draw_inputs, draw_twice
from onegru.models.inputs.sizes import dimension_name, widths
from onegru.models.model import Model
from onegru.models.streaming import Forms, change_to_chunks
from onegru.rewriting.check import Check
from onegru.rewriting.compare import OutputCheck, check_input_dependent
from onegru.timeline.check import check_unchanged
from onegru.timeline.edits.edit import Streaming

if TYPE_CHECKING:
    from onegru.rewriting.nodes.model_pass import Rewritten

_STEPS = 29  # steps of a random sequence, unless the model fixes the number
_DRAWN = 3  # number of random ways to split a sequence


class Chunked(NamedTuple):
    """A model that runs in chunks."""

    made: Streaming  # the changes for streaming
    rewritten: Rewritten | None  # further changes to its GRU nodes; None for no changes
    outputs: tuple[Comparison, ...]  # reports on the differences of its outputs from the source
    notes: list[str]  # other changes, as text
    opset: int | None  # the opset of the target; None for an IR
    write: Callable[[Path], None]  # writes the target to a path


def make_chunked(
    file: Opened, graph: Graph, notes: list[str], time: Mapping[str, int] | None, forms: Forms
) -> Streaming:
    """Change a model to run in chunks, and add notes on it."""
    unchanged = check_unchanged(graph)
    made = change_to_chunks(graph, time, forms, unchanged)
    if not made.states and not unchanged.pairs:
        raise SpecError(
            f"{file}: has no state to carry from one chunk to the next; it runs in chunks as it is"
        )
    if not made.states:
        notes.append(f"its own states ({unchanged.states}) are sufficient; the metadata now name them")
    if made.steps:
        notes.append(
            f"the source needs {count(made.steps, 'step')} in each run, although its time axis is dynamic"
        )
    return made


def check_chunks(
    whole: Model | None,
    read: Callable[[], Graph],
    made: Streaming,
    check: Check | None,
    target: Path,
    notes: list[str],
    is_int8: bool = False,
) -> tuple[Comparison, ...]:
    """Load a result, and compare it with its source."""
    if whole is None or check is None:
        with suppress(MissingExtraError):  # without a check, the packages that run the model are optional
            Model(read())
        return ()
    if made.steps:
        _check_steps(whole, made, check, target)
    outputs = compare_in_chunks(whole, Model(read()), made, check, target, is_int8)
    shapes = {info.name: info.shape or () for info in whole.inputs}
    if all(shapes[name][axis : axis + 1] == (1,) for name, axis in made.input_axes.items()):
        words = "the source runs one step at a time, so the check does not cover states between steps"
        notes += [] if words in notes else [words]
    return outputs


def _check_steps(whole: Model, made: Streaming, check: Check, target: Path) -> None:
    """Raise FormatError if a source with a fixed number of steps also runs on twice that number."""
    dims: dict[str, Any] = {name: size for name, size in (check.dims or {}).items() if isinstance(size, int)}
    for info in whole.inputs:
        if info.name in made.input_axes:
            dims[dimension_name(info, made.input_axes[info.name])] = 2 * made.steps
    drawn = draw_inputs(whole, check.seed, (2 * made.steps, 2, 4), dims)
    if drawn.error is not None:
        return
    sizes = {drawn.outputs[name].shape[axis] for name, axis in made.output_axes.items() if axis is not None}
    if sizes == {2 * made.steps}:
        why = f"the source accepts {2 * made.steps} steps, although its file specifies {made.steps}"
        raise FormatError(f"{target}: not written: {why}")


def compare_in_chunks(
    whole: Model, chunked: Model, made: Streaming, check: Check, target: Path, is_int8: bool = False
) -> tuple[Comparison, ...]:
    """Compare the source on whole sequences with the target on chunks of them."""
    found: dict[str, Comparison] = {}
    case = _case(whole, made, check)
    inputs = {name: np.asarray(array) for name, array in case.inputs.items()}
    steps = {array.shape[made.input_axes[name]] for name, array in inputs.items() if name in made.input_axes}
    if made.input_axes and (len(steps) != 1 or min(steps) < 1):
        raise SpecError.of("inputs", f"{sorted(steps)} steps; must have the same number of steps, at least 1")
    total = steps.pop() if steps else 1  # a frame without a time axis
    dtypes = {node.layer.spec.dtype for node in whole.gru_nodes if node.layer is not None} or {"float32"}
    dtypes |= {QUANTIZED} if is_int8 else set()
    compare = OutputCheck(whole, case, check, target, TOLERANCE_FUSED, dtypes, chunked)
    rng = np.random.default_rng(check.seed)
    lengths = {name for name, item in find_lengths(whole).items() if not item.is_scaled}
    for sizes in _chunk_sizes(total, max(made.delays.values(), default=0), rng):
        results = _outputs_in_chunks(chunked, inputs, made, sizes, lengths)
        for name, axis in made.output_axes.items():
            expected = case.outputs[name]
            if axis is not None:
                size = expected.shape[axis]
                elements_per_step = max(1, round(size / total))  # rows or features may be on the same axis
                kept = elements_per_step * max(0, total - made.delays.get(name, 0))
                expected = np.take(expected, range(min(kept, size)), axis)
            words = f"output {name!r} in chunks of {sizes[:4]}…"
            report = compare(name, "onegru", words, expected, results[name])
            if name not in found or report.max_abs > found[name].max_abs:
                found[name] = replace(report, steps=total)
    reports = tuple(found.values())
    check_input_dependent(target, reports)
    return reports


def _case(whole: Model, made: Streaming, check: Check) -> Drawn:
    if check.inputs is not None:
        return Drawn(dict(check.inputs), whole.run(check.inputs))
    dims: dict[str, Any] = dict(check.dims or {})
    open_dims = {
        dimension_name(info, axis)
        for info in whole.inputs
        if (axis := made.input_axes.get(info.name)) is not None
        and info.shape is not None
        and not isinstance(info.shape[axis], int)
    } - dims.keys()
    first_error: OneGRUError | None = None
    starts = [state.start for state in made.states if state.start is not None]
    rows = {size for start in starts for size in start.shape[:-1] if size > 1}
    tried = ((2, 4), (1, 1), (2, 16), (2, 2), *((2, width) for width in widths(whole)))
    for steps in dict.fromkeys([made.steps or _STEPS, *_declared_steps(whole, made)]):
        for batch, other in (*tried, *((size, size) for size in rows)):
            sizes = dims | dict.fromkeys(open_dims, steps)
            drawn = draw_twice(whole, check.seed, (steps, batch, other), sizes)
            if drawn.error is None:
                return drawn
            first_error = first_error or drawn.error
    how = ", ".join(f"--dim {name}=N" for name in sorted(open_dims))
    hint = f"; if the number of steps is fixed, pass it (dims, {how})" if open_dims else ""
    raise FormatError(f"{first_error}; the target cannot be checked, and is not written{hint}")


def _declared_steps(whole: Model, made: Streaming) -> list[int]:
    """Return the step counts in the declared shapes of outputs, as PyTorch's exporter may write them."""
    found = ((info.shape, made.output_axes.get(info.name)) for info in whole.outputs)
    sizes = (shape[axis] for shape, axis in found if shape is not None and axis is not None)
    return [size for size in sizes if isinstance(size, int) and size > 0]


def _chunk_sizes(total: int, delay: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield ways to split a sequence into chunks; the first chunk is longer than the delay."""
    first = min(delay + 1, total)
    for size in (1, 2, 7, total - first or 1):
        left = total - first
        yield [first, *[size] * (left // size), *[left % size] * (left % size > 0)]
    yield [total]
    for _ in range(_DRAWN):
        sizes = [min(total, first + int(rng.integers(0, 4)))]
        while (left := total - sum(sizes)) > 0:
            sizes.append(min(left, int(rng.integers(1, 9))))
        yield sizes


def _outputs_in_chunks(
    chunked: Model, inputs: Mapping[str, Array], made: Streaming, sizes: list[int], lengths: Collection[str]
) -> dict[str, Array]:
    """Run all chunks, and return the joined outputs. Lengths inputs are reduced by the steps done."""
    stream = chunked.stream()
    parts: list[dict[str, Array]] = []
    start = 0
    states = set(stream.pairs.values())
    for size in sizes:
        if start:  # initial states are only passed to the first chunk
            inputs = {name: array for name, array in inputs.items() if name not in states}
        chunk = {
            name: np.take(array, range(start, start + size), made.input_axes[name])
            if name in made.input_axes
            else np.clip(array - start, 0, size).astype(array.dtype)
            if name in lengths
            else array
            for name, array in inputs.items()
        }
        parts.append(stream.step(chunk))
        start += size
    return {
        name: parts[-1][name] if axis is None else np.concatenate([part[name] for part in parts], axis)
        for name, axis in made.output_axes.items()
        if name in parts[-1]
    }


def describe_changes(made: Streaming) -> tuple[dict[str, list[str]], list[str]]:
    """Describe the changes to each recurrence, by name, and other changes."""
    nodes: dict[str, list[str]] = {}
    others: list[str] = []
    for state in made.states:
        if state.steps is None:
            nodes.setdefault(state.node, []).append(f"its state is now {state.input} and {state.output}")
        else:
            size = count(state.steps, "input step")
            others.append(f"{state.node}: its cache of {size} is now {state.input} and {state.output}")
    for name, steps in made.delays.items():
        others.append(
            f"output {name} is delayed by {count(steps, 'step')}; the first chunk must be longer than that"
        )
    return nodes, others
