"""What a file holds, as plain data: the same for every file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onegru.dialects.schema import Operator
from onegru.dtypes import Array

__all__ = [
    "STATES_KEY",
    "STATES_WORD",
    "Conversion",
    "Dimension",
    "Graph",
    "GruNode",
    "Observer",
    "Piece",
    "Run",
    "Step",
    "TensorInfo",
    "Whole",
    "batch_axes",
    "by_name",
    "direct_states",
    "initial_states",
    "nested_words",
]

#: A fixed size, the name of a symbolic one, or None for one that is neither known nor named.
Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        name: its name.
        dtype: its element type by NumPy's name ("str" for strings); the file's own words if not a tensor.
        shape: its dimensions; None if even the rank is unknown.
        optional: whether an input may be left out, as the file holds a default for it.
        is_tensor: False for sequences, maps and optionals.
        aliases: other names that the file has for it.
        value: what steps call it; its name if empty.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...] | None
    optional: bool = False
    is_tensor: bool = True
    aliases: tuple[str, ...] = ()
    value: str = ""


def by_name(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """Inputs or outputs by every name that stands for one of them: a name of its own before an alias."""
    infos = list(infos)
    names = {info.name: info for info in infos}
    aliases = Counter(alias for info in infos for alias in set(info.aliases))
    for info in infos:
        names.update({alias: info for alias in info.aliases if aliases[alias] == 1 and alias not in names})
    return names


@dataclass(frozen=True, slots=True)
class GruNode:
    """A node that onegru runs.

    Attributes:
        name: its name in the file, or one made from its place.
        operator: which version of which operator.
        attributes: those that are present.
        inputs: the value that each input takes, by the input's name; absent ones left out.
        outputs: the value that each output gives, likewise.
        bodies: where it lies in bodies of other nodes: in words, the outermost first.
        x_shape: what the file says of the shape of X, None for sizes that are not fixed; None if even the
            rank is unknown.
        full_length: whether its lengths are X's number of steps, whatever a run is given.
    """

    name: str
    operator: Operator
    attributes: Mapping[str, object]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    bodies: tuple[str, ...] = ()
    x_shape: tuple[int | None, ...] | None = None
    full_length: bool = False


@dataclass(frozen=True, slots=True)
class Conversion:
    """A change of element type: OpenVINO's Convert."""

    name: str
    input: str
    output: str
    dtype: str


class Piece(ABC):
    """A part of a graph that moves axes, which NumPy does.

    Attributes:
        inputs: the values that it takes.
        outputs: the values that it gives.
        gives_views: whether its outputs share memory with its inputs.
    """

    gives_views = False

    def __init__(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs

    @property
    @abstractmethod
    def node_count(self) -> int:
        """How many nodes it has, constants left out."""

    @abstractmethod
    def run(self, values: dict[str, Any]) -> None:
        """Add its outputs to the values, by name."""


#: Runs a model: from its inputs to its outputs, by what the graph calls them.
Run = Callable[[Mapping[str, Any]], dict[str, Any]]

#: Called with the index of a GRU node, a moment, and its arrays by the specification's names, which are gone
#: afterwards: at "weights" those of a node whose weights are constants, at "done" all of one that has run.
Observer = Callable[[int, str, Mapping[str, Array]], None]


class Whole(ABC):
    """A model that a runtime runs as a whole, its GRU nodes by onegru.

    Args:
        node_count: how many other nodes it has, without constants and what is computed from them alone.
        shared: the outputs whose arrays are somebody else's, too.
    """

    def __init__(self, node_count: int, shared: frozenset[str]) -> None:
        self.node_count = node_count
        self.shared = shared

    @abstractmethod
    def open(self, engine: str, observer: Observer | None = None) -> Run:
        """Make it ready to run.

        Args:
            engine: what runs the GRU nodes, as in `onegru.GRU`.
            observer: sees the GRU nodes.

        Raises:
            FormatError: the runtime refuses it.
            SpecError: a GRU node is not legal.
        """


Step = GruNode | Conversion | Piece


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole model.

    Attributes:
        path: the file.
        inputs: what it takes.
        outputs: what it gives.
        constants: the values that the file holds and that steps or outputs use.
        steps: what to run, in an order in which it can be run.
        prelude: the same for what depends on constants alone; run once.
        grus: its GRU nodes, in an order in which they can run; behind those of the model itself, those of
            bodies.
        whole: the model for a runtime, where there is more than `steps` do; then there are none.
        states: pairs of an output and the input that takes it in the next run, by their names.
        zero_inputs: the names of inputs that may be left out: states of GRU nodes, which are zeros then.
    """

    path: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: Mapping[str, Array]
    steps: tuple[Step, ...]
    prelude: tuple[Step, ...] = ()
    grus: tuple[GruNode, ...] = ()
    whole: Whole | None = None
    states: tuple[tuple[str, str], ...] = ()
    zero_inputs: frozenset[str] = frozenset()


def nested_words(grus: Iterable[GruNode]) -> tuple[str, ...]:
    """The GRU nodes within bodies of other nodes, in words."""
    return tuple(
        f"{gru.operator.name} node {gru.name!r} in {', in '.join(reversed(gru.bodies))}"
        for gru in grus
        if gru.bodies
    )


#: What `onegru.save` writes into the metadata of a model whose initial states may be left out.
STATES_KEY, STATES_WORD = "onegru.initial_h", "optional"


def initial_states(
    steps: Iterable[Step], inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo]
) -> frozenset[str]:
    """The names of inputs that are initial states of GRU nodes, and nothing else."""
    states: set[str] = set()
    others = {info.value or info.name for info in outputs}
    for step in steps:
        if not isinstance(step, GruNode):
            others |= {step.input} if isinstance(step, Conversion) else set(step.inputs)
            continue
        port = step.operator.input("initial_h")
        for name, value in step.inputs.items():
            (states if port is not None and name == port.name else others).add(value)
    return frozenset(info.name for info in inputs if (info.value or info.name) in states - others)


def direct_states(
    steps: Iterable[Step], inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo]
) -> tuple[tuple[str, str], ...]:
    """Pairs of an output and the input that takes it in the next run, where both touch a GRU node.

    An input that two GRU nodes start from is left out; of two outputs that are one value, the first is taken.
    """
    takers = {info.value or info.name: info.name for info in inputs}
    givers: dict[str, str] = {}
    for info in outputs:
        givers.setdefault(info.value or info.name, info.name)
    pairs: list[tuple[str, str]] = []
    uses: list[str] = []
    for step in steps:
        if not isinstance(step, GruNode):
            continue
        names = {**step.inputs, **step.outputs}
        roles = {port.role: names.get(port.name, "") for port in step.operator.ports(0)}
        taken, given = takers.get(roles["initial_h"]), givers.get(roles["Y_h"])
        if taken is not None:
            uses.append(taken)
            if given is not None:
                pairs.append((given, taken))
    return tuple(pair for pair in pairs if uses.count(pair[1]) == 1)


def batch_axes(steps: Iterable[Step], inputs: Iterable[TensorInfo]) -> dict[str, int]:
    """The axis of the rows of each input that is the initial state of a GRU node, by the input's name."""
    names = {info.value or info.name: info.name for info in inputs}
    axes: dict[str, int] = {}
    for step in steps:
        if isinstance(step, GruNode):
            for port in step.operator.ports(1 if step.attributes.get("layout") else 0):
                name = names.get(step.inputs.get(port.name, ""))
                if port.role == "initial_h" and name is not None:
                    axes[name] = port.axes.index("B")
    return axes
