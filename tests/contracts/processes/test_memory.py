"""Test memory: weights are stored once, scratch does not grow with T, long calls use less than elsewhere."""

from __future__ import annotations

import copy
import itertools
import pickle
import queue
import sys
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import _native
from tests.support.cases import DTYPES
from tests.support.machine.processes import run_python, run_threads

SIZES = [64, 65, 72, 79, 80, 96, 100, 127, 128, 129, 160, 200, 255, 256, 257]


def native(layer: onegru.GRU) -> _native.Layer:
    found = layer.prepared_engine.native
    assert found is not None
    return found


def make(I: int, H: int, dtype: str, D: int, after: bool, storage: str | None = None) -> onegru.GRU:
    W, R, B = (np.zeros(shape, DTYPES[dtype]) for shape in ((D, 3 * H, I), (D, 3 * H, H), (D, 6 * H)))
    direction: Any = "bidirectional" if D == 2 else "forward"
    return onegru.GRU(W, R, B, direction=direction, linear_before_reset=after, weight_storage=storage)


@pytest.mark.parametrize(("dtype", "after"), itertools.product(DTYPES, [False, True]))
def test_weights_are_kept_once(dtype: str, after: bool) -> None:
    most = 0.0
    for H, I, D in itertools.product(SIZES, (1, 64, 100), (1, 2)):
        given = D * (3 * H * I + 3 * H * H + 6 * H) * DTYPES[dtype].itemsize
        most = max(most, native(make(I, H, dtype, D, after)).bytes / given)
    print(f"{dtype}, after={after}: {most:.4f}")
    assert most <= 1.05


@pytest.mark.parametrize(("storage", "after"), itertools.product(["float16", "bfloat16"], [False, True]))
def test_16_bit_storage_halves_the_matrices(storage: str, after: bool) -> None:
    for H, I in itertools.product(SIZES, (1, 64)):
        given = (3 * H * I + 3 * H * H) * 2 + 6 * H * 4
        assert native(make(I, H, "float32", 1, after, storage)).bytes <= 1.05 * given


