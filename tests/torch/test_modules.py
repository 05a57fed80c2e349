"""onegru's modules against PyTorch's, and what PyTorch's programs do with modules."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
from onegru.torch.arguments import form_of  # noqa: E402
from onegru.torch.autograd import fallback  # noqa: E402

FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"bias": False},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
]
I, H = 5, 7
WORD: Any = "no"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def pair(dtype: Any = torch.float64, **options: Any) -> tuple[Any, Any]:
    """PyTorch's GRU and ours, of the same parameters."""
    theirs = nn.GRU(I, H, dtype=dtype, **options)
    mine = ours.GRU(I, H, dtype=dtype, **options)
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def close(a: Any, b: Any, bound: float = 1e-12) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.numel() == 0 or float((a - b).detach().abs().max()) <= bound


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("is_one", [False, True])
def test_outputs_and_gradients_are_pytorchs(options: dict[str, Any], is_one: bool) -> None:
    theirs, mine = pair(**options)
    shape = (4, I) if is_one else (4, 3, I)
    D = 2 if options.get("bidirectional") else 1
    rows = () if is_one else (4 if options.get("batch_first") else 3,)
    found = []
    for module in (theirs, mine):
        torch.manual_seed(1)
        x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        h = torch.randn(options.get("num_layers", 1) * D, *rows, H, dtype=torch.float64, requires_grad=True)
        y, last = module(x, h)
        (y.sin().sum() + last.cos().sum()).backward()
        found.append([y, last, x.grad, h.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        close(a, b)
    assert list(theirs.state_dict()) == list(mine.state_dict())
    theirs.load_state_dict(mine.state_dict())


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences(is_sorted: bool, bidirectional: bool) -> None:
    theirs, mine = pair(bidirectional=bidirectional, num_layers=2)
    lengths = torch.tensor([6, 4, 3, 1] if is_sorted else [3, 6, 1, 4])
    x = torch.randn(6, 4, I, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=is_sorted)
    h = torch.randn(4 if bidirectional else 2, 4, H, dtype=torch.float64)
    (y, last), (y2, last2) = theirs(packed, h), mine(packed, h)
    close(y.data, y2.data)
    close(last, last2)
    padded, _ = nn.utils.rnn.pad_packed_sequence(y2)
    close(padded, mine(x, h, lengths=lengths)[0])


def test_cells() -> None:
    theirs = nn.GRUCell(I, H, dtype=torch.float64)
    mine = ours.GRUCell(I, H, dtype=torch.float64)
    mine.load_state_dict(theirs.state_dict())
    x, h = torch.randn(3, I, dtype=torch.float64), torch.randn(3, H, dtype=torch.float64)
    close(theirs(x, h), mine(x, h))
    close(theirs(x[0]), mine(x[0]))
    augru, cell = ours.AUGRU(I, H, dtype=torch.float64), ours.AUGRUCell(I, H, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in augru.state_dict().items()})
    X, a = torch.randn(4, 3, I, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    Y, state = augru(X, a)[0], None
    for t in range(4):
        state = cell(X[t], a[t], state)
        close(Y[t], state)


GRADCHECKED: list[dict[str, Any]] = [
    {"bidirectional": True},
    {"num_layers": 2, "linear_before_reset": False},
    {"linear_before_reset": False, "bidirectional": True, "clip": 0.7},
    {"activations": ["HardSigmoid", "Softsign"], "bias": False},
    {"activations": ["ScaledTanh", "Elu"], "activation_alpha": [1.1, 0.7], "activation_beta": [0.8]},
]


@pytest.mark.parametrize("options", GRADCHECKED)
def test_first_and_second_derivatives(options: dict[str, Any]) -> None:
    module = ours.GRU(3, 4, dtype=torch.float64, **options)
    names = [name for name, _ in module.named_parameters()]
    count = module.num_layers * module._form.num_directions
    x, h = (torch.randn(3, 2, 3), torch.randn(count, 2, 4))
    given = [t.double().requires_grad_() for t in (x, h)]
    given += [p.detach().clone().requires_grad_() for p in module.parameters()]
    resets, lengths = torch.tensor([[0, 0], [1, 0], [0, 1]]).bool(), torch.tensor([3, 2])

    def run(x: Any, h: Any, *parameters: Any) -> Any:
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, values, (x, h), {"resets": resets, "lengths": lengths})

    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def test_a_tensor_that_is_given_twice() -> None:
    X, W, R, b = (torch.randn(*shape).double() for shape in ((4, 2, I), (3 * H, I), (3 * H, H), (3 * H,)))
    given = [tensor.requires_grad_() for tensor in (W, R, b)]

    def call(W: Any, R: Any, b: Any) -> Any:
        return ours.gru(X, [W, R, b, b])[0]

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("linear_before_reset", [False, True])
@pytest.mark.parametrize("kind", ["openvino", "dien"])
def test_attention_has_a_gradient(kind: Any, linear_before_reset: bool) -> None:
    module = ours.AUGRU(3, 4, attention=kind, linear_before_reset=linear_before_reset, dtype=torch.float64)
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    a = torch.rand(3, 2, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: module(*given), (x, a))
    assert torch.autograd.gradgradcheck(lambda *given: module(*given), (x, a))


@pytest.mark.parametrize("steps", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_attention_of_dien(dtype: Any, steps: int) -> None:
    """Against the equations of the paper in PyTorch: u' = a·u, h = (1 - u')∘h + u'∘n, with u = 1 - z."""
    module = ours.AUGRU(I, H, attention="dien", dtype=dtype)
    x, a = torch.randn(steps, 5, I, dtype=dtype), torch.rand(steps, 5, dtype=dtype)
    W, R, b, c = (parameter.detach() for parameter in module.parameters())

    def paper(x: Any, a: Any) -> Any:
        h, found = torch.zeros(5, H, dtype=dtype), []
        for t in range(steps):
            xr, xz, xn = (x[t] @ W.T + b).chunk(3, 1)
            hr, hz, _ = (h @ R.T + c).chunk(3, 1)
            r, u = torch.sigmoid(xr + hr), 1 - torch.sigmoid(xz + hz)
            n = torch.tanh(xn + (r * h) @ R[2 * H :].T + c[2 * H :])
            u = a[t][:, None] * u
            h = (1 - u) * h + u * n
            found.append(h)
        return torch.stack(found)

    bound = 1e-5 if dtype == torch.float32 else 1e-13
    wanted = paper(x, a)
    close(module(x, a)[0], wanted, bound)
    with torch.no_grad():
        close(module(x, a)[0], wanted, bound)
    gradients = []
    runs: list[Any] = [lambda x, a: module(x, a)[0], paper]
    for run in runs:
        given = x.clone().requires_grad_(), a.clone().requires_grad_()
        run(*given).square().sum().backward()
        gradients.append([tensor.grad for tensor in given])
    for found, right in zip(*gradients, strict=True):
        close(found, right, 100 * bound)


@pytest.mark.parametrize("options", GRADCHECKED)
@pytest.mark.parametrize("to_initial", [False, True])
def test_the_fallback_is_the_same(options: dict[str, Any], to_initial: bool) -> None:
    module = ours.GRU(I, H, resets_to_initial=to_initial, dtype=torch.float64, **{**options, "num_layers": 1})
    x = torch.randn(6, 4, I, dtype=torch.float64)
    h = torch.randn(module._form.num_directions, 4, H, dtype=torch.float64)
    resets, lengths = torch.rand(6, 4) < 0.4, torch.tensor([6, 0, 3, 5])
    weights = list(module._flat_weights)
    if not module.bias:
        weights = [t for d in range(len(weights) // 2) for t in (*weights[2 * d : 2 * d + 2], None, None)]
    wanted = fallback.forward(module._form, (x, h, None, lengths, resets, *weights))
    for a, b in zip(module(x, h, lengths, resets), wanted, strict=True):
        close(a, b)


# What programs do with modules


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies(copy_of: Any) -> None:
    module = ours.GRU(I, H, num_layers=2, clip=1.0)
    x = torch.randn(4, 3, I)
    assert torch.equal(copy_of(module)(x)[0], module(x)[0])
    file = io.BytesIO()
    torch.save(module.state_dict(), file)


@pytest.mark.parametrize("allow_rnn", [False, True])
def test_compile_and_export(allow_rnn: bool) -> None:
    """Around an nn.GRU, as around PyTorch's, compiled code has a gap, unless `allow_rnn` is set."""
    module = ours.GRU(I, H, num_layers=2)
    x = torch.randn(4, 3, I, requires_grad=True)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):
        _compile_and_export(module, x, fullgraph=allow_rnn)


def _compile_and_export(module: ours.GRU, x: Any, fullgraph: bool) -> None:
    compiled = torch.compile(module, fullgraph=fullgraph, backend="aot_eager")
    results = []
    for run in (module, compiled):
        module.zero_grad()
        x.grad = None
        y = run(x)[0]
        y.sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        close(a, b, 1e-5)
    exported = torch.export.export(module, (x.detach(),))
    assert any("onegru" in str(node.target) for node in exported.graph.nodes)
    close(exported.module()(x)[0], module(x)[0], 1e-6)


@pytest.mark.filterwarnings("ignore")  # of PyTorch 2.14, about its own check
def test_opcheck() -> None:
    weights = [[p.detach().clone().requires_grad_()] for p in nn.GRU(I, H).parameters()]
    x, form = torch.randn(4, 3, I, requires_grad=True), ours.GRU(I, H).form.scalars
    torch.library.opcheck(torch.ops.onegru.gru.default, (x, *[None] * 4, *weights, *form))
    state, scores = torch.randn(2, 3, H, requires_grad=True), torch.rand(4, 3, requires_grad=True)
    lengths, resets = torch.tensor([4, 0, 2]), torch.rand(4, 3) < 0.5
    both = [[own, own.detach().requires_grad_()] for (own,) in weights[:2]]
    form = form_of(
        "bidirectional", False, 3.0, ["Sigmoid", "LeakyRelu"] * 2, [0.1, 0.2], None, True, "dien"
    ).scalars
    torch.library.opcheck(
        torch.ops.onegru.gru.default, (x, state, scores, lengths, resets, *both, [], [], *form)
    )


@pytest.mark.filterwarnings("ignore")  # of PyTorch 2.14 on Python 3.14, about TorchScript
def test_functional_transforms() -> None:
    module = ours.GRU(I, H)
    x = torch.randn(4, 3, I, requires_grad=True)
    module(x)[0].sum().backward()
    close(torch.func.grad(lambda x: module(x)[0].sum())(x.detach()), x.grad, 1e-6)
    both = torch.func.vmap(lambda x: module(x)[0])(torch.stack([x.detach(), x.detach() + 1]))
    close(both[1], module(x + 1)[0], 1e-6)
    theirs = nn.GRU(I, H)
    theirs.load_state_dict(module.state_dict())
    first, second = (
        torch.func.jvp(lambda x, m=m: m(x)[0], (x.detach(),), (x.detach(),))[1] for m in (theirs, module)
    )
    close(first, second, 1e-6)


@pytest.mark.filterwarnings("ignore")
def test_jacobians() -> None:
    """Gradients of many outputs at once go through vmap."""
    theirs, mine = pair()
    x = torch.randn(4, 3, I, dtype=torch.float64)
    found = [
        torch.func.jacrev(lambda x, module=module: module(x)[0].sum((1, 2)))(x) for module in (theirs, mine)
    ]
    close(*found)


@pytest.mark.filterwarnings("ignore")
def test_traces_are_of_pytorchs_operator() -> None:
    theirs, mine = pair(torch.float32)
    traced = torch.jit.trace(mine, (torch.randn(4, 3, I),))
    x = torch.randn(6, 2, I)
    close(traced(x)[0], theirs(x)[0], 1e-6)
    with pytest.raises(onegru.SpecError, match=r"torch\.jit\.trace"):
        torch.jit.trace(ours.GRU(I, H, clip=1.0), (x,))


def test_open_sizes_are_exported() -> None:
    module = ours.GRU(I, H, clip=1.0)
    steps = torch.export.Dim("steps", min=2, max=64)
    exported = torch.export.export(module, (torch.randn(4, 3, I),), dynamic_shapes={"input": {0: steps}})
    x = torch.randn(20, 3, I)
    close(exported.module()(x)[0], module(x)[0], 1e-6)
    torch._dynamo.reset()
    augru = ours.AUGRU(I, H)
    compiled = torch.compile(augru, fullgraph=True, backend="aot_eager", dynamic=True)
    for T, B in ((4, 3), (7, 2)):
        x, a = torch.randn(T, B, I), torch.rand(T, B)
        close(compiled(x, a)[0], augru(x, a)[0], 1e-6)


def mixed() -> list[Any]:
    """Weights of two directions of different sizes."""
    sizes = [[(3 * n, I), (3 * n, n), (3 * n,), (3 * n,)] for n in (H, H + 1)]
    return [torch.zeros(shape) for shapes in sizes for shape in shapes]


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("input", lambda: ours.GRU(I, H)([1.0])),
        ("input", lambda: ours.GRU(I, H)(None)),
        ("hx", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), (torch.zeros(1, 3, H),))),
        ("lengths", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), lengths=[1, 2, 3])),
        ("lengths", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), lengths=torch.tensor([-1, 2, 3]))),
        ("lengths", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), lengths=torch.ones(3))),
        ("resets", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), resets=torch.ones(9, 3))),
        ("resets", lambda: ours.GRU(I, H)(torch.zeros(9, 3, I), resets=[[True]])),
        ("attention", lambda: ours.AUGRU(I, H)(torch.zeros(9, 3, I), None)),
        ("attention", lambda: ours.AUGRU(I, H, attention="augru")),  # type: ignore[arg-type]
        ("attention", lambda: ours.AUGRUCell(I, H, attention=None)),  # type: ignore[arg-type]
        ("attention", lambda: ours.AUGRU(I, H)(torch.zeros(9, 3, I), torch.zeros(3, 9))),
        ("clip", lambda: ours.GRU(I, H, clip=WORD)),
        ("clip", lambda: ours.GRU(I, H, clip=0.0)),
        ("linear_before_reset", lambda: ours.GRU(I, H, linear_before_reset=WORD)),
        ("activations", lambda: ours.GRU(I, H, activations=["Tanh"])),
        ("resets", lambda: ours.GRU(I, H, batch_first=True)(torch.zeros(3, 9, I), resets=torch.ones(9) > 0)),
        ("attention", lambda: ours.AUGRUCell(I, H)(torch.zeros(9, I), torch.zeros(1, 9))),
        ("attention", lambda: ours.AUGRUCell(I, H)(torch.zeros(9, I), WORD)),
        ("weights", lambda: ours.gru(torch.zeros(9, 3, I), mixed(), direction="bidirectional")),
        ("model", lambda: ours.accelerate(3)),
        ("weights", lambda: ours.gru(torch.zeros(9, 3, I), [None] * 4)),
    ],
)
def test_illegal_arguments_are_named(argument: str, call: Any) -> None:
    with pytest.raises(onegru.SpecError, match=f"^{argument}: "):
        call()


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"batch_first": True}])
def test_outputs_may_be_changed_in_place(options: dict[str, Any]) -> None:
    theirs, mine = pair(**options)
    for module in (theirs, mine):
        y = module(torch.ones(4, 3, I, dtype=torch.float64))[0]
        y.mul_(2)
        y[:, :, 2:] = 0
        y.relu_()
        y.sum().backward()
    for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
        close(a.grad, b.grad)


