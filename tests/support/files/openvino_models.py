"""Write IRs with layers other than GRUs, with OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

import onegru
from onegru.core.dtypes import Array
from tests.support.models.runtimes import openvino_results

T, B, I, H = 6, 3, 4, 5


def draw(*shape: int, seed: int = 1, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(dtype)


def weights(inputs: int, hidden: int = H, D: int = 1, seed: int = 3, after: bool = False) -> list[Any]:
    """Return W, R and B of a GRUSequence, as constants."""
    N = (4 if after else 3) * hidden
    shapes = (D, 3 * hidden, inputs), (D, 3 * hidden, hidden), (D, N)
    return [ops.constant(draw(*shape, seed=seed + place)) for place, shape in enumerate(shapes)]


def sequence(x: Any, inputs: int, hidden: int = H, direction: str = "forward", seed: int = 3) -> Any:
    """Return a GRUSequence over x [B, T, inputs] with state and lengths computed from x's shape."""
    D = 2 if direction == "bidirectional" else 1
    axis = ops.constant(np.int64(0))
    batch, steps = (
        ops.gather(ops.shape_of(x), ops.constant(np.array([place], np.int64)), axis) for place in (0, 1)
    )
    shape = ops.concat([batch, ops.constant(np.array([D, hidden], np.int64))], 0)
    state = ops.broadcast(ops.constant(np.float32(0)), shape)
    return ops.gru_sequence(
        x, state, ops.broadcast(steps, batch), *weights(inputs, hidden, D, seed), hidden, direction
    )


def save(path: Path, outputs: Mapping[str, Any], inputs: list[Any], *, half: bool = False) -> Path:
    results = []
    for name, value in outputs.items():
        value.set_names({name})
        results.append(ops.result(value))
    openvino.save_model(openvino.Model(results, inputs, "test"), path, compress_to_fp16=half)
    return path


def small(folder: Path) -> Path:
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    gru = sequence(ops.tanh(x), I)
    return save(folder / "small.xml", {"out": ops.relu(gru.output(0)).output(0)}, [x])


def check(path: Path, feeds: Mapping[str, Array], *, grus: int, with_openvino: bool = True) -> onegru.Model:
    """Load a model, and compare its outputs with OpenVINO's and the reference's."""
    model = onegru.load(path)
    assert len(model.gru_nodes) == grus
    found = model.run(feeds)
    peers = {"the reference": onegru.load(path, engine="reference").run(feeds)}
    if with_openvino:
        peers["OpenVINO"] = openvino_results(path, feeds)
    for peer, expected in peers.items():
        for name, array in found.items():
            assert array.dtype == expected[name].dtype, peer
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=peer)
    return model
