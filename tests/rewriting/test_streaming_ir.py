"""IRs made to run in chunks: OpenVINO itself runs them, chunk by chunk, and gives what one run gives."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onegru
from onegru import FormatError, SpecError
from onegru.core.dtypes import Array
from onegru.timeline.planning import plan, planner
from tests.rewriting.test_streaming import AHEAD, CAUSAL, NEVER, ROUNDING, B, C, T, built, chunks_of, drawn
from tests.support.files.onnx_models import save

ort = pytest.importorskip("onnxruntime")
ov = pytest.importorskip("openvino")


def convert(folder: Path, proto: ModelProto, *, fp16: bool = False) -> Path:
    path = folder / "model.xml"
    ov.save_model(ov.convert_model(save(folder, proto)), path, compress_to_fp16=fp16)
    return path


def note_in(path: Path) -> dict[str, Any]:
    (element,) = ET.parse(path).getroot().iterfind("rt_info/onegru/stream")
    found: dict[str, Any] = json.loads(element.get("value", ""))
    return found


def zeros_of(state: dict[str, Any], sizes: dict[str, int]) -> Array:
    shape = [size if isinstance(size, int) else sizes[size] for size in state["shape"]]
    return np.broadcast_to(np.asarray(state.get("initial", 0), np.float32), shape)


def run_by_openvino(path: Path, X: Array, cuts: list[int]) -> Array:
    """What OpenVINO gives for chunks of X, [B, C, T], states carried as the file's note says."""
    note = note_in(path)
    (name,) = note["time"]
    sizes = {size: X.shape[axis] for axis, size in enumerate(note["sizes"][name]) if isinstance(size, str)}
    states = {item["input"]: zeros_of(item, sizes) for item in note["states"]}
    model = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    parts: list[Array] = []
    for first, last in pairwise(np.cumsum([0, *cuts])):
        found = model({name: X[:, :, first:last], **states})
        states = {item["input"]: np.array(found[item["output"]]) for item in note["states"]}
        parts.append(np.array(found["Z"]))
    return np.concatenate(parts, 2)


def check(
    source: Path, seed: int, *, tolerance: float = 1e-5, original: ModelProto | None = None
) -> onegru.reports.Rewriting:
    """Compare chunks with one run; `original` is the ONNX model of an IR that OpenVINO computes wrong."""
    target = source.with_name("streaming.xml")
    report = onegru.make_streaming(source, target, delay=True)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((B, C, T)).astype(np.float32)
    if original is None:
        compiled = ov.Core().compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        whole = np.array(compiled(X)["Z"])
    else:
        (whole,) = ort.InferenceSession(original.SerializeToString()).run(["Z"], {"X": X})
    later = max(note_in(target)["delays"].values(), default=0)
    cuts = chunks_of(rng, later + 1)
    expected = whole[:, :, : T - later]
    tolerance = max(tolerance, ROUNDING * float(np.max(np.abs(expected), initial=0)))
    if original is None:
        np.testing.assert_allclose(run_by_openvino(target, X, cuts), expected, atol=tolerance)
    stream = onegru.load(target).stream()
    found = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise(np.cumsum([0, *cuts]))]
    np.testing.assert_allclose(np.concatenate(found, 2), expected, atol=tolerance)
    assert onegru.inspect(target).streaming == "yes; the file specifies which output feeds which input"
    return report


@pytest.mark.parametrize("part", [*CAUSAL, *AHEAD])
def test_each_part(part: str, tmp_path: Path) -> None:
    check(convert(tmp_path, built([{**CAUSAL, **AHEAD}[part], CAUSAL["GRU"]], 4)), 1)


CAN_STREAM = pytest.mark.xfail(raises=SpecError, strict=True, reason="refused, though it can run in chunks")


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=CAN_STREAM if seed == 5 else ()) for seed in range(240)],
)
def test_drawn_networks(seed: int, tmp_path: Path) -> None:
    names, proto = drawn(seed)
    path = convert(tmp_path, proto)
    # OpenVINO ignores the lengths of a GRU across features, so only onegru runs the chunks of such a network.
    original = proto if "a GRU across features" in names else None
    if set(names).isdisjoint(NEVER):
        try:
            check(path, seed, original=original)
        except FormatError as error:  # outputs are classes that random inputs do not change
            assert ": not written: no output depends on the random inputs" in str(error)
        return
    with pytest.raises(SpecError, match=r"cannot run in chunks, because |^time: no GRU"):
        onegru.make_streaming(path, tmp_path / "streaming.xml", delay=True)
    assert not (tmp_path / "streaming.xml").exists()
    assert not (tmp_path / "streaming.bin").exists()


