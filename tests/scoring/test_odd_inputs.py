"""`score` on inputs that are odd, change, or are made to do harm."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onegru import FormatError, SpecError
from onegru.engines.native import asked_threads, get_num_threads, set_num_threads
from onegru.layers.gru import GRU
from tests.support.files import onnx_models as models
from tests.support.layers import make_gru

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import Scorer, score  # noqa: E402
from onegru.scoring.dataset import check_same, make_plan  # noqa: E402
from onegru.scoring.footers import check_footers  # noqa: E402
from onegru.scoring.parallel import batch_map  # noqa: E402
from onegru.scoring.reader import read_windows  # noqa: E402
from tests.support.tables import column, read_results, sequences, table, write_files  # noqa: E402

LEAST = 270 << 20  # of memory: parts are small then
ROWS = sequences(lengths=np.random.default_rng(8).integers(1, 90, 600).tolist())


@pytest.fixture
def scorer() -> Scorer:
    return Scorer(make_gru(), keep=["id"])


def ids(scorer: Scorer, out: Path, *inputs: Path | str, **more: Any) -> list[int]:
    score(scorer, [str(item) for item in inputs], out, **more)
    return list(read_results(out)["id"].to_pylist())


def test_links_are_followed_or_refused(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    write_files(tmp_path / "day", ROWS[4:6], 1)
    (tmp_path / "in" / "more").symlink_to(tmp_path / "day")
    (tmp_path / "day" / "ring").symlink_to(tmp_path / "in")
    assert ids(scorer, tmp_path / "1", tmp_path / "in") == [0, 1, 2, 3, 0, 1]
    (tmp_path / "in" / "gone.parquet").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match=r"gone\.parquet"):
        ids(scorer, tmp_path / "2", tmp_path / "in")


def test_patterns_and_names(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    write_files(tmp_path / "in" / "sub", ROWS[:2], 1)
    assert sorted(ids(scorer, tmp_path / "1", tmp_path / "in" / "**")) == [0, 0, 1, 1, 2, 3]
    again = Scorer(make_gru(inputs=4), inputs={"X": "Y"})
    whole = Scorer(make_gru(), outputs=["Y"])
    score(whole, [tmp_path / "in"], tmp_path / "3")
    assert score(again, [str(tmp_path / "3" / "*")], tmp_path / "4").rows == 6  # _SUCCESS and all are there
    with pytest.raises(SpecError, match=r"^inputs: '': no name; must be files on this machine$"):
        score(scorer, [""], tmp_path / "5")
    with pytest.raises(SpecError, match=r"^output: ''; must be the name of a file$"):
        score(scorer, [tmp_path / "in"], "")


def test_results_within_the_input_are_refused(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    with pytest.raises(SpecError, match=r"^output: .*out: is in the input folder .*in; must be outside$"):
        score(scorer, [tmp_path / "in"], tmp_path / "in" / "a" / "out")
    assert not (tmp_path / "in" / "a").exists()


def test_results_next_to_what_a_pattern_means(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    write_files(tmp_path / "in" / "sub", ROWS[:2], 1)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "link").symlink_to(tmp_path / "in" / "sub")
    for inputs in ("in/*", "more"):
        with pytest.raises(
            SpecError, match=r"^output: .*out: is in the input folder .*sub; must be outside$"
        ):
            score(scorer, [str(tmp_path / inputs)], tmp_path / "in" / "sub" / "out")
    for _ in range(2):  # the second time the pattern means the results as well
        assert sorted(ids(scorer, tmp_path / "in" / "out", tmp_path / "in" / "*")) == [0, 0, 1, 1, 2, 3]


def test_a_part_of_another_size_is_refused(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:9], 2)
    score(scorer, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "out" / "_SUCCESS").unlink()
    first, second = sorted((tmp_path / "out").glob("part-*"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(FormatError, match=r"part-000000\.parquet: 4 rows; must be 5; remove it$"):
        score(scorer, [tmp_path / "in"], tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_kept_columns_with_dictionaries_within(tmp_path: Path) -> None:
    words = pa.array([f"s{index % 211}" for index in range(600)]).dictionary_encode()
    rows = table(ROWS).append_column("k", pa.StructArray.from_arrays([words], ["q"]))
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet", row_group_size=100)
    score(Scorer(make_gru(), keep=["k"]), [tmp_path / "in"], tmp_path / "out", memory=LEAST)
    assert read_results(tmp_path / "out")["k"].to_pylist() == rows["k"].to_pylist()


def test_files_that_change_during_the_run(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS, 12)

    def change(done: int, total: int) -> None:
        if done:
            pq.write_table(table(ROWS[:7]), tmp_path / "new")
            (tmp_path / "new").replace(tmp_path / "in" / "011.parquet")

    with pytest.raises(FormatError, match=r"011\.parquet: has changed since the run began$"):
        score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST, progress=change)
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_folder_without_parts_may_begin_anew(scorer: Scorer, tmp_path: Path) -> None:
    rows = pa.table({"id": [0, 1], "X": pa.array([[[0.0] * 5], None], pa.list_(pa.list_(pa.float32(), 5)))})
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    with pytest.raises(FormatError, match="row 1: 'X': null"):
        score(scorer, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "out" / "_errors").mkdir()
    (tmp_path / "out" / "_errors" / "part-000000.jsonl").write_text("")
    other = Scorer(make_gru(1), keep=["id"])
    pq.write_table(table(ROWS[:3]), tmp_path / "in" / "a.parquet")
    assert ids(other, tmp_path / "out", tmp_path / "in") == [0, 1, 2]
    assert not list((tmp_path / "out" / "_errors").iterdir())


def test_other_files_stay(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".mine.tmp").write_text("precious")
    with pytest.raises(SpecError, match="has other files"):
        score(scorer, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "out" / ".mine.tmp").rename(tmp_path / "mine")
    score(scorer, [tmp_path / "in"], tmp_path / "out")
    (tmp_path / "out" / ".mine.tmp").write_text("precious")
    score(scorer, [tmp_path / "in"], tmp_path / "out")
    assert (tmp_path / "out" / ".mine.tmp").read_text() == "precious"


def test_kept_columns_may_have_nulls_in_later_files(scorer: Scorer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, numbers, nullable in (("a", [1], False), ("b", [None], True)):
        kinds = pa.schema([pa.field("id", pa.int64(), nullable), ("X", table(ROWS).schema.field("X").type)])
        rows = pa.table({"id": pa.array(numbers, pa.int64()), "X": table(ROWS[:1])["X"]}, schema=kinds)
        pq.write_table(rows, tmp_path / "in" / f"{name}.parquet")
    assert ids(scorer, tmp_path / "out", tmp_path / "in") == [1, None]


def test_integers_beyond_the_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layer = GRU(*(rng.standard_normal((1, 12, size)).astype(np.float16) for size in (5, 4)))
    rows = [np.array([[70000, 1, 1, 1, 1]]), np.array([[2049, 1, 1, 1, 1]]), np.ones((1, 5), np.int32)]
    found = Scorer(layer, on_error="skip").run(table([row.astype(np.int32) for row in rows]))
    assert [item.row for item in found.skipped] == [0, 1] and len(found.table) == 1


def test_more_memory_than_the_machine_has(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    assert ids(scorer, tmp_path / "out", tmp_path / "in", memory=10**20) == [0, 1, 2, 3]
    assert ids(scorer, tmp_path / "out", tmp_path / "in", memory=10**20) == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["list<fixed>", "list<list>", "large", "list", "tensor"])
def test_large_row_groups_give_the_same(scorer: Scorer, tmp_path: Path, form: str) -> None:
    """Few rows of them are decoded at once, and put together again."""
    rows = sequences(lengths=[40] * 1500) if form == "tensor" else ROWS * 3
    given = table(rows, form)
    given = given.set_column(0, "id", given["id"].cast(pa.string()).dictionary_encode())
    (tmp_path / "in").mkdir()
    pq.write_table(given, tmp_path / "in" / "a.parquet")
    plan = make_plan(scorer, [tmp_path / "in" / "a.parquet"], 300_000)
    assert plan.parts[0].batch <= 32 < len(rows) // len(plan.parts)
    assert score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST).parts > 1
    assert read_results(tmp_path / "out").to_pydict() == scorer(given).to_pydict()


@pytest.mark.long
def test_dictionaries_count_as_what_is_used_of_them(scorer: Scorer, tmp_path: Path) -> None:
    """A row's share, and not the whole dictionary, which would be too large for a part."""
    words = pa.array([f"{index:01000}" for index in range(20_000)])
    coded = pa.DictionaryArray.from_arrays(pa.array(np.arange(400, dtype=np.int32) * 50), words)
    rows = pa.table({"id": coded, "X": column(ROWS[:400])})
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    assert score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST).rows == 400


