"""Layers in .safetensors files: bits and specs come back, and what strangers write is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import GRU, FormatError, Stack
from onegru.formats.checkpoints import checkpoint
from onegru.formats.checkpoints.safetensors import read_layers
from onegru.layers.stack import layers_of
from tests.support.cases import DTYPES
from tests.support.layers import I, make_gru, make_stack, same_layers

safetensors = pytest.importorskip("safetensors")
save_file = pytest.importorskip("safetensors.numpy").save_file

Document = dict[str, Any]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_everything_comes_back(tmp_path: Path, dtype: str, after: bool, direction: str) -> None:
    names = ["Affine", "ScaledTanh", "LeakyRelu", "Softplus"][: 4 if direction == "bidirectional" else 2]
    layer = make_gru(
        dtype=dtype,
        direction=direction,
        linear_before_reset=after,
        clip=0.7,
        activations=names,
        activation_alpha=[0.1, 0.2, 0.3][: 3 if len(names) == 4 else 2],
        activation_beta=[0.4, 0.5],
        attention=True,
    )
    path = tmp_path / "layer.safetensors"
    onegru.save_layers(layer, path)
    found = read_layers(path)
    assert isinstance(found, GRU) and same_layers(found, layer)


@pytest.mark.parametrize("count", [1, 3])
def test_stacks(tmp_path: Path, count: int) -> None:
    stack = make_stack(count, ("bidirectional", "forward"))
    path = tmp_path / "stack.safetensors"
    onegru.save_layers(stack, path)
    found = read_layers(path)
    assert isinstance(found, Stack) and same_layers(found, stack)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_weights_in_int8(tmp_path: Path, direction: str) -> None:
    """Integers in a third of the space or less; read, the same numbers, and in int8 the same results."""
    first = make_gru(hidden=64, direction=direction).with_storage("int8", "int8")
    stack = Stack([first, make_gru(1, inputs=64 * first.spec.num_directions, hidden=48).with_storage("int8")])
    path, plain = tmp_path / "int8.safetensors", tmp_path / "float.safetensors"
    onegru.save_layers(stack, path)
    onegru.save_layers(stack.with_storage(None), plain)
    assert path.stat().st_size < plain.stat().st_size / 3
    found = read_layers(path)
    assert isinstance(found, Stack)
    for one, other in zip(layers_of(found), layers_of(stack), strict=True):
        assert one.weight_storage == "float32" and one.spec == other.spec
        for name in "WRB":
            assert np.array_equal(getattr(one.weights, name), getattr(other.weights, name))
    X = np.random.default_rng(1).standard_normal((9, 3, 5)).astype(np.float32)
    kept = Stack([layers_of(found)[0].with_storage("int8", "int8"), layers_of(found)[1].with_storage("int8")])
    assert np.array_equal(kept(X)[0], stack(X)[0])
    with safetensors.safe_open(path, framework="np") as file:
        assert json.loads(file.metadata()["onegru"])["format"] == 2
        q, scale = file.get_tensor("layers.0.R"), file.get_tensor("layers.0.R_scale")
        assert q.dtype == np.int8 and np.array_equal(q * scale[..., None], layers_of(stack)[0].weights.R)
    onegru.save_layers(
        Stack([layers_of(stack)[0].with_storage(None), layers_of(stack)[1]]), path
    )  # some of them
    mixed = read_layers(path)
    assert np.array_equal(layers_of(mixed)[1].weights.R, layers_of(stack)[1].weights.R)


@pytest.mark.parametrize("groups", [0, 3, 5])
def test_scales_of_no_groups(tmp_path: Path, groups: int) -> None:
    """100 inputs have 4 groups of 32, 2 of 64 and 1 of 128."""
    path = tmp_path / "int8.safetensors"
    onegru.save_layers(make_gru(inputs=100, hidden=64).with_storage("int8_g32"), path)
    with safetensors.safe_open(path, framework="np") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    scale = tensors["layers.0.W_scale"]
    assert scale.shape == (1, 192, 4)
    tensors["layers.0.W_scale"] = np.ones((1, 192, groups), np.float32)
    save_file(tensors, path, metadata)
    with pytest.raises(FormatError, match=r"must match a supported group size$"):
        read_layers(path)
    tensors["layers.0.W_scale"] = scale.astype(np.float16)
    save_file(tensors, path, metadata)
    with pytest.raises(
        FormatError, match=r"float16 .*; must be float32 \[1, 192\] or \[D, 3H, groups\], like "
    ):
        read_layers(path)


def test_what_the_file_is(tmp_path: Path) -> None:
    """Names, types and metadata, read with the format's own package."""
    layer = make_gru()
    path = tmp_path / "layer.safetensors"
    onegru.save_layers(layer, path)
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == {"layers.0.W", "layers.0.R", "layers.0.B"}
        assert np.array_equal(file.get_tensor("layers.0.R"), layer.weights.R)
        assert json.loads(file.metadata()["onegru"]) == {
            "format": 1,
            "stack": False,
            "layers": [
                {
                    "input_size": 5,
                    "hidden_size": 4,
                    "dtype": "float32",
                    "direction": "forward",
                    "linear_before_reset": False,
                    "clip": None,
                    "activations": [[["Sigmoid", None, None], ["Tanh", None, None]]],
                    "attention": False,
                }
            ],
        }


