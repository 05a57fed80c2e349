"""Drawn models with decomposed GRUs are fused, near misses are not, and all compute what they did."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from onegru.fusion.search import Search
from onegru.operators.onnx import AUGRU_OPSET
from tests.support.decomposed.draw import (
    NEAR_MISSES,
    Decomposed,
    draw_decomposed,
    draw_near_miss,
    near_miss,
)
from tests.support.decomposed.models import Gru
from tests.support.models.fusing import (
    BOUND,
    DEFECT,
    GRUS,
    LOOPS,
    all_nodes,
    by_onegru,
    by_onnxruntime,
    directions,
    error,
    fused,
    kinds,
)

pytest.importorskip("onnxruntime")

Generator = np.random.Generator

#: The reasons for which a drawn model may stay unfused.
AFFINE_RESET = "its candidate does not use the state"
AT_ITS_BOUND = "its ThresholdedRelu is clipped at its threshold"
NO_SWITCH = "masks steps, but its update gate cannot become 1"
NO_PRODUCT = "its gates use values without a matmul"
#: What a cell's parts are recognized by where one of the above is not the first to be looked at.
NO_BLEND = "the term added to the old state is not"
NO_RESET = "uses the state"
OTHER_GATES = "its gates are"
OLD_OPSET = "needs opset"
FIRST_STEP = "the candidate is not a function of a sum of products"


def reset_folds_away(gru: Gru) -> bool:
    """Affine gates and reset before the product: r∘h is then a polynomial of h, and no gate is in sight."""
    return gru.activations[0] == "Affine" and not gru.linear_before_reset


def begins_at_its_bound(gru: Gru) -> bool:
    """ThresholdedRelu whose alpha equals clip, where the two operators of a bound meet in one point."""
    pairs = zip(gru.activations, gru.alphas, strict=True)
    return any(name == "ThresholdedRelu" and alpha == gru.clip for name, alpha in pairs)


def cannot_be_switched_off(gru: Gru, case: Decomposed) -> bool:
    """Held steps that sequence_lens may not say, where no x makes the update gate 1."""
    if not {"lengths", "mask"} & case.flags:
        return False
    saturates = gru.activations[0] in ("Sigmoid", "Tanh", "Softsign", "HardSigmoid")
    return gru.clip is not None or not saturates


def may_keep_its_first_step(case: Decomposed) -> bool:
    """A chain from zeros: what is computed with them leaves a first step that may look like no other."""
    return case.kind == "chain" and "initial state zeros" in case.recipe


def drops_its_last_state(case: Decomposed) -> bool:
    """A chain whose last step gives nothing but a zero where it is off: no old state is blended there."""
    has_last = case.count == 1 and ("outputs: both" in case.recipe or "outputs: last" in case.recipe)
    return case.kind == "chain" and "zero past the end" in case.flags and not has_last


def needs_newer_opset(gru: Gru, case: Decomposed) -> bool:
    """Whether a GRU has an attention score, in a model whose opset has no AUGRU."""
    return gru.attention and case.model.opset_import[0].version < AUGRU_OPSET


def known_limits(case: Decomposed) -> set[str]:
    """What the reasons say for which some of a model's GRUs may stay decomposed."""
    found = set()
    if may_keep_its_first_step(case):
        found |= {FIRST_STEP, NO_BLEND, OTHER_GATES, AFFINE_RESET}
    if drops_its_last_state(case):
        found.add(NO_BLEND)
    for gru in case.grus:
        if reset_folds_away(gru):
            found |= {AFFINE_RESET, NO_BLEND, NO_RESET}
        if begins_at_its_bound(gru):
            found |= {AT_ITS_BOUND, NO_BLEND}
        if cannot_be_switched_off(gru, case):
            found |= {NO_SWITCH, NO_PRODUCT}  # x may be multiplied before the loop, which stays
        if needs_newer_opset(gru, case):
            found.add(OLD_OPSET)
    return found


def check_outputs(case: Decomposed, model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert error(by_onnxruntime(model, case.feeds), case.expected) <= BOUND, case.recipe
    assert error(by_onegru(model, case.feeds), case.expected) <= BOUND, case.recipe


def check_words(case: Decomposed, search: Search) -> None:
    for miss in search.near_misses:
        assert DEFECT not in miss.reason, f"{miss}: {case.recipe}"
        assert miss.place and " " in miss.reason and "\n" not in miss.reason, miss


def check_all_fused(case: Decomposed, model: onnx.ModelProto, search: Search) -> None:
    """Each GRU is a node outside all loops."""
    assert directions(model) == case.count, case.recipe
    assert not set(kinds(model)) & set(LOOPS), case.recipe
    nodes = sum(node.op_type in GRUS for node in model.graph.node)
    assert (case.count + 1) // 2 <= nodes <= case.count, case.recipe
    assert len(search.fused) == case.count
    wanted = Counter("AUGRU" if gru.attention else "GRU" for gru in case.grus)
    assert Counter(item.operator for item in search.fused) == wanted, case.recipe
    assert {item.form for item in search.fused} <= {"cell", "chain", "loop"}
    forms = {item.form for item in search.fused}
    if case.kind in LOOPS:
        assert forms == {"loop"}, case.recipe
    elif case.kind == "chain" and steps(case) > 2:  # of two steps, one may be a first step from zeros
        assert forms == {"chain"}, case.recipe


def steps(case: Decomposed) -> int:
    """How many steps a case takes."""
    X = case.feeds.get("X")
    return 1 if X is None else X.shape[1 if "batch first" in case.flags else 0]


def check_reasons(case: Decomposed, search: Search) -> None:
    """What is left is left for a known reason."""
    limits = known_limits(case)
    for miss in search.near_misses:
        assert any(limit in miss.reason for limit in limits), f"{miss}: {case.recipe}"


def is_limited(case: Decomposed) -> bool:
    """Whether GRUs of a model, not only first steps, may stay decomposed."""
    return drops_its_last_state(case) or any(
        reset_folds_away(gru)
        or begins_at_its_bound(gru)
        or cannot_be_switched_off(gru, case)
        or needs_newer_opset(gru, case)
        for gru in case.grus
    )


def check_fused(case: Decomposed) -> int:
    model, search = fused(case.model)
    check_words(case, search)
    check_outputs(case, model)
    check_reasons(case, search)
    if not is_limited(case):
        check_all_fused(case, model, search)
        check_parameters(case, model)
    return len(search.fused)


# Parameters


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}


