"""Which command takes which kind of file: what the table of docs/generate/files.py says is what happens.

What works is compared with a run of the source by another runtime; what is refused says why, and the reason
holds: a file that has to be fused works once it is, and one that cannot run in chunks looks ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import onegru
from docs.generate.files import BACKWARDS, COMMANDS, FUSE, KINDS, NAMED, Cell, Reason
from onegru.core.dtypes import Array
from onegru.engines.storage import lossless_storage
from tests.support.files import kinds_of_files
from tests.support.machine.cli import Cli, Result
from tests.support.models.runtimes import onnxruntime_results

for package in ("onnxruntime", "openvino", "safetensors", "h5py"):
    pytest.importorskip(package)

CELLS = {
    (name, command): cell
    for names, cells in KINDS.values()
    for name in names
    for command, cell in zip(COMMANDS, cells, strict=True)
}
ROWS, STEPS = 3, 6

#: What others cannot run, or not in its type.
BY_REFERENCE = {"augru.xml", "bfloat16.onnx"}
#: How far results may be off: of bfloat16 and float16, a rounding in each step; else 1.2e-7 seen.
BOUNDS = {"bfloat16.onnx": 0.03, "float16.onnx": 2e-3}
BOUND = 2e-6


def working(command: str, *more: Cell) -> list[str]:
    """The files that a command takes, as they are or if a GRU is named."""
    return [name for (name, own), cell in CELLS.items() if own == command and cell in ((), *more)]


def of(command: str, *reasons: Reason) -> list[str]:
    """The files that it refuses for these reasons."""
    return [name for (name, own), cell in CELLS.items() if own == command and cell == reasons]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


def source(name: str, folder: Path) -> Path:
    """The file, made once."""
    own = folder / name.replace(".", "_")
    if not own.exists():
        own.mkdir()
        kinds_of_files.write(name, own)
    return own / name


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return cli


def feeds(path: Path, states: bool = True) -> dict[str, Array]:
    """Random inputs; states are zeros."""
    rng, model = np.random.default_rng(len(path.name)), onegru.load(path)
    found: dict[str, Array] = {}
    for info in model.inputs:
        assert info.shape is not None
        is_state = info.shape[-1] == kinds_of_files.layer().spec.hidden_size
        axis = None if is_state or len(info.shape) == 2 else time_axis(path)
        shape = [
            size if isinstance(size, int) else STEPS if place == axis else ROWS
            for place, size in enumerate(info.shape)
        ]
        array = np.zeros(shape) if is_state else rng.uniform(0.1, 1, shape)
        if not is_state or states:
            found[info.name] = array.astype(onnx_type(info.dtype))
    return found


def onnx_type(name: str) -> np.dtype[np.generic]:
    from tests.support.files.onnx_models import numpy_type

    found: np.dtype[np.generic] = np.dtype(numpy_type(name))
    return found


def time_axis(path: Path) -> int:
    """The axis of time of inputs."""
    return 0 if path.name in ("saved.onnx", "bfloat16.onnx", "quantized.onnx") else 1


def truth(path: Path, given: Mapping[str, Array]) -> dict[str, Array]:
    """What the file gives, by another runtime."""
    if path.name in BY_REFERENCE:
        return onegru.load(path, engine="reference").run(given)
    if path.suffix == ".xml":
        named = [info.name for info in onegru.load(path).outputs]
        return dict(zip(named, by_openvino(path, given), strict=False))  # those of states come last
    used = {item.name for item in onnx.load(path).graph.input}
    return onnxruntime_results(with_data(path), {key: item for key, item in given.items() if key in used})


def by_openvino(path: Path, given: Mapping[str, Array]) -> list[Array]:
    """The outputs in their order, as those of a model of PyTorch have no names."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    feeds = {port: next(item for key, item in given.items() if key in port.names) for port in compiled.inputs}
    return [np.array(item) for item in compiled(feeds).values()]


def with_data(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
    return model


def compare(found: Mapping[str, Array], wanted: Mapping[str, Array], bound: float) -> None:
    assert wanted
    for name, array in wanted.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name].astype(float), array.astype(float), rtol=0, atol=bound)


def bound_of(name: str) -> float:
    return BOUNDS.get(name, BOUND)


def done(result: Result) -> Result:
    assert result.code == 0, result.err + result.out
    return result


# ---- what works


