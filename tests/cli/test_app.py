"""The command line: what it computes, what it prints, and how it refuses."""

from __future__ import annotations

import errno
import json
import os
import pickle
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import onnx
import pytest

import onegru
import onegru.cli.app
from onegru.cli import progress as waiting
from onegru.cli.inputs import gather_inputs
from tests.support.ir_files import write_case
from tests.support.layers import make_stack
from tests.support.onnx_models import (
    Arrays,
    H,
    I,
    graph,
    gru,
    model,
    node,
    numbers,
    save,
    tensor,
    value,
    weights,
)

SCRIPT = Path(sys.executable).with_name("onegru")


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    def refused(self, message: str) -> None:
        """One line on stderr, which holds `message`, and nothing else."""
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("onegru: ") and self.err.count("\n") == 1 and self.err.endswith("\n")
        assert message in self.err

    def document(self) -> Any:
        """stdout, which must be JSON as the standard has it."""

        def refuse(word: str) -> NoReturn:
            raise AssertionError(f"{word} is not JSON")

        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=refuse)


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command, in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["onegru", *map(str, arguments)])
        capfd.readouterr()
        code = onegru.cli.app.run()
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


def script(*arguments: object, **environment: str) -> Result:
    """The installed command, in a process of its own."""
    result = subprocess.run(
        [SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return Result(result.returncode, result.stdout, result.stderr)


# ---- models, in the current folder

WEIGHTS = weights()


def write_gru(name: str = "gru.onnx", *, dtype: str = "float32", opset: int = 22, **attributes: Any) -> str:
    """A lone GRU: X [seq, batch, I] and, if `lens` is given, lens [batch], to Y and Y_h."""
    constants = {key: array.astype(onnx_type(dtype)) for key, array in WEIGHTS.items()}
    inputs = [value("X", dtype, ["seq", "batch", I])]
    if "lens" in attributes:
        inputs.append(value("lens", "int32", ["batch"]))
    outputs = [value("Y", dtype), value("Y_h", dtype)]
    nodes = [gru("X", ["Y", "Y_h"], bias="B", name="the GRU", **attributes)]
    save(Path(), model(graph(nodes, inputs, outputs, constants), opset=opset), name)
    return name


def write_renamed(inputs: Sequence[str], outputs: Sequence[str], name: str = "renamed.onnx") -> str:
    """Relu from each of these inputs to each of these outputs, and a GRU."""
    nodes = [node("Relu", [x], [y]) for x, y in zip(inputs, outputs, strict=True)]
    nodes.append(gru("G", ["Y"]))
    infos = [*(value(x, shape=[2]) for x in inputs), value("G", shape=[1, 1, I])]
    save(Path(), model(graph(nodes, infos, [*outputs, "Y"], WEIGHTS)), name)
    return name


def onnx_type(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


X = numbers(1, 4, 2, I)


def expected(x: Any = X, **arguments: Any) -> Arrays:
    constants = {name: array.astype(x.dtype) for name, array in WEIGHTS.items()}
    Y, Y_h = onegru.gru(x, constants["W"], constants["R"], constants["B"], **arguments)
    return {"Y": Y, "Y_h": Y_h}


def same(path: str | Path, arrays: Arrays) -> None:
    with np.load(path) as loaded:
        assert list(loaded) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


# ---- run: inputs and outputs


@pytest.mark.parametrize(
    "argument", ["X=x.npy", "x.npy", "x.npz", "X=x.npz", "X=other.npz", "x.pb", "X=y.pb"]
)
def test_inputs_from_files(cli: Cli, argument: str) -> None:
    np.save("x.npy", X)
    np.savez("x.npz", X=X)
    np.savez_compressed("other.npz", another_name=X)
    Path("x.pb").write_bytes(tensor("X", X).SerializeToString())
    Path("y.pb").write_bytes(tensor("", X).SerializeToString())
    result = cli("run", write_gru(), "-i", argument, "-o", "out.npz")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("wrote out.npz\n")
    same("out.npz", expected())


@pytest.mark.parametrize("x", [X[:0], X[:, :0], X.astype(">f4"), np.asfortranarray(X)])
def test_inputs_of_any_kind_of_memory(cli: Cli, x: Any) -> None:
    np.save("x.npy", x)
    np.savez("x.npz", X=x)
    for name in ("x.npy", "x.npz"):
        assert cli("run", write_gru(), "-i", name, "-o", "out.npz").code == 0
        same("out.npz", expected(x.astype(np.float32)))


def test_several_inputs(cli: Cli) -> None:
    lens = np.array([4, 1], np.int32)
    np.save("x.npy", X)
    np.save("lens.npy", lens)
    np.savez("both.npz", X=X, lens=lens)
    name = write_gru(lens="lens", direction="reverse")
    wanted = expected(sequence_lens=lens, direction="reverse")
    for inputs in (["-i", "both.npz"], ["-i", "X=x.npy", "--input", "lens=lens.npy"]):
        assert cli("run", name, *inputs, "--output", "out.npz").code == 0
        same("out.npz", wanted)


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


def test_random_inputs(cli: Cli) -> None:
    name = write_gru(lens="lens")
    sizes = ["--dim", "seq=3", "--dim", "batch=5"]
    for seed, path in ((7, "a.npz"), (7, "b.npz"), (8, "c.npz")):
        assert cli("run", name, "--random", seed, *sizes, "-o", path).code == 0
    first, again, other = (dict(np.load(path)) for path in ("a.npz", "b.npz", "c.npz"))
    assert first["Y"].shape == (3, 1, 5, H)
    np.testing.assert_array_equal(first["Y"], again["Y"])
    assert not np.array_equal(first["Y"], other["Y"])


def test_random_draws_what_is_not_given(cli: Cli) -> None:
    np.save("x.npy", X)
    result = cli("run", write_gru(lens="lens"), "-i", "X=x.npy", "--random", 0, "--dim", "batch=2", "--json")
    shapes = {name: item["shape"] for name, item in result.document()["inputs"].items()}
    assert shapes == {"X": [4, 2, I], "lens": [2]}


@pytest.mark.parametrize(("seq", "least", "most"), [(0, 0, 0), (1, 1, 1), (3, 1, 3)])
@pytest.mark.parametrize("layout", [0, 1])
def test_drawn_lengths_are_legal(cli: Cli, layout: int, seq: int, least: int, most: int) -> None:
    name = write_gru(lens="lens", layout=layout)
    loaded = onegru.load(name)
    # The model calls its axes seq, batch whatever the layout makes of them.
    time_axis, other_axis = ("seq", "batch") if layout == 0 else ("batch", "seq")
    if layout == 1:
        proto = onnx.load(name)
        proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "seq"
        onnx.save(proto, name)
        loaded = onegru.load(name)
    drawn = set()
    for seed in range(20):
        values, _ = gather_inputs(loaded, [], seed, {time_axis: seq, other_axis: 6})
        assert values["lens"].dtype == np.int32
        assert values["X"].shape[layout] == seq
        drawn |= set(values["lens"].tolist())
        loaded.run(values)
    assert (min(drawn), max(drawn)) == (least, most)


def test_drawn_lengths_fit_every_gru_that_takes_them(cli: Cli) -> None:
    nodes = [gru(x, [f"Y{x}"], lens="lens") for x in ("A", "B", "C")]
    nodes.insert(0, node("Identity", ["A2"], ["A"]))  # its length is not known before a run
    shapes: dict[str, list[int | str | None]] = {
        "A2": [1, "batch", I],
        "B": [9, "batch", I],
        "C": [3, "batch", I],
        "lens": ["batch"],
    }
    inputs = [value(name, "int32" if name == "lens" else "float32", shapes[name]) for name in shapes]
    save(Path(), model(graph(nodes, inputs, ["YA", "YB", "YC"], {k: WEIGHTS[k] for k in "WR"})))
    for seed in range(5):
        assert cli("run", "model.onnx", "--random", seed, "--dim", "batch=8").code == 0


def test_unnamed_dimensions(cli: Cli) -> None:
    nodes = [gru("X", ["Y"])]
    save(Path(), model(graph(nodes, [value("X", shape=[None, 1, I])], ["Y"], WEIGHTS)))
    cli("run", "model.onnx", "--random", 0).refused(
        "X.0 is open in X [X.0, 1, 5]; give --dim X.0=SIZE, or --dims SIZE for any"
    )
    assert cli("run", "model.onnx", "--random", 0, "--dim", "X.0=2").code == 0


def test_sizes_of_open_dimensions(cli: Cli) -> None:
    """Whole shapes, which tell named dimensions elsewhere, too; given inputs; one size for the rest."""
    name = write_gru(lens="lens")
    np.save("x.npy", X)
    for arguments, shapes in (
        (["--dim", "X=7,2,5"], {"X": [7, 2, I], "lens": [2]}),
        (["--dim", "X=7,2,5", "--dim", "lens=2"], {"X": [7, 2, I], "lens": [2]}),
        (["--dims", "1"], {"X": [1, 1, I], "lens": [1]}),
        (["--dims", "4", "--dim", "seq=6"], {"X": [6, 4, I], "lens": [4]}),
        (["-i", "X=x.npy"], {"X": [4, 2, I], "lens": [2]}),
    ):
        found = cli("run", name, "--random", 0, *arguments, "--json").document()["inputs"]
        assert {key: item["shape"] for key, item in found.items()} == shapes
    cli("bench", name, "--random", 0, "--dim", "seq=2").refused(
        "batch is open in X [seq, batch, 5], lens [batch]; give --dim batch=SIZE"
    )


@pytest.mark.parametrize("command", ["run", "bench", "verify"])
def test_drawn_inputs_that_contradict_each_other(cli: Cli, command: str) -> None:
    """A number that a shape must equal cannot be drawn: the message says what to do."""
    inputs = [value("X", shape=[4, "batch", I]), value("rows", "int64", [1])]
    nodes = [
        node("Concat", ["one", "rows", "H"], ["shape"], axis=0),
        node("Expand", ["zero", "shape"], ["h"]),
        gru("X", ["Y"], initial_h="h"),
    ]
    constants = {
        "W": WEIGHTS["W"],
        "R": WEIGHTS["R"],
        "one": np.array([1]),
        "H": np.array([H]),
        "zero": np.zeros(1, np.float32),
    }
    save(Path(), model(graph(nodes, inputs, ["Y"], constants)))
    cli(command, "model.onnx", "--random", 0, "--dim", "batch=5").refused(
        "numbers that others must fit cannot be drawn: give them with -i rows=FILE, or other sizes with --dim"
    )
    np.save("rows.npy", np.array([5]))
    assert cli(command, "model.onnx", "-i", "rows=rows.npy", "--random", 0, "--dim", "batch=5").code == 0
    if command == "run":
        np.save("x.npy", numbers(1, 4, 2, I))
        cli("run", "model.onnx", "-i", "rows=rows.npy", "-i", "X=x.npy").refused("must be")


def test_inputs_with_defaults_may_be_left_out(cli: Cli) -> None:
    nodes = [gru("X", ["Y"], initial_h="h")]
    inputs = [value("X", shape=[1, 1, I]), value("h", shape=[1, 1, H])]
    constants = {"W": WEIGHTS["W"], "R": WEIGHTS["R"], "h": numbers(5, 1, 1, H)}
    save(Path(), model(graph(nodes, inputs, ["Y"], constants)))
    assert cli("run", "model.onnx", "--random", 0, "--json").document()["inputs"].keys() == {"X"}
    assert "h  float32 [1, 1, 3] (optional)" in cli("inspect", "model.onnx").out


def test_bfloat16(cli: Cli) -> None:
    x = X.astype(ml_dtypes.bfloat16)
    np.save("bits.npy", x)  # NumPy knows no bfloat16: the file holds its bare bytes
    np.save("rounded.npy", x.astype(np.float32))
    np.save("x.npy", X)
    Path("x.pb").write_bytes(tensor("X", x).SerializeToString())
    name = write_gru(dtype="bfloat16")
    wanted = {key: array.astype(np.float32) for key, array in expected(x).items()}
    for path in ("bits.npy", "rounded.npy", "x.pb"):
        result = cli("run", name, "-i", path, "-o", "out.npz", "--json").document()
        same("out.npz", wanted)
        assert result["outputs"]["Y"]["dtype"] == "bfloat16"
        np.testing.assert_array_equal(result["outputs"]["Y"]["data"], wanted["Y"])
    cli("run", name, "-i", "x.npy").refused(
        "'X': float32 values that bfloat16 does not have; round them first"
    )
    assert "bfloat16" in cli("run", name, "--random", 1, "--dim", "seq=2", "--dim", "batch=1").out


def test_ir(cli: Cli) -> None:
    inputs: dict[str, Any] = {
        "X": X.transpose(1, 0, 2),
        "initial_hidden_state": numbers(2, 2, 1, H),
        "sequence_lengths": np.array([4, 2], np.int32),
        **{name: WEIGHTS[name] for name in "WR"},
        "B": WEIGHTS["B"][:, : 3 * H],
    }
    write_case(Path("gru.xml"), "gru_sequence", inputs, {"hidden_size": H})
    given = {name: array for name, array in inputs.items() if name not in "WRB"}
    np.savez("in.npz", **given)
    assert cli("run", "gru.xml", "-i", "in.npz", "-o", "out.npz").code == 0
    Y, Ho = onegru.gru_sequence(**inputs, hidden_size=H)
    same("out.npz", {"gru.Y": Y, "gru.Ho": Ho})
    loaded = onegru.load("gru.xml")
    for seed in range(5):
        values, _ = gather_inputs(loaded, [], seed, {})
        assert set(values["sequence_lengths"].tolist()) <= {1, 2, 3, 4}
    assert "GRUSequence-5" in cli("inspect", "gru.xml").out


def test_augru_from_ir(cli: Cli) -> None:
    inputs: dict[str, Any] = {
        "X": X[0],
        "H_t": numbers(2, 2, H),
        "W": WEIGHTS["W"][0],
        "R": WEIGHTS["R"][0],
        "B": WEIGHTS["B"][0, : 3 * H],
        "A": numbers(3, 2, 1),
    }
    write_case(Path("cell.xml"), "augru_cell", inputs, {"hidden_size": H})
    np.savez("in.npz", **{name: array for name, array in inputs.items() if name not in "WRB"})
    assert cli("run", "cell.xml", "-i", "in.npz", "-o", "out.npz").code == 0
    same("out.npz", {"gru.Ho": onegru.augru_cell(**inputs, hidden_size=H)})
    shown = cli("inspect", "cell.xml").out
    assert re.search(r"attention +yes", shown)
    assert "openvino" in shown


# ---- run: what it prints


def test_summary(cli: Cli) -> None:
    np.save("x.npy", np.ones_like(X))
    lines = [line.split() for line in cli("run", write_gru(), "-i", "x.npy").out.splitlines()]
    assert ["name", "type", "shape", "min", "max", "mean"] in lines
    assert ["in", "X", "float32", "[4,", "2,", "5]", "1", "1", "1"] in lines
    assert [line[:2] for line in lines if line[:1] == ["out"]] == [["out", "Y"], ["out", "Y_h"]]
    assert lines[-1][:8] == ["1", "GRU", "node", "and", "0", "other", "nodes", "ran"]


@pytest.mark.parametrize("width", [80, 40])
def test_every_width(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = write_gru(lens="lens", activations=["LeakyRelu", "HardSigmoid"], activation_alpha=[0.3])
    shown = cli("inspect", name).out
    shown += cli("run", name, "--random", 0, "--dim", "seq=30", "--dim", "batch=50").out
    assert max(map(len, shown.splitlines())) <= width
    for words in ("float32 [seq, batch, 5]", "LeakyRelu(0.3)", "HardSigmoid(0.2, 0.5)"):
        assert words in shown
    assert "…\n" not in shown.replace("0…", "")  # nothing is cut off


def test_json(cli: Cli) -> None:
    np.save("x.npy", X)
    document = cli("run", write_gru(), "-i", "x.npy", "--json").document()
    assert document.keys() == {"model", "seconds", "inputs", "outputs"}
    assert document["model"] == "gru.onnx"
    assert document["seconds"] >= 0
    assert document["inputs"] == {"X": {"dtype": "float32", "shape": [4, 2, I]}}
    for name, array in expected().items():
        item = document["outputs"][name]
        assert (item["dtype"], item["shape"]) == ("float32", list(array.shape))
        np.testing.assert_array_equal(np.array(item["data"], np.float32), array)  # every digit is there


def test_json_has_words_for_nan_and_infinity(cli: Cli) -> None:
    x = np.array([[[np.inf], [-np.inf], [np.nan]]], np.float32)
    constants = {"W": np.ones((1, 3, 1), np.float32), "R": np.zeros((1, 3, 1), np.float32)}
    nodes = [gru("X", ["Y"], hidden_size=1, activations=["Affine", "Affine"], activation_alpha=[1.0])]
    proto = model(graph(nodes, [value("X", shape=[1, 3, 1])], ["Y"], constants))
    proto.graph.node[0].attribute[1].strings[0] = b"Sigmoid"
    save(Path(), proto)
    np.save("x.npy", x)
    # z is 1, 0 and NaN; so h = (1 - z)·n + z·h is 0·inf = NaN, then -inf, then NaN.
    result = cli("run", "model.onnx", "-i", "x.npy", "--json").document()
    assert result["outputs"]["Y"]["data"] == [[[["NaN"], ["-Infinity"], ["NaN"]]]]


def test_json_to_stdout_and_arrays_to_a_file(cli: Cli) -> None:
    np.save("x.npy", X)
    cli("run", write_gru(), "-i", "x.npy", "--json", "-o", "out.npz").document()
    same("out.npz", expected())


def test_outputs_that_are_no_tensors(cli: Cli) -> None:
    kind = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, None))
    nodes = [gru("X", ["Y", "Y_h"]), node("SequenceConstruct", ["Y", "Y_h"], ["S"])]
    outputs = [onnx.ValueInfoProto(name="S", type=kind)]
    save(Path(), model(graph(nodes, [value("X", shape=[2, 1, I])], outputs, WEIGHTS)))
    cli("run", "model.onnx", "--random", 0, "-o", "out.npz").refused("'S': not a tensor; cannot be written")
    assert re.search(r"out +S +sequence +of 2", cli("run", "model.onnx", "--random", 0).out)
    item = cli("run", "model.onnx", "--random", 0, "--json").document()["outputs"]["S"]
    assert [np.shape(array) for array in item["data"]] == [(2, 1, 1, H), (1, 1, H)]
    assert files() == {"model.onnx"}


def test_strings(cli: Cli) -> None:
    nodes = [gru("X", ["Y"]), node("Identity", ["s"], ["t"])]
    inputs = [value("X", shape=[1, 1, I]), value("s", "str", [2])]
    save(Path(), model(graph(nodes, inputs, ["Y", value("t", "str")], WEIGHTS)))
    np.save("s.npy", np.array(["a", "ü"]))
    given = ("run", "model.onnx", "--random", 0, "-i", "s=s.npy")
    assert cli(*given, "--json").document()["outputs"]["t"]["data"] == ["a", "ü"]
    assert cli(*given, "-o", "t=t.npy").code == 0
    assert np.load("t.npy").tolist() == ["a", "ü"]
    cli("run", "model.onnx", "--random", 0).refused("input 's': type str cannot be drawn")


def test_engine(cli: Cli) -> None:
    np.save("x.npy", X)
    for engine in ("auto", "native"):
        assert cli("run", write_gru(), "-i", "x.npy", "--engine", engine, "-o", "out.npz").code == 0
        same("out.npz", expected())
    assert cli("run", write_gru(), "-i", "x.npy", "--engine", "reference", "-o", "out.npz").code == 0
    with np.load("out.npz") as arrays:
        np.testing.assert_allclose(arrays["Y"], expected()["Y"], rtol=0, atol=1e-6)
    cli("run", write_gru(), "-i", "x.npy", "--engine", "fast").refused("engine: 'fast'; must be one of auto")


def test_warnings_are_one_line_each(cli: Cli) -> None:
    name = write_gru(activation_alpha=[0.5])
    for command in (["run", name, "--random", 0, "--dim", "seq=1", "--dim", "batch=1"], ["inspect", name]):
        result = cli(*command)
        assert result.code == 0
        assert result.err == (
            "onegru: warning: gru.onnx: GRU node 'the GRU': activation_alpha: 1 value(s) left over, "
            "which no function of Sigmoid, Tanh takes; without effect\n"
        )


# ---- inspect


def test_inspect(cli: Cli) -> None:
    name = write_gru(
        direction="bidirectional", clip=2.5, linear_before_reset=1, lens="lens",
        W="W2", R="R2", opset=14,
    )  # fmt: skip
    proto = onnx.load(name)
    for key in ("W", "R", "B"):
        array = np.concatenate([WEIGHTS[key]] * 2)
        proto.graph.initializer.append(tensor(key + "2", array))
    proto.graph.node[0].input[3] = "B2"
    onnx.save(proto, name)
    words = dict(re.findall(r"^(\S.*?)  +(.*?) *$", cli("inspect", name).out, re.MULTILINE))
    assert words["input → hidden"] == "5 → 3, float32"
    assert words["direction"] == "bidirectional"
    assert words["reset gate"] == "after the recurrent product"
    assert words["activations"] == "Sigmoid, Tanh | Sigmoid, Tanh"
    assert words["clip"] == "2.5"
    assert words["lengths"] == "yes"
    assert words["parameters"] == "180 (720 bytes)"  # 2 · (9·5 + 9·3 + 18) numbers
    assert words["FLOPs a step"] == "288 for each row"  # 2 · 2 · 9 · (5 + 3)
    assert words["the GRU"] == "GRU-14"
    assert "elsewhere" in words


def test_inspect_json(cli: Cli) -> None:
    name = write_gru(layout=1, clip=0.5)
    document = cli("inspect", name, "--json").document()
    assert document.keys() == {
        "model",
        "kind",
        "inputs",
        "outputs",
        "other_nodes",
        "nested_grus",
        "gru_nodes",
    }
    assert document["inputs"] == [
        {"name": "X", "dtype": "float32", "shape": ["seq", "batch", I], "optional": False}
    ]
    (item,) = document["gru_nodes"]
    others = item.pop("others")
    assert item.pop("bodies") == []
    assert item == {
        "name": "the GRU",
        "operator": "GRU-22",
        "dtype": "float32",
        "input_size": I,
        "hidden_size": H,
        "direction": "forward",
        "reset": "before",
        "activations": [["Sigmoid", "Tanh"]],
        "clip": 0.5,
        "attention": False,
        "lengths": False,
        "parameters": 90,
        "bytes": 360,
        "flops_per_step": 144,
    }
    assert {"runtime": "onnxruntime", "effect": "refuses"}.items() <= {
        key: others[0][key] for key in ("runtime", "effect")
    }.items()
    assert all(verdict["reason"] and verdict["version"] for verdict in others)


def test_inspect_of_layers(cli: Cli) -> None:
    onegru.save(make_stack(2), "layers.safetensors")
    Path("layers.safetensors").rename("layers.onnx")
    shown = cli("inspect", "layers.onnx").out
    assert shown.startswith("layers.onnx: a safetensors file with 2 GRU layers\n\nGRU, layer 0\n")
    assert "elsewhere" not in shown and "lengths" not in shown
    document = cli("inspect", "layers.onnx", "--json").document()
    assert document.keys() == {"model", "kind", "gru_layers"}
    assert [item["name"] for item in document["gru_layers"]] == ["GRU, layer 0", "GRU, layer 1"]
    for command in ("run", "bench"):
        cli(command, "layers.onnx").refused(
            "layers.onnx: a safetensors file, which holds layers and no model"
        )


def test_inspect_of_computed_weights(cli: Cli) -> None:
    """What attributes say is known before a run, even where the weights are not."""
    nodes = [gru("X", ["Y"], clip=3.0, direction="reverse", activations=["HardSigmoid", "Tanh"], name="g")]
    inputs = [value("X", shape=[1, 1, I]), value("W", shape=[1, 3 * H, I])]
    save(Path(), model(graph(nodes, inputs, ["Y"], {"R": WEIGHTS["R"]})))
    (item,) = cli("inspect", "model.onnx", "--json").document()["gru_nodes"]
    assert (item["clip"], item["direction"]) == (3.0, "reverse")
    assert item["activations"] == [["HardSigmoid(0.2, 0.5)", "Tanh"]]
    assert (item["hidden_size"], item["input_size"], item["parameters"]) == (H, None, None)
    shown = cli("inspect", "model.onnx").out
    assert re.search(r"input → hidden +\? → 3, float32", shown)
    assert "computed" in shown


def test_inspect_lists_every_gru(cli: Cli) -> None:
    nodes = [gru("X", ["a"], name="first"), node("Squeeze", ["a"], ["b"]), gru("Z", ["c"])]
    inputs = [value(name, shape=[2, 1, I]) for name in ("X", "Z")]
    save(Path(), model(graph(nodes, inputs, ["b", "c"], WEIGHTS)))
    shown = cli("inspect", "model.onnx").out
    assert shown.startswith("model.onnx: 2 GRU nodes and 1 other node\n")
    assert re.search(r"^first +GRU-14", shown, re.MULTILINE)
    assert re.search(r"^c +GRU-14", shown, re.MULTILINE)  # a node without a name goes by its output


def test_names_from_files_cannot_command_the_terminal(cli: Cli) -> None:
    name = write_gru(activation_alpha=[1.0])
    proto = onnx.load(name)
    proto.graph.node[0].name = "evil\x1b[2J\x07\r\nline \u202e[bold]"
    onnx.save(proto, name)
    result = cli("inspect", name)
    assert r"evil\x1b[2J\x07\r\nline \u202e[bold]" in result.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", result.out + result.err)
    assert result.err.count("\n") == 1


# ---- the rest


def test_targets(cli: Cli) -> None:
    targets = onegru.targets()
    lines = cli("targets").out.splitlines()
    assert [line.split()[0] for line in lines] == list(targets.available)
    assert [line.split()[0] for line in lines if line.endswith("in use")] == [targets.chosen]
    document = cli("targets", "--json").document()
    assert document == {"available": list(targets.available), "chosen": targets.chosen}


def test_version(cli: Cli) -> None:
    assert cli("--version") == Result(0, f"{onegru.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.code, result.err) == (0, "")
    assert all(name in result.out for name in ("run", "inspect", "targets", "--version"))
    assert "..." not in result.out.replace("[ARGS]...", "")  # nothing is cut off


@pytest.mark.parametrize("command", ["run", "inspect", "targets"])
def test_help_of_each_command_has_an_example(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert "Example: " in result.out
    assert f"onegru {command}" in result.out


# ---- refusals

BAD_ARGUMENTS = {
    "no such command": (["walk"], "No such command 'walk'"),
    "no model": (["run"], "Missing argument 'MODEL'"),
    "unknown option": (["run", "gru.onnx", "--fast"], "No such option"),
    "missing model": (["run", "none.onnx"], "none.onnx: No such file or directory"),
    "missing model, inspected": (["inspect", "none.onnx"], "none.onnx: No such file or directory"),
    "a folder": (["run", "folder"], "folder: Is a directory"),
    "not a model": (["run", "text.onnx"], "text.onnx: not an ONNX model, or truncated"),
    "not an IR": (["inspect", "text.xml"], "text.xml: not well-formed XML"),
    "no inputs": (["run", "gru.onnx"], "input 'X': missing; give it with -i X=FILE"),
    "missing file": (["run", "gru.onnx", "-i", "X=none.npy"], "none.npy: No such file or directory"),
    "missing npz": (["run", "gru.onnx", "-i", "none.npz"], "none.npz: No such file or directory"),
    "missing pb": (["run", "gru.onnx", "-i", "none.pb"], "none.pb: No such file or directory"),
    "input folder": (["run", "gru.onnx", "-i", "folder.npy"], "folder.npy: Is a directory"),
    "input suffix": (["run", "gru.onnx", "-i", "X=x.txt"], "must end in .npy, .npz or .pb"),
    "no input file": (["run", "gru.onnx", "-i", "X="], "must end in .npy, .npz or .pb"),
    "no input name": (["run", "gru.onnx", "-i", "=x.npy"], "'' is not an input"),
    "unknown input": (["run", "gru.onnx", "-i", "Z=x.npy"], "'Z' is not an input; the model's inputs: 'X'"),
    "unknown in npz": (["run", "gru.onnx", "-i", "z.npz"], "'Z' is not an input"),
    "not in npz": (["run", "gru.onnx", "-i", "X=two.npz"], "the file holds 'V', 'Z', not 'X'"),
    "given twice": (["run", "gru.onnx", "-i", "x.npy", "-i", "X=x.npy"], "'X' is given twice"),
    "which input": (["run", "lens.onnx", "-i", "x.npy"], "which input? must be NAME=FILE"),
    "wrong type": (["run", "gru.onnx", "-i", "double.npy"], "'X': type float64; must be float32"),
    "wrong shape": (
        ["run", "gru.onnx", "-i", "flat.npy"],
        "'X': shape [3]; must be float32 [seq, batch, 5]",
    ),
    "seed": (["run", "gru.onnx", "--random", "x"], "--random"),
    "negative seed": (["run", "gru.onnx", "--random", "-1"], "--random"),
    "dim alone": (["run", "gru.onnx", "--dim", "seq=1"], "has an effect only on inputs that --random draws"),
    "open dim": (
        ["run", "gru.onnx", "--random", "0"],
        "seq and batch are open in X [seq, batch, 5]; give --dim seq=SIZE --dim batch=SIZE, or --dims SIZE",
    ),
    "dim form": (["run", "gru.onnx", "--random", "0", "--dim", "seq"], "'seq'; must be NAME=SIZE"),
    "dim negative": (["run", "gru.onnx", "--random", "0", "--dim", "seq=-1"], "'seq=-1'; must be NAME=SIZE"),
    "dim not a number": (["run", "gru.onnx", "--random", "0", "--dim", "seq=two"], "must be NAME=SIZE"),
    "dim without name": (["run", "gru.onnx", "--random", "0", "--dim", "=2"], "must be NAME=SIZE"),
    "dim twice": (
        ["run", "gru.onnx", "--random", "0", "--dim", "seq=1", "--dim", "seq=2"],
        "'seq' is given twice",
    ),
    "dim unknown": (
        ["run", "gru.onnx", "--random", "0", "--dim", "seq=1", "--dim", "batch=1", "--dim", "time=2"],
        "'time'; must be an open dimension of an input: 'batch', 'seq'",
    ),
    "dims alone": (["run", "gru.onnx", "--dims", "1"], "--dims: has an effect only on inputs that --random"),
    "dims negative": (["run", "gru.onnx", "--random", "0", "--dims", "-1"], "--dims"),
    "whole shape": (
        ["run", "gru.onnx", "--random", "0", "--dim", "X=2,3,8"],
        "--dim: X is 2,3,8; must be [seq, batch, 5]",
    ),
    "whole shape, rank": (["run", "gru.onnx", "--random", "0", "--dim", "X=2,5"], "must be [seq, batch, 5]"),
    "whole shape, against": (
        ["run", "gru.onnx", "--random", "0", "--dim", "batch=2", "--dim", "X=2,3,5"],
        "--dim: X is 2,3,5; batch must be 2, as it is elsewhere",
    ),
    "dim too large": (
        ["run", "gru.onnx", "--random", "0", "--dim", "seq=1000000", "--dim", "batch=1000000000"],
        "too much for this machine's memory",
    ),
    "output suffix": (["run", "gru.onnx", "-i", "x.npy", "-o", "out.txt"], "must end in .npz or .npy"),
    "output folder": (
        ["run", "gru.onnx", "-i", "x.npy", "-o", "none/out.npz"],
        "folder 'none' does not exist",
    ),
    "output is a folder": (["run", "gru.onnx", "-i", "x.npy", "-o", "Y=folder.npy"], "is a folder"),
    "unknown output": (
        ["run", "gru.onnx", "-i", "x.npy", "-o", "Z=out.npy"],
        "'Z' is not an output; must be one of 'Y', 'Y_h'",
    ),
    "two into one": (["run", "gru.onnx", "-i", "x.npy", "-o", "out.npy"], "a .npy file holds one array"),
    "output twice": (
        ["run", "gru.onnx", "-i", "x.npy", "-o", "Y=o.npy", "-o", "Y_h=./o.npy"],
        "the file is named twice",
    ),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(cli: Cli, case: str) -> None:
    write_gru()
    write_gru("lens.onnx", lens="lens")
    Path("folder").mkdir()
    Path("folder.npy").mkdir()
    Path("text.onnx").write_text("some text")
    Path("text.xml").write_text("some text")
    np.save("x.npy", X)
    np.save("double.npy", X.astype(np.float64))
    np.save("flat.npy", X[0, 0, :3])
    np.savez("z.npz", Z=X)
    np.savez("two.npz", V=X, Z=X)
    before = files()
    arguments, message = BAD_ARGUMENTS[case]
    cli(*arguments).refused(message)
    assert files() == before


class Payload:
    """An object whose unpickling would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


def npy(shape: str, data: bytes = bytes(64), descr: str = "'<f4'") -> bytes:
    """A .npy file with this header, whatever the data."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(data: bytes, claimed: int | None = None, name: str = "X.npy") -> bytes:
    """A zip archive of one entry, which may claim another size than it has."""
    path = Path("archive")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
        if claimed is not None:
            archive.filelist[0].file_size = claimed
    content = path.read_bytes()
    path.unlink()
    return content


HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty npy": ("npy", lambda: b"", "not a .npy file, or truncated"),
    "text npy": ("npy", lambda: b"some text that is long enough", "not a .npy file, or truncated"),
    "truncated npy": ("npy", lambda: npy("(4, 2, 5)"), "not a .npy file, or truncated"),
    "truncated header": ("npy", lambda: npy("(1,)")[:40], "not a .npy file, or truncated"),
    "gigantic": ("npy", lambda: npy("(1000000000000, 2, 5)"), "not a .npy file, or truncated"),
    "overflowing": ("npy", lambda: npy("(2**62, 2**62, 5)".replace("2**62", str(2**62))), "not a .npy file"),
    "negative": ("npy", lambda: npy("(-1, 2, 5)"), "not a .npy file"),
    "code in the header": ("npy", lambda: npy("(__import__('os').mkdir('unpickled'),)"), "not a .npy file"),
    "nonsense type": ("npy", lambda: npy("(1,)", descr="'<q9'"), "not a .npy file"),
    "pickle": ("npy", lambda: pickle.dumps(Payload()), "not a .npy file"),
    "objects": ("npy", lambda: npy("(1,)", pickle.dumps(Payload()), "'|O'"), "not a .npy file"),
    "npz called npy": ("npy", lambda: npz(npy("(1,)")), "not a .npy file"),
    "empty npz": ("npz", lambda: b"", "not an .npz file, or truncated"),
    "npy called npz": ("npz", lambda: npy("(1,)"), "not an .npz file, or truncated"),
    "truncated npz": ("npz", lambda: npz(npy("(1,)"))[:-30], "not an .npz file, or truncated"),
    "damaged npz": ("npz", lambda: npz(npy("(16,)")).replace(b"X.npy", b"Y.npy", 1), "not an .npz file"),
    "objects in npz": ("npz", lambda: npz(npy("(1,)", pickle.dumps(Payload()), "'|O'")), "not an .npz file"),
    "truncated in npz": ("npz", lambda: npz(npy("(4, 2, 5)")), "not an .npz file, or truncated"),
    "gigantic in npz": ("npz", lambda: npz(npy(f"({2**40}, 2, 5)")), "not an .npz file, or truncated"),
    "overflowing in npz": ("npz", lambda: npz(npy(f"({2**62}, {2**62})")), "not an .npz file"),
    "bomb": ("npz", lambda: npz(npy("(16,)"), 2**50), "1125899906842624 bytes; must be 192 for float32"),
    "text in npz": ("npz", lambda: npz(b"text", name="X"), "not an .npz file"),
    "empty pb": ("pb", lambda: b"", "not an ONNX tensor"),
    "text pb": ("pb", lambda: b"some text", "not an ONNX tensor, or truncated"),
    "short pb": (
        "pb",
        lambda: onnx.TensorProto(data_type=1, dims=[10**12], raw_data=b"1234", name="X").SerializeToString(),
        "tensor 'X': 4 bytes; must be 4000000000000",
    ),
    "pb with no data": (
        "pb",
        lambda: onnx.TensorProto(data_type=1, dims=[10**12], name="X").SerializeToString(),
        "tensor 'X'",
    ),
    "pb with data outside": (
        "pb",
        lambda: onnx.TensorProto(
            data_type=1,
            dims=[1],
            name="X",
            data_location=onnx.TensorProto.EXTERNAL,
            external_data=[onnx.StringStringEntryProto(key="location", value="/etc/passwd")],
        ).SerializeToString(),
        "external data in '/etc/passwd', but the model has no folder",
    ),
    "a model called pb": (
        "pb",
        lambda: model(graph([gru("X", ["Y"])])).SerializeToString(),
        "not an ONNX tensor",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_inputs(cli: Cli, case: str) -> None:
    suffix, content, message = HOSTILE[case]
    name = write_gru()
    Path(f"x.{suffix}").write_bytes(content())
    before = files()
    cli("run", name, "-i", f"x.{suffix}", "-o", "out.npz").refused(f"x.{suffix}: ")
    cli("run", name, "-i", f"X=x.{suffix}", "-o", "out.npz").refused(message)
    assert files() == before  # nothing was unpickled, nothing written


def test_a_file_larger_than_memory(cli: Cli) -> None:
    with Path("x.npy").open("wb") as file:  # sparse: it takes no room on the disk
        file.write(npy(f"({2**40},)", b""))
        try:
            file.truncate(2**42 + 128)
        except OSError:
            pytest.skip("this file system has no files of that size")
    cli("run", write_gru(), "-i", "x.npy").refused("more than this machine's memory")


# ---- output files are whole, or as they were


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


# ---- the command itself, in a process of its own


def test_script(cli: Cli) -> None:
    np.save("x.npy", X)
    result = script("run", write_gru(), "-i", "x.npy", "-o", "out.npz")
    assert (result.code, result.err) == (0, "")
    same("out.npz", expected())
    script("run", "none.onnx").refused("none.onnx: No such file or directory")


@pytest.mark.parametrize("target", onegru.targets().available)
def test_script_with_a_target(target: str) -> None:
    result = script("targets", "--json", ONEGRU_TARGET=target)
    assert result.document()["chosen"] == target


def test_script_with_an_unknown_target() -> None:
    script("targets", ONEGRU_TARGET="nope").refused("ONEGRU_TARGET: 'nope'; must be one of ")


def test_as_a_module(cli: Cli) -> None:
    for arguments, words in ((["--help"], "Usage: onegru"), (["targets"], "in use")):
        command = [sys.executable, "-m", "onegru", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, "") and words in result.stdout


def test_shell_completion(cli: Cli) -> None:
    result = script(_ONEGRU_COMPLETE="complete_bash", COMP_WORDS="onegru in", COMP_CWORD="1")
    assert (result.code, result.out.split(), result.err) == (0, ["inspect"], "")
    assert "_onegru_completion" in script("--show-completion", "bash").out
    assert max(map(len, cli("--help").out.splitlines())) <= 80


def test_times_have_units_that_suit_them(cli: Cli) -> None:
    out = cli("bench", write_gru(), "--random", 0, "--dim", "seq=2000", "--dim", "batch=1").out
    times = re.findall(r"([0-9.]+) (µs|ms|s) ", out)
    assert times and all(0.9 <= float(number) < 1000 for number, _ in times)


def test_script_in_a_terminal_without_arrows(cli: Cli) -> None:
    result = script("inspect", write_gru(), PYTHONIOENCODING="ascii")
    assert (result.code, result.err) == (0, "")
    assert "hidden" in result.out
    out = script("bench", "gru.onnx", "--random", "0", "--dims", "2", PYTHONIOENCODING="ascii").out
    assert " us " in out and "\\x" not in out


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at what a process has loaded")
@pytest.mark.parametrize("loaded", ["/onnx/", "/onnxruntime/"])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 3.0])
def test_script_that_is_interrupted(cli: Cli, loaded: str, seconds: float) -> None:
    """While modules are imported, some of which would lose it, and while the model runs: always one line."""
    command = [str(SCRIPT), "bench", write_gru(), "--random", "0", "--dims", "2", "--rounds", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and loaded not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "onegru: interrupted\n")


def test_convert_from_what_is_no_file(cli: Cli) -> None:
    os.mkfifo("pipe.onnx")
    Path("there.onnx").write_bytes(b"")
    cli("convert", "pipe.onnx", "there.onnx", "--overwrite").refused("pipe.onnx: not a regular file")


def test_script_whose_reader_has_seen_enough(cli: Cli) -> None:
    name = write_gru()
    for arguments in (
        ["inspect"],
        ["inspect", "--json"],
        ["inspect", "--help"],
        ["run", "--json", "--random", "0", "--dim", "seq=500", "--dim", "batch=9"],
    ):
        command = [str(SCRIPT), arguments[0], name, *arguments[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_script_whose_output_has_no_room(cli: Cli) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [SCRIPT, "inspect", write_gru()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (result.returncode, result.stderr) == (2, "onegru: No space left on device\n")


# ---- the bar

SLOW = """
import sys, time
from onegru.cli import progress as waiting
waiting._PATIENCE = float(sys.argv[1])
with waiting.waiting("running [a] model") as watch:
    for done in range(8):
        watch.progress(done, 8)
        time.sleep(0.05)
    watch.progress(8, 8)
print("done")
"""


def in_terminal(code: str, *arguments: str) -> str:
    """What a program writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=child, stderr=child, env=environment) as process:
        os.close(child)
        written = b""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            if select.select([parent], [], [], 1)[0]:
                try:
                    written += os.read(parent, 65536)
                except OSError:  # the other end is closed
                    break
    os.close(parent)
    assert process.returncode == 0
    return written.decode()


def test_bar_after_some_patience_that_leaves_nothing() -> None:
    written = in_terminal(SLOW, "0.1")
    assert "running [a] model" in written
    *_, residue = written.split("\x1b[2K")  # each redrawing erases the line first
    assert re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", residue) == "done\n"
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again


def test_no_bar_for_what_is_quick() -> None:
    assert in_terminal(SLOW, "30").replace("\r", "") == "done\n"


def test_no_bar_outside_a_terminal() -> None:
    for environment in ({}, {"FORCE_COLOR": "1"}):
        result = subprocess.run(
            [sys.executable, "-c", SLOW, "0.1"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
        )
        assert (result.stdout, result.stderr) == ("done\n", "")


def test_patience() -> None:
    assert waiting._PATIENCE == 2.0
