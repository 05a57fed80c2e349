"""Run ONNX models in onegru and ONNX Runtime, and compare the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from onegru import FormatError, Model
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    H,
    X,
    graph,
    loaded,
    model,
    node,
    numbers,
    tensor,
)
from tests.support.models.runtimes import onnxruntime_results

Outputs = Sequence[str | ValueInfoProto]


def check(
    folder: Path,
    nodes: Sequence[NodeProto],
    outputs: Outputs,
    constants: Mapping[str, Any] = WEIGHTS,
    *,
    inputs: Sequence[ValueInfoProto] = (X_INFO,),
    feeds: Mapping[str, object] | None = None,
    opset: int = 14,
) -> Model:
    """Run a model in onegru and in ONNX Runtime, and compare."""
    proto = model(graph(nodes, inputs, outputs, constants), opset=opset)
    feeds = {"X": X} if feeds is None else feeds
    ours = loaded(folder, proto)
    got, expected = ours.run(feeds), onnxruntime_results(proto, feeds)
    assert_close(got, expected)
    count = sum(item.op_type == "GRU" for item in nodes)
    assert len(ours.gru_nodes) == count, "every GRU node outside of bodies is onegru's"
    return ours


def check_results(
    folder: Path,
    nodes: Sequence[NodeProto],
    outputs: Outputs,
    constants: Mapping[str, Any] = WEIGHTS,
    inputs: Sequence[ValueInfoProto] = (X_INFO,),
    **feeds: object,
) -> dict[str, Any]:
    """Compare outputs that may be sequences, and return them."""
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


def assert_close(got: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = 2e-6) -> None:
    assert list(got) == list(expected)
    for name, want in expected.items():
        assert got[name].dtype == want.dtype
        assert got[name].shape == want.shape
        if want.dtype.kind in "fV":
            have, want = got[name].astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(have, want, atol=tolerance, rtol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], want, err_msg=name)


def plain(**constants: object) -> ModelProto:
    """Return a model of a GRU and another node with the constant K."""
    values = {**WEIGHTS, "K": numbers(7, H), **constants}
    tensors = [item if isinstance(item, TensorProto) else tensor(name, item) for name, item in values.items()]
    return model(graph([PLAIN, node("Add", ["Y_h", "K"], ["Z"], name="add")], [X_INFO], ["Y", "Z"], tensors))


def refused(folder: Path, proto: ModelProto | bytes) -> str:
    """Return the message of the FormatError for a file, without the file's name."""
    with pytest.raises(FormatError) as caught:
        loaded(folder, proto)
    message, name = str(caught.value), f"{folder / 'model.onnx'}: "
    assert message.startswith(name)
    assert "\n" not in message
    return message.removeprefix(name)


def external(name: str, array: Any, location: str | None = "weights.bin", **entries: object) -> TensorProto:
    """Return a tensor with values in an external file."""
    proto = tensor(name, array)
    proto.ClearField("raw_data")
    proto.data_location = TensorProto.EXTERNAL
    if location is not None:
        entries = {"location": location, **entries}
    for key, item in entries.items():
        proto.external_data.add(key=key, value=str(item))
    return proto


def all_external(folder: Path, location: str = "weights.bin") -> ModelProto:
    """Return the plain model with all constants in one file, sequentially; K is last and has no length."""
    tensors, data = {}, b""
    for name, array in {**WEIGHTS, "K": numbers(7, H)}.items():
        length = {} if name == "K" else {"length": array.nbytes}
        tensors[name] = external(name, array, location, offset=len(data), **length)
        data += array.tobytes()
    path = folder / location
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return plain(**tensors)
