"""Calls of a few steps, on parameters that are not packed."""

from __future__ import annotations

import random
from math import nan
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
from onegru import _native  # noqa: E402
from onegru.torch.arguments import form_of  # noqa: E402
from onegru.torch.autograd import fallback, few_steps, memory  # noqa: E402
from onegru.torch.autograd.few_steps import (  # noqa: E402
    gradients_of_few_steps,
    memory_of,
    run_few_steps,
    run_on_memory,
)
from onegru.torch.route import are_few, are_few_trained  # noqa: E402

#: Of the largest number: 6e-6 and 8e-15 in 600 draws.
BOUNDS = {torch.float32: 5e-5, torch.float64: 1e-12}
FUNCTIONS = ["Sigmoid", "Tanh", "Relu", "HardSigmoid", "Elu", "Softsign", "Softplus", "LeakyRelu"]


def drawn(seed: int) -> tuple[Any, tuple[Any, ...]]:
    """A form and a call of it."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float64])
    T, B, I, H = (
        rng.randint(1, 5),
        rng.randint(1, 19),
        rng.randint(0, 40),
        rng.choice([1, 2, 5, 8, 15, 17, 33, 65]),
    )
    direction = rng.choice(["forward", "reverse", "bidirectional"])
    D = 2 if direction == "bidirectional" else 1
    names = [rng.choice(FUNCTIONS) for _ in range(2 * D)] if rng.random() < 0.5 else None
    form = form_of(
        direction,
        rng.random() < 0.5,
        rng.choice([None, 0.7]),
        names,
        None,
        None,
        rng.random() < 0.5,
        "dien" if seed % 2 else "openvino",
    )
    X = (
        torch.randn(T, B, I, dtype=dtype)
        if rng.random() < 0.5
        else torch.randn(B, T, I, dtype=dtype).transpose(0, 1)
    )
    has_biases, weights = rng.random() < 0.7, []
    for _ in range(D):
        weights += [torch.randn(3 * H, I, dtype=dtype) / 4, torch.randn(3 * H, H, dtype=dtype) / 4]
        weights += [torch.randn(3 * H, dtype=dtype) if has_biases else None for _ in range(2)]
    h = torch.randn(D, B, H, dtype=dtype) if rng.random() < 0.6 else None
    lengths = torch.randint(0, T + 1, (B,)) if rng.random() < 0.4 else None
    attention = torch.rand(T, B, dtype=dtype) if rng.random() < 0.3 else None
    resets = torch.rand(T, B) < 0.4 if rng.random() < 0.4 else None
    return form, (X, h, attention, lengths, resets, *weights)


@pytest.mark.parametrize("seed", range(120))
def test_every_form(seed: int) -> None:
    form, (X, h, attention, lengths, resets, *weights) = drawn(seed)
    found = run_few_steps(form, (X, h, attention, lengths, resets, *weights))
    assert found is not None
    wanted = fallback.forward(form, (X, h, attention, lengths, resets, *weights))
    for mine, right in zip(found[:2], wanted, strict=True):
        scale = max(1.0, float(right.abs().max()) if right.numel() else 0.0)
        torch.testing.assert_close(mine, right, rtol=0, atol=BOUNDS[X.dtype] * scale)


@pytest.mark.parametrize("seed", range(0, 120, 7))
def test_a_row_has_the_same_bits_among_any_others(seed: int) -> None:
    form, (X, h, attention, lengths, resets, *weights) = drawn(seed)
    whole = run_few_steps(form, (X, h, attention, lengths, resets, *weights))
    assert whole is not None
    order = torch.arange(X.shape[1]).roll(1)
    own = [None if item is None else item[:, order] for item in (h, attention, resets)]
    length = None if lengths is None else lengths[order]
    rolled = run_few_steps(form, (X[:, order], own[0], own[1], length, own[2], *weights))
    assert rolled is not None
    assert all(torch.equal(a, b[:, order]) for a, b in zip(rolled[:2], whole[:2], strict=True))


@pytest.mark.parametrize("B", [1, 7, 40, 64])
@pytest.mark.parametrize("after", [True, False])
def test_threads_change_no_bits(B: int, after: bool) -> None:
    torch.manual_seed(B)
    module = onegru.torch.GRU(160, 224, linear_before_reset=after)
    x, before = torch.randn(2, B, 160), torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        own = x.clone().requires_grad_()
        y, _ = module(own)
        results.append([y, *torch.autograd.grad(y.sin().sum(), [own, *module.parameters()])])
        with torch.no_grad():
            results[-1].append(module(x)[0])
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


MODULES: list[tuple[str, Any, Any]] = [
    ("a layer", {}, (2, 3, 9)),
    ("layers", {"num_layers": 3}, (1, 4, 9)),
    ("both directions", {"num_layers": 2, "bidirectional": True}, (3, 2, 9)),
    ("batch first", {"batch_first": True}, (3, 2, 9)),
    ("no bias", {"bias": False, "bidirectional": True}, (1, 1, 9)),
    ("dropout", {"num_layers": 2, "dropout": 0.5}, (2, 2, 9)),
    ("float64", {"dtype": torch.float64}, (2, 2, 9)),
]


@pytest.mark.parametrize(
    ("options", "shape"), [item[1:] for item in MODULES], ids=[item[0] for item in MODULES]
)
def test_modules_give_what_pytorchs_give(
    options: Any, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def counted(*args: Any) -> bool:
        calls.append(args)
        return native(*args)

    native = _native.few_steps_of_tensors
    monkeypatch.setattr(_native, "few_steps_of_tensors", counted)
    theirs = nn.GRU(9, 21, **options).eval()
    mine = ours.GRU(9, 21, **options).eval()
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(shape, dtype=options.get("dtype"))
    with torch.no_grad():
        _, h = theirs(x)
        for given in (None, torch.randn_like(h)):
            for found, wanted in zip(mine(x, given), theirs(x, given), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
                assert found.shape == wanted.shape
    assert len(calls) == 2 * mine.num_layers


def test_cells_and_attention() -> None:
    theirs, mine = nn.GRUCell(9, 21), ours.GRUCell(9, 21)
    mine.load_state_dict(theirs.state_dict())
    augru, cell = ours.AUGRU(9, 21), ours.AUGRUCell(9, 21)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in augru.state_dict().items()})
    x, h, a = torch.randn(4, 9), torch.randn(4, 21), torch.rand(4)
    with torch.no_grad():
        torch.testing.assert_close(mine(x, h), theirs(x, h), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(cell(x, a, h), augru(x[None], a[None], h[None])[1][0], rtol=0, atol=0)
    torch.testing.assert_close(cell(x, a, h), augru(x[None], a[None], h[None])[1][0], rtol=1e-5, atol=1e-5)


def test_nothing_is_kept_of_parameters() -> None:
    """What changes neither a version nor an address shows in the next call."""
    mine, theirs = ours.GRU(4, 8), nn.GRU(4, 8)
    x = torch.randn(2, 3, 4)
    for change in (lambda p: p.data.add_(0.5), lambda p: setattr(p, "data", torch.randn_like(p))):
        for parameter, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            change(parameter)
            other.data = parameter.data.clone()
        with torch.no_grad():
            torch.testing.assert_close(mine(x)[0], theirs(x)[0], rtol=1e-5, atol=1e-5)


def test_only_shapes_say_which_way() -> None:
    assert are_few(1, 256, 512) and are_few(32, 1, 512) and are_few(64, 1, 256) and are_few(8, 48, 64)
    assert (
        not are_few(1, 257, 65) and not are_few(9, 4, 512) and not are_few(0, 3, 8) and not are_few(3, 0, 8)
    )
    assert are_few_trained(1, 128, 512) and are_few_trained(16, 32, 512) and are_few_trained(128, 1, 8)
    assert not are_few_trained(1, 129, 8) and not are_few_trained(0, 3, 8) and not are_few_trained(3, 0, 8)


@pytest.mark.parametrize("seed", range(200, 320))
def test_gradients_of_every_form(seed: int) -> None:
    """Of the largest number, 1,500 draws: 2e-5 in float32, 4e-12 in float64, where states stay small."""
    form, tensors = drawn(seed)
    X, h, attention, _, _, *weights = tensors
    memory = memory_of(form, tensors)
    assert memory is not None
    (T, B, _, H, _), D = memory.sizes, form.num_directions
    Y, Y_h, gates = (X.new_full(shape, nan) for shape in ((T, B, D * H), (D, B, H), (T, D, B, 5, H)))
    run_on_memory(form, memory, attention is not None, Y, Y_h, gates)
    assert torch.equal(Y.unflatten(2, (D, H)).transpose(1, 2), gates[:, :, :, 4]), "zeros in the padding, too"
    by = torch.randn(T, B, D * H, dtype=X.dtype), torch.randn(D, B, H, dtype=X.dtype)
    by = (None, by[1]) if seed % 5 == 0 else (by[0], None) if seed % 5 == 1 else by
    wanted = [item is not None for item in (X, h, attention, *weights)]
    if seed % 3 == 0:
        wanted = [is_wanted and place % 2 == 0 for place, is_wanted in enumerate(wanted)]
    mine = gradients_of_few_steps(form, tensors, gates, by, wanted)
    assert mine is not None
    right = fallback.gradients(form, [None if t is None else t.clone() for t in tensors], by, wanted)
    for is_wanted, ours_, theirs in zip(wanted, mine, right, strict=True):
        assert is_wanted == (ours_ is not None)
        if ours_ is not None and theirs is not None:
            scale = max(1.0, float(theirs.abs().max()) if theirs.numel() else 0.0)
            torch.testing.assert_close(ours_, theirs, rtol=0, atol=4 * BOUNDS[X.dtype] * scale)
    again = gradients_of_few_steps(form, tensors, gates, by, wanted)
    assert again is not None
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(mine, again, strict=True))


@pytest.mark.parametrize("seed", range(0, 120, 11))
def test_memory_is_read_alike_in_older_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its exchange API: by attributes."""
    form, tensors = drawn(seed)
    found = run_few_steps(form, tensors)
    for module in (few_steps, memory):
        monkeypatch.setattr(module, "EXCHANGE", None)
    again = run_few_steps(form, tensors)
    assert found is not None and again is not None
    assert all(torch.equal(a, b) for a, b in zip(found[:2], again[:2], strict=True))
    odd = torch.randn(*tensors[0].shape[:2], 2 * tensors[0].shape[2], dtype=tensors[0].dtype)[..., ::2]
    if odd.shape[2] > 1:
        assert run_few_steps(form, (odd, *tensors[1:])) is None
    assert run_few_steps(form, (*tensors[:6], tensors[6][:-1], *tensors[7:])) is None


