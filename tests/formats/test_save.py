"""What `onegru.save_layers` refuses, states that may be left out, files that are whole or as they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import GRU, SpecError
from onegru.core.dtypes import Array
from onegru.layers.stack import layers_of
from tests.support.comparison import assert_bits
from tests.support.layers import H, draw, make_gru, make_stack
from tests.support.machine.processes import run_python_without
from tests.support.machine.systems import posix
from tests.support.models.runtimes import onnxruntime_results, openvino_results

# ---- what cannot be written


REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "suffix": ({}, "m.pb", {}, r"path: .*m.pb'; must end in .onnx, .xml, .safetensors"),
    "no suffix": ({}, "model", {}, "must end in .onnx, .xml, .safetensors"),
    "reset after": (
        {"linear_before_reset": True},
        "m.onnx",
        {"opset": 1},
        "opset: 1; must be at least 3, because the layer has linear_before_reset",
    ),
    "layout": (
        {},
        "m.onnx",
        {"opset": 13, "layout": 1},
        "opset: 13; must be at least 14, because the layer has layout",
    ),
    "layout 2": ({}, "m.onnx", {"layout": 2}, "layout: 2; must be 0 or 1"),
    "opset 0": ({}, "m.onnx", {"opset": 0}, "opset: 0; must be at least 1"),
    "opset 23": ({}, "m.onnx", {"opset": 23}, "opset: 23; must be in 1…22"),
    "opset True": ({}, "m.onnx", {"opset": True}, "opset: True; must be an integer"),
    "initial_h": ({}, "m.onnx", {"initial_h": 1}, "initial_h: 1; must be True or False"),
    "batch_size": ({}, "m.onnx", {"batch_size": 0}, "batch_size: 0; must be at least 1"),
    "attention": ({"attention": True}, "m.onnx", {}, "attention: 'openvino'; ONNX's GRU has none"),
    "opset of IR": ({}, "m.xml", {"opset": 22}, "must be None for .xml, because only .onnx has it"),
    "cell of ONNX": ({}, "m.onnx", {"cell": False}, "cell: False; must be None for .onnx"),
    "inputs of weights": ({}, "m.safetensors", {"initial_h": True}, "because only .onnx, .xml has it"),
    "lengths of a cell": ({}, "m.xml", {"cell": True, "sequence_lens": True}, "must be None for a cell"),
    "steps of a cell": ({}, "m.xml", {"cell": True, "seq_length": 1}, "must be None for a cell"),
    "no batch": ({}, "m.onnx", {"batch_size": 0}, "batch_size: 0; must be at least 1"),
    "a batch beyond ONNX": ({}, "m.onnx", {"batch_size": 2**70}, r"batch_size: \d+; .* below 2\*\*63"),
    "a batch beyond an IR": ({}, "m.xml", {"batch_size": 2**63}, r"batch_size: \d+; .* below 2\*\*63"),
    "steps beyond ONNX": ({}, "m.onnx", {"seq_length": 2**63}, r"seq_length: \d+; .* below 2\*\*63"),
    "steps beyond an IR": ({}, "m.xml", {"seq_length": 2**70}, r"seq_length: \d+; .* below 2\*\*63"),
    "reverse cell": ({"direction": "reverse"}, "m.xml", {"cell": True}, "GRUCell-3 runs only forward"),
    "activation": (
        {"activations": ["Sigmoid", "Elu"]},
        "m.xml",
        {},
        r"activations: Elu\(1\); GRUSequence-5 has only Relu, Sigmoid, Tanh",
    ),
    "two pairs": (
        {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "Sigmoid", "Relu"]},
        "m.xml",
        {},
        "activations: two different pairs",
    ),
    "attention, clip": ({"attention": True, "clip": 1.0}, "m.xml", {}, "clip: 1.0; AUGRUSequence has none"),
    "attention, relu": (
        {"attention": True, "activations": ["Relu", "Tanh"]},
        "m.xml",
        {},
        "AUGRUSequence has only Sigmoid, Tanh",
    ),
    "attention, reset after": (
        {"attention": True, "linear_before_reset": True},
        "m.xml",
        {"cell": True},
        "linear_before_reset: True; AUGRUCell has none",
    ),
    "attention, reverse": (
        {"attention": True, "direction": "reverse"},
        "m.xml",
        {},
        "direction: 'reverse'; AUGRUSequence runs only forward",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, case: tuple[Any, str, dict[str, Any], str]) -> None:
    arguments, name, options, message = case
    with pytest.raises(SpecError, match=message):
        onegru.save_layers(make_gru(**arguments), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_default_opset_of_an_older_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed onnx may not know the newest opset of a GRU."""
    from onegru.formats.onnx.writing import writer

    monkeypatch.setattr(writer, "NEWEST_WRITTEN", 20)
    onegru.save_layers(make_gru(), tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == 20


def test_refuses_what_is_no_layer(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="layers: list; must be a GRU or a Stack"):
        onegru.save_layers([make_gru()], tmp_path / "m.onnx")  # type: ignore[arg-type]


def test_refuses_what_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru.formats.onnx.writing import writer

    monkeypatch.setattr(writer, "_MAX_BYTES", 100)
    with pytest.raises(SpecError, match="must be below 2 GiB"):
        onegru.save_layers(make_gru(), tmp_path / "m.onnx")


# ---- initial states may be left out

WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "ONNX": ("m.onnx", {}),
    "ONNX 7": ("m.onnx", {"opset": 7}),
    "batch first": ("m.onnx", {"layout": 1}),
    "lengths": ("m.onnx", {"sequence_lens": True}),
    "whole sequences": ("m.xml", {}),
    "sequences": ("m.xml", {"sequence_lens": True}),
    "fixed sequences": ("m.xml", {"sequence_lens": True, "batch_size": 3, "seq_length": 6}),
    "cells": ("m.xml", {"cell": True}),
}


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("count", [1, 3])
def test_states_that_are_left_out(tmp_path: Path, kind: str, count: int) -> None:
    """Of a model that `save` wrote onegru takes them for zeros, all or some of them."""
    name, options = WRITTEN[kind]
    stack = make_stack(count, ("forward",) if kind == "cells" else ("bidirectional", "forward"))
    layers = stack if count > 1 else stack.layers[0]
    onegru.save_layers(layers, tmp_path / name, **options)
    model = onegru.load(tmp_path / name)
    X = draw(layers, T=1 if kind == "cells" else 6)[0]
    feeds: dict[str, Array] = {"X": X[0] if kind == "cells" else X}
    if name == "m.xml" and kind != "cells":
        feeds = {"X": X.swapaxes(0, 1).copy()}
        feeds |= {"sequence_lengths": np.full(3, 6, np.int32)} if options else {}
    elif kind == "batch first":
        feeds["X"] = X.swapaxes(0, 1).copy()
    elif kind == "lengths":
        feeds["sequence_lens"] = np.full(3, 6, np.int32)
    infos = [info for info in model.inputs if "init" in info.name]
    assert len(infos) == count
    shapes = [[3 if not isinstance(size, int) else size for size in info.shape or ()] for info in infos]
    batch = 0 if name == "m.xml" or kind == "batch first" else 1
    for shape in shapes:
        shape[batch] = 3
    zeros = {info.name: np.zeros(shape, np.float32) for info, shape in zip(infos, shapes, strict=True)}
    wanted = model.run(feeds | zeros)
    for names in ([], list(zeros)[1:]):
        found = model.run(feeds | {name: zeros[name] for name in names})
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert all("Y" in values or "Ho" in values for values in model.trace(feeds))
    with pytest.raises(SpecError, match="'X': missing"):
        model.run(zeros)
    with pytest.raises(SpecError, match="'X': shape"):
        model.run({**feeds, "X": feeds["X"][..., :2]})


