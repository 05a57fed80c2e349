"""Modules whose weights are packed once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402

I, H = 9, 21


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def calls(shape: tuple[int, ...], **options: Any) -> tuple[Any, ...]:
    return torch.randn(*shape, I, **options), torch.randn(1, shape[1], H, **options)


#: A module, and the arguments of a call.
CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "PyTorch's": lambda: (nn.GRU(I, H), calls((12, 3))),
    "few steps": lambda: (nn.GRU(I, H), calls((2, 3))),
    "layers and directions": lambda: (
        nn.GRU(I, H, 2, bidirectional=True, batch_first=True),
        (torch.randn(3, 30, I),),
    ),
    "no bias": lambda: (nn.GRU(I, H, bias=False), calls((7, 2))),
    "one row": lambda: (nn.GRU(I, H), (torch.randn(9, I),)),
    "float64": lambda: (nn.GRU(I, H, dtype=torch.float64), calls((7, 2), dtype=torch.float64)),
    "packed": lambda: (
        nn.GRU(I, H),
        (nn.utils.rnn.pack_padded_sequence(torch.randn(8, 3, I), [8, 2, 5], enforce_sorted=False),),
    ),
    "lengths": lambda: (ours.GRU(I, H), (*calls((7, 3)), torch.tensor([7, 0, 3]))),
    "reset before, clip": lambda: (ours.GRU(I, H, linear_before_reset=False, clip=0.5), calls((7, 3))),
    "cell": lambda: (nn.GRUCell(I, H), (torch.randn(5, I), torch.randn(5, H))),
    "cell of one row": lambda: (nn.GRUCell(I, H), (torch.randn(I),)),
    "attention": lambda: (ours.AUGRU(I, H, attention="dien"), (torch.randn(7, 3, I), torch.rand(7, 3))),
    "cell with attention": lambda: (ours.AUGRUCell(I, H), (torch.randn(3, I), torch.rand(3))),
}


def tensors(result: Any) -> list[Any]:
    parts = [result] if isinstance(result, torch.Tensor) else list(result)
    return [part.data if isinstance(part, nn.utils.rnn.PackedSequence) else part for part in parts]


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same_and_writes_do_not_show(name: str) -> None:
    module, given = CASES[name]()
    model = nn.ModuleDict({"rnn": module})
    kind = type(module)
    with torch.no_grad():
        wanted = tensors(module(*given))
    assert ours.freeze(model).replaced == ("rnn",)
    with torch.no_grad():
        found = tensors(module(*given))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        for parameter in module.parameters():
            parameter.zero_()
        again = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module]
        for other in again:
            assert all(map(torch.equal, tensors(other(*given)), found))
    assert ours.restore(model) == ("rnn",)
    assert type(module) is kind and "frozen_layers" not in vars(module)
    with torch.no_grad():
        assert not torch.equal(tensors(module(*given))[0], found[0])  # of the zeros


@pytest.mark.parametrize(
    "storage", [("bfloat16",), ("int8",), ("int8_g32",), ("int8", "int8"), ("bfloat16", "bfloat16")]
)
def test_weights_in_other_types(storage: tuple[str, ...]) -> None:
    module, x = nn.GRU(32, 32), torch.randn(20, 2, 32)
    layer = onegru.from_torch(module)
    assert isinstance(layer, onegru.GRU)
    options: Any = dict(zip(("weight_storage", "activation_storage"), storage, strict=False))
    ours.freeze(module, **options)
    with torch.no_grad():
        Y = module(x)[0]
    wanted = layer.with_storage(*storage)(x.numpy())[0][:, 0]
    assert (Y.numpy() == wanted).all()


def test_layers_that_share_threads_have_the_same_bits() -> None:
    module = nn.GRU(40, 96, num_layers=3, batch_first=True)
    x, h = torch.randn(2, 120, 40), torch.randn(3, 2, 96)
    ours.freeze(module)
    found = []
    try:
        for threads in (1, 2):
            onegru.set_num_threads(threads)
            with torch.no_grad():
                found.append([*module(x, h), *module(x)])
    finally:
        onegru.set_num_threads(None)
    assert all(map(torch.equal, *found))
    assert found[0][1].shape == (3, 2, 96)
    ours.restore(module)
    plain = module(x, h)
    torch.testing.assert_close(found[0][0], plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0][1], plain[1], rtol=1e-5, atol=1e-5)


def test_training_is_refused() -> None:
    module, x = nn.GRU(I, H), torch.randn(4, 2, I)
    ours.freeze(module)
    for given in (x, x.clone().requires_grad_()):
        with pytest.raises(
            onegru.SpecError, match=r"model: frozen, and this call needs gradients; call it under"
        ):
            module(given)
    for change in (module.double, module.bfloat16):
        with pytest.raises(onegru.SpecError, match="model: frozen, so its type"):
            change()
    assert module.float().cpu().eval() is module
    with pytest.raises(RuntimeError, match="the module is frozen"):
        module.load_state_dict(nn.GRU(I, H).state_dict())
    with torch.no_grad(), pytest.raises(onegru.SpecError, match="does not support resets"):
        module(x, resets=torch.zeros(4, 2, dtype=torch.bool))
    ours.restore(module)
    module(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_what_cannot_be_packed_is_left() -> None:
    model = nn.ModuleDict({"brief": nn.GRU(I, H).bfloat16(), "rnn": ours.GRU(I, H), "lstm": nn.LSTM(I, H)})
    report = ours.freeze(model)
    assert report.replaced == ("rnn",) and list(report.skipped) == ["brief"]
    assert ours.restore(model) == ("rnn",)
    assert type(model["brief"]) is nn.GRU and isinstance(model["rnn"], ours.GRU)


def weight_normed(rnn: nn.Module, name: str) -> None:
    nn.utils.weight_norm(rnn, name)


def set_from_elsewhere(rnn: nn.Module, name: str) -> None:
    """What a hypernetwork or weight drop does: it sets the weight before each call."""
    raw = nn.Parameter(getattr(rnn, name).detach())
    delattr(rnn, name)
    setattr(rnn, name, raw.detach())
    rnn.raw = raw
    rnn.register_forward_pre_hook(lambda module, _: setattr(module, name, module.raw * 1.0))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("change", [weight_normed, set_from_elsewhere])
@pytest.mark.parametrize("kind", [nn.GRU, nn.GRUCell])
def test_weights_that_a_program_computes_are_left(kind: type[nn.Module], change: Any) -> None:
    model = nn.Sequential(kind(I, H))
    change(model[0], "weight_hh_l0" if kind is nn.GRU else "weight_hh")
    report = ours.freeze(model)
    assert report.replaced == ()
    assert report.skipped == {
        "0": "some of its weights are not parameters: the program may compute them before each call"
    }
    x = torch.randn(3, 2, I) if kind is nn.GRU else torch.randn(2, I)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        found = model(x)
        ours.restore(model)
        for expected, given in zip(model(x), found, strict=True):
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-6)


def test_nothing_is_frozen_after_an_error() -> None:
    model = nn.ModuleDict({"a": nn.GRU(I, H), "b": nn.GRU(I, H, dtype=torch.float64)})
    with pytest.raises(onegru.SpecError, match="weight_storage"):
        ours.freeze(model, weight_storage="int8")
    assert type(model["a"]) is nn.GRU and type(model["b"]) is nn.GRU
    with pytest.raises(onegru.SpecError, match="model"):
        ours.freeze("model")


def test_arguments_are_checked_where_nothing_is_packed() -> None:
    model = nn.GRU(I, H, dtype=torch.bfloat16)
    with pytest.raises(onegru.SpecError, match="weight_storage: 'int4'; must be"):
        ours.freeze(model, weight_storage="int4")
    with pytest.raises(onegru.SpecError, match="activation_storage: 'int8'; must be None, unless"):
        ours.freeze(model, activation_storage="int8")
    with pytest.raises(onegru.SpecError, match="activation_storage: 'int8'; must be bfloat16 or None with"):
        ours.freeze(model, weight_storage="bfloat16", activation_storage="int8")


def test_compiled_programs_leave_a_gap() -> None:
    model = nn.Sequential(nn.Linear(I, I), ours.GRU(I, H, clip=2.0))
    ours.freeze(model)
    x = torch.randn(9, 2, I)
    with torch.no_grad():
        wanted = model(x)[0]
        compiled: Any = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(x)[0], wanted)


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about traces
def test_calls_that_are_recorded_or_transformed_are_refused() -> None:
    """Its results would be constants there."""
    import io

    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = nn.Sequential(nn.GRU(3, 5)), torch.randn(4, 2, 3)
    onegru.torch.freeze(model)

    def run(x: Any) -> Any:
        return model(x)[0]

    def others() -> None:
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        torch.func.functional_call(model, zeros, (x,))

    ways: list[Any] = [
        lambda: torch.jit.trace(run, (x,)),
        lambda: torch.onnx.export(model, (x,), io.BytesIO(), dynamo=False),
        lambda: make_fx(run)(x),
        lambda: torch.vmap(run)(torch.stack([x, x])),
        lambda: torch.func.jvp(run, (x,), (x,)),
        lambda: torch.export.export(model, (x,), strict=False),
        others,
    ]
    with torch.no_grad():
        for way in ways:
            with pytest.raises(onegru.SpecError, match=r"^model: frozen, and .*restore\(model\)"):
                way()
        assert torch.equal(copy.deepcopy(model)(x)[0], run(x))


def test_messages_have_the_callers_axes() -> None:
    module = onegru.torch.AUGRU(8, 4, batch_first=True)
    with pytest.raises(onegru.SpecError, match=r"\[5, 3\]; must be torch.float32 \[3, 5\] or \[3, 5, 1\]"):
        module(torch.zeros(3, 5, 8), torch.zeros(5, 3))
    gru = onegru.torch.GRU(8, 4, batch_first=True)
    with pytest.raises(onegru.SpecError, match=r"\[5, 3\]; must be torch.bool \[3, 5\]"):
        gru(torch.zeros(3, 5, 8), resets=torch.zeros(5, 3, dtype=torch.bool))
    with pytest.raises(onegru.SpecError, match=r"^hx: shape \[1, 1, 4\]; must be \[1, 4\]"):
        gru(torch.zeros(5, 8), torch.zeros(1, 1, 4))
    with pytest.raises(onegru.SpecError, match=r"^input: torch.float16; must be torch.float32"):
        gru(torch.zeros(3, 5, 8, dtype=torch.float16))


@pytest.mark.parametrize("name", ["weight_hh_l0", "bias_hh_l1"])
def test_a_parametrization_after_freezing_is_refused(name: str) -> None:
    module = nn.GRU(I, H, 2)
    ours.freeze(module)
    nn.utils.parametrize.register_parametrization(module, name, nn.Tanh())
    with torch.no_grad(), pytest.raises(onegru.SpecError, match="replaces its parameters"):
        module(torch.randn(5, 3, I))


def test_tied_parameters_may_have_other_modules() -> None:
    module = nn.GRU(I, I, 2)
    module.weight_hh_l1 = module.weight_hh_l0
    ours.freeze(module)
    x = torch.randn(5, 3, I)
    with torch.no_grad():
        expected = module(x)[0]
        module.other = nn.Identity()
        assert torch.equal(module(x)[0], expected)
