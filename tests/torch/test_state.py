"""State dicts of modules whose function PyTorch's names cannot say."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
from onegru import FormatError, SpecError  # noqa: E402
from onegru.torch.modules import GRU  # noqa: E402

I, H = 5, 6
KEY = "_extra_state"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def hard(alpha: float) -> dict[str, Any]:
    return {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [alpha], "activation_beta": [0.5]}


FORMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: ours.GRU(I, H),
    "reset before": lambda: ours.GRU(I, H, linear_before_reset=False),
    "clip": lambda: ours.GRU(I, H, clip=0.3),
    "another clip": lambda: ours.GRU(I, H, clip=0.4),
    "hard": lambda: ours.GRU(I, H, **hard(0.2)),
    "harder": lambda: ours.GRU(I, H, **hard(0.25)),
    "resets": lambda: ours.GRU(I, H, resets_to_initial=True),
    "attention": lambda: ours.AUGRU(I, H),
    "attention of DIEN": lambda: ours.AUGRU(I, H, attention="dien"),
    "attention, reset after": lambda: ours.AUGRU(I, H, linear_before_reset=True),
}


@pytest.mark.parametrize(("first", "second"), itertools.product(FORMS, FORMS))
def test_a_form_is_loaded_only_by_itself(first: str, second: str) -> None:
    source, target = FORMS[first](), FORMS[second]()
    before = [tensor.clone() for tensor in target.parameters()]
    state = source.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    if first == second:
        target.load_state_dict(state)
        assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
        return
    with pytest.raises(RuntimeError, match=rf"{KEY}: .*; must be .*, as this|Missing key.*{KEY}"):
        target.load_state_dict(state)
    if first != "plain":
        assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))
        with pytest.raises(RuntimeError, match=KEY):
            target.load_state_dict(state, strict=False)


@pytest.mark.parametrize("name", FORMS)
def test_pytorchs_module_takes_only_its_own_form(name: str) -> None:
    module, theirs = FORMS[name](), nn.GRU(I, H)
    state = module.state_dict()
    if name == "plain":
        assert list(state) == list(theirs.state_dict())
        theirs.load_state_dict(state)
    else:
        with pytest.raises(RuntimeError, match=KEY):
            theirs.load_state_dict(state)
        with pytest.raises(RuntimeError, match=f"Missing key.*{KEY}"):
            module.load_state_dict(theirs.state_dict())
        module.load_state_dict(theirs.state_dict(), strict=False)
        assert torch.equal(module.weight_hh_l0, theirs.weight_hh_l0)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_files(name: str, suffix: str, tmp_path: Path) -> None:
    """What a program reads of a checkpoint computes what the module did; nothing but tensors is in it."""
    model = nn.ModuleDict({"rnn": FORMS[name](), "head": nn.Linear(H, 2)})
    path = tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch.save(model.state_dict(), path)
        read = torch.load(path, weights_only=True)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(model.state_dict(), path)
        read = safetensors.load_file(path)
    again = nn.ModuleDict({"rnn": FORMS[name](), "head": nn.Linear(H, 2)})
    again.load_state_dict(read)
    x, a = torch.randn(7, 3, I), torch.rand(7, 3)
    with torch.no_grad():
        wanted = model["rnn"](x, *([a] if "attention" in name else []))[0].numpy()
    for layer in (
        onegru.load_layers(path)["rnn"],
        onegru.from_torch(read),
        onegru.from_torch(model),
        onegru.from_torch({key: value.numpy() for key, value in read.items()}),
    ):
        assert isinstance(layer, onegru.GRU)
        found = layer(x.numpy(), attention=a.numpy() if "attention" in name else None)[0][:, 0]
        assert np.abs(found - wanted).max() < 1e-6 < np.abs(wanted).max()


def test_layers_and_directions() -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "linear_before_reset": False}
    functions = ["Relu", "Tanh", "Sigmoid", "Elu"]
    module = ours.GRU(I, H, **options, activations=functions, activation_alpha=[0.7])
    stack = onegru.from_torch(module.state_dict())
    assert isinstance(stack, onegru.Stack)
    assert [layer.spec for layer in stack] == module.specs()
    state = module.state_dict()
    one_way = {name: value for name, value in state.items() if "reverse" not in name}
    with pytest.raises(SpecError, match=f"{KEY}: direction bidirectional; must match the other tensors"):
        onegru.from_torch(one_way)
    cell = ours.GRUCell(I, H, clip=0.5)
    layer = onegru.from_torch(cell.state_dict())
    assert isinstance(layer, onegru.GRU) and layer.spec == cell.specs()[0]


def averaged(state: dict[str, Any]) -> dict[str, Any]:
    shadow = {name: value.clone() for name, value in state.items()}
    for _ in range(100):
        for name, value in state.items():
            shadow[name].copy_(0.9995 * shadow[name] + 0.0005 * value)
    return shadow


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "averaged over steps": averaged,
    "mean of two": lambda state: {name: (value + value) / 2 for name, value in state.items()},
    "in float16": lambda state: {name: value.half() for name, value in state.items()},
    "in bfloat16": lambda state: {name: value.bfloat16() for name, value in state.items()},
    "in float64": lambda state: {name: value.double() for name, value in state.items()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_programs_do_with_every_tensor(change: str) -> None:
    module = ours.GRU(I, H, **hard(0.23), clip=1.75)
    state = CHANGES[change](module.state_dict())
    module.load_state_dict(state)
    layer = onegru.from_torch(state)
    assert isinstance(layer, onegru.GRU)
    assert layer.spec.activations == module.specs()[0].activations and layer.spec.clip == 1.75


def codes(text: str) -> Any:
    return torch.tensor(list(text.encode()), dtype=torch.float32)


BROKEN: dict[str, Any] = {
    "another class's": torch.zeros(3),
    "no tensor": {"version": 1},
    "bytes": b"abc",
    "of two axes": torch.full((2, 2), 91.0),
    "between codes": torch.tensor([91.5, 93.0]),
    "not numbers": torch.full((3,), float("nan")),
    "too long": torch.full((20_000,), 91.0),
    "deep": codes("[" * 9000),
    "a list": codes("[]"),
    "nothing": codes("{}"),
    "a size": codes('{"input_size": 3, "resets_to_initial": false}'),
    "an unknown function": codes(
        '{"direction": "forward", "linear_before_reset": true, "clip": null, "attention": false, '
        '"activations": [[["Newest", null, null], ["Tanh", null, null]]], "resets_to_initial": false}'
    ),
    "integers": torch.zeros(4, dtype=torch.uint8),
}


@pytest.mark.parametrize("what", BROKEN)
def test_entries_that_are_not_onegrus(what: str, tmp_path: Path) -> None:
    state = {**ours.GRU(I, H).state_dict(), KEY: BROKEN[what]}
    with pytest.raises(RuntimeError, match=KEY):
        ours.GRU(I, H).load_state_dict(state)
    with pytest.raises(SpecError, match=f"{KEY}, "):
        onegru.from_torch(state)
    torch.save({"model": {f"rnn.{name}": value for name, value in state.items()}}, tmp_path / "x.pt")
    with pytest.raises(FormatError, match=rf"'model\.rnn' has {KEY}, "):
        onegru.load_layers(tmp_path / "x.pt")


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_tensors_that_were_renamed_without_their_form(suffix: str, tmp_path: Path) -> None:
    """As by who gives new names to only weights and biases: they would be read as a plain GRU's."""
    state = ours.GRU(I, H, clip=0.5).state_dict()
    renamed = {f"{'old' if name == KEY else 'new'}.{name}": value for name, value in state.items()}
    path = tmp_path / f"x.{suffix}"
    if suffix == "pt":
        torch.save(renamed, path)
    else:
        pytest.importorskip("safetensors.torch").save_file(renamed, path)
    with pytest.raises(FormatError, match=r"'new' has no _extra_state, but 'old\._extra_state' belongs"):
        onegru.load_layers(path)
    with pytest.raises(SpecError, match=r"'old\._extra_state' belongs to a module"):
        onegru.from_torch(renamed)
    with pytest.raises(SpecError, match=r"'old\._extra_state' belongs to a module"):
        onegru.from_torch(renamed, prefix="new")
    foreign = {
        "other._extra_state": torch.zeros(3),
        "another._extra_state": torch.zeros(4, dtype=torch.uint8),
    }
    plain = {f"new.{name}": value for name, value in ours.GRU(I, H).state_dict().items()}
    assert onegru.from_torch({**plain, **foreign}).spec.linear_before_reset  # type: ignore[union-attr]


