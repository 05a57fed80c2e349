"""The versions of ONNX's GRU."""

from __future__ import annotations

import numpy as np
import pytest

import onegru
from onegru.operators.lowering import lower
from onegru.operators.onnx import AUGRU, GRU_VERSIONS, OPERATORS, gru_version
from tests.support.operator_arguments import gru_arguments


@pytest.mark.parametrize(
    ("opset", "version"),
    [(1, 1), (2, 1), (3, 3), (6, 3), (7, 7), (13, 7), (14, 14), (21, 14), (22, 22), (99, 22)],
)
def test_the_newest_version_at_or_below_the_opset_rules(opset: int, version: int) -> None:
    operator = gru_version(opset)
    assert operator is not None
    assert operator.version == version
    onegru.gru(**gru_arguments(), opset=opset)


def test_attributes_of_each_version() -> None:
    common = {"activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size"}
    extra = {
        1: {"output_sequence"},
        3: {"output_sequence", "linear_before_reset"},
        7: {"linear_before_reset"},
        14: {"linear_before_reset", "layout"},
        22: {"linear_before_reset", "layout"},
    }
    assert {v: set(operator.attributes) - common for v, operator in GRU_VERSIONS.items()} == extra
    assert all(common <= set(operator.attributes) for operator in GRU_VERSIONS.values())
    assert [v for v, operator in GRU_VERSIONS.items() if "bfloat16" in operator.element_types] == [22]


def test_version_1_has_its_misspelt_default() -> None:
    np.testing.assert_array_equal(
        onegru.gru(**gru_arguments(), direction="foward", opset=1)[0],
        onegru.gru(**gru_arguments(), opset=1)[0],
    )


def test_augru_is_the_newest_gru_with_scores() -> None:
    newest = GRU_VERSIONS[max(GRU_VERSIONS)]
    assert str(AUGRU) == "AUGRU-1"
    assert {*AUGRU.attributes} == {*newest.attributes, "attention"}
    assert AUGRU.outputs == newest.outputs
    assert AUGRU.inputs[:-1] == newest.inputs
    assert [(port.name, port.axes, port.batch_first) for port in AUGRU.inputs[-1:]] == [("A", "TB1", "BT1")]
    assert OPERATORS["AUGRU", 1] is AUGRU
    assert OPERATORS["GRU", 14] is GRU_VERSIONS[14]


def test_augru_is_lowered_to_a_spec_with_attention() -> None:
    arguments = gru_arguments()
    lowered = lower(AUGRU, {"clip": 0.5, "linear_before_reset": 1}, arguments["W"], arguments["R"])
    assert (lowered.spec.attention, lowered.spec.clip, lowered.spec.linear_before_reset) == (
        "openvino",
        0.5,
        True,
    )
    dien = lower(AUGRU, {"attention": "dien"}, arguments["W"], arguments["R"])
    assert dien.spec.attention == "dien"
    with pytest.raises(onegru.SpecError, match="attention: 'augru'; must be 'openvino' or 'dien'"):
        lower(AUGRU, {"attention": "augru"}, arguments["W"], arguments["R"])
    with pytest.raises(
        onegru.SpecError, match="output_sequence: not an attribute of AUGRU-1; must be one of"
    ):
        lower(AUGRU, {"output_sequence": 1}, arguments["W"], arguments["R"])
