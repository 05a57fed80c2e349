"""Convert GRUs from and to PyTorch modules and state dicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from onegru.core.arguments import flag, shown
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, needs_extra
from onegru.core.spec import Direction
from onegru.core.tensors import is_mapping
from onegru.frameworks.layouts import PYTORCH
from onegru.frameworks.weights import read, write
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.layers.torch_form import KEY, read_torch_form

# A tensor of a recurrent module of PyTorch, or of a cell, whose names have no layer number.
_NAME = re.compile(
    r"(?P<prefix>(?:.*\.)?)(?P<tensor>weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)"
    r"(?:_l(?P<layer>0|[1-9][0-9]{0,3})(?P<reverse>_reverse)?)?",
    re.DOTALL,
)

# The parts from which weight normalization and pruning compute a tensor.
_PART = re.compile(
    r"(?P<prefix>(?:.*?\.)??)(?:parametrizations\.)?(?P<whole>(?:weight|bias)_[ih]h(?:_l[0-9]+(?:_reverse)?)?)"
    r"(?:_g|_v|_orig|_mask|\.original[0-9]*)",
    re.DOTALL,
)

# Packed weights of PyTorch's dynamic quantization, which do not show whether the module is a GRU.
_PACKED = re.compile(
    r"(?P<prefix>(?:.*\.)?)(?:_all_weight_values\.[0-9]+\.param|_packed_weight_[ih]h)", re.DOTALL
)
_DYNAMIC = "torch.ao.nn.quantized.dynamic.modules.rnn"

# Types of values in a state dict that are not tensors.
_PLAIN = (str, bytes, bool, int, float, complex, NoneType, list, tuple, Mapping)

# Other modules whose tensors have the same names, by the number of gates.
_OTHERS = {1: "a plain RNN", 4: "an LSTM"}


@dataclass(slots=True)
class Group:
    """Tensors of one recurrent module."""

    prefix: str  # the prefix of their names, without its last dot
    # by (layer, whether it is the reverse direction), then by name; the layer of a cell is None
    tensors: dict[tuple[int | None, bool], dict[str, object]] = field(default_factory=dict)
    # a part, by the name of the tensor computed from it
    parts: dict[str, str] = field(default_factory=dict)
    is_packed: bool = False  # whether there are PyTorch's packed weights instead of tensors
    # the entry for the options of a module of `onegru.torch`; None for PyTorch's own
    form: object = None
    other: str = ""  # the first other tensor with the prefix, which a PyTorch GRU does not have; "" for none
    # the name of an entry for options without tensors, perhaps of this module; "" for none
    stray: str = ""

    def check_complete(self, where: str) -> None:
        """Raise SpecError for the first missing tensor."""
        both = any(reverse for _, reverse in self.tensors)
        biased = any({"bias_ih", "bias_hh"} & tensors.keys() for tensors in self.tensors.values())
        for layer in sorted({-1 if layer is None else layer for layer, _ in self.tensors}):
            for reverse in (False, True)[: 1 + both]:
                found = self.tensors.get((None if layer < 0 else layer, reverse), {})
                end = "" if layer < 0 else f"_l{layer}{'_reverse' if reverse else ''}"
                for tensor in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if biased else ())):
                    if tensor in found:
                        continue
                    name = tensor + end
                    if part := self.parts.get(name):
                        reason = f"{part!r} is a part of it: undo weight normalization or pruning first"
                    elif tensor.startswith("bias") and {"weight_ih", "weight_hh"} <= found.keys():
                        reason = "a GRU must have all biases or none"
                    else:
                        reason = f"a {'bidirectional ' if both else ''}PyTorch GRU must have it"
                    raise SpecError(f"{where}{name}: missing; {reason}")

    @property
    def is_cell(self) -> bool:
        """Whether the module is a cell, which has no layers."""
        return all(layer is None for layer, _ in self.tensors)

    @property
    def refusal(self) -> str:
        """The reason why the module cannot be read as a GRU; "" if it can."""
        if self.is_packed:
            return (
                "weights packed by PyTorch's dynamic quantization, which only PyTorch can unpack: pass the "
                "module itself to onegru.from_torch"
            )
        if len({layer is None for layer, _ in self.tensors}) > 1:
            return "tensors of both a cell and layers; must be one of them"
        for (layer, _), tensors in self.tensors.items():
            name = "weight_hh" if layer is None else f"weight_hh_l{layer}"
            if "weight_hr" in tensors:
                return "weight_hr, a projection, which only an LSTM has"
            shape = tuple(getattr(tensors.get("weight_hh"), "shape", ()))
            if len(shape) == 2 and shape[1] > 0 and shape[0] != 3 * shape[1] and shape[0] % shape[1] == 0:
                count = shape[0] // shape[1]
                return (
                    f"{name} with {count}*hidden_size rows, as {_OTHERS.get(count, 'no GRU')} has; a GRU has "
                    "3*hidden_size"
                )
        if self.other:
            return (
                f"{self.other!r} next to the tensors of a GRU, which no PyTorch GRU has; remove the "
                "tensor from the mapping if it does not change the result"
            )
        if self.stray:
            return (
                f"no {KEY}, but {self.stray!r} belongs to a module whose tensors have other names, so their "
                "function is unknown"
            )
        if self.form is not None:
            try:
                read_torch_form(self.form)
            except SpecError as error:
                return f"{KEY}, {error}"
        return ""


#: Python modules with the classes of onegru.torch.
_OURS = ("onegru.torch.modules", "onegru.torch.cells")


def from_torch(
    source: object, *, prefix: str | None = None, batch_first: bool | None = None, engine: str = "auto"
) -> GRU | Stack:
    """Create a layer or stack from a PyTorch module or state dict.

    Args:
        source: one of:

            - an `nn.GRU` or `nn.GRUCell`, or their equivalents in `onegru.torch`;
            - a GRU or GRUCell of PyTorch's dynamic quantization (`torch.ao.nn.quantized.dynamic`);
            - a module that contains one of these;
            - a state dict: a mapping from names to tensors or arrays. The names are `weight_ih_l0`,
              `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, `weight_ih_l0_reverse`, …, or for a cell
              `weight_ih`, …. It can contain the tensors of other modules.
        prefix: the name of the GRU in the model, such as "encoder.gru" for "encoder.gru.weight_ih_l0"; ""
            if the names have no prefix. Default: None (the only GRU).
        batch_first: whether calls of the layer expect the batch first (`layout=1`). Set it for a state dict
            only: a module specifies it. Default: None (False for a state dict).
        engine: the engine that runs the layer, as in `onegru.GRU`.

    Returns:
        a `GRU` for a cell or for one layer, in one or both directions; a `Stack` for several layers. They
        have the tensors' type. A module with batch_first becomes a layer with layout 1, whose states are also
        batch first: [B, D, H], in contrast to `nn.GRU`'s [D, B, H]. dropout has no effect. A dynamically
        quantized module becomes a float32 layer with its stored weights: q·scale, or values rounded to
        float16. An int8 module also quantizes x and h in each step; the layer does not.

    Raises:
        SpecError: no GRU is found; there are several and `prefix` names none of them (the message lists
            them); tensors are missing or do not fit; or a state dict has other tensors under the GRU's name.
    """
    if batch_first is not None:
        batch_first = flag("batch_first", batch_first)
    state_dict, layouts = (source, {}) if is_mapping(source) else _state_dict(source, prefix)
    groups = find_groups(state_dict)
    for name in layouts.keys() & groups.keys():  # the module is a GRU, so other tensors have no effect
        groups[name].other = ""
    if prefix is not None:
        if not isinstance(prefix, str):
            raise SpecError.of("prefix", f"{shown(prefix)}; must be text, or None")
        if prefix.removesuffix(".") not in groups:
            raise SpecError.of("prefix", f"no recurrent module at {prefix!r}; available: {_list(groups)}")
        group = groups[prefix.removesuffix(".")]
    else:
        possible = {name: group for name, group in groups.items() if not group.refusal}
        if len(possible) > 1:
            raise SpecError.of(
                "prefix", f"missing; must name one of the {len(possible)} GRUs: {_list(possible)}"
            )
        if not possible:
            found = "".join(f"; {name!r} has {group.refusal}" for name, group in groups.items())
            raise SpecError.of("source", f"no tensors of a GRU (weight_ih_l0, weight_hh_l0, …){found}")
        (group,) = possible.values()
    return read_group(group, engine=engine, layout=_layout(group, layouts.get(group.prefix), batch_first))


def _layout(group: Group, module_batch_first: bool | None, batch_first: bool | None) -> int:
    """Return the layout of calls, from the module or else from the caller's argument."""
    specified = False if group.is_cell else module_batch_first
    if specified is None:
        return int(batch_first or False)
    if batch_first not in (None, specified):
        whose = "a cell takes one step" if group.is_cell else "the module specifies it"
        raise SpecError.of("batch_first", f"{batch_first}; must be {specified} or None, because {whose}")
    return int(specified)


def _list(groups: Mapping[str, Group]) -> str:
    names = [repr(name) for name in groups]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(names[:20]) or "none") + more


def _state_dict(module: Any, prefix: str | None) -> tuple[Mapping[str, Any], Mapping[str, bool | None]]:
    """Return a module's effective tensors by name, and whether each GRU is batch first."""
    if isinstance(module, type) or not all(
        callable(getattr(module, name, None)) for name in ("state_dict", "named_modules")
    ):
        raise SpecError.of(
            "source", f"{type(module).__name__}; must be a PyTorch module or a mapping of tensors"
        )
    with needs_extra("torch", "torch", "a PyTorch module"):
        import torch

    tensors = {name: value for name, value in module.state_dict().items() if packed_in(name) is None}
    layouts: dict[str, bool | None] = {}
    wanted = prefix.removesuffix(".") if isinstance(prefix, str) else None
    for name, child in module.named_modules():
        kinds = (torch.nn.GRU, torch.nn.GRUCell)
        bases = type(child).__mro__
        own: Any = next((base for base in bases if base.__module__ in _OURS), None)
        dynamic: Any = next((base for base in bases if _is_dynamic(base)), None)
        kind = own or dynamic or next((kind for kind in kinds if isinstance(child, kind)), None)
        if kind is None:
            continue
        if type(child).forward is not kind.forward and wanted in (None, name):
            raise SpecError.of(
                "source",
                f"{type(child).__name__}, a custom class; must be {kind.__name__} itself, or a state dict "
                "if its tensors mean the same",
            )
        if wanted in (None, name) and _is_changed(child):
            raise SpecError.of(
                "source",
                f"{name or type(child).__name__!r} has hooks or its own forward, such as the old "
                "weight_norm's; must have neither (torch.nn.utils.parametrizations are supported)",
            )
        dot = f"{name}." if name else ""
        # A state dict contains only the parts of a parametrized weight; the weight is an attribute.
        found = (
            {tensor: getattr(child, tensor) for tensor in _names_in(child)}
            if dynamic is None
            else _unpacked(child)
        )
        tensors |= {f"{dot}{tensor}": numbers for tensor, numbers in found.items()}
        if own is None:  # a class without onegru's forward, so the entry does not apply
            tensors.pop(f"{dot}{KEY}", None)
        layouts[name] = getattr(child, "batch_first", None)
    return tensors, layouts


def _is_dynamic(kind: type) -> bool:
    """Whether a class is a GRU of PyTorch's dynamic quantization, without the slow import of that package."""
    return kind.__module__ == _DYNAMIC and kind.__name__ in ("GRU", "GRUCell")


def _unpacked(module: Any) -> dict[str, Any]:
    """Return a dynamically quantized module's float32 tensors by the names of a float module."""
    # Packed biases are effective regardless of the module's bias attribute.
    packed = {**module.get_weight(), **module.get_bias()}
    return {
        name: tensor.dequantize() if tensor.is_quantized else tensor
        for name, tensor in packed.items()
        if tensor is not None
    }


def _is_changed(module: Any) -> bool:
    """Whether hooks or an instance's forward can change a module's function or weights."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, name, None) for name in hooks)


def _names_in(module: Any) -> list[str]:
    """Return the tensor names of a GRU or GRUCell."""
    tensors = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
    suffixes = [""]
    if hasattr(module, "num_layers"):
        ways = ("", "_reverse")[: 1 + module.bidirectional]
        suffixes = [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]
    return [tensor + suffix for suffix in suffixes for tensor in tensors]


def is_recurrent(name: str) -> bool:
    """Whether a tensor with this name belongs to a recurrent module."""
    return module_of(name) is not None


def module_of(name: str) -> str | None:
    """Return the name of the recurrent module of a tensor; None if the tensor belongs to none."""
    match = _NAME.fullmatch(name)
    return None if match is None else match["prefix"].removesuffix(".")


def packed_in(name: str) -> str | None:
    """Return the name of the dynamically quantized module of packed weights; None for other names."""
    match = _PACKED.fullmatch(name)
    return None if match is None else match["prefix"].removesuffix(".")


def find_groups(state_dict: Mapping[str, object]) -> dict[str, Group]:
    """Find the recurrent modules in a state dict, by the prefix of their tensors."""
    groups: dict[str, Group] = {}
    parts: dict[str, dict[str, str]] = {}
    for name, tensor in state_dict.items():
        if not isinstance(name, str):
            continue
        if match := _NAME.fullmatch(name):
            prefix = match["prefix"].removesuffix(".")
            key = (None if match["layer"] is None else int(match["layer"]), match["reverse"] is not None)
            group = groups.setdefault(prefix, Group(prefix))
            group.tensors.setdefault(key, {})[match["tensor"]] = tensor
        elif match := _PART.fullmatch(name):
            parts.setdefault(match["prefix"].removesuffix("."), {})[match["whole"]] = name
        elif (packed := packed_in(name)) is not None:
            groups.setdefault(packed, Group(packed, is_packed=True))
    for prefix, group in groups.items():
        group.parts = parts.get(prefix, {})
        group.form = state_dict.get(form_name(prefix))
    known = {form_name(prefix) for prefix in (*groups, *parts)}
    stray = next(
        (name for name, entry in state_dict.items() if name not in known and _is_form(name, entry)), ""
    )
    for group in groups.values():
        group.stray = stray if group.form is None and not group.is_packed else ""
    unmixed = dict(groups)  # groups without other tensors so far
    lengths = Counter(map(len, unmixed))
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or isinstance(tensor, _PLAIN):
            continue
        for length in [length for length in lengths if not length or name[length : length + 1] == "."]:
            owner = unmixed.get(name[:length])
            if owner is not None and not _is_own(name, owner.prefix, state_dict):
                owner.other = name
                del unmixed[owner.prefix]
                lengths -= Counter([length])
    return groups


def _is_own(name: str, prefix: str, state_dict: Mapping[str, object]) -> bool:
    """Whether an entry is part of the recurrent module with this prefix."""
    if (packed := packed_in(name)) is not None or is_recurrent(name):
        return prefix in (packed, module_of(name))
    if part := _PART.fullmatch(name):
        whole = form_name(prefix).removesuffix(KEY) + part["whole"]
        return part["prefix"].removesuffix(".") == prefix and whole not in state_dict
    return name == form_name(prefix)


def may_be_form(name: object) -> bool:
    """Whether an entry with this name can specify the function of a module of `onegru.torch`."""
    return isinstance(name, str) and name.rpartition(".")[2] == KEY


def _is_form(name: object, entry: object) -> bool:
    if not may_be_form(name) or isinstance(entry, _PLAIN):
        return False
    try:
        read_torch_form(entry)
    except SpecError:
        return False
    return True


def form_name(prefix: str) -> str:
    """Return the name of the entry that specifies a module's function."""
    return f"{prefix}.{KEY}" if prefix else KEY


def read_group(group: Group, *, engine: str = "auto", where: str = "", layout: int = 0) -> GRU | Stack:
    """Create a layer or stack from one recurrent module."""
    where += f"{group.prefix}: " if group.prefix else ""
    if group.refusal:
        raise SpecError(f"{where}{group.refusal}")
    layers = sorted({layer for layer, _ in group.tensors if layer is not None})
    if missing := sorted(set(range(len(layers))).difference(layers)):
        raise SpecError(f"{where}weight_ih_l{missing[0]}: missing; must have all layers up to {layers[-1]}")
    group.check_complete(where)
    both = any(reverse for _, reverse in group.tensors)
    form = None if group.form is None else read_torch_form(group.form).spec
    if form is not None and form.num_directions != 1 + both:
        raise SpecError(f"{where}{KEY}: direction {form.direction}; must match the other tensors")
    made: list[GRU] = []
    for layer in layers or (None,):
        directions = [group.tensors.get((layer, reverse), {}) for reverse in (False, True)[: 1 + both]]
        location = where if layer is None else f"{where}layer {layer}: "
        direction: Direction = "bidirectional" if both else "forward"
        spec, weights = read(PYTORCH, directions, direction=direction, where=location)
        if form is not None:
            sizes = {name: getattr(spec, name) for name in ("input_size", "hidden_size", "dtype")}
            spec = replace(form, **sizes)
        made.append(GRU.from_canonical(spec, weights, engine=engine, layout=layout))
    if len(made) == 1:
        return made[0]
    sizes_of_all = {layer.spec.hidden_size for layer in made}
    if len(sizes_of_all) > 1:
        raise SpecError(f"{where}hidden sizes {sorted(sizes_of_all)}; must be the same for all layers")
    try:
        return Stack(made)
    except SpecError as error:
        raise SpecError(f"{where}{error}", error.argument) from error.__cause__


def to_torch_state_dict(source: GRU | Stack, *, prefix: str = "") -> dict[str, Array]:
    """Convert a layer or stack to the arrays of an `nn.GRU` state dict.

    Args:
        source: a forward or bidirectional layer with `linear_before_reset=True`, Sigmoid and Tanh, without
            clip and attention. The layers of a stack must have the same hidden size and direction.
        prefix: the prefix of the names; a dot is added. Default: "" (no prefix).

    Returns:
        arrays with the layer's type: weight_ih_l0 [3H, I], weight_hh_l0 [3H, H], bias_ih_l0 [3H], bias_hh_l0
        [3H], the same with _reverse for the backward direction, and so on for each layer.

    Raises:
        SpecError: `nn.GRU` cannot express the layer; the message says why.
    """
    layers = layers_of(source)
    if not isinstance(prefix, str):
        raise SpecError.of("prefix", f"{shown(prefix)}; must be text")
    dot = f"{prefix.removesuffix('.')}." if prefix else ""
    arrays: dict[str, Array] = {}
    for index, layer in enumerate(layers):
        where = f"layer {index}: " if len(layers) > 1 else ""
        spec, first = layer.spec, layers[0].spec
        if spec.direction == "reverse":
            raise SpecError(
                f"{where}direction: 'reverse'; must be forward or bidirectional, as nn.GRU has them"
            )
        if spec.input_size < 1:
            raise SpecError(f"{where}input_size: 0; must be at least 1 for nn.GRU")
        for name in ("direction", "hidden_size"):
            mine, others = getattr(spec, name), getattr(first, name)
            if mine != others:
                raise SpecError(
                    f"{where}{name}: {mine!r}; must be {others!r}, because nn.GRU has one for all layers"
                )
        halves = write(PYTORCH, spec, layer.weights, where=where)
        for suffix, tensors in zip(("", "_reverse"), halves, strict=False):
            arrays |= {f"{dot}{name}_l{index}{suffix}": array for name, array in tensors.items()}
    return arrays


def to_torch(source: GRU | Stack, *, batch_first: bool | None = None) -> Any:
    """Convert a layer or stack to an `nn.GRU` on the CPU.

    Args:
        source: a layer or stack, as for `to_torch_state_dict`.
        batch_first: as in `nn.GRU`. Default: None (the layout of the layer or stack).

    Returns:
        the `nn.GRU`, with the layer's type.

    Raises:
        SpecError: `nn.GRU` cannot express the layer; the message says why.
        MissingExtraError: torch is not installed.
    """
    arrays = to_torch_state_dict(source)
    batch_first = bool(source.layout) if batch_first is None else flag("batch_first", batch_first)
    layers = layers_of(source)
    with needs_extra("torch", "torch", "to_torch"):
        import torch
    spec = layers[0].spec
    module = torch.nn.GRU(
        spec.input_size,
        spec.hidden_size,
        num_layers=len(layers),
        bidirectional=spec.num_directions == 2,
        batch_first=batch_first,
        dtype=getattr(torch, spec.dtype),
        device="meta",  # no initial values, so torch's random state does not change
    ).to_empty(device="cpu")
    module.load_state_dict({name: to_tensor(array) for name, array in arrays.items()})
    return module


def to_tensor(array: Array) -> Any:
    """Convert an array to a PyTorch tensor, including bfloat16; torch must be installed."""
    import torch

    if array.dtype.name == "bfloat16":  # via float32, which represents all its values
        return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
    return torch.from_numpy(array)
