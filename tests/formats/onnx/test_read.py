"""ONNX files as strangers write them: external data, and what a broken or hostile file may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, FunctionProto, ModelProto, TensorProto

import onegru
from onegru import FormatError, Model, OneGRUError, SpecError
from onegru.formats.onnx.read import Source
from onegru.formats.onnx.reader import parse_onnx
from tests.support.onnx_models import (
    B,
    H,
    I,
    T,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    save,
    tensor,
    value,
    weights,
)

X = numbers(99, T, B, I)
X_INFO = value("X", "float32", ["time", "batch", I])
WEIGHTS = weights()
EXPECTED = dict(zip(("Y", "Y_h"), onegru.gru(X, *WEIGHTS.values()), strict=True))
PLAIN = gru("X", ["Y", "Y_h"], bias="B", name="g")


def plain(**constants: object) -> ModelProto:
    """A GRU and another node that has the constant K."""
    values = {**WEIGHTS, "K": numbers(7, H), **constants}
    tensors = [item if isinstance(item, TensorProto) else tensor(name, item) for name, item in values.items()]
    return model(graph([PLAIN, node("Add", ["Y_h", "K"], ["Z"], name="add")], [X_INFO], ["Y", "Z"], tensors))


def refused(folder: Path, proto: ModelProto | bytes) -> str:
    """The message of the FormatError that a file raises when it is loaded, without the file's name."""
    with pytest.raises(FormatError) as caught:
        loaded(folder, proto)
    message, name = str(caught.value), f"{folder / 'model.onnx'}: "
    assert message.startswith(name)
    assert "\n" not in message
    return message.removeprefix(name)


# ---- external data ----


def external(name: str, array: Any, location: str | None = "weights.bin", **entries: object) -> TensorProto:
    """A tensor whose values lie in a file."""
    proto = tensor(name, array)
    proto.ClearField("raw_data")
    proto.data_location = TensorProto.EXTERNAL
    if location is not None:
        entries = {"location": location, **entries}
    for key, item in entries.items():
        proto.external_data.add(key=key, value=str(item))
    return proto


def all_external(folder: Path, location: str = "weights.bin") -> ModelProto:
    """The plain model with all constants in one file, one behind the other; K at its end without a length."""
    tensors, data = {}, b""
    for name, array in {**WEIGHTS, "K": numbers(7, H)}.items():
        length = {} if name == "K" else {"length": array.nbytes}
        tensors[name] = external(name, array, location, offset=len(data), **length)
        data += array.tobytes()
    path = folder / location
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return plain(**tensors)


def is_right(ours: Model) -> bool:
    got = ours.run({"X": X})
    np.testing.assert_array_equal(got["Y"], EXPECTED["Y"])
    np.testing.assert_allclose(got["Z"], EXPECTED["Y_h"] + numbers(7, H), atol=1e-6)
    return True


@pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin", "./sub/../weights.bin", "ünï"])
def test_external_data_in_the_folder(tmp_path: Path, location: str) -> None:
    """The GRU's weights are read here, K by ONNX Runtime."""
    (tmp_path / "sub").mkdir()
    assert is_right(loaded(tmp_path, all_external(tmp_path, location)))


def test_external_data_wherever_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = save(folder, all_external(folder))
    monkeypatch.chdir(tmp_path)
    assert is_right(onegru.load("models/model.onnx"))
    monkeypatch.chdir(folder)
    assert is_right(onegru.load("model.onnx"))
    (tmp_path / "link").symlink_to(folder)
    assert is_right(onegru.load(tmp_path / "link" / path.name))


def test_external_data_with_more_behind_it(tmp_path: Path) -> None:
    """Without a length the shape says how much it is."""
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].tobytes() + bytes(1000))
    assert is_right(loaded(tmp_path, plain(W=external("W", WEIGHTS["W"]))))


