"""Sessions of ONNX Runtime with onegru's execution provider: the bits of the function, in any model."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onegru
from onegru import execution_provider
from onegru.layers.call import apply
from onegru.operators.lowering import lower
from onegru.operators.onnx import gru_version
from onegru.runtimes import execution_provider as own_module
from tests.support.cases import Case, gru_cases, onnx_model
from tests.support.comparison import same_bits
from tests.support.files import onnx_models as m
from tests.support.machine.processes import run_python, run_threads
from tests.support.machine.repository import ROOT
from tests.support.machine.systems import linux, posix
from tests.support.suite.selection import examples

CPU = "CPUExecutionProvider"


def session(model: onnx.ModelProto, **options: str) -> Any:
    name = execution_provider.register()
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 4
    providers = [(name, options), CPU]
    return onnxruntime.InferenceSession(
        model.SerializeToString(), chosen, providers=providers, enable_fallback=0
    )


def as_ort_value(array: Any) -> Any:
    """bfloat16 has no NumPy type there."""
    if array.dtype.name == "bfloat16":
        code = onnx.TensorProto.BFLOAT16
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), code)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def run(opened: Any, feeds: Mapping[str, Any]) -> list[Any]:
    names = [output.name for output in opened.get_outputs()]
    values = opened.run_with_ort_values(names, {name: as_ort_value(array) for name, array in feeds.items()})
    return [as_array(value) for value in values]


def as_array(value: Any) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = value.shape()
    data = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape))) if all(shape) else b""
    return np.frombuffer(data, m.numpy_type("bfloat16")).reshape(shape)


@examples(150)
@given(gru_cases(), st.booleans(), st.sampled_from(["auto", "reference"]))
def test_one_node_has_the_bits_of_the_function(case: Case, constant_weights: bool, engine: str) -> None:
    hypothesis.assume(case.opset <= 25)  # the newest that ONNX Runtime knows
    model = onnx_model(case, constant_weights=constant_weights)
    opened = session(model, engine=engine)
    assert opened.get_providers()[0] == execution_provider.get_ep_name()
    used = {info.name for info in opened.get_inputs()}
    feeds = {name: array for name, array in case.inputs.items() if array is not None and name in used}
    wanted: Any = onegru.gru(**case.arguments)
    if engine == "reference":
        W, R, B = (case.inputs[name] for name in "WRB")
        operator = gru_version(case.opset)
        assert operator is not None
        lowered = lower(operator, case.attributes, W, R, B)
        layer = onegru.GRU.from_canonical(lowered.spec, lowered.weights, engine="reference")
        given = {name: case.inputs[name] for name in ("X", "sequence_lens", "initial_h")}
        wanted = tuple(apply(layer, lowered.ports, given, {"Y": None, "Y_h": None}).values())
    for got, want in zip(run(opened, feeds), wanted, strict=True):
        assert same_bits(got, want), (case, got, want)


# --- where a node may lie


def gru_model(nodes: Any, inputs: Any, outputs: Any, constants: Any = None, **arguments: Any) -> Any:
    constants = m.weights() if constants is None else constants
    made: onnx.ModelProto = m.model(m.graph(nodes, inputs, outputs, constants), **arguments)
    return made


X = m.numbers(1, m.T, m.B, m.I)
STATE = m.numbers(2, 1, m.B, m.H)


def gru_of(state: Any, **arguments: Any) -> Any:
    return onegru.gru(X, **m.WEIGHTS, initial_h=state, linear_before_reset=1, **arguments)[1]


INNER = m.gru("X", ["", "inner_h"], bias="B", initial_h="given", linear_before_reset=1, name="inner")


def body(nodes: Any, inputs: Any, outputs: Any) -> onnx.GraphProto:
    return onnx.helper.make_graph(nodes, "body", inputs, [m.value(name) for name in outputs])


def branches(nodes: Any, output: str) -> dict[str, onnx.GraphProto]:
    other = m.node("Identity", ["given"], [output])
    return {"then_branch": body(nodes, [], [output]), "else_branch": body([other], [], [output])}


def in_if() -> list[onnx.NodeProto]:
    return [m.node("If", ["yes"], ["Z"], **branches([INNER], "inner_h"))]


def in_if_in_if() -> list[onnx.NodeProto]:
    middle = m.node("If", ["yes"], ["middle"], **branches([INNER], "inner_h"))
    return [m.node("If", ["yes"], ["Z"], **branches([middle], "middle"))]


def loop_body(nodes: Any, last: str) -> onnx.GraphProto:
    kept = m.node("Identity", ["going"], ["still"])
    inputs = [m.value("i", "int64", []), m.value("going", "bool", []), m.value("given", shape=[1, m.B, m.H])]
    outputs = [m.value("still", "bool", []), m.value(last, shape=[1, m.B, m.H])]
    return onnx.helper.make_graph([kept, *nodes], "body", inputs, outputs)


def in_loop() -> list[onnx.NodeProto]:
    return [m.node("Loop", ["three", "", "start"], ["Z"], body=loop_body([INNER], "inner_h"))]


def in_if_in_loop() -> list[onnx.NodeProto]:
    nodes = [m.node("If", ["yes"], ["chosen"], **branches([INNER], "inner_h"))]
    return [m.node("Loop", ["three", "", "start"], ["Z"], body=loop_body(nodes, "chosen"))]


def in_scan() -> list[onnx.NodeProto]:
    inputs = [m.value("given", shape=[1, m.B, m.H]), m.value("unused", shape=[])]
    scanned = onnx.helper.make_graph([INNER], "body", inputs, [m.value("inner_h", shape=[1, m.B, m.H])])
    return [m.node("Scan", ["start", "steps"], ["Z"], body=scanned, num_scan_inputs=1)]


@pytest.mark.parametrize(
    ("nodes", "times"), [(in_if, 1), (in_if_in_if, 1), (in_loop, 3), (in_if_in_loop, 3), (in_scan, 3)]
)
def test_a_node_in_a_body(nodes: Any, times: int) -> None:
    made = nodes()
    if times == 1:
        made = [m.node("Identity", ["start"], ["given"]), *made]
    constants = [m.tensor(name, array) for name, array in m.WEIGHTS.items()]
    constants += [m.tensor("three", np.int64(3)), m.tensor("steps", np.zeros(3, np.float32))]
    inputs = [m.value("X", shape=X.shape), m.value("start", shape=STATE.shape), m.value("yes", "bool", [])]
    opened = session(m.model(m.graph(made, inputs, ["Z"], constants)))
    state = STATE
    for _ in range(times):
        state = gru_of(state)
    feeds = {"X": X, "start": STATE, "yes": np.bool_(True)}
    used = {info.name for info in opened.get_inputs()}
    (found,) = opened.run(None, {name: np.asarray(value) for name, value in feeds.items() if name in used})
    assert same_bits(found, state)


def test_a_node_in_a_function() -> None:
    function = onnx.helper.make_function(
        "own",
        "Twice",
        ["X", "h", "W", "R", "B"],
        ["last"],
        [
            m.gru("X", ["", "first"], bias="B", initial_h="h", linear_before_reset=1),
            m.gru("X", ["", "last"], bias="B", initial_h="first", linear_before_reset=1),
        ],
        [onnx.helper.make_opsetid("", 14)],
    )
    call = m.node("Twice", ["X", "h", "W", "R", "B"], ["Z"], domain="own")
    inputs = [m.value("X", shape=X.shape), m.value("h", shape=STATE.shape)]
    opened = session(gru_model([call], inputs, ["Z"], functions=[function], domains={"own": 1}))
    assert same_bits(opened.run(None, {"X": X, "h": STATE})[0], gru_of(gru_of(STATE)))


def test_computed_weights_are_packed_when_they_change() -> None:
    nodes = [
        m.node("Mul", ["W", "factor"], ["scaled"]),
        m.gru("X", ["", "Y_h"], W="scaled", bias="B", linear_before_reset=1),
    ]
    inputs = [m.value("X", shape=X.shape), m.value("factor", shape=[])]
    opened = session(gru_model(nodes, inputs, ["Y_h"]))
    with pytest.warns(onegru.SpecWarning, match="with output 'Y_h': W, R, B: are not the same in each run"):
        for factor in np.array([0.5, 0.5, 2, 0.5, -1], np.float32):
            wanted = onegru.gru(X, **{**m.WEIGHTS, "W": m.WEIGHTS["W"] * factor}, linear_before_reset=1)[1]
            assert same_bits(opened.run(None, {"X": X, "factor": np.asarray(factor)})[0], wanted)


def plain_model(I: int = m.I, H: int = m.H, **attributes: Any) -> Any:
    nodes = [m.gru("X", ["Y", "Y_h"], bias="B", hidden_size=H, name="gru", **attributes)]
    return gru_model(nodes, [m.value("X", shape=["T", "N", I])], ["Y", "Y_h"], m.weights(I=I, H=H))


@linux
def test_weights_are_kept_once(tmp_path: Path) -> None:
    """In the packed form: a session takes no more memory than ONNX Runtime's own kernels do."""
    H = 1200
    nodes = [m.gru("X", ["Y", "Y_h"], bias="B", hidden_size=H)]
    inputs = [m.value("X", shape=["T", "N", H])]
    path = m.save(tmp_path, m.model(m.graph(nodes, inputs, ["Y"], m.weights(I=H, H=H))))
    program = """
path, provider = sys.argv[2:]
execution_provider.register()
statm = "/proc/self/statm"
before = int(open(statm).read().split()[1])
session = onnxruntime.InferenceSession(path, providers=[provider])
session.run(None, {"X": np.zeros((1, 1, 1200), np.float32)})
print((int(open(statm).read().split()[1]) - before) * os.sysconf("SC_PAGESIZE"))
"""
    ours, theirs = (
        int(run_program(program, "1", str(path), provider))
        for provider in (execution_provider.get_ep_name(), CPU)
    )
    assert ours < theirs + 0.1 * path.stat().st_size


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "many"}, "threads: 'many'; must be 0…64, 0 for the default"),
        ({"threads": "65"}, "threads: '65'; must be 0…64"),
        ({"engine": "slow"}, "engine: 'slow'; must be one of auto, native, reference"),
        (
            {"weight_storage": "int4"},
            "weight_storage: 'int4'; must be float16, bfloat16, int8, int8_g32, ",
        ),
        (
            {"weight_storage": "int8", "activation_storage": "int4"},
            "activation_storage: 'int4'; must be int16, int8, bfloat16 or empty",
        ),
        (
            {"weight_storage": "float16", "activation_storage": "int8"},
            "activation_storage: 'int8'; must be int16 or int8 for weights in int8, "
            "bfloat16 for weights in bfloat16, or empty",
        ),
        (
            {"weight_storage": "bfloat16", "activation_storage": "int8"},
            "activation_storage: 'int8'; must be int16 or int8 for weights in int8, bfloat16 for weights in",
        ),
        (
            {"weight_storage": "int8", "activation_storage": "bfloat16"},
            "activation_storage: 'bfloat16'; must be int16 or int8 for weights in int8, bfloat16 for",
        ),
        (
            {"weight_storage": "gru=int8", "activation_storage": "gru=bfloat16"},
            "activation_storage: 'gru=bfloat16'; must be int16 or int8 for weights in int8, bfloat16 for",
        ),
        (
            {"weight_storage": "float16", "engine": "reference"},
            "weight_storage: 'float16'; must be empty with",
        ),
        (
            {"weight_storage": "other=int8"},
            "weight_storage: no GRU node that this provider runs is called 'other'; must name one of 'gru'",
        ),
        ({"flush_subnormals": "yes"}, "flush_subnormals: 'yes'; must be 0 or 1"),
        (
            {"flush_subnormals": "1", "engine": "reference"},
            "flush_subnormals: '1'; must be 0 with the reference",
        ),
        ({"thread": "1"}, "thread: not an option of this provider; must be one of threads, engine, "),
        ({"weight-storage": "int8"}, "weight-storage: not an option of this provider; must be one of"),
        ({"Engine": "reference"}, "Engine: not an option of this provider; must be one of threads"),
    ],
)
def test_options_are_honoured_or_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception) as refused:
        session(plain_model(), **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "storage",
    [
        *[("float16",), ("bfloat16",), ("int8",), ("int8_g32",)],
        *[("int8", "int16"), ("int8", "int8"), ("bfloat16", "bfloat16")],
    ],
)
def test_storage(storage: tuple[str, ...]) -> None:
    options: dict[str, Any] = dict(zip(("weight_storage", "activation_storage"), storage, strict=False))
    layer = onegru.GRU(**m.WEIGHTS, **options)
    Y, Y_h = session(plain_model(), **options, threads="1").run(None, {"X": X})
    assert all(map(same_bits, (Y, Y_h), layer(X)))


