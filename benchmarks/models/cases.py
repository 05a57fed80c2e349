"""The measured shapes of real models, and the target of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

__all__ = ["CASES", "MOST_FLOPS", "SIZES", "Case", "Shape", "draw", "draw_cases", "layer_of", "torch_gru"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a GRU, and their origin.

    Attributes:
        T: steps.
        B: rows of the batch.
        I: input size.
        H: hidden size.
        D: directions.
        regime: the kind of use, for which targets are set.
        origin: a model with such a GRU.
    """

    T: int
    B: int
    I: int
    H: int
    D: int
    regime: str = ""
    origin: str = ""

    @property
    def flops(self) -> int:
        """FLOPs of the matmuls in a call."""
        return 6 * self.H * (self.I + self.H) * self.B * self.T * self.D

    def __str__(self) -> str:
        return f"{self.T},{self.B},{self.I},{self.H},{self.D}"

    @property
    def label(self) -> str:
        """The shape as text, such as "WaveRNN step, H = 512" and "GRU4Rec, 50 steps × 64 rows, H = 512"."""
        if self.T == self.B == 1:
            words = f"{self.origin} step" if self.origin else "Step"
        else:
            rows = f" × {self.B} rows" if self.B > 1 else ""
            words = ", ".join(filter(None, [self.origin, f"{self.T} step{'s' * (self.T > 1)}{rows}"]))
        return f"{words}, H = {self.H}{', both directions' * (self.D == 2)}"


SHAPES = (
    Shape(1, 1, 16, 16, 1, "step 64"),
    Shape(1, 1, 64, 64, 1, "step 64"),
    Shape(1, 1, 128, 128, 1, "step 128"),
    Shape(1, 1, 256, 256, 1, "step 256", "RNNoise or DeepFilterNet"),
    Shape(1, 1, 512, 512, 1, "step 512", "WaveRNN"),
    Shape(1, 1, 1024, 1024, 1, "step 1024"),
    Shape(33, 1, 8, 4, 2, "tiny", "GTCRN"),
    Shape(1, 33, 8, 8, 1, "tiny", "GTCRN"),
    Shape(33, 1, 8, 16, 1, "tiny", "GTCRN"),
    Shape(29, 1, 13, 20, 1, "tiny", "mycroft-precise"),
    Shape(100, 1, 64, 64, 1, "sequence 64…128"),
    Shape(100, 1, 128, 128, 1, "sequence 64…128"),
    Shape(1000, 1, 128, 128, 2, "sequence 64…128", "Tacotron CBHG"),
    Shape(100, 1, 256, 256, 1, "sequence 256", "RNNoise offline"),
    Shape(1000, 1, 256, 256, 1, "sequence 256"),
    Shape(100, 1, 384, 384, 1, "sequence 384…512", "LPCNet"),
    Shape(100, 1, 512, 512, 1, "sequence 384…512"),
    Shape(100, 1, 1024, 1024, 1, "large"),
    Shape(10, 1, 2560, 2560, 1, "large", "DeepSpeech 2"),
    Shape(1, 512, 47, 64, 1, "scoring", "Batch scoring"),
    Shape(100, 8, 256, 256, 1, "batch"),
    Shape(100, 32, 256, 256, 1, "batch"),
    Shape(50, 64, 512, 512, 1, "batch", "GRU4Rec"),
    Shape(100, 256, 128, 128, 1, "batch"),
    Shape(100, 128, 36, 36, 1, "DIEN", "DIEN"),
)


@dataclass(frozen=True)
class Case:
    """A shape in one reset mode."""

    shape: Shape
    linear_before_reset: bool
    decaying: bool = False

    def __str__(self) -> str:
        reset = "after" if self.linear_before_reset else "before"
        return f"{self.shape} {reset}{' decaying' if self.decaying else ''}"

    @classmethod
    def read(cls, text: str) -> Case:
        """Return the case in `CASES` with this name, or a case with the sizes in the name."""
        sizes, *words = text.split()
        T, B, I, H, D = map(int, sizes.split(","))
        other = cls(Shape(T, B, I, H, D), "after" in words, "decaying" in words)
        return next((case for case in CASES if str(case) == text), other)


SILENCE = Shape(1000, 1, 128, 128, 1, "decaying", "silence: states decay to subnormals")
CASES = (
    *(Case(shape, after) for shape in SHAPES for after in (True, False)),
    Case(SILENCE, True, decaying=True),
)


#: The ranges of random shapes. Sizes are evenly distributed on a logarithmic scale, including both ends. A
#: shape with more FLOPs than the limit is drawn again, so that all are measured in reasonable time.
SIZES = {"T": (1, 200), "B": (1, 256), "I": (1, 768), "H": (3, 768)}
MOST_FLOPS = 3e9


def draw_cases(seed: int) -> Iterator[Case]:
    """Yield random cases without end, always the same for a seed."""
    rng = np.random.default_rng(seed)
    while True:
        T, B, I, H = (int(low * ((high + 1) / low) ** rng.random()) for low, high in SIZES.values())
        shape = Shape(T, B, I, H, int(rng.integers(1, 3)))
        case = Case(shape, bool(rng.integers(2)))
        if shape.flops <= MOST_FLOPS:
            yield case


def draw(case: Case) -> dict[str, Array]:
    """Return inputs and weights of a case, the same in each call."""
    shape = case.shape
    rng = np.random.default_rng(shape.T + 7 * shape.H + shape.I)
    scale = 1 / np.sqrt(shape.H)

    def normal(*sizes: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(sizes) * scale).astype(np.float32)

    T, B, I, H, D = shape.T, shape.B, shape.I, shape.H, shape.D
    arrays = {
        "X": normal(T, B, I),
        "W": normal(D, 3 * H, I, scale=scale),
        "R": normal(D, 3 * H, H, scale=scale),
        "B": normal(D, 6 * H, scale=scale),
        "h0": normal(D, B, H),
    }
    if case.decaying:
        # Without inputs and biases, and with small recurrent weights, each step halves the state, down to 0.
        arrays["X"][...] = 0
        arrays["B"][...] = 0
        arrays["R"] *= 0.01
    return arrays


def layer_of(case: Case, arrays: Mapping[str, Array], engine: str, **options: Any) -> Any:
    """Return onegru's layer of a case."""
    import onegru

    return onegru.GRU(
        arrays["W"],
        arrays["R"],
        arrays["B"],
        direction="bidirectional" if case.shape.D == 2 else "forward",
        linear_before_reset=case.linear_before_reset,
        engine=engine,
        **options,
    )


def torch_gru(shape: Shape, arrays: Mapping[str, Array]) -> Any:
    """Return PyTorch's GRU with these weights, which are in ONNX's order."""
    import torch

    module = torch.nn.GRU(shape.I, shape.H, bidirectional=shape.D == 2).eval().requires_grad_(False)

    def in_torch_order(a: Array) -> Any:
        z, r, n = np.split(a, 3)
        return torch.from_numpy(np.concatenate([r, z, n]))

    for d, suffix in enumerate(("", "_reverse")[: shape.D]):
        for name, array in (
            ("weight_ih", arrays["W"][d]),
            ("weight_hh", arrays["R"][d]),
            ("bias_ih", arrays["B"][d, : 3 * shape.H]),
            ("bias_hh", arrays["B"][d, 3 * shape.H :]),
        ):
            getattr(module, f"{name}_l0{suffix}").copy_(in_torch_order(array))
    return module
