"""Which command takes which file: a table of docs/reference/files.md; tests compare it with the commands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from docs.generate.markdown import code, table

COMMANDS = ("run", "verify", "fuse", "stream", "quantize", "convert")


@dataclass(frozen=True)
class Reason:
    """Why a command does not take a file as it is.

    Attributes:
        words: what the message holds.
        text: the same, for the reader of the table.
        short: what stands in the table; empty for a number and the text below.
    """

    words: str
    text: str = ""
    short: str = ""


Cell = tuple[Reason, ...]

YES: Cell = ()
NAMED: Cell = (Reason("(--node NAME)", short="`--node`"),)
NOTHING: Cell = (Reason("no decomposed GRU that could be fused", short="–"),)
LAYERS: Cell = (
    Reason(
        "contains layers, not a runnable model", "The file contains layers. `convert` turns one into a model"
    ),
)
FUSE = Reason("`onegru fuse` replaces", short="after `fuse`")
FUSED: Cell = (FUSE,)
BACKWARDS = Reason(
    "runs from the last step", "Not supported, because a GRU runs from the last step to the first"
)
AS_IT_IS: Cell = (
    Reason("runs in chunks as it is", "Not necessary: the model streams with `onegru.load(FILE).stream()`"),
)
KEEPS: Cell = (Reason("use stream() without rewriting", AS_IT_IS[0].text),)
ONE_STEP: Cell = (
    Reason(
        "run one step in each call",
        "Not necessary: a run is one step, and `onegru.load(FILE).stream()` feeds the state back",
    ),
)
SWITCH = Reason(
    "contains 1e+30, a weight so large",
    "Not supported, because one very large weight masks steps, and int8 has no precision left for the other "
    "weights of its row",
)
LOOP = Reason(
    "is a loop, which onegru cannot follow",
    "Not supported, because the layer after the GRU is a loop over steps. Use Dense without TimeDistributed",
)
UNROLLED = Reason(
    "reads one step of a fixed number",
    "Not supported, because each step has a copy of the layer after the GRU. Use Dense without "
    "TimeDistributed",
)
NOT_FLOAT32: Cell = (Reason("can be stored as int8: ", "Not supported, because the weights are not float32"),)
WEIGHTS: Cell = (
    Reason(
        "weights only, without activations", "The file has weights without activations. Save the whole model"
    ),
)


def _unread(words: str, remedy: str) -> tuple[Cell, ...]:
    return ((Reason(words, f"Not read: {remedy}"),),) * len(COMMANDS)


SCRIPT = _unread("torch.jit.load", "save the state dict, `torch.save(torch.jit.load(FILE).state_dict(), …)`")
PROGRAM = _unread(
    "torch.export.load", "save the state dict, `torch.save(torch.export.load(FILE).state_dict, …)`"
)
ARRAYS = _unread(
    "onegru.from_torch or onegru.from_keras", "pass the arrays to `onegru.from_torch` or `onegru.from_keras`"
)
FOLDER = _unread(
    "tf2onnx.convert --saved-model", "convert it with `python -m tf2onnx.convert --saved-model FOLDER`"
)

NETWORK = (YES, YES, NOTHING, YES, YES, NAMED)
LAYER = (YES, YES, NOTHING, YES, YES, YES)
DECOMPOSED = (YES, YES, YES, FUSED, FUSED, FUSED)
CHECKPOINT = (*(LAYERS,) * 5, YES)

#: For each kind of file the files that tests have of it, and what each command does with them.
KINDS: dict[str, tuple[tuple[str, ...], tuple[Cell, ...]]] = {
    "`.onnx` of PyTorch, both exporters: one nn.GRU": (
        ("torch_legacy_layer.onnx", "torch_dynamo_layer.onnx"),
        LAYER,
    ),
    "… a network": (("torch_legacy_net.onnx", "torch_dynamo_net.onnx"), NETWORK),
    "… bidirectional": (
        ("torch_legacy_both.onnx", "torch_dynamo_both.onnx"),
        (*NETWORK[:3], (BACKWARDS,), *NETWORK[4:]),
    ),
    "… nn.GRUCell, step by step": (("torch_legacy_cells.onnx", "torch_dynamo_cells.onnx"), DECOMPOSED),
    "`.onnx` of tf2onnx: GRU": (("keras_layer.onnx",), DECOMPOSED),
    "… stateful": (("keras_stateful.onnx",), DECOMPOSED),
    "… masked": (("keras_masked.onnx",), (*DECOMPOSED[:4], (FUSE, SWITCH), FUSED)),
    "… bidirectional ": (("keras_both.onnx",), (*DECOMPOSED[:3], (FUSE, BACKWARDS), *DECOMPOSED[4:])),
    "… GRU, TimeDistributed, fixed number of steps": (
        ("keras_distributed.onnx",),
        (*DECOMPOSED[:3], (FUSE, UNROLLED), *DECOMPOSED[4:]),
    ),
    "… GRU, TimeDistributed, dynamic number of steps": (
        ("keras_distributed_open.onnx",),
        (*DECOMPOSED[:3], (FUSE, LOOP), *DECOMPOSED[4:]),
    ),
    "`.onnx` with external data": (("external.onnx",), NETWORK),
    "`.onnx` with weights in int8 and DequantizeLinear": (("quantized.onnx",), LAYER),
    "`.onnx` by `onegru convert` or `save_layers`": (("saved.onnx",), LAYER),
    "… in bfloat16": (("bfloat16.onnx",), (*LAYER[:4], NOT_FLOAT32, YES)),
    "`.onnx` by `onegru quantize`": (("int8.onnx",), NETWORK),
    "… by `rewrite --float16`": (("float16.onnx",), (*NETWORK[:4], NOT_FLOAT32, NAMED)),
    "… by `rewrite --decompose`": (("decomposed.onnx",), DECOMPOSED),
    "… by `stream`": (("streaming.onnx",), (*NETWORK[:3], AS_IT_IS, *NETWORK[4:])),
    "`.xml` of OpenVINO: one nn.GRU": (("torch_layer.xml",), LAYER),
    "… a network of PyTorch or ONNX": (("torch_net.xml", "onnx_net.xml"), NETWORK),
    "… nn.GRUCell, step by step ": (("torch_cells.xml",), DECOMPOSED),
    "… stateful, of OpenVINO": (("stateful.xml",), (*LAYER[:3], KEEPS, *LAYER[4:])),
    "`.xml` with GRUSequence or AUGRUSequence": (("sequence.xml", "augru.xml"), LAYER),
    "… with GRUCell": (("cell.xml",), (*LAYER[:3], ONE_STEP, *LAYER[4:])),
    "`.pt`, `.pth`, `.ckpt`: state dicts, checkpoints, whole modules": (
        ("state_dict.pt", "lightning.ckpt", "module.pt"),
        CHECKPOINT,
    ),
    "`.safetensors`, also in shards": (
        ("saved.safetensors", "named.safetensors", "model.safetensors.index.json"),
        CHECKPOINT,
    ),
    "`.keras`, `.h5`": (("model.keras", "model.h5"), (*CHECKPOINT[:5], NAMED)),
    "`.weights.h5`": (("model.weights.h5",), (*CHECKPOINT[:5], WEIGHTS)),
    "`.tflite`": (("model.tflite",), CHECKPOINT),
    "TorchScript": (("torchscript.pt",), SCRIPT),
    "`.pt2`": (("e.pt2",), PROGRAM),
    "`.npz`": (("arrays.npz",), ARRAYS),
    "SavedModel": (("saved_model",), FOLDER),
}


def files() -> str:
    """Which command takes which file, and why the others do not."""
    cells = chain.from_iterable(row for _, row in KINDS.values())
    texts = list(dict.fromkeys(reason.text for cell in cells for reason in cell if reason.text))

    def shown(cell: Cell) -> str:
        words = [reason.short or f"no ({1 + texts.index(reason.text)})" for reason in cell]
        return ", then ".join(words) or "yes"

    rows = ((kind.strip(), *map(shown, row)) for kind, (_, row) in KINDS.items())
    notes = (f"{number}. {text}." for number, text in enumerate(texts, 1))
    return "\n".join((table(("file", *map(code, COMMANDS)), rows), "", *notes))
