"""Write the function of an AUGRU node as text in ONNX's syntax: a Scan for each direction.

The types follow the inputs. ONNX functions cannot depend on which inputs or attributes a node has, so there
is one function for each case. Each has its own domain: ONNX Runtime 1.25 confuses functions that differ only
in their overloads.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Mapping, Sequence
from string import Template
from typing import Any

import onnx.parser
from onnx import FunctionProto

from onegru.core.errors import SpecError
from onegru.core.spec import reversed_directions
from onegru.formats.onnx.writing.gru_step import gru_step
from onegru.operators.attributes import read_attributes
from onegru.operators.lowering import read_activations, read_clip
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS, AUGRU_OPSET

#: Optional inputs, and the optional output: the last one, because only trailing outputs can be missing.
OPTIONAL = (*(port.name for port in AUGRU.inputs if not port.required), AUGRU.outputs[-1].name)

# The parts of a function. A line with a condition exists only if the condition holds. `$d` is the index of a
# direction. Nothing is transposed over time, because Scan has axes.
_START = """
as_rows = Constant <value_ints = [-1, 0]> ()
axis_of_Y = Constant <value_ints = [$Y_axis]> ()
axis_of_h = Constant <value_ints = [$h_axis]> ()
H = Shape <start = 2, end = 3> (R)
two_H = Add (H, H)
zr_and_n = Concat <axis = 0> (two_H, H)
rows = Shape <start = $batch, end = $batch_end> (X)  # if no initial_h
state_shape = Concat <axis = 0> (rows, H)  # if no initial_h
zeros = Expand ($zero, state_shape)  # if no initial_h
as_column = Constant <value_ints = [-1, 1]> ()  # if lengths
short_lengths = Reshape (sequence_lens, as_column)  # if lengths
lengths = Cast <to = 7> (short_lengths)  # if lengths
first = Constant <value_int = 0> ()  # if lengths
following = Constant <value_int = 1> ()  # if lengths
T_list = Shape <start = $time, end = $time_end> (X)  # if lengths
T = Squeeze (T_list)  # if lengths
steps = Range (first, T, following)  # if lengths
is_filled = Less (first, lengths)  # if lengths
"""
_DIRECTION = """
index_$d = Constant <value_int = $d> ()
W_$d = Gather <axis = 0> (W, index_$d)
W_T_$d = Transpose <perm = [1, 0]> (W_$d)
R_$d = Gather <axis = 0> (R, index_$d)
R_T_$d = Transpose <perm = [1, 0]> (R_$d)
R_zr_$d, R_n_$d = Split <axis = 1> (R_T_$d, zr_and_n)  # if before
B_$d = Gather <axis = 0> (B, index_$d)  # if B
Wb_$d, Rb_$d = Split <axis = 0 $halves> (B_$d)  # if B
b_$d = Identity (Wb_$d)  # if B and after
b_$d = Add (Wb_$d, Rb_$d)  # if B and before
X_W_$d = MatMul (X, W_T_$d)  # if B
xs_$d = Add (X_W_$d, b_$d)  # if B
xs_$d = MatMul (X, W_T_$d)  # if no B
start_$d = Gather <axis = $h_axis> (initial_h, index_$d)  # if initial_h
state_$d = Reshape (start_$d, as_rows)  # if initial_h
state_$d = Reshape (zeros, as_rows)  # if no initial_h
end_$d, ys_$d = Scan <
    num_scan_inputs = 2, scan_input_axes = [$time, $time],  # if no lengths
    num_scan_inputs = 3, scan_input_axes = [$time, $time, 0],  # if lengths
    scan_input_directions = [$way, $way],  # if no lengths
    scan_input_directions = [$way, $way, $way],  # if lengths
    scan_output_axes = [$time], scan_output_directions = [$way],
    body = step_$d (h_$d, x_$d, a_$d) => (new_$d, y_$d) {  # if no lengths
    body = step_$d (h_$d, x_$d, a_$d, t_$d) => (kept_$d, y_$d) {  # if lengths
        x_zr_$d, x_n_$d = Split <axis = 1> (x_$d, zr_and_n)
        h_zr_$d = MatMul (h_$d, R_zr_$d)  # if before
        h_R_$d = MatMul (h_$d, R_T_$d)  # if after
        h_R_b_$d = Add (h_R_$d, Rb_$d)  # if after and B
        h_R_b_$d = Identity (h_R_$d)  # if after and no B
        h_zr_$d, h_n_$d = Split <axis = 1> (h_R_b_$d, zr_and_n)  # if after
        $step
        new_$d = Reshape ($next, as_rows)
        y_$d = Identity (new_$d)  # if no lengths
        inside_$d = Less (t_$d, lengths)  # if lengths
        y_$d = Where (inside_$d, new_$d, $zero)  # if lengths
        kept_$d = Where (inside_$d, new_$d, h_$d)  # if lengths
    }
> (state_$d, xs_$d, A)  # if no lengths
> (state_$d, xs_$d, A, steps)  # if lengths
Y_$d = Unsqueeze (ys_$d, axis_of_Y)
Y_h_$d = Unsqueeze (end_$d, axis_of_h)  # if Y_h and no lengths
filled_$d = Where (is_filled, end_$d, $zero)  # if Y_h and lengths
Y_h_$d = Unsqueeze (filled_$d, axis_of_h)  # if Y_h and lengths
"""


def augru_function(
    attributes: Mapping[str, object],
    opset: int,
    given: Collection[str] = OPTIONAL,
    domain: str = AUGRU_DOMAINS[0],
) -> FunctionProto:
    """Return the function `AUGRU` for nodes with these attributes and inputs."""
    values = read_attributes(AUGRU, attributes)
    if opset < AUGRU_OPSET:
        advice = "convert the model with onnx.version_converter"
        raise SpecError.of("opset", f"{opset}; must be at least {AUGRU_OPSET} for {AUGRU}; {advice}")
    for name in given:
        if name not in OPTIONAL:
            raise SpecError(f"given: {name!r}; must be one of {', '.join(OPTIONAL)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown when a node is read
        body = _body(opset, values, given)
    declared = f"<{', '.join(sorted(attributes))}>" if attributes else ""
    inputs = ", ".join(port.name for port in AUGRU.inputs)
    outputs = "Y, Y_h" if "Y_h" in given else "Y"
    function: FunctionProto = onnx.parser.parse_function(
        f'<domain: "{domain}", opset_import: ["": {opset}]>\n'
        f"{AUGRU.name} {declared} ({inputs}) => ({outputs}) {{\n{body}\n}}"
    )
    update = "1 - a (1 - z)" if values["attention"] == "dien" else "(1 - a) z"
    function.doc_string = f"The GRU of ONNX with z' = {update} in place of z: h' = (1 - z') n + z' h"
    return function


def _body(opset: int, values: Mapping[str, Any], given: Collection[str]) -> str:
    """Return the nodes of the function as text."""
    time, batch, Y_axis, h_axis = (1, 0, 2, 1) if values["layout"] else (0, 1, 1, 0)
    present = {"lengths" if name == "sequence_lens" else name: name in given for name in OPTIONAL}
    present |= {"after": bool(values["linear_before_reset"]), "before": not values["linear_before_reset"]}
    true = {name if holds else f"no {name}" for name, holds in present.items()}
    directions = reversed_directions(values["direction"])
    step = _StepText(", num_outputs = 2" if opset >= 18 else "")
    sizes = {"time": time, "time_end": time + 1, "batch": batch, "batch_end": batch + 1}
    parts = {**sizes, "Y_axis": Y_axis, "h_axis": h_axis, "halves": step.count, "zero": step.number(0.0)}
    lines = [_filled(_START, true, parts)]
    for d, activations in enumerate(read_activations(AUGRU, values, len(directions))):
        step.nodes.clear()
        h_n = f"h_n_{d}" if present["after"] else None
        following = gru_step(
            step, activations, read_clip(AUGRU, values["clip"]), (f"x_zr_{d}", f"x_n_{d}"), f"h_{d}",
            f"h_zr_{d}", h_n=h_n, R_n=f"R_n_{d}", attention=str(values["attention"]), a=f"a_{d}",
        )  # fmt: skip
        parts |= {"d": d, "way": int(directions[d]), "step": "\n".join(step.nodes), "next": following}
        lines.append(_filled(_DIRECTION, true, parts))
    for name, axis in (("Y", Y_axis), ("Y_h", h_axis)):
        values_of = ", ".join(f"{name}_{d}" for d in range(len(directions)))
        lines += [f"{name} = Concat <axis = {axis}> ({values_of})"] if name == "Y" or name in given else []
    return "\n".join([*step.constants, *lines])


def _filled(text: str, true: set[str], parts: Mapping[str, object]) -> str:
    """Return the lines whose conditions hold, with their parts."""
    lines = (line.partition("# if ") for line in text.splitlines())
    kept = [
        line for line, _, condition in lines if not condition or true.issuperset(condition.split(" and "))
    ]
    return Template("\n".join(kept)).substitute(parts)


class _StepText:
    """Nodes of a step as text; see `onegru.formats.onnx.writing.gru_step.StepNodes`."""

    def __init__(self, count: str) -> None:
        self.count = count  # the attribute of a Split into halves
        self.constants: list[str] = []  # outside the bodies
        self.nodes: list[str] = []
        self.numbers: dict[float, str] = {}
        self.names = itertools.count()

    def op(self, kind: str, inputs: Sequence[str], suffix: str) -> str:
        name = f"step_{next(self.names)}"
        self.nodes.append(f"{name} = {kind} ({', '.join(inputs)})")
        return name

    def number(self, value: float) -> str:
        if value not in self.numbers:
            name = self.numbers[value] = f"number_{len(self.numbers)}"
            self.constants.append(f"{name}_float32 = Constant <value_float = {float(value)!r}> ()")
            self.constants.append(f"{name} = CastLike ({name}_float32, X)")
        return self.numbers[value]

    def halves(self, value: str, names: tuple[str, str]) -> list[str]:
        first, second = (f"step_{next(self.names)}" for _ in names)
        self.nodes.append(f"{first}, {second} = Split <axis = 1 {self.count}> ({value})")
        return [first, second]
