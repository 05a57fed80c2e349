"""The results of one part of the measurements, in a separate file that is written after every case."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.limits import limits

__all__ = ["Record"]

Entry = dict[str, Any]


class Record:
    """A part's file, FOLDER/PART.json: {"part", "settings", "machine", "limits", "entries"}.

    Args:
        path: the file.
        settings: the settings that the results depend on, except the machine.
        machine: the machine and the versions.
        resume: whether to keep the results in the file, and measure only the rest.
    """

    def __init__(self, path: Path, settings: Entry, machine: Entry, resume: bool) -> None:
        self.path = path
        self.document: Entry = {
            "part": path.stem,
            "settings": settings,
            "machine": machine,
            "limits": {},
            "entries": [],
        }
        if resume and path.exists():
            self.document = json.loads(path.read_text())
            if self.document["settings"] != settings:
                raise SystemExit(
                    f"--resume: {path} was measured with {self.document['settings']}, not {settings}"
                )
        path.parent.mkdir(parents=True, exist_ok=True)

    def limits(self, threads: int) -> Entry:
        """Return the peaks of this number of cores, measured once."""
        known = self.document["limits"]
        if str(threads) not in known:
            known[str(threads)] = limits(threads)
        return dict(known[str(threads)])

    def left(self, keys: Sequence[Entry], minutes: float = math.inf) -> Iterator[Entry]:
        """Yield the keys that are not measured yet, until the time is over. `add` belongs to the last one."""
        there = [key for key in keys if not any(key.items() <= e.items() for e in self.document["entries"])]
        self._began, self._total, self._minutes = time.monotonic(), len(there), minutes
        for self._number, self._key in enumerate(there, 1):
            if self._gone() >= minutes:
                return
            yield self._key

    def _gone(self) -> float:
        return (time.monotonic() - self._began) / 60

    def add(self, figures: Entry, summary: str) -> None:
        """Store the results of the last key, and print them with the remaining time."""
        self.document["entries"].append(self._key | figures)
        self.write()
        gone = self._gone()
        minutes = max(0, min(gone / self._number * (self._total - self._number), self._minutes - gone))
        name = ", ".join(f"{k} {v}" for k, v in self._key.items() if k not in ("case", "kind", "H"))
        place = f"{self.document['part']} {self._number}/{self._total}, {minutes:.1f} min left"
        print(f"{place}:  {self._key['case']}{', ' if name else ''}{name}:  {summary}", flush=True)

    def write(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.document, indent=1))
        part.replace(self.path)
