"""The content of a model file, as plain data."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onegru.core.dtypes import Array, convert
from onegru.core.errors import prefixed_errors
from onegru.engines.interface import EngineOptions
from onegru.formats.opened import Opened
from onegru.operators.schema import Operator, Port, Role

#: A fixed size, the name of a symbolic size, or None for an unknown size without a name.
Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model.

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
    """What runs one step of a model."""

    reads: Collection[str]  # the values that a run needs
    run: Callable[[dict[str, Any]], None]  # adds the step's outputs to the values that it is given, by name


class Step(ABC):
    """A step of a model: a GRU node, or an operation in NumPy.

    Attributes:
        node_count: number of nodes in the step, without GRU nodes and type conversions.
        gives_views: whether its outputs share memory with its inputs.
    """

    node_count = 0
    gives_views = False

    @property
    @abstractmethod
    def reads(self) -> Collection[str]:
        """The input values."""

    @property
    @abstractmethod
    def gives(self) -> Collection[str]:
        """The output values."""

    @abstractmethod
    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return the runner of this step, given the runners of the GRU nodes."""


@dataclass(frozen=True, eq=False)
class GruStep(Step):
    """A node that onegru runs."""

    name: str  # its name in the file, or one made from its position
    operator: Operator  # which version of which operator
    attributes: Mapping[str, object]  # those that are present
    inputs: Mapping[str, str]  # the value that each input takes, by the input's name; absent ones left out
    outputs: Mapping[str, str]  # the value that each output gives, likewise
    # descriptions of the bodies of other nodes that it lies in, the outermost first
    bodies: tuple[str, ...] = ()
    # what the file says of the shape of X, None for sizes that are not fixed; None if even the rank is
    # unknown
    x_shape: tuple[int | None, ...] | None = None
    full_length: bool = False  # whether its lengths are X's number of steps, whatever a run is given
    has_function: bool = True  # whether the file has the function by which other runtimes run an AUGRU node

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
    def gives(self) -> Collection[str]:
        """The output values."""
        return self.outputs.values()

    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return the runner of the node's layer."""
        return layers[self]


class OwnStep(Step):
    """A step that runs itself, whatever runs the GRU nodes."""

    reads: Collection[str] = ()
    gives: Collection[str] = ()

    def __init__(self, reads: tuple[str, ...], gives: tuple[str, ...]) -> None:
        self.reads = reads
        self.gives = gives

    def runner(self, layers: Mapping[GruStep, Runner]) -> Runner:
        """Return a runner that calls `run`."""
        return Runner(self.reads, self.run)

    @abstractmethod
    def run(self, values: dict[str, Any]) -> None:
        """Add the outputs to the values, by name."""


class Conversion(OwnStep):
    """A change of element type: OpenVINO's Convert."""

    def __init__(self, location: str, source: str, target: str, dtype: str) -> None:
        super().__init__((source,), (target,))
        self._location = location
        self.dtype = dtype

    def run(self, values: dict[str, Any]) -> None:
        """Add what it gives to the values."""
        (source,), (target,) = self.reads, self.gives
        with prefixed_errors(self._location):
            values[target] = convert(values[source], self.dtype)


#: Runs a model: from inputs to outputs, by their names in the graph.
Run = Callable[[Mapping[str, Any]], dict[str, Any]]

#: Called with the index of a GRU node, an event, and the node's arrays by the specification's names. Events
#: are "weights" (with the packed weights) and "done" (with all arrays). The arrays are valid only during it.
Observer = Callable[[int, str, Mapping[str, Array]], None]


@dataclass(frozen=True, eq=False)
class RuntimeModel(ABC):
    """A model that a runtime runs as a whole, its GRU nodes by onegru."""

    node_count: int  # how many other nodes it has, without constants and what is computed only from them
    shared: frozenset[str]  # the outputs that share memory with inputs or constants

    @abstractmethod
    def open(self, options: EngineOptions, observer: Observer | None = None) -> Run:
        """Make it ready to run."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The operators of a model as its file has them."""

    content: Any  # a ModelProto without its large constants, or an IR's .xml; callers must not change it
    weights: Array | None = None  # the IR's .bin; None for an ONNX model


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole model."""

    path: str  # the file
    inputs: tuple[TensorInfo, ...]  # what it takes
    outputs: tuple[TensorInfo, ...]  # what it gives
    constants: Mapping[str, Array]  # the values that the file holds and that steps or outputs use
    steps: tuple[Step, ...]  # what to run, in an order in which it can be run
    prelude: tuple[OwnStep, ...] = ()  # the same for what depends only on constants; run once
    # all its GRU nodes, in an order in which they can run; behind those of the model itself, those of bodies
    grus: tuple[GruStep, ...] = ()
    # the model for a runtime, where there is more than `steps` do; then there are none
    whole: RuntimeModel | None = None
    # pairs of an output and the input that takes it in the next run, by their names
    states: tuple[tuple[str, str], ...] = ()
    # the shapes of states before the first run, by the names of the inputs that take them; names in them
    # stand for sizes of other inputs. Of a model that was rewritten for streaming: `states` are then all that
    # it needs
    starts: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    # the numbers of those that are not zeros there, perhaps one row for all
    initial: Mapping[str, Array] = field(default_factory=dict)
    # for inputs with steps, their axis and how many the first run must have at least
    least_steps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # whether the model itself keeps `states` from run to run, so that they may be left out as inputs, and a
    # run then starts from `initial`
    keeps: bool = False
    # the names of inputs that may be left out: states of GRU nodes, which are zeros then, or those that the
    # model keeps
    zero_inputs: frozenset[str] = frozenset()
    outline: Outline | None = None  # all its operators, for what looks at more than GRU nodes
    # where it comes from, for what reads it as a whole; None for a model in memory
    file: Opened | None = None
    data: bytes = b""  # the bytes of an ONNX model that was given or fused in memory; else empty


def nested_words(grus: Iterable[GruStep]) -> tuple[str, ...]:
    """Describe the GRU nodes in subgraphs of other nodes."""
    return tuple(f"{gru} in {', in '.join(reversed(gru.bodies))}" for gru in grus if gru.bodies)


class LazyConstants(Mapping[str, Array]):
    """The constants of a graph, read when the first of them is asked for."""

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
