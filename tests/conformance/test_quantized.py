"""The quantized cases: what their files hold, what is expected of them, and that they catch mistakes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases, kit_cases, quantized_cases
from onegru.conformance.comparison import compare
from onegru.conformance.expect import Expectation
from onegru.conformance.files import case_files, fed_inputs, onnx_model
from onegru.conformance.storage import STORAGES, expect_on_grid
from onegru.core.dtypes import Array
from onegru.layers.call import apply
from tests.support.comparison import assert_bits

from .test_cases import by_oracle

onnx: Any = pytest.importorskip("onnx")

DIGEST = "4414cdd903c71b654e6470ce1752a86ed53bc28a6bfd24c83e96e5fa3cdaca5d"
CASES = quantized_cases()
ROUNDED = [case for case in CASES if case.rounded]
ids: Callable[[Case], str] = lambda case: case.name  # noqa: E731


def test_which_there_are() -> None:
    assert kit_cases() == all_cases() + CASES and len({case.name for case in kit_cases()}) == len(kit_cases())
    assert {case.level("stored") for case in CASES} == {"plain", *STORAGES}
    assert {case.opset for case in CASES} == {13, 14, 19, 21, 23}
    assert {case.level("linear_before_reset") for case in CASES} == {"none", "1"}
    assert all("DequantizeLinear" in case.source for case in CASES)


def test_each_is_a_case_of_plain_weights_otherwise() -> None:
    plain = {(case.operator.version, frozenset(case.choices.items())) for case in all_cases()}
    for case in CASES:
        rest = {name: level for name, level in case.choices.items() if name not in ("stored", "rounded")}
        assert (case.operator.version, frozenset(rest.items())) in plain


def test_they_are_the_same_everywhere() -> None:
    digest = hashlib.sha256()
    for case in CASES:
        digest.update(case.name.encode())
        for array in (*case.given.values(), *case.inputs.values()):
            digest.update(array.tobytes())
    assert digest.hexdigest() == DIGEST


# ---- what the files hold


def constants(case: Case) -> dict[str, Any]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx_model(case).graph.initializer}


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_file_is_legal_and_right(case: Case) -> None:
    files = case_files(case)
    assert case_files(Case(case.operator, case.choices)) == files  # the same bytes each time
    onnx.checker.check_model(files["model.onnx"], full_check=True)
    for engine in ("reference", "native"):
        model = onegru.load(files["model.onnx"], engine=engine)
        assert tuple(info.name for info in model.inputs) == tuple(fed_inputs(case))
        assert compare(case, model.run(fed_inputs(case))).status == "passes"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_weights_are_what_the_file_says(case: Case) -> None:
    """(q - zero point)·scale in fractions, number by number: exact in the node's type, whose bits it has."""
    found = constants(case)
    for node in onnx_model(case).graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in found:
            continue
        q, scale, *zero = (found[name] for name in node.input)
        attributes = {item.name: item.i for item in node.attribute}
        axis, size = attributes.get("axis", 1), attributes.get("block_size", 0)
        right = np.empty(q.size)
        for number, place in enumerate(np.ndindex(*q.shape)):
            where: tuple[int, ...] = () if scale.ndim == 0 else (place[axis],)
            if size:
                where = (*place[:axis], place[axis] // size, *place[axis + 1 :])
            offset = int(q[place]) - (int(zero[0][where]) if zero else 0)
            exact = offset * Fraction(float(scale[where]))
            right[number] = float(exact)
            assert Fraction(float(scale.dtype.type(right[number]))) == exact
        weight = node.output[0].removesuffix("/rows")
        assert_bits(case.inputs[weight].ravel(), right.astype(case.output_dtype()))


def test_how_weights_are_stored() -> None:
    tensors = {case.level("stored"): constants(case) for case in CASES}
    attributes = {
        case.level("stored"): {item.name: item.i for item in onnx_model(case).graph.node[0].attribute}
        for case in CASES
        if not case.rounded
    }
    rows = tensors["int8 by row"]
    assert rows["W/int8"].shape == (1, 15, 4) and rows["W/scale"].shape == (15,)
    assert rows["W/int8"].dtype == np.int8 and "W/zero_point" not in rows and "W" not in rows
    assert len(set(rows["W/scale"])) > 1 and len(set(tensors["uint8 by row"]["W/zero_point"])) > 1
    assert tensors["int8 by tensor"]["R/zero_point"].shape == ()
    assert (tensors["int8 with -128"]["R/int8"] == -128).any(axis=-1).all()
    both = tensors["int8 of both directions"]
    assert both["W/int8"].shape == (30, 4) and both["W/shape"].tolist() == [2, 15, 4]
    assert tensors["int8 in blocks"]["R/scale"].shape == (1, 15, 3)  # of 5 columns
    assert tensors["uint4 in blocks"]["R/zero_point"].dtype.name == "uint4"
    assert tensors["int8 with B in int32"]["B/int32"].dtype == np.int32
    assert tensors["int8 with float16"]["W/scale"].dtype == np.float16
    scales = tensors["W 128 times R"]
    assert 32 < scales["W/scale"].mean() / scales["R/scale"].mean() < 512
    assert attributes["uint8 by row"] == {"axis": -2} and attributes["int8 of both directions"] == {"axis": 0}
    assert attributes["uint4 in blocks"] == {"axis": 2, "block_size": 2}
    assert attributes["int8 with output_dtype"] == {"output_dtype": onnx.TensorProto.FLOAT}


# ---- what is expected


def rounded(array: Array, scale: float, zero: int, low: int) -> Array:
    """QuantizeLinear and DequantizeLinear, number by number; Python's round is to even as well."""
    q = [min(max(round(float(x) / scale) + zero, low), low + 255) for x in array.flat]
    return np.array([(number - zero) * scale for number in q]).reshape(array.shape)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_expectation_is_the_oracles(case: Case) -> None:
    right = dict(by_oracle(case))
    if "Y" in case.rounded:
        right["Y"] = rounded(right["Y"], 2.0**-7, 0, -128)
    for name in case.outputs:
        atol = 2.0**-11 if case.dtype == "float16" else 2.0**-23
        np.testing.assert_allclose(case.expected[name], right[name], rtol=0, atol=atol)
        assert np.all(case.tolerance[name] < (0.1 if case.dtype == "float16" else 1e-4))


@pytest.mark.parametrize("case", ROUNDED, ids=ids)
def test_what_is_rounded(case: Case) -> None:
    assert_bits(case.inputs["X"], rounded(case.given["X"], 2.0**-6, 0, -128).astype(np.float32))
    assert fed_inputs(case)["X"] is case.given["X"]
    if "initial_h" in case.rounded:
        first = rounded(case.given["initial_h"], 2.0**-7, 128, 0)
        assert_bits(case.inputs["initial_h"], first.astype(np.float32))
        assert not case.tolerance["Y"].any()


def test_a_number_between_two_steps_is_not_sharp() -> None:
    value, tolerance = np.array([0.5, 0.5 + 2.0**-8]), np.full(2, 1e-6)
    found = expect_on_grid("Y", Expectation({"Y": value}, {"Y": tolerance}))
    assert found.values["Y"].tolist() == [0.5, 0.5] and found.tolerance["Y"].tolist() == [0, 2.0**-7]
    assert not found.is_sharp("float32")


# ---- what they catch

#: What is in `onegru.core.quantized` or `onegru.formats.onnx.dequantized`, and what a fault makes of it.
FAULTS = {
    "no zero point": ("x.astype(np.int32) - of_zero.astype(np.int32)", "x.astype(np.int32)"),
    "differences in the type of the integers": (
        "x.astype(np.int32) - of_zero.astype(np.int32)",
        "(x - of_zero).astype(np.int32)",
    ),
    "-128 is no integer": ("offsets.astype(np.float32)", "np.maximum(offsets, -127).astype(np.float32)"),
    "8 bits for all": ("offsets.astype(np.float32)", "np.clip(offsets, -255, 255).astype(np.float32)"),
    "divided by the scale": ("* of_each", "/ of_each"),
    "the first scale for all rows": (
        "return array.reshape(sizes)",
        "return np.full_like(array, array[0]).reshape(sizes)",
    ),
    "the first scale for all blocks": ("np.arange(shape[axis]) // block_size", "np.arange(shape[axis]) * 0"),
    "blocks in turns": (
        "np.arange(shape[axis]) // block_size",
        "np.arange(shape[axis]) % array.shape[axis]",
    ),
    "the last block is a whole one": (
        "np.arange(shape[axis]) // block_size",
        "np.minimum(np.arange(shape[axis]), shape[axis] // block_size * block_size - 1) // block_size",
    ),
    "columns first": ("return array.reshape(shape)", "return array.reshape(shape, order='F')"),
}


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_case_catches_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru.core import quantized
    from onegru.formats.onnx import dequantized, parse

    old, new = FAULTS[fault]
    where = next((item for item in (quantized, dequantized) if old in _source(item)), None)
    assert where is not None, "the modules have changed"
    module = ModuleType("faulty_dequantized")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(_source(where).replace(old, new), fault, "exec"), module.__dict__)
    if where is quantized:
        monkeypatch.setattr(dequantized, "dequantize", module.dequantize)
    else:
        monkeypatch.setattr(parse, "fold_dequantized", module.fold_dequantized)
    outcomes = {
        compare(
            case, onegru.load(case_files(case)["model.onnx"], engine="reference").run(fed_inputs(case))
        ).status
        for case in CASES
    }
    assert outcomes == {"passes", "differs"}


def gru_of(case: Case, inputs: Any) -> dict[str, Array]:
    """Only the node, on other inputs."""
    layer = onegru.GRU.from_canonical(case.lowered.spec, case.lowered.weights)
    return dict(apply(layer, case.lowered.ports, inputs, dict.fromkeys(case.outputs)))


@pytest.mark.parametrize("case", ROUNDED, ids=ids)
def test_rounding_that_is_left_out_is_noticed(case: Case) -> None:
    for name in case.rounded:
        inputs = dict(case.inputs)
        if name in inputs:
            inputs[name] = case.given[name]
        got = gru_of(case, inputs)
        if "Y" in case.rounded and name != "Y":
            got["Y"] = rounded(got["Y"], 2.0**-7, 0, -128).astype(np.float32)
        assert compare(case, got).status == "differs"
    got = gru_of(case, case.inputs)
    if "Y" in case.rounded:
        got["Y"] = rounded(got["Y"], 2.0**-7, 0, -128).astype(np.float32)
    assert compare(case, got).status == "passes"
