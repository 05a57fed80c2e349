"""`python -m benchmarks.eight_bits`: compare int8 weights with other storage types and runtimes.

The SNR of each case, compared with the float32 layer, is checked before the case is timed. Calls alternate.
Times are the best of many runs. The other runtimes are in eight_bits_peers.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

import onegru
from benchmarks.eight_bits_peers import PEERS
from benchmarks.models.real import REAL, draw_frames, exported
from benchmarks.page.pictures import draw_page
from benchmarks.training import best, machine, summary, write_page
from onegru.core.compare import signal_to_noise

PAGE = Path(__file__).with_name("results") / "eight_bits.md"

INTRODUCTION = """# int8 weights: raw data

These are the measurements of [Quantization](../../docs/guides/quantization.md), written by
`python -m benchmarks.eight_bits --page --drawn 100`. They compare layers with W and R in int8 with other storage types
and runtimes, on one thread. All of them alternate on each machine:

- onegru's float32 and bfloat16
- PyTorch's `quantize_dynamic` of `nn.GRU`
- ncnn's GRU in int8, which supports only one row
- OpenVINO after `nncf.quantize`
- ONNX Runtime's float32

A ratio is onegru's float32 time divided by the other time. The float32 column is the time of a whole call. W8A16 has
int8 weights and int16 activations. W8A8 has int8 weights and int8 activations. The column dB is the SNR of
W8A16 / W8A8, compared with float32. Shapes are T,B,I,H.

![Speed-up with int8 weights, compared with float32](eight-bits.png)"""  # noqa: E501

REASONS = """## Limits

- **Caches**: with 2 MiB of L2, the matrices of H = 512 are in L3 as float32, and in L2 as int8. Zen 4 has 1 MiB of L2
  and a faster L3. float32 is less slow there, so int8 gains less.
- **AMX, H = 256, B = 8**: the gates take 43 % of the kernels' time, and the matmuls 37 %. Rounding the states takes
  10 %, and reading the sums of the matmul with x takes 8 % (measured with `perf`).
- **AMX, H ≥ 1024**: the matrices come from L3 with 30 GB/s on that machine. While one panel is multiplied, a part of
  the next one is fetched in each pass. Six products of 16 rows, 64 inputs and 16 channels take 28 ns from L1, and 36 ns
  from L2.
- **AMX, int16 activations**: two planes of 16 rows fill the tiles. 64 rows therefore need four passes over a panel. A
  panel of H = 1024 is larger than L1.
- **OpenVINO by NNCF**: `nncf.quantize` (3.4.0) does not change the GRUSequence of these models. The column shows
  OpenVINO's own speed, in bfloat16 if the CPU has AMX.
- No machine here has AVX-VNNI without AVX-512.

| Change that was tried with AMX, and not kept | Result |
| --- | --- |
| fetching ahead if all rows need one pass | up to 30 % slower |
| fetching into L1 | no difference |
| AMX for one row | 0.7 to 0.97 times as fast |"""  # noqa: E501

#: The least speed-up over float32, by matmul instructions, type of the inputs, and H, for 1, 8 and 64 rows.
TARGETS: dict[tuple[str, str], dict[int, tuple[float, float, float]]] = {
    ("vnni", "int8"): {64: (1.4, 1.2, 1.2), 256: (2.5, 2.1, 1.7), 512: (6, 2.4, 2), 1024: (3, 2.7, 2.3)},
    ("amx", "int8"): {64: (1.6, 1.8, 1.5), 256: (3.4, 5, 4.2), 512: (9, 6.5, 5.5), 1024: (3.3, 5, 8)},
    ("amx", "int16"): {64: (1.2, 1.4, 1.4), 256: (2.8, 3.3, 3.6), 512: (8, 5.5, 4.2), 1024: (3.3, 4.8, 7)},
    ("simd", "int8"): {H: (1.3, 0, 0) for H in (128, 256, 512, 1024)},
}

STORAGES = {"bfloat16": ("bfloat16", None), "int16": ("int8", "int16"), "int8": ("int8", "int8")}
#: The least signal-to-noise ratio in dB of each storage, and of a baseline.
LEAST = {"bfloat16": 40, "int16": 35, "int8": 30}
LEAST_OF_PEER = 25

Case = tuple[int, int, int, int]


def measure(case: Case, seconds: float, with_peers: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return times in ms (float32, STORAGES, baselines), and signal-to-noise ratios."""
    T, B, I, H = case
    torch.manual_seed(0)
    module = nn.GRU(I, H)
    layer = onegru.from_torch(module)
    assert isinstance(layer, onegru.GRU)
    X = np.random.default_rng(0).standard_normal((T, B, I)).astype(np.float32)
    exact = layer(X)[0]
    layers = {name: layer.with_storage(*storage) for name, storage in STORAGES.items()}
    ratios = {name: signal_to_noise(exact, stored(X)[0]) or 0 for name, stored in layers.items()}
    for name, ratio in ratios.items():
        assert ratio >= LEAST[name], f"{case}: {name} {ratio:.1f} dB"
    runs: dict[str, Callable[[], object]] = {
        name: lambda layer=each: layer(X)  # type: ignore[misc]
        for name, each in {"float32": layer, **layers}.items()
    }
    for name, make in PEERS.items() if with_peers else ():
        peer = make(module, layer, T, B)
        if peer is None:
            continue
        ratio = signal_to_noise(exact[:, 0], peer(X)) or 1000
        assert ratio >= LEAST_OF_PEER, f"{case}: {name} {ratio:.1f} dB"
        runs[name] = lambda peer=peer: peer(X)  # type: ignore[misc]
    with torch.inference_mode():
        return dict(zip(runs, best(list(runs.values()), seconds), strict=True)), ratios