def test_external_data_computed_with_at_load(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].swapaxes(1, 2).tobytes())
    nodes = [node("Transpose", ["V"], ["W"], perm=[0, 2, 1]), PLAIN]
    constants = [external("V", WEIGHTS["W"].swapaxes(1, 2)), *(tensor(name, WEIGHTS[name]) for name in "RB")]
    got = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Y"], constants))).run({"X": X})
    np.testing.assert_array_equal(got["Y"], EXPECTED["Y"])


@pytest.mark.parametrize("name", ["W", "K"], ids=["of a GRU", "of another node"])
@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret", {}, "external data in '../secret', outside the model's folder"),
        ("sub/../../secret", {}, "outside the model's folder"),
        ("{above}/secret", {}, "outside the model's folder"),
        (
            "{folder}/weights.bin",
            {},
            "outside the model's folder",
        ),  # an absolute path, even to the right place
        ("link_to_file", {}, "external data in 'link_to_file', outside the model's folder"),
        ("link_to_folder/secret", {}, "outside the model's folder"),
        ("nothing.bin", {}, "external data in 'nothing.bin', which is not a file"),
        ("sub", {}, "external data in 'sub', which is not a file"),
        (".", {}, "which is not a file"),
        ("loop", {}, "which is not a file"),
        ("n" * 5000, {}, "which cannot be read (File name too long)"),
        ("", {}, "external data without a location"),
        ("weights\0.bin", {}, "external data without a location"),
        (None, {}, "external data without a location"),
        ("*/_ORT_MEM_ADDR_/*", {}, "external data in '*/_ORT_MEM_ADDR_/*', which is not a file"),
        ("*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*", {"offset": 4096}, "which is not a file"),
        ("weights.bin", {"offset": 530}, "of 'weights.bin', which has 540"),
        ("weights.bin", {"offset": 2**70}, "of 'weights.bin', which has 540"),
        (
            "weights.bin",
            {"length": 2**40},
            "external data end at byte 1099511627776 of 'weights.bin', which has 540",
        ),
        ("weights.bin", {"length": 8}, "8 bytes; must be {bytes} for shape {shape}"),
        ("weights.bin", {"length": 0}, "0 bytes; must be {bytes} for shape {shape}"),
        ("weights.bin", {"offset": -1}, "offset -1, length {bytes}; must not be negative"),
        ("weights.bin", {"length": -1}, "offset 0, length -1; must not be negative"),
        ("weights.bin", {"offset": "x"}, "offset and length must be numbers"),
        ("weights.bin", {"length": "1e3"}, "offset and length must be numbers"),
        ("weights.bin", {"offset": "0_0"}, "offset and length must be numbers"),
        ("weights.bin", {"offset": "٠"}, "offset and length must be numbers"),
        ("weights.bin", {"length": "9" * 5000}, "offset and length must be numbers"),
    ],
)
def test_external_data_that_are_refused(
    tmp_path: Path, name: str, location: str | None, entries: Mapping[str, object], message: str
) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    array = {**WEIGHTS, "K": numbers(7, H)}[name]
    for path in (tmp_path / "secret", folder / "weights.bin", folder / "*" / "_ORT_MEM_ADDR_" / "*"):
        path.write_bytes(bytes(540))
    (folder / "link_to_file").symlink_to(tmp_path / "secret")
    (folder / "link_to_folder").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    if location is not None:
        location = location.replace("{above}", str(tmp_path)).replace("{folder}", str(folder))
    got = refused(folder, plain(**{name: external(name, array, location, **entries)}))
    assert got.startswith(f"tensor {name!r}: ")
    assert message.format(bytes=array.nbytes, shape=list(array.shape)) in got


def test_an_external_key_that_is_there_twice(tmp_path: Path) -> None:
    """Two readers might take two different ones."""
    (tmp_path / "weights.bin").write_bytes(WEIGHTS["W"].tobytes())
    twice = external("W", WEIGHTS["W"])
    twice.external_data.add(key="location", value="weights.bin")
    assert refused(tmp_path, plain(W=twice)) == "tensor 'W': external data with a key that is there twice"


