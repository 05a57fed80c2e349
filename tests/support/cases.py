"""Generate random cases of every operator, as function calls, files and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st

from onegru.core.dtypes import Array
from onegru.formats.onnx.functions.augru import add_augru_functions

Rng = np.random.Generator

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
DIRECTIONS = ("forward", "reverse", "bidirectional")
OPSETS = (1, 2, 3, 6, 7, 13, 14, 21, 22, 26)
PARAMETER_COUNTS = {
    "Affine": 2,
    "LeakyRelu": 1,
    "ThresholdedRelu": 1,
    "ScaledTanh": 2,
    "HardSigmoid": 2,
    "Elu": 1,
    "Relu": 0,
    "Tanh": 0,
    "Sigmoid": 0,
    "Softsign": 0,
    "Softplus": 0,
}
OPENVINO_FUNCTIONS = ("relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class Case:
    """Call of `onegru.<function>`: inputs by the names of the specification, None for absent ones."""

    function: str
    inputs: Mapping[str, Array | None]
    attributes: Mapping[str, Any]
    opset: int = 22

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the element type."""
        x = self.inputs["X"]
        assert x is not None
        return x.dtype

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the function."""
        opset = {"opset": self.opset} if self.function == "gru" else {}
        return {**self.inputs, **self.attributes, **opset}


def normal(rng: Rng, dtype: np.dtype[Any], *shape: int) -> Array:
    """Return normally distributed values of a type."""
    return rng.standard_normal(shape).astype(dtype)


@st.composite
def functions_with_values(draw: st.DrawFn, count: int) -> dict[str, list[Any]]:
    """Draw `activations` with all or some values of `activation_alpha` and `activation_beta`."""
    names = draw(st.lists(st.sampled_from(sorted(PARAMETER_COUNTS)), min_size=count, max_size=count))
    numbers = st.floats(-1.5, 1.5, width=32)
    attributes: dict[str, list[Any]] = {}
    for name, least in (("activation_alpha", 1), ("activation_beta", 2)):
        takers = [function for function in names if PARAMETER_COUNTS[function] >= least]
        needed = max((i + 1 for i, function in enumerate(takers) if function == "ScaledTanh"), default=0)
        number = draw(st.integers(needed, len(takers)))
        if number or draw(st.booleans()):
            attributes[name] = [draw(numbers) for _ in range(number)]
    changes: tuple[Callable[[str], str], ...] = (str, str.lower, str.upper)
    change = draw(st.sampled_from(changes))
    return {"activations": [change(name) for name in names], **attributes}


@st.composite
def gru_cases(draw: st.DrawFn, opsets: Sequence[int] = OPSETS) -> Case:
    """Draw a call of ONNX's GRU in any version, or in the versions of these opsets."""
    opset = draw(st.sampled_from(opsets))
    direction = draw(st.sampled_from(DIRECTIONS))
    names = [name for name in DTYPES if name != "bfloat16" or opset >= 22]
    dtype = DTYPES[draw(st.sampled_from(names))]
    t, b, i, h = (draw(st.integers(least, most)) for least, most in ((0, 5), (0, 4), (0, 4), (1, 5)))
    d = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layout = draw(st.integers(0, 1)) if opset >= 14 else 0
    attributes: dict[str, Any] = {"direction": direction}
    if layout or (opset >= 14 and draw(st.booleans())):
        attributes["layout"] = layout
    if opset >= 3 and draw(st.booleans()):
        attributes["linear_before_reset"] = 1
    if opset < 7 and draw(st.booleans()):
        attributes["output_sequence"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        attributes["hidden_size"] = h
    if draw(st.booleans()):
        attributes["clip"] = draw(st.floats(0.0625, 3, width=32))
    if draw(st.booleans()):
        attributes |= draw(functions_with_values(2 * d))
    inputs: dict[str, Array | None] = {
        "X": normal(rng, dtype, *((b, t, i) if layout else (t, b, i))),
        "W": normal(rng, dtype, d, 3 * h, i),
        "R": normal(rng, dtype, d, 3 * h, h),
        "B": normal(rng, dtype, d, 6 * h) if draw(st.booleans()) else None,
        "sequence_lens": rng.integers(0, t + 1, b).astype(np.int32) if draw(st.booleans()) else None,
        "initial_h": normal(rng, dtype, *((b, d, h) if layout else (d, b, h)))
        if draw(st.booleans())
        else None,
    }
    return Case("gru", inputs, attributes, opset)


@st.composite
def augru_cases(draw: st.DrawFn, opsets: Sequence[int] = (22,)) -> Case:
    """Draw a call of onegru's AUGRU, in models of these opsets."""
    case = draw(gru_cases(opsets))
    x = case.inputs["X"]
    assert x is not None
    rng = np.random.default_rng(x.size)
    A = rng.uniform(-0.25, 1.25, (*x.shape[:2], 1)).astype(x.dtype)
    kind = draw(st.sampled_from(({}, {"attention": "openvino"}, {"attention": "dien"})))
    attributes = {**case.attributes, **kind}
    return replace(case, function="augru", inputs={**case.inputs, "A": A}, attributes=attributes)


@st.composite
def openvino_cases(draw: st.DrawFn, *functions: str) -> Case:
    """Draw a call of one of OpenVINO's four operators, or of the named ones."""
    function = draw(
        st.sampled_from(functions or ("gru_cell", "gru_sequence", "augru_cell", "augru_sequence"))
    )
    is_sequence, attention = function.endswith("sequence"), function.startswith("augru")
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    t, b, i, h = (draw(st.integers(least, most)) for least, most in ((0, 5), (0, 4), (0, 4), (1, 5)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    attributes: dict[str, Any] = {"hidden_size": h}
    direction = "forward"
    if is_sequence and not attention:
        direction = attributes["direction"] = draw(st.sampled_from(DIRECTIONS))
    d = 2 if direction == "bidirectional" else 1
    after = not attention and draw(st.booleans())
    if after:
        attributes["linear_before_reset"] = True
    if draw(st.booleans()):
        names = ("sigmoid", "tanh") if attention else OPENVINO_FUNCTIONS
        attributes["activations"] = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2))
    if draw(st.booleans()):
        attributes["clip"] = 0.0 if attention else draw(st.sampled_from((0.0, 0.5, 1.5, float("inf"))))

    directions = (d,) if is_sequence else ()
    state = "H_t" if attention else "initial_hidden_state"
    inputs: dict[str, Array | None] = {
        "X": normal(rng, dtype, *((b, t, i) if is_sequence else (b, i))),
        state: normal(rng, dtype, b, *directions, h),
    }
    if is_sequence:
        inputs["sequence_lengths"] = rng.integers(0, t + 1, b).astype(
            draw(st.sampled_from((np.int32, np.int64)))
        )
    inputs["W"] = normal(rng, dtype, *directions, 3 * h, i)
    inputs["R"] = normal(rng, dtype, *directions, 3 * h, h)
    without_bias = function == "gru_cell" and draw(st.booleans())
    inputs["B"] = None if without_bias else normal(rng, dtype, *directions, (4 if after else 3) * h)
    if attention:
        inputs["A"] = normal(rng, dtype, *((b, t, 1) if is_sequence else (b, 1)))
    return Case(function, inputs, attributes)


def onnx_model(case: Case, *, constant_weights: bool = True) -> onnx.ModelProto:
    """Return a model of one GRU or AUGRU node; weights are initializers or inputs."""
    weights = {"W", "R", "B"} if constant_weights else set()
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "A"]
    present = [name if case.inputs.get(name) is not None else "" for name in names]
    while not present[-1]:
        present.pop()
    node = onnx.helper.make_node(case.function.upper(), present, ["Y", "Y_h"], name="gru")
    node.domain = "onegru" if case.function == "augru" else ""
    for name, value in case.attributes.items():
        # An empty list has no type.
        kind = onnx.AttributeProto.FLOATS if isinstance(value, list) and not value else None
        node.attribute.append(onnx.helper.make_attribute(name, value, attr_type=kind))
    arrays = {name: array for name, array in case.inputs.items() if array is not None}
    element = onnx.helper.np_dtype_to_tensor_dtype(case.dtype)
    graph = onnx.helper.make_graph(
        [node],
        "case",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
            if name not in weights
        ],
        [onnx.helper.make_tensor_value_info(name, element, None) for name in ("Y", "Y_h")],
        [onnx.numpy_helper.from_array(arrays[name], name) for name in sorted(weights & set(arrays))],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", case.opset)], ir_version=10
    )
    if case.function == "augru":
        add_augru_functions(model)
    return model
