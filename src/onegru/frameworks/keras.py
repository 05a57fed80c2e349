"""Convert GRUs from and to Keras 3 layers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from onegru.core.activations import Activation
from onegru.core.arguments import shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError, needs_extra
from onegru.frameworks.keras_config import RECURRENT, from_arrays, from_config
from onegru.frameworks.layouts import KERAS
from onegru.frameworks.weights import activation_name, write
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of


def from_keras(
    source: object,
    *,
    name: str | None = None,
    reset_after: bool | None = None,
    bidirectional: bool | None = None,
    activation: str | None = None,
    recurrent_activation: str | None = None,
    engine: str = "auto",
) -> GRU | Stack:
    """Create a layer or stack from a Keras layer or its arrays.

    Args:
        source: one of:

            - a built `keras.layers.GRU`, `GRUCell`, or `RNN` of a `GRUCell` or of `StackedRNNCells`;
            - a `Bidirectional` of one of these, with merge_mode "concat";
            - a `Sequential` that consists of these;
            - a model that contains one of these, and no GRUs inside layers of other classes;
            - the list of arrays that `layer.get_weights()` returns: kernel [I, 3H], recurrent_kernel [H, 3H]
              and, if there is one, bias ([2, 3H] or [3H]). For two directions, the backward arrays follow the
              forward arrays.
        name: the name of the layer, if the model contains several. Default: None (the only layer).
        reset_after: the reset mode. Required for arrays without biases. Default: None (inferred).
        bidirectional: whether 4 or more arrays are two directions. Required for such arrays. Pass the layers
            of a stack one by one.
        activation: the name of g, for arrays. Default: None ("tanh", as in Keras).
        recurrent_activation: the name of f, for arrays. Default: None ("sigmoid", as in Keras).
        engine: the engine that runs the layer, as in `onegru.GRU`.

    Returns:
        a `GRU`, or a `Stack` for stacked cells and a `Sequential`, with the type of the variables. Calls
        expect time first unless you pass layout=1. dropout, stateful, unroll, return_sequences and
        return_state have no effect: a layer always returns Y and Y_h. A layer with go_backwards=True becomes
        a reverse layer if it returns only its last output, because Keras does not reorder its sequences.

    Raises:
        SpecError: a required argument is missing, or the layer has an unsupported feature: an activation,
            a merge_mode, a sequence in processing order, a custom class.
    """
    if isinstance(source, list | tuple):
        if name is not None:
            raise SpecError.of("name", f"{shown(name)}; must be None for arrays, which have no names")
        return from_arrays(source, reset_after, bidirectional, activation, recurrent_activation, engine)
    given: dict[str, object] = {"reset_after": reset_after, "bidirectional": bidirectional}
    given |= {"activation": activation, "recurrent_activation": recurrent_activation}
    for argument, value in given.items():
        if value is not None:
            raise SpecError.of(argument, f"{shown(value)}; must be None for a layer, which specifies it")
    if "keras" not in sys.modules:  # then no Keras layers exist
        raise SpecError.of("source", f"{type(source).__name__}; must be a Keras layer or a list of arrays")
    return _from_layer(source, name, engine)


def import_keras(purpose: str) -> Any:
    """Import and return Keras, with its configured backend."""
    with needs_extra("keras", "keras", purpose):
        try:
            import keras
        except ModuleNotFoundError as error:
            backend = (error.name or "").split(".")[0]
            if backend == "keras":
                raise
            raise SpecError(
                f"{purpose}: the backend of Keras, {backend}, is not installed; set KERAS_BACKEND to torch, "
                "jax or numpy"
            ) from error
    return keras


def _from_layer(source: Any, name: str | None, engine: str) -> GRU | Stack:
    keras = import_keras("a layer of Keras")
    if not isinstance(source, keras.layers.Layer):
        raise SpecError.of("source", f"{type(source).__name__}; must be a Keras layer or a list of arrays")
    if _class_name(keras, source) is None and hasattr(source, "layers"):
        return _from_model(keras, source, name, engine)
    if name not in (None, source.name):
        raise SpecError.of("name", f"{name!r}; must be {source.name!r}, or None")
    return _from_one(keras, source, engine)


def _class_name(keras: Any, layer: object) -> str | None:
    """Return the class of a layer that can contain GRUs; None for other layers."""
    return next((name for name in RECURRENT if type(layer) is getattr(keras.layers, name)), None)


def _from_one(keras: Any, layer: Any, engine: str) -> GRU | Stack:
    kind = _class_name(keras, layer)
    where = f"{layer.name}: "
    if kind is None:
        raise SpecError(
            f"{where}a layer of class {type(layer).__name__!r}; must be one of {', '.join(RECURRENT)}; if it "
            "computes the same, pass its arrays"
        )
    if not layer.built or not layer.weights:
        raise SpecError(f"{where}not built, so it has no weights; build the layer first")
    _check_functions(keras, layer, where)
    arrays: list[object] = [_to_array(keras, variable) for variable in layer.weights]
    return from_config(kind, layer.get_config(), arrays, engine=engine, where=where)


def _to_array(keras: Any, variable: Any) -> Array:
    array: Array = keras.ops.convert_to_numpy(variable)
    return array.astype(numpy_dtype(keras.backend.standardize_dtype(variable.dtype)))


def _check_functions(keras: Any, layer: Any, where: str) -> None:
    """Reject a custom function or cell with the name of a Keras function or cell."""
    if isinstance(layer, keras.layers.Bidirectional):
        for half in (layer.forward_layer, layer.backward_layer):
            if _class_name(keras, half) is None:
                raise SpecError(f"{where}a layer of class {type(half).__name__!r}; must be a GRU or an RNN")
            _check_functions(keras, half, where)
        return
    cell = getattr(layer, "cell", layer)
    for own in cell.cells if isinstance(cell, keras.layers.StackedRNNCells) else [cell]:
        if type(own) is not keras.layers.GRUCell:
            raise SpecError(f"{where}cell: a {type(own).__name__}; must be a GRUCell")
        for argument in ("activation", "recurrent_activation"):
            function = getattr(own, argument)
            name = getattr(function, "__name__", None)
            if isinstance(function, keras.layers.Layer):
                if type(function) is not getattr(keras.layers, type(function).__name__, None):
                    raise SpecError(
                        f"{where}{argument}: a custom {type(function).__name__}; must be a function of Keras"
                    )
            elif function is not getattr(keras.activations, name or "", None):
                raise SpecError(f"{where}{argument}: {name!r}, a custom function; must be one of Keras's")


def _from_model(keras: Any, model: Any, name: str | None, engine: str) -> GRU | Stack:
    found = list(_recurrent_layers(keras, model))
    there = ", ".join(repr(layer.name) for layer in found) or "none"
    if name is not None:
        chosen = [layer for layer in found if layer.name == name]
        if len(chosen) != 1:
            raise SpecError.of("name", f"{len(chosen)} layers are called {name!r}; must name one of: {there}")
        return _from_one(keras, chosen[0], engine)
    hidden = ", ".join(_holders_of_others(keras, model, found))
    if not found:
        hint = f"; GRUs inside {hidden} are not read: pass such a GRU itself" if hidden else ""
        raise SpecError.of(
            "source", f"the model {model.name!r} contains no layer of class {', '.join(RECURRENT)}{hint}"
        )
    if hidden:
        raise SpecError.of(
            "name", f"missing; must be one of {there}, because GRUs inside {hidden} are not read"
        )
    if len(found) == 1:
        return _from_one(keras, found[0], engine)
    plain = type(model) is keras.Sequential and found == model.layers
    if plain and all(getattr(layer, "return_sequences", False) for layer in found[:-1]):
        made = (_from_one(keras, layer, engine) for layer in found)
        return Stack([layer for each in made for layer in layers_of(each)])
    raise SpecError.of("name", f"missing; must name one of the {len(found)} layers: {there}")


def _recurrent_layers(keras: Any, model: Any) -> Iterator[Any]:
    """Find the layers of a model and its nested models that can be GRUs."""
    for layer in model.layers:
        kind = _class_name(keras, layer)
        if kind in ("GRU", "GRUCell") or (kind is not None and _holds_gru(keras, layer)):
            yield layer
        elif kind is None and hasattr(layer, "layers"):
            yield from _recurrent_layers(keras, layer)


def _holders_of_others(keras: Any, model: Any, found: Sequence[Any]) -> Iterator[str]:
    """Find the other layers of a model that contain GRUs, such as a TimeDistributed."""
    kinds = (keras.layers.GRU, keras.layers.GRUCell)
    seen = {id(inner) for layer in found for inner in layer._flatten_layers()}
    for layer in model.layers:
        if any(isinstance(inner, kinds) and id(inner) not in seen for inner in layer._flatten_layers()):
            yield f"{layer.name!r} ({type(layer).__name__})"


def _holds_gru(keras: Any, layer: Any) -> bool:
    inner = layer.forward_layer if isinstance(layer, keras.layers.Bidirectional) else layer
    cell = getattr(inner, "cell", None)
    cells = cell.cells if isinstance(cell, keras.layers.StackedRNNCells) else [cell]
    return all(isinstance(own, keras.layers.GRUCell) for own in cells)


def to_keras_weights(source: GRU) -> list[Array]:
    """Convert a layer to the arrays of a Keras layer's `set_weights`.

    Args:
        source: a layer without clip and attention. With linear_before_reset=False, Keras has one bias: the
            sum of Wb and Rb, which cannot be separated again.

    Returns:
        kernel [I, 3H], recurrent_kernel [H, 3H] and bias ([2, 3H], or [3H] with linear_before_reset=False).
        For a bidirectional layer, the arrays of the backward direction follow.

    Raises:
        SpecError: Keras cannot express the layer; the message says why.
    """
    if not isinstance(source, GRU):
        raise SpecError.of("source", f"{type(source).__name__}; must be a GRU")
    return _keras_arrays(source)


def _keras_arrays(layer: GRU, where: str = "") -> list[Array]:
    halves = write(KERAS, layer.spec, layer.weights, where=where)
    return [array for tensors in halves for array in tensors.values()]


def to_keras(source: GRU | Stack, *, return_sequences: bool = True, return_state: bool = False) -> Any:
    """Convert a layer or stack to a built Keras layer.

    Args:
        source: a layer or stack without clip and attention. Keras must have its activations with the same
            formulas. With linear_before_reset=False, Keras has one bias: the sum of Wb and Rb, which cannot
            be separated again.
        return_sequences: whether the Keras layer returns Y (default) or only its last outputs, Y_h.
        return_state: whether it also returns the state, as in Keras. Default: False. Must be False for a
            stack.

    Returns:
        a `GRU`, a `Bidirectional` of two, or a `Sequential` of these for a stack.

    Raises:
        SpecError: Keras cannot express the layer; the message says why. For a reverse layer, set
            return_sequences=False, because Keras returns its sequences in processing order.
        MissingExtraError: Keras is not installed.
    """
    layers = layers_of(source)
    if return_state and isinstance(source, Stack):
        raise SpecError.of("return_state", "True; must be False for a stack")
    prepared = []
    for index, layer in enumerate(layers):
        where = f"layer {index}: " if len(layers) > 1 else ""
        sequences = return_sequences or layer is not layers[-1]
        if layer.spec.direction == "reverse" and sequences:
            raise SpecError(
                f"{where}direction: 'reverse'; must be forward or bidirectional, or set "
                "return_sequences=False, because Keras leaves such a sequence in processing order"
            )
        arrays = _keras_arrays(layer, where)
        functions = [
            tuple(_keras_activation(function, where) for function in pair) for pair in layer.spec.activations
        ]
        prepared.append((layer, sequences, arrays, functions))
    keras = import_keras("to_keras")
    made = [_make(keras, *each, return_state) for each in prepared]
    if isinstance(source, GRU):
        return made[0]
    first = layers[0].spec
    return keras.Sequential([keras.Input((None, first.input_size), dtype=first.dtype), *made])


def _keras_activation(function: Activation, where: str) -> str | tuple[str, dict[str, float]]:
    """Return Keras's name of a function, or the class and arguments of its activation layer."""
    try:
        return activation_name(KERAS, function, f"{where}activations")
    except SpecError:
        for kind, (own, parameter, _) in KERAS.activation_layers.items():
            if own == function.name and function.alpha is not None and function.alpha >= 0:
                return kind, {parameter: function.alpha}
        raise


def _make(
    keras: Any,
    layer: GRU,
    sequences: bool,
    arrays: list[Array],
    functions: Sequence[Sequence[str | tuple[str, dict[str, float]]]],
    return_state: bool,
) -> Any:
    spec = layer.spec
    halves = []
    for reverse, pair in zip(spec.reversed_directions, functions, strict=True):
        f, g = (own if isinstance(own, str) else getattr(keras.layers, own[0])(**own[1]) for own in pair)
        halves.append(
            keras.layers.GRU(
                spec.hidden_size,
                activation=g,
                recurrent_activation=f,
                reset_after=spec.linear_before_reset,
                go_backwards=reverse,
                return_sequences=sequences,
                return_state=return_state,
                # Set below; the default initializers do not support all types on all backends.
                kernel_initializer="zeros",
                recurrent_initializer="zeros",
                dtype=spec.dtype,
            )
        )
    made, *others = halves
    if others:
        made = keras.layers.Bidirectional(
            made, backward_layer=others[0], merge_mode="concat", dtype=spec.dtype
        )
    made.build((None, None, spec.input_size))
    made.set_weights(arrays)
    return made
