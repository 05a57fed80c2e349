"""The sizes in an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import NodeProto

from onegru.core.dtypes import Array
from onegru.formats.onnx.read import is_gru, is_onnx
from onegru.formats.sizes import Sizes


class OnnxSizes(Sizes):
    """See `onegru.formats.sizes.Sizes`.

    Args:
        producers: the nodes, by the names of their outputs.
        shape, integers: as in `Sizes`.
    """

    def __init__(
        self,
        producers: Mapping[str, NodeProto],
        shape: Callable[[str], Sequence[int | None] | None],
        integers: Callable[[str], Array | None],
    ) -> None:
        super().__init__(shape, integers)
        self._producers = producers

    def producer(self, value: str) -> tuple[str, Sequence[str]] | None:
        """See `Sizes`."""
        node = self._producers.get(value)
        if node is None or not is_onnx(node) or is_gru(node) or not node.input:
            return None
        if node.op_type == "Shape" and node.attribute:  # since version 15, from start to end
            return None
        return (node.op_type, node.input) if node.output[0] == value else None

    def axes(self, value: str) -> Sequence[int] | None:
        """See `Sizes`."""
        node = self._producers[value]
        stated = next((tuple(a.ints) for a in node.attribute if a.name in ("perm", "axes")), None)
        array = self.integers(node.input[1]) if len(node.input) == 2 else None
        return stated if array is None else tuple(array.ravel().tolist())
