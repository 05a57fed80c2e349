"""Write layers to files: ONNX, OpenVINO IR, safetensors, PyTorch and Keras."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onegru.core.arguments import file_path
from onegru.core.dtypes import group_size, is_int8
from onegru.core.errors import SpecError, needs_extra
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of

#: The suffixes of files that `save_layers` writes, with the options of each.
SUFFIXES: dict[str, tuple[str, ...]] = {
    ".onnx": ("opset", "layout", "initial_h", "sequence_lens", "batch_size", "seq_length"),
    ".xml": ("cell", "initial_h", "sequence_lens", "batch_size", "seq_length"),
    ".safetensors": (),
    ".pt": (),
    ".keras": (),
}


def save_layers(
    layers: GRU | Stack,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    layout: int | None = None,
    cell: bool | None = None,
    initial_h: bool | None = None,
    sequence_lens: bool | None = None,
    batch_size: int | None = None,
    seq_length: int | None = None,
) -> None:
    """Write a layer or a stack to a file.

    Each file is written atomically, even if the process is killed or the machine stops. For an IR, the `.bin`
    is replaced before the `.xml`.

    - `.onnx`: GRU nodes. Inputs are `X`, `initial_h` and, on request, `sequence_lens` (int32). Outputs are
      `Y` and `Y_h`. A stack has `initial_h_0`, `Y_h_0` and so on, and the `Y` of its last layer.
    - `.xml`, with its `.bin`: an OpenVINO IR of GRUSequence-5 or GRUCell-3 layers, or of AUGRUSequence or
      AUGRUCell for a layer with attention. Inputs and outputs are the operator's own, in its shapes: `X` [B,
      T, I], `initial_hidden_state` [B, D, H] (`H_t` with attention), `A` [B, T, 1] and, on request,
      `sequence_lengths` [B] (int32); `Y` [B, D, T, H], `Ho` [B, D, H]; numbered for each layer of a stack.
      Both biases of a gate are added, which may change a result's last bits.
    - `.safetensors`: the weights in the layout of `GRU`, and the other attributes in the metadata. Read it
      with `onegru.load_layers`.
    - `.pt`: the state dict of a PyTorch `nn.GRU`.
    - `.keras`: a Keras 3 model with the layers.

    Int8 weights stay int8 in `.onnx` (opset 13 or later), `.xml` and `.safetensors`: integers with a scale
    for each row. Models also have nodes that dequantize them, so any runtime can run them.
    `onegru.load_layers` returns the dequantized float32 weights. `with_storage("int8")` of these layers
    computes with the same integers.

    Grouped int8 weights have a scale for each group in `.onnx` (opset 21 or later) and `.safetensors`, and in
    `.xml` if the last group of a row is complete. OpenVINO can read such an `.onnx` file only under the
    same condition. In all other cases the same values are written as float32.

    Options that the format does not have must be None.

    Args:
        layers: the layer or stack.
        path: the file; its suffix selects the format.
        opset: the opset of an ONNX model, 1 to 22. Default: None (22, or the newest of an older onnx).
        layout: the layout of an ONNX model: 0 (time first) or 1 (batch first, from opset 14 on). Default:
            None (0).
        cell: whether to write an IR with cells, which take one step. Default: None (False).
        initial_h: whether the model has inputs for initial states; otherwise they are zeros. Default: None
            (True). onegru can run the model without these inputs, from zeros. Other runtimes require them,
            because no format has optional inputs for every batch size.
        sequence_lens: whether the model has an input for lengths; otherwise all sequences have all steps of
            X. Default: None (False), because OpenVINO 2026.4 ignores lengths in an IR unless batch_size and
            seq_length are fixed.
        batch_size: the only batch size of the model. Default: None (any).
        seq_length: the only number of steps of the model. Default: None (any).

    Raises:
        SpecError: an argument is invalid, or the format cannot express a layer.
        MissingExtraError: a package for this format is not installed.
        OSError: the file cannot be written. An existing file stays unchanged, unless the `.xml` of an IR
            cannot be replaced after its `.bin`.
    """
    # Imported here, because `import onegru` does not need them.
    from onegru.formats.writing import Interface
    from onegru.system.atomic_write import write_files

    path = file_path("path", path)
    if not isinstance(layers, GRU | Stack):
        raise SpecError.of("layers", f"{type(layers).__name__}; must be a GRU or a Stack")
    kind = path.suffix.lower()
    if kind not in SUFFIXES or "\0" in str(path):
        raise SpecError.of("path", f"{str(path)!r}; must end in {', '.join(SUFFIXES)}")
    given: dict[str, Any] = {"opset": opset, "layout": layout, "cell": cell, "initial_h": initial_h}
    given |= {"sequence_lens": sequence_lens, "batch_size": batch_size, "seq_length": seq_length}
    _check_options(kind, given)
    parts = [
        (item.spec, item.weights, group_size(kept) if is_int8(kept := item.weight_storage) else None)
        for item in layers_of(layers)
    ]
    # int(), because a size can be a NumPy integer, which other packages reject.
    sizes = [None if size is None else int(size) for size in (batch_size, seq_length)]
    interface = Interface(initial_h is None or bool(initial_h), bool(sequence_lens), *sizes)
    if kind == ".safetensors":
        from onegru.formats.checkpoints.safetensors import safetensors_bytes

        content = safetensors_bytes(parts, isinstance(layers, Stack))
    elif kind in (".pt", ".keras"):
        from onegru.frameworks.export import keras_bytes, pytorch_bytes

        content = (pytorch_bytes if kind == ".pt" else keras_bytes)(layers, path)
    elif kind == ".onnx":
        with needs_extra("onnx", "onnx", str(path)):
            from onegru.formats.onnx.writing.writer import NEWEST_WRITTEN, onnx_bytes
        content = onnx_bytes(parts, int(opset or NEWEST_WRITTEN), int(layout or 0), interface)
    else:
        from onegru.formats.openvino.writing.writer import write_ir

        write_ir(path, parts, bool(cell), interface)
        return
    write_files([(path, lambda file: file.write(content))])


def _check_options(kind: str, given: Mapping[str, object]) -> None:
    """Raise SpecError if an option has no effect on this kind of file, or has the wrong type."""
    for name, value in given.items():
        if value is None:
            continue
        if name not in SUFFIXES[kind]:
            takers = ", ".join(suffix for suffix, names in SUFFIXES.items() if name in names)
            raise SpecError.of(name, f"{value!r}; must be None for {kind}, because only {takers} has it")
        if name in ("cell", "initial_h", "sequence_lens"):
            if not isinstance(value, bool | np.bool_):
                raise SpecError.of(name, f"{value!r}; must be True or False")
        elif isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SpecError.of(name, f"{value!r}; must be an integer")
        elif name == "layout" and value not in (0, 1):
            raise SpecError.of("layout", f"{value}; must be 0 or 1")
        elif name != "layout" and not 1 <= value < 2**63:
            raise SpecError.of(name, f"{value}; must be at least 1, and below 2**63")
        if given["cell"] and value and name in ("sequence_lens", "seq_length"):
            raise SpecError.of(name, f"{value!r}; must be None for a cell, which takes one step")
