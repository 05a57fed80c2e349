"""Common code of the modules: casts and messages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig, form_of


def cast(tensor: Any, like: Tensor) -> Any:
    """Return a tensor in the type of the weights under autocast, as PyTorch's GRUs do."""
    kind = like.device.type
    if tensor is None or tensor.dtype == like.dtype or kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensor
    return tensor.to(like.dtype)


def type_of(parameter: Tensor) -> str:
    """Return a parameter's type as text, and the remedy."""
    return f"{parameter.dtype}, like the parameters: convert it, or the module by `module.to(dtype)`"


def promoted(X: Tensor, hx: Tensor | None) -> torch.dtype:
    """Return the type of the results: under autocast the type of the inputs, as in PyTorch's GRUs."""
    kind, state = X.device.type, X if hx is None else hx
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return torch.promote_types(X.dtype, state.dtype)
    return torch.promote_types(torch.get_autocast_dtype(kind), state.dtype)


class OwnSignature:
    """Descriptor for the signature of a class: that of `__init__`, not of its generic `__new__`."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_axes(resets: Tensor | None, count: int) -> None:
    """Raise SpecError for resets of another rank."""
    if resets is not None and resets.dim() != count:
        raise SpecError.of(
            "resets", f"shape {list(resets.shape)}; must have {count} dimensions, as in the input"
        )


_FURTHER = ("clip", "activations", "activation_alpha", "activation_beta")


def is_pytorchs(options: Mapping[str, Any]) -> bool:
    """Whether PyTorch's modules support these additional options."""
    names = options.get("activations")
    direction = "bidirectional" if names is not None and len(names) == 4 else "forward"
    given: dict[str, Any] = {name: options.get(name) for name in _FURTHER}
    form = form_of(direction, options.get("linear_before_reset", True), **given)
    return form.matches_nn_gru and not options.get("resets_to_initial", False)


_OWN = "onegru.torch."


def name_of(module: nn.Module) -> str:
    """Return the name of a module in a summary: its library, and PyTorch's name."""
    name = type(module).__name__.removeprefix("Torch")
    return f"onegru.{name}" if type(module).__module__.startswith(_OWN) else name


def words_of(form: TorchGruConfig) -> str:
    """Return the differences from PyTorch's variant, for a summary."""
    found = "" if form.linear_before_reset else ", linear_before_reset=False"
    found += f", clip={form.clip}" if form.clip else ""
    return found + (
        "" if form.activations[:2] == ("Sigmoid", "Tanh") else f", activations={form.activations}"
    )
