"""Compare fingerprints of everything that onegru reads from model files and writes to them.

    python -m tests.contracts.fingerprints           compare with fingerprints.json, and print each difference
    python -m tests.contracts.fingerprints --write   store the fingerprints of today's code

A change of the structure must not change a fingerprint. If one changes for a good reason, the commit says
why. `--show CASE` prints everything that goes into a fingerprint, to compare two versions of the code.

Another version of a package may write another file. Then the case is not compared, and its test is skipped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import onegru
from benchmarks.models import way_graphs
from benchmarks.models.cases import Shape
from benchmarks.models.decomposed import KERAS
from benchmarks.models.real import REAL, exported
from benchmarks.models.ways import draw_way
from tests.fuzz.corpus import KINDS, corpus
from tests.rewriting.test_streaming import drawn
from tests.support.decomposed.draw import KINDS as DECOMPOSED
from tests.support.decomposed.draw import NEAR_MISSES, decomposed, near_miss
from tests.support.decomposed.models import Decomposed
from tests.support.files import kinds_of_files
from tests.support.files.onnx_models import save

GOLDEN = Path(__file__).with_name("fingerprints.json")
STREAMS = 60  # networks drawn for streaming
WAYS = (0, 2, 5, 6, 9, 11, 17, 21, 22, 23, 30, 75)  # each place of the GRU and each link is in one of them
EXPORTED = ("wake word", "classifier")  # PyTorch exports the other models in seconds
Fingerprint = dict[str, str]
Operations = Mapping[str, Callable[[Path, Path], str]]
#: The entries of a Keras configuration that change results.
KEPT = {"class_name", "config", "layers", "layer", "backward_layer", "merge_mode", "batch_shape", "units"}
KEPT |= {"activation", "recurrent_activation", "use_bias", "reset_after", "return_sequences", "go_backwards"}

#: The packages that write the files of the other cases.
WRITERS = ("h5py", "numpy", "onnx", "safetensors", "torch")
#: The beginnings of the names of cases whose files only onegru and the tests write.
OWN = (
    *("corpus/onnx/6", "corpus/onnx/7", "corpus/onnx/11", "corpus/onnx/12", "corpus/npz/2", "corpus/pt/"),
    *("corpus/xml/", "corpus/bin/", "corpus/tflite/"),
    *(f"corpus/safetensors/{index}" for index in (1, 2, 3)),
    *(f"kinds/{kind}.onnx" for kind in ("saved", "int8", "bfloat16", "float16", "decomposed", "streaming")),
    *("kinds/sequence.xml", "kinds/cell.xml", "kinds/augru.xml", "kinds/saved", "kinds/model.tflite"),
    f"benchmarks/{KERAS.name}",  # a stored file
)


@dataclass(frozen=True)
class Case:
    """A file, and the operations on it.

    Attributes:
        write: writes the file into a folder.
        operations: by name.
        is_own: whether only onegru and the tests write the file.
        needs: an optional package that the case needs.
    """

    write: Callable[[Path], Path]
    operations: Operations
    is_own: bool
    needs: str = ""


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    found = {name: Case(write, OPERATIONS, name.startswith(OWN)) for name, write in _files().items()}
    for model in EXPORTED:
        name = f"benchmarks/{model}"
        found[name] = replace(found[name], needs="torch")
    for needs, operations, names in GROUPS:
        for name in names:
            found[f"{needs or 'options'}/{name}"] = replace(found[name], operations=operations, needs=needs)
    return found


def _files() -> dict[str, Callable[[Path], Path]]:
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
    for number in WAYS:
        found[f"benchmarks/way {number}"] = partial(_small_way, number=number)
    for model in EXPORTED:
        found[f"benchmarks/{model}"] = partial(exported, model, REAL[model])
    found[f"benchmarks/{KERAS.name}"] = lambda folder: Path(shutil.copy(KERAS, folder))
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


def _small_way(folder: Path, number: int) -> Path:
    way, path = draw_way("onnx", 0, number), folder / "m.onnx"
    small = replace(way.case, shape=Shape(5, 2, 6, 4, way.case.shape.D))
    way_graphs.write_onnx(replace(way, case=small), path)
    return path


def fingerprint(case: Case) -> Fingerprint:
    """Read and rewrite one file; return the digest of each result, or the error's text."""
    return {name: text if text.startswith("!") else _digest(text) for name, text in facts(case)}


