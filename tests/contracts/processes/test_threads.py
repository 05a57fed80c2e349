"""Test the number of threads, their start, forks, and several callers. Their number never changes a bit."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.machine import usable_cores
from tests.support.layers import normal_gru
from tests.support.machine.processes import Done, run_python, run_threads

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
SECONDS = 60


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    onegru.set_num_threads(None)


def run(program: str, **environment: str) -> Done:
    variables = {"ONEGRU_NUM_THREADS": None, "OMP_NUM_THREADS": None, **environment}
    return run_python(program, status=None, environment=variables, timeout=SECONDS)


def output_of(program: str, **environment: str) -> str:
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- how many


def test_a_number_of_threads_may_be_an_integer_of_numpy() -> None:
    onegru.set_num_threads(np.int64(2))  # type: ignore[arg-type]
    assert onegru.get_num_threads() == 2


@pytest.mark.parametrize("n", [0, -1, 65, 2.0, "2", True, [1], np.float64(2)])
def test_a_number_of_threads_must_be_one(n: Any) -> None:
    onegru.set_num_threads(3)
    with pytest.raises(onegru.SpecError) as raised:
        onegru.set_num_threads(n)
    assert str(raised.value) == f"n: {n!r}; must be an integer, 1…64"
    assert onegru.get_num_threads() == 3


def test_setting_the_number() -> None:
    for n in (1, 2, 64):
        onegru.set_num_threads(n)
        assert onegru.get_num_threads() == n


SHOW = "import onegru; print(onegru.get_num_threads())"


@pytest.mark.parametrize("value", ["1", "2", "64", "007"])
def test_the_environment_sets_it(value: str) -> None:
    assert output_of(SHOW, ONEGRU_NUM_THREADS=value) == str(int(value))


@pytest.mark.parametrize("value", ["0", "65", "-1", "2.0", " 2", "two", "1000", "²", "2\n"])
def test_a_wrong_environment_is_refused(value: str) -> None:
    done = run(SHOW, ONEGRU_NUM_THREADS=value)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"onegru.SpecError: ONEGRU_NUM_THREADS: {value!r}; must be 1…64"


@linux
def test_by_default_as_many_as_the_process_may_use() -> None:
    cores = sorted(os.sched_getaffinity(0))
    usable = str(min(usable_cores(), 64))
    assert output_of(SHOW) == output_of(SHOW, ONEGRU_NUM_THREADS="") == usable
    pinned = f"import os; os.sched_setaffinity(0, {{{cores[-1]}}}); {SHOW}"
    assert output_of(pinned) == "1"
    again = "import onegru; onegru.set_num_threads(5); onegru.set_num_threads(None)"
    assert output_of(f"{again}; {SHOW}", ONEGRU_NUM_THREADS="3") == usable


@pytest.mark.parametrize(
    ("value", "count"),
    [("3", 3), ("007", 7), (" 4 , 3,2", 4), ("5\n", 5), ("64", 64), ("65", 64), ("9" * 5000, 64)],
)
def test_openmps_variable_is_the_default(value: str, count: int) -> None:
    assert output_of(SHOW, OMP_NUM_THREADS=value) == str(count)
    assert output_of(SHOW, OMP_NUM_THREADS=value, ONEGRU_NUM_THREADS="2") == "2"
    again = "import onegru; onegru.set_num_threads(1); onegru.set_num_threads(None)"
    assert output_of(f"{again}; {SHOW}", OMP_NUM_THREADS=value) == str(count)


@pytest.mark.parametrize("value", ["", "0", "-1", "two", "2.5", ",2", "²", "4;3"])
def test_what_openmp_would_refuse_is_ignored(value: str) -> None:
    assert output_of(SHOW, OMP_NUM_THREADS=value) == output_of(SHOW)


# --- when they start

LAYERS = """
import hashlib, os, signal, sys, threading, time
import numpy as np
import onegru

def make(I, H, after=False, direction="forward"):
    rng = np.random.default_rng(H)
    D = 2 if direction == "bidirectional" else 1
    W, R, B = (rng.standard_normal(s, np.float32) / H**0.5 for s in ((D, 3*H, I), (D, 3*H, H), (D, 6*H)))
    return onegru.GRU(W, R, B, linear_before_reset=after, direction=direction)

def tasks():
    return len(os.listdir("/proc/self/task"))

# By rows, by units, by directions, and by layers.
STACK = onegru.Stack([make(40, 96), make(96, 128, True)])
CASES = [(make(40, 64), (20, 16)), (make(64, 192, True), (40, 1)), (make(64, 160), (40, 2)),
         (make(32, 96, True, "bidirectional"), (30, 3))]

def digest():
    found = hashlib.sha256(STACK(np.ones((200, 2, 40), np.float32))[0].tobytes())
    for layer, (T, B) in CASES:
        X = np.random.default_rng(T).standard_normal((T, B, layer.spec.input_size), np.float32)
        for array in layer(X):
            found.update(array.tobytes())
    return found.hexdigest()
"""

STARTED_LATE = """
import os
import numpy
before = len(os.listdir("/proc/self/task"))  # those of NumPy's own library included
LAYERS
counts = [tasks() - before]
onegru.set_num_threads(4)
small = make(4, 16)
stream = small.stream(2)
for _ in range(100):
    small(np.zeros((3, 2, 4), np.float32))
    stream.step(np.zeros((2, 4), np.float32))
