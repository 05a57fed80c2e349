"""Test signals that arrive during a native call, and the end of Python during one."""

from __future__ import annotations

import sys

import pytest

from tests.support.machine.processes import run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals as Linux does")

PRELUDE = """
import hashlib, os, signal, sys, threading, time
import numpy as np
import onegru

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored

def make(I, H, direction="forward", after=True):
    rng = np.random.default_rng(H)
    D = 2 if direction == "bidirectional" else 1
    W, R, B = (rng.standard_normal(s, np.float32) / H**0.5 for s in ((D, 3*H, I), (D, 3*H, H), (D, 6*H)))
    return onegru.GRU(W, R, B, direction=direction, linear_before_reset=after)

def arrays(layer, T, B):
    D, H = layer.spec.num_directions, layer.spec.hidden_size
    out = (np.empty((T, D, B, H), np.float32), np.empty((D, B, H), np.float32))
    return np.ones((T, B, layer.spec.input_size), np.float32), out

def after(seconds, signum=signal.SIGINT):
    sent = []
    def send():
        time.sleep(seconds)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signum)
    threading.Thread(target=send, daemon=True).start()
    return sent
"""


def run(program: str, *arguments: object, rc: int = 0) -> str:
    done = run_python(PRELUDE + program, *arguments, status=rc, timeout=300)
    assert not done.stderr
    return done.stdout


# Each call would take seconds. The best of several tries counts, because the machine may be busy.
INTERRUPT = """
I, H, T, B, threads = map(int, sys.argv[2:])
layer = make(I, H, sys.argv[1])
onegru.set_num_threads(threads)
small, small_out = arrays(layer, min(T, 9), min(B, 3))
expected = [array.copy() for array in layer(small, out=small_out)]
X, out = arrays(layer, T, B)
late = []
while len(late) < 5 and min(late, default=1) > 0.15:
    sent = after(0.15)
    try:
        layer(X, out=out)
        print("not interrupted")
        break
    except KeyboardInterrupt:
        late.append(time.perf_counter() - sent[0])
    found = layer(small, out=small_out)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected))
print("late" if min(late, default=0) > 0.2 else "in time", late)
"""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("direction", "I", "H", "T", "B"),
    [
        ("forward", 1, 4, 20_000_000, 1),  # a panel: step by step
        ("forward", 8, 20, 4_000_000, 1),  # a few panels
        ("bidirectional", 4, 8, 5_000_000, 1),  # two directions, interleaved
        ("bidirectional", 64, 128, 200_000, 1),  # two directions in parallel
        ("forward", 32, 256, 150_000, 1),  # products with x ahead; units split
        ("forward", 32, 512, 60_000, 2),  # units split
        ("forward", 16, 48, 20, 200_000),  # a large batch
        ("reverse", 8, 1536, 1, 12_000),  # one large step
    ],
)
def test_an_interrupt_ends_a_call(direction: str, I: int, H: int, T: int, B: int, threads: int) -> None:
    found = run(INTERRUPT, direction, I, H, T, B, threads)
    assert found.startswith("in time"), found


STREAM = """
onegru.set_num_threads(int(sys.argv[1]))
layer = make(16, 64)
stream = layer.stream(2000)
X, _ = arrays(layer, 400, 2000)
stream.run(X[:3])
before = stream.state
after(0.2)
try:
    for _ in range(100):
        before = stream.state
        stream.run(X)
    print("not interrupted")
except KeyboardInterrupt:
    pass
again = layer.stream(2000)
again.state = before
if stream.state.tobytes() != before.tobytes():  # the last call had ended
    again.run(X)
print(stream.state.tobytes() == again.state.tobytes())
print(stream.run(X[:5]).tobytes() == again.run(X[:5]).tobytes())
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_stream_is_where_it_was(threads: int) -> None:
    assert run(STREAM, threads).split() == ["True", "True"]


STACK = """
onegru.set_num_threads(2)
stack = onegru.Stack([make(64, 128), make(128, 128)])
stream = stack.stream(2)
X = np.ones((60_000, 2, 64), np.float32)
stream.run(X[:100])
before = stream.state
late = []
while len(late) < 5 and min(late, default=1) > 0.15:
    for call in (stack, stream.run):
        sent = after(0.15)
        try:
            call(X)
            print("not interrupted")
        except KeyboardInterrupt:
            late.append(time.perf_counter() - sent[0])
        assert all(np.array_equal(a, b) for a, b in zip(stream.state, before))
again = stack.stream(2)
again.state = before
print(stream.run(X[:300]).tobytes() == again.run(X[:300]).tobytes())
print("late" if min(late, default=0) > 0.2 else "in time", late)
"""


def test_an_interrupt_ends_a_stack_on_several_threads() -> None:
    found = run(STACK)
    assert found.startswith("True\nin time"), found


HANDLER = """
import ctypes
layer = make(32, 96)
other = make(32, 160)
X, out = arrays(layer, 4000, 16)
small, _ = arrays(other, 30, 3)
onegru.set_num_threads(int(sys.argv[1]))
expected, small_expected = layer(X), other(small)
libm = ctypes.CDLL("libm.so.6")
calls, same = [], []
def handler(signum, frame):
    calls.append(signum)
    libm.fesetround(0x800 if os.uname().machine == "x86_64" else 0x400000)
    for one, model, given in ((expected, layer, X[:5]), (small_expected, other, small)):
        Y, Y_h = model(given)
        same.append(Y.tobytes() == one[0][:len(Y)].tobytes())
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
for _ in range(12):
    found = layer(X, out=out)
    libm.fesetround(0)
    same.append(all(a.tobytes() == b.tobytes() for a, b in zip(found, expected)))
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(calls) > 3, all(same))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_returns_lets_the_call_finish(threads: int) -> None:
    """It may call layers, including the same one, and change the rounding mode."""
    assert run(HANDLER, threads).split() == ["True", "True"]