def test_what_only_a_call_shows_is_refused() -> None:
    """Compiled code cannot check values, parameters may be exchanged, anyone may call an operator."""
    module, x = ours.GRU(I, H), torch.randn(20, 3, I)
    compiled = torch.compile(ours.GRU(I, H, clip=3.0), fullgraph=True, backend="aot_eager")
    compiled(x, lengths=torch.tensor([20, 0, 3]))
    for lengths in ([3000, 1, 1], [-5, 1, 1]):
        with pytest.raises(onegru.SpecError, match=r"^sequence_lens: "):
            compiled(x, lengths=torch.tensor(lengths))
    form = module.form.scalars
    given = (x, *[None] * 4, *([p.detach()] for p in module.parameters()))
    Y, Y_h, all_Y = torch.ops.onegru.gru(*given, *form)
    with pytest.raises(onegru.SpecError, match=r"^Y: "):
        torch.ops.onegru.gru_backward(*given, all_Y[:2], Y[:2], Y_h, [True, False, False, *[True] * 4], *form)
    with pytest.raises(onegru.SpecError, match=r"^wanted: "):
        torch.ops.onegru.gru_backward(*given, all_Y, Y, Y_h, [True] * 7, *form)
    with pytest.raises(onegru.SpecError, match=r"^W: 0 tensors; must be 1"):
        torch.ops.onegru.gru(x, *[None] * 4, [], *given[6:], *form)
    module.weight_hh_l0 = nn.Parameter(torch.randn(3, H))
    with pytest.raises(onegru.SpecError, match=r"^R: "):
        module(x)


