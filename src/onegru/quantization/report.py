"""The report of `quantize`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onegru.core.arguments import choice, integer, shown
from onegru.core.compare import Comparison, compared_words
from onegru.core.dtypes import DEFAULT_ACTIVATION_STORAGE
from onegru.core.errors import SpecError
from onegru.core.wording import aligned
from onegru.drawing.card import card
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.model import Model
from onegru.quantization.subject import MODES, quantization_target, storages_of
from onegru.rewriting.rewrite import Rewriting

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace

_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))

Quantizable = TypeVar("Quantizable", bound=GRU | Stack | Model, covariant=True)


@dataclass(frozen=True, slots=True)
class ModeResult:
    """SNR, size and run time of one GRU, or of all GRUs, in one storage mode.

    Attributes:
        snr: the signal-to-noise ratio against float32 in dB, for the worst output: 10·log10 of
            Σ expected² / Σ (expected - found)². If all outputs are integers or booleans: 10·log10 of the
            number of values / the number of changed values. Infinity if nothing differs; minus infinity if a
            value is no longer finite.
        size: the bytes of the weights: W and R, the int8 scales, and B in float32.
        seconds: the median time of a pass over the samples, in seconds.
    """

    snr: float
    size: int
    seconds: float


ModeResult.__module__ = "onegru.reports"


@dataclass(frozen=True, slots=True)
class QuantizedGru:
    """Quantization result of one GRU.

    Attributes:
        name: the node's name; for layers "layer 0", "layer 1" and so on, the lowest first.
        layer: the `repr` of the layer.
        modes: the measurement of each mode, with the GRU's inputs in the float32 model; empty for a GRU that
            cannot be quantized.
        mode: the mode in the result.
        reason: why the GRU cannot be quantized; empty if it can.
    """

    name: str
    layer: str
    modes: Mapping[str, ModeResult]
    mode: str
    reason: str = ""


QuantizedGru.__module__ = "onegru.reports"


@dataclass(frozen=True, repr=False)
class Quantization(Generic[Quantizable]):
    """Result of `quantize`.

    Attributes:
        result: the layer, stack or model, with each GRU in its `mode`.
        grus: the GRUs, in execution order.
        modes: the measurement of the whole model with all GRUs in each mode; the size is the sum over the
            GRUs.
        chosen: the same measurement for the result.
        group_size: how many int8 weights of a row share a scale. Default: None (the whole row).
        compared: the number of output values compared in each mode, which are finite in float32.
        steps: the number of steps of the longest row of a GRU. Default: None (a model without GRUs).
        written: the changes in the written file; None without `target`.
    """

    result: Quantizable
    grus: tuple[QuantizedGru, ...]
    modes: Mapping[str, ModeResult]
    chosen: ModeResult
    group_size: int | None
    compared: int
    steps: int | None
    _source: GRU | Stack | Model = field(repr=False, compare=False)
    _samples: Sequence[Any] = field(repr=False, compare=False)
    written: Rewriting | None = None

    @property
    def weight_storage(self) -> dict[str, str]:
        """The `weight_storage` of the result for `onegru.load`, by node; without float32 nodes."""
        group = self.group_size or 0
        return {gru.name: kept for gru in self.grus if (kept := storages_of(gru.mode, group)[0]) is not None}

    @property
    def activation_storage(self) -> dict[str, str]:
        """The `activation_storage` of the result for `onegru.load`, by node, if it rounds activations."""
        return {gru.name: kept for gru in self.grus if (kept := MODES[gru.mode][1]) is not None}

    def trace(
        self, node: str | int = 0, mode: str | None = None, sample: int = 0
    ) -> tuple[GateTrace, GateTrace]:
        """Return the gates of a GRU in float32, and with all GRUs in another mode.

        `to_html(…, against=…)` of the second trace shows the differences over time.

        Args:
            node: the GRU's name or index. Default: 0.
            mode: one of `MODES`. Default: None (the modes of the result).
            sample: the index of the sample. Default: 0.

        Returns:
            the gates in float32, and the gates in the other mode.

        Raises:
            SpecError: there is no such GRU, mode or sample.
        """
        subject = quantization_target(self._source, self._samples, {}, 0, self.group_size or 0)
        names = [gru.name for gru in self.grus]
        index = names.index(node) if isinstance(node, str) and names.count(node) == 1 else node
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(names):
            raise SpecError.of(
                "node", f"{shown(node)}; must be one of {', '.join(map(repr, names))}, or an index"
            )
        integer("sample", sample, 0, len(subject.samples) - 1)
        if mode is not None:
            choice("mode", mode, MODES)
        other = self.result if mode is None else subject.make(dict.fromkeys(subject.layers, mode))
        call = subject.samples[sample]
        return tuple(subject.trace(item, call, index) for item in (subject.make({}), other))  # type: ignore[return-value]

    def __repr__(self) -> str:
        kept = ", ".join(
            f"{number} in {mode}" for mode, number in Counter(gru.mode for gru in self.grus).items()
        )
        return f"Quantization({kept or 'no GRU'}; {_ratio_words(self.chosen)})"

    def _repr_html_(self) -> str:
        grus = [(gru.name, gru.mode, *_of_modes(gru), gru.reason) for gru in self.grus]
        chosen, float32 = _sizes([self.chosen, self.modes["float32"]])
        facts = [
            ("signal-to-noise ratio", _ratio_words(self.chosen)),
            ("weights", chosen),
            ("in float32", float32),
            ("values compared", f"{self.compared:,}"),
        ]
        return card("Quantization", facts, ("GRU", "result", *MODES, ""), grus)

    def __str__(self) -> str:
        """Return a table of each GRU, and of all GRUs."""
        rows = [("", *MODES, "result"), *table_rows(self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows = [(row[0], *map(str.rjust, row[1:-1], widths[1:-1]), row[-1]) for row in rows]
        words = compared_words(Comparison(compared=self.compared, steps=self.steps))
        return "\n".join([*aligned(rows), words, *self.usage])

    @property
    def usage(self) -> list[str]:
        """Return lines on how to run the written file in int8; empty without `target`."""
        if self.written is None or self.written.target is None:
            return []
        names = [gru.name for gru in self.grus]
        return int8_usage(self.written.target, names, self.weight_storage, self.activation_storage)


Quantization.__module__ = "onegru.reports"


def int8_usage(
    target: str, names: Sequence[str], weights: Mapping[str, str], activations: Mapping[str, str]
) -> list[str]:
    """Return lines on how to run a file in int8, because the default is float32."""
    given = {"weight_storage": weights, "activation_storage": activations}
    if {*activations.values()} <= {DEFAULT_ACTIVATION_STORAGE}:
        del given["activation_storage"]
    options = ""
    if all(kept.keys() == {*names} and len({*kept.values()}) == 1 for kept in given.values()):
        kinds = {name: next(iter(kept.values())) for name, kept in given.items()}
        words = ", ".join(f'{name}="{kind}"' for name, kind in kinds.items())
        options = "".join(f" --{name.replace('_', '-')} {kind}" for name, kind in kinds.items())
        options = f", or add{options} on the command line"
    else:
        words = ", ".join(f"{name}={dict(kept)}" for name, kept in given.items())
    lines = ["all runtimes, including onegru, compute this file in float32 by default"]
    if target.lower().endswith(".onnx"):
        lines.append(
            "ONNX Runtime may be slower with this file than with the source; to prevent it, set the session "
            'option session.disable_quant_qdq = "1"'
        )
    return [*lines, f"to run it in int8: onegru.load({target!r}, {words}){options}"]


def table_rows(report: Quantization[Any]) -> list[tuple[str, ...]]:
    """Return table rows with SNR, mode, size and time of each GRU, and of all GRUs."""
    rows: list[tuple[str, ...]] = []
    for gru in report.grus:
        if gru.modes:
            rows += _three_rows(gru.name, gru.modes, gru.modes[gru.mode], gru.mode)
        else:
            rows.append((gru.name, *[""] * len(MODES), gru.reason))
    return rows + _three_rows("all", report.modes, report.chosen, _ratio_words(report.chosen))


def _of_modes(gru: QuantizedGru) -> list[str]:
    return [_ratio_words(item) for item in gru.modes.values()] or [""] * len(MODES)


def _three_rows(
    name: str, modes: Mapping[str, ModeResult], kept: ModeResult, words: str
) -> list[tuple[str, ...]]:
    items = list(modes.values())
    return [
        (name, *map(_ratio_words, items), words),
        ("  size", *_sizes([*items, kept])),
        ("  time", *_times([*items, kept])),
    ]


def _ratio_words(item: ModeResult) -> str:
    if item.snr == math.inf:
        return "exact"
    return "not finite" if item.snr == -math.inf else f"{item.snr:.1f} dB"


def _sizes(items: Sequence[ModeResult]) -> list[str]:
    """Format sizes of weights, all in the unit of the largest."""
    unit, words = next(
        ((unit, words) for unit, words in _UNITS if max(item.size for item in items) >= unit), (1, "bytes")
    )
    return [f"{item.size / unit:.{0 if unit == 1 else 1}f} {words}" for item in items]


def _times(items: Sequence[ModeResult]) -> list[str]:
    """Format times, all in the unit of the shortest."""
    unit, words = (1e-3, "ms") if min(item.seconds for item in items) >= 1e-3 else (1e-6, "µs")
    return [f"{item.seconds / unit:{'.2f' if unit == 1e-3 else '.0f'}} {words}" for item in items]
