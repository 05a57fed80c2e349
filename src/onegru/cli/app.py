"""The commands, and how their errors are printed."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, TextIO

import typer

import onegru
from onegru._native import UnsupportedError
from onegru.cli import options
from onegru.cli.commands.bench import bench_command
from onegru.cli.commands.conformance import conformance
from onegru.cli.commands.convert import convert_command
from onegru.cli.commands.fuse import fuse_command, show_decomposed, show_fusing_hint
from onegru.cli.commands.quantize import quantize_command
from onegru.cli.commands.rewrite import rewrite_command
from onegru.cli.commands.score import score_command
from onegru.cli.commands.stream import stream_command
from onegru.cli.commands.trace import trace_command
from onegru.cli.commands.verify import verify_command
from onegru.cli.inputs import explained, gather_inputs
from onegru.cli.model_changes import PlainHelp
from onegru.cli.next_steps import next_steps
from onegru.cli.options import Texts, option
from onegru.cli.outputs import check_targets, print_run, write_outputs
from onegru.cli.screen import ProgressBar, Screen
from onegru.cli.tables import show_next_steps, show_report, show_run, show_targets
from onegru.core.wording import printable
from onegru.formats.opened import open_model
from onegru.runtimes.openvino import openvino_operator
from onegru.timeline.unread import warn_of_unread

app = typer.Typer(
    name="onegru",
    help="Run, inspect and convert models with GRUs.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

RunInputs = Annotated[
    Texts, option("-i, --input [NAME=]FILE", "Input: NAME=x.npy, NAME=x.pb, or x.npz for several inputs.")
]
RunOutputs = Annotated[
    Texts, option("-o, --output [NAME=]FILE", "File for the outputs: out.npz for all, NAME=y.npy for one.")
]
Engine = Annotated[str, option("--engine", "Engine for the GRUs: auto, native or reference.")]

_INTERRUPTED = 130  # the exit code of shells and typer for Ctrl-C


def run() -> int:
    """Run the command line and return its exit code: 2, after one line, on bad input."""
    if sys.stdout is None or sys.stderr is None:  # the calling process closed them
        sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="onegru")  # replaces characters that the terminal lacks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of other packages
        warnings.simplefilter("always", onegru.SpecWarning)
        warnings.filterwarnings("always", "GRU layers in OpenVINO", RuntimeWarning)
        warnings.showwarning = _show_warning
        return _run()


def _replace_character(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that a terminal lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = {"µ": "u", "→": "->", "…": "..."}
    if (char := error.object[error.start]) in plain:
        return plain[char], error.start + 1
    return codecs.backslashreplace_errors(error)


codecs.register_error("onegru", _replace_character)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _run() -> int:
    try:
        code = int(app(prog_name="onegru", standalone_mode=False) or 0)
        sys.stdout.flush()
        return _fail("interrupted", code) if code == _INTERRUPTED else code
    except typer.Exit as stop:
        return int(stop.exit_code)
    except BrokenPipeError:
        return _output_closed()
    except SystemExit as stop:  # typer raises it after completion, and for a broken pipe
        return _output_closed() if isinstance(stop.__context__, BrokenPipeError) else int(stop.code or 0)
    except (typer.Abort, KeyboardInterrupt) as stop:
        return _fail("; ".join(["interrupted", *map(str, stop.args)]), _INTERRUPTED)
    except onegru.OneGRUError as error:
        return _fail(_with_option_name(error))
    except UnsupportedError as error:  # this build has no kernels for the file
        return _fail(str(error))
    except MemoryError as error:
        return _fail(f"not enough memory ({error})")
    except OSError as error:
        words, name = error.strerror or str(error), error.filename
        if name is None and error.errno == errno.ENOSPC:  # errors about files have names
            name = "standard output"
        return _fail(f"{name}: {words}" if name else words)
    except Exception as error:
        # Errors in the arguments, such as an unknown option.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _fail(message())


#: Options whose names differ from the Python arguments, in order of preference.
_OPTIONS = {
    "dims": ("--dim", "--dims"),
    "dtype": ("--float16",),
    "inputs": ("--column", "--input", "-i"),
    "min_snr_db": ("--min-snr",),
    "nodes": ("--node",),
    "num_threads": ("--threads",),
    "output": ("--out", "-o"),
    "outputs": ("--output", "--result"),
    "quantize": ("--node",),
    "runtime": ("--for",),
    "runtimes": ("--runtime",),
    "sequence_lens": ("--lengths", "--no-lengths"),
    "initial_h": ("--initial-h", "--no-initial-h"),
    "split": ("--bidirectional-split",),
}


def _with_option_name(error: onegru.OneGRUError) -> str:
    """Name the option instead of the Python argument in a message."""
    argument, words = getattr(error, "argument", None), str(error)
    if argument is None:
        return words
    given = {item.partition("=")[0] for item in sys.argv[1:]}
    for name in (*_OPTIONS.get(argument, ()), f"--{argument.replace('_', '-')}"):
        if name in given:
            # At the beginning, or after the names of a file and a node, which may contain any text.
            split = words.partition if words.startswith(f"{argument}: ") else words.rpartition
            location, found, said = split(f"{argument}: ")
            # On the command line, None means that the option is not given.
            said = re.sub(r"; must be None\b", "; remove it", said)
            said = re.sub(r" or None$", " or not given", said)
            return f"{location}{name}: {said}" if found else words
    return words


def _output_closed() -> int:
    """Return the exit code if the reader of the output closes it early."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python then writes nothing more
    return 0


