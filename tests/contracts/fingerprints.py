"""Compare fingerprints of everything that onegru reads from model files and writes to them.

    python -m tests.contracts.fingerprints           compare with fingerprints.json, and print each difference
    python -m tests.contracts.fingerprints --write   store the fingerprints of today's code

A change of the structure must not change a fingerprint. If one changes for a good reason, the commit says
why. `--show CASE` prints everything that goes into a fingerprint, to compare two versions of the code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import onegru
from tests.fuzz.corpus import KINDS, corpus
from tests.rewriting.test_streaming import drawn
from tests.support.decomposed.draw import KINDS as DECOMPOSED
from tests.support.decomposed.draw import NEAR_MISSES, decomposed, near_miss
from tests.support.decomposed.models import Decomposed
from tests.support.files import kinds_of_files
from tests.support.files.onnx_models import save

GOLDEN = Path(__file__).with_name("fingerprints.json")
STREAMS = 60  # networks drawn for streaming
Fingerprint = dict[str, str]


def cases() -> dict[str, Callable[[Path], Path]]:
    """Return functions that write a model file into a folder, by the names of the cases."""
    found: dict[str, Callable[[Path], Path]] = {}
    for kind in KINDS:
        for index in range(len(corpus(kind))):
            found[f"corpus/{kind}/{index}"] = partial(_from_corpus, kind=kind, index=index)
    for name in kinds_of_files.MADE:
        found[f"kinds/{name}"] = partial(kinds_of_files.write, name)
    for seed in range(STREAMS):
        found[f"stream/{seed}"] = partial(_drawn_stream, seed=seed)
    for kind in DECOMPOSED:
        found[f"decomposed/{kind}"] = partial(_drawn_model, decomposed, kind)
    for kind in NEAR_MISSES:
        found[f"near miss/{kind}"] = partial(_drawn_model, near_miss, kind)
    return found


def _from_corpus(folder: Path, kind: str, index: int) -> Path:
    files = corpus(kind)[index]
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(files))


def _drawn_stream(folder: Path, seed: int) -> Path:
    return save(folder, drawn(seed)[1])


def _drawn_model(draw: Callable[[str, np.random.Generator], Decomposed], kind: str, folder: Path) -> Path:
    return save(folder, draw(kind, np.random.default_rng(1)).model)


def fingerprint(write: Callable[[Path], Path]) -> Fingerprint:
    """Read and rewrite one file; return the digest of each result, or the error's text."""
    return {name: text if text.startswith("!") else _digest(text) for name, text in facts(write)}


def facts(write: Callable[[Path], Path]) -> Iterator[tuple[str, str]]:
    """Yield the results of all operations on one file, as text."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        source = write(folder)
        yield "source", _contents(folder)
        for operation, work in OPERATIONS.items():
            target = folder / "target"
            target.mkdir()
            try:
                text = work(source, target)
            except (onegru.OneGRUError, OSError, ImportError) as error:
                text = f"!{type(error).__name__}: {error}"
            yield operation, text.replace(name, "FOLDER")
            for path in target.iterdir():
                path.unlink()
            target.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _contents(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files
    )


def _plain(value: Any) -> Any:
    """Return a report for JSON; arrays become digests."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        return f"{data.dtype}{list(data.shape)} {hashlib.sha256(data.tobytes()).hexdigest()[:12]}"
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _text(value: Any) -> str:
    return json.dumps(_plain(value), indent=1, sort_keys=True, default=str)


def _inspect(source: Path, _: Path) -> str:
    return _text(onegru.inspect(source))


def _layers(source: Path, _: Path) -> str:
    return _text(_layers_in(onegru.load_layers(source)))


def _layers_in(found: Any) -> Any:
    if isinstance(found, onegru.GRU):
        return {"spec": found.spec, "weights": found.weights, "storage": found.weight_storage}
    if isinstance(found, onegru.Stack):
        return [_layers_in(layer) for layer in found.layers]
    return {name: _layers_in(layer) for name, layer in found.items()}


def _written(change: Callable[[Path, Path], Any]) -> Callable[[Path, Path], str]:
    def work(source: Path, folder: Path) -> str:
        change(source, folder / f"out{source.suffix}")
        return _contents(folder)

    return work


def _saved(suffix: str) -> Callable[[Path, Path], str]:
    def work(source: Path, folder: Path) -> str:
        found = onegru.load_layers(source)
        layers: Any = found.values() if isinstance(found, Mapping) else [found]
        for index, layer in enumerate(layers):
            onegru.save_layers(layer, folder / f"{index}{suffix}")
        return _contents(folder)

    return work


#: The operations on each file.
OPERATIONS: dict[str, Callable[[Path, Path], str]] = {
    "inspect": _inspect,
    "load_layers": _layers,
    "save .onnx": _saved(".onnx"),
    "save .xml": _saved(".xml"),
    "save .safetensors": _saved(".safetensors"),
    "fuse": _written(lambda source, target: onegru.fuse(source, target, check=False)),
    "stream": _written(lambda source, target: onegru.make_streaming(source, target, delay=True, check=False)),
    "rewrite": _written(lambda source, target: onegru.rewrite(source, target, split=True, check=False)),
    "rewrite to float16": _written(
        lambda source, target: onegru.rewrite(source, target, dtype="float16", layout=1, check=False)
    ),
    "decompose": _written(lambda source, target: onegru.rewrite(source, target, decompose=True, check=False)),
}


def differences(found: Fingerprint, stored: Fingerprint) -> list[str]:
    """Return the operations whose results differ, with both results."""
    if found["source"] != stored["source"]:
        return []  # other versions of the libraries that write the file
    return [
        f"{name}: {stored.get(name)} became {found.get(name)}"
        for name in {**stored, **found}
        if found.get(name) != stored.get(name)
    ]


def stored() -> dict[str, Fingerprint]:
    """Read the golden data."""
    data: dict[str, Fingerprint] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return data


def main(arguments: list[str]) -> int:
    """Compare, show or store fingerprints."""
    if arguments[:1] == ["--show"]:
        for name, text in facts(cases()[arguments[1]]):
            print(f"== {name}\n{text}")
        return 0
    found = {}
    for number, (name, write) in enumerate(cases().items(), 1):
        found[name] = fingerprint(write)
        print(f"\r{number}", end="", file=sys.stderr)
    if arguments == ["--write"]:
        GOLDEN.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    golden = stored()
    lines = [
        f"{name}: {line}"
        for name in {**golden, **found}
        for line in (
            differences(found[name], golden[name])
            if name in golden and name in found
            else ["is new, or gone"]
        )
    ]
    print("", *lines, f"{len(lines)} differences in {len(found)} files", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
