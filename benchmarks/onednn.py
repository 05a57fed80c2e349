"""`python -m benchmarks.onednn`: compare training a layer in onegru and oneDNN, interleaved, one thread.

It needs g++ and `pip install onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0`, the newest packages
that need no SYCL (oneDNN 3.2). Both get their weights in PyTorch's order, and convert them to their
layouts in every call. Outputs and gradients are compared before the timing.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import onegru
from benchmarks.training import CASES, Case, best, drawn
from onegru.core.spec import Spec
from onegru.engines.training import DirectionWeights, LayerCall, TrainedLayer

ROOT = Path(__file__).resolve().parents[1]
Array = npt.NDArray[np.float32]


def library() -> ctypes.CDLL:
    """Compile and load the baseline."""
    prefix, target = Path(sys.prefix), ROOT / "build" / "libonegru_onednn_peer.so"
    if not (prefix / "include" / "dnnl.hpp").exists():
        raise SystemExit(
            "oneDNN: not installed; pip install onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0"
        )
    target.parent.mkdir(exist_ok=True)
    lib = prefix / "lib"
    command = [
        "g++",
        "-std=c++17",
        "-O2",
        "-shared",
        "-fPIC",
        "-fopenmp",
        f"-I{prefix / 'include'}",
        "-o",
        str(target),
    ]
    command += [str(Path(__file__).with_suffix(".cc")), f"-L{lib}", "-ldnnl", f"-Wl,-rpath,{lib}"]
    subprocess.run(command, check=True)
    peer = ctypes.CDLL(str(target))
    peer.onednn_new.restype = ctypes.c_void_p
    peer.onednn_new.argtypes = [ctypes.c_long] * 4
    peer.onednn_data.restype = ctypes.c_void_p
    peer.onednn_data.argtypes = [ctypes.c_void_p, ctypes.c_int]
    for function in (peer.onednn_train, peer.onednn_delete):
        function.argtypes = [ctypes.c_void_p]
        function.restype = None
    return peer


def measure(peer: ctypes.CDLL, case: Case, seconds: float) -> list[float]:
    """Return the times of oneDNN and onegru, in ms."""
    T, B, I, H = case.T, case.B, case.I, case.H
    rng = np.random.default_rng(0)
    scale = 1 / math.sqrt(H)
    X, dY = (rng.standard_normal((T, B, size)).astype(np.float32) for size in (I, H))
    W, R, Wb, Rb = (
        rng.uniform(-scale, scale, shape).astype(np.float32)
        for shape in ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    )
    layer = peer.onednn_new(T, B, I, H)

    def array(which: int, *shape: int) -> Array:
        pointer = ctypes.cast(peer.onednn_data(layer, which), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, shape)

    # The gates z, r, n are in ONNX's order, as in oneDNN. z and r have one bias, n has two.
    array(0, T, B, I)[:], array(1, 3 * H, I)[:], array(2, 3 * H, H)[:] = X, W, R
    array(3, 4 * H)[:] = np.concatenate([Wb[: 2 * H] + Rb[: 2 * H], Wb[2 * H :], Rb[2 * H :]])
    array(5, T, B, H)[:] = dY
    call, weights = LayerCall(X), [DirectionWeights(W, R, Wb, Rb)]
    spec = Spec(I, H, "float32", linear_before_reset=True)

    def ours() -> tuple[Array, Array, DirectionWeights]:
        trained = TrainedLayer(spec, weights, (0, 1, 2))
        Y, _, gates = trained.forward(call, saves=True)
        found, by = trained.gradients(call, Y, gates, dY[:, None], None, ["X"], [["W", "R", "Wb", "Rb"]])
        return Y[:, 0], found["X"], by[0]

    Y, dX, by = ours()
    peer.onednn_train(layer)
    theirs = (
        array(4, T, B, H),
        array(6, T, B, I),
        array(7, 3 * H, I),
        array(8, 3 * H, H),
        array(9, 4 * H)[3 * H :],
    )
    assert by.Rb is not None
    for a, b in zip((Y, dX, by.W, by.R, by.Rb[2 * H :]), theirs, strict=True):
        assert a is not None and np.abs(a - b).max() <= 3e-5 * (np.abs(b).max() + 1e-3), str(case)
    times = best([lambda: peer.onednn_train(layer), ours], seconds)
    peer.onednn_delete(layer)
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drawn", type=int, default=0, help="so many drawn shapes in place of the table's")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    onegru.set_num_threads(1)
    cases = [
        case for case in drawn(options.drawn) or CASES if not case.form and case.layers == 1 and not case.both
    ]
    peer, ratios = library(), []
    print(f"oneDNN 3.2, onegru {onegru.__version__} on {onegru.targets().chosen}; training, ms")
    for case in cases:
        theirs, ours = measure(peer, case, options.seconds)
        ratios.append(theirs / ours)
        print(f"{case!s:24}{theirs:10.2f}{ours:10.2f}{theirs / ours:8.2f}×", flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
