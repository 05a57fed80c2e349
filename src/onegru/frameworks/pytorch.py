"""GRUs from and to PyTorch: modules and state dicts."""

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

# A tensor of any recurrent module of PyTorch, or of a cell, whose tensors have no layer.
_NAME = re.compile(
    r"(?P<prefix>(?:.*\.)?)(?P<tensor>weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)"
    r"(?:_l(?P<layer>0|[1-9][0-9]{0,3})(?P<reverse>_reverse)?)?",
    re.DOTALL,
)

# The parts that weight normalization and pruning keep instead of a tensor, to compute it from.
_PART = re.compile(
    r"(?P<prefix>(?:.*?\.)??)(?:parametrizations\.)?(?P<whole>(?:weight|bias)_[ih]h(?:_l[0-9]+(?:_reverse)?)?)"
    r"(?:_g|_v|_orig|_mask|\.original[0-9]*)",
    re.DOTALL,
)

# What a module of PyTorch's dynamic quantization keeps instead: objects that hold the weights and do not say
# whether it is a GRU.
_PACKED = re.compile(
    r"(?P<prefix>(?:.*\.)?)(?:_all_weight_values\.[0-9]+\.param|_packed_weight_[ih]h)", re.DOTALL
)
_DYNAMIC = "torch.ao.nn.quantized.dynamic.modules.rnn"

# Values of a state dict that are no tensors.
_PLAIN = (str, bytes, bool, int, float, complex, NoneType, list, tuple, Mapping)

# Modules that have tensors of the same names, with other functions.
_OTHERS = {1: "a plain RNN", 4: "an LSTM"}


@dataclass(slots=True)
class Group:
    """The tensors of one recurrent module."""

    prefix: str  # what stands before their names, without its last dot
    # by (layer, whether it is the reverse direction), then by name; a cell's are layer None
    tensors: dict[tuple[int | None, bool], dict[str, object]] = field(default_factory=dict)
    # a part by the name of the tensor that would be computed from it
    parts: dict[str, str] = field(default_factory=dict)
    is_packed: bool = False  # whether there are PyTorch's packed weights instead of tensors
    # the entry for what a module of `onegru.torch` computes; None for what PyTorch's does
    form: object = None
    other: str = ""  # the first further tensor under the prefix, which no GRU of PyTorch has; "" for none
    # the name of an entry as `form` that stands beside no tensors, perhaps this module's; "" for none
    astray: str = ""

    def check_complete(self, where: str) -> None:
        """Name the first tensor that is missing."""
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
                        reason = "a GRU has biases everywhere or nowhere"
                    else:
                        reason = f"a {'bidirectional ' if both else ''}GRU of PyTorch has it"
                    raise SpecError(f"{where}{name}: missing; {reason}")

    @property
    def is_cell(self) -> bool:
        """Whether it is a cell, which has no layers."""
        return all(layer is None for layer, _ in self.tensors)

    @property
    def refusal(self) -> str:
        """Why it is no GRU, or none that can be read; empty if it may be one."""
        if self.is_packed:
            return (
                "weights packed by PyTorch's dynamic quantization, which PyTorch alone unpacks: pass the "
                "module itself to onegru.from_torch"
            )
        if len({layer is None for layer, _ in self.tensors}) > 1:
            return "tensors of a cell and of layers, which no module has together"
        for (layer, _), tensors in self.tensors.items():
            name = "weight_hh" if layer is None else f"weight_hh_l{layer}"
            if "weight_hr" in tensors:
                return "weight_hr, a projection, which only an LSTM has"
            shape = tuple(getattr(tensors.get("weight_hh"), "shape", ()))
            if len(shape) == 2 and shape[1] > 0 and shape[0] != 3 * shape[1] and shape[0] % shape[1] == 0:
                count = shape[0] // shape[1]
                return (
                    f"{name} of {count}*hidden_size rows, as {_OTHERS.get(count, 'no GRU')} has; a GRU has "
                    "3*hidden_size"
                )
        if self.other:
            return (
                f"{self.other!r} next to the tensors of a GRU, which no PyTorch GRU has; remove the "
                "tensor from the mapping if it does not change the result"
            )
        if self.astray:
            return (
                f"no {KEY}, but {self.astray!r} is one of a module whose tensors have other names: what they "
                "compute is not known"
            )
        if self.form is not None:
            try:
                read_torch_form(self.form)
            except SpecError as error:
                return f"{KEY}, {error}"
        return ""


#: Where onegru's own modules are, by which a module says what it computes.
_OURS = ("onegru.torch.modules", "onegru.torch.cells")


