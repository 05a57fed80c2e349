"""Check in a separate process that OpenVINO reports the errors of onegru's operators.

Usage: python -m tests.support.machine.openvino_refusals FOLDER THREADS CPUS OPERATOR
It prints each error that was not reported correctly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS, CPUS = int(sys.argv[2]), int(sys.argv[3])
if CPUS == 1:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np  # noqa: E402 - after the CPUs are set
import openvino  # noqa: E402
import pyarrow  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

import onegru  # noqa: E402
from onegru.runtimes import openvino_replace  # noqa: E402
from onegru.scoring import Scorer  # noqa: E402
from tests.support.files.openvino_models import H, I, draw, save, weights  # noqa: E402

T = 4
GOOD = draw(1, T, I)
BAD = GOOD + np.float32(100)
STATE = np.zeros((1, 1, H), np.float32)


def write(path: Path, fault: str, *, is_stateful: bool = True) -> Path:
    """Write a model that rejects numbers above 50: as lengths, as their count, or as the state's rows."""
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    h = ops.parameter([1, 1, H], np.float32, name="h")
    x.output(0).set_names({"x"})
    h.output(0).set_names({"h"})
    all_axes = ops.constant(np.array([0, 1, 2]))
    extra = ops.convert(ops.greater(ops.reduce_max(x, all_axes, False), ops.constant(np.float32(50))), "i64")
    sizes = [
        ops.gather(ops.shape_of(x), ops.constant(np.array([place])), ops.constant(np.int64(0)))
        for place in (0, 1)
    ]
    more = [ops.add(size, extra) for size in sizes]
    batch, steps = sizes
    ones = ops.constant(np.array([1, 1]))
    zeros = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, ops.constant(np.array([1, H]))], 0))
    state = h if is_stateful else zeros
    if fault == "state":
        state = ops.tile(state, ops.concat([ops.add(extra, ops.constant(np.array([1]))), ones], 0))
    lengths = ops.broadcast(more[1] if fault == "beyond" else steps, more[0] if fault == "number" else batch)
    lengths = ops.minimum(lengths, ops.constant(np.int64(1000)))  # otherwise they are known to be all steps
    gru = ops.gru_sequence(x, state, lengths, *weights(I), H, "forward")
    y = gru.output(0)
    if fault == "own":  # an OpenVINO layer whose sizes do not match
        shape = ops.concat([more[0], ops.constant(np.array([H])), steps], 0)
        y = ops.reshape(y, shape, False).output(0)
    return save(path, {"y": y, "last": gru.output(1)}, [x, h] if is_stateful else [x])


def check_refusal(way: str, fault: str, run: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        run()
    except errors as error:
        words = {"own": "fail", "state": "state"}.get(fault, "sequence_lengths: ")
        if words not in str(error):
            print(way, fault, "says", error)
    else:
        print(way, fault, "is not refused")


def replaced(path: Path, fault: str) -> None:
    """Check a program with `replace_grus`, which must see an exception, or NaN and a message."""
    core = openvino.Core()
    model = core.read_model(path)
    onegru.openvino.replace_grus(model)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    names = sorted({name for port in model.inputs for name in port.get_names()})
    for x in (GOOD, BAD, GOOD, BAD):
        onegru.openvino.errors()
        raised = False
        try:
            request.infer({name: {"x": x, "h": STATE}[name] for name in names})
        except RuntimeError as error:
            raised = "OneGRU node" in str(error)
        y, last = (request.get_output_tensor(index).data for index in (0, 1))
        lost = onegru.openvino.errors()
        if x is GOOD and (raised or lost or np.isnan(y).any()):
            print("replace_grus", fault, "refuses what is legal", raised, lost)
        visible = raised or (lost and y.size and np.isnan(y).all() and np.isnan(last).all())
        if x is BAD and not visible:
            print("replace_grus", fault, "is not refused", lost, y)
        if THREADS == 1 and x is BAD and (raised or len(lost) != 1):
            print("replace_grus", fault, "depends on OpenVINO's exceptions", raised, lost)


def main() -> None:
    if sys.argv[4] == "Python":
        openvino_replace._factory = lambda: None  # type: ignore[assignment]
    onegru.set_num_threads(THREADS)
    errors = (onegru.SpecError, onegru.FormatError)
    for fault in ("beyond", "number", "state", "own"):
        path = write(Path(sys.argv[1]) / f"{fault}.xml", fault)
        bad: dict[str, Any] = {"x": BAD, "h": STATE}
        good = {**bad, "x": GOOD}
        model = onegru.load(path)
        for _ in range(3):  # first for any sizes, then for these sizes
            model.run(good)
            check_refusal("load", fault, lambda: model.run(bad), *errors)  # noqa: B023 - called at once
        check_refusal("trace", fault, lambda: model.trace(bad), *errors)  # noqa: B023
        stream = model.stream({"last": "h"})
        stream.step({"x": GOOD})
        check_refusal("stream", fault, lambda: stream.step({"x": BAD}), *errors)  # noqa: B023
        check_refusal("verify", fault, lambda: onegru.verify(model, bad, runtimes=["openvino"]), *errors)  # noqa: B023
        table = pyarrow.table({"events": [row.reshape(-1, I).tolist() for row in (GOOD, BAD)]})
        stateless = write(path.with_stem(f"{fault}-stateless"), fault, is_stateful=False)
        scorer = Scorer(str(stateless), inputs={"x": "events"})
        check_refusal("score", fault, lambda: scorer(table), *errors)  # noqa: B023
        if fault != "own":
            replaced(path, fault)


if __name__ == "__main__":
    main()