def _fail(message: str, code: int = 2) -> int:
    print(f"onegru: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *details: object, **more: object) -> None:
    _fail(f"warning: {message}")


@app.command("run", short_help="Run a model.", cls=PlainHelp)
def run_command(
    model: options.Model,
    inputs: RunInputs = None,
    random: options.Seed = None,
    dims: options.Dims = None,
    default_dim: options.DefaultDim = None,
    outputs: RunOutputs = None,
    engine: Engine = "auto",
    weight_storage: options.WeightStorage = None,
    activation_storage: options.ActivationStorage = None,
    as_json: options.Json = False,
) -> None:
    """Run a model: onegru runs the GRUs, ONNX Runtime or OpenVINO the other nodes.

    Example: onegru run model.onnx --random 0 --dim batch=4 -o out.npz
    """
    with ProgressBar(f"loading {model.name}"):
        file = open_model("path", model)
        loaded = onegru.load(
            file, engine=engine, weight_storage=weight_storage, activation_storage=activation_storage
        )
    warn_of_unread(loaded.graph)
    targets = check_targets(outputs or [], loaded, inputs or [])
    values, random_names = gather_inputs(loaded, inputs or [], random, dims or [], default_dim)
    with explained(loaded, random_names), ProgressBar(f"running {model.name}") as watch:
        results = loaded.run(values, progress=watch.progress)
    write_outputs(targets, results)
    if as_json:
        print_run(loaded, values, results, watch.seconds)
    else:
        show_run(Screen(), loaded, values, results, watch.seconds, [*targets])
        show_fusing_hint(Screen(), loaded)


@app.command("inspect", short_help="Describe the GRUs in a file.", cls=PlainHelp)
def inspect_command(file: options.File, as_json: options.Json = False) -> None:
    """Describe the GRUs in a file, and list known problems in other runtimes. Does not run the model.

    Example: onegru inspect model.onnx
    """
    with ProgressBar(f"reading {file.name}"):
        found = onegru.inspect(file)
    show_report(Screen(), found, as_json=as_json)
    if not as_json:
        show_decomposed(Screen(), found)
        show_next_steps(Screen(), next_steps(found))


for _name, _help, _command in (
    ("bench", "Time a model.", bench_command),
    ("trace", "Show the gate values of a GRU.", trace_command),
    ("convert", "Convert GRU layers to another file format.", convert_command),
    ("rewrite", "Rewrite the GRU nodes of an ONNX model.", rewrite_command),
    ("fuse", "Fuse decomposed GRUs into GRU nodes.", fuse_command),
    ("stream", "Convert a model for streaming.", stream_command),
    ("quantize", "Store GRU weights as int8, and measure the effect.", quantize_command),
    ("score", "Run a model over the sequences of Parquet files.", score_command),
    ("verify", "Compare a model in every installed runtime.", verify_command),
):
    app.command(_name, short_help=_help, cls=PlainHelp)(_command)


app.add_typer(conformance, name="conformance", short_help="Test runtimes with the conformance suite.")


@app.command("targets", short_help="List the SIMD targets and the OpenVINO operator.", cls=PlainHelp)
def targets_command(as_json: options.Json = False) -> None:
    """List the available SIMD targets, the one in use, and the operator that runs GRUs in OpenVINO.

    Example: ONEGRU_TARGET=avx2 onegru targets
    """
    show_targets(Screen(), onegru.targets(), openvino_operator(), as_json=as_json)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(onegru.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
