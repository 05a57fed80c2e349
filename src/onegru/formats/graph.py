"""Represent the content of a model file as plain data."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onegru.core.dtypes import Array, convert
from onegru.core.errors import prefixed_errors
from onegru.engines.interface import EngineOptions
from onegru.formats.opened import Opened
from onegru.operators.schema import OpSchema, Port, Role

#: A fixed size, the name of a symbolic size, or None for an unknown size without a name.
Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Input or output of a model.

    Attributes:
        name: the name.
        dtype: the element type by NumPy's name ("str" for strings). The file's type if it is not a tensor.
        shape: the dimensions. None if even the rank is unknown.
        optional: whether the input can be omitted, because the file has a default. Default: False.
        is_tensor: False for sequences, maps and optionals. Default: True.
        aliases: other names in the file. Default: none.
        value: the name of the value in the graph's steps. Default: `name`.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...] | None
    optional: bool = False
    is_tensor: bool = True
    aliases: tuple[str, ...] = ()
    value: str = ""

    def __post_init__(self) -> None:
        if not self.value:
            object.__setattr__(self, "value", self.name)


TensorInfo.__module__ = "onegru.reports"


def by_name(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """Return inputs or outputs by each unambiguous name; names take precedence over aliases."""
    infos = list(infos)
    names = {info.name: info for info in infos}
    aliases = Counter(alias for info in infos for alias in set(info.aliases))
    for info in infos:
        names.update({alias: info for alias in info.aliases if aliases[alias] == 1 and alias not in names})
    return names


class Runner(NamedTuple):
    """Function that runs one step of a model."""

    reads: Collection[str]  # the values that a run needs
    run: Callable[[dict[str, Any]], None]  # adds the step's outputs to its argument, the values by name


class Step(ABC):
    """Step of a model: a GRU node, or an operation in NumPy."""

    node_count = 0  # number of nodes in the step, without GRU nodes and type conversions
    writes_views = False  # whether its outputs share memory with its inputs

    @property
    @abstractmethod
    def reads(self) -> Collection[str]:
        """The input values."""

    @property
    @abstractmethod
    def writes(self) -> Collection[str]:
        """The output values."""

    @abstractmethod
    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return the runner of this step, given the runners of the GRU nodes."""


@dataclass(frozen=True, eq=False)
class GruStep(Step):
    """Node that onegru runs."""

    name: str  # its name in the file, or one from its index
    operator: OpSchema  # the operator and its version
    attributes: Mapping[str, object]  # the attributes that are present
    inputs: Mapping[str, str]  # the value of each input, by the input's name, without absent ones
    outputs: Mapping[str, str]  # the value of each output, by the output's name, without absent ones
    # descriptions of the enclosing subgraphs, the outermost first
    bodies: tuple[str, ...] = ()
    # the shape of X in the file, with None for sizes that are not fixed; None if even the rank is unknown
    x_shape: tuple[int | None, ...] | None = None
    full_length: bool = False  # whether its lengths always equal X's number of steps
    has_function: bool = True  # whether the file has the function that other runtimes need for an AUGRU node

    def __str__(self) -> str:
        return f"{self.operator.name} node {self.name!r}"

    @property
    def ports(self) -> tuple[Port, ...]:
        """The operator's inputs, then its outputs, with their axes in the node's layout."""
        layout = self.attributes.get("layout", 0)
        return self.operator.ports(layout if isinstance(layout, int) else 0)

    def port(self, role: Role) -> Port | None:
        """Return the input or output with this role, as in `ports`; None if the operator has none."""
        return next((port for port in self.ports if port.role == role), None)

    def value(self, role: Role) -> str:
        """Return the value of the input or output with this role; empty if the node has none."""
        port = self.port(role)
        return "" if port is None else {**self.inputs, **self.outputs}.get(port.name, "")

    def axis(self, role: Role, letter: str) -> int:
        """Return the index of an axis, such as "T", in an input or output; -1 if there is none."""
        port = self.port(role)
        return -1 if port is None else port.axes.find(letter)

    @property
    def reads(self) -> Collection[str]:
        """The input values."""
        return self.inputs.values()

    @property
    def writes(self) -> Collection[str]:
        """The output values."""
        return self.outputs.values()

    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return the runner of the node's layer."""
        return layers[self]