_KEPT = {
    "strings that repeat": (pa.array([f"day {index % 28}" for index in range(600)]), 1024),
    "strings that differ": (pa.array([f"{index:032d}" for index in range(600)]), 1024),
    "large strings": (pa.array([f"day {index % 28}" for index in range(600)], pa.large_string()), 1024),
    "bytes": (pa.array([b"%d" % index for index in range(600)]), 1024),
    "UUIDs": (pa.array([b"%016d" % index for index in range(600)], pa.binary(16)), None),
    "decimals": (pa.array([Decimal(index) / 100 for index in range(600)], pa.decimal128(30, 2)), None),
    "sequences of float16": (pa.array([[np.float16(index)] for index in range(600)]), None),
    "wide": (pa.array([b"%0100d" % index for index in range(600)], pa.binary(100)), 32),
    "lists of strings": (pa.array([[str(index)] for index in range(600)]), 32),
    "shared beginnings": (pa.array([f"day {index}" for index in range(600)]), 32),
}


@pytest.mark.parametrize(("kept", "most"), _KEPT.values(), ids=_KEPT)
def test_columns_of_bytes_are_decoded_in_bounded_memory(
    scorer: Scorer, tmp_path: Path, request: pytest.FixtureRequest, kept: Any, most: int | None
) -> None:
    """Strings that can be there once are read so; those of a short fixed length are read as numbers are."""
    (tmp_path / "in").mkdir()
    rows = table(sequences(lengths=[1] * 600)).set_column(0, "id", kept)
    is_prefix = "beginnings" in request.node.callspec.id
    options = {"use_dictionary": False, "column_encoding": {"id": "DELTA_BYTE_ARRAY"}} if is_prefix else {}
    pq.write_table(rows, tmp_path / "in" / "a.parquet", **options)
    (part,) = make_plan(scorer, [tmp_path / "in" / "a.parquet"], 1 << 40).parts
    assert part.batch == min(600 // 16, most or 600)
    assert bool(part.coded) == (most == 1024)
    score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST)
    found = read_results(tmp_path / "out")
    assert found["id"].type == kept.type and found["id"].to_pylist() == kept.to_pylist()


