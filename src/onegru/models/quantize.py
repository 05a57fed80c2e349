"""What weights in fewer bits cost and gain: `onegru.quantize`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from onegru.core.arguments import check_function, choice, integer, number, shown
from onegru.core.dtypes import ELEMENT_TYPES, Array, check_group_size, is_int8
from onegru.core.errors import SpecError, prefixed_errors
from onegru.core.spec import Spec
from onegru.engines.interface import EngineOptions
from onegru.engines.select import model_options
from onegru.engines.storage import check_int8
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.load import load
from onegru.models.model import Model
from onegru.models.random_inputs import Dims, check_random_inputs, pick_inputs, random_call

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace

#: What GRUs can be kept in, by weight_storage and activation_storage, in the order of their noise.
MODES: Mapping[str, tuple[str | None, str | None]] = {
    "W8A8": ("int8", "int8"),
    "W8A16": ("int8", "int16"),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "float32": (None, None),
}
_EXACT = "float32"
_BYTES = {"int8": 1, "bfloat16": 2, "float16": 2, None: 4}

#: The steps and rows of a layer's random inputs.
_RANDOM_STEPS, _RANDOM_ROWS = 100, 4
#: Seconds that timing one GRU, or the whole, may take, and the turns that each mode gets at most.
_PATIENCE, _TURNS = 1.0, 9

#: Called with the number of measurements done, and the most that there may be.
Progress = Callable[[int, int], None]
Quantizable = TypeVar("Quantizable", bound=GRU | Stack | Model, covariant=True)


def _storages(mode: str, group: int) -> tuple[str | None, str | None]:
    """The weight_storage and activation_storage of a mode, with a scale for `group` weights, 0 for a row."""
    weights, activations = MODES[mode]
    return f"{weights}_g{group}" if group and is_int8(weights) else weights, activations


@dataclass(frozen=True, slots=True)
class Measured:
    """A GRU, or all of them, in one mode.

    Attributes:
        snr: the ratio of signal to noise in dB against float32, that of the worst output: 10·log10 of
            Σ expected² / Σ (expected - found)². Infinity where nothing differs, minus infinity where a number
            is no longer finite.
        size: the bytes of the weights: W and R, the scales of int8, and B in float32.
        seconds: the shortest time that a pass over the samples took.
    """

    snr: float
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QuantizedGru:
    """One GRU.

    Attributes:
        name: the node's name; of a layer "layer 0", and so on from the lowest of a stack.
        layer: what it is, as its `repr` says.
        modes: what each mode of `MODES` does to it, given the float32 model's inputs to it; empty for a GRU
            that stays as it is.
        mode: what it is kept in by the result.
        reason: why it stays as it is; empty if it need not.
    """

    name: str
    layer: str
    modes: Mapping[str, Measured]
    mode: str
    reason: str = ""


@dataclass(frozen=True)
class Quantization(Generic[Quantizable]):
    """What `quantize` found.

    Attributes:
        result: the layer, stack or model with its GRUs kept as each one's `mode` says.
        grus: its GRUs, in running order.
        modes: what each mode does to the whole, all GRUs in it; its sizes are those of all these GRUs.
        chosen: the same for the result.
        group_size: how many weights of a row in int8 share a scale; None for all.
    """

    __module__ = "onegru"

    result: Quantizable
    grus: tuple[QuantizedGru, ...]
    modes: Mapping[str, Measured]
    chosen: Measured
    group_size: int | None
    _source: GRU | Stack | Model = field(repr=False, compare=False)
    _samples: Sequence[Any] = field(repr=False, compare=False)

    @property
    def weight_storage(self) -> dict[str, str]:
        """The result's types of weights by node, as `onegru.load` takes them; float32 is left out."""
        group = self.group_size or 0
        return {gru.name: kept for gru in self.grus if (kept := _storages(gru.mode, group)[0]) is not None}

    @property
    def activation_storage(self) -> dict[str, str]:
        """Likewise, for the GRUs in int8."""
        return {gru.name: kept for gru in self.grus if (kept := MODES[gru.mode][1]) is not None}

    def trace(
        self, node: str | int = 0, mode: str | None = None, sample: int = 0
    ) -> tuple[GateTrace, GateTrace]:
        """The gates of a GRU in float32, and with all GRUs in another mode.

        The second one's `plot(against=…)` and `to_html(…, against=…)` draw how far they are apart over time.

        Args:
            node: the GRU's name, or its index.
            mode: one of `MODES`; None for the result.
            sample: the index of the sample.

        Raises:
            SpecError: there is no such GRU, mode or sample.
        """
        subject = _subject_of(self._source, self._samples, {}, 0, self.group_size or 0)
        names = [gru.name for gru in self.grus]
        index = names.index(node) if isinstance(node, str) and names.count(node) == 1 else node
        if not isinstance(index, int) or not 0 <= index < len(names):
            raise SpecError(f"node: {shown(node)}; must be one of {', '.join(map(repr, names))}, or an index")
        integer("sample", sample, 0, len(subject.samples) - 1)
        if mode is not None:
            choice("mode", mode, MODES)
        other = self.result if mode is None else subject.make(dict.fromkeys(subject.layers, mode))
        call = subject.samples[sample]
        return tuple(subject.trace(item, call, index) for item in (subject.make({}), other))  # type: ignore[return-value]

    def __str__(self) -> str:
        """A table: each GRU, then the whole."""
        rows = [("", *MODES, "kept in"), *table_rows(self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:-1]), row[-1]])
            for row in rows
        )
        return "\n".join(map(str.rstrip, lines))


