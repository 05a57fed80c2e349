"""`python -m benchmarks.eight_bits`: layers in int8 beside other storages and peers, in turns.

The peers are PyTorch's dynamically quantized GRU and ONNX Runtime's GRU in float32. Each line is checked
before it is timed: by its signal-to-noise ratio against the float32 layer. Times are the best of many runs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import onegru
from benchmarks.training import best, machine, summary, write_page
from onegru import _native
from onegru.core.compare import signal_to_noise

PAGE = Path(__file__).resolve().parents[1] / "docs" / "eight-bits-tables.md"

INTRODUCTION = """# Eight bits, measured

Made by `python -m benchmarks.eight_bits --page --drawn 100`: layers with W and R in int8, on each machine in turns with
our own float32 and bfloat16, PyTorch's `quantize_dynamic` of `nn.GRU` and ONNX Runtime's float32. Times as fast as our
float32, one thread; the float32 layer's time is that of the whole call. dB: the ratio of signal to noise against
float32, of int8 with inputs of products in int16 / in int8. Shapes are T,B,I,H."""  # noqa: E501

REASONS = """## What holds the missed ones back

The targets were set on an Intel CPU with 2 MiB of L2, where the matrices of H = 512 are in L3 as float32 and in L2 as
int8. Zen 4 has 1 MiB of L2, and its L3 is nearer: float32 loses less there, so that int8 gains less. AMX is not
used, and AVX-VNNI not measured, as none of the machines here has them."""  # noqa: E501

#: By H, for one row, 8 and 64: how many times as fast as float32 int8 by int8 has to be, with VNNI.
TARGETS = {64: (1.4, 1.2, 1.2), 256: (2.5, 2.1, 1.7), 512: (6, 2.4, 2), 1024: (3, 2.7, 2.3)}
#: Without VNNI, asked of one row from H = 128 on.
TARGET_WITHOUT = 1.3

STORAGES = {"bfloat16": ("bfloat16", None), "int16": ("int8", "int16"), "int8": ("int8", "int8")}
#: The least signal-to-noise ratio of each, in dB.
LEAST = {"bfloat16": 40, "int16": 35, "int8": 30}

Case = tuple[int, int, int, int]


def quantized(module: nn.GRU) -> Any:
    """PyTorch's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(module, {nn.GRU}, dtype=torch.qint8)


def session(layer: onegru.GRU | onegru.Stack) -> onnxruntime.InferenceSession:
    """ONNX Runtime's, of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onegru.save(layer, path, initial_h=False)
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def measure(case: Case, seconds: float, with_peers: bool) -> tuple[list[float], dict[str, float]]:
    """Times in ms: float32's, those of STORAGES, the peers'; and the ratios of signal to noise."""
    T, B, I, H = case
    torch.manual_seed(0)
    module = nn.GRU(I, H)
    layer = onegru.from_torch(module)
    X = np.random.default_rng(0).standard_normal((T, B, I)).astype(np.float32)
    exact = layer(X)[0]
    layers = {name: layer.with_storage(*storage) for name, storage in STORAGES.items()}
    ratios = {name: signal_to_noise(exact, stored(X)[0]) or 0 for name, stored in layers.items()}
    for name, ratio in ratios.items():
        assert ratio >= LEAST[name], f"{case}: {name} {ratio:.1f} dB"
    runs: list[Callable[[], object]] = [
        lambda layer=each: layer(X)  # type: ignore[misc]
        for each in (layer, *layers.values())
    ]
    if with_peers:
        theirs, x = quantized(module), torch.from_numpy(X)
        assert (signal_to_noise(exact[:, 0], theirs(x)[0].detach().numpy()) or 0) > 25
        runtime = session(layer)
        feed = {runtime.get_inputs()[0].name: X}
        runs += [lambda: theirs(x), lambda: runtime.run(None, feed)]
    with torch.inference_mode():
        return best(runs, seconds), ratios


def row(case: Case, seconds: float, asked: float) -> str:
    """A line of the table."""
    times, ratios = measure(case, seconds, True)
    first, *others = (f"{times[0] / time:.2f}×" for time in times[1:])
    verdict = ("reached" if times[0] / times[3] >= asked else "missed") if asked else ""
    cells = [",".join(map(str, case)), f"{times[0]:.3f} ms", first, *others[:2]]
    cells += [
        f"{asked:g}× {verdict}" if asked else "",
        f"{ratios['int16']:.1f} / {ratios['int8']:.1f}",
        *others[2:],
    ]
    return f"| {' | '.join(cells)} |"


def drawn(count: int, seconds: float) -> str:
    """What shapes that nobody tuned come to."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"int16": [], "int8": []}
    for _ in range(count):
        T, B = int(rng.choice([1, 5, 20, 100])), int(rng.choice([1, 1, 2, 8, 32]))
        I, H = (int(size) for size in rng.integers(1, 600, 2))
        times = measure((T, B, I, H), seconds, False)[0]
        found["int16"].append(times[0] / times[2])
        found["int8"].append(times[0] / times[3])
    return "; ".join(f"int8 by {name}: {summary(ratios)}" for name, ratios in found.items())


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drawn", type=int, default=0, help="so many drawn shapes besides the table's")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument("--page", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args()
    onegru.set_num_threads(1)
    torch.set_num_threads(1)
    products = _native.int8_products()
    place = f"{machine()}, {products.upper()}"
    versions = (
        f"PyTorch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}, onegru {onegru.__version__}."
    )
    lines = [f"## {place}", "", versions, ""]
    heading = (
        "shape | float32 | bfloat16 | int8 by int16 | int8 by int8 | asked | dB | PyTorch int8 | ONNX Runtime"
    )
    lines += [f"| {heading} |", f"| --- {'| ---: ' * heading.count('|')}|"]
    print("\n".join(lines))
    for H, (place_of_B, B) in itertools.product((64, 128, 256, 512, 1024), enumerate((1, 8, 64))):
        asked = TARGETS.get(H, (0, 0, 0))[place_of_B]
        if products == "simd":
            asked = TARGET_WITHOUT if B == 1 and H >= 128 else 0
        lines.append(row((100, B, H, H), options.seconds, asked))
        print(lines[-1], flush=True)
    for H in (64, 256, 512, 1024):
        lines.append(row((1, 1, H, H), options.seconds, 0))
        print(lines[-1], flush=True)
    if options.drawn:
        lines += ["", f"{options.drawn} drawn shapes. {drawn(options.drawn, options.seconds / 4)}."]
        print(lines[-1])
    if options.page:
        write_page(PAGE, INTRODUCTION, place, "\n".join(lines), REASONS)


if __name__ == "__main__":
    main()