def test_weights_in_float16(tmp_path: Path) -> None:
    check(convert(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 3), fp16=True), 3)


def test_layers_keep_what_does_not_change(tmp_path: Path) -> None:
    """All but what is put between them: names, attributes, and metadata of others."""
    path = convert(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 3))
    tree = ET.parse(path)
    tree.getroot().append(ET.fromstring('<rt_info><own><word value="kept"/></own></rt_info>'))
    tree.write(path)
    target = tmp_path / "streaming.xml"
    onegru.make_streaming(path, target)
    before, after = (ET.parse(file).getroot() for file in (path, target))
    kept, found = (
        [data.attrib for data in root.iterfind("layers/layer[@type='GRUSequence']/data")]
        for root in (before, after)
    )
    assert found == kept and len(kept) == 1
    assert [element.get("value") for element in after.iterfind("rt_info/own/word")] == ["kept"]


def test_a_source_replaced(tmp_path: Path) -> None:
    path = convert(tmp_path, built([CAUSAL["GRU"]], 5))
    onegru.make_streaming(path, path)
    with pytest.raises(SpecError, match="was already rewritten for streaming"):
        onegru.make_streaming(path, path)
    assert onegru.load(path).stream().pairs


@pytest.mark.parametrize("attention", [False, True])
def test_states_of_its_own(attention: bool, tmp_path: Path) -> None:
    """Nothing changes but the metadata; lengths, which are an input, are those of each chunk."""
    rng = np.random.default_rng(2)
    layer = onegru.GRU(
        *(rng.standard_normal(s).astype("f") for s in ((1, 12, 3), (1, 12, 4))), attention=attention
    )
    source, target = tmp_path / "gru.xml", tmp_path / "streaming.xml"
    onegru.save_layers(layer, source, sequence_lens=True)
    report = onegru.make_streaming(source, target)
    assert "its own states" in report.notes[0]
    feeds: dict[str, Array] = {"X": rng.standard_normal((2, 5, 3)).astype("f")}
    feeds |= {"A": rng.uniform(size=(2, 5, 1)).astype("f")} if attention else {}
    start = {"H_t" if attention else "initial_hidden_state": np.zeros((2, 1, 4), "f")}
    model = onegru.load(source)
    whole = model.run({**feeds, **start, "sequence_lengths": np.full(2, 5, np.int32)})
    stream = onegru.load(target).stream()
    parts = [
        stream.step(
            {name: array[:, a:b] for name, array in feeds.items()}
            | {"sequence_lengths": np.full(2, b - a, np.int32)}
        )
        for a, b in ((0, 2), (2, 5))
    ]
    np.testing.assert_array_equal(np.concatenate([part["Y"] for part in parts], 2), whole["Y"])


def test_a_loop_of_a_cell(tmp_path: Path) -> None:
    """As old converters write a GRU: a sequence first, whose state is then outside."""
    from tests.support.files.cell_loops import Looped, inputs, loop, model_of  # which imports OpenVINO

    source, target = tmp_path / "loop.xml", tmp_path / "streaming.xml"
    how = Looped(state="zero")
    given = inputs(how)
    ov.save_model(model_of(loop(how, given), given), source, compress_to_fp16=False)
    onegru.make_streaming(source, target)
    assert note_in(target)["states"]
    kinds = {layer.get("type") for layer in ET.parse(target).getroot().iter("layer")}
    assert "GRUSequence" in kinds and "TensorIterator" not in kinds


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_features_that_are_open(is_batch_first: bool, tmp_path: Path) -> None:
    """As many as the weights say: [?, ?, ?], as OpenVINO's converter writes a PyTorch model."""
    op, rng, wide = ov.opset8, np.random.default_rng(0), 7
    x = op.parameter([-1, -1, -1], np.float32, name="X")
    rows = x if is_batch_first else op.transpose(x, op.constant([1, 0, 2]))
    sizes = op.shape_of(rows, "i64")
    batch, steps = (op.gather(sizes, op.constant([axis]), op.constant(0)) for axis in (0, 1))
    start = op.broadcast(op.constant(np.float32(0)), op.concat([batch, op.constant([1, C])], 0))
    weights = (
        rng.standard_normal(s).astype(np.float32) for s in ((1, 3 * C, wide), (1, 3 * C, C), (1, 3 * C))
    )
    lengths = op.broadcast(steps, batch)
    gru = op.gru_sequence(rows, start, lengths, *map(op.constant, weights), C, "forward")
    result = op.result(op.squeeze(gru.output(0), op.constant([1])))
    result.set_friendly_name("Z")
    source, target = tmp_path / "model.xml", tmp_path / "streaming.xml"
    ov.save_model(ov.Model([result], [x]), source, compress_to_fp16=False)
    report = onegru.make_streaming(source, target)
    assert report.outputs[0].compared
    model, axis = onegru.load(target), 1 if is_batch_first else 0
    for many in (1, 3):
        X = rng.standard_normal((many, T, wide) if is_batch_first else (T, many, wide)).astype(np.float32)
        for size in (1, 7):
            stream = model.stream()
            cuts = [np.take(X, range(at, min(at + size, T)), axis) for at in range(0, T, size)]
            found = np.concatenate([stream.step({"X": chunk})["Z"] for chunk in cuts], 1)
            np.testing.assert_allclose(found, onegru.load(source).run({"X": X})["Z"], atol=1e-5)


