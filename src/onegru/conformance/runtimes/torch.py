"""Run the cases that PyTorch's `nn.GRU` can express."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegru.conformance.case import Case
from onegru.core.errors import SpecError, SpecWarning
from onegru.core.shapes import arrange
from onegru.core.tensors import as_tensor
from onegru.frameworks.pytorch import to_tensor, to_torch
from onegru.layers.gru import GRU
from onegru.operators.lowering import lower
from onegru.operators.schema import CANONICAL_AXES, WEIGHTS
from onegru.peers.base import ModelUnderTest, Runtime


@dataclass(frozen=True, slots=True)
class CaseSubject(ModelUnderTest):
    """Case for a runtime that reads no files; it is run on all of the case's inputs."""

    case: Case | None = None  # the case


@dataclass(frozen=True, slots=True)
class TorchGru(Runtime):
    """PyTorch's `nn.GRU`; see `onegru.peers.base.Runtime`."""

    name: str = "torch"

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Return the reason why this model is not tried; None if it is."""
        return None if isinstance(subject, CaseSubject) else "runs only the suite's cases"

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs."""
        import torch

        assert isinstance(subject, CaseSubject) and subject.case is not None, "refused before"
        case = subject.case
        if case.stored or case.rounded:
            raise SpecError("quantized tensors around the node; not supported by nn.GRU")
        with warnings.catch_warnings(action="ignore", category=SpecWarning):  # superfluous values
            lowered = lower(case.operator, case.attributes, *(inputs.get(name) for name in WEIGHTS))
        spec = lowered.spec
        module = to_torch(GRU.from_canonical(spec, lowered.weights, engine="reference"), batch_first=False)
        given = {
            port.role: to_tensor(arrange(inputs[port.name], port.axes, CANONICAL_AXES[port.role]))
            for port in lowered.ports
            if port.role in CANONICAL_AXES and port.name in inputs
        }
        X, lengths = given["X"], given.get("sequence_lens")
        if lengths is not None:
            X = torch.nn.utils.rnn.pack_padded_sequence(X, lengths.long(), enforce_sorted=False)
        with torch.no_grad():
            Y, Y_h = module(X, given.get("initial_h"))
        if lengths is not None:
            Y, _ = torch.nn.utils.rnn.pad_packed_sequence(Y, total_length=given["X"].shape[0])
        T, B = given["X"].shape[:2]
        Y = Y.reshape(T, B, spec.num_directions, spec.hidden_size).transpose(1, 2)
        canonical = {"Y": as_tensor("Y", Y), "Y_h": as_tensor("Y_h", Y_h)}
        return {
            port.name: arrange(canonical[port.role], CANONICAL_AXES[port.role], port.axes)
            for port in lowered.ports
            if port.role in canonical and port.name in case.outputs
        }