# --- threads, processes


def test_threads_and_sessions_at_once() -> None:
    model = plain_model(I=64, H=96)
    inputs = [m.numbers(seed, 9, 3, 64) for seed in range(8)]
    arrays: dict[str, Any] = dict(m.weights(I=64, H=96))
    wanted = [onegru.gru(array, **arrays)[0] for array in inputs]
    sessions = [session(model) for _ in range(50)]
    wrong: list[int] = []

    def work(index: int) -> None:
        for turn in range(60):
            opened = sessions[0] if turn % 2 else sessions[(index + turn) % 50]
            if not same_bits(opened.run(["Y"], {"X": inputs[index]})[0], wanted[index]):
                wrong.append(index)

    run_threads(work, range(8))
    assert not wrong


PROGRAM = """
import os, signal, sys
import numpy as np, onnxruntime
import onegru
from onegru import execution_provider
from tests.support.files import onnx_models as m

X = m.numbers(1, 9, 3, 64)
wanted = onegru.gru(X, **m.weights(I=64, H=96))[0].tobytes()

def opened():
    nodes = [m.gru("X", ["Y", "Y_h"], bias="B", hidden_size=96)]
    model = m.model(m.graph(nodes, [m.value("X", shape=["T", "N", 64])], ["Y"], m.weights(I=64, H=96)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[1])
    providers = [execution_provider.register(), "CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)

def child(session):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        session = session or opened()
        os._exit(0 if session.run(None, {"X": X})[0].tobytes() == wanted else 1)
    assert os.waitpid(pid, 0)[1] == 0
"""