def test_external_strings_and_unknown_types(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(12))
    for code, message in ((TensorProto.STRING, "external data of strings"), (0, "unknown element type 0")):
        odd = external("K", numbers(7, H))
        odd.data_type = code
        assert message in refused(tmp_path, plain(K=odd))


def test_external_data_of_a_model_without_a_folder() -> None:
    proto = plain(W=external("W", WEIGHTS["W"]))
    with pytest.raises(
        FormatError, match=r"^model: tensor 'W': external data in 'weights\.bin', but the model has no"
    ):
        parse_onnx(proto.SerializeToString(), Source("model"))


@pytest.mark.parametrize(
    "place", ["constant", "sparse constant", "sparse", "body", "function", "function default"]
)
def test_external_data_wherever_tensors_are(tmp_path: Path, place: str) -> None:
    bad = external("secret", np.ones(3, np.float32), "../secret")
    (tmp_path / "secret").write_bytes(bytes(12))
    folder = tmp_path / "folder"
    folder.mkdir()
    nodes, sparse = [PLAIN, node("Add", ["Y_h", "K"], ["Z"])], []
    functions: list[FunctionProto] = []
    constant = node("Constant", [], ["K"], value=bad)
    pair = onnx.helper.make_sparse_tensor(bad, tensor("", np.arange(3)), [3])
    if place == "constant":
        nodes.append(constant)
    elif place == "sparse constant":
        nodes.append(node("Constant", [], ["K"], sparse_value=pair))
    elif place == "sparse":
        sparse = [pair]
    elif place == "body":
        body = graph([constant], [], ["K"])
        nodes.append(node("If", ["yes"], ["K"], then_branch=body, else_branch=body))
    else:
        use = constant if place == "function" else node("Constant", [], ["K"])
        function = onnx.helper.make_function(
            "own",
            "F",
            [],
            ["K"],
            [use],
            [onnx.helper.make_opsetid("", 14)],
            attribute_protos=[onnx.helper.make_attribute("v", bad)],
        )
        functions.append(function)
        nodes.append(node("F", [], ["K"], domain="own"))
    proto = model(
        graph(nodes, [X_INFO], ["Z"], WEIGHTS, sparse=sparse), functions=functions, domains={"own": 1}
    )
    assert (
        refused(folder, proto) == "tensor 'secret': external data in '../secret', outside the model's folder"
    )


def test_external_data_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, all_external(tmp_path))
    true_open = Path.open

    def closed(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "weights.bin":
            raise PermissionError(13, "Permission denied")
        return true_open(self, *args, **options)

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(
        FormatError, match=r"tensor '\w': 'weights\.bin' cannot be read \(Permission denied\)"
    ):
        [gru.layer for gru in onegru.load(path).gru_nodes]


# ---- tensors ----


def test_tensors_however_they_are_stored(tmp_path: Path) -> None:
    """Raw, or as a list of numbers."""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        arrays = weights(dtype=dtype)
        listed = []
        for name, array in arrays.items():
            code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            listed.append(onnx.helper.make_tensor(name, code, array.shape, array.ravel().tolist()))
            assert not listed[-1].HasField("raw_data")
        inputs = [value("X", dtype, [T, B, I])]
        got = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y"], listed), opset=22)).run(
            {"X": X.astype(arrays["W"].dtype)}
        )
        want, _ = onegru.gru(X.astype(arrays["W"].dtype), *arrays.values())
        np.testing.assert_array_equal(got["Y"], want)


