"""The command `onegru score`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onegru
from tests.cli.test_screen import in_terminal
from tests.support.layers import make_gru
from tests.support.machine.cli import Cli
from tests.support.machine.processes import run_python_without

pa = pytest.importorskip("pyarrow")
pytest.importorskip("safetensors")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import Scorer  # noqa: E402
from tests.support.tables import read_results, sequences, table  # noqa: E402


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """`--threads` is the process's, which other tests share."""
    yield
    onegru.set_num_threads(None)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Path]:
    """A model and a file of rows; the last row is empty."""
    onegru.save_layers(make_gru(), tmp_path / "m.safetensors")
    rows: list[Any] = [row.tolist() for row in sequences()]
    events = pa.array([*rows, []], pa.list_(pa.list_(pa.float32())))
    both = pa.table({"id": range(9), "day": ["a"] * 9, "events": events})
    pq.write_table(both, tmp_path / "bad.parquet")
    pq.write_table(both.slice(0, 8), tmp_path / "good.parquet")
    names = {"model": "m.safetensors", "good": "good.parquet", "bad": "bad.parquet", "out": "out"}
    return {name: tmp_path / path for name, path in names.items()}


def test_a_run_that_is_interrupted(cli: Cli, given: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onegru.scoring.score", stop)
    result = cli("score", given["model"], given["good"], "-o", given["out"], "-i", "X=events")
    assert (result.code, result.out) == (130, "")
    assert result.err == "onegru: interrupted; run the same command again to resume\n"


def test_a_run_and_the_same_again(cli: Cli, given: dict[str, Path]) -> None:
    command = ("score", given["model"], given["good"], "-o", given["out"], "--keep", "id,day")
    options = (
        "-i",
        "X=events",
        "--output",
        "Y_h=state",
        "--output",
        "Y",
        "--threads",
        "1",
        "--memory",
        "400MB",
    )
    done = cli(*command, *options)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.startswith("scored 8 rows in ") and first.endswith(" rows/s")
    assert second == f"wrote {given['out']}: 8 rows in 1 file"
    found = read_results(given["out"])
    assert found.column_names == ["id", "day", "state", "Y"]
    assert found["state"].to_pylist() == Scorer(make_gru())(table(sequences()))["Y_h"].to_pylist()
    again = cli(*command, *options)
    assert again.out == f"{given['out']} is complete: 8 rows; nothing to do\n"
    cli(*command, "-i", "X=events").refused(
        f"{given['out']}: contains results of another run: outputs: null, but"
    )


def test_a_run_that_goes_on_says_what_is_there(cli: Cli, given: dict[str, Path]) -> None:
    command = ("score", given["model"], given["good"], "-o", given["out"], "-i", "X=events")
    assert "earlier run" not in cli(*command).out
    (given["out"] / "_SUCCESS").unlink()
    assert cli(*command).out.splitlines()[0] == f"{given['out']} has 1 part of an earlier run; resuming"
    assert cli(*command).out == f"{given['out']} is complete: 8 rows; nothing to do\n"


def test_skipped_rows_and_json(cli: Cli, given: dict[str, Path]) -> None:
    command = ("score", given["model"], given["bad"], "-o", given["out"], "-i", "X=events")
    cli(*command).refused(
        f"{given['bad']}: row 8: 'events': empty; must have at least one step; "
        "on_error (--on-error) can skip such rows"
    )
    done = cli(*command, "--on-error", "skip")  # as nothing was written
    assert done.out.splitlines()[-1] == f"1 row skipped; {given['out']}/_errors lists the rows and reasons"
    cli(*command).refused("contains results of another run: on_error")
    document = cli(*command, "--on-error", "skip", "--json").document()
    assert {name: document[name] for name in ("rows", "skipped", "rows_now")} == {
        "rows": 8,
        "skipped": 1,
        "rows_now": 0,
    }
    assert json.loads((given["out"] / "_SUCCESS").read_text()) == {"rows": 8, "skipped": 1, "parts": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "events"], "--column: 'events'; must be NAME=COLUMN"),
        (["-i", "X=a", "-i", "X=b"], "--column: 'X' is given twice"),
        (["--output", "=a"], "--output: '=a'; must be NAME=COLUMN or NAME"),
        (["--memory", "lots"], "--memory: 'lots'; must be a size, such as 500MB or 1GiB"),
        (["--memory", "1MB"], "--memory: 1 MB; must be at least "),
        (["--on-error", "stop"], "--on-error: 'stop'; must be one of raise, skip, null"),
        (["--node", "g"], "--node: 'g'; no such GRU"),
        (["--axes", "X"], "--axes: 'X'; must be NAME=AXIS,..."),
    ],
)
def test_refusals(cli: Cli, given: dict[str, Path], options: list[str], message: str) -> None:
    cli("score", given["model"], given["good"], "-o", given["out"], *options).refused(message)
    assert not given["out"].exists()


def test_without_pyarrow(given: dict[str, Path]) -> None:
    code = "from onegru.cli import main\nmain()"
    done = run_python_without("name == 'pyarrow'", code, "score", given["model"], given["good"], "-o", "x")
    assert (done.returncode, done.stderr) == (
        2,
        "onegru: onegru.scoring needs pyarrow: pip install 'onegru[scoring]'\n",
    )


def test_the_bar_tells_the_rate_and_the_time_left() -> None:
    code = """
import sys, time
from onegru.cli import screen
screen._PATIENCE = 0.0
with screen.CountingBar("rows", "scoring") as bar:
    for done in range(12):
        bar.progress(100 * done, 1200)
        time.sleep(0.1)
"""
    written = in_terminal(code)
    assert "rows/s" in written and "/1200" in written and "left" in written
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", written)
    assert max(map(len, re.split(r"[\r\n]+", shown))) <= 80
