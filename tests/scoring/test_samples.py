"""Rows of Parquet files as samples for `onegru.quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.operators.onnx import AUGRU_DOMAINS
from tests.support.comparison import assert_bits
from tests.support.files.onnx_models import WEIGHTS, H, I, graph, gru, model, node, numbers, save, value
from tests.support.layers import make_gru
from tests.support.machine.repository import DENOISER, DIGITS

pa = pytest.importorskip("pyarrow")
pytest.importorskip("onnxruntime")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import read_samples  # noqa: E402
from tests.support.tables import LENGTHS, column, sequences, table  # noqa: E402


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, list[Any]]:
    """A file of sequences "X" of width I, and the sequences."""
    rows = sequences(I)
    pq.write_table(table(rows), tmp_path / "rows.parquet", row_group_size=3)
    return tmp_path / "rows.parquet", rows


@pytest.mark.parametrize("form", ["list<fixed>", "list<list>", "large", "list"])
@pytest.mark.parametrize("layout", [0, 1])
def test_each_row_is_a_sample(tmp_path: Path, form: str, layout: int) -> None:
    rows = sequences(I)
    pq.write_table(pa.table({"events": column(rows, form)}), tmp_path / "rows.parquet", row_group_size=3)
    shape: list[int | str | None] = ["batch", "time", I] if layout else ["time", "batch", I]
    nodes = [gru("X", ["Y"], bias="B", layout=layout)]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=shape)], ["Y"], WEIGHTS)))
    found = read_samples(path, [tmp_path / "rows.parquet"], inputs={"X": "events"})
    assert len(found) == len(LENGTHS)
    for sample, row in zip(found, rows, strict=True):
        assert_bits(sample["X"], row[None] if layout else row[:, None])
    report = onegru.quantize(path, found)
    assert 30 < report.chosen.snr < 70
    with pytest.raises(SpecError, match=r"^model: 3; must be a model, its file"):
        read_samples(3, [path])  # type: ignore[arg-type]


def test_the_first_rows_of_several_files(files: tuple[Path, list[Any]], tmp_path: Path) -> None:
    _, rows = files
    pq.write_table(table(rows[::-1]), tmp_path / "z.parquet")
    layer = make_gru(inputs=I)
    for most in (1, 3, 8, 11, 16, 50):
        found = read_samples(layer, [tmp_path / "*.parquet"], rows=most)
        assert len(found) == min(most, 16)
        for sample, row in zip(found, rows + rows[::-1], strict=False):
            assert_bits(layer(**sample)[0], layer(row[:, None])[0])


def test_layers(tmp_path: Path) -> None:
    """Attention and initial states have columns as well; a stack takes a state for each layer."""
    rows = sequences(I)
    states = numbers(1, len(rows), 16)
    attention = [numbers(2, len(row), 1) for row in rows]
    given = {"X": column(rows), "A": column(attention, "list"), "h": column(list(states[:, None]), "list")}
    pq.write_table(pa.table(given), tmp_path / "rows.parquet")
    files = [tmp_path / "rows.parquet"]
    stack = onegru.Stack([make_gru(1, inputs=I, hidden=7), make_gru(2, inputs=7, hidden=9)])
    for row, state, sample in zip(
        rows, states, read_samples(stack, files, inputs={"initial_h": "h"}), strict=True
    ):
        by_hand = [state[:7].reshape(1, 1, 7), state[7:].reshape(1, 1, 9)]
        assert_bits(stack(**sample)[0], stack(row[:, None], by_hand)[0])
    assert onegru.quantize(stack, read_samples(stack, files)).chosen.snr > 30
    layer = onegru.GRU(WEIGHTS["W"], WEIGHTS["R"], WEIGHTS["B"], attention=True)
    for row, scores, sample in zip(rows, attention, read_samples(layer, files), strict=True):
        assert_bits(layer(**sample)[0], layer(row[:, None], attention=scores[:, None])[0])
    with pytest.raises(SpecError, match=r"^axes: has no effect with layers"):
        read_samples(layer, files, axes={"X": ["time"]})


def test_models_of_one_row(tmp_path: Path) -> None:
    """Rows may be fixed at 1 or missing, steps may be fixed, and states begin at zero."""
    rows = sequences(16, seed=1)
    pq.write_table(pa.table({"x": column(rows)}), tmp_path / "x.parquet")
    samples = read_samples(DENOISER, [tmp_path / "x.parquet"])
    for sample, row in zip(samples, rows, strict=True):
        assert_bits(sample["x"], row[None])
        assert_bits(sample["h"], np.zeros((1, 1, 48), np.float32))
    onegru.load(DENOISER).run(samples[0])

    images = numbers(3, 4, 8, 8)
    for form in ("list<list>", "list", "tensor"):
        pq.write_table(pa.table({"rows": column(list(images), form)}), tmp_path / "images.parquet")
        for sample, image in zip(read_samples(DIGITS, [tmp_path / "images.parquet"]), images, strict=True):
            assert_bits(sample["rows"], image[None])
    short = [images[0], images[1][:5]]
    pq.write_table(pa.table({"rows": column(short, "list<list>")}), tmp_path / "images.parquet")
    with pytest.raises(FormatError, match=r"images.parquet: row 1: 'rows': 5 lists; must be 8$"):
        read_samples(DIGITS, [tmp_path / "images.parquet"])

    rows = sequences(I)
    pq.write_table(table(rows), tmp_path / "rows.parquet")
    nodes = [node("Unsqueeze", ["X", "one"], ["XB"]), gru("XB", ["Y"], bias="B")]
    constants = {**WEIGHTS, "one": np.array([1])}
    path = tmp_path
    for name, axes in (("time", None), ("s0", {"X": ["time", "feature"]})):
        path = save(tmp_path, model(graph(nodes, [value("X", shape=[name, I])], ["Y"], constants)))
        for sample, row in zip(read_samples(path, [tmp_path / "rows.parquet"], axes=axes), rows, strict=True):
            assert_bits(sample["X"], row)
    with pytest.raises(SpecError, match=r"its axes of rows and steps are ambiguous; specify"):
        read_samples(path, [tmp_path / "rows.parquet"])
    nodes = [gru("X", ["Y"], bias="B")]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=["T", 2, I])], ["Y"], WEIGHTS)))
    with pytest.raises(
        SpecError, match=r"input 'X': \[T, 2, 5\], fixed batch size 2; must be dynamic, or 1$"
    ):
        read_samples(path, [tmp_path / "rows.parquet"], axes={"X": ["time", "batch", "feature"]})


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ({"Z": [[1.0]]}, SpecError, "'X': no such column; input 'X' needs one; columns: 'Z'$"),
        ({"X": ["a"]}, SpecError, "'X': string; must be lists of lists of 5 numbers, or"),
        ({"X": [[1.0] * 5, None]}, FormatError, "row 1: 'X': null$"),
        ({"X": [[1.0] * 5, []]}, FormatError, "row 1: 'X': empty; must have at least one step$"),
        ({"X": [[1.0] * 4]}, FormatError, "row 0: 'X': 4 numbers; must be a multiple of 5$"),
        ({"X": [[1.0] * 4 + [None]]}, FormatError, "row 0: 'X': contains a null$"),
        ({"X": [[1.0] * 4 + [np.nan]]}, FormatError, "row 0: 'X': NaN$"),
        ({"X": pa.array([], pa.list_(pa.float32()))}, FormatError, "no rows; must have at least one$"),
    ],
)
def test_refusals(tmp_path: Path, columns: dict[str, Any], kind: type[Exception], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(kind, match=f"^[^\n]*rows.parquet: {message}"):
        read_samples(make_gru(inputs=5), [tmp_path / "rows.parquet"])


def test_refused_arguments(files: tuple[Path, list[Any]], tmp_path: Path) -> None:
    layer = make_gru(inputs=I)
    with pytest.raises(SpecError, match=r"^rows: 0; must be an integer, at least 1$"):
        read_samples(layer, [files[0]], rows=0)
    with pytest.raises(SpecError, match=r"^inputs: 'W'; must be one of 'X', 'initial_h'$"):
        read_samples(layer, [files[0]], inputs={"W": "X"})
    assert len(read_samples(layer, files[0], inputs=["X"])) == len(LENGTHS)
    for given in ("X", {"X": 3}):
        with pytest.raises(SpecError, match=r"^inputs: 'X'"):
            read_samples(layer, files[0], inputs=given)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^inputs: empty; must contain at least one file$"):
        read_samples(layer, [])
    with pytest.raises(FormatError, match=r"broken.parquet: not a Parquet file, or broken"):
        (tmp_path / "broken.parquet").write_bytes(b"PAR1")
        read_samples(layer, [tmp_path / "broken.parquet"])
    with pytest.raises(FileNotFoundError):
        read_samples(layer, [tmp_path / "missing.parquet"])


def test_a_second_attention_input(tmp_path: Path) -> None:
    """Two sequences of a model must have the same number of steps in a row."""
    nodes = [node("AUGRU", ["X", "W", "R", "B", "", "", "A"], ["Y"], domain=AUGRU_DOMAINS[0], hidden_size=H)]
    inputs = [value("X", shape=["t", "b", I]), value("A", shape=["t", "b", 1])]
    proto = model(graph(nodes, inputs, ["Y"], WEIGHTS), domains={AUGRU_DOMAINS[0]: 1})
    path = save(tmp_path, proto)
    rows = sequences(I)
    scores = [numbers(1, len(row), 1) for row in rows]
    pq.write_table(pa.table({"X": column(rows), "A": column(scores, "list")}), tmp_path / "rows.parquet")
    for sample, row, score in zip(read_samples(path, [tmp_path / "rows.parquet"]), rows, scores, strict=True):
        assert_bits(sample["X"], row[:, None])
        assert_bits(sample["A"], score[:, None])
    scores[2] = scores[2][:-1]
    pq.write_table(pa.table({"X": column(rows), "A": column(scores, "list")}), tmp_path / "rows.parquet")
    with pytest.raises(FormatError, match=r"row 2: 'A': 6 steps; must be 7, as 'X'$"):
        read_samples(path, [tmp_path / "rows.parquet"])