def table_rows(report: Quantization[Any]) -> list[tuple[str, ...]]:
    """Each GRU, then the whole: its name, its ratios, what it is kept in; sizes, times."""
    rows: list[tuple[str, ...]] = []
    for gru in report.grus:
        if gru.modes:
            rows += _three_rows(gru.name, gru.modes, gru.modes[gru.mode], gru.mode)
        else:
            rows.append((gru.name, *[""] * len(MODES), gru.reason))
    return rows + _three_rows("all", report.modes, report.chosen, _ratio_words(report.chosen))


def _three_rows(
    name: str, modes: Mapping[str, Measured], kept: Measured, words: str
) -> list[tuple[str, ...]]:
    items = list(modes.values())
    return [
        (name, *map(_ratio_words, items), words),
        ("  size", *map(_size_words, [*items, kept])),
        ("  time", *map(_time_words, [*items, kept])),
    ]


def _ratio_words(item: Measured) -> str:
    return f"{item.snr:.1f} dB"


def _size_words(item: Measured) -> str:
    return f"{item.size / 1024:.{0 if item.size >= 10 << 10 else 1}f} KiB"


def _time_words(item: Measured) -> str:
    return f"{item.seconds * 1e6:.0f} µs" if item.seconds < 0.01 else f"{item.seconds * 1e3:.0f} ms"


