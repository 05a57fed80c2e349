"""ONNX files as strangers write them: what a broken or hostile file may hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto

import onegru
from onegru import FormatError, Model, OneGRUError, SpecError
from onegru.formats.onnx.parse import parse_onnx
from onegru.formats.onnx.validate import Source
from tests.support.files.onnx_checks import all_external, plain, refused
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    B,
    H,
    I,
    T,
    X,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    tensor,
    value,
    weights,
)

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
        (changed(data_type=TensorProto.STRING), "raw or external data of strings; must be numeric"),
        (changed(data_type=TensorProto.DOUBLE), "12 bytes; must be 24 for shape [3]"),
        (changed(segment=0), "tensor 'K': is a segment; must be a complete tensor"),
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
    with pytest.raises(FormatError, match=r"model\.onnx: GRU node 'g': out of memory \("):
        ours.run({})


# ---- graphs ----


def edited(edit: Callable[[ModelProto], object]) -> ModelProto:
    proto = plain()
    edit(proto)
    return proto


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.ClearField("graph"), "contains no graph; not an ONNX model, or truncated"),
        (
            lambda m: m.graph.node[1].input.__setitem__(1, "no"),
            "Add node 'add': input 'no' is not defined",
        ),
        (lambda m: m.graph.node[0].input.__setitem__(1, "no"), "GRU node 'g': input 'no' is not defined"),
        (lambda m: m.graph.output.append(value("no")), "graph output 'no' is not defined"),
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
        (lambda m: m.graph.node[0].input.append("Z"), "is part of a cycle"),
        (
            lambda m: m.graph.node[1].input.__setitem__(1, "Z"),
            "Add node 'add': is part of a cycle",
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
    assert "is part of a cycle" in refused(tmp_path, proto)


def test_a_body_that_takes_what_is_nowhere(tmp_path: Path) -> None:
    body = graph([node("Neg", ["no"], ["a"])], [], ["a"])
    nodes = [PLAIN, node("If", ["yes"], ["Z"], then_branch=body, else_branch=body, name="if")]
    proto = model(graph(nodes, [X_INFO, value("yes", "bool", [])], ["Z"], WEIGHTS))
    assert refused(tmp_path, proto) == "If node 'if': input 'no' is not defined"


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (AttributeProto(name="value"), "'value' is not an attribute of Constant"),
        (
            AttributeProto(name="value", type=AttributeProto.FLOAT, f=1),
            "'value' is not an attribute of Constant",
        ),
        (AttributeProto(name="value", type=AttributeProto.TENSOR), "cannot be read"),
        (
            AttributeProto(name="value_float", type=AttributeProto.STRING, s=b"x"),
            "'value_float' is not an attribute of",
        ),
        (
            AttributeProto(name="value_ints", type=AttributeProto.FLOATS, floats=[1]),
            "'value_ints' is not an attribute of",
        ),
        (AttributeProto(name="value_string", type=AttributeProto.STRING, s=b"\xff"), "cannot be read"),
        (
            AttributeProto(name="colour", type=AttributeProto.INT, i=1),
            "'colour' is not an attribute of Constant",
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
    assert refused(tmp_path, bad) == f"{wrong!r}: not UTF-8; must be valid UTF-8"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an empty file; must be one of these: ONNX model"),
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
    with pytest.raises(OSError, match="a folder; must be a file"):
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
    assert refused(tmp_path, field(7, body)) == "subgraphs are nested too deeply for protobuf"


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
    """Bytes replaced, flipped, removed and repeated: an error of ours, or a model that runs."""
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


def test_an_equation_that_inference_does_not_end_with(tmp_path: Path) -> None:
    for equation in ("......->...", "a...b...->ab", "...a,......->a"):
        node = onnx.helper.make_node("Einsum", ["x"], ["y"], equation=equation)
        x, y = (onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "xy")
        graph = onnx.helper.make_graph([node], "einsum", [x], [y])
        path = tmp_path / "m.onnx"
        onnx.save(onnx.helper.make_model(graph), path)
        with pytest.raises(FormatError, match="one ellipsis"):
            onegru.load(path)
