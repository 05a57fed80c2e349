"""Files are recognized by their content: their names, readers and other uses."""

from __future__ import annotations

import gzip
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.formats.opened import Kind, open_file
from tests.formats.checkpoints.test_pytorch import state
from tests.formats.tflite.make_files import FOLDER
from tests.support.files.ir_files import write_case
from tests.support.files.keras_files import keras_3
from tests.support.files.onnx_models import H, I, graph, gru, model, save, value, weights
from tests.support.files.torch_files import write_checkpoint
from tests.support.layers import make_gru, make_stack
from tests.support.machine.processes import run_python


def zip_of(*names: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"")

    return write


def safetensors_of(length: int) -> Callable[[Path], object]:
    """A file whose header has this length."""

    def write(path: Path) -> None:
        onegru.save_layers(make_gru(), path.with_suffix(".safetensors"))
        data = path.with_suffix(".safetensors").read_bytes()
        own = int.from_bytes(data[:8], "little")
        assert own <= length
        head = data[8 : 8 + own] + b" " * (length - own)
        path.write_bytes(length.to_bytes(8, "little") + head + data[8 + own :])

    return write


def write_onnx(path: Path) -> None:
    relu = gru("Y", ["Z"])
    relu.op_type, relu.name = "Relu", "relu"
    del relu.input[1:], relu.attribute[:]
    proto = graph([gru("X", ["Y"], bias="B"), relu], [value("X", shape=["T", "N", 5])], ["Z"], weights())
    save(path.parent, model(proto), path.name)


def write_ir(path: Path) -> None:
    inputs = {
        "X": np.ones((1, I), np.float32),
        "initial_hidden_state": np.zeros((1, H), np.float32),
        **{name: array[0] for name, array in weights().items() if name != "B"},
    }
    write_case(path, "gru_cell", dict(inputs), {"hidden_size": H})


def write_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


FILES: dict[str, tuple[Kind, Callable[[Path], object]]] = {
    "ONNX": (Kind.ONNX, write_onnx),
    "IR": (Kind.OPENVINO, write_ir),
    "PyTorch": (Kind.PYTORCH, lambda path: write_checkpoint(path, state())),
    "PyTorch before 1.6": (Kind.PYTORCH, lambda path: write_checkpoint(path, state(), legacy=True)),
    "safetensors": (Kind.SAFETENSORS, lambda path: onegru.save_layers(make_gru(), path)),
    **{
        f"safetensors {length:#x}": (Kind.SAFETENSORS, safetensors_of(length))
        for length in (0x380, 0x480, 0x408, 0x41A, 0x6508, 0x8B1F)
    },
    "Keras": (Kind.KERAS, keras_3),
    "Keras, legacy": (Kind.KERAS, lambda path: keras_3(path)),
}
if find_spec("tflite") is not None:
    FILES["TensorFlow Lite"] = Kind.TFLITE, partial(copy, FOLDER / "states.tflite")

# The first bytes that TensorFlow 2 and 1 write.
STARTS = (
    (Kind.SAVED_MODEL, b"\x08\x01\x12\xe3\x5a\x0a\x98\x0d\x12\xe8\x0c\x0a\x5e\x0a\x10AssignVariable"),
    (Kind.SAVED_MODEL, b"\x08\x01\x12\xcc\x03\x0a\x0a\x22\x05serve"),
)

