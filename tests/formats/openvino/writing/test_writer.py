"""What `onegru.save_layers` writes as IRs: OpenVINO runs it, onegru reads it back with the same bits."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from tests.support.cases import DIRECTIONS, DTYPES
from tests.support.files.saved_models import LENGTHS, assert_close, assert_same_as, ir_feeds
from tests.support.layers import H, I, call, draw, make_gru, make_stack, reference
from tests.support.machine.systems import posix
from tests.support.models.runtimes import openvino_results


@pytest.mark.parametrize("directions", [("forward",), ("reverse",), ("bidirectional",), DIRECTIONS], ids=len)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ir_in_openvino(tmp_path: Path, directions: tuple[str, ...], after: bool, count: int) -> None:
    stack = make_stack(count, directions, linear_before_reset=after)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.xml"
    X, states = draw(layers)
    all_steps = np.full(3, 6, np.int32)
    onegru.save_layers(layers, path)
    Y, Y_h = call(reference(layers), X, states)
    assert_same_as(layers, openvino_results(path, ir_feeds(X, states, all_steps)), Y, Y_h)
    # Short lengths, which OpenVINO heeds where the sizes are fixed.
    onegru.save_layers(layers, path, sequence_lens=True, batch_size=3, seq_length=6)
    Y, Y_h = call(reference(layers), X, states, LENGTHS)
    assert_same_as(layers, openvino_results(path, ir_feeds(X, states, LENGTHS)), Y, Y_h)


@pytest.mark.parametrize("activations", [("Relu", "Tanh"), ("Tanh", "Sigmoid"), ("Sigmoid", "Relu")])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_ir_attributes(tmp_path: Path, activations: tuple[str, str], clip: float | None) -> None:
    layer = make_gru(direction="bidirectional", activations=activations * 2, clip=clip)
    path = tmp_path / "m.xml"
    onegru.save_layers(layer, path, sequence_lens=True)
    X, states = draw(layer)
    feeds = ir_feeds(X, states, np.full(3, 6, np.int32))
    Y, Y_h = call(reference(layer), X, states)
    assert_same_as(layer, openvino_results(path, feeds), Y, Y_h)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and gru.layer.spec == layer.spec
    results = onegru.load(path).run(feeds)
    assert_same_as(layer, results, Y, Y_h)


@pytest.mark.parametrize("initial_h", [True, False])
@pytest.mark.parametrize("sequence_lens", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"batch_size": 3}, {"batch_size": 3, "seq_length": 6}], ids=len)
def test_ir_inputs(tmp_path: Path, initial_h: bool, sequence_lens: bool, sizes: dict[str, Any]) -> None:
    stack = make_stack(2, ("bidirectional", "reverse"), linear_before_reset=True)
    path = tmp_path / "m.xml"
    onegru.save_layers(stack, path, initial_h=initial_h, sequence_lens=sequence_lens, **sizes)
    X, states = draw(stack)
    feeds = ir_feeds(X, states, np.full(3, 6, np.int32))
    results = openvino_results(path, feeds)
    wanted = call(stack, X, states if initial_h else None)
    assert_same_as(stack, results, *wanted)
    layers = ET.parse(path).getroot().findall("layers/layer")
    names = {layer.get("name") for layer in layers if layer.get("type") == "Parameter"}
    states_are = {"initial_hidden_state_0", "initial_hidden_state_1"} if initial_h else set()
    assert names == {"X"} | states_are | ({"sequence_lengths"} if sequence_lens else set())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("initial_h", [True, False])
def test_ir_of_cells(tmp_path: Path, after: bool, count: int, initial_h: bool) -> None:
    stack = make_stack(count, linear_before_reset=after)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.xml"
    onegru.save_layers(layers, path, cell=True, initial_h=initial_h)
    X, states = draw(layers, T=1)
    ends = [f"_{index}" for index in range(count)] if count > 1 else [""]
    feeds = {"X": X[0]}
    feeds |= {f"initial_hidden_state{end}": state[0] for end, state in zip(ends, states, strict=True)}
    wanted = call(layers, X, states if initial_h else None)[1]
    found = openvino_results(path, feeds)
    found_here = onegru.load(path).run(feeds) if initial_h else found
    for end, state in zip(ends, wanted, strict=True):
        assert_close(found[f"Ho{end}"], state[0])
        assert_close(found_here[f"Ho{end}"], state[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", [True, False])
@pytest.mark.parametrize("attention", [True, False])
def test_ir_read_by_onegru(tmp_path: Path, dtype: str, cell: bool, attention: bool) -> None:
    layer = make_gru(dtype=dtype, attention=attention)
    path = tmp_path / "m.xml"
    onegru.save_layers(layer, path, cell=cell)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.operator == ("AUGRU" if attention else "GRU") + ("Cell" if cell else "Sequence") + (
        "" if attention else "-3" if cell else "-5"
    )
    assert gru.layer is not None and gru.layer.spec == layer.spec
    weights, wanted = gru.layer.weights, layer.weights
    assert np.array_equal(weights.W, wanted.W) and np.array_equal(weights.R, wanted.R)
    assert np.array_equal(weights.B[:, : 3 * H], wanted.B[:, : 3 * H] + wanted.B[:, 3 * H :])
    layers = ET.parse(path).getroot().findall("layers/layer")
    kinds = {layer.get("type"): layer.get("version") for layer in layers}
    kind, version = ("AUGRU", "extension") if attention else ("GRU", "opset3" if cell else "opset5")
    assert kinds[kind + ("Cell" if cell else "Sequence")] == version


def test_attention_keeps_its_function(tmp_path: Path) -> None:
    layer = make_gru(attention=True)
    path = tmp_path / "m.xml"
    onegru.save_layers(layer, path, sequence_lens=True)
    X, (state,) = draw(layer)
    A = np.random.default_rng(3).uniform(0, 1, (3, 6, 1)).astype("f")
    feeds = {"X": X.swapaxes(0, 1), "H_t": state.swapaxes(0, 1), "sequence_lengths": LENGTHS, "A": A}
    results = onegru.load(path).run(feeds)
    Y, Y_h = layer(X, state, sequence_lens=LENGTHS, attention=A.swapaxes(0, 1))
    assert_same_as(layer, results, Y, (Y_h,))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("attention", [True, False])
def test_an_ir_without_lengths_needs_no_openvino(tmp_path: Path, direction: str, attention: bool) -> None:
    """What computes X's number of steps for each row is not run: onegru takes all steps anyway."""
    layer = make_gru(direction="forward" if attention else direction, attention=attention)
    path = tmp_path / "m.xml"
    onegru.save_layers(layer, path)
    model = onegru.load(path)
    assert model.other_node_count == 0
    X, (state,) = draw(layer)
    A = np.random.default_rng(3).uniform(0, 1, (3, 6, 1)).astype("f")
    feeds = {"X": X.swapaxes(0, 1), "H_t" if attention else "initial_hidden_state": state.swapaxes(0, 1)}
    Y, Y_h = layer(X, state, attention=A.swapaxes(0, 1) if attention else None)
    feeds |= {"A": A} if attention else {}
    assert_same_as(layer, model.run(feeds), Y, (Y_h,))
    assert model.trace(feeds)[0].keys() >= {"X", "Y", "Ho"}
    with pytest.raises(onegru.SpecError, match=r"GRUSequence node .*shape \[2, "):  # in general, not in haste
        model.run(
            {
                name: array[:2] if array.ndim == 3 and name[0] in "iH" else array
                for name, array in feeds.items()
            }
        )