counts.append(tasks() - before)
onegru.set_num_threads(1)
digest()
counts.append(tasks() - before)
onegru.set_num_threads(2)
digest()
counts.append(tasks() - before)
onegru.set_num_threads(4)
digest(), digest()
counts.append(tasks() - before)
onegru.set_num_threads(1)
digest()
counts.append(tasks() - before)
print(counts)
"""


@linux
def test_no_thread_starts_before_it_is_needed() -> None:
    assert output_of(STARTED_LATE.replace("LAYERS", LAYERS)) == "[0, 0, 0, 1, 3, 3]"


ASLEEP = """
onegru.set_num_threads(4)
digest()
time.sleep(0.2)
start = time.process_time()
time.sleep(0.5)
print(time.process_time() - start)
"""


@linux
def test_idle_threads_sleep() -> None:
    assert float(output_of(LAYERS + ASLEEP)) < 0.05


# --- fork

FORK = """
onegru.set_num_threads(3)
expected = digest()
signal.alarm(50)

def child_is_right(depth):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        good = tasks() == 1 and digest() == expected and tasks() == 3
        if good and depth:
            good = child_is_right(depth - 1)
        os._exit(0 if good else 1)
    return os.waitpid(pid, 0)[1] == 0

right = [child_is_right(1), digest() == expected]
# While others compute, at any moment of theirs.
stop = threading.Event()
def work():
    while not stop.is_set():
        digest()
busy = [threading.Thread(target=work) for _ in range(2)]
for thread in busy:
    thread.start()
for _ in range(6):
    right.append(child_is_right(0))
stop.set()
for thread in busy:
    thread.join()
right.append(digest() == expected)
print(all(right), right)
"""


@linux
def test_a_forked_child_computes_the_same_bits() -> None:
    done = run(LAYERS + FORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True"), done.stdout


FORK_OF_A_STACK = """
onegru.set_num_threads(2)
small = np.ones((200, 2, 40), np.float32)
expected = STACK(small)[0]
waited = []
for _ in range(3):
    busy = threading.Thread(target=lambda: STACK(np.ones((200_000, 2, 40), np.float32)))
    busy.start()
    time.sleep(0.1)
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.array_equal(STACK(small)[0], expected) else 1)
    waited.append(time.perf_counter() - begin)
    assert os.waitpid(child, 0)[1] == 0
    busy.join()
print("in time" if min(waited) < 0.2 else "late", waited)
"""


@linux
def test_a_fork_waits_for_no_more_than_a_chunk_of_a_stack() -> None:
    assert output_of(LAYERS + FORK_OF_A_STACK).startswith("in time")


FIRST_CALLS = """
np.random.default_rng(1)
def digest():
    return make(64, 512, True, "bidirectional")(np.ones((2, 1, 64), np.float32))[0].tobytes()
imported = set(sys.modules)
def right(n):
    thread = threading.Thread(target=digest)
    thread.start()
    time.sleep(n * 0.0005)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if digest() == digest() else 1)
    status = os.waitpid(child, 0)[1]
    thread.join()
    return status == 0 and not any(name.startswith("numpy") for name in set(sys.modules) - imported)

signal.alarm(50)
onegru.set_num_threads(2)
for n in range(11):
    child = os.fork()  # whose first call it is
    if child == 0:
        signal.alarm(20)
        os._exit(0 if right(n) else 1)
    print(os.waitpid(child, 0)[1])
"""


@linux
def test_a_fork_during_a_first_call() -> None:
    program = LAYERS.partition("def tasks")[0] + FIRST_CALLS
    assert output_of(program).split() == ["0"] * 11


# --- several callers


def make(I: int, H: int, direction: Any = "forward", **options: Any) -> onegru.GRU:
    return normal_gru(I, H, np.float32, direction, seed=H, **options)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_several_callers_get_the_same_bits(threads: int) -> None:
    """Calls of one layer and of several, with and without the interpreter's lock."""
    layers = [
        (make(8, 24), 5, 2),
        (make(40, 64, linear_before_reset=True), 20, 16),
        (make(64, 160), 30, 1),
        (make(64, 160, "bidirectional", linear_before_reset=True), 20, 3),
    ]
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal((t, b, layer.spec.input_size), np.float32) for layer, t, b in layers]
    lengths = [rng.integers(0, t + 1, b) for _, t, b in layers]
    onegru.set_num_threads(1)
    expected = [
        (layer(X), layer(X, sequence_lens=n))
        for (layer, *_), X, n in zip(layers, inputs, lengths, strict=True)
    ]
    onegru.set_num_threads(threads)
    wrong: list[str] = []

    def work(caller: int) -> None:
        for turn in range(8):
            which = caller % 4 if caller < 4 else (caller + turn) % 4  # their own, then in rotation
            layer, X = layers[which][0], inputs[which]
            found = layer(X), layer(X, sequence_lens=lengths[which])
            for one, other in zip(found, expected[which], strict=True):
                if any(a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True)):
                    wrong.append(f"caller {caller}, layer {which}, turn {turn}")

    run_threads(work, range(8), SECONDS)
    assert not wrong


def test_streams_of_one_layer_in_several_threads() -> None:
    layer = make(64, 192, linear_before_reset=True)
    X = np.random.default_rng(1).standard_normal((30, 1, 64), np.float32)
    expected = layer(X)[0].tobytes()
    found: list[bytes] = []

    def work(_: int) -> None:
        stream = layer.stream(1)
        found.append(np.stack([stream.step(x) for x in X]).tobytes())

    onegru.set_num_threads(2)
    run_threads(work, range(4), SECONDS)
    assert found == [expected] * 4


def test_threads_may_change_while_others_call() -> None:
    layer = make(64, 160)
    X = np.random.default_rng(1).standard_normal((20, 2, 64), np.float32)
    expected = layer(X)[0].tobytes()
    same: list[bool] = []
    worker = threading.Thread(
        target=lambda: same.extend(layer(X)[0].tobytes() == expected for _ in range(20))
    )
    worker.start()
    for n in range(100):
        onegru.set_num_threads(1 + n % 4)
    worker.join(SECONDS)
    assert same == [True] * 20
