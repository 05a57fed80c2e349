"""Define faults in ONNX models, and runtimes with these faults; child processes import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onegru import Model
from onegru.formats.onnx.parse import parse_onnx
from onegru.formats.onnx.validate import Source
from onegru.peers.base import ModelUnderTest, Runtime
from tests.support.files.onnx_models import tensor


def _node(proto: ModelProto, name: str) -> NodeProto:
    found: NodeProto = next(node for node in proto.graph.node if node.name == name)
    return found


def _drop(attribute: str) -> Callable[[ModelProto, NodeProto], None]:
    def change(proto: ModelProto, node: NodeProto) -> None:
        kept = [item for item in node.attribute if item.name != attribute]
        assert len(kept) == len(node.attribute) - 1, f"the node has no {attribute}"
        del node.attribute[:]
        node.attribute.extend(kept)

    return change


def _set(attribute: str, value: Any) -> Callable[[ModelProto, NodeProto], None]:
    def change(proto: ModelProto, node: NodeProto) -> None:
        kept = [item for item in node.attribute if item.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, value)])

    return change


def _drop_input(index: int) -> Callable[[ModelProto, NodeProto], None]:
    def change(proto: ModelProto, node: NodeProto) -> None:
        assert node.input[index], f"the node has no input {index}"
        node.input[index] = ""

    return change


def _gates(order: tuple[int, int, int], inputs: tuple[int, ...]) -> Callable[[ModelProto, NodeProto], None]:
    """Return a fault: another order of z, r, h in W, R, B, which are inputs 1, 2, 3."""

    def turn(array: Any, H: int) -> Any:
        blocks = array.reshape(array.shape[0], -1, 3, H, *array.shape[2:])
        return blocks[:, :, list(order)].reshape(array.shape)

    return _on_weights(turn, inputs)


def _on_weights(
    turn: Callable[[Any, int], Any], inputs: tuple[int, ...]
) -> Callable[[ModelProto, NodeProto], None]:
    def change(proto: ModelProto, node: NodeProto) -> None:
        H = next(item.i for item in node.attribute if item.name == "hidden_size")
        for index in inputs:
            initializer = next(item for item in proto.graph.initializer if item.name == node.input[index])
            array = onnx.numpy_helper.to_array(initializer)
            initializer.CopyFrom(tensor(initializer.name, np.ascontiguousarray(turn(array, H))))

    return change


def _transpose(array: Any, H: int) -> Any:
    return array.reshape(-1, 3, H, H).swapaxes(2, 3).reshape(array.shape)


def _exchange_biases(array: Any, H: int) -> Any:
    return np.concatenate([array[:, 3 * H :], array[:, : 3 * H]], axis=1)


#: Faults by name: changes of one node of a model.
FAULTS: Mapping[str, Callable[[ModelProto, NodeProto], None]] = {
    "reset before": _set("linear_before_reset", 0),
    "reset after": _set("linear_before_reset", 1),
    "no clip": _drop("clip"),
    "no layout": _drop("layout"),
    "no activations": _drop("activations"),
    "no alpha": _drop("activation_alpha"),
    "reverse": _set("direction", "reverse"),
    "no lengths": _drop_input(4),
    "no state": _drop_input(5),
    "no bias": _drop_input(3),
    "z and r": _gates((1, 0, 2), (1, 2, 3)),
    "r, h, z": _gates((1, 2, 0), (1, 2, 3)),
    "z and r of R": _gates((1, 0, 2), (2,)),
    "R transposed": _on_weights(_transpose, (2,)),
    "Wb and Rb": _on_weights(_exchange_biases, (3,)),
}


def mutated(proto: ModelProto, fault: str, node: str) -> ModelProto:
    """Return a copy of the model with a fault in the node of this name."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    FAULTS[fault](copy, _node(copy, node))
    return copy


@dataclass(frozen=True)
class Fake(Runtime):
    """Runtime that runs ONNX models in onegru; see `onegru.peers.base.Runtime`."""

    name: str = "fake"
    precision: str = field(default="", kw_only=True)

    def version(self) -> str | None:
        return "1.0"

    def refuses(self, subject: ModelUnderTest) -> str | None:
        return None

    def change(self, proto: ModelProto) -> ModelProto:
        return proto

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert subject.model is not None
        proto = self.change(ModelProto.FromString(subject.model))
        return dict(Model(parse_onnx(proto.SerializeToString(), Source("fake"))).run(inputs))


@dataclass(frozen=True)
class Mutant(Fake):
    """Runtime with a fault in one node, in any model with that node."""

    fault: str = "no clip"
    node: str = "GRU_1"

    def change(self, proto: ModelProto) -> ModelProto:
        return mutated(proto, self.fault, self.node)


@dataclass(frozen=True)
class Shy(Mutant):
    """Runtime that returns only a model's last output, so that inner values cannot be requested."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert subject.model is not None
        proto = ModelProto.FromString(subject.model)
        if len(proto.graph.output) > 2:
            raise ValueError("gives two outputs at most")
        return super().run(subject, inputs)


@dataclass(frozen=True)
class Shifty(Mutant):
    """Runtime that is wrong only if no inner values are requested."""

    def change(self, proto: ModelProto) -> ModelProto:
        return proto if len(proto.graph.output) > 2 else super().change(proto)


@dataclass(frozen=True)
class Outside(Fake):
    """Runtime whose other operators are wrong."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results = super().run(subject, inputs)
        if "S2" in results:  # otherwise a single node
            results["S2"] = results["S2"] + np.float32(0.25)
        return results


@dataclass(frozen=True)
class Crashing(Fake):
    """Runtime that ends its process."""

    signal: int = signal.SIGSEGV

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), self.signal)
        time.sleep(60)
        return {}


@dataclass(frozen=True)
class Quitting(Fake):
    """Runtime that exits without a message."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        os._exit(3)


@dataclass(frozen=True)
class Unimportable(Fake):
    """Runtime whose process cannot start."""

    def start(self) -> None:
        raise ModuleNotFoundError("No module named 'missing'")


@dataclass(frozen=True)
class Hanging(Fake):
    """Runtime that never returns."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(600)
        return {}


@dataclass(frozen=True)
class Refusing(Fake):
    """Runtime that raises an error."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no such\noperator")


@dataclass(frozen=True)
class Forgetful(Fake):
    """Runtime that omits an output."""

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results = super().run(subject, inputs)
        del results["H2"]
        return results


@dataclass(frozen=True)
class Absent(Fake):
    """Runtime that is not installed."""

    def version(self) -> str | None:
        return None