def test_of_no_inputs(tmp_path: Path) -> None:
    layer = make_gru(inputs=0)
    path = tmp_path / "layer.safetensors"
    onegru.save_layers(layer, path)
    assert same_layers(read_layers(path), layer)


# ---- hostile files


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None) -> None:
    """A file of the format, whatever it holds."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata is not None else {}
    names = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "int8": "I8"}
    data = b""
    for name, array in tensors.items():
        ends = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": ends}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def good() -> tuple[dict[str, np.ndarray[Any, Any]], Document]:
    """The tensors and the metadata of a sound file."""
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    specs = []
    for index, layer in enumerate(layers_of(make_stack(2))):
        spec, weights = layer.spec, layer.weights
        tensors |= {f"layers.{index}.{name}": getattr(weights, name) for name in "WRB"}
        specs.append(
            {
                "input_size": spec.input_size,
                "hidden_size": spec.hidden_size,
                "dtype": spec.dtype,
                "direction": spec.direction,
                "linear_before_reset": False,
                "clip": 2,
                "activations": [[["Sigmoid", None, None], ["LeakyRelu", 0.5, None]]],
                "attention": False,
            }
        )
    return tensors, {"format": 1, "stack": True, "layers": specs}


def test_the_hand_made_file_is_sound(tmp_path: Path) -> None:
    tensors, document = good()
    write(tmp_path / "x.safetensors", tensors, {"onegru": json.dumps(document), "other": "words"})
    found = read_layers(tmp_path / "x.safetensors")
    assert isinstance(found, Stack) and found.layers[1].spec.clip == 2
    assert found.layers[0].spec.activations[0][1].alpha == 0.5


def in_layer(name: str, value: object) -> Callable[[Document], object]:
    return lambda document: document["layers"][1].update({name: value})


def in_document(name: str, value: object) -> Callable[[Document], object]:
    return lambda document: document.update({name: value})


BAD_DOCUMENTS: dict[str, tuple[Callable[[Document], object], str]] = {
    "later format": (in_document("format", 3), "format 3; must be 1 or 2"),
    "no format": (lambda document: document.pop("format"), "format None; must be 1"),
    "format True": (in_document("format", True), "format True; must be 1"),
    "another key": (in_document("extra", 1), "has format, stack, layers, extra; must have"),
    "no layers": (in_document("layers", []), "layers must be a non-empty list"),
    "layers of words": (in_document("layers", "two"), "layers must be a non-empty list"),
    "stack 1": (in_document("stack", 1), "stack must be true or false"),
    "no stack": (in_document("stack", False), "2 layers without a stack; must be 1"),
    "layer of words": (in_document("layers", ["x", "y"]), "layer 0: must be an object with input_size"),
    "missing field": (lambda d: d["layers"][0].pop("clip"), "layer 0: must be an object"),
    "extra field": (in_layer("gates", 3), "layer 1: must be an object"),
    "text for number": (in_layer("input_size", "4"), "input_size: '4'; must be an integer"),
    "true for number": (in_layer("hidden_size", True), "hidden_size: True; must be an integer"),
    "fraction": (in_layer("hidden_size", 3.0), "hidden_size: 3.0; must be an integer"),
    "negative": (in_layer("hidden_size", -1), "hidden_size: -1; must be at least 1"),
    "huge": (in_layer("hidden_size", 10**30), "at most 2"),
    "another size": (in_layer("hidden_size", 7), "layer 1: W: float32"),
    "input size": (in_layer("input_size", 3), "layer 1: W: float32"),
    "number for flag": (in_layer("attention", 0), 'attention: 0; must be true, false or "dien"'),
    "attention in a stack": (in_layer("attention", True), "has attention"),
    "dtype": (in_layer("dtype", "int8"), "dtype: 'int8'; must be one of"),
    "another dtype": (in_layer("dtype", "float64"), "must be float64"),
    "direction": (in_layer("direction", "sideways"), "direction: 'sideways'; must be one of"),
    "two directions": (in_layer("direction", "bidirectional"), "activations: 1 pair"),
    "clip 0": (in_layer("clip", 0), "clip: 0.0; must be > 0"),
    "clip true": (in_layer("clip", True), "clip: True; must be a number or null"),
    "clip beyond": (in_layer("clip", 10**400), "clip: too large for float64"),
    "activations": (in_layer("activations", [["Sigmoid", "Tanh"]]), "a function must be a list of its name"),
    "activation": (in_layer("activations", [[["Sin", None, None]] * 2]), "unknown function 'Sin'"),
    "one activation": (in_layer("activations", [[["Tanh", None, None]]]), "must be pairs"),
    "alpha": (in_layer("activations", [[["Tanh", 1.0, None]] * 2]), "Tanh takes no alpha"),
    "no alpha": (in_layer("activations", [[["Elu", None, None]] * 2]), "Elu needs alpha"),
    "alpha of words": (in_layer("activations", [[["Elu", "1", None]] * 2]), "'1'; must be a number"),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_bad_documents(tmp_path: Path, case: tuple[Callable[[Document], object], str]) -> None:
    change, message = case
    tensors, document = good()
    change(document)
    path = tmp_path / "x.safetensors"
    write(path, tensors, {"onegru": json.dumps(document)})
    with pytest.raises(FormatError) as caught:
        read_layers(path)
    assert str(caught.value).startswith(f"{path}: ") and message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "1", "NaN", '{"format": NaN}', "[" * 100_000, '{"format": ' + "9" * 5000 + "}"],
    ids=range(9),
)
def test_metadata_that_is_no_document(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.safetensors"
    write(path, good()[0], {"onegru": text})
    with pytest.raises(FormatError, match="metadata 'onegru'"):
        read_layers(path)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors, document = good()
    metadata = {"onegru": json.dumps(document)}

    def refused(message: str, changed: dict[str, Any], words: dict[str, str] | None = metadata) -> None:
        write(path, changed, words)
        with pytest.raises(FormatError, match=message):
            read_layers(path)

    refused("no 'onegru' in its metadata", tensors, None)
    refused("no 'onegru' in its metadata", tensors, {"format": "pt"})
    refused(r"'layers\.1\.B': missing", {name: tensors[name] for name in tensors if name != "layers.1.B"})
    refused(r"'layers\.2\.W': belongs to no layer", {**tensors, "layers.2.W": tensors["layers.1.W"]})
    refused("layer 0: W: float32", {**tensors, "layers.0.W": tensors["layers.0.W"][:, :-1]})
    refused("layer 0: W: float32", {**tensors, "layers.0.W": tensors["layers.0.W"].reshape(-1, I)})
    refused("layer 1: R: float64", {**tensors, "layers.1.R": tensors["layers.1.R"].astype(np.float64)})
    q, scale = tensors["layers.1.R"].astype(np.int8), np.ones(tensors["layers.1.R"].shape[:2], np.float32)
    in_int8 = {**tensors, "layers.1.R": q, "layers.1.R_scale": scale}
    document["format"] = 2
    metadata["onegru"] = json.dumps(document)
    write(path, in_int8, metadata)
    assert np.array_equal(layers_of(read_layers(path))[1].weights.R, q)
    refused(r"'layers\.1\.R_scale': missing", {**tensors, "layers.1.R": q})
    refused(r"'layers\.0\.R_scale': belongs to no layer", {**tensors, "layers.0.R_scale": scale})
    refused(
        r"'layers.1.R_scale': float32 \[1, 8\]; must be float32 \[1, 9\] or \[D, 3H, groups\], like",
        {**in_int8, "layers.1.R_scale": scale[:, 1:]},
    )
    refused(
        "layer 1: R: float32",
        {**in_int8, "layers.1.R": q[0]} | {"layers.1.R_scale": np.ones(q[0].shape, "f")},
    )
    refused("layer 1: tensors of type I8", {**tensors, "layers.1.B": q})
    refused("tensors of type I64", {**tensors, "layers.1.R": tensors["layers.1.R"].astype(np.int64)})


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    onegru.save_layers(make_gru(), path)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    changed = [
        b"",
        whole[:4],
        whole[:-1],
        whole + b"\0",
        b"\xff" * 8 + whole[8:],
        whole[: 8 + header // 2],
        (header + 1000000).to_bytes(8, "little") + whole[8:],
        whole[:8] + b"[" * header + whole[8 + header :],
        b"PK\x03\x04" + whole[4:],
    ]
    deep = b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    changed.append(len(deep).to_bytes(8, "little") + deep)
    large = b"[" + b"[]," * (6 << 20) + b"1]"
    changed.append(len(large).to_bytes(8, "little") + large)
    for data in changed:
        path.write_bytes(data)
        for read in (read_layers, onegru.load_layers):
            with pytest.raises(FormatError, match=r"not a safetensors file, or truncated|an empty file"):
                read(path)
    with pytest.raises(OSError, match="nowhere"):
        read_layers(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="not a regular file"):
        read_layers(Path("/dev/null"))


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_never_crash(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.safetensors"
    onegru.save_layers(make_stack(2).with_storage("int8" if seed % 2 else None), path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(100):
        data = whole.copy()
        for place in rng.integers(0, end, rng.integers(1, 4)):
            data[place] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            found = read_layers(path)
        except FormatError:
            continue
        assert isinstance(found, Stack) and len(found) == 2


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_that_a_model_shares(tmp_path: Path, sharded: bool) -> None:
    """safetensors writes a shared tensor once and names the others in its metadata."""
    both = make_gru(direction="bidirectional", linear_before_reset=True)
    other = make_gru(5, linear_before_reset=True)
    arrays = onegru.to_torch_state_dict(both, prefix="both")
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    shared = {f"both.{kind}_l0_reverse": f"both.{kind}_l0" for kind in kinds}
    arrays |= onegru.to_torch_state_dict(other, prefix="other")
    shared |= {f"other.bias_{end}_l0": f"both.bias_{end}_l0" for end in ("ih", "hh")}
    shared |= {"head.weight": "tail.weight", "again.weight_hh_l0": "tail.weight"}
    tail = np.zeros((9, 3), np.float32)
    arrays |= {"tail.weight": tail, "again.weight_ih_l0": tail}
    kept = {name: array for name, array in arrays.items() if name not in shared}
    path = tmp_path / "model.safetensors"
    if sharded:
        files = {f"model-0000{place}-of-00002.safetensors": place for place in (1, 2)}
        for name, place in files.items():
            part = {key: kept[key] for key in [*kept][place - 1 :: 2]}
            save_file(part, tmp_path / name, {**shared, "format": "pt"} if place == 1 else None)
        places = {key: name for name, place in files.items() for key in [*kept][place - 1 :: 2]}
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": places}))
    else:
        save_file(kept, path, {**shared, "format": "pt"})
    whole = {**kept, **{name: kept[first] for name, first in shared.items()}}
    found = onegru.load_layers(path)
    assert found.keys() == {"both", "other", "again"}
    for name, layer in found.items():
        assert same_layers(layer, onegru.from_torch(whole, prefix=name))
    assert same_layers(onegru.load_layers(path, name="other")["other"], found["other"])


def test_a_layer_with_twelve_names(tmp_path: Path) -> None:
    layer = make_gru(linear_before_reset=True)
    arrays = onegru.to_torch_state_dict(layer, prefix="a")
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, {f"b{place}.{name[2:]}": name for place in range(11) for name in arrays})
    found = onegru.load_layers(path)
    assert len(found) == 12
    assert all(same_layers(one, found["a"]) for one in found.values())


def test_shared_tensors_that_are_missing_or_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = onegru.to_torch_state_dict(make_gru(linear_before_reset=True), prefix="a")
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, {"a.weight_hh_l0_reverse": "b.weight_hh_l0"})
    with pytest.raises(FormatError, match=r"'a.weight_hh_l0_reverse' shares 'b.weight_hh_l0', which is miss"):
        onegru.load_layers(path)
    monkeypatch.setattr(checkpoint, "_most_shared", lambda size: 4 * size)
    save_file(arrays, path, {f"b{place}.{name[2:]}": name for place in range(9) for name in arrays})
    with pytest.raises(FormatError, match="shared tensors add up to more than four times the"):
        onegru.load_layers(path)