ANY_TYPE = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT16", "INT64", "UINT64", "BOOL", "STRING"]
ANY_TYPE += ["COMPLEX64", "COMPLEX128", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"]


@pytest.mark.parametrize(
    ("name", "raw"),
    [(name, raw) for name in ANY_TYPE for raw in (False, True) if not raw or name != "STRING"],
)
def test_the_size_of_every_element_type(name: str, raw: bool) -> None:
    """A tensor has as many elements as its shape says, an odd number too, or is refused."""
    code = TensorProto.DataType.Value(name)
    numbers: list[Any] = [b"a", b"b", b"c"] if name == "STRING" else [1, 0, 1]
    if raw:
        item = onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(onnx.helper.make_tensor("K", code, [3], numbers))
        )
        item.name = "K"
    else:
        item = onnx.helper.make_tensor("K", code, [3], numbers)
    proto = model(
        graph([gru("X", ["Y"])], [X_INFO], ["Y"], [*(tensor(n, a) for n, a in WEIGHTS.items()), item])
    )
    parse_onnx(proto.SerializeToString(), Source("m"))
    for wrong in ([5], [1], [2, 3], [0]):
        proto.graph.initializer[-1].dims[:] = wrong
        with pytest.raises(
            FormatError, match=rf"m: tensor 'K': \d+ (bytes|values); must be \d+ for shape \[{wrong[0]}"
        ):
            parse_onnx(proto.SerializeToString(), Source("m"))


def changed(**fields: Any) -> TensorProto:
    item = tensor("K", numbers(7, H))
    for name, new in fields.items():
        if isinstance(new, list):
            del getattr(item, name)[:]
            getattr(item, name).extend(new)
        elif name == "segment":
            item.segment.begin = new
        else:
            setattr(item, name, new)
    return item


HUGE = 2**40


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (changed(dims=[-3]), "tensor 'K': shape [-3]; must not be negative"),
        (changed(dims=[-1, -3]), "tensor 'K': shape [-1, -3]; must not be negative"),
        (changed(raw_data=bytes(11)), "tensor 'K': 11 bytes; must be 12 for shape [3]"),
        (changed(raw_data=b""), "tensor 'K': 0 bytes; must be 12 for shape [3]"),
        (changed(dims=[HUGE]), f"tensor 'K': 12 bytes; must be {4 * HUGE} for shape [{HUGE}]"),
        (changed(dims=[HUGE, HUGE]), f"12 bytes; must be {4 * HUGE * HUGE} for"),
        (changed(dims=[2**62, 4, 0, 3]), "12 bytes; must be 0 for"),
        (changed(data_type=0), "tensor 'K': unknown element type 0"),
        (changed(data_type=99), "tensor 'K': unknown element type 99"),
        (changed(data_type=TensorProto.STRING), "raw or external data of strings; must be numbers"),
        (changed(data_type=TensorProto.DOUBLE), "12 bytes; must be 24 for shape [3]"),
        (changed(segment=0), "tensor 'K': is a segment; must be whole"),
    ],
)
def test_tensors_of_a_wrong_size(tmp_path: Path, bad: TensorProto, message: str) -> None:
    assert message in refused(tmp_path, plain(K=bad))


def test_enormous_tensors_without_values(tmp_path: Path) -> None:
    for name in ("W", "K"):
        for dims in ([HUGE], [1, HUGE, I], [2**62, 2**62]):
            for code in (TensorProto.FLOAT, TensorProto.INT4, TensorProto.STRING, TensorProto.COMPLEX64):
                empty = TensorProto(name=name, data_type=code, dims=dims)
                assert f"tensor '{name}': 0 values; must be " in refused(tmp_path, plain(**{name: empty}))


def test_sizes_that_exhaust_memory_in_a_run(tmp_path: Path) -> None:
    """X has no features, so a file of a few bytes asks for more than there can be."""
    constants = [
        TensorProto(name="X", data_type=TensorProto.FLOAT, dims=[10**15, 3, 0]),
        *(tensor(name, array) for name, array in weights(I=0).items()),
    ]
    ours = loaded(tmp_path, model(graph([PLAIN], [], ["Y"], constants)))
    with pytest.raises(FormatError, match=r"model\.onnx: GRU node 'g': sizes that exhaust memory \("):
        ours.run({})