def test_modules_are_used_as_before() -> None:
    """Replaced GRUs, and programs that copy, compile, average and call modules with other parameters."""
    model = nn.Sequential(nn.GRU(I, H))
    names = list(model.state_dict())
    ours.accelerate(model)
    assert list(model.state_dict()) == names
    model.load_state_dict(model.state_dict())
    assert ours.restore(model) == ("0",) and type(model[0]) is nn.GRU

    module, x = ours.GRU(I, H, linear_before_reset=False, clip=0.5), torch.randn(7, 3, I)
    wanted = module(x)[0]
    assert torch.equal(copy.deepcopy(module)(x)[0], wanted)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x)[0], wanted)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x)[0], wanted)
    assert torch.equal(torch.func.functional_call(module, module.state_dict(), (x,))[0], wanted)
    assert not dict(module.named_buffers())
    mean = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
    mean.update_parameters(module)
    module.load_state_dict(
        {name.removeprefix("module."): v for name, v in mean.state_dict().items() if "n_" not in name}
    )
    compiled = torch.compile(module, backend="eager")
    assert torch.allclose(compiled(x)[0], wanted, atol=1e-6)
    compiled.load_state_dict(compiled.state_dict())
    layer = onegru.from_torch(compiled.state_dict())
    assert isinstance(layer, onegru.GRU) and layer.spec.clip == 0.5
    exported = torch.export.export(module, (x,))
    assert torch.allclose(exported.module()(x)[0], wanted, atol=1e-6)


def test_other_devices_and_parametrized_weights() -> None:
    meta = ours.GRU(I, H, clip=0.5, device="meta")
    module = ours.GRU(I, H, clip=0.5)
    meta.load_state_dict(module.state_dict(), assign=True)
    assert torch.equal(meta.weight_hh_l0, module.weight_hh_l0)
    assert meta.state_dict()[KEY].device.type == "cpu"
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    state = module.state_dict()
    assert KEY in state
    module.load_state_dict(state)
    own = onegru.from_torch(module)
    assert isinstance(own, onegru.GRU) and own.spec.clip == 0.5


class Derived(GRU):
    """A class of a program's own, with a tensor more and onegru's way to compute."""

    def __init__(self) -> None:
        super().__init__(I, H, clip=0.5)
        self.register_buffer("scale", torch.ones(()))


def test_derived_classes() -> None:
    module = Derived()
    module.load_state_dict(module.state_dict())
    layer = onegru.from_torch(module)
    assert isinstance(layer, onegru.GRU) and layer.spec.clip == 0.5
    with pytest.raises(SpecError, match="'scale' next to the tensors of a GRU"):
        onegru.from_torch(module.state_dict())