def test_parameters_change_in_place_between_calls() -> None:
    theirs, mine = pair(torch.float32)
    x = torch.randn(4, 3, I)
    for module in (theirs, mine):
        optimizer = torch.optim.AdamW(module.parameters(), 0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            module(x)[0].square().sum().backward()
            optimizer.step()
            module.weight_hh_l0.data *= 0.9
    for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
        close(a, b, 1e-5)
    y = mine(x)[0]
    with torch.no_grad():
        mine.weight_ih_l0 += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_modes_and_types() -> None:
    theirs, mine = pair(torch.float32)
    x = torch.randn(4, 3, I)
    with torch.no_grad():
        assert not mine(x)[0].requires_grad
    with torch.inference_mode():
        close(mine(x)[0], theirs(x)[0], 1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        halved, h = nn.Linear(I, I)(x), torch.zeros(1, 3, H)
        assert halved.dtype == torch.bfloat16
        for given in ((x,), (halved,), (halved, h)):
            for a, b in zip(mine(*given), theirs(*given), strict=True):
                close(a.float(), b.float(), 0.02)
                assert a.dtype == b.dtype
    close(copy.deepcopy(mine).bfloat16()(x.bfloat16())[0].float(), theirs(x)[0], 0.03)
    assert ours.GRU(I, H, device="meta")(x.to("meta"))[0].shape == (4, 3, H)
    turned = torch.randn(I, 3, 4).permute(2, 1, 0)  # of other strides
    close(mine(turned)[0], theirs(turned)[0], 1e-6)


def test_only_some_parameters_learn() -> None:
    theirs, mine = pair(bidirectional=True)
    for module in (theirs, mine):
        module.weight_ih_l0.requires_grad_(False)
        module.bias_hh_l0_reverse.requires_grad_(False)
        module(torch.ones(4, 3, I, dtype=torch.float64))[0].sum().backward()
    for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            close(a.grad, b.grad)


def test_dropout_between_layers() -> None:
    module = ours.GRU(I, H, num_layers=2, dropout=0.5)
    x = torch.randn(4, 3, I)
    assert not torch.equal(module(x)[0], module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_flops_are_counted(options: dict[str, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    found = []
    for kind in (ours.GRU, nn.GRU):
        module, x = kind(I, H, **options), torch.randn(20, 3, I)
        counts = []
        for with_gradients in (False, True):
            with torch.set_grad_enabled(with_gradients), FlopCounterMode(display=False) as counter:
                result = module(x)[0]
                if with_gradients:
                    result.sum().backward()
            counts.append(counter.get_total_flops())
        found.append(counts)
    (few, many), (theirs, all_of_theirs) = found
    assert few == theirs
    assert abs(many - all_of_theirs) <= 0.05 * all_of_theirs  # PyTorch goes back through one step less


def test_the_operators_are_as_their_schemas_say() -> None:
    module = ours.GRU(3, 4, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    weights, form = [[p.detach()] for p in module.parameters()], module.form.scalars
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments: Any = (x, *[None] * 4, *([p.requires_grad_()] for (p,) in weights), *form)
    torch.library.opcheck(torch.ops.onegru.gru.default, arguments, test_utils=tests)
    Y = module(x)[0].detach().unflatten(2, (1, 4))
    plain = (x.detach(), *[None] * 4, *([p.detach()] for (p,) in weights))
    for dY_h in (torch.randn(1, 2, 4, dtype=torch.float64), None):
        dY = torch.randn(5, 2, 4, dtype=torch.float64)
        wanted = [True, False, False, True, True, True, True]
        backward: Any = (*plain, Y, dY, dY_h, wanted, *form)
        torch.library.opcheck(torch.ops.onegru.gru_backward.default, backward, test_utils=tests)


def test_calls_use_no_more_threads_than_pytorch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru import _native

    limits: list[int] = []
    limit = _native.limit_threads

    def noted(most: int) -> None:
        limits.append(most)
        limit(most)

    monkeypatch.setattr(_native, "limit_threads", noted)
    module, x = ours.GRU(I, H), torch.randn(200, 4, I)
    before, mine = torch.get_num_threads(), onegru.get_num_threads()
    try:
        torch.set_num_threads(1)
        module(x)[0].sum().backward()
        assert limits == [1, 0, 1, 0]
        onegru.set_num_threads(2)
        limit(1)
        assert onegru.get_num_threads() == 1
        limit(0)
        assert onegru.get_num_threads() == 2
    finally:
        limit(0)
        torch.set_num_threads(before)
        onegru.set_num_threads(mine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True, "bias": False}, {"linear_before_reset": False, "clip": 0.7}]
)
def test_layers_on_several_threads_have_the_same_bits(
    options: dict[str, Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onegru import _native

    runs, run_stack = [], _native.run_stack

    def counted(*args: Any) -> Any:
        runs.append(Y := run_stack(*args))
        return Y

    monkeypatch.setattr(_native, "run_stack", counted)
    module = ours.GRU(40, 96, 3, dtype=dtype, **options)
    # Steps of a view, and states in another order in memory.
    X, h = torch.randn(241, 2, 40, dtype=dtype)[1:], torch.randn(2, 3, 96, dtype=dtype).transpose(0, 1)
    X = X.transpose(0, 1) if module.batch_first else X
    before, found = h.clone(), []
    pytorchs = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for threads in (1, 2):
            onegru.set_num_threads(threads)
            with torch.no_grad():
                found.append([*module(X, h), *module(X)])
        assert len(runs) == 2
        recorded = [*module(X, h), *module(X)]  # with gradients, one layer after another
        assert len(runs) == 2
    finally:
        onegru.set_num_threads(None)
        torch.set_num_threads(pytorchs)
    assert all(map(torch.equal, *found)) and all(map(torch.equal, found[0], recorded))
    assert torch.equal(h, before)
    with torch.no_grad():
        start = h[:, :1].expand(-1, 2, -1)  # a learned state
        assert all(map(torch.equal, module(X, start), module(X, start.contiguous())))
        found[0][0].resize_(1)  # as PyTorch's own outputs
    with torch.no_grad(), pytest.raises(onegru.SpecError, match="39 features; must have 40"):
        module(X[..., 1:])


def test_options_are_read_as_everywhere_else() -> None:
    """clip, alpha and beta are float32 numbers, and what onegru.GRU refuses is refused here."""
    gru = ours.GRU(4, 4, dtype=torch.float64, clip=0.37)
    layer = onegru.from_torch(gru)
    assert isinstance(layer, onegru.GRU)
    assert layer.spec.clip == float(np.float32(0.37)) and gru.form.clip == layer.spec.clip
    assert onegru.Spec(4, 4, "float64", clip=0.37).clip == float(np.float32(0.37))
    assert ours.GRU(4, 4, clip=float("inf")).form.clip == 0.0
    names = ["HardSigmoid", "Tanh"]
    for name, value in (
        *(("clip", value) for value in (True, "1", b"2", 1e39, 1e-50, 10**400, 0)),
        *(("activation_alpha", [value]) for value in (True, 1e39, float("nan"))),
        *(("activation_beta", [value]) for value in ("1", 1e300)),
    ):
        with pytest.raises(onegru.SpecError, match=f"^{name}: "):
            ours.GRU(4, 4, activations=names, **{name: value})  # type: ignore[arg-type]
    for kind in (ours.GRU, ours.GRU, ours.GRUCell):
        with pytest.warns(onegru.SpecWarning, match="activation_alpha: 1 value too many"):
            module = kind(4, 4, activation_alpha=[0.125])
        assert module.form.activation_alpha == ()