@posix
@pytest.mark.parametrize("linked", [".xml", ".bin"])
def test_link_to_one_file_of_an_ir(tmp_path: Path, linked: str) -> None:
    """A link to one file of an IR would leave the other one unchanged, so the pair would not match."""
    onegru.save_layers(make_gru(), tmp_path / "other.xml")
    before = [(tmp_path / name).read_bytes() for name in ("other.xml", "other.bin")]
    (tmp_path / f"link{linked}").symlink_to(tmp_path / f"other{linked}")
    with pytest.raises(onegru.SpecError, match=r"link\.xml: not written: a link to one file of an IR would"):
        onegru.save_layers(make_gru(clip=0.5), tmp_path / "link.xml")
    with pytest.raises(onegru.SpecError, match="a link to one file of an IR would"):
        onegru.make_streaming(tmp_path / "other.xml", tmp_path / "link.xml")
    assert before == [(tmp_path / name).read_bytes() for name in ("other.xml", "other.bin")]


@posix
def test_links_to_both_files_of_an_ir(tmp_path: Path) -> None:
    onegru.save_layers(make_gru(), tmp_path / "other.xml")
    for suffix in (".xml", ".bin"):
        (tmp_path / f"link{suffix}").symlink_to(tmp_path / f"other{suffix}")
    onegru.make_streaming(tmp_path / "other.xml", tmp_path / "link.xml")
    X = np.ones((1, 2, I), np.float32)
    streams = [onegru.load(tmp_path / f"{name}.xml").stream() for name in ("other", "link")]
    other, link = (stream.step({"X": X})["Y"] for stream in streams)
    assert np.array_equal(other, link)
