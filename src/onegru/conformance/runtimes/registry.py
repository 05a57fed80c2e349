"""List the runtimes by name, with their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onegru.conformance.files import IR, ONNX
from onegru.conformance.runtimes.function import FunctionRuntime, find_function
from onegru.conformance.runtimes.own import Onegru
from onegru.conformance.runtimes.torch import TorchGru
from onegru.core.arguments import choice
from onegru.core.errors import MissingExtraError, SpecError
from onegru.engines.native import targets
from onegru.peers.base import Runtime
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino
from onegru.peers.registry import PRECISIONS
from onegru.peers.registry import RUNTIMES as FILE_RUNTIMES
from onegru.runtimes.execution_provider import get_ep_name

#: Runtimes of the suite, by name.
RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime for runtime in (Onegru(), *FILE_RUNTIMES, TorchGru())
}

#: The engines of onegru.
ENGINES = ("native", "reference")

_CPU, _OWN = "CPUExecutionProvider", get_ep_name()
_BOTH = (ONNX, IR)


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Runtime with its options in the suite."""

    runtime: Runtime  # the runtime
    options: Mapping[str, str] = field(default_factory=dict)  # its options, as text
    kinds: tuple[str, ...] = (ONNX,)  # the kinds of files that it reads

    @property
    def reserves_memory(self) -> bool:
        """Whether its address space does not show its memory use, which may be a GPU's."""
        is_unknown = isinstance(self.runtime, FunctionRuntime)
        return is_unknown or self.options.get("provider", _CPU) not in (_CPU, _OWN)


def configs(
    names: Sequence[str] = (),
    providers: Sequence[str] = (),
    engines: Sequence[str] = (),
    precision: str | None = None,
) -> tuple[RuntimeConfig, ...]:
    """Return the runtimes with these names, or all installed ones."""
    precisions = () if precision is None else (choice("precision", precision, PRECISIONS),)
    for engine in engines:
        choice("engine", engine, ENGINES)
    for name in names:
        if ":" not in name and RUNTIMES[choice("runtime", name, RUNTIMES)].version() is None:
            raise MissingExtraError(name, name, "runtime")
    chosen = list(dict.fromkeys(names or (name for name, item in RUNTIMES.items() if item.version())))
    for option, given, owner in (
        ("provider", providers, "onnxruntime"),
        ("engine", engines, "onegru"),
        ("precision", precisions, "openvino"),
    ):
        if given and owner not in chosen:
            raise SpecError.of(
                option, f"{given[0]!r}; has no effect, because {owner} is not among the runtimes; remove it"
            )
    if providers:
        _check_providers(providers)
    found: list[RuntimeConfig] = []
    for name in chosen:
        if name == "onegru":
            found += [
                RuntimeConfig(Onegru(engine=engine), {"engine": engine} | _target(engine == "native"), _BOTH)
                for engine in dict.fromkeys(engines or ENGINES[:1])
            ]
        elif name == "onnxruntime":
            found += [
                RuntimeConfig(
                    OnnxRuntime(provider="" if provider == _CPU else provider),
                    {"provider": provider} | _target(provider == _OWN),
                )
                for provider in dict.fromkeys(providers or (_CPU,))
            ]
        elif name == "openvino":
            (used,) = precisions or PRECISIONS[:1]
            found.append(RuntimeConfig(OpenVino(precision=used), {"precision": used}, _BOTH))
        elif ":" in name:
            found.append(RuntimeConfig(FunctionRuntime(name, function=find_function(name)), kinds=_BOTH))
        else:
            found.append(RuntimeConfig(RUNTIMES[name], kinds=_BOTH if name == "torch" else (ONNX,)))
    return tuple(found)


def _target(is_native: bool) -> dict[str, str]:
    """Return the SIMD target of onegru's kernels, which ONEGRU_TARGET may choose."""
    return {"target": targets().chosen} if is_native else {}


def _check_providers(names: Sequence[str]) -> None:
    from onegru.formats.onnx.whole.session import providers  # ONNX Runtime may be missing

    known = providers()
    for name in names:
        choice("provider", name, known)