def run_program(program: str, *arguments: str) -> str:
    plain = ["-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 warns of every fork with threads
    done = run_python(PROGRAM + program, *arguments, options=plain, folder=ROOT, timeout=300)
    assert not done.stderr
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@posix
def test_forks_before_and_after_registering() -> None:
    """With a session of one thread: a child of ONNX Runtime's own pool has no threads."""
    run_program(
        """
child(None)
execution_provider.register()
child(None)
session = opened()
child(session)
assert session.run(None, {"X": X})[0].tobytes() == wanted
child(session)
""",
        "1",
    )


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_exit_without_unregistering_is_silent(threads: str) -> None:
    run_program('session = opened()\nassert session.run(None, {"X": X})[0].tobytes() == wanted\n', threads)


def test_registering_twice_gives_one_device() -> None:
    name = execution_provider.register()
    assert execution_provider.register() == name == execution_provider.get_ep_name()
    assert execution_provider.get_ep_names() == [name]
    assert [device.ep_name for device in onnxruntime.get_ep_devices()].count(name) == 1
    assert Path(execution_provider.get_library_path()).is_file()


def test_an_older_onnxruntime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.24.4")
    with pytest.raises(onegru.MissingExtraError) as caught:
        execution_provider.register()
    assert str(caught.value) == (
        "the execution provider (onnxruntime 1.24.4 is installed) needs onnxruntime>=1.25: "
        "pip install 'onegru[onnxruntime]'"
    )


def test_a_refusal_of_onnxruntime_is_no_error_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, path: str) -> None:
        raise RuntimeError("no such version of the interface")

    monkeypatch.setattr(onnxruntime, "get_ep_devices", list)
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", refuse)
    with pytest.raises(onegru.OneGRUError, match=r"refuses onegru \(no such version") as caught:
        execution_provider.register()
    assert not isinstance(caught.value, onegru.FormatError)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_threads_that_register_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One does, and the others find it."""
    devices: list[Any] = []
    calls: list[str] = []

    def slow(name: str, path: str) -> None:
        calls.append(name)
        time.sleep(0.1)
        devices.append(SimpleNamespace(ep_name=name))

    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: list(devices))
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", slow)
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: execution_provider.register(), range(4)))
    assert names == [execution_provider.get_ep_name()] * 4 and len(calls) == 1


def test_an_observer_of_a_model_that_is_refused_goes(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Nonsense", ["Y"], ["Z"])
    proto = plain_model()
    proto.graph.node.append(node)
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("Z"))
    path = m.save(tmp_path, proto)
    before = len(own_module._observers)
    with pytest.raises(onegru.FormatError):
        onegru.load(path).trace({"X": X})
    assert len(own_module._observers) == before


def test_an_exception_in_a_callback_ends_the_run() -> None:
    def look(node: str, moment: str, arrays: Mapping[str, Any]) -> None:
        if moment == "done":
            raise RuntimeError("looked too closely")

    number = execution_provider.add_observer(look)
    opened = session(plain_model(), observer=str(number))
    with pytest.raises(Exception, match="looked too closely"):
        opened.run(None, {"X": X})
    execution_provider.remove_observer(number)
    Y, _ = opened.run(None, {"X": X})  # nobody looks any more
    assert same_bits(Y, onegru.gru(X, **m.WEIGHTS)[0])


def test_what_an_observer_sees() -> None:
    seen: list[tuple[str, str, dict[str, Any]]] = []

    def look(node: str, moment: str, arrays: Mapping[str, Any]) -> None:
        seen.append((node, moment, {name: array.copy() for name, array in arrays.items()}))

    number = execution_provider.add_observer(look)
    session(plain_model(), observer=str(number)).run(None, {"X": X})
    execution_provider.remove_observer(number)
    Y, Y_h = onegru.gru(X, **m.WEIGHTS)
    (_, first, weights), (node, second, arrays) = seen
    assert (node, first, second) == ("gru", "weights", "done")
    assert sorted(weights) == ["B", "R", "W"]
    wanted = {**m.WEIGHTS, "X": X, "Y": Y, "Y_h": Y_h}
    assert arrays.keys() == wanted.keys()
    assert all(same_bits(arrays[name], wanted[name]) for name in wanted)


def test_an_optimized_model_can_be_saved(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    providers = [execution_provider.register(), CPU]
    onnxruntime.InferenceSession(plain_model().SerializeToString(), options, providers=providers)
    assert [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node] == ["GRU"]
