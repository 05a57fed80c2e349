"""Export Keras GRUs with tf2onnx or Keras' own exporter, in a separate process.

python -m tests.support.decomposed.keras FOLDER STEPS ROWS: a file NAME.onnx and a file NAME.npz, with inputs
and outputs, for each case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

I, H = 3, 4

#: The cases, with their numbers of GRUs of one direction.
CASES = {
    "after": 1,
    "before": 1,
    "states": 1,
    "bidirectional": 2,
    "bidirectional_last": 2,
    "masked": 1,
    "masked_last": 1,
    "hard": 1,
    "relu": 1,
    "backwards": 1,
    "unrolled": 1,
    "unrolled_before": 1,
    "open": 1,
    "two": 2,
    "initial": 1,
    "masked_bidirectional": 2,
    "masked_zero": 1,
    "masked_unrolled": 1,
}


def model_of(name: str, keras: Any, steps: int) -> Any:
    """Return the model of one case."""
    L = keras.layers
    x = keras.Input((None if name == "open" else steps, I))
    layers: dict[str, Callable[[], Any]] = {
        "after": lambda: L.GRU(H)(x),
        "before": lambda: L.GRU(H, reset_after=False, return_sequences=True)(x),
        "states": lambda: L.GRU(H, return_sequences=True, return_state=True)(x),
        "bidirectional": lambda: L.Bidirectional(L.GRU(H, return_sequences=True))(x),
        "bidirectional_last": lambda: L.Bidirectional(L.GRU(H))(x),
        "masked": lambda: L.GRU(H, return_sequences=True)(L.Masking(0.0)(x)),
        "masked_last": lambda: L.GRU(H)(L.Masking(0.0)(x)),
        "masked_bidirectional": lambda: L.Bidirectional(L.GRU(H, return_sequences=True))(L.Masking(0.0)(x)),
        "masked_zero": lambda: L.GRU(H, return_sequences=True, return_state=True, zero_output_for_mask=True)(
            L.Masking(0.0)(x)
        ),
        "masked_unrolled": lambda: L.GRU(H, unroll=True, return_sequences=True)(L.Masking(0.0)(x)),
        "hard": lambda: L.GRU(H, recurrent_activation="hard_sigmoid", return_sequences=True)(x),
        "relu": lambda: L.GRU(H, activation="relu", use_bias=False)(x),
        "backwards": lambda: L.GRU(H, go_backwards=True, return_sequences=True)(x),
        "unrolled": lambda: L.GRU(H, unroll=True)(x),
        "unrolled_before": lambda: L.GRU(H, unroll=True, reset_after=False, return_sequences=True)(x),
        "open": lambda: L.GRU(H, return_sequences=True)(x),
        "two": lambda: L.GRU(H)(L.GRU(H, return_sequences=True)(x)),
    }
    if name == "initial":
        h = keras.Input((H,))
        return keras.Model([x, h], L.GRU(H)(x, initial_state=h))
    return keras.Model(x, layers[name]())


def make(name: str, folder: Path, steps: int, rows: int) -> None:
    """Write the files of one case."""
    import keras

    keras.utils.set_random_seed(list(CASES).index(name))
    rng = np.random.default_rng(list(CASES).index(name))
    model = model_of(name, keras, steps)
    for layer in model.layers:  # biases are initialized to zeros
        layer.set_weights([array + rng.normal(0, 0.3, array.shape) for array in layer.get_weights()])
    shapes = [(rows, *(steps if size is None else size for size in item.shape[1:])) for item in model.inputs]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    if name.startswith("masked"):
        arrays[0][rng.random(arrays[0].shape[:2]) < 0.3] = 0.0
    results = model(arrays if len(arrays) > 1 else arrays[0])
    results = results if isinstance(results, (list, tuple)) else [results]
    path = folder / f"{name}.onnx"
    if keras.backend.backend() == "tensorflow":
        tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")

        signature = [
            tf.TensorSpec(item.shape, item.dtype, name=f"x{n}") for n, item in enumerate(model.inputs)
        ]
        run = tf.function(lambda *items: model(items if len(items) > 1 else items[0]))
        tf2onnx.convert.from_function(run, input_signature=signature, opset=15, output_path=str(path))
    else:
        model.export(str(path), format="onnx", verbose=False)
    found = [keras.ops.convert_to_numpy(item) for item in results]
    kept: dict[str, Any] = {f"input{n}": array for n, array in enumerate(arrays)}
    kept |= {f"output{n}": array for n, array in enumerate(found)}
    np.savez(path.with_suffix(".npz"), **kept)


def main() -> None:
    folder, steps, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for name in CASES:
        try:
            make(name, folder, steps, rows)
        except Exception as error:  # any class; printed here, and the test reports the missing file
            print(f"{name}: {type(error).__name__}: {error}"[:500], flush=True)


if __name__ == "__main__":
    main()
