"""A whole model: its GRU nodes run by onegru, what lies between them by another runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from onegru.dialect import Lowered, check_attributes, lower
from onegru.dtypes import Array, numpy_dtype
from onegru.errors import FormatError, SpecError, needs_extra
from onegru.files.graph import Conversion, Graph, GruNode, Step, TensorInfo, ValueType, by_name
from onegru.layer import GRU
from onegru.model_stream import ModelStream

__all__ = ["GruLayer", "Model", "load", "load_bytes"]

Progress = Callable[[int, int], None]

_WEIGHTS = ("W", "R", "B")


def load(path: str | os.PathLike[str], *, engine: str = "auto") -> Model:
    """Load a model that holds GRUs.

    Args:
        path: an ONNX model (`.onnx`; any other name but `.xml` is taken for one as well), or an OpenVINO IR
            (`.xml`, with its `.bin` beside it).
        engine: what runs the GRU nodes, as in `onegru.GRU`.

    Returns:
        the model, ready to run.

    Raises:
        FormatError: the file is broken, hostile, or holds what onegru does not run.
        SpecError: a GRU node is not legal; the message names the node and the argument.
        MissingExtraError: the model needs a package that is not installed.
        OSError: the file cannot be opened.

    Warns:
        SpecWarning: a node carries what has no effect.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise FormatError(f"{path}: not a regular file")
        with path.open("rb"):
            pass  # a file that cannot be opened says so as every file does
    except ValueError as error:  # a null character in the name; a FormatError is one, too
        raise error if isinstance(error, FormatError) else FormatError(f"{str(path)!r}: {error}") from None
    if path.suffix.lower() == ".xml":
        from onegru.files.openvino_ir import load_ir

        graph = load_ir(path)
    else:
        with needs_extra("onnx", "onnx", str(path)):
            from onegru.files.onnx_model import load_onnx

        graph = load_onnx(path)
    return Model(graph, engine=engine)


def load_bytes(data: bytes, *, engine: str = "auto") -> Model:
    """Load an ONNX model from its serialized form; it may have no external data. Raises as `load` does."""
    with needs_extra("onnx", "onnx", "an ONNX model"):
        from onegru.files.onnx_model import parse_onnx
        from onegru.files.onnx_read import Source
    return Model(parse_onnx(data, Source("model in memory")), engine=engine)


class GruLayer:
    """One GRU node of a model.

    Attributes:
        node: the node as the file has it.
        layer: its layer, with its weights; None where the weights are computed anew in each run.
    """

    def __init__(self, node: GruNode, place: str, engine: str) -> None:
        self.node = node
        self.layer: GRU | None = None
        self._place = place
        self._engine = engine
        self._lowered: Lowered | None = None
        self._weights: tuple[object, ...] = ()
        self._plain: Callable[[Mapping[str, object]], dict[str, Array] | None] | None = None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def operator(self) -> str:
        """The operator and its version, such as "GRU-14"."""
        return str(self.node.operator)

    @property
    def weights(self) -> tuple[Array, ...]:
        """W, R and, if there is one, B, as the node gets them; empty where they are computed in each run."""
        return tuple(np.asarray(array) for array in self._weights if array is not None)

    def __repr__(self) -> str:
        return f"GruLayer({self.name!r}, {self.operator}, {self.layer!r})"

    def prepare(
        self, constants: Mapping[str, object], defaults: Container[str], shared: dict[object, GruLayer]
    ) -> None:
        """Make the layer ahead of every run, if its weights are constants.

        Args:
            constants: the model's constants.
            defaults: the names of those that a run may be given another value for.
            shared: nodes that have a layer already, by what it is made of: nodes that share weights, such as
                the cells of an unrolled loop, share the layer too.
        """
        node = self.node
        if any(node.inputs.get(name, name) not in constants for name in _WEIGHTS if name in node.inputs):
            check_attributes(node.operator, node.attributes, self._place)
            return
        self._weights = self._weights_in(constants)
        key = (str(node.operator), repr(sorted(node.attributes.items())), *map(id, self._weights))
        twin = shared.setdefault(key, self)
        if twin is self:
            self.layer, self._lowered = self._make(self._weights)
        else:
            self.layer, self._lowered = twin.layer, twin._lowered
        special = node.attributes.get("layout") or "sequence_lens" in node.inputs
        replaceable = any(node.inputs.get(name) in defaults for name in _WEIGHTS)
        if node.operator.name == "GRU" and not special and not replaceable and self.layer is not None:
            self._plain = _plain_call(node, self.layer)

    def run(self, values: Mapping[str, object]) -> dict[str, Array]:
        """The node's outputs, by the names of the values."""
        if self._plain is not None and (results := self._plain(values)) is not None:
            return results
        node = self.node
        layer, lowered = self.layer, self._lowered
        weights = self._weights_in(values)
        if (
            layer is None
            or lowered is None
            or any(a is not b for a, b in zip(weights, self._weights, strict=True))
        ):
            layer, lowered = self._make(weights)
        given = {name: values[value] for name, value in node.inputs.items() if name not in _WEIGHTS}
        with _naming(self._place):
            results = layer.apply(lowered.ports, given, dict.fromkeys(node.outputs), strict_types=True)
        return {node.outputs[name]: array for name, array in results.items()}

    def _weights_in(self, values: Mapping[str, object]) -> tuple[object, ...]:
        inputs = self.node.inputs
        return tuple(values[inputs[name]] if name in inputs else None for name in _WEIGHTS)

    def _make(self, weights: tuple[object, ...]) -> tuple[GRU, Lowered]:
        with _naming(self._place):
            lowered = lower(self.node.operator, self.node.attributes, *weights, where=self._place)
        return GRU.from_canonical(lowered.spec, lowered.weights, self._engine), lowered


