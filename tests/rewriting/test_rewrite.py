"""Rewriting the GRU nodes of whole models: every change against the reference engine and other runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto

import onegru
from onegru.rewriting import activation_ops, decompose
from onegru.rewriting.rewrite import Report, rewrite
from tests.support.onnx_models import (
    Array,
    Arrays,
    B,
    H,
    I,
    T,
    graph,
    gru,
    model,
    node,
    numbers,
    onnxruntime_results,
    save,
    tensor,
    value,
    weights,
)


def openvino_results(proto: ModelProto, feeds: Mapping[str, Array]) -> Arrays:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    read = core.read_model(proto.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(dict(feeds))
    return {output.name: np.array(results[output.name]) for output in proto.graph.output}


OTHERS = {"onnxruntime": onnxruntime_results, "openvino": openvino_results}


@dataclass(frozen=True)
class Case:
    """A model of one GRU node between a MatMul and Neg nodes."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 14
    dtype: str = "float32"
    present: tuple[str, ...] = ("B", "sequence_lens", "initial_h", "Y", "Y_h")
    hidden_size: int | None = H
    computed: bool = False

    @property
    def D(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1

    @property
    def batch_first(self) -> bool:
        return self.attributes.get("layout") == 1

    def arrays(self, steps: int = T, rows: int = B) -> Arrays:
        lengths = np.array([steps, *range(rows - 1)], np.int32)[:rows]
        found = {
            "x": numbers(50, steps, rows, 2, dtype=self.dtype),
            "lengths": np.minimum(lengths, steps),
            "initial_h": numbers(51, self.D, rows, H, dtype=self.dtype),
        }
        if self.batch_first:
            found |= {name: found[name].swapaxes(0, 1) for name in ("x", "initial_h")}
        if self.computed:
            found |= {f"raw_{name}": array for name, array in self.weights().items()}
        return {name: found[name] for name in found if self.takes(name)}

    def takes(self, name: str) -> bool:
        optional = {"lengths": "sequence_lens", "initial_h": "initial_h", "raw_B": "B"}
        return optional.get(name, "Y") in self.present or name not in optional

    def weights(self) -> Arrays:
        return weights(D=self.D, dtype=self.dtype)

    def build(self) -> ModelProto:
        shape: list[str | int] = ["rows", "steps"] if self.batch_first else ["steps", "rows"]
        state: list[str | int] = ["rows", self.D, H] if self.batch_first else [self.D, "rows", H]
        inputs = [value("x", self.dtype, [*shape, 2])]
        if "sequence_lens" in self.present:
            inputs.append(value("lengths", "int32", ["rows"]))
        if "initial_h" in self.present:
            inputs.append(value("initial_h", self.dtype, state))
        constants = {"M": numbers(52, 2, I, dtype=self.dtype), **self.weights()}
        nodes = [node("MatMul", ["x", "M"], ["X"], name="before", doc_string="untouched")]
        if self.computed:  # twice halved and added again: the same numbers, but known in the run only
            for name in self.weights():
                inputs.append(value(f"raw_{name}", self.dtype, constants.pop(name).shape))
                nodes.append(node("Identity", [f"raw_{name}"], [name], name=f"compute_{name}"))
        outputs = [name if name in self.present else "" for name in ("Y", "Y_h")]
        nodes.append(
            gru(
                "X",
                outputs if outputs[1] else outputs[:1],
                bias="B" if "B" in self.present else "",
                lens="lengths" if "sequence_lens" in self.present else "",
                initial_h="initial_h" if "initial_h" in self.present else "",
                hidden_size=self.hidden_size,
                name="gru",
                **self.attributes,
            )
        )
        nodes += [node("Neg", [name], [f"out_{name}"], name=f"after_{name}") for name in outputs if name]
        results = [
            value(f"out_{name}", self.dtype, [None] * rank)
            for name, rank in (("Y", 4), ("Y_h", 3))
            if name in outputs
        ]
        if "B" not in self.present:
            constants.pop("B", None)
            nodes = [item for item in nodes if item.name != "compute_B"]
            inputs = [item for item in inputs if item.name != "raw_B"]
        return model(graph(nodes, inputs, results, constants), opset=self.opset)


def acts(*names: str, **more: Any) -> dict[str, Any]:
    return {"activations": list(names), **more}


CASES = [
    Case("plain", present=("Y",)),
    Case("bias", present=("B", "Y_h")),
    Case("everything"),
    Case("reset-after", {"linear_before_reset": 1}),
    Case("reset-after-no-bias", {"linear_before_reset": 1}, present=("initial_h", "Y", "Y_h")),
    Case("reverse", {"direction": "reverse"}, present=("B", "initial_h", "Y", "Y_h")),
    Case("reverse-lengths", {"direction": "reverse"}),
    Case("bidirectional", {"direction": "bidirectional"}),
    Case("bidirectional-after", {"direction": "bidirectional", "linear_before_reset": 1}, present=("B", "Y")),
    Case("batch-first", {"layout": 1}),
    Case("batch-first-both", {"layout": 1, "direction": "bidirectional"}),
    Case("clip", {"clip": 0.3, "direction": "bidirectional"}),
    Case("computed", {"direction": "bidirectional", "linear_before_reset": 1}, computed=True),
    Case("computed-before", {"direction": "reverse"}, computed=True),
    Case("no-hidden-size", hidden_size=None, present=("B", "Y")),
    Case("opset-7", {"direction": "bidirectional"}, opset=7),
    Case("opset-11", {"direction": "bidirectional"}, opset=11),
    Case("opset-22", {"direction": "bidirectional"}, opset=22),
    Case("float16", {"direction": "bidirectional"}, dtype="float16"),
    Case("float64", {"direction": "bidirectional"}, dtype="float64"),
    *(Case(name, acts("Sigmoid", name)) for name in ("Relu", "Softsign", "Softplus", "LeakyRelu", "Elu")),
    Case("HardSigmoid", acts("HardSigmoid", "Tanh")),
    Case("ThresholdedRelu", acts("Sigmoid", "ThresholdedRelu")),
    Case("Affine", acts("Sigmoid", "Affine", activation_beta=[0.1], linear_before_reset=1)),
    Case("ScaledTanh", acts("Sigmoid", "ScaledTanh", activation_alpha=[0.5], activation_beta=[0.7])),
    Case(
        "two-pairs",
        acts("Sigmoid", "Tanh", "HardSigmoid", "Affine", direction="bidirectional", activation_alpha=[0.3]),
    ),
    Case(
        "two-pairs-openvino-has",
        acts("Sigmoid", "Tanh", "Sigmoid", "Relu", direction="bidirectional"),
        present=("B", "Y"),
    ),
]
TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}


