"""Other frameworks' forms, from only arrays: none of the frameworks is needed here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from tests.support.framework_cases import (
    DIALECTS,
    TOLERANCES,
    H,
    I,
    draw,
    largest_difference,
    layer,
    run,
    same_weights,
    stack,
    through_keras,
    through_torch,
    without_inner_bias,
)


def check_pair(pair: tuple[str, ...], source: onegru.Stack) -> None:
    """Through one form and then another, layer by layer."""
    there = [DIALECTS[pair[0]](each) for each in source.layers]
    back = [DIALECTS[pair[1]](each) for each in there]
    assert [each.spec for each in back] == [each.spec for each in source.layers]
    dtype = source.layers[0].spec.dtype
    X = draw((2, 7, I), dtype, 5)
    for made in (there, back):
        assert largest_difference(run(onegru.Stack(made), X), run(source, X)) <= TOLERANCES[dtype]


@pytest.mark.parametrize("pair", itertools.product(DIALECTS, DIALECTS), ids="-".join)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_pair_keeps_the_function(pair: tuple[str, str], direction: str, dtype: str, count: int) -> None:
    source = stack(direction, count, dtype=dtype)
    if "nnx" in pair:
        source = onegru.Stack([without_inner_bias(each) for each in source.layers])
    check_pair(pair, source)


@pytest.mark.parametrize("pair", itertools.product(["onnx", "openvino", "keras"], repeat=2), ids="-".join)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_pair_with_reset_before(pair: tuple[str, str], direction: str, count: int) -> None:
    check_pair(pair, stack(direction, count, False))


@pytest.mark.parametrize("name", ["torch", "keras"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_forms_with_room_for_all_keep_the_bits(name: str, dtype: str) -> None:
    source = layer("bidirectional", dtype=dtype)
    assert same_weights(DIALECTS[name](source), source)


def test_bfloat16_keeps_the_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    W, R, B = (draw(shape).astype(ml_dtypes.bfloat16) for shape in ((1, 12, 3), (1, 12, 4), (1, 24)))
    source = onegru.GRU(W, R, B, linear_before_reset=True)
    assert onegru.to_torch_state_dict(source)["weight_ih_l0"].dtype == ml_dtypes.bfloat16
    for convert in (through_torch, through_keras):
        assert same_weights(convert(source), source)


def test_merged_biases_are_the_sums() -> None:
    source = layer()
    B = source.weights.B[0]
    linen = onegru.to_flax(source)
    assert list(linen) == ["ir", "iz", "in", "hr", "hz", "hn"]
    np.testing.assert_array_equal(linen["iz"]["bias"], B[:H] + B[3 * H : 4 * H])
    np.testing.assert_array_equal(linen["hn"]["bias"], B[5 * H :])
    assert "bias" not in linen["hz"]
    (bias,) = onegru.to_keras_weights(layer(linear_before_reset=False))[2:]
    np.testing.assert_array_equal(bias, B[: 3 * H] + B[3 * H :])


def test_gates_go_where_each_framework_has_them() -> None:
    source = layer()
    z, r, h = source.weights.W[0].reshape(3, H, I)
    state = onegru.to_torch_state_dict(source, prefix="a.b")
    np.testing.assert_array_equal(state["a.b.weight_ih_l0"], np.concatenate([r, z, h]))
    np.testing.assert_array_equal(onegru.to_keras_weights(source)[0], np.concatenate([z, r, h]).T)
    np.testing.assert_array_equal(onegru.to_flax(source)["ir"]["kernel"], r.T)
    np.testing.assert_array_equal(state["a.b.bias_hh_l0"][:H], source.weights.B[0, 4 * H : 5 * H])


# --- PyTorch


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_torch_stacks(direction: str, count: int) -> None:
    source = stack(direction, count)
    state = onegru.to_torch_state_dict(source)
    assert len(state) == 4 * count * (2 if direction == "bidirectional" else 1)
    back = onegru.from_torch(dict(reversed(state.items())))
    layers = back.layers if isinstance(back, onegru.Stack) else (back,)
    assert all(same_weights(a, b) for a, b in zip(layers, source.layers, strict=True))


def test_torch_without_biases_and_cells() -> None:
    state = onegru.to_torch_state_dict(layer(bias=False))
    plain = {name: array for name, array in state.items() if "weight" in name}
    made = onegru.from_torch(plain)
    assert isinstance(made, onegru.GRU) and same_weights(made, layer(bias=False))
    cell = {name.removesuffix("_l0"): array for name, array in onegru.to_torch_state_dict(layer()).items()}
    made = onegru.from_torch({f"cell.{name}": array for name, array in cell.items()})
    assert isinstance(made, onegru.GRU) and same_weights(made, layer())


def test_torch_layouts() -> None:
    """What a state dict does not say; modules are tried with torch itself."""
    state = onegru.to_torch_state_dict(layer())
    assert [onegru.from_torch(state, batch_first=said).layout for said in (None, False, True)] == [0, 0, 1]
    stacked = onegru.to_torch_state_dict(stack("bidirectional", 2))
    assert onegru.from_torch(stacked, batch_first=True).layout == 1
    cell = {name.removesuffix("_l0"): array for name, array in state.items()}
    with pytest.raises(SpecError, match="batch_first: True; must be False or None, because a cell takes one"):
        onegru.from_torch(cell, batch_first=True)


def test_torch_prefixes() -> None:
    first, second = layer(seed=1), layer(seed=2)
    state = {
        **onegru.to_torch_state_dict(first, prefix="encoder.gru"),
        **onegru.to_torch_state_dict(second, prefix="decoder.gru"),
        "head.weight": draw((2, H)),
        "lstm.weight_ih_l0": draw((4 * H, I)),
        "lstm.weight_hh_l0": draw((4 * H, H)),
    }
    with pytest.raises(SpecError, match=r"must name one of the 2 GRUs: 'encoder.gru', 'decoder.gru'$"):
        onegru.from_torch(state)
    for prefix, source in (("encoder.gru", first), ("decoder.gru.", second)):
        made = onegru.from_torch(state, prefix=prefix)
        assert isinstance(made, onegru.GRU) and same_weights(made, source)
    with pytest.raises(
        SpecError, match=r"prefix: no recurrent module at 'encoder'; .* 'encoder.gru', 'decoder.gru', 'lstm'"
    ):
        onegru.from_torch(state, prefix="encoder")
    with pytest.raises(SpecError, match="4\\*hidden_size rows, as an LSTM has"):
        onegru.from_torch(state, prefix="lstm")
    single = {name: array for name, array in state.items() if not name.startswith("decoder")}
    assert isinstance(onegru.from_torch(single), onegru.GRU)


def edited(**changes: Any) -> dict[str, Any]:
    """The tensors of two layers, some replaced; those replaced by None left out."""
    state: dict[str, Any] = {**onegru.to_torch_state_dict(stack("bidirectional", 2)), **changes}
    return {name: array for name, array in state.items() if array is not None}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "no tensors of a GRU"),
        ({1: draw((2, 2))}, "no tensors of a GRU"),
        ({"weight_ih_l0": draw((4 * H, I)), "weight_hh_l0": draw((4 * H, H))}, "an LSTM has"),
        ({"weight_ih_l0": draw((H, I)), "weight_hh_l0": draw((H, H))}, "a plain RNN has"),
        # An LSTM with a projection, of a shape that a GRU could have as well.
        (
            {
                "weight_ih_l0": draw((12, I)),
                "weight_hh_l0": draw((12, 4)),
                "weight_hr_l0": draw((4, 3)),
            },
            "only an LSTM has",
        ),
        (edited(weight_ih=draw((3 * H, I))), "of both a cell and layers"),
        (edited(weight_ih_l1=None), "weight_ih_l1: missing; a bidirectional PyTorch GRU must have it"),
        (edited(bias_hh_l0=None), "bias_hh_l0: missing"),
        (edited(bias_hh_l0=None, bias_ih_l0=None), "must have all biases or none"),
        (edited(weight_hh_l1_reverse=None), "weight_hh_l1_reverse: missing"),
        (
            edited(weight_hh_l0=None, weight_hh_l0_g=draw((3 * H, 1)), weight_hh_l0_v=draw((3 * H, H))),
            "weight_hh_l0: missing; 'weight_hh_l0_v' is a part of it: undo weight normalization",
        ),
        (edited(weight_ih_l3=draw((3 * H, I)), weight_hh_l3=draw((3 * H, H))), "weight_ih_l2: missing"),
        (edited(weight_ih_l0=draw((3 * H,))), "must have 2 dimensions"),
        (edited(weight_ih_l0=draw((3 * H, I + 1))), "the same in both directions"),
        (edited(weight_ih_l0=draw((3 * H + 1, I))), r"weight_ih: shape \[13, 3\]; must be \[12, 3\]"),
        (edited(weight_hh_l0=draw((3 * H + 1, H))), r"weight_hh: shape \[13, 4\]; must be \[12, 4\]"),
        (edited(weight_hh_l0=draw((0, 0))), "hidden_size of at least 1"),
        (edited(bias_ih_l0=draw((3 * H, 1))), r"bias_ih: shape \[12, 1\]"),
        (edited(bias_ih_l0=draw((3 * H,), "float64")), "type float64; must be float32"),
        (edited(bias_ih_l0=np.zeros(12, np.int32)), "type int32"),
        (edited(bias_ih_l0="words"), "must be float32"),
        (
            edited(weight_ih_l1=draw((12, 9)), weight_ih_l1_reverse=draw((12, 9))),
            "the output size of the layer below",
        ),
    ],
)
def test_state_dicts_that_are_no_gru(state: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        onegru.from_torch(state)


def test_sources_that_are_none() -> None:
    with pytest.raises(SpecError, match="source: int; must be a PyTorch module"):
        onegru.from_torch(3)
    with pytest.raises(SpecError, match="prefix: 3; must be text"):
        onegru.from_torch(edited(), prefix=3)  # type: ignore[arg-type]
    converters: tuple[Callable[[Any], object], ...] = (
        onegru.to_torch_state_dict,
        onegru.to_keras_weights,
        onegru.to_flax,
    )
    for convert in converters:
        with pytest.raises(SpecError, match="str; must be a GRU"):
            convert("layer")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layer(linear_before_reset=False), "linear_before_reset: False; must be True"),
        (lambda: layer("reverse"), "direction: 'reverse'; must be forward or bidirectional"),
        (lambda: layer(clip=3.0), "clip: 3; must be None"),
        (lambda: layer(input_size=0), "input_size: 0; must be at least 1"),
        (lambda: layer(attention=True), "attention: True; must be False"),
        (lambda: layer(activations=["Sigmoid", "Relu"]), "activations: Relu; must be Tanh"),
        (
            lambda: layer("bidirectional", activations=["Sigmoid", "Tanh", "HardSigmoid", "Tanh"]),
            "HardSigmoid",
        ),
        (
            lambda: onegru.Stack([layer(), layer("bidirectional", input_size=H)]),
            "layer 1: direction: 'bidirectional'",
        ),
        (
            lambda: onegru.Stack(
                [layer(), onegru.GRU(draw((1, 6, H)), draw((1, 6, 2)), linear_before_reset=True)]
            ),
            "layer 1: hidden_size: 2; must be 4",
        ),
    ],
)
def test_what_torch_cannot_express(make: Callable[[], onegru.GRU | onegru.Stack], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        onegru.to_torch_state_dict(make())


# --- Keras


def test_keras_arrays_ask_for_what_they_do_not_tell() -> None:
    arrays = onegru.to_keras_weights(layer())
    with pytest.raises(SpecError, match="reset_after: missing"):
        onegru.from_keras(arrays[:2])
    for flag in (True, False):
        made = onegru.from_keras(arrays[:2], reset_after=flag)
        assert isinstance(made, onegru.GRU) and made.spec.linear_before_reset is flag
    with pytest.raises(SpecError, match=r"reset_after: False; must be True for a bias \[2, 12\]"):
        onegru.from_keras(arrays, reset_after=False)
    with pytest.raises(SpecError, match="bidirectional: must be set for 6 arrays"):
        onegru.from_keras(arrays * 2)
    with pytest.raises(SpecError, match="6 arrays; must be 2 or 3"):
        onegru.from_keras(arrays * 2, bidirectional=False)
    with pytest.raises(SpecError, match="name: 'x'; must be None"):
        onegru.from_keras(arrays, name="x")
    with pytest.raises(SpecError, match="reset_after: 1; must be True, False or None"):
        onegru.from_keras(arrays, reset_after=1)  # type: ignore[arg-type]


def test_keras_activations_of_arrays() -> None:
    arrays = onegru.to_keras_weights(layer())
    made = onegru.from_keras(arrays, activation="leaky_relu", recurrent_activation="hard_sigmoid")
    assert isinstance(made, onegru.GRU)
    ((f, g),) = made.spec.activations
    assert (f.name, f.alpha, f.beta) == ("HardSigmoid", float(np.float32(1 / 6)), 0.5)
    assert (g.name, g.alpha) == ("LeakyRelu", float(np.float32(0.2)))
    with pytest.raises(SpecError, match="activation: 'swish'; not supported as Keras computes it"):
        onegru.from_keras(arrays, activation="swish")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "0 arrays; must be 2 or 3"),
        ([draw((I, 3 * H)), draw((H, 4 * H)), draw((2, 3 * H))], r"an LSTM has 4\*hidden_size.*transposed"),
        ([draw((3 * H, I)), draw((H, 3 * H)), draw((2, 3 * H))], r"kernel: shape \[12, 3\]"),
        ([draw((I, 3 * H)), draw((H, 3 * H)), draw((3, 3 * H))], r"bias: shape \[3, 12\]; must be \[2, 12\]"),
        ([draw((I, 3 * H)), draw((H, 3 * H)), draw((1, 2, 3))], r"bias: shape \[1, 2, 3\]"),
    ],
)
def test_keras_arrays_that_do_not_fit(arrays: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        onegru.from_keras(arrays)


def test_what_keras_cannot_express() -> None:
    with pytest.raises(SpecError, match="clip"):
        onegru.to_keras_weights(layer(clip=1.0))
    with pytest.raises(SpecError, match="attention"):
        onegru.to_keras_weights(layer(attention=True))
    with pytest.raises(SpecError, match="direction: 'reverse'"):
        onegru.to_keras(layer("reverse"))
    scaled = layer(activations=["Sigmoid", "ScaledTanh"], activation_alpha=[1.0], activation_beta=[1.0])
    with pytest.raises(SpecError, match=r"ScaledTanh\(1, 1\); not available in Keras"):
        onegru.to_keras(scaled)


# --- Flax


def test_flax_finds_the_cell() -> None:
    source = layer()
    params = onegru.from_flax(onegru.to_flax(source))
    for wrapped in (
        {"params": onegru.to_flax(source)},
        {"params": {"encoder": {"cell": onegru.to_flax(source)}, "head": {"kernel": draw((2, 2))}}},
    ):
        assert same_weights(onegru.from_flax(wrapped), params)
    two = {"params": {"a": {"cell": onegru.to_flax(layer(seed=3))}, "b": onegru.to_flax(source)}}
    with pytest.raises(SpecError, match=r"must name one of the 2 GRUCells in source: 'a.cell', 'b'$"):
        onegru.from_flax(two)
    assert same_weights(onegru.from_flax(two, prefix="b"), params)
    with pytest.raises(SpecError, match=r"prefix: no GRUCell at 'c'; available: 'a.cell', 'b'"):
        onegru.from_flax(two, prefix="c")


def test_flax_cells_within_and_next_to_params() -> None:
    first, second = onegru.to_flax(layer(seed=3)), onegru.to_flax(layer())
    both = {"params": {"cell": first}, "cell": second}
    with pytest.raises(SpecError, match=r"'params.cell', 'cell'$"):
        onegru.from_flax(both)
    assert same_weights(onegru.from_flax(both, prefix="params.cell"), onegru.from_flax(first))
    assert same_weights(onegru.from_flax(both, prefix="cell"), onegru.from_flax(second))
    assert same_weights(
        onegru.from_flax({"params": {"a": first}}, prefix="params.a"), onegru.from_flax(first)
    )
    with pytest.raises(SpecError, match=r"two GRUCells under 'a.b'"):
        onegru.from_flax({"a": {"b": first}, "a.b": second})


def test_flax_directions() -> None:
    source = layer("reverse")
    assert onegru.from_flax(onegru.to_flax(source), direction="reverse").spec == source.spec
    with pytest.raises(SpecError, match="direction: 'bidirectional'"):
        onegru.from_flax(onegru.to_flax(source), direction="bidirectional")
    with pytest.raises(SpecError, match="direction: 'reverse'; must be 'forward'"):
        onegru.from_flax(onegru.to_flax(source), backward=onegru.to_flax(source), direction="reverse")
    with pytest.raises(SpecError, match="direction: None; must be one of forward, reverse"):
        onegru.to_flax(layer("bidirectional"))
    with pytest.raises(SpecError, match="direction: 'forward'; must be 'reverse'"):
        onegru.to_flax(source, direction="forward")
    with pytest.raises(SpecError, match="backward: a cell of Flax NNX; must be a cell of Flax linen"):
        onegru.from_flax(onegru.to_flax(source), backward=onegru.to_flax(layer(bias=False), form="nnx"))


def test_flax_functions() -> None:
    params = onegru.to_flax(layer())
    ((f, g),) = onegru.from_flax(params, gate_fn="hard_sigmoid", activation_fn="soft_sign").spec.activations
    assert (f.name, g.name) == ("HardSigmoid", "Softsign")
    with pytest.raises(SpecError, match="gate_fn: 'gelu'"):
        onegru.from_flax(params, gate_fn="gelu")


def nested(**changes: Any) -> dict[str, Any]:
    return {**onegru.to_flax(layer()), **changes}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "no parameters of a GRUCell"),
        ({"ii": {}, "hi": {}}, "looks like an LSTM"),
        ({"dense_i": {"kernel": draw((3, 16))}, "dense_h": {"kernel": draw((4, 16))}}, "no parameters"),
        (nested(hn={"kernel": draw((H, H))}), "hn.bias: missing"),
        (nested(hz={"kernel": draw((H, H)), "bias": draw((H,))}), "hz.bias: not a tensor of a Flax linen"),
        (nested(hz={"kernel": draw((H, H + 1))}), r"hz.kernel: shape \[4, 5\]"),
        (nested(hr=3), "hr: int; must be a mapping"),
        (nested(ox={"kernel": draw((H, H))}), "ox.kernel: not a tensor"),
    ],
)
def test_parameters_that_are_no_gru(params: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        onegru.from_flax(params)


def test_parameters_that_hold_themselves() -> None:
    params: dict[str, Any] = {}
    params |= {str(name): params for name in range(10)}
    with pytest.raises(SpecError, match="no parameters"):
        onegru.from_flax(params)


def test_what_flax_cannot_express() -> None:
    with pytest.raises(SpecError, match="Rbh is not zero"):
        onegru.to_flax(layer(), form="nnx")
    with pytest.raises(SpecError, match="linear_before_reset: False; must be True"):
        onegru.to_flax(layer(linear_before_reset=False))
    with pytest.raises(SpecError, match="clip: 2; must be None"):
        onegru.to_flax(layer(clip=2.0))
    with pytest.raises(SpecError, match="Affine"):
        onegru.to_flax(layer(activations=["Sigmoid", "Affine"]))
    with pytest.raises(SpecError, match="form: 'haiku'; must be one of linen, nnx"):
        onegru.to_flax(layer(), form="haiku")


def test_nine_arrays_of_keras_1() -> None:
    arrays = [np.ones(shape, "f") for _ in range(3) for shape in ((4, 5), (5, 5), (5,))]
    with pytest.raises(SpecError, match="9 arrays, three for each gate, as in Keras 1"):
        onegru.from_keras(arrays)


class View(Mapping[str, Any]):
    """A mapping that makes the mappings within it for each access, as nnx.State does."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_ = values

    def __getitem__(self, key: str) -> Any:
        value = self.values_[key]
        return View(value) if isinstance(value, dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def test_flax_cells_in_mappings_that_are_made_for_each_access() -> None:
    """Their ids repeat once they are freed, by which cells were missed: in 9 of 10 searches of four cells."""
    cell = onegru.to_flax(without_inner_bias(layer()), form="linen")
    names = ("a", "b", "c", "d")
    tree = View({name: {"rnn": {"cell": cell}} for name in names})
    for _ in range(20):
        for name in names:
            onegru.from_flax(tree, prefix=f"{name}.rnn.cell")
        with pytest.raises(SpecError, match="must name one of the 4 GRUCells in source"):
            onegru.from_flax(tree)
