"""Build models with planted faults, and the expected reports of `verify`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru.peers.base import Runtime
from onegru.peers.onnx_reference import OnnxEvaluator
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino
from onegru.verification.compare_runtimes import compare_runtimes
from onegru.verification.results import Fault, RuntimeResult, Verification
from tests.support.files.ir_files import IrWriter
from tests.support.files.onnx_models import Arrays, I, graph, gru, model, node, numbers, value, weights

T, B, H = 4, 2, 3


def chain(bare: bool = False, dtype: str = "float32", **second: Any) -> onnx.ModelProto:
    """Return a chain of three GRUs, from X and a state to S2 and H2.

    The second GRU has lengths and these attributes. Under layout 1 it is between transpositions.
    """
    constants: Arrays = {"ax": np.array([1]), "flat": np.array([B, T, H])}
    nodes = []
    x, size = "X", I
    for k in range(3):
        constants |= weights(k, str(k), I=size, dtype=dtype)
        attributes = {"linear_before_reset": 1, **second} if k == 1 else {}
        batch_first = attributes.get("layout") == 1
        if batch_first:
            nodes.append(node("Transpose", [x], ["X_b"], perm=[1, 0, 2]))
            x = "X_b"
        names: dict[str, Any] = {} if bare else {"initial_h": "h_b" if batch_first else "h"}
        if k == 1 and not bare:
            names["lens"] = "lens"
        if batch_first and not bare:
            nodes.append(node("Transpose", ["h"], ["h_b"], perm=[1, 0, 2]))
        own: dict[str, Any] = {"W": f"W{k}", "R": f"R{k}", "bias": f"B{k}", "name": f"GRU_{k}"}
        nodes.append(gru(x, [f"Y{k}", f"H{k}"], **own, **names, **attributes))
        if batch_first:
            nodes.append(node("Reshape", [f"Y{k}", "flat"], ["Y_b"]))
            nodes.append(node("Transpose", ["Y_b"], [f"S{k}"], perm=[1, 0, 2]))
        else:
            nodes.append(node("Squeeze", [f"Y{k}", "ax"], [f"S{k}"]))
        x, size = f"S{k}", H
    inputs = [value("X", dtype, ["t", "b", I])]
    if not bare:
        inputs += [value("lens", "int32", ["b"]), value("h", dtype, [1, "b", H])]
    return model(graph(nodes, inputs, [value("S2", dtype), value("H2", dtype)], constants))


def feeds(bare: bool = False, dtype: str = "float32") -> Arrays:
    arrays = {"X": numbers(7, T, B, I, dtype=dtype)}
    if not bare:
        arrays |= {"lens": np.array([T, 2], np.int32), "h": numbers(8, 1, B, H, dtype=dtype)}
    return arrays


def verified(path: Path, inputs: Arrays, *runtimes: Runtime, **options: Any) -> Verification:
    with contextlib.chdir(path.parent):  # runtimes of these tests are not found in the current folder
        return compare_runtimes(onegru.load(path), inputs, runtimes=runtimes, **options)


def only(found: Verification) -> RuntimeResult:
    """Return the result of the only runtime other than onegru, which must agree with itself."""
    own, other = found.runtimes
    assert (own.runtime, own.status) == ("onegru", "agrees")
    return other


def fault_of(found: Verification) -> Fault:
    result = only(found)
    assert result.status == "differs" and not found.agrees
    assert result.fault is not None, result.reason
    return result.fault


REAL: list[Runtime] = [OnnxRuntime(), OpenVino(), OnnxEvaluator()]


# The planted faults: attributes of the second GRU, and the name of the fault.
PLANTED: list[tuple[str, dict[str, Any], str]] = [
    ("reset before", {}, "linear_before_reset were 0"),
    ("reset after", {"linear_before_reset": 0}, "linear_before_reset were 1"),
    ("no clip", {"clip": 0.25}, "clip were ignored"),
    ("no layout", {"layout": 1}, "layout were ignored: 0 instead of 1"),
    ("no activations", {"activations": ["Relu", "Softsign"]}, "activations were ignored: Sigmoid and Tanh"),
    (
        "no alpha",
        {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.5]},
        "activation_alpha and activation_beta were ignored",
    ),
    ("reverse", {}, "the direction were reversed"),
    ("no lengths", {}, "sequence_lens were ignored"),
    ("no state", {}, "initial_h were ignored"),
    ("no bias", {}, "B were ignored"),
    ("z and r", {}, "the gates z and r were swapped"),
    ("r, h, z", {}, "the weights for z, r, h were those of r, h, z"),
    ("z and r of R", {}, "the gates z and r were swapped in R only"),
    ("R transposed", {}, "R were transposed"),
    ("Wb and Rb", {}, "Wb and Rb were swapped"),
]


planted = pytest.mark.parametrize(("fault", "attributes", "words"), PLANTED, ids=[p[0] for p in PLANTED])


def planted_in(fault: str, attributes: dict[str, Any]) -> tuple[onnx.ModelProto, Arrays]:
    """Return a model where the fault has an effect. Under layout 1, no lengths or state can reject it."""
    bare = fault == "no layout"
    return chain(bare, **attributes), feeds(bare)


def ir(tmp_path: Path, lengths: tuple[int, ...], *, clip: bool = False) -> tuple[Path, Arrays]:
    """Write an IR of two parallel GRUSequences with a dynamic batch; the second may have a clip."""
    writer = IrWriter()
    x = writer.parameter("X", "float32", "?,?,5")
    state = writer.parameter("state", "float32", "?,1,3")
    lens = writer.parameter("lens", "int32", "?")
    for k in range(2):
        arrays = weights(k)
        arrays["B"] = arrays["B"][:, : 3 * H].copy()
        constants = [writer.const(f"{name}{k}", array) for name, array in arrays.items()]
        attributes = {"hidden_size": H, "activations": ["sigmoid", "tanh"]}
        if clip or k:
            attributes["clip"] = 0.25
        Y, Ho = writer.gru("gru_sequence", f"gru {k}", attributes, [x, state, lens, *constants])
        writer.result(f"Y{k}", Y)
        writer.result(f"Ho{k}", Ho)
    inputs = {
        "X": numbers(1, B, T, I),
        "state": numbers(2, B, 1, H),
        "lens": np.array(lengths, np.int32),
    }
    return writer.write(tmp_path / "model.xml"), inputs
