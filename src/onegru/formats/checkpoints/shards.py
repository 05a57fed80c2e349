"""Find the shards of Hugging Face checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

from onegru.core.errors import FormatError
from onegru.formats.opened import Kind, Opened, open_file
from onegru.system.bounded import LARGEST_TEXT, parse_json

_NAME = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.\w+)")
_MOST = 1000  # shards


def shards_of(file: Opened) -> tuple[Opened, ...]:
    """Open all files of a checkpoint, given its index, one of its shards, or its only file."""
    if file.detected is Kind.JSON:
        return _opened(file, _names_of_index(file))
    found = _NAME.fullmatch(file.path.name)
    if found is None:
        return (file,)
    count, number = int(found["count"]), int(found["number"])
    if not 1 <= number <= count <= _MOST:
        raise FormatError(f"{file}: shard {number} of {count}; must be 1 to {_MOST}")
    names = [f"{found['name']}-{n:05d}-of-{count:05d}{found['end']}" for n in range(1, count + 1)]
    return _opened(file, names)


def _names_of_index(file: Opened) -> list[str]:
    """Return the names of the shards in an index, each once."""
    with file.stream() as stream:
        text = stream.read(LARGEST_TEXT + 1)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise FormatError(f"{file}: not an index of shards ({error})") from error
    files = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(n, str) for n in files.values()):
        raise FormatError(f"{file}: not an index of shards: no 'weight_map' with file names")
    names = list(dict.fromkeys(files.values()))
    if len(names) > _MOST:
        raise FormatError(f"{file}: names {len(names)} shards; must be at most {_MOST}")
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise FormatError(
                f"{file}: names the shard {name!r}; must be the name of a file in the same folder"
            )
    return names


def _opened(file: Opened, names: list[str]) -> tuple[Opened, ...]:
    shards = []
    for name in names:
        path = file.path.with_name(name)
        if path == file.path:
            shards.append(file)
            continue
        if not path.exists():
            what = "names" if file.detected is Kind.JSON else "is one of several shards, like"
            raise FormatError(
                f"{file}: {what} {name!r}, which is missing; all shards must be in the same folder"
            )
        shard = open_file("path", path)
        if shard.kind is not file.kind:
            raise FormatError(f"{shard}: {shard.kind.words}; must be {file.kind.words} like {file.path.name}")
        shards.append(shard)
    return tuple(shards)