def quantize(
    source: str | os.PathLike[str] | GRU | Stack | Model,
    samples: object = None,
    *,
    mode: str | None = None,
    keep_snr: float | None = None,
    among: Collection[str] = tuple(MODES),
    group_size: int | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Quantization[Any]:
    """Keep the weights of GRUs in fewer bits, and measure what that costs and gains.

        report = onegru.quantize("model.onnx", samples, keep_snr=40)
        print(report)
        model = report.result

    Nothing is calibrated: scales come from the weights, and from each row of inputs as it is multiplied. The
    samples only serve to measure, and should be inputs that the model is made for.

    Args:
        source: a model, or its file; a layer or a stack of float32.
        samples: of a model, inputs as for `Model.run`, or several of them in a list. Of layers, X, or the
            arguments of a call by name, or a list of either. None for random ones, which are no more than a
            first look.
        mode: what all GRUs are kept in: "W8A8" and "W8A16", the weights in int8 and the inputs of products in
            int8 or int16; "bfloat16" and "float16", the weights; or "float32". "W8A16" by default.
        keep_snr: instead of `mode`, the ratio of signal to noise in dB that every output keeps on these
            samples. Each GRU gets few bits: all begin with W8A8, and as long as the noise is too large, the
            GRU that adds most of it gets more; then each gets fewer again if the ratio is kept.
        among: the modes that `keep_snr` may choose; float32 always is one.
        group_size: 32, 64 or 128 for a scale for each so many weights of a row in int8, where one scale for
            the row keeps too little; None for one.
        dims: sizes of open dimensions of a model's random inputs, as for `onegru.verify`.
        seed: of random inputs.
        progress: called before each measurement with the number of those done, and the most there may be.

    Returns:
        the result, and what was measured. GRUs of another type than float32, with weights that the model
        computes, or with weights that int8 cannot hold stay as they are.

    Raises:
        SpecError: an argument is not legal, or a sample does not fit.
        FormatError: a file is broken, or another runtime fails on its part.
        OSError: a file cannot be opened.
    """
    check_function("progress", progress)
    if keep_snr is not None and not math.isfinite(number("keep_snr", keep_snr)):
        raise SpecError(f"keep_snr: {keep_snr}; must be finite")
    for item in among if not isinstance(among, str) else [among]:
        choice("among", item, MODES)
    if mode is not None and keep_snr is not None:
        raise SpecError(f"mode: {mode!r}; must be None with keep_snr, which chooses")
    mode = choice("mode", "W8A16" if mode is None else mode, MODES)
    group = check_group_size(group_size)
    if not isinstance(source, str | os.PathLike | GRU | Stack | Model):
        raise SpecError(f"source: {shown(source)}; must be a model, its file, a GRU or a Stack")
    dims = check_random_inputs(None, dims, seed)
    made = source if isinstance(source, GRU | Stack | Model) else load(source)
    subject = _subject_of(made, samples, dims or {}, seed, group)
    order = [word for word in MODES if word in among or word == _EXACT]
    return _Measurement(subject, progress).report(mode, keep_snr, order)


# --- what is measured

_Repeat = Callable[[GRU], Callable[[], Mapping[str, Array]]]


@dataclass(frozen=True)
class _Subject:
    """A model, or layers.

    Attributes:
        source: the model or the layers.
        names: of all GRUs.
        described: what each is.
        layers: in float32, those that can be kept in other types, by their names.
        reasons: why the others cannot, by their names.
        samples: what runs are given.
        make: the subject with the GRUs that are named in other modes.
        run: the outputs of a run.
        calls: for each time that the subject in float32 runs a layer for the samples, what takes a layer, and
            returns what runs it so and returns its outputs.
        trace: the gates of the GRU of an index.
        group: how many weights of a row in int8 share a scale; 0 for all.
    """

    source: GRU | Stack | Model
    names: Sequence[str]
    described: Sequence[str]
    layers: Mapping[str, GRU]
    reasons: Mapping[str, str]
    samples: Sequence[Any]
    make: Callable[[Mapping[str, str]], Any]
    run: Callable[[Any, Any], Mapping[str, Array]]
    calls: Mapping[str, Sequence[_Repeat]]
    trace: Callable[[Any, Any, int], GateTrace]
    group: int


def _subject_of(source: GRU | Stack | Model, samples: object, dims: Dims, seed: int, group: int) -> _Subject:
    if isinstance(source, Model):
        return _of_model(source, samples, dims, seed, group)
    if dims:
        raise SpecError("dims: given with a layer, whose inputs have no names; must be left out")
    return _of_layers(source, samples, seed, group)


def _listed(samples: object, single: Callable[[object], bool]) -> list[Any]:
    found = [samples] if single(samples) else samples
    if not isinstance(found, Iterable) or not (found := list(found)):
        raise SpecError(f"samples: {shown(samples)}; must be inputs of a run, or a list of at least one")
    return found


def _reason(layer: GRU | None) -> str:
    """Why a GRU stays as it is; empty if it need not."""
    if layer is None:
        return "computes its weights"
    if layer.spec.dtype != _EXACT:
        return f"is of {layer.spec.dtype}"
    try:
        check_int8(layer.weights)
    except SpecError as error:
        return str(error)
    return ""


def _of_layers(source: GRU | Stack, samples: object, seed: int, group: int) -> _Subject:
    exact = [layer.with_storage(None) for layer in layers_of(source)]
    names = [f"layer {index}" for index in range(len(exact))]
    reasons = {name: text for name, layer in zip(names, exact, strict=True) if (text := _reason(layer))}
    if samples is None:
        spec = exact[0].spec
        drawn = random_call(spec, _RANDOM_STEPS, _RANDOM_ROWS, np.random.default_rng(seed))
        samples = {"X": drawn["X"], "layout": 0, **({"attention": drawn["A"]} if spec.attention else {})}
    found = _listed(samples, lambda given: isinstance(given, Mapping | np.ndarray))
    calls = [dict(item) if isinstance(item, Mapping) else {"X": item} for item in found]

    def make(modes: Mapping[str, str]) -> GRU | Stack:
        made = [
            layer.with_storage(*_storages(modes[name], group)) if name in modes else layer
            for name, layer in zip(names, exact, strict=True)
        ]
        return made[0] if isinstance(source, GRU) else Stack(made, layout=source.layout)

    def run(layers: GRU | Stack, call: Mapping[str, Any]) -> dict[str, Array]:
        try:
            Y, Y_h = layers(**call)
        except TypeError as error:
            raise SpecError(f"samples: {error}") from None
        last = [Y_h] if isinstance(Y_h, np.ndarray) else Y_h
        return {"Y": Y, **{f"Y_h {index}": h for index, h in enumerate(last)}}

    repeated: dict[str, list[_Repeat]] = {name: [] for name in names}
    for call in calls:
        run(make({}), call)  # refuses what does not fit
        if isinstance(source, GRU):
            repeated[names[0]].append(lambda layer, call=call: partial(run, layer, call))  # type: ignore[misc]
            continue

        def see(layer: GRU, Y: Any, **arguments: Any) -> Array:
            repeated[names[exact.index(layer)]].append(lambda other: lambda: {"Y": other(Y, **arguments)[0]})
            return layer(Y, **arguments)[0]

        arguments = {"initial_h": None, "sequence_lens": None, "layout": None, **call}
        Stack(exact, layout=source.layout)._through(see, **arguments)

    def trace(layers: GRU | Stack, call: Mapping[str, Any], index: int) -> GateTrace:
        found = layers.trace(**call)
        return found[index] if isinstance(found, tuple) else found

    return _Subject(
        source=source,
        names=names,
        described=[repr(layer) for layer in exact],
        layers={name: layer for name, layer in zip(names, exact, strict=True) if name not in reasons},
        reasons=reasons,
        samples=calls,
        make=make,
        run=run,
        calls=repeated,
        trace=trace,
        group=group,
    )


def _of_model(model: Model, samples: object, dims: Dims, seed: int, group: int) -> _Subject:
    engine = model._options.engine
    if engine == "reference":
        raise SpecError(
            "source: runs by the reference, which keeps weights as they are; must be loaded without"
        )
    exact = Model(model._graph, EngineOptions(engine))
    nodes = exact.gru_nodes
    names = [node.name for node in nodes]
    reasons = {node.name: text for node in nodes if (text := _reason(node.layer))}
    reasons |= {name: "shares its name with others" for name in names if names.count(name) > 1}
    reasons |= {name: "has a line break in its name" for name in names if "\n" in name}
    if samples is None:
        found: list[Any] = [pick_inputs(exact, {}, seed, dims)[0]]
    else:
        if dims:
            raise SpecError("dims: given with samples, whose sizes are their own; must be left out")
        found = _listed(samples, lambda given: isinstance(given, Mapping))
    layers = {node.name: node.layer for node in nodes if node.layer is not None and node.name not in reasons}

    def make(modes: Mapping[str, str]) -> Model:
        storages = {name: _storages(mode, group) for name, mode in modes.items()}
        weights, activations = (
            {name: kept for name, item in storages.items() if (kept := item[index]) is not None}
            for index in (0, 1)
        )
        return Model(model._graph, model_options(engine, weights, activations))

    calls: dict[str, list[_Repeat]] = {name: [] for name in layers}
    for index, sample in enumerate(found):
        with prefixed_errors(f"samples[{index}]: "):
            runs = exact._all_runs(sample)
        for node, seen in zip(nodes, runs, strict=True):
            if node.name in layers:
                calls[node.name] += [
                    lambda layer, node=node, arrays=arrays: node._repeat(layer, arrays)  # type: ignore[misc]
                    for arrays in seen
                ]
    return _Subject(
        source=model,
        names=names,
        described=[repr(node.layer) for node in nodes],
        layers=layers,
        reasons=reasons,
        samples=found,
        make=make,
        run=lambda made, sample: made.run(sample),
        calls=calls,
        trace=lambda made, sample, index: made.trace(sample, index),
        group=group,
    )


# --- measuring


class _Measurement:
    """Runs a subject in modes."""

    def __init__(self, subject: _Subject, progress: Progress | None) -> None:
        self.subject = subject
        self._progress = progress or (lambda done, most: None)
        self._done = 0
        self._most = len(MODES) + (1 + 2 * (len(MODES) - 1)) * len(subject.layers) + 1
        self._found: dict[tuple[tuple[str, str], ...], float] = {}
        made = subject.make({})
        self._expected = [subject.run(made, sample) for sample in subject.samples]

    def report(self, mode: str, keep_snr: float | None, order: list[str]) -> Quantization[Any]:
        """All modes, and the result of one, or of those that keep a ratio of signal to noise."""
        subject = self.subject
        uniform = {word: dict.fromkeys(subject.layers, word) for word in MODES}
        ratios = {word: self._ratio(modes) for word, modes in uniform.items()}
        chosen = uniform[mode] if keep_snr is None else self._choose(keep_snr, order)
        grus = []
        for index, name in enumerate(subject.names):
            measured = self._measure_gru(name) if name in subject.layers else {}
            reason = subject.reasons.get(name, "")
            grus.append(
                QuantizedGru(name, subject.described[index], measured, chosen.get(name, _EXACT), reason)
            )
        made = {word: subject.make(modes) for word, modes in uniform.items()}
        result = made["chosen"] = subject.make(chosen)
        seconds = self._times(
            {
                word: lambda item=item: [subject.run(item, sample) for sample in subject.samples]  # type: ignore[misc]
                for word, item in made.items()
            }
        )
        whole = {
            word: Measured(ratio, self._size(uniform[word]), seconds[word]) for word, ratio in ratios.items()
        }
        final = Measured(self._ratio(chosen), self._size(chosen), seconds["chosen"])
        return Quantization(
            result, tuple(grus), whole, final, subject.group or None, subject.source, subject.samples
        )

    def _ratio(self, modes: Mapping[str, str]) -> float:
        """The ratio of signal to noise of the whole, with GRUs in these modes."""
        key = tuple(sorted((name, mode) for name, mode in modes.items() if mode != _EXACT))
        if key not in self._found:
            self._step()
            made = self.subject.make(modes)
            self._found[key] = _ratio(
                (expected, self.subject.run(made, sample))
                for expected, sample in zip(self._expected, self.subject.samples, strict=True)
            )
        return self._found[key]

    def _step(self) -> None:
        self._progress(min(self._done, self._most), self._most)
        self._done += 1

    def _choose(self, keep_snr: float, order: list[str]) -> dict[str, str]:
        """The modes that keep it: the GRU that adds most noise gets the next mode that adds less."""
        modes = dict.fromkeys(self.subject.layers, order[0])
        while self._ratio(modes) < keep_snr:
            noise = {name: self._ratio({name: mode}) for name, mode in modes.items() if mode != _EXACT}
            worst = min(noise, key=noise.__getitem__)
            later = order[order.index(modes[worst]) + 1 :]
            better = (mode for mode in later if self._ratio({worst: mode}) > noise[worst])
            modes[worst] = next(better, _EXACT)
        for name, mode in modes.items():
            fewer = ({**modes, name: word} for word in order[: order.index(mode)])
            modes = next((item for item in fewer if self._ratio(item) >= keep_snr), modes)
        return modes

    def _measure_gru(self, name: str) -> dict[str, Measured]:
        """A GRU in every mode, each time given what the model in float32 gives it."""
        self._step()
        calls = self.subject.calls[name]
        layer, group = self.subject.layers[name], self.subject.group
        made = {mode: layer.with_storage(*_storages(mode, group)) for mode in MODES}
        expected = [call(made[_EXACT])() for call in calls]
        ratios = {
            mode: _ratio((one, call(layer)()) for one, call in zip(expected, calls, strict=True))
            for mode, layer in made.items()
        }
        ready = {mode: [call(layer) for call in calls] for mode, layer in made.items()}
        seconds = self._times(
            {mode: lambda runs=runs: [run() for run in runs] for mode, runs in ready.items()}  # type: ignore[misc]
        )
        return {
            mode: Measured(ratios[mode], _size(layer.spec, mode, group), seconds[mode])
            for mode, layer in made.items()
        }

    def _size(self, modes: Mapping[str, str]) -> int:
        group, layers = self.subject.group, self.subject.layers
        return sum(_size(layer.spec, modes[name], group) for name, layer in layers.items())

    @staticmethod
    def _times(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """The shortest time of each, in turns."""
        best = dict.fromkeys(runs, math.inf)
        end = time.perf_counter() + _PATIENCE
        for turn in range(_TURNS):
            for word, run in runs.items():
                start = time.perf_counter()
                run()
                best[word] = min(best[word], time.perf_counter() - start)
            if turn and time.perf_counter() > end:
                break
        return best


def _size(spec: Spec, mode: str, group: int) -> int:
    """The bytes of the weights of a GRU of float32."""
    kept, _ = MODES[mode]
    rows = 3 * spec.num_directions * spec.hidden_size
    groups = sum(-(-size // (group or size)) for size in (spec.input_size, spec.hidden_size) if size)
    scales = groups * 4 * rows if is_int8(kept) else 0
    return rows * (spec.input_size + spec.hidden_size) * _BYTES[kept] + scales + 2 * 4 * rows


def _ratio(pairs: Iterable[tuple[Mapping[str, Array], Mapping[str, Array]]]) -> float:
    """The ratio of signal to noise in dB of the worst output, over all runs."""
    signals: dict[str, float] = {}
    noises: dict[str, float] = {}
    for expected, found in pairs:
        for name, array in expected.items():
            if not isinstance(array, np.ndarray) or array.dtype.name not in ELEMENT_TYPES:
                continue
            one, other = array.astype(np.float64), found[name].astype(np.float64)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            with np.errstate(all="ignore"):
                signals[name] = signals.get(name, 0.0) + float(np.sum(one[np.isfinite(one)] ** 2))
                noises[name] = noises.get(name, 0.0) + float(np.sum(np.where(same, 0.0, one - other) ** 2))
    return min((_decibels(signals[name], noise) for name, noise in noises.items()), default=math.inf)


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf
