"""Test that a row's results are bitwise identical, regardless of the other rows and the threads."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import _native
from onegru.core.dtypes import Array
from onegru.core.spec import DIRECTIONS
from tests.support.comparison import TYPES, assert_bits
from tests.support.layers import normal_gru
from tests.support.machine.processes import run_python

#: Element types, and storage types of a float32 layer's weights: the type and the options of each.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{np.dtype(dtype).name: (dtype, {}) for dtype in TYPES},
    "bfloat16 weights": (np.float32, {"weight_storage": "bfloat16"}),
    "float16 weights": (np.float32, {"weight_storage": "float16"}),
    "int8 weights": (np.float32, {"weight_storage": "int8"}),
    "int8 in groups": (np.float32, {"weight_storage": "int8_g32"}),
    "int8 by int8": (np.float32, {"weight_storage": "int8", "activation_storage": "int8"}),
    "bfloat16 by bfloat16": (np.float32, {"weight_storage": "bfloat16", "activation_storage": "bfloat16"}),
}

SIZES = [(3, 4), (13, 20), (36, 36), (8, 64), (70, 67), (64, 130)]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    onegru.set_num_threads(None)


def make(I: int, H: int, dtype: Any, direction: Any = "forward", **options: Any) -> onegru.GRU:
    return normal_gru(I, H, dtype, direction, seed=I * 1000 + H, engine="native", **options)


def draw(*shape: int, dtype: Any, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("kind", "size", "after"), itertools.product(KINDS, SIZES, [False, True]))
def test_batches_and_places_in_them(kind: str, size: tuple[int, int], after: bool) -> None:
    dtype, options = KINDS[kind]
    I, H = size
    layer = make(I, H, dtype, linear_before_reset=after, **options)
    X, h = draw(6, 21, I, dtype=dtype), draw(1, 21, H, dtype=dtype)
    Y, Y_h = layer(X, h)
    for rows in ([0], [20], [3, 1], [5, 6, 7], list(range(8)), list(range(20, -1, -1)), list(range(4, 17))):
        Z, Z_h = layer(np.ascontiguousarray(X[:, rows]), np.ascontiguousarray(h[:, rows]))
        assert_bits(Z, Y[:, :, rows])
        assert_bits(Z_h, Y_h[:, rows])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bfloat16 weights"])
@pytest.mark.parametrize("attention", ["openvino", "dien"])
def test_scores_of_one_row_by_several_threads(kind: str, attention: str) -> None:
    """Products with x are computed ahead, while other threads may still read the previous scores."""
    dtype, options = KINDS[kind]
    layer = make(17, 257, dtype, linear_before_reset=True, attention=attention, **options)
    X, scores = draw(200, 1, 17, dtype=dtype), np.abs(draw(200, 1, dtype=dtype))
    onegru.set_num_threads(1)
    Y, _ = layer(X, attention=scores)
    for threads in (2, 3):
        onegru.set_num_threads(threads)
        for _ in range(100):
            assert_bits(layer(X, attention=scores)[0], Y)


@pytest.mark.parametrize(("kind", "after"), itertools.product(KINDS, [False, True]))
@pytest.mark.parametrize("size", [(3, 4), (70, 67), (64, 200)])
def test_threads(kind: str, size: tuple[int, int], after: bool) -> None:
    dtype, options = KINDS[kind]
    I, H = size
    for direction, (T, B) in itertools.product(
        ("forward", "bidirectional"), [(1, 1), (50, 1), (50, 2), (6, 37)]
    ):
        layer = make(I, H, dtype, direction, linear_before_reset=after, **options)
        X = draw(T, B, I, dtype=dtype)
        lens = np.random.default_rng(1).integers(0, T + 1, B)
        onegru.set_num_threads(1)
        expected = layer(X), layer(X, sequence_lens=lens)
        for threads in (2, 3, 4):
            onegru.set_num_threads(threads)
            for _ in range(3):  # first asleep, then awake
                for found, wanted in zip((layer(X), layer(X, sequence_lens=lens)), expected, strict=True):
                    assert_bits(found[0], wanted[0])
                    assert_bits(found[1], wanted[1])


@pytest.mark.parametrize(("kind", "after"), itertools.product(KINDS, [False, True]))
def test_chunks_steps_and_rows_of_a_stream(kind: str, after: bool) -> None:
    dtype, options = KINDS[kind]
    I, H = 13, 37
    layer = make(I, H, dtype, linear_before_reset=after, **options)
    X = draw(40, 5, I, dtype=dtype)
    Y = layer(X)[0][:, 0]
    for cuts in ([], [1], [7, 7, 30], list(range(1, 40))):
        stream = layer.stream(5)
        assert_bits(np.concatenate([stream.run(chunk) for chunk in np.split(X, cuts)]), Y)
    stream, out = layer.stream(5), np.empty((5, H), dtype)
    for x, y in zip(X, Y, strict=True):
        assert_bits(stream.step(np.ascontiguousarray(x), out=out), y)
    stream = layer.stream(9)
    for x, y in zip(X, Y, strict=True):
        assert_bits(stream.step(x[[4, 0, 1]], rows=[7, 0, 2]), y[[4, 0, 1]])
        assert_bits(stream.step(x[[2, 3]], rows=[1, 8]), y[[2, 3]])


@pytest.mark.parametrize(("kind", "after"), itertools.product(KINDS, [False, True]))
@pytest.mark.parametrize(("I", "H"), [(1, 131), (40, 192), (301, 200)])
def test_one_row_projected_ahead(kind: str, after: bool, I: int, H: int) -> None:
    """Products with x that run in parallel with those with h equal those of a batch, and of single steps."""
    dtype, options = KINDS[kind]
    layer = make(I, H, dtype, "reverse", linear_before_reset=after, **options)
    T, B = 27, 11
    X, lens = draw(T, B, I, dtype=dtype), [T, 0, 1, 7, 8, 9, 12, 13, 16, 17, 24]
    Y, Y_h = layer(X, sequence_lens=lens)
    for threads in (1, 2, 3):  # three: unequal parts
        onegru.set_num_threads(threads)
        for b, n in enumerate(lens):
            Z, Z_h = layer(np.ascontiguousarray(X[:, b : b + 1]), sequence_lens=[n])
            assert_bits(Z[:, :, 0], Y[:, :, b])
            assert_bits(Z_h[:, 0], Y_h[:, b])
    forward = make(I, H, dtype, linear_before_reset=after, **options)
    Y = forward(np.ascontiguousarray(X[:, :1]))[0][:, 0]
    stream = forward.stream(1)
    assert_bits(np.stack([stream.step(np.ascontiguousarray(x[:1])) for x in X]), Y)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("I", "H"), [(1, 1), (8, 4), (20, 8), (21, 8), (20, 16), (3, 17)])
def test_one_row_that_projects_step_by_step(after: bool, I: int, H: int) -> None:
    """A small layer computes one row's products with x in each step, a batch's for many steps at once."""
    layer = make(I, H, np.float32, linear_before_reset=after)
    X = draw(33, 5, I, dtype=np.float32)
    Y = layer(X)[0]
    for b in range(5):
        assert_bits(layer(np.ascontiguousarray(X[:, b : b + 1]))[0][:, :, 0], Y[:, :, b])


@pytest.mark.parametrize("after", [False, True])
def test_large_matrices(after: bool) -> None:
    """From 8 MiB on, more rows of X are computed together, and none ahead."""
    I, H, T = 64, 840, 70
    layer = make(I, H, np.float32, linear_before_reset=after)
    X = draw(T, 3, I, dtype=np.float32)
    Y = layer(X)[0]
    for threads in (1, 2):
        onegru.set_num_threads(threads)
        assert_bits(layer(np.ascontiguousarray(X[:, :1]))[0][:, :, 0], Y[:, :, 0])
        stream = layer.stream(3)
        assert_bits(np.concatenate([stream.run(X[:9]), stream.run(X[9:])]), Y[:, 0])


@pytest.mark.parametrize("after", [False, True])
def test_one_row_after_a_full_group(after: bool) -> None:
    """The last of 65 rows is processed separately, after 64 rows that used chunks of another size."""
    I, H = 20, 128
    layer = make(I, H, np.float32, linear_before_reset=after)
    for T in (9, 16, 17, 21):
        X = draw(T, 65, I, dtype=np.float32)
        assert_bits(layer(X)[0][:, :, 64:], layer(np.ascontiguousarray(X[:, 64:]))[0])


@pytest.mark.parametrize(("kind", "after"), itertools.product(KINDS, [False, True]))
def test_lengths_and_directions(kind: str, after: bool) -> None:
    """A row with a length equals the truncated row; a direction equals the unidirectional layer."""
    dtype, options = KINDS[kind]
    I, H, T = 9, 35, 7
    layer = make(I, H, dtype, "bidirectional", linear_before_reset=after, **options)
    X, lens = draw(T, 12, I, dtype=dtype), np.random.default_rng(2).integers(0, T + 1, 12)
    Y, Y_h = layer(X, sequence_lens=lens)
    for b, n in enumerate(lens):
        Z, Z_h = layer(np.ascontiguousarray(X[:n, b : b + 1]))
        assert_bits(Y[:n, :, b], Z[:, :, 0])
        assert not Y[n:, :, b].any()
        assert_bits(Y_h[:, b], Z_h[:, 0])
    weights = layer.weights
    for d, direction in enumerate(DIRECTIONS[:2]):
        single = onegru.GRU(
            weights.W[d : d + 1],
            weights.R[d : d + 1],
            weights.B[d : d + 1],
            direction=direction,
            linear_before_reset=after,
            **options,
        )
        Z, Z_h = single(X, sequence_lens=lens)
        assert_bits(Z[:, 0], Y[:, d])
        assert_bits(Z_h[0], Y_h[d])


@pytest.mark.parametrize("dtype", TYPES)
def test_strides_and_layouts(dtype: Any) -> None:
    I, H, T, B = 5, 19, 6, 10
    layer = make(I, H, dtype, "reverse", attention=True, clip=0.75)
    X, A, h = draw(T, B, I, dtype=dtype), draw(T, B, dtype=dtype), draw(1, B, H, dtype=dtype)
    Y, _ = layer(X, h, attention=A)
    wide = np.zeros((T, 2 * B, 3 * I), dtype)
    for view in (wide[:, ::2, I : 2 * I], wide[::-1, B:, :I], wide[:, :B, ::3]):
        view[...] = X
        assert_bits(layer(view, h, attention=A)[0], Y)
    out = np.zeros((B, T, 2, H), dtype)
    layer(X.swapaxes(0, 1), h.swapaxes(0, 1), attention=A.T, layout=1, out=(out[:, :, 1:], None))
    assert_bits(out[:, :, 1].transpose(1, 0, 2), Y[:, 0])
    assert not out[:, :, 0].any()
    skewed = np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(dtype).reshape(X.shape)
    assert_bits(layer(skewed, h, attention=A)[0], Y)


PROGRAM = """
import hashlib, numpy as np, onegru
print(onegru.targets().chosen, onegru.GRU(np.zeros((1,3,1)), np.zeros((1,3,1))).prepared_engine.native.target)
digest, of_int8 = hashlib.sha256(), hashlib.sha256()
rng = np.random.default_rng(11)
for dtype in ("float16", "float32", "float64"):
    for I, H, B, T in ((5, 4, 3, 9), (64, 64, 1, 30), (70, 67, 13, 5), (20, 130, 6, 4)):
        for after in (False, True):
            shapes = (2,3*H,I), (2,3*H,H), (2,6*H)
            W, R, b = ((rng.standard_normal(s) / H**0.5).astype(dtype) for s in shapes)
            X = (3 * rng.standard_normal((T, B, I))).astype(dtype)
            for names in (None, ["Softplus", "Elu", "HardSigmoid", "ScaledTanh"], ["Softsign", "Affine"] * 2):
                layer = onegru.GRU(W, R, b, direction="bidirectional", linear_before_reset=after, clip=2.5,
                                   activations=names, activation_alpha=[0.5] * (0 if names is None else 3),
                                   activation_beta=[0.25] * (0 if names is None else 2))
                lens = rng.integers(0, T + 1, B)
                for array in layer(X, sequence_lens=lens):
                    digest.update(array.tobytes())
                if dtype == "float32":
                    for array in layer.with_storage("bfloat16", "bfloat16")(X, sequence_lens=lens):
                        digest.update(array.tobytes())
                if dtype == "float32" and names is None:
                    for storage in (("int8", "int16"), ("int8", "int8"), ("int8_g32", "int8")):
                        stored = layer.with_storage(*storage)
                        for array in stored(X, sequence_lens=lens):
                            of_int8.update(array.tobytes())
