"""`onegru quantize`: store weights as int8, and measure accuracy and speed on samples."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated

from rich.console import Console

from onegru.cli import options
from onegru.cli.inputs import gather_inputs, open_sizes, parse_axes, parse_pairs
from onegru.cli.model_changes import open_source, refuse, show_rewriting
from onegru.cli.options import GROUP_SIZE, QUANTIZED_NODES, Number, Texts, option
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, ruled_table, safe, say
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.formats.opened import Opened
from onegru.models.load import load
from onegru.models.model import Model
from onegru.quantization.quantize import quantize
from onegru.quantization.report import Quantization, table_rows
from onegru.quantization.subject import MODES

_samples = partial(option, group="Samples for the measurement")

MinSnr = Annotated[
    float | None,
    option(
        "--min-snr DB", "Quantize only GRUs that keep the SNR of every output at or above this value, in dB."
    ),
]
QuantizedNodes = Annotated[Texts, option(*QUANTIZED_NODES)]
GroupSize = Annotated[Number, option(*GROUP_SIZE)]
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


def quantize_command(
    source: options.Source,
    target: options.Target,
    min_snr_db: MinSnr = None,
    nodes: QuantizedNodes = None,
    group_size: GroupSize = None,
    opset: options.Opset = None,
    inputs: SampleInputs = None,
    samples: Samples = None,
    columns: SampleColumns = None,
    axes: options.Axes = None,
    rows: SampleRows = None,
    dims: options.CheckDims = None,
    default_dim: options.CheckDefaultDim = None,
    tolerance: options.CheckTolerance = None,
    overwrite: options.Overwrite = False,
    as_json: options.TargetJson = False,
) -> None:
    """Store the weights W and R of GRUs as int8, and measure accuracy and speed.

    Example: onegru quantize model.onnx small.onnx --samples logs/ --column X=events

    Example: onegru quantize model.onnx small.onnx --min-snr 40 -i x.npy
    """
    if not samples:
        refuse({"--column": columns, "--axes": axes, "--rows": rows}, "without --samples")
    elif inputs:
        raise SpecError.of("--samples", "has no effect with --input; remove one of them")
    file = open_source(source, target, [".onnx", ".xml"], overwrite)
    given: list[dict[str, Array]] | None = None
    words = "random inputs, which are not representative; pass your inputs with -i or --samples"
    if inputs:
        values, _ = gather_inputs(load(file), inputs, None, dims or [], default_dim, draws=False)
        given, words = [values], "the given inputs"
    elif samples:
        given = _read(file, samples, columns, axes, rows)
        words = f"the first {count(len(given), 'row')} of {', '.join(samples)}"
    with ProgressBar(f"quantizing {source.name}") as watch:
        found = quantize(
            file,
            given,
            target,
            min_snr_db=min_snr_db,
            nodes=nodes or None,
            group_size=group_size,
            opset=opset,
            dims=open_sizes(file, dims or [], default_dim),
            tolerance=tolerance,
            progress=watch.progress,
        )
    assert found.written is not None
    if as_json:
        print_json({**dataclasses.asdict(found.written), "quantization": _document(found)})
        return
    show_rewriting(found.written, as_json=False)
    _show_measured(Screen(), found, words, min_snr_db is not None)


def _read(
    source: Opened, samples: list[str], columns: list[str] | None, axes: list[str] | None, rows: int | None
) -> list[dict[str, Array]]:
    """Read inputs from the rows of Parquet files."""
    from onegru.scoring.samples import ROWS, read_samples  # needs pyarrow

    with ProgressBar(f"reading {samples[0]}"):
        pairs = parse_pairs("--column", columns or [])
        return read_samples(
            load(source), samples, inputs=pairs, axes=parse_axes(axes or []), rows=rows or ROWS
        )


def _document(found: Quantization[Model]) -> dict[str, object]:
    """Return the measurements as a JSON document."""
    return {
        "grus": [dataclasses.asdict(gru) for gru in found.grus],
        "modes": {mode: dataclasses.asdict(item) for mode, item in found.modes.items()},
        "chosen": dataclasses.asdict(found.chosen),
        "weight_storage": found.weight_storage,
        "activation_storage": found.activation_storage,
    }


def _show_measured(console: Console, measured: Quantization[Model], inputs: str, is_chosen: bool) -> None:
    """Print a table of the modes that onegru can run GRUs in, and how to run the target as chosen."""
    table = ruled_table(["GRU"], MODES)
    table.padding = (0, 0)  # all modes then fit 80 columns
    if is_chosen:
        table.add_column("result")
    for row in table_rows(measured):
        if row[0] == "all":
            table.add_section()
        table.add_row(*map(safe, row if is_chosen else row[:-1]))
    console.print(table)
    say(console, f"SNR in onegru compared with float32, and run time, on {safe(inputs)}")
    say(console, *map(safe, measured.usage))