OTHERS: dict[str, tuple[Kind, Callable[[Path], object]]] = {
    "TorchScript": (Kind.TORCHSCRIPT, zip_of("x/data.pkl", "x/constants.pkl")),
    "npz": (Kind.NPZ, write_npz),
    "npy": (Kind.NPY, write_npy),
    "pickle": (Kind.PICKLE, lambda path: path.write_bytes(pickle.dumps({"weight_ih_l0": 3}))),
    "gzip": (Kind.GZIP, lambda path: path.write_bytes(gzip.compress(b"x"))),
    "LFS": (Kind.LFS, lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid")),
    "web page": (Kind.HTML, lambda path: path.write_text("\n<!DOCTYPE html><html>")),
    "JSON": (Kind.JSON, lambda path: path.write_text('\n{ "config": {}}')),
    "JSON, a list": (Kind.JSON, lambda path: path.write_text("[[0.5, -1]]")),
    "torch.export": (Kind.EXPORTED, zip_of("c/models/model.json", "c/archive_format")),
    "torch.export, before 2.8": (Kind.EXPORTED, zip_of("serialized_exported_program.json", "version")),
    "empty": (Kind.EMPTY, Path.touch),
    **{
        f"{kind.name} {number}": (kind, partial(Path.write_bytes, data=start + bytes(40)))
        for number, (kind, start) in enumerate(STARTS)
    },
}

ENDS = {"IR": ".xml", "safetensors": ".safetensors", "Keras": ".keras", "Keras, legacy": ".h5"}


def written(folder: Path, name: str, end: str = ".tar") -> Path:
    path = folder / f"x{ENDS.get(name, '.bin')}"
    {**FILES, **OTHERS}[name][1](path)
    return path.rename(folder / f"y{end}")


@pytest.mark.parametrize("end", [".tar", ".onnx", ".pt", ".xml", ""])
@pytest.mark.parametrize("name", FILES)
def test_files_under_any_name(tmp_path: Path, name: str, end: str) -> None:
    path = written(tmp_path, name, end)
    if name == "IR":
        (tmp_path / "x.bin").rename(tmp_path / "y.bin")
    kind = FILES[name][0]
    assert open_file("path", path).detected is kind
    assert onegru.load_layers(path)
    found = onegru.inspect(path)
    assert found.kind == kind.words and found.grus
    if kind.holds == "model":
        if name == "IR":
            assert onegru.load(path).gru_nodes
        return
    with pytest.raises(FormatError) as caught:
        onegru.load(path)
    assert str(caught.value) == (
        f"{path}: {kind.words}, which contains layers, not a runnable model: use "
        "onegru.load_layers, or `onegru convert` to create a model"
        + (f"; {kind.remedy}" if kind is Kind.KERAS else "")
    )


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_kinds(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, ".onnx")
    kind = OTHERS[name][0]
    assert open_file("path", path).detected is kind
    for function in (onegru.load, onegru.load_layers, onegru.inspect):
        with pytest.raises(
            FormatError, match=rf"y\.onnx: {kind.words}; must be one of these: ONNX model"
        ) as e:
            function(path)
        assert str(e.value).endswith(kind.remedy)


@pytest.mark.parametrize("data", [b"nonsense", b"PK\3\4", b"\x7fELF", bytes(100)])
def test_files_of_no_kind(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert open_file("path", path).detected is Kind.UNKNOWN
    for function in (onegru.load, onegru.load_layers, onegru.inspect):
        with pytest.raises(FormatError, match="not an ONNX model, or truncated"):
            function(path)


# ---- inspect


def test_a_checkpoint_described(tmp_path: Path) -> None:
    stack = make_stack(2)
    onegru.save_layers(stack, tmp_path / "x.safetensors")
    found = onegru.inspect(tmp_path / "x.safetensors")
    assert (found.inputs, found.outputs, found.other_nodes, found.nested_grus) == ((), (), None, ())
    assert [item.name for item in found.grus] == ["GRU, layer 0", "GRU, layer 1"]
    for item, layer in zip(found.grus, stack.layers, strict=True):
        spec = layer.spec
        assert (item.input_size, item.hidden_size, item.dtype) == (
            spec.input_size,
            spec.hidden_size,
            spec.dtype,
        )
        assert (item.direction, item.reset) == (
            spec.direction,
            "after" if spec.linear_before_reset else "before",
        )
        assert item.parameters == layer.weights.W.size + layer.weights.R.size + layer.weights.B.size
        assert (item.operator, item.others) == ("", ())


def test_a_model_is_described_alike_with_and_without_its_runtime(tmp_path: Path) -> None:
    write_onnx(tmp_path / "x.onnx")
    expected = onegru.inspect(tmp_path / "x.onnx")
    assert expected.other_nodes == 1 and expected.grus[0].parameters is not None
    code = """
import sys
sys.modules["onnxruntime"] = None
import onegru
print(onegru.inspect(sys.argv[1]))
try:
    onegru.load(sys.argv[1])
except onegru.MissingExtraError:
    print("as expected")
"""
    assert run_python(code, tmp_path / "x.onnx").stdout == f"{expected}\nas expected\n"


def test_weights_that_are_computed_without_a_runtime(tmp_path: Path) -> None:
    """By onnx."""
    arrays = weights()
    arrays["flat"] = arrays.pop("W").reshape(-1)
    arrays["shape"] = np.array([1, 3 * H, I], np.int64)
    reshape = gru("flat", ["W"])
    reshape.op_type, reshape.name = "Reshape", "reshape"
    del reshape.input[1:], reshape.attribute[:]
    reshape.input.append("shape")
    proto = graph([reshape, gru("X", ["Y"])], [value("X", shape=[2, 1, I])], ["Y"], arrays)
    path = save(tmp_path, model(proto))
    assert onegru.inspect(path).grus[0].input_size == I
    code = "import sys, onegru; sys.modules['onnxruntime'] = None; print(*onegru.inspect(sys.argv[1]).grus)"
    assert f"input_size={I}, hidden_size={H}" in run_python(code, path).stdout


def test_a_broken_part_does_not_keep_a_model_from_being_described(tmp_path: Path) -> None:
    write_onnx(tmp_path / "x.onnx")
    data = (tmp_path / "x.onnx").read_bytes().replace(b"Relu", b"Rexu")
    (tmp_path / "x.onnx").write_bytes(data)
    assert len(onegru.inspect(tmp_path / "x.onnx").grus) == 1


@pytest.mark.parametrize("end", [".pt", ".keras", ".h5", ".safetensors"])
@pytest.mark.parametrize("data", [b"x", b"nonsense"])
def test_an_end_that_promises_what_the_file_is_not(tmp_path: Path, data: bytes, end: str) -> None:
    """What is wrong is said of the file; no content is called what only its name says."""
    path = tmp_path / f"x{end}"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        onegru.load(path)
    assert str(caught.value).startswith(f"{path}: of an unknown kind; must be one of these: ONNX model")


def test_an_end_of_what_is_not_read(tmp_path: Path) -> None:
    kind = Kind.WEIGHTS
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(64))
    with pytest.raises(FormatError) as caught:
        onegru.inspect(path)
    assert str(caught.value).startswith(f"{path}: of an unknown kind, named like {kind.words}; must be")
    assert str(caught.value).endswith(f"TensorFlow Lite model; {kind.remedy}")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "a folder; must be a file; no file in it looks like a model"),
        (("config.json", "model.safetensors"), "a folder; must be a file: pass {}/model.safetensors"),
        (("b.onnx", "a.onnx", "c.pt"), "a folder; must be a file: pass {0}/a.onnx or {0}/b.onnx"),
        (("pytorch_model.bin", "vocab.json"), "a folder; must be a file: pass {}/pytorch_model.bin"),
        (
            ("m-00001-of-00001.safetensors", "m.safetensors.index.json"),
            "a folder; must be a file: pass {}/m.safetensors.index.json",
        ),
        (
            ("saved_model.pb", "x.h5"),
            "a folder, a TensorFlow SavedModel; must be a file: convert its folder with "
            "`python -m tf2onnx.convert --saved-model FOLDER --output x.onnx`",
        ),
    ],
)
def test_folders(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    for function in (onegru.load, onegru.load_layers, onegru.inspect):
        with pytest.raises(IsADirectoryError) as caught:
            function(tmp_path)
        assert (caught.value.strerror, caught.value.filename) == (words.format(tmp_path), str(tmp_path))


def test_a_zip_with_nothing_of_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(FormatError, match=r"x\.pt: .*\(contains no data\.pkl\)"):
        onegru.load_layers(path)


@pytest.mark.parametrize("name", ["safetensors", "Keras, legacy", "PyTorch"])
def test_bytes_of_another_kind(tmp_path: Path, name: str) -> None:
    data = written(tmp_path, name).read_bytes()
    with pytest.raises(FormatError, match=r"model in memory: .*; must be an ONNX model"):
        onegru.load(data)


@pytest.mark.parametrize("function", [onegru.inspect, onegru.load_layers])
@pytest.mark.parametrize("path", [None, 3, b"x.onnx", []])
def test_paths_that_are_none(function: Callable[[Any], object], path: object) -> None:
    with pytest.raises(SpecError, match=r"path: .*; must be the name of a file"):
        function(path)
