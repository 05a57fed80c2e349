"""Weight gradients of loops of cells, which are computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
from onegru.torch.autograd import few_steps_function, loop_gradients  # noqa: E402
from onegru.torch.autograd.few_steps import gradients_of_few_steps  # noqa: E402

#: Of the largest gradient: 1e-6 and 2e-15 in 300 draws.
BOUNDS = {torch.float32: 1e-5, torch.float64: 2e-14}

Loss = Callable[[Any, Any, Any], Any]


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share weights in loops of any size, not only in those that gain from it."""
    monkeypatch.setattr(loop_gradients, "_MOST_ROWS", 10**9)
    monkeypatch.setattr(loop_gradients, "_LEAST_WEIGHTS", 0)


def pair(I: int, H: int, dtype: Any = torch.float64, bias: bool = True) -> tuple[Any, Any]:
    """PyTorch's cell, and onegru's with the same weights."""
    theirs = nn.GRUCell(I, H, bias=bias, dtype=dtype)
    mine = ours.GRUCell(I, H, bias=bias, dtype=dtype)
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def states(cell: Any, X: Any, h: Any) -> list[Any]:
    """Run the cell over all steps."""
    found = []
    for x in X:
        h = cell(x, h)
        found.append(h)
    return found


def assert_same_gradients(cells: Sequence[Any], loss: Loss, X: Any, h: Any) -> None:
    results = []
    for cell in cells:
        leaves = [X.clone().requires_grad_(), h.clone().requires_grad_()]
        cell.zero_grad()
        loss(cell, *leaves).backward()
        results.append([*(leaf.grad for leaf in leaves), *(weight.grad for weight in cell.parameters())])
    for wanted, found in zip(*results, strict=True):
        assert (wanted is None) == (found is None)
        if wanted is not None:
            largest = max(1.0, float(wanted.abs().max()))
            assert float((wanted - found).abs().max()) <= BOUNDS[X.dtype] * largest


def of_all(cell: Any, X: Any, h: Any) -> Any:
    return torch.stack(states(cell, X, h)).square().sum()


def of_some(cell: Any, X: Any, h: Any) -> Any:
    return sum(state.sin().sum() for state in states(cell, X, h)[1::3])


def of_branches(cell: Any, X: Any, h: Any) -> Any:
    """Two steps continue from each state."""
    found = states(cell, X, h)
    return sum((cell(x, state) * cell(-x, state)).sum() for x, state in zip(X, found, strict=True))


def of_two_loops(cell: Any, X: Any, h: Any) -> Any:
    first, second = states(cell, X, h), states(cell, X.flip(0), h.tanh())
    return sum((one * other).sum() for one, other in zip(first, second, strict=True))


def in_checkpoints(cell: Any, X: Any, h: Any) -> Any:
    for x in X:
        h = checkpoint(cell, x, h, use_reentrant=False)
    return h.square().sum()


def in_reentrant_checkpoints(cell: Any, X: Any, h: Any) -> Any:
    half = len(X) // 2
    for part in (X[:half], X[half:]):
        h = checkpoint(lambda part, h: states(cell, part, h)[-1], part, h, use_reentrant=True)
    return h.square().sum()


