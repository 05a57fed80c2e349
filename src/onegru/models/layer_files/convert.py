"""Write layers to a file of another kind, and compare both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from onegru.core.compare import (
    INCONCLUSIVE,
    TOLERANCE_CONVERTED,
    Comparison,
    compare_scaled,
    merged,
    nudged,
    rounding_effect,
    why_inconclusive,
)
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, SpecError
from onegru.core.shapes import arrange
from onegru.formats.opened import Kind, open_layers
from onegru.formats.openvino.document import ir_files
from onegru.formats.save import save_layers
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.inputs.random import random_call
from onegru.models.layer_files.load import load_layers
from onegru.models.layer_files.select import joined
from onegru.models.load import load
from onegru.models.model import Model
from onegru.operators.schema import CANONICAL_AXES, Role
from onegru.system.atomic_write import naming, write_files

_SIZES = ((7, 4), (1, 1))  # (T, B) of the random inputs if the target does not fix them

_IN_FLOAT32 = "OpenVINO computes float64 models in float32 between the layers; the tolerance allows for that"

_Slot = tuple[Role, int]  # a role, and the layer's index for roles that each layer has


def convert_layers(
    source: GRU | Stack, target: Path, options: dict[str, int | bool | None]
) -> tuple[list[Comparison], Model | None]:
    """Write layers to a temporary file, compare, and replace the target if they agree; return its model."""
    files = ir_files(target) if target.suffix.lower() == ".xml" else (target,)
    resolved = Path(os.path.realpath(target))
    temporary = partial(tempfile.TemporaryDirectory, dir=resolved.parent, prefix=f".{target.name[:50]}.")
    with naming(target), temporary() as folder:
        written = Path(folder) / target.name
        save_layers(source, written, **options)  # type: ignore[arg-type]
        try:
            made = read(written)
            checks = _check(source, made)
        except (FormatError, SpecError) as error:  # its message names the temporary file
            words = str(error).replace(str(written), str(target))
            words = f"not written, because the result cannot be checked: {words}"
            raise type(error)(words) from error.__cause__
        if all(item.agrees for item in checks):
            contents = [(file, written.with_suffix(file.suffix)) for file in files]
            write_files([(new, lambda file, old=old: file.write(old.read_bytes())) for new, old in contents])  # type: ignore[misc]
    return checks, made if isinstance(made, Model) else None


def read(path: Path) -> GRU | Stack | Model:
    """Read a written file."""
    file = open_layers("path", path)
    return joined([*load_layers(file).values()]) if file.kind.holds == "layers" else load(file)


def _check(source: GRU | Stack, made: GRU | Stack | Model) -> list[Comparison]:
    """Run source and target on random inputs, including lengths if the target takes them."""
    runs = [_run_both(source, made, *sizes) for sizes in reversed(_SIZES)]
    return [merged(items) for items in zip(*runs, strict=True)]


def _run_both(source: GRU | Stack, model: GRU | Stack | Model, T: int, B: int) -> list[Comparison]:
    layers = layers_of(source)
    if not isinstance(model, Model):
        inputs = _random_inputs(layers, T, B)
        theirs = _results(model, inputs)
        ours = _results(source, inputs)
        compare = _comparer(source, inputs, ours)
        return [compare(_name(slot, len(layers)), slot, theirs[slot]) for slot in ours]
    slots = _slots(model)
    sizes = {"T": T, "B": B} | _fixed_sizes(model, slots)
    inputs = _random_inputs(layers, sizes["T"], sizes["B"])
    used = {slots[info.name][0] for info in model.inputs}
    inputs = {slot: array for slot, array in inputs.items() if slot in used}
    named = {info.name: slots[info.name] for info in model.inputs}
    feeds = {name: arrange(inputs[s], CANONICAL_AXES[s[0]], axes) for name, (s, axes) in named.items()}
    ours = _results(source, inputs)
    is_double = layers[0].spec.dtype == "float64"
    is_ir = model.graph.file is not None and model.graph.file.kind is Kind.OPENVINO
    in_float32 = is_double and is_ir and model.other_node_count > 0
    compare = _comparer(source, inputs, ours, in_float32)
    return [
        compare(name, slot, arrange(array, slots[name][1], CANONICAL_AXES[slot[0]]))
        for name, array in model.run(feeds).items()
        for slot in [slots[name][0]]
    ]


def _slots(model: Model) -> dict[str, tuple[_Slot, str]]:
    """Return the role, layer index and axes of each input and output of a written model."""
    by_value: dict[str, tuple[_Slot, str]] = {}
    for index, gru in enumerate(model.gru_nodes):
        names = {**gru.step.inputs, **gru.step.outputs}
        for port in gru.step.ports:
            if port.role in CANONICAL_AXES and port.name in names:
                layer_index = index if port.role in ("initial_h", "Y_h") else 0  # others exist only once
                by_value.setdefault(names[port.name], ((port.role, layer_index), port.axes))
    found = {}
    for info in (*model.inputs, *model.outputs):
        if info.value not in by_value:
            raise FormatError(f"{model.path}: {info.name!r} is not an input or output of a GRU node")
        found[info.name] = by_value[info.value]
    return found


def _fixed_sizes(model: Model, slots: Mapping[str, tuple[_Slot, str]]) -> dict[str, int]:
    """Return the T and B that a model fixes; a cell has T = 1."""
    for info in model.inputs:
        (role, _), axes = slots[info.name]
        if role == "X":
            known = zip(axes, info.shape or (), strict=False)
            sizes = {axis: size for axis, size in known if axis in "TB" and isinstance(size, int)}
            return sizes if "T" in axes else {**sizes, "T": 1}
    return {}


def _random_inputs(layers: Sequence[GRU], T: int, B: int) -> dict[_Slot, Array]:
    rng = np.random.default_rng(0)
    inputs: dict[_Slot, Array] = {}
    for index, layer in enumerate(layers):
        made = random_call(layer.spec, T, B, rng)
        inputs["initial_h", index] = made.pop("initial_h")
        if index == 0:
            roles = made if layer.spec.attention else made.keys() - {"A"}
            inputs |= {(role, 0): made[role] for role in roles}
    return inputs


def _results(layers: GRU | Stack, inputs: Mapping[_Slot, Array]) -> dict[_Slot, Array]:
    X, lengths = inputs["X", 0], inputs.get(("sequence_lens", 0))
    if isinstance(layers, GRU):
        h = inputs.get(("initial_h", 0))
        Y, Y_h = layers(X, h, sequence_lens=lengths, attention=inputs.get(("A", 0)))
        return {("Y", 0): Y, ("Y_h", 0): Y_h}
    states = [inputs[slot] for slot in sorted(inputs) if slot[0] == "initial_h"]
    Y, last = layers(X, states or None, sequence_lens=lengths)
    return {("Y", 0): Y, **{("Y_h", index): Y_h for index, Y_h in enumerate(last)}}


def _name(slot: _Slot, count: int) -> str:
    role, index = slot
    return role if role == "Y" or count == 1 else f"{role}_{index}"


def _comparer(
    source: GRU | Stack,
    inputs: Mapping[_Slot, Array],
    outputs: Mapping[_Slot, Array],
    in_float32: bool = False,
) -> Callable[[str, _Slot, Array], Comparison]:
    """Return a function that compares an output with that of the source on the same inputs."""
    if why := why_inconclusive({f"{role} {index}": array for (role, index), array in outputs.items()}):
        raise FormatError(f"{why}, {INCONCLUSIVE}")
    also, reason = (("float32",), _IN_FLOAT32) if in_float32 else ((), "")
    moved = cache(lambda: _results(source, {slot: nudged(array, also) for slot, array in inputs.items()}))

    def compare(name: str, slot: _Slot, found: Array) -> Comparison:
        expected = outputs[slot]
        tolerance = TOLERANCE_CONVERTED["float32" if in_float32 else expected.dtype.name]
        item = compare_scaled(
            expected, found, tolerance, name, rounding=lambda: rounding_effect(expected, moved()[slot])
        )
        return replace(item, reason=item.reason or reason, steps=len(inputs["X", 0]))

    return compare
