"""What PyTorch's own tests ask of nn.GRU and nn.GRUCell, asked of onegru's; each name says which test."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402

MODULES = pytest.mark.parametrize("kind", [nn.GRU, ours.GRU], ids=["PyTorch", "onegru"])
CELLS = pytest.mark.parametrize("kind", [nn.GRUCell, ours.GRUCell], ids=["PyTorch", "onegru"])
Failure = (RuntimeError, ValueError, TypeError, IndexError)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# --- cells


@CELLS
def test_rnn_cell(kind: Any) -> None:
    """test_RNN_cell: a state goes through many steps, and a gradient back."""
    for bias in (True, False):
        x, h = torch.randn(3, 10), torch.randn(3, 20)
        cell = kind(10, 20, bias=bias)
        for _ in range(6):
            h = cell(x, h)
        h.sum().backward()
        assert all(p.grad is not None for p in cell.parameters())


@CELLS
@pytest.mark.parametrize(
    ("x", "h"), [((3, 11), (3, 20)), ((3, 10), (3, 21)), ((5, 10), (3, 20)), ((3, 10), (1, 20))]
)
def test_rnn_cell_no_broadcasting(kind: Any, x: tuple[int, ...], h: tuple[int, ...]) -> None:
    with pytest.raises(Failure):
        kind(10, 20)(torch.randn(x), torch.randn(h))


@CELLS
@pytest.mark.parametrize("shape", [(), (2, 3, 10)])
def test_rnn_cell_forward_input_size(kind: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(Failure):
        kind(10, 20)(torch.randn(shape))


# --- arguments


@MODULES
@pytest.mark.parametrize(
    ("x", "h"),
    [
        ((10, 6, 11), (2, 6, 20)),  # another input_size
        ((10, 6, 10), (2, 6, 21)),  # another hidden_size
        ((10, 6, 10), (2, 5, 20)),  # another number of rows
        ((10, 6, 10), (1, 6, 20)),  # another number of layers
        ((10, 6, 10), (6, 20)),  # a state without rows
        ((10, 10), (2, 6, 20)),  # one row, a state of six
        ((10, 6, 10, 1), (2, 6, 20)),  # too many axes
        ((10,), (2, 6, 20)),
    ],
)
def test_rnn_args_check(kind: Any, x: tuple[int, ...], h: tuple[int, ...]) -> None:
    with pytest.raises(Failure):
        kind(10, 20, num_layers=2)(torch.randn(x), torch.randn(h))


@MODULES
@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 0},
        {"hidden_size": -1},
        {"hidden_size": 2.5},
        {"num_layers": 0},
        {"dropout": 1.5},
        {"dropout": -0.1},
        {"dropout": True},
        {"proj_size": 3},
    ],
)
def test_projections_errors_and_rnn_constructor_check(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(Failure):
        kind(**{"input_size": 10, "hidden_size": 20, **options})


@MODULES
def test_another_type_than_the_parameters(kind: Any) -> None:
    with pytest.raises(Failure):
        kind(10, 20)(torch.randn(4, 3, 10, dtype=torch.float64))


@MODULES
def test_rnn_initial_hidden_state(kind: Any) -> None:
    """A state that is left out is zeros."""
    for x, h in (((4, 3, 10), (2, 3, 20)), ((4, 10), (2, 20))):
        module, given = kind(10, 20, bidirectional=True), torch.randn(x)
        for a, b in zip(module(given), module(given, torch.zeros(h)), strict=True):
            assert torch.equal(a, b)


@MODULES
def test_rnn_of_no_rows_or_steps(kind: Any) -> None:
    """test_RNN_input_size_zero and its like: no rows give empty outputs."""
    module = kind(10, 20, num_layers=2)
    y, h = module(torch.randn(4, 0, 10))
    assert y.shape == (4, 0, 20)
    assert h.shape == (2, 0, 20)


# --- dropout


@MODULES
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_rnn_dropout(kind: Any, p: float) -> None:
    """Only between layers: with 1, the second layer sees zeros."""
    module = kind(10, 20, num_layers=2, dropout=p)
    x = torch.randn(12, 3, 10)
    plain = copy.deepcopy(module)
    plain.dropout = 0.0
    last = plain(x)[0]
    if p:
        second = kind(20, 20)
        second.load_state_dict(
            {name.replace("_l1", "_l0"): v for name, v in module.state_dict().items() if "_l1" in name}
        )
        last = second(torch.zeros(12, 3, 20))[0]
    torch.testing.assert_close(module(x)[0], last)


@MODULES
def test_rnn_change_dropout(kind: Any) -> None:
    module, x = kind(10, 20, num_layers=2, dropout=0.0), torch.randn(12, 3, 10)
    first = module(x)[0]
    module.dropout = 0.7
    assert not torch.equal(first, module(x)[0])
    module.eval()
    assert torch.equal(first, module(x)[0])


@MODULES
def test_empty_dropout(kind: Any) -> None:
    """Dropout of one layer does nothing, and warns."""
    with pytest.warns(UserWarning, match="dropout"):
        module = kind(10, 20, dropout=0.5)
    x = torch.randn(12, 3, 10)
    assert torch.equal(module(x)[0], module(x)[0])


def test_rnn_dropout_state() -> None:
    """The same seed drops the same numbers as PyTorch does."""
    theirs = nn.GRU(10, 20, num_layers=3, dropout=0.5)
    mine = ours.GRU(10, 20, num_layers=3, dropout=0.5)
    mine.load_state_dict(theirs.state_dict())
    x, found = torch.randn(12, 3, 10), []
    for module in (theirs, mine):
        torch.manual_seed(5)
        found.append(module(x)[0])
    torch.testing.assert_close(*found)


# --- packed sequences


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("has_state", [False, True])
def test_variable_sequence(batch_first: bool, has_state: bool) -> None:
    """Rows of their own lengths, packed, are what each is separately, in values and gradients."""
    lengths = [7, 5, 5, 2]
    for bidirectional in (False, True):
        module = ours.GRU(3, 4, 2, bidirectional=bidirectional, batch_first=batch_first).double()
        x = torch.randn(*((4, 7) if batch_first else (7, 4)), 3).double().requires_grad_()
        h = torch.randn(4 if bidirectional else 2, 4, 4).double() if has_state else None
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=batch_first)
        y, last = module(packed, h)
        padded, found = nn.utils.rnn.pad_packed_sequence(y, batch_first=batch_first)
        assert found.tolist() == lengths
        loss = padded.square().sum()
        loss.backward()
        gradient, x.grad = x.grad, None
        total = torch.zeros((), dtype=torch.float64)
        for row, length in enumerate(lengths):
            own = x[row, :length] if batch_first else x[:length, row]
            one, end = module(own, None if h is None else h[:, row])
            torch.testing.assert_close(padded[row, :length] if batch_first else padded[:length, row], one)
            torch.testing.assert_close(last[:, row], end)
            total = total + one.square().sum()
        total.backward()
        torch.testing.assert_close(x.grad, gradient)


# --- what modules must do


@MODULES
def test_rnn_retain_variables(kind: Any) -> None:
    module, x = kind(10, 20, num_layers=2), torch.randn(5, 6, 10, requires_grad=True)
    y = module(x)[0]
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    for times in (2, 3):
        y.sum().backward(retain_graph=True)
        torch.testing.assert_close(x.grad, times * first)


@MODULES
def test_no_grad_of_the_input(kind: Any) -> None:
    module, x = kind(10, 20), torch.randn(5, 6, 10)
    module(x)[0].sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert module(x)[0].grad_fn is None


@MODULES
def test_save_load_and_pickle(kind: Any) -> None:
    module, x = kind(10, 20, 2, bidirectional=True), torch.randn(5, 6, 10)
    other = kind(10, 20, 2, bidirectional=True)
    other.load_state_dict(module.state_dict())
    for copied in (other, pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        for a, b in zip(copied(x), module(x), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="Missing key"):
        kind(10, 20, 3).load_state_dict(module.state_dict())


@MODULES
def test_factory_kwargs(kind: Any) -> None:
    module = kind(10, 20, device="cpu", dtype=torch.float64)
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert kind(10, 20, device="meta").to_empty(device="cpu")(torch.randn(5, 6, 10))[0].shape == (5, 6, 20)


@MODULES
def test_parameters_in_one_array(kind: Any) -> None:
    """test_cudnn_weight_format and flatten_parameters: nothing changes for a CPU."""
    module, x = kind(10, 20, 2), torch.randn(5, 6, 10)
    before = module(x)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.flatten_parameters()
    assert torch.equal(module(x)[0], before)
    assert len(module.all_weights) == 2
    assert [len(weights) for weights in module.all_weights] == [4, 4]


@MODULES
def test_inputs_stay_as_they_are(kind: Any) -> None:
    """test_check_inplace."""
    module, x, h = kind(10, 20), torch.randn(5, 6, 10), torch.randn(1, 6, 20)
    before = x.clone(), h.clone()
    module(x, h)[0].sum().backward()
    assert torch.equal(x, before[0])
    assert torch.equal(h, before[1])


def test_rnn_weight_norm() -> None:
    """A weight that is computed from others before each call has a gradient through it."""
    found = []
    for kind in (nn.GRU, ours.GRU):
        torch.manual_seed(3)
        module = kind(10, 20)
        normed = torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
        x = torch.randn(5, 6, 10)
        y = normed(x)[0]
        y.square().sum().backward()
        found.append([y, *(p.grad for _, p in sorted(normed.named_parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_repr_names_what_pytorch_does() -> None:
    options: dict[str, Any] = {"num_layers": 2, "bias": False, "batch_first": True, "bidirectional": True}
    assert repr(ours.GRU(10, 20, **options)) == f"onegru.{nn.GRU(10, 20, **options)}"
    assert repr(ours.GRUCell(10, 20)) == f"onegru.{nn.GRUCell(10, 20)}"
    assert "clip=0.5" in repr(ours.GRU(10, 20, clip=0.5))


def test_what_computes_the_same_is_one_of_pytorchs() -> None:
    for make, theirs in ((ours.GRU, nn.GRU), (ours.GRUCell, nn.GRUCell)):
        module = make(10, 20)
        assert isinstance(module, theirs) and isinstance(module, make)
        match module:
            case nn.GRU() | nn.GRUCell():
                pass
            case _:
                pytest.fail("no pattern of PyTorch's classes")
        assert isinstance(make(10, 20, activations=["sigmoid", "TANH"]), theirs)
        for options in ({"clip": 1.0}, {"linear_before_reset": False}, {"activations": ["Sigmoid", "Relu"]}):
            other: Any = make(10, 20, **options)
            assert isinstance(other, make) and not isinstance(other, theirs)
            assert type(copy.deepcopy(other)) is type(other) is type(pickle.loads(pickle.dumps(other)))
        assert type(copy.deepcopy(module)) is type(module) is type(pickle.loads(pickle.dumps(module)))
    assert not isinstance(ours.AUGRU(10, 20), nn.GRU)
    assert not isinstance(ours.AUGRUCell(10, 20), nn.GRUCell)


def test_replaced_modules_stay_pytorchs() -> None:
    model = nn.ModuleDict({"gru": nn.GRU(3, 4), "cell": nn.GRUCell(3, 4), "more": nn.Linear(4, 4)})
    kinds = {name: type(module) for name, module in model.items()}
    assert ours.accelerate(model).replaced == ("gru", "cell")
    assert all(isinstance(model[name], kind) for name, kind in kinds.items())
    assert ours.accelerate(model).replaced == ()
    ours.restore(model)
    assert kinds == {name: type(module) for name, module in model.items()}


def test_types_under_autocast_are_pytorchs() -> None:
    types = (torch.float32, torch.bfloat16, torch.float16)
    for autocast in types[1:]:
        for own, given, state in itertools.product(types, types, (None, *types)):
            for steps in (1, 2, 30):
                found = []
                for kind in (nn.GRU, ours.GRU):
                    module = kind(3, 5).to(own)
                    h = None if state is None else torch.zeros(1, 2, 5, dtype=state)
                    with torch.autocast("cpu", dtype=autocast), torch.no_grad():
                        Y, Y_h = module(torch.randn(steps, 2, 3).to(given), h)
                    found.append((Y.dtype, Y_h.dtype))
                assert found[0] == found[1], (autocast, own, given, state, steps)


def test_signatures_are_those_of_the_constructors() -> None:
    for kind in (ours.GRUCell, ours.AUGRUCell, ours.AUGRU):
        assert "hidden_size" in inspect.signature(kind).parameters
    assert nn.utils.skip_init(ours.GRUCell, 3, 4).weight_ih.shape == (12, 3)


def test_restore_refuses_what_pytorch_cannot_compute() -> None:
    model = nn.ModuleDict({"a": ours.GRU(3, 4), "b": ours.GRU(3, 4, resets_to_initial=True)})
    assert not isinstance(model["b"], nn.GRU)
    with pytest.raises(onegru.SpecError, match=r"'b' has options that torch\.nn\.GRU lacks"):
        ours.restore(model)
    assert isinstance(model["a"], ours.GRU)