for I in (1040, 1041, 1500):  # sums at the limit of 32 bits, and beyond
    W = (rng.uniform(0.97, 1, (1, 24, I)) / I).astype("float32")
    W[:, ::5], R = W[:, ::5] * -1, (rng.standard_normal((1, 24, 8)) / 3).astype("float32")
    W[:, 1] = 1 / I
    X = rng.uniform(0.97, 1, (2, 3, I)).astype("float32")
    X[0] = 1
    for array in onegru.GRU(W, R).with_storage("int8", "int16")(X):
        of_int8.update(array.tobytes())
print(digest.hexdigest(), of_int8.hexdigest())
"""


def run_on(target: str, threads: int = 1, program: str = PROGRAM) -> list[str]:
    environment = {"ONEGRU_TARGET": target, "ONEGRU_NUM_THREADS": str(threads)}
    return run_python(program, options=("-W", "ignore"), environment=environment).stdout.split()


def test_targets_agree_and_are_the_ones_that_ran() -> None:
    """Includes targets with FMA in float and bfloat16, with and without AMX; in int8, all targets."""
    digests: set[str] = set()
    of_int8: set[str] = set()
    for target in _native.available_targets():
        chosen, used, digest, digest_of_int8 = run_on(target, threads=1 + len(digests))
        assert chosen == used == target
        of_int8.add(digest_of_int8)
        if _native.target_traits(target)[0]:
            digests.add(digest)
    for products in ("vnni",) if _native.is_native() else ("simd", "vnni"):
        limited = f"from onegru import _native\n_native.limit_int8_products({products!r})" + PROGRAM
        found = run_on(_native.available_targets()[0], program=limited)
        of_int8.add(found[3])
        if _native.target_traits(_native.available_targets()[0])[0]:
            digests.add(found[2])  # with bfloat16 products of bfloat16, which AMX computes elsewhere
    if digests:
        assert len(digests) == 1
    assert len(of_int8) == 1
    if len(_native.available_targets()) == 1:
        pytest.skip("only one target in this build, so nothing was compared: `make test-targets` does")
    if not digests:
        pytest.skip("no target with FMA on this processor")


def test_the_callers_float_mode_changes_nothing() -> None:
    """Subnormals are kept and rounding is to nearest, even if the caller has set flush-to-zero."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("sets the mode of x86-64")
    import ctypes
    import mmap

    # ldmxcsr [rdi]; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes([0x0F, 0xAE, 0x17, 0xC3]))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    set_mode = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)
    layer = onegru.GRU(np.full((1, 3, 1), 1e-20, np.float32), np.full((1, 3, 1), 1e-20, np.float32))
    X = np.full((3, 1, 1), 1e-20, np.float32)
    expected = layer(X)[0]
    assert 0 < abs(expected[0, 0, 0, 0]) < 1e-38  # subnormal, so the test detects flushing
    default, flushing = (ctypes.c_uint32(mode) for mode in (0x1F80, 0x1F80 | 0x8040 | 0x6000))
    try:
        set_mode(ctypes.addressof(flushing))
        found = layer(X)[0]
    finally:
        set_mode(ctypes.addressof(default))
    assert_bits(found, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's constants are those of Linux")
def test_the_mode_in_which_a_layer_is_made_changes_nothing() -> None:
    """Biases are summed, and weights rounded to 16 bits, in IEEE 754's default mode too."""
    code = """
        import ctypes, platform
        import numpy as np, onegru
        rng = np.random.default_rng(0)
        W, R, B = (rng.standard_normal(n).astype("f") for n in ((1, 24, 5), (1, 24, 8), (1, 48)))
        X = rng.standard_normal((4, 3, 5)).astype("f")
        upward = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
        libm = ctypes.CDLL("libm.so.6")
        for scale, storage in ((1, None), (1e-6, "float16")):
            W, R = (W * scale).astype("f"), (R * scale).astype("f")
            plain = onegru.GRU(W, R, B, weight_storage=storage)(X)[0]
            assert libm.fesetround(upward) == 0
            layer = onegru.GRU(W, R, B, weight_storage=storage)
            libm.fesetround(0)
            assert layer(X)[0].tobytes() == plain.tobytes()
    """
    run_python(code)


ROUNDING = """
    import ctypes, platform, sys
    import numpy as np
    mode = {"x86_64": 0x400, "aarch64": 0x400000}[platform.machine()] * int(sys.argv[1])
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(mode) == 0 and libm.fegetround() == mode
    import onegru  # constants are made then
    from onegru.core.activations import ACTIVATIONS
    from onegru.frameworks.layouts import FLAX_NNX, KERAS, PYTORCH
    from onegru.frameworks.weights import _sum
    from onegru.rewriting.nodes.changes import _as_float16
    from onegru.core.dtypes import convert
    numbers = [0.1, 1 / 3, 0.7, 1e-45, 1e-42, 2.0**-150, 3.4e38]
    one = np.ones((1, 3, 1), np.float32)
    for x in numbers:
        spec = onegru.GRU(
            one, one, clip=x if x > 1e-44 else None,
            activations=["HardSigmoid", "ScaledTanh"], activation_alpha=[x, -x], activation_beta=[-x, x],
        ).spec
        print(spec.clip and spec.clip.hex(), [(a.alpha.hex(), a.beta.hex()) for a in spec.activations[0]])
    print([(k.name, p, (k.default(p) or 0.0).hex()) for k in ACTIVATIONS.values() for p in k.parameters])
    print([str(sorted(f.activations.items())) for f in (FLAX_NNX, KERAS, PYTORCH)])
    wide = np.array(numbers)
    print(_sum(np.arange(-3.0, 4.0).astype("f"), np.array([2.0**-30], "f")).tobytes().hex())
    print(convert(wide, "float32").tobytes().hex(), convert(wide[:5], "float16").tobytes().hex())
    print(_as_float16(None, wide[:5]).tobytes().hex())
    try:
        onegru.GRU(one, one, clip=3.5e38)
    except onegru.SpecError as error:
        print(error)
    assert libm.fegetround() == mode
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's constants are those of Linux")
def test_numbers_are_rounded_to_nearest_in_every_mode() -> None:
    """Applies to clip, alpha, beta and conversions between types."""
    found = [run_python(ROUNDING, mode).stdout for mode in range(4)]
    assert f"{float(np.float32(0.1)).hex()}" in found[0]
    assert "3.5e+38; must be in float32's range" in found[0]
    assert found[1] == found[2] == found[3] == found[0]
