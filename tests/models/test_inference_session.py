"""The drop-in session: ONNX Runtime's own, with onegru's GRUs in it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import onegru
from onegru import InferenceSession, SpecError
from tests.support.files.onnx_models import (
    WEIGHTS,
    B,
    H,
    I,
    T,
    augru_node,
    graph,
    gru,
    model,
    node,
    numbers,
    save,
    value,
    weights,
)
from tests.support.machine.repository import DIGITS

X = numbers(1, T, B, I)


@pytest.fixture(scope="module")
def sessions() -> tuple[InferenceSession, onnxruntime.InferenceSession]:
    return InferenceSession(str(DIGITS)), onnxruntime.InferenceSession(str(DIGITS))


def streaming(folder: Path, **attributes: Any) -> Path:
    nodes = [
        node("Relu", ["X"], ["positive"]),
        gru("positive", ["Y", "h_out"], bias="B", initial_h="h", **attributes),
    ]
    inputs = [value("X", shape=["T", "N", I]), value("h", shape=[1, "N", H])]
    return save(folder, model(graph(nodes, inputs, ["Y", value("h_out", shape=[1, "N", H])], weights())))


def test_answers_as_onnxruntime(
    sessions: tuple[InferenceSession, onnxruntime.InferenceSession],
) -> None:
    ours, theirs = sessions
    assert isinstance(ours, onnxruntime.InferenceSession)
    for mine, its in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(b.name, b.type, b.shape) for b in its]
    assert ours.get_providers() == ["OnegruExecutionProvider", "CPUExecutionProvider"]
    name = theirs.get_inputs()[0].name
    shape = [size if isinstance(size, int) else 3 for size in theirs.get_inputs()[0].shape]
    feed = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    for got, want in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    last = theirs.get_outputs()[-1].name
    assert len(ours.run([last], feed)) == 1
    assert ours.get_modelmeta().graph_name == theirs.get_modelmeta().graph_name


def test_binds_inputs_and_outputs(tmp_path: Path) -> None:
    session = InferenceSession(streaming(tmp_path))
    binding = session.io_binding()
    h, out = np.zeros((1, B, H), np.float32), np.empty((1, B, H), np.float32)
    binding.bind_cpu_input("X", X)
    binding.bind_cpu_input("h", h)
    binding.bind_output("h_out", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding, onnxruntime.RunOptions())
    np.testing.assert_array_equal(out, onegru.gru(np.maximum(X, 0), **WEIGHTS)[1])


def test_takes_bytes_and_refuses_as_onnxruntime() -> None:
    session = InferenceSession(DIGITS.read_bytes())
    assert session.get_inputs()[0].name == InferenceSession(DIGITS).get_inputs()[0].name
    with pytest.raises(Exception, match="INVALID_PROTOBUF"):
        InferenceSession(b"nonsense")


def test_providers_and_engines(tmp_path: Path) -> None:
    path = streaming(tmp_path, linear_before_reset=1)
    wanted = onegru.gru(np.maximum(X, 0), **WEIGHTS, linear_before_reset=1)
    feed = {"X": X, "h": np.zeros((1, B, H), np.float32)}
    given: list[dict[str, Any]] = [
        {"providers": ["CPUExecutionProvider"]},
        {"providers": ["CPUExecutionProvider"], "provider_options": [{}]},
        {"providers": [("OnegruExecutionProvider", {"threads": "1"}), "CPUExecutionProvider"]},
        {"engine": "native"},
        {"disabled_optimizers": ["ConstantFolding"]},
    ]
    for arguments in given:
        for got, want in zip(InferenceSession(path, **arguments).run(None, feed), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    layer = onegru.GRU(**WEIGHTS, linear_before_reset=True, engine="reference")
    got = InferenceSession(path, engine="reference").run(None, feed)
    np.testing.assert_array_equal(got[0], layer(np.maximum(X, 0))[0])
    with pytest.raises(SpecError, match="engine: 'fast'"):
        InferenceSession(path, engine="fast")

    own = ("OnegruExecutionProvider", {"engine": "reference"})
    for arguments in (
        {"providers": [own]},
        {"providers": ["OnegruExecutionProvider"], "engine": "reference"},
        {"providers": [own[0]], "provider_options": [own[1]]},
        {"providers": [own, "CPUExecutionProvider"], "engine": "reference"},
    ):
        session = InferenceSession(path, **arguments)
        np.testing.assert_array_equal(session.run(None, feed)[0], got[0])
        assert session.model.options.engine == "reference"
    with pytest.raises(SpecError, match="engine: 'native'; must be 'reference', as in the provider"):
        InferenceSession(path, engine="native", providers=[own])
    for wrong in ("CPUExecutionProvider", 3):
        with pytest.raises(SpecError, match=r"providers: .*; must be a list of names"):
            InferenceSession(path, providers=wrong)  # type: ignore[arg-type]


def test_engines_of_other_providers_are_not_kept(tmp_path: Path) -> None:
    session = InferenceSession(streaming(tmp_path))
    own, cpu = "OnegruExecutionProvider", "CPUExecutionProvider"
    session.set_providers([own, cpu], [{"engine": "reference"}, {}])
    assert session.model.options.engine == "reference"
    session.set_providers([cpu])
    assert session.model.options.engine == "auto"
    session.set_providers([(own, {"engine": "native"}), cpu])
    assert session.model.options.engine == "native"
    wrong: list[dict[str, Any]] = [
        {"providers": [own, cpu], "provider_options": [None, None]},
        {"providers": [(own, None)]},
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match="must be"):  # ONNX Runtime's own
            InferenceSession(streaming(tmp_path), **arguments)


def test_an_illegal_node_is_not_left_to_onnxruntime(tmp_path: Path) -> None:
    """Which takes some of them, and computes something."""
    with pytest.raises(Exception, match=r"onegru: GRU node with output 'Y': clip: -2; must be > 0"):
        InferenceSession(streaming(tmp_path, clip=-2.0))


def test_streams(tmp_path: Path) -> None:
    session = InferenceSession(streaming(tmp_path))
    stream = session.stream()
    assert stream.pairs == {"h_out": "h"}
    whole, _ = onegru.gru(np.maximum(X, 0), **WEIGHTS)
    for t in range(T):
        got = stream.step({"X": X[t : t + 1]})["Y"]
        np.testing.assert_array_equal(got, whole[t : t + 1])
    assert session.model is session.model
    assert session.model.gru_nodes[0].layer is not None
    (seen,) = session.model.trace({"X": X, "h": np.zeros((1, B, H), np.float32)})
    np.testing.assert_array_equal(seen["X"], np.maximum(X, 0))


def test_a_node_that_takes_only_constants_is_not_computed_by_onnxruntime(tmp_path: Path) -> None:
    """Which folds it, wrong for these activations, when a session is made."""
    attributes: dict[str, Any] = {"activations": ["HardSigmoid", "Affine"]}
    nodes = [gru("const", ["", "Y_h"], bias="B", name="g", **attributes), node("Add", ["Y_h", "a"], ["Z"])]
    constants = {**weights(), "const": X}
    proto = model(graph(nodes, [value("a", shape=[])], ["Z"], constants))
    wanted = onegru.gru(X, **WEIGHTS, **attributes)[1]
    feed = {"a": np.zeros((), np.float32)}
    path = save(tmp_path, proto)
    for session in (InferenceSession(path), InferenceSession(path.read_bytes())):
        np.testing.assert_array_equal(session.run(None, feed)[0], wanted)
    loaded = onegru.load(path)
    np.testing.assert_array_equal(loaded.run(feed)["Z"], wanted)
    np.testing.assert_array_equal(loaded.trace(feed)[0]["Y_h"], wanted)
    reference = onegru.load(path, engine="reference").run(feed)["Z"]
    np.testing.assert_allclose(reference, wanted, atol=1e-6)


def test_a_copy_has_the_providers_that_were_set(tmp_path: Path) -> None:
    path = streaming(tmp_path)
    proto = onnx.load(path)
    for item in proto.graph.node:
        item.name = f"{item.op_type} of {item.output[0]}"
    onnx.save(proto, path)
    session = InferenceSession(path, weight_storage="bfloat16")
    (gru,) = session.model.gru_nodes
    chosen = ("OnegruExecutionProvider", {"weight_storage": f"{gru.name}=int8"})
    session.set_providers([chosen, "CPUExecutionProvider"])
    for made in (copy.copy(session), pickle.loads(pickle.dumps(session))):
        assert made.get_provider_options() == session.get_provider_options()
        assert made.model.options == session.model.options
    before = session.model
    with pytest.raises(SpecError, match="no GRU node is called 'other'"):
        session.set_providers([("OnegruExecutionProvider", {"weight_storage": "other=int8"})])
    assert session.model is before


def test_other_providers_do_not_drop_onegru(tmp_path: Path) -> None:
    session = InferenceSession(streaming(tmp_path))
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers()[0] == "OnegruExecutionProvider"
    for wrong in ([5], [()], [None]):
        with pytest.raises(SpecError, match=r"providers: .*; must contain names, or tuples"):
            InferenceSession(streaming(tmp_path), providers=wrong)  # type: ignore[arg-type]


def test_streams_bytes_with_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ONNX Runtime's options name their folder; values that they hold cannot be read back."""
    path = streaming(tmp_path)
    wanted = onnxruntime.InferenceSession(path).run(None, {"X": X, "h": np.zeros((1, B, H), np.float32)})[0]
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    options = onnxruntime.SessionOptions()
    monkeypatch.chdir(tmp_path.parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", tmp_path.name)
    session = InferenceSession(path.read_bytes(), options)
    monkeypatch.chdir(tmp_path)
    stream = session.stream()
    parts = [stream.step({"X": X[t : t + 1]})["Y"] for t in range(T)]
    np.testing.assert_allclose(np.concatenate(parts), wanted, atol=1e-6)
    assert session.model.gru_nodes[0].layer is not None

    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in weights().items()}
    options = onnxruntime.SessionOptions()
    options.add_external_initializers(list(values), list(values.values()))
    session = InferenceSession(path.read_bytes(), options)
    with pytest.raises(onegru.FormatError, match=r"in the session options \(session\.model_external_init"):
        session.stream()


