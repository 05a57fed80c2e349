"""Make the files of tests/formats/tflite/files: python -m tests.formats.tflite.make_files.

Made by Keras 3.15.1 on TensorFlow 2.21.0. `arrays` gives the weights, which the tests know as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "files"
INPUT = 3

#: For each file the number of units, the reset, and of how many GRUs the weights are drawn.
FORMS = {
    "states": (4, "after", 1),
    "unrolled_int8": (24, "before", 1),
    "lists": (3, "after", 1),
    "both": (2, "after", 2),
    "casts": (2, "after", 1),
    "activations": (2, "after", 3),
}
#: The activations of the GRUs of the last one.
ACTIVATIONS = ("elu", "leaky_relu", "softsign")

#: The same of those whose layers are refused.
REFUSED = {"masked": (2, "after", 1)}


def arrays(name: str) -> list[list[np.ndarray[Any, np.dtype[np.float32]]]]:
    """The kernel, the recurrent kernel and the bias of each GRU of a file."""
    hidden, reset, count = {**FORMS, **REFUSED}[name]
    rng = np.random.default_rng(len(name))
    bias = (2, 3 * hidden) if reset == "after" else (3 * hidden,)
    shapes = (INPUT, 3 * hidden), (hidden, 3 * hidden), bias
    return [[rng.normal(0, 0.5, shape).astype(np.float32) for shape in shapes] for _ in range(count)]


def with_casts(data: bytes) -> bytes:
    """A file with the rows that a loop collects cast to their own type, as TensorFlow 2.3 and 2.4 do."""
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    whole = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CAST
    whole.operatorCodes.append(code)
    for graph in whole.subgraphs:
        for place, op in enumerate(list(graph.operators)):
            kind = whole.operatorCodes[op.opcodeIndex].builtinCode
            is_rows = kind == schema.BuiltinOperator.CONCATENATION and op.outputs[0] in graph.outputs
            if is_rows and len(op.inputs) == 3:
                rows, new, cast = graph.tensors[op.outputs[0]], schema.TensorT(), schema.OperatorT()
                for name in ("shape", "type", "buffer", "name", "shapeSignature"):
                    setattr(new, name, getattr(rows, name))
                graph.tensors.append(new)
                cast.opcodeIndex = len(whole.operatorCodes) - 1
                cast.inputs, cast.outputs = [len(graph.tensors) - 1], op.outputs
                op.outputs = cast.inputs
                graph.operators.insert(place + 1, cast)
    builder = flatbuffers.Builder()
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def main() -> None:
    """Make all of them, or those that are named."""
    import keras
    import tensorflow as tf

    layers = keras.layers

    def states() -> Any:
        x = layers.Input((5, INPUT), batch_size=1)
        return x, layers.GRU(4, return_sequences=True, stateful=True)(x)

    def unrolled_int8() -> Any:
        x = layers.Input((2, INPUT))
        return x, layers.GRU(24, reset_after=False, unroll=True)(x)

    def lists() -> Any:
        x = layers.Input((5, INPUT))
        return x, layers.GRU(3, return_sequences=True)(x)

    def both() -> Any:
        x = layers.Input((5, INPUT), batch_size=1)
        return x, layers.Bidirectional(layers.GRU(2))(x)

    def casts() -> Any:
        x = layers.Input((5, INPUT), batch_size=1)
        return x, layers.GRU(2, return_sequences=True)(x)

    def activations() -> Any:
        x = layers.Input((5, INPUT), batch_size=1)
        return x, [layers.GRU(2, activation=name)(x) for name in ACTIVATIONS]

    def masked() -> Any:
        x = layers.Input((5, INPUT))
        return x, layers.GRU(2)(layers.Masking(-1.0)(x))

    makers: dict[str, Callable[[], Any]] = {
        "states": states,
        "unrolled_int8": unrolled_int8,
        "lists": lists,
        "both": both,
        "casts": casts,
        "activations": activations,
        "masked": masked,
    }
    for name in sys.argv[1:] or makers:
        model = keras.Model(*makers[name]())
        model.set_weights(
            [array for item in arrays(name) for array in item] + model.get_weights()[3 * len(arrays(name)) :]
        )
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        if name == "unrolled_int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if name in ("lists", "masked"):  # of any number of rows, which the converter's own operators are not
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.TFLITE_BUILTINS,
                tf.lite.OpsSet.SELECT_TF_OPS,
            ]
            converter._experimental_lower_tensor_list_ops = False
        data = converter.convert()
        (FOLDER / f"{name}.tflite").write_bytes(with_casts(data) if name == "casts" else data)


if __name__ == "__main__":
    main()
