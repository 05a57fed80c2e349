"""PyTorch, on a checkpoint of one `nn.GRU`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegru.core.errors import FormatError
from onegru.formats.opened import Kind, open_file
from onegru.peers.base import ModelUnderTest, Runtime

_WEIGHT = re.compile(r"(?P<prefix>.*\.)?weight_ih_l(?P<layer>[0-9]{1,3})(?P<reverse>_reverse)?")


@dataclass(frozen=True, slots=True)
class TorchCheckpoint(Runtime):
    """Takes X [T, B, I] and returns Y [T, B, D·H] and Y_h [L·D, B, H]."""

    name: str = "torch"

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Why it is not tried."""
        is_checkpoint = open_file("path", subject.path).detected is Kind.PYTORCH
        return None if is_checkpoint else "reads only PyTorch checkpoints"

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The layer's outputs."""
        import torch

        tensors = _only_gru(torch.load(subject.path, map_location="cpu", weights_only=True))
        first = tensors["weight_ih_l0"]
        module = torch.nn.GRU(
            first.shape[1],
            first.shape[0] // 3,
            num_layers=1 + max(int(match["layer"]) for match in map(_WEIGHT.fullmatch, tensors) if match),
            bias="bias_ih_l0" in tensors,
            bidirectional="weight_ih_l0_reverse" in tensors,
            dtype=first.dtype,
        )
        module.load_state_dict(tensors)
        with torch.no_grad():
            Y, Y_h = module(torch.from_numpy(inputs["X"]))
        return {"Y": Y.numpy(), "Y_h": Y_h.numpy()}


def _only_gru(state: Any) -> dict[str, Any]:
    """The tensors of the one `nn.GRU` that a state dict holds, by their names within it."""
    if not isinstance(state, Mapping):
        raise FormatError(f"holds a {type(state).__name__}; must be a state dict")
    prefixes = {match["prefix"] or "" for match in map(_WEIGHT.fullmatch, map(str, state)) if match}
    if len(prefixes) != 1:
        raise FormatError(f"holds the tensors of {len(prefixes)} nn.GRU; must be one")
    (prefix,) = prefixes
    own = re.compile(re.escape(prefix) + r"(weight|bias)_[ih]h_l[0-9]+(_reverse)?")
    return {str(name)[len(prefix) :]: state[name] for name in state if own.fullmatch(str(name))}