@pytest.mark.parametrize("after", [False, True])
def test_8_bit_storage_quarters_the_matrices(after: bool) -> None:
    """Further memory: a scale and a correction for each channel of whole vectors, and the data for AMX."""
    for H, I in itertools.product(SIZES, (1, 64)):
        quads = -(-I // 4) * 4 + -(-H // 4) * 4
        vectors = -(-H // 16) * 16
        given = 3 * H * quads + 6 * H * 4 + 6 * vectors * 8
        of_amx = 2880 if H >= 32 else 0
        assert native(make(I, H, "float32", 1, after, "int8")).bytes <= 1.05 * given + of_amx


@pytest.mark.parametrize(("dtype", "after"), itertools.product(DTYPES, [False, True]))
def test_scratch_is_bounded(dtype: str, after: bool) -> None:
    """The documented formula: some rows at once, each 3 (+ 4) rows of hidden units, for any batch."""
    threads = onegru.get_num_threads()
    try:
        onegru.set_num_threads(2)
        for I, H in ((1, 1), (64, 64), (100, 129), (384, 256), (512, 1024)):
            layer = native(make(I, H, dtype, 1, after))
            bounds = [layer.scratch_bound(batch) for batch in (1, 2, 8, 64, 128, 1000, 10**6)]
            assert bounds[-1] == max(bounds)
            assert bounds[-1] == bounds[-2]  # it stops growing at a batch of 128 rows per thread
            assert bounds[-1] < 9 << 20
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
    assert run(GROWTH, dtype) < 512  # KiB; X has 3 MiB and more, Y four times that


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
    return int(run_python(PEAK_SO_FAR + program, *arguments).stdout)


@pytest.mark.long
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
    run_python(code)


# New outputs

MAKE_LARGE = """
import sys
import numpy as np, onegru
onegru.set_num_threads(1)
H = 36
layer = onegru.GRU(*(np.ones(s, np.float32) / 50 for s in ((1, 3*H, H), (1, 3*H, H), (1, 6*H))))
X = np.ones((60, 128, H), np.float32)
"""

FAULTS = (
    MAKE_LARGE
    + """
import resource
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    kept = layer(X)
before = faults()
for _ in range(20):
    kept = layer(X)
print((faults() - before) // 20)
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_new_outputs_take_memory_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # glibc may keep memory of this size or not
    assert run(FAULTS) < 10  # Y has 270 pages


def large_layer() -> tuple[onegru.GRU, np.ndarray]:
    rng = np.random.default_rng(1)
    W, R = (rng.standard_normal((1, 3 * 36, 36)).astype(np.float32) / 6 for _ in range(2))
    return onegru.GRU(W, R), rng.standard_normal((20, 64, 36)).astype(np.float32)


def test_new_outputs_are_arrays_as_any_other() -> None:
    layer, X = large_layer()
    expected = layer(X)[0].copy()
    Y = layer(X)[0]
    for _ in range(10):  # their memory is reused, and belongs to no other call
        view, kept = layer(X)[0][5:, :, ::2, 1:], layer(X)[0]
        layer(-X), layer(X[:10])
        np.testing.assert_array_equal(view, expected[5:, :, ::2, 1:])
        np.testing.assert_array_equal(kept, expected)
    for twin in (pickle.loads(pickle.dumps(Y)), copy.deepcopy(Y), np.copy(Y)):
        np.testing.assert_array_equal(twin, expected)
    assert Y.flags.owndata and Y.flags.writeable and Y.base is None and Y.ctypes.data % 64 == 0
    for size in (Y.size * 2, Y.size + 100, 1000, Y.size, 0, 10):
        least = min(size, Y.size, 1000)
        Y.resize(size, refcheck=False)
        np.testing.assert_array_equal(Y.ravel()[:least], expected.ravel()[:least])
    largest = np.iinfo(np.intp).max // 8
    Z = layer(X)[0]
    with pytest.raises(MemoryError):
        Z.resize(largest, refcheck=False)
    np.testing.assert_array_equal(Z, expected)


def test_new_outputs_may_go_to_other_threads() -> None:
    layer, X = large_layer()
    expected = layer(X)[0].copy()
    handed: queue.Queue[np.ndarray | None] = queue.Queue(8)
    wrong: list[int] = []

    def give() -> None:
        for _ in range(50):
            handed.put(layer(X)[0])
        handed.put(None)

    def take() -> None:
        while (Y := handed.get()) is not None:
            if not np.array_equal(Y, expected):
                wrong.append(1)

    run_threads(lambda work: work(), (give, give, take, take))
    assert not wrong


def test_memory_that_is_kept_is_bounded_and_given_back() -> None:
    onegru.empty_cache()
    assert onegru.empty_cache() == 0
    layer, X = large_layer()
    Y = layer(X)[0]
    assert onegru.empty_cache() == 0  # live arrays keep their memory
    size = Y.nbytes
    del Y
    kept = onegru.empty_cache()
    assert size <= kept < size + 8192
    narrow, long = onegru.GRU(*(np.zeros((1, 24, 8), np.float32) for _ in range(2))), np.zeros((9000, 64, 8))
    outputs = [narrow(long.astype(np.float32))[0] for _ in range(8)]  # 17.6 MiB each
    del outputs
    assert 32 << 20 < onegru.empty_cache() <= 64 << 20
    small = layer(X[:1, :1])[0]
    del small
    assert onegru.empty_cache() == 0


END = (
    MAKE_LARGE
    + """
import os, threading
kept = [layer(X) for _ in range(3)]
class Late:
    def __del__(self):
        kept.pop(), layer(X)
late = Late()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    kept.pop()
    again = layer(X)
    assert np.array_equal(again[0], kept[0][0]) and onegru.empty_cache() >= 0
started = threading.Event()
def work():
    while True:
        layer(X)
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
if child:
    print(0)
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_python_ends_while_outputs_live() -> None:
    assert run(END) == 0
