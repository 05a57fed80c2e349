"""`onegru.quantize`: choose and measure quantization modes."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.arguments import check_function, choice, node_names, number, shown
from onegru.core.compare import INCONCLUSIVE, arrays_in, count_finite, why_inconclusive
from onegru.core.dtypes import ELEMENT_TYPES, Array, bytes_per_weight, check_group_size, is_int8
from onegru.core.errors import SpecError
from onegru.core.spec import Spec
from onegru.formats.opened import Kind, Opened, open_model
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.inputs.random import check_random_inputs
from onegru.models.inputs.sizes import Dims
from onegru.models.load import load
from onegru.models.model import Model
from onegru.quantization.report import ModeResult, Quantization, QuantizedGru
from onegru.quantization.subject import EXACT, MODES, QuantizationTarget, quantization_target, storages_of
from onegru.rewriting.check import Check, as_target
from onegru.rewriting.int8_ir import quantize_ir
from onegru.rewriting.rewrite import Rewriting, rewrite_file
from onegru.system.turns import take_turns

#: The number of timings of each mode, and the approximate seconds of each if a pass is shorter.
_TURNS, _TURN = 5, 0.004

#: The modes that a file can store.
_OF_FILES = (*(mode for mode, (kept, _) in MODES.items() if is_int8(kept)), EXACT)


#: Called with the number of measurements done, and the maximum number.
Progress = Callable[[int, int], None]


def quantize(
    source: str | os.PathLike[str] | GRU | Stack | Model,
    samples: object = None,
    target: object = None,
    *,
    mode: str | None = None,
    min_snr_db: float | None = None,
    modes: Collection[str] | None = None,
    nodes: Collection[str] | None = None,
    group_size: int | None = None,
    opset: int | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Quantization[Any]:
    """Store GRU weights in fewer bits, and measure accuracy and speed.

        report = onegru.quantize("model.onnx", samples, min_snr_db=40)
        print(report)
        model = report.result

        onegru.quantize("model.onnx", "small.onnx", samples)

    onegru needs no calibration: scales come from the weights, and from each row of inputs at run time. The
    samples are used only to measure. Use typical inputs of the model. You can pass the target before the
    samples, as for `fuse` and `rewrite`, or after them.

    Args:
        source: a model, its file, a float32 layer or a stack.
        samples: for a model, inputs as for `Model.run`, or a list of them; you can omit states that the
            file's metadata describes. For layers, X, or the arguments of a call by name, or a list of either.
            Default: None, random inputs, which give only a first impression.
        target: the file to write, if the source is an ONNX file or an OpenVINO IR. It must be of the same
            kind, and can replace the source. W and R of GRU nodes are stored in int8 with one scale per row:
            in ONNX with DequantizeLinear nodes (opset 13 or later), in an IR with Convert and Multiply
            layers. Biases, inputs and states stay float32, and so do GRUs that `mode`, `min_snr_db` or
            `nodes` exclude. `onegru.load(target, weight_storage="int8")` computes with these integers; other
            runtimes compute with their float32 values. The file is first compared with the source on the
            first sample. Default: None, write nothing.
        mode: the storage of all GRUs: "W8A8" or "W8A16" (int8 weights with activations in int8 or int16),
            "W16A16" (weights and activations in bfloat16), "bfloat16" or "float16" (weights only), or
            "float32". Default: "W8A16".
        min_snr_db: the lowest signal-to-noise ratio in dB that each output may have on these samples, instead
            of `mode`. All GRUs start with W8A8. While the noise is too large, the GRU that adds most of it
            gets more bits. Then each GRU gets fewer bits again if the ratio permits. W8A8 is used only if
            W8A16, when it is among the modes, also reaches the ratio.
        modes: the modes that `min_snr_db` can choose; float32 is always included. Default: all; with
            `target`, those that a file can store: W8A8, W8A16 and float32.
        nodes: the names of the GRUs to store in fewer bits. Default: all.
        group_size: the number of int8 weights of a row that share a scale: 32, 64 or 128. Use it if one scale
            per row loses too much accuracy. An ONNX file needs opset 21 or later; in an IR, the size must
            divide the row. Default: None, one scale per row.
        opset: the ONNX opset of `target`. Default: the source's.
        dims: sizes of dynamic dimensions of a model's random inputs, as for `onegru.verify`.
        seed: the seed of random inputs.
        tolerance: with `target`, the largest absolute difference that its check allows. If an output has
            numbers above 1, the tolerance is multiplied by the largest. For integers and booleans, it is the
            fraction of values that may differ. Default: 0.1.
        progress: a function, called before each measurement with the number of measurements done and the
            largest possible number.

    Returns:
        The result, the measurements, and the written file. A GRU stays unchanged if it is not float32, if the
        model computes its weights, or if int8 cannot store its weights.

    Raises:
        SpecError: an argument is invalid, a sample does not fit, outputs are not finite, or no GRU of the
            file can be stored in int8.
        FormatError: a file is broken, another runtime fails, or the target differs from the source by more
            than `tolerance`. Nothing is written.
        OSError: a file cannot be read or written.
    """
    check_function("progress", progress)
    if isinstance(samples, str | os.PathLike):
        samples, target = target, samples
    if target is not None and not isinstance(target, str | os.PathLike):
        raise SpecError.of("target", f"{shown(target)}; must be the name of a file")
    if min_snr_db is not None and not math.isfinite(number("min_snr_db", min_snr_db)):
        raise SpecError.of("min_snr_db", f"{min_snr_db}; must be finite")
    kept = tuple(MODES) if target is None else _OF_FILES
    modes = _checked_modes(modes, kept, min_snr_db is not None, target is not None)
    if mode is not None and min_snr_db is not None:
        raise SpecError.of("mode", f"{mode!r}; must be None with min_snr_db, which chooses the modes")
    mode = choice("mode", "W8A16" if mode is None else mode, kept if target is None else _OF_FILES[:-1])
    group = check_group_size(group_size)
    if not isinstance(source, str | os.PathLike | GRU | Stack | Model):
        raise SpecError.of("source", f"{shown(source)}; must be a model, its file, a GRU or a Stack")
    if isinstance(nodes, bool):
        raise SpecError.of("nodes", f"{nodes}; must be names of GRUs, or None for all")
    wanted = node_names("nodes", True if nodes is None else nodes)
    dims = check_random_inputs(None, dims, seed)
    if target is None:
        for name, value in (("opset", opset), ("tolerance", tolerance)):
            if value is not None:
                raise SpecError.of(name, "has no effect without target; remove it")
        made = source if isinstance(source, GRU | Stack | Model) else load(source)
    else:
        Check(tolerance=tolerance)
        source = _opened(source, target, opset)
        made = load(source)
    subject = quantization_target(made, samples, dims or {}, seed, group, wanted)
    order = [word for word in MODES if word in modes or word == EXACT]
    report = Measurement(subject, progress).report(mode, min_snr_db, order)
    if target is None:
        return report
    assert isinstance(source, Opened)
    first = Check(subject.samples[0] if samples is not None else None, dims, seed, tolerance)
    names = _names_in_int8(report, min_snr_db) if report.grus else None
    written = _written(source, target, first, opset, names, group)
    source.forget()  # the result keeps the file
    return dataclasses.replace(report, written=written)


def _opened(
    source: str | os.PathLike[str] | GRU | Stack | Model, target: str | os.PathLike[str], opset: int | None
) -> Opened:
    """Open a source, and check that the target can be written for it."""
    if isinstance(source, GRU | Stack | Model):
        raise SpecError.of("target", "has no effect with a model or layers in memory; remove it")
    file = open_model("source", source)
    is_ir = file.kind is Kind.OPENVINO
    as_target(file, target, ".xml" if is_ir else ".onnx")
    if is_ir and opset is not None:
        raise SpecError.of("opset", f"{opset}; has no effect, because {file} is an OpenVINO IR; remove it")
    return file


def _checked_modes(
    modes: Iterable[str] | None, kept: Sequence[str], is_chosen: bool, is_written: bool
) -> Sequence[str]:
    """Return the allowed modes of the GRUs."""
    if not isinstance(modes, Iterable | None):
        raise SpecError.of("modes", f"{shown(modes)}; must be one or more of {', '.join(kept)}")
    if modes is not None and not is_chosen:
        raise SpecError.of("modes", "has no effect without min_snr_db; remove it")
    found = kept if modes is None else [modes] if isinstance(modes, str) else list(modes)
    for item in found:
        choice("modes", item, kept)
    if is_written and not any(is_int8(MODES[item][0]) for item in found):
        raise SpecError.of("modes", f"{shown(found)}; must contain W8A8 or W8A16 if target is given")
    return found


def _written(
    file: Opened,
    target: str | os.PathLike[str] | None,
    check: Check,
    opset: int | None,
    names: frozenset[str] | None,
    group: int,
) -> Rewriting:
    """Write a model with these GRUs, or all GRUs, in int8."""
    if file.kind is Kind.OPENVINO:
        path, named = as_target(file, target, ".xml")
        return quantize_ir(file, path, named, check, names, group)
    quantize = True if names is None else names
    return rewrite_file(file, target, check, opset=opset, quantize=quantize, group_size=group)


def _names_in_int8(report: Quantization[Any], min_snr_db: float | None) -> frozenset[str]:
    """Return the GRU nodes that become int8."""
    names = frozenset(gru.name for gru in report.grus if is_int8(MODES[gru.mode][0]))
    if not names and not any(gru.modes for gru in report.grus):
        reasons = ", ".join(f"{gru.name!r} {gru.reason}" for gru in report.grus)
        raise SpecError.of("source", f"no GRU node can be stored as int8: {reasons}")
    if not names:
        most = report.modes["W8A16"].snr
        raise SpecError.of(
            "min_snr_db",
            f"{min_snr_db} dB; no GRU node reaches this SNR in int8 (all nodes in W8A16: {most:.1f} dB)",
        )
    return names


class Measurement:
    """Measures a quantization target in all modes."""

    def __init__(self, subject: QuantizationTarget, progress: Progress | None) -> None:
        self.subject = subject
        self._progress = progress or (lambda done, most: None)
        self._done = 0
        self._most = len(MODES) + (1 + 2 * (len(MODES) - 1)) * len(subject.layers) + 1
        self._found: dict[tuple[tuple[str, str], ...], float] = {}
        made = subject.make({})
        self._expected = [subject.run(made, sample) for sample in subject.samples]
        why = why_inconclusive(*self._expected)
        floats = [array for outputs in self._expected for array in outputs.values() if _is_float(array)]
        if floats and not any(map(np.any, floats)):
            why = why or "all outputs are zero"
        if why:
            raise SpecError.of("samples", f"{why}, {INCONCLUSIVE}; pass realistic inputs (-i)")

    def report(self, mode: str, min_snr_db: float | None, order: list[str]) -> Quantization[Any]:
        """Measure all modes, and create the result for one mode or for a lowest SNR."""
        subject = self.subject
        uniform = {word: dict.fromkeys(subject.layers, word) for word in MODES}
        ratios = {word: self._ratio(modes) for word, modes in uniform.items()}
        chosen = uniform[mode] if min_snr_db is None else self._choose(min_snr_db, order)
        grus = []
        for index, name in enumerate(subject.names):
            measured = self._measure_gru(name) if name in subject.layers else {}
            reason = subject.reasons.get(name, "")
            grus.append(
                QuantizedGru(name, subject.described[index], measured, chosen.get(name, EXACT), reason)
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
            word: ModeResult(ratio, self._size(uniform[word]), seconds[word])
            for word, ratio in ratios.items()
        }
        final = ModeResult(self._ratio(chosen), self._size(chosen), seconds["chosen"])
        arrays = [
            array for outputs in self._expected for output in outputs.values() for array in arrays_in(output)
        ]
        compared = sum(map(count_finite, arrays))
        details = (subject.group or None, compared, subject.steps, subject.source, subject.samples)
        return Quantization(result, tuple(grus), whole, final, *details)

    def _ratio(self, modes: Mapping[str, str]) -> float:
        """Return the SNR of the whole model with GRUs in these modes."""
        key = tuple(sorted((name, mode) for name, mode in modes.items() if mode != EXACT))
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

    def _choose(self, min_snr_db: float, order: list[str]) -> dict[str, str]:
        """Choose modes that keep the SNR: the noisiest GRU gets the next mode with less noise."""

        def keeps(modes: Mapping[str, str]) -> bool:
            """Whether the modes keep the SNR, also with 16-bit matmul inputs, as files are run by default."""
            if self._ratio(modes) < min_snr_db:
                return False
            wider = {name: "W8A16" if mode == "W8A8" else mode for name, mode in modes.items()}
            return "W8A16" not in order or self._ratio(wider) >= min_snr_db

        modes = dict.fromkeys(self.subject.layers, order[0])
        while not keeps(modes):
            noise = {name: self._ratio({name: mode}) for name, mode in modes.items() if mode != EXACT}
            worst = min(noise, key=noise.__getitem__)
            later = order[order.index(modes[worst]) + 1 :]
            better = (mode for mode in later if self._ratio({worst: mode}) > noise[worst])
            modes[worst] = next(better, EXACT)
        for name, mode in modes.items():
            fewer = ({**modes, name: word} for word in order[: order.index(mode)])
            modes = next((item for item in fewer if keeps(item)), modes)
        return modes

    def _measure_gru(self, name: str) -> dict[str, ModeResult]:
        """Measure a GRU in every mode, with its inputs in the float32 model."""
        self._step()
        calls = self.subject.calls[name]
        layer, group = self.subject.layers[name], self.subject.group
        made = {mode: layer.with_storage(*storages_of(mode, group)) for mode in MODES}
        expected = [call(made[EXACT])() for call in calls]
        ratios = {
            mode: _ratio((one, call(layer)()) for one, call in zip(expected, calls, strict=True))
            for mode, layer in made.items()
        }
        ready = {mode: [call(layer) for call in calls] for mode, layer in made.items()}
        seconds = self._times(
            {mode: lambda runs=runs: [run() for run in runs] for mode, runs in ready.items()}  # type: ignore[misc]
        )
        return {
            mode: ModeResult(ratios[mode], _size(layer.spec, mode, group), seconds[mode])
            for mode, layer in made.items()
        }

    def _size(self, modes: Mapping[str, str]) -> int:
        group, layers = self.subject.group, self.subject.layers
        return sum(_size(layer.spec, modes[name], group) for name, layer in layers.items())

    def _times(self, runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Return the shortest median of each run; the timings are interleaved, as in `onegru bench`."""
        has_only_grus = (
            not isinstance(self.subject.source, Model) or self.subject.source.other_node_count == 0
        )
        found = take_turns(runs, _TURNS, _TURN, **({"settle": 0.0} if has_only_grus else {}))
        return {word: min(seconds) for word, seconds in found.items()}


