"""`score`: the rows of files in order, in parts that are whole; runs that are stopped, refused, repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from tests.support.layers import make_gru
from tests.support.machine.processes import run_python, run_python_without

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import Scorer, score  # noqa: E402
from tests.support.tables import read_results, sequences, table, write_files  # noqa: E402

LEAST = 270 << 20  # of memory: parts are small then
ROWS = sequences(lengths=np.random.default_rng(5).integers(1, 120, 1500).tolist())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of different sizes, with row groups that are smaller and larger than a part."""
    folder: Path = tmp_path_factory.mktemp("data") / "in"
    write_files(folder, ROWS, 3, row_group_size=130)
    pq.write_table(table(ROWS), folder / "003.parquet")
    pq.write_table(table(ROWS).slice(0, 0), folder / "004.parquet")
    return folder


def expected(data: Path, scorer: Scorer) -> Any:
    """The rows of all files, scored as one table."""
    return scorer(pa.concat_tables(pq.read_table(path) for path in sorted(data.glob("*.parquet"))))


def test_all_rows_in_order(data: Path, tmp_path: Path) -> None:
    scorer = Scorer(make_gru(), keep=["id", "day"], outputs=["Y_h", "Y"])
    seen: list[tuple[int, int]] = []
    found = score(scorer, [data], tmp_path / "out", memory=LEAST, progress=lambda *pair: seen.append(pair))
    assert (found.files, found.rows, found.skipped, found.parts_before) == (5, 3000, 0, 0)
    assert found.rows_now == 3000 and found.parts >= 4
    assert seen[0] == (0, 3000) and seen[-1] == (3000, 3000) and seen == sorted(seen)
    assert read_results(tmp_path / "out").equals(expected(data, scorer))
    names = {item.name for item in (tmp_path / "out").iterdir()}
    parts = {f"part-{number:06}.parquet" for number in range(found.parts)}
    assert names == {*parts, "_onegru.json", "_onegru.lock", "_SUCCESS"}
    # The same rows, bit for bit, however they are divided.
    whole = score(scorer, [data], tmp_path / "whole")
    assert whole.parts < found.parts
    assert read_results(tmp_path / "whole").equals(read_results(tmp_path / "out"))


def test_files_folders_and_patterns(data: Path, tmp_path: Path) -> None:
    scorer = Scorer(make_gru(), keep=["id"])
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name in ("b.parquet", "a/z.parquet", "_hidden.parquet", ".x.parquet"):
        number = "ba_.".index(name[0])
        pq.write_table(table(ROWS[:4]).slice(number, 1), tmp_path / "in" / name)

    def ids(name: str, *inputs: object) -> Any:
        score(scorer, [str(item) for item in inputs], tmp_path / name)
        return read_results(tmp_path / name)["id"].to_pylist()

    assert ids("1", tmp_path / "in") == [1, 0]
    assert ids("2", tmp_path / "in" / "*.parquet", tmp_path / "in" / "a") == [0, 1]
    assert ids("3", tmp_path / "in" / "**" / "z*") == [1]
    for inputs, message in (
        ([], "inputs: empty"),
        ([tmp_path / "no*"], "no such file"),
        ([tmp_path / "in", tmp_path / "in" / "b.parquet"], "is listed twice"),
        (["s3://bucket/x"], "a URL; must be files on this machine"),
    ):
        with pytest.raises(SpecError, match=message):
            ids("4", *inputs)
    with pytest.raises(OSError, match=r"nothing\.parquet"):
        ids("4", tmp_path / "nothing.parquet")
    assert not (tmp_path / "4").exists()


def test_no_rows_at_all(data: Path, tmp_path: Path) -> None:
    found = score(Scorer(make_gru(), keep=["id"]), [data / "004.parquet"], tmp_path / "out")
    assert (found.rows, found.parts) == (0, 1)
    assert read_results(tmp_path / "out").column_names == ["id", "Y_h"]