LOSSES = [of_all, of_some, of_branches, of_two_loops, in_checkpoints, in_reentrant_checkpoints]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("seed", range(6))
def test_losses(loss: Loss, seed: int) -> None:
    torch.manual_seed(seed)
    T, B, I, H = (int(torch.randint(1, most, ())) for most in (9, 20, 40, 40))
    dtype = torch.float32 if seed % 2 else torch.float64
    cells = pair(I, H, dtype, bias=seed % 3 > 0)
    assert_same_gradients(cells, loss, torch.randn(T + 1, B, I, dtype=dtype), torch.randn(B, H, dtype=dtype))


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows(threads: int) -> None:
    """More than are multiplied at once, in parts, with units left over."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert_same_gradients(
            pair(53, 41), of_all, torch.randn(23, 70, 53).double(), torch.randn(70, 41).double()
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("index", range(4))
def test_frozen_weights(index: int) -> None:
    cells = pair(5, 7)
    for cell in cells:
        list(cell.parameters())[index].requires_grad_(False)
    assert_same_gradients(cells, of_all, torch.randn(6, 3, 5).double(), torch.randn(3, 7).double())


def test_the_weights_are_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    gradients = gradients_of_few_steps

    def counting(form: Any, tensors: Any, gates: Any, by: Any, wanted: Any) -> Any:
        if any(wanted[3:]):
            rows.append(tensors[0].shape[0])
        return gradients(form, tensors, gates, by, wanted)

    monkeypatch.setattr(loop_gradients, "gradients_of_few_steps", counting)
    monkeypatch.setattr(few_steps_function, "gradients_of_few_steps", counting)
    cell = ours.GRUCell(5, 7)
    h = torch.zeros(3, 7, requires_grad=True) * 1
    of_all(cell, torch.randn(20, 3, 5), h).backward()
    assert rows == [60]


def test_gradients_of_gradients() -> None:
    _, cell = pair(3, 2)
    X, h = torch.randn(3, 2, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    weights = tuple(weight.detach().requires_grad_() for weight in cell.parameters())
    names = [name for name, _ in cell.named_parameters()]

    def run(*weights: Any) -> Any:
        state = h
        for x in X:
            parameters = dict(zip(names, weights, strict=True))
            state = torch.func.functional_call(cell, parameters, (x, state))
        return state

    assert torch.autograd.gradcheck(run, weights)
    assert torch.autograd.gradgradcheck(run, weights)


def test_backward_twice() -> None:
    _, cell = pair(3, 4)
    X, h = torch.randn(5, 2, 3).double(), torch.randn(2, 4).double()
    loss = of_all(cell, X, h)
    loss.backward(retain_graph=True)
    once = [weight.grad.clone() for weight in cell.parameters()]
    loss.backward()
    for weight, first in zip(cell.parameters(), once, strict=True):
        assert torch.equal(weight.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_of_inputs_only() -> None:
    theirs, mine = pair(3, 4)
    X, h = torch.randn(5, 2, 3).double().requires_grad_(), torch.randn(2, 4).double()
    wanted, found = (torch.autograd.grad(of_all(cell, X, h), X)[0] for cell in (theirs, mine))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    wanted, found = (torch.autograd.grad(of_all(cell, X, h), cell.weight_hh)[0] for cell in (theirs, mine))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_anomaly_mode_and_hooks() -> None:
    theirs, mine = pair(3, 4)
    for cell in (theirs, mine):
        cell.weight_ih.register_hook(lambda gradient: gradient * 3)
    with torch.autograd.set_detect_anomaly(True):
        assert_same_gradients(
            (theirs, mine), of_all, torch.randn(5, 2, 3).double(), torch.randn(2, 4).double()
        )


def test_weights_that_change_between_steps() -> None:
    _, cell = pair(3, 4)
    h = cell(torch.randn(2, 3).double(), torch.randn(2, 4).double())
    h = cell(torch.randn(2, 3).double(), h)
    with torch.no_grad():
        cell.weight_hh.mul_(2)
    h = cell(torch.randn(2, 3).double(), h)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_a_loop_longer_than_the_recursion_limit() -> None:
    cells = pair(1, 2)
    assert_same_gradients(cells, of_all, torch.randn(3000, 1, 1).double() / 50, torch.zeros(1, 2).double())


def test_nothing_is_kept() -> None:
    cell = ours.GRUCell(3, 4)
    of_all(cell, torch.randn(5, 2, 3), torch.zeros(2, 4)).backward()
    assert not len(loop_gradients._SHARED)


def test_a_hook_that_changes_the_token() -> None:
    cell = ours.GRUCell(3, 4)
    last = states(cell, torch.randn(5, 2, 3), torch.zeros(2, 4))[-1]
    node = next(node for node, _ in last.grad_fn.next_functions if node and "LoopWeights" in node.name())
    node.register_prehook(lambda gradients: tuple(gradient * 2 for gradient in gradients))
    with pytest.raises(onegru.SpecError, match="changed by a hook; must not be changed"):
        last.sum().backward()


@pytest.mark.parametrize("with_attention", [False, True])
@pytest.mark.parametrize(
    "options", [{"linear_before_reset": False}, {"clip": 0.7}, {"activations": ["Elu", "Relu"]}]
)
def test_forms(options: dict[str, Any], with_attention: bool) -> None:
    """The gradients of a loop are those of a layer with the same weights."""
    torch.manual_seed(1)
    kinds = (ours.AUGRU, ours.AUGRUCell) if with_attention else (ours.GRU, ours.GRUCell)
    layer, cell = (kind(5, 7, dtype=torch.float64, **options) for kind in kinds)
    for weight, source in zip(cell.parameters(), layer.parameters(), strict=True):
        weight.data.copy_(source.data)
    X, h = torch.randn(9, 3, 5).double(), torch.randn(3, 7).double()
    scores = torch.rand(9, 3).double()
    (layer(X, scores, h[None]) if with_attention else layer(X, h[None]))[0].square().sum().backward()
    state, total = h, h.new_zeros(())
    for x, a in zip(X, scores, strict=True):
        state = cell(x, a, state) if with_attention else cell(x, state)
        total = total + state.square().sum()
    total.backward()
    for weight, source in zip(cell.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, source.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", ["in-place", "detached"])
def test_computed_weights_that_change_between_loops(change: str) -> None:
    """The graph of the first loop is alive, but its weights lead elsewhere."""
    X, h = torch.randn(5, 2, 3).double(), torch.randn(2, 4).double()
    results = []
    theirs, mine = pair(3, 4)
    for cell in (theirs, mine):
        leaves = {name: weight.detach().clone().requires_grad_() for name, weight in cell.named_parameters()}
        computed = {name: leaf * 1.0 for name, leaf in leaves.items()}
        losses = []
        for _ in range(2):
            state = h
            for x in X:
                state = torch.func.functional_call(cell, computed, (x, state))
            losses.append(state.square().sum())
            for weight in computed.values():
                weight.mul_(2) if change == "in-place" else weight.detach_().requires_grad_()
        state = h
        for x in X:
            state = torch.func.functional_call(cell, computed, (x, state))
        state.square().sum().backward()
        results.append([item.grad for item in (*leaves.values(), *computed.values()) if item.is_leaf])
        del losses
    for wanted, found in zip(*results, strict=True):
        assert (wanted is None) == (found is None)
        if wanted is not None:
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_another_type_between_loops() -> None:
    cell = ours.GRUCell(3, 4)
    kept = of_all(cell, torch.randn(5, 2, 3), torch.zeros(2, 4))
    cell.double()
    of_all(cell, torch.randn(5, 2, 3).double(), torch.zeros(2, 4).double()).backward()
    assert cell.weight_hh.grad.dtype is torch.float64 and kept.dtype is torch.float32


def test_batches_that_become_empty() -> None:
    def shrinking(cell: Any, X: Any, h: Any) -> Any:
        total = h.new_zeros(())
        for rows, x in zip((3, 2, 2, 1, 0), X, strict=True):
            h = cell(x[:rows], h[:rows])
            total = total + h.sin().sum()
        return total

    assert_same_gradients(pair(3, 4), shrinking, torch.randn(5, 3, 3).double(), torch.randn(3, 4).double())


@pytest.mark.parametrize("after", [False, True])
def test_data_assigned_between_steps(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step uses the memory that its weights had, as without a loop."""
    torch.manual_seed(3)
    cell = ours.GRUCell(3, 4, dtype=torch.float64, linear_before_reset=after)
    before = [weight.data for weight in cell.parameters()]
    X, results = torch.randn(6, 2, 3).double(), []
    for most in (10**9, 0):
        monkeypatch.setattr(loop_gradients, "_MOST_ROWS", most)
        state = torch.zeros(2, 4).double()
        for index, x in enumerate(X):
            state = cell(x, state)
            if index % 2:
                for weight in cell.parameters():
                    weight.data = weight.data * 1.5
        state.square().sum().backward()
        results.append([weight.grad for weight in cell.parameters()])
        for weight, data in zip(cell.parameters(), before, strict=True):
            weight.data, weight.grad = data, None
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_few_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with many rows, or with other memory for each step, are multiplied early."""
    rows = []
    gradients = gradients_of_few_steps

    def counting(form: Any, tensors: Any, *others: Any) -> Any:
        rows.append(tensors[0].shape[0])
        return gradients(form, tensors, *others)

    monkeypatch.setattr(loop_gradients, "gradients_of_few_steps", counting)
    cell = ours.GRUCell(5, 7)
    h = torch.zeros(100, 7, requires_grad=True) * 1
    of_all(cell, torch.randn(20, 100, 5), h).backward()
    assert rows == [600, 600, 600, 200]
    rows.clear()
    h = torch.zeros(3, 7, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        of_all(cell, torch.randn(4, 3, 5), h).backward()
    assert rows == [3] * 4