def parameters(model: onnx.ModelProto) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, str, int]]:
    """W, R, B, direction and linear_before_reset of each direction of each node."""
    arrays = initializers(model)
    found = []
    for node in all_nodes(model.graph):
        if node.op_type not in GRUS:
            continue
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        W, R = (arrays[name] for name in node.input[1:3])
        zeros = np.zeros((len(W), 6 * attributes["hidden_size"]), np.float32)
        B = arrays[node.input[3]] if len(node.input) > 3 and node.input[3] else zeros
        ways = {"bidirectional": ["forward", "reverse"]}
        direction = attributes.get("direction", b"forward").decode()
        for number, way in enumerate(ways.get(direction, [direction])):
            found.append((W[number], R[number], B[number], way, attributes.get("linear_before_reset", 0)))
    return found


def sums(B: np.ndarray, H: int, after: int) -> np.ndarray:
    """The biases that count: sums, but for the candidate's where r acts after the product."""
    Wb, Rb = B[: 3 * H].astype(np.float64), B[3 * H :].astype(np.float64)
    if not after:
        return Wb + Rb
    return np.concatenate([(Wb + Rb)[: 2 * H], Wb[2 * H :], Rb[2 * H :]])


def is_like(gru: Gru, found: tuple[np.ndarray, np.ndarray, np.ndarray, str, int]) -> bool:
    W, R, B, _, after = found
    H = gru.R.shape[1]
    if R.shape != gru.R.shape or after != gru.linear_before_reset:
        return False
    I = gru.W.shape[1]
    hard = [name == "HardSigmoid" for name in gru.activations]  # its alpha may be 1, and weights smaller
    rows = slice(2 * H if hard[0] else 0, 2 * H if hard[1] else 3 * H)
    if not np.allclose(R[rows], gru.R[rows], rtol=1e-5, atol=1e-6):
        return False
    if W.shape[1] in (3 * H, 3 * H + 1):
        return True  # projected before; biases may have been added there
    return (
        W.shape[1] in (I, I + 1)  # one more column switches steps off
        and np.allclose(W[rows, :I], gru.W[rows], rtol=1e-5, atol=1e-6)
        and np.allclose(sums(B, H, after)[rows], sums(gru.B, H, after)[rows], rtol=1e-5, atol=1e-5)
    )


def check_parameters(case: Decomposed, model: onnx.ModelProto) -> None:
    found = parameters(model)
    for gru in case.grus:
        shared = gru.linear_before_reset and gru.activations[0] in ("Relu", "LeakyRelu")  # a factor of r
        if gru.unique and not shared:
            assert any(is_like(gru, item) for item in found), f"{gru}: {case.recipe}"


# Tests


@pytest.mark.parametrize("seed", range(8))
def test_drawn_models_are_fused(seed: int) -> None:
    rng: Generator = np.random.default_rng(5000 + seed)
    count = sum(check_fused(draw_decomposed(rng)) for _ in range(25))
    assert count >= 20


@pytest.mark.parametrize("seed", range(4))
def test_near_misses_compute_what_they_did(seed: int) -> None:
    rng: Generator = np.random.default_rng(6000 + seed)
    for _ in range(25):
        check_near_miss(draw_near_miss(rng))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_no_near_miss_becomes_something_else(name: str) -> None:
    rng: Generator = np.random.default_rng(7000 + list(NEAR_MISSES).index(name))
    check_near_miss(near_miss(name, rng))


def check_near_miss(case: Decomposed) -> None:
    model, search = fused(case.model)
    check_words(case, search)
    check_outputs(case, model)
    if case.must_not_fuse:
        assert not search.fused and directions(model) == 0, case.recipe
        assert model == case.model, case.recipe


def test_a_loop_without_iterations_gives_what_it_begins_with() -> None:
    case = draw_decomposed(np.random.default_rng(489))  # any whose steps are open and whose state is given
    model, search = fused(case.model)
    assert [item.form for item in search.fused] == ["loop"]
    feeds = {**case.feeds, "X": np.take(case.feeds["X"], [], axis=int("batch first" in case.flags))}
    (state,) = (value for name, value in feeds.items() if name != "X")
    assert state.any()
    np.testing.assert_array_equal(by_onnxruntime(case.model, feeds)["last0"], state)
    np.testing.assert_array_equal(by_onegru(model, feeds)["last0"], state)