def test_states_of_other_models_may_not(tmp_path: Path) -> None:
    """Nor may those of ours that something else takes as well: what is not given is not guessed."""
    path = tmp_path / "m.onnx"
    onegru.save_layers(make_gru(), path)
    proto = onnx.load(path)
    X, _ = draw(make_gru())
    assert onegru.load(proto).graph.zero_inputs == {"initial_h"}
    proto.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, None))
    proto.graph.node.append(onnx.helper.make_node("Neg", ["initial_h"], ["h"]))
    with pytest.raises(SpecError, match="'initial_h': missing"):
        onegru.load(proto).run({"X": X})
    proto = onnx.load(path)
    del proto.metadata_props[:]
    with pytest.raises(SpecError, match="'initial_h': missing"):
        onegru.load(proto).run({"X": X})


# ---- files are whole or as they were


@pytest.mark.parametrize(("name", "first"), [("m.onnx", "m.onnx"), ("m.xml", "m.bin")])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: str
) -> None:
    path = tmp_path / name
    onegru.save_layers(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == first and self.name.startswith("."):
            raise OSError(errno.EIO, "the disk is on fire")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="on fire") as caught:
        onegru.save_layers(make_gru(1), path)
    assert caught.value.filename == str(path.with_name(first))
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize("existed", [True, False])
def test_no_half_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool) -> None:
    """The .bin is renamed before the .xml; if that fails, nothing has changed."""
    path = tmp_path / "m.xml"
    if existed:
        onegru.save_layers(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    renamed: list[str] = []

    def fail(self: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        onegru.save_layers(make_gru(1), path)
    assert renamed == ["m.bin"]
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize("hidden", [H, H + 90, 1])
def test_an_ir_that_is_replaced(tmp_path: Path, hidden: int) -> None:
    """Nothing of the earlier files is left."""
    path, single = tmp_path / "m.xml", tmp_path / "single.xml"
    onegru.save_layers(make_gru(0), path)
    for target in (path, single):
        onegru.save_layers(make_gru(1, hidden=hidden), target)
    assert {item.name for item in tmp_path.iterdir()} == {"m.xml", "m.bin", "single.xml", "single.bin"}
    assert path.read_bytes() == single.read_bytes()
    assert path.with_suffix(".bin").read_bytes() == single.with_suffix(".bin").read_bytes()


def bits(layer: GRU) -> tuple[bytes, ...]:
    """Its weights, and the two biases of each gate as an IR has them, added where they can be."""
    H = layer.spec.hidden_size
    B = layer.weights.B[0].copy()
    B[: 3 * H] += B[3 * H :]
    return tuple(array.tobytes() for array in (layer.weights.W, layer.weights.R, B[: 3 * H]))


def test_an_ir_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The .bin of another .xml is not mistaken for its own."""
    path = tmp_path / "m.xml"
    onegru.save_layers(make_gru(0), path)
    fromfile, times = np.fromfile, 0

    def replaced(*arguments: Any) -> Array:
        nonlocal times
        times += 1
        if times < 3:
            onegru.save_layers(make_gru(abs(times)), path)
        return fromfile(*arguments)

    monkeypatch.setattr(np, "fromfile", replaced)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and bits(gru.layer) == bits(make_gru(2))
    assert times == 3
    times = -99
    with pytest.raises(onegru.FormatError, match="replaced repeatedly while it is read"):
        onegru.load(path)


@pytest.mark.parametrize("n", [1, 2])
def test_no_room_for_an_ir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Whichever of the two files cannot be written: the old pair is there, byte for byte."""
    path = tmp_path / "m.xml"
    onegru.save_layers(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    fsync, count = os.fsync, 0

    def fail(handle: int) -> None:
        nonlocal count
        count += 1
        if count == n:
            raise OSError(errno.ENOSPC, "no room")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no room"):
        onegru.save_layers(make_gru(1), path)
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "m.xml").mkdir()
    with pytest.raises(OSError, match=r"m\.xml"):
        onegru.save_layers(make_gru(), tmp_path / "m.xml")
    assert [item.name for item in tmp_path.iterdir()] == ["m.xml"]
    with pytest.raises(OSError, match="nowhere"):
        onegru.save_layers(make_gru(), tmp_path / "nowhere" / "m.onnx")


@posix
def test_links_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "m.onnx"
    link.symlink_to(folder / "real.onnx")
    onegru.save_layers(make_gru(), link)
    assert link.is_symlink() and (folder / "real.onnx").is_file()
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert (folder / "real.onnx").stat().st_mode == plain.stat().st_mode
    longest = tmp_path / f"{'n' * 250}.onnx"
    onegru.save_layers(make_gru(), longest)
    assert longest.is_file()


# ---- without optional packages


SAVE = """
    import numpy as np
    import onegru

    layer = onegru.GRU(np.ones((1, 6, 3), "f"), np.ones((1, 6, 2), "f"))
    try:
        onegru.save_layers(layer, sys.argv[1])
    except onegru.MissingExtraError as error:
        print(error)
    else:
        print("saved")
"""


def test_irs_need_no_package(tmp_path: Path) -> None:
    result = run_python_without(
        "name not in sys.stdlib_module_names | {'numpy', 'onegru'}", SAVE, tmp_path / "m.xml"
    )
    assert result.stdout == "saved\n", result.stderr


@pytest.mark.parametrize("package", ["onnx", "safetensors"])
def test_a_missing_package_is_named(tmp_path: Path, package: str) -> None:
    path = tmp_path / f"m.{package}"
    result = run_python_without(f"name == {package!r}", SAVE, path)
    assert f"needs {package}: pip install 'onegru[{package}]'\n" in result.stdout, result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.onnx", "x.xml", "x.safetensors"])
@pytest.mark.parametrize("inputs", [64, 70])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_weights_in_groups(tmp_path: Path, name: str, inputs: int, group: int) -> None:
    """An IR has floats where the last group is narrower; all come back as the same numbers."""
    path, storage = tmp_path / name, f"int8_g{group}"
    kept = make_gru(inputs=inputs, hidden=64, direction="bidirectional").with_storage(storage)
    onegru.save_layers(kept, path)
    found = onegru.load_layers(path)
    layer = found if isinstance(found, GRU) else next(iter(found.values()))
    assert isinstance(layer, GRU)
    for matrix in "WR":
        again = getattr(layer.with_storage(storage).weights, matrix)
        assert_bits(getattr(layer.weights, matrix), getattr(kept.weights, matrix))
        assert_bits(again, getattr(kept.weights, matrix))
    in_integers = name != "x.xml" or (inputs % group == 0 and 64 % group == 0)
    size = (path.with_suffix(".bin") if name == "x.xml" else path).stat().st_size
    assert (size < 2 * 2 * 3 * 64 * (inputs + 64)) == in_integers


@pytest.mark.parametrize("name", ["x.onnx", "x.xml"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("is_stack", [False, True])
def test_weights_in_int8(tmp_path: Path, name: str, direction: Any, is_stack: bool) -> None:
    """They are written as integers, and come back as the same numbers."""
    path = tmp_path / name
    first = make_gru(hidden=40, direction=direction)
    width = 40 * first.spec.num_directions
    layers = onegru.Stack([first, make_gru(1, inputs=width, hidden=30)]) if is_stack else first
    kept = layers.with_storage("int8")
    onegru.save_layers(layers, path, initial_h=False, sequence_lens=False)
    files = [file for file in tmp_path.iterdir() if file.suffix in (".onnx", ".bin")]
    size = sum(file.stat().st_size for file in files)
    onegru.save_layers(kept, path, initial_h=False, sequence_lens=False)
    assert sum(file.stat().st_size for file in files) < size / 2
    X = np.random.default_rng(3).standard_normal((7, 2, 5)).astype(np.float32)
    wanted = kept(X)[0]
    if name == "x.xml":
        X, wanted = X.swapaxes(0, 1).copy(), wanted.transpose(2, 1, 0, 3)
    assert_bits(onegru.load(path, weight_storage="int8").run({"X": X})["Y"], wanted)
    found = onegru.load_layers(path).values()
    for layer, same in zip(layers_of(kept), found, strict=True):
        assert isinstance(same, GRU)
        for array in "WR":
            assert_bits(getattr(same.weights, array), getattr(layer.weights, array))
    if name == "x.onnx":
        theirs = onnxruntime_results(onnx.load(path), {"X": X})
    else:
        theirs = openvino_results(path, {"X": X})
    np.testing.assert_allclose(theirs["Y"], onegru.load(path).run({"X": X})["Y"], atol=1e-6)
