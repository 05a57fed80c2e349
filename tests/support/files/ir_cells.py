"""Write an IR with a single GRUCell, and return its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from tests.support.files.ir_files import write_case

T, B, I, H = 4, 3, 2, 5


def draw(*shape: int, dtype: Any = np.float32, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def cell_inputs() -> dict[str, Any]:
    return {
        "X": draw(B, I),
        "initial_hidden_state": draw(B, H),
        "W": draw(3 * H, I),
        "R": draw(3 * H, H),
        "B": draw(3 * H),
    }


def write_cell(folder: Path, **attributes: Any) -> Path:
    return write_case(folder / "cell.xml", "gru_cell", cell_inputs(), {"hidden_size": H, **attributes})


def feeds() -> dict[str, Any]:
    return {name: array for name, array in cell_inputs().items() if name in ("X", "initial_hidden_state")}
