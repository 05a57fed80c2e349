"""Define the interface of a program that scores batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.shapes import side_by_side
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.operators.onnx import NEWEST
from onegru.scoring.columns import Field


class Program(Protocol):
    """Program that runs on batches of rows."""

    fields: tuple[Field, ...]  # the inputs from each row
    results: tuple[Field, ...]  # the outputs for each row
    equal_lengths: bool  # whether all rows of a batch must have the same length, without padding
    lengths_input: str | None  # the input that gets the lengths, unless a column supplies it
    is_parallel: bool  # whether several threads with a batch each are faster than one batch on all cores

    def run(self, arrays: Mapping[str, Array], lengths: Array) -> Mapping[str, Array]:
        """Run a batch."""
        ...


class LayersProgram:
    """Layer or stack.

    The inputs are "X", "A" for a layer with attention scores, and, if it has a column, "initial_h": the
    concatenated states of all layers and directions. The outputs are "Y_h", the last layer's last states with
    concatenated directions; "states", the last states of all layers, the lowest first; and "Y", the last
    layer's state after each step.
    """

    equal_lengths = False
    lengths_input: str | None = None
    is_parallel = True

    def __init__(
        self, source: GRU | Stack, inputs: Mapping[str, str], outputs: Mapping[str, str] | None
    ) -> None:
        self._layers = layers_of(source)
        self._is_stack = isinstance(source, Stack)
        last = self._layers[-1].spec
        takes_scores = self._layers[0].spec.attention
        self._sizes = [layer.spec.num_directions * layer.spec.hidden_size for layer in self._layers]
        wide = {"Y_h": self._sizes[-1], "states": sum(self._sizes), "Y": self._sizes[-1]}
        dtype = last.dtype
        known = {
            "X": Field("X", "X", dtype, (self._layers[0].input_size,), True),
            "A": Field("A", "A", dtype, (1,), True),
            "initial_h": Field("initial_h", "", dtype, (sum(self._sizes),), False),
        }
        if not takes_scores:
            del known["A"]
        check_names("inputs", inputs, known)
        fields = [known[name] for name in known if name in inputs or name != "initial_h"]
        self.fields = tuple(
            Field(item.name, inputs.get(item.name, item.column), item.dtype, item.shape, item.is_sequence)
            for item in fields
        )
        wanted = {"Y_h": "Y_h"} if outputs is None else outputs
        check_names("outputs", wanted, wide)
        self.results = tuple(
            Field(name, column, dtype, (wide[name],), name == "Y") for name, column in wanted.items()
        )
        self._wanted = set(wanted)
        self._ports = [port for port in NEWEST.ports(0) if port.role in ("X", "initial_h", "sequence_lens")]
        self._last_ports = [*self._ports, *(port for port in NEWEST.ports(0) if port.role == "Y_h")]

    def run(self, arrays: Mapping[str, Array], lengths: Array) -> Mapping[str, Array]:
        """Run a batch; see `Program`."""
        Y = arrays["X"]
        scores = arrays.get("A")
        states = self._states(arrays.get("initial_h"))
        last: list[Array] = []
        for index, (layer, state) in enumerate(zip(self._layers, states, strict=True)):
            if index:
                Y = side_by_side(Y)
            is_top = index == len(self._layers) - 1
            if is_top and scores is None and "Y" not in self._wanted:
                given = {"X": Y, "initial_h": state, "sequence_lens": lengths}
                Y_h = apply(layer, self._last_ports, given, {"Y_h": None})["Y_h"]
            else:
                Y, Y_h = layer(Y, state, sequence_lens=lengths, attention=scores, layout=0)
            last.append(side_by_side(Y_h[None])[0])
        found = {"Y_h": last[-1]}
        if "states" in self._wanted:
            found["states"] = np.concatenate(last, axis=1)
        if "Y" in self._wanted:
            found["Y"] = side_by_side(Y)
        return found

    def fed(self, arrays: Mapping[str, Array], lengths: Array) -> dict[str, Any]:
        """Return the arguments of a call of the layer or stack, for rows of the same length."""
        given: dict[str, Any] = {"X": arrays["X"], "layout": 0}
        if "A" in arrays:
            given["attention"] = arrays["A"]
        if "initial_h" in arrays:
            states = self._states(arrays["initial_h"])
            given["initial_h"] = states if self._is_stack else states[0]
        return given

    def _states(self, joined: Array | None) -> Sequence[Array | None]:
        """Return the initial states of each layer, [D, B, H]."""
        if joined is None:
            return [None] * len(self._layers)
        parts = np.split(joined, np.cumsum(self._sizes)[:-1], axis=1)
        return [
            part.reshape(len(part), layer.spec.num_directions, layer.spec.hidden_size).swapaxes(0, 1)
            for part, layer in zip(parts, self._layers, strict=True)
        ]


def check_names(argument: str, given: Mapping[str, str], known: Mapping[str, object]) -> None:
    """Raise SpecError unless all names are known."""
    for name in given:
        if name not in known:
            listed = ", ".join(map(repr, known))
            raise SpecError.of(argument, f"{name!r}; must be one of {listed}")
