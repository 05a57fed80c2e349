"""`onegru.quantize`: what the modes of weights cost and gain, and the mixture that keeps a ratio."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from onegru.core.dtypes import Array
from onegru.quantization.report import Quantization
from onegru.quantization.subject import MODES
from tests.support.comparison import assert_bits
from tests.support.files.onnx_models import I, graph, gru, model, node, numbers, save, value, weights
from tests.support.layers import make_gru
from tests.support.machine.repository import DENOISER, DIGITS

X = np.random.default_rng(7).standard_normal((30, 2, 5)).astype(np.float32)


def decibels(expected: Array, found: Array) -> float:
    """The definition, one number after the other."""
    signal = sum(float(one) ** 2 for one in expected.ravel())
    noise = sum((float(a) - float(b)) ** 2 for a, b in zip(expected.ravel(), found.ravel(), strict=True))
    return 10 * math.log10(signal / noise) if noise else math.inf


def test_a_layer() -> None:
    layer = make_gru(hidden=24, direction="bidirectional")
    report = onegru.quantize(layer, X)
    assert report.result.weight_storage == "int8" and report.result.activation_storage == "int16"
    (found,) = report.grus
    assert (found.name, found.mode, found.reason) == ("layer 0", "W8A16", "")
    expected = layer(X)
    sizes = {"W8A8": 1, "W8A16": 1, "W16A16": 2, "bfloat16": 2, "float16": 2, "float32": 4}
    for mode, (kept, activations) in MODES.items():
        outputs = layer.with_storage(kept, activations)(X) if kept else expected
        worst = min(decibels(*pair) for pair in zip(expected, outputs, strict=True))
        for measured in (found.modes[mode], report.modes[mode]):
            assert measured.snr == pytest.approx(worst, abs=1e-9)
            assert 0 < measured.seconds < 10
            numbers = 2 * 72 * (5 + 24)
            assert measured.size == numbers * sizes[mode] + 8 * 144 * (2 if sizes[mode] == 1 else 1)
    assert report.chosen.snr == report.modes["W8A16"].snr
    assert_bits(report.result(X)[0], layer.with_storage("int8")(X)[0])


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    report = onegru.quantize(make_gru(), mode=mode)
    assert [gru.mode for gru in report.grus] == [mode]
    assert (report.result.weight_storage, report.result.activation_storage) == (
        MODES[mode][0] or "float32",
        MODES[mode][1],
    )


def test_a_stack_keeps_a_ratio() -> None:
    stack = onegru.Stack(
        [make_gru(1, hidden=16, direction="bidirectional"), make_gru(2, inputs=32, hidden=9)]
    )
    ratios = [onegru.quantize(stack, X, mode=mode).chosen.snr for mode in MODES]
    assert ratios == sorted(ratios)
    for keep in [ratio + shift for ratio in ratios[:-1] for shift in (-0.01, 0.01)]:
        report = onegru.quantize(stack, X, min_snr_db=keep)
        expected, found = stack(X), report.result(X)
        pairs = [(expected[0], found[0]), *zip(expected[1], found[1], strict=True)]
        assert min(decibels(*pair) for pair in pairs) == pytest.approx(report.chosen.snr)
        assert report.chosen.snr >= keep
        fewest = sum(ratio < keep for ratio in ratios)
        assert report.chosen.size <= list(report.modes.values())[fewest].size
    report = onegru.quantize(stack, X)
    single = onegru.quantize(stack.layers[1], stack.layers[0](X)[0].transpose(0, 2, 1, 3).reshape(30, 2, 32))
    assert report.grus[1].modes["W8A8"].snr <= single.grus[0].modes["W8A8"].snr + 1  # only Y, not Y_h
    assert (single.steps, single.compared) == (30, 30 * 2 * 9 + 2 * 9)
    given = {"X": X.swapaxes(0, 1), "layout": 1, "sequence_lens": np.array([7, 3])[: X.shape[1]]}
    assert (onegru.quantize(stack.layers[0], given).steps, report.steps) == (7, len(X))


def two_grus() -> Any:
    """One after the other, then nodes of ONNX Runtime; another is of no use to int8."""
    nodes = [
        gru("X", ["Y", ""], bias="B", name="first"),
        node("Squeeze", ["Y", "axis"], ["Y1"]),
        gru("Y1", ["", "Z"], W="W2", R="R2", name="second"),
        node("Cast", ["X"], ["x"], to=11),
        gru("x", ["", "V"], W="W3", R="R3", name="third"),
    ]
    H = weights()["R"].shape[2]
    constants = {
        **weights(),
        "axis": np.array([1]),
        "W2": numbers(3, 1, 3 * H, H),
        "R2": numbers(4, 1, 3 * H, H),
        "W3": weights()["W"].astype(np.float64),
        "R3": weights()["R"].astype(np.float64),
    }
    X = value("X", shape=["T", "N", weights()["W"].shape[2]])
    return model(graph(nodes, [X], ["Z", value("V", "float64")], constants))


def test_no_gru_could_have_fewer_bits() -> None:
    """Lowering any one of them would fall below the ratio."""
    stack = onegru.Stack([make_gru(3, hidden=12), make_gru(4, inputs=12, hidden=20)])
    order = list(MODES)
    for keep in (36.0, 39.0, 42.0, 47.0, 55.0):
        report = onegru.quantize(stack, X, min_snr_db=keep)
        chosen = [gru.mode for gru in report.grus]
        assert report.chosen.snr >= keep
        for index, mode in enumerate(chosen):
            for fewer in order[: order.index(mode)]:
                kept = [MODES[fewer if place == index else item] for place, item in enumerate(chosen)]
                layers = [item.with_storage(*types) for item, types in zip(stack.layers, kept, strict=True)]
                expected, found = stack(X), onegru.Stack(layers)(X)
                pairs = [(expected[0], found[0]), *zip(expected[1], found[1], strict=True)]
                assert min(decibels(*pair) for pair in pairs) < keep
    for item in onegru.quantize(stack, X, min_snr_db=50, modes=["W8A16"]).grus:
        assert item.mode in ("W8A16", "float32")


def test_a_ratio_is_not_kept_by_chance() -> None:
    """Inputs in 8 bits may cancel the error of the weights, which files and other runtimes then have."""
    layers = [make_gru(seed, hidden=3) for seed in range(20)]
    ratios = [
        [onegru.quantize(layer, X[:3]).modes[mode].snr for mode in ("W8A8", "W8A16")] for layer in layers
    ]
    layer, (few, more) = max(zip(layers, ratios, strict=True), key=lambda item: item[1][0] - item[1][1])
    keep = (few + more) / 2
    assert few > keep > more
    assert onegru.quantize(layer, X[:3], min_snr_db=keep).grus[0].mode == "W16A16"
    files = ("W8A8", "W8A16", "float32")
    assert onegru.quantize(layer, X[:3], min_snr_db=keep, modes=files).grus[0].mode == "float32"
    assert onegru.quantize(layer, X[:3], min_snr_db=keep, modes=["W8A8"]).grus[0].mode == "W8A8"


def test_a_model_in_int8_and_bfloat16(tmp_path: Path) -> None:
    """The report names both options of each node, and a model that is loaded with them is the result."""
    path = tmp_path / "m.onnx"
    path.write_bytes(two_grus().SerializeToString())
    sample = {"X": numbers(5, 9, 2, weights()["W"].shape[2])}
    uniform = onegru.quantize(path, sample)
    modes = ["W8A16", "W16A16"]
    keep = sum(uniform.modes[mode].snr for mode in modes) / 2
    report = onegru.quantize(path, sample, min_snr_db=keep, modes=modes)
    assert report.chosen.snr >= keep and "W16A16" in {item.mode for item in report.grus}
    kept = {item.name: MODES[item.mode] for item in report.grus if item.name != "third"}
    assert report.weight_storage == {name: weight for name, (weight, _) in kept.items()}
    assert report.activation_storage == {name: activation for name, (_, activation) in kept.items()}
    options: Any = {"weight_storage": report.weight_storage, "activation_storage": report.activation_storage}
    wanted = report.result.run(sample)
    for found in (
        onegru.load(path, **options).run(sample).values(),
        onegru.InferenceSession(path, **options).run(None, sample),
    ):
        for array, same in zip(found, wanted.values(), strict=True):
            assert_bits(array, same)


def test_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(two_grus().SerializeToString())
    samples = [{"X": numbers(seed, 9, 2, weights()["W"].shape[2])} for seed in range(3)]
    done: list[tuple[int, int]] = []
    report = onegru.quantize(path, samples, progress=lambda now, most: done.append((now, most)))
    assert [(item.name, item.mode, item.reason) for item in report.grus] == [
        ("first", "W8A16", ""),
        ("second", "W8A16", ""),
        ("third", "float32", "has type float64"),
    ]
    assert report.weight_storage == {"first": "int8", "second": "int8"}
    assert report.activation_storage == {"first": "int16", "second": "int16"}
    assert done and all(0 <= now <= most for now, most in done)
    plain = onegru.load(path)
    storages: Any = {"weight_storage": report.weight_storage, "activation_storage": report.activation_storage}
    kept = onegru.load(path, **storages)
    expected, found = ([item.run(sample) for sample in samples] for item in (plain, kept))
    Z, same = (np.concatenate([item["Z"] for item in runs]) for runs in (expected, found))
    assert report.chosen.snr == pytest.approx(decibels(Z, same))
    assert_bits(report.result.run(samples[0])["Z"], found[0]["Z"])
    # What each GRU adds by itself, given the inputs that it has in float32.
    traced = [plain.trace(sample)[1] for sample in samples]
    layer = plain.gru_nodes[1].layer
    assert layer is not None
    wanted = np.concatenate([arrays["Y_h"] for arrays in traced])
    own = np.concatenate([layer.with_storage("int8", "int8")(arrays["X"])[1] for arrays in traced])
    assert report.grus[1].modes["W8A8"].snr == pytest.approx(decibels(wanted, own))
    text = str(report)
    assert "first" in text and "has type float64" in text and f"{report.chosen.snr:.1f} dB" in text
    lines = [line.split() for line in text.split("\n")]
    assert [words[0] for words in lines[1:-1]] == (
        ["first", "size", "time", "second", "size", "time", "third", "all", "size", "time"]
    )
    total = sum(array.size for item in expected for array in item.values())
    assert text.endswith(f"{total:,} values compared, over 9 steps")
    sizes = [str(item.size) for item in report.grus[0].modes.values()]  # in bytes, as all are small
    assert lines[2][1::2] == [*sizes, sizes[1]]


@pytest.mark.parametrize("path", [DIGITS, DENOISER], ids=["digits", "denoiser"])
def test_published_models(path: Path) -> None:
    report = onegru.quantize(path, min_snr_db=50)
    assert report.chosen.snr >= 50
    first, second = report.trace(0, "W8A8")
    assert first.h.shape == second.h.shape and 0 < np.abs(first.h - second.h).max() < 0.1
    same = report.trace(report.grus[0].name)[0]
    assert_bits(first.h, same.h)


def test_a_page_of_the_errors(tmp_path: Path) -> None:
    exact, kept = onegru.quantize(make_gru(), X).trace()
    kept.to_html(tmp_path / "errors.html", against=exact)
    assert "<html" in (tmp_path / "errors.html").read_text()


def test_numbers_that_are_not_finite() -> None:
    broken = X.copy()
    broken[3, 1, 2] = np.nan
    report: Quantization[Any] = onegru.quantize(make_gru(), broken)
    assert report.modes["float32"].snr == math.inf
    assert 20 < report.modes["W8A8"].snr < 60  # NaN stays NaN, in the same places
    W, R = np.ones((1, 6, 5), np.float32), np.zeros((1, 6, 2), np.float32)
    W[0, 0, 0] = np.inf  # a gate that is 0 or 1
    left = onegru.quantize(onegru.GRU(W, R), X, mode="W8A8")
    assert left.grus[0].mode == "float32" and "W: contains NaN or infinity" in left.grus[0].reason
    assert left.grus[0].modes == {} and left.weight_storage == {}
    R[0, 0, 0] = np.inf  # and all is NaN from the second step on
    with pytest.raises(
        SpecError, match=r"^samples: only .* values of output 'Y' are finite, so the comparison"
    ):
        onegru.quantize(onegru.GRU(W, R), X, mode="W8A8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "W4"}, "mode: 'W4'; must be one of"),
        ({"mode": "W8A8", "min_snr_db": 40}, "mode: 'W8A8'; must be None with min_snr_db"),
        ({"min_snr_db": math.nan}, "min_snr_db: NaN; must be"),
        ({"min_snr_db": "40"}, "min_snr_db: "),
        ({"samples": []}, r"samples: \[\]; must be inputs of a run"),
        ({"samples": 3}, "samples: 3; must be inputs of a run"),
        ({"samples": "small.onnx"}, "target: has no effect with a model or layers in memory"),
        ({"samples": X, "target": X}, "target: .*; must be the name of a file"),
        ({"samples": X[..., :4]}, "X: "),
        ({"samples": {"X": X, "h": X}}, "samples: .*'h'"),
        ({"dims": {"T": 3}}, "dims: has no effect with a layer"),
        ({"seed": -1}, "seed: -1"),
        ({"mode": ""}, "mode: ''; must be one of"),
        ({"min_snr_db": 9, "modes": ["W8A8", "W4"]}, "modes: 'W4'; must be one of"),
        ({"modes": 3}, "modes: 3; must be one or more of"),
        ({"modes": ["W8A8"]}, "modes: has no effect without min_snr_db"),
        ({"nodes": False}, "nodes: False; must be names of GRUs"),
        ({"samples": X * np.float32(np.nan)}, "samples: only 0 of .* values of output 'Y' are finite"),
        ({"samples": X[:0, :0]}, "samples: all outputs are empty"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        onegru.quantize(make_gru(), **arguments)


def test_lengths_that_are_missing(tmp_path: Path) -> None:
    """As an IR wants them, which the operator demands; the message says what they are."""
    pytest.importorskip("openvino")
    path = tmp_path / "m.xml"
    onegru.save_layers(make_gru(), path, sequence_lens=True)
    X = numbers(1, 2, 7, make_gru().spec.input_size)
    with pytest.raises(
        SpecError, match=r"'sequence_lengths': missing; .* steps of each row, 7 for a full row"
    ):
        onegru.quantize(path, {"X": X})


def test_refusals_of_models() -> None:
    data = two_grus().SerializeToString()
    with pytest.raises(SpecError, match=r"^source: uses the reference engine"):
        onegru.quantize(onegru.load(data, engine="reference"))
    with pytest.raises(SpecError, match=r"^samples\[1\]: 'X': missing"):
        onegru.quantize(onegru.load(data), [{"X": numbers(1, 3, 2, 5)}, {}])
    report = onegru.quantize(onegru.load(data))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"node": "nope"}, "node"),
        ({"node": 3}, "node"),
        ({"node": True}, "node"),
        ({"mode": "int8"}, "mode"),
        ({"sample": 1}, "sample"),
        ({"sample": "a"}, "sample"),
    ]
    for arguments, name in wrong:
        with pytest.raises(SpecError, match=f"^{name}: "):
            report.trace(**arguments)


def test_a_file_holds_what_the_report_says(tmp_path: Path) -> None:
    """GRUs that stay as they are by the report stay so in the file, whatever the others become."""
    pytest.importorskip("onnxruntime")
    constants = weights() | weights(1, "2")
    constants["one"] = np.array([1])
    inputs = [value("X", shape=["T", "B", I]), value("W2", shape=list(constants["W2"].shape))]
    del constants["W2"]
    nodes = [gru("X", ["Y"], name="first"), gru("X", ["Z"], W="W2", R="R2", name="n")]
    source = save(tmp_path, model(graph(nodes, inputs, ["Y", "Z"], constants)))
    samples = {"X": numbers(0, 7, 2, I), "W2": weights(1)["W"]}
    report = onegru.quantize(source, samples, tmp_path / "small.onnx")
    assert {item.name: item.mode for item in report.grus} == {"first": "W8A16", "n": "float32"}
    assert report.written is not None
    assert [bool(item.done) for item in report.written.nodes] == [True, False]

    only = model(graph(nodes[1:], inputs, ["Z"], constants))
    single = tmp_path / "single.onnx"
    single.write_bytes(only.SerializeToString())
    with pytest.raises(
        SpecError, match=r"^source: no GRU node can be stored as int8: 'n' computes its weights"
    ):
        onegru.quantize(single, samples, tmp_path / "none.onnx")
    with pytest.raises(SpecError, match=r"^modes: \['float32'\]; must contain W8A8 or W8A16"):
        onegru.quantize(source, samples, tmp_path / "none.onnx", min_snr_db=1, modes=["float32"])
    assert not (tmp_path / "none.onnx").exists()


def test_states_that_the_file_tells_of(tmp_path: Path) -> None:
    """A file that was made to stream: samples need not hold its first states."""
    pytest.importorskip("onnxruntime")
    source = save(tmp_path, two_grus())
    streaming, small = tmp_path / "streaming.onnx", tmp_path / "small.onnx"
    onegru.make_streaming(source, streaming)
    report = onegru.quantize(streaming, {"X": numbers(0, 7, 2, 5)}, small)
    assert report.written is not None
    assert [item.mode for item in report.grus] == ["W8A16", "W8A16", "float32"]
    with pytest.raises(SpecError, match=r"^samples\[0\]: 'X': missing"):
        onegru.quantize(streaming, {}, small)
