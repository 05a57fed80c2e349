"""Convert framework tensors to the canonical form and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onegru.core.activations import Activation
from onegru.core.arguments import shown
from onegru.core.dtypes import Array, contiguous, default_float_mode
from onegru.core.errors import SpecError
from onegru.core.spec import Direction, Spec, Weights
from onegru.core.tensors import as_tensor
from onegru.frameworks.layouts import Block, Framework, TensorForm

#: The tensors of one direction, by the framework's names.
Arrays = Mapping[str, object]

_GATES = "zrh"

# Other cells that store their gates in one matrix, by the number of gates.
_OTHER_CELLS = {1: "a plain recurrent layer", 2: "a minimal gated unit", 4: "an LSTM"}


def read(
    framework: Framework,
    directions: Sequence[Arrays],
    *,
    linear_before_reset: bool = True,
    direction: Direction = "forward",
    activations: Sequence[tuple[Activation, Activation]] | None = None,
    where: str = "",
) -> tuple[Spec, Weights]:
    """Convert a framework's tensors to canonical form."""
    forms = framework.forms[linear_before_reset]
    parts = [_read_direction(framework, forms, tensors, where) for tensors in directions]
    if len({(part[0].shape, part[0].dtype) for part in parts}) > 1:
        sizes = " and ".join(f"{part[0].dtype.name} {list(part[0].shape)}" for part in parts)
        raise SpecError(f"{where}input weights of {sizes}; must be the same in both directions")
    W, R, B = (np.stack(arrays) for arrays in zip(*parts, strict=True))
    if activations is None:
        activations = [find_activations(framework)] * len(parts)
    spec = Spec(
        input_size=W.shape[2],
        hidden_size=R.shape[2],
        dtype=W.dtype.name,
        direction=direction,
        linear_before_reset=linear_before_reset,
        activations=tuple(activations),
    )
    return spec, Weights(W, R, B)


def _read_direction(
    framework: Framework, forms: Sequence[TensorForm], tensors: Arrays, where: str
) -> tuple[Array, Array, Array]:
    """Read W [3H, I], R [3H, H] and B [6H] of one direction."""
    biases = {form.name for form in forms if not form.is_kernel}
    lacks_biases = framework.may_lack_biases and not biases & tensors.keys()
    names = [form.name for form in forms if form.is_kernel or not lacks_biases]
    if missing := [name for name in names if name not in tensors]:
        raise SpecError(f"{where}{missing[0]}: missing; a {framework.name} GRU must have it")
    if unknown := sorted(tensors.keys() - set(names)):
        raise SpecError(f"{where}{unknown[0]}: not a tensor of a {framework.name} GRU")
    arrays: dict[str, Array] = {}
    types: tuple[str, ...] = ()
    for name in names:
        arrays[name] = as_tensor(f"{where}{name}", tensors[name], types)
        types = (arrays[name].dtype.name,)
    hidden_size, input_size = _sizes(framework, forms, arrays, where)
    blocks: dict[tuple[Block, str], Array] = {}
    for form in forms:
        if form.name in arrays:
            blocks |= _blocks(framework, form, arrays[form.name], hidden_size, input_size, where)
    zeros = np.zeros(hidden_size, next(iter(arrays.values())).dtype)
    W, R = (np.concatenate([blocks[block, gate] for gate in _GATES]) for block in ("W", "R"))
    both: tuple[Block, Block] = ("Wb", "Rb")
    B = np.concatenate([blocks.get((block, gate), zeros) for block in both for gate in _GATES])
    return W, R, B


