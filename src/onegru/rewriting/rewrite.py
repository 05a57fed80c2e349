"""Rewrite the GRU nodes of an ONNX model file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onegru.core.arguments import flag
from onegru.core.compare import TOLERANCE_REWRITTEN, Comparison
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.core.wording import count
from onegru.drawing.card import Card, CardReport
from onegru.formats.opened import Kind, open_model
from onegru.rewriting.check import Check, as_target, output_facts, wanted_check

if TYPE_CHECKING:
    from onegru.formats.opened import Opened

#: The runtimes with bugs that `rewrite` can work around.
RUNTIMES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Changes of one GRU node.

    Attributes:
        name: the node's name; without a name, the name of an output.
        done: descriptions of the changes; empty if the node is unchanged.
        reasons: the target runtime's known issues with the unchanged node.
    """

    name: str
    done: tuple[str, ...]
    reasons: tuple[str, ...] = ()


NodeReport.__module__ = "onegru.reports"


@dataclass(frozen=True, slots=True)
class Rewriting(CardReport):
    """Result of `rewrite`, `quantize` or `make_streaming`.

    Attributes:
        source: the file that was read.
        target: the file that was written; None if no target was requested.
        opsets: the opset of the source and of the target; empty for an IR.
        nodes: the GRU nodes of the source, in the order of the file.
        others: descriptions of other nodes that the new opset changed.
        notes: further changes and facts, as text.
        outputs: the results of the check; empty without a check.
    """

    source: str
    target: str | None
    opsets: tuple[int, ...]
    nodes: tuple[NodeReport, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]
    outputs: tuple[Comparison, ...]

    def __repr__(self) -> str:
        changed = sum(bool(node.done) for node in self.nodes)
        opset = ", opset " + " → ".join(map(str, dict.fromkeys(self.opsets))) if self.opsets else ""
        return f"Rewriting({self.source!r}: {changed} of {count(len(self.nodes), 'GRU')} changed{opset})"

    def _card(self) -> Card:
        facts = [("opset", " → ".join(map(str, dict.fromkeys(self.opsets))))] if self.opsets else []
        if self.target is not None:
            facts.insert(0, ("written", self.target))
        facts += [("note", note) for note in self.notes]
        rows = [(node.name, "; ".join(node.done) or "unchanged") for node in self.nodes]
        facts += output_facts(self.outputs)
        return f"Rewriting · {self.source}", facts, ("GRU", "changes"), rows


Rewriting.__module__ = "onegru.reports"


def rewrite(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    layout: int | None = None,
    dtype: Literal["float16"] | None = None,
    split: bool = False,
    decompose: bool = False,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    check: bool | Check = True,
) -> Rewriting:
    """Rewrite the GRU nodes of an ONNX model, and keep its other nodes.

    The rest of the model stays unchanged. Rewritten nodes get explicit hidden_size, direction and activation
    parameters, because runtimes differ in their defaults. With only `runtime`, nodes that this runtime runs
    correctly stay unchanged. See also `onegru.fuse` for decomposed GRUs, `onegru.quantize` for smaller
    weights, and `onegru.make_streaming` for streaming.

    Args:
        source: the path of an ONNX model.
        target: the file to write. It may be the source, and is replaced only after the check has passed.
            Default: None (write nothing).
        opset: the ONNX opset of the target, from 1 to onnx's newest. Other nodes are converted if their
            operators changed. Default: None (the source's opset).
        layout: the layout of the GRU nodes, 0 or 1; changed nodes get Transposes around them. Default: None
            (unchanged).
        dtype: "float16" to convert the GRU nodes to float16, with Casts around them. The model's inputs and
            outputs keep their types. Default: None (unchanged).
        split: whether to split each bidirectional node into a forward and a reverse node.
        decompose: whether to decompose GRU and AUGRU nodes into other operators, from opset 11 on: a matmul
            over all steps, and a Scan. The target then needs at least one step. If the file fixes the number
            of steps at 8 or fewer, they are unrolled, without Scan and Shape.
        runtime: "onnxruntime" or "openvino", to make the smallest change to each node that this runtime
            rejects or computes incorrectly, and to check the target in this runtime. AUGRU nodes get their
            function for "onnxruntime", and are decomposed for "openvino". A decomposed node needs at least
            one step. Default: None (no runtime).
        check: whether to compare the target with the source on random inputs, or a `Check` with inputs and
            tolerance. Default: True, with a tolerance of 1e-6 for float32, 1e-10 for float64, 2e-3 for
            float16 and 2e-2 for bfloat16, for the type of the output or of a GRU node. The tolerance in
            another runtime is ten times as large. With False, the source need not run.

    Returns:
        the changes to each node, and the difference of each output.

    Raises:
        SpecError: an argument or a GRU node is invalid, or the target's opset cannot express a node.
        FormatError: the file is broken, or a node cannot be rewritten; or the target differs from the source,
            or the check is inconclusive, because outputs are constant or not finite. Nothing is written
            then.
        MissingExtraError: a required package is not installed.
        OSError: a file cannot be read or written.
    """
    _check_arguments(layout, dtype, split, decompose, runtime)
    options: dict[str, Any] = {
        "opset": opset,
        "layout": layout,
        "float16": dtype == "float16",
        "split": split,
        "decompose": decompose,
        "runtime": runtime,
    }
    return rewrite_file(open_model("source", source), target, wanted_check(check), **options)


