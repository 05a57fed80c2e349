"""Replace loops of cells in OpenVINO models in memory."""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from onegru.core.errors import OneGRUError
from onegru.formats.openvino.network import core_with_extensions
from onegru.formats.openvino.xml import parse_xml
from onegru.fusion.openvino.model import fuse_ir
from onegru.operators.openvino import CELLS
from onegru.runtimes.openvino_graph import bodies_of

_PLACE = Path("model in memory")


def add_sequences(model: Any) -> None:
    """Replace each loop over one axis that only runs a cell by a sequence layer."""
    nodes = model.get_ordered_ops()
    for node in nodes:
        for body, _ in bodies_of(node):
            add_sequences(body)
    loops = [index for index, node in enumerate(nodes) if _has_cell(node)]
    if not loops:
        return
    try:
        new = _rewritten(model, nodes, loops)
    except (OneGRUError, RuntimeError, OSError):  # OpenVINO cannot write it, or read it again
        return
    if new is not None:
        _connect(new, nodes)


def _has_cell(node: Any) -> bool:
    """Whether a node is a loop with a cell in its body."""
    if node.get_type_name() not in ("TensorIterator", "Loop"):
        return False
    inner = (item for body, _ in bodies_of(node) for item in body.get_ops())
    return any(f"openvino::{item.get_type_name()}" in CELLS for item in inner)


def _rewritten(model: Any, nodes: Sequence[Any], loops: Sequence[int]) -> Any:
    """Return the model up to these loops, with sequences and numbered node names; None without sequences."""
    copy = model.clone()
    copies = copy.get_ordered_ops()
    if [node.get_friendly_name() for node in copies] != [node.get_friendly_name() for node in nodes]:
        return None
    for number, node in enumerate(copies):
        node.set_friendly_name(str(number))
    ends = [(number, output) for number in loops for output in copies[number].outputs()]
    part = openvino.Model([output for _, output in ends], copy.get_parameters(), "loops")
    for (number, output), result in zip(ends, part.get_results(), strict=True):
        result.set_friendly_name(f"{number}:{output.get_index()}")
    with tempfile.TemporaryDirectory() as folder:
        text, numbers = Path(folder, "loops.xml"), Path(folder, "loops.bin")
        openvino.serialize(part, str(text), str(numbers))
        root = parse_xml(text.read_bytes(), _PLACE)
        held = np.frombuffer(numbers.read_bytes(), np.uint8)
    weights, search = fuse_ir(_PLACE, root, held, only_layers=True)
    if not search.fused:
        return None
    return core_with_extensions().read_model(ET.tostring(root, encoding="unicode"), openvino.Tensor(weights))


def _connect(new: Any, nodes: Sequence[Any]) -> None:
    """Connect the outputs of new layers to the model, and their inputs to the model's nodes."""
    known = {str(number): node for number, node in enumerate(nodes)}

    def own(output: Any) -> Any:
        """Return the model's output that corresponds to a new output; None if there is none."""
        node = known.get(output.get_node().get_friendly_name())
        if node is None or node.get_type_name() != output.get_node().get_type_name():
            return None
        return node.output(output.get_index())

    waiting: list[Any] = []
    for result in new.get_results():
        number, _, index = result.get_friendly_name().partition(":")
        old, source = known[number].output(int(index)), result.input_value(0)
        found = own(source)
        if found is None:
            waiting.append(source.get_node())
        elif found.get_node().get_name() == known[number].get_name():
            continue  # a loop that stays
        value = source if found is None else found
        value.get_tensor().add_names(old.get_names())
        for target in list(old.get_target_inputs()):
            target.replace_source_output(value)
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        for port in node.inputs():
            source = port.get_source_output()
            if (found := own(source)) is not None:
                port.replace_source_output(found)
            else:
                waiting.append(source.get_node())