def _sizes(
    framework: Framework, forms: Sequence[TensorForm], arrays: Mapping[str, Array], where: str
) -> tuple[int, int]:
    """Return hidden_size and input_size from the shapes of the first kernels of R and W."""
    found: dict[Block, int] = {}
    for block in ("R", "W"):
        form = next(form for form in forms if form.blocks == (block,))
        array = arrays[form.name]
        if array.ndim != 2:
            raise SpecError(f"{where}{form.name}: shape {list(array.shape)}; must have 2 dimensions")
        across, along = array.shape[::-1] if framework.transposed else array.shape
        found[block] = along
        count = len(form.gates)
        if block == "R" and (along < 1 or across != count * along):
            other = "" if along < 1 or across % along or count == 1 else _OTHER_CELLS.get(across // along, "")
            hint = f" ({other} has {across // along}*hidden_size)" if other else ""
            axes = (along, count * along) if framework.transposed else (count * along, along)
            raise SpecError(
                f"{where}{form.name}: shape {list(array.shape)}{hint}; must be {list(axes)}, "
                f"{count}*hidden_size by hidden_size of at least 1{', transposed' * framework.transposed}"
            )
    return found["R"], found["W"]


def _blocks(
    framework: Framework, form: TensorForm, array: Array, hidden_size: int, input_size: int, where: str
) -> dict[tuple[Block, str], Array]:
    """Split a tensor into canonical blocks."""
    shape = _shape(framework, form, hidden_size, input_size)
    if array.shape != shape:
        raise SpecError(f"{where}{form.name}: shape {list(array.shape)}; must be {list(shape)}")
    rows = [array] if len(form.blocks) == 1 else list(array)
    if form.is_kernel and framework.transposed:
        rows = [row.T for row in rows]
    return {
        (block, gate): row[index * hidden_size : (index + 1) * hidden_size]
        for block, row in zip(form.blocks, rows, strict=True)
        for index, gate in enumerate(form.gates)
    }


def _shape(framework: Framework, form: TensorForm, hidden_size: int, input_size: int) -> tuple[int, ...]:
    rows = len(form.gates) * hidden_size
    if not form.is_kernel:
        return (rows,) if len(form.blocks) == 1 else (len(form.blocks), rows)
    columns = input_size if form.blocks[0] == "W" else hidden_size
    return (columns, rows) if framework.transposed else (rows, columns)


def write(framework: Framework, spec: Spec, weights: Weights, *, where: str = "") -> list[dict[str, Array]]:
    """Convert canonical weights to a framework's tensors."""
    # A bias that the framework lacks is added to the other bias of the gate, if that keeps the function. The
    # two cannot be separated again.
    _check_expressible(framework, spec, where)
    return [_write_direction(framework, spec, weights, index, where) for index in range(spec.num_directions)]


def _check_expressible(framework: Framework, spec: Spec, where: str) -> None:
    if spec.attention:
        raise SpecError(f"{where}attention: True; must be False, because a {framework.name} GRU has none")
    if spec.clip is not None:
        raise SpecError(f"{where}clip: {spec.clip:g}; must be None, because a {framework.name} GRU has none")
    if spec.linear_before_reset not in framework.forms:
        acts = "after" if True in framework.forms else "before"
        raise SpecError(
            f"{where}linear_before_reset: {spec.linear_before_reset}; must be "
            f"{not spec.linear_before_reset}, because the reset gate of a {framework.name} GRU acts {acts} "
            "the recurrent product"
        )
    for pair in spec.activations if framework.fixed_activations else ():
        for function, own in zip(pair, find_activations(framework), strict=True):
            if function != own:
                raise SpecError(
                    f"{where}activations: {function}; must be {own}, because a {framework.name} GRU has no "
                    "other"
                )


def _write_direction(
    framework: Framework, spec: Spec, weights: Weights, index: int, where: str
) -> dict[str, Array]:
    H, forms = spec.hidden_size, framework.forms[spec.linear_before_reset]
    parts = {"W": weights.W[index], "R": weights.R[index]}
    parts |= {"Wb": weights.B[index, : 3 * H], "Rb": weights.B[index, 3 * H :]}
    blocks = {
        (block, gate): array[position * H : (position + 1) * H]
        for block, array in parts.items()
        for position, gate in enumerate(_GATES)
    }
    held = {(block, gate) for form in forms for block in form.blocks for gate in form.gates}
    for gate in _GATES:
        if ("Rb", gate) in held or not np.any(blocks["Rb", gate]):
            continue
        if gate == "h" and spec.linear_before_reset:
            raise SpecError(
                f"{where}B: Rbh is not zero; must be zero, because a {framework.name} GRU has no bias inside "
                "the reset gate's product"
            )
        blocks["Wb", gate] = _sum(blocks["Wb", gate], blocks["Rb", gate])

    arrays: dict[str, Array] = {}
    for form in forms:
        rows = [np.concatenate([blocks[block, gate] for gate in form.gates]) for block in form.blocks]
        if form.is_kernel and framework.transposed:
            rows = [row.T for row in rows]
        arrays[form.name] = contiguous(rows[0] if len(rows) == 1 else np.stack(rows))
    return arrays


def _sum(a: Array, b: Array) -> Array:
    """Return a + b, rounded once, also in 16-bit types."""
    with default_float_mode():
        return (a.astype(np.float64) + b.astype(np.float64)).astype(a.dtype)


def find_activation(framework: Framework, name: object, argument: str) -> Activation:
    """Return the function with a framework's name."""
    if not isinstance(name, str) or name not in framework.activations:
        known = ", ".join(framework.activations)
        raise SpecError.of(
            argument, f"{shown(name)}; not supported as {framework.name} computes it; must be one of {known}"
        )
    return framework.activations[name]


def find_activations(
    framework: Framework, names: Mapping[str, object] | None = None
) -> tuple[Activation, Activation]:
    """Return the functions (f, g) of a cell."""
    names = names or {"f": None, "g": None}
    f, g = (
        find_activation(framework, default if name is None else name, argument)
        for (argument, name), default in zip(names.items(), framework.default_activations, strict=True)
    )
    return f, g


def activation_name(framework: Framework, function: Activation, argument: str = "activations") -> str:
    """Return a framework's name of a function."""
    for name, own in framework.activations.items():
        if own == function:
            return name
    known = ", ".join(map(str, dict.fromkeys(framework.activations.values())))
    raise SpecError.of(argument, f"{function}; not available in {framework.name}; must be one of {known}")