def _plain_call(node: GruNode, layer: GRU) -> Callable[[Mapping[str, object]], dict[str, Array] | None]:
    """A quick way to a GRU node's outputs; it gives None where a value is not plain, or not right."""
    x, h = node.inputs["X"], node.inputs.get("initial_h")
    names = [(node.outputs[name], name == "Y") for name in node.outputs]
    D, H, dtype = layer.spec.num_directions, layer.spec.hidden_size, numpy_dtype(layer.spec.dtype)
    try_call, empty, ndarray = layer.try_call, np.empty, np.ndarray

    def call(values: Mapping[str, object]) -> dict[str, Array] | None:
        X = values[x]
        if type(X) is not ndarray or X.ndim != 3:
            return None
        T, B, _ = X.shape
        Y, Y_h = empty((T, D, B, H), dtype), empty((D, B, H), dtype)
        if not try_call(X, None if h is None else values[h], Y, Y_h):
            return None
        return {name: Y if is_sequence else Y_h for name, is_sequence in names}

    return call


class Model:
    """A model, ready to run.

    Args:
        graph: what a file holds.
        engine: what runs the GRU nodes, as in `onegru.GRU`.

    Raises:
        SpecError: a GRU node is not legal.
        FormatError: another runtime refuses its part.
    """

    def __init__(self, graph: Graph, *, engine: str = "auto") -> None:
        self._graph = graph
        self._engine = engine
        self._inputs = [_Input(info) for info in graph.inputs]
        # What shares memory with something that a caller, or the next run, may have in hand.
        self._views = {
            name
            for step in (*graph.prelude, *graph.steps)
            if not isinstance(step, GruNode | Conversion) and step.gives_views
            for name in step.outputs
        }
        self._gru_layers = {
            id(step): GruLayer(step, f"{graph.path}: {step.operator.name} node {step.name!r}: ", engine)
            for step in graph.steps
            if isinstance(step, GruNode)
        }
        self._constants: dict[str, object] = dict(graph.constants)
        types = dict(graph.types)
        for step in graph.prelude:
            self._prepare(step, types)
        for step in graph.prelude:
            self._constants.update(self._runner(step)(self._constants))
        shared: dict[object, GruLayer] = {}
        for layer in self._gru_layers.values():
            layer.prepare(self._constants, {_value(info) for info in graph.inputs}, shared)
        for step in graph.steps:
            self._prepare(step, types)
        self._runs = [self._runner(step) for step in graph.steps]

    def _prepare(self, step: Step, types: dict[str, ValueType]) -> None:
        if isinstance(step, GruNode):
            types.update(_output_types(step, types))
        elif not isinstance(step, Conversion):
            step.prepare(types)

    @property
    def path(self) -> str:
        """The file that the model comes from."""
        return self._graph.path

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it takes: names, types and shapes."""
        return self._graph.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives: names, types and shapes."""
        return self._graph.outputs

    @property
    def gru_layers(self) -> tuple[GruLayer, ...]:
        """Its GRU nodes, in the order in which they run."""
        return tuple(self._gru_layers.values())

    @property
    def nested_grus(self) -> tuple[str, ...]:
        """In words, the GRU nodes within bodies of If, Loop and Scan nodes, which ONNX Runtime runs."""
        return self._graph.nested

    @property
    def other_node_count(self) -> int:
        """How many nodes another runtime runs."""
        return sum(
            step.node_count for step in self._graph.steps if not isinstance(step, GruNode | Conversion)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_make_model, (self._graph, self._engine))

    def __repr__(self) -> str:
        return f"Model({self.path!r}, {len(self.gru_layers)} GRU nodes, {self.other_node_count} others)"

    def run(self, inputs: Mapping[str, object], *, progress: Progress | None = None) -> dict[str, Array]:
        """Run the model.

        Args:
            inputs: an array for each input, by name.
            progress: called before each step and after the last, with the steps done and the steps in all.

        Returns:
            an array for each output, by name, in the model's order.

        Raises:
            SpecError: an input is missing, unknown, or of a type or shape that does not fit.
            FormatError: another runtime fails on its part.
        """
        values = self._values(inputs, progress)
        return {output.name: self._result(values, _value(output)) for output in self.outputs}

    def trace(self, inputs: Mapping[str, object]) -> list[dict[str, Array]]:
        """Run the model, and give what each GRU node of `gru_layers` took and gave.

        Args:
            inputs: as for `run`.

        Returns:
            for each node its inputs and outputs, by the names that the operator's text has for them.

        Raises:
            SpecError, FormatError: as `run`.
        """
        values = self._values(inputs, None)
        return [
            {port: np.asarray(values[name]) for port, name in (*node.inputs.items(), *node.outputs.items())}
            for node in (layer.node for layer in self.gru_layers)
        ]

    def _values(self, inputs: Mapping[str, object], progress: Progress | None) -> dict[str, Any]:
        """Every value of a run, by name."""
        values: dict[str, Any] = {**self._constants, **self._checked(inputs)}
        for done, run in enumerate(self._runs):
            if progress is not None:
                progress(done, len(self._runs))
            values.update(run(values))
        if progress is not None:
            progress(len(self._runs), len(self._runs))
        return values

    def stream(
        self, state: Mapping[str, str] | None = None, *, dims: Mapping[str, int] | None = None
    ) -> ModelStream:
        """The model, fed piece by piece: what it gives for a state is what it takes in the next step.

            stream = model.stream()
            for frame in frames:
                out = stream.step({"x": frame})

        Args:
            state: the input that takes each state output, as {"h_out": "h_in"}; None to find them: the
                initial state of GRU nodes that is an input, and their Y_h that is an output.
            dims: sizes of symbolic dimensions of states, by name, that the other inputs do not tell.

        Raises:
            SpecError: an output or input is unknown, they do not go together, or none is found.
        """
        if state is None:
            state = dict(self._graph.states)
            if not state:
                raise SpecError(
                    f"state: none found in {self.path}: no GRU node takes its initial state from an input "
                    'and gives its last one to an output; name them, as {"h_out": "h_in"}'
                )
        if not isinstance(state, Mapping) or not state:
            raise SpecError("state: must be a mapping from outputs to inputs, with at least one")
        return ModelStream(self, state, dims or {})

    def _result(self, values: Mapping[str, Any], name: str) -> Any:
        """A value that is the caller's own: a constant is not, as the next run has it too, nor is a view."""
        value = values[name]
        if isinstance(value, np.ndarray) and (name in self._views or value is self._constants.get(name)):
            return value.copy()
        return value

    def _runner(self, step: Step) -> Callable[[Mapping[str, object]], Mapping[str, Any]]:
        """What runs a step."""
        if isinstance(step, GruNode):
            return self._gru_layers[id(step)].run
        if not isinstance(step, Conversion):
            return step.run

        def run(values: Mapping[str, object]) -> Mapping[str, Any]:
            with _naming(f"{self.path}: Convert layer {step.name!r}: "):
                return {step.output: convert(values[step.input], step.dtype)}

        return run

    def _checked(self, inputs: Mapping[str, object]) -> dict[str, object]:
        if not isinstance(inputs, Mapping):
            raise SpecError(f"inputs: {type(inputs).__name__}; must be a mapping from names to arrays")
        if len(inputs) == len(self._inputs) and all(known.has_plain(inputs) for known in self._inputs):
            return {known.value: inputs[known.name] for known in self._inputs}
        known = by_name(self.inputs)
        values: dict[str, object] = {}
        for name, value in inputs.items():
            info = known.get(name)
            if info is None:
                names = ", ".join(repr(info.name) for info in self.inputs) or "none"
                raise SpecError(f"{name!r}: not an input of {self.path}; its inputs: {names}")
            if _value(info) in values:
                raise SpecError(f"{name!r}: given twice; another name of it is {info.name!r}")
            values[_value(info)] = _fit(info, value) if info.is_tensor else value
        for info in self.inputs:
            if _value(info) not in values and not info.optional:
                raise SpecError(f"{info.name!r}: missing; {self.path} requires it, {_words(info)}")
        return values


