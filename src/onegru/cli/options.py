"""The arguments and options of all commands."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onegru.peers.registry import PRECISIONS

#: The largest timeout of a runtime in seconds: a day.
LONGEST = 86_400.0

Text = str | None
Texts = list[str] | None
Number = int | None


def option(usage: str, words: str, group: str | None = None, **rules: Any) -> Any:
    """Return an option from its line in the help, such as `-o, --output FILE`, and its description."""
    names, metavar = re.fullmatch(r"(-[^ ,]+(?:, -[^ ,]+)*) ?(.*)", usage).groups()  # type: ignore[union-attr]
    return typer.Option(
        *names.split(", "), metavar=metavar or None, help=words, rich_help_panel=group, **rules
    )


def argument(metavar: str, words: str, **rules: Any) -> Any:
    """Return an argument with its name in the help, and its description."""
    return typer.Argument(metavar=metavar, help=words, **rules)


def path(text: str) -> Path:
    """Return a path. The empty text is invalid, because it would mean the current folder."""
    if not text:
        raise typer.BadParameter("'' is not a file or folder; must be a name")
    return Path(text)


# ---- options of several commands

Model = Annotated[Path, argument("MODEL", "ONNX model (.onnx) or OpenVINO IR (.xml).")]
Inputs = Annotated[Texts, option("-i, --input [NAME=]FILE", "Input, as for `onegru run`.")]
Seed = Annotated[
    Number,
    option(
        "--random SEED",
        "Seed for random values of missing inputs. Without it, all inputs are random if none is given.",
        min=0,
    ),
]
Dims = Annotated[
    Texts,
    option(
        "--dim NAME=SIZE",
        "Size of a dynamic dimension of random inputs, such as batch=4, or all sizes of an input, such as "
        "X=2,3,8.",
    ),
]
DefaultDim = Annotated[
    Number,
    option(
        "--dims SIZE", "Size of every other dynamic dimension. Default: sizes that the model accepts.", min=0
    ),
]
WeightStorage = Annotated[
    Text,
    option(
        "--weight-storage TYPE",
        "Storage type of float32 weights of GRUs: float16, bfloat16, int8, or int8 in groups: int8_g32, "
        "int8_g64 or int8_g128.",
    ),
]
ActivationStorage = Annotated[
    Text,
    option(
        "--activation-storage TYPE",
        "Type of activations: int16 (default) or int8 with int8 weights, bfloat16 with bfloat16.",
    ),
]
Axes = Annotated[
    Texts,
    option(
        "--axes NAME=AXIS,...",
        "Axes of a model's input, if the file does not name them: X=batch,time,feature.",
    ),
]
Json = Annotated[bool, option("--json", "Print JSON instead of tables.")]
ANY_FILE = "Model (ONNX, OpenVINO IR), checkpoint or Keras model."
File = Annotated[Path, argument("FILE", ANY_FILE)]
timeout = partial(option, "--timeout SECONDS", min=1.0, max=LONGEST)
PRECISION = f"--precision {' or '.join(PRECISIONS)}"

# ---- options of commands that change a model

_check = partial(option, group="The check")
_writing = partial(option, group="The target")

Source = Annotated[Path, argument("SOURCE", "ONNX model (.onnx) or OpenVINO IR (.xml).")]
Target = Annotated[Path, argument("TARGET", "Target file, of the same kind.")]
OPSET = "--opset N", "Opset of TARGET, 1 to onnx's newest."
GROUP_SIZE = "--group-size N", "One scale for every 32, 64 or 128 weights. Needs opset 21."
QUANTIZED_NODES = "--node NAME", "GRU to quantize. Repeat for several. Default: all."
Opset = Annotated[Number, option(*OPSET)]
CheckInputs = Annotated[
    Texts, _check("-i, --input [NAME=]FILE", "Input for the check, as for `onegru run`. Default: random.")
]
CheckDims = Annotated[Texts, _check("--dim NAME=SIZE", "Size of a dynamic dimension, as for `onegru run`.")]
CheckDefaultDim = Annotated[Number, _check("--dims SIZE", "Size of every other dynamic dimension.", min=1)]
CheckTolerance = Annotated[float | None, _check("--tolerance X", "Largest difference to allow.")]
NoCheck = Annotated[bool, _check("--no-check", "Write TARGET without comparing it with SOURCE.")]
Overwrite = Annotated[bool, _writing("--overwrite", "Replace TARGET if it exists.")]
TargetJson = Annotated[bool, _writing("--json", "Print JSON instead of a table.")]
