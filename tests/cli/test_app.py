"""The command line: how it is called, how it refuses, and in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru.cli import screen
from onegru.runtimes.openvino import openvino_operator
from tests.support.files.onnx_models import WEIGHTS, I, graph, gru, model, node, save, value
from tests.support.machine.cli import SCRIPT, Cli, Result, X, expected, files, same, script, write_gru
from tests.support.machine.systems import posix


def test_strings(cli: Cli) -> None:
    nodes = [gru("X", ["Y"]), node("Identity", ["s"], ["t"])]
    inputs = [value("X", shape=[1, 1, I]), value("s", "str", [2])]
    save(Path(), model(graph(nodes, inputs, ["Y", value("t", "str")], WEIGHTS)))
    np.save("s.npy", np.array(["a", "ü"]))
    given = ("run", "model.onnx", "--random", 0, "-i", "s=s.npy")
    assert cli(*given, "--json").document()["outputs"]["t"]["data"] == ["a", "ü"]
    assert cli(*given, "-o", "t=t.npy").code == 0
    assert np.load("t.npy").tolist() == ["a", "ü"]
    cli("run", "model.onnx", "--random", 0).refused("input 's': type str cannot be random")


def test_engine(cli: Cli) -> None:
    np.save("x.npy", X)
    for engine in ("auto", "native"):
        assert cli("run", write_gru(), "-i", "x.npy", "--engine", engine, "-o", "out.npz").code == 0
        same("out.npz", expected())
    assert cli("run", write_gru(), "-i", "x.npy", "--engine", "reference", "-o", "out.npz").code == 0
    with np.load("out.npz") as arrays:
        np.testing.assert_allclose(arrays["Y"], expected()["Y"], rtol=0, atol=1e-6)
    cli("run", write_gru(), "-i", "x.npy", "--engine", "fast").refused("engine: 'fast'; must be one of auto")


def test_storage(cli: Cli) -> None:
    np.save("x.npy", X)
    for kept in ("int8", "bfloat16"):
        options = ("--weight-storage", kept, "--activation-storage", kept)
        assert cli("run", write_gru(), "-i", "x.npy", *options, "-o", "out.npz").code == 0
        layer = onegru.GRU(**WEIGHTS, weight_storage=kept, activation_storage=kept)
        same("out.npz", dict(zip(("Y", "Y_h"), layer(X), strict=True)))
        assert cli("bench", write_gru(), "-i", "x.npy", *options, "--rounds", 1).code == 0
    for command in ("run", "bench"):
        refused = cli(command, write_gru(), "-i", "x.npy", "--weight-storage", "int4")
        refused.refused("--weight-storage: 'int4'; must be float16, bfloat16, int8, int8_g32, ")


def test_warnings_are_one_line_each(cli: Cli) -> None:
    name = write_gru(activation_alpha=[0.5])
    for command in (["run", name, "--random", 0, "--dim", "seq=1", "--dim", "batch=1"], ["inspect", name]):
        result = cli(*command)
        assert result.code == 0
        assert result.err == (
            "onegru: warning: gru.onnx: GRU node 'the GRU': activation_alpha: 1 value too many for "
            "Sigmoid, Tanh; without effect\n"
        )


# ---- the rest


def test_targets(cli: Cli) -> None:
    targets = onegru.targets()
    lines = cli("targets").out.splitlines()
    *lines, of_int8, of_build, of_openvino = lines
    assert of_build.startswith("built for: ") and ("one target" in of_build) == targets.is_native
    assert of_int8 == f"int8 instructions: {targets.int8.upper()}"
    assert [line.split()[0] for line in lines] == list(targets.available)
    assert [line.split()[0] for line in lines if line.endswith("in use")] == [targets.chosen]
    operator = openvino_operator()
    assert operator.version is None or of_openvino.startswith(
        f"OpenVINO: {operator.version}, GRU layers run by "
    )
    document = cli("targets", "--json").document()
    assert document == {**asdict(targets), "available": [*targets.available], "openvino": asdict(operator)}


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
    "a folder": (["run", "folder"], "folder: a folder; must be a file; no file in it"),
    "not a model": (["run", "text.onnx"], "text.onnx: not an ONNX model, or truncated"),
    "not an IR": (["inspect", "text.xml"], "text.xml: not well-formed XML"),
    "missing file": (["run", "gru.onnx", "-i", "X=none.npy"], "none.npy: No such file or directory"),
    "missing npz": (["run", "gru.onnx", "-i", "none.npz"], "none.npz: No such file or directory"),
    "missing pb": (["run", "gru.onnx", "-i", "none.pb"], "none.pb: No such file or directory"),
    "input folder": (["run", "gru.onnx", "-i", "folder.npy"], "folder.npy: Is a directory"),
    "input suffix": (["run", "gru.onnx", "-i", "X=x.txt"], "must end in .npy, .npz or .pb"),
    "no input file": (["run", "gru.onnx", "-i", "X="], "must end in .npy, .npz or .pb"),
    "no input name": (["run", "gru.onnx", "-i", "=x.npy"], "'' is not an input"),
    "unknown input": (["run", "gru.onnx", "-i", "Z=x.npy"], "'Z' is not an input; the model's inputs: 'X'"),
    "unknown in npz": (["run", "gru.onnx", "-i", "z.npz"], "'Z' is not an input"),
    "not in npz": (["run", "gru.onnx", "-i", "X=two.npz"], "the file contains 'V', 'Z', not 'X'"),
    "given twice": (["run", "gru.onnx", "-i", "x.npy", "-i", "X=x.npy"], "'X' is given twice"),
    "which input": (["run", "lens.onnx", "-i", "x.npy"], "ambiguous input; must be NAME=FILE"),
    "wrong type": (["run", "gru.onnx", "-i", "double.npy"], "'X': type float64; must be float32"),
    "wrong shape": (
        ["run", "gru.onnx", "-i", "flat.npy"],
        "'X': shape [3]; must be float32 [seq, batch, 5]",
    ),
    "seed": (["run", "gru.onnx", "--random", "x"], "--random"),
    "negative seed": (["run", "gru.onnx", "--random", "-1"], "--random"),
    "dim without random": (
        ["run", "gru.onnx", "-i", "x.npy", "--dim", "seq=1"],
        "has no effect here; it applies to random inputs; add --random SEED, or remove it",
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
        "'time'; must be a dynamic dimension of an input: 'batch', 'seq'",
    ),
    "dims without random": (
        ["run", "gru.onnx", "-i", "x.npy", "--dims", "1"],
        "--dims: has no effect here; it applies to random inputs",
    ),
    "dims negative": (["run", "gru.onnx", "--random", "0", "--dims", "-1"], "--dims"),
    "whole shape": (
        ["run", "gru.onnx", "--random", "0", "--dim", "X=2,3,8"],
        "--dim: 'X' is 2,3,8; must be [seq, batch, 5]",
    ),
    "whole shape, rank": (["run", "gru.onnx", "--random", "0", "--dim", "X=2,5"], "must be [seq, batch, 5]"),
    "whole shape, against": (
        ["run", "gru.onnx", "--random", "0", "--dim", "batch=2", "--dim", "X=2,3,5"],
        "--dim: 'X' is 2,3,5; 'batch' must be 2, as in the other sizes",
    ),
    "dim too large": (
        ["run", "gru.onnx", "--random", "0", "--dim", "seq=1000000", "--dim", "batch=1000000000"],
        "must fit into a quarter of this machine's memory",
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
    "two into one": (["run", "gru.onnx", "-i", "x.npy", "-o", "out.npy"], "a .npy file contains one array"),
    "output twice": (
        ["run", "gru.onnx", "-i", "x.npy", "-o", "Y=o.npy", "-o", "Y_h=./o.npy"],
        "named twice; must be different files",
    ),
}


#: Messages about an argument whose option goes by another name, as Python has it.
BY_OPTION = {
    "runtime": (["rewrite", "--for", "other"], "--for: 'other'; must be"),
    "dims": (["rewrite", "--dim", "none=3"], "--dim: 'none'; must be a dynamic dimension"),
    "words of others": (
        ["rewrite", "--dim", "must be None or None=3"],
        "--dim: 'must be None or None'; must be",
    ),
    "nodes": (["quantize", "--node", "none"], "--node: 'none'; must be"),
    "nodes of layers": (["convert", "--node", "none"], "--node: 'none'; no such GRU node"),
    "quantize": (["stream", "--quantize", "--node", "none"], "--node: no GRU node is called 'none'"),
    "group_size": (["quantize", "--group-size", "5"], "--group-size: 5; must be 32, 64, 128 or not given"),
    "keras_version": (["convert", "--keras-version", "2.3"], "--keras-version: '2.3'; remove it, because"),
    "time": (["stream", "--time", "none=1"], "--time: 'none' is not an input; must be one of 'X'"),
}


@pytest.mark.parametrize("case", BY_OPTION)
def test_options_go_by_their_own_names(cli: Cli, case: str) -> None:
    write_gru()
    before = files()
    (command, *options), message = BY_OPTION[case]
    cli(command, "gru.onnx", "target.onnx", *options).refused(message)
    assert files() == before


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


# ---- the command itself, in a separate process


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


@pytest.mark.long
def test_as_a_module(cli: Cli) -> None:
    for arguments, words in ((["--help"], "Usage: onegru"), (["targets"], "in use")):
        command = [sys.executable, "-m", "onegru", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, "") and words in result.stdout


@pytest.mark.parametrize("command", ["convert", "rewrite", "fuse", "stream", "quantize"])
def test_help_fits_a_screen(cli: Cli, command: str) -> None:
    lines = cli(command, "--help").out.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert sum("Example: onegru" in line for line in lines) == 2
    assert "[default" not in "".join(lines)


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "bench",
        "trace",
        "convert",
        "rewrite",
        "stream",
        "quantize",
        "verify",
        "score",
        "conformance run",
    ],
)
def test_placeholders_are_words(cli: Cli, command: str) -> None:
    assert " range>" not in cli(*command.split(), "--help").out


@pytest.mark.long
def test_shell_completion(cli: Cli) -> None:
    result = script(_ONEGRU_COMPLETE="complete_bash", COMP_WORDS="onegru in", COMP_CWORD="1")
    assert (result.code, result.out.split(), result.err) == (0, ["inspect"], "")
    words = "onegru rewrite a.onnx b.onnx --for o"
    names = script(_ONEGRU_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="5").out.split()
    assert names == ["onnxruntime", "openvino"]
    # Otherwise typer takes the shell from the parent processes, which need not include one.
    own = script("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_onegru_completion" in own.out
    assert max(map(len, cli("--help").out.splitlines())) <= 80


@pytest.mark.long
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
    """While modules are imported, where some would lose it, and while the model runs: always one line."""
    command = [str(SCRIPT), "bench", write_gru(), "--random", "0", "--dims", "2", "--rounds", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and loaded not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "onegru: interrupted\n")


@posix
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
    assert (result.returncode, result.stderr) == (2, "onegru: standard output: No space left on device\n")


def test_patience() -> None:
    assert screen._PATIENCE == 2.0
