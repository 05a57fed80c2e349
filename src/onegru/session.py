"""A whole model: its GRU nodes run by onegru, what lies between them by another runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from onegru.dialect import Lowered, check_attributes, lower
from onegru.dtypes import Array, numpy_dtype
from onegru.errors import FormatError, SpecError, needs_extra
from onegru.files.graph import Conversion, Graph, GruNode, Step, TensorInfo, ValueType, by_name
from onegru.layer import GRU

__all__ = ["GruLayer", "Model", "load"]

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

    def prepare(self, constants: Mapping[str, object], shared: dict[object, GruLayer]) -> None:
        """Make the layer ahead of every run, if its weights are constants.

        Args:
            constants: the model's constants.
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

    def run(self, values: Mapping[str, object]) -> dict[str, Array]:
        """The node's outputs, by the names of the values."""
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
            self._constants.update(self._run_step(step, self._constants))
        shared: dict[object, GruLayer] = {}
        for layer in self._gru_layers.values():
            layer.prepare(self._constants, shared)
        for step in graph.steps:
            self._prepare(step, types)

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
    def graph(self) -> Graph:
        """What the file holds, as plain data."""
        return self._graph

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
        values: dict[str, Any] = {**self._constants, **self._checked(inputs)}
        steps = self._graph.steps
        for done, step in enumerate(steps):
            if progress is not None:
                progress(done, len(steps))
            values.update(self._run_step(step, values))
        if progress is not None:
            progress(len(steps), len(steps))
        return {output.name: self._result(values, _value(output)) for output in self.outputs}

    def _result(self, values: Mapping[str, Any], name: str) -> Any:
        """A value that is the caller's own: a constant may not be, as the next run has it too."""
        value = values[name]
        if value is self._constants.get(name) and isinstance(value, np.ndarray):
            return value.copy()
        return value

    def _run_step(self, step: Step, values: Mapping[str, object]) -> Mapping[str, Any]:
        if isinstance(step, GruNode):
            return self._gru_layers[id(step)].run(values)
        if isinstance(step, Conversion):
            with _naming(f"{self.path}: Convert layer {step.name!r}: "):
                return {step.output: convert(values[step.input], step.dtype)}
        return step.run(values)

    def _checked(self, inputs: Mapping[str, object]) -> dict[str, object]:
        if not isinstance(inputs, Mapping):
            raise SpecError(f"inputs: {type(inputs).__name__}; must be a mapping from names to arrays")
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
