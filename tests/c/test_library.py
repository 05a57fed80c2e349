"""libonegru through ctypes: the suite's cases and drawn layers, with the bits of the Python package."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import re
import sys
import threading
import tomllib
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.conformance.cases import kit_cases
from onegru.conformance.expect import problem_of
from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import DIRECTIONS
from tests.c import library
from tests.c.library import LIBRARY, CSpec, CStorage, Layer, StatusError, Stream, needs_library
from tests.support.comparison import assert_bits
from tests.support.layers import normal_gru
from tests.support.machine.repository import ROOT

pytestmark = needs_library

STORAGES: list[tuple[str | None, str | None]] = [
    (None, None),
    ("bfloat16", None),
    ("bfloat16", "bfloat16"),
    ("int8", "int16"),
    ("int8", "int8"),
    ("int8_g32", "int16"),
]


def draw(*shape: int, dtype: str = "float32", seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def c_layer(layer: onegru.GRU) -> Layer:
    weight_storage, activation = layer.engine_options.weight_storage, layer.engine_options.activation_storage
    return Layer.create(layer.spec, layer.weights, weight_storage, activation)


@pytest.mark.parametrize(("storage", "part"), itertools.product(STORAGES, range(20)), ids=str)
def test_the_kits_cases_have_pythons_bits(storage: tuple[str | None, str | None], part: int) -> None:
    done = 0
    for case in kit_cases()[part::20]:
        if storage != (None, None) and case.dtype != "float32":
            continue
        lowered = case.lowered
        problem = problem_of(lowered, case.inputs)
        try:
            python = onegru.GRU.from_canonical(
                lowered.spec, lowered.weights, weight_storage=storage[0], activation_storage=storage[1]
            )
        except SpecError:  # weights that are no numbers, which int8 cannot keep
            with pytest.raises(StatusError, match="for int8"):
                Layer.create(lowered.spec, lowered.weights, *storage)
            continue
        Y, Y_h = python(
            problem.X, problem.initial_h, sequence_lens=problem.sequence_lens, attention=problem.attention
        )
        mine = Layer.create(lowered.spec, lowered.weights, *storage).run(
            problem.X, lengths=problem.sequence_lens, initial_h=problem.initial_h, attention=problem.attention
        )
        assert_bits(mine[0], Y)
        assert_bits(mine[1], Y_h)
        done += 1
    assert done > 10


@pytest.mark.parametrize(("storage", "layout"), itertools.product(STORAGES, (0, 1)), ids=str)
def test_layers(storage: tuple[str | None, str | None], layout: int) -> None:
    library.call("onegru_set_num_threads", 2)
    for index, direction in enumerate(DIRECTIONS):
        layer = normal_gru(13, 36 + index, direction=direction, weight_storage=storage[0], layout=layout)
        if storage[0] is not None:
            layer = layer.with_storage(*storage)
        mine = c_layer(layer)
        D, H = layer.spec.num_directions, layer.spec.hidden_size
        lengths = np.array([9, 0, 3, 7], np.int32)
        X, h = draw(9, 4, 13), draw(D, 4, H)
        if layout == 1:
            X, h = np.ascontiguousarray(X.swapaxes(0, 1)), np.ascontiguousarray(h.swapaxes(0, 1))
        for given in ({}, {"lengths": lengths}, {"initial_h": h}, {"lengths": lengths, "initial_h": h}):
            Y, Y_h = layer(X, given.get("initial_h"), sequence_lens=given.get("lengths"))
            found = mine.run(X, layout=layout, **given)
            assert_bits(found[0], Y)
            assert_bits(found[1], Y_h)
    library.call("onegru_set_num_threads", 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("attention", [None, "openvino", "dien"])
def test_streams(dtype: str, attention: str | None) -> None:
    element = numpy_dtype(dtype)
    layer = normal_gru(5, 70, element, attention=attention)
    mine, python = Stream(c_layer(layer), 70), layer.stream(70)  # of a layer that is gone
    rng = np.random.default_rng(0)
    for T, n in [(1, 70), (1, 70), (7, 70), (300, 70), (40, 64), (2, 5), (1, 1), (0, 3)]:
        rows = None if n == 70 else rng.permutation(70)[:n]
        X = draw(T, n, 5, dtype=dtype, seed=T + n)
        a = None if attention is None else rng.uniform(0, 1, (T, n)).astype(element)
        found = mine.run(X, a, rows)
        for t in range(T):
            scores = None if a is None else a[t]
            assert_bits(
                found[t], python.step(X[t], attention=scores, rows=None if rows is None else rows.tolist())
            )
    assert_bits(mine.state, np.asarray(python.state))
    kept = mine.state
    mine.reset(3)
    assert not mine.state[3].any() and np.array_equal(np.delete(mine.state, 3, 0), np.delete(kept, 3, 0))
    mine.reset()
    assert not mine.state.any()
    mine.state = kept
    assert_bits(mine.state, kept)


def test_a_layer_is_shared_by_threads() -> None:
    layer = normal_gru(8, 64)
    mine, X = c_layer(layer), draw(50, 3, 8)
    want = layer(X)[0]
    found: list[Array] = []
    threads = [threading.Thread(target=lambda: found.append(mine.run(X)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for Y in found:
        assert_bits(Y, want)


def test_the_version_is_that_of_the_package() -> None:
    header = (ROOT / "native" / "c" / "onegru.h").read_text(encoding="utf-8")
    numbers = [int(re.search(rf"ONEGRU_VERSION_{part} (\d+)", header)[1]) for part in ("MAJOR", "MINOR")]  # type: ignore[index]
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert numbers == [int(number) for number in package.split(".")[:2]]
    assert LIBRARY is not None and LIBRARY.onegru_version() == (numbers[0] << 16) + numbers[1]


# What is not legal


def spec(**changes: object) -> CSpec:
    assert LIBRARY is not None
    made = CSpec(size=ctypes.sizeof(CSpec))
    LIBRARY.onegru_spec_init(byref(made), 3, 4)
    for name, value in changes.items():
        where, _, last = name.rpartition("__")
        setattr(getattr(made, where) if where else made, last, value)
    return made


FLOAT16 = {"storage__weight_storage": 0}
INT8 = {"storage__weight_storage": 4, "storage__activation_bits": 16}
BFLOAT16 = {"storage__weight_storage": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 8}, "spec.size: 8; must be sizeof(onegru_spec)"),
        ({"size": 2**32 - 1}, "spec.size: 4294967295; must be sizeof(onegru_spec)"),
        ({"flush_subnormals": 2}, "flush_subnormals: 2; must be 0 or 1"),
        ({"reserved": 1}, "spec.reserved: 1; must be 0"),
        ({"hidden_size": 0}, "hidden_size: 0; must be 1"),
        ({"hidden_size": 2**32 - 1}, "hidden_size: 4294967295"),
        ({"dtype": 4}, "dtype: 4"),
        ({"dtype": -1}, "dtype: -1"),
        ({"direction": 3}, "direction: 3"),
        ({"linear_before_reset": 2}, "linear_before_reset: 2"),
        ({"attention": 3}, "attention: 3"),
        ({"clip": 0.0}, "clip: 0"),
        ({"clip": math.nan}, "clip: nan"),
        ({"clip": 1e-60}, "clip: 1e-60; must be > 0 and finite in float32, or infinity for none"),
        ({"clip": 1e60}, "clip: 1e+60; must be > 0 and finite in float32"),
        ({"storage__weight_storage": 3}, "weight_storage: 3"),
        ({"storage__weight_storage": 5}, "weight_storage: 5"),
        ({"dtype": 3}, "weight_storage: 2; must be dtype"),
        ({"storage__weight_storage": 4}, "activation_bits: 0; must be 8 or 16"),
        ({"storage__activation_bits": 8}, "activation_bits: 8; must be 0"),
        (
            {"storage__activation_bits": 16},
            "activation_bits: 16; must be 0 unless weight_storage is int8, or bfloat16",
        ),
        (
            {**BFLOAT16, "storage__activation_bits": 8},
            "activation_bits: 8; must be 0, or 16 for inputs that are",
        ),
        (
            {**BFLOAT16, "dtype": 1, "storage__activation_bits": 16},
            "activation_bits: 16; must be 0 unless weight",
        ),
        ({**BFLOAT16, "storage__group": 32}, "group: 32; must be 0"),
        ({**INT8, "storage__group": 6}, "group: 6; must be a multiple of 4"),
        ({"storage__group": 32}, "group: 32; must be 0"),
    ],
)
def test_specifications_that_are_not_legal(changes: dict[str, object], words: str) -> None:
    given, handle = spec(**changes), c_void_p(1)
    W, R = np.zeros((12, 3)), np.zeros((12, 4))
    with pytest.raises(StatusError, match=re.escape(words)) as caught:
        library.call("onegru_layer_create", byref(given), library.at(W), library.at(R), None, byref(handle))
    assert caught.value.status == library.INVALID_ARGUMENT and handle.value == 1


def test_activations_that_are_not_legal() -> None:
    W, R = np.zeros((12, 3), np.float32), np.zeros((12, 4), np.float32)
    for function, words in (
        (len(ACTIVATIONS), f"activations: {len(ACTIVATIONS)}"),
        (-1, "activations: -1"),
        (6, "alpha: NaN; must be given, as ScaledTanh"),
    ):
        given = spec()
        given.activations[1].function = function
        with pytest.raises(StatusError, match=re.escape(words)):
            library.call(
                "onegru_layer_create", byref(given), library.at(W), library.at(R), None, byref(c_void_p())
            )


def test_weights_that_are_not_legal() -> None:
    good, odd = np.zeros(60, np.float32), np.zeros(100, np.uint8)[1:]
    bad, switched = np.full(60, np.inf, np.float32), np.ones(60, np.float32)
    switched[7] = 1e30
    at = library.at
    for given, W, R, words in (
        (spec(), None, good, "W: null"),
        (spec(), good, None, "R: null"),
        (spec(), good, odd, "R: not aligned"),
        (spec(**INT8), good, bad, "R: contains NaN or infinity"),
        (spec(**INT8), switched, good, r"W: contains 1e\+30, a weight so large"),
        (spec(**FLOAT16), good, switched, r"R: contains 1e\+30, which is infinite in float16"),
    ):
        with pytest.raises(StatusError, match=words):
            library.call("onegru_layer_create", byref(given), at(W), at(R), None, byref(c_void_p()))
    for arguments in ((None, None), (byref(spec()), None)):
        with pytest.raises(StatusError, match="null; must be given"):
            library.call("onegru_layer_create", arguments[0], at(good), at(good), None, arguments[1])


def test_calls_that_are_not_legal() -> None:
    layer = c_layer(normal_gru(3, 3))
    X, Y, h = draw(4, 2, 3), draw(4, 1, 2, 3), draw(1, 2, 3)
    before = Y.copy()

    def attempt(words: str, **changes: object) -> None:
        given = library.c_call(4, 2, 0, library.at(X), None, library.at(h), None, library.at(Y), None)
        for name, value in changes.items():
            setattr(given, name, library.at(value) if isinstance(value, np.ndarray) else value)
        with pytest.raises(StatusError, match=re.escape(words)) as caught:
            library.call("onegru_layer_run", layer.handle, byref(given))
        assert caught.value.status == library.INVALID_ARGUMENT
        assert np.array_equal(Y, before)

    attempt("X: null", X=None)
    attempt("layout: must be 0 or 1", layout=2)
    attempt("attention: the layer has none", attention=X)
    attempt("sequence_lens: 5; must be in 0…T = 0…4", sequence_lens=np.array([5, 0], np.int32))
    attempt("sequence_lens: -1", sequence_lens=np.array([-1, 0], np.int32))
    attempt("Y: overlaps an input", Y=X)
    attempt("Y: overlaps an input", X=Y[1:])
    attempt("Y_h: overlaps an input", Y_h=X)
    attempt("Y: overlaps another output", Y_h=Y)
    attempt("X: larger than memory", T=2**61)
    attempt("X: larger than memory", B=2**64 - 1)
    attempt("Y: not aligned", Y=Y.view(np.uint8).ravel()[2:])
    # In place, and none at all.
    want = layer.run(X, initial_h=h)[1]
    library.call(
        "onegru_layer_run",
        layer.handle,
        byref(library.c_call(4, 2, 0, library.at(X), None, library.at(h), None, None, library.at(h))),
    )
    assert_bits(h, want)
    for T, B in ((0, 2), (4, 0)):
        empty = library.c_call(T, B, 0, None, None, None, None, None, None)
        library.call("onegru_layer_run", layer.handle, byref(empty))


def test_steps_that_are_not_legal() -> None:
    stream = Stream(c_layer(normal_gru(3, 3)), 2)
    X = draw(1, 2, 3)
    state = stream.state = draw(2, 3)
    for rows in ([0, 0], [2], [-1]):
        with pytest.raises(StatusError, match="row: must be different rows of the stream"):
            stream.run(X[:, : len(rows)], rows=np.array(rows))
    stream.run(X[:, :2], rows=np.array([1, 0]))
    stream.state = state
    with pytest.raises(StatusError, match="n: more rows"):
        stream.run(draw(1, 3, 3), rows=np.array([0, 1, 1]))
    with pytest.raises(StatusError, match="attention: the layer has none"):
        stream.run(X, attention=X)
    with pytest.raises(StatusError, match="row: must be a row"):
        stream.reset(2)
    with pytest.raises(StatusError, match="Y: overlaps an input"):
        library.call("onegru_stream_step", stream.handle, library.at(X), None, library.at(X))
    for name, arguments in (("step", (None, None, None)), ("get_state", (None,)), ("set_state", (None,))):
        with pytest.raises(StatusError, match="null; must be given"):
            library.call(f"onegru_stream_{name}", stream.handle, *arguments)
        with pytest.raises(StatusError, match="stream: null"):
            library.call(f"onegru_stream_{name}", None, *arguments)
    assert_bits(stream.state, state)
    for direction in ("reverse", "bidirectional"):
        with pytest.raises(StatusError, match="only forward layers make streams"):
            Stream(c_layer(normal_gru(3, 3, direction=direction)))
    for many in (0, 2**31):
        with pytest.raises(StatusError, match="rows: "):
            Stream(c_layer(normal_gru(3, 3)), many)
    for count in (0, 65):
        with pytest.raises(StatusError, match="count: must be 1…64"):
            library.call("onegru_set_num_threads", count)


# Files


def saved(tmp_path: Path, layers: onegru.GRU | onegru.Stack) -> Path:
    path = tmp_path / "слой.safetensors"
    onegru.save_layers(layers, path)
    return path


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_files(tmp_path: Path, dtype: str) -> None:
    element = numpy_dtype(dtype)
    first = normal_gru(
        5,
        4,
        element,
        "bidirectional",
        clip=0.7,
        linear_before_reset=True,
        activations=["HardSigmoid", "Elu", "Sigmoid", "ScaledTanh"],
        activation_alpha=[0.3, 0.9, 1.5],
        activation_beta=[0.4, 0.7],
    )
    layers = onegru.Stack([first, normal_gru(8, 6, element)])
    path = saved(tmp_path, layers)
    for index, layer in enumerate(layers.layers):
        X = draw(6, 2, layer.spec.input_size, dtype=dtype)
        for mine in (Layer.open(path, index), Layer.read(path.read_bytes(), index)):
            assert_bits(mine.run(X)[0], layer(X)[0])
    with pytest.raises(StatusError, match="index: 2; the file has 2 layers") as caught:
        Layer.open(path, 2)
    assert caught.value.status == library.NO_SUCH_LAYER


@pytest.mark.parametrize("storage", ["int8", "int8_g32", "int8_g64", "int8_g128"])
@pytest.mark.parametrize("attention", [True, "dien"])
def test_files_of_integers(tmp_path: Path, storage: str, attention: object) -> None:
    layer = normal_gru(40, 70, attention=attention, weight_storage=storage)
    path = saved(tmp_path, layer)
    X, a = draw(6, 2, 40), np.abs(draw(6, 2))
    mine = Layer.open(path)
    assert mine.spec.storage.weight_storage == 4 and mine.spec.storage.activation_bits == 16
    assert_bits(mine.run(X, attention=a)[0], layer(X, attention=a)[0])
    by_8 = library.options_of(library.storage_of(storage, "int8", "float32"))
    want = layer.with_storage(storage, "int8")(X, attention=a)[0]
    assert_bits(Layer.open(path, 0, by_8).run(X, attention=a)[0], want)
    numbers = library.options_of(library.storage_of(None, None, "float32"))
    (numbers_of_python,) = onegru.load_layers(path).values()
    assert isinstance(numbers_of_python, onegru.GRU)
    want = numbers_of_python(X, attention=a)[0]
    assert_bits(Layer.open(path, 0, numbers).run(X, attention=a)[0], want)


def test_all_layers_of_a_file(tmp_path: Path) -> None:
    layers = [normal_gru(3, 4), normal_gru(4, 5), normal_gru(5, 2)]
    path = saved(tmp_path, onegru.Stack(layers))
    handles, count = (c_void_p * 4)(), ctypes.c_size_t(7)
    arguments = str(path).encode(), None
    first = ctypes.cast(handles, ctypes.POINTER(c_void_p))
    with pytest.raises(StatusError, match="capacity: 2; must be at least 3"):
        library.call("onegru_layers_open", *arguments, 2, first, byref(count))
    assert count.value == 7 and not any(handles)
    library.call("onegru_layers_open", *arguments, 4, first, byref(count))
    opened = [Layer(c_void_p(handle)) for handle in handles[: count.value]]
    for found in (opened, Layer.read_all(path.read_bytes())):
        for mine, layer in zip(found, layers, strict=True):
            X = draw(6, 2, layer.spec.input_size)
            assert_bits(mine.run(X)[0], layer(X)[0])


def test_options_of_a_file(tmp_path: Path) -> None:
    path = saved(tmp_path, normal_gru(3, 4, weight_storage="int8"))
    opened = Layer.open(path, 0, library.options_of(None, 1))
    assert opened.spec.flush_subnormals == 1 and opened.spec.storage.weight_storage == 4
    assert Layer.open(path, 0, library.options_of(None, -1)).spec.flush_subnormals == 0
    rounds = Layer.open(path, 0, library.options_of(library.storage_of("bfloat16", "bfloat16", "float32")))
    assert (rounds.spec.storage.weight_storage, rounds.spec.storage.activation_bits) == (1, 16)
    (layer,) = onegru.load_layers(path).values()
    X = draw(6, 2, 3)
    assert_bits(rounds.run(X)[0], layer.with_storage("bfloat16", "bfloat16")(X)[0])
    for options, words in (
        (library.options_of(None, 2), "flush_subnormals: 2; must be 0, 1 or ONEGRU_AS_STORED"),
        (library.options_of(CStorage(-1, 8, 0)), "activation_bits: 8; must be 0 with ONEGRU_AS_STORED"),
        (library.COptions(8), "options.size: 8; must be sizeof(onegru_options)"),
    ):
        with pytest.raises(StatusError, match=re.escape(words)) as caught:
            Layer.open(path, 0, options)
        assert caught.value.status == library.INVALID_ARGUMENT


def test_parameters_are_rounded_to_float32_as_in_python() -> None:
    odd: dict[str, Any] = {
        "activations": ["HardSigmoid", "Elu"],
        "activation_alpha": [0.3, 0.7],
        "activation_beta": [0.4],
    }
    layer = normal_gru(3, 4, np.float64, clip=0.1, **odd)
    given, handle, weights = library.c_spec(layer.spec), c_void_p(), layer.weights
    given.clip = 0.1
    given.activations[0].alpha, given.activations[0].beta, given.activations[1].alpha = 0.3, 0.4, 0.7
    arrays = map(library.at, (weights.W, weights.R, weights.B))
    library.call("onegru_layer_create", byref(given), *arrays, byref(handle))
    X = draw(5, 2, 3, dtype="float64")
    assert_bits(Layer(handle).run(X)[0], layer(X)[0])


def test_subnormal_states_become_zero_on_request() -> None:
    layer = normal_gru(1, 40)
    weights = layer.weights
    B = np.zeros_like(weights.B)
    B[:, :40] = 3.0  # the update gate keeps the state; at rest it is zero
    states = []
    for flush in (0, 1):
        given = library.c_spec(layer.spec)
        given.flush_subnormals = flush
        handle = c_void_p()
        arrays = [library.at(array) for array in (weights.W, weights.R, B)]
        library.call("onegru_layer_create", byref(given), *arrays, byref(handle))
        stream = Stream(Layer(handle))
        stream.run(draw(20, 1, 1))
        stream.run(np.zeros((9000, 1, 1), np.float32))
        states.append(np.abs(stream.state))
    assert 0 < states[0].max() < np.finfo(np.float32).tiny and not states[1].any()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("storage", [None, "int8"])
def test_a_stream_of_a_row_takes_little_memory(storage: str | None) -> None:
    layer = normal_gru(1, 8)
    mine = c_layer(layer if storage is None else layer.with_storage(storage))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    streams = [Stream(mine) for _ in range(300)]
    before = resident()
    streams += [Stream(mine) for _ in range(1000)]
    assert (resident() - before) / 1000 < 16_000
    Y = [stream.run(draw(40, 1, 1))[-1] for stream in streams[::100]]
    assert all(np.array_equal(Y[0], other) for other in Y)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The message is one line, with the path and the system's reason."""
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path, "a folder; must be a file"),
        (pipe, "not a regular file"),
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path / "two\nlines", "No such file or directory"),
        (tmp_path / "file" / "within", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
        (loop, "Too many levels of symbolic links"),
    ):
        with pytest.raises(StatusError) as caught:
            Layer.open(path)
        assert caught.value.status == library.CANNOT_READ
        assert str(caught.value) == f"{str(path)!r}: {why}"
    with pytest.raises(StatusError, match=r"^'…[é/]+/name': No such file or directory$"):
        Layer.open(tmp_path / "/".join(["é" * 120] * 6) / "name")