def test_in_memory(tmp_path: Path) -> None:
    path = convert(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 6))
    X = np.random.default_rng(6).standard_normal((B, C, T)).astype(np.float32)
    model = onegru.load(path)
    stream = model.stream(rewrite=True)
    found = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in ((0, 4), (4, T))]
    np.testing.assert_allclose(np.concatenate(found, 2), model.run({"X": X})["Z"], atol=1e-5)
    assert onegru.inspect(path).streaming.endswith("(rewrite=True), which adds 1 cache and 1 state")


def test_a_wrong_plan_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = convert(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 4))
    target = tmp_path / "streaming.xml"
    make = planner.Planner.plan

    def spoiled(own: planner.Planner) -> plan.StreamingPlan:
        made = make(own)
        made.removed_padding.clear()
        return made

    monkeypatch.setattr(planner.Planner, "plan", spoiled)
    with pytest.raises((FormatError, SpecError), match=r"not written|fails|must be"):
        onegru.make_streaming(source, target)
    assert not target.exists()


def test_what_an_ir_cannot_have(tmp_path: Path) -> None:
    source = convert(tmp_path, built([CAUSAL["GRU"]], 4))
    with pytest.raises(SpecError, match=r"^quantize: has no effect, because .* is an OpenVINO IR; remove it"):
        onegru.make_streaming(source, tmp_path / "streaming.xml", quantize=True)
    with pytest.raises(SpecError, match=r"^time: 'Y' is not an input; must be one of 'X'"):
        onegru.make_streaming(source, tmp_path / "streaming.xml", time={"Y": 1})


def constant(*values: float, dtype: str = "int64") -> Any:
    return ov.opset13.constant(np.array(values, dtype))


def padded(op: Any, x: Any, mode: str = "constant") -> Any:
    """Two steps in front, and as many cut off at the end."""
    longer = op.pad(x, constant(0, 2, 0), constant(0, 0, 0), mode)
    return op.slice(longer, constant(0), constant(-2), constant(1), constant(1))


def across(op: Any, x: Any, make: Any) -> Any:
    """What `make` makes of [B, I, T]."""
    return op.transpose(make(op.transpose(x, constant(0, 2, 1))), constant(0, 2, 1))


def kernel(*shape: int) -> Any:
    return ov.opset13.constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def steps(op: Any, x: Any) -> Any:
    return op.gather(op.shape_of(x), constant(1), constant(0))


STREAMED = {
    "Swish": lambda op, x: op.swish(x),
    "MVN": lambda op, x: op.mvn(x, constant(2), True, 1e-5, "inside_sqrt"),
    "Pad": padded,
    "Pad of copies": lambda op, x: padded(op, x, "edge"),
    "GroupConvolution": lambda op, x: across(
        op, x, lambda y: op.group_convolution(y, kernel(C, 1, 1, 3), [1], [2], [0], [1])
    ),
    "SAME_UPPER": lambda op, x: across(
        op, x, lambda y: op.convolution(y, kernel(C, C, 3), [1], [0], [0], [1], "same_upper")
    ),
    "AvgPool": lambda op, x: across(op, x, lambda y: op.avg_pool(y, [1], [2], [0], [3], False)),
    "StridedSlice": lambda op, x: op.strided_slice(
        op.pad(x, constant(0, 1, 0), constant(0, 0, 0), "constant"),
        *map(lambda bounds: constant(*bounds), ((0, 0, 0), (0, -1, 0), (1, 1, 1))),
        [1, 0, 1],
        [1, 0, 1],
    ),
}
REFUSED = {
    "reflect": lambda op, x: padded(op, x, "reflect"),
    "Roll": lambda op, x: op.roll(x, constant(1), constant(1)),
    "AvgPool without its padding": lambda op, x: across(
        op, x, lambda y: op.avg_pool(y, [1], [2], [0], [3], True)
    ),
    "a table": lambda op, x: op.add(
        x, op.slice(kernel(1, 64, C), constant(0), steps(op, x), constant(1), constant(1))
    ),
    "MVN over time": lambda op, x: op.mvn(x, constant(1), True, 1e-5, "inside_sqrt"),
}


