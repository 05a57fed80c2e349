"""Test calls from many Python threads at once, with and without the interpreter's lock."""

from __future__ import annotations

import gc
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import onegru
from tests.support.machine.processes import run_python

THREADS = 8
FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def layer(H: int = 20, weight_storage: str | None = None) -> onegru.GRU:
    rng = np.random.default_rng(3)
    W, R, B = (rng.standard_normal(s, np.float32) / 4 for s in ((1, 3 * H, 5), (1, 3 * H, H), (1, 6 * H)))
    return onegru.GRU(W, R, B, weight_storage=weight_storage)


def at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run work(number) in `count` threads that start together; raise the error of one of them."""
    begin = threading.Barrier(count)

    def run(number: int) -> None:
        begin.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


@pytest.mark.skipif(not FREE, reason="this Python has the interpreter's lock")
def test_the_module_does_not_ask_for_the_lock() -> None:
    said = run_python("import sys, onegru; print(sys._is_gil_enabled())", options=("-W", "error")).stdout
    assert said == "False\n"


def test_calls_of_one_layer() -> None:
    """Small calls keep the lock, larger calls release it; with new and given outputs."""
    gru = layer()
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal((t, b, 5), np.float32) for t, b in ((1, 1), (7, 3), (40, 30), (300, 90))]
    wanted = [gru(x) for x in inputs]

    def work(number: int) -> None:
        out = [(np.empty_like(Y), np.empty_like(Y_h)) for Y, Y_h in wanted]
        for turn in range(40):
            index = (number + turn) % len(inputs)
            found = gru(inputs[index], out=out[index] if turn % 3 == 0 else None)
            for array, same in zip(found, wanted[index], strict=True):
                np.testing.assert_array_equal(array, same)

    at_once(work)


def test_streams_of_one_layer() -> None:
    gru = layer()
    X = np.random.default_rng(5).standard_normal((60, 2, 5), np.float32)
    wanted = gru(X)[0][:, 0]

    def work(number: int) -> None:
        for _ in range(4):
            stream = gru.stream(2)
            found = np.stack([stream.step(x) for x in X])
            np.testing.assert_array_equal(found, wanted)

    at_once(work)


def test_layers_made_and_dropped() -> None:
    X = np.ones((3, 2, 5), np.float32)
    wanted = layer()(X)[0]

    def work(number: int) -> None:
        for turn in range(12):
            storage = "bfloat16" if turn % 5 == number % 5 else None
            found = layer(weight_storage=storage)(X)[0]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05 if storage else 0)
            if turn == number:
                gc.collect()

    at_once(work)


def test_lengths_that_others_change() -> None:
    """A list of lengths is read once: a call uses one of its states, or raises an error."""
    gru = layer()
    X = np.ones((9, 64, 5), np.float32)
    lengths = [9] * 64
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            lengths[:] = [3] * 64
            lengths.append(9)
            del lengths[64:]
            lengths[:] = [9] * 64

    changing = threading.Thread(target=change)
    changing.start()
    try:

        def work(number: int) -> None:
            for _ in range(200):
                try:
                    Y = gru(X, sequence_lens=lengths)[0]
                except onegru.SpecError:
                    continue
                assert not Y[0].any() or np.isfinite(Y).all()

        at_once(work, 4)
    finally:
        over.set()
        changing.join()


def test_the_number_of_threads_and_collections_of_garbage() -> None:
    """Threads are stopped for garbage collection while others wait for locks in C++."""
    gru = layer(H=64)
    X = np.ones((20, 40, 5), np.float32)
    wanted = gru(X)[0]

    def work(number: int) -> None:
        for turn in range(30):
            if number == 0:
                onegru.set_num_threads(1 + turn % 2)
            elif number == 1 and turn % 6 == 0:
                gc.collect()
            elif number in (1, 2):
                onegru.empty_cache()
            else:
                np.testing.assert_array_equal(gru(X)[0], wanted)

    try:
        at_once(work)
    finally:
        onegru.set_num_threads(None)
