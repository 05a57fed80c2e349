"""A naive oracle for every GRU operator: Python loops over direction, row, time step and unit.

It is written from the specifications, with one function per operator, in that operator's layout and with
its names. It shares no code with the package. Everything is computed in float64 and rounded once, at the
end, to the type of X. It is meant only for small sizes: a few rows, steps and units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Vector = list[float]
Activation = Callable[[float], float]

# The functions with parameters, and their defaults. ScaledTanh has no default.
TAKES_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
TAKES_BETA = ("affine", "scaledtanh", "hardsigmoid")
DEFAULT_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
DEFAULT_BETA = {"affine": 0.0, "hardsigmoid": 0.5}

REVERSED = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def float32(value: float) -> float:
    """Return an attribute's value as stored in a file."""
    return float(np.float32(value))


def activate(name: str, x: float, alpha: float = math.nan, beta: float = math.nan) -> float:
    """Compute one activation function, by its ONNX name in any case. NaN returns NaN."""
    name = name.lower()
    if math.isnan(x):
        return x
    if name == "relu":
        return max(0.0, x)
    if name == "tanh":
        return math.tanh(x)
    if name == "sigmoid":
        return 1.0 / (1.0 + math.exp(-x)) if x >= 0.0 else math.exp(x) / (1.0 + math.exp(x))
    if name == "affine":
        return alpha * x + beta
    if name == "leakyrelu":
        return x if x >= 0.0 else alpha * x
    if name == "thresholdedrelu":
        return x if x >= alpha else 0.0
    if name == "scaledtanh":
        return alpha * math.tanh(beta * x)
    if name == "hardsigmoid":
        y = alpha * x + beta
        return y if math.isnan(y) else min(max(y, 0.0), 1.0)
    if name == "elu":
        return x if x >= 0.0 else alpha * math.expm1(x)
    if name == "softsign":
        return math.copysign(1.0, x) if math.isinf(x) else x / (1.0 + abs(x))
    if name == "softplus":
        return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))
    raise ValueError(f"unknown activation {name!r}")


def bind_activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Assign the values, in order, to the functions with parameters; then the defaults in float32."""
    alpha_left, beta_left = list(alphas or ()), list(betas or ())
    bound: list[Activation] = []
    for name in (n.lower() for n in names):
        alpha = beta = math.nan
        if name in TAKES_ALPHA:
            if not alpha_left and name not in DEFAULT_ALPHA:
                raise ValueError(f"{name} needs an alpha")
            alpha = float32(alpha_left.pop(0) if alpha_left else DEFAULT_ALPHA[name])
        if name in TAKES_BETA:
            if not beta_left and name not in DEFAULT_BETA:
                raise ValueError(f"{name} needs a beta")
            beta = float32(beta_left.pop(0) if beta_left else DEFAULT_BETA[name])
        activate(name, 0.0, alpha, beta)  # raises an error for an unknown name

        def function(x: float, name: str = name, alpha: float = alpha, beta: float = beta) -> float:
            return activate(name, x, alpha, beta)

        bound.append(function)
    return bound


@dataclass(frozen=True)
class Cell:
    """Weights of one direction as nested lists: W [3H][I], R [3H][H], Wb, Rb [3H], in gate order z, r, h."""

    W: list[Vector]
    R: list[Vector]
    Wb: Vector
    Rb: Vector
    f: Activation
    g: Activation
    clip: float | None
    linear_before_reset: bool
    is_dien: bool = False

    def bounded(self, x: float) -> float:
        if self.clip is None or math.isnan(x):
            return x
        return min(max(x, -self.clip), self.clip)

    def step(self, x: Vector, h: Vector, a: float | None = None) -> Vector:
        """Return H[t] from X[t], H[t-1] and, for AUGRU, the attention score a."""
        _, z, _, n = self.gates(x, h, a)
        return [(1.0 - z[u]) * n[u] + z[u] * h[u] for u in range(len(h))]

    def gates(self, x: Vector, h: Vector, a: float | None = None) -> tuple[Vector, Vector, Vector, Vector]:
        """Return z before attention, z, r and the candidate."""
        H = len(h)
        z: Vector = []
        r: Vector = []
        for u in range(H):
            z.append(self.f(self.bounded(dot(x, self.W[u]) + dot(h, self.R[u]) + self.Wb[u] + self.Rb[u])))
        for u in range(H, 2 * H):
            r.append(self.f(self.bounded(dot(x, self.W[u]) + dot(h, self.R[u]) + self.Wb[u] + self.Rb[u])))
        raw = z
        if a is not None and self.is_dien:  # the paper's update gate is 1 - z
            z = [1.0 - a * (1.0 - value) for value in z]
        elif a is not None:
            z = [(1.0 - a) * value for value in z]
        new: Vector = []
        for u in range(H):
            k = 2 * H + u
            if self.linear_before_reset:
                s = dot(x, self.W[k]) + r[u] * (dot(h, self.R[k]) + self.Rb[k]) + self.Wb[k]
            else:
                gated = [r[i] * h[i] for i in range(H)]
                s = dot(x, self.W[k]) + dot(gated, self.R[k]) + self.Rb[k] + self.Wb[k]
            new.append(self.g(self.bounded(s)))
        return raw, z, r, new


def dot(a: Vector, b: Vector) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def numbers(array: Array) -> Any:
    """Return nested lists of Python floats, which represent every value of the four types exactly."""
    return np.asarray(array).astype(np.float64).tolist()


def same_type(*arrays: Array | None) -> np.dtype[Any]:
    types = {np.asarray(a).dtype for a in arrays if a is not None}
    if len(types) != 1:
        raise ValueError(f"the tensors must share one type, not {types}")
    return types.pop()


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 once to the type of the input, to nearest even.

    ml_dtypes rounds to bfloat16 via float32. That is wrong if the float32 is halfway between two bfloat16
    values but the float64 is not, so such a value is first moved off the middle.
    """
    with np.errstate(over="ignore"):
        if dtype.name != "bfloat16":
            return values.astype(dtype)
        near = values.astype(np.float32)
        halfway = (near.view(np.uint32) & 0xFFFF) == 0x8000
        towards = np.where(values > near, np.inf, -np.inf).astype(np.float32)
        pushed = np.where(halfway & (values != near), np.nextafter(near, towards), near)
        return pushed.astype(dtype)