# ---- graphs ----


def edited(edit: Callable[[ModelProto], object]) -> ModelProto:
    proto = plain()
    edit(proto)
    return proto


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.ClearField("graph"), "holds no graph; not an ONNX model, or truncated"),
        (
            lambda m: m.graph.node[1].input.__setitem__(1, "no"),
            "Add node 'add': input 'no' is defined nowhere",
        ),
        (lambda m: m.graph.node[0].input.__setitem__(1, "no"), "GRU node 'g': input 'no' is defined nowhere"),
        (lambda m: m.graph.output.append(value("no")), "graph output 'no' is defined nowhere"),
        (lambda m: m.graph.node[1].output.__setitem__(0, "Y"), "Add node 'add': 'Y' is defined twice"),
        (lambda m: m.graph.node[1].output.__setitem__(0, "X"), "Add node 'add': 'X' is defined twice"),
        (lambda m: m.graph.node[1].output.__setitem__(0, "W"), "Add node 'add': 'W' is defined twice"),
        (lambda m: m.graph.node[0].output.__setitem__(1, "Y"), "GRU node 'g': 'Y' is defined twice"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "graph input: 'X' is defined twice"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "initializer: 'W' is defined twice"),
        (
            lambda m: (m.graph.initializer.append(m.graph.initializer[0]), m.graph.input.append(value("W"))),
            "initializer: 'W' is defined twice",
        ),
        (lambda m: m.graph.node[0].input.append("Z"), "waits for itself; the graph has a cycle"),
        (
            lambda m: m.graph.node[1].input.__setitem__(1, "Z"),
            "Add node 'add': waits for itself; the graph has a cycle",
        ),
    ],
)
def test_broken_graphs(tmp_path: Path, edit: Callable[[ModelProto], object], message: str) -> None:
    assert message in refused(tmp_path, edited(edit))


def test_a_cycle_through_a_body(tmp_path: Path) -> None:
    body = graph([node("Neg", ["Z"], ["a"])], [], ["a"])
    nodes = [
        gru("Z", ["Y"], name="g"),
        node("If", ["yes"], ["Z"], then_branch=body, else_branch=body, name="if"),
    ]
    proto = model(graph(nodes, [value("yes", "bool", [])], ["Y"], WEIGHTS))
    assert "waits for itself; the graph has a cycle" in refused(tmp_path, proto)


def test_a_body_that_takes_what_is_nowhere(tmp_path: Path) -> None:
    body = graph([node("Neg", ["no"], ["a"])], [], ["a"])
    nodes = [PLAIN, node("If", ["yes"], ["Z"], then_branch=body, else_branch=body, name="if")]
    proto = model(graph(nodes, [X_INFO, value("yes", "bool", [])], ["Z"], WEIGHTS))
    assert refused(tmp_path, proto) == "If node 'if': input 'no' is defined nowhere"


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (AttributeProto(name="value"), "attribute 'value' is not one of Constant's"),
        (
            AttributeProto(name="value", type=AttributeProto.FLOAT, f=1),
            "attribute 'value' is not one of Constant's",
        ),
        (AttributeProto(name="value", type=AttributeProto.TENSOR), "cannot be read"),
        (
            AttributeProto(name="value_float", type=AttributeProto.STRING, s=b"x"),
            "'value_float' is not one of",
        ),
        (
            AttributeProto(name="value_ints", type=AttributeProto.FLOATS, floats=[1]),
            "'value_ints' is not one of",
        ),
        (AttributeProto(name="value_string", type=AttributeProto.STRING, s=b"\xff"), "cannot be read"),
        (
            AttributeProto(name="colour", type=AttributeProto.INT, i=1),
            "attribute 'colour' is not one of Constant's",
        ),
    ],
)
def test_broken_constant_nodes(tmp_path: Path, attribute: AttributeProto, message: str) -> None:
    """As an output, and as a GRU's weight."""
    constant = node("Constant", [], ["W"])
    constant.attribute.append(attribute)
    rest = {name: WEIGHTS[name] for name in ("R", "B")}
    assert message in refused(tmp_path, model(graph([constant, PLAIN], [X_INFO], ["Y"], rest)))
    assert message in refused(tmp_path, model(graph([constant], [], ["W"])))