class _Input:
    """An input, for a quick look at what is given for it."""

    def __init__(self, info: TensorInfo) -> None:
        self.name = info.name
        self.value = _value(info)
        plain = info.is_tensor and info.shape is not None and info.dtype not in ("str", "unknown")
        self._dtype = numpy_dtype(info.dtype) if plain else None
        self._rank = len(info.shape or ())
        self._fixed = [(axis, size) for axis, size in enumerate(info.shape or ()) if isinstance(size, int)]

    def has_plain(self, inputs: Mapping[str, object]) -> bool:
        """Whether there is an array for it that fits; others need a closer look."""
        array = inputs.get(self.name)
        return (
            type(array) is np.ndarray
            and array.dtype == self._dtype
            and array.ndim == self._rank
            and all(array.shape[axis] == size for axis, size in self._fixed)
        )


def _make_model(graph: Graph, engine: str) -> Model:
    """A model again, where one was pickled."""
    return Model(graph, engine=engine)


def _output_types(node: GruNode, types: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """The types of a GRU node's outputs, given those of its inputs."""
    X, W = (types.get(node.inputs[name], ValueType()) for name in ("X", "W"))
    axes = {port.name: port.axes for port in node.operator.ports(1 if node.attributes.get("layout") else 0)}
    sizes: dict[str, int | None] = dict(zip(axes["X"], X.shape or (), strict=False))
    sizes["D"] = 2 if node.attributes.get("direction") == "bidirectional" else 1
    hidden_size = node.attributes.get("hidden_size")
    sizes["H"] = hidden_size if isinstance(hidden_size, int) else None
    return {
        value: ValueType(X.words or W.words, tuple(sizes.get(axis) for axis in axes[name]))
        for name, value in node.outputs.items()
    }


def convert(value: object, dtype: str) -> Array:
    """`value` with another element type, as OpenVINO's Convert: towards zero from floating point to integer.

    Raises:
        SpecError: a number does not fit an integer type.
    """
    array = np.asarray(value)
    target = numpy_dtype(dtype)
    if target.kind in "iu" and array.dtype.kind != "b":
        limits = np.iinfo(target)
        if array.dtype.kind in "iu":
            fits = (array >= limits.min) & (array <= limits.max)
        else:
            numbers = array.astype(np.float64)
            fits = (numbers > limits.min - 1.0) & (numbers < limits.max + 1.0)
        if not np.all(fits):
            raise SpecError(f"a number is not finite, or beyond {dtype}; must fit it")
    with np.errstate(over="ignore"):
        return array.astype(target)


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Say in errors where in the file they arose."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{place}{error}") from None
    except MemoryError as error:
        raise FormatError(f"{place}sizes that exhaust memory ({error})") from None


def _fit(info: TensorInfo, value: object) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{info.name!r}: not an array ({error}); must be {_words(info)}") from None
    if np.ma.isMaskedArray(value):
        raise SpecError(f"{info.name!r}: a masked array; must be a plain one, as a mask would have no effect")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    is_text = array.dtype.kind in "UST" or (array.dtype.kind == "O" and info.dtype == "str")
    have = "str" if is_text else array.dtype.name
    if info.dtype not in (have, "unknown"):
        raise SpecError(f"{info.name!r}: type {have}; must be {info.dtype}")
    fits = info.shape is None or (
        len(info.shape) == array.ndim
        and all(
            not isinstance(want, int) or want == size
            for want, size in zip(info.shape, array.shape, strict=True)
        )
    )
    if not fits:
        raise SpecError(f"{info.name!r}: shape {list(array.shape)}; must be {_words(info)}")
    return array.astype(object) if have == "str" else array


def _words(info: TensorInfo) -> str:
    if info.shape is None:
        return info.dtype
    return f"{info.dtype} [{', '.join('?' if size is None else str(size) for size in info.shape)}]"


def _value(info: TensorInfo) -> str:
    """What steps call an input or output."""
    return info.value or info.name
