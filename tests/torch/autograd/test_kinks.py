"""Gradients at the kinks of activation functions and of clip: the same from the kernels and the fallback."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import onegru.torch as ours  # noqa: E402
from onegru.torch.autograd import fallback  # noqa: E402

KINKS: list[tuple[str, list[float], list[float], float | None, list[float]]] = [
    ("Relu", [], [], None, [0.0]),
    ("LeakyRelu", [0.25], [], None, [0.0]),
    ("ThresholdedRelu", [0.5], [], None, [0.5, -0.5]),
    ("HardSigmoid", [0.5], [0.5], None, [1.0, -1.0, 0.0]),
    ("Elu", [0.5], [], None, [0.0]),
    ("Softsign", [], [], None, [0.0]),
    ("Affine", [0.5], [0.5], 1.0, [1.0, -1.0, 0.5]),
    ("Tanh", [], [], 0.5, [0.5, -0.5]),
]


@pytest.mark.parametrize(("name", "alpha", "beta", "clip", "places"), KINKS, ids=[kink[0] for kink in KINKS])
def test_gradients_at_kinks(
    name: str, alpha: list[float], beta: list[float], clip: float | None, places: list[float]
) -> None:
    options: dict[str, Any] = {"activation_alpha": alpha, "activation_beta": beta}
    given = {key: value for key, value in options.items() if value}
    module = ours.GRU(1, 1, activations=["Sigmoid", name], clip=clip, **given)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.weight_ih_l0[2, 0] = 1.0  # so that the argument of n is x
    for place in places:
        found = []
        for is_fallback in (False, True):
            X = torch.full((20, 8, 1), place, requires_grad=True)
            tensors = (X, None, None, None, None, *module.weights_of(0))
            Y = fallback.forward(module.form, tensors)[0] if is_fallback else module(X)[0]
            Y[0].sum().backward()
            assert X.grad is not None
            found.append(X.grad[0].tolist())
        assert found[0] == found[1], place
