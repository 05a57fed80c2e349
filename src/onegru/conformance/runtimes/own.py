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
    """See `onegru.peers.base.Runtime`."""

    name: str = "onegru"  # what to call it
    engine: str = "native"  # what runs the GRU, as for `onegru.load`

    def version(self) -> str | None:
        """Its version."""
        return _native.version()

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Nothing."""
        return None

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs."""
        return load(subject.path if subject.model is None else subject.model, engine=self.engine).run(inputs)
