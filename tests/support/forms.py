"""Define every variant of layer, and the kinds of files that can store it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import Activation, FormatError, Spec, SpecError
from onegru.core.activations import ACTIVATIONS, onnx_names_in
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.spec import DIRECTIONS, Weights, reversed_directions
from onegru.models.layer_files.convert import convert_layers
from onegru.models.layer_files.select import joined

I, H, T, B = 3, 2, 4, 2

ALPHAS = {"alpha": 0.75, "beta": 0.375}  # not the defaults, and exact in every type


def functions() -> Iterator[tuple[Activation, Activation]]:
    """Yield each function as f and as g, with custom values and with ONNX's."""
    plain = Activation("Sigmoid"), Activation("Tanh")
    yield plain
    for kind in ACTIVATIONS.values():
        names = kind.parameters
        for values in ({name: kind.default(name) for name in names}, {name: ALPHAS[name] for name in names}):
            if None not in values.values():
                yield Activation(kind.name, **values), plain[1]
                yield plain[0], Activation(kind.name, **values)


def forms() -> Iterator[Spec]:
    """Yield all combinations of options, with some activations and types for each."""
    base = Spec(I, H, "float32")
    for direction, after, clip, attention in itertools.product(
        DIRECTIONS, (False, True), (None, 0.5), (False, True)
    ):
        count = len(reversed_directions(direction))
        yield replace(
            base,
            direction=direction,
            linear_before_reset=after,
            clip=clip,
            attention=attention,
            activations=base.activations * count,
        )
    for index, pair in enumerate(dict.fromkeys(functions())):
        yield replace(base, activations=(pair,), linear_before_reset=bool(index % 2))
        both = (pair, (Activation("Softsign"), Activation("Relu")))
        yield replace(base, direction="bidirectional", activations=both, linear_before_reset=True)
    for dtype, after in itertools.product(("float16", "bfloat16", "float64"), (False, True)):
        yield replace(base, dtype=dtype, linear_before_reset=after)
    yield replace(base, input_size=0)
    yield replace(base, activations=((Activation("Affine", float("inf"), 0.0), Activation("Tanh")),))


def layer_of(spec: Spec, bias: bool) -> onegru.GRU:
    rng = np.random.default_rng(0)
    D, dtype = spec.num_directions, numpy_dtype(spec.dtype)
    shapes = (D, 3 * H, spec.input_size), (D, 3 * H, H), (D, 6 * H)
    W, R, B = (rng.choice([-0.5, -0.25, 0.125, 0.25, 0.5], shape).astype(dtype) for shape in shapes)
    return onegru.GRU.from_canonical(spec, Weights(W, R, B if bias else np.zeros_like(B)))


SIGMOID_TANH = Spec(I, H, "float32").activations[0]
OF_OPENVINO = {Activation(name) for name in ("Relu", "Sigmoid", "Tanh")}


def is_plain(spec: Spec) -> bool:
    return set(spec.activations) == {SIGMOID_TANH} and spec.clip is None


def in_openvino(spec: Spec) -> bool:
    if spec.attention:
        return spec.direction == "forward" and is_plain(spec) and not spec.linear_before_reset
    return len(set(spec.activations)) == 1 and set(spec.activations[0]) <= OF_OPENVINO


def is_finite(spec: Spec) -> bool:
    return all(np.isfinite(function.parameters).all() for pair in spec.activations for function in pair)


def in_pytorch(spec: Spec) -> bool:
    is_both = spec.linear_before_reset and not spec.attention and spec.direction != "reverse"
    return is_plain(spec) and is_both and spec.input_size > 0


def in_modules(spec: Spec) -> bool:
    ways = ("forward",) if spec.attention else ("forward", "bidirectional")
    return is_finite(spec) and spec.direction in ways and spec.input_size > 0


def in_keras(spec: Spec) -> bool:
    known = {Activation(name) for name in onnx_names_in("Keras").values()}
    known |= {Activation("Affine", 1.0, 0.0)}
    open_alpha = {"Elu", "LeakyRelu"}
    fits = all(f in known or f.name in open_alpha for pair in spec.activations for f in pair)
    return fits and spec.clip is None and not spec.attention


def write_module(layer: onegru.GRU, path: Path) -> None:
    """Write the state dict of an equivalent module of `onegru.torch`."""
    import torch

    import onegru.torch as ours
    from onegru.frameworks.pytorch import to_tensor

    spec = layer.spec
    functions = [function for pair in spec.activations for function in pair]
    options: dict[str, Any] = {
        f"activation_{name}": [getattr(f, name) for f in functions if getattr(f, name) is not None]
        for name in ("alpha", "beta")
    }
    kind = ours.AUGRU if spec.attention else ours.GRU
    if not spec.attention:
        options["bidirectional"] = spec.direction == "bidirectional"
    if is_finite(spec) and not in_modules(spec):
        raise SpecError(f"direction: {spec.direction}, input_size: {spec.input_size}; no module has it")
    module = kind(
        I,
        H,
        linear_before_reset=spec.linear_before_reset,
        clip=spec.clip,
        activations=[function.name for function in functions],
        dtype=getattr(torch, spec.dtype),
        **options,
    )
    plain = replace(spec, linear_before_reset=True, clip=None, attention=False)
    plain = replace(plain, activations=(SIGMOID_TANH,) * spec.num_directions)
    arrays = onegru.to_torch_state_dict(onegru.GRU.from_canonical(plain, layer.weights))
    module.load_state_dict({name: to_tensor(array) for name, array in arrays.items()}, strict=False)
    if path.suffix == ".pt":
        torch.save(module.state_dict(), path)
    else:
        from safetensors.torch import save_file

        save_file(module.state_dict(), path)