def from_torch(
    source: object, *, prefix: str | None = None, batch_first: bool | None = None, engine: str = "auto"
) -> GRU | Stack:
    """Create a layer or stack from a PyTorch module or state dict.

    Args:
        source: an `nn.GRU` or `nn.GRUCell`, or one of `onegru.torch`, or of PyTorch's dynamic quantization
            (`torch.ao.nn.quantized.dynamic`), a module that holds one, or a state dict: a mapping from names
            (`weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, `weight_ih_l0_reverse`, …, for a cell
            `weight_ih`, …) to tensors or arrays, with or without those of other modules.
        prefix: the name of the GRU within the model, such as "encoder.gru" where its tensors are
            "encoder.gru.weight_ih_l0", …; "" if their names stand alone. None if there is only one.
        batch_first: for a state dict, which does not say it: whether the layer's calls take batch first, as
            the module's do (`layout=1` of the layer); None for False. A module says it itself.
        engine: what runs it, as in `onegru.GRU`.

    Returns:
        a `GRU` for one layer, in one or both directions, and for a cell; a `Stack` for several. They are of
        the tensors' type. A module with batch_first becomes a layer that takes batch first: its layout is 1,
        in which its states are batch first as well, [B, D, H], while `nn.GRU` leaves them [D, B, H]. dropout
        does not matter, as it is only for training. A dynamically quantized module becomes a float32 layer of
        its weights as they are stored, q·scale or rounded to float16; an int8 module also quantizes x and h
        in
        each step, which the layer does not.

    Raises:
        SpecError: there is no GRU, or there are several and `prefix` does not say which (the message lists
            them), or tensors are missing or do not fit, or a state dict has others under the GRU's own name.
    """
    if batch_first is not None:
        batch_first = flag("batch_first", batch_first)
    state_dict, told = (source, {}) if is_mapping(source) else _state_dict(source, prefix)
    groups = find_groups(state_dict)
    for name in told.keys() & groups.keys():  # its class says that it is a GRU, whatever else it holds
        groups[name].other = ""
    if prefix is not None:
        if not isinstance(prefix, str):
            raise SpecError.of("prefix", f"{shown(prefix)}; must be text, or None")
        if prefix.removesuffix(".") not in groups:
            raise SpecError.of(
                "prefix", f"{prefix!r}, which has no recurrent module; there are {_list(groups)}"
            )
        group = groups[prefix.removesuffix(".")]
    else:
        possible = {name: group for name, group in groups.items() if not group.refusal}
        if len(possible) > 1:
            raise SpecError.of(
                "prefix",
                f"missing; there are {len(possible)} GRUs, of which it must name one: {_list(possible)}",
            )
        if not possible:
            found = "".join(f"; {name!r} has {group.refusal}" for name, group in groups.items())
            raise SpecError.of("source", f"no tensors of a GRU (weight_ih_l0, weight_hh_l0, …){found}")
        (group,) = possible.values()
    return read_group(group, engine=engine, layout=_layout(group, told.get(group.prefix), batch_first))


def _layout(group: Group, told: bool | None, batch_first: bool | None) -> int:
    """The layout of a module's calls: as the module says, else as the caller does."""
    says = False if group.is_cell else told
    if says is None:
        return int(batch_first or False)
    if batch_first not in (None, says):
        whose = "a cell takes one step" if group.is_cell else "the module says it itself"
        raise SpecError.of("batch_first", f"{batch_first}; must be {says} or None, as {whose}")
    return int(says)


def _list(groups: Mapping[str, Group]) -> str:
    names = [repr(name) for name in groups]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(names[:20]) or "none") + more


def _state_dict(module: Any, prefix: str | None) -> tuple[Mapping[str, Any], Mapping[str, bool | None]]:
    """A module's tensors, by name, those of GRUs as they take effect; and whether each GRU is batch first."""
    if isinstance(module, type) or not all(
        callable(getattr(module, name, None)) for name in ("state_dict", "named_modules")
    ):
        raise SpecError.of(
            "source", f"{type(module).__name__}; must be a module of PyTorch or a mapping of tensors"
        )
    with needs_extra("torch", "torch", "a module of PyTorch"):
        import torch

    tensors = {name: value for name, value in module.state_dict().items() if packed_in(name) is None}
    told: dict[str, bool | None] = {}
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
                f"{type(child).__name__}, which computes in its own way; must be "
                f"{kind.__name__} itself, or a state dict if its tensors mean the same",
            )
        if wanted in (None, name) and _is_changed(child):
            raise SpecError.of(
                "source",
                f"{name or type(child).__name__!r} has hooks or its own forward, such as the "
                "old weight_norm's; must be without (torch.nn.utils.parametrizations are understood)",
            )
        dot = f"{name}." if name else ""
        # Of a parametrized weight, the state dict holds the parts; the weight itself is an attribute.
        found = (
            {tensor: getattr(child, tensor) for tensor in _names_in(child)}
            if dynamic is None
            else _unpacked(child)
        )
        tensors |= {f"{dot}{tensor}": numbers for tensor, numbers in found.items()}
        if own is None:  # an entry of a derived class, which has PyTorch's way to compute
            tensors.pop(f"{dot}{KEY}", None)
        told[name] = getattr(child, "batch_first", None)
    return tensors, told


