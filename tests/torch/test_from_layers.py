"""Layers of NumPy's as modules, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402

RNG = np.random.default_rng(0)


def layer(I: int = 5, H: int = 7, D: int = 1, dtype: str = "float32", **options: Any) -> onegru.GRU:
    arrays = [
        RNG.standard_normal(shape).astype(dtype) / 3 for shape in ((D, 3 * H, I), (D, 3 * H, H), (D, 6 * H))
    ]
    return onegru.GRU(*arrays, direction="bidirectional" if D == 2 else "forward", **options)


FORMS: dict[str, dict[str, Any]] = {
    "as PyTorch's": {"linear_before_reset": True},
    "reset before": {},
    "both directions": {"D": 2, "clip": 0.5},
    "functions": {
        "activations": ["HardSigmoid", "LeakyRelu"],
        "activation_alpha": [0.3, 0.1],
        "activation_beta": [0.4],
    },
    "float64": {"dtype": "float64", "linear_before_reset": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_becomes_a_module_and_back(form: str) -> None:
    source = layer(**FORMS[form])
    module = ours.from_layers(source)
    assert isinstance(module, nn.GRU) == (form in ("as PyTorch's", "float64"))
    X = RNG.standard_normal((6, 3, 5)).astype(source.spec.dtype)
    Y, Y_h = source(X)
    y, h = module(torch.from_numpy(X))
    np.testing.assert_allclose(y.detach().reshape(6, 3, -1, 7).transpose(1, 2), Y, atol=1e-5)
    np.testing.assert_allclose(h.detach(), Y_h, atol=1e-5)
    y.sum().backward()
    back = onegru.from_torch(module)
    assert isinstance(back, onegru.GRU) and back.spec == source.spec
    for name in ("W", "R", "B"):
        np.testing.assert_array_equal(getattr(back.weights, name), getattr(source.weights, name))


def test_stacks_and_attention() -> None:
    stack = onegru.Stack([layer(linear_before_reset=True), layer(7, linear_before_reset=True)], layout=1)
    module = ours.from_layers(stack)
    assert module.num_layers == 2 and module.batch_first
    X = RNG.standard_normal((3, 6, 5)).astype(np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(X))[0].detach(), stack(X)[0].reshape(3, 6, 7), atol=1e-5
    )
    for kind in ("openvino", "dien"):
        source = layer(attention=kind)
        scores = np.random.default_rng(3).random((5, 2)).astype(np.float32)
        x = np.random.default_rng(4).standard_normal((5, 2, source.spec.input_size)).astype(np.float32)
        with torch.no_grad():
            made = ours.from_layers(source)(torch.from_numpy(x), torch.from_numpy(scores))[0]
        np.testing.assert_allclose(made.numpy(), source(x, attention=scores)[0][:, 0], atol=1e-6)
    augru = ours.from_layers(layer(attention=True))
    assert type(augru) is ours.AUGRU


def test_what_no_module_computes_is_refused() -> None:
    for source, words in (
        (layer().with_storage, "source"),
        (onegru.Stack([layer(linear_before_reset=True), layer(7)]), "layer 1: linear_before_reset"),
        (onegru.GRU(*(layer().weights.W, layer().weights.R), direction="reverse"), "direction 'reverse'"),
    ):
        with pytest.raises(onegru.SpecError, match=words):
            ours.from_layers(source)  # type: ignore[arg-type]
