"""List the runtimes by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onegru.core.arguments import choice
from onegru.core.errors import MissingExtraError, SpecError
from onegru.peers.base import Runtime
from onegru.peers.onnx_reference import OnnxEvaluator
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino

#: Runtimes with which models are compared, if they are installed.
RUNTIMES: tuple[Runtime, ...] = (OnnxRuntime(), OpenVino(), OnnxEvaluator())

PRECISIONS = ("f32", "default")


def chosen_runtimes(names: Sequence[str], precision: str = "f32") -> tuple[Runtime, ...]:
    """Return the runtimes with these names, or all."""
    choice("precision", precision, PRECISIONS)
    chosen = (replace(item, precision=precision) if item.precision else item for item in RUNTIMES)
    runtimes = {item.name: item for item in chosen}
    for name in names:
        if name not in runtimes:
            raise SpecError.of("runtimes", f"{name!r}; must be one of {', '.join(map(repr, runtimes))}")
        if runtimes[name].version() is None:
            raise MissingExtraError(name, name, "runtime")
    return tuple(runtimes[name] for name in dict.fromkeys(names or runtimes))
