# ruff: noqa: E501 - messages stand whole, on one line
"""Invalid arguments of the operators, with the message or its beginning."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.operator_arguments import B, H, I, T, zeros

SHAPES = "[num_directions, 3*hidden_size, "

#: Invalid arguments that a GRU node of a file can also contain or receive.
GRU_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    # ranks
    (
        "X: rank 2, shape [4, 3]; must be [seq_length, batch_size, input_size] = [any, any, 2]",
        {"X": zeros(T, B)},
    ),
    ("X: rank 0, shape []; must be [seq_length, batch_size, input_size]", {"X": np.float32(1)}),
    ("X: rank 4, shape [4, 3, 2, 1]; must be", {"X": zeros(T, B, I, 1)}),
    (f"W: rank 2, shape [15, 2]; must be {SHAPES}input_size] = [1, 15, any]", {"W": zeros(3 * H, I)}),
    ("W: rank 0, shape []; must be", {"W": np.float32(0)}),
    (f"R: rank 2, shape [15, 5]; must be {SHAPES}hidden_size]", {"R": zeros(3 * H, H)}),
    ("R: rank 0, shape []; must be", {"R": np.float32(0)}),
    ("B: rank 1, shape [30]; must be [num_directions, 6*hidden_size] = [1, 30]", {"B": zeros(6 * H)}),
    ("sequence_lens: rank 2, shape [1, 3]; must be [batch_size] = [3]", {"sequence_lens": [[T] * B]}),
    ("sequence_lens: rank 0, shape []; must be [batch_size] = [3]", {"sequence_lens": T}),
    (
        "initial_h: rank 2, shape [3, 5]; must be [num_directions, batch_size, hidden_size] = [1, 3, 5]",
        {"initial_h": zeros(B, H)},
    ),
    # first dimensions, directions
    (
        "W: shape [1, 14, 2]; must be [num_directions, 3*hidden_size, input_size] = [1, 15, any]",
        {"W": zeros(1, 14, I)},
    ),
    (
        "R: shape [1, 14, 5]; must be [num_directions, 3*hidden_size, hidden_size] = [1, 15, 5]",
        {"R": zeros(1, 14, H)},
    ),
    (
        "R: shape [1, 15, 5]; must be [num_directions, 3*hidden_size, hidden_size] = [2, 15, 5]",
        {"direction": "bidirectional"},
    ),
    (
        "W: shape [2, 15, 2]; must be [num_directions, 3*hidden_size, input_size] = [1, 15, any]",
        {"W": zeros(2, 3 * H, I)},
    ),
    (
        "R: shape [2, 15, 5]; must be [num_directions, 3*hidden_size, hidden_size] = [1, 15, 5]",
        {"R": zeros(2, 3 * H, H)},
    ),
    ("B: shape [2, 30]; must be [num_directions, 6*hidden_size] = [1, 30]", {"B": zeros(2, 6 * H)}),
    # batch, H, I
    (
        "initial_h: shape [1, 2, 5]; must be [num_directions, batch_size, hidden_size] = [1, 3, 5]",
        {"initial_h": zeros(1, 2, H)},
    ),
    (
        "initial_h: shape [1, 3, 4]; must be [num_directions, batch_size, hidden_size] = [1, 3, 5]",
        {"initial_h": zeros(1, B, 4)},
    ),
    ("initial_h: shape [2, 3, 5]; must be", {"initial_h": zeros(2, B, H)}),
    (
        "X: shape [4, 3, 7]; must be [seq_length, batch_size, input_size] = [any, any, 2]",
        {"X": zeros(T, B, 7)},
    ),
    # lengths of B
    ("B: shape [1, 15]; must be [num_directions, 6*hidden_size] = [1, 30]", {"B": zeros(1, 3 * H)}),
    ("B: shape [1, 20]; must be [num_directions, 6*hidden_size] = [1, 30]", {"B": zeros(1, 4 * H)}),
    # lengths
    ("sequence_lens: -1; must be in 0…seq_length = 0…4", {"sequence_lens": [1, -1, 2]}),
    ("sequence_lens: 5; must be in 0…seq_length = 0…4", {"sequence_lens": [5, 1, 2]}),
    ("sequence_lens: shape [2]; must be [batch_size] = [3]", {"sequence_lens": [T, T]}),
    ("sequence_lens: shape [0]; must be [batch_size] = [3]", {"sequence_lens": []}),
    # activations
    (
        "activations: unknown function 'Swish'; must be one of Relu, Tanh, Sigmoid, Affine",
        {"activations": ["Swish", "Tanh"]},
    ),
    ("activations: 1 names; must be 2", {"activations": ["Tanh"]}),
    ("activations: 3 names; must be 2", {"activations": ["Tanh"] * 3}),
    ("activations: 4 names; must be 2", {"activations": ["Tanh"] * 4}),
    (
        "activation_alpha: no value for ScaledTanh, which has no default",
        {"activations": ["Sigmoid", "ScaledTanh"], "activation_beta": [1.0]},
    ),
    (
        "activation_beta: no value for ScaledTanh, which has no default",
        {"activations": ["Sigmoid", "ScaledTanh"], "activation_alpha": [1.0]},
    ),
    ("activation_alpha: NaN; must be a number", {"activation_alpha": [0.5, float("nan")]}),
    ("activation_beta: NaN; must be a number", {"activation_beta": [float("nan")]}),
    # clip
    ("clip: 0; must be > 0", {"clip": 0.0}),
    ("clip: -1; must be > 0", {"clip": -1.0}),
    ("clip: 0; must be > 0", {"clip": 1e-60}),
    ("clip: -inf; must be > 0", {"clip": float("-inf")}),
    ("clip: NaN; must be a number", {"clip": float("nan")}),
    ("activations: unknown function 'Lea\u212ayRelu'", {"activations": ["Lea\u212ayRelu", "Tanh"]}),
    # hidden_size
    ('activations: unknown function "a\'b"', {"activations": ["a'b", "Tanh"]}),
    ("activations: unknown function 'a\\'b\"c'", {"activations": ["a'b\"c", "Tanh"]}),
    ("activations: unknown function 'a\\\\\\n\\x1b'", {"activations": ["a\\\n\x1b", "Tanh"]}),
    ("hidden_size: 0; must be at least 1", {"hidden_size": 0}),
    ("hidden_size: -5; must be at least 1", {"hidden_size": -5}),
    ("hidden_size: 4; must be 5, because R has shape [1, 15, 5]", {"hidden_size": 4}),
    ("R: shape [1, 0, 0], hidden_size 0; must be at least 1", {"R": zeros(1, 0, 0), "W": zeros(1, 0, I)}),
    # direction, layout, others
    ("direction: 'sideways'; must be 'forward', 'reverse' or 'bidirectional'", {"direction": "sideways"}),
    ("direction: 'foward'; must be", {"direction": "foward"}),
    ("direction: 'Forward'; must be", {"direction": "Forward"}),
    ("direction: ''; must be", {"direction": ""}),
    ("layout: 2; must be 0 or 1", {"layout": 2}),
    # versions
    ("layout: not an attribute of GRU-7; layout needs opset 14", {"layout": 1, "opset": 13}),
    (
        "linear_before_reset: not an attribute of GRU-1; linear_before_reset needs opset 3",
        {"linear_before_reset": 1, "opset": 2},
    ),
    (
        "output_sequence: not an attribute of GRU-7; output_sequence was removed in opset 7",
        {"output_sequence": 0, "opset": 7},
    ),
    ("output_sequence: 2; must be 0 or 1", {"output_sequence": 2, "opset": 3}),
    ("direction: 'foward'; must be 'forward', 'reverse' or", {"direction": "foward", "opset": 3}),
    (
        "direction: 'x'; must be 'forward', 'reverse', 'bidirectional' or 'foward'",
        {"direction": "x", "opset": 2},
    ),
    # types
    ("R: type float64; must be float32", {"R": zeros(1, 3 * H, H, dtype=np.float64)}),
    ("B: type float16; must be float32", {"B": zeros(1, 6 * H, dtype=np.float16)}),
    ("X: type float64; must be float32, like W", {"X": zeros(T, B, I, dtype=np.float64)}),
    ("initial_h: type float64; must be float32, like W", {"initial_h": zeros(1, B, H, dtype=np.float64)}),
    (
        "W: type int64; must be float16, float32, float64 or bfloat16",
        {"W": zeros(1, 3 * H, I, dtype=np.int64)},
    ),
    (
        "X: type int32; must be float32, like W; try X.astype(np.float32)",
        {"X": zeros(T, B, I, dtype=np.int32)},
    ),
    ("X: type complex64; must be", {"X": zeros(T, B, I, dtype=np.complex64)}),
]

#: Invalid arguments that no file can contain.
PYTHON_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    (
        "sequence_lens: 18446744073709551615; must be in 0…seq_length",
        {"sequence_lens": np.array([2**64 - 1, 0, 0], np.uint64)},
    ),
    ("sequence_lens: type float64; must be an integer type", {"sequence_lens": [1.0, 2.0, 3.0]}),
    ("sequence_lens: type bool; must be an integer type", {"sequence_lens": [True] * B}),
    ("sequence_lens: type object; must be an integer type", {"sequence_lens": [2**80, 1, 1]}),
    ("activations: 'Tanh'; must be a list", {"activations": "Tanh"}),
    ("activations: 1; must be a string", {"activations": [1, 2]}),
    ("activation_alpha: 1.0; must be a list", {"activation_alpha": 1.0}),
    ("activation_alpha: 'x'; must be a number", {"activation_alpha": ["x"]}),
    ("activation_alpha: 1e+300; must be in float32's range", {"activation_alpha": [1e300]}),
    ("clip: True; must be a number", {"clip": True}),
    ("clip: too large for float64; must be in float32's range", {"clip": 10**400}),
    ("activations: {'Tanh'}; must be a list", {"activations": {"Tanh"}}),
    ("clip: '1'; must be a number", {"clip": "1"}),
    ("clip: 1e+300; must be in float32's range", {"clip": 1e300}),
    ("hidden_size: 5.0; must be an integer", {"hidden_size": 5.0}),
    ("direction: 1; must be a string", {"direction": 1}),
    ("layout: 'x'; must be an integer", {"layout": "x"}),
    ("linear_before_reset: 'yes'; must be a boolean or an integer", {"linear_before_reset": "yes"}),
    ("linear_before_reset: 0.5; must be a boolean or an integer", {"linear_before_reset": 0.5}),
    ("opset: 0; must be at least 1", {"opset": 0}),
    ("opset: '22'; must be an integer", {"opset": "22"}),
    ("opset: True; must be an integer", {"opset": True}),
    ("X: type object; must be", {"X": [[[None]]]}),
    ("W: missing; GRU-22 requires it", {"W": None}),
    ("R: missing; GRU-22 requires it", {"R": None}),
    ("X: missing; must be given", {"X": None}),
    ("X: sequences of different lengths; must be one array; try onegru.pad(X)", {"X": [[1.0], [1.0, 2.0]]}),
    ("X: a masked array; must be a plain array", {"X": np.ma.masked_array(zeros(T, B, I), True)}),
]

#: Invalid arguments of OpenVINO's operators: the function, the message, the changes.
OPENVINO_REFUSALS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "gru_cell",
        "X: rank 3, shape [4, 3, 2]; must be [batch_size, input_size] = [any, 2]",
        {"X": zeros(T, B, I)},
    ),
    (
        "gru_cell",
        "initial_hidden_state: shape [2, 5]; must be [batch_size, hidden_size] = [3, 5]",
        {"initial_hidden_state": zeros(2, H)},
    ),
    ("gru_cell", "initial_hidden_state: missing; must be given", {"initial_hidden_state": None}),
    ("gru_cell", "W: shape [14, 2]; must be [3*hidden_size, input_size] = [15, any]", {"W": zeros(14, I)}),
    ("gru_cell", "R: shape [14, 5]; must be [3*hidden_size, hidden_size] = [15, 5]", {"R": zeros(14, H)}),
    ("gru_cell", "B: shape [20]; must be [3*hidden_size] = [15]", {"B": zeros(4 * H)}),
    ("gru_cell", "B: shape [15]; must be [4*hidden_size] = [20]", {"linear_before_reset": True}),
    ("gru_cell", "B: shape [30]; must be [3*hidden_size] = [15]", {"B": zeros(6 * H)}),
    ("gru_cell", "hidden_size: 4; must be 5, because R has shape [15, 5]", {"hidden_size": 4}),
    ("gru_cell", "hidden_size: 0; must be at least 1", {"hidden_size": 0}),
    ("gru_cell", "hidden_size: missing; GRUCell-3 requires it", {"hidden_size": None}),
    ("gru_cell", "clip: -1; must be at least 0 (0: no clipping)", {"clip": -1}),
    ("gru_cell", "clip: 1e-46; must not round to 0 in float32", {"clip": 1e-46}),
    (
        "gru_cell",
        "activations: unknown function 'elu'; must be one of Relu, Sigmoid, Tanh",
        {"activations": ["elu", "tanh"]},
    ),
    ("gru_cell", "activations: 1 names; must be 2", {"activations": ["tanh"]}),
    ("gru_cell", "activations: 3 names; must be 2", {"activations": ["tanh"] * 3}),
    (
        "gru_cell",
        "W: type int64; must be float16, bfloat16, float32 or float64",
        {"W": zeros(3 * H, I, dtype=np.int64)},
    ),
    (
        "gru_sequence",
        "X: shape [3, 4, 7]; must be [batch_size, seq_length, input_size] = [any, any, 2]",
        {"X": zeros(B, T, 7)},
    ),
    (
        "gru_sequence",
        "initial_hidden_state: shape [1, 3, 5]; must be [batch_size, num_directions, hidden_size] = [3, 1, 5]",
        {"initial_hidden_state": zeros(1, B, H)},
    ),
    ("gru_sequence", "sequence_lengths: 5; must be in 0…seq_length = 0…4", {"sequence_lengths": [5, 0, 0]}),
    ("gru_sequence", "sequence_lengths: -1; must be", {"sequence_lengths": [-1, 0, 0]}),
    (
        "gru_sequence",
        "sequence_lengths: shape [4]; must be [batch_size] = [3]",
        {"sequence_lengths": [1] * 4},
    ),
    ("gru_sequence", "sequence_lengths: missing; must be given", {"sequence_lengths": None}),
    ("gru_sequence", "B: missing; GRUSequence-5 requires it", {"B": None}),
    (
        "gru_sequence",
        "direction: 'both'; must be 'forward', 'reverse' or 'bidirectional'",
        {"direction": "both"},
    ),
    (
        "gru_sequence",
        "R: shape [1, 15, 5]; must be [num_directions, 3*hidden_size, hidden_size] = [2, 15, 5]",
        {"direction": "bidirectional"},
    ),
    ("gru_sequence", "activations: 4 names; must be 2", {"activations": ["tanh"] * 4}),
    ("augru_cell", "A: rank 1, shape [3]; must be [batch_size, 1] = [3, 1]", {"A": zeros(B)}),
    ("augru_cell", "A: shape [2, 1]; must be [batch_size, 1] = [3, 1]", {"A": zeros(2, 1)}),
    ("augru_cell", "A: shape [3, 2]; must be [batch_size, 1] = [3, 1]", {"A": zeros(B, 2)}),
    ("augru_cell", "A: type float64; must be float32, like W", {"A": zeros(B, 1, dtype=np.float64)}),
    ("augru_cell", "A: missing; must be given", {"A": None}),
    ("augru_cell", "B: missing; AUGRUCell requires it", {"B": None}),
    ("augru_cell", "B: shape [20]; must be [3*hidden_size] = [15]", {"B": zeros(4 * H)}),
    ("augru_cell", "clip: 1.0; must be 0.0", {"clip": 1.0}),
    ("augru_cell", "clip: inf; must be 0.0", {"clip": float("inf")}),
    ("augru_cell", "linear_before_reset: True; must be False", {"linear_before_reset": True}),
    ("augru_cell", "activations_alpha: (1.0,); must be empty", {"activations_alpha": [1.0]}),
    ("augru_cell", "activations_beta: (1.0,); must be empty", {"activations_beta": [1.0]}),
    (
        "augru_cell",
        "activations: unknown function 'relu'; must be one of Sigmoid, Tanh",
        {"activations": ["relu", "tanh"]},
    ),
    (
        "augru_sequence",
        "A: rank 2, shape [3, 4]; must be [batch_size, seq_length, 1] = [3, 4, 1]",
        {"A": zeros(B, T)},
    ),
    (
        "augru_sequence",
        "A: shape [3, 5, 1]; must be [batch_size, seq_length, 1] = [3, 4, 1]",
        {"A": zeros(B, 5, 1)},
    ),
    ("augru_sequence", "A: shape [2, 4, 1]; must be", {"A": zeros(2, T, 1)}),
    ("augru_sequence", "direction: 'reverse'; must be 'forward'", {"direction": "reverse"}),
    ("augru_sequence", "clip: 0.5; must be 0.0", {"clip": 0.5}),
    ("augru_sequence", "linear_before_reset: True; must be False", {"linear_before_reset": 1}),
    (
        "augru_sequence",
        "H_t: shape [3, 2, 5]; must be [batch_size, num_directions, hidden_size] = [3, 1, 5]",
        {"H_t": zeros(B, 2, H)},
    ),
]
