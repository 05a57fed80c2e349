"""PyTorch's forms against torch itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, MissingExtraError, SpecError
from tests.support.framework_cases import (
    DIALECTS,
    TOLERANCES,
    H,
    I,
    draw,
    largest_difference,
    layer,
    run,
    same_weights,
    stack,
)

torch = pytest.importorskip("torch")


def make(dtype: str = "float32", trained: bool = False, **options: Any) -> Any:
    torch.manual_seed(7)
    module = torch.nn.GRU(I, H, dtype=getattr(torch, dtype), batch_first=True, **options)
    if trained:
        train(module, dtype)
    return module


def train(module: Any, dtype: str) -> None:
    """A few steps towards outputs that follow the input's running mean."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    x = torch.from_numpy(draw((8, 6, I), dtype))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for _ in range(12):
        optimizer.zero_grad()
        y = module(x)[0]
        loss = ((y - torch.cumsum(x, 1).mean(-1, keepdim=True) / 6) ** 2).mean()
        loss.backward()
        optimizer.step()
    assert all((a - b).abs().max() > 0.05 for a, b in zip(before, module.parameters(), strict=True))


def outputs(module: Any, X: Any, h0: Any = None) -> tuple[Any, Any]:
    with torch.no_grad():
        y, h = module(torch.from_numpy(X), None if h0 is None else torch.from_numpy(h0))
    return y.numpy(), h.numpy()


