"""Build models for tests of `rewrite`, and check the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto

import onegru
from onegru.core.dtypes import Array
from onegru.rewriting.rewrite import Rewriting, rewrite
from tests.support.files.onnx_models import (
    Arrays,
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
from tests.support.models.runtimes import onnxruntime_results, openvino_results

OTHERS = {"onnxruntime": onnxruntime_results, "openvino": openvino_results}


@dataclass(frozen=True)
class Case:
    """Model of one GRU node between a MatMul and Neg nodes."""

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
        if self.computed:  # halved twice and added again: the same values, but computed in each run
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
    """Assert that all nodes except the GRUs, and all other parts, are byte for byte equal in both models."""
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


def rewritten(tmp_path: Path, proto: ModelProto, **options: Any) -> tuple[Rewriting, ModelProto]:
    report = rewrite(save(tmp_path, proto), tmp_path / "target.onnx", **options)
    target = onnx.load(tmp_path / "target.onnx")
    onnx.checker.check_model(target)
    return report, target


def check(case: Case, tmp_path: Path, *, runtimes: Sequence[str] = (), **options: Any) -> ModelProto:
    """Rewrite a model, and compare it in onegru and runtimes with the reference, for several sizes."""
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


def exported_augru(steps: int | str, attributes: Mapping[str, Any], *more: str) -> ModelProto:
    """Return a model as exporters write it, without the AUGRU function. `more` are optional inputs."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes: dict[str, list[Any]] = {"X": [steps, B, I], "A": [steps, B, 1], "initial_h": [D, B, H]}
    if attributes.get("layout"):
        shapes = {name: [rows, axis, size] for name, (axis, rows, size) in shapes.items()}
    infos = [value(name, shape=shapes[name]) for name in ("X", "A", *more) if name in shapes]
    infos += [value(name, "int32", [B]) for name in more if name == "sequence_lens"]
    inputs = {name: name for name in ("X", "W", "R", "B", "A", *more)}
    made = augru_node(inputs, {"Y": "Y", "Y_h": "Y_h"}, {"hidden_size": H, **attributes}, "a")
    outputs = [value("Y", shape=[None] * 4), value("Y_h", shape=[None] * 3)]
    sizes = {"W": (D, 3 * H, I), "R": (D, 3 * H, H), "B": (D, 6 * H)}
    constants = {name: numbers(7, *size) for name, size in sizes.items()}
    return model(graph([made], infos, outputs, constants), opset=15, domains={"onegru": 1})
