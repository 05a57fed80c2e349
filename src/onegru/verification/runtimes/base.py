"""What a runtime is asked to run, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Probe:
    """A value within an OpenVINO IR that is asked for as if it were an output.

    Attributes:
        value: what to call it.
        layer: the name of a layer.
        side: whether it is one of the layer's inputs or outputs.
        index: which one.
    """

    value: str
    layer: str
    side: str
    index: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, as a runtime is given it.

    Attributes:
        path: the file that it comes from; an OpenVINO IR is read from there.
        model: an ONNX model, serialized, whole and without external data; None for an IR.
        outputs: what is wanted, by name: of an IR, each output's names.
        probes: of an IR, what is wanted beside the outputs.
    """

    path: str
    model: bytes | None
    outputs: Mapping[str, tuple[str, ...]]
    probes: tuple[Probe, ...] = ()


class Runtime(Protocol):
    """A runtime. It is sent to another process, so it must pickle, and its class must be importable there."""

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def precision(self) -> str:
        """What it is told to compute in; empty where it has no choice."""

    def version(self) -> str | None:
        """Its version; None where it is not installed. It is not imported for that."""

    def refuses(self, subject: Subject) -> str | None:
        """Why it is not even tried on this subject; None if it is."""

    def run(self, subject: Subject, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The wanted outputs, by name. Whatever it raises counts as its refusal."""


def installed_version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed; None if none is."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
