"""What reads the files: a separate process that may crash, hang or take all of the memory it is allowed.

A case is KIND:SEED:NUMBER. Cases come in on standard input, a line each, and so does the outcome go out.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import re
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy  # noqa: F401 - later, the limit of memory may prevent that

import onegru
from onegru.cli.app import app
from onegru.models.inputs.random import draw_inputs
from onegru.models.inputs.sizes import shapes_of, size_plans
from onegru.models.inspect import report
from tests.fuzz.corpus import PROBE, Files
from tests.fuzz.mutate import HARM, SECRET, mutated

__all__ = ["MEGABYTES", "judge_files", "judged", "main", "prepare"]

#: What a case may take, in MB of memory; what the process can take at all is twice that.
MEGABYTES = 1000

# The folder of the package, as the frames of its functions name it.
_PACKAGE = f"{Path(onegru.__file__).parent}{os.sep}"

# How other libraries say that there is no memory. A file that makes them try is a fault, unless the run
# of a model computes sizes ("OpenVINO fails"): those are the model's own business.
_NO_MEMORY = re.compile(r"^(?!.* fails \().*(bad_alloc|allocate|[Nn]ot enough memory|out of memory)")


class Fault(Exception):
    """Something that no file may bring about."""


def _read(rng: Random, kind: str, path: Path) -> str:
    """Read the file in one of the ways that there are for its kind; how it ended, in a word."""
    if kind in ("onnx", "xml", "bin"):
        return _model(rng, path)
    if kind in ("npz", "npy", "pb"):
        return _arrays(rng, path)
    if rng.random() < 0.5:
        return _command("convert", path, _target(rng))
    layers = onegru.load_layers(path)
    return f"read {'a layer' if layers else 'nothing'}"


def _model(rng: Random, path: Path) -> str:
    match rng.randrange(9):
        case 0:
            return _command("inspect", path, *rng.choice(((), ("--json",))))
        case 1:
            onegru.load_layers(path)
            return "read a layer"
        case 2 | 3:
            name = rng.choice(("convert", "rewrite", "quantize", "stream"))
            target = _target(rng) if name == "convert" else f"out{path.suffix}"
            no_check = "--no-check" if name in ("rewrite", "stream") and rng.random() < 0.3 else None
            return _command(name, path, target, no_check)
        case 4:
            return _command("fuse", path, f"out{path.suffix}", rng.choice(("--no-check", None)))
    model = onegru.load(path)
    report(model)
    repr(model.gru_nodes)
    infos = [info for info in model.inputs if not info.optional]
    shapes = shapes_of(infos, {}, lambda info, axis: max(next(size_plans(model))), "dims")
    if sum(map(math.prod, shapes.values())) > 10**6:
        return "loaded"
    inputs = draw_inputs(model, 0, next(size_plans(model))).inputs
    if rng.random() < 0.3 and model.graph.states:
        model.stream(dims={}).step(
            {k: v for k, v in inputs.items() if k not in dict(model.graph.states).values()}
        )
        return "streamed"
    model.run(inputs)
    return "ran"


def _target(rng: Random) -> str:
    return rng.choice(("out.onnx", "out.xml", "out.safetensors"))


def _arrays(rng: Random, path: Path) -> str:
    if path.suffix == ".npz" and rng.random() < 0.3:
        trace = onegru.reports.GateTrace.load(path)
        trace.to_html()
        trace._repr_html_()
        return "read gates"
    if path.suffix == ".npz" and rng.random() < 0.5:
        stream = onegru.load(PROBE).stream({"Z": "h"})
        stream.load(path)
        stream.step({"X": np.zeros((4, 2, 5), np.float32)})
        return "streamed"
    name = "Xh" if path.suffix == ".npz" else rng.choice("Xh")
    given = str(path) if name == "Xh" else f"{name}={path}"
    open_sizes = {"X": ("batch=2",), "h": ("time=4", "batch=2"), "Xh": ()}[name]  # of inputs that are drawn
    return _command(
        "run", PROBE, "-i", given, "--random", "0", *(item for size in open_sizes for item in ("--dim", size))
    )


def _command(*arguments: str | Path | None) -> str:
    """A command of the command line, without what makes one line of an error."""
    given = [str(argument) for argument in arguments if argument is not None]
    code = app(given, standalone_mode=False)
    if code not in (None, 0, 1):
        raise Fault(f"exit code {code}")
    return f"{given[0]} {'differs' if code else 'ran'}"


# Outcomes


def judged(case: str, events: list[str]) -> dict[str, Any]:
    """How a case ended, in the current folder, and what is wrong with that, if anything."""
    kind = case.partition(":")[0]
    error, found = judge_files(kind, mutated(Random(case), kind), Random(f"{case}:operation"), events)
    if error is not None:
        lines = traceback.format_exception(error)
        found |= {"fault": _signature(error), "trace": "".join(lines)}
    return found


def judge_files(
    kind: str, files: Files, rng: Random, events: list[str]
) -> tuple[BaseException | None, dict[str, Any]]:
    """Read files in the current folder: what is wrong with how that ended, if anything; and how it did."""
    for path in Path().iterdir():
        path.unlink()
    for name, data in files.items():
        Path(name).write_bytes(data)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory, from here on
    before, before_of_children = _status("VmRSS"), _of_children()
    events.clear()
    outcome = ""
    error: BaseException | None = None
    try:
        outcome = _read(rng, kind, Path(next(iter(files))))
    except (onegru.OneGRUError, OSError) as refusal:
        outcome = type(refusal).__name__
        if _NO_MEMORY.search(str(refusal)):
            error = Fault(f"memory that there is not\n{refusal}").with_traceback(refusal.__traceback__)
        elif "\n" in str(refusal):
            error = Fault(f"a message of several lines\n{refusal}").with_traceback(refusal.__traceback__)
        elif isinstance(refusal, OSError) and refusal.filename is None:
            error = Fault(f"an OSError that names no file\n{refusal}").with_traceback(refusal.__traceback__)
    except BaseException as other:
        error, outcome = (None, "usage") if hasattr(other, "format_message") else (other, "")
    if events:
        error = Fault(f"{events[0]}, which no file may bring about")
    megabytes = (_status("VmHWM") - before) // 1000
    if _of_children() > before_of_children:
        megabytes = max(megabytes, _of_children() // 1000)
    if error is None and megabytes > MEGABYTES:
        error = Fault(f"over {MEGABYTES} MB of memory\n{megabytes}")
    return error, {"outcome": outcome or "failed", "megabytes": megabytes}


def _signature(error: BaseException) -> str:
    """What distinguishes faults: the kind of error, and the last place in onegru that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGE)]
    place = f" in {Path(frames[-1].filename).name}, {frames[-1].name}" if frames else ""
    words = str(error).partition("\n")[0] if isinstance(error, Fault) else type(error).__name__
    return words + place


