"""Write models with loops of GRUCell layers, like OpenVINO's Model Optimizer from 2020 to 2022."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset8 as ops

import onegru
from onegru.core.dtypes import Array

T, B, I, H = 5, 2, 3, 4


def draw(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True)
class Looped:
    """Variant of a loop over a GRU's steps.

    Attributes:
        form: "TensorIterator", "Loop", or "gathers" for a Loop that gathers each step by its index.
        axis: the time axis.
        reverse: whether the first step is the last in time.
        outputs: "last", "all" or "both".
        open: whether the sizes of rows and steps are dynamic.
        moves: "Squeeze" or "Reshape", which removes the time axis of a slice.
        after: whether the reset gate acts after the recurrent product.
        state: "input", "zero", or "deep" for an input that has one more axis around and in the loop.
        attention: whether each step has a score.
        outside: whether weights come from around the loop.
        steps: the number of steps.
        seed: the seed of the weights.
        fault: another operation in the loop, so that it is not a sequence of cells.
    """

    form: str = "TensorIterator"
    axis: int = 1
    reverse: bool = False
    outputs: str = "both"
    open: bool = True
    moves: str = "Squeeze"
    after: bool = False
    state: str = "input"
    attention: bool = False
    outside: bool = False
    steps: int = T
    seed: int = 3
    fault: str = ""


#: Other operations of a loop, with the variants that support them.
FAULTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("scaled input", "scaled state", "scaled output"), ("TensorIterator", "Loop", "gathers")),
    **dict.fromkeys(("intermediate output", "computed weights"), ("TensorIterator", "Loop", "gathers")),
    **dict.fromkeys(("stride", "part", "start", "reset to the first"), ("TensorIterator",)),
    **dict.fromkeys(("same input", "fewer steps", "condition"), ("Loop",)),
}


def constant(*values: int) -> Any:
    return ops.constant(np.array(values, np.int64))


def weights(how: Looped) -> dict[str, Any]:
    columns = (4 if how.after else 3) * H
    shapes = {"W": (3 * H, I), "R": (3 * H, H), "B": (columns,)}
    return {name: draw(*shape, seed=how.seed + place) for place, (name, shape) in enumerate(shapes.items())}


def size_of(value: Any, axis: int) -> Any:
    return ops.gather(ops.shape_of(value), constant(axis), ops.constant(np.int64(0)))


def sizes(how: Looped, width: int) -> list[int]:
    """Return the sizes of tensors with a time axis."""
    b, t = (-1, -1) if how.open else (B, how.steps)
    return [b, t, width] if how.axis == 1 else [t, b, width]


def inputs(how: Looped) -> list[Any]:
    b = -1 if how.open else B
    found = [ops.parameter(sizes(how, I), np.float32, name="x")]
    if how.state != "zero":
        found.append(ops.parameter([b, 1, H] if how.state == "deep" else [b, H], np.float32, name="h"))
    if how.attention:
        found.append(ops.parameter(sizes(how, 1), np.float32, name="a"))
    return found


def zeros(how: Looped, x: Any) -> Any:
    if not how.open:
        return ops.constant(np.zeros((B, H), np.float32))
    return ops.broadcast(ops.constant(np.float32(0)), ops.concat([size_of(x, 1 - how.axis), constant(H)], 0))


def loop(how: Looped, given: list[Any]) -> dict[str, Any]:
    """Return the outputs of a loop over inputs from `inputs`."""
    x, *rest = given
    h = zeros(how, x) if how.state == "zero" else rest[0]
    b = -1 if how.open else B
    part = 2 if how.fault == "part" else 1
    is_gathered = how.form == "gathers"
    inner_h = ops.parameter([b, 1, H] if how.state == "deep" else [b, H], np.float32)
    body: list[Any] = [inner_h]

    def step(width: int, value: Any) -> tuple[Any, Any]:
        """Return the body's input for a value, and the cell's input from it."""
        if is_gathered or how.fault == "same input":
            inner = ops.parameter(sizes(how, width), np.float32)
            at = number if is_gathered else ops.constant(np.int64(0))
            if is_gathered and how.reverse:
                at = ops.subtract(ops.constant(np.int64(how.steps - 1)), at)
            return inner, ops.gather(inner, at, ops.constant(np.int64(how.axis)))
        shape = [b, part, width] if how.axis == 1 else [part, b, width]
        inner = ops.parameter(shape, np.float32)
        if part == 2:
            return inner, ops.gather(inner, ops.constant(np.int64(1)), ops.constant(np.int64(how.axis)))
        if how.moves == "Squeeze":
            return inner, ops.squeeze(inner, constant(how.axis))
        return inner, ops.reshape(inner, constant(-1, width), False)

    number = ops.parameter([], np.int64)
    inner_x, step_x = step(I, x)
    body.append(inner_x)
    sliced = [(inner_x, x)]
    if how.fault == "scaled input":
        step_x = ops.multiply(step_x, ops.constant(np.float32(0.5)))
    state = ops.squeeze(inner_h, constant(1)) if how.state == "deep" else inner_h
    if how.fault == "scaled state":
        state = ops.multiply(state, ops.constant(np.float32(0.5)))
    arrays = weights(how)
    outer = [ops.constant(array) for array in arrays.values()]
    inside: list[Any] = outer
    if how.outside or how.fault == "computed weights":
        inside = [ops.parameter(array.shape, np.float32) for array in arrays.values()]
        body += inside
    if how.fault == "computed weights":
        one = ops.reduce_max(ops.convert(ops.shape_of(x), "f32"), constant(0))
        outer = [ops.multiply(item, ops.divide(one, one)) for item in outer]
    if how.attention:
        inner_a, score = step(1, rest[-1])
        body.append(inner_a)
        sliced.append((inner_a, rest[-1]))
        (made_by,) = (c for c in onegru.openvino.extensions() if c.operator.name == "AUGRUCell")
        cell = made_by([step_x, state, *inside, score], hidden_size=H)
    else:
        cell = ops.gru_cell(step_x, state, *inside, H, linear_before_reset=how.after)
    cell.set_friendly_name("decoder")
    new: Any = cell
    if how.fault == "scaled output":
        new = ops.multiply(cell, ops.constant(np.float32(0.5)))
    if how.state == "deep":
        new = ops.unsqueeze(new, constant(1))
    if how.moves == "Squeeze":
        stacked = ops.unsqueeze(cell, constant(how.axis))
    else:
        target = [-1 if how.open else B] * 2 + [H]
        target[how.axis] = 1
        stacked = ops.reshape(cell, constant(*target), False)
    results = [ops.result(value) for value in (new, stacked, step_x)]
    if how.form == "TensorIterator":
        made: Any = ops.tensor_iterator()
        made.set_body(openvino.Model(results, body, "body"))
    else:
        steps: Any = ops.constant(np.int64(how.steps - (how.fault == "fewer steps")))
        if how.open and how.fault != "fewer steps":
            steps = ops.squeeze(size_of(x, how.axis), constant(0))
        going: Any = ops.constant(np.array(True))
        if how.fault == "condition":
            going = ops.less(ops.reduce_max(inner_h, constant(0, 1)), ops.constant(np.float32(0)))
        body += [number] if is_gathered else []
        made = ops.loop(steps, ops.constant(np.array(True)))
        made.set_function(openvino.Model([*results, ops.result(going)], body, "body"))
        made.set_special_body_ports([len(body) - 1 if is_gathered else -1, len(results)])
    for inner, value in sliced:
        if is_gathered or how.fault == "same input":
            made.set_invariant_input(inner, value.output(0))
            continue
        start, stride, end = (-1, -part, 0) if how.reverse else (0, part, -1)
        start, stride = start + (how.fault == "start"), stride * (1 + (how.fault == "stride"))
        made.set_sliced_input(inner, value.output(0), start, stride, part, end, how.axis)
    if how.fault == "reset to the first":
        made.set_invariant_input(inner_h, h.output(0))
    else:
        after = cell if how.state != "deep" and how.fault != "scaled output" else new
        made.set_merged_input(inner_h, h.output(0), after.output(0))
    if inside is not outer:
        for inner, value in zip(inside, outer, strict=True):
            made.set_invariant_input(inner, value.output(0))
    found = {}
    if how.outputs != "all":
        found["last"] = made.get_iter_value(new.output(0), -1)
    if how.outputs != "last":
        cut = (-1, -1, 1, 0) if how.reverse and how.form == "TensorIterator" else (0, 1, 1, -1)
        found["all"] = made.get_concatenated_slices(stacked.output(0), *cut, how.axis)
    if how.fault == "intermediate output":
        found["inner"] = made.get_iter_value(step_x.output(0), -1)
    return found


def model_of(outputs: Mapping[str, Any], parameters: list[Any]) -> Any:
    results = []
    for name, value in outputs.items():
        value.get_tensor().set_names({name})
        results.append(ops.result(value))
    return openvino.Model(results, parameters, "m")


def feeds(how: Looped, seed: int = 50) -> dict[str, Array]:
    shape = [B, how.steps] if how.axis == 1 else [how.steps, B]
    found = {"x": draw(*shape, I, seed=seed)}
    if how.state != "zero":
        found["h"] = draw(*((B, 1, H) if how.state == "deep" else (B, H)), seed=seed + 1)
    if how.attention:
        found["a"] = np.abs(draw(*shape, 1, seed=seed + 2))
    return found


def expected(how: Looped, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return the expected outputs, computed cell by cell."""
    h: Any = given["h"].reshape(B, H) if "h" in given else np.zeros((B, H), np.float32)
    states = []
    for t in range(how.steps)[:: -1 if how.reverse else 1]:
        X, arrays = given["x"].take(t, how.axis), weights(how)
        if how.attention:
            h = onegru.augru_cell(X, h, **arrays, A=given["a"].take(t, how.axis), hidden_size=H)
        else:
            h = onegru.gru_cell(X, h, **arrays, hidden_size=H, linear_before_reset=how.after)
        states.append(h)
    in_time = states[::-1] if how.reverse and how.form == "TensorIterator" else states
    found = {"last": h.reshape(B, 1, H) if how.state == "deep" else h, "all": np.stack(in_time, how.axis)}
    return {name: found[name] for name in found if how.outputs in (name, "both")}
