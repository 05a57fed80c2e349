"""Choose the changes of each GRU node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx

from onegru.core.activations import DEFAULT_ACTIVATIONS
from onegru.core.errors import SpecError
from onegru.rewriting.nodes.changes import CHANGES, RewriteOptions
from onegru.rewriting.nodes.node_config import GruNodeConfig, attributes_of, facts_of, operator_at
from onegru.rewriting.nodes.scope import Scope
from onegru.runtimes.known_issues import verdicts

#: Names of rows of `CHANGES`, or "explicit", which writes defaults as attributes where runtimes differ.
ChangeNames = frozenset[str]


def plan_node(
    scope: Scope, config: GruNodeConfig, options: RewriteOptions, old_opset: int
) -> tuple[ChangeNames, tuple[str, ...]]:
    """Return the changes that a node needs, and the target runtime's known issues with the source."""
    is_augru = config.attention is not None
    wanted = ChangeNames({"decompose"}) if is_augru else _requested(scope, config, options, old_opset)
    if options.runtime is None:
        return wanted, ()
    facts = replace(facts_of(scope, config, config.source_attributes), version=operator_at(old_opset).version)
    reasons = tuple(item.reason for item in verdicts(facts) if item.runtime == options.runtime)
    if options.runtime == "openvino" and not is_augru:
        reasons += _openvino_issues(scope, config)
    if not reasons and not wanted:
        return wanted, ()
    if config.dtype == "float64" and options.runtime == "openvino" and "float16" not in wanted:
        reason = "computes float64 in float32 for all operators"
        raise scope.source.error(f"{config.label}: openvino {reason}; cannot be worked around")
    for more in () if is_augru else _workarounds(config, options):
        if not _has_issues(scope, config, wanted | more, options):
            return wanted | more, reasons
    return wanted | {"explicit", "decompose"}, reasons


def _openvino_issues(scope: Scope, config: GruNodeConfig) -> tuple[str, ...]:
    """Return OpenVINO 2026.4's issues that depend on neighboring nodes, which the table does not cover."""
    found = []
    grus = scope.grus_by_input
    if grus and grus[scope.flow.resolve(config.inputs["X"])] > 1:
        found.append("miscomputes a GRU that shares its X with another GRU")
    default = all(pair == DEFAULT_ACTIVATIONS for pair in config.activations)
    is_loop = config.clip is not None or not default
    if is_loop and len(config.activations) == 1 and scope.consumers.get(config.outputs.get("Y_h", "")):
        found.append("passes Y_h on in a wrong shape for a batch of 1")
    return tuple(found)


def _requested(scope: Scope, config: GruNodeConfig, options: RewriteOptions, old_opset: int) -> ChangeNames:
    """Return the requested changes that have an effect on this node."""
    found = {name for name, change in CHANGES.items() if change.is_requested(scope, config, options)}
    if found or options.runtime is None or operator_at(old_opset).version != operator_at(scope.opset).version:
        found.add("explicit")
    return frozenset(found)


def _workarounds(config: GruNodeConfig, options: RewriteOptions) -> Iterator[ChangeNames]:
    """Yield changes that may give correct results without other operators, the smallest first."""
    may_change_layout = config.layout and options.layout is None
    layouts = ((), ("layout",)) if may_change_layout else ((),)
    may_split = config.direction == "bidirectional" and options.runtime != "openvino"
    for split in ((), ("split",)) if may_split else ((),):
        yield from (ChangeNames(("explicit", *split, *layout)) for layout in layouts)


def _has_issues(scope: Scope, config: GruNodeConfig, plan: ChangeNames, options: RewriteOptions) -> bool:
    """Whether the target runtime is known to fail on a node after these changes."""
    if "decompose" in plan:
        return False
    if options.runtime == "openvino" and ("split" in plan or _openvino_issues(scope, config)):
        return True  # the two nodes would share X
    configs = [config]
    for change in (change for name, change in CHANGES.items() if name in plan):
        configs = [part for item in configs for part in change.preview(item)]
    facts = [facts_of(scope, item, attributes_of(item, scope.opset)) for item in configs]
    return any(item.runtime == options.runtime for fact in facts for item in verdicts(fact))


def check_target_opset(opset: int) -> None:
    """Raise SpecError unless onnx knows an opset."""
    newest = onnx.defs.onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not 1 <= opset <= newest:
        raise SpecError.of("opset", f"{opset!r}; must be in 1…{newest}, the newest opset of onnx")


def attribute_changes(config: GruNodeConfig, opset: int) -> list[str]:
    """Describe the attributes that the node gains, loses or changes."""
    now = attributes_of(config, opset)
    words = []
    for name in sorted({*now, *config.source_attributes} - {"layout"}):
        had, has = config.source_attributes.get(name), now.get(name)
        if has is None:
            words.append(f"{name} removed")
        elif had is None:
            words.append(f"{name} = {_words(has)} added")
        elif _words(had).lower() != _words(has).lower():  # the case of a function's name has no meaning
            words.append(f"{name} = {_words(had)} became {_words(has)}")
    return words


def _words(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_words, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