def test_lengths_beyond_the_steps_are_not_read() -> None:
    form, weights = form_of("forward", True, None, None, None, None), [torch.randn(9, 4), torch.randn(9, 3)]
    for lengths in ([1, 3], [-1, 1], [2**62, 0]):
        tensors = (torch.randn(2, 2, 4), None, None, torch.tensor(lengths), None, *weights, None, None)
        assert run_few_steps(form, tensors) is None


@pytest.mark.parametrize("steps", [1, 3])
def test_training_a_few_steps_is_pytorchs(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through modules: results, gradients, an output changed in place."""
    calls: list[Any] = []
    native = _native.few_steps_gradients

    def counted(*args: Any) -> None:
        calls.append(args)
        native(*args)

    monkeypatch.setattr(_native, "few_steps_gradients", counted)
    theirs = nn.GRU(5, 7, num_layers=2, bidirectional=True)
    mine = ours.GRU(5, 7, num_layers=2, bidirectional=True)
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(steps, 3, 5)
    for module in (theirs, mine):
        module.x = x.clone().requires_grad_()
        Y, Y_h = module(module.x)
        Y = Y.mul_(1.5)  # in place, which no other number may see
        ((Y**2).sum() + Y_h.sin().sum()).backward(retain_graph=True)
        ((Y**2).sum() + Y_h.sin().sum()).backward()
    assert [len(directions) for _, _, directions in calls] == [2] * (2 * 2)
    torch.testing.assert_close(mine.x.grad, theirs.x.grad, rtol=1e-4, atol=1e-5)
    for (name, a), (_, b) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_odd_memory_is_left_to_other_ways() -> None:
    form, weights = (
        form_of("forward", True, None, None, None, None),
        [torch.randn(9, 4), torch.randn(9, 3), None, None],
    )
    x = torch.randn(2, 3, 4)
    right = run_few_steps(form, (x, None, None, None, None, *weights))
    assert right is not None
    for odd in (torch.randn(2, 3, 8)[..., ::2], torch._neg_view(x), x.to_sparse()):
        assert run_few_steps(form, (odd, None, None, None, None, *weights)) is None
    assert run_few_steps(form, (x, None, None, None, None, torch.randn(4, 9).t(), *weights[1:])) is None
    assert run_few_steps(form, (x, None, None, None, None, torch.randn(9, 5), *weights[1:])) is None
    module = ours.GRU(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(module(torch._neg_view(x))[0], module(-x)[0])
        with pytest.raises(onegru.SpecError, match="input"):
            module(torch.randn(2, 3, 5))
        with pytest.raises(onegru.SpecError, match=r"^hx: "):
            module(x, torch.randn(1, 2, 3))


@pytest.mark.parametrize("name", ["weight_ih_l1", "weight_ih_l0_reverse", "weight_hh_l1"])
@pytest.mark.parametrize("how", ["weight_norm", "old", "prune"])
@pytest.mark.filterwarnings("ignore")
def test_computed_weights_without_biases(name: str, how: str) -> None:
    from torch.nn.utils import parametrizations, prune, weight_norm

    results = []
    for kind in (ours.GRU, nn.GRU):
        torch.manual_seed(0)
        module: Any = kind(4, 8, 2, bias=False, bidirectional=True)
        if how == "prune":
            prune.l1_unstructured(module, name, 0.3)
        else:
            (parametrizations.weight_norm if how == "weight_norm" else weight_norm)(module, name)
        with torch.no_grad():
            results.append(module(torch.ones(2, 1, 4))[0])
    torch.testing.assert_close(*results)


def test_weights_that_are_too_few() -> None:
    module = ours.GRU(4, 8, bias=False)
    module.bias = True
    with torch.no_grad(), pytest.raises(Exception, match=r"."):
        module(torch.randn(2, 1, 4))
    direction = (), (0, 0), *[(0, 0, 0)] * 3, 0, 0, *[(0, 0, 0)] * 3
    with pytest.raises(ValueError, match="must have 4 values"):
        _native.few_steps(False, (1, 1, 1, 1, 1), (direction,))
    with pytest.raises(ValueError, match="must be 10"):
        _native.few_steps(False, (1, 1, 1, 1, 1), (direction[1:],))
    with pytest.raises(ValueError, match="1 or 2"):
        _native.few_steps(False, (1, 1, 1, 1, 1), ())


@pytest.mark.parametrize("steps", [2, 40])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("what", ["weights", "x", "cut"])
def test_freed_memory_after_an_offset(what: str, with_gradients: bool, steps: int) -> None:
    module = ours.GRU(4, 8)
    flat = torch.randn(7 + sum(parameter.numel() for parameter in module.parameters()))
    at = 7
    for parameter in module.parameters():
        parameter.data = flat[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()
    x = torch.randn(7 + steps * 4)[7:].view(steps, 1, 4)
    (x if what == "x" else flat).untyped_storage().resize_(40 if what == "cut" else 0)
    with torch.set_grad_enabled(with_gradients), pytest.raises((onegru.SpecError, RuntimeError)):
        module(x)


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_other_devices_are_named(steps: int) -> None:
    """Parts of tensors, which have an address though no memory."""

    def meta(*shape: int, **options: Any) -> Any:
        return torch.empty(shape[0] + 1, *shape[1:], device="meta", **options)[1:]

    x, module = torch.randn(steps, 3, 4), ours.GRU(4, 8)
    with torch.no_grad():
        for given in (
            {"hx": meta(1, 3, 8)},
            {"resets": meta(steps, 3, dtype=torch.bool)},
            {"resets": torch.ones(steps, 3, dtype=torch.bool, device="meta")},
            {"lengths": torch.ones(3, dtype=torch.int64, device="meta")},
        ):
            with pytest.raises(onegru.SpecError, match="meta"):
                module(x, **given)
        with pytest.raises(onegru.SpecError, match="meta"):
            ours.AUGRU(4, 8)(x, meta(steps, 3))
        for name, parameter in [*module.named_parameters()]:
            setattr(module, name, nn.Parameter(meta(*parameter.shape)))
        with pytest.raises((onegru.SpecError, RuntimeError), match="meta"):
            module(x)


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_state_of_another_size_than_the_weights(steps: int) -> None:
    module, cell = ours.GRU(3, 5), ours.GRUCell(3, 5)
    for mine, larger in ((module, nn.GRU(3, 3000)), (cell, nn.GRUCell(3, 3000))):
        for name, parameter in larger.named_parameters():
            setattr(mine, name, parameter)
    with torch.no_grad():
        with pytest.raises((onegru.SpecError, RuntimeError)):
            module(torch.zeros(steps, 1, 3), torch.zeros(1, 1, 5))
        with pytest.raises((onegru.SpecError, RuntimeError)):
            cell(torch.zeros(1, 3), torch.zeros(1, 5))


@pytest.mark.parametrize("steps", [1, 2, 16, 40])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_forward_mode_is_refused_or_computed(steps: int, with_gradients: bool) -> None:
    from torch.autograd import forward_ad

    module, cell = ours.GRU(3, 5).requires_grad_(False), ours.GRUCell(3, 5).requires_grad_(False)
    x = torch.randn(steps, 2, 3)
    with forward_ad.dual_level(), torch.set_grad_enabled(with_gradients):
        runs: list[Any] = [lambda given: module(given)[0], lambda given: cell(given[0])]
        for run in runs:
            try:
                result = run(forward_ad.make_dual(x, torch.randn_like(x)))
            except NotImplementedError:
                continue
            assert forward_ad.unpack_dual(result).tangent is not None


def test_profiles_show_them() -> None:
    module, x = ours.GRU(4, 8), torch.randn(1, 2, 4)
    with torch.no_grad(), torch.profiler.profile() as profile:
        module(x)
    assert "onegru::few_steps" in {event.name for event in profile.events()}
    with torch.profiler.profile() as profile:
        module(x)[0].sum().backward()
    assert {"OnegruFewSteps", "OnegruFewStepsBackward"} <= {event.name for event in profile.events()}


@pytest.mark.parametrize("bidirectional", [False, True])
def test_pruned_weights_without_biases_train(bidirectional: bool) -> None:
    results = []
    for kind in (nn.GRU, ours.GRU):
        torch.manual_seed(0)
        module = kind(3, 5, bias=False, bidirectional=bidirectional)
        name = "weight_hh_l0_reverse" if bidirectional else "weight_hh_l0"
        prune.l1_unstructured(module, name, 0.5)
        module(torch.ones(2, 2, 3))[0].sum().backward()
        results.append(getattr(module, f"{name}_orig").grad)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("steps", [2, 200])
def test_lengths_are_those_of_the_call(steps: int) -> None:
    """Whatever a program writes into their memory before backward."""
    module, lengths = ours.GRU(3, 5), torch.tensor([1, steps])
    found = []
    for later in (lengths.clone(), torch.full((2,), steps)):
        x = torch.ones(steps, 2, 3, requires_grad=True)
        own = lengths.clone()
        Y, _ = module(x, lengths=own)
        own.data.copy_(later)
        Y.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_traces_before_autograd_see_an_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    module, x = ours.GRU(3, 5), torch.randn(2, 2, 3)
    with torch.no_grad():
        graph = make_fx(lambda x: module(x)[0], pre_dispatch=True)(torch.zeros(2, 2, 3))
        torch.testing.assert_close(graph(x), module(x)[0])