@pytest.mark.parametrize("trained", [False, True], ids=["random", "trained"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_there_and_back(num_layers: int, bidirectional: bool, bias: bool, dtype: str, trained: bool) -> None:
    module = make(dtype, trained, num_layers=num_layers, bidirectional=bidirectional, bias=bias, dropout=0.0)
    X = draw((2, 7, I), dtype, 5)
    h0 = draw((num_layers * (1 + bidirectional), 2, H), dtype, 6)
    y, h = outputs(module, X, h0)
    source = onegru.from_torch(module)
    assert isinstance(source, onegru.GRU if num_layers == 1 else onegru.Stack)
    tolerance = TOLERANCES[dtype]
    Y, Y_h = source(X.swapaxes(0, 1), h0, layout=0)
    Y = Y.transpose(2, 0, 1, 3).reshape(2, 7, -1)
    assert largest_difference(Y, y) <= tolerance
    assert largest_difference(np.concatenate(list(Y_h)).reshape(h.shape), h) <= tolerance
    assert (
        largest_difference(run(onegru.from_torch(module, engine="reference"), X), run(source, X)) <= tolerance
    )

    back = onegru.to_torch(source, batch_first=True)
    assert isinstance(back, torch.nn.GRU) and back.weight_ih_l0.dtype == getattr(torch, dtype)
    assert largest_difference(outputs(back, X, h0)[0], y) <= tolerance
    for name, tensor in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_from_onegru(direction: str, count: int) -> None:
    source = stack(direction, count)
    X = draw((2, 7, I), seed=5)
    y, _ = outputs(onegru.to_torch(source, batch_first=True), X)
    assert largest_difference(run(source, X), y) <= 1e-6


@pytest.mark.parametrize("first", DIALECTS)
def test_trained_weights_through_every_pair(first: str) -> None:
    module = make("float32", True, bidirectional=True)
    X = draw((2, 7, I), seed=5)
    for second in DIALECTS:
        if "nnx" in (first, second):  # which has no bias within the reset gate's product
            with torch.no_grad():
                module.bias_hh_l0[2 * H :] = module.bias_hh_l0_reverse[2 * H :] = 0
        source = onegru.from_torch(module)
        assert isinstance(source, onegru.GRU)
        back = onegru.to_torch(DIALECTS[second](DIALECTS[first](source)), batch_first=True)
        assert largest_difference(outputs(back, X)[0], outputs(module, X)[0]) <= 1e-6


@pytest.mark.parametrize("num_layers", [1, 2])
def test_batch_first_is_the_layout(num_layers: int) -> None:
    module = make(num_layers=num_layers, bidirectional=True, dropout=0.5 * (num_layers > 1)).train()
    X = draw((7, 7, I), seed=5)  # a shape that does not show which axis is which
    expected = outputs(module.eval(), X)[0]
    source = onegru.from_torch(module)
    assert source.layout == 1
    assert largest_difference(source(X)[0].reshape(7, 7, -1), expected) <= 1e-6
    assert onegru.to_torch(source).batch_first
    assert onegru.from_torch(onegru.to_torch(source)).layout == 1
    assert not onegru.to_torch(source, batch_first=False).batch_first
    assert not onegru.to_torch(layer()).batch_first
    assert onegru.from_torch(torch.nn.GRU(I, H)).layout == 0
    assert onegru.from_torch(module.state_dict()).layout == 0
    assert onegru.from_torch(module.state_dict(), batch_first=True).layout == 1
    both = torch.nn.ModuleDict({"first": module, "other": torch.nn.GRU(I, H)})
    assert onegru.from_torch(both, prefix="first").layout == 1
    assert onegru.from_torch(both, prefix="other").layout == 0
    with pytest.raises(SpecError, match="batch_first: False; must be True or None, because the module"):
        onegru.from_torch(module, batch_first=False)
    with pytest.raises(SpecError, match="batch_first: True; must be False or None, because a cell takes one"):
        onegru.from_torch(torch.nn.GRUCell(I, H), batch_first=True)


def test_cell() -> None:
    cell = torch.nn.GRUCell(I, H)
    X, h = draw((2, I)), draw((2, H), seed=1)
    made = onegru.from_torch(cell)
    assert isinstance(made, onegru.GRU)
    with torch.no_grad():
        expected = cell(torch.from_numpy(X), torch.from_numpy(h)).numpy()
    assert largest_difference(made(X[None], h[None])[1][0], expected) <= 1e-6
    stream = made.stream(2)
    stream.state = h
    assert largest_difference(stream.step(X), expected) <= 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_16_bits_keep_their_bits(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    module = torch.nn.GRU(I, H, num_layers=2, bidirectional=True).to(getattr(torch, dtype))
    source = onegru.from_torch(module.state_dict())
    assert isinstance(source, onegru.Stack) and source.layers[1].spec.dtype == dtype
    back = onegru.to_torch(source)
    assert all(torch.equal(back.state_dict()[name], own) for name, own in module.state_dict().items())


def test_torch_numbers_are_not_used_up() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    onegru.to_torch(layer())
    assert torch.equal(torch.rand(1), expected)


def test_module_that_holds_one() -> None:
    model = torch.nn.ModuleDict({"encoder": make(), "head": torch.nn.Linear(H, 2)})
    X = draw((2, 7, I), seed=5)
    expected = outputs(model["encoder"], X)[0]
    for source in (model, model.state_dict()):
        assert largest_difference(run(onegru.from_torch(source), X), expected) <= 1e-6
    model["second"] = make()
    model["rnn"] = torch.nn.LSTM(I, H)
    with pytest.raises(SpecError, match="must name one of the 2 GRUs"):
        onegru.from_torch(model)
    assert largest_difference(run(onegru.from_torch(model, prefix="encoder"), X), expected) <= 1e-6
    with pytest.raises(SpecError, match="as an LSTM has"):
        onegru.from_torch(model, prefix="rnn")


@pytest.mark.parametrize("kind", ["LSTM", "RNN", "Linear"])
def test_other_modules(kind: str) -> None:
    with pytest.raises(SpecError, match="no tensors of a GRU"):
        onegru.from_torch(getattr(torch.nn, kind)(I, H))
    with pytest.raises(SpecError, match="no tensors of a GRU"):
        onegru.from_torch(torch.nn.LSTM(I, 4, proj_size=3).state_dict())


def test_subclass_with_a_way_of_its_own() -> None:
    base = torch.nn.GRU
    own = type("Own", (base,), {"forward": lambda self, x, h=None: base.forward(self, 2 * x, h)})
    with pytest.raises(SpecError, match="Own, a custom class"):
        onegru.from_torch(own(I, H))


def test_parametrized_weights_count_as_they_take_effect() -> None:
    module = make()
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    with torch.no_grad():
        module.parametrizations.weight_hh_l0.original0 *= 1.5
    X = draw((2, 7, I), seed=5)
    assert largest_difference(run(onegru.from_torch(module), X), outputs(module, X)[0]) <= 1e-6


def test_tensors_without_numbers() -> None:
    with pytest.raises(SpecError, match="its values cannot be read"):
        onegru.from_torch(torch.nn.GRU(I, H, device="meta").state_dict())


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("file", ["model.pt", "model.pth", "model.safetensors"])
def test_checkpoints(tmp_path: Path, file: str, direction: str) -> None:
    first, second = stack(direction, 2), layer(seed=40)
    state: dict[str, Any] = onegru.to_torch_state_dict(first, prefix="encoder.gru")
    state |= onegru.to_torch_state_dict(second, prefix="decoder")
    state["head.weight"] = draw((2, H))
    state |= {"lstm.weight_ih_l0": draw((4 * H, I)), "lstm.weight_hh_l0": draw((4 * H, H))}
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    path, outer = tmp_path / file, ""
    if file.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(tensors, path)
    else:
        outer = "state_dict."
        torch.save({"state_dict": tensors, "epoch": 3, "optimizer": {"state": {0: {"step": 1}}}}, path)
    layers = onegru.load_layers(path)
    assert sorted(layers) == sorted([f"{outer}encoder.gru", f"{outer}decoder"])
    read = layers[f"{outer}encoder.gru"]
    assert isinstance(read, onegru.Stack)
    assert all(same_weights(a, b) for a, b in zip(read.layers, first.layers, strict=True))
    (single,) = onegru.load_layers(path, name=f"{outer}decoder").values()
    assert isinstance(single, onegru.GRU) and same_weights(single, second)
    with pytest.raises(SpecError, match="name: no GRU 'nothing' in "):
        onegru.load_layers(path, name="nothing")
    with pytest.raises(SpecError, match="as an LSTM has"):
        onegru.load_layers(path, name=f"{outer}lstm")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
def test_checkpoints_keep_the_type(tmp_path: Path, dtype: str, file: str) -> None:
    module = torch.nn.GRU(I, H).to(getattr(torch, dtype))
    path = tmp_path / file
    if file.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(module.state_dict(), path)
    else:
        torch.save(module.state_dict(), path)
    (read,) = onegru.load_layers(path).values()
    source = onegru.from_torch(module)
    assert isinstance(read, onegru.GRU) and isinstance(source, onegru.GRU) and same_weights(read, source)
    assert read.spec.dtype == dtype


class Harmful:
    """An object whose pickle runs code when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


class OtherGRU(torch.nn.GRU):  # type: ignore[misc,name-defined]
    """A module that may compute something else than a GRU."""


def test_checkpoints_run_no_code(tmp_path: Path) -> None:
    torch.save({"weight_ih_l0": Harmful(tmp_path / "harm")}, tmp_path / "harmful.pt")
    with pytest.raises(FormatError, match=r"harmful.pt: weight_ih_l0: a .*, not tensors and plain data"):
        onegru.load_layers(tmp_path / "harmful.pt")
    torch.save(OtherGRU(I, H), tmp_path / "module.pt")
    with pytest.raises(FormatError, match="not tensors and plain data"):
        onegru.load_layers(tmp_path / "module.pt")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("file", ["x.pt", "x.safetensors"])
def test_broken_checkpoints(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    if file.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(make().state_dict(), path)
    else:
        torch.save(make().state_dict(), path)
    whole = path.read_bytes()
    for data in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=file):
            onegru.load_layers(path)


def test_checkpoints_with_more_numbers_than_bytes(tmp_path: Path) -> None:
    wide = torch.zeros(1).expand(3 << 20, 1 << 20)
    torch.save({"weight_ih_l0": wide, "weight_hh_l0": wide}, tmp_path / "x.pt")
    with pytest.raises(FormatError, match="exceed four times the file"):
        onegru.load_layers(tmp_path / "x.pt")
    content: dict[str, Any] = {}
    content |= {str(name): content for name in range(10)}
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(FormatError, match="no GRU"):
        onegru.load_layers(tmp_path / "x.pt")


def test_checkpoints_with_two_tensors_of_one_name(tmp_path: Path) -> None:
    state = make().state_dict()
    torch.save({"a": {"b": dict(state)}, "a.b": dict(state)}, tmp_path / "x.pt")
    assert list(onegru.load_layers(tmp_path / "x.pt")) == ["a.b"]  # twice the same tensors
    other = {name: tensor + 1 for name, tensor in state.items()}
    torch.save({"a": {"b": dict(state)}, "a.b": other}, tmp_path / "x.pt")
    with pytest.raises(FormatError, match=r"two tensors called 'a\.b\."):
        onegru.load_layers(tmp_path / "x.pt")


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"onegru\[torch\]"):
        onegru.to_torch(layer())


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_modules_that_decide_anew_in_each_call_are_refused() -> None:
    """Their weights, or what they compute, cannot be read off."""
    hooked = torch.nn.GRU(3, 4)
    hooked.register_forward_hook(lambda module, given, result: result)
    own = torch.nn.GRU(3, 4)
    own.forward = lambda x: x
    normed = torch.nn.utils.weight_norm(torch.nn.GRU(3, 4), "weight_hh_l0")
    for module in (hooked, own, normed):
        with pytest.raises(onegru.SpecError, match="has hooks or its own forward"):
            onegru.from_torch(module)
    with pytest.raises(onegru.SpecError, match="source: type"):
        onegru.from_torch(torch.nn.GRU)
