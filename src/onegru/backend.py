"""onegru as a backend of the `onnx` package.

Source of the interface: `onnx.backend.base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array
from onegru.core.errors import OneGRUError, SpecError, needs_extra

with needs_extra("onnx", "onnx", "onegru.backend"):
    from onnx import ModelProto, NodeProto, ValueInfoProto, helper
    from onnx.backend.base import Backend, BackendRep

from onegru.core.wording import count
from onegru.engines.select import engine_options
from onegru.formats.onnx.parse import parse_onnx
from onegru.formats.onnx.validate import Source
from onegru.models.model import Model
from onegru.verification.probe import model_of, node_opset

__all__ = [
    "OneGRUBackend",
    "OneGRURep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class OneGRURep(BackendRep):
    """A prepared model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Run the model.

        Args:
            inputs: arrays in the order of the model's inputs, or by name; one array if it has one input.
            kwargs: must be empty.

        Returns:
            the outputs, in the model's order.

        Raises:
            SpecError: an input does not match the model.
        """
        _refuse_options(kwargs)
        if not isinstance(inputs, Mapping):
            values = list(inputs) if isinstance(inputs, Sequence) else [inputs]
            names = [info.name for info in self._model.inputs]
            if len(values) > len(names):
                raise SpecError.of("inputs", f"{count(len(values), 'array')}; must be at most {len(names)}")
            inputs = dict(zip(names, values, strict=False))
        return tuple(self._model.run(inputs).values())


class OneGRUBackend(Backend):
    """Runs ONNX models on the CPU: GRU nodes by onegru, others by ONNX Runtime."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether onegru can run the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except OneGRUError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> OneGRURep:
        """Prepare a model.

        Args:
            model: the model.
            device: must be CPU.
            kwargs: `engine` for the GRU nodes, as in `onegru.GRU`. Default: "auto".

        Raises:
            SpecError: the device is not the CPU, an option is unknown, or a GRU node is invalid.
            FormatError: the model is broken or cannot be run.
        """
        engine = kwargs.pop("engine", "auto")
        _refuse_options(kwargs)
        if not cls.supports_device(device):
            raise SpecError.of("device", f"{device!r}; must be CPU")
        if not isinstance(model, ModelProto):
            raise SpecError.of("model", f"{type(model).__name__}; must be a ModelProto")
        graph = parse_onnx(model.SerializeToString(), Source("model"))
        return OneGRURep(Model(graph, engine_options(engine, None, None)))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run a single node.

        Args:
            node: the node.
            inputs: arrays for its inputs, in order, without inputs whose name is empty. A single array for a
                node with one input.
            device: must be CPU.
            outputs_info: the type and the shape that each output must have. Default: None (unknown).
            kwargs: `opset_version` for the opset (default: the newest that onnx and ONNX Runtime support),
                and `engine` as for `prepare`.

        Raises:
            SpecError: an argument does not match the node.
        """
        if not isinstance(node, NodeProto):
            raise SpecError.of("node", f"{shown(node)}; must be a NodeProto")
        inputs = [inputs] if isinstance(inputs, np.ndarray) else inputs
        if not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
            raise SpecError.of("inputs", f"{shown(inputs)}; must be an array or a list of arrays")
        opset = kwargs.pop("opset_version", None)
        opset = node_opset(node) if opset is None else integer("opset_version", opset, 1)
        if opset >= 2**31:
            raise SpecError.of("opset_version", f"{opset}; must be below 2**31")
        names = [name for name in node.input if name]
        if len(inputs) != len(names):
            raise SpecError.of("inputs", f"{count(len(inputs), 'array')}; must be {len(names)}")
        inputs = [np.asarray(array) for array in inputs]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, inputs, strict=True)
        ]
        outputs = [ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, outputs)
        results = cls.run_model(model_of(graph, opset), inputs, device, **kwargs)
        if outputs_info is not None:
            found = [(np.dtype(array.dtype), tuple(array.shape)) for array in results]
            wanted = [(np.dtype(dtype), tuple(shape)) for dtype, shape in outputs_info]
            if found != wanted:
                raise SpecError.of("outputs_info", f"{wanted}; must be {found}, like the outputs")
        return results

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return isinstance(device, str) and device.split(":")[0].upper() == "CPU"


def _refuse_options(options: Mapping[str, object]) -> None:
    if options:
        raise SpecError(f"{next(iter(options))}: not an option of this backend; remove it")


is_compatible = OneGRUBackend.is_compatible
prepare = OneGRUBackend.prepare
run_model = OneGRUBackend.run_model
run_node = OneGRUBackend.run_node
supports_device = OneGRUBackend.supports_device
