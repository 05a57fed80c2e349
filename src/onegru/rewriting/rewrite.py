"""Rewriting the GRU nodes of a whole ONNX model, checked on random inputs before anything is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onegru.core.arguments import flag
from onegru.core.compare import TOLERANCE_REWRITTEN
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.core.wording import count
from onegru.drawing.card import Card, CardReport
from onegru.formats.opened import Kind, open_model
from onegru.rewriting.check import Check, OutputReport, as_target, output_facts, wanted_check

if TYPE_CHECKING:
    from onegru.formats.opened import Opened

#: The runtimes whose faults a model can be rewritten for.
RUNTIMES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Changes of one GRU node.

    Attributes:
        name: its name; that of an output where it has none.
        done: descriptions of what was done to it; empty if it stayed as it was.
        reasons: what the target runtime is known to do to the node as it was.
    """

    name: str
    done: tuple[str, ...]
    reasons: tuple[str, ...] = ()


NodeReport.__module__ = "onegru.reports"


@dataclass(frozen=True, slots=True)
class Rewriting(CardReport):
    """Result of `rewrite` and `make_streaming`.

    Attributes:
        source: the file that was read.
        target: the file that was written; None where none was asked for.
        opsets: the source's opset and the target's; empty for an IR.
        nodes: its GRU nodes, in the order of the file.
        others: descriptions of the other nodes that the new opset changed.
        notes: what else there is to know.
        outputs: the results of the check; empty if it was not asked for.
    """

    source: str
    target: str | None
    opsets: tuple[int, ...]
    nodes: tuple[NodeReport, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]
    outputs: tuple[OutputReport, ...]

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
        return f"Rewriting · {self.source}", facts, ("GRU", "what was done"), rows


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

    The nodes' hidden_size, direction and activation parameters are written out, as runtimes differ in their
    defaults. With only `runtime`, a node that this runtime runs correctly stays as it was. GRUs that are
    decomposed into other operators are found by `onegru.fuse`, weights get fewer bits by `onegru.quantize`,
    and a model of whole sequences is made to stream by `onegru.make_streaming`.

    Args:
        source: an ONNX model.
        target: the file to write, which may be the source; it is replaced only once the result has passed
            the check. None to write nothing.
        opset: the version of ONNX's operators that the target uses, 1 to onnx's newest; other nodes are
            converted where their operators changed in between. The source's by default.
        layout: 0 or 1, for the GRU nodes, with Transposes around those that had the other.
        dtype: "float16" for GRU nodes in float16, with Casts around them. The model's inputs and outputs
            keep their types.
        split: whether a bidirectional node becomes a forward and a reverse one.
        decompose: whether GRU and AUGRU nodes are expressed with other operators, from opset 11 on: a product
            over all steps, and a Scan; there must then be at least one step. Up to 8 steps, where the file
            fixes their number, are written one after the other, without Scan and Shape.
        runtime: "onnxruntime" or "openvino": make the least change to each node that the runtime is known
            to refuse or to miscompute, and check the target in it. AUGRU nodes get their function for
            "onnxruntime", and are decomposed for "openvino".
        check: whether to compare the target with the source on random inputs, or a `Check` that says on which
            inputs and how closely. By default differences up to 1e-6 are allowed for float32, 1e-10 for
            float64, 2e-3 for float16 and 2e-2 for bfloat16, of the output or of a GRU node; ten times that in
            another runtime. The source need not run with False.

    Returns:
        what was done, and how far the outputs lie apart.

    Raises:
        SpecError: an argument or a GRU node is invalid, or the target's opset cannot express a node.
        FormatError: the file is broken or holds what cannot be rewritten, or the target differs from the
            source, or the comparison would be inconclusive, as outputs are not finite or do not change;
            nothing
            is written then.
        MissingExtraError: a package that this needs is not installed.
        OSError: a file cannot be read or written.
    """
    _check_arguments(layout, dtype, split, decompose, runtime)
    changes: dict[str, Any] = {
        "opset": opset,
        "layout": layout,
        "float16": dtype == "float16",
        "split": split,
        "decompose": decompose,
        "runtime": runtime,
    }
    return rewrite_file(open_model("source", source), target, wanted_check(check), **changes)


def rewrite_file(
    file: Opened, target: str | os.PathLike[str] | None, check: Check | None, **changes: Any
) -> Rewriting:
    """Make changes to the GRU nodes of an ONNX model, as fields of `onegru.rewriting.plan.Changes`."""
    path, named = as_target(file, target, ".onnx")
    if file.kind is not Kind.ONNX:
        raise FormatError(f"{file}: {file.kind.words}; only an ONNX model is rewritten")
    with needs_extra("onnx", "onnx", str(file)):
        from onegru.formats.onnx.parse import parse_onnx, read_onnx
        from onegru.formats.onnx.validate import Source, model_of
        from onegru.rewriting.compare import check_result
        from onegru.rewriting.external_data import write_model
        from onegru.rewriting.model_pass import rewrite_model
        from onegru.rewriting.plan import Changes, check_opset
    if changes.get("opset") is not None:
        check_opset(changes["opset"])
    place = Source.of(file)
    rewritten = rewrite_model(place, model_of(file), len(file.data), Changes(**changes))
    result = rewritten.serialized(place)
    outputs, unchecked = check_result(
        lambda: read_onnx(file, again=True),
        parse_onnx(result, place.changed(named)),
        named,
        check,
        TOLERANCE_REWRITTEN,
        rewritten.dtypes,
        result,
        changes.get("runtime"),
    )
    if path is not None:
        write_model(place, rewritten.model, result, path)
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
        raise SpecError.of("layout", f"1; must be 0 for {runtime}, which does not run it")
