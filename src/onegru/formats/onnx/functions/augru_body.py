"""The function of an AUGRU node in ONNX operators: a Scan for each direction.

The types follow the inputs. ONNX functions cannot depend on which inputs or attributes a node has, so there
is one function for each case. Each has its own domain: ONNX Runtime 1.25 confuses functions that differ only
in their overloads.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, ValueInfoProto

from onegru.core.errors import SpecError
from onegru.core.spec import reversed_directions
from onegru.formats.onnx.gru_step import gru_step
from onegru.operators.attributes import read_attributes
from onegru.operators.lowering import read_activations, read_clip
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS, AUGRU_OPSET

#: Optional inputs, and the optional output: the last one, because only trailing outputs can be missing.
OPTIONAL = (*(port.name for port in AUGRU.inputs if not port.required), AUGRU.outputs[-1].name)


def augru_function(
    attributes: Mapping[str, object],
    opset: int,
    given: Collection[str] = OPTIONAL,
    domain: str = AUGRU_DOMAINS[0],
) -> FunctionProto:
    """The function `AUGRU` for nodes with these attributes and inputs."""
    values = read_attributes(AUGRU, attributes)
    if opset < AUGRU_OPSET:
        advice = "convert the model with onnx.version_converter"
        raise SpecError.of("opset", f"{opset}; must be at least {AUGRU_OPSET} for {AUGRU}; {advice}")
    for name in given:
        if name not in OPTIONAL:
            raise SpecError(f"given: {name!r}; must be one of {', '.join(OPTIONAL)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown when a node is read
        nodes = _Writer(opset, values, given).written()
    function = onnx.helper.make_function(
        domain,
        AUGRU.name,
        [port.name for port in AUGRU.inputs],
        [port.name for port in AUGRU.outputs if port.name in given or port.name not in OPTIONAL],
        nodes,
        [onnx.helper.make_opsetid("", opset)],
        sorted(attributes),
    )
    update = "1 - a (1 - z)" if values["attention"] == "dien" else "(1 - a) z"
    function.doc_string = f"The GRU of ONNX with z' = {update} in place of z: h' = (1 - z') n + z' h"
    return function


class _Writer:
    """Builds the nodes of a function."""

    def __init__(self, opset: int, values: Mapping[str, Any], given: Collection[str]) -> None:
        self.opset = opset
        self.given = given
        # Axes of X, A and Y. Nothing is transposed, because Scan has axes.
        self.time, self.batch = (1, 0) if values["layout"] == 1 else (0, 1)
        self.reset_after = bool(values["linear_before_reset"])
        self.attention = str(values["attention"])
        self.reversed = reversed_directions(values["direction"])
        self.activations = read_activations(AUGRU, values, len(self.reversed))
        self.clip = read_clip(AUGRU, values["clip"])
        self.constants: list[NodeProto] = []  # scalars, before all other nodes
        self.numbers: dict[float, str] = {}
        self.nodes: list[NodeProto] = []
        self.count = 0
        self.zero = self.number(0)
        self.lengths: str | None = None
        self.rows = ""

    # Nodes

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node and return its outputs."""
        self.count += 1
        names = [f"{operator.lower()}_{self.count}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, names, **attributes))
        return names

    def new(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output."""
        return self.add(operator, *inputs, **attributes)[0]

    def op(self, kind: str, inputs: Sequence[str], what: str) -> str:
        """See `onegru.formats.onnx.gru_step.StepNodes`, also for `number` and `halves`."""
        return self.new(kind, *inputs)

    def halves(self, value: str, names: tuple[str, str]) -> list[str]:
        """Split the last axis of a matrix into halves."""
        return self.split(value, 2, 1)

    def integers(self, items: int | Sequence[int], dtype: str = "int64") -> str:
        """Add an integer constant."""
        return self.new("Constant", value=onnx.numpy_helper.from_array(np.array(items, dtype)))

    def number(self, value: float) -> str:
        """Add a scalar constant with the type of X, outside of all subgraphs."""
        if value not in self.numbers:
            inside, self.nodes = self.nodes, self.constants
            constant = self.new("Constant", value=onnx.numpy_helper.from_array(np.array(value, "float32")))
            self.numbers[value] = self.new("CastLike", constant, "X")
            self.nodes = inside
        return self.numbers[value]

    def split(self, value: str, parts: int, axis: int) -> list[str]:
        """Split an axis into equal parts."""
        counted = {"num_outputs": parts} if self.opset >= 18 else {}
        return self.add("Split", value, outputs=parts, axis=axis, **counted)

    def unsqueezed(self, value: str, axis: int) -> str:
        """Insert an axis of size 1."""
        return self.new("Unsqueeze", value, self.integers([axis]))

    def matrix(self, *parts: str) -> str:
        """Concatenate the weights of gates and transpose them."""
        whole = parts[0] if len(parts) == 1 else self.new("Concat", *parts, axis=0)
        return self.new("Transpose", whole, perm=[1, 0])

    def size(self, value: str, axis: int) -> str:
        """Return the size of an axis as a one-element list."""
        return self.new("Gather", self.new("Shape", value), self.integers([axis]), axis=0)

    def part(self, value: str, index: int, axis: int = 0) -> str:
        """Select one index of an axis and remove the axis."""
        return self.new("Gather", value, self.integers(index), axis=axis)

    # The sequence

    def written(self) -> list[NodeProto]:
        """Return the nodes of the function."""
        axis_of_Y, axis_of_h = (2, 1) if self.batch == 0 else (1, 0)
        # The shape of [B, H]: ONNX Runtime's Scan needs known ranks, which the model may not state.
        self.rows = self.integers([-1, 0])
        zeros = ""
        if "initial_h" not in self.given:
            shape = self.new("Concat", self.size("X", self.batch), self.size("R", 2), axis=0)
            zeros = self.new("Expand", self.zero, shape)
        if "sequence_lens" in self.given:
            self.lengths = self.new("Reshape", "sequence_lens", self.integers([-1, 1]))
        all_Y: list[str] = []
        all_h: list[str] = []
        for d in range(len(self.reversed)):
            start = self.part("initial_h", d, axis_of_h) if "initial_h" in self.given else zeros
            Y, h = self.direction(d, self.new("Reshape", start, self.rows))
            all_Y.append(self.unsqueezed(Y, axis_of_Y))
            all_h += [self.unsqueezed(h, axis_of_h)] if "Y_h" in self.given else []
        outputs = [("Y", all_Y, axis_of_Y), ("Y_h", all_h, axis_of_h)]
        for name, parts, axis in outputs if "Y_h" in self.given else outputs[:1]:
            self.new("Concat", *parts, axis=axis)
            self.nodes[-1].output[0] = name
        return self.constants + self.nodes

    def direction(self, d: int, start: str) -> tuple[str, str]:
        """Add a direction; return Y [T, B, H] ([B, T, H] with batch first) and Y_h [B, H]."""
        Wz, Wr, Wn = self.split(self.part("W", d), 3, 0)
        Rz, Rr, Rn = self.split(self.part("R", d), 3, 0)
        x_zr = self.new("MatMul", "X", self.matrix(Wz, Wr))
        x_n = self.new("MatMul", "X", self.matrix(Wn))
        bias: str | None = None
        if "B" in self.given:
            Wbz, Wbr, Wbn, Rbz, Rbr, Rbn = self.split(self.part("B", d), 6, 0)
            sums = [self.new("Add", Wbz, Rbz), self.new("Add", Wbr, Rbr)]
            x_zr = self.new("Add", x_zr, self.new("Concat", *sums, axis=0))
            x_n = self.new("Add", x_n, Wbn if self.reset_after else self.new("Add", Wbn, Rbn))
            bias = Rbn if self.reset_after else None

        states, ends = [start], 1
        if self.lengths is not None:
            first = self.integers([0], "int32")
            if self.reversed[d]:
                last = self.new("Sub", self.size("X", self.time), self.integers([1]))
                first = self.new("Cast", last, to=onnx.TensorProto.INT32)
            states, ends = [start, first], 2
        body = self.body(d, self.matrix(Rz, Rr), self.matrix(Rn), bias)
        way = int(self.reversed[d])
        outputs = self.add(
            "Scan",
            *states,
            x_zr,
            x_n,
            "A",
            outputs=ends + 1,
            body=body,
            num_scan_inputs=3,
            scan_input_axes=[self.time] * 3,
            scan_input_directions=[way] * 3,
            scan_output_axes=[self.time],
            scan_output_directions=[way],
        )
        h = outputs[0]
        if self.lengths is not None:  # Y_h is zero for a sequence of length 0
            some = self.new("Less", self.integers([0], "int32"), self.lengths)
            h = self.new("Where", some, h, self.zero)
        return outputs[-1], h

    def body(self, d: int, Rzr: str, Rn: str, bias: str | None) -> onnx.GraphProto:
        """Return the body of a step. Inputs: the state, with lengths the step index, gate inputs, scores."""
        outside, self.nodes = self.nodes, []
        h, t, x_zr, x_n, a = (f"{name}_{self.count}" for name in ("h", "t", "x_zr", "x_n", "a"))
        h_zr, h_n = self.new("MatMul", h, Rzr), None
        if self.reset_after:
            h_n = self.new("MatMul", h, Rn)
            h_n = h_n if bias is None else self.new("Add", h_n, bias)
        new = gru_step(
            self, self.activations[d], self.clip, (x_zr, x_n), h, h_zr,
            h_n=h_n, R_n=Rn, attention=self.attention, a=a,
        )  # fmt: skip
        new = self.new("Reshape", new, self.rows)
        inputs, outputs = [h, x_zr, x_n, a], [new, self.new("Identity", new)]
        if self.lengths is not None:
            is_in = self.new("Less", t, self.lengths)
            following = self.new("Add", t, self.integers([-1 if self.reversed[d] else 1], "int32"))
            inputs.insert(1, t)
            kept = self.new("Where", is_in, new, h)
            outputs = [kept, following, self.new("Where", is_in, new, self.zero)]
        nodes, self.nodes = self.nodes, outside
        taken, given = ([ValueInfoProto(name=name) for name in names] for names in (inputs, outputs))
        return onnx.helper.make_graph(nodes, f"step_{self.count}", taken, given)