def rewrite_file(
    file: Opened, target: str | os.PathLike[str] | None, check: Check | None, **options: Any
) -> Rewriting:
    """Apply `onegru.rewriting.nodes.changes.RewriteOptions` to the GRU nodes of an ONNX model."""
    path, label = as_target(file, target, ".onnx")
    if file.kind is not Kind.ONNX:
        raise FormatError(f"{file}: {file.kind.words}; must be an ONNX model")
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import parse_onnx, read_onnx
        from onegru.formats.onnx.validate import Source, model_of, read_model
        from onegru.rewriting.compare import check_result
        from onegru.rewriting.external_data import serialize_model, write_model
        from onegru.rewriting.nodes.changes import RewriteOptions
        from onegru.rewriting.nodes.model_pass import rewrite_model
        from onegru.rewriting.nodes.plan import check_target_opset
    if options.get("opset") is not None:
        check_target_opset(options["opset"])
    onnx_source = Source.of(file)
    rewritten = rewrite_model(onnx_source, model_of(file), len(file.data), RewriteOptions(**options))
    result, changed = serialize_model(onnx_source, rewritten.model), onnx_source.changed(label)
    model = read_model(changed, result)
    outputs, unchecked = check_result(
        lambda: read_onnx(file, keep_parsed=True),
        parse_onnx(result, changed, model),
        label,
        check,
        TOLERANCE_REWRITTEN,
        rewritten.dtypes,
        (result, model),
        options.get("runtime"),
    )
    if path is not None:
        write_model(onnx_source, rewritten.model, result, path)
    return Rewriting(
        source=str(file),
        target=None if path is None else str(path),
        opsets=rewritten.opsets,
        nodes=tuple(NodeReport(*node) for node in rewritten.nodes),
        others=tuple(rewritten.others),
        notes=(*rewritten.notes, *unchecked),
        outputs=outputs,
    )


def _check_arguments(
    layout: int | None, dtype: str | None, split: bool, decompose: bool, runtime: str | None
) -> None:
    if layout not in (None, 0, 1) or isinstance(layout, bool):
        raise SpecError.of("layout", f"{layout!r}; must be 0 or 1")
    if dtype not in (None, "float16"):
        raise SpecError.of("dtype", f"{dtype!r}; must be 'float16'")
    if runtime not in (None, *RUNTIMES):
        raise SpecError.of("runtime", f"{runtime!r}; must be {' or '.join(map(repr, RUNTIMES))}")
    for name, is_given in {"layout": layout is not None, "split": flag("split", split)}.items():
        if flag("decompose", decompose) and is_given:
            raise SpecError.of(name, "has no effect with decompose, which removes all GRU nodes; remove it")
    if layout == 1 and runtime is not None:
        raise SpecError.of("layout", f"1; must be 0 for {runtime}, which does not support layout 1")
