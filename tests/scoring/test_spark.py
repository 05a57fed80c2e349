"""A scorer in Spark's `mapInArrow`, in Spark's local mode: run where pyspark is (`make test-cluster`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onegru import SpecError
from tests.support.layers import make_gru

pa = pytest.importorskip("pyarrow")
pyspark = pytest.importorskip("pyspark")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import Scorer  # noqa: E402
from tests.support.tables import sequences, table  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of Spark, about pandas


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session of two workers of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = pyspark.sql.SparkSession.builder.master("local[2]")
        session = builder.config("spark.ui.enabled", "false").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


def test_map_in_arrow(spark: Any, tmp_path: Path) -> None:
    rows = table(sequences(lengths=[3, 1, 7, 12, 2] * 40))
    for index in range(4):
        pq.write_table(rows.slice(50 * index, 50), tmp_path / f"{index}.parquet")
    frame = spark.read.parquet(str(tmp_path))
    scorer = Scorer(make_gru(), keep=["id"], outputs=["Y_h", "Y"])
    scored = frame.mapInArrow(scorer.batches, "id long, Y_h array<float>, Y array<array<float>>")
    found = {row.id: (row.Y_h, row.Y) for row in scored.collect()}
    expected = scorer(rows).to_pydict()
    assert len(found) == 200
    for number, last, every in zip(expected["id"], expected["Y_h"], expected["Y"], strict=True):
        assert found[number] == (last, every)


def test_skipped_rows(spark: Any, tmp_path: Path) -> None:
    lists: list[Any] = [row.tolist() for row in sequences()]
    lists[2], lists[5] = None, []
    events = pa.array(lists, pa.list_(pa.list_(pa.float32())))
    pq.write_table(pa.table({"id": range(8), "X": events}), tmp_path / "a.parquet")
    frame = spark.read.parquet(str(tmp_path))

    def ids(on_error: str) -> list[Any]:
        scorer = Scorer(make_gru(), keep=["id"], on_error=on_error)
        scored = frame.mapInArrow(scorer.batches, "id long, Y_h array<float>").collect()
        return [(row.id, row.Y_h is None) for row in sorted(scored, key=lambda row: row.id)]

    assert ids("skip") == [(number, False) for number in (0, 1, 3, 4, 6, 7)]
    assert ids("null") == [(number, number in (2, 5)) for number in range(8)]
    with pytest.raises(Exception, match=r"FormatError: row 2: 'X': null"):
        ids("raise")
    with pytest.raises(SpecError, match="on_error"):
        ids("none")
