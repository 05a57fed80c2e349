"""GRUs of PyTorch's dynamic quantization, against float modules of the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.layers.stack import layers_of
from tests.support.comparison import assert_bits
from tests.support.framework_cases import H, I, draw, largest_difference, stack

torch = pytest.importorskip("torch")
dynamic: Any = pytest.importorskip("torch.ao.nn.quantized.dynamic")
quantization: Any = pytest.importorskip("torch.ao.quantization")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:TypedStorage"),
    pytest.mark.skipif(torch.backends.quantized.engine == "none", reason="no engine for quantized modules"),
]

KINDS = {"qint8": torch.qint8, "float16": torch.float16}
PACKED = (
    "weights packed by PyTorch's dynamic quantization, which only PyTorch can unpack: pass the module itself"
)


def quantized(kind: str = "qint8", cell: bool = False, **options: Any) -> Any:
    torch.manual_seed(7)
    of = torch.nn.GRUCell if cell else torch.nn.GRU
    model = torch.nn.ModuleDict({"gru": of(I, H, **options), "fc": torch.nn.Linear(H, 2)})
    return quantization.quantize_dynamic(model, {of, torch.nn.Linear}, dtype=KINDS[kind])


def numbers(tensor: Any) -> Any:
    """A weight in float32, from the integers and their scale."""
    if not tensor.is_quantized:
        return tensor.detach().numpy()
    assert tensor.dtype == torch.qint8 and not tensor.q_zero_point()
    return tensor.int_repr().numpy().astype(np.float32) * np.float32(tensor.q_scale())


def floats(module: Any, **options: Any) -> Any:
    """A float module of PyTorch's with those weights."""
    of = torch.nn.GRU if hasattr(module, "num_layers") else torch.nn.GRUCell
    tensors = {**module.get_weight(), **module.get_bias()}
    made = of(I, H, **options)
    made.load_state_dict({name: torch.from_numpy(numbers(value)) for name, value in tensors.items()})
    return made


def outputs(module: Any, *inputs: Any) -> Any:
    with torch.no_grad():
        found = module(*map(torch.from_numpy, inputs))
    return [item.numpy() for item in found] if isinstance(found, tuple) else found.numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True], ids=["time", "batch"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_layers(num_layers: int, bidirectional: bool, batch_first: bool, kind: str) -> None:
    options: dict[str, Any] = {
        "num_layers": num_layers,
        "bidirectional": bidirectional,
        "batch_first": batch_first,
    }
    module = quantized(kind, **options)["gru"]
    assert type(module) is dynamic.GRU
    source = onegru.from_torch(module)
    assert source.layout == int(batch_first)
    assert {layer.spec.dtype for layer in layers_of(source)} == {"float32"}

    X, h0 = draw((7, 2, I), seed=5), draw((num_layers * (1 + bidirectional), 2, H), seed=6)
    given = X.swapaxes(0, 1).copy() if batch_first else X
    y, h = outputs(floats(module, **options), given, h0)
    Y, Y_h = source(X, h0, layout=0)
    Y = Y.transpose(0, 2, 1, 3).reshape(7, 2, -1)
    assert largest_difference(Y.swapaxes(0, 1) if batch_first else Y, y) <= 1e-6
    assert largest_difference(np.concatenate(list(Y_h)).reshape(h.shape), h) <= 1e-6
    # The module of float16 computes in float32; that of int8 quantizes x and h in each step. Measured over
    # 60 seeds of each shape: 4.2e-7 for the layer, at most 4.8e-7 and from 0.0026 to 0.014 for the modules.
    off = largest_difference(outputs(module, given, h0)[0], y)
    assert off <= 1e-6 if kind == "float16" else 5e-4 < off < 0.04


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_weights_are_those_that_are_stored(num_layers: int, kind: str) -> None:
    module = quantized(kind, num_layers=num_layers, bidirectional=True)["gru"]
    arrays = onegru.to_torch_state_dict(onegru.from_torch(module))
    tensors = {**module.get_weight(), **module.get_bias()}
    assert arrays.keys() == tensors.keys() and len(arrays) == 8 * num_layers
    for name, array in arrays.items():
        assert_bits(array, numbers(tensors[name]))
        if kind == "float16" and name.startswith("weight"):
            assert_bits(array, array.astype(np.float16).astype(np.float32))


def test_a_scale_for_each_row() -> None:
    torch.manual_seed(7)
    model = torch.nn.ModuleList([torch.nn.GRU(I, H)])
    (module,) = quantization.quantize_dynamic(model, {torch.nn.GRU: quantization.per_channel_dynamic_qconfig})
    weight = module.get_weight()["weight_hh_l0"]
    assert weight.qscheme() == torch.per_channel_affine
    scales = weight.q_per_channel_scales().numpy().astype(np.float32)
    array = onegru.to_torch_state_dict(onegru.from_torch(module))["weight_hh_l0"]
    assert_bits(array, weight.int_repr().numpy().astype(np.float32) * scales[:, None])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind: str, bias: bool) -> None:
    # quantize_dynamic refuses modules without biases.
    module = quantized(kind, cell=True)["gru"] if bias else dynamic.GRUCell(I, H, False, KINDS[kind])
    X, h0 = draw((2, I)), draw((2, H), seed=1)
    wanted = floats(module) if bias else torch.nn.GRUCell(I, H, bias=False)
    if not bias:
        names = {name: torch.from_numpy(numbers(value)) for name, value in module.get_weight().items()}
        wanted.load_state_dict(names)
    found = onegru.from_torch(module)(X[None], h0[None])[1][0]
    assert largest_difference(found, outputs(wanted, X, h0)) <= 1e-6
    if kind == "float16":
        assert largest_difference(found, outputs(module, X, h0)) <= 1e-6