def hidden(path: Path, make: Any) -> Path:
    """A GRU that starts at zeros, after what `make` does to X; [B, C, T] outside."""
    op = ov.opset13
    X = op.parameter([-1, C, -1], np.float32)
    X.output(0).set_names({"X"})
    x = make(op, op.transpose(X, constant(0, 2, 1)))
    rows = op.gather(op.shape_of(x), constant(0), constant(0))
    zeros = op.broadcast(ov.opset13.constant(np.float32(0)), op.concat([rows, constant(1, C)], 0))
    lengths = op.broadcast(steps(op, x), rows)
    gru = op.gru_sequence(
        x, zeros, lengths, kernel(1, 3 * C, C), kernel(1, 3 * C, C), kernel(1, 3 * C), C, "forward"
    )
    Z = op.transpose(op.squeeze(gru.output(0), constant(1)), constant(0, 2, 1))
    Z.output(0).set_names({"Z"})
    ov.save_model(ov.Model([op.result(Z)], [X]), path, compress_to_fp16=False)
    return path


@pytest.mark.parametrize("kind", STREAMED)
def test_layers_that_onnx_lacks(kind: str, tmp_path: Path) -> None:
    check(hidden(tmp_path / "model.xml", STREAMED[kind]), 7)


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_without_a_comparison(kind: str, tmp_path: Path) -> None:
    source = hidden(tmp_path / "model.xml", REFUSED[kind])
    with pytest.raises(SpecError, match="cannot run in chunks, because "):
        onegru.make_streaming(source, delay=True, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A streaming IR of a GRU."""
    folder = tmp_path_factory.mktemp("written")
    onegru.make_streaming(convert(folder, built([CAUSAL["GRU"]], 4)), folder / "streaming.xml")
    return folder / "streaming.xml"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda note: note.clear(),
        lambda note: note["states"].append(note["states"][0]),
        lambda note: note["states"][0].update(input="other"),
        lambda note: note["states"][0].update(shape=[1]),
        lambda note: note["states"][0].update(initial=[["x"]]),
        lambda note: note.update(sizes=3),
        lambda note: note["sizes"].update(X=["a", 5, "b"]),
        lambda note: note["sizes"].update(X=["a"]),
        lambda note: note["sizes"].update(X=[1, C, 2]),
    ],
)
def test_a_broken_note(spoil: Any, written: Path, tmp_path: Path) -> None:
    target = tmp_path / "streaming.xml"
    for suffix in (".xml", ".bin"):
        shutil.copy(written.with_suffix(suffix), target.with_suffix(suffix))
    tree, note = ET.parse(target), note_in(target)
    spoil(note)
    (element,) = tree.getroot().iterfind("rt_info/onegru/stream")
    element.set("value", json.dumps(note))
    tree.write(target)
    with pytest.raises(FormatError, match=r"its metadata 'onegru\.stream' do not fit its inputs and outputs"):
        onegru.load(target)


@pytest.mark.parametrize("kind", ["gru_sequence", "rnn_sequence"])
@pytest.mark.parametrize("way", ["added to zeros", "tiled"])
def test_a_learned_start(kind: str, way: str, tmp_path: Path) -> None:
    """The same row for all, however the layers make it."""
    op = ov.opset13
    X = op.parameter([-1, -1, C], np.float32)
    X.output(0).set_names({"X"})
    rows = op.gather(op.shape_of(X), constant(0), constant(0))
    zeros = op.broadcast(op.constant(np.float32(0)), op.concat([rows, constant(1, C)], 0))
    tiled = op.tile(kernel(1, 1, C), op.concat([rows, constant(1, 1)], 0))
    h = tiled if way == "tiled" else op.add(zeros, kernel(1, 1, C))
    W = kernel(1, C * (3 if kind == "gru_sequence" else 1), C)
    run = getattr(op, kind)(X, h, op.broadcast(steps(op, X), rows), W, W, kernel(1, W.shape[1]), C, "forward")
    Z = op.squeeze(run.output(0), constant(1))
    Z.output(0).set_names({"Z"})
    source, target = tmp_path / "model.xml", tmp_path / "streaming.xml"
    ov.save_model(ov.Model([op.result(Z)], [X]), source, compress_to_fp16=False)
    onegru.make_streaming(source, target)
    x = np.random.default_rng(1).standard_normal((2, 9, C)).astype(np.float32)
    stream = onegru.load(target).stream()
    parts = [stream.step({"X": x[:, a:b]})["Z"] for a, b in ((0, 1), (1, 5), (5, 9))]
    whole = ov.Core().compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"X": x})["Z"]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)