def test_encodings_that_the_footer_does_not_tell(scorer: Scorer, tmp_path: Path) -> None:
    """Strings whose encoding Arrow cannot read as a dictionary are an error of the file."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    kept = pa.array([f"day {index}" for index in range(600)])
    rows = table(sequences(lengths=[1] * 600)).set_column(0, "id", kept)
    pq.write_table(rows, path, use_dictionary=False, column_encoding={"id": "DELTA_BYTE_ARRAY"})
    plan = make_plan(scorer, [path], 1 << 40)
    plan = replace(plan, parts=tuple(replace(part, coded=("id",)) for part in plan.parts))
    with pytest.raises(FormatError, match=r"a\.parquet: not a Parquet file, or broken"):
        list(read_windows(scorer, plan, plan.parts, 1 << 30))


def test_broken_footers(scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some end the process that reads them, in Arrow. The others are read, or are errors of their files."""
    (tmp_path / "in").mkdir()
    pq.write_table(table(ROWS), path := tmp_path / "whole.parquet", row_group_size=200)
    whole = path.read_bytes()
    end = len(whole) - 8
    begin = end - int.from_bytes(whole[end : end + 4], "little")
    paths = [tmp_path / "in" / f"{number:03}.parquet" for number in range(400)]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        broken = bytearray(whole)
        for place in rng.integers(begin, end, rng.integers(1, 4)):
            broken[place] = int(rng.choice([0, 1, 255, int(rng.integers(256))]))
        path.write_bytes(broken)
    while True:  # one file less each time
        try:
            check_footers(paths)
            break
        except FormatError as error:
            wrong = Path(str(error).partition(": not a Parquet file, or broken (its footer ends")[0])
            with pytest.raises(FormatError, match=re.escape(str(error))):
                score(scorer, [str(wrong)], tmp_path / "out")
            paths.remove(wrong)
    monkeypatch.setattr(
        "onegru.scoring.dataset.check_footers", lambda paths: None
    )  # a child for each is slow
    for path in paths:
        with contextlib.suppress(FormatError, SpecError):
            make_plan(scorer, [path], 1 << 30)