def test_biases_that_are_packed_are_added() -> None:
    """Made without biases, such a module has some all the same, and adds them."""
    torch.manual_seed(7)
    module = dynamic.GRU(I, H, bias=False, dtype=torch.float16)
    X = draw((7, 2, I), seed=5)
    Y = onegru.from_torch(module)(X)[0][:, 0]
    assert largest_difference(Y, outputs(module, X)[0]) <= 1e-6


def test_within_a_model() -> None:
    model = torch.nn.ModuleDict({"one": quantized(), "two": torch.nn.GRU(I, H)})
    with pytest.raises(SpecError, match=r"must name one of the 2 GRUs: 'two', 'one\.gru'$"):
        onegru.from_torch(model)
    first, second = (onegru.from_torch(model, prefix=name) for name in ("one.gru", "two"))
    assert_bits(
        onegru.to_torch_state_dict(first)["weight_ih_l0"],
        numbers(model["one"]["gru"].get_weight()["weight_ih_l0"]),
    )
    assert not np.array_equal(first.weights.W, second.weights.W)  # type: ignore[union-attr]
    assert onegru.from_torch(quantized()).input_size == I


def test_what_is_no_gru_of_its_own() -> None:
    lstm = quantization.quantize_dynamic(torch.nn.ModuleList([torch.nn.LSTM(I, H)]), {torch.nn.LSTM})
    with pytest.raises(SpecError, match=r"^source: no tensors of a GRU \(weight_ih_l0, weight_hh_l0, …\)$"):
        onegru.from_torch(lstm)

    class Louder(dynamic.GRU):  # type: ignore[misc]
        def forward(self, *inputs: Any) -> Any:
            return 2 * super().forward(*inputs)[0]

    with pytest.raises(SpecError, match=r"^source: Louder, a custom class"):
        onegru.from_torch(Louder(I, H))
    module = quantized()["gru"]
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(SpecError, match=r"^source: 'GRU' has hooks or its own forward"):
        onegru.from_torch(module)


# ---- state dicts


@pytest.mark.parametrize("cell", [False, True], ids=["layers", "cell"])
@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_are_refused(kind: str, cell: bool, tmp_path: Path) -> None:
    """Their weights are objects, which would be code of the file; nothing makes them."""
    tensors = quantized(kind, cell)["gru"].state_dict()
    whole = {f"encoder.gru.{name}": value for name, value in tensors.items()}
    with pytest.raises(SpecError, match=f"'encoder.gru' has {PACKED}"):
        onegru.from_torch(whole)
    with pytest.raises(SpecError, match=f"^encoder.gru: {PACKED}"):
        onegru.from_torch(whole, prefix="encoder.gru")
    path = tmp_path / "model.pt"
    for state_dict, place in ((whole, "encoder.gru: "), (tensors, "")):
        torch.save({"state_dict": state_dict} if place else state_dict, path)
        where = f"^{path}: {f'state_dict.{place}' if place else ''}{PACKED} to onegru.from_torch$"
        for read in (onegru.load_layers, onegru.inspect):
            with pytest.raises(FormatError, match=where):
                read(path)
    with pytest.raises(FormatError, match="which contains layers, not a runnable model"):
        onegru.load(path)


def test_with_a_gru_that_is_plain(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    source = stack("forward", 1)
    plain = {name: torch.from_numpy(array) for name, array in onegru.to_torch_state_dict(source).items()}
    torch.save({"one": quantized().state_dict(), "two": plain}, path)
    assert list(onegru.load_layers(path)) == ["two"]
    with pytest.raises(SpecError, match=f"one.gru: {PACKED}"):
        onegru.load_layers(path, name="one.gru")
