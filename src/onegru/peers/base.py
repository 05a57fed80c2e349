"""Define the interface of other runtimes."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any


@dataclass(frozen=True, slots=True)
class Probe:
    """Value within an OpenVINO IR that is returned like an output."""

    value: str  # its name
    layer: str  # the name of a layer
    side: str  # "input" or "output" of the layer
    index: int  # its index


@dataclass(frozen=True, slots=True)
class ModelUnderTest:
    """Model for a runtime."""

    path: str  # its file; runtimes read an OpenVINO IR from there
    # a serialized ONNX model, or None for an IR; large models have external data in the file's folder
    model: bytes | None
    outputs: Mapping[str, tuple[str, ...]]  # the wanted outputs, by name, each with all its names
    probes: tuple[Probe, ...] = ()  # for an IR, wanted values in addition to the outputs
    is_file: bool = False  # whether `model` is the file's content, so that a runtime may read the file
    # whether it has nodes that are not tested, which a provider for GRUs may leave
    has_others: bool = False


@dataclass(frozen=True, slots=True)
class Runtime(ABC):
    """Runtime. Workers receive it by pickle, so its class must be importable there."""

    name: str  # its name
    precision: str = ""  # the precision; "" for a runtime without such an option

    def version(self) -> str | None:
        """Return the version, without an import; None if the runtime is not installed."""
        return installed_version(self.name)

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Return the reason why this model is not tried; None if it is."""
        return "reads only ONNX models" if subject.model is None else None

    def start(self) -> None:
        """Import the package with the runtime's name, before the time of a run is measured."""
        with suppress(ImportError):
            importlib.import_module(self.name)

    @abstractmethod
    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wanted outputs, by name. An exception, except of onegru's own code, means rejection."""


class MisfitError(Exception):
    """Raised for results that cannot be outputs."""


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first installed distribution; None if none is installed."""
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
