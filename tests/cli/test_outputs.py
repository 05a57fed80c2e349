"""`onegru run`: output files are whole, or as they were."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from tests.support.files.onnx_models import WEIGHTS, H, I, graph, gru, model, node, numbers, save, value
from tests.support.machine.cli import Cli, X, expected, files, same, write_gru


def write_renamed(inputs: Sequence[str], outputs: Sequence[str], name: str = "renamed.onnx") -> str:
    """Relu from each of these inputs to each of these outputs, and a GRU."""
    nodes = [node("Relu", [x], [y]) for x, y in zip(inputs, outputs, strict=True)]
    nodes.append(gru("G", ["Y"]))
    infos = [*(value(x, shape=[2]) for x in inputs), value("G", shape=[1, 1, I])]
    save(Path(), model(graph(nodes, infos, [*outputs, "Y"], WEIGHTS)), name)
    return name


def test_outputs_one_by_one(cli: Cli) -> None:
    np.save("x.npy", X)
    name = write_gru()
    Path("folder").mkdir()
    result = cli("run", name, "-i", "x.npy", "-o", "Y=y.npy", "-o", "Y_h=folder/h.npz", "-o", "Y_h=h.NPY")
    assert result.out.splitlines()[-3:] == ["wrote y.npy", "wrote folder/h.npz", "wrote h.NPY"]
    np.testing.assert_array_equal(np.load("y.npy"), expected()["Y"])
    same("folder/h.npz", {"Y_h": expected()["Y_h"]})
    np.testing.assert_array_equal(np.load("h.NPY"), expected()["Y_h"])
    assert files() == {"x.npy", name, "folder", "folder/h.npz", "y.npy", "h.NPY"}


def test_outputs_have_ordinary_permissions(cli: Cli) -> None:
    cli("run", write_gru(), "--random", 0, "--dim", "seq=1", "--dim", "batch=1", "-o", "out.npz")
    Path("ordinary").touch()
    assert Path("out.npz").stat().st_mode == Path("ordinary").stat().st_mode


def test_names_that_trip(cli: Cli) -> None:
    """Names that NumPy's own writer does not take, and an '=' in a name or in a file's name."""
    inputs = ["a=b", "/layer/x", "allow_pickle"]
    outputs = ["file", "/layer/out=1", "c"]
    name = write_renamed(inputs, outputs)
    Path("d=e").mkdir()
    arrays = {key: numbers(seed, 2) for seed, key in enumerate([*inputs, "G"])}
    arrays["G"] = numbers(9, 1, 1, I)
    one: dict[str, Any] = {"/layer/x": arrays["/layer/x"]}
    np.savez("d=e/in.npz", **one)
    np.save("d=e/ab.npy", arrays["a=b"])
    np.save("ap.npy", arrays["allow_pickle"])
    np.save("g.npy", arrays["G"])
    given = ["d=e/in.npz", "a=b=d=e/ab.npy", "allow_pickle=ap.npy", "G=g.npy"]
    result = cli(
        "run", name, *(part for text in given for part in ("-i", text)),
        "-o", "out.npz", "-o", "/layer/out=1=d=e/one.npy",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    wanted = {y: np.maximum(arrays[x], 0) for x, y in zip(inputs, outputs, strict=True)}
    wanted["Y"] = onegru.gru(arrays["G"], WEIGHTS["W"], WEIGHTS["R"])[0]
    same("out.npz", wanted)
    np.testing.assert_array_equal(np.load("d=e/one.npy"), wanted["/layer/out=1"])


def test_outputs_that_are_no_tensors(cli: Cli) -> None:
    kind = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, None))
    nodes = [gru("X", ["Y", "Y_h"]), node("SequenceConstruct", ["Y", "Y_h"], ["S"])]
    outputs = [onnx.ValueInfoProto(name="S", type=kind)]
    save(Path(), model(graph(nodes, [value("X", shape=[2, 1, I])], outputs, WEIGHTS)))
    cli("run", "model.onnx", "--random", 0, "-o", "out.npz").refused(
        "'S': not a tensor, so it cannot be written"
    )
    assert re.search(r"out +S +sequence +of 2", cli("run", "model.onnx", "--random", 0).out)
    item = cli("run", "model.onnx", "--random", 0, "--json").document()["outputs"]["S"]
    assert [np.shape(array) for array in item["data"]] == [(2, 1, 1, H), (1, 1, H)]
    assert files() == {"model.onnx"}


@pytest.mark.parametrize("outputs", [["out.npz"], ["Y=out.npy"], ["Y=out.npy", "Y_h=h.npz"]])
@pytest.mark.parametrize("fault", ["space", "interrupt", "memory"])
def test_a_failed_write_changes_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, outputs: list[str], fault: str
) -> None:
    name = write_gru()
    np.save("x.npy", X)
    paths = [text.rpartition("=")[2] for text in outputs]
    for path in paths:
        Path(path).write_text("as it was")
    before = files()
    real, calls = np.lib.format.write_array, []

    def fail(file: Any, array: Any, **options: Any) -> None:
        real(file, array, **options)
        calls.append(array)
        if len(calls) == 2 or len(outputs) == 1:
            faults = {"interrupt": KeyboardInterrupt(), "memory": MemoryError("no room")}
            raise faults.get(fault, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    result = cli("run", name, "-i", "x.npy", *(part for text in outputs for part in ("-o", text)))
    if fault == "interrupt":
        assert (result.code, result.out) == (130, "")
    else:
        words = {"space": f"{paths[-1]}: No space left on device", "memory": "not enough memory (no room)"}
        result.refused(words[fault])
    assert files() == before
    assert [Path(path).read_text() for path in paths] == ["as it was"] * len(paths)


def test_a_failed_run_changes_nothing(cli: Cli) -> None:
    nodes = [gru("X", ["Y"]), node("Reshape", ["Y", "shape"], ["Z"], name="the reshape")]
    constants = {**WEIGHTS, "shape": np.array([7, 7])}
    save(Path(), model(graph(nodes, [value("X", shape=[2, 1, I])], ["Z"], constants)))
    Path("out.npz").write_text("as it was")
    result = cli("run", "model.onnx", "--random", 0, "-o", "out.npz")
    result.refused("Reshape node 'the reshape': cannot reshape")
    assert Path("out.npz").read_text() == "as it was"
    assert files() == {"model.onnx", "out.npz"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(cli: Cli) -> None:
    Path("folder").mkdir(mode=0o555)
    np.save("x.npy", X)
    cli("run", write_gru(), "-i", "x.npy", "-o", "folder/out.npz").refused(
        "folder/out.npz: Permission denied"
    )


def test_an_existing_file_is_replaced(cli: Cli) -> None:
    np.save("x.npy", X)
    Path("out.npz").write_text("as it was")
    assert cli("run", write_gru(), "-i", "x.npy", "-o", "out.npz").code == 0
    same("out.npz", expected())


@pytest.mark.parametrize("command", ["run", "trace"])
def test_a_file_that_is_read_is_not_replaced(cli: Cli, command: str) -> None:
    name = write_gru()
    np.savez("in.npz", X=X)
    np.savez("a=b.npz", X=X)
    Path("link.npz").symlink_to("in.npz")
    Path("model.npz").symlink_to(name)
    Path("hard.npz").hardlink_to(name)
    held = onnx.load(name)
    onnx.save(held, "parts.onnx", save_as_external_data=True, location="parts.npz", size_threshold=0)
    cli("convert", name, "ir.xml")
    Path("weights.npz").symlink_to("ir.bin")
    before = {path: Path(path).read_bytes() for path in files()}
    model_words = "is the model, or a part of it; must be another file"
    for model_name, given, target, words in (
        (name, "in.npz", "in.npz", "is an input; must be another file"),
        (name, "a=b.npz", "a=b.npz", "is an input; must be another file"),
        (name, "in.npz", "link.npz", "is an input; must be another file"),
        (name, "in.npz", "model.npz", model_words),
        (name, "in.npz", "hard.npz", model_words),
        ("parts.onnx", "in.npz", "parts.npz", model_words),
        ("ir.xml", "in.npz", "weights.npz", model_words),
    ):
        output = target if command == "trace" else f"Y={target}"
        cli(command, model_name, "-i", given, "-o", output).refused(f"-o {output}: {words}")
    assert {path: Path(path).read_bytes() for path in files()} == before