TEXTS: dict[str, Callable[[ModelProto], bytes]] = {
    "node's name": lambda m: m.graph.node[1].name.encode(),
    "node's input": lambda m: m.graph.node[1].input[1].encode(),
    "operator": lambda m: m.graph.node[0].op_type.encode(),
    "attribute": lambda m: m.graph.node[0].attribute[0].name.encode(),
    "initializer": lambda m: m.graph.initializer[1].name.encode(),
    "graph input": lambda m: m.graph.input[0].name.encode(),
    "dimension": lambda m: m.graph.input[0].type.tensor_type.shape.dim[1].dim_param.encode(),
    "graph's name": lambda m: m.graph.name.encode(),
    "domain": lambda m: m.opset_import[1].domain.encode(),
    "location": lambda m: m.graph.initializer[0].external_data[0].value.encode(),
}


@pytest.mark.parametrize("place", list(TEXTS))
def test_texts_that_are_not_utf_8(tmp_path: Path, place: str) -> None:
    """Every byte of the text is replaced, wherever it stands in the file."""
    proto = all_external(tmp_path, "a_location")
    proto.graph.node[1].name = "a_name"
    proto.graph.name = "a_graph"
    proto.opset_import.append(onnx.helper.make_opsetid("a_domain", 1))
    text = TEXTS[place](proto)
    data = proto.SerializeToString()
    pattern = bytes([len(text)]) + text
    assert pattern in data
    wrong = b"\xff" * len(text)
    bad = data.replace(pattern, bytes([len(text)]) + wrong)
    assert refused(tmp_path, bad) == f"{wrong!r}: not UTF-8; must be"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no graph; not an ONNX model, or truncated"),
        (b"\n", "not an ONNX model, or truncated ("),
        (b"PK\3\4" + bytes(100), "not an ONNX model, or truncated ("),
        (bytes(1000), "not an ONNX model, or truncated ("),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, data: bytes, message: str) -> None:
    assert message in refused(tmp_path, data)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        onegru.load(tmp_path / "none.onnx")
    with pytest.raises(OSError, match="directory"):
        onegru.load(tmp_path)


def test_bodies_in_bodies_without_end(tmp_path: Path) -> None:
    """Written by hand, as protobuf itself writes no such file: graph.node.attribute.g.node.attribute.g…"""

    def field(number: int, content: bytes) -> bytes:
        size, head = len(content), bytes([number << 3 | 2])
        while size > 127:
            head, size = head + bytes([size & 127 | 128]), size >> 7
        return head + bytes([size]) + content

    body = b""
    for _ in range(5000):
        body = field(1, field(5, field(6, body)))
    assert "not an ONNX model, or truncated (" in refused(tmp_path, field(7, body))


# ---- every truncation, and random changes ----


