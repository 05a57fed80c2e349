"""Create GRUs from the configuration and arrays of Keras layers, without Keras."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from onegru.core.activations import Activation
from onegru.core.arguments import shown
from onegru.core.dtypes import to_float32
from onegru.core.errors import SpecError
from onegru.core.tensors import as_tensor, is_mapping
from onegru.core.wording import count
from onegru.frameworks.layouts import KERAS, KERAS_2, Framework
from onegru.frameworks.weights import find_activation, find_activations, read
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack

#: The classes of layers that can contain GRUs; Keras 2 also had CuDNNGRU.
RECURRENT = ("GRU", "GRUCell", "RNN", "Bidirectional")

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Generation:
    """Meaning of configurations under a version of Keras."""

    framework: Framework  # its activations, and the layers that can replace some of them
    reset_after: bool | None  # the default if the configuration does not specify it; None if unknown
    recurrent_activation: str | None  # as above


#: Layers of Keras 3.
KERAS_3 = Generation(KERAS, True, "sigmoid")


def generation_of(version: str) -> Generation:
    """Return the meaning of configurations under a version, such as "3", "2.1.6" or "2.2.4-tf"."""
    match = re.fullmatch(r"(?P<major>[23])(?:\.(?P<minor>[0-9]{1,3})(?P<rest>[.-].*)?)?", version, re.DOTALL)
    if match is None:
        raise SpecError.of("keras_version", f"{version!r:.40}; must be Keras 2 or 3, such as '2.3'")
    if match["major"] == "3":
        return KERAS_3
    minor = int(match["minor"] or 0)
    if minor >= 4:  # with TensorFlow 2
        return Generation(KERAS_2, True, "sigmoid")
    if match["minor"] is None or (match["rest"] or "").endswith("-tf"):  # TensorFlow 1 or 2.0
        return Generation(KERAS_2, None, None)
    return Generation(KERAS_2, False, "sigmoid" if minor == 3 else "hard_sigmoid")


@dataclass(frozen=True, slots=True)
class KerasCell:
    """Configuration of one GRU cell."""

    reset_after: bool | None  # whether the reset gate acts after the recurrent product; None if unknown
    use_bias: bool | None  # whether it has biases; None if unknown
    activations: tuple[Activation, Activation]  # (f, g)
    units: int | None  # its hidden size; None if unknown
    is_cudnn: bool = False  # whether its kernels have cuDNN's layout


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Configuration of a layer: the cells of each direction, the first layer first."""

    directions: tuple[tuple[KerasCell, ...], ...]
    reverse: bool = False


def from_arrays(
    arrays: Sequence[object],
    reset_after: bool | None,
    bidirectional: bool | None,
    activation: str | None,
    recurrent_activation: str | None,
    engine: str,
) -> GRU | Stack:
    """Create layers from the arrays of `layer.get_weights()`; for the arguments, see `from_keras`."""
    for argument, flag in (("reset_after", reset_after), ("bidirectional", bidirectional)):
        if not isinstance(flag, bool | None):
            raise SpecError.of(argument, f"{shown(flag)}; must be True, False or None")
    names = {"recurrent_activation": recurrent_activation, "activation": activation}
    functions = find_activations(KERAS, names)
    shapes = [tuple(getattr(array, "shape", ())) for array in arrays[:2]]
    if len(arrays) == 9 and len(shapes[0]) == len(shapes[1]) == 2 and shapes[0][1] == shapes[1][0]:
        raise SpecError.of(
            "source",
            "9 arrays, three for each gate, as in Keras 1; must be arrays of Keras 2 or 3, with "
            "the gates of a matrix concatenated (note that Keras 1 has other default activations)",
        )
    if len(arrays) >= 4 and bidirectional is None:
        raise SpecError.of(
            "bidirectional",
            f"must be set for {count(len(arrays), 'array')}: True for two directions; pass several layers "
            "one at a time",
        )
    directions = 2 if bidirectional else 1
    if len(arrays) not in (2 * directions, 3 * directions):
        raise SpecError.of(
            "source",
            f"{count(len(arrays), 'array')}; must be {2 * directions} or {3 * directions}: "
            "kernel, recurrent_kernel and, if there is one, bias, for each direction",
        )
    cell = KerasCell(reset_after, None, functions, None)
    return _build(Recurrent(((cell,),) * directions), list(arrays), engine, "")


