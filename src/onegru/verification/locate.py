"""Locate the GRU node at fault when a runtime's results differ.

The runtime returns the inputs and outputs of each GRU node. onegru then computes each node again in float64
on these inputs, so a node with wrong inputs is not at fault. If the runtime cannot return these values, it
each node in a separate model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onegru.core.errors import OneGRUError
from onegru.formats.opened import Kind
from onegru.models.fusing import fusing_hint
from onegru.models.gru_node import GruNode
from onegru.models.inspect import report
from onegru.models.model import Model
from onegru.operators.schema import WEIGHTS
from onegru.peers.base import ModelUnderTest, Probe, Runtime
from onegru.peers.child import RunResult
from onegru.verification.diagnose import diagnose
from onegru.verification.gru_call import GruCall, call_of, first_wrong
from onegru.verification.results import Fault
from onegru.verification.trace import given_values, probed_values

#: Runs a subject in a runtime, in a separate process.
Run = Callable[[Runtime, ModelUnderTest, Mapping[str, Any]], RunResult]


def subject_of(model: Model, probed: bool = False) -> ModelUnderTest:
    """Return the model for runtimes; if `probed`, the values around its GRU nodes are outputs too."""
    file = model.graph.file
    assert file is not None, "verify takes models only from files"
    outputs = {info.name: (info.name, *info.aliases) for info in model.outputs}
    values = probed_values(model) if probed else ()
    if file.kind is Kind.OPENVINO:
        return ModelUnderTest(model.path, None, outputs, _probes(model, values))
    # This import is local, because an IR does not need onnx.
    from onegru.verification.probe import whole_model

    outputs |= {value: (value,) for value in values}
    return ModelUnderTest(model.path, whole_model(file, values), outputs, is_file=not probed)


def _probes(model: Model, values: Sequence[str]) -> tuple[Probe, ...]:
    """Return the location of the values in an IR: the GRU layers with these inputs or outputs."""
    probes: dict[str, Probe] = {}
    for gru in model.gru_nodes:
        node, operator = gru.step, gru.step.operator
        for side, ports, names in (
            ("output", operator.outputs, node.outputs),
            ("input", operator.inputs, node.inputs),
        ):
            for index, port in enumerate(ports):
                if port.name in names:
                    value = names[port.name]
                    probes.setdefault(value, Probe(value, node.name, side, index))
    return tuple(probes[value] for value in values)


def find_fault(
    model: Model,
    inputs: Mapping[str, Any],
    ours: Mapping[str, Any],
    runtime: Runtime,
    run: Run,
    differs: Callable[[Mapping[str, Any]], bool],
) -> tuple[Fault | None, str]:
    """Return the GRU node that a runtime computes incorrectly, and a note."""
    if not model.gru_nodes:
        return None, _words_without_nodes(model)
    try:
        outcome = run(runtime, subject_of(model, probed=True), inputs)
    except OneGRUError as error:
        outcome = RunResult("refuses", reason=str(error))
    why = f"when asked for the values around GRU nodes, it fails: {outcome.reason}"
    if outcome.status == "ran":
        fault = fault_in(model, {**given_values(model, inputs), **outcome.outputs}, runtime.name)
        if fault is not None:
            return fault, ""
        missing = [value for value in probed_values(model) if value not in outcome.outputs]
        if not missing and differs(outcome.outputs):
            return None, "every GRU node is right on its own inputs: the fault lies outside them"
        why = "the fault disappears when the values around GRU nodes are requested"
        if missing:
            why = f"when asked for the values around GRU nodes, it leaves out {missing[0]!r}"
    # An IR is not split into layers.
    file = model.graph.file
    is_ir = file is not None and file.kind is Kind.OPENVINO
    fault = None if is_ir else _fault_in_separate_model(model, ours, runtime, run)
    if fault is not None:
        return fault, "found by running the node separately"
    return None, f"the node at fault could not be determined: {why}"


def _words_without_nodes(model: Model) -> str:
    if hint := fusing_hint(model.graph.file or model.path):
        return f"it has no GRU node, and its other nodes are not examined; {hint}, which verify then checks"
    return "it has no GRU node, so the difference arises outside GRUs"


def fault_in(model: Model, values: Mapping[str, Any], runtime: str) -> Fault | None:
    """Return the first GRU node whose outputs in `values` do not follow from its inputs in `values`."""
    for index, gru in enumerate(model.gru_nodes):
        try:
            call = call_of(gru, values)
        except (OneGRUError, KeyError):  # wrong or missing inputs
            continue
        got = {name: values[value] for name, value in gru.step.outputs.items() if value in values}
        if (fault := _fault_of(model, index, gru, call, got, runtime)) is not None:
            return fault
    return None


def _fault_in_separate_model(
    model: Model, ours: Mapping[str, Any], runtime: Runtime, run: Run
) -> Fault | None:
    """Return the first GRU node that a runtime computes incorrectly in a separate model."""
    from onegru.verification.probe import one_node_model

    for index, gru in enumerate(model.gru_nodes):
        node = gru.step
        weights = [name for name in WEIGHTS if name in node.inputs] if gru.weights else []
        inputs = {name: ours[value] for name, value in node.inputs.items() if name not in weights}
        constants = dict(zip(weights, gru.weights, strict=True))
        data = one_node_model(model.path, node, node.operator.version, constants, inputs)
        subject = ModelUnderTest(model.path, data, {name: (name,) for name in node.outputs})
        outcome = run(runtime, subject, inputs)
        if outcome.status != "ran":
            continue
        fault = _fault_of(model, index, gru, call_of(gru, ours), outcome.outputs, runtime.name)
        if fault is not None:
            return fault
    return None


def _fault_of(
    model: Model, index: int, gru: GruNode, call: GruCall, got: Mapping[str, Any], runtime: str
) -> Fault | None:
    """Return the fault in the outputs of a node's call; None if there is no fault."""
    try:
        expected = call.run()
    except OneGRUError:  # the inputs do not match the node
        return None
    found = call.agreements(expected, got)
    for name, item in found.items():
        if item.agrees:
            continue
        known = tuple(
            verdict.reason
            for verdict in report(model)[index].others
            if verdict.runtime == runtime and verdict.effect == "miscomputes"
        )
        operator, diagnosis = gru.operator, diagnose(call, {key: got[key] for key in found})
        fault = Fault(gru.name, operator, name, reason=item.reason, diagnosis=diagnosis, known=known)
        if item.where is None:
            return fault
        where, at = first_wrong(call, name, expected[name], got[name])
        return replace(
            fault,
            where=where,
            step=at.get("T"),
            row=at.get("B"),
            direction=at.get("D"),
            unit=at.get("H"),
            expected=float(expected[name][where]),
            got=float(got[name][where]),
            max_abs=item.max_abs,
        )
    return None
