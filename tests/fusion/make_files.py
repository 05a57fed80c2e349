"""Make the files of tests/fusion/files: python -m tests.fusion.make_files.

Made by torch 2.13.0 with onnxscript 0.7.2, and by Keras 3.15.1 on TensorFlow 2.21.0 with tf2onnx 1.17.0.
Names are shortened, and what only explains a model is left out: the nodes are the exporters'.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto

FOLDER = Path(__file__).parent / "files"
T, B = 3, 2


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def shorten(model: ModelProto) -> None:
    """Leave out what a model says of itself, and give its values short names."""
    del model.metadata_props[:]
    model.doc_string = ""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {"": "", **{name: name for name in kept}}

    def short(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    for graph in graphs(model.graph):
        graph.doc_string = ""
        del graph.value_info[:], graph.metadata_props[:]
        for value in (*graph.input, *graph.output):
            value.name = short(value.name)
            value.doc_string = ""
            del value.metadata_props[:]
        for tensor in graph.initializer:
            tensor.name = short(tensor.name)
            tensor.doc_string = ""
            del tensor.metadata_props[:]
        for node in graph.node:
            node.name = node.doc_string = ""
            del node.metadata_props[:]
            node.input[:] = [short(name) for name in node.input]
            node.output[:] = [short(name) for name in node.output]
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.type == onnx.AttributeProto.TENSOR:
                    attribute.t.name = attribute.t.doc_string = ""


def keep(source: Path, name: str) -> None:
    """Keep a file."""
    model = onnx.load(source)
    shorten(model)
    onnx.checker.check_model(model, full_check=True)
    path = FOLDER / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    if path.stat().st_size > 20_000:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes")


def main() -> None:
    """Make them all."""
    from tests.support.decomposed.keras import CASES as KERAS
    from tests.support.decomposed.torch import EXPORTS, export

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for case, how in EXPORTS:
            export(case, how, folder / "model.onnx", T, B)
            keep(folder / "model.onnx", f"torch_{case.replace(' ', '_')}_{how}")
        command = [sys.executable, "-m", "tests.support.decomposed.keras", place, str(T), str(B)]
        subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": "tensorflow"})
        for case in KERAS:
            keep(folder / f"{case}.onnx", f"keras_{case}")


if __name__ == "__main__":
    main()