def write_hdf5(layer: onegru.GRU, path: Path) -> None:
    """Write a Keras model in the older format."""
    made = onegru.to_keras(layer, return_sequences=layer.spec.direction != "reverse")
    import keras

    spec = layer.spec
    keras.Sequential([keras.Input((None, spec.input_size), dtype=spec.dtype), made]).save(path)


@dataclass(frozen=True)
class Target:
    """Kind of file.

    Attributes:
        end: the end of its name.
        write: the function that writes it.
        holds: whether it supports a variant.
        joins_biases: whether both biases of a gate become one.
        every: n, so that every n-th supported variant is tested.
        needs: the package that writes it, beyond those of every test.
    """

    end: str
    write: Callable[[onegru.GRU, Path], None]
    holds: Callable[[Spec], bool]
    joins_biases: bool = False
    every: int = 1
    needs: str | None = None


def saved(**options: Any) -> Callable[[onegru.GRU, Path], None]:
    return lambda layer, path: onegru.save_layers(layer, path, **options)


TARGETS: Mapping[str, Target] = {
    "onnx": Target(".onnx", saved(), lambda spec: not spec.attention),
    "onnx, layout 1": Target(".onnx", saved(opset=14, layout=1), lambda s: not s.attention and not is_new(s)),
    "ir": Target(".xml", saved(), in_openvino, joins_biases=True),
    "ir, cells": Target(
        ".xml", saved(cell=True), lambda s: in_openvino(s) and s.direction == "forward", joins_biases=True
    ),
    "safetensors": Target(".safetensors", saved(), is_finite),
    "pytorch": Target(".pt", saved(), in_pytorch, needs="torch"),
    "state dict": Target(".pt", write_module, in_modules, needs="torch"),
    "state dict, safetensors": Target(".safetensors", write_module, in_modules, needs="torch"),
}

#: Files that Keras writes. Reading one starts a process.
KERAS_TARGETS: Mapping[str, Target] = {
    "keras": Target(".keras", saved(), in_keras, joins_biases=True, every=4),
    "keras, HDF5": Target(
        ".h5", write_hdf5, lambda s: in_keras(s) and not is_new(s), joins_biases=True, every=8
    ),
}

# The subject of an error: a property of the layer, or an option of the file, and the fault.
REFUSED = re.compile(
    r"\b(attention|opset|direction|clip|activations|linear_before_reset|input_size|type)\b.*; .+", re.DOTALL
)


def is_new(spec: Spec) -> bool:
    return spec.dtype == "bfloat16"


def outputs(layer: onegru.GRU, spec: Spec) -> list[Array]:
    rng = np.random.default_rng(1)
    X = rng.choice([-1.0, -0.5, 0.5, 1.0], (T, B, spec.input_size)).astype(numpy_dtype(spec.dtype))
    attention = np.full((T, B, 1), 0.25, X.dtype) if spec.attention else None
    Y, Y_h = layer(X, sequence_lens=np.array([T, T - 1]), attention=attention)
    return [Y.astype(np.float64), Y_h.astype(np.float64)]


def check_every_form(target: Target, tmp_path: Path) -> None:
    """Check that each variant is read back unchanged, or is rejected by name, as the target states."""
    if target.needs:
        pytest.importorskip(target.needs)
    path = tmp_path / f"layer{target.end}"
    held = refused = 0
    for index, spec in enumerate(forms()):
        layer = layer_of(spec, bias=index % 3 > 0)
        if not target.holds(spec):
            with pytest.raises((SpecError, FormatError)) as raised:
                target.write(layer, path)
                onegru.load_layers(path)
            assert REFUSED.search(str(raised.value)), spec
            refused += 1
            continue
        held += 1
        if held % target.every:
            continue
        target.write(layer, path)
        again = joined([*onegru.load_layers(path).values()])
        assert isinstance(again, onegru.GRU) and again.spec == spec
        for one, two in zip(together(layer, target), together(again, target), strict=True):
            np.testing.assert_array_equal(one, two)
        bound = 0.01 if spec.dtype.endswith("float16") else 1e-6
        for one, two in zip(outputs(layer, spec), outputs(again, spec), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=bound if target.joins_biases else 0)
        if index % 8 == 0 and target.end != ".h5" and target.write is not write_module:
            assert all(item.agrees for item in convert_layers(again, path, {})[0])
    assert held + refused == len(list(forms())) and held > 3


def together(layer: onegru.GRU, target: Target) -> list[Array]:
    """Return the weights, with joined biases of each gate if the kind of file joins them."""
    W, R, bias = layer.weights.W, layer.weights.R, layer.weights.B.astype(np.float64)
    if target.joins_biases:
        bias = bias.reshape(len(bias), 2, 3, H)
        inner = bias[:, 1, 2] if layer.spec.linear_before_reset else np.zeros(1)
        joined_biases = bias.sum(1)
        joined_biases[:, 2] -= inner
        return [W, R, joined_biases, inner]
    return [W, R, bias]