def small_models() -> list[tuple[ModelProto, dict[str, Any]]]:
    """Models that hold a bit of everything, as small as can be, and what to feed them."""
    small = weights(I=2, H=2)
    x = numbers(1, 2, 1, 2)
    only = model(
        graph(
            [
                gru(
                    "X",
                    ["Y", "Y_h"],
                    bias="B",
                    lens="L",
                    hidden_size=2,
                    clip=1.5,
                    activations=["Elu", "Tanh"],
                )
            ],
            [value("X", "float32", ["t", "b", 2]), value("L", "int32", ["b"])],
            ["Y", "Y_h"],
            small,
        )
    )
    yes = graph([gru("S", ["y", "h2"], hidden_size=2), node("Add", ["h2", "Y_h"], ["o"])], [], ["o"])
    no = graph([node("Identity", ["Y_h"], ["o2"])], [], ["o2"])
    mixed = model(
        graph(
            [
                node("Constant", [], ["k"], value=tensor("k", np.float32(2))),
                node("Mul", ["X", "k"], ["S"]),
                node("Transpose", ["V"], ["W"], perm=[0, 2, 1]),
                gru("S", ["Y", "Y_h"], bias="B", hidden_size=2),
                node("ReduceSum", ["Y"], ["rs"], keepdims=0),
                node("Greater", ["rs", "k"], ["c"]),
                node("If", ["c"], ["out"], then_branch=yes, else_branch=no),
                node("Softmax", ["Y"], ["sm"], axis=-1),
            ],
            [value("X", "float32", ["t", "b", 2])],
            ["out", "sm"],
            {"V": small["W"].swapaxes(1, 2), "R": small["R"], "B": small["B"]},
        )
    )
    inputs = [
        value("X", "float32", [2, 1, 2]),
        *(value(name, "float32", a.shape) for name, a in small.items()),
    ]
    nodes = [
        gru("X", ["Y", "Y_h"], bias="B", hidden_size=2, output_sequence=1),
        node("Relu", ["Y_h"], ["r"], consumed_inputs=[0]),
        node("Add", ["r", "R"], ["a"], broadcast=1, axis=0),
        node("Softmax", ["r"], ["z"]),
    ]
    old = model(graph(nodes, inputs, [value("z", "float32", [1, 1, 2])], small), opset=3, ir=3)
    lens = np.array([2], np.int32)
    return [(only, {"X": x, "L": lens}), (mixed, {"X": x}), (old, {"X": x})]


def survives(data: bytes, feeds: Mapping[str, object]) -> bool:
    """Whether a model can be loaded and run; anything but onegru's own errors is a fault."""
    try:
        Model(parse_onnx(data, Source("model"))).run(feeds)
    except OneGRUError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::onegru.SpecWarning")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_every_truncation(which: int) -> None:
    proto, feeds = small_models()[which]
    data = proto.SerializeToString()
    assert survives(data, feeds)
    assert not any(survives(data[:size], feeds) for size in range(len(data)))


@pytest.mark.filterwarnings("ignore::onegru.SpecWarning")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_random_changes(which: int) -> None:
    """Bytes replaced, flipped, taken out and repeated: an error of ours, or a model that runs."""
    proto, feeds = small_models()[which]
    data = proto.SerializeToString()
    rng = random.Random(which)
    outcomes = []
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.randrange(len(changed))
            match rng.randrange(4):
                case 0:
                    changed[at] = rng.randrange(256)
                case 1:
                    changed[at] ^= 1 << rng.randrange(8)
                case 2:
                    del changed[at : at + rng.randrange(1, 12)]
                case _:
                    changed[at:at] = changed[at : at + rng.randrange(1, 30)]
        outcomes.append(survives(bytes(changed), feeds))
    assert any(outcomes)
    assert not all(outcomes)


def test_hidden_sizes_that_disagree(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"model\.onnx: GRU node 'g': W: shape \[1, 12, 5\]; must be .*\[1, 9, any\]"
    ):
        loaded(tmp_path, plain(W=numbers(0, 1, 12, I)))
    with pytest.raises(
        SpecError, match=r"model\.onnx: GRU node 'g': R: shape \[1, 0, 0\], hidden_size 0; must be"
    ):
        loaded(tmp_path, edited_sizes())


def edited_sizes() -> ModelProto:
    proto = plain(R=np.zeros((1, 0, 0), np.float32), W=np.zeros((1, 0, I), np.float32))
    del proto.graph.node[0].attribute[:]
    return proto
