"""DeepCTR-Torch's attention GRUs, replaced by onegru's: classes of its names and equations stand in."""

from __future__ import annotations

import copy
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence  # noqa: E402

import onegru.torch as ours  # noqa: E402

NAME = "deepctr_torch.layers.sequence"


class AUGRUCell(nn.Module):  # type: ignore[misc]
    """The paper's: u' = a·u."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        shapes = {"ih": (3 * hidden_size, input_size), "hh": (3 * hidden_size, hidden_size)}
        for name, shape in shapes.items():
            setattr(self, f"weight_{name}", nn.Parameter(torch.randn(shape) / 3))
            own = nn.Parameter(torch.randn(3 * hidden_size) / 3) if bias else None
            self.register_parameter(f"bias_{name}", own)

    def share(self, u: Any, a: Any) -> Any:
        return a * u

    def forward(self, x: Any, h: Any, a: Any) -> Any:
        xr, xu, xn = nn.functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, 1)
        hr, hu, hn = nn.functional.linear(h, self.weight_hh, self.bias_hh).chunk(3, 1)
        n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
        u = self.share(torch.sigmoid(xu + hu), a.view(-1, 1))
        return (1 - u) * h + u * n


class AGRUCell(AUGRUCell):
    """The score in the place of the gate."""

    def share(self, u: Any, a: Any) -> Any:
        return a


class DynamicGRU(nn.Module):  # type: ignore[misc]
    """A cell over packed steps."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.rnn = cell

    def forward(self, inputs: Any, att_scores: Any = None, hx: Any = None) -> Any:
        data, sizes, *orders = inputs
        width = self.rnn.weight_hh.shape[1]
        h = data.new_zeros(int(sizes[0]), width) if hx is None else hx
        found, begin = [], 0
        for count in sizes.tolist():
            part = slice(begin, begin + count)
            h = self.rnn(data[part], h[:count], att_scores.data[part])
            found.append(h)
            begin += count
        return PackedSequence(torch.cat(found), sizes, *orders)


class Other(AUGRUCell):
    """A later version, say."""

    def share(self, u: Any, a: Any) -> Any:
        return a * u * u


Other.__name__ = "AUGRUCell"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType(NAME)
    for item in (AUGRUCell, AGRUCell, DynamicGRU, Other):
        monkeypatch.setattr(item, "__module__", NAME)
        setattr(module, item.__name__ if item is not Other else "Other", item)
    monkeypatch.setitem(sys.modules, "deepctr_torch", types.ModuleType("deepctr_torch"))
    monkeypatch.setitem(sys.modules, "deepctr_torch.layers", types.ModuleType("deepctr_torch.layers"))
    monkeypatch.setitem(sys.modules, NAME, module)
    torch.manual_seed(0)
    yield


def packed(array: Any) -> Any:
    return pack_padded_sequence(array, torch.tensor([7, 3, 9, 1]), batch_first=True, enforce_sorted=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [AUGRUCell, AGRUCell])
def test_numbers_and_gradients_are_theirs(cell: Any, bias: bool, dtype: Any) -> None:
    theirs = DynamicGRU(cell(6, 5, bias)).to(dtype)
    mine = copy.deepcopy(theirs)
    assert ours.accelerate(mine).replaced == ("",)
    assert isinstance(mine, DynamicGRU)
    x, a, h = (torch.randn(4, 9, 6), torch.rand(4, 9, 1), torch.randn(4, 5))
    for start in (None, h.to(dtype)):
        found = []
        for module in (theirs, mine):
            module.zero_grad()
            given = x.to(dtype).requires_grad_(), a.to(dtype).requires_grad_()
            result = module(packed(given[0]), packed(given[1]), start)
            result.data.square().sum().backward()
            leaves = (*given, *module.parameters())
            found.append([result.data, *(tensor.grad for tensor in leaves)])
        bound = 1e-5 if dtype == torch.float32 else 1e-13
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    with torch.no_grad():
        result = mine(packed(x.to(dtype)), packed(a.to(dtype)))
        torch.testing.assert_close(result.data, theirs(packed(x.to(dtype)), packed(a.to(dtype))).data)


def test_copies_files_and_back() -> None:
    mine = DynamicGRU(AUGRUCell(6, 5))
    ours.accelerate(mine)
    kind = type(mine)
    file = io.BytesIO()
    torch.save(mine, file)
    file.seek(0)
    given = packed(torch.randn(4, 9, 6)), packed(torch.rand(4, 9, 1))
    for other in (copy.deepcopy(mine), torch.load(file, weights_only=False)):
        assert type(other) is kind
        assert torch.equal(other(*given).data, mine(*given).data)
    assert ours.accelerate(mine).replaced == ()
    assert ours.restore(mine) == ("",)
    assert type(mine) is DynamicGRU


def test_what_is_not_known_is_left() -> None:
    model = nn.ModuleDict({"other": DynamicGRU(Other(6, 5)), "gru": DynamicGRU(nn.GRUCell(6, 5))})
    report = ours.accelerate(model)
    assert report.skipped["other"] == "the trial run returned other values"
    assert report.skipped["gru"] == "its cell is unknown"
    half = DynamicGRU(AUGRUCell(6, 5)).bfloat16()
    assert "float32" in ours.accelerate(half).skipped[""]
