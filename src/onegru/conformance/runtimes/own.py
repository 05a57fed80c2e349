"""Run the cases of the suite in onegru."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegru import _native
from onegru.models.load import load
from onegru.peers.base import ModelUnderTest, Runtime


@dataclass(frozen=True, slots=True)
class Onegru(Runtime):
    """onegru; see `onegru.peers.base.Runtime`."""

    name: str = "onegru"  # its name
    engine: str = "native"  # the engine, as for `onegru.load`

    def version(self) -> str | None:
        """Return the version."""
        return _native.version()

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Return None, because every model is tried."""
        return None

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs."""
        return load(subject.path if subject.model is None else subject.model, engine=self.engine).run(inputs)