OTHERS = """
layer = make(32, 96)
X, _ = arrays(layer, 3000, 16)
onegru.set_num_threads(2)
expected = layer(X)[0].tobytes()
same = []
def work():
    for _ in range(6):
        same.append(layer(X)[0].tobytes() == expected)
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
long, out = arrays(layer, 60000, 16)
after(0.1)
try:
    layer(long, out=out)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
for worker in workers:
    worker.join()
print(same == [True] * 12)
"""


def test_other_threads_are_not_disturbed() -> None:
    assert run(OTHERS).split() == ["interrupted", "True"]


RAISES = """
class Late(Exception):
    pass
def handler(signum, frame):
    raise Late
signal.signal(signal.SIGUSR1, handler)
layer = make(32, 96)
X, out = arrays(layer, 60000, 16)
for call in (lambda: layer(X, out=out), lambda: layer(X, sequence_lens=[60000] * 16)):
    after(0.1, signal.SIGUSR1)
    try:
        call()
        print("not interrupted")
    except Late:
        print("late")
"""


def test_what_a_handler_raises_comes_through() -> None:
    assert run(RAISES).split() == ["late", "late"]


EXIT = """
import atexit
layer = make(8, 256)
X, out = arrays(layer, int(sys.argv[1]), 4)
started = threading.Event()
def work():
    started.set()
    while True:
        layer(X, out=out)
threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.1)
atexit.register(time.sleep, 0.05)
"""


@pytest.mark.parametrize("T", [1, 20, 200, 2000, 20000])
def test_an_exit_while_a_daemon_thread_is_in_a_call_is_silent(T: int) -> None:
    for _ in range(4):
        assert not run(EXIT, T)


TRAINING_EXIT = """
from onegru.engines.training import DirectionWeights, LayerCall, Outputs, TrainedLayer
rng = np.random.default_rng(5)
I, H, T, B = 4, 16, 3, 2
f = lambda *shape: rng.standard_normal(shape, np.float32)
weights = [DirectionWeights(f(3 * H, I), f(3 * H, H), f(3 * H), f(3 * H))]
layer = TrainedLayer(onegru.Spec(I, H, "float32", linear_before_reset=True), weights, (1, 0, 2))
call, dY = LayerCall(f(T, B, I)), f(T, 1, B, H)
size = layer.saved_size(call)
started = threading.Barrier(5)
def work():
    empty = lambda *shape: np.empty(shape, np.float32)
    out = Outputs(empty(T, 1, B, H), empty(1, B, H), empty(T, 1, B, size))
    started.wait()
    while True:
        layer.forward(call, out=out)
        layer.gradients(call, out.Y, out.gates, dY, None, ["X"], [["W"]])
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.1)
"""


def test_an_exit_while_daemon_threads_train_is_silent() -> None:
    for _ in range(3):
        assert not run(TRAINING_EXIT)


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork in a process with threads
rng = np.random.default_rng(5)
layer = make(1, 8, "bidirectional")
X = rng.standard_normal((12_000, 64, 1), np.float32)
onegru.set_num_threads(2)
bits = lambda: layer(X)[0].view(np.uint64)
expected = bits()
me, children = os.getpid(), []
signal.signal(signal.SIGALRM, lambda *_: me == os.getpid() and children.append(os.fork()))
for n in range(300):
    signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.008 * rng.random())
    same = np.array_equal(bits(), expected)  # a tenth of the time of a hash
    if os.getpid() != me:
        os._exit(0 if same else 1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert same
    while children:
        assert os.waitpid(children.pop(), 0)[1] == 0
"""


@pytest.mark.parametrize("calls", [10, pytest.param(300, marks=pytest.mark.long)])
def test_a_fork_in_the_middle_of_a_call(calls: int) -> None:
    """A handler forks: the child continues the call without the worker threads, in any of their states."""
    run(FORK.replace("range(300)", f"range({calls})"))


SUBNORMAL = """
layer = make(32, 96).with_storage("bfloat16", "bfloat16")
X, out = arrays(layer, 4000, 16)
onegru.set_num_threads(int(sys.argv[1]))
expected = [array.copy() for array in layer(X, out=out)]
smallest, found = 5e-324, []
def handler(signum, frame):
    found.append(smallest * 1.0 == smallest)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
begin = time.perf_counter()
while len(found) < 4 and time.perf_counter() - begin < 60:
    assert all(a.tobytes() == b.tobytes() for a, b in zip(layer(X, out=out), expected))
    found.append(smallest * 1.0 == smallest)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(found) > 3, all(found))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_sees_subnormal_numbers_while_bfloat16_flushes_them(threads: int) -> None:
    assert run(SUBNORMAL, threads).split() == ["True", "True"]