class OwnStep(Step):
    """Step that runs itself, independent of the engine for GRU nodes."""

    reads: Collection[str] = ()
    writes: Collection[str] = ()

    def __init__(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        self.reads = reads
        self.writes = writes

    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return a runner that calls `run`."""
        return Runner(self.reads, self.run)

    @abstractmethod
    def run(self, values: dict[str, Any]) -> None:
        """Add the outputs to the values, by name."""


class Conversion(OwnStep):
    """Change of the element type: OpenVINO's Convert."""

    def __init__(self, location: str, source: str, target: str, dtype: str) -> None:
        super().__init__((source,), (target,))
        self._location = location
        self.dtype = dtype

    def run(self, values: dict[str, Any]) -> None:
        """Add the output to the values."""
        (source,), (target,) = self.reads, self.writes
        with prefixed_errors(self._location):
            values[target] = convert(values[source], self.dtype)


#: Function from a model's inputs to its outputs, by their names in the graph.
Run = Callable[[Mapping[str, Any]], dict[str, Any]]

#: Function from a model's inputs to its outputs, by public names. It returns None if it cannot run.
QuickRun = Callable[[object], dict[str, Any] | None]

#: Called with the index of a GRU node, an event, and the node's arrays by the specification's names. Events
#: are "weights" (with the packed weights) and "done" (with all arrays). The arrays are valid only during it.
Observer = Callable[[int, str, Mapping[str, Array]], None]


@dataclass(frozen=True, eq=False)
class RuntimeModel(ABC):
    """Model that a runtime runs as a whole, with onegru for its GRU nodes."""

    node_count: int  # the number of other nodes, without constants and nodes computed only from them
    shared: frozenset[str]  # the outputs that share memory with inputs or constants

    @abstractmethod
    def open(self, options: EngineOptions, observer: Observer | None = None) -> Run:
        """Return a function that runs the model."""

    def quick_run(
        self, run: Run, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> QuickRun | None:
        """Return a faster form of `run`, or None without one."""
        return None


@dataclass(frozen=True, slots=True)
class Outline:
    """Operators of a model, as in its file."""

    content: Any  # a ModelProto without its large constants, or an IR's .xml; callers must not change it
    weights: Array | None = None  # the IR's .bin; None for an ONNX model


@dataclass(frozen=True, slots=True)
class Graph:
    """Whole model."""

    path: str  # the file
    inputs: tuple[TensorInfo, ...]  # the inputs
    outputs: tuple[TensorInfo, ...]  # the outputs
    constants: Mapping[str, Array]  # the file's constants that steps or outputs use
    steps: tuple[Step, ...]  # the steps, in an executable order
    prelude: tuple[OwnStep, ...] = ()  # steps that depend only on constants and run once
    # all GRU nodes, in an executable order; those of subgraphs follow those of the model
    grus: tuple[GruStep, ...] = ()
    # the model for a runtime, if it has more than `steps`; then `steps` is empty
    whole: RuntimeModel | None = None
    # pairs of an output and the input that receives it in the next run, by their names
    states: tuple[tuple[str, str], ...] = ()
    # the shapes of states before the first run, by input name; names in them refer to sizes of other inputs.
    # If the model was rewritten for streaming, `states` are all states that it needs
    starts: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    # the initial values of states that are not zero, perhaps one row for all
    initial: Mapping[str, Array] = field(default_factory=dict)
    # for inputs with steps: the time axis, and the smallest number of steps of the first run
    least_steps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # whether the model itself keeps `states` from run to run; the inputs can then be omitted, and a run
    # starts from `initial`
    keeps: bool = False
    # the names of inputs that can be omitted: states of GRU nodes, which are then zero, or states that the
    # model keeps
    zero_inputs: frozenset[str] = frozenset()
    outline: Outline | None = None  # all operators, for analyses of more than GRU nodes
    # the source, for readers of the whole file; None for a model in memory
    file: Opened | None = None
    data: bytes = b""  # the bytes of an ONNX model from memory, or after fusion in memory; else empty


def nested_words(grus: Iterable[GruStep]) -> tuple[str, ...]:
    """Describe the GRU nodes in subgraphs of other nodes."""
    return tuple(f"{gru} in {', in '.join(reversed(gru.bodies))}" for gru in grus if gru.bodies)


class LazyConstants(Mapping[str, Array]):
    """Constants of a graph, which are all read on first access."""

    def __init__(self, read: Callable[[], Mapping[str, Array]]) -> None:
        self._read = read

    @functools.cached_property
    def _arrays(self) -> Mapping[str, Array]:
        return self._read()

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


#: Metadata key of models rewritten for streaming: which output feeds which input.
STREAM_KEY = "onegru.stream"

#: Metadata key and value that `onegru.save_layers` writes if the initial states of a model can be omitted.
STATES_KEY, STATES_WORD = "onegru.initial_h", "optional"


def initial_states(graph: Graph) -> frozenset[str]:
    """Return the names of inputs that are used only as initial states of GRU nodes."""
    reads = Counter(value for step in graph.steps or graph.grus for value in step.reads)
    reads.update(info.value for info in graph.outputs)
    states = Counter(gru.value("initial_h") for gru in graph.grus)
    return frozenset(info.name for info in graph.inputs if 0 < reads[info.value] == states[info.value])


def kept_states(graph: Graph) -> str:
    """The states that a model keeps on its own, as text; empty if it keeps none."""
    return ", ".join(f"{output} → {name}" for output, name in graph.states) if graph.keeps else ""


def batch_axes(graph: Graph) -> dict[str, int]:
    """Return the batch axis of each input that is the initial state of a GRU node, by input name."""
    names = {info.value: info.name for info in graph.inputs}
    states = {names.get(gru.value("initial_h")): gru.axis("initial_h", "B") for gru in graph.grus}
    return {name: axis for name, axis in states.items() if name is not None}
