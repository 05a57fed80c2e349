"""Replace a model's GRU modules by onegru's, and restore them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from onegru.core.errors import SpecError
from onegru.engines.select import engine_options
from onegru.layers.gru import GRU as Layer
from onegru.torch.arguments import form_of
from onegru.torch.cells import GRUCell, TorchGRUCell
from onegru.torch.freeze import packed_layers
from onegru.torch.interest import InterestGRU, is_dynamic_gru, replacement_class, why_not_replaced
from onegru.torch.modules import GRU, TorchGRU

_CLASSES: dict[type[nn.Module], type[nn.Module]] = {nn.GRU: TorchGRU, nn.GRUCell: TorchGRUCell}
_PACKED_TYPES = (torch.float32, torch.float64)
_OURS = (GRU, GRUCell, TorchGRU, TorchGRUCell)


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Result of `accelerate`: the replaced and the skipped modules.

    Attributes:
        replaced: the names of the modules that onegru now runs.
        skipped: the GRUs that were not replaced: their names, and the reasons.
    """

    replaced: tuple[str, ...]
    skipped: dict[str, str]


def accelerate(model: nn.Module) -> Acceleration:
    """Let onegru run and train every `nn.GRU` and `nn.GRUCell` of a model, and DeepCTR-Torch's `DynamicGRU`.

    onegru changes only the classes of the GRUs, in place. Modules, parameters, the state dict, hooks and
    optimizers stay unchanged. A `DynamicGRU` of DeepCTR-Torch is replaced if a trial run returns the same
    values.

    Args:
        model: the model, or a GRU module.

    Returns:
        the modules that were replaced, and those that were skipped, with reasons.

    Raises:
        SpecError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise SpecError.of("model", f"{type(model).__name__}; must be a torch.nn.Module")
    replaced: list[str] = []
    skipped: dict[str, str] = {}
    for name, module in [*model.named_modules()]:
        if is_dynamic_gru(module):
            if why := why_not_replaced(module):
                skipped[name] = why
            else:
                kind: Any = type(module)
                module.__class__ = replacement_class(kind)
                replaced.append(name)
        if not isinstance(module, nn.GRU | nn.GRUCell) or isinstance(module, GRU | GRUCell):
            continue
        if hasattr(module, "parametrizations"):
            skipped[name] = "its parameters are computed from others"
            continue
        wanted = _CLASSES.get(type(module))
        if wanted is None:
            skipped[name] = f"{type(module).__name__} is a custom class, which may compute something else"
            continue
        both = isinstance(module, nn.GRU) and module.bidirectional
        module._form = form_of("bidirectional" if both else "forward", True, None, None, None, None)
        module.__class__ = wanted
        replaced.append(name)
    return Acceleration(tuple(replaced), skipped)


def freeze(
    model: nn.Module, *, weight_storage: str | None = None, activation_storage: str | None = None
) -> Acceleration:
    """Pack the weights of a model's GRUs once, for inference.

    `freeze` first calls `accelerate`, and freezes onegru's own modules as they are. A frozen module uses its
    packed weights: later changes of its parameters have no effect. It rejects `load_state_dict`, changes of
    type or device, and calls with gradients. `restore` undoes `freeze`: onegru's modules use their parameters
    again, and replaced modules become PyTorch's again.

    Args:
        model: a model or a GRU module on the CPU, float32 or float64.
        weight_storage: the type in which W and R are stored, as in `onegru.GRU`: "bfloat16", "float16",
            "int8", "int8_g32", …. Default: None (the module's type).
        activation_storage: type to which activations are rounded, as in `onegru.GRU`.

    Returns:
        the frozen modules, and the skipped modules with reasons.

    Raises:
        SpecError: an argument is invalid, or a GRU cannot be packed. Nothing is frozen then.
    """
    engine_options("auto", weight_storage, activation_storage)  # checked even if there is nothing to pack
    report = accelerate(model)
    skipped, packed = dict(report.skipped), dict[str, list[Layer]]()
    try:
        for name, module in model.named_modules():
            if isinstance(module, InterestGRU):
                skipped[name] = "it runs packed scores, and packs its weights in each call"
            elif isinstance(module, GRU | GRUCell):
                if why := _why_not_packed(module):
                    skipped[name] = why
                    continue
                layers = packed_layers(module)
                if weight_storage is not None or activation_storage is not None:
                    layers = [layer.with_storage(weight_storage, activation_storage) for layer in layers]
                packed[name] = layers
    except BaseException:
        for name in report.replaced:
            restore(model.get_submodule(name))
        raise
    for name in report.replaced:
        model.get_submodule(name).replaced_by_freeze = True
    for name, layers in packed.items():
        module = model.get_submodule(name)
        module.frozen_layers, module.frozen_parameters = layers, module.parameter_list()
    return Acceleration(tuple(packed), skipped)


def _why_not_packed(module: GRU | GRUCell) -> str:
    if hasattr(module, "parametrizations"):
        return "its parameters are computed from others"
    parameters = {id(parameter) for parameter in module.parameters()}
    weights = (tensor for number in range(len(module.specs())) for tensor in module.weights_of(number))
    if any(tensor is not None and id(tensor) not in parameters for tensor in weights):
        return "some of its weights are not parameters: the program may compute them before each call"
    if any(p.device.type != "cpu" or p.dtype not in _PACKED_TYPES for p in module.parameters()):
        return "its parameters are not float32 or float64, or not on the CPU"
    return ""


def _unfreeze(model: nn.Module) -> tuple[str, ...]:
    """Undo `freeze`, and return the names of the modules that were frozen."""
    names = []
    for name, module in [*model.named_modules()]:
        if getattr(module, "frozen_layers", None) is not None:
            del module.frozen_layers, module.frozen_parameters
            names.append(name)
        if module.__dict__.pop("replaced_by_freeze", False):
            _restore_class(module)
    return tuple(names)


def _restore_class(module: Any) -> None:
    """Turn a module into PyTorch's or DeepCTR-Torch's again."""
    if isinstance(module, InterestGRU):
        module.__class__ = type(module).__bases__[1]
    else:
        module.__class__ = nn.GRU if isinstance(module, GRU) else nn.GRUCell
        del module._form


def restore(model: nn.Module) -> tuple[str, ...]:
    """Undo `freeze`, or turn onegru's GRUs of a model into PyTorch's again; return their names.

    Modules with attention, and subclasses of onegru's modules, stay unchanged.

    Raises:
        SpecError: `model` is not a module, or a GRU computes something that PyTorch's cannot. In that
            case, nothing is changed.
    """
    if not isinstance(model, nn.Module):
        raise SpecError.of("model", f"{type(model).__name__}; must be a torch.nn.Module")
    if names := _unfreeze(model):
        return names
    found = [(name, module) for name, module in model.named_modules() if type(module) in _OURS]
    for name, module in model.named_modules():
        if isinstance(module, GRU | GRUCell) and hasattr(module, "parametrizations"):
            raise SpecError.of(
                "model", f"{name!r} has parameters that are computed from others; remove the parametrizations"
            )
    for name, module in found:
        if not module.form.matches_nn_gru:
            kind = type(module).__name__.removeprefix("Torch")
            raise SpecError.of(
                "model", f"{name!r} has options that torch.nn.{kind} lacks; must have its options only"
            )
    found += [item for item in model.named_modules() if isinstance(item[1], InterestGRU)]
    for _, module in found:
        _restore_class(module)
    return tuple(name for name, _ in found)