def _build(recurrent: Recurrent, arrays: list[object], engine: str, where: str) -> GRU | Stack:
    """Create the layers of a configuration; the arrays are in Keras's order."""
    directions = len(recurrent.directions)
    if len(arrays) % directions:
        raise SpecError(f"{where}{count(len(arrays), 'array')}; must be an even number for two directions")
    share = len(arrays) // directions
    cells = [
        _split(cells, arrays[i * share : (i + 1) * share], where)
        for i, cells in enumerate(recurrent.directions)
    ]
    layers = []
    for index, each in enumerate(zip(*recurrent.directions, strict=True)):
        tensors = [own[index] for own in cells]
        label = f"{where}layer {index}: " if len(recurrent.directions[0]) > 1 else where
        modes = {_reset_after(cell, own, label) for cell, own in zip(each, tensors, strict=True)}
        if len(modes) > 1:
            raise SpecError(
                f"{label}reset_after: True in one direction, False in the other; must be the same in both"
            )
        spec, weights = read(
            KERAS,
            tensors,
            linear_before_reset=modes.pop(),
            direction="bidirectional" if directions == 2 else "reverse" if recurrent.reverse else "forward",
            activations=[cell.activations for cell in each],
            where=label,
        )
        for cell in each:
            if cell.units not in (None, spec.hidden_size):
                raise SpecError(f"{label}units: {cell.units}; must be {spec.hidden_size}, as in the arrays")
        layers.append(GRU.from_canonical(spec, weights, engine=engine))
    return layers[0] if len(layers) == 1 else Stack(layers)


def _split(cells: Sequence[KerasCell], arrays: list[object], where: str) -> list[dict[str, object]]:
    """Return the arrays of each cell by name."""
    split = []
    for cell in cells:
        has_bias = len(arrays) == 3 if cell.use_bias is None else cell.use_bias
        names = ("kernel", "recurrent_kernel", "bias")[: 2 + has_bias]
        if len(arrays) < len(names):
            raise SpecError(f"{where}{names[len(arrays)]}: missing; a built layer must have it")
        tensors = dict(zip(names, arrays, strict=False))
        split.append(_from_cudnn(tensors, where) if cell.is_cudnn else tensors)
        arrays = arrays[len(names) :]
    if arrays:
        raise SpecError(
            f"{where}{count(len(arrays), 'array')} too many; must be kernel, recurrent_kernel and bias"
        )
    return split


def _from_cudnn(tensors: dict[str, object], where: str) -> dict[str, object]:
    """Convert a CuDNNGRU's arrays to a GRU's: each gate's kernels store cuDNN's matrices, reshaped."""
    names = ("kernel", "recurrent_kernel", "bias")
    kernel, recurrent, bias = (as_tensor(f"{where}{name}", tensors[name]) for name in names)
    if {kernel.ndim, recurrent.ndim} != {2} or kernel.shape[1] % 3 or recurrent.shape[1] % 3 or bias.size % 2:
        raise SpecError(f"{where}wrong array shapes; must be the shapes of a CuDNNGRU")
    return {
        "kernel": np.hstack([gate.reshape(gate.shape[::-1]).T for gate in np.hsplit(kernel, 3)]),
        "recurrent_kernel": np.hstack([gate.T for gate in np.hsplit(recurrent, 3)]),
        "bias": bias.reshape(2, -1),
    }


def _reset_after(cell: KerasCell, tensors: Mapping[str, object], where: str) -> bool:
    """Return the reset mode from the configuration or the shape of the bias, which must agree."""
    if "bias" not in tensors:
        if cell.reset_after is None:
            raise SpecError(f"{where}reset_after: missing; it cannot be inferred from arrays without biases")
        return cell.reset_after
    bias = as_tensor(f"{where}bias", tensors["bias"])
    if bias.ndim not in (1, 2):
        raise SpecError(f"{where}bias: shape {list(bias.shape)}; must be [2, 3*units] or [3*units]")
    inferred = bias.ndim == 2
    if cell.reset_after not in (None, inferred):
        raise SpecError(
            f"{where}reset_after: {cell.reset_after}; must be {inferred} for a bias {list(bias.shape)}"
        )
    return inferred


def from_config(
    class_name: str,
    config: Config,
    arrays: list[object],
    *,
    generation: Generation = KERAS_3,
    engine: str = "auto",
    where: str = "",
) -> GRU | Stack:
    """Create layers from a serialized Keras layer and its arrays, in the order of `layer.get_weights()`."""
    return _build(_read_config(class_name, config, generation, where), arrays, engine, where)


def is_gru(class_name: str, config: Config) -> bool:
    """Whether a serialized layer consists of GRUs, supported or not."""
    if class_name in ("GRU", "GRUCell", "CuDNNGRU"):
        return True
    keys = {"RNN": "cell", "StackedRNNCells": "cells", "Bidirectional": "layer"}
    inner = config.get(keys.get(class_name, ""))
    parts = inner if isinstance(inner, list) else [inner]
    return bool(parts) and all(
        _is_serialized(part) and is_gru(part["class_name"], part["config"]) for part in parts
    )


def _is_serialized(value: object) -> TypeGuard[Config]:
    """Whether a value is a serialized object with a class and a configuration."""
    return is_mapping(value) and isinstance(value.get("class_name"), str) and is_mapping(value.get("config"))


def _read_config(class_name: str, config: Config, generation: Generation, where: str) -> Recurrent:
    if class_name == "Bidirectional":
        return _read_bidirectional(config, generation, where)
    if class_name == "GRUCell":
        return Recurrent(((_read_cell(config, generation, where),),))
    if class_name not in ("GRU", "RNN", "CuDNNGRU"):
        raise SpecError(f"{where}a layer of class {class_name!r}; must be one of {', '.join(RECURRENT)}")
    reverse = bool(config.get("go_backwards", False))
    if reverse and config.get("return_sequences", False):
        raise SpecError(
            f"{where}go_backwards: True, with return_sequences; one of them must be False, because Keras "
            "leaves such a sequence in processing order"
        )
    if class_name == "CuDNNGRU":
        cell = KerasCell(True, True, find_activations(KERAS), _units(config, where), is_cudnn=True)
        return Recurrent(((cell,),), reverse)
    cells = (config,) if class_name == "GRU" else tuple(_cells(config, where))
    return Recurrent((tuple(_read_cell(cell, generation, where) for cell in cells),), reverse)


