"""Inject faults: the n-th allocation of the native libraries fails, then the n-th thread that they start.

    python -m tests.contracts.faults [PART…]

For n = 1, 2, … until there is no n-th, each part of the package does its work from the beginning. It must end
in an error, or with bitwise identical results. The same work must then succeed, without leaks.
native/tests/faults.cc injects the faults.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[], bytes]

_SOURCE = Path(__file__).resolve().parents[2] / "native/tests/faults.cc"
_KINDS = {"allocations": 1, "threads": 2}
_SEED = 5
# Work that ONNX Runtime does itself if a provider cannot report which nodes it claims.
_ALSO_RIGHT: list[bytes] = []


def build(folder: Path) -> Path:
    """Compile the library."""
    path = folder / "faults.so"
    compiler = os.environ.get("CXX", "c++")
    options = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, str(_SOURCE), "-o", str(path), "-ldl"], check=True)
    return path


def count(library: Path, part: str, seconds: float = 300) -> dict[str, Any]:
    """Count the faults of each kind in a part, and those that it noticed; raise if it is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.contracts.faults", "--inside", part],
        env={**os.environ, "LD_PRELOAD": str(library), "ONEGRU_NUM_THREADS": "3"},
        cwd=_SOURCE.parents[2],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{part}: {done.returncode}\n{done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- the parts


def _draw(*shape: int) -> Any:
    return np.random.default_rng(_SEED).uniform(-0.5, 0.5, shape).astype(np.float32)


def _bytes(arrays: Any) -> bytes:
    return b"".join(np.asarray(array).tobytes() for array in arrays)


def _layer(**options: Any) -> Work:
    from tests.support.layers import make_gru

    X = _draw(9, 80, 20).astype(options.get("dtype", "float32"))
    lengths = [9 - n % 5 for n in range(80)]

    def work() -> bytes:
        layer = make_gru(inputs=20, hidden=48, **options)
        return _bytes([*layer(X, sequence_lens=lengths), *layer(X[:, :1]), layer.weights.W])

    return work


def _stream() -> bytes:
    from tests.support.layers import make_gru

    stream = make_gru(inputs=20, hidden=160).stream(72)
    X, rows = _draw(4, 70, 20), list(range(70))
    outputs = [stream.step(X[0], rows=rows), stream.step(X[1], rows=np.arange(70)[::-1])]
    return _bytes([*outputs, stream.run(_draw(4, 72, 20)), stream.state])


def _training() -> bytes:
    from onegru.core.activations import Activation
    from onegru.core.spec import Spec
    from onegru.engines.training import DirectionWeights, LayerCall, TrainedLayer

    pair = (Activation("Sigmoid"), Activation("Tanh"))
    T, B, I, H = 6, 12, 16, 40
    spec = Spec(I, H, direction="bidirectional", activations=(pair, pair), dtype="float32")
    own = DirectionWeights(_draw(3 * H, I), _draw(3 * H, H), _draw(3 * H), _draw(3 * H))
    layer = TrainedLayer(spec, [own, own], (0, 1, 2))
    call = LayerCall(_draw(T, B, I), sequence_lens=np.arange(B) % T + 1)
    Y, Y_h, gates = layer.forward(call, saves=True)
    names = ("W", "R", "Wb", "Rb")
    found, by = layer.gradients(call, Y, gates, Y, Y_h, ["X"], [names, names])
    arrays = [array for weights in by for array in weights if array is not None]
    return _bytes([Y, Y_h, found["X"], *arrays])


def _provider(**options: str) -> Work:
    import onnxruntime

    from onegru import execution_provider
    from tests.support.files import onnx_models as m

    I, H = 24, 96
    constants = {"W": _draw(1, 3 * H, I), "R": _draw(1, 3 * H, H), "B": _draw(1, 6 * H)}
    nodes = [m.gru("x", ["y", "h"], bias="B", hidden_size=H), m.gru("x", ["z"], W="V", hidden_size=H)]
    inputs = [m.value("x", shape=[None, None, I]), m.value("V", shape=[1, 3 * H, I])]
    graph = m.graph(nodes, inputs, [m.value(name) for name in ("y", "h", "z")], constants)
    data = m.model(graph).SerializeToString()
    name = execution_provider.register()
    feeds = {"x": _draw(5, 20, I), "V": _draw(1, 3 * H, I)}

    def work(*, ours: bool = True) -> bytes:
        chosen = onnxruntime.SessionOptions()
        chosen.log_severity_level = 4
        chosen.intra_op_num_threads = 2
        providers = [*([(name, options)] if ours else []), "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(data, chosen, providers=providers, enable_fallback=0)
        return _bytes(session.run(None, feeds))

    _ALSO_RIGHT.append(work(ours=False))
    return work


def _openvino() -> Work:
    import openvino
    from openvino import opset8 as ops

    import onegru
    from tests.support.files import openvino_models as models

    x = ops.parameter([-1, -1, 24], np.float32, name="x")
    y = models.sequence(x, 24, 96, "bidirectional")
    plain = openvino.Model([ops.result(y.output(0)), ops.result(y.output(1))], [x], "m")
    core = openvino.Core()
    X = _draw(20, 5, 24)

    def work() -> bytes:
        model = plain.clone()
        onegru.openvino.replace_grus(model)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
        request = compiled.create_infer_request()
        request.infer({0: X})
        if lost := onegru.openvino.errors():
            raise MemoryError(lost[0])
        return _bytes(request.get_output_tensor(place).data for place in (0, 1))

    return work


PARTS: Mapping[str, Callable[[], Work]] = {
    "layer": lambda: _layer(),
    "both directions": lambda: _layer(direction="bidirectional"),
    "float64": lambda: _layer(dtype="float64", linear_before_reset=True),
    "int8": lambda: _layer(weight_storage="int8"),
    "bfloat16": lambda: _layer(weight_storage="bfloat16", activation_storage="bfloat16"),
    "int8 in groups": lambda: _layer(weight_storage="int8_g32", activation_storage="int8"),
    "stream": lambda: _stream,
    "training": lambda: _training,
    "provider": _provider,
    "provider in int8": lambda: _provider(weight_storage="int8"),
    "OpenVINO": _openvino,
}


# --- inside the process whose libraries fail


def _in_a_new_thread(work: Work) -> bytes:
    """Do the work in a new thread, which allocates its thread-local data again."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _is_refusal(error: Exception) -> bool:
    import onegru

    # Other runtimes raise their own errors with onegru's message.
    known = isinstance(error, (MemoryError, onegru.OneGRUError))
    return known or any(word in str(error) for word in ("bad_alloc", "out of memory", "no such layer"))


def _try(faults: Any, kind: str, n: int, work: Work, expected: bytes) -> tuple[bool, bool]:
    """Return whether there was an n-th fault, and whether it was noticed."""
    noticed, right, error = False, True, ""
    faults.faults_arm(_KINDS[kind], n)
    try:
        found = work()
    except Exception as raised:
        noticed, right, error = True, _is_refusal(raised), repr(raised)
    else:
        right = found == expected or found in _ALSO_RIGHT
    finally:
        seen = faults.faults_disarm()
    assert right, f"{kind}, {n}: {error or 'other bits'}"
    assert seen >= n or not noticed, f"{kind}, {n}: nothing failed, but {error}"
    assert work() == expected, f"{kind}, {n}: other bits in the next call"
    return seen >= n, noticed


def _in_children(faults: Any, kind: str, work: Work, expected: bytes) -> int:
    """Count the faults in the first call of a child without threads yet; with a child for each n."""
    for n in range(1, 10_000):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                there, noticed = _try(faults, kind, n, work, expected)
                os._exit(there + 2 * noticed)
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in range(4), f"{kind}, {n}, in a child: {status}"
        if not status & 1:
            return n - 1
    raise AssertionError(f"{kind}: no end")


def _held(faults: Any, work: Work, expected: bytes, most: int = sys.maxsize) -> int:
    """Return the smallest number of blocks that the libraries hold after the work.

    There are more blocks while a worker thread that the system has suspended is in its last job, for a second
    or more. This waits until there are at most `most`.
    """
    least = sys.maxsize
    for n in range(120):
        assert work() == expected
        least = min(least, faults.faults_live())
        if n >= 20 and least <= most:
            break
        time.sleep(0.01 if n >= 20 else 0)
    return least


def _inside(part: str) -> None:
    work = partial(_in_a_new_thread, PARTS[part]())
    faults = ctypes.CDLL(None)
    for name in ("faults_disarm", "faults_live"):
        getattr(faults, name).restype = ctypes.c_long
    faults.faults_arm.argtypes = [ctypes.c_int, ctypes.c_long]
    expected = work()
    faults.faults_look()
    result: dict[str, Any] = {}
    # A leak grows in each pass. A worker keeps the memory from its first task, which occurs in one pass.
    given = noticed = held = 0
    for _ in range(5):
        live = _held(faults, work, expected)
        given = noticed = 0
        for n in range(1, 10_000):
            there, seen = _try(faults, "allocations", n, work, expected)
            if not there:
                break
            given, noticed = n, noticed + seen
        held = _held(faults, work, expected, live) - live
        if held <= 0:
            break
    assert given and noticed, "nothing failed"
    assert held <= 0, f"{held} blocks are left"
    result["allocations"], result["noticed"] = given, noticed
    if part not in ("provider", "provider in int8", "OpenVINO"):  # a child lacks their own threads
        result["threads"] = _in_children(faults, "threads", work, expected)
        result["allocations of a child"] = _in_children(faults, "allocations", work, expected)
    print(json.dumps(result))


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--inside"]:
        _inside(arguments[1])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for part in arguments or PARTS:
            print(f"{part:16}", json.dumps(count(library, part, 3600)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