def _size(spec: Spec, mode: str, group: int) -> int:
    """Return the bytes of a float32 GRU's weights in a mode."""
    kept, _ = MODES[mode]
    rows = 3 * spec.num_directions * spec.hidden_size
    groups = sum(-(-size // (group or size)) for size in (spec.input_size, spec.hidden_size) if size)
    scales = groups * 4 * rows if is_int8(kept) else 0
    return rows * (spec.input_size + spec.hidden_size) * bytes_per_weight(kept) + scales + 2 * 4 * rows


def _ratio(pairs: Iterable[tuple[Mapping[str, Array], Mapping[str, Array]]]) -> float:
    """Return the SNR in dB of the worst output, over all runs."""
    # Integers and booleans are ignored if there are floating-point outputs. Otherwise each value counts as 1
    # of signal, and each changed value as 1 of noise.
    signals: dict[str, float] = {}
    noises: dict[str, float] = {}
    for expected, found in pairs:
        has_floats = any(map(_is_float, expected.values()))
        for name, array in expected.items():
            if not _is_float(array):
                if not has_floats and isinstance(array, np.ndarray):
                    signals[name] = signals.get(name, 0.0) + array.size
                    noises[name] = noises.get(name, 0.0) + float(np.sum(array != found[name]))
                continue
            one, other = array.astype(np.float64), found[name].astype(np.float64)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            with np.errstate(all="ignore"):
                signals[name] = signals.get(name, 0.0) + float(np.sum(one[np.isfinite(one)] ** 2))
                noises[name] = noises.get(name, 0.0) + float(np.sum(np.where(same, 0.0, one - other) ** 2))
    return min((_decibels(signals[name], noise) for name, noise in noises.items()), default=math.inf)


def _is_float(array: Array) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.name in ELEMENT_TYPES


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf
