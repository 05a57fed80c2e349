"""The interface of other runtimes."""

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
    """A value within an OpenVINO IR to return as if it were an output."""

    value: str  # its name
    layer: str  # the name of a layer
    side: str  # whether it is one of the layer's inputs or outputs
    index: int  # which one


@dataclass(frozen=True, slots=True)
class ModelUnderTest:
    """A model, as a runtime takes it."""

    path: str  # the file that it comes from; an OpenVINO IR is read from there
    # a serialized ONNX model; its external data, which only large models have, lie in the file's folder. None
    # for an IR
    model: bytes | None
    outputs: Mapping[str, tuple[str, ...]]  # the outputs wanted, by name, each with all its names
    probes: tuple[Probe, ...] = ()  # for an IR, values wanted as well as the outputs
    is_file: bool = False  # whether `model` is what the file holds, so that a runtime may read that instead
    # whether it has nodes that are not in question, which a provider for GRUs need not take
    has_others: bool = False


@dataclass(frozen=True, slots=True)
class Runtime(ABC):
    """A runtime. It is sent to another process, so it must pickle, and its class must be importable there."""

    name: str  # its name
    precision: str = ""  # the precision set; empty if it has no such option

    def version(self) -> str | None:
        """Its version, found without importing it; None if it is not installed."""
        return installed_version(self.name)

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Why it is not tried on this subject; None if it is."""
        return "reads only ONNX models" if subject.model is None else None

    def start(self) -> None:
        """Import what runs models: a runtime has the name of its package. This is not part of a run."""
        with suppress(ImportError):
            importlib.import_module(self.name)

    @abstractmethod
    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs wanted, by name. An exception counts as a refusal, except for a mistake of onegru's."""


class MisfitError(Exception):
    """What a runtime gives cannot be outputs."""


def installed_version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed; None if none is."""
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