def test_bad_rows_are_named_by_file_and_row(tmp_path: Path) -> None:
    lists: list[Any] = [row.tolist() for row in ROWS[:200]]
    lists[3], lists[150], lists[151] = None, [], [[1.0] * 4]
    rows = table(ROWS[:200]).set_column(2, "X", pa.array(lists, pa.list_(pa.list_(pa.float32()))))
    (tmp_path / "in").mkdir()
    pq.write_table(rows.slice(0, 100), tmp_path / "in" / "a.parquet", row_group_size=30)
    pq.write_table(rows.slice(100), tmp_path / "in" / "b.parquet", row_group_size=30)
    with pytest.raises(FormatError, match=r"a\.parquet: row 3: 'X': null; on_error \(--on-error\)"):
        score(Scorer(make_gru()), [tmp_path / "in"], tmp_path / "out")
    for on_error, count in (("skip", 197), ("null", 200)):
        scorer, out = Scorer(make_gru(), keep=["id"], on_error=on_error), tmp_path / on_error
        found = score(scorer, [tmp_path / "in"], out)
        assert (found.rows, found.skipped) == (count, 3)
        assert read_results(out).equals(scorer(rows))
        texts = "".join(path.read_text() for path in sorted((out / "_errors").glob("*.jsonl")))
        assert [json.loads(line) for line in texts.splitlines()] == [
            {"file": str(tmp_path / "in" / name), "row": row, "column": "X", "reason": reason}
            | {"kept": {"id": number}}
            for name, row, reason, number in (
                ("a.parquet", 3, "null", 3),
                ("b.parquet", 50, "empty; must have at least one step", 150),
                ("b.parquet", 51, "step 0 has 4 numbers; must have 5", 151),
            )
        ]
        again = score(scorer, [tmp_path / "in"], out)
        assert (again.rows, again.skipped, again.rows_now) == (count, 3, 0)


@pytest.mark.parametrize("row_group_size", [90, 2000])
def test_rows_are_named_in_every_part_and_window(tmp_path: Path, row_group_size: int) -> None:
    lists: list[Any] = [row.tolist() for row in ROWS]
    bad = [*range(0, 1500, 70)]
    for row in bad:
        lists[row] = None
    rows = table(ROWS).set_column(2, "X", pa.array(lists, pa.list_(pa.list_(pa.float32()))))
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=row_group_size)
    scorer = Scorer(make_gru(), keep=["id"], on_error="skip")
    found = score(scorer, [tmp_path / "in.parquet"], tmp_path / "out", memory=LEAST)
    files = sorted((tmp_path / "out" / "_errors").glob("*.jsonl"))
    assert len(files) == found.parts >= 2
    assert [json.loads(line)["row"] for file in files for line in file.read_text().splitlines()] == bad
    assert read_results(tmp_path / "out").equals(scorer(rows))


# ---- stopped and gone on with

KILLED = """
import glob, os, random, sys, threading, time
from onegru.scoring import Scorer, score
sys.path.insert(0, sys.argv[4])
from tests.support.layers import make_gru

def run():
    scorer = Scorer(make_gru(), keep=["id", "day"], on_error="skip")
    return score(scorer, [sys.argv[1]], sys.argv[2], memory=int(sys.argv[3]))

def kill(parts, seconds):
    while len(glob.glob(sys.argv[2] + "/part-*")) < parts:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(os.getpid(), 9)

rng = random.Random(int(sys.argv[5]))
killed = 0
for parts in (0, 0, 1, 1, 2, 3, 4, 5, 6, 7):
    seconds = rng.uniform(0, 0.03)
    child = os.fork()
    if not child:  # the parent has no threads that a child would lack
        threading.Thread(target=kill, args=(parts, seconds), daemon=True).start()
        run()
        os._exit(0)
    killed += os.waitpid(child, 0)[1] == 9
print(killed, run().parts_before)
"""


@pytest.mark.long
def test_killed_at_random_moments(data: Path, tmp_path: Path) -> None:
    """Nothing is lost, nothing doubled, and no bit differs from a run that was let be."""
    rows = table(ROWS)
    lists = rows["X"].to_pylist()
    for bad in (7, 300, 1100):
        lists[bad] = None
    (tmp_path / "in").mkdir()
    broken = rows.set_column(2, "X", pa.array(lists, rows.schema.field("X").type))
    pq.write_table(broken, tmp_path / "in" / "0.parquet", row_group_size=200)
    for index in range(1, 5):
        pq.write_table(rows, tmp_path / "in" / f"{index}.parquet", row_group_size=200)
    root = Path(__file__).parents[2]
    done = run_python(KILLED, tmp_path / "in", tmp_path / "out", LEAST, root, 3)
    killed, before = map(int, done.stdout.split())
    print(f"{killed} were killed; the last one found {before} parts")
    assert killed >= 3 and before > 0
    scorer = Scorer(make_gru(), keep=["id", "day"], on_error="skip")
    score(scorer, [tmp_path / "in"], tmp_path / "calm", memory=LEAST)
    for path in (tmp_path / "calm").rglob("*"):
        twin = tmp_path / "out" / path.relative_to(tmp_path / "calm")
        if path.suffix in (".parquet", ".jsonl"):
            assert twin.read_bytes() == path.read_bytes()
    assert not list((tmp_path / "out").rglob(".*"))
    assert len(list((tmp_path / "out").rglob("*"))) == len(list((tmp_path / "calm").rglob("*")))