@pytest.mark.parametrize("form", ["dictionary", "strings"])
def test_values_of_dictionaries_that_take_more_than_a_part(scorer: Scorer, tmp_path: Path, form: str) -> None:
    """A piece of them is split before its values are made, and those before it come first."""
    words = pa.array([letter * length for letter, length in zip("abc", (1, 90_000, 100_000), strict=True)])
    numbers = pa.array([0] * 200 + [1, 2] * 200 + [0] * 200, pa.int32())
    ids = pa.DictionaryArray.from_arrays(numbers, words)
    rows = table(sequences(lengths=[1] * 800))
    rows = rows.set_column(0, "id", ids if form == "dictionary" else ids.cast(pa.string()))
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet", row_group_size=190)
    score(scorer, [tmp_path / "in"], tmp_path / "out", memory=LEAST)
    found = read_results(tmp_path / "out")
    assert found["id"].to_pylist() == rows["id"].to_pylist()
    assert found["Y_h"].to_pylist() == scorer(rows)["Y_h"].to_pylist()


def test_a_file_is_looked_up_and_not_searched(scorer: Scorer, tmp_path: Path) -> None:
    write_files(tmp_path / "in", ROWS[:4], 1)
    (path,) = (tmp_path / "in").iterdir()
    plan = make_plan(scorer, [path], 1 << 20)
    many = {f"{index}": plan.files[str(path)] for index in range(300_000)} | dict(plan.files)
    plan, began = replace(plan, files=many), time.process_time()
    for _ in range(1000):
        check_same(plan, str(path))
    assert time.process_time() - began < 2


def test_threads_are_as_before(scorer: Scorer) -> None:
    """Also where none was asked for, so that calls use fewer of the cores that others want."""
    for asked, meanwhile, after in ((None, None, None), (4, None, 4), (4, 3, 3)):
        set_num_threads(asked)
        with batch_map(parallel=True):
            assert get_num_threads() == 1
            if meanwhile is not None:
                set_num_threads(meanwhile)
        assert asked_threads() == after
    set_num_threads(None)