def facts(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the results of all operations on one file, as text; none if a package is missing."""
    if case.needs and find_spec(case.needs) is None:
        return
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        source = case.write(folder)
        yield "source", _contents(folder)
        for operation, work in case.operations.items():
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


def _written(change: Callable[..., Any], **options: Any) -> Callable[[Path, Path], str]:
    def work(source: Path, folder: Path) -> str:
        change(source, folder / f"out{source.suffix}", **options)
        return _contents(folder)

    return work


def _saved(suffix: str, storage: str = "", **options: Any) -> Callable[[Path, Path], str]:
    def work(source: Path, folder: Path) -> str:
        found = onegru.load_layers(source)
        layers: Any = found.values() if isinstance(found, Mapping) else [found]
        for index, layer in enumerate(layers):
            stored = layer.with_storage(storage) if storage else layer
            onegru.save_layers(stored, folder / f"{index}{suffix}", **options)
        return _contents(folder)

    return work


def _state_dict(source: Path, folder: Path) -> str:
    import torch

    onegru.save_layers(onegru.load_layers(source).popitem()[1], folder / "m.pt")
    loaded = torch.load(folder / "m.pt", weights_only=True)
    return _text({name: array.numpy() for name, array in loaded.items()})


def _keras_model(source: Path, folder: Path) -> str:
    """Return the weights and the layers of the configuration, without names that Keras numbers."""
    onegru.save_layers(onegru.load_layers(source).popitem()[1], folder / "m.keras")
    with zipfile.ZipFile(folder / "m.keras") as archive:
        config = json.loads(archive.read("config.json"))
    return _text([_of_layers(config), *_layers_in(onegru.load_layers(folder / "m.keras")).values()])


def _of_layers(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _of_layers(item) for key, item in config.items() if key in KEPT}
    return [_of_layers(item) for item in config] if isinstance(config, list) else config


#: The operations on each file.
OPERATIONS: Operations = {
    "inspect": _inspect,
    "load_layers": _layers,
    "save .onnx": _saved(".onnx"),
    "save .xml": _saved(".xml"),
    "save .safetensors": _saved(".safetensors"),
    "fuse": _written(onegru.fuse, check=False),
    "stream": _written(onegru.make_streaming, delay=True, check=False),
    "rewrite": _written(onegru.rewrite, split=True, check=False),
    "rewrite to float16": _written(onegru.rewrite, dtype="float16", layout=1, check=False),
    "decompose": _written(onegru.rewrite, decompose=True, check=False),
}

#: Options, with a few files.
OPTIONS: Operations = {
    "save .onnx, opset 1": _saved(".onnx", opset=1, initial_h=False),
    "save .onnx, layout 1": _saved(".onnx", layout=1, sequence_lens=True),
    "save .onnx, fixed sizes": _saved(".onnx", batch_size=2, seq_length=3),
    "save .onnx, int8": _saved(".onnx", "int8", opset=13),
    "save .onnx, int8 in groups": _saved(".onnx", "int8_g32"),
    "save .xml, cell": _saved(".xml", cell=True),
    "save .xml, no states": _saved(".xml", initial_h=False),
    "save .xml, fixed sizes": _saved(".xml", sequence_lens=True, batch_size=2, seq_length=3),
    "save .xml, int8": _saved(".xml", "int8"),
    "save .safetensors, int8": _saved(".safetensors", "int8"),
    "quantize": _written(lambda source, target: onegru.quantize(source, None, target)),
    "rewrite to opset 21": _written(onegru.rewrite, opset=21, check=False),
    "rewrite for onnxruntime": _written(onegru.rewrite, runtime="onnxruntime", check=False),
    "rewrite for openvino": _written(onegru.rewrite, runtime="openvino", check=False),
}

#: More operations: the package that they need, and the cases whose files they read.
GROUPS: tuple[tuple[str, Operations, tuple[str, ...]], ...] = (
    (
        "",
        OPTIONS,
        (
            *("corpus/onnx/0", "corpus/onnx/6", "corpus/onnx/11", "corpus/safetensors/2", "corpus/xml/2"),
            *("kinds/saved.onnx", "kinds/sequence.xml", "kinds/augru.xml"),
        ),
    ),
    ("torch", {"save .pt": _state_dict}, ("kinds/saved.onnx", "corpus/onnx/0")),
    ("keras", {"save .keras": _keras_model}, ("kinds/saved.onnx", "corpus/xml/2", "corpus/onnx/11")),
)


def differences(found: Fingerprint, stored: Fingerprint) -> list[str]:
    """Return the operations whose results differ, with both results."""
    return [
        f"{name}: {stored.get(name)} became {found.get(name)}"
        for name in {**stored, **found}
        if found.get(name) != stored.get(name)
    ]


def not_compared(case: Case, found: Fingerprint, stored: Fingerprint) -> str:
    """Say why a case cannot be compared: another package wrote the file, and wrote it otherwise."""
    if not found:
        return f"{case.needs} is not installed"
    if case.is_own or found["source"] == stored["source"]:
        return ""
    changed = ", ".join(changed_versions()) or f"with the stored versions of {', '.join(WRITERS)}"
    return f"another package writes another file: {changed}"


def versions() -> dict[str, str]:
    """The versions of the packages that write files; "" where one is not installed."""
    found = {}
    for package in WRITERS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def changed_versions() -> list[str]:
    """The installed packages whose version is not the stored one, with both versions."""
    golden = _read()["versions"]
    return [
        f"{name} {new} (stored: {golden[name]})"
        for name, new in versions().items()
        if new and new != golden[name]
    ]


def _read() -> dict[str, Fingerprint]:
    data: dict[str, Fingerprint] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return data


def stored() -> dict[str, Fingerprint]:
    """Read the golden data of the cases."""
    return {name: data for name, data in _read().items() if name != "versions"}


def main(arguments: list[str]) -> int:
    """Compare, show or store fingerprints."""
    chosen = cases()
    if arguments[:1] == ["--show"]:
        for name, text in facts(chosen[arguments[1]]):
            print(f"== {name}\n{text}")
        return 0
    found = {}
    for number, (name, case) in enumerate(chosen.items(), 1):
        found[name] = fingerprint(case)
        print(f"\r{number}", end="", file=sys.stderr)
    if arguments == ["--write"]:
        kept = {name: stored()[name] for name, data in found.items() if not data}
        data = {"versions": versions(), **found, **kept}
        GOLDEN.write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    golden, lines, skipped = stored(), [], []
    for name in {**golden, **found}:
        if name not in golden or name not in found:
            lines.append(f"{name}: is new, or gone")
        elif reason := not_compared(chosen[name], found[name], golden[name]):
            skipped.append(f"{name}: not compared: {reason}")
        else:
            lines += [f"{name}: {line}" for line in differences(found[name], golden[name])]
    print("", *skipped, *lines, sep="\n")
    print(f"{len(lines)} differences in {len(found)} files, {len(skipped)} of them not compared")
    return 1 if lines or skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