def _is_dynamic(kind: type) -> bool:
    """Whether a class is a GRU of PyTorch's dynamic quantization, without its import, which takes long."""
    return kind.__module__ == _DYNAMIC and kind.__name__ in ("GRU", "GRUCell")


def _unpacked(module: Any) -> dict[str, Any]:
    """The tensors of a dynamically quantized module, in float32, by the names that a float module has.

    Biases are added if they are packed, whatever the module's attribute says.
    """
    packed = {**module.get_weight(), **module.get_bias()}
    return {
        name: tensor.dequantize() if tensor.is_quantized else tensor
        for name, tensor in packed.items()
        if tensor is not None
    }


def _is_changed(module: Any) -> bool:
    """Whether hooks or an own forward may change a module's function or weights in each call."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, name, None) for name in hooks)


def _names_in(module: Any) -> list[str]:
    """The names of the tensors of a GRU or a GRUCell."""
    tensors = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
    suffixes = [""]
    if hasattr(module, "num_layers"):
        ways = ("", "_reverse")[: 1 + module.bidirectional]
        suffixes = [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]
    return [tensor + suffix for suffix in suffixes for tensor in tensors]


def is_recurrent(name: str) -> bool:
    """Whether a tensor of this name belongs to a recurrent module."""
    return module_of(name) is not None


def module_of(name: str) -> str | None:
    """The recurrent module to which a tensor of this name belongs; None if it belongs to none."""
    match = _NAME.fullmatch(name)
    return None if match is None else match["prefix"].removesuffix(".")


def packed_in(name: str) -> str | None:
    """The dynamically quantized module whose packed weights have this name; None if it is another name."""
    match = _PACKED.fullmatch(name)
    return None if match is None else match["prefix"].removesuffix(".")


def find_groups(state_dict: Mapping[str, object]) -> dict[str, Group]:
    """The recurrent modules whose tensors a state dict holds, by what stands before their names."""
    groups: dict[str, Group] = {}
    parts: dict[str, dict[str, str]] = {}
    for name, tensor in state_dict.items():
        if not isinstance(name, str):
            continue
        if match := _NAME.fullmatch(name):
            prefix = match["prefix"].removesuffix(".")
            place = (None if match["layer"] is None else int(match["layer"]), match["reverse"] is not None)
            group = groups.setdefault(prefix, Group(prefix))
            group.tensors.setdefault(place, {})[match["tensor"]] = tensor
        elif match := _PART.fullmatch(name):
            parts.setdefault(match["prefix"].removesuffix("."), {})[match["whole"]] = name
        elif (packed := packed_in(name)) is not None:
            groups.setdefault(packed, Group(packed, is_packed=True))
    for prefix, group in groups.items():
        group.parts = parts.get(prefix, {})
        group.form = state_dict.get(form_name(prefix))
    known = {form_name(prefix) for prefix in (*groups, *parts)}
    astray = next(
        (name for name, entry in state_dict.items() if name not in known and _is_form(name, entry)), ""
    )
    for group in groups.values():
        group.astray = astray if group.form is None and not group.is_packed else ""
    whole = dict(groups)  # those beside which nothing else was found
    lengths = Counter(map(len, whole))
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or isinstance(tensor, _PLAIN):
            continue
        for length in [length for length in lengths if not length or name[length : length + 1] == "."]:
            around = whole.get(name[:length])
            if around is not None and not _is_own(name, around.prefix, state_dict):
                around.other = name
                del whole[around.prefix]
                lengths -= Counter([length])
    return groups


def _is_own(name: str, prefix: str, state_dict: Mapping[str, object]) -> bool:
    """Whether an entry is one that the recurrent module of this prefix has, as PyTorch or onegru keeps it."""
    if (packed := packed_in(name)) is not None or is_recurrent(name):
        return prefix in (packed, module_of(name))
    if part := _PART.fullmatch(name):
        whole = form_name(prefix).removesuffix(KEY) + part["whole"]
        return part["prefix"].removesuffix(".") == prefix and whole not in state_dict
    return name == form_name(prefix)


def may_be_form(name: object) -> bool:
    """Whether an entry of this name may say what a module computes."""
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
    """The name of the entry for what the module of this name computes."""
    return f"{prefix}.{KEY}" if prefix else KEY


def read_group(group: Group, *, engine: str = "auto", where: str = "", layout: int = 0) -> GRU | Stack:
    """The layer, or the stack, of one recurrent module."""
    where += f"{group.prefix}: " if group.prefix else ""
    if group.refusal:
        raise SpecError(f"{where}{group.refusal}")
    layers = sorted({layer for layer, _ in group.tensors if layer is not None})
    if missing := sorted(set(range(len(layers))).difference(layers)):
        raise SpecError(f"{where}weight_ih_l{missing[0]}: missing; there are layers up to {layers[-1]}")
    group.check_complete(where)
    both = any(reverse for _, reverse in group.tensors)
    form = None if group.form is None else read_torch_form(group.form).spec
    if form is not None and form.num_directions != 1 + both:
        raise SpecError(f"{where}{KEY}: direction {form.direction}; must be as the other tensors have it")
    made: list[GRU] = []
    for layer in layers or (None,):
        directions = [group.tensors.get((layer, reverse), {}) for reverse in (False, True)[: 1 + both]]
        place = where if layer is None else f"{where}layer {layer}: "
        direction: Direction = "bidirectional" if both else "forward"
        spec, weights = read(PYTORCH, directions, direction=direction, where=place)
        if form is not None:
            sizes = {name: getattr(spec, name) for name in ("input_size", "hidden_size", "dtype")}
            spec = replace(form, **sizes)
        made.append(GRU.from_canonical(spec, weights, engine=engine, layout=layout))
    if len(made) == 1:
        return made[0]
    sizes_of_all = {layer.spec.hidden_size for layer in made}
    if len(sizes_of_all) > 1:
        raise SpecError(f"{where}hidden sizes {sorted(sizes_of_all)}; must be one for all layers")
    try:
        return Stack(made)
    except SpecError as error:
        raise SpecError(f"{where}{error}", error.argument) from error.__cause__


def to_torch_state_dict(source: GRU | Stack, *, prefix: str = "") -> dict[str, Array]:
    """Convert a layer or stack to the arrays of an `nn.GRU` state dict.

    Args:
        source: forward or bidirectional, with the reset gate after the recurrent product
            (`linear_before_reset=True`), Sigmoid and Tanh, without clip and attention; in a stack, all of one
            hidden size and direction.
        prefix: what to put before the names, with a dot between.

    Returns:
        arrays of the layer's type: weight_ih_l0 [3H, I], weight_hh_l0 [3H, H], bias_ih_l0 [3H], bias_hh_l0
        [3H], the same with _reverse, and so on for each layer.

    Raises:
        SpecError: `nn.GRU` can't express it; the message says why.
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
            raise SpecError(f"{where}input_size: 0; must be at least 1, as nn.GRU has it")
        for name in ("direction", "hidden_size"):
            mine, others = getattr(spec, name), getattr(first, name)
            if mine != others:
                raise SpecError(
                    f"{where}{name}: {mine!r}; must be {others!r}, as nn.GRU has one for all layers"
                )
        halves = write(PYTORCH, spec, layer.weights, where=where)
        for suffix, tensors in zip(("", "_reverse"), halves, strict=False):
            arrays |= {f"{dot}{name}_l{index}{suffix}": array for name, array in tensors.items()}
    return arrays


def to_torch(source: GRU | Stack, *, batch_first: bool | None = None) -> Any:
    """Convert a layer or stack to an `nn.GRU` on the CPU.

    Args:
        source: as for `to_torch_state_dict`.
        batch_first: as in `nn.GRU`; None for the layer's or stack's own layout.

    Raises:
        SpecError: `nn.GRU` can't express it; the message says why.
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
        device="meta",  # no initial values, so that none of torch's random numbers are used up
    ).to_empty(device="cpu")
    module.load_state_dict({name: to_tensor(array) for name, array in arrays.items()})
    return module


def to_tensor(array: Array) -> Any:
    """A tensor of PyTorch with an array's numbers, bfloat16 included; torch must be installed."""
    import torch

    if array.dtype.name == "bfloat16":  # by way of float32, which holds all of it
        return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
    return torch.from_numpy(array)
