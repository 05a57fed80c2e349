"""Calls that mypy must reject. In strict mode, it reports each unused `ignore`."""

# ruff: noqa: B018
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import onegru

if TYPE_CHECKING:  # never executed
    W = R = X = np.zeros((1, 3, 1), np.float32)

    layer = onegru.GRU(W, R, direction="reverse")
    onegru.GRU(W, R, direction="forwards")  # type: ignore[arg-type]
    onegru.gru(X, W, R, direction="foward", opset=1)  # the name in opset 1
    onegru.gru(X, W, R, direction="backward")  # type: ignore[arg-type]
    onegru.gru_sequence(X, X, [1], W, R, X, hidden_size=1, direction="foward")  # type: ignore[arg-type]
    onegru.augru_sequence(X, X, [1], W, R, X, X, hidden_size=1, direction="reverse")  # type: ignore[arg-type]
    onegru.GRU(None, R)  # type: ignore[arg-type]
    layer(object())  # type: ignore[arg-type]
    layer(X, sequence_lens=X.tolist(), layouts=1)  # type: ignore[call-arg]
    layer([[[1.0]]], None, sequence_lens=[1], layout=1, out=None)[0].shape
    stream = layer.stream(batch_size="2")  # type: ignore[arg-type]
    stream.step([[1.0]], rows=[0], out=[[1.0]])  # type: ignore[arg-type]
    stack = onegru.Stack([layer, "layer"])  # type: ignore[list-item]
    size: str = stack[0].input_size  # type: ignore[assignment]
    for each in stack:
        each.hidden_sizes  # type: ignore[attr-defined]
    onegru.Spec(1, 2, "float32", "up")  # type: ignore[arg-type]
