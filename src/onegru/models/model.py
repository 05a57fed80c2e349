"""Run whole models: GRU nodes in onegru, other nodes in another runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from onegru.core.arguments import check_function, flag
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError, SpecWarning
from onegru.core.pickling import state_of
from onegru.core.wording import count
from onegru.engines.interface import DEFAULT_OPTIONS, EngineOptions
from onegru.engines.select import check_names
from onegru.formats.graph import Graph, QuickRun, Run, TensorInfo, by_name, nested_words
from onegru.models.gru_node import GruNode, find_node, prepare_nodes, runner_of, trace_node
from onegru.models.inputs.check import Inputs, fit, words_of
from onegru.models.stream import ModelStream, first_states
from onegru.operators.schema import WEIGHTS

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace

Progress = Callable[[int, int], None]


class Model:
    """A loaded model.

    Args:
        graph: the content of a file.
        options: the options for the GRU nodes.

    Raises:
        SpecError: a GRU node is invalid.
        FormatError: another runtime rejects its part of the model.
    """

    __module__ = "onegru"

    def __init__(self, graph: Graph, options: EngineOptions = DEFAULT_OPTIONS) -> None:
        before = set(vars(self))
        self.graph = graph
        check_names(options, [gru.name for gru in graph.grus])
        self.options = options
        self._inputs = Inputs(graph.inputs)
        self._runs: list[Callable[[dict[str, Any]], None]]
        self._needed: dict[str, Any] = {}  # the constants that steps and outputs use
        self._run_whole: Run | None = None
        self._quick_run: QuickRun | None = None
        self._layers: tuple[GruNode, ...] = ()
        if graph.whole is None:
            shared = self._make_steps(graph, options)
        else:
            self._run_whole = run_whole = graph.whole.open(options)
            self._quick_run = graph.whole.quick_run(run_whole, graph.inputs, graph.outputs)
            self._runs = [lambda values: values.update(run_whole(values))]
            self._layers = tuple(
                GruNode(gru, f"{graph.path}: {gru}: ", options, self._prepare_layers) for gru in graph.grus
            )
            shared = set(graph.whole.shared)
        # Each output's name, its name in the graph, and whether it can be returned without a copy.
        self._results: list[tuple[str, str, bool]] = []
        for info in graph.outputs:
            self._results.append((info.name, info.value, info.value not in shared))
            shared.add(info.value)  # a second output of one value is a copy
        self._is_plain = all(is_new and name == value for name, value, is_new in self._results)
        self._made = {*vars(self), "_made"} - before  # not pickled, because the graph has it

    def _prepare_layers(self) -> None:
        """Create the layers of a model that another runtime runs, at their first access."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)  # given when the model was loaded
            prepare_nodes(self._layers, self.graph.constants, self.graph)

    def _make_steps(self, graph: Graph, options: EngineOptions) -> set[str]:
        """Create the steps. Return the values whose memory belongs to the caller or to the next run."""
        self._constants: dict[str, Any] = dict(graph.constants)
        for own_step in graph.prelude:
            own_step.run(self._constants)
        layers = {gru: GruNode(gru, f"{graph.path}: {gru}: ", options) for gru in graph.grus}
        prepare_nodes(layers.values(), self._constants, graph)
        gru_runners = {gru: runner_of(node) for gru, node in layers.items()}
        runners = [step.runner(gru_runners) for step in graph.steps]
        self._runs = [runner.run for runner in runners]
        needed = {info.value for info in graph.outputs}.union(*(runner.reads for runner in runners))
        self._needed = {name: value for name, value in self._constants.items() if name in needed}
        self._layers = tuple(layers.values())
        views = (name for step in graph.steps if step.writes_views for name in step.writes)
        return {info.value for info in graph.inputs}.union(views, self._constants)

    @property
    def path(self) -> str:
        """Path of the model's file."""
        return self.graph.path

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Names, types and shapes of the inputs."""
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Names, types and shapes of the outputs."""
        return self.graph.outputs

    @property
    def gru_nodes(self) -> tuple[GruNode, ...]:
        """GRU nodes in execution order; nodes in subgraphs come last."""
        return self._layers

    @property
    def nested_grus(self) -> tuple[str, ...]:
        """The GRU nodes in subgraphs of other nodes, such as If, Loop and Scan, as text."""
        return nested_words(self.graph.grus)

    @property
    def other_node_count(self) -> int:
        """Number of nodes that another runtime runs."""
        if self.graph.whole is not None:
            return self.graph.whole.node_count
        return sum(step.node_count for step in self.graph.steps)

    @classmethod
    def _of(cls, graph: Graph, options: EngineOptions) -> Self:
        """Return a model of this class from a pickled or copied model."""
        model = cls.__new__(cls)
        Model.__init__(model, graph, options)
        return model

    def __getstate__(self) -> Any:
        return state_of(self, self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._of, (self.graph, self.options), self.__getstate__())

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        from onegru.models.report import model_card

        return model_card(self.path, self.inputs, self.outputs, self.gru_nodes, self.other_node_count)

    def __repr__(self) -> str:
        grus = count(len(self.gru_nodes), "GRU node")
        return f"Model({self.path!r}, {grus}, {count(self.other_node_count, 'other')})"

    def run(self, inputs: Mapping[str, object], *, progress: Progress | None = None) -> dict[str, Array]:
        """Run the model.

        Args:
            inputs: an array for each input, by name. You can omit initial states of models that
                `onegru.save_layers` wrote; they are then zeros. You can also omit states that an IR stores:
                each run without them starts as the file says, and `stream` carries them from run to run.
            progress: called before each step and after the last, with the numbers of finished and all steps.

        Returns:
            an array for each output, by name, in the model's order.

        Raises:
            SpecError: an input is missing or unknown, or its type or shape does not fit.
            FormatError: another runtime fails on its part of the model.
        """
        if progress is None and self._run_whole is not None:
            if self._quick_run is not None and (outputs := self._quick_run(inputs)) is not None:
                return outputs
            values = self._run_whole(self._fed(inputs))
            return values if self._is_plain else self._named_outputs(values)
        check_function("progress", progress)
        return self._named_outputs(self._values(inputs, progress))

    @overload
    def trace(self, inputs: Mapping[str, object]) -> list[dict[str, Array]]: ...

    @overload
    def trace(self, inputs: Mapping[str, object], node: str | int) -> GateTrace: ...

    def trace(
        self, inputs: Mapping[str, object], node: str | int | None = None
    ) -> list[dict[str, Array]] | GateTrace:
        """Run the model and return the inputs and outputs of its GRU nodes, or gates.

        Args:
            inputs: as for `run`.
            node: the name or index of one of `gru_nodes`. Default: None (inputs and outputs of all nodes).

        Returns:
            without `node`, a mapping for each GRU node with its inputs, weights and outputs, by the
            specification's names such as "X" and "Y_h". For a node in a loop, these are the arrays of the
            last run. With `node`, the gates of that node at each step. If the node runs several times, and
            each run starts from the previous state, the runs form one sequence; otherwise the last sequence
            is returned.

        Raises:
            SpecError: an input is missing or unknown, or its type or shape does not fit; or no node, or
                several nodes, have this name; or the node did not run.
            FormatError: another runtime fails on its part of the model.
        """
        if node is None:
            return traced(self, inputs)[1]
        index = find_node(self.gru_nodes, node)
        return trace_node(
            self.gru_nodes[index], runs_of_nodes(self, inputs, (index,))[index], Path(self.path).name
        )

    def _named_outputs(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Return a run's outputs, by their public names."""
        return {
            name: values[value] if is_new else _copy(values[value]) for name, value, is_new in self._results
        }

    def _fed(self, inputs: Mapping[str, object]) -> Mapping[str, Any]:
        """Return a run's checked inputs, by their names in the graph."""
        given = self._inputs.plain(inputs) if type(inputs) is dict else None
        if given is not None:
            return given
        values = self._checked(inputs)
        self._add_states(values)
        return values

    def _add_states(self, values: dict[str, Any]) -> None:
        """Add the initial values of omitted states: those in the file, or zeros."""
        zero_inputs = self.graph.zero_inputs
        missing = [info for info in self.inputs if info.name in zero_inputs and info.value not in values]
        if missing and self.graph.keeps:
            given = {info.name: values[info.value] for info in self.inputs if info.value in values}
            first = first_states(self.graph, given)
            values.update({info.value: first[info.name] for info in missing})
            return
        if not missing or self.graph.whole is None:  # the steps handle missing states
            return
        rows = {
            gru.value("initial_h"): values[gru.value("X")].shape[gru.axis("X", "B")]
            for gru in self.graph.grus
            if gru.value("X") in values
        }
        shared = rows[next(iter(rows))] if len({*rows.values()}) == 1 else None
        for info in missing:
            count = rows.get(info.value, shared)
            if count is None:
                raise SpecError(f"{info.name!r}: missing; pass it, because its batch size is unknown")
            sizes = [size if isinstance(size, int) else count for size in info.shape or ()]
            values[info.value] = np.zeros(sizes, numpy_dtype(info.dtype))

    def _values(self, inputs: Mapping[str, object], progress: Progress | None) -> dict[str, Any]:
        """Return all values of a run, by name, except unused constants."""
        values = self._needed.copy()
        values.update(self._fed(inputs))
        for done, run in enumerate(self._runs):
            if progress is not None:
                progress(done, len(self._runs))
            run(values)
        if progress is not None:
            progress(len(self._runs), len(self._runs))
        return values

    def stream(
        self,
        state: Mapping[str, str] | None = None,
        *,
        dims: Mapping[str, int] | None = None,
        rewrite: bool = False,
        time: Mapping[str, int] | None = None,
        delay: bool = False,
    ) -> ModelStream:
        """Create a stream that feeds the model's state outputs back to its state inputs.

            stream = model.stream()
            for frame in frames:
                out = stream.step({"x": frame})

        Args:
            state: the input for each state output, as {"h_out": "h_in"}. Default: None (find them): initial
                states of GRU nodes that are inputs, with the Y_h of the same nodes that are outputs; and
                inputs and outputs of one type and shape with matching names, as `cache` and `cache_out`.
            dims: sizes of symbolic dimensions of states, by name, that the other inputs do not determine.
            rewrite: whether hidden states of an ONNX model or an IR become its inputs and outputs in memory.
                These are the states of its GRUs, and the last steps before its convolutions. The result is
                that of `onegru.make_streaming` without the check on inputs.
            time: with `rewrite`, the time axis of inputs, by name. Default: None (find it).
            delay: with `rewrite`, whether outputs may come later if a node has look-ahead.

        Raises:
            SpecError: an output or input is unknown, a pair does not match, or no state is found. If `state`
                is None, also if a node reverses time or mixes all steps of a run, because chunks would
                then change the results.

        Warns:
            SpecWarning: a node needs earlier steps that no state carries, or its use of the time axis is
                unknown. With `state`, also if a node reverses time or mixes steps.
        """
        if flag("rewrite", rewrite):
            if state is not None:
                raise SpecError.of(
                    "state", "has no effect with rewrite=True, which finds all states; remove it"
                )
            from onegru.models.streaming import streaming_graph  # which takes long to import

            graph = streaming_graph(self.graph, time, flag("delay", delay))
            run = Model(graph, self.options).run
            return ModelStream(graph, run, dict(graph.states), {} if dims is None else dims)
        for name, is_given in (("time", time is not None), ("delay", flag("delay", delay))):
            if is_given:
                raise SpecError.of(name, "has no effect without rewrite=True; remove it")
        if self.graph.starts and state is None:
            state = dict(self.graph.states)
            if not self.graph.keeps:  # checked when the file was written
                return ModelStream(self.graph, self.run, state, {} if dims is None else dims)
        from onegru.timeline.check import check_unchanged, warn_of_losses  # rarely needed

        found = None
        if state is None:
            found = check_unchanged(self.graph)
            state = found.pairs
            if not state:
                from onegru.models.streaming import streaming_words  # slow import

                words = streaming_words(self.graph)
                own = f"no state inputs found in {self.path}: no input is the initial state of a GRU "
                own += "whose last state is an output, and no names match"
                own += f"; streaming: {words}" * bool(words)
                raise SpecError.of("state", f'{own}; or name the states, as {{"h_out": "h_in"}}')
        if not isinstance(state, Mapping) or not state:
            raise SpecError.of("state", "must be a mapping from outputs to inputs, with at least one pair")
        named = () if found is None else found.named
        stream = ModelStream(self.graph, self.run, state, {} if dims is None else dims, named)
        warn_of_losses(found or check_unchanged(self.graph, stream.pairs), refuses=found is not None)
        return stream

    def _checked(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise SpecError.of("inputs", f"{type(inputs).__name__}; must be a mapping from names to arrays")
        known = by_name(self.inputs)
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            info = known.get(name)
            if info is None:
                names = ", ".join(repr(info.name) for info in self.inputs) or "none"
                raise SpecError(f"{name!r}: not an input of {self.path}; its inputs: {names}")
            if info.value in values:
                raise SpecError(f"{name!r}: given twice; its other name is {info.name!r}")
            values[info.value] = fit(info, value) if info.is_tensor else value
        for info in self.inputs:
            may_lack = info.optional or info.name in self.graph.zero_inputs
            if info.value not in values and not may_lack:
                raise SpecError(
                    f"{info.name!r}: missing; {self.path} requires it, {words_of(info)}"
                    f"{self._lengths_hint(info.value, values)}"
                )
        return values

    def _lengths_hint(self, value: str, values: Mapping[str, Any]) -> str:
        """Return a hint for an input that holds the lengths of a GRU; empty for other inputs."""
        for step in (node.step for node in self.gru_nodes):
            if step.value("sequence_lens") == value:
                shape, axis = np.shape(values.get(step.value("X"), ())), step.axis("X", "T")
                whole = shape[axis] if axis < len(shape) else "all"
                return f": the number of steps of each row, {whole} for a full row"
        return ""


def _copy(value: object) -> Any:
    """Copy a constant, which the next run needs unchanged, or a view."""
    if isinstance(value, list):  # a sequence
        return [_copy(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


# Internal functions for other modules of the package.


def runs_of_nodes(
    model: Model, inputs: Mapping[str, object], wanted: Collection[int] | None = None
) -> list[list[dict[str, Array]]]:
    """Return inputs and outputs of each run of each node, without weights if the node has a layer."""
    nodes = model.gru_nodes
    if model.graph.whole is None:
        return [[arrays] for arrays in traced(model, inputs)[1]]
    found: list[list[dict[str, Array]]] = [[] for _ in nodes]
    known = [WEIGHTS if node.layer is not None and node.is_fixed else () for node in nodes]

    def look(at: int, moment: str, arrays: Mapping[str, Array]) -> None:
        if moment == "done" and (wanted is None or at in wanted):
            found[at].append({name: array.copy() for name, array in arrays.items() if name not in known[at]})

    model.graph.whole.open(model.options, look)(model._fed(inputs))
    return found


def traced(model: Model, inputs: Mapping[str, object]) -> tuple[dict[str, Array], list[dict[str, Array]]]:
    """Run a model, and return its outputs and the result of `Model.trace`."""
    if model.graph.whole is not None:
        seen: list[dict[str, Array]] = [{} for _ in model.gru_nodes]

        def look(index: int, moment: str, arrays: Mapping[str, Array]) -> None:
            if moment == "done":
                seen[index] = {name: array.copy() for name, array in arrays.items()}

        values = model.graph.whole.open(model.options, look)(model._fed(inputs))
        return model._named_outputs(values), seen
    values = {**model._constants, **model._values(inputs, None)}
    return model._named_outputs(values), [
        {
            port: np.asarray(values[name])
            for port, name in (*node.inputs.items(), *node.outputs.items())
            if name in values  # otherwise an omitted state
        }
        for node in (gru.step for gru in model.gru_nodes)
    ]