def augru(folder: Path, *, external: bool = False, **attributes: Any) -> Path:
    """A model of an AUGRU node as PyTorch's exporters write it: without a function."""
    inputs = {"X": "X", "W": "W", "R": "R", "B": "B", "A": "A", "initial_h": "h"}
    made = augru_node(inputs, {"Y": "Y", "Y_h": "h_out"}, name="attention")
    made.attribute.extend(helper.make_attribute(key, item) for key, item in attributes.items())
    infos = [value("X", shape=["T", "N", I]), value("A", shape=["T", "N", 1]), value("h", shape=[1, "N", H])]
    outputs = [value("Y"), value("h_out", shape=[1, "N", H])]
    proto = model(graph([made], infos, outputs, weights()), opset=15, domains={"onegru": 1})
    path = folder / "augru.onnx"
    onnx.save(proto, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


ATTENTION = {"X": X, "A": np.abs(numbers(2, T, B, 1)), "h": np.zeros((1, B, H), np.float32)}


@pytest.mark.parametrize("external", (False, True))
def test_an_augru_needs_no_function(external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = augru(tmp_path, external=external)
    wanted = onegru.load(path).run(ATTENTION)["Y"]
    options = onnxruntime.SessionOptions()
    sessions = [InferenceSession(path), InferenceSession(str(path), options), InferenceSession(path)]
    if not external:
        sessions.append(InferenceSession(path.read_bytes()))
    sessions[2].set_providers(["CPUExecutionProvider"])
    sessions.append(pickle.loads(pickle.dumps(sessions[0])))
    monkeypatch.chdir(tmp_path)
    sessions.append(InferenceSession(path.name))
    for session in sessions:
        np.testing.assert_array_equal(session.run(["Y"], ATTENTION)[0], wanted)
        assert session.get_providers()[0] == "OnegruExecutionProvider"
        assert [node.operator for node in session.model.gru_nodes] == ["AUGRU-1"]
    assert repr(sessions[0]) == f"InferenceSession({str(path)!r})"
    stream = sessions[0].stream({"h_out": "h"})
    parts = [stream.step({name: ATTENTION[name][t : t + 1] for name in "XA"})["Y"] for t in range(T)]
    np.testing.assert_array_equal(np.concatenate(parts), wanted)


def test_only_the_provider_takes_an_augru_that_has_its_function(tmp_path: Path) -> None:
    path, whole = augru(tmp_path), tmp_path / "whole.onnx"
    providers = [onegru.execution_provider.register(), "CPUExecutionProvider"]
    with pytest.raises(Exception, match="is not a registered function"):  # what the guide says of it
        onnxruntime.InferenceSession(path, providers=providers)
    onegru.rewrite(path, whole)
    wanted = onegru.load(path).run(ATTENTION)["Y"]
    session = onnxruntime.InferenceSession(whole, providers=providers)
    np.testing.assert_array_equal(session.run(["Y"], ATTENTION)[0], wanted)  # to the bit: not by the function
    theirs = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(theirs.run(["Y"], ATTENTION)[0], wanted, rtol=0, atol=1e-6)


def test_an_illegal_augru_without_a_function_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"AUGRU node 'attention'.*direction"):
        InferenceSession(augru(tmp_path, direction="sideways"))
