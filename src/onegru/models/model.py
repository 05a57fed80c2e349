"""A whole model: its GRU nodes run by onegru, what lies between them by another runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onegru.core.arguments import shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError, SpecWarning
from onegru.core.pickling import state_of
from onegru.core.wording import count
from onegru.formats.graph import Graph, Run, TensorInfo, by_name, nested_words
from onegru.models.gru_node import GruNode
from onegru.models.inputs import Inputs, fit, words_of
from onegru.models.stream import ModelStream

if TYPE_CHECKING:
    pass

Progress = Callable[[int, int], None]


class Model:
    """A model, ready to run.

    Args:
        graph: what a file holds.
        engine: what runs the GRU nodes, as in `onegru.GRU`.

    Raises:
        SpecError: a GRU node is not legal.
        FormatError: another runtime refuses its part.
    """

    __module__ = "onegru"

    def __init__(self, graph: Graph, *, engine: str = "auto") -> None:
        before = set(vars(self))
        self._graph = graph
        self._engine = engine
        self._inputs = Inputs(graph.inputs)
        self._run_whole: Run | None = None
        self._results: list[tuple[str, str, bool]] = []
        self._layers: tuple[GruNode, ...] = ()
        if graph.whole is None:
            self._make_steps(graph, engine)
        else:
            self._run_whole = graph.whole.open(engine)
            self._layers = tuple(
                GruNode(gru, f"{graph.path}: {gru}: ", engine, self._prepare_layers) for gru in graph.grus
            )
            self._results = [(info.name, info.value, True) for info in graph.outputs]
        handed_out = set(graph.whole.shared if graph.whole is not None else ())
        for index, (name, value, is_new) in enumerate(self._results):
            self._results[index] = (name, value, is_new and value not in handed_out)
            handed_out.add(value)  # a second output of one value is a copy
        self._made = {*vars(self), "_made"} - before  # what no pickle needs, as the graph has it

    def _prepare_layers(self) -> None:
        """Make the layers of a model that a runtime runs, for who looks at them."""
        shared: dict[object, GruNode] = {}
        defaults = {info.value for info in self._graph.inputs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)  # given when the model was loaded
            for layer in self._layers:
                layer.prepare(self._graph.constants, defaults, shared)

    def _make_steps(self, graph: Graph, engine: str) -> None:
        # What shares memory with something that a caller, or the next run, may have in hand.
        views = {info.value for info in graph.inputs} | {
            name for step in graph.steps if step.gives_views for name in step.gives
        }
        self._constants: dict[str, Any] = dict(graph.constants)
        for own_step in graph.prelude:
            own_step.run(self._constants)
        layers = {gru: GruNode(gru, f"{graph.path}: {gru}: ", engine) for gru in graph.grus}
        shared: dict[object, GruNode] = {}
        for layer in layers.values():
            layer.prepare(self._constants, {info.value for info in graph.inputs}, shared)
        runners = [step.runner(layers) for step in graph.steps]
        self._runs = [runner.run for runner in runners]
        needed = {info.value for info in graph.outputs}.union(*(runner.reads for runner in runners))
        self._needed = {name: value for name, value in self._constants.items() if name in needed}
        # What each output is called, by callers and by steps, and whether a run makes it anew.
        shared_values = views | self._constants.keys()
        self._results = [(info.name, info.value, info.value not in shared_values) for info in graph.outputs]
        self._layers = tuple(layers.values())

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
    def gru_nodes(self) -> tuple[GruNode, ...]:
        """Its GRU nodes, in the order in which they run; those of bodies come last."""
        return self._layers

    @property
    def nested_grus(self) -> tuple[str, ...]:
        """In words, the GRU nodes within bodies of other nodes, such as If, Loop and Scan."""
        return nested_words(self._graph.grus)

    @property
    def other_node_count(self) -> int:
        """How many nodes another runtime runs."""
        if self._graph.whole is not None:
            return self._graph.whole.node_count
        return sum(step.node_count for step in self._graph.steps)

    @classmethod
    def _of(cls, graph: Graph, engine: str) -> Self:
        """A model of this class again, where one was pickled or copied."""
        model = cls.__new__(cls)
        Model.__init__(model, graph, engine=engine)
        return model

    def __getstate__(self) -> Any:
        return state_of(self, self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._of, (self._graph, self._engine), self.__getstate__())

    def __repr__(self) -> str:
        grus = count(len(self.gru_nodes), "GRU node")
        return f"Model({self.path!r}, {grus}, {count(self.other_node_count, 'other')})"

    def run(self, inputs: Mapping[str, object], *, progress: Progress | None = None) -> dict[str, Array]:
        """Run the model.

        Args:
            inputs: an array for each input, by name. Initial states may be left out of models that
                `onegru.save` wrote: they are zeros then.
            progress: called before each step and after the last, with the steps done and the steps in all.

        Returns:
            an array for each output, by name, in the model's order.

        Raises:
            SpecError: an input is missing, unknown, or of a type or shape that does not fit.
            FormatError: another runtime fails on its part.
        """
        if progress is not None and not callable(progress):
            raise SpecError(f"progress: {shown(progress)}; must be a function")
        return self._handed_out(self._values(inputs, progress))

    def trace(self, inputs: Mapping[str, object]) -> list[dict[str, Array]]:
        """Run the model, and give what each GRU node of `gru_nodes` took and gave.

        Args:
            inputs: as for `run`.

        Returns:
            for each node its inputs and outputs, weights included, by the names that the specification has
            for them, such as "X" and "Y_h".

        Raises:
            SpecError, FormatError: as `run`.
        """
        return self.traced(inputs)[1]

    def traced(self, inputs: Mapping[str, object]) -> tuple[dict[str, Array], list[dict[str, Array]]]:
        """Run the model, and give its outputs and what `trace` gives. Takes and raises what `run` does."""
        if self._graph.whole is not None:
            seen: list[dict[str, Array]] = [{} for _ in self._layers]

            def look(index: int, moment: str, arrays: Mapping[str, Array]) -> None:
                if moment == "done":
                    seen[index] = {name: array.copy() for name, array in arrays.items()}

            values = self._graph.whole.open(self._engine, look)(self._fed(inputs))
            return self._handed_out(values), seen
        values = {**self._constants, **self._values(inputs, None)}
        return self._handed_out(values), [
            {
                port: np.asarray(values[name])
                for port, name in (*node.inputs.items(), *node.outputs.items())
                if name in values  # else a state that was left out
            }
            for node in (gru.step for gru in self.gru_nodes)
        ]

    def _handed_out(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """A run's outputs, by the names that callers know."""
        results: dict[str, Array] = {}
        for name, value, is_new in self._results:
            results[name] = values[value] if is_new else _copy(values[value])
        return results

    def _fed(self, inputs: Mapping[str, object]) -> Mapping[str, Any]:
        """What a run is given, checked, by what the graph calls it."""
        given = self._inputs.plain(inputs) if type(inputs) is dict else None
        if given is not None:
            return given
        values = self._checked(inputs)
        if self._run_whole is not None:
            self._add_zero_states(values)
        return values

    def _add_zero_states(self, values: dict[str, Any]) -> None:
        """Put zeros in the place of initial states that were left out."""
        infos = [info for info in self.inputs if info.name in self._graph.zero_inputs]
        missing = [info for info in infos if info.value not in values]
        if not missing:
            return
        rows = {
            values[gru.inputs["X"]].shape[port.axes.index("B")]
            for gru in self._graph.grus
            for port in gru.ports
            if port.role == "X" and gru.inputs["X"] in values
        }
        count = rows.pop() if len(rows) == 1 else 0
        for info in missing:
            sizes = [size if isinstance(size, int) else count for size in info.shape or ()]
            values[info.value] = np.zeros(sizes, numpy_dtype(info.dtype))

    def _values(self, inputs: Mapping[str, object], progress: Progress | None) -> dict[str, Any]:
        """Every value of a run, by name, but constants that no step reads."""
        if self._run_whole is not None:
            fed = self._fed(inputs)
            if progress is not None:
                progress(0, 1)
            values = self._run_whole(fed)
            if progress is not None:
                progress(1, 1)
            return values
        values = self._needed.copy()
        values.update(self._fed(inputs))
        if progress is None:
            for run in self._runs:
                run(values)
            return values
        for done, run in enumerate(self._runs):
            progress(done, len(self._runs))
            run(values)
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
                    f"state: none found in {self.path}: no input is the initial state of one GRU node alone, "
                    'whose last one is an output; name them, as {"h_out": "h_in"}'
                )
        if not isinstance(state, Mapping) or not state:
            raise SpecError("state: must be a mapping from outputs to inputs, with at least one")
        return ModelStream(self, state, {} if dims is None else dims)

    def _checked(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise SpecError(f"inputs: {type(inputs).__name__}; must be a mapping from names to arrays")
        known = by_name(self.inputs)
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            info = known.get(name)
            if info is None:
                names = ", ".join(repr(info.name) for info in self.inputs) or "none"
                raise SpecError(f"{name!r}: not an input of {self.path}; its inputs: {names}")
            if info.value in values:
                raise SpecError(f"{name!r}: given twice; another name of it is {info.name!r}")
            values[info.value] = fit(info, value) if info.is_tensor else value
        for info in self.inputs:
            may_lack = info.optional or info.name in self._graph.zero_inputs
            if info.value not in values and not may_lack:
                raise SpecError(f"{info.name!r}: missing; {self.path} requires it, {words_of(info)}")
        return values


def _copy(value: object) -> Any:
    """A value that is the caller's own: a constant is not, as the next run has it too, nor is a view."""
    if isinstance(value, list):  # a sequence
        return [_copy(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value