def cases() -> list[Any]:
    return [pytest.param(case, id=case.name) for case in CASES]


def expected(path: Path, feeds: Mapping[str, Array]) -> Arrays:
    return onegru.load(path, engine="reference").run(feeds)


def assert_close(found: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        have = np.asarray(found[name])
        assert have.shape == array.shape and have.dtype == array.dtype, name
        error = np.abs(have.astype(np.float64) - array.astype(np.float64))
        assert error.max(initial=0.0) <= tolerance, name


def others_untouched(source: ModelProto, target: ModelProto) -> None:
    """Every node but the GRUs is in the target byte for byte, and so is all that is not a node."""
    kept = {item.SerializeToString(deterministic=True) for item in target.graph.node}
    for item in source.graph.node:
        if item.op_type != "GRU":
            assert item.SerializeToString(deterministic=True) in kept, item.name
    for name in ("input", "output"):
        pairs = zip(getattr(source.graph, name), getattr(target.graph, name), strict=True)
        assert all(one == other for one, other in pairs)
    assert source.metadata_props == target.metadata_props
    assert (source.ir_version, source.doc_string, source.graph.name, source.producer_name) == (
        target.ir_version,
        target.doc_string,
        target.graph.name,
        target.producer_name,
    )


def grus(proto: ModelProto) -> list[NodeProto]:
    return [item for item in proto.graph.node if item.op_type == "GRU"]


def attributes(item: NodeProto) -> dict[str, Any]:
    return {entry.name: onnx.helper.get_attribute_value(entry) for entry in item.attribute}


def rewritten(tmp_path: Path, proto: ModelProto, **options: Any) -> tuple[Report, ModelProto]:
    report = rewrite(save(tmp_path, proto), tmp_path / "target.onnx", **options)
    target = onnx.load(tmp_path / "target.onnx")
    onnx.checker.check_model(target)
    return report, target


def check(case: Case, tmp_path: Path, *, runtimes: Sequence[str] = (), **options: Any) -> ModelProto:
    """Rewrite, and compare in onegru and in the runtimes, for several sizes, with the reference engine."""
    source = case.build()
    report, target = rewritten(tmp_path, source, **options)
    tolerance = max(TOLERANCE[case.dtype], 2e-3 if options.get("dtype") else 0.0)
    assert {item.name for item in report.outputs} == {item.name for item in source.graph.output}
    assert all(item.max_abs <= item.tolerance for item in report.outputs)
    if options.get("opset", case.opset) == case.opset:
        others_untouched(source, target)
    for steps, rows in ((T, B), (1, 1), (6, 3)):
        feeds = case.arrays(steps, rows)
        wanted = expected(tmp_path / "model.onnx", feeds)
        assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, tolerance)
        for runtime in runtimes:
            assert_close(OTHERS[runtime](target, feeds), wanted, max(10 * tolerance, 1e-12))
    return target


# ---- each change alone


@pytest.mark.parametrize("case", cases())
def test_decompose(case: Case, tmp_path: Path) -> None:
    runtimes = ("onnxruntime",) if case.dtype == "float64" else ("onnxruntime", "openvino")
    target = check(case, tmp_path, runtimes=runtimes, decompose=True)
    assert not grus(target)
    scans = [item for item in target.graph.node if item.op_type == "Scan"]
    assert len(scans) == case.D
    assert target.opset_import[0].version == max(case.opset, decompose.OLDEST_OPSET)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("case", cases())
