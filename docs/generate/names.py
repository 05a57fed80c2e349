"""Groups of public names. Each group is a page of the reference."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

import onegru
from docs.generate.markdown import code, table

#: The title of each page, and its names in order. A test fails if a public name is missing.
GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "functions": (
        "Operators as functions",
        ("gru", "gru_cell", "gru_sequence", "augru_cell", "augru_sequence"),
    ),
    "layers": (
        "Layers and streams",
        ("GRU", "reports.Stream", "Stack", "reports.StackStream", "pad", "Spec", "Weights", "Activation"),
    ),
    "models": (
        "Files and models",
        ("load", "Model", "reports.ModelStream", "load_layers", "save_layers", "scoring"),
    ),
    "inspection": (
        "Inspection and verification",
        ("inspect", "verify", *(f"conformance.{name}" for name in onegru.conformance.__all__)),
    ),
    "rewriting": (
        "Rewrite models",
        ("rewrite", "fuse", "make_streaming", "quantize", "Check"),
    ),
    "reports": (
        "Result objects",
        tuple(f"reports.{name}" for name in onegru.reports.__all__ if not name.endswith("Stream")),
    ),
    "frameworks": (
        "PyTorch, Keras, Flax",
        (
            "from_torch",
            "to_torch",
            "to_torch_state_dict",
            "from_keras",
            "to_keras",
            "to_keras_weights",
            "from_flax",
            "to_flax",
        ),
    ),
    "training": (
        "Training in PyTorch",
        (
            "torch.GRU",
            "torch.GRUCell",
            "torch.AUGRU",
            "torch.AUGRUCell",
            "torch.gru",
            "torch.accelerate",
            "torch.freeze",
            "torch.from_layers",
            "torch.Acceleration",
            "torch.restore",
        ),
    ),
    "runtimes": (
        "Inside other runtimes",
        (
            "InferenceSession",
            "execution_provider",
            "openvino.replace_grus",
            "openvino.errors",
            "openvino.extensions",
            "backend",
        ),
    ),
    "process": (
        "Threads, targets, memory",
        ("set_num_threads", "get_num_threads", "targets", "empty_cache", "__version__"),
    ),
    "errors": (
        "Errors and warnings",
        ("OneGRUError", "SpecError", "FormatError", "MissingExtraError", "SpecWarning"),
    ),
}


def names(group: str) -> str:
    """The names of a group, each with the first sentence of its docstring."""
    return table(
        ["name", "description"], ([code(f"onegru.{name}"), _summary(name)] for name in GROUPS[group][1])
    )


def _summary(name: str) -> str:
    if name == "__version__":
        return "The version of the package."
    if name.startswith("torch."):
        text = _unimported(name)
    else:
        text = inspect.getdoc(reduce(getattr, name.split("."), onegru)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _unimported(name: str) -> str:
    """The docstring of a name of `onegru.torch`, from its source, because PyTorch may be missing."""
    folder = Path(onegru.__file__).parent / "torch"
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and f"torch.{node.name}" == name:
                return ast.get_docstring(node) or ""
    raise KeyError(name)