def test_an_error_midway_leaves_whole_parts(data: Path, tmp_path: Path) -> None:
    scorer = Scorer(make_gru(), keep=["id"])

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(scorer, [data], tmp_path / "out", memory=LEAST, progress=stop)
    parts = list((tmp_path / "out").glob("part-*.parquet"))
    assert parts and not (tmp_path / "out" / "_SUCCESS").exists()
    assert not list((tmp_path / "out").glob(".*"))
    before = sum(pq.read_metadata(path).num_rows for path in parts)
    seen: list[tuple[int, int]] = []
    found = score(scorer, [data], tmp_path / "out", memory=LEAST, progress=lambda *pair: seen.append(pair))
    assert found.parts_before == len(parts) < found.parts
    assert seen[0] == (before, 3000) and seen[-1] == (3000, 3000) and found.rows_now == 3000 - before
    assert read_results(tmp_path / "out").equals(expected(data, scorer))


def test_a_complete_run_is_not_repeated(data: Path, tmp_path: Path) -> None:
    scorer = Scorer(make_gru(), keep=["id"])
    first = score(scorer, [data], tmp_path / "out", memory=LEAST)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    again = score(scorer, [data], tmp_path / "out")  # with more memory, in the same parts
    assert (again.rows_now, again.parts_before, again.rows) == (0, first.parts, 3000)
    missing = tmp_path / "out" / f"part-{first.parts - 1:06}.parquet"  # of a row group that has several
    missing.unlink()
    mended = score(scorer, [data], tmp_path / "out")
    assert mended.parts_before == first.parts - 1 and 0 < mended.rows_now < 3000
    assert {path for path, time in times.items() if path.stat().st_mtime_ns != time} == {missing}
    assert read_results(tmp_path / "out").equals(expected(data, scorer))