def onnx_cells(
    W: Array,
    R: Array,
    B: Array | None,
    names: Sequence[str] | None,
    alpha: Sequence[float] | None,
    beta: Sequence[float] | None,
    clip: float | None,
    linear_before_reset: int,
    is_dien: bool = False,
) -> list[Cell]:
    """Return the cell of each direction from ONNX's arguments."""
    D, H = len(R), R.shape[-1]
    names = ["Sigmoid", "Tanh"] * D if names is None else list(names)
    if len(names) != 2 * D:
        raise ValueError(f"{2 * D} activations are needed, not {len(names)}")
    functions = bind_activations(names, alpha, beta)
    bias = np.zeros((D, 6 * H)) if B is None else B
    return [
        Cell(
            W=numbers(W[d]),
            R=numbers(R[d]),
            Wb=numbers(bias[d])[: 3 * H],
            Rb=numbers(bias[d])[3 * H :],
            f=functions[2 * d],
            g=functions[2 * d + 1],
            clip=None if clip is None else float32(clip),
            linear_before_reset=linear_before_reset != 0,
            is_dien=is_dien,
        )
        for d in range(D)
    ]


def onnx_gru(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    hidden_size: int | None = None,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,
    clip: float | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    output_sequence: int | None = None,
    A: Array | None = None,
    attention: str = "openvino",
) -> tuple[Array, Array]:
    """Compute ONNX's GRU in every version; with A, onegru's AUGRU.

    Both outputs are always computed, so output_sequence has no effect.
    """
    dtype = same_type(X, W, R, B, initial_h, A)
    if layout == 1:
        X = np.swapaxes(X, 0, 1)
        A = None if A is None else np.swapaxes(A, 0, 1)
        initial_h = None if initial_h is None else np.swapaxes(initial_h, 0, 1)
    flags = REVERSED["forward" if direction == "foward" else direction]
    T, rows, _ = X.shape
    D, H = len(flags), R.shape[-1]
    if hidden_size not in (None, H) or W.shape[:2] != (D, 3 * H) or R.shape != (D, 3 * H, H):
        raise ValueError("the shapes do not fit each other")
    cells = onnx_cells(
        W,
        R,
        B,
        activations,
        activation_alpha,
        activation_beta,
        clip,
        linear_before_reset,
        {"openvino": False, "dien": True}[attention],
    )
    Y = np.zeros((T, D, rows, H))
    Y_h = np.zeros((D, rows, H))
    for d in range(D):
        cell = cells[d]
        for row in range(rows):
            length = T if sequence_lens is None else int(sequence_lens[row])
            if not 0 <= length <= T:
                raise ValueError(f"length {length} is outside 0...{T}")
            if length == 0:
                continue
            h = [0.0] * H if initial_h is None else numbers(initial_h[d, row])
            for t in range(length - 1, -1, -1) if flags[d] else range(length):
                h = cell.step(numbers(X[t, row]), h, None if A is None else float(A[t, row, 0]))
                Y[t, d, row] = h
            Y_h[d, row] = h
    if layout == 1:
        Y, Y_h = Y.transpose(2, 0, 1, 3), Y_h.swapaxes(0, 1)
    return rounded(Y, dtype), rounded(Y_h, dtype)


