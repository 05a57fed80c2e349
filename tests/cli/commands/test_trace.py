"""The command `onegru trace`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import onegru
from tests.support.layers import make_gru
from tests.support.machine.cli import Cli, files, write_gru
from tests.support.machine.repository import DIGITS

DIMS = ("--random", 0, "--dim", "seq=6", "--dim", "batch=2")


@pytest.fixture
def trace(cli: Cli) -> Cli:
    return partial(cli, "trace")


def test_every_kind_of_output(trace: Cli) -> None:
    name = write_gru()
    code, out, err = trace(name, *DIMS, "-o", "a.npz", "-o", "a.html")
    assert (code, err) == (0, "")
    assert out.startswith("the GRU of gru.onnx: 6 steps, 2 rows, 3 units, float32\n")
    for words in ("update gate z", "state h", "dead units: 0 of 3", "most active units", "wrote a.html"):
        assert words in out
    assert max(map(len, out.split("most active")[0].splitlines())) <= 80
    saved = onegru.reports.GateTrace.load("a.npz")
    assert (saved.name, saved.source, saved.h.shape) == ("the GRU", "gru.onnx", (6, 1, 2, 3))
    assert "<h1>gru.onnx · the GRU</h1>" in Path("a.html").read_text(encoding="utf-8")


def test_given_inputs_rows_and_json(trace: Cli) -> None:
    name = write_gru(lens="lens", direction="reverse")
    X, lens = np.ones((4, 2, 5), np.float32), np.array([4, 2], np.int32)
    X[:, 1] = 2
    np.savez("in.npz", X=X, lens=lens)
    document = trace(
        name, "-i", "in.npz", "--row", 1, "--direction", "reverse", "--json", "-o", "a.npz"
    ).document()
    saved = onegru.reports.GateTrace.load("a.npz")
    assert (document["node"], document["lengths"], document["row"]) == ("the GRU", [4, 2], 1)
    (item,) = document["directions"]
    assert (item["direction"], item["steps"]) == ("reverse", 2)
    z = saved.z[:2, 0, 1].astype(np.float64)
    assert item["gates"][0]["mean"] == pytest.approx(z.mean()) and document["against"] is None


def test_against_another_run(trace: Cli) -> None:
    name = write_gru()
    trace(name, *DIMS, "-o", "a.npz")
    code, out, err = trace(name, *DIMS, "--against", "a.npz", "-o", "b.html")
    assert (code, err) == (0, "")
    assert "against a.npz, row 0, forward: largest difference z 0, r 0, n 0, h 0\n" in out
    assert "other run" in Path("b.html").read_text(encoding="utf-8")
    document = trace(name, "--random", 1, *DIMS[2:], "--against", "a.npz", "--json").document()
    assert document["against"]["largest_difference"]["forward"]["h"] > 0.01
    for storage in ("int8", "bfloat16"):
        kept = ("--weight-storage", storage, "--activation-storage", storage)
        document = trace(name, *DIMS, *kept, "--against", "a.npz", "--json").document()
        assert 1e-5 < document["against"]["largest_difference"]["forward"]["h"] < 0.05


def test_one_of_several_nodes(trace: Cli) -> None:
    dims = ("--random", 0, "--dim", "batch=1")
    trace(DIGITS, *dims).refused("--node: missing; ")
    trace(DIGITS, *dims).refused("has 2 GRU nodes: 'node_GRU_82', 'node_GRU_165'")
    first = trace(DIGITS, *dims, "--node", "node_GRU_165")
    assert first.code == 0 and first.out.startswith("node_GRU_165 of digits.onnx: 8 steps, 1 row, 32 units")
    assert trace(DIGITS, *dims, "--node", 1).out == first.out
    trace(DIGITS, *dims, "--node", "x").refused("--node: 'x'; must be one of the GRU nodes: 'node_GRU_82'")


def test_bad_arguments(trace: Cli) -> None:
    name = write_gru()
    trace(name, *DIMS, "-o", "kept.npz")
    Path("folder.npz").mkdir()
    before = files()
    for arguments, message in (
        (["-o", "a.pdf"], "-o a.pdf: must end in .npz or .html"),
        (["-o", "no/a.npz"], "-o no/a.npz: folder 'no' does not exist"),
        (["-o", "folder.npz"], "-o folder.npz: is a folder; must be a file"),
        (["-o", "a.npz", "-o", "a.npz"], "named twice; must be different files"),
        (["--row", 2], "--row: 2; must be in 0…1"),
        (["--row", 2, "-o", "a.npz"], "--row: 2; must be in 0…1"),
        (["--direction", "up", "-o", "a.npz"], "--direction: 'up'; must be 'forward'"),
        (["--against", name], "gru.onnx: not a file of gate values"),
        (["--against", "none.npz"], "none.npz: No such file"),
    ):
        trace(name, *DIMS, *arguments).refused(message)
    assert files() == before


def test_no_rows(trace: Cli) -> None:
    name = write_gru()
    empty = ("--random", 0, "--dim", "seq=3", "--dim", "batch=0")
    code, out, err = trace(name, *empty, "-o", "a.npz")
    assert (code, err) == (0, "") and "0 rows" in out and "nan" not in out
    trace(name, *empty, "-o", "a.html").refused("onegru: batch: empty; must have at least one row")


def test_random_states_are_within_one(trace: Cli) -> None:
    """As a GRU's states are: the scale of h in pictures then fits them."""
    onegru.save_layers(make_gru(), "states.onnx")
    (found,) = trace("states.onnx", "--random", 0, "--dims", 3, "--json").document()["directions"]
    (h,) = (gate for gate in found["gates"] if gate["gate"] == "h")
    assert -1 <= h["least"] < h["most"] <= 1