def test_other_runs_are_refused(data: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_files(folder, ROWS[:50], 2)
    arguments: dict[str, Any] = {"keep": ["id"]}
    layer = make_gru()
    score(Scorer(layer, **arguments), [folder], out)

    def refused(words: str, model: Any = layer, inputs: Any = (folder,), **more: Any) -> None:
        with pytest.raises(SpecError) as caught:
            score(Scorer(model, **{**arguments, **more}), inputs, out)
        assert str(caught.value).startswith(f"{out}: contains results of another run: {words}"), caught.value

    refused("model: another one, or its file has changed", make_gru(1))
    refused('keep: ["id", "day"], but ["id"] before', keep=["id", "day"])
    refused('outputs: {"Y": "Y"}, but null before', outputs=["Y"])
    refused('on_error: "skip", but "raise" before', on_error="skip")
    refused(f"inputs: {folder}/001.parquet is missing", inputs=[folder / "000.parquet"])
    refused(f"inputs: {data}/003.parquet is new", inputs=[folder, data / "003.parquet"])
    refused("inputs: 2 files in another order", inputs=[folder / "001.parquet", folder / "000.parquet"])
    pq.write_table(table(ROWS[25:49]), folder / "001.parquet")
    refused(f"inputs: {folder}/001.parquet has changed")


def test_folders_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    scorer = Scorer(make_gru(), keep=["id"])
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    with pytest.raises(SpecError, match="not a folder"):
        score(scorer, [data], tmp_path / "file")
    with pytest.raises(SpecError, match="has other files; must be new, empty"):
        score(scorer, [data], tmp_path / "other")
    with pytest.raises(SpecError, match="is in the folder of results"):
        score(scorer, [data], data)
    with pytest.raises(SpecError, match=r"^memory: 100 MB; must be at least 282 MB$"):
        score(scorer, [data], tmp_path / "out", memory=100 * 10**6)

    def second(done: int, total: int) -> None:
        with pytest.raises(SpecError, match="another run is writing to it"):
            score(scorer, [data], tmp_path / "out")

    score(scorer, [data], tmp_path / "out", progress=second)
    (tmp_path / "out" / "_onegru.json").write_text("[")
    with pytest.raises(FormatError, match="not the record of a run"):
        score(scorer, [data], tmp_path / "out")


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    scorer, rows = Scorer(make_gru(), keep=["id"]), table(ROWS[:9])

    def refused(name: str, message: str, content: Any) -> None:
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(rows, folder / "a.parquet")
        if isinstance(content, bytes):
            (folder / "b.parquet").write_bytes(content)
        else:
            pq.write_table(content, folder / "b.parquet")
        with pytest.raises(onegru.OneGRUError) as caught:
            score(scorer, [folder], tmp_path / f"{name} out")
        assert str(caught.value).startswith(f"{folder / 'b.parquet'}: {message}"), caught.value

    refused("text", "not a Parquet file, or broken (", b"id,X\n")
    whole = (tmp_path / "text" / "a.parquet").read_bytes()
    refused("cut", "not a Parquet file, or broken (", whole[:-9])
    damaged = bytearray(whole)
    damaged[4:600] = bytes(596)
    refused("damaged", "not a Parquet file, or broken (", bytes(damaged))
    refused("missing", "'X': no such column", rows.drop_columns(["X"]))
    other = rows.set_column(0, "id", rows["id"].cast(pa.int32()))
    refused("other", "'id': int32, but int64 in the first file; must be the same in all files", other)


def test_rows_far_longer_than_others(tmp_path: Path) -> None:
    """Files whose rows are sorted by length, and a row that would take too much of the memory."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((n, 5), dtype=np.float32) for n in (*[1] * 2000, *[8_000] * 20, 10_000)]
    write_files(tmp_path / "in", rows[:-1], 1, row_group_size=10_000)
    write_files(tmp_path / "more", rows, 1, row_group_size=10_000)
    scorer = Scorer(make_gru(), keep=["id"])
    score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST)
    assert read_results(tmp_path / "out").equals(scorer(table(rows[:-1])))
    with pytest.raises(
        FormatError, match=r"row 2020: needs 0\.2 MB; must be at most 0\.2 MB by the memory limit"
    ):
        score(scorer, [tmp_path / "more"], tmp_path / "no", memory=LEAST)


# ---- memory, and what is not installed

PEAK = """
import sys
from onegru.scoring import Scorer, score
sys.path.insert(0, sys.argv[4])
from tests.support.layers import make_gru
found = score(Scorer(make_gru(inputs=32), keep=["id"]), [sys.argv[1]], sys.argv[2], memory=int(sys.argv[3]))
with open("/proc/self/status") as lines:
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
print(found.rows, peak << 10)
"""


@pytest.mark.long
def test_memory_is_bounded(tmp_path: Path) -> None:
    """The rows take three times the memory that the run may: dictionaries make the files small."""
    budget = 300 << 20
    few = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    (tmp_path / "in").mkdir()
    lengths = np.random.default_rng(1).integers(5, 200, 5700)
    numbers = pa.array(np.resize(few, int(lengths.sum()) * 32))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths) * 32]).astype(np.int32))
    rows = pa.table({"id": pa.array(range(5700)), "X": pa.ListArray.from_arrays(offsets, numbers)})
    for index in range(13):
        pq.write_table(rows, tmp_path / "in" / f"{index:02}.parquet", row_group_size=2000)
    assert 13 * rows.nbytes > 3 * budget
    root = Path(__file__).parents[2]
    done = run_python(PEAK, tmp_path / "in", tmp_path / "out", budget, root)
    count, peak = map(int, done.stdout.split())
    print(f"{13 * rows.nbytes / 1e6:.0f} MB of rows; {peak / 1e6:.0f} MB of {budget / 1e6:.0f} MB")
    assert count == 13 * 5700 and peak < budget


def test_without_pyarrow() -> None:
    code = (
        "import onegru\ntry:\n    onegru.scoring\nexcept onegru.MissingExtraError as error:\n    print(error)"
    )
    done = run_python_without("name == 'pyarrow'", code)
    assert done.stdout == "onegru.scoring needs pyarrow: pip install 'onegru[scoring]'\n", done.stderr