@pytest.mark.parametrize("name", working("run"))
def test_run(name: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    given = feeds(path)
    if name == "bfloat16.onnx":  # a type that NumPy's files do not have
        compare(onegru.load(path).run(given), truth(path, given), bound_of(name))
        return
    np.savez("in.npz", allow_pickle=False, **given)
    done(cli("run", path, "-i", "in.npz", "-o", "out.npz"))
    with np.load("out.npz") as found:
        compare(dict(found), truth(path, given), bound_of(name))


@pytest.mark.parametrize("name", working("verify"))
def test_verify(name: str, folder: Path, cli: Cli) -> None:
    result = done(cli("verify", source(name, folder), "--dims", 3))
    other = "openvino" if name.endswith(".xml") else "onnxruntime"
    assert re.search(rf"{other} [\d.]+\S* .*agrees", result.out) or name in BY_REFERENCE


@pytest.mark.parametrize("name", working("fuse"))
def test_fuse(name: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    fused = fuse(path, cli)
    given = feeds(path)
    model = onegru.load(fused)
    assert model.gru_nodes
    compare(model.run(given), truth(path, given), BOUND)


def fuse(path: Path, cli: Cli) -> Path:
    fused = path.with_name(f"fused{path.suffix}")
    if not fused.exists():
        done(cli("fuse", path, fused))
    return fused


def with_fused(command: str) -> list[str]:
    return [*working(command), *of(command, FUSE)]


def subject(name: str, command: str, folder: Path, cli: Cli) -> Path:
    """The file, or it fused, if the command asks for that."""
    path = source(name, folder)
    return fuse(path, cli) if FUSE in CELLS[name, command] else path


@pytest.mark.parametrize("name", with_fused("stream"))
def test_stream(name: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    target = Path(f"target{path.suffix}").absolute()
    done(cli("stream", subject(name, "stream", folder, cli), target))
    check_chunks(target, path)


def check_chunks(target: Path, path: Path) -> None:
    """That outputs in chunks are those of the whole source, and none of them hangs on later steps."""
    given, axis = feeds(path, states=False), time_axis(path)
    whole = truth(path, feeds(path))
    steps = next(iter(given.values())).shape[axis]
    stream = onegru.load(target).stream()
    parts: list[dict[str, Array]] = []
    bounds = [0, 1, steps] if steps < 3 else [0, 2, 3, steps]
    for begin, end in pairwise(bounds):
        parts.append(stream.step({key: item.take(range(begin, end), axis) for key, item in given.items()}))
    outputs = timed_outputs(whole, steps)
    assert outputs
    for name, place in outputs.items():
        together = np.concatenate([part[name] for part in parts], place)
        compare({name: together}, {name: whole[name]}, 2 * bound_of(path.name))
    early, changed = perturbed(path, steps)
    for name in outputs:
        np.testing.assert_array_equal(early[name], changed[name])


def timed_outputs(whole: Mapping[str, Array], steps: int) -> dict[str, int]:
    return {name: item.shape.index(steps) for name, item in whole.items() if steps in item.shape[:-1]}


def perturbed(path: Path, steps: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of the first steps, and the same where the last step of the inputs is another."""
    given, axis = feeds(path), time_axis(path)
    stated = feeds(path, states=False)
    other = dict(given)
    for key in stated:
        last = np.arange(steps).reshape([-1 if place == axis else 1 for place in range(given[key].ndim)])
        other[key] = np.where(last == steps - 1, given[key] * 2, given[key]).astype(given[key].dtype)
    found = []
    for item in (given, other):
        outputs = truth(path, item)
        places = timed_outputs(outputs, steps)
        found.append({name: outputs[name].take(range(steps - 1), place) for name, place in places.items()})
    return found[0], found[1]


@pytest.mark.parametrize("name", with_fused("quantize"))
def test_quantize(name: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    target = Path(f"target{path.suffix}").absolute()
    done(cli("quantize", subject(name, "quantize", folder, cli), target))
    given = feeds(path)
    compare(onegru.load(target).run(given), truth(path, given), 0.02)  # 0.006 seen
    layers = [gru.layer for gru in onegru.load(target).gru_nodes]
    assert layers and all(item is not None and lossless_storage(item.weights) == "int8" for item in layers)


@pytest.mark.parametrize("name", [*working("convert", NAMED), *of("convert", FUSE)])
def test_convert(name: str, folder: Path, cli: Cli) -> None:
    path = subject(name, "convert", folder, cli)
    arguments = ["convert", path, "layer.safetensors"]
    result = cli(*arguments)
    if result.code and (named := re.search(r"--node NAME\): '([^']*)'", result.err)):
        assert CELLS[name, "convert"] in (NAMED, (FUSE,))
        result = cli(*arguments, "--node", named[1])
    done(result)
    (found,) = onegru.load_layers("layer.safetensors").values()
    assert isinstance(found, onegru.GRU)
    wanted = kinds_of_files.expected(name)
    X = np.random.default_rng(1).standard_normal((STEPS, ROWS, wanted.spec.input_size)).astype(np.float32)
    X_found = X
    if found.spec.input_size > wanted.spec.input_size:  # one more, for steps that are switched off
        X_found = np.concatenate([X, np.zeros_like(X[..., :1])], -1)
    scores = np.full((STEPS, ROWS), 0.25, np.float32) if wanted.spec.attention else None
    Y, _ = found(X_found.astype(onnx_type(found.spec.dtype)), attention=scores)
    bound = {"int8.onnx": 0.02, "quantized.onnx": 0.02}.get(name, bound_of(name))
    compare({"Y": Y[:, :1]}, {"Y": wanted(X, attention=scores)[0]}, bound)


# ---- what is refused


def refusals(slow: bool) -> Iterator[tuple[str, str]]:
    """`quantize` measures first."""
    return (key for key, cell in CELLS.items() if cell and slow == (key[1] == "quantize" and FUSE in cell))


@pytest.mark.parametrize(("name", "command"), refusals(slow=True))
def test_refused_after_measurements(name: str, command: str, folder: Path, cli: Cli) -> None:
    test_refused(name, command, folder, cli)


@pytest.mark.parametrize(("name", "command"), refusals(slow=False))
def test_refused(name: str, command: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    for place, reason in enumerate(CELLS[name, command]):
        given = subject(name, command, folder, cli) if place else path
        end = ".safetensors" if command == "convert" else ".xml" if path.suffix == ".xml" else ".onnx"
        more = {"run": ["--random", 0, "--dims", 3], "verify": ["--dims", 3]}.get(command, [f"target{end}"])
        cli(command, given, *more).refused(reason.words)


@pytest.mark.parametrize("name", [*of("stream", BACKWARDS), *of("stream", FUSE, BACKWARDS)])
def test_what_cannot_stream_looks_ahead(name: str, folder: Path) -> None:
    early, changed = perturbed(source(name, folder), STEPS)
    assert early and all(np.abs(early[key] - changed[key]).max() > 1e-4 for key in early)


@pytest.mark.parametrize("name", ["streaming.onnx", "stateful.xml"])
def test_what_streams_as_it_is(name: str, folder: Path) -> None:
    path = source(name, folder)
    given = feeds(path, states=False)
    key = "x" if "x" in given else "X"
    stream, whole = onegru.load(path).stream(), onegru.load(path).run(feeds(path))
    parts = [stream.step({key: given[key][:, begin : begin + 2]}) for begin in range(0, STEPS, 2)]
    outputs = timed_outputs(whole, STEPS)
    assert outputs
    for name, place in outputs.items():
        np.testing.assert_allclose(
            np.concatenate([part[name] for part in parts], place), whole[name], atol=BOUND
        )


@pytest.mark.parametrize("name", ["keras_layer.onnx", "torch_cells.xml"])
def test_the_input_that_an_example_names(name: str, folder: Path, cli: Cli) -> None:
    path = source(name, folder)
    cli("stream", path, f"target{path.suffix}").refused("such as time={'x': 1} (--time x=1)")


def test_a_trace_of_what_has_to_be_fused(folder: Path, cli: Cli) -> None:
    words = "has no GRU node; 1 decomposed GRU: `onegru fuse` replaces it with a GRU node"
    cli("trace", source("decomposed.onnx", folder), "--random", 0, "--dims", 3).refused(words)


def test_parts_in_float16_are_allowed_for(folder: Path) -> None:
    """Outputs in float32 are as far off as a GRU in float16 makes them, 4e-5 here."""
    path = source("float16.onnx", folder)
    found = onegru.verify(path, feeds(path), runtimes=["onnxruntime"])
    assert found.agrees
    assert all(1e-5 < item.tolerance < 1e-2 for run in found.runtimes for item in run.outputs)


def test_there_is_a_file_for_each_row() -> None:
    names = {name for name, _ in CELLS}
    kept = {path.name for path in kinds_of_files.FOLDER.iterdir() if path.suffix not in (".bin", ".pb")}
    assert names == kept | set(kinds_of_files.MADE)
    assert all(path.stat().st_size < kinds_of_files.LARGEST for path in kinds_of_files.FOLDER.iterdir())
