"""Flax's forms against Flax itself, on JAX's CPU backend."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import MissingExtraError, SpecError
from tests.support.framework_cases import (
    TOLERANCES,
    H,
    I,
    draw,
    largest_difference,
    layer,
    run,
    same_weights,
    without_inner_bias,
)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")
linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
jnp = jax.numpy


@pytest.fixture(autouse=True)
def both_types() -> Iterator[None]:
    """JAX has float64 only where it is asked for."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def loss(y: Any, x: Any) -> Any:
    """How far outputs are from the input's running mean."""
    return ((y - jnp.cumsum(x, 1).mean(-1, keepdims=True) / 6) ** 2).mean()


def descend(function: Any, params: Any) -> Any:
    """A few steps of gradient descent."""
    gradient = jax.jit(jax.grad(function))
    start = params
    for _ in range(12):
        params = jax.tree.map(lambda p, g: p - 2 * g, params, gradient(params))
    moved = [float(abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (start, params)), strict=True)]
    assert min(moved) > 1e-3
    return params


def linen_params(dtype: str, trained: bool, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    cell = linen.GRUCell(H, param_dtype=dtype, bias_init=linen.initializers.normal(0.5))
    model = linen.RNN(cell)
    x = jnp.asarray(draw((8, 6, I), dtype))
    params = model.init(jax.random.key(seed), x)["params"]
    if trained:
        params = descend(lambda p: loss(model.apply({"params": p}, x), x), params)
    return cell, params


@pytest.mark.parametrize("trained", [False, True], ids=["random", "trained"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_linen_there_and_back(reverse: bool, dtype: str, trained: bool) -> None:
    cell, params = linen_params(dtype, trained)
    model = linen.RNN(cell, reverse=reverse, keep_order=True)
    X = draw((2, 7, I), dtype, 5)
    expected = np.asarray(model.apply({"params": params}, X))
    direction = "reverse" if reverse else "forward"
    source = onegru.from_flax(params, direction=direction)
    assert source.spec.dtype == dtype
    assert largest_difference(run(source, X), expected) <= TOLERANCES[dtype]
    for given in (params["cell"], {"params": params}):
        assert same_weights(onegru.from_flax(given, direction=direction), source)
    back = onegru.to_flax(source)
    assert jax.tree.structure(back) == jax.tree.structure(params["cell"])
    assert largest_difference(np.asarray(model.apply({"params": {"cell": back}}, X)), expected) == 0
    assert same_weights(onegru.from_flax(back, direction=direction), source)


@pytest.mark.parametrize("trained", [False, True], ids=["random", "trained"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_nnx_there_and_back(reverse: bool, dtype: str, trained: bool) -> None:
    cell = nnx_cell(dtype)
    x = jnp.asarray(draw((8, 6, I), dtype))
    if trained:
        graph, state = nnx.split(cell)
        nnx.update(cell, descend(lambda p: loss(nnx.RNN(nnx.merge(graph, p))(x), x), state))
    model = nnx.RNN(cell, reverse=reverse, keep_order=True)
    X = draw((2, 7, I), dtype, 5)
    expected = np.asarray(model(X))
    source = onegru.from_flax(model)
    direction = "reverse" if reverse else "forward"
    assert (source.spec.dtype, source.spec.direction) == (dtype, direction)
    assert largest_difference(run(source, X), expected) <= TOLERANCES[dtype]
    for given in (cell, nnx.state(cell), nnx.to_pure_dict(nnx.state(model))):
        assert same_weights(onegru.from_flax(given, direction=direction), source)
    other = nnx_cell(dtype, seed=3)
    nnx.update(other, onegru.to_flax(source, form="nnx"))
    again = np.asarray(nnx.RNN(other, reverse=reverse, keep_order=True)(X))
    assert largest_difference(again, expected) == 0


def nnx_cell(dtype: str = "float32", seed: int = 0, **options: Any) -> Any:
    cell = nnx.GRUCell(I, H, param_dtype=dtype, rngs=nnx.Rngs(seed), **options)
    cell.dense_i.bias[...] = jnp.asarray(draw((3 * H,), dtype, seed))
    return cell


@pytest.mark.parametrize("form", ["linen", "nnx"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_from_onegru(direction: str, form: str) -> None:
    source = layer(direction)
    if form == "nnx":
        source = without_inner_bias(source)
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    X = draw((2, 7, I), seed=5)
    outputs, cells = [], []
    for way in ways:
        params = onegru.to_flax(source, form=form, direction=way)
        if form == "linen":
            rnn = linen.RNN(linen.GRUCell(H), reverse=way == "reverse", keep_order=True)
            outputs.append(np.asarray(rnn.apply({"params": {"cell": params}}, X)))
            cells.append(params)
        else:
            cell = nnx_cell()
            nnx.update(cell, params)
            rnn = nnx.RNN(cell, reverse=way == "reverse", keep_order=True)
            outputs.append(np.asarray(rnn(X)))
            cells.append(rnn)
    assert largest_difference(run(source, X), np.concatenate(outputs, -1)) <= 1e-6
    if direction == "bidirectional":
        back = onegru.from_flax(cells[0], backward=cells[1])
        assert largest_difference(run(back, X), run(source, X)) <= 1e-6


@pytest.mark.parametrize("form", ["linen", "nnx"])
def test_stacks_go_cell_by_cell(form: str) -> None:
    widths = [I, H, H]
    layers = [layer(input_size=width, seed=9 * i, bias=form == "linen") for i, width in enumerate(widths)]
    X = draw((2, 7, I), seed=5)
    y: Any = jnp.asarray(X)
    again = []
    for width, each in zip(widths, layers, strict=True):
        params = onegru.to_flax(each, form=form)
        again.append(onegru.from_flax(params))
        if form == "linen":
            y = linen.RNN(linen.GRUCell(H)).apply({"params": {"cell": params}}, y)
        else:
            cell = nnx.GRUCell(width, H, rngs=nnx.Rngs(0))
            nnx.update(cell, params)
            y = nnx.RNN(cell)(y)
    assert largest_difference(run(onegru.Stack(layers), X), np.asarray(y)) <= 1e-6
    assert largest_difference(run(onegru.Stack(again), X), np.asarray(y)) <= 1e-6


@pytest.mark.parametrize(
    "name", ["relu", "elu", "celu", "leaky_relu", "softplus", "hard_sigmoid", "soft_sign", "sigmoid", "tanh"]
)
def test_functions(name: str) -> None:
    X = draw((2, 7, I), seed=5) * np.float32(0.5)
    cell = nnx_cell(activation_fn=getattr(linen.activation, name))
    expected = np.asarray(nnx.RNN(cell)(X))
    assert largest_difference(run(onegru.from_flax(cell), X), expected) <= 2e-6
    by_name = onegru.from_flax(nnx.state(cell), activation_fn=name)
    assert same_weights(by_name, onegru.from_flax(cell))
    gates = nnx_cell(gate_fn=getattr(linen.activation, name))
    expected = np.asarray(nnx.RNN(gates)(X))
    scale = max(1.0, float(np.abs(expected).max()))  # some functions are not bounded
    assert largest_difference(run(onegru.from_flax(gates), X), expected) <= 2e-6 * scale


def test_functions_that_onegru_does_not_have() -> None:
    steep = functools.partial(jax.nn.leaky_relu, negative_slope=0.2)
    for function, name in ((jax.nn.gelu, "gelu"), (steep, "partial")):
        with pytest.raises(SpecError, match=rf"activation_fn: .{name} .not Flax's"):
            onegru.from_flax(nnx_cell(activation_fn=function))

    def tanh(x: Any) -> Any:
        return 2 * x

    with pytest.raises(SpecError, match=r"activation_fn: \"tanh \(not Flax's\)\""):
        onegru.from_flax(nnx_cell(activation_fn=tanh))
    with pytest.raises(SpecError, match="gate_fn: 'relu'; must be None for an NNX cell"):
        onegru.from_flax(nnx_cell(), gate_fn="relu")


def test_boxed_parameters() -> None:
    initial = linen.with_partitioning(linen.initializers.lecun_normal(), ("in", "out"))
    cell = linen.GRUCell(H, kernel_init=initial)
    x = jnp.asarray(draw((2, I)))
    carry = jnp.zeros((2, H))
    variables = cell.init(jax.random.key(0), carry, x)
    assert isinstance(variables["params"]["ir"]["kernel"], linen.Partitioned)
    expected = np.asarray(cell.apply(variables, carry, x)[1])
    assert largest_difference(onegru.from_flax(variables)(np.asarray(x)[None])[1][0], expected) <= 1e-6


def test_bfloat16_keeps_the_bits() -> None:
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), linen_params("float32", False)[1])
    source = onegru.from_flax(params)
    assert source.spec.dtype == "bfloat16"
    back = onegru.to_flax(source)
    assert back["ir"]["kernel"].tobytes() == np.asarray(params["cell"]["ir"]["kernel"]).tobytes()


def test_modules_that_hold_several() -> None:
    first, second = nnx_cell(seed=1), nnx_cell(seed=2)
    both = nnx.Bidirectional(nnx.RNN(first), nnx.RNN(second))
    with pytest.raises(SpecError, match="prefix: missing; must name one of the 2 GRUCells in source"):
        onegru.from_flax(both)
    X = draw((2, 7, I), seed=5)
    halves = [onegru.from_flax(both, prefix=f"{way}_rnn.cell") for way in ("forward", "backward")]
    assert [half.spec.direction for half in halves] == ["forward", "reverse"]
    expected = np.asarray(both(X))
    assert largest_difference(np.concatenate([run(half, X) for half in halves], -1), expected) <= 1e-6
    with pytest.raises(SpecError, match="prefix: no GRUCell at 'cell'"):
        onegru.from_flax(both, prefix="cell")


def test_other_modules() -> None:
    with pytest.raises(SpecError, match=r"contains no GRUCell; must be an nnx\.GRUCell"):
        onegru.from_flax(nnx.OptimizedLSTMCell(I, H, rngs=nnx.Rngs(0)))
    with pytest.raises(SpecError, match="no parameters of a GRUCell"):
        onegru.from_flax(nnx.state(nnx.OptimizedLSTMCell(I, H, rngs=nnx.Rngs(0))))
    lstm = linen.LSTMCell(H)
    carry = lstm.initialize_carry(jax.random.key(0), (2, I))
    with pytest.raises(SpecError, match="looks like an LSTM"):
        onegru.from_flax(lstm.init(jax.random.key(0), carry, jnp.zeros((2, I)))["params"])
    with pytest.raises(SpecError, match="a linen module has no parameters"):
        onegru.from_flax(linen.GRUCell(H))
    with pytest.raises(SpecError, match="source: int; must be a mapping"):
        onegru.from_flax(3)
    own = type("Own", (nnx.GRUCell,), {})
    with pytest.raises(SpecError, match="Own, a custom subclass"):
        onegru.from_flax(own(I, H, rngs=nnx.Rngs(0)))
    with pytest.raises(SpecError, match="a reverse RNN needs keep_order=True"):
        onegru.from_flax(nnx.RNN(nnx_cell(), reverse=True))
    with pytest.raises(SpecError, match="direction: 'reverse'; remove it"):
        onegru.from_flax(nnx.RNN(nnx_cell(), reverse=True, keep_order=True), direction="reverse")
    with pytest.raises(SpecError, match="must be one forward and one reverse RNN"):
        onegru.from_flax(nnx.RNN(nnx_cell()), backward=nnx.RNN(nnx_cell()))


def test_parameters_that_are_not_known() -> None:
    """As a newer version of Flax may add them, such as the bias that linen has inside."""
    cell = nnx_cell()
    cell.hn_bias = nnx.Param(jnp.ones(H))
    with pytest.raises(SpecError, match="source: unknown variable hn_bias"):
        onegru.from_flax(cell)
    cell = nnx_cell()
    cell.dense_h = nnx.Linear(H, 3 * H, rngs=nnx.Rngs(1))
    with pytest.raises(SpecError, match=r"dense_h\.bias: not a tensor of a Flax NNX GRU"):
        onegru.from_flax(cell)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = nnx_cell()
    monkeypatch.setitem(__import__("sys").modules, "flax", None)
    with pytest.raises(MissingExtraError, match=r"onegru\[flax\]"):
        onegru.from_flax(cell)