def test_arguments_that_are_refused() -> None:
    for arguments, message in (
        ({"batch": 10**9}, r"^batch: 1000000000; must be an integer, 1…131072$"),
        ({"num_threads": 65}, r"^num_threads: 65; must be an integer, 1…64$"),
        ({"pad": 1}, r"^pad: 1; must be"),
    ):
        with pytest.raises(SpecError, match=message):
            Scorer(make_gru(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_error", ["raise", "skip", "null"])
def test_a_row_on_which_the_model_fails(on_error: str, tmp_path: Path) -> None:
    """An id that the table does not have: ONNX Runtime refuses the batch, and one row is at fault."""
    pytest.importorskip("onnxruntime")
    H = models.H
    nodes = [
        models.node("Gather", ["table", "ids"], ["E"], axis=0),
        models.gru("E", ["", "h"], name="gru"),
        models.node("Squeeze", ["h", "zero"], ["out"]),
    ]
    table_ = np.random.default_rng(0).standard_normal((10, models.I)).astype(np.float32)
    constants = {**models.weights(), "table": table_, "zero": np.array([0])}
    graph = models.graph(nodes, [models.value("ids", "int64", ["time", "batch"])], ["out"], constants)
    source = models.save(tmp_path, models.model(graph))
    rows = [[1, 2, 3], [4, 99, 5], [6, 7, 8], [None, 1, 2], [0, 0, 1], [9, 9, -20]]
    data = pa.table({"ids": pa.array(rows, pa.list_(pa.int64())), "id": range(6)})
    scorer = Scorer(source, keep=["id"], axes={"ids": ("time", "batch")}, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(FormatError, match=r"^row 3: 'ids'"):
            scorer(data)
        with pytest.raises(FormatError, match=r"^row 1: .*(out of|within) .*"):
            scorer(data.slice(0, 3))
        return
    found = scorer.run(data)
    good = [0, 2, 4]
    assert [item.row for item in found.skipped] == [1, 3, 5]
    assert [item.kept for item in found.skipped] == [{"id": 1}, {"id": 3}, {"id": 5}]
    assert [item.column for item in found.skipped] == ["", "ids", ""]
    outputs = found.table["out"].to_pylist()
    separate = [scorer(data.slice(row, 1))["out"].to_pylist()[0] for row in good]
    if on_error == "skip":
        assert found.table["id"].to_pylist() == good and outputs == separate
    else:
        assert found.table["id"].to_pylist() == list(range(6))
        assert [outputs[row] for row in good] == separate and outputs[1] is outputs[3] is outputs[5] is None
    with pytest.raises(FormatError, match=r"model\.onnx"):  # a whole batch: it is the model
        scorer(pa.table({"ids": pa.array([[99], [98]], pa.list_(pa.int64())), "id": range(2)}))
    assert np.isfinite(np.array(separate)).all() and len(separate[0]) == H


def test_numbers_that_a_gru_node_refuses(tmp_path: Path) -> None:
    """Lengths computed from a row, beyond its steps: the row is at fault."""
    nodes = [
        models.node("Gather", ["table", "ids"], ["E"], axis=0),
        models.node("ReduceMax", ["ids"], ["most"], axes=[0], keepdims=0),
        models.node("Cast", ["most"], ["lengths"], to=6),
        models.gru("E", ["", "h"], name="gru", lens="lengths"),
        models.node("Squeeze", ["h", "zero"], ["out"]),
    ]
    source = _of_ids(tmp_path, nodes, ["out"])
    data = pa.table({"ids": pa.array([[1, 2, 3], [1, 1, 9], [3, 1, 2]], pa.list_(pa.int64()))})
    _check_middle_row(source, data, "out", r"sequence_lens: 9")


@pytest.mark.parametrize("axis", [0, 1])
def test_outputs_whose_shape_depends_on_the_numbers(axis: int, tmp_path: Path) -> None:
    """Steps, or rows, that the model leaves out: nothing else stands in their place."""
    nodes = [
        models.node("Gather", ["table", "ids"], ["E"], axis=0),
        models.gru("E", ["Y"], name="gru"),
        models.node("Squeeze", ["Y", "one"], ["all"]),
        models.node("ReduceMax", ["ids"], ["most"], axes=[1 - axis], keepdims=0),
        models.node("Less", ["most", "five"], ["keep"]),
        models.node("Compress", ["all", "keep"], ["out"], axis=axis),
    ]
    source = _of_ids(tmp_path, nodes, ["out"])
    data = pa.table({"ids": pa.array([[1, 2, 3], [1, 1, 9], [3, 1, 2]], pa.list_(pa.int64()))})
    _check_middle_row(source, data, "out", r"output 'out': shape \[.*\] for 1 row of 3 steps")


def _of_ids(folder: Path, nodes: list[Any], outputs: list[str]) -> Path:
    pytest.importorskip("onnxruntime")
    rows = np.random.default_rng(0).standard_normal((10, models.I)).astype(np.float32)
    constants = {"table": rows, "zero": np.array([0]), "one": np.array([1]), "five": np.array(5)}
    inputs = [models.value("ids", "int64", ["time", "batch"])]
    return models.save(
        folder, models.model(models.graph(nodes, inputs, outputs, models.weights() | constants))
    )


def _check_middle_row(source: Path, data: Any, output: str, reason: str) -> None:
    """The second of three rows is left out, and the others are as without it."""
    axes = {"ids": ("time", "batch")}
    kept = Scorer(source, axes=axes)(data.take([0, 2]))[output].to_pylist()
    for on_error, expected in (("skip", kept), ("null", [kept[0], None, kept[1]])):
        found = Scorer(source, axes=axes, on_error=on_error).run(data)
        assert [item.row for item in found.skipped] == [1]
        assert re.search(reason, found.skipped[0].reason)
        assert found.table[output].to_pylist() == expected
    with pytest.raises((FormatError, SpecError), match=rf"^row 1: .*{reason}"):
        Scorer(source, axes=axes)(data)