def _status(key: str) -> int:
    """A number of kB that the system has on this process."""
    text = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{key}:")))


def _of_children() -> int:
    """The most kB of memory that any child has used so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _watcher(events: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    harmful = {"os.system", "os.mkdir", "os.exec", "os.fork", "os.remove"}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        named = str(arguments[0]) if arguments else ""
        if event == "open" and named.endswith((Path(SECRET).name, "passwd")):
            events.append(f"opens {named}")
        elif event in harmful and named.endswith((HARM, "passwd", Path(SECRET).name)):
            events.append(f"{event} of {named}")

    return watch


def main() -> None:
    """Read cases, in the folder that the command line names, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a file, to which libraries may print what they like
    faulthandler.enable()
    events = prepare(Path(sys.argv[1]))
    for case in map(str.strip, sys.stdin):
        print(json.dumps(judged(case, events)), file=answers, flush=True)


def prepare(folder: Path) -> list[str]:
    """Limit this process, and go to the folder where cases are read; what it does there that is harmful."""
    warnings.simplefilter("ignore")
    events: list[str] = []
    sys.addaudithook(_watcher(events))
    limit = _status("VmSize") * 1024 + 2 * MEGABYTES * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    Path(SECRET).write_bytes(bytes(2**16))
    return events


if __name__ == "__main__":
    main()