def _cells(config: Config, where: str) -> Iterator[Config]:
    """Return the configurations of the cells in an RNN layer."""
    kind, inner = _serialized(config.get("cell"), f"{where}cell")
    if kind == "StackedRNNCells":
        cells = inner.get("cells")
        if not isinstance(cells, list | tuple) or not cells:
            raise SpecError(f"{where}cells: {cells!r}; must be a list of cells")
    else:
        cells = [config["cell"]]
    for cell in cells:
        kind, inner = _serialized(cell, f"{where}cell")
        if kind != "GRUCell":
            raise SpecError(f"{where}cell: a {kind}; must be a GRUCell")
        yield inner


def _serialized(value: object, argument: str) -> tuple[str, Config]:
    """Return the class and configuration of a serialized object."""
    if not _is_serialized(value):
        raise SpecError.of(argument, f"{value!r:.60}; must be a serialized object")
    if not is_own(value):
        raise SpecError.of(argument, f"a custom {value['class_name']}; must be a class of Keras")
    return value["class_name"], value["config"]


def is_own(value: Mapping[str, Any]) -> bool:
    """Whether a serialized object has a class of Keras itself; custom classes can have the same names."""
    return value.get("registered_name") is None and str(value.get("module", "keras")).split(".")[0] == "keras"


def _read_bidirectional(config: Config, generation: Generation, where: str) -> Recurrent:
    mode = config.get("merge_mode")
    if mode != "concat":
        raise SpecError(f"{where}merge_mode: {mode!r}; must be 'concat', because Y stores both directions")
    forward_class, forward = _serialized(config.get("layer"), f"{where}layer")
    backward_class, backward = _serialized(
        config.get("backward_layer") or {**config["layer"], "config": {**forward, "go_backwards": True}},
        f"{where}backward_layer",
    )
    if forward.get("go_backwards", False) or not backward.get("go_backwards", False):
        raise SpecError(f"{where}go_backwards: must be False for the forward layer, True for the backward")
    halves = [
        _read_config(kind, {**half, "go_backwards": False}, generation, f"{where}{which} layer: ")
        for which, kind, half in (("forward", forward_class, forward), ("backward", backward_class, backward))
    ]
    if any(len(half.directions) != 1 or len(half.directions[0]) != 1 for half in halves):
        raise SpecError(
            f"{where}several cells in one direction; must have one cell per direction, because onegru "
            "concatenates the directions after each layer"
        )
    return Recurrent((halves[0].directions[0], halves[1].directions[0]))


def _read_cell(config: Config, generation: Generation, where: str) -> KerasCell:
    reset_after = config.get("reset_after", generation.reset_after)
    use_bias = config.get("use_bias", True)
    for name, flag in (("reset_after", reset_after), ("use_bias", use_bias)):
        if not isinstance(flag, bool) and (flag is not None or name in config):
            raise SpecError(f"{where}{name}: {flag!r}; must be True or False")
    f = config.get("recurrent_activation", generation.recurrent_activation)
    if f is None and "recurrent_activation" not in config:
        raise SpecError(
            f"{where}recurrent_activation: missing; must be given, because TensorFlow's default was "
            "hard_sigmoid before version 2 and is sigmoid since"
        )
    functions = (
        _activation(f, generation, f"{where}recurrent_activation"),
        _activation(config.get("activation", KERAS.default_activations[1]), generation, f"{where}activation"),
    )
    return KerasCell(reset_after, use_bias, functions, _units(config, where))


def _units(config: Config, where: str) -> int:
    units = config.get("units")
    if isinstance(units, bool) or not isinstance(units, int):
        raise SpecError(f"{where}units: {units!r}; must be a whole number")
    return units


def _activation(value: object, generation: Generation, argument: str) -> Activation:
    """Read an activation of a configuration: a name, or a serialized function or layer."""
    if value is None:
        value = "linear"
    if not is_mapping(value):
        return find_activation(generation.framework, value, argument)
    kind, config = value.get("class_name"), value.get("config")
    known = generation.framework.activation_layers.get(kind) if isinstance(kind, str) else None
    if known is None or not is_mapping(config) or not is_own(value):
        raise SpecError.of(argument, f"{kind!r}; must be an activation that onegru supports")
    function, parameter, fixed = known
    alpha = config.get(parameter)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise SpecError.of(argument, f"{kind} with {parameter} {alpha!r}; must be a number")
    for name, must in fixed.items():
        if config.get(name) != must:
            raise SpecError.of(argument, f"{kind} with {name} {config.get(name)!r}; must be {must!r}")
    return Activation(function, to_float32(alpha))
