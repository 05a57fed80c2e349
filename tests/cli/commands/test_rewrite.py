"""`onegru rewrite`, `stream` and `quantize`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from tests.support.files.onnx_models import I, graph, gru, model, numbers, save, value, weights
from tests.support.layers import make_gru

typer = pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner  # noqa: E402

from onegru.cli.app import app  # noqa: E402


@pytest.fixture
def source(tmp_path: Path) -> Path:
    nodes = [gru("X", ["Y"], bias="B", name="gru [1]", direction="bidirectional")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights(D=2))
    return save(tmp_path, model(proto))


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_report(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.onnx"
    options = ("--opset", 22, "--layout", 1, "--float16", "--bidirectional-split", "--dim", "T=5")
    result = run("rewrite", source, target, *options)
    assert result.exit_code == 0, result.output
    lines = result.output.split("\n")
    assert lines[0] == f"wrote {target}, opset 14 became 22"
    assert lines[1:5] == [
        "gru [1]",
        "  layout 0 became 1",
        "  float32 became float16",
        "  bidirectional became a forward and a reverse node",
    ]
    assert any(line.split()[:2] == ["onegru", "Y"] for line in lines)
    X = numbers(1, 3, 2, I)
    found, wanted = (onegru.load(path).run({"X": X})["Y"] for path in (target, source))
    assert np.abs(found - wanted).max() < 2e-3


def test_json(source: Path, tmp_path: Path) -> None:
    result = run("rewrite", source, tmp_path / "target.onnx", "--for", "onnxruntime", "--decompose", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["opsets"] == [14, 14]
    assert report["nodes"] == [
        {"name": "gru [1]", "done": ["decomposed into other operators, with 2 Scans"], "reasons": []}
    ]
    assert {item["runtime"] for item in report["outputs"]} == {"onegru", "onnxruntime"}
    assert all(0 < item["max_abs"] < 1e-6 and item["max_ulp"] > 0 for item in report["outputs"])


def test_what_does_not_go_together(source: Path, tmp_path: Path) -> None:
    result = run("rewrite", source, tmp_path / "a.xml", "--float16")
    assert "a.xml: must end in .onnx" in str(result.exception)
    (tmp_path / "there.onnx").write_bytes(b"something")
    result = run("rewrite", source, tmp_path / "there.onnx", "--decompose")
    assert "exists" in str(result.exception)
    assert (tmp_path / "there.onnx").read_bytes() == b"something"


def test_errors(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.onnx"
    for options in (("--layout", 2), ("--for", "tvm"), ("--opset", 0), ("--tolerance", 0, "--decompose")):
        result = run("rewrite", source, target, *options)
        assert isinstance(result.exception, onegru.OneGRUError), options
        assert not target.exists()


def test_quantize(source: Path, tmp_path: Path) -> None:
    """The signal-to-noise ratio is shown unless it only reflects rounding."""
    result = run("quantize", source, tmp_path / "q.onnx")
    assert result.exit_code == 0, result.output
    assert "  W and R became int8, with a scale for each row" in result.output
    assert "SNR" in result.output and " dB" in result.output
    assert "SNR" not in run("rewrite", source, tmp_path / "plain.onnx", "--opset", 22).output


def test_a_ratio_of_signal_to_noise(source: Path, tmp_path: Path) -> None:
    """The modes and what they do, and a type for each GRU that keeps a ratio of signal to noise."""
    target, X = tmp_path / "small.onnx", numbers(1, 40, 2, I)
    np.save(tmp_path / "x.npy", X)
    result = run("quantize", source, target, "-i", tmp_path / "x.npy", "--min-snr", 30)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.split("\n")]
    assert ["GRU", "W8A8", "W8A16", "W16A16", "bfloat16", "float16", "float32", "result"] in lines
    assert any(words[:2] == ["gru", "[1]"] and words[-1] in ("W8A8", "W8A16") for words in lines)
    assert "on the given inputs" in result.output
    call = result.output[result.output.index("onegru.load(") :].partition(", or add ")[0].strip()
    kept = eval(call.replace(f"onegru.load('{target}', ", "dict("))
    expected = onegru.load(source).run({"X": X})["Y"].astype(np.float64)
    noise = expected - onegru.load(target, **kept).run({"X": X})["Y"]
    assert 10 * np.log10(np.sum(expected**2) / np.sum(noise**2)) >= 30
    document = json.loads(run("quantize", source, target, "--overwrite", "--json").output)["quantization"]
    assert document["weight_storage"] == {"gru [1]": "int8"}
    assert document["modes"]["float32"]["snr"] == "Infinity"
    assert set(document["grus"][0]["modes"]) == set(document["modes"])


def test_samples(source: Path, tmp_path: Path) -> None:
    """The rows of a Parquet file, each a run: the same figures as with these arrays in Python."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [numbers(seed, length, I) for seed, length in enumerate((9, 4, 17, 5))]
    pq.write_table(pa.table({"events": [row.tolist() for row in rows]}), tmp_path / "rows.parquet")
    options = ["--samples", tmp_path / "rows.parquet", "--column", "X=events", "--rows", 3]
    result = run("quantize", source, tmp_path / "small.onnx", *options)
    assert result.exit_code == 0, result.output
    assert f"on the first 3 rows of {tmp_path / 'rows.parquet'}" in result.output.replace("\n", "")
    lines = [line.split() for line in result.output.split("\n")]
    assert sum(words[:1] == ["size"] for words in lines) == sum(words[:1] == ["time"] for words in lines) == 2
    found = run("quantize", source, tmp_path / "small.onnx", "--overwrite", "--json", *options).output
    modes = json.loads(found)["quantization"]["modes"]
    expected = onegru.quantize(source, [{"X": row[:, None]} for row in rows[:3]]).modes
    assert {mode: modes[mode]["snr"] for mode in ("W8A8", "W8A16")} == pytest.approx(
        {mode: expected[mode].snr for mode in ("W8A8", "W8A16")}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", 3, "--axes", "X=time"], "--axes and --rows: have no effect without --samples"),
        (["--samples", "a", "-i", "b"], "--samples: has no effect with --input; remove one of them"),
        (["--samples", "a", "--column", "X"], "--column: 'X'; must be NAME=COLUMN"),
        (["--samples", "a", "--axes", "X"], "--axes: 'X'; must be NAME=AXIS,..."),
        (["--min-snr", 150], "min_snr_db: 150.0 dB; no GRU node reaches this SNR in int8"),
        (["--node", "none"], "nodes: 'none'; must be one of 'gru [1]'"),
        (["-i", "x.npy", "--dim", "T=3"], "--dim: has no effect here; it applies to random inputs"),
    ],
)
def test_refused_options(source: Path, tmp_path: Path, options: list[object], message: str) -> None:
    result = run("quantize", source, tmp_path / "small.onnx", *options)
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output
    assert not (tmp_path / "small.onnx").exists()


