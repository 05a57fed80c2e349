"""Define a case of the suite: one GRU node, its inputs and its expected outputs.

Quantized cases also have QuantizeLinear and DequantizeLinear nodes.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from onegru.conformance.attributes import attributes_of
from onegru.conformance.draw import draw_inputs
from onegru.conformance.expect import Expectation, expect
from onegru.conformance.factors import AROUND, factors_of, words_of
from onegru.conformance.storage import STORAGES, Stored, expect_on_grid, on_grid, store_weights
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import OneGRUError, SpecWarning
from onegru.operators.lowering import Lowered, lower
from onegru.operators.schema import WEIGHTS, OpSchema

# Attempts to generate inputs. Inputs are rejected if an output is too close to a jump of an activation, or
# too large for a useful tolerance. Each attempt uses smaller values than the one before.
_DRAWS = 12


class _Drawn(NamedTuple):
    given: Mapping[str, Array]
    inputs: Mapping[str, Array]
    stored: Mapping[str, Stored]
    found: Expectation


@dataclass(frozen=True)
class Case:
    """Case of the conformance suite."""

    operator: OpSchema
    choices: Mapping[str, str]  # the unusual levels, by factor

    def __repr__(self) -> str:
        return f"Case({self.name!r})"

    def level(self, factor: str) -> str:
        """Return the level of a factor, or an empty string."""
        known = factors_of(self.operator).get(factor) or AROUND.get(factor)
        return "" if known is None else self.choices.get(factor, known.usual)

    @cached_property
    def name(self) -> str:
        """Its name, also for files. An unchanged case has the same name in every release."""
        version = f"_{self.operator.version}" if self.operator.version else ""
        parts = [f"{factor}_{level}" for factor, level in self.choices.items()]
        text = "".join(char if char.isalnum() else "_" for char in "__".join(parts)) or "usual"
        if len(text) > 80:
            text = f"{text[:70].rstrip('_')}__{zlib.crc32(text.encode()):08x}"
        return f"{self.operator.name.lower()}{version}__{text}"

    @property
    def dtype(self) -> str:
        """Its floating-point type."""
        return self.level("type")

    @property
    def checks(self) -> str:
        """Requirement that a runtime must meet to pass."""
        return words_of(self.operator, self.choices)[0]

    @property
    def source(self) -> str:
        """Its source in the specification."""
        return words_of(self.operator, self.choices)[1]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node, as in the specification."""
        return attributes_of(self.operator, self.level)

    @property
    def has_constant_weights(self) -> bool:
        """Whether W, R and B are constants of the file."""
        return self.level("weights") == "constant"

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether the file has fixed numbers of steps and rows."""
        return self.level("shapes") == "fixed"

    @property
    def opset(self) -> int:
        """The opset of an ONNX model: the oldest with the node and the storage of its weights."""
        storage = STORAGES.get(self.level("stored"))
        return self.operator.version if storage is None else max(self.operator.version, storage.opset)

    @property
    def rounded(self) -> tuple[str, ...]:
        """The inputs and outputs of the node that pass through QuantizeLinear and DequantizeLinear."""
        level = self.level("rounded")
        return () if level == "none" else tuple(level.split(", "))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the node, by the specification's names."""
        names = tuple(port.name for port in self.operator.outputs)
        return tuple(self.level("outputs").split(", ")) if self.level("outputs") else names

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The node's inputs, with dequantized weights, in the order of the specification."""
        return self._drawn.inputs

    @property
    def given(self) -> Mapping[str, Array]:
        """The inputs before QuantizeLinear, if there is one."""
        return self._drawn.given

    @property
    def stored(self) -> Mapping[str, Stored]:
        """The inputs that are stored as integers."""
        return self._drawn.stored

    @property
    def expected(self) -> Mapping[str, Array]:
        """The expected outputs, in float64."""
        return self._drawn.found.values

    @property
    def tolerance(self) -> Mapping[str, Array]:
        """The tolerance of each value of the outputs; see `onegru.conformance.expect`."""
        return self._drawn.found.tolerance

    @cached_property
    def lowered(self) -> Lowered:
        """The node in canonical form."""
        return _lower(self, self.inputs)

    def output_dtype(self) -> np.dtype[Any]:
        """Return the type that outputs must have."""
        return numpy_dtype(self.dtype)

    @cached_property
    def _drawn(self) -> _Drawn:
        """Inputs, and the results that follow from them."""
        seed = zlib.crc32(self.name.encode())
        storage = STORAGES.get(self.level("stored"))
        for attempt in range(_DRAWS):
            given = draw_inputs(self.operator, self.level, seed + attempt, 0.8**attempt)
            stored = {} if storage is None else store_weights(storage, given, seed + attempt)
            inputs = given | {name: item.dequantized() for name, item in stored.items()}
            inputs |= {name: on_grid(name, given[name]) for name in self.rounded if name in given}
            lowered = _lower(self, inputs)
            found = expect(lowered, inputs, self.outputs)
            for name in set(self.rounded).intersection(self.outputs):
                found = expect_on_grid(name, found)
            if found.is_sharp(self.dtype):
                return _Drawn(given, inputs, stored, found)
        raise OneGRUError(f"{self.name}: no inputs determine its outputs; remove it from the suite")


def _lower(case: Case, inputs: Mapping[str, Array]) -> Lowered:
    with warnings.catch_warnings(action="ignore", category=SpecWarning):  # superfluous values
        return lower(case.operator, case.attributes, *(inputs.get(name) for name in WEIGHTS))