def targets_of(products: str, storage: str, case: Case) -> float:
    """Return the target of a case; 0 without one."""
    T, B, _, H = case
    asked = TARGETS.get((products, storage), {}).get(H, (0, 0, 0)) if T > 1 else (0, 0, 0)
    return asked[(1, 8, 64).index(B)]


def row(case: Case, seconds: float, products: str) -> str:
    """Return a row of the table."""
    times, ratios = measure(case, seconds, True)

    def times_as_fast(name: str) -> str:
        gain = times["float32"] / times[name] if name in times else 0
        if 0 < gain < (asked := targets_of(products, name, case)):
            print(f"{','.join(map(str, case))}, {name}: {gain:.2f}, not {asked:g}")
        return f"{gain:.2f}×" if gain else "–"

    cells = [",".join(map(str, case)), f"{times['float32']:.3f} ms"]
    cells += [times_as_fast(name) for name in STORAGES]
    cells.append(f"{ratios['int16']:.1f} / {ratios['int8']:.1f}")
    cells += [times_as_fast(name) for name in PEERS]
    return f"| {' | '.join(cells)} |"


def whole_models(seconds: float) -> Iterator[str]:
    """Yield a table of whole models: a run in ONNX Runtime, and in onegru with each storage of all GRUs."""
    yield "| model, frames | ONNX Runtime | float32 | bfloat16 | W8A16 | W8A8 | dB |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    folder = Path(__file__).parent.parent / "build" / "benchmarks" / "models"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for name, real in REAL.items():
        path = exported(name, real, folder)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        models = {
            word: onegru.load(path, weight_storage=storage[0], activation_storage=storage[1])
            for word, storage in {"float32": (None, None), **STORAGES}.items()
        }
        for frames in (real.fixed_frames,) if real.fixed_frames else (1, 100):
            feed = draw_frames(real, frames)
            found = {word: next(iter(model.run(feed).values())) for word, model in models.items()}
            ratios = {word: signal_to_noise(found["float32"], found[word]) or 0 for word in STORAGES}
            runs: list[Callable[[], object]] = [lambda session=session, feed=feed: session.run(None, feed)]  # type: ignore[misc]
            runs += [
                lambda model=model, feed=feed: model.run(feed)  # type: ignore[misc]
                for model in models.values()
            ]
            times = best(runs, seconds)
            cells = [f"{name}, {frames}", *(f"{1e3 * time:,.0f} µs" for time in times)]
            yield f"| {' | '.join(cells)} | {ratios['int16']:.1f} / {ratios['int8']:.1f} |"


def drawn(count: int, seconds: float) -> str:
    """Return a summary of random shapes without tuning."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"int16": [], "int8": []}
    for _ in range(count):
        T, B = int(rng.choice([1, 5, 20, 100])), int(rng.choice([1, 1, 2, 8, 32]))
        I, H = (int(size) for size in rng.integers(1, 600, 2))
        times = measure((T, B, I, H), seconds, False)[0]
        found["int16"].append(times["float32"] / times["int16"])
        found["int8"].append(times["float32"] / times["int8"])
    called = {"int16": "W8A16", "int8": "W8A8"}
    return ". ".join(f"{called[name]}: {summary(ratios)}" for name, ratios in found.items())


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drawn", type=int, default=0, help="number of additional random shapes")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each line")
    parser.add_argument("--page", action="store_true", help=f"write benchmarks/results/{PAGE.name}")
    options = parser.parse_args()
    onegru.set_num_threads(1)
    torch.set_num_threads(1)
    products = onegru.targets().int8
    place = f"{machine()}{'' if products == 'simd' else f', {products.upper()}'}"
    versions = (
        f"PyTorch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}, onegru {onegru.__version__}."
    )
    lines = [f"## {place}", "", versions, ""]
    heading = ["shape", "float32", "bfloat16", "W8A16", "W8A8", "dB", *PEERS]
    lines += [f"| {' | '.join(heading)} |", f"| --- {'| ---: ' * (len(heading) - 1)}|"]
    print("\n".join(lines))
    sequences = [(100, B, H, H) for H, B in itertools.product((64, 128, 256, 512, 1024), (1, 8, 64))]
    for case in [*sequences, *((1, 1, H, H) for H in (64, 256, 512, 1024))]:
        lines.append(row(case, options.seconds, products))
        print(lines[-1], flush=True)
    if options.drawn:
        lines += ["", f"{options.drawn} random shapes. {drawn(options.drawn, options.seconds / 4)}."]
        print(lines[-1])
    lines += ["", "The table shows the time of one run of whole float32 models, with a number of frames.", ""]
    for line in whole_models(options.seconds):
        lines.append(line)
        print(line, flush=True)
    if options.page:
        write_page(PAGE, INTRODUCTION, place, "\n".join(lines), REASONS)
        draw_page(PAGE, (0, 4), "", "float32 (W8A8, one thread)", PAGE.with_name("eight-bits.png"))


if __name__ == "__main__":
    main()
