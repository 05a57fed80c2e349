"""What mutations start from: small files of every kind, the same bytes on every run."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

import onegru
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.layers.gates.files import writer
from tests.formats.tflite.make_files import FOLDER
from tests.support.decomposed.draw import decomposed
from tests.support.files.ir_files import IrWriter, write_case
from tests.support.files.onnx_models import (
    B,
    H,
    I,
    T,
    augru_node,
    graph,
    gru,
    model,
    node,
    numbers,
    tensor,
    value,
    weights,
)
from tests.support.files.torch_files import Call, Global, Raw, Writer, write_checkpoint
from tests.support.layers import make_gru, make_stack

__all__ = ["KINDS", "NEEDS", "PROBE", "Files", "corpus"]

#: The files of a case by name; the one that is read comes first.
Files = dict[str, bytes]

#: A model and what its inputs are, for files that hold arrays.
PROBE = "probe.onnx"

#: The packages that a kind cannot be written or read without.
NEEDS: Mapping[str, str] = {"keras": "h5py", "h5": "h5py", "tflite": "tflite"}


@cache
def corpus(kind: str) -> tuple[Files, ...]:
    """The files of a kind; none where a package that it needs is not installed."""
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        return ()
    return tuple(_CORPORA[kind]())


def _written(name: str, write: Callable[[Path], object]) -> Files:
    """What a function writes to a path of this name, with the files next to it."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        found = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return {name: found.pop(name), **found}


# ONNX

_X = value("X", "float32", ["time", "batch", I])


def _onnx() -> list[Files]:
    nodes = [
        node("Relu", ["X"], ["x"]),
        gru("x", ["Y1", "Z1"], bias="B", lens="lens", initial_h="h", name="first", clip=2.0),
        node("Squeeze", ["Y1", "axis"], ["y"]),
        gru("y", ["Y2"], W="W2", R="R2", direction="bidirectional", linear_before_reset=1, layout=0),
        node("Transpose", ["Y2"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "shape"], ["out"]),
    ]
    constants = {
        **weights(),
        **{name + "2": array for name, array in weights(1, I=H, D=2).items() if name != "B"},
        "axis": np.array([1]),
        "shape": np.array([0, 0, -1]),
    }
    inputs = [_X, value("lens", "int32", ["batch"]), value("h", "float32", [1, "batch", H])]
    chain = model(graph(nodes, inputs, ["out", value("Z1", "float32", [1, "batch", H])], constants))
    wide = value("X", "float64", [T, "batch", I])
    functions = gru("X", ["", "Z"], bias="B", direction="bidirectional", activations=["LeakyRelu", "Elu"] * 2)
    functions.attribute.append(onnx.helper.make_attribute("activation_alpha", [1.5, 0.5]))
    both = graph([functions], [wide], [value("Z", "float64")], weights(dtype="float64", D=2))
    old = graph([gru("X", ["Y"])], [_X], ["Y"], {key: weights()[key] for key in "WR"})
    models = [chain, model(both, opset=22), model(old, opset=3, ir=4), _bodies(), _folded(), _function()]
    models += [_attention(False), _attention(True)]
    models += [
        decomposed(kind, np.random.default_rng(1)).model
        for kind in ("cell with attention", "chain with lengths", "Scan")  # a broken Loop may run for ever
    ]
    made = [{"m.onnx": proto.SerializeToString(deterministic=True)} for proto in models]
    half = make_gru(3, dtype="bfloat16")
    saved = [
        _written(
            "m.onnx", lambda path: onegru.save_layers(make_stack(2, ("bidirectional",)), path, layout=1)
        ),
        _written("m.onnx", lambda path: onegru.save_layers(half, path, opset=22)),
    ]
    return [*made, *saved, _external(chain)]


def _bodies() -> ModelProto:
    """An If before a GRU, a Loop after it."""
    yes, no = (graph([node(name, ["X"], ["b"])], (), ["b"]) for name in ("Tanh", "Neg"))
    number, alive = value("i", "int64", []), value("alive", "bool", [])
    body = graph(
        [node("Identity", ["alive"], ["on"]), node("Add", ["last", "one"], ["next"])],
        [number, alive, value("last", "float32", ["time", 1, "batch", H])],
        [value("on", "bool", []), "next"],
        {"one": np.array(1, np.float32)},
    )
    nodes = [
        node("If", ["flag"], ["x"], then_branch=yes, else_branch=no),
        gru("x", ["Y"], bias="B"),
        node("Loop", ["count", "", "Y"], ["out"], body=body),
    ]
    constants = {**weights(), "count": np.array(3)}
    return model(graph(nodes, [_X, value("flag", "bool", [])], ["out"], constants))