def test_layout(case: Case, layout: int, tmp_path: Path) -> None:
    opset = max(case.opset, 14)
    target = check(case, tmp_path, layout=layout, opset=opset)
    (item,) = grus(target)
    assert attributes(item).get("layout", 0) == layout
    transposes = [item for item in target.graph.node if item.op_type == "Transpose"]
    moved = {"X", "initial_h", "Y", "Y_h"} & {"X", *case.present}
    assert len(transposes) == (len(moved) if layout != case.batch_first else 0)


@pytest.mark.parametrize("case", cases())
def test_float16(case: Case, tmp_path: Path) -> None:
    target = check(case, tmp_path, dtype="float16")
    (item,) = grus(target)
    if case.dtype == "float16":
        assert not [item for item in target.graph.node if item.op_type == "Cast"]
        return
    if case.computed:
        return
    tensors = {entry.name: entry for entry in target.graph.initializer}
    assert all(tensors[name].data_type == TensorProto.FLOAT16 for name in item.input[1:3])
    assert "W" not in tensors and "R" not in tensors


@pytest.mark.parametrize("case", cases())
def test_split(case: Case, tmp_path: Path) -> None:
    target = check(case, tmp_path, split=True)
    directions = [attributes(item).get("direction", b"forward") for item in grus(target)]
    assert directions == ([b"forward", b"reverse"] if case.D == 2 else directions[:1])
    if case.D == 2 and not case.computed:
        tensors = {entry.name: entry for entry in target.graph.initializer}
        assert all(tensors[name].dims[0] == 1 for item in grus(target) for name in item.input[1:3])
        assert "W" not in tensors


@pytest.mark.parametrize("opset", [7, 13, 22])
@pytest.mark.parametrize("case", cases())
def test_opset(case: Case, opset: int, tmp_path: Path) -> None:
    target = check(case, tmp_path, opset=opset)
    assert [entry.version for entry in target.opset_import] == [opset]
    (item,) = grus(target)
    names = set(attributes(item))
    assert "layout" not in names or opset >= 14
    assert attributes(item)["hidden_size"] == H


def test_everything_at_once(tmp_path: Path) -> None:
    case = Case("all", {"direction": "bidirectional", "clip": 0.5}, opset=11)
    target = check(case, tmp_path, opset=22, layout=1, dtype="float16", split=True)
    assert len(grus(target)) == 2 and all(attributes(item)["layout"] == 1 for item in grus(target))


@pytest.mark.parametrize("name", ["batch-first-both", "reset-after", "computed", "clip"])
def test_decompose_in_float16(name: str, tmp_path: Path) -> None:
    """Numbers are rounded to float16 where the operator would round them; the rest is float32."""
    case = next(case for case in CASES if case.name == name)
    runtimes = ("onnxruntime", "openvino")
    target = check(case, tmp_path, runtimes=runtimes, dtype="float16", decompose=True)
    casts = [item for item in target.graph.node if item.op_type == "Cast"]
    assert casts and not grus(target)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("case", cases())
def test_for_a_runtime(case: Case, runtime: Any, tmp_path: Path) -> None:
    if case.dtype == "float64" and runtime == "openvino":
        with pytest.raises(onegru.FormatError, match="'gru': openvino computes float64 in float32"):
            rewrite(save(tmp_path, case.build()), tmp_path / "target.onnx", runtime=runtime)
        assert not (tmp_path / "target.onnx").exists()
        return
    source = case.build()
    target = check(case, tmp_path, runtimes=(runtime,), runtime=runtime)
    report = rewrite(tmp_path / "model.onnx", tmp_path / "again.onnx", runtime=runtime)
    (entry,) = report.nodes
    assert bool(entry.done) == bool(entry.reasons)
    if not entry.reasons:
        assert target.SerializeToString(deterministic=True) == source.SerializeToString(deterministic=True)


# ---- versions 1 and 3, and the oldest files


@pytest.mark.parametrize("opset", [1, 3])
def test_to_the_first_versions(opset: int, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y", ""], bias="B", name="gru", layout=1)]
    source = model(graph(nodes, [value("X", shape=[2, 4, I])], [value("Y", shape=[None] * 4)], weights()))
    _, target = rewritten(tmp_path, source, opset=opset)
    (item,) = grus(target)
    assert attributes(item)["output_sequence"] == 1 and "layout" not in attributes(item)
    assert len(item.output) == (2 if opset == 1 else 1)  # Y_h is required in version 1
    feeds = {"X": numbers(1, 2, 4, I)}
    assert_close(
        onegru.load(tmp_path / "target.onnx").run(feeds), expected(tmp_path / "model.onnx", feeds), 1e-6
    )


@pytest.mark.parametrize("opset", [1, 3])
@pytest.mark.parametrize("options", [{"opset": 22}, {"runtime": "onnxruntime"}, {"decompose": True}])
def test_from_the_first_versions(opset: int, options: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"direction": "foward"} if opset == 1 else {"linear_before_reset": 3}
    nodes = [
        node("Add", ["x", "shift"], ["X"], broadcast=1, name="add"),
        gru("X", ["Y", "Y_h"], name="gru", output_sequence=1, **more),
    ]
    outputs = [value("Y", shape=[None] * 4), value("Y_h", shape=[None] * 3)]
    constants = {**weights(), "shift": numbers(3, I)}
    del constants["B"]
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], outputs, constants), opset=opset)
    report, target = rewritten(tmp_path, source, **options)
    assert report.opsets[0] == opset and report.others == ("Add node 'add'",)
    feeds = {"x": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onnxruntime_results(target, feeds), wanted, 1e-5)


