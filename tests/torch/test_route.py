"""The route of each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import onegru.torch as ours  # noqa: E402
from onegru.torch import cells, modules, route  # noqa: E402
from onegru.torch.autograd import function  # noqa: E402


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the routes that calls take, in order."""
    found: list[str] = []

    def noted(choose: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            chosen = choose(*given)
            found.append(chosen.name)
            return chosen

        return run

    monkeypatch.setattr(modules, "choose_route", noted(route.choose_route))
    monkeypatch.setattr(cells, "choose_route", noted(route.choose_route))
    monkeypatch.setattr(function, "choose_layer_route", noted(route.choose_layer_route))
    return found


def dual(module: Any, x: Any) -> None:
    torch.func.jvp(lambda x: module(x)[0], (x,), (torch.ones_like(x),))


def mapped(module: Any, x: Any) -> None:
    torch.func.vmap(lambda x: module(x)[0], randomness="same")(x[None])


def in_pairs(module: Any, x: Any) -> None:
    module(x[:, :, ::2])


def with_lengths(module: Any, x: Any) -> None:
    module(x, lengths=torch.full((x.shape[1],), x.shape[0]))


def autocast(module: Any, x: Any) -> None:
    with torch.autocast("cpu"):
        module(x)


@pytest.mark.parametrize(
    ("shape", "call", "infers", "trains"),
    [
        ((1, 2, 4), None, ["FEW_STEPS"], ["TRAINED_FEW_STEPS"]),
        ((200, 2, 4), None, ["LAYERS", "KERNELS"], ["LAYERS", "KERNELS"]),
        ((1, 300, 4), None, ["FEW_STEPS"], ["PYTORCH"]),
        ((2, 2, 4), with_lengths, ["FEW_STEPS"], ["TRAINED_FEW_STEPS"]),
        ((2, 2, 8), in_pairs, ["FEW_STEPS", "FEW_STEPS"], ["TRAINED_FEW_STEPS"] * 2),
        ((2, 2, 4), autocast, ["LAYERS", "FEW_STEPS"], ["LAYERS", "TRAINED_FEW_STEPS"]),
        ((2, 2, 4), dual, ["LAYERS", "ELEMENTARY"], ["LAYERS", "ELEMENTARY"]),
        ((2, 2, 4), mapped, ["LAYERS", "TRANSFORMED"], ["LAYERS", "TRANSFORMED"]),
    ],
)
def test_calls_of_modules(
    routes: list[str], shape: tuple[int, ...], call: Any, infers: list[str], trains: list[str]
) -> None:
    module, x = ours.GRU(4, 8), torch.randn(shape)
    for with_gradients, wanted in ((False, infers), (True, trains)):
        with torch.set_grad_enabled(with_gradients):
            (call or (lambda module, x: module(x)))(module, x)
        assert routes == wanted
        routes.clear()


@pytest.mark.parametrize(("rows", "trains"), [(2, "TRAINED_FEW_STEPS"), (300, "PYTORCH")])
def test_calls_of_cells(routes: list[str], rows: int, trains: str) -> None:
    cell, x = ours.GRUCell(4, 8), torch.randn(rows, 4)
    cell(x)
    with torch.no_grad():
        cell(x)
    assert routes == [trains, "FEW_STEPS"]


def test_other_types(routes: list[str]) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        ours.GRU(4, 8, dtype=dtype)(torch.randn(2, 2, 4, dtype=dtype))
        ours.GRUCell(4, 8, dtype=dtype)(torch.randn(2, 4, dtype=dtype))
    assert routes == ["PYTORCH", "LAYERS", "ELEMENTARY"] * 2


def test_compiled_code_calls_the_operator(routes: list[str]) -> None:
    torch.compile(ours.GRU(4, 8, clip=2.0), backend="eager", fullgraph=True)(torch.randn(2, 2, 4))
    module = ours.GRU(4, 8)
    torch.func.functionalize(lambda x: module(x)[0])(torch.randn(2, 2, 4))
    assert routes[-1] == "OPERATOR"
