"""Convert GRUs from and to Flax GRUCells (linen and NNX)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast, get_args

from onegru.core.activations import Activation
from onegru.core.arguments import choice, shown
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, needs_extra
from onegru.core.spec import Direction
from onegru.core.tensors import is_mapping
from onegru.frameworks.layouts import FLAX_LINEN, FLAX_NNX, Framework
from onegru.frameworks.weights import find_activation, find_activations, read, write
from onegru.layers.gru import GRU

Form = Literal["linen", "nnx"]

_FORMS: Mapping[Form, Framework] = {"linen": FLAX_LINEN, "nnx": FLAX_NNX}

# Depth limit for mappings of parameters, which can contain themselves. No model nests them deeper.
_DEPTH = 32

# The directions of a cell. A bidirectional layer is two cells.
_DIRECTIONS = ("forward", "reverse")

# Names of parts that only other cells have, and the kind of cell.
_OTHERS = {"ii": "an LSTM", "if": "an LSTM or a minimal gated unit", "i": "a plain recurrent cell"}


def from_flax(
    source: object,
    *,
    backward: object = None,
    prefix: str | None = None,
    direction: str = "forward",
    gate_fn: str | None = None,
    activation_fn: str | None = None,
    engine: str = "auto",
) -> GRU:
    """Create a layer from a GRUCell of Flax (linen or NNX).

    Args:
        source: one of:

            - the parameters of a linen `GRUCell`: {"ir": {"kernel": [I, H], "bias": [H]}, "iz", "in", "hr",
              "hz", "hn"};
            - the parameters of an NNX `GRUCell`: {"dense_i": {"kernel": [I, 3H], "bias": [3H]}, "dense_h":
              {"kernel": [H, 3H]}};
            - the parameters of a model that contains one of these, with or without "params";
            - an `nnx.GRUCell`, an `nnx.RNN` of one, or another NNX module that contains one.
        backward: the backward direction, as for `source`. Default: None (one direction).
        prefix: the path of the cell in the parameters, such as "encoder.cell". Default: None (the only cell).
        direction: "forward" (default), or "reverse" for an `RNN` with reverse=True and keep_order=True.
            Set it for parameters only: an `nnx.RNN` specifies it.
        gate_fn: the name of f. Default: None (Flax's default, "sigmoid"). An NNX cell stores its own.
        activation_fn: the name of g. Default: None (Flax's default, "tanh").
        engine: the engine that runs the layer, as in `onegru.GRU`.

    Returns:
        the layer, with the type of the parameters.

    Raises:
        SpecError: no GRUCell is found; there are several and `prefix` names none of them (the message lists
            them); parameters are missing or do not fit; or onegru does not have the cell's functions.
    """
    choice("direction", direction, _DIRECTIONS)
    if backward is not None and direction != "forward":
        raise SpecError.of("direction", f"{direction!r}; must be 'forward' when backward is given")
    names = {"gate_fn": gate_fn, "activation_fn": activation_fn}
    framework, tensors, functions, reverse = _cell("source", source, prefix, names)
    way: Direction = "reverse" if reverse else cast(Direction, direction)
    cells, activations = [tensors], [functions]
    if backward is not None:
        other, tensors, functions, others_reverse = _cell("backward", backward, prefix, names)
        if other is not framework:
            raise SpecError.of(
                "backward", f"a cell of {other.name}; must be a cell of {framework.name}, like source"
            )
        if reverse or others_reverse is False:
            raise SpecError("source, backward: must be one forward and one reverse RNN")
        way = "bidirectional"
        cells.append(tensors)
        activations.append(functions)
    elif reverse is not None and direction == "reverse":
        raise SpecError.of("direction", "'reverse'; remove it, because an RNN specifies its direction")
    spec, weights = read(framework, cells, direction=way, activations=activations)
    return GRU.from_canonical(spec, weights, engine=engine)


def _cell(
    argument: str, source: object, prefix: str | None, names: Mapping[str, str | None]
) -> tuple[Framework, dict[str, object], tuple[Activation, Activation], bool | None]:
    """Return a cell's kind, tensors and functions, and whether it runs in reverse (None if unknown)."""
    functions, reverse = None, None
    if not is_mapping(source):
        source, functions, reverse = _from_module(argument, source, prefix)
    framework, tensors = _find(argument, source, prefix)
    if functions is None:
        return framework, tensors, find_activations(framework, names), reverse
    for name, given in names.items():
        if given is not None:
            raise SpecError.of(name, f"{given!r}; must be None for an NNX cell, which has its own function")
    return framework, tensors, functions, reverse


def _find(
    argument: str, source: Mapping[str, Any], prefix: str | None
) -> tuple[Framework, dict[str, object]]:
    """Find the only cell in the parameters, or the cell at `prefix`."""
    found: dict[str, tuple[Framework, Mapping[str, Any]]] = {}
    cells = list(_search(source, "", _DEPTH, {}))
    outer = all(f"{path}.".startswith("params.") for path, _, _ in cells)
    for path, framework, cell in cells:
        own = path.removeprefix("params").removeprefix(".") if outer else path
        if own in found:
            raise SpecError.of(argument, f"two GRUCells under {own!r}; pass the parameters of one")
        found[own] = (framework, cell)
    if not found and prefix is None:
        other = next((f"; it looks like {kind}" for part, kind in _OTHERS.items() if part in source), "")
        raise SpecError.of(
            argument, f"no parameters of a GRUCell (ir, iz, in, hr, hz, hn, or dense_i, dense_h){other}"
        )
    framework, mapping = found[_choose(argument, found, prefix, "params." if outer else "")]
    return framework, dict(_flatten(mapping))


def _choose(argument: str, cells: Mapping[str, object], prefix: str | None, optional: str = "") -> str:
    """Return the path of the only cell, or of the one at `prefix`, which can begin with `optional`."""
    there = ", ".join(map(repr, cells)) or "none"
    if prefix is None:
        if len(cells) > 1:
            raise SpecError.of(
                "prefix", f"missing; must name one of the {len(cells)} GRUCells in {argument}: {there}"
            )
        if not cells:
            raise SpecError.of(
                argument, "contains no GRUCell; must be an nnx.GRUCell or a module that contains one"
            )
        return next(iter(cells))
    wanted = prefix.removesuffix(".") if isinstance(prefix, str) else None
    if wanted is not None and wanted not in cells:
        wanted = wanted.removeprefix(optional)
    if wanted is None or wanted not in cells:
        raise SpecError.of("prefix", f"no GRUCell at {shown(prefix)}; available: {there}")
    return wanted


def _search(
    source: Mapping[Any, Any], path: str, depth: int, seen: dict[int, object]
) -> Iterator[tuple[str, Framework, Mapping[str, Any]]]:
    """Find each cell in the parameters, with its path."""
    # `seen` references the searched mappings: nnx.State creates new ones, which could get the same id.
    for framework in (FLAX_LINEN, FLAX_NNX):
        parts = {form.name.partition(".")[0] for form in framework.forms[True]}
        if parts <= set(source) and (framework is FLAX_LINEN or _is_merged_gru(source)):
            yield path, framework, source
            return
    if depth and id(source) not in seen:
        seen[id(source)] = source
        for name, value in source.items():
            if is_mapping(value):
                yield from _search(value, f"{path}.{name}" if path else str(name), depth - 1, seen)


def _is_merged_gru(source: Mapping[Any, Any]) -> bool:
    """Whether dense_h has three gates. NNX LSTMs and plain cells also have a dense_h."""
    dense = source["dense_h"]
    shape = tuple(getattr(dense.get("kernel"), "shape", ())) if is_mapping(dense) else ()
    return len(shape) == 2 and shape[1] == 3 * shape[0]


def _flatten(cell: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Return a cell's tensors by their names in `layouts`, such as "ir.kernel"."""
    for part, tensors in cell.items():
        if not is_mapping(tensors):
            raise SpecError(f"{part}: {type(tensors).__name__}; must be a mapping of kernel and bias")
        yield from ((f"{part}.{name}", tensor) for name, tensor in tensors.items() if tensor is not None)


def _from_module(
    argument: str, module: Any, prefix: str | None
) -> tuple[Mapping[str, Any], tuple[Activation, Activation], bool | None]:
    """Return the parameters and functions of an NNX module's cell, and whether it runs in reverse."""
    wrong = f"{argument}: {type(module).__name__}; must be a mapping of parameters or an NNX module"
    if "flax" not in sys.modules:  # then no Flax modules exist
        raise SpecError(wrong)
    with needs_extra("flax", "flax", "a module of Flax"):
        from flax import linen, nnx
    if isinstance(module, linen.Module):
        raise SpecError.of(
            argument, "a linen module has no parameters; pass the dict that `module.init` returns"
        )
    if not isinstance(module, nnx.Module):
        raise SpecError(wrong)
    cells = {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(module)
        if isinstance(node, nnx.GRUCell)
    }
    path = _choose(argument, cells, prefix)
    cell = cells[path]
    if type(cell) is not nnx.GRUCell:
        raise SpecError.of(argument, f"{type(cell).__name__}, a custom class; must be nnx.GRUCell itself")
    f, g = (_function(getattr(cell, name), name) for name in ("gate_fn", "activation_fn"))
    state: dict[str, dict[str, object]] = {"dense_i": {}, "dense_h": {}}
    for keys, variable in nnx.iter_graph(cell):
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState):
            part, *names = map(str, keys)
            if len(names) != 1 or part not in state:  # a newer version of Flax may use it
                there = ".".join(map(str, keys))
                raise SpecError.of(argument, f"unknown variable {there}; must have only dense_i and dense_h")
            state[part][names[0]] = variable
    return ({path: state} if path else state), (f, g), _runs_in_reverse(argument, nnx, module, cell)


def _function(function: object, argument: str) -> Activation:
    """Identify a function of Flax."""
    import flax.linen.activation as own

    for name, activation in FLAX_NNX.activations.items():
        if getattr(own, name, None) is function:
            return activation
    name = getattr(function, "__name__", type(function).__name__)
    return find_activation(FLAX_NNX, f"{name} (not Flax's)", argument)


def _runs_in_reverse(argument: str, nnx: Any, module: Any, cell: Any) -> bool | None:
    """Whether the module runs the cell in reverse; None if unknown."""
    is_reverse: dict[int, bool] = {}
    nodes = [node for _, node in nnx.iter_graph(module)]
    for node in nodes:
        if isinstance(node, nnx.RNN) and node.cell is cell:
            if node.reverse and not node.keep_order:
                raise SpecError.of(
                    argument, "a reverse RNN needs keep_order=True, because onegru returns Y in input order"
                )
            is_reverse[id(node)] = bool(node.reverse)
    for node in nodes:
        if isinstance(node, nnx.Bidirectional):  # runs its second RNN in reverse in any case
            is_reverse |= {
                id(rnn): way
                for rnn, way in ((node.forward_rnn, False), (node.backward_rnn, True))
                if id(rnn) in is_reverse
            }
    if len(set(is_reverse.values())) > 1:
        raise SpecError.of(argument, "RNNs that run one cell forward and in reverse; pass the cell itself")
    return next(iter(is_reverse.values()), None)


def to_flax(layer: GRU, *, form: str = "linen", direction: str | None = None) -> dict[str, dict[str, Array]]:
    """Convert a layer to the parameters of a Flax `GRUCell`.

    Parameters contain neither the activations nor the direction. Set `gate_fn` and `activation_fn` of the
    cell, and `reverse` of its RNN.

    Args:
        layer: a layer with `linear_before_reset=True`, without clip and attention. Flax must have its
            activations with the same formulas. For NNX, Rbh must be zero.
        form: "linen" (default) or "nnx".
        direction: "forward" or "reverse": the direction to convert. Required for a bidirectional layer.
            Default: None (the only direction).

    Returns:
        arrays with the layer's type, by part ("ir", …, or "dense_i", "dense_h"), then by "kernel" and "bias".

    Raises:
        SpecError: a GRUCell cannot express the layer; the message says why.
    """
    if not isinstance(layer, GRU):
        raise SpecError.of(
            "layer", f"{type(layer).__name__}; must be a GRU; convert the layers of a stack one by one"
        )
    form = choice("form", form, get_args(Form))
    spec = layer.spec
    index = 0
    if spec.direction == "bidirectional":
        index = _DIRECTIONS.index(choice("direction", direction, _DIRECTIONS))
    elif direction is not None and (not isinstance(direction, str) or direction != spec.direction):
        raise SpecError.of(
            "direction", f"{shown(direction)}; must be {spec.direction!r} (the layer's direction) or None"
        )
    framework = _FORMS[cast(Form, form)]
    for function in spec.activations[index]:
        if function not in framework.activations.values():
            raise SpecError.of("activations", f"{function}; must be an activation of {framework.name}")
    arrays = write(framework, spec, layer.weights)[index]
    nested: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        part, _, own = name.partition(".")
        nested.setdefault(part, {})[own] = array
    return nested
