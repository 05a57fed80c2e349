"""Weights that other nodes make of constants, or that are defaults of inputs: packed once by every engine."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import execution_provider
from onegru.engines.interface import DEFAULT_OPTIONS
from tests.support.comparison import same_bits
from tests.support.files import onnx_models as m

CPU = "CPUExecutionProvider"
OURS = execution_provider.get_ep_name()
RECORD = "session.record_ep_graph_assignment_info"
SHAPES = {"W": (1, 3 * m.H, m.I), "R": (1, 3 * m.H, m.H), "B": (1, 6 * m.H)}
STATE = m.numbers(2, 1, m.B, m.H)
TYPES = {13: "int8 uint8 int32", 19: "int8 uint8 int32 float8_e4m3fn float8_e5m2"}
TYPES[21] = f"{TYPES[19]} int16 uint16 int4 uint4"
TYPES[23] = TYPES[21]


def session(proto: onnx.ModelProto, providers: Sequence[Any], optimized: bool = True, **options: Any) -> Any:
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 4
    chosen.add_session_config_entry(RECORD, "1")
    if not optimized:
        chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = [execution_provider.register() if name == OURS else name for name in providers]
    if options:
        providers[0] = (OURS, options)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), chosen, providers=list(providers), enable_fallback=0
    )


def left_to_the_cpu(opened: Any) -> Counter[str]:
    """The operators that ONNX Runtime's own kernels run."""
    parts = opened.get_provider_graph_assignment_info()
    return Counter(item.op_type for part in parts if part.ep_name == CPU for item in part.get_nodes())