def test_why_no_gru_can_be_kept_in_int8(tmp_path: Path) -> None:
    onegru.save_layers(make_gru(dtype="float64"), tmp_path / "m.onnx")
    result = run("quantize", tmp_path / "m.onnx", tmp_path / "small.onnx", "--min-snr", 30)
    assert result.exit_code != 0 and not (tmp_path / "small.onnx").exists()
    words = str(result.exception) + " ".join(result.output.split())
    assert "source: no GRU node can be stored as int8: " in words and "has type float64" in words


def test_quantize_some_nodes(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="one"), gru("X", ["Y2"], name="two")]
    source = save(tmp_path, model(graph(nodes, [value("X", shape=["T", "N", I])], ["Y", "Y2"], weights())))
    target = tmp_path / "target.onnx"
    result = run("quantize", source, target, "--node", "two")
    assert result.exit_code == 0, result.output
    assert result.output.split("\n")[1:5] == [
        "one",
        "  hidden_size = 3 added" if "hidden_size = 3 added" in result.output else "  unchanged",
        "two",
        "  W and R became int8, with a scale for each row",
    ]


def test_quantize_and_streaming(tmp_path: Path) -> None:
    """Both at once, and one after the other: states come from the file; hints name options that there are."""
    source, target, again = (tmp_path / f"{name}.onnx" for name in ("source", "target", "again"))
    onegru.save_layers(make_gru(), source)
    result = run("stream", source, target, "--quantize", "--no-check")
    assert result.exit_code == 0, result.output
    assert onegru.inspect(target).streaming.startswith("yes; the file specifies")
    onegru.make_streaming(source, target)
    x = tmp_path / "x.npy"
    np.save(x, numbers(1, 5, 2, make_gru().spec.input_size))
    result = run("quantize", target, again, "-i", f"X={x}")
    assert result.exit_code == 0, result.output
    assert "W and R became int8" in result.output
    result = run("quantize", target, again, "--overwrite", "-i", f"X={x}", "--dim", "B=2")
    assert str(result.exception).startswith("--dim: has no effect here; it applies to random inputs")
    other = save(
        tmp_path, model(graph([gru("X", ["Y"], initial_h="h")], [value("X"), value("h")], ["Y"], weights()))
    )
    result = run("quantize", other, again, "--overwrite", "-i", f"X={x}")
    assert str(result.exception) == "input 'h': missing; pass it with -i h=FILE"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--node", "one"], "--node: has no effect without --quantize"),
        (["--time", "X"], "--time: 'X'; must be INPUT=AXIS, such as X=1"),
        (["--no-check", "--tolerance", 0.1], "--tolerance: has no effect with --no-check"),
    ],
)
def test_refused_options_of_stream(source: Path, tmp_path: Path, options: list[object], words: str) -> None:
    result = run("stream", source, tmp_path / "small.onnx", *options)
    assert result.exit_code != 0 and words in str(result.exception)
    assert not (tmp_path / "small.onnx").exists()
