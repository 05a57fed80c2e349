"""What people wrap GRUs in when they save them: shards with an index, whole modules, arrays of NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError
from onegru.core.dtypes import Array
from onegru.formats.opened import open_layers
from onegru.models.layer_files.load import left_out
from onegru.models.layer_files.select import read_source
from tests.support.files.torch_files import Call, Global, Raw, Writer, write_checkpoint

H, I = 4, 3


def state() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"weight_ih": (3 * H, I), "weight_hh": (3 * H, H), "bias_ih": (3 * H,), "bias_hh": (3 * H,)}
    return {f"{name}_l0": rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def expect(path: Path, name: str = "") -> None:
    layer, expected = onegru.load_layers(path)[name], onegru.from_torch(state())
    assert isinstance(layer, onegru.GRU) and isinstance(expected, onegru.GRU)
    for field in ("W", "R", "B"):
        np.testing.assert_array_equal(getattr(layer.weights, field), getattr(expected.weights, field))


def shards(folder: Path, end: str = ".safetensors") -> list[Path]:
    """Two, the biases in the second, and their index."""
    arrays = state()
    names = list(arrays)
    parts = [{name: arrays[name] for name in own} for own in (names[:2], names[2:])]
    paths = [folder / f"model-{n:05d}-of-00002{end}" for n in (1, 2)]
    for path, part in zip(paths, parts, strict=True):
        if end == ".safetensors":
            pytest.importorskip("safetensors.numpy").save_file(part, path)
        else:
            write_checkpoint(path, part)
    places = {name: path.name for part, path in zip(parts, paths, strict=True) for name in part}
    index = folder / f"model{end}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return [*paths, index]


@pytest.mark.parametrize("end", [".safetensors", ".bin"])
def test_shards(tmp_path: Path, end: str) -> None:
    first, second, index = shards(tmp_path, end)
    for path in (first, second, index):
        expect(path)
        with pytest.raises(FormatError, match=r"which contains layers, not a runnable model"):
            onegru.load(path)
    second.unlink()
    for path in (first, index):
        with pytest.raises(
            FormatError,
            match=r"model-00002-of-00002.*which is missing; all shards must be in the same folder",
        ):
            onegru.load_layers(path)


def test_a_tensor_that_two_shards_hold(tmp_path: Path) -> None:
    first, second, _ = shards(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(FormatError, match=r"'weight_.._l0' is also in model-00001-of-00002.safetensors"):
        onegru.load_layers(first)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, "must be the name of a file in the same folder"),
        ({"weight_map": {"a": 3}}, "no 'weight_map'"),
        ({"weight_map": {}}, "no 'weight_map'"),
        ([1], "no 'weight_map'"),
        ({"weight_map": {str(n): str(n) for n in range(2000)}}, "names 2000 shards"),
        ({"weight_map": {"a": "x.index.json"}}, "all shards must be in the same folder"),
    ],
)
def test_indexes_that_are_none(tmp_path: Path, index: Any, words: str) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    with pytest.raises(FormatError, match=words):
        onegru.load_layers(path)


def module(writer: Writer, kind: str, parameters: dict[str, Any], modules: dict[str, Any]) -> Raw:
    """As torch.save writes a module: made by its class, with its attributes."""
    place = kind.rpartition(".")
    own = Global(place[0], place[2])
    made = Call(Global("copyreg", "_reconstructor"), (own, Global("builtins", "object"), None))
    attributes = {"training": True, "_parameters": parameters, "_modules": modules}
    return Raw(writer.part(made) + writer.part(attributes) + b"b")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_whole_modules(tmp_path: Path, legacy: bool, wrapped: bool) -> None:
    writer = Writer(legacy=legacy)
    gru = module(writer, "torch.nn.modules.rnn.GRU", state(), {})
    linear = module(writer, "torch.nn.modules.linear.Linear", {"weight": np.ones((2, 3), "f")}, {})
    net = module(writer, "mine.Net", {}, {"0": linear, "gru": gru})
    path = writer.write(tmp_path / "a.pt", {"model": net, "epoch": 3} if wrapped else net)
    expect(path, "model.gru" if wrapped else "gru")


def test_a_module_of_a_class_of_its_own(tmp_path: Path) -> None:
    """It may compute something else."""
    writer = Writer()
    net = module(writer, "mine.Net", {}, {"rnn": module(writer, "mine.GRU", state(), {})})
    with pytest.raises(FormatError, match=r"'rnn' is a mine.GRU, .*: save its state_dict"):
        onegru.load_layers(writer.write(tmp_path / "a.pt", net))


def test_what_dynamic_quantization_has_packed(tmp_path: Path) -> None:
    """Saved as a whole module, in attributes that are no parameters."""
    writer, place = Writer(), "torch.ao.nn.quantized.dynamic.modules.rnn"
    made = Call(
        Global("copyreg", "_reconstructor"), (Global(place, "PackedParameter"), Global("a", "b"), None)
    )
    state = {"_parameters": {}, "_modules": {}, "param": Call(Global("torch", "ScriptObject"), ())}
    cell = Raw(writer.part(made) + writer.part(state) + b"b")
    values = module(writer, "torch.nn.modules.container.ModuleList", {}, {"0": cell})
    net = module(
        writer, "mine.Net", {}, {"rnn": module(writer, f"{place}.GRU", {}, {"_all_weight_values": values})}
    )
    with pytest.raises(FormatError, match=r"rnn: weights packed by .*: pass the module itself to onegru"):
        onegru.load_layers(writer.write(tmp_path / "a.pt", net))


def shared(writer: Writer, content: Any, number: int) -> tuple[Raw, Raw]:
    """What is saved once, and used again: a memo's entry, written and read."""
    return Raw(writer.part(content) + b"q" + bytes([number])), Raw(b"h" + bytes([number]))