def test_constants_before_ir_4(tmp_path: Path) -> None:
    constants = weights(D=2)
    inputs = [value("X", shape=[T, B, I])]
    inputs += [value(name, shape=array.shape) for name, array in constants.items()]
    nodes = [gru("X", ["Y"], bias="B", direction="bidirectional")]
    source = model(graph(nodes, inputs, [value("Y", shape=[None] * 4)], constants), opset=9, ir=3)
    _, target = rewritten(tmp_path, source, split=True)
    assert target.ir_version == 3 and [item.name for item in target.graph.input] == ["X"]
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(onnxruntime_results(target, feeds), expected(tmp_path / "model.onnx", feeds), 1e-5)


# ---- the rest of the model


def test_other_nodes_at_another_opset(tmp_path: Path) -> None:
    """Only what changed between the opsets is converted: Squeeze, whose axes became an input."""
    nodes = [
        node("Relu", ["x"], ["X"], name="relu", doc_string="kept"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Squeeze", ["Y"], ["S"], name="squeeze", axes=[1], doc_string="kept too"),
        node("Custom", ["S"], ["Z"], domain="elsewhere", name="custom"),
    ]
    proto = graph(nodes, [value("x", shape=["T", "N", I])], ["Z"], weights())
    proto.output[0].type.tensor_type.shape.SetInParent()
    source = model(proto, opset=11, domains={"elsewhere": 2})
    source.metadata_props.add(key="author", value="someone")
    report, target = rewritten(tmp_path, source, opset=18, check=False)
    assert report.others == ("Squeeze node 'squeeze'",) and report.outputs == ()
    by_name = {item.name: item for item in target.graph.node}
    for name in ("relu", "custom"):
        assert by_name[name] == next(item for item in source.graph.node if item.name == name)
    assert by_name["squeeze"].doc_string == "kept too" and len(by_name["squeeze"].input) == 2
    assert {entry.domain: entry.version for entry in target.opset_import} == {"": 18, "elsewhere": 2}
    assert target.metadata_props == source.metadata_props


def test_newer_attributes_at_their_defaults(tmp_path: Path) -> None:
    """What an older opset cannot say is left out where it says nothing; onnx's converter refuses these."""
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Reshape", ["x", "shape"], ["X"], name="reshape", allowzero=0),
        gru("X", ["Y"], name="gru"),
    ]
    proto = graph(nodes, [value("x", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights())
    report, target = rewritten(tmp_path, model(proto, opset=18), opset=13)
    assert report.others == ("Reshape node 'reshape'",)
    assert [len(item.attribute) for item in target.graph.node[:2]] == [0, 0]
    refused = model(proto, opset=18)
    refused.graph.node[1].attribute[0].i = 1
    with pytest.raises(onegru.FormatError, match="Reshape node 'reshape': cannot be brought"):
        rewrite(save(tmp_path, refused), tmp_path / "target.onnx", opset=13)


def test_what_cannot_be_converted_is_named(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", ["x", "scale"], ["X"], name="norm"),
        gru("X", ["Y"], name="gru"),
    ]
    constants = {**weights(), "scale": numbers(4, I)}
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], ["Y"], constants), opset=17)
    with pytest.raises(onegru.FormatError, match="LayerNormalization node 'norm': cannot be brought"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", opset=13)
    assert not (tmp_path / "target.onnx").exists()


def test_transposes_cancel_out(tmp_path: Path) -> None:
    """A time-first GRU between two Transposes becomes a batch-first one without any."""
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_time_first"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Transpose", ["Y"], ["Z"], perm=[2, 0, 1, 3], name="to_batch_first"),
        node("Relu", ["Z"], ["out"], name="relu"),
    ]
    proto = graph(nodes, [value("x", shape=["N", "T", I])], [value("out", shape=[None] * 4)], weights())
    proto.value_info.extend([value("X", shape=["T", "N", I]), value("Z", shape=["N", "T", 1, H])])
    _, target = rewritten(tmp_path, model(proto), layout=1)
    assert [item.op_type for item in target.graph.node] == ["GRU", "Relu"]
    assert [item.name for item in target.graph.value_info] == ["Z"]
    feeds = {"x": numbers(1, B, T, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_a_transpose_that_others_take_stays(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_time_first"),
        gru("X", ["Y"], bias="B", name="gru"),
        node("Transpose", ["Y"], ["Z"], perm=[2, 0, 1, 3], name="to_batch_first"),
        node("Relu", ["Y"], ["out"], name="relu"),
        node("Relu", ["X"], ["out_X"], name="relu_X"),
    ]
    outputs = [value("Z", shape=[None] * 4), value("out", shape=[None] * 4), value("out_X", shape=[None] * 3)]
    proto = graph(nodes, [value("x", shape=["N", "T", I])], outputs, weights())
    _, target = rewritten(tmp_path, model(proto), layout=1)
    others_untouched(model(proto), target)
    feeds = {"x": numbers(1, B, T, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    nodes = [gru(name, [f"Y_{name}"], bias="B", name=name, direction="bidirectional") for name in ("a", "b")]
    inputs = [value(name, shape=["T", "N", I]) for name in ("a", "b")]
    outputs = [value(f"Y_{name}", shape=[None] * 4) for name in ("a", "b")]
    source = model(graph(nodes, inputs, outputs, weights(D=2)))
    for options, count in (({"split": True}, 6), ({"dtype": "float16"}, 3)):
        _, target = rewritten(tmp_path, source, **options)
        large = [entry for entry in target.graph.initializer if len(entry.dims) > 1]
        assert len(large) == count, [entry.name for entry in large]


def test_weights_that_others_take_stay(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], bias="B", name="gru"), node("Relu", ["W"], ["Z"], name="relu")]
    outputs = [value("Y", shape=[None] * 4), value("Z", shape=[None] * 3)]
    source = model(graph(nodes, [value("X", shape=["T", "N", I])], outputs, weights()))
    _, target = rewritten(tmp_path, source, decompose=True)
    names = {entry.name for entry in target.graph.initializer}
    assert "W" in names and "R" not in names and "B" not in names


def test_defaults_that_a_caller_may_replace(tmp_path: Path) -> None:
    """An initializer that is an input as well stays one, and another value given for it counts."""
    inputs = [value("X", shape=["T", "N", I]), value("R", shape=[1, 3 * H, H])]
    source = model(graph([gru("X", ["Y"], name="gru")], inputs, [value("Y", shape=[None] * 4)], weights()))
    _, target = rewritten(tmp_path, source, decompose=True)
    assert [item.name for item in target.graph.input] == ["X", "R"]
    feeds = {"X": numbers(1, T, B, I), "R": numbers(2, 1, 3 * H, H)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def test_names_that_are_taken(tmp_path: Path) -> None:
    """New names differ from those that the file has, hostile ones included."""
    nodes = [
        node("Relu", ["x"], ["gru/X"], name="gru/X/Transpose"),
        gru("gru/X", ["Y"], name="gru"),
        node("Neg", ["Y"], ["gru/Y"], name="gru/0/Scan"),
    ]
    outputs = [value("gru/Y", shape=[None] * 4)]
    source = model(graph(nodes, [value("x", shape=["T", "N", I])], outputs, weights()))
    for options in ({"layout": 1}, {"decompose": True}, {"dtype": "float16"}):
        _, target = rewritten(tmp_path, source, **options)
        names = [name for item in target.graph.node for name in item.output if name]
        assert len(names) == len(set(names))


# ---- bodies, functions, external data


def nested(**attributes: Any) -> ModelProto:
    """A GRU in both branches of an If."""
    branches = {
        f"{name}_branch": graph(
            [gru("X", [f"Y_{name}"], bias="B", name=name, **attributes)],
            outputs=[value(f"Y_{name}", shape=[None] * 4)],
        )
        for name in ("then", "else")
    }
    inputs = [value("flag", "bool", []), value("X", shape=["T", "N", I])]
    nodes = [node("If", ["flag"], ["Y"], name="if", **branches)]
    constants = weights(D=2 if attributes.get("direction") == "bidirectional" else 1)
    return model(graph(nodes, inputs, [value("Y", shape=[None] * 4)], constants))


@pytest.mark.parametrize(
    "options",
    [
        {"opset": 22},
        {"opset": 11},
        {"split": True},
        {"decompose": True},
        {"dtype": "float16"},
        {"runtime": "onnxruntime"},
    ],
)
def test_bodies(options: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"activations": ["Sigmoid", "Tanh"] * 2, "direction": "bidirectional"}
    source = nested(**more)
    report, target = rewritten(tmp_path, source, **options)
    assert [entry.name for entry in report.nodes] == ["else", "then"] or len(report.nodes) == 2
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "X": numbers(1, T, B, I)}
        wanted = onnxruntime_results(source, feeds)
        tolerance = 2e-3 if "dtype" in options else 1e-6
        assert_close(onnxruntime_results(target, feeds), wanted, tolerance)


def test_bodies_that_onnxruntime_cannot_run(tmp_path: Path) -> None:
    """ONNX Runtime by itself refuses the source: it is onegru that runs it for the check."""
    source = nested(layout=1)
    path, target = save(tmp_path, source), tmp_path / "target.onnx"
    report = rewrite(path, target, runtime="onnxruntime")
    assert {entry.done for entry in report.nodes} == {("layout 1 became 0",)}
    X = numbers(1, T, B, I)
    plain = save(tmp_path, graph_of_one_gru(layout=1), "plain.onnx")
    wanted = expected(plain, {"X": X})
    assert_close(onnxruntime_results(onnx.load(target), {"flag": np.array(True), "X": X}), wanted, 1e-6)


def graph_of_one_gru(**attributes: Any) -> ModelProto:
    nodes = [gru("X", ["Y"], bias="B", **attributes)]
    return model(graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights()))


def test_other_nodes_in_bodies(tmp_path: Path) -> None:
    """A Loop whose body holds a GRU, on weights from outside, and a node that the new opset changes."""
    body = graph(
        [
            gru("h", ["Y"], bias="B", name="inner", hidden_size=I),
            node("Squeeze", ["Y"], ["h_next"], name="squeeze", axes=[1]),
            node("Identity", ["go"], ["go_on"], name="go_on"),
        ],
        [value("i", "int64", []), value("go", "bool", []), value("h", shape=[None, None, I])],
        [value("go_on", "bool", []), value("h_next", shape=[None, None, I])],
    )
    nodes = [node("Loop", ["times", "", "X"], ["Z"], name="loop", body=body)]
    constants = {**weights(H=I), "times": np.array(3, np.int64)}
    inputs = [value("X", shape=["T", "N", I])]
    source = model(graph(nodes, inputs, [value("Z", shape=[None] * 3)], constants), opset=11)
    feeds = {"X": numbers(1, T, B, I)}
    wanted = onnxruntime_results(source, feeds)
    for options in ({"opset": 18}, {"opset": 18, "decompose": True}, {"opset": 22, "runtime": "openvino"}):
        report, target = rewritten(tmp_path, source, **options)
        assert report.others == ("Squeeze node 'squeeze'",)
        assert [entry.name for entry in report.nodes] == ["inner"]
        assert_close(onnxruntime_results(target, feeds), wanted, 1e-6)


def test_functions_that_hold_grus(tmp_path: Path) -> None:
    body = [gru("x", ["y"], W="w", R="r", name="inner")]
    function = onnx.helper.make_function(
        "own", "Recurrent", ["x", "w", "r"], ["y"], body, [onnx.helper.make_opsetid("", 14)]
    )
    nodes = [node("Recurrent", ["X", "W", "R"], ["Y"], domain="own", name="call")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights())
    source = model(proto, functions=[function], domains={"own": 1})
    report, target = rewritten(tmp_path, source, decompose=True)
    assert "functions that hold GRU nodes" in report.notes[0]
    feeds = {"X": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onnxruntime_results(target, feeds), wanted, 1e-6)


def test_other_functions_stay(tmp_path: Path) -> None:
    function = onnx.helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [node("Add", ["x", "x"], ["y"], name="add")],
        [onnx.helper.make_opsetid("", 14)],
    )
    nodes = [gru("X", ["Y"], name="gru"), node("Twice", ["Y"], ["Z"], domain="own", name="call")]
    proto = graph(nodes, [value("X", shape=["T", "N", I])], [value("Z", shape=[None] * 4)], weights())
    source = model(proto, functions=[function], domains={"own": 1})
    _, target = rewritten(tmp_path, source, opset=18)
    assert target.functions[0].node == source.functions[0].node
    assert target.functions[0].opset_import[0].version == 18
    feeds = {"X": numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, 1e-6)