def _folded() -> ModelProto:
    """Weights and states that are computed from constants and from shapes."""
    nodes = [
        node("Transpose", ["turned"], ["W"], perm=[0, 2, 1]),
        node("Shape", ["X"], ["full"]),
        node("Gather", ["full", "place"], ["batch"]),
        node("Concat", ["one", "batch", "size"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["h"], value=tensor("", np.zeros(1, np.float32))),
        node("ConstantOfShape", ["size"], ["filled"], value=tensor("", np.ones(1, np.float32))),
        gru("X", ["Y"], initial_h="h"),
        node("Mul", ["Y", "filled"], ["out"]),
    ]
    constants = [tensor("turned", numbers(1, 1, I, 3 * H)), tensor("R", weights()["R"])]
    constants += [tensor(name, np.array([item])) for name, item in (("place", 1), ("one", 1), ("size", H))]
    sparse = onnx.helper.make_sparse_tensor(
        tensor("spare", np.ones(2, np.float32)), tensor("where", np.array([0, 3])), [5]
    )
    return model(graph(nodes, [_X], ["out"], constants, sparse=[sparse]))


def _function() -> ModelProto:
    """A GRU within a function of the model."""
    opsets = [onnx.helper.make_opsetid("", 14)]
    names = ["x", "w", "r"]
    inner = [gru("x", ["y", "z"], W="w", R="r")]
    made = onnx.helper.make_function("own", "Wrapped", names, ["z"], inner, opsets)
    call = node("Wrapped", ["X", "W", "R"], ["Z"], domain="own")
    return model(graph([call], [_X], ["Z"], weights()), functions=[made], domains={"own": 1})


def _attention(whole: bool) -> ModelProto:
    """Two GRUs with attention, which differ, with or without another node."""
    names = {name: name for name in ("X", "W", "R", "A")}
    nodes = [
        augru_node({**names, "B": "B"}, {"Y": "Y"}, {"linear_before_reset": 1}, "first"),
        augru_node({**names, "sequence_lens": "lens"}, {"Y_h": "Z"}, {"direction": "reverse"}, "second"),
    ]
    nodes += [node("Tanh", ["Y"], ["out"])] if whole else []
    inputs = [_X, value("A", "float32", ["time", "batch", 1]), value("lens", "int32", ["batch"])]
    made = model(graph(nodes, inputs, ["out" if whole else "Y", "Z"], weights()), opset=18)
    add_augru_functions(made)
    return made


def _external(proto: ModelProto) -> Files:
    """The same with its tensors in a file next to it."""
    proto = ModelProto.FromString(proto.SerializeToString())
    data = b""
    for item in proto.graph.initializer:
        entries = {"location": "m.data", "offset": str(len(data)), "length": str(len(item.raw_data))}
        data += item.raw_data
        item.ClearField("raw_data")
        item.data_location = TensorProto.EXTERNAL
        for key, text in entries.items():
            item.external_data.add(key=key, value=text)
    return {"m.onnx": proto.SerializeToString(deterministic=True), "m.data": data}


# OpenVINO


def _xml() -> list[Files]:
    files = [
        _written("m.xml", lambda path: onegru.save_layers(make_stack(2, ("bidirectional",)), path)),
        _written("m.xml", lambda path: onegru.save_layers(make_gru(2, dtype="float16"), path, cell=True)),
        _written("m.xml", _chain),
    ]
    for steps, rows in (((), ()), ((T,), (1,))):  # a cell, and the layer of it
        shapes = {"X": (B, *steps, I), "H_t": (B, *rows, H), "W": (*rows, 3 * H, I), "R": (*rows, 3 * H, H)}
        shapes |= {"B": (*rows, 3 * H), "A": (B, *steps, 1)}
        arrays: dict[str, Any] = {name: numbers(1, *shape) for name, shape in shapes.items()}
        if steps:
            lens = {"sequence_lengths": np.array([T, 1])}
            arrays = {"X": arrays.pop("X"), "H_t": arrays.pop("H_t"), **lens, **arrays}
        function = partial(write_case, function="augru_sequence" if steps else "augru_cell", inputs=arrays)
        files.append(_written("m.xml", partial(function, attributes={"hidden_size": H, "clip": 0.0})))
    return files


def _chain(path: Path) -> None:
    """Layers for OpenVINO before and after a GRU, lengths from a shape, a converted constant."""
    ir = IrWriter()
    x = ir.parameter("x", "float32", f"?,?,{I}")
    relu = ir.layer("Relu", "relu", {}, [x])[0]
    size = ir.layer("ShapeOf", "size", {"output_type": "i64"}, [relu], version="opset3", dtype="int64")[0]
    axis = ir.const("axis", np.array(0))
    batch, steps = (
        ir.layer("Gather", name, {"batch_dims": "0"}, [size, place, axis], version="opset8", dtype="int64")[0]
        for name, place in (("batch", ir.const("0", np.array([0]))), ("steps", ir.const("1", np.array(1))))
    )
    numpy = {"mode": "numpy"}
    lens = ir.layer("Broadcast", "lens", numpy, [steps, batch], version="opset3", dtype="int64")[0]
    rest = ir.const("rest", np.array([1, H]))
    shape = ir.layer("Concat", "shape", {"axis": "0"}, [batch, rest], dtype="int64")[0]
    zero = ir.const("zero", np.array(0, np.float32))
    state = ir.layer("Broadcast", "state", numpy, [zero, shape], version="opset3")[0]
    W = ir.convert("W", ir.const("W16", numbers(1, 1, 3 * H, I).astype(np.float16)), "float32")
    gru_inputs = [
        relu,
        state,
        lens,
        W,
        ir.const("R", numbers(2, 1, 3 * H, H)),
        ir.const("B", numbers(3, 1, 3 * H)),
    ]
    Y, Ho = ir.gru("gru_sequence", "gru", {"hidden_size": H, "direction": "reverse"}, gru_inputs)
    flags = {"transpose_a": "false", "transpose_b": "false"}
    ir.result(
        "out", ir.layer("MatMul", "head", flags, [Y, ir.const("V", numbers(4, H, 2))], names=["out"])[0]
    )
    ir.result("Ho", Ho)
    ir.write(path)


# Frameworks


def _layer_config(name: str, **more: Any) -> dict[str, Any]:
    gates = {"activation": "tanh", "recurrent_activation": "sigmoid", "use_bias": True, "reset_after": True}
    config = {"name": name, "units": H, **gates, "return_sequences": True, "go_backwards": False, **more}
    return {"module": "keras.layers", "class_name": "GRU", "config": config, "registered_name": None}


def _model_config() -> str:
    layers = [_layer_config("first"), _layer_config("second", go_backwards=True, return_sequences=False)]
    config = {"name": "model", "trainable": True, "layers": layers}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": config})


def _hdf5(fill: Callable[[Any], None]) -> bytes:
    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        fill(file)
    return stream.getvalue()


def _arrays(inputs: int) -> dict[str, Any]:
    shapes = {"kernel": (inputs, 3 * H), "recurrent_kernel": (H, 3 * H), "bias": (2, 3 * H)}
    return {name: numbers(index, *shape) for index, (name, shape) in enumerate(shapes.items())}


def _keras() -> list[Files]:
    def fill(file: Any) -> None:
        for key, name, inputs in (("gru", "first", I), ("gru_1", "second", H)):
            layer = file.create_group(f"layers/{key}")
            layer.create_group("vars").attrs["name"] = name
            for index, array in enumerate(_arrays(inputs).values()):
                layer[f"cell/vars/{index}"] = array

    members = {
        "metadata.json": json.dumps({"keras_version": "3.8.0", "date_saved": "2026-01-01@00:00:00"}).encode(),
        "config.json": _model_config().encode(),
        "model.weights.h5": _hdf5(fill),
    }
    return [{"m.keras": _zipped(members)}]


def _h5() -> list[Files]:
    def fill(file: Any) -> None:
        file.attrs["model_config"] = _model_config()
        file.attrs["keras_version"] = "3.8.0"
        for name, inputs in (("first", I), ("second", H)):
            layer = file.create_group(f"model_weights/{name}")
            arrays = _arrays(inputs)
            layer.attrs["weight_names"] = [f"{name}/gru_cell/{key}".encode() for key in arrays]
            for key, array in arrays.items():
                layer[f"{name}/gru_cell/{key}"] = array

    return [{"m.h5": _hdf5(fill)}]


def _tflite() -> list[Files]:
    return [{"m.tflite": path.read_bytes()} for path in sorted(FOLDER.glob("*.tflite"))]


def _zipped(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


_TORCH_SHAPES = {
    "weight_ih_l0": (3 * H, I),
    "weight_hh_l0": (3 * H, H),
    "bias_ih_l0": (3 * H,),
    "bias_hh_l0": (3 * H,),
}


def _safetensors() -> list[Files]:
    from safetensors.numpy import save

    named = {f"rnn.{name}": numbers(1, *shape) for name, shape in _TORCH_SHAPES.items()}
    stack = make_stack(2, ("forward", "bidirectional"))
    return [
        {"m.safetensors": save(named, {"format": "pt"})},
        _written("m.safetensors", lambda path: onegru.save_layers(stack, path)),
        _written("m.safetensors", lambda path: onegru.save_layers(stack.with_storage("int8"), path)),
        _written("m.safetensors", lambda path: onegru.save_layers(make_gru(4, dtype="bfloat16"), path)),
    ]


def _json() -> list[Files]:
    """The index of a checkpoint in two files, and these."""
    from safetensors.numpy import save

    named = {f"rnn.{name}": numbers(1, *shape) for name, shape in _TORCH_SHAPES.items()}
    places = {name: f"m-0000{1 + ('bias' in name)}-of-00002.safetensors" for name in named}
    shards = {place: {n: named[n] for n in named if places[n] == place} for place in places.values()}
    index = json.dumps({"metadata": {}, "weight_map": places}).encode()
    return [{"m.safetensors.index.json": index, **{place: save(part) for place, part in shards.items()}}]


def _wrapped() -> list[Files]:
    """Whole modules, and state dicts in others, as `torch.save` wrote them before it wrote archives."""
    tensors = {name: numbers(1, *shape) for name, shape in _TORCH_SHAPES.items()}
    writer = Writer(legacy=True)
    made = Call(Global("copyreg", "_reconstructor"), (Global("torch.nn.modules.rnn", "GRU"), None, None))
    attributes = {"training": True, "_parameters": tensors, "_modules": {}}
    module = Raw(writer.part(made) + writer.part(attributes) + b"b")
    return [
        _written("m.pt", lambda path: writer.write(path, {"net": [module], "epoch": 3})),
        _written("m.pt", lambda path: write_checkpoint(path, [{"rnn": tensors}, 1.5], legacy=True)),
    ]


def _pt() -> list[Files]:
    """A state dict as `torch.save` writes it; by hand, as opcodes, so that PyTorch is not needed."""
    tensors = {f"rnn.{name}": numbers(1, *shape) for name, shape in _TORCH_SHAPES.items()}
    members = {"m/byteorder": b"little", "m/version": b"3\n"}
    entries = b""
    for index, (name, array) in enumerate(tensors.items()):
        members[f"m/data/{index}"] = array.tobytes()
        storage = b"(" + _word("storage") + b"ctorch\nFloatStorage\n" + _word(str(index)) + _word("cpu")
        storage += _tuple(array.size)[1:] + b"Q"
        strides = (size // array.itemsize for size in array.strides)
        place = b"J\0\0\0\0" + _tuple(*array.shape) + _tuple(*strides)
        tensor = storage + place + b"\x89ccollections\nOrderedDict\n)R"
        entries += _word(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + tensor + b"tR"
    members["m/data.pkl"] = b"\x80\x02}(" + entries + b"u."
    return [{"m.pt": _zipped(members)}, *_wrapped()]


def _word(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _tuple(*items: int) -> bytes:
    return b"(" + b"".join(b"J" + struct.pack("<i", item) for item in items) + b"t"


# Arrays

_PROBE = {
    PROBE: model(
        graph(
            [gru("X", ["Y", "Z"], initial_h="h")],
            [_X, value("h", "float32", [1, "batch", H])],
            ["Y", value("Z", "float32", [1, "batch", H])],
            {key: weights()[key] for key in "WR"},
        )
    ).SerializeToString(deterministic=True)
}


def _npz() -> list[Files]:
    feeds = {"X": numbers(1, T, B, I), "h": numbers(2, 1, B, H)}
    states = {"state/h": feeds["h"]}
    gates = io.BytesIO()
    writer(make_gru(attention=True).trace(feeds["X"], attention=feeds["X"][:, :, 0]))(gates)
    gates.seek(0)
    with np.load(gates) as loaded:
        traced = dict(loaded)
    return [
        {"m.npz": _zipped({f"{name}.npy": _npy_bytes(array) for name, array in arrays.items()}), **_PROBE}
        for arrays in (feeds, states, traced)
    ]


def _npy_bytes(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _npy() -> list[Files]:
    arrays = [numbers(1, T, B, I), np.asfortranarray(numbers(2, 1, B, H)), numbers(3, 4).astype(">f8")]
    return [{"m.npy": _npy_bytes(array), **_PROBE} for array in arrays]


def _pb() -> list[Files]:
    values = TensorProto(name="h", data_type=TensorProto.FLOAT, dims=[1, B, H], float_data=[0.5] * B * H)
    words = TensorProto(name="s", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"b"])
    packed = onnx.helper.make_tensor("X", TensorProto.INT4, [3], [1, 2, 3])
    protos = [tensor("X", numbers(1, T, B, I)), values, words, packed]
    return [{"m.pb": proto.SerializeToString(deterministic=True), **_PROBE} for proto in protos]


_CORPORA: Mapping[str, Callable[[], list[Files]]] = {
    "onnx": _onnx,
    "xml": _xml,
    "bin": _xml,
    "keras": _keras,
    "h5": _h5,
    "tflite": _tflite,
    "safetensors": _safetensors,
    "json": _json,
    "pt": _pt,
    "npz": _npz,
    "npy": _npy,
    "pb": _pb,
}

KINDS = tuple(_CORPORA)
