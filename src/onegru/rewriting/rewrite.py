"""Rewriting the GRU nodes of a whole ONNX model, checked on random inputs before anything is written."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from onegru.core.arguments import check_function, file_path, flag, shown
from onegru.core.compare import TOLERANCE_FUSED, TOLERANCE_REWRITTEN
from onegru.core.dtypes import check_group_size
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.formats.opened import Kind, open_model
from onegru.models.random_inputs import Dims
from onegru.models.stream import first_states
from onegru.rewriting.check import Check, OutputReport, check_target
from onegru.rewriting.fuse import fuse_onnx
from onegru.system.atomic_write import write_files

if TYPE_CHECKING:
    from pathlib import Path

    from onegru.formats.onnx.validate import ModelProto
    from onegru.formats.opened import Opened
    from onegru.fusion.search import Fused, NearMiss, Progress
    from onegru.models.fusing import Decomposed
    from onegru.rewriting.plan import Changes

#: The runtimes whose faults a model can be rewritten for.
RUNTIMES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One GRU node of the source.

    Attributes:
        name: its name; that of an output where it has none.
        done: descriptions of what was done to it; empty if it stayed as it was.
        reasons: what the target runtime is known to do to the node as it was.
    """

    name: str
    done: tuple[str, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What was done to a model.

    Attributes:
        source: the file that was read.
        target: the file that was written.
        opsets: the source's opset and the target's.
        nodes: its GRU nodes, in the order of the file.
        others: descriptions of the other nodes that the new opset changed.
        notes: what else there is to know.
        outputs: the results of the check; empty if it was not asked for.
        fused: the decomposed GRUs that became GRU nodes first, which are then in `nodes` as well.
        missed: near misses.
    """

    __module__ = "onegru"

    source: str
    target: str
    opsets: tuple[int, int]
    nodes: tuple[NodeReport, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]
    outputs: tuple[OutputReport, ...]
    fused: tuple[Fused, ...] = ()
    missed: tuple[NearMiss, ...] = ()


def rewrite(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    opset: int | None = None,
    layout: int | None = None,
    dtype: Literal["float16"] | None = None,
    quantize: bool | Collection[str] = False,
    group_size: int | None = None,
    split: bool = False,
    decompose: bool = False,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    inputs: Mapping[str, object] | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    check: bool = True,
    fuse: bool = False,
    streaming: bool = False,
    time: Mapping[str, int] | None = None,
    delay: bool = False,
    progress: Progress | None = None,
) -> Rewriting:
    """Rewrite the GRU nodes of an ONNX model; the rest of the model stays as it is.

    The nodes' hidden_size, direction and activation parameters are written out, as runtimes differ in their
    defaults. With only `runtime`, a node that this runtime runs correctly stays as it was.

    Args:
        source: an ONNX model.
        target: the file to write, which may be the source; it is replaced only once the result has passed
            the check.
        opset: the version of ONNX's operators that the target uses, 1 to onnx's newest; other nodes are
            converted where their operators changed in between. The source's by default.
        layout: 0 or 1, for the GRU nodes, with Transposes around those that had the other.
        dtype: "float16" for GRU nodes in float16, with Casts around them. The model's inputs and outputs
            keep their types.
        quantize: whether W and R of float32 GRU nodes are stored in int8 with a scale per row, and converted
            back by DequantizeLinear nodes, from opset 13 on; or the names of the nodes, as `onegru.quantize`
            chooses them. Biases, inputs and states stay float32.
            `onegru.load(…, weight_storage="int8")` computes with these integers.
        group_size: with `quantize`, 32, 64 or 128: how many weights of a row share a scale, from opset 21 on.
            `onegru.load(…, weight_storage="int8_g64")`, say, computes with these integers.
        split: whether a bidirectional node becomes a forward and a reverse one.
        decompose: whether GRU nodes are expressed with other operators, from opset 11 on: a product over all
            steps, and a Scan. There must then be at least one step.
        runtime: "onnxruntime" or "openvino": make the least change to each node that the runtime is known
            to refuse or to miscompute, and check the target in it.
        inputs: an array for each of the model's inputs, to check with; random by default. States that the
            metadata of the file tell of may be left out: they are what those say of the first run.
        dims: sizes of open dimensions of random inputs, by name ("X.0" for one without), and whole shapes of
            inputs, by their names.
        seed: of the random inputs.
        tolerance: the largest absolute difference to allow, times the largest number of the output if that is
            above 1. By default 1e-6 for float32, 1e-10 for float64, 2e-3 for float16, 2e-2 for bfloat16 and
            0.1 with `quantize`, of the output or of a GRU node; those of `onegru.fuse` with `fuse`; ten times
            that in another runtime; or more where the model enlarges a rounding of its inputs to more, and
            less for an output that is no larger than that. Of integers and booleans it is the share that may
            differ, unless the numbers in front of them can be compared.
        check: whether to check the target against the source. The source need not run without it; what
            `streaming` makes has to load.
        fuse: whether GRUs that are decomposed into other operators become GRU nodes first, as by
            `onegru.fuse`; there must then be one.
        streaming: whether a model of whole sequences becomes one that runs in chunks of any size: the states
            of its GRUs (and LSTMs and RNNs), and the last steps before its causal convolutions, become inputs
            and outputs, zeros at first. Checked by running the source over random sequences, and the target
            over chunks of them. `onegru.load(target).stream()` knows the states, by the file's metadata. Of
            the other changes `quantize` may be asked for as well, with `group_size` and `opset`.
        time: with `streaming`, the axis of time of inputs, by name; by default that along which the GRUs run.
        delay: with `streaming`, whether outputs may come later than in a whole run, where a convolution needs
            steps ahead; else such a model is refused.
        progress: called now and then with the number of nodes searched for them, and of all.

    Returns:
        what was done, and how far the outputs lie apart.

    Raises:
        SpecError: an argument or a GRU node is not legal, or the target's opset cannot express a node.
        FormatError: the file is broken or holds what cannot be rewritten, or the target differs from the
            source, or a comparison would prove nothing, as outputs are not finite or do not change; nothing
            is written then.
        MissingExtraError: a package that this needs is not installed.
        OSError: a file cannot be read or written.
    """
    target = file_path("target", target)
    _check_arguments(layout, dtype, quantize, split, decompose, runtime)
    check_target(target, ".onnx")
    wanted = Check.of(check, inputs, dims, seed, tolerance)
    check_function("progress", progress)
    if not flag("fuse", fuse) and progress is not None:
        raise SpecError("progress: given without fuse, where it has no effect; must be left out")
    file = open_model("source", source)
    if file.kind is not Kind.ONNX:
        raise FormatError(f"{file}: {file.kind.words}; only an ONNX model is rewritten")
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import parse_onnx, read_onnx
        from onegru.formats.onnx.validate import Source, model_of
        from onegru.rewriting.compare import check_result
        from onegru.rewriting.model_pass import rewrite_model
        from onegru.rewriting.plan import Changes, check_opset
    if opset is not None:
        check_opset(opset)
    place = Source.of(file)
    names = quantize if isinstance(quantize, bool) else frozenset(quantize)
    group = check_group_size(group_size)
    if group and not quantize:
        raise SpecError("group_size: given without quantize, where it has no effect; must be left out")
    changes = Changes(opset, layout, dtype == "float16", names, group, split, decompose, runtime)
    if flag("streaming", streaming):
        given_too = {
            "opset": None if quantize else opset,
            "layout": layout,
            "dtype": dtype,
            "split": split or None,
            "decompose": decompose or None,
            "runtime": runtime,
        }
        for name, value in given_too.items():
            if value is not None:
                raise SpecError(f"{name}: given with streaming; must be left out, and asked for later")
        found, given, notes = fuse_onnx(file, progress) if fuse else (None, file.data, [])
        model = model_of(file) if found is None else found.model
        more = changes if quantize else None
        return _rewrite_for_streaming(
            file, target, model, found, notes, wanted, time, flag("delay", delay), more
        )
    for name, is_given in (("time", time is not None), ("delay", flag("delay", delay))):
        if is_given:
            raise SpecError(f"{name}: given without streaming, where it has no effect; must be left out")
    found, given, notes = fuse_onnx(file, progress) if fuse else (None, file.data, [])
    model = model_of(file) if found is None else found.model
    rewritten = rewrite_model(place, model, len(given), changes)
    result = rewritten.serialized(place)
    tolerances = TOLERANCE_REWRITTEN if found is None else TOLERANCE_FUSED
    if wanted.inputs is not None:
        states = first_states(read_onnx(file, again=True), wanted.inputs)
        wanted = replace(wanted, inputs={**states, **wanted.inputs})
    outputs, unchecked = check_result(
        lambda: read_onnx(file, again=True),
        parse_onnx(result, Source(str(target))),
        target,
        wanted,
        tolerances,
        rewritten.dtypes,
        result,
        runtime,
    )
    write_files([(target, lambda file: file.write(result))])
    return Rewriting(
        source=str(file),
        target=str(target),
        opsets=rewritten.opsets,
        nodes=tuple(NodeReport(*node) for node in rewritten.nodes),
        others=tuple(rewritten.others),
        notes=(*notes, *rewritten.notes, *unchecked),
        outputs=outputs,
        fused=() if found is None else found.fused,
        missed=() if found is None else found.missed,
    )


def _rewrite_for_streaming(
    file: Opened,
    target: Path,
    model: ModelProto,
    fused: Decomposed | None,
    notes: list[str],
    wanted: Check,
    time: Mapping[str, int] | None,
    delay: bool,
    changes: Changes | None,
) -> Rewriting:
    from onegru.rewriting.streaming import rewrite_for_streaming, words_of

    result = rewrite_for_streaming(file, model, target, wanted, time, delay, changes)
    nodes, more = words_of(result.made)
    versions = (entry.version for entry in result.made.model.opset_import if entry.domain in ("", "ai.onnx"))
    newest = max(versions)
    opsets: tuple[int, int] = (newest, newest)
    others: tuple[str, ...] = ()
    if (rewritten := result.rewritten) is not None:
        opsets, others = rewritten.opsets, tuple(rewritten.others)
        for name, done, _ in rewritten.nodes:
            nodes[name] = [*nodes.get(name, ()), *done]
    write_files([(target, lambda file: file.write(result.data))])
    return Rewriting(
        source=str(file),
        target=str(target),
        opsets=opsets,
        nodes=tuple(NodeReport(name, tuple(words)) for name, words in nodes.items()),
        others=others,
        notes=(*notes, *result.notes, *more),
        outputs=result.outputs,
        fused=() if fused is None else fused.fused,
        missed=() if fused is None else fused.missed,
    )


def _check_arguments(
    layout: int | None,
    dtype: str | None,
    quantize: bool | Collection[str],
    split: bool,
    decompose: bool,
    runtime: str | None,
) -> None:
    if layout not in (None, 0, 1) or isinstance(layout, bool):
        raise SpecError(f"layout: {layout!r}; must be 0 or 1")
    if dtype not in (None, "float16"):
        raise SpecError(f"dtype: {dtype!r}; must be 'float16'")
    if runtime not in (None, *RUNTIMES):
        raise SpecError(f"runtime: {runtime!r}; must be {' or '.join(map(repr, RUNTIMES))}")
    if not isinstance(quantize, bool) and not (
        isinstance(quantize, Collection) and quantize and all(isinstance(name, str) for name in quantize)
    ):
        raise SpecError(f"quantize: {shown(quantize)}; must be True, False or names of GRU nodes")
    if isinstance(quantize, str):
        raise SpecError(f"quantize: {quantize!r}; must be a list of names, not one name")
    if quantize and dtype is not None:
        raise SpecError(f"dtype: {dtype!r}; must be None with quantize, which needs float32")
    is_given_by_name = {
        "layout": layout is not None,
        "split": flag("split", split),
        "quantize": bool(quantize),
    }
    for name, is_given in is_given_by_name.items():
        if flag("decompose", decompose) and is_given:
            raise SpecError(f"{name}: given with decompose, which leaves no GRU node; must be left out")
    if layout == 1 and runtime is not None:
        raise SpecError(f"layout: 1; must be 0 for {runtime}, which does not run it")