def external(tmp_path: Path) -> Path:
    source = model(
        graph([gru("X", ["Y"])], [value("X", shape=["T", "N", I])], [value("Y", shape=[None] * 4)], weights())
    )
    path = tmp_path / "model.onnx"
    onnx.save(source, path, save_as_external_data=True, location="model.bin", size_threshold=0)
    return path


def test_external_data_come_into_the_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target.onnx"
    report = rewrite(path, target, opset=22)
    assert report.notes == ("external data of 3 tensors are now within the file",)
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(onegru.load(target).run(feeds), expected(path, feeds), 1e-6)


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    path = external(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"model.bin", b"../../x.x"))
    with pytest.raises(onegru.FormatError, match="outside the model's folder"):
        rewrite(path, tmp_path / "target.onnx", opset=22, check=False)


# ---- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 0}, "opset: 0; must be a number from 1 to"),
        ({"opset": 999}, "opset: 999; must be a number from 1 to"),
        ({"layout": 2}, "layout: 2; must be 0 or 1"),
        ({"layout": 1, "opset": 13}, "opset: 13; must be at least 14, as GRU node 'gru' has layout"),
        ({"layout": 1, "runtime": "onnxruntime"}, "layout: 1; must be 0 for onnxruntime"),
        ({"layout": 0, "decompose": True}, "layout: given with decompose"),
        ({"split": True, "decompose": True}, "split: given with decompose"),
        ({"decompose": True, "opset": 9}, "opset: 9; must be at least 11 to spell GRU node 'gru'"),
        ({"dtype": "int8"}, "dtype: 'int8'; must be 'float16'"),
        ({"runtime": "tvm"}, "runtime: 'tvm'; must be 'onnxruntime' or 'openvino'"),
        ({"opset": 1}, "opset: 1; must be at least 3, as GRU node 'gru' has linear_before_reset"),
        ({"tolerance": -1.0}, "tolerance: -1.0; must be at least 0"),
        ({"dims": {"K": 3}, "opset": 22}, "dims: 'K'; must be an open dimension of an input: 'N', 'T'"),
        ({"dims": {"T": 0}, "opset": 22}, "dims['T']: 0; must be an integer, at least 1"),
        ({"dims": {"T": "3"}}, "dims['T']: '3'; must be an integer"),
        ({"dims": []}, "dims: []; must be a mapping from names to sizes"),
        ({"seed": -1}, "seed: -1; must be an integer, at least 0"),
        ({"seed": 1.5}, "seed: 1.5; must be an integer, at least 0"),
        ({"seed": True}, "seed: True; must be an integer, at least 0"),
        ({"inputs": 3}, "inputs: 3; must be a mapping from names to arrays"),
        ({"inputs": []}, "inputs: []; must be a mapping from names to arrays"),
        ({"inputs": {}, "opset": 22}, "'X': missing"),
        ({"inputs": {"Q": 3}, "opset": 22}, "'Q': not an input"),
        ({"inputs": {}, "dims": {"T": 3}}, "dims: given with inputs"),
        ({"inputs": {}, "check": False}, "inputs: given with check=False"),
        ({"tolerance": 0.1, "check": False}, "tolerance: given with check=False"),
        ({"tolerance": "a"}, "tolerance: 'a'; must be a number"),
        ({"check": 1}, "check: 1; must be True or False"),
        ({"split": 1}, "split: 1; must be True or False"),
        ({"decompose": "no"}, "decompose: 'no'; must be True or False"),
        ({"layout": True}, "layout: True; must be 0 or 1"),
        ({"source": 3}, "source: 3; must be the name of a file"),
        ({"target": None}, "target: None; must be the name of a file"),
    ],
)
def test_illegal_arguments(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru", linear_before_reset=1)]
    source = save(tmp_path, model(graph(nodes, [value("X", shape=["T", "N", I])], ["Y"], weights())))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(**{"source": source, "target": tmp_path / "target.onnx"} | options)
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.parametrize("opset", [7, 11, 13])
def test_a_layout_that_the_source_s_opset_has_not(opset: int, tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru")]
    infos = [value("X", shape=["T", "N", I])]
    source = save(tmp_path, model(graph(nodes, infos, ["Y"], weights()), opset=opset, ir=6))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(source, tmp_path / "target.onnx", layout=1)
    assert str(caught.value) == (
        f"layout: 1; needs a target of opset 14 or later, and this is one of {opset}: "
        "ask for opset 14 as well (--opset 14)"
    )
    assert rewrite(source, tmp_path / "target.onnx", layout=1, opset=14).opsets == (opset, 14)
    rewrite(source, tmp_path / "target.onnx", layout=0)


@pytest.mark.parametrize("name", ["target.txt", "nowhere/target.onnx", "folder.onnx"])
def test_illegal_targets(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    source = save(tmp_path, Case("plain").build())
    with pytest.raises(onegru.SpecError, match="target: "):
        rewrite(source, tmp_path / name, opset=22)


def test_models_without_a_gru(tmp_path: Path) -> None:
    source = model(graph([node("Relu", ["X"], ["Y"])], [value("X", shape=[2])], ["Y"]))
    with pytest.raises(onegru.FormatError, match="holds no GRU node"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", opset=22)


@pytest.mark.parametrize("data", [b"", b"not a model", Case("cut").build().SerializeToString()[:-50]])
def test_broken_files(data: bytes, tmp_path: Path) -> None:
    for check_it in (True, False):
        with pytest.raises(onegru.FormatError, match=r"model\.onnx"):
            rewrite(save(tmp_path, data), tmp_path / "target.onnx", check=check_it)
    assert not (tmp_path / "target.onnx").exists()


@pytest.mark.parametrize("options", [{"opset": 22}, {"layout": 0}, {"decompose": True}, {"dtype": "float16"}])
def test_damaged_files(options: dict[str, Any], tmp_path: Path) -> None:
    """A file with a few bytes changed is rewritten or refused, never anything else."""
    nodes = [
        node("Transpose", ["x"], ["X"], perm=[1, 0, 2], name="to_batch_first"),
        gru("X", ["Y"], bias="B", name="gru", layout=1, clip=2.0),
        node("Softmax", ["Y"], ["Z"], name="softmax", axis=1),
    ]
    proto = graph(nodes, [value("x", shape=["T", "N", I])], [value("Z", shape=[None] * 4)], weights())
    data = model(proto).SerializeToString()
    rng = np.random.default_rng(5)
    outcomes = set()
    for _ in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path = save(tmp_path, bytes(damaged))
        try:
            rewrite(path, tmp_path / "target.onnx", check=False, **options)
            outcomes.add("rewritten")
        except onegru.OneGRUError:
            outcomes.add("refused")
    assert outcomes == {"rewritten", "refused"}


def test_illegal_nodes_without_a_check(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name="gru", clip=-1.0)]
    source = save(tmp_path, model(graph(nodes, [value("X", shape=["T", "N", I])], ["Y"], weights())))
    with pytest.raises(onegru.SpecError, match="GRU node 'gru': clip: -1; must be > 0"):
        rewrite(source, tmp_path / "target.onnx", opset=22, check=False)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("R", numbers(1, 1, 2, 3), "R: shape [1, 2, 3]; must be [1, 9, 3]"),
        ("B", numbers(1, 18), "B: shape [18]; must be [1, 18]"),
        ("R", np.ones((1, 9, 3), np.int32), "R: type int32; must be float16"),
        ("R", numbers(1, 1, 9, 3, dtype="float64"), "W, R and B are of several types"),
    ],
)
def test_constants_beside_computed_weights(name: str, array: Array, message: str, tmp_path: Path) -> None:
    constants = {**weights(), name: array}
    other = "B" if name == "R" else "R"
    inputs = [value("X", shape=["T", "N", I]), value(other, shape=constants.pop(other).shape)]
    source = model(graph([gru("X", ["Y"], bias="B", name="gru")], inputs, ["Y"], constants))
    with pytest.raises(onegru.SpecError) as caught:
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", decompose=True, check=False)
    assert f"GRU node 'gru': {message}" in str(caught.value)


def test_weights_beyond_float16(tmp_path: Path) -> None:
    large = weights()
    large["W"][0, 1, 2] = 1e6
    source = model(graph([gru("X", ["Y"], name="gru")], [value("X", shape=["T", "N", I])], ["Y"], large))
    with pytest.raises(onegru.SpecError, match="float16: GRU node 'gru' has a weight of 1e"):
        rewrite(save(tmp_path, source), tmp_path / "target.onnx", dtype="float16")


def test_a_target_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rewriting is found, and an earlier target stays as it was."""
    target = tmp_path / "target.onnx"
    target.write_bytes(b"earlier")
    wrong = {**activation_ops.SPELLINGS, "Tanh": activation_ops.SPELLINGS["Relu"]}
    monkeypatch.setattr(activation_ops, "SPELLINGS", wrong)
    source = save(tmp_path, Case("plain").build())
    with pytest.raises(onegru.FormatError, match="not written: output 'out_Y' in onegru differs"):
        rewrite(source, target, decompose=True)
    assert target.read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "target.onnx"]


def test_the_source_may_be_the_target(tmp_path: Path) -> None:
    case = Case("plain", present=("Y",))
    path = save(tmp_path, case.build())
    feeds = case.arrays()
    wanted = expected(path, feeds)
    rewrite(path, path, decompose=True)
    assert_close(onegru.load(path).run(feeds), wanted, 1e-6)


def test_given_inputs_and_sizes(tmp_path: Path) -> None:
    """A model that runs on few shapes is checked on those that are given."""
    nodes = [
        node("Reshape", ["x", "shape"], ["X"], name="reshape"),
        gru("X", ["Y"], name="gru"),
    ]
    constants = {**weights(), "shape": np.array([10, 3, I])}
    source = model(graph(nodes, [value("x", shape=["K"])], [value("Y", shape=[None] * 4)], constants))
    path = save(tmp_path, source)
    with pytest.raises(onegru.FormatError, match=r"does not run on drawn inputs .* give inputs or dims"):
        rewrite(path, tmp_path / "target.onnx", opset=22)
    assert rewrite(path, tmp_path / "target.onnx", opset=22, dims={"K": 150}).outputs
    assert rewrite(path, tmp_path / "target.onnx", opset=22, inputs={"x": numbers(1, 150)}).outputs


def test_two_grus_on_one_input_for_openvino(tmp_path: Path) -> None:
    """OpenVINO miscomputes the first of them."""
    nodes = [gru("X", [f"Y{suffix}"], W="W", R="R", bias="B", name=f"gru{suffix}") for suffix in "12"]
    outputs = [value(f"Y{suffix}", shape=[None] * 4) for suffix in "12"]
    source = model(graph(nodes, [value("X", shape=["T", "N", I])], outputs, weights()))
    report, target = rewritten(tmp_path, source, runtime="openvino")
    assert all("another GRU takes too" in entry.reasons[0] for entry in report.nodes)
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(openvino_results(target, feeds), expected(tmp_path / "model.onnx", feeds), 1e-6)


def test_bfloat16(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    nodes = [gru("X", ["Y"], name="gru", direction="bidirectional")]
    inputs = [value("X", "bfloat16", ["T", "N", I])]
    outputs = [value("Y", "bfloat16", [None] * 4)]
    source = model(graph(nodes, inputs, outputs, weights(D=2, dtype="bfloat16")), opset=22)
    report, _ = rewritten(tmp_path, source, runtime="onnxruntime")
    assert report.notes == ("not checked in onnxruntime, which takes no bfloat16 arrays",)
    assert report.nodes[0].done == ("spelled in other operators, with 2 Scans",)
    feeds = {"X": numbers(1, T, B, I, dtype="bfloat16")}
    wanted = {"Y": expected(tmp_path / "model.onnx", feeds)["Y"].astype(np.float32)}
    found = {"Y": onegru.load(tmp_path / "target.onnx").run(feeds)["Y"].astype(np.float32)}
    assert_close(found, wanted, 1e-2)


def test_random_weights_of_real_size(tmp_path: Path) -> None:
    """A large layer stays within the tolerance."""
    rng = np.random.default_rng(0)
    W, R = (rng.uniform(-0.07, 0.07, (1, 600, 200)).astype(np.float32) for _ in range(2))
    proto = graph(
        [gru("X", ["Y"], hidden_size=200)],
        [value("X", shape=["T", "N", 200])],
        [value("Y", shape=[None] * 4)],
        [tensor("W", W), tensor("R", R)],
    )
    report, _ = rewritten(tmp_path, model(proto), decompose=True)
    assert 0 < max(item.max_abs for item in report.outputs) < 1e-6
