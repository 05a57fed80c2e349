"""Test every argument of every public function and class: invalid types raise an error with its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from tests.support.layers import make_gru, make_stack

T, B, I, H = 3, 2, 5, 4


class Bare:
    """Object without features."""

    def __repr__(self) -> str:
        return "Bare()"


class NoTruth(Bare):
    """Object that raises an error when its truth or equality is requested."""

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    __hash__ = None  # type: ignore[assignment]


def some(*items: object) -> Iterator[object]:
    yield from items


#: Invalid values of arguments, by name.
WRONG: Mapping[str, Callable[[], Any]] = {
    "None": lambda: None,
    "False": lambda: False,
    "True": lambda: True,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "2**70": lambda: 2**70,
    "0.0": lambda: 0.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "''": lambda: "",
    "'x'": lambda: "x",
    "b''": lambda: b"",
    "b'x'": lambda: b"x",
    "()": lambda: (),
    "[]": lambda: [],
    "[[]]": lambda: [[]],
    "[None]": lambda: [None],
    "[[1], [2, 3]]": lambda: [[1], [2, 3]],
    "{}": lambda: {},
    "{1: 2}": lambda: {1: 2},
    "set()": set,
    "generator": lambda: some(1),
    "object": Bare,
    "no truth": NoTruth,
    "class": lambda: Bare,
    "array([])": lambda: np.array([]),
    "array(1)": lambda: np.array(1),
    "array(0.0)": lambda: np.array(0.0),
    "array('x')": lambda: np.array("x"),
    "array([1, 2])": lambda: np.array([1, 2]),
    "array of objects": lambda: np.array([None, Bare()]),
    "array of huge integers": lambda: np.array([2**70, 1], object),
    "structured array": lambda: np.zeros(2, [("a", np.float32)]),
    "huge empty array": lambda: np.lib.stride_tricks.as_strided(np.zeros(0, np.float32), (2**60, 0, 0)),
    "array of rank 2": lambda: np.zeros((3, 3)),
    "float16 scalar": lambda: np.float16(1),
}

f32 = np.float32
X, h = np.ones((T, B, I), f32), np.ones((1, B, H), f32)
W, R, bias = np.ones((1, 3 * H, I), f32), np.ones((1, 3 * H, H), f32), np.ones((1, 6 * H), f32)
ones = np.ones((B, T, 1), f32)
SPEC = onegru.Spec(I, H, "float32")
TORCH = {"weight_ih_l0": W[0], "weight_hh_l0": R[0]}
FLAX = {
    **{part: {"kernel": W[0, :H].T, "bias": bias[0, :H]} for part in ("ir", "iz", "in")},
    **{part: {"kernel": R[0, :H].T} for part in ("hr", "hz")},
    "hn": {"kernel": R[0, :H].T, "bias": bias[0, :H]},
}
CELL = {"W": W[0], "R": R[0], "B": bias[0, : 3 * H]}
SEQUENCE = {"W": W, "R": R, "B": bias[:, : 3 * H], "sequence_lengths": [T, T]}


def attention_layer() -> onegru.GRU:
    return make_gru(attention=True)


def set_state(stream: Any, state: object) -> None:
    stream.state = state


#: The called functions and classes by name, with valid arguments.
CALLS: dict[str, tuple[Callable[[], Callable[..., Any]], dict[str, Any]]] = {
    "gru": (lambda: onegru.gru, {"X": X, "W": W, "R": R}),
    "gru_cell": (
        lambda: onegru.gru_cell,
        {"X": X[0], "initial_hidden_state": h[0], "hidden_size": H, **CELL},
    ),
    "gru_sequence": (
        lambda: onegru.gru_sequence,
        {"X": X.swapaxes(0, 1), "initial_hidden_state": h.swapaxes(0, 1), "hidden_size": H, **SEQUENCE},
    ),
    "augru_cell": (
        lambda: onegru.augru_cell,
        {"X": X[0], "H_t": h[0], "A": ones[:, 0], "hidden_size": H, **CELL},
    ),
    "augru_sequence": (
        lambda: onegru.augru_sequence,
        {"X": X.swapaxes(0, 1), "H_t": h.swapaxes(0, 1), "A": ones, "hidden_size": H, **SEQUENCE},
    ),
    "GRU": (lambda: onegru.GRU, {"W": W, "R": R}),
    "GRU.run": (lambda: attention_layer().run, {"X": X, "attention": ones[:, :, 0].T}),
    "GRU.trace": (lambda: attention_layer().trace, {"X": X, "attention": ones[:, :, 0].T}),
    "GRU.stream": (lambda: make_gru().stream, {}),
    "GRU.from_canonical": (
        lambda: onegru.GRU.from_canonical,
        {"spec": SPEC, "weights": onegru.Weights(W, R, bias)},
    ),
    "Spec": (lambda: onegru.Spec, {"input_size": I, "hidden_size": H, "dtype": "float32"}),
    "Weights": (lambda: onegru.Weights, {"W": W, "R": R, "B": bias}),
    "Activation": (lambda: onegru.Activation, {"name": "Elu", "alpha": 1.0}),
    "Stream.step": (lambda: attention_layer().stream(B)._step, {"x": X[0], "attention": ones[:, 0]}),
    "Stream.run": (lambda: attention_layer().stream(B).run, {"X": X, "attention": ones[:, :, 0].T}),
    "Stream.reset": (lambda: make_gru().stream(B).reset, {}),
    "Stream.state": (lambda: lambda state: set_state(make_gru().stream(B), state), {"state": h[0]}),
    "Stack": (lambda: onegru.Stack, {"layers": [make_gru()]}),
    "Stack.__call__": (lambda: make_stack(2).__call__, {"X": X}),
    "Stack.trace": (lambda: make_stack(2).trace, {"X": X}),
    "GateTrace.summary": (lambda: make_gru().trace(X).summary, {}),
    "Stack.stream": (lambda: make_stack(2).stream, {}),
    "StackStream.step": (lambda: make_stack(2).stream(B).step, {"x": X[0]}),
    "StackStream.run": (lambda: make_stack(2).stream(B).run, {"X": X}),
    "StackStream.reset": (lambda: make_stack(2).stream(B).reset, {}),
    "StackStream.state": (
        lambda: lambda state: set_state(make_stack(1).stream(B), state),
        {"state": [h[0]]},
    ),
    "set_num_threads": (lambda: onegru.set_num_threads, {"n": None}),
    "pad": (lambda: onegru.pad, {"sequences": [X[0], X[1]]}),
    "from_torch": (lambda: onegru.from_torch, {"source": TORCH}),
    "to_torch_state_dict": (
        lambda: onegru.to_torch_state_dict,
        {"source": make_gru(linear_before_reset=True)},
    ),
    "from_keras": (lambda: onegru.from_keras, {"source": [W[0].T, R[0].T, bias.reshape(2, 3 * H)]}),
    "to_keras_weights": (lambda: onegru.to_keras_weights, {"source": make_gru()}),
    "from_flax": (lambda: onegru.from_flax, {"source": FLAX}),
    "to_flax": (lambda: onegru.to_flax, {"layer": make_gru(linear_before_reset=True)}),
}

#: Public names without arguments, or with arguments that other tests check: files and models.
ELSEWHERE = {
    *("Check", "InferenceSession", "Model"),
    *("FormatError", "MissingExtraError", "OneGRUError", "SpecError", "SpecWarning"),
    *("conformance", "execution_provider", "openvino", "reports", "scoring"),
    *(
        "empty_cache",
        "fuse",
        "get_num_threads",
        "inspect",
        "load",
        "load_layers",
        "make_streaming",
        "quantize",
        "rewrite",
        "save_layers",
        "targets",
        "verify",
    ),
    *("to_keras", "to_torch"),  # they need their frameworks
}

_NUMBERS = {"1", "2**70", "inf", "array(1)", "float16 scalar"}
_INTEGERS = {"0", "1", "-1", "2**70", "array(1)"}
_LISTS = {"()", "[]", "array([])"}
_FLOATS = _LISTS | {"array([1, 2])", "array of huge integers"}
_FLOAT_ARRAYS = {
    *("0.0", "nan", "inf", "()", "[]", "[[]]", "array([])", "array(0.0)"),
    *("array of rank 2", "huge empty array", "float16 scalar"),
}
_FLAGS = {"False", "True"}

#: Values in WRONG that are valid, by argument; by function and argument where functions differ.
LEGAL_BY_ARGUMENTS: list[tuple[list[str], set[str]]] = [
    (["hidden_size", "direction", "activations", "output_sequence", "B", "initial_h", "out"], {"None"}),
    (["name", "prefix", "backward", "gate_fn", "activation_fn", "activation"], {"None"}),
    (["recurrent_activation", "weight_storage", "activation_storage", "rows", "beta"], {"None"}),
    (["sequence_lens", "sequence_lengths"], {"None", "array([1, 2])"}),
    (["activation_alpha", "activation_beta"], {"None"} | _FLOATS),
    (["activations_alpha", "activations_beta"], {"None"} | _FLOATS),
    (["attention"], _FLAGS | {"None"}),
    (["linear_before_reset", "flush_subnormals"], _FLAGS),
    (["batch_size"], {"1"}),
    (["clip"], {"None"} | _NUMBERS),
    (["layout"], {"0", "1"}),
    (
        ["GRU.run layout", "GRU.trace layout", "Stack layout", "Stack.__call__ layout", "Stack.trace layout"],
        {"None", "0", "1"},
    ),
    (["GateTrace.summary row"], {"None", "0", "1"}),
    (["batch_first"], {"None"} | _FLAGS),
    (["n"], {"None", "1"}),
    (["opset", "Spec hidden_size"], {"1", "2**70"}),
    (["GRU linear_before_reset"], {"None"} | _FLAGS | _INTEGERS),
    (
        [
            "GRU.run attention",
            "GRU.trace attention",
            "Stream.run attention",
            "Stream.step attention",
            "Activation name",
            "Spec activations",
            "Spec direction",
            "augru_cell B",
            "augru_cell hidden_size",
            "augru_sequence B",
            "augru_sequence hidden_size",
            "from_flax direction",
            "gru_cell hidden_size",
            "gru_sequence B",
            "gru_sequence hidden_size",
        ],
        set(),
    ),
    (["Stream.reset rows", "StackStream.reset rows"], {"None", "()", "[]"}),
    (["Activation alpha"], (_NUMBERS | {"0", "-1", "0.0"}) - {"array(1)"}),
    (["Spec clip"], {"None", "1", "2**70", "float16 scalar"}),
    # Weights do not know their sizes yet. These are checked against a Spec.
    (["Weights W", "Weights R", "Weights B"], _FLOAT_ARRAYS),
    (["Spec input_size"], {"0", "1", "2**70"}),
    (
        [
            "augru_cell activations_alpha",
            "augru_cell activations_beta",
            "augru_sequence activations_alpha",
            "augru_sequence activations_beta",
        ],
        {"None"} | _LISTS,
    ),
    (["augru_cell clip", "augru_sequence clip"], {"None", "0", "0.0", "array(0.0)"}),
    (
        [
            "augru_cell linear_before_reset",
            "augru_sequence linear_before_reset",
            "gru_cell linear_before_reset",
            "gru_sequence linear_before_reset",
        ],
        {"None", "False", "0"},
    ),
    (["augru_sequence sequence_lengths", "gru_sequence sequence_lengths"], {"array([1, 2])"}),
    (["from_flax prefix", "from_torch prefix"], {"None", "''"}),
    (["from_keras bidirectional"], {"None", "False"}),
    (["from_keras reset_after"], {"None", "True"}),
    # An empty list means None, as in a file.
    (["gru activations", "GRU activations"], {"None", "()", "[]", "array([])"}),
    (["gru layout"], {"None", "0", "1", "array(1)"}),
    (["gru linear_before_reset"], {"None"} | _FLAGS | _INTEGERS),
    (["gru_cell clip", "gru_sequence clip"], {"None", "0", "0.0", "array(0.0)"} | _NUMBERS),
    (["to_torch_state_dict prefix"], {"''", "'x'"}),
]
LEGAL = {argument: labels for arguments, labels in LEGAL_BY_ARGUMENTS for argument in arguments}

#: Arguments that are valid, but not together with this one. The message names the other argument.
NAMED = {
    "Activation name": "activations",
    "GRU.trace X": "Y",
    "Stack.__call__ X": "Y",
    "Stack.trace X": "Y",
    "Stream.step rows": "x",
    "StackStream.step rows": "x",
    "from_keras bidirectional": "source",
    "from_keras source": "reset_after",
    "gru_cell linear_before_reset": "B",
    "gru_sequence linear_before_reset": "B",
}

PAIRS = [(call, name) for call, (make, _) in CALLS.items() for name in inspect.signature(make()).parameters]


def test_every_public_name_has_its_place() -> None:
    assert {call for call in CALLS if "." not in call} | ELSEWHERE == set(onegru.__all__)


@pytest.mark.filterwarnings("ignore::onegru.SpecWarning")
@pytest.mark.parametrize(("call", "name"), PAIRS)
def test_what_is_wrong_is_refused_by_name(call: str, name: str) -> None:
    make, arguments = CALLS[call]
    legal = LEGAL.get(f"{call} {name}", LEGAL.get(name, set()))
    named = re.compile(rf"\b({name}|{NAMED.get(f'{call} {name}', name)})\b")
    for label, value in WRONG.items():
        if label in legal:
            make()(**{**arguments, name: value()})
            continue
        with pytest.raises(SpecError) as caught:
            make()(**{**arguments, name: value()})
            pytest.fail(f"{label} was accepted")
        message = str(caught.value)
        assert named.search(message), f"{label}: {message}"
        assert message.isprintable() and len(message) < 400, f"{label}: {message}"
    onegru.set_num_threads(None)
