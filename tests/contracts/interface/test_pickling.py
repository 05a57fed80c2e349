"""Test that all public objects can be pickled and copied, and that copies share nothing that changes."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from onegru.core.errors import needs_extra
from onegru.engines.interface import DEFAULT_OPTIONS
from onegru.models.gru_node import runner_of
from tests.support.decomposed.draw import decomposed
from tests.support.layers import make_gru, make_stack
from tests.support.machine.repository import DENOISER

B, I = 2, 5
X = np.random.default_rng(1).standard_normal((3, B, I)).astype(np.float32)
FRAMES = np.random.default_rng(2).standard_normal((3, 1, 1, 16)).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """Constructor of an object of a class, or of a subclass, and its identifying properties."""

    make: Callable[[type[Any]], Any]
    known_by: Callable[[Any], Any]
    begin: Callable[[Any], Any] = lambda instance: None


def made_of(kind: Any, base: Any, *arguments: Any, **keywords: Any) -> Any:
    """Create an object of a class without a public constructor, as the class itself does."""
    instance = kind.__new__(kind)
    base.__init__(instance, *arguments, **keywords)
    return instance


def layer_of(kind: type[Any]) -> Any:
    layer = make_gru(clip=0.5)
    return kind.from_canonical(layer.spec, layer.weights, weight_storage="int8", activation_storage="int8")


def describe(spec: onegru.Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in type(spec).__dataclass_fields__}


def error(message: str) -> Case:
    return Case(lambda kind: kind(message), lambda error: (str(error), error.args))


def model_stream(kind: type[Any]) -> Any:
    stream = onegru.load(DENOISER).stream()
    return made_of(kind, onegru.reports.ModelStream, stream._graph, stream._run, stream.pairs, {})


@cache
def graph() -> Any:
    return onegru.load(DENOISER).graph


def node_of(kind: type[Any]) -> Any:
    model = onegru.load(DENOISER)
    (step,) = (gru.step for gru in model.gru_nodes)
    layer = made_of(kind, onegru.reports.GruNode, step, "place: ", DEFAULT_OPTIONS)
    layer._prepare(dict(model.graph.constants), (), {})
    return layer


def run_node(node: Any) -> Any:
    values = {name: np.ones((1, 1, 1), np.float32) for name in node.step.inputs.values()}
    values[node.step.inputs["X"]] = np.ones((2, 1, node.layer.spec.input_size), np.float32)
    values[node.step.inputs["initial_h"]] = np.ones((1, 1, node.layer.spec.hidden_size), np.float32)
    runner_of(node).run(values)
    return node.name, node.operator, [values[name] for name in node.step.outputs.values()]


def plain(make: Callable[[], Any]) -> Case:
    """Return the case of a frozen dataclass of plain data."""
    return Case(lambda kind: make(), repr)


@cache
def gates() -> onegru.reports.GateTrace:
    return make_gru(attention=True).trace(X, attention=np.ones((3, B), np.float32))


@cache
def fusion() -> onegru.reports.Fusion:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "target.onnx"
        source.write_bytes(decomposed("chain", np.random.default_rng(1)).model.SerializeToString())
        return onegru.fuse(source, target, check=False)


@cache
def rewriting() -> onegru.reports.Rewriting:
    with tempfile.TemporaryDirectory() as folder:
        return onegru.rewrite(DENOISER, Path(folder) / "rewritten.onnx", check=False)


@cache
def quantization() -> onegru.reports.Quantization[onegru.GRU]:
    return onegru.quantize(make_gru(), X)


@cache
def verification() -> onegru.reports.Verification:
    return onegru.verify(DENOISER, runtimes=[])


CASES = {
    "Activation": Case(lambda kind: kind("Elu", 0.5), str),
    "Check": plain(lambda: onegru.Check(dims={"batch": 3}, tolerance=1e-3)),
    "FormatError": error("m.onnx: broken"),
    "Fusion": plain(fusion),
    "GRU": Case(layer_of, lambda layer: (*layer(X), describe(layer.spec), layer.weight_storage, repr(layer))),
    "GateTrace": Case(
        lambda kind: kind(**{name: getattr(gates(), name) for name in kind.__dataclass_fields__}),
        lambda trace: [repr(trace), *(getattr(trace, name) for name in trace.__dataclass_fields__)],
    ),
    "GruNode": Case(node_of, run_node),
    "ModeResult": plain(lambda: quantization().chosen),
    "NodeReport": plain(lambda: rewriting().nodes[0]),
    "Comparison": plain(lambda: onegru.reports.Comparison("Y", max_abs=1e-7, max_ulp=1, tolerance=1e-6)),
    "QuantizedGru": plain(lambda: quantization().grus[0]),
    "GruReport": plain(lambda: onegru.inspect(DENOISER).grus[0]),
    "InferenceSession": Case(lambda kind: kind(DENOISER), lambda session: session.run(None, denoise(0))),
    "Inspection": plain(lambda: onegru.inspect(DENOISER)),
    "MissingExtraError": Case(
        lambda kind: kind("onnx", "extra", "m.onnx"),
        lambda error: (str(error), error.args, error.package, error.extra, error.purpose),
    ),
    "Model": Case(
        lambda kind: made_of(kind, onegru.Model, graph()), lambda model: [*model.run(denoise(0)).values()]
    ),
    "ModelStream": Case(
        model_stream,
        lambda stream: ([*stream.step({"x": FRAMES[1]}).values()], stream.state["h"]),
        lambda stream: stream.step({"x": FRAMES[0]}),
    ),
    "OneGRUError": error("none"),
    "Quantization": Case(
        lambda kind: quantization(),
        lambda report: (str(report), report.weight_storage, report.trace()[1].h, report.result(X)[0]),
    ),
    "Rewriting": plain(rewriting),
    "Spec": Case(lambda kind: kind(1, 2, "float32", clip=0.5), describe),
    "SpecError": error("X: wrong"),
    "SpecWarning": error("B: without effect"),
    "Stack": Case(lambda kind: kind(make_stack(2).layers), lambda stack: (stack(X)[0], repr(stack))),
    "StackStream": Case(
        lambda kind: made_of(kind, onegru.reports.StackStream, [g.stream(B) for g in make_stack(2).layers]),
        lambda stream: (stream.step(X[1]), *stream.state),
        lambda stream: stream.step(X[0]),
    ),
    "Stream": Case(
        lambda kind: made_of(kind, onegru.reports.Stream, make_gru(), B),
        lambda stream: (stream.step(X[1]), stream.state),
        lambda stream: stream.step(X[0]),
    ),
    "Targets": Case(
        lambda kind: kind(("AVX2",), "AVX2", "simd", True),
        lambda targets: (targets.available, targets.chosen),
    ),
    "TensorInfo": plain(lambda: onegru.load(DENOISER).inputs[0]),
    "Verification": plain(verification),
    "Weights": Case(
        lambda kind: kind(X, X, X),
        lambda weights: (weights.W, weights.R, weights.B, weights.B.flags.writeable),
    ),
}


def denoise(frame: int) -> dict[str, Array]:
    return {"x": FRAMES[frame], "h": np.ones(graph_state_shape(), np.float32)}


@cache
def graph_state_shape() -> tuple[int, ...]:
    stream = onegru.load(DENOISER).stream()
    stream.step({"x": FRAMES[0]})
    return stream.state["h"].shape


REPORTS = {name: getattr(onegru.reports, name) for name in onegru.reports.__all__}
CLASSES = {
    **{name: item for name in onegru.__all__ if inspect.isclass(item := getattr(onegru, name))},
    **REPORTS,
}

# Pickles look classes up by name. So the subclasses are in this module, with an additional slot, which
# Python's exceptions do not keep.
SUBCLASSES: dict[str, type[Any]] = {
    name: type(
        f"Own{name}",
        (kind,),
        {"__module__": __name__, "__slots__": () if issubclass(kind, Exception) else ("slot",)},
    )
    for name, kind in CLASSES.items()
    if not is_dataclass(kind)  # dataclasses are frozen
}
globals().update({kind.__name__: kind for kind in SUBCLASSES.values()})

WAYS: dict[str, Callable[[Any], Any]] = {
    **{f"pickle {n}": lambda item, n=n: pickle.loads(pickle.dumps(item, n)) for n in (2, 5)},  # type: ignore[misc]
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def test_every_public_class_has_a_case() -> None:
    assert CASES.keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_are_onegrus_own(name: str) -> None:
    assert CLASSES[name].__module__ == ("onegru.reports" if name in REPORTS else "onegru")
    assert CLASSES[name].__qualname__ == name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLASSES)
def test_objects_pickle_and_copy(name: str, way: str) -> None:
    case = CASES[name]
    item = case.make(CLASSES[name])
    case.begin(item)
    twin = WAYS[way](item)
    assert type(twin) is CLASSES[name]
    # The properties may change the object. The copy has its own state.
    np.testing.assert_equal(case.known_by(twin), case.known_by(item))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SUBCLASSES)
def test_subclasses_pickle_and_copy(name: str, way: str) -> None:
    case = CASES[name]
    item = case.make(SUBCLASSES[name])
    case.begin(item)
    item.slot, item.label, item.itself = ["in a slot"], {"a": 1}, item
    twin = WAYS[way](item)
    assert type(twin) is SUBCLASSES[name]
    assert (twin.slot, twin.label) == (["in a slot"], {"a": 1})
    assert twin.itself is (item if way == "copy" else twin)
    assert (twin.label is item.label) == (way == "copy")
    np.testing.assert_equal(case.known_by(twin), case.known_by(item))


@pytest.mark.parametrize("name", ["GRU", "Stream", "Model"])
def test_what_is_made_anew_is_in_no_pickle(name: str) -> None:
    assert CASES[name].make(CLASSES[name]).__getstate__() is None


def test_a_pickle_holds_a_layer_once() -> None:
    layer = make_gru(hidden=64)
    streams = [layer.stream() for _ in range(10)]
    assert len(pickle.dumps(streams)) < 1.5 * len(pickle.dumps(layer))
    twins = pickle.loads(pickle.dumps((layer, streams)))
    assert all(stream._layer is twins[0] for stream in twins[1])


def test_layers_and_streams_name_only_public_classes() -> None:
    """So another version, with other modules, can read a pickle."""
    stack = make_stack(2, activations=["Elu", "Tanh"])
    pickled = pickle.dumps((make_gru(), stack, stack.stream(), make_gru().stream()), 2)
    assert set(re.findall(rb"onegru\.\w+", pickled)) == {b"onegru.reports"}


def test_a_refused_import_is_reported_across_processes() -> None:
    """A pool of processes would wait forever for an error that it cannot read."""
    with (
        pytest.raises(onegru.MissingExtraError) as caught,
        needs_extra("no_such_package", "extra", "this"),
    ):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    caught.value.add_note("while testing")
    twin = pickle.loads(pickle.dumps(caught.value))
    assert str(twin) == "this needs no_such_package: pip install 'onegru[extra]'"
    assert twin.__notes__ == ["while testing"]
