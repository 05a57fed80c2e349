"""The measured machines, and their files of results in benchmarks/machines/, one for each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page.figures import Entry, Parts

__all__ = ["FOLDER", "Machines", "file_name", "labels", "machine_of", "read_machines", "write_machines"]

#: The committed results, a file for each machine.
FOLDER = Path(__file__).resolve().parents[1] / "machines"

#: Common names of the targets that onegru chooses.
_INSTRUCTIONS = {"avx3": "AVX-512", "avx10": "AVX10", "avx2": "AVX2", "sse4": "SSE4", "neon": "Neon"}

#: Results by machine name.
Machines = dict[str, Parts]


def machine_of(parts: Parts) -> Entry:
    """Return the machine of these results, as in the last measured part."""
    return max((document["machine"] for document in parts.values()), key=lambda found: str(found.get("date")))


def labels(machines: Machines) -> dict[str, str]:
    """Return short names for tables: processor and vector instructions, or full names if two are equal."""
    found = {}
    for name, parts in machines.items():
        machine = machine_of(parts)
        target = str(machine["target"])
        found[name] = f"{_processor(machine)} ({_INSTRUCTIONS.get(target.partition('_')[0], target)})"
    shared = [label for label, count in Counter(found.values()).items() if count > 1]
    return {name: name if label in shared else label for name, label in found.items()}


def _processor(machine: Entry) -> str:
    return str(machine.get("microarchitecture") or machine.get("cpu") or "unknown")


def _name(machine: Entry) -> str:
    """Return a unique name: processor, number of cores, SIMD target and L2."""
    level_2 = machine.get("caches", {}).get("L2")
    words = [
        _processor(machine),
        f"{machine.get('cores', '?')} cores",
        str(machine.get("target")),
    ]
    return ", ".join([*words, *([f"{level_2 >> 10} KiB of L2"] if level_2 else [])])


def file_name(name: str) -> str:
    """Return a machine's name as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def read_machines(files: Iterable[Path]) -> Machines:
    """Return the results in files by machine and part. If a case occurs twice, the later file counts.

    A file holds the results of one part, as the benchmarks write it, or all results of a machine.
    """
    machines: Machines = {}
    for file in files:
        content = json.loads(file.read_text())
        for document in content.get("parts", {"": content}).values():
            if "part" in document:
                parts = machines.setdefault(_name(document["machine"]), {})
                parts[document["part"]] = _merged(parts.get(document["part"]), document)
    return dict(sorted(machines.items(), key=lambda item: file_name(item[0])))


def _merged(earlier: Entry | None, later: Entry) -> Entry:
    if earlier is None:
        return later

    def key(entry: Entry) -> tuple[Any, ...]:
        return tuple(entry.get(name) for name in ("kind", "case", "threads", "load", "pace"))

    entries = {key(entry): entry for entry in [*earlier["entries"], *later["entries"]]}
    return later | {"entries": list(entries.values()), "limits": earlier["limits"] | later["limits"]}


def write_machines(machines: Machines, folder: Path = FOLDER) -> None:
    """Write a file for each machine, with a line for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in machines.items():
        (folder / f"{file_name(name)}.json").write_text(_text(parts.values()))


def _text(documents: Iterable[Entry]) -> str:
    texts = []
    for document in documents:
        entries = ",\n".join(json.dumps(_rounded(entry)) for entry in document["entries"])
        rest = json.dumps({name: value for name, value in document.items() if name != "entries"})
        texts.append(f'"{document["part"]}": {rest[:-1]}, "entries": [\n{entries}\n]}}')
    return '{"parts": {\n' + ",\n".join(texts) + "\n}}\n"


def _rounded(value: Any) -> Any:
    """Round each number to six digits, more than any page shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(item) for item in value]
    return value
