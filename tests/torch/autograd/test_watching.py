"""A PyTorch that lacks one of the private names: GRUs compute the same by PyTorch's own operators."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import onegru  # noqa: E402
import onegru.torch  # noqa: E402
from onegru.torch.autograd import watching  # noqa: E402

#: Where each name is that the module needs.
PRIVATE = {
    "_len_torch_dispatch_stack": torch._C,
    "_len_torch_dispatch_stack_pre_dispatch": torch._ops,
    "_are_functorch_transforms_active": torch._C,
    "is_functorch_wrapped_tensor": torch._C._functorch,
    "is_legacy_batchedtensor": torch._C._functorch,
    "TransformType": torch._C._functorch,
    "get_interpreter_stack": torch._C._functorch,
    "_current_level": torch.autograd.forward_ad,
    "_is_zerotensor": torch.Tensor,
}
#: Those without which it only takes longer.
OPTIONAL = {"_profiler_enabled": torch.autograd, "__dlpack_c_exchange_api__": torch.Tensor}


@pytest.fixture(params=PRIVATE)
def hidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name that PyTorch lacks."""
    with monkeypatch.context() as patch:
        if request.param == "_is_zerotensor":  # of a class that cannot be changed
            patch.setattr(torch.Tensor, request.param, property())
        else:
            patch.delattr(PRIVATE[request.param], request.param)
        with pytest.warns(RuntimeWarning, match="lacks an interface that onegru needs"):
            importlib.reload(watching)
        yield request.param
    importlib.reload(watching)
    assert watching.is_known()


def pair() -> tuple[Any, Any]:
    """The module of onegru and PyTorch's, with the same weights."""
    ours, theirs = onegru.torch.GRU(3, 4, bidirectional=True), torch.nn.GRU(3, 4, bidirectional=True)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("steps", [2, 700])
def test_results_and_gradients_are_right(hidden: str, steps: int) -> None:
    ours, theirs = pair()
    X = torch.randn(steps, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours(X)[0], theirs(X)[0])
    found = [
        torch.autograd.grad(module(X)[0].square().sum(), module.parameters()) for module in (ours, theirs)
    ]
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


def test_options_and_lengths(hidden: str) -> None:
    layer = onegru.torch.GRU(3, 4, clip=0.5)
    X = torch.randn(5, 2, 3)
    Y, _ = layer(X, lengths=torch.tensor([5, 2]))
    torch.testing.assert_close(Y[:2, 1], layer(X[:2])[0][:, 1])
    assert not Y[2:, 1].any()
    with pytest.raises(onegru.SpecError, match=re.escape("2…6; must be 0…5")):
        layer(X, lengths=torch.tensor([6, 2]))


def test_transforms_and_modes_see_the_call(hidden: str) -> None:
    if hidden in ("_len_torch_dispatch_stack", "get_interpreter_stack", "_current_level"):
        pytest.skip("PyTorch's own transforms and modes need it")
    ours, theirs = pair()
    X = torch.randn(6, 5, 2, 3)
    wanted = torch.stack([theirs(x)[0] for x in X])
    torch.testing.assert_close(torch.func.vmap(lambda x: ours(x)[0], randomness="same")(X), wanted)
    tangent = torch.randn(5, 2, 3)
    _, mine = torch.func.jvp(lambda x: ours(x)[0], (X[0],), (tangent,))
    step = 1e-3
    right = (theirs(X[0] + step * tangent)[0] - theirs(X[0] - step * tangent)[0]) / (2 * step)
    torch.testing.assert_close(mine, right, rtol=1e-2, atol=1e-3)


def test_frozen_modules_compute(hidden: str) -> None:
    ours, theirs = pair()
    model = torch.nn.Sequential(ours)
    onegru.torch.freeze(model)
    X = torch.randn(5, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(model(X)[0], theirs(X)[0])


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        if hasattr(OPTIONAL[name], name):
            patch.delattr(OPTIONAL[name], name)
        importlib.reload(watching)
        assert watching.is_known()
        ours, theirs = pair()
        X = torch.randn(5, 2, 3)
        torch.testing.assert_close(ours(X)[0], theirs(X)[0])
    importlib.reload(watching)


def test_no_other_module_uses_private_names() -> None:
    names = re.compile(
        r"torch\._(?!dynamo|utils|tensor)|_functorch|\._current_level|\._profiler_enabled|_is_zero"
    )
    folder = Path(onegru.torch.__file__).parent
    found = {path.name for path in folder.rglob("*.py") if names.search(path.read_text())}
    # The older exporter of ONNX, which its function calls, is private as a whole.
    assert found == {"watching.py", "export.py"}
