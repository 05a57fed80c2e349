"""onegru as a backend of onnx: onnx's own GRU cases, and the interface that its tools use."""

from __future__ import annotations

import re
import unittest
import warnings
from typing import Any

import numpy as np
import onnx.backend.base
import pytest
from onnx.backend.test import BackendTest

import onegru
import onegru.backend as backend
from onegru import SpecError
from tests.support.files.onnx_models import B, H, I, T, graph, gru, model, node, numbers, value, weights

# The cases that onnx 1.23 has; a later onnx may add to them.
KNOWN_CASES = (
    "test_gru_batchwise",
    "test_gru_bidirectional",
    "test_gru_defaults",
    "test_gru_reverse",
    "test_gru_seq_length",
    "test_gru_with_initial_bias",
)


class ProviderRep(onnx.backend.base.BackendRep):
    """A session of ONNX Runtime with the execution provider."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = onegru.InferenceSession(model.SerializeToString())

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = [info.name for info in self.session.get_inputs()]
        return tuple(self.session.run(None, dict(zip(names, inputs, strict=True))))


class ProviderBackend(backend.OneGRUBackend):
    """onnx's cases, as a program that uses ONNX Runtime would run them."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        return ProviderRep(model)


@pytest.mark.parametrize("which", [backend.OneGRUBackend, ProviderBackend])
def test_onnx_own_cases(which: Any) -> None:
    """One test for all of them: onnx builds every case of every operator first, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what building other operators' cases warns of
        runner = BackendTest(which, __name__).include("^test_gru_")
        cases = [case for case in runner.test_cases.values() if any(map(is_gru_case, dir(case)))]
    suite = unittest.TestSuite(case(name) for case in cases for name in dir(case) if is_gru_case(name))
    result = unittest.TestResult()
    suite.run(result)
    problems = [f"{test}\n{trace}" for test, trace in result.failures + result.errors]
    assert not problems, "\n".join(problems)
    skipped = {test.id().rpartition(".")[2] for test, _ in result.skipped}
    ran = {name for case in cases for name in dir(case) if is_gru_case(name)} - skipped
    assert all(name.endswith("_cuda") for name in skipped)
    assert ran >= {f"{name}_cpu" for name in KNOWN_CASES}


def is_gru_case(name: str) -> bool:
    return name.startswith("test_gru_")


X = numbers(1, T, B, I)


def whole(**attributes: Any) -> onnx.ModelProto:
    """A GRU that takes X and initial_h and gives Y and Y_h."""
    nodes = [gru("X", ["Y", "Y_h"], bias="B", initial_h="h", **attributes)]
    inputs = [value("X", shape=[T, "N", I]), value("h", shape=[1, "N", H])]
    return model(graph(nodes, inputs, ["Y", "Y_h"], weights()))


def expected(initial_h: Any, **attributes: Any) -> tuple[Any, Any]:
    constants = weights()
    return onegru.gru(X, constants["W"], constants["R"], constants["B"], None, initial_h, **attributes)


def same(results: Any, wanted: Any) -> None:
    assert isinstance(results, tuple)
    assert len(results) == len(wanted)
    for result, array in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, array)


def test_classes() -> None:
    assert issubclass(backend.OneGRUBackend, onnx.backend.base.Backend)
    assert issubclass(backend.OneGRURep, onnx.backend.base.BackendRep)


def test_run_model() -> None:
    h = numbers(2, 1, B, H)
    same(backend.run_model(whole(), [X, h]), expected(h))


def test_prepare_runs_many_times() -> None:
    prepared = backend.prepare(whole(linear_before_reset=1), "CPU:0")
    for seed in (3, 4):
        h = numbers(seed, 1, B, H)
        same(prepared.run((X, h)), expected(h, linear_before_reset=1))
        same(prepared.run({"h": h, "X": X}), expected(h, linear_before_reset=1))


def test_a_single_array_for_a_single_input() -> None:
    proto = model(graph([gru("X", ["", "Y_h"], bias="B")], [value("X")], ["Y_h"], weights()))
    same(backend.prepare(proto).run(X), expected(None)[1:])


def test_run_node() -> None:
    constants = weights()
    h = numbers(2, 1, B, H)
    arrays = [X, constants["W"], constants["R"], h]
    wanted = onegru.gru(X, constants["W"], constants["R"], None, None, h, clip=0.5)
    same(backend.run_node(gru("X", ["Y", "Y_h"], initial_h="h", clip=0.5), arrays), wanted)
    same(backend.run_node(gru("X", ["", "Y_h"], initial_h="h", clip=0.5), arrays), wanted[1:])


def test_run_node_takes_lists() -> None:
    constants = weights()
    arrays = [array.astype(np.float64) for array in (X, constants["W"], constants["R"])]
    same(backend.run_node(gru("X", ["Y", "Y_h"]), [array.tolist() for array in arrays]), onegru.gru(*arrays))


def test_run_node_of_one_array() -> None:
    relu = node("Relu", ["X"], ["Z"])
    for array in (X, X[0, 0]):
        same(backend.run_node(relu, array, opset_version=14), [np.maximum(array, 0)])
    with pytest.raises(SpecError, match="inputs: 'X'; must be an array or a list of arrays"):
        backend.run_node(relu, "X")


def test_outputs_of_another_shape_than_stated() -> None:
    arrays = [X, weights()["W"], weights()["R"]]
    Y = onegru.gru(*arrays)[0]
    backend.run_node(gru("X", ["Y"]), arrays, outputs_info=[(Y.dtype, Y.shape)])
    for wrong in ((np.float64, Y.shape), (Y.dtype, Y.shape[1:])):
        with pytest.raises(SpecError, match=r"outputs_info: .*; must be \[\(dtype\('float32'\), "):
            backend.run_node(gru("X", ["Y"]), arrays, outputs_info=[wrong])


def test_a_hidden_size_that_contradicts_a_stated_shape() -> None:
    for hidden, is_right in ((H, True), (H + 1, False)):
        inputs = [value("X"), value("W", shape=[1, 3 * H, I]), value("R", shape=[1, 3 * H, H])]
        proto = model(graph([gru("X", ["Y", "Y_h"], hidden_size=hidden)], inputs, ["Y", "Y_h"], {}))
        assert backend.is_compatible(proto) is is_right


def test_run_node_with_lengths() -> None:
    constants = weights()
    arrays = [X, constants["W"], constants["R"], np.array([T, 1], np.int32)]
    wanted = onegru.gru(X, constants["W"], constants["R"], sequence_lens=[T, 1])
    same(backend.run_node(gru("X", ["Y", "Y_h"], lens="lens"), arrays), wanted)


def test_run_node_of_an_old_version() -> None:
    constants = weights()
    arrays = [X, constants["W"], constants["R"]]
    old = gru("X", ["Y", "Y_h"], output_sequence=1)
    same(backend.run_node(old, arrays, opset_version=3), onegru.gru(*arrays))
    with pytest.raises(onegru.SpecError, match="output_sequence was removed in opset 7"):
        backend.run_node(old, arrays)


def test_run_node_of_another_operator() -> None:
    relu = node("Relu", ["X"], ["Z"])
    same(backend.run_node(relu, [X], opset_version=14), [np.maximum(X, 0)])
    same(backend.run_node(relu, [X]), [np.maximum(X, 0)])
    # Operators that get a new version with every new type, and one with bodies.
    same(backend.run_node(node("Identity", ["X"], ["Z"]), [X]), [X])
    same(backend.run_node(node("Cast", ["X"], ["Z"], to=11), [X]), [X.astype(np.float64)])
    outer = node("Loop", ["n", "", "X"], ["Z"], body=loop_body())
    same(backend.run_node(outer, [np.array(3), X]), [X + X + X + X])
    illegal: tuple[Any, ...] = (0, True, "a", 2**70)
    for wrong in illegal:
        with pytest.raises(onegru.SpecError, match=r"opset_version: .*; must be"):
            backend.run_node(relu, [X], opset_version=wrong)


def loop_body() -> onnx.GraphProto:
    nodes = [node("Add", ["x", "x0"], ["y"]), node("Identity", ["c"], ["d"])]
    nodes.insert(0, node("Identity", ["X"], ["x0"]))
    inputs = [value("i", "int64", []), value("c", "bool", []), value("x")]
    return onnx.helper.make_graph(nodes, "body", inputs, [value("d", "bool", []), value("y")])


def test_engines() -> None:
    h = numbers(2, 1, B, H)
    seen = []
    for engine in ("auto", "native", "reference"):
        prepared = backend.prepare(whole(), engine=engine)
        (gru_layer,) = prepared._model.gru_nodes
        assert gru_layer.layer is not None
        seen.append(gru_layer.layer.engine)
        direct = onegru.load(whole(), engine=engine).run({"X": X, "h": h})
        same(prepared.run([X, h]), direct.values())
        same(backend.run_model(whole(), [X, h], engine=engine), direct.values())
    assert seen[1:] == ["native", "reference"]
    arrays = [X, weights()["W"], weights()["R"]]
    wanted = onegru.GRU(*arrays[1:], engine="reference")(X)
    same(backend.run_node(gru("X", ["Y", "Y_h"]), arrays, engine="reference"), wanted)
    with pytest.raises(onegru.SpecError, match="engine: 'fast'; must be one of auto, native, reference"):
        backend.prepare(whole(), engine="fast")
    assert not backend.is_compatible(whole(), engine="fast")


def test_devices() -> None:
    for name in ("CPU", "cpu", "CPU:0"):
        assert backend.supports_device(name)
    for name in ("CUDA", "CUDA:0", "", "CPUX"):
        assert not backend.supports_device(name)
    with pytest.raises(onegru.SpecError, match="device: 'CUDA'; must be CPU"):
        backend.prepare(whole(), "CUDA")
    with pytest.raises(onegru.SpecError, match="device: 'CUDA'; must be CPU"):
        backend.run_node(gru("X", ["Y"]), [X, X, X], "CUDA")


def test_is_compatible() -> None:
    assert backend.is_compatible(whole())
    assert not backend.is_compatible(whole(), "CUDA")
    assert not backend.is_compatible(whole(clip=-1.0))
    assert not backend.is_compatible(onnx.ModelProto())
    unknown = model(graph([node("NoSuchOperator", ["X"], ["Z"])], [value("X")], ["Z"]))
    assert not backend.is_compatible(unknown)


def test_options_are_refused() -> None:
    message = "speed: not an option of this backend; remove it"
    calls = (
        lambda: backend.prepare(whole(), speed=1),
        lambda: backend.run_model(whole(), [X, X], speed=1),
        lambda: backend.prepare(whole()).run([X, X], speed=1),
        lambda: backend.run_node(gru("X", ["Y"]), [X, weights()["W"], weights()["R"]], speed=1),
    )
    for call in calls:
        with pytest.raises(onegru.SpecError, match=re.escape(message)):
            call()


def test_wrong_numbers_of_inputs() -> None:
    prepared = backend.prepare(whole())
    h = numbers(2, 1, B, H)
    with pytest.raises(onegru.SpecError, match="inputs: 3 arrays; must be at most 2"):
        prepared.run([X, h, h])
    with pytest.raises(onegru.SpecError, match="'h': missing"):
        prepared.run([X])
    with pytest.raises(onegru.SpecError, match="'y': not an input"):
        prepared.run({"X": X, "h": h, "y": h})
    with pytest.raises(onegru.SpecError, match="inputs: 2 arrays; must be 3"):
        backend.run_node(gru("X", ["Y"]), [X, X])


def test_external_data_need_a_file() -> None:
    proto = whole()
    external = proto.graph.initializer[0]
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    external.external_data.add(key="location", value="weights")
    with pytest.raises(onegru.FormatError, match="load it from its file"):
        backend.prepare(proto)


def test_arguments_of_other_types() -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x = np.zeros(2, np.float32)
    assert not onegru.backend.supports_device(3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"node: None; must be a NodeProto"):
        onegru.backend.run_node(None, [x])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="inputs: 5; must be an array or a list of arrays"):
        onegru.backend.run_node(node, 5)
    with pytest.raises(SpecError, match="device: 3; must be CPU"):
        onegru.backend.run_node(node, [x], device=3)  # type: ignore[arg-type]
