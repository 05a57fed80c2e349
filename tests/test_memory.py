"""Memory: the weights are there once, scratch does not grow with T, a long call stays below ONNX Runtime."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onegru
from onegru.native import NativeEngine

SIZES = [64, 65, 72, 79, 80, 96, 100, 127, 128, 129, 160, 200, 255, 256, 257]
TYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def engine_of(layer: onegru.GRU) -> NativeEngine:
    engine = layer._engine
    assert isinstance(engine, NativeEngine)
    return engine


def make(I: int, H: int, dtype: str, D: int, after: bool, storage: str | None = None) -> onegru.GRU:
    W, R, B = (np.zeros(shape, TYPES[dtype]) for shape in ((D, 3 * H, I), (D, 3 * H, H), (D, 6 * H)))
    direction: Any = "bidirectional" if D == 2 else "forward"
    return onegru.GRU(W, R, B, direction=direction, linear_before_reset=after, weight_storage=storage)


@pytest.mark.parametrize(("dtype", "after"), itertools.product(TYPES, [False, True]))
def test_weights_are_kept_once(dtype: str, after: bool) -> None:
    most = 0.0
    for H, I, D in itertools.product(SIZES, (1, 64, 100), (1, 2)):
        given = D * (3 * H * I + 3 * H * H + 6 * H) * TYPES[dtype].itemsize
        most = max(most, engine_of(make(I, H, dtype, D, after)).packed_bytes / given)
    print(f"{dtype}, after={after}: {most:.4f}")
    assert most <= 1.05


@pytest.mark.parametrize(("storage", "after"), itertools.product(["float16", "bfloat16"], [False, True]))
def test_16_bit_storage_halves_the_matrices(storage: str, after: bool) -> None:
    for H, I in itertools.product(SIZES, (1, 64)):
        given = (3 * H * I + 3 * H * H) * 2 + 6 * H * 4
        assert engine_of(make(I, H, "float32", 1, after, storage)).packed_bytes <= 1.05 * given


@pytest.mark.parametrize(("dtype", "after"), itertools.product(TYPES, [False, True]))
def test_scratch_is_bounded(dtype: str, after: bool) -> None:
    """The figure of docs: some rows at once, each 3 (+ 4) rows of hidden units, whatever the batch."""
    threads = onegru.get_num_threads()
    try:
        onegru.set_num_threads(2)
        for I, H in ((1, 1), (64, 64), (100, 129), (384, 256), (512, 1024)):
            engine = engine_of(make(I, H, dtype, 1, after))
            bounds = [engine.scratch_bound(batch) for batch in (1, 2, 8, 64, 128, 1000, 10**6)]
            assert bounds == sorted(bounds)
            assert bounds[-1] == bounds[-2]  # from a batch of 128 rows a thread on, it does not grow
            assert bounds[-1] < 8 << 20
    finally:
        onegru.set_num_threads(threads)


PEAK_SO_FAR = """
def peak():  # KiB. Not ru_maxrss, which begins with that of the process that started this one.
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
"""

GROWTH = """
import sys
import textwrap
import numpy as np, onegru
I, H = 16, 64
layer = onegru.GRU(*(np.zeros(s, sys.argv[1]) for s in ((1, 3*H, I), (1, 3*H, H), (1, 6*H))),
                   linear_before_reset=True)
T = 100_000
X, Y, Y_h = (np.ones(s, sys.argv[1]) for s in ((T, 1, I), (T, 1, 1, H), (1, 1, H)))
layer(X[:2000], out=(Y[:2000], Y_h))
before = peak()
layer(X, out=(Y, Y_h))
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_longer_call_takes_no_more(dtype: str) -> None:
    assert run(GROWTH, dtype) < 512  # KiB; X alone has 3 MiB and more, Y four times that


LONG_CALL = """
import sys
import textwrap
import numpy as np
T, I, H = 35456, 384, 256
rng = np.random.default_rng(1)
W, R, B = (rng.standard_normal(s, np.float32) / 16 for s in ((1, 3*H, I), (1, 3*H, H), (1, 6*H)))
if sys.argv[1] == "onegru":
    import onegru
    layer = onegru.GRU(W, R, B, linear_before_reset=True)
    del W, R, B
    call = lambda X: layer(X)
else:
    import onnx, onnxruntime
    from onnx import TensorProto, helper, numpy_helper
    node = helper.make_node("GRU", ["X", "W", "R", "B"], ["Y", "Y_h"], hidden_size=H, linear_before_reset=1)
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", [value("X", [T, 1, I])],
                              [value("Y", [T, 1, 1, H]), value("Y_h", [1, 1, H])],
                              [numpy_helper.from_array(a, n) for a, n in zip((W, R, B), "WRB")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    del W, R, B, graph, model, data
    call = lambda X: session.run(None, {"X": X})
X = np.ones((T, 1, I), np.float32)
before = peak()
Y, Y_h = call(X)
assert Y.shape == (T, 1, 1, H)
after = peak()
print(after if sys.argv[2] == "peak" else after - before)
"""


def run(program: str, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PEAK_SO_FAR + program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_a_long_call_takes_less_than_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    for what in ("peak", "growth"):
        ours, theirs = (run(LONG_CALL, name, what) / 1024 for name in ("onegru", "onnxruntime"))
        print(f"{what}: onegru {ours:.0f} MiB, onnxruntime {theirs:.0f} MiB")
        assert ours < theirs


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_a_thread_works_on_after_it_ran_out_of_memory() -> None:
    code = """
        import resource
        import numpy as np, onegru
        onegru.set_num_threads(1)
        def zeros(*sizes): return np.zeros(sizes, np.float32)
        small = onegru.GRU(zeros(1, 12, 4), zeros(1, 12, 4))
        big = onegru.GRU(zeros(1, 6144, 1), zeros(1, 6144, 2048))
        x, X, out = zeros(3, 2, 4), zeros(4, 64, 1), (zeros(4, 1, 64, 2048), zeros(1, 64, 2048))
        small(x)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used, hard))
        try:
            big(X, out=out)
        except MemoryError:
            failed = True
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        assert failed
        small(x)
        big(X, out=out)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
