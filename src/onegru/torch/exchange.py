"""A finished model's GRUs exchanged for onegru's, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from onegru.core.errors import SpecError
from onegru.torch.arguments import form_of
from onegru.torch.cells import GRUCell, TorchGRUCell
from onegru.torch.interest import InterestGRU, exchanged_class, is_dynamic_gru, why_not_exchanged
from onegru.torch.modules import GRU, TorchGRU

_CLASSES: dict[type[nn.Module], type[nn.Module]] = {nn.GRU: TorchGRU, nn.GRUCell: TorchGRUCell}
_OURS = (GRU, GRUCell, TorchGRU, TorchGRUCell)


@dataclass(frozen=True, slots=True)
class Acceleration:
    """What `accelerate` did.

    Attributes:
        exchanged: the names of the modules that onegru now runs.
        left: those that are GRUs and were left, by name, and why.
    """

    exchanged: tuple[str, ...]
    left: dict[str, str]


def accelerate(model: nn.Module) -> Acceleration:
    """Let onegru run and train every `nn.GRU` and `nn.GRUCell` of a model, and DeepCTR-Torch's `DynamicGRU`.

    In place: modules, parameters, the state dict, hooks and optimizers stay as they are; only the classes of
    the GRUs change. DeepCTR-Torch's `DynamicGRU` is exchanged if it gives the same numbers in a try.

    Args:
        model: the model, or a GRU itself.

    Returns:
        what was exchanged, and what was left and why.

    Raises:
        SpecError: it is no module.
    """
    if not isinstance(model, nn.Module):
        raise SpecError.of("model", f"{type(model).__name__}; must be a torch.nn.Module")
    exchanged: list[str] = []
    left: dict[str, str] = {}
    for name, module in [*model.named_modules()]:
        if is_dynamic_gru(module):
            if why := why_not_exchanged(module):
                left[name] = why
            else:
                kind: Any = type(module)
                module.__class__ = exchanged_class(kind)
                exchanged.append(name)
        if not isinstance(module, nn.GRU | nn.GRUCell) or isinstance(module, GRU | GRUCell):
            continue
        if hasattr(module, "parametrizations"):
            left[name] = "its parameters are computed from others"
            continue
        wanted = _CLASSES.get(type(module))
        if wanted is None:
            left[name] = f"{type(module).__name__} is a class of its own, which may compute something else"
            continue
        both = isinstance(module, nn.GRU) and module.bidirectional
        module._form = form_of("bidirectional" if both else "forward", True, None, None, None, None)
        module.__class__ = wanted
        exchanged.append(name)
    return Acceleration(tuple(exchanged), left)


def restore(model: nn.Module) -> tuple[str, ...]:
    """Make onegru's GRUs of a model PyTorch's again; returns their names.

    Raises:
        SpecError: it is no module, or one of them computes what PyTorch's cannot; nothing is changed then.
    """
    if not isinstance(model, nn.Module):
        raise SpecError.of("model", f"{type(model).__name__}; must be a torch.nn.Module")
    found = [(name, module) for name, module in model.named_modules() if type(module) in _OURS]
    for name, module in model.named_modules():
        if isinstance(module, GRU | GRUCell) and hasattr(module, "parametrizations"):
            raise SpecError.of(
                "model", f"{name!r} has parameters that are computed from others; remove the parametrizations"
            )
    for name, module in found:
        if not module._form.matches_nn_gru:
            kind = type(module).__name__.removeprefix("Torch")
            raise SpecError.of(
                "model", f"{name!r} computes what torch.nn.{kind} cannot; must be one that it can"
            )
    for _, module in found:
        module.__class__ = nn.GRU if isinstance(module, GRU) else nn.GRUCell
        del module._form
    interest = [item for item in model.named_modules() if isinstance(item[1], InterestGRU)]
    for _, module in interest:
        module.__class__ = type(module).__bases__[1]
    return tuple(name for name, _ in [*found, *interest])
