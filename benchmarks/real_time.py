"""A million steps of libonegru's streams: their times, and that they make no system calls."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import onegru

ROOT = Path(__file__).resolve().parents[1]
SIZES = ((16, 48), (40, 128), (64, 256))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of each layer")
    steps = parser.parse_args().steps
    built = sorted(ROOT.glob("build/module-*/onegru_real_time"), key=lambda path: path.stat().st_mtime)
    if not built:
        raise SystemExit("onegru_real_time: missing; `make test` builds it, on Linux")
    command = [built[-1], built[-1].with_name("libonegru.so")]
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "layer.safetensors")
        for I, H in SIZES:
            W, R = ((rng.standard_normal((1, 3 * H, K)) / np.sqrt(H)).astype(np.float32) for K in (I, H))
            for storage in (None, "int8"):
                layer = onegru.GRU(W, R, weight_storage=storage)
                onegru.save_layers(layer, path)
                done = subprocess.run(
                    [*command, path, str(steps)], check=False, capture_output=True, text=True
                )
                print(f"{I} → {H}, {storage or 'float32'}: {done.stdout or done.stderr}", end="", flush=True)
                if done.returncode != 0:
                    raise SystemExit("It must need none.")


if __name__ == "__main__":
    main()