def openvino_cell(
    W: Array,
    R: Array,
    B: Array | None,
    clip: float | None,
    activations: Sequence[str],
    linear_before_reset: bool,
) -> Cell:
    """Return the cell of one direction from OpenVINO's arguments; B is [3H] sums, or [4H] with Wbh, Rbh."""
    H = R.shape[-1]
    f, g = bind_activations(activations, None, None)
    if B is None:
        Wb, Rb = [0.0] * (3 * H), [0.0] * (3 * H)
    elif linear_before_reset:
        values = numbers(B)
        if len(values) != 4 * H:
            raise ValueError("with linear_before_reset B is [4H]")
        Wb, Rb = values[: 3 * H], [0.0] * (2 * H) + values[3 * H :]
    else:
        Wb, Rb = numbers(B), [0.0] * (3 * H)
        if len(Wb) != 3 * H:
            raise ValueError("without linear_before_reset B is [3H]")
    bound = None if clip is None or clip == 0.0 or math.isinf(clip) else float32(clip)
    return Cell(numbers(W), numbers(R), Wb, Rb, f, g, bound, bool(linear_before_reset))


def gru_cell(
    X: Array,
    initial_hidden_state: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    *,
    hidden_size: int,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> Array:
    """Compute OpenVINO's GRUCell-3, whose functions have no parameters, so alpha and beta have no effect."""
    dtype = same_type(X, initial_hidden_state, W, R, B)
    cell = openvino_cell(W, R, B, clip, activations, linear_before_reset)
    Ho = np.zeros((X.shape[0], hidden_size))
    for row in range(X.shape[0]):
        Ho[row] = cell.step(numbers(X[row]), numbers(initial_hidden_state[row]))
    return rounded(Ho, dtype)


def augru_cell(
    X: Array,
    H_t: Array,
    W: Array,
    R: Array,
    B: Array,
    A: Array,
    *,
    hidden_size: int,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> Array:
    """Compute OpenVINO's AUGRUCell: the update gate is multiplied by 1 - a, with A [B, 1]."""
    dtype = same_type(X, H_t, W, R, B, A)
    cell = openvino_cell(W, R, B, clip, activations, linear_before_reset)
    Ho = np.zeros((X.shape[0], hidden_size))
    for row in range(X.shape[0]):
        Ho[row] = cell.step(numbers(X[row]), numbers(H_t[row]), float(A[row, 0]))
    return rounded(Ho, dtype)


def gru_sequence(
    X: Array,
    initial_hidden_state: Array,
    sequence_lengths: Array,
    W: Array,
    R: Array,
    B: Array,
    *,
    hidden_size: int,
    direction: str = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> tuple[Array, Array]:
    """Compute OpenVINO's GRUSequence-5: X [B,T,I], initial_hidden_state [B,D,H]; Y [B,D,T,H], Ho [B,D,H]."""
    dtype = same_type(X, initial_hidden_state, W, R, B)
    flags = REVERSED[direction]
    rows, T, _ = X.shape
    Y = np.zeros((rows, len(flags), T, hidden_size))
    Ho = np.zeros((rows, len(flags), hidden_size))
    for d, backwards in enumerate(flags):
        cell = openvino_cell(W[d], R[d], B[d], clip, activations, linear_before_reset)
        for row in range(rows):
            length = int(sequence_lengths[row])
            h = numbers(initial_hidden_state[row, d])
            for t in range(length - 1, -1, -1) if backwards else range(length):
                h = cell.step(numbers(X[row, t]), h)
                Y[row, d, t] = h
            if length > 0:
                Ho[row, d] = h
    return rounded(Y, dtype), rounded(Ho, dtype)


def augru_sequence(
    X: Array,
    H_t: Array,
    sequence_lengths: Array,
    W: Array,
    R: Array,
    B: Array,
    A: Array,
    *,
    hidden_size: int,
    direction: str = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> tuple[Array, Array]:
    """Compute OpenVINO's AUGRUSequence, forward only; H_t [B,1,H], A [B,T,1]; Y [B,1,T,H], Ho [B,1,H]."""
    dtype = same_type(X, H_t, W, R, B, A)
    if direction != "forward":
        raise ValueError("AUGRUSequence runs only forward")
    rows, T, _ = X.shape
    cell = openvino_cell(W[0], R[0], B[0], clip, activations, linear_before_reset)
    Y = np.zeros((rows, 1, T, hidden_size))
    Ho = np.zeros((rows, 1, hidden_size))
    for row in range(rows):
        h = numbers(H_t[row, 0])
        for t in range(int(sequence_lengths[row])):
            h = cell.step(numbers(X[row, t]), h, float(A[row, t, 0]))
            Y[row, 0, t] = h
            Ho[row, 0] = h
    return rounded(Y, dtype), rounded(Ho, dtype)
