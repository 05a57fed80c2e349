"""Read handwritten digits with a GRU model run by onegru, show some, and compare with ONNX Runtime.

Exits with 1 if fewer than 97 % are read right or the two engines differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from rich.console import Console
from rich.table import Table
from rich.text import Text

import onegru
from onegru.system.turns import take_turns

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits.onnx"
PICTURE = HERE.parents[1] / "build" / "digits.png"
WHITEST = 16  # pixels are whole numbers from 0 to 16
GRID = (6, 10)  # rows and columns of the PNG
LOWEST_ACCURACY = 0.97
LARGEST_DIFFERENCE = 1e-4
ROUNDS = 7  # turns of each engine, in which it is called for ...
TURN = 0.05  # ... about so many seconds

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Engine = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Reading:
    """The held-out digits, what they are, and what the model takes them for."""

    images: Bytes
    truth: Bytes
    read: npt.NDArray[np.intp]

    @property
    def accuracy(self) -> float:
        """The share of digits read right."""
        return float(np.mean(self.read == self.truth))

    def misread_first(self, count: int) -> list[int]:
        """Return the places of up to `count` digits: the misread ones, then others from the start."""
        wrong = self.read != self.truth
        return [int(i) for i in np.argsort(~wrong, kind="stable")[:count]]


def draw(image: Bytes, console: Console) -> Text:
    """Draw a digit two columns to a pixel: grey blocks where the terminal has greys, else shades."""
    greys = console.color_system in ("256", "truecolor") and not console.no_color
    shades = " ░▒▓█" if console.encoding.startswith("utf") else " .+*#"
    drawing = Text()
    for row in image.tolist():
        for pixel in row:
            grey = round(255 * pixel / WHITEST)
            shade = shades[round((len(shades) - 1) * pixel / WHITEST)]
            drawing.append("  " if greys else 2 * shade, f"on rgb({grey},{grey},{grey})" if greys else "")
        drawing.append("\n")
    return drawing


def print_digits(reading: Reading, count: int, console: Console) -> None:
    """Print up to `count` digits side by side, as many to a line as fit."""
    width = 2 * reading.images.shape[2]
    columns = max(1, (console.width + 2) // (width + 2))
    table = Table.grid(padding=(0, 2, 1, 0))
    cells = []
    for i in reading.misread_first(count):
        wrong = reading.read[i] != reading.truth[i]
        caption = f"read {reading.read[i]}, truth {reading.truth[i]}" + ("\nmisread" if wrong else "")
        cells.append(draw(reading.images[i], console).append(caption, "bold red" if wrong else "green"))
    for start in range(0, len(cells), columns):
        table.add_row(*cells[start : start + columns])
    console.print(table)


def save_picture(reading: Reading, path: Path) -> None:
    """Save a grid of digits, the misread ones first and in red."""
    from matplotlib.figure import Figure  # takes long, and the processes of the engines do not need it

    rows, columns = GRID
    figure = Figure(figsize=(columns, 1.25 * rows + 0.6), layout="constrained")
    figure.suptitle(f"{len(reading.truth)} digits never seen in training: {reading.accuracy:.2%} read right")
    places = reading.misread_first(rows * columns)
    for axes, i in zip(figure.subplots(rows, columns).flat, places, strict=True):
        wrong = reading.read[i] != reading.truth[i]
        axes.imshow(reading.images[i], cmap="gray", vmin=0, vmax=WHITEST)
        caption = f"{reading.read[i]}, is {reading.truth[i]}" if wrong else f"{reading.read[i]}"
        axes.set_title(caption, color="red" if wrong else "black", fontsize=10)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color="red" if wrong else "lightgrey", linewidth=2 if wrong else 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png", dpi=110)
    part.replace(path)


def serve(name: str, connection: Connection) -> None:
    """Call an engine in this process for the digits that are sent, as many times as asked; None ends it."""
    engine = ENGINES[name]()
    while (order := connection.recv()) is not None:
        rows, count = order
        for _ in range(count):
            engine(rows)
        connection.send(None)


class Timed:
    """An engine in another process: in one, the threads of several engines would compete."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(name, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def calls(self, rows: Floats, count: int) -> None:
        """Call it so often, and wait until it is done."""
        self._connection.send((rows, count))
        self._connection.recv()

    def stop(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


def times_of(engines: dict[str, Timed], rows: Floats, rounds: int) -> dict[str, str]:
    """Return each engine's time of a call: its median over turns, and the fastest and the slowest turn."""
    bursts: dict[str, Callable[[], None]] = {}
    counts: dict[str, int] = {}
    for name, engine in engines.items():
        engine.calls(rows, 10)
        began = time.perf_counter()
        engine.calls(rows, 10)
        counts[name] = max(3, int(TURN / (time.perf_counter() - began) * 10))
        bursts[name] = functools.partial(engine.calls, rows, counts[name])
    shown = {}
    for name, turns in take_turns(bursts, rounds, turn=0).items():
        times = [seconds / counts[name] for seconds in turns]
        scale, unit = (1e3, "ms") if statistics.median(times) >= 1e-3 else (1e6, "µs")
        median, low, high = (
            scale * seconds for seconds in (statistics.median(times), min(times), max(times))
        )
        shown[name] = f"{median:.3g} {unit} ({low:.3g} … {high:.3g})"
    return shown


def print_times(names: Iterable[str], rows: Floats, rounds: int, console: Console) -> None:
    """Print the time of each engine for all digits in one call and for a single digit."""
    columns = {f"all {len(rows)} digits": rows, "one digit": rows[:1]}
    engines = {name: Timed(name) for name in names}
    times = [times_of(engines, some, rounds) for some in columns.values()]
    for engine in engines.values():
        engine.stop()
    table = Table(title="time of a call: median of turns (fastest … slowest)", title_justify="left")
    table.add_column("engine")
    for name in columns:
        table.add_column(name, justify="right")
    for name in engines:
        table.add_row(name, *(column[name] for column in times))
    console.print(table)


def by_onegru() -> Engine:
    """The model by onegru."""
    model = onegru.load(MODEL)
    return lambda rows: model.run({"rows": rows})["logits"]


def by_provider() -> Engine:
    """A session of ONNX Runtime's that has onegru run its GRUs."""
    return of_session([onegru.execution_provider.register(), "CPUExecutionProvider"])


def by_onnxruntime() -> Engine:
    """A session of ONNX Runtime without onegru."""
    return of_session(["CPUExecutionProvider"])


def of_session(providers: list[str]) -> Engine:
    """A session of ONNX Runtime's with these providers."""
    session = onnxruntime.InferenceSession(MODEL, providers=providers)
    return lambda rows: session.run(["logits"], {"rows": rows})[0]


ENGINES: dict[str, Callable[[], Engine]] = {
    "onegru": by_onegru,
    "ONNX Runtime + onegru": by_provider,
    "ONNX Runtime": by_onnxruntime,
}


def parse_arguments() -> argparse.Namespace:
    """Return the command line's settings."""
    parser = argparse.ArgumentParser(description="Read handwritten digits with a GRU model run by onegru.")
    parser.add_argument("--shown", type=int, default=8, metavar="N", help="digits to draw in the terminal")
    parser.add_argument(
        "--picture", type=Path, default=PICTURE, metavar="PNG", help="where to write the picture"
    )
    parser.add_argument("--turns", type=int, default=ROUNDS, metavar="N", help="times that each is timed")
    return parser.parse_args()


def judge(accuracy: float, difference: float) -> list[str]:
    """Return what is not as it should be; a value that is not a number never is."""
    failures = []
    if not accuracy >= LOWEST_ACCURACY:
        failures.append(f"fewer than {LOWEST_ACCURACY:.0%} of the digits were read right")
    if not difference <= LARGEST_DIFFERENCE:
        failures.append(f"the engines differ by more than {LARGEST_DIFFERENCE:.0e}")
    return failures


def main() -> int:
    """Read the held-out digits with both engines, show them, and judge."""
    arguments = parse_arguments()
    console = Console(highlight=False)
    with np.load(HERE / "heldout.npz") as heldout:
        images, truth = heldout["images"], heldout["labels"]
    rows = images.astype(np.float32) / WHITEST

    logits: dict[str, Floats] = {}
    for name, make in ENGINES.items():
        try:
            logits[name] = make()(rows)
        except onegru.OneGRUError as error:  # the provider needs a newer ONNX Runtime
            console.print(f"{name}: {error}")
    ours, theirs = logits["onegru"], logits["ONNX Runtime"]
    reading = Reading(images, truth, ours.argmax(axis=1))
    difference = max(float(np.abs(found - theirs).max()) for found in logits.values())
    same = int((reading.read == theirs.argmax(axis=1)).sum())

    right = int((reading.read == truth).sum())
    if (shown := max(0, arguments.shown)) and right < len(truth):
        wrong = len(truth) - right
        console.print(f"misread digits first: {min(shown, wrong)} of the {wrong} among {len(truth)}\n")
    print_digits(reading, shown, console)
    console.print(f"GRU nodes in the model: {len(onegru.load(MODEL).gru_nodes)}")
    console.print(f"read right: {right} of {len(truth)} held-out digits ({reading.accuracy:.2%})")
    console.print(f"same digit as ONNX Runtime: {same} of {len(truth)}")
    console.print(f"largest difference from ONNX Runtime in a logit: {difference:.1e}")
    print_times(logits, rows, arguments.turns, console)
    save_picture(reading, arguments.picture)
    console.print(f"picture: {os.path.relpath(arguments.picture)}", soft_wrap=True)

    failures = judge(reading.accuracy, difference)
    for failure in failures:
        console.print(f"FAILED: {failure}", style="bold red")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