@pytest.mark.parametrize("is_module", [False, True])
def test_every_name_of_what_is_shared(tmp_path: Path, is_module: bool) -> None:
    writer = Writer()
    gru = module(writer, "torch.nn.modules.rnn.GRU", state(), {}) if is_module else state()
    first, again = shared(writer, gru, 1)
    enc, enc_again = shared(writer, {"x": first, "y": again}, 2)
    path = writer.write(tmp_path / "a.pt", {"a": enc, "b": {"net": enc_again}, "z.weight": np.ones(1, "f")})
    layers = onegru.load_layers(path)
    assert [*layers] == ["a.x", "a.y", "b.net.x", "b.net.y"]
    assert len({id(layer) for layer in layers.values()}) == 1
    expect(path, "b.net.y")
    assert [*onegru.load_layers(path, name="b.net.x")] == ["b.net.x"]
    file = open_layers("path", path)
    assert left_out(file, ["b.net.y"]) == ("z.weight",)
    for nodes in ((), ("b.net.y",)):  # one GRU, though of several names
        assert isinstance(read_source(path, nodes), onegru.GRU)


def test_what_holds_itself_has_no_further_names(tmp_path: Path) -> None:
    writer = Writer()
    entries = b"".join(writer.part(item) for entry in state().items() for item in entry)
    content = Raw(b"}q\x01(" + entries + writer.part("me") + b"h\x01u")
    assert [*onegru.load_layers(writer.write(tmp_path / "a.pt", {"net": content}))] == ["net"]


def test_further_names_have_an_end(tmp_path: Path) -> None:
    """Each level is there twice: the last GRU would have 4,096 names, and then more letters than are read."""
    writer = Writer()
    first, again = shared(writer, state(), 0)
    for number in range(1, 13):
        first, again = shared(writer, {"a" * 40: first, "b" * 40: again}, number)
    with pytest.raises(FormatError, match=r"additional GRU names exceed \d+ bytes"):
        onegru.load_layers(writer.write(tmp_path / "a.pt", {"net": first}))


@pytest.mark.parametrize(("wrapped", "first"), [(False, "0"), (True, "gru.0")])
def test_tensors_without_names(tmp_path: Path, wrapped: bool, first: str) -> None:
    tensors = [*state().values()]
    path = write_checkpoint(tmp_path / "a.pt", {"gru": tensors} if wrapped else tensors)
    with pytest.raises(
        FormatError, match=rf"no GRU .*: '{first}' has a number instead of a name, .* state_dict"
    ):
        onegru.load_layers(path)


def test_what_pytorch_itself_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    gru = torch.nn.GRU(I, H)
    gru.load_state_dict({name: torch.from_numpy(array) for name, array in state().items()})
    for number, content in enumerate((gru, [gru], {"net": torch.nn.Sequential(gru)}, {"a": state()})):
        for modern in (False, True):
            path = tmp_path / f"{number}.pt"
            torch.save(content, path, _use_new_zipfile_serialization=modern)
            expect(path, ("", "0", "net.0", "a")[number])
