"""Read tensors from separate files: the .pb files of ONNX test data."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto

from onegru.core.dtypes import Array
from onegru.formats.onnx.validate import Source, check_tensor, to_array


def read_tensor(path: Path) -> tuple[str, Array]:
    """Return the name and values of a serialized TensorProto."""
    source = Source(str(path))
    tensor = TensorProto()
    data = path.read_bytes()
    try:
        tensor.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError is not in the public interface of every version
        raise source.error(f"not an ONNX tensor, or truncated ({error})") from error
    if tensor.data_type == TensorProto.UNDEFINED:
        raise source.error("not an ONNX tensor")
    check_tensor(source, tensor)
    return tensor.name, to_array(source, tensor)
