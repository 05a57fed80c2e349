"""`make fuzz`: broken files of every kind that is read, for a given time; faults are kept and printed.

Whatever a file says, onegru reads it or refuses it with its own error: any other exception, a crash,
more than 20 s or more than 1 GB of memory is a fault. Half of the time files are "drawn" from only the seed,
so that each case can be run again; the other half they are "guided" by the code that those before them reach.

`make fuzz-native` does the same to native code, by layers and nodes made of bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import onegru
from onegru.core.spec import DIRECTIONS
from tests.fuzz.corpus import KINDS, NEEDS, corpus
from tests.fuzz.guided import LONGEST, seeds
from tests.fuzz.libfuzzer import Fuzzer, campaign
from tests.support.layers import make_gru

__all__ = ["main"]

#: Seconds that a case may take.
PATIENCE = 20


def _bytes() -> list[bytes]:
    return [Random(n).randbytes(256) for n in range(100)]


def _files() -> list[bytes]:
    """Layers as libonegru reads them."""
    files = []
    for number, (direction, storage) in enumerate(
        product(DIRECTIONS, (None, "bfloat16", "int8", "int8_g32"))
    ):
        layer = make_gru(number, inputs=3 + 33 * (number % 2), hidden=1 + number % 3, direction=direction)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "layer.safetensors")
            onegru.save_layers(layer.with_storage(storage), path)
            files.append(path.read_bytes())
    return files


# The programs that `make fuzz-native` builds. Any bytes say something to the first two.
_NATIVE: Mapping[str, Fuzzer] = {
    name: Fuzzer([f"build/fuzzers/onegru_fuzz_{name}"], longest, seeds)
    for name, longest, seeds in (("kernels", 512, _bytes), ("nodes", 512, _bytes), ("files", 8192, _files))
}

# Where files that bring about a fault are kept, and how many of those that bring about the same.
_KEPT, _OF_EACH = Path("build/fuzz"), 3


class Worker:
    """The process that reads the files, started again when it has ended."""

    def __init__(
        self, command: Sequence[str] = ("-m", "tests.fuzz.worker"), patience: float = PATIENCE
    ) -> None:
        self._command, self._patience = command, patience
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it stays open)
        self._place = tempfile.TemporaryDirectory(prefix="onegru-fuzz-")
        self.folder = Path(self._place.name) / "case"
        self.folder.mkdir()
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process, and remove what it left."""
        self._end()
        self._log.close()
        self._place.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def judge(self, case: str) -> dict[str, Any]:
        """How a case ends: `outcome`, `megabytes`, and where there is a fault `fault` and `trace`."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, *self._command, self.folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
            self._ask("npy:0:0", 5 * PATIENCE)  # all is imported
        self._log.truncate(0)
        self._log.seek(0)
        line = self._ask(case, self._patience)
        if line:
            answer: dict[str, Any] = json.loads(line)
            if "fault" in answer:
                self._end()  # what it has left may be anything
            return answer
        assert self._process is not None
        hangs = self._process.poll() is None and line is None
        if hangs:
            self._process.send_signal(signal.SIGABRT)  # which prints where it is
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        self._end()
        self._log.seek(0)
        trace = self._log.read().decode(errors="replace").partition("Extension modules:")[0]
        frames = re.findall(rf'"{re.escape(_package())}.*?(\w+\.py)", line [0-9]+ in (\w+)', trace)
        place = f" in {', '.join(frames[0])}" if frames else ""
        end = f"over {self._patience} s" if hangs else f"ended with {code}"
        return {"outcome": "failed", "megabytes": 0, "fault": f"{end}{place}", "trace": trace}

    def _ask(self, case: str, patience: float) -> str | None:
        """The line that answers; empty where the process has ended, None where it takes too long."""
        assert self._process is not None and self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(case, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return ""
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        return self._process.stdout.readline() if ready else None


def _package() -> str:
    """The folder of the package, as faulthandler prints it."""
    spec = find_spec("onegru")
    assert spec is not None and spec.origin is not None
    return f"{Path(spec.origin).parent}{os.sep}".encode("ascii", "backslashreplace").decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if there were faults."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=10, help="how long (default 10)")
    parser.add_argument("--cases", type=int, help="how many drawn of each kind, however long they take")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other files (default 0)")
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, *_NATIVE), help="default all")
    ways = ("drawn", "guided", "native")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=ways,
        default=ways[:2],
        help="default drawn guided, half of the time each",
    )
    parser.add_argument("--replay", metavar="KIND:SEED:NUMBER", help="run one drawn case again")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        with closing(Worker()) as worker:
            answer = worker.judge(options.replay)
            print(answer.pop("trace", ""), answer, _keep(options.replay, worker.folder), sep="\n")
        return int("fault" in answer)
    kinds = [kind for kind in KINDS if kind in (options.kinds or KINDS) and corpus(kind)]
    for kind in sorted({*(options.kinds or NEEDS)} & {*NEEDS} - {*kinds}):
        print(f"{kind}: left out, as {NEEDS[kind]} is not installed")
    minutes = options.minutes / len(options.ways)
    status = 0
    if "drawn" in options.ways:
        with closing(Worker()) as worker:
            status |= _campaign(worker, kinds.copy(), minutes, options.cases, options.seed)
    if "guided" in options.ways and find_spec("atheris") is None:
        print("guided: left out, as atheris is not installed")
    elif "guided" in options.ways:
        status |= campaign({kind: _guided(kind) for kind in kinds}, minutes)
    if "native" in options.ways:
        status |= campaign({k: v for k, v in _NATIVE.items() if k in (options.kinds or _NATIVE)}, minutes)
    return status


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 < (minutes := float(text)) < math.inf:
            return minutes
    raise argparse.ArgumentTypeError(f"{text}; must be a finite number above 0")


def _guided(kind: str) -> Fuzzer:
    command = [sys.executable, "-m", "tests.fuzz.target", kind]
    return Fuzzer(command, LONGEST, lambda: seeds(kind), may_crash=kind in NEEDS)


def _campaign(worker: Worker, kinds: list[str], minutes: float, most: int | None, seed: int) -> int:
    spent: dict[str, float] = dict.fromkeys(kinds, 0.0)
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    faults: Counter[str] = Counter()
    memory = dict.fromkeys(kinds, 0)
    start = shown = time.monotonic()
    while kinds:
        kind = min(kinds, key=spent.__getitem__)  # each gets as much time
        number = outcomes[kind].total()
        if (number >= most) if most else time.monotonic() - start > 60 * minutes:
            kinds.remove(kind)
            continue
        began = time.monotonic()
        case = f"{kind}:{seed}:{number}"
        answer = worker.judge(case)
        spent[kind] += time.monotonic() - began
        outcomes[kind][answer["outcome"]] += 1
        memory[kind] = max(memory[kind], answer["megabytes"])
        if "fault" in answer:
            _tell(case, answer, faults, worker.folder)
        if time.monotonic() - shown > (1 if sys.stderr.isatty() else 30):
            shown = time.monotonic()
            cases = sum(counts.total() for counts in outcomes.values())
            rate = f"{cases} cases, {cases / (shown - start):.0f}/s"
            words = f"{shown - start:.0f} s, {kind}: {rate}, {faults.total()} faults"
            print(f"\r{words}  ", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    print("\nkind          cases   /s   MB  outcomes")
    for kind, counts in outcomes.items():
        words = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        speed = counts.total() / max(spent[kind], 1e-9)
        print(f"{kind:11} {counts.total():7} {speed:4.0f} {memory[kind]:4}  {words}")
    print(
        f"{faults.total()} faults"
        + "".join(f"\n{count:6} × {words}" for words, count in faults.most_common())
    )
    return int(bool(faults))


def _tell(case: str, answer: dict[str, Any], faults: Counter[str], folder: Path) -> None:
    """Keep and print the first faults of a kind."""
    words = answer["fault"]
    faults[words] += 1
    if faults[words] <= _OF_EACH:
        lines = answer["trace"].strip().splitlines()
        last = "\n    ".join(lines[:12] if lines and lines[0].startswith("Fatal") else lines[-8:])
        again = f'make fuzz ARGS="--replay {case}"'
        print(
            f"\n{words}\n  case {case}, kept in {_keep(case, folder)}\n  again: {again}\n    {last}",
            flush=True,
        )


def _keep(case: str, folder: Path) -> Path:
    kept = _KEPT / case.replace(":", "-")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)
    return kept


if __name__ == "__main__":
    sys.exit(main())