def test_integers_whose_scales_are_no_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path, normal_gru(3, 4, weight_storage="int8"))
    content = path.read_bytes()
    header = json.loads(content[8 : (begin := 8 + int.from_bytes(content[:8], "little"))])
    at = begin + header["layers.0.R_scale"]["data_offsets"][0]
    path.write_bytes(content[:at] + np.float32(np.nan).tobytes() + content[at + 4 :])
    with pytest.raises(StatusError, match="NaN or infinity") as caught:
        Layer.open(path)
    assert caught.value.status == library.BAD_FILE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('\\"hidden_size\\": 4', '\\"hidden_size\\": 0'),
        ('\\"hidden_size\\": 4', '\\"hidden_size\\": 5'),
        ('\\"input_size\\": 3', '\\"input_size\\": 3.5'),
        ('\\"input_size\\": 3', '\\"input_size\\": -3'),
        ('\\"clip\\": null', '\\"clip\\": 0'),
        ('\\"clip\\": null', '\\"klip\\": null'),
        ('\\"Sigmoid\\", null', '\\"Sigmoid\\", "no"'),
        ('\\"Tanh\\", null, null', '\\"ScaledTanh\\", null, null'),
        ('\\"Tanh\\"', '\\"Nothing\\"'),
        ('\\"forward\\"', '\\"foward\\"'),
        ('\\"attention\\": false', '\\"attention\\": \\"dine\\"'),
        ('\\"format\\": 1', '\\"format\\": 3'),
        ('"F32"', '"F64"'),
        ('"shape":[1,12,3]', '"shape":[1,3,12]'),
        ("layers.0.B", "layers.0.C"),
        ('"layers.0.B"', '"layers.0.R"'),
    ],
)
def test_files_that_say_something_else(tmp_path: Path, old: str, new: str) -> None:
    path = saved(tmp_path, normal_gru(3, 4))
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].decode()
    assert old in header
    header = header.replace(old, new)
    path.write_bytes(len(header.encode()).to_bytes(8, "little") + header.encode() + content[8 + size :])
    with pytest.raises(StatusError) as caught:
        Layer.open(path)
    assert caught.value.status == library.BAD_FILE
    with pytest.raises(onegru.FormatError):
        onegru.load_layers(path)