class Way:
    """Nodes and constants that make weights, drawn."""

    def __init__(self, seed: int, opset: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(m.node(kind, inputs, [name], **attributes))
        return name

    def constant(self, array: Any, code: int | None = None) -> str:
        name = f"c_{len(self.constants)}"
        array = np.asarray(array)
        if code is None:
            self.constants.append(m.tensor(name, array))
        else:
            self.constants.append(onnx.helper.make_tensor(name, code, array.shape, array.ravel()))
        return name

    def leaf(self, shape: tuple[int, ...]) -> str:
        """Weights in integers or small floats, or in another type of floats."""
        rng = self.rng
        if rng.integers(5) == 0:
            array = rng.uniform(-1, 1, shape).astype(str(rng.choice(["float16", "float64"])))
            return self.add("Cast", [self.constant(array)], to=onnx.TensorProto.FLOAT)
        kind = str(rng.choice(TYPES[self.opset].split()))
        code = getattr(onnx.TensorProto, kind.replace("_", "").upper())
        scale_type = (
            np.dtype(str(rng.choice(["float32", "float16"]))) if self.opset >= 19 else np.dtype("float32")
        )
        axis = int(rng.integers(len(shape)))
        most = {"int4": 7, "uint4": 15, "int8": 127, "uint8": 255}.get(kind, 500 if "int" in kind else 3)
        attributes, sizes = (
            {},
            [(), (shape[axis],)][(way := int(rng.integers(3 if self.opset >= 21 else 2))) % 2],
        )
        if way == 2:
            block = int(rng.integers(1, shape[axis] + 1))
            attributes, sizes = (
                {"block_size": block},
                (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :]),
            )
        if way:
            attributes["axis"] = axis
        inputs = [self.constant(rng.integers(0 if kind.startswith("u") else -most, most, shape), code)]
        inputs.append(self.constant((rng.uniform(0.5, 1, sizes) / most).astype(scale_type)))
        if "float" not in kind and kind != "int32" and rng.integers(2):
            inputs.append(self.constant(rng.integers(0, most // 2, sizes), code))
        given = self.add("DequantizeLinear", inputs, **attributes)
        return given if scale_type == np.float32 else self.add("Cast", [given], to=onnx.TensorProto.FLOAT)

    def make(self, shape: tuple[int, ...], depth: int) -> str:
        """A weight after some operators."""
        if depth == 0:
            return self.leaf(shape)
        axis = int(self.rng.integers(len(shape)))
        around = (shape[:axis], shape[axis + 1 :])
        match self.rng.integers(7):
            case 0 if shape[0] == 1 and len(shape) > 1:
                return self.add("Unsqueeze", [self.make(shape[1:], depth - 1), self.constant([0])])
            case 1:
                return self.add("Squeeze", [self.make((*shape, 1), depth - 1), self.constant([len(shape)])])
            case 2:
                flat = self.make((int(np.prod(shape)),), depth - 1)
                return self.add("Reshape", [flat, self.constant(np.array(shape))])
            case 3:
                return self.add(
                    "Transpose", [self.make(shape[::-1], depth - 1)], perm=list(range(len(shape)))[::-1]
                )
            case 4 if shape[axis] > 1:
                sizes = (1, shape[axis] - 1)
                parts = [self.make((*around[0], size, *around[1]), depth - 1) for size in sizes]
                return self.add("Concat", parts, axis=axis)
            case 5:
                whole = self.make((*around[0], shape[axis] + 2, *around[1]), depth - 1)
                bounds = (self.constant([number]) for number in (1, 1 + shape[axis], axis))
                return self.add("Slice", [whole, *bounds])
        return self.add("Identity", [self.make(shape, depth - 1)])


def body(nodes: Sequence[onnx.NodeProto], inputs: Any, outputs: Any, constants: Any = ()) -> onnx.GraphProto:
    return onnx.helper.make_graph(nodes, "body", inputs, outputs, constants)


def placed(place: str, way: Way, inner: onnx.NodeProto) -> tuple[onnx.ModelProto, int]:
    """A model of a GRU node from "given" to "last", and how often it runs; "around": weights lie outside."""
    state, step = m.value("given", shape=STATE.shape), m.value("last", shape=STATE.shape)
    nodes, constants = [*way.nodes, inner], way.constants
    inputs = [m.value("X", shape=m.X.shape), m.value("start", shape=STATE.shape), m.value("yes", "bool", [])]
    outer: list[onnx.NodeProto] = []
    if place.endswith("around"):
        outer, nodes = list(way.nodes), [inner]
    if place == "main":
        return m.model(
            m.graph([m.node("Identity", ["start"], ["given"]), *nodes], inputs[:2], ["last"], constants),
            opset=way.opset,
        ), 1
    if place == "function":
        names = [tensor.name for tensor in constants]
        kinds = [m.node("Constant", [], [tensor.name], value=tensor) for tensor in constants]
        function = onnx.helper.make_function(
            "own",
            "Own",
            ["X", "given"],
            ["last"],
            [*kinds, *nodes],
            [onnx.helper.make_opsetid("", way.opset)],
        )
        assert names
        calls = [m.node("Own", ["X", "start"], ["middle"], domain="own")]
        calls.append(m.node("Own", ["X", "middle"], ["Z"], domain="own"))
        graph = m.graph(calls, inputs[:2], ["Z"])
        return m.model(graph, opset=way.opset, functions=[function], domains={"own": 1}), 2
    if place.startswith("if"):
        other = body([m.node("Identity", ["given"], ["other"])], [], [m.value("other")])
        chosen = body(nodes, [], [step], () if outer else constants)
        given = m.node("Identity", ["start"], ["given"])
        graph = m.graph(
            [*outer, given, m.node("If", ["yes"], ["Z"], then_branch=chosen, else_branch=other)],
            inputs,
            ["Z"],
            constants if outer else (),
        )
        return m.model(graph, opset=way.opset), 1
    if place == "scan":
        scanned = body(nodes, [state, m.value("unused", shape=[])], [step], constants)
        node = m.node("Scan", ["start", "steps"], ["Z"], body=scanned, num_scan_inputs=1)
        return m.model(
            m.graph([node], inputs[:2], ["Z"], {"steps": np.zeros(3, np.float32)}), opset=way.opset
        ), 3
    going = [m.value("i", "int64", []), m.value("going", "bool", [])]
    kept = m.node("Identity", ["going"], ["still"])
    looped = body(
        [kept, *nodes], [*going, state], [m.value("still", "bool", []), step], () if outer else constants
    )
    more = [m.tensor("three", np.int64(3)), *(constants if outer else ())]
    node = m.node("Loop", ["three", "", "start"], ["Z"], body=looped)
    return m.model(m.graph([*outer, node], inputs[:2], ["Z"], more), opset=way.opset), 3


PLACES = ["main", "if", "loop", "scan", "function", "if around", "loop around"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("place", PLACES)
def test_made_of_constants(place: str, seed: int) -> None:
    """Drawn ways, types and opsets: ONNX Runtime's weights bit by bit, packed once, nothing left to run."""
    seed += 10 * PLACES.index(place)
    way = Way(seed, sorted(TYPES)[seed % 4])
    names = {name: way.make(shape, int(way.rng.integers(4))) for name, shape in SHAPES.items()}
    graph = m.graph(way.nodes, [], list(names.values()), way.constants)
    arrays = session(m.model(graph, opset=way.opset), [CPU], optimized=False).run(None, {})
    weights: dict[str, Any] = dict(zip(names, arrays, strict=True))
    inner = m.gru(
        "X", ["", "last"], W=names["W"], R=names["R"], bias=names["B"], initial_h="given", name="inner"
    )
    proto, times = placed(place, way, inner)
    wanted = STATE
    for _ in range(times):
        wanted = onegru.gru(m.X, **weights, initial_h=wanted)[1]
    feeds = {"X": m.X, "start": STATE, "yes": np.array(True)}
    inputs: dict[str, Any] = {}
    for optimized in (True, False):
        opened = session(proto, [OURS, CPU], optimized)
        inputs = {info.name: feeds[info.name] for info in opened.get_inputs()}
        for _ in range(2):
            assert same_bits(opened.run(None, inputs)[0], wanted)
        ran = left_to_the_cpu(opened)
        assert not ran.keys() - {"Identity", "If", "Loop", "Scan"}, ran
        assert ran["Identity"] <= 2
    assert packings(proto, [inputs, inputs]) == (2 if place == "function" else 1)
    assert same_bits(next(iter(onegru.load(proto).run(inputs).values())), wanted)
    read = onegru.load(proto)
    assert all(node.layer is not None for node in read.gru_nodes)
    assert same_bits(read.gru_nodes[0].weights[0], weights["W"])


def packings(proto: onnx.ModelProto, runs: Sequence[Mapping[str, Any]]) -> int:
    """How often weights are packed in a session."""
    seen: Counter[str] = Counter()
    number = execution_provider.add_observer(lambda node, moment, arrays: seen.update([moment]))
    try:
        opened = session(proto, [OURS, CPU], observer=str(number))
        for feeds in runs:
            opened.run(None, dict(feeds))
    finally:
        execution_provider.remove_observer(number)
    return seen["weights"]


def dequantized(name: str, seed: int) -> tuple[list[onnx.NodeProto], dict[str, Any], Any]:
    q = np.random.default_rng(seed).integers(-99, 99, SHAPES["W"]).astype(np.int8)
    scale = np.array(0.01, np.float32)
    constants = {f"{name}.q": q, f"{name}.s": scale}
    return [m.node("DequantizeLinear", [*constants], [name])], constants, q.astype(np.float32) * scale


@pytest.mark.parametrize("kinds", ["other", "equal", "computed second", "computed first"])
def test_bodies_may_share_names(kinds: str) -> None:
    """Nothing but names tells nodes apart: where these do not, each run looks at the weights."""
    plain = {name: m.WEIGHTS[name] for name in "RB"}
    bodies, wanted = [], []
    for index in range(2):
        nodes, constants, W = dequantized("W", 0 if kinds == "equal" else index)
        if kinds == ("computed first", "", "computed second")[2 * index]:
            nodes, constants, W = [m.node("Mul", ["V", "two"], ["W"])], {}, m.WEIGHTS["W"] * np.float32(2)
        nodes = [*nodes, m.gru("X", ["", "last"], bias="B")]
        bodies.append(body(nodes, [], [m.value("last")], [m.tensor(*item) for item in constants.items()]))
        wanted.append(onegru.gru(m.X, W, **plain)[1])
    inputs = [m.value("X", shape=m.X.shape), m.value("yes", "bool", []), m.value("two", shape=[])]
    node = m.node("If", ["yes"], ["Z"], then_branch=bodies[0], else_branch=bodies[1])
    opened = session(m.model(m.graph([node], inputs, ["Z"], {**plain, "V": m.WEIGHTS["W"]})), [OURS, CPU])
    for turn in (0, 1, 0, 0):
        feeds = {"X": m.X, "yes": np.array(turn == 0), "two": np.array(2, np.float32)}
        assert same_bits(opened.run(None, feeds)[0], wanted[turn])


def test_what_others_read_is_there_for_them() -> None:
    """The other branch returns the weight itself; a GRU takes it as X as well."""
    nodes, constants, W = dequantized("W", 1)
    other = body([m.node("Identity", ["W"], ["other"])], [], [m.value("other")])
    chosen = body([m.gru("X", ["", "last"])], [], [m.value("last")])
    more = [m.node("If", ["yes"], ["Z"], then_branch=chosen, else_branch=other), m.gru("W", ["", "X_too"])]
    inputs = [m.value("X", shape=m.X.shape), m.value("yes", "bool", [])]
    graph = m.graph([*nodes, *more], inputs, ["Z", "X_too"], {**constants, "R": m.WEIGHTS["R"]})
    opened = session(m.model(graph), [OURS, CPU])
    for yes, wanted in ((True, onegru.gru(m.X, W, m.WEIGHTS["R"])[1]), (False, W), (True, None)):
        found, second = opened.run(None, {"X": m.X, "yes": np.array(yes)})
        assert wanted is None or same_bits(found, wanted)
        assert same_bits(second, onegru.gru(W, W, m.WEIGHTS["R"])[1])


def test_what_would_take_far_more_memory_than_the_file_is_left_to_each_run() -> None:
    """ONNX Runtime computes it no sooner than a run does, and so does the provider."""
    nodes, constants, _ = dequantized("v0", 1)
    nodes += [m.node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=1) for i in range(30)]
    nodes += [m.node("Slice", ["v30", "start", "end", "axis"], ["W"]), m.gru("X", ["Y", ""])]
    bounds = {"start": np.array([0]), "end": np.array([3 * m.H]), "axis": np.array([1])}
    graph = m.graph(nodes, [m.X_INFO], ["Y"], {**constants, **bounds, "R": m.WEIGHTS["R"]})
    assert left_to_the_cpu(session(m.model(graph), [OURS, CPU]))["Concat"] == 30


def with_defaults() -> onnx.ModelProto:
    infos = [m.value(name, shape=array.shape) for name, array in m.WEIGHTS.items()]
    return m.model(m.graph([m.PLAIN], [m.X_INFO, *infos], ["Y", "Y_h"], m.WEIGHTS))


def test_defaults_of_inputs_are_packed_once_until_others_are_given() -> None:
    proto, plain = with_defaults(), {"X": m.X}
    other = {"X": m.X, "W": m.numbers(7, *SHAPES["W"])}
    assert packings(proto, [plain] * 3) == 1
    assert packings(proto, [plain, other, plain, other, plain]) == 2
    read = onegru.load(proto)
    (layer,) = (node.layer for node in read.gru_nodes)
    opened = session(proto, [OURS, CPU])
    for feeds in (plain, other, plain, other):
        wanted = onegru.gru(m.X, feeds.get("W", m.WEIGHTS["W"]), m.WEIGHTS["R"], m.WEIGHTS["B"])
        for found in (opened.run(None, feeds), read.run(feeds).values()):
            assert all(map(same_bits, found, wanted))
    assert read.gru_nodes[0].layer is layer is not None


def test_what_nodes_make_of_defaults_is_made_once() -> None:
    """In `load`: the model has a session in which the defaults are constants, until a run gives others."""
    arrays = {**m.WEIGHTS, "W": m.WEIGHTS["W"].transpose(0, 2, 1)}
    turned = m.node("Transpose", ["W"], ["W_turned"], perm=[0, 2, 1])
    infos = [m.value(name, shape=array.shape) for name, array in arrays.items()]
    nodes = [turned, m.gru("X", ["Y", "Y_h"], W="W_turned", bias="B"), m.node("Relu", ["Y"], ["positive"])]
    proto = m.model(m.graph(nodes, [m.X_INFO, *infos], ["positive"], arrays))
    read, seen = onegru.load(proto), Counter[str]()
    assert read.graph.whole is not None
    run = read.graph.whole.open(DEFAULT_OPTIONS, lambda index, moment, arrays: seen.update([moment]))
    for _ in range(3):
        run({"X": m.X})
    assert seen == {"weights": 1, "done": 3}
    other = m.numbers(7, *arrays["W"].shape)
    for W in (None, other, None, other):
        feeds = {"X": m.X} if W is None else {"X": m.X, "W": W}
        turned_W = m.WEIGHTS["W"] if W is None else W.transpose(0, 2, 1)
        wanted = np.maximum(onegru.gru(m.X, turned_W, m.WEIGHTS["R"], m.WEIGHTS["B"])[0], 0)
        assert same_bits(run(feeds)["positive"], wanted)
        assert same_bits(read.run(feeds)["positive"], wanted)


def test_an_array_that_is_given_may_change() -> None:
    """It lies where it lay in the last run, and so may one where others lay before."""
    W = m.WEIGHTS["W"].copy()
    opened, read = session(with_defaults(), [OURS, CPU]), onegru.load(with_defaults())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", onegru.SpecWarning)
        for _ in range(3):
            W *= np.float32(0.5)
            wanted = onegru.gru(m.X, W, m.WEIGHTS["R"], m.WEIGHTS["B"])
            for found in (opened.run(None, {"X": m.X, "W": W}), read.run({"X": m.X, "W": W}).values()):
                assert all(map(same_bits, found, wanted))


@pytest.mark.parametrize("way", ["provider", "load"])
def test_weights_that_change_are_reported_once(way: str) -> None:
    proto = with_defaults()
    size = sum(array.nbytes for array in m.WEIGHTS.values())
    read = onegru.load(proto)
    run = session(proto, [OURS, CPU]).run if way == "provider" else lambda _, feeds: read.run(feeds)
    others = [{"X": m.X, "W": m.numbers(seed, *SHAPES["W"])} for seed in range(3)]
    for feeds in ({"X": m.X}, others[0], others[0], {"X": m.X}):
        run(None, feeds)  # which warns of nothing
    message = (
        rf"GRU node 'g': W, R, B: are not the same in each run; their {size} bytes are compared in each,"
    )
    with pytest.warns(onegru.SpecWarning, match=message) as caught:
        run(None, others[1])
    assert [warning.filename for warning in caught] == [__file__]
    run(None, others[2])
