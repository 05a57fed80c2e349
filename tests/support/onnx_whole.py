from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, ValueInfoProto

import onegru
from tests.support.onnx_models import (
    WEIGHTS,
    X_INFO,
    X,
    graph,
    loaded,
    model,
)
from tests.support.runtimes import onnxruntime_results

Y, Y_H = onegru.gru(X, *WEIGHTS.values())
Outputs = Sequence[str | ValueInfoProto]


def check(
    folder: Path,
    nodes: Sequence[NodeProto],
    outputs: Outputs,
    constants: Mapping[str, Any] = WEIGHTS,
    inputs: Sequence[ValueInfoProto] = (X_INFO,),
    **feeds: object,
) -> dict[str, Any]:
    """Run a model by onegru and by ONNX Runtime, and compare."""
    proto = model(graph(nodes, inputs, outputs, constants))
    feeds = feeds or {"X": X}
    got, expected = loaded(folder, proto).run(feeds), onnxruntime_results(proto, feeds)
    for name, want in expected.items():
        for ours, theirs in zip(
            *([x] if isinstance(x, np.ndarray) else x for x in (got[name], want)), strict=True
        ):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(ours, theirs, err_msg=name)
    return got
