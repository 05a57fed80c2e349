"""The arguments and options of all commands."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onegru.conformance.runtimes import registry as kit
from onegru.formats.save import SUFFIXES
from onegru.peers.registry import PRECISIONS, RUNTIMES
from onegru.rewriting.rewrite import RUNTIMES as REWRITTEN_FOR

#: The most seconds that a runtime may be given: a day.
LONGEST = 86_400.0

Text = str | None
Texts = list[str] | None
Number = int | None


def option(usage: str, words: str, group: str | None = None, **rules: Any) -> Any:
    """An option from its line in the help, such as `-o, --output FILE`, and its description."""
    names, metavar = re.fullmatch(r"(-[^ ,]+(?:, -[^ ,]+)*) ?(.*)", usage).groups()  # type: ignore[union-attr]
    return typer.Option(
        *names.split(", "), metavar=metavar or None, help=words, rich_help_panel=group, **rules
    )


def argument(metavar: str, words: str, **rules: Any) -> Any:
    """An argument with its name in the help, and its description."""
    return typer.Argument(metavar=metavar, help=words, **rules)


def path(text: str) -> Path:
    """A path; '' is not one, and would mean the current folder."""
    if not text:
        raise typer.BadParameter("'' is not a file or folder; must be a name")
    return Path(text)


# ---- of several commands

Model = Annotated[Path, argument("MODEL", "ONNX model (.onnx) or OpenVINO IR (.xml).")]
Inputs = Annotated[Texts, option("-i, --input [NAME=]FILE", "Input, as for `onegru run`.")]
Seed = Annotated[
    Number,
    option(
        "--random SEED",
        "Seed for random values of missing inputs. Without it, all inputs are random, or none.",
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
        "Type of activations that are multiplied with int8 weights: int16 (default) or int8.",
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
_ANY_FILE = "Model (ONNX, OpenVINO IR), checkpoint or Keras model."
File = Annotated[Path, argument("FILE", _ANY_FILE)]

# ---- of commands that change a model

_check = partial(option, group="The check")
_writing = partial(option, group="The target")

Source = Annotated[Path, argument("SOURCE", "ONNX model (.onnx) or OpenVINO IR (.xml).")]
Target = Annotated[Path, argument("TARGET", "Target file, of the same kind.")]
_OPSET = "--opset N", "Opset of TARGET, 1 to onnx's newest."
_GROUP_SIZE = "--group-size N", "One scale for every 32, 64 or 128 weights. Needs opset 21."
_QUANTIZED_NODES = "--node NAME", "GRU to quantize. Repeat for several. Default: all."
Opset = Annotated[Number, option(*_OPSET)]
CheckInputs = Annotated[
    Texts, _check("-i, --input [NAME=]FILE", "Input for the check, as for `onegru run`. Default: random.")
]
CheckDims = Annotated[Texts, _check("--dim NAME=SIZE", "Size of a dynamic dimension, as for `onegru run`.")]
CheckDefaultDim = Annotated[Number, _check("--dims SIZE", "Size of every other dynamic dimension.", min=1)]
CheckTolerance = Annotated[float | None, _check("--tolerance X", "Largest difference to allow.")]
NoCheck = Annotated[bool, _check("--no-check", "Write TARGET without comparing it with SOURCE.")]
Overwrite = Annotated[bool, _writing("--overwrite", "Replace TARGET if it exists.")]
TargetJson = Annotated[bool, _writing("--json", "Print JSON instead of a table.")]

# ---- of run

RunInputs = Annotated[
    Texts, option("-i, --input [NAME=]FILE", "Input: NAME=x.npy, NAME=x.pb, or x.npz for several inputs.")
]
RunOutputs = Annotated[
    Texts, option("-o, --output [NAME=]FILE", "File for the outputs: out.npz for all, NAME=y.npy for one.")
]
Engine = Annotated[str, option("--engine", "Engine for the GRUs: auto, native or reference.")]

# ---- of bench

Rounds = Annotated[int, option("--rounds N", "Number of measurements of each runtime.", min=1, max=1000)]
BenchThreads = Annotated[
    Number, option("--threads N", "Number of threads of each runtime. Default: all cores.", min=1)
]

# ---- of trace

TraceNode = Annotated[Text, option("--node NAME", "GRU node. Required if the model has several.")]
Row = Annotated[
    Number,
    option(
        "--row N", "Row of the batch. Default: the page shows row 0, and statistics cover all rows.", min=0
    ),
]
Direction = Annotated[Text, option("--direction", "forward or reverse. Default: all directions.")]
OtherTrace = Annotated[Path | None, option("--against FILE.npz", "Trace of another run to compare with.")]
TraceOutputs = Annotated[
    Texts,
    option("-o, --output FILE", "File to write: .npz with the values, or .html, a page that shows them."),
]

# ---- of convert

_layers = partial(option, group="Of an ONNX or OpenVINO target")

LayerSource = Annotated[
    Path, argument("SOURCE", "Model (.onnx, .xml) or checkpoint (.safetensors, .pt, .keras, .tflite).")
]
LayerTarget = Annotated[Path, argument("TARGET", f"Target file: {', '.join(SUFFIXES)}.")]
LayerNodes = Annotated[
    Texts, option("--node NAME", "GRU to convert. Repeat for a stack, lowest layer first. Default: all.")
]
KerasVersion = Annotated[
    Text,
    option("--keras-version 2.3", "Version of Keras that saved SOURCE, if the file does not contain it."),
]
LayerOpset = Annotated[Number, _layers("--opset N", "Opset of an ONNX target, 1 to 22.")]
LayerLayout = Annotated[
    Number, _layers("--layout", "Layout of an ONNX target: 0 for time first, 1 for batch first.")
]
Cell = Annotated[bool | None, _layers("--cell", "Write cells, which run one step, to an IR.")]
InitialH = Annotated[
    bool | None, _layers("--initial-h/--no-initial-h", "Add inputs for initial states. Default: yes.")
]
Lengths = Annotated[
    bool | None,
    _layers(
        "--lengths/--no-lengths",
        "Add an input for sequence lengths (OpenVINO ignores it for dynamic shapes). Default: no.",
    ),
]
BatchSize = Annotated[Number, _layers("--batch-size SIZE", "Fixed batch size. Default: dynamic.")]
SeqLength = Annotated[Number, _layers("--seq-length SIZE", "Fixed number of steps. Default: dynamic.")]

# ---- of rewrite


def _runtimes(incomplete: str) -> list[str]:
    return [name for name in REWRITTEN_FOR if name.startswith(incomplete)]


OnnxSource = Annotated[Path, argument("SOURCE", "ONNX model (.onnx).")]
OnnxTarget = Annotated[Path, argument("TARGET", "Target file (.onnx).")]
Layout = Annotated[Number, option("--layout", "Layout of the GRUs: 0 for time first, 1 for batch first.")]
Float16 = Annotated[bool, option("--float16", "Convert GRU nodes to float16, with Casts around them.")]
Split = Annotated[
    bool, option("--bidirectional-split", "Split each bidirectional node into a forward and a reverse node.")
]
Decompose = Annotated[bool, option("--decompose", "Replace GRU and AUGRU nodes with elementary operators.")]
Runtime = Annotated[
    Text,
    option(
        "--for RUNTIME",
        "Change only nodes that onnxruntime or openvino gets wrong.",
        autocompletion=_runtimes,
    ),
]

# ---- of stream

_int8 = partial(option, group="Weights in int8")

Time = Annotated[Texts, option("--time INPUT=AXIS", "Time axis of an input, if it cannot be inferred.")]
Delay = Annotated[bool, option("--delay", "Allow look-ahead: outputs can come some steps later.")]
InInt8 = Annotated[bool, _int8("--quantize", "Store the weights W and R of GRU nodes as int8.")]
StreamNodes = Annotated[Texts, _int8(*_QUANTIZED_NODES)]
StreamGroupSize = Annotated[Number, _int8(*_GROUP_SIZE)]
StreamOpset = Annotated[Number, _int8(*_OPSET)]

# ---- of quantize

_samples = partial(option, group="Samples for the measurement")

MinSnr = Annotated[
    float | None,
    option(
        "--min-snr DB", "Quantize only GRUs that keep the SNR of every output at or above this value, in dB."
    ),
]
QuantizedNodes = Annotated[Texts, option(*_QUANTIZED_NODES)]
GroupSize = Annotated[Number, option(*_GROUP_SIZE)]
SampleInputs = Annotated[
    Texts,
    _samples(
        "-i, --input [NAME=]FILE", "Input, as for `onegru run`. Default: random, which is not representative."
    ),
]
Samples = Annotated[
    Texts, _samples("--samples FILE", "Parquet files, a folder or a pattern; each row is a sample.")
]
SampleColumns = Annotated[
    Texts, _samples("--column NAME=COLUMN", "Column for an input. Default: the input's name.")
]
SampleRows = Annotated[Number, _samples("--rows N", "Maximum number of rows. Default: 100.", min=1)]

# ---- of score

ScoreModel = Annotated[Path, argument("MODEL", _ANY_FILE)]
ScoreFiles = Annotated[list[str], argument("INPUT...", "Parquet files, folders or patterns.")]
ScoreFolder = Annotated[Path, option("-o, --out FOLDER", "Folder for the results, as Parquet.", parser=path)]
ScoreColumns = Annotated[
    Texts,
    option(
        "-i, --input, --column NAME=COLUMN",
        "Column for an input of the model, such as X=events. Default: the input's name.",
    ),
]
Results = Annotated[
    Texts,
    option(
        "--output, --result NAME[=COLUMN]",
        "An output to write, and what to call its column. By default all of a model; of layers Y_h, the last "
        "state. Layers also have Y, all states, and states, the last ones of all layers.",
    ),
]
Keep = Annotated[str, option("--keep COLUMN,...", "Columns to copy to the results, such as id,day.")]
ScoreNodes = Annotated[
    Texts,
    option("--node NAME", "GRU to run, if the file has several. Repeat for a stack, lowest layer first."),
]
OnError = Annotated[
    str,
    option(
        "--on-error raise or skip or null",
        "What to do with rows that are null, empty, of another width, or hold a NaN: an error, no row, or a "
        "row without outputs.",
    ),
]
Memory = Annotated[str, option("--memory SIZE", "Memory limit, such as 500MB.")]
Pad = Annotated[
    bool,
    option(
        "--pad",
        "Let rows of different lengths share a batch of a whole model, which must ignore what comes after a "
        "row's end. Layers always do.",
    ),
]
Batch = Annotated[Number, option("--batch STEPS", "Steps of a batch, including padding.", min=1)]
ScoreThreads = Annotated[
    Number, option("--threads N", "Number of compute threads. Default: all cores.", min=1)
]
Ray = Annotated[
    Text,
    option(
        "--ray ADDRESS",
        "A Ray cluster to compute on: auto, HOST:PORT, or local for one on this machine's CPUs. Then "
        "--memory and --threads (1 by default) are those of each worker.",
    ),
]

# ---- of verify

_timeout = partial(option, "--timeout SECONDS", min=1.0, max=LONGEST)

VerifySeed = Annotated[
    int, option("--random SEED", "Seed for random values of the inputs that are not given.", min=0)
]
Reference = Annotated[
    Path | None,
    option("--against REFERENCE", "Model (.onnx, .xml) or checkpoint (.pt, .safetensors) to compare with."),
]
ReferenceNodes = Annotated[
    Texts,
    option("--node NAME", "GRU of REFERENCE to compare with. Repeat for several, in the model's order."),
]
VerifyTolerance = Annotated[
    float | None,
    option(
        "--tolerance X",
        "The most that an element of an output may be off, relative to max(1, its absolute value). By "
        "default 1e-5 for float32, 1e-12 for float64, 0.01 for float16 and 0.05 for bfloat16, or more where "
        "the model enlarges a rounding of its inputs to more.",
        min=0.0,
    ),
]
VerifyTimeout = Annotated[float, _timeout("Time limit for a runtime, in seconds.")]
VerifyRuntimes = Annotated[
    Texts,
    option(
        "--runtime NAME",
        f"Runtime to compare: {', '.join(item.name for item in RUNTIMES)}; repeat for several. Default: "
        "every one that is installed and reads such files.",
    ),
]
_PRECISION = f"--precision {' or '.join(PRECISIONS)}"
VerifyPrecision = Annotated[
    str,
    option(
        _PRECISION, "Inference precision of OpenVINO: f32, or default, which is bfloat16 on some processors."
    ),
]

# ---- of conformance

Cases = Annotated[
    Texts, option("--case PATTERN", "Only cases with this name; can contain *, ? and [...]. Repeat for more.")
]
Operators = Annotated[
    Texts, option("--operator NAME", "Only cases of this operator, such as GRU-14, or GRU for all versions.")
]
KitRuntimes = Annotated[
    Texts,
    option(
        "--runtime NAME",
        f"Runtime to test: {', '.join(kit.RUNTIMES)}, or module:function or FILE.py:function for your "
        "function. Repeat for several. Default: all installed runtimes.",
    ),
]
Providers = Annotated[
    Texts,
    option(
        "--provider NAME",
        "Execution provider of ONNX Runtime, without the CPU provider as a fallback. Repeat for several. "
        "Default: the CPU provider.",
    ),
]
KitEngines = Annotated[
    Texts,
    option(f"--engine {' or '.join(kit.ENGINES)}", "Engine of onegru. Repeat for several. Default: native."),
]
KitPrecision = Annotated[
    Text, option(_PRECISION, f"Inference precision of OpenVINO. Default: {PRECISIONS[0]}.")
]
KitTimeout = Annotated[float, _timeout("Time limit for a case, in seconds.")]
NoRefusals = Annotated[bool, option("--no-refusals", "Exit with code 1 if a runtime rejects a case.")]
KitOutput = Annotated[Path | None, option("-o, --output FILE", "File for all results, as JSON.", parser=path)]
KitHtml = Annotated[Path | None, option("--html FILE", "File for all results, as an HTML page.", parser=path)]
KitFolder = Annotated[Path, argument("DIR", "Target folder; must be new or empty.", parser=path)]
