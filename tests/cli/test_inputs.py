"""`onegru run`: inputs from files and random ones, and files made to do harm."""

from __future__ import annotations

import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import onegru
from onegru.cli.inputs import gather_inputs
from tests.formats.openvino.test_states import made_stateful
from tests.support.files.ir_files import write_case
from tests.support.files.onnx_models import (
    WEIGHTS,
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
)
from tests.support.machine.cli import Cli, X, expected, files, same, write_gru


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
def test_random_lengths_are_legal(cli: Cli, layout: int, seq: int, least: int, most: int) -> None:
    name = write_gru(lens="lens", layout=layout)
    loaded = onegru.load(name)
    # The model calls its axes seq, batch whatever the layout makes of them.
    time_axis, other_axis = ("seq", "batch") if layout == 0 else ("batch", "seq")
    if layout == 1:
        proto = onnx.load(name)
        proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "seq"
        onnx.save(proto, name)
        loaded = onegru.load(name)
    found = set()
    for seed in range(20):
        values, _ = gather_inputs(loaded, [], seed, [f"{time_axis}={seq}", f"{other_axis}=6"])
        assert values["lens"].dtype == np.int32
        assert values["X"].shape[layout] == seq
        found |= set(values["lens"].tolist())
        loaded.run(values)
    assert (min(found), max(found)) == (least, most)


def test_random_lengths_fit_every_gru_that_takes_them(cli: Cli) -> None:
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
    said = cli("run", "model.onnx", "--random", 0)
    assert said.code == 0 and "random inputs with X.0=7; to change a size, add --dim NAME=SIZE" in said.err
    assert cli("run", "model.onnx", "--random", 0, "--dim", "X.0=2").code == 0


def test_sizes_of_open_dimensions(cli: Cli) -> None:
    """Whole shapes, which also fix named dimensions of other inputs; given inputs; one size for the rest."""
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
    for command in ("run", "verify", "trace"):
        said = cli(command, name, "--random", 0, "--dim", "seq=2")
        assert (
            said.code == 0 and "random inputs with batch=3; to change a size, add --dim NAME=SIZE" in said.err
        )
    for dim in ("seq=1000000000000", "X=2,1000000000000,5"):
        cli("run", name, "--random", 0, "--dim", dim).refused(f"--dim: {dim!r}; must be at most 999999999999")


@pytest.mark.parametrize("command", ["run", "bench", "verify"])
def test_random_inputs_that_contradict_each_other(cli: Cli, command: str) -> None:
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
        "if inputs must match each other, pass them with -i rows=FILE, or change sizes with --dim"
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
        "'X': contains float32 values that bfloat16 cannot represent; round them first"
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
        values, _ = gather_inputs(loaded, [], seed, [])
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
    assert re.search(r"attention +z = \(1 - a\)·z", shown)
    assert "openvino" in shown


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
    cli("run", write_gru(), "-i", "x.npy").refused("must fit into this machine's memory")


def test_states_that_an_ir_keeps(cli: Cli) -> None:
    """A run without them starts anew, which is said; OpenVINO, where they stay, is not timed."""
    made_stateful(Path())
    np.save("x.npy", numbers(1, 1, 1, 4))
    said = cli("run", "made.xml", "-i", "x=x.npy", "-o", "out.npz")
    assert (said.code, said.err) == (
        0,
        "hhn: initial states; use Model.stream() to carry states between runs\n",
    )
    timed = cli("bench", "made.xml", "--random", 0, "--rounds", 1, "--json").document()["runtimes"]
    words = "made.xml: not timed: OpenVINO keeps the states of this model, so repeated runs differ"
    assert [item["refuses"] for item in timed] == [None, words]


@pytest.mark.parametrize("command", ["run", "bench --rounds 1", "trace", "verify"])
def test_without_inputs_all_are_random(command: str, cli: Cli) -> None:
    """As with --random 0; a forgotten one of several is an error."""
    write_gru()
    words = command.split()
    result = cli(words[0], "gru.onnx", *words[1:], "--dims", 3)
    assert result.code == 0, result.err
    if command == "run":
        assert (
            cli("run", "gru.onnx", "--dims", 3, "--json").document()["outputs"]
            == (cli("run", "gru.onnx", "--dims", 3, "--random", 0, "--json").document()["outputs"])
        )


@pytest.mark.parametrize(
    "command", ["quantize", "stream", "rewrite --layout 1", "rewrite --decompose --dim X=2,3,5"]
)
def test_one_size_for_every_open_dimension(command: str, cli: Cli) -> None:
    rng = np.random.default_rng(0)
    onegru.save_layers(onegru.GRU(*(rng.standard_normal((1, 12, n), np.float32) for n in (5, 4))), "m.onnx")
    words = command.split()
    result = cli(words[0], "m.onnx", "t.onnx", *words[1:], "--dims", 3)
    assert result.code == 0, result.err
    assert f"over {2 if '--dim' in words else 3} steps" in result.out, result.out
    assert (
        "has no effect with --no-check" in cli("rewrite", "m.onnx", "u.onnx", "--dims", 3, "--no-check").err
    )
