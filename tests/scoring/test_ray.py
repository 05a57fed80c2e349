"""Runs on a Ray cluster of two workers: the files of one machine, whatever dies, and plain refusals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, OneGRUError, SpecError
from tests.support.layers import make_gru
from tests.support.machine.processes import run_python_without

pa = pytest.importorskip("pyarrow")
ray = pytest.importorskip("ray")

import pyarrow.parquet as pq  # noqa: E402

from onegru.scoring import Scorer, score  # noqa: E402
from onegru.scoring.dataset import Part  # noqa: E402
from onegru.scoring.ray import divide, on_ray  # noqa: E402
from tests.support.tables import sequences, table, write_files  # noqa: E402

LEAST = 270 << 20  # of memory: parts are small then
ROWS = sequences(lengths=np.random.default_rng(6).integers(1, 120, 4000).tolist())
OUTPUTS = ["Y_h", "Y"]


class Dying(Scorer):
    """Kills its process at some row, as often as asked, and notes the parts that were there."""

    def __init__(self, *arguments: Any, notes: Path, row: int, times: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.notes, self.row, self.times = notes, row, times

    def begin(self, *arguments: Any) -> Any:
        end = super().begin(*arguments)
        return lambda: self._die(end())

    def _die(self, found: Any) -> Any:
        deaths = len(list(self.notes.glob("*.death")))
        if deaths < self.times and self.row in found.table["id"].to_pylist():
            parts = sorted((self.notes / "out").glob("part-*"))
            listed = "".join(f"{part} {part.stat().st_ino}\n" for part in parts)
            (self.notes / f"{deaths}.death").write_text(listed)
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine, to which the process is connected."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with small row groups, and one with a large one, which two workers share."""
    folder: Path = tmp_path_factory.mktemp("data") / "in"
    write_files(folder, ROWS[:1500], 3, row_group_size=130)
    pq.write_table(table(ROWS), folder / "003.parquet")
    return folder


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed run on one machine."""
    out: Path = tmp_path_factory.mktemp("expected") / "out"
    found = score(Scorer(make_gru(), keep=["id"], outputs=OUTPUTS), [data], out, memory=LEAST)
    assert found.parts > 8
    return files(out)


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the record of the run, whose scorer may be another."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "_onegru.json"}


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_and_doubles_nothing(
    data: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    scorer = Dying(make_gru(), keep=["id"], outputs=OUTPUTS, notes=tmp_path, row=3900)
    seen: list[tuple[int, int]] = []
    found = score(
        scorer,
        [data],
        tmp_path / "out",
        memory=LEAST,
        progress=lambda *pair: seen.append(pair),
        execute=on_ray("auto"),
    )
    assert (tmp_path / "0.death").exists()
    assert (found.rows, found.rows_now) == (5500, 5500)
    assert files(tmp_path / "out") == expected
    assert seen[0] == (0, 5500) and seen[-1] == (5500, 5500) and seen == sorted(set(seen))
    # What the worker had written is not written again.
    before = [line.rsplit(" ", 1) for line in (tmp_path / "0.death").read_text().splitlines()]
    assert before and all(Path(path).stat().st_ino == int(number) for path, number in before)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_rows_that_kill_every_worker_end_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onegru.scoring.ray._ATTEMPTS", 2)
    scorer = Dying(make_gru(), keep=["id"], notes=tmp_path, row=1600, times=99)
    with pytest.raises(
        OneGRUError, match=r"003\.parquet: row \d+: 2 workers died at this row, or at a following"
    ):
        score(scorer, [data], tmp_path / "out", memory=LEAST, execute=on_ray("auto"))
    assert len(list(tmp_path.glob("*.death"))) == 2
    assert not list((tmp_path / "out").glob(".*.tmp"))


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_begun_on_one_machine_and_ended_on_the_cluster(
    data: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)  # which workers find relative paths in

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done > 2000:
            raise Stop

    scorer = Scorer(make_gru(), keep=["id"], outputs=OUTPUTS)
    with pytest.raises(Stop):
        score(scorer, ["in"], tmp_path / "out", memory=LEAST, progress=stop)
    begun = {path: path.stat().st_ino for path in (tmp_path / "out").glob("part-*")}
    assert begun
    found = score(scorer, ["in"], tmp_path / "out", memory=LEAST, execute=on_ray("auto"))
    assert found.parts_before == len(begun) and 0 < found.rows_now < 4000
    assert files(tmp_path / "out") == expected
    assert all(path.stat().st_ino == number for path, number in begun.items())
    (tmp_path / "out" / "_SUCCESS").unlink()  # as if the run had been stopped after its last part
    assert score(scorer, ["in"], tmp_path / "out", memory=LEAST, execute=on_ray("auto")).rows_now == 0
    assert files(tmp_path / "out") == expected


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_errors_of_workers_are_those_of_one_machine(tmp_path: Path) -> None:
    rows: list[Any] = [row.tolist() for row in ROWS[:200]]
    rows[150] = []
    (tmp_path / "in").mkdir()
    events = pa.array(rows, pa.list_(pa.list_(pa.float32())))
    pq.write_table(pa.table({"X": events}), tmp_path / "in" / "a.parquet", row_group_size=50)
    with pytest.raises(FormatError, match=r"a\.parquet: row 150: 'X': empty"):
        score(Scorer(make_gru()), [tmp_path / "in"], tmp_path / "out", execute=on_ray("auto"))
    with pytest.raises(SpecError, match=r"num_threads: 3; must be at most 2"):
        score(Scorer(make_gru(), num_threads=3), [tmp_path / "in"], tmp_path / "o", execute=on_ray("auto"))
    with pytest.raises(SpecError, match=r"ray: 'local', but the process is connected to"):
        score(Scorer(make_gru()), [tmp_path / "in"], tmp_path / "other", execute=on_ray("local"))


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_scorer_in_a_pipeline_of_ray_data(data: Path) -> None:
    rows = table(ROWS[:300])
    dataset = ray.data.from_arrow([rows.slice(0, 100), rows.slice(100)])
    scored = dataset.map_batches(
        Scorer,
        fn_constructor_kwargs={"model": make_gru(), "keep": ["id"]},
        batch_format="pyarrow",
        batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    found = {row["id"]: row["Y_h"] for row in scored.take_all()}
    expected = Scorer(make_gru(), keep=["id"])(rows)["Y_h"].to_pylist()
    assert [list(found[index]) for index in range(300)] == expected


@pytest.mark.long
def test_ctrl_c_ends_a_local_cluster(data: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    onegru.save_layers(make_gru(), tmp_path / "m.safetensors")
    command = [sys.executable, "-m", "onegru", "score", str(tmp_path / "m.safetensors"), str(data), "-o"]
    options = ["--keep", "id", "--output", "Y_h", "--output", "Y", "--memory", "270MiB"]
    with subprocess.Popen(
        [*command, str(tmp_path / "out"), *options, "--ray", "local"], stderr=subprocess.PIPE, text=True
    ) as process:
        while not list((tmp_path / "out").glob("part-*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert (
            process.communicate(timeout=60)[1]
            == "onegru: interrupted; run the same command again to resume\n"
        )
    assert process.returncode == 130
    subprocess.run([*command, str(tmp_path / "out"), *options], check=True, stdout=subprocess.DEVNULL)
    assert files(tmp_path / "out") == expected


def test_items_have_each_part_once() -> None:
    done, parts, number = {0, 7, 8, 48}, [], 0
    for group, count in enumerate((1, 1, 1, 1, 40, 3, 1, 1)):
        for index in range(count):
            if number not in done:
                parts.append(Part(number, "a", (group,), 0, 10 * index, 10, 1, ()))
            number += 1
    for workers in (1, 2, 3, 100):
        items = divide(parts, workers)
        assert [part for item in items for part in item] == parts
        most = max(1, 45 // (2 * workers))
        assert max(map(len, items)) <= most + max(1, 45 // (16 * workers))
        assert len(items) >= min(45, 2 * workers)
    assert [len(item) for item in divide(parts, 1)][:2] == [2, 23]  # small ones together


@pytest.mark.parametrize("address", ["", "ray://host:1", "host", ":1", "host:x", 7])
def test_addresses_of_other_forms(address: Any) -> None:
    with pytest.raises(SpecError, match=r"ray: .*; must be 'auto', 'local' or 'HOST:PORT'"):
        on_ray(address)


def test_an_address_where_no_cluster_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        SpecError, match=rf"ray: '127\.0\.0\.1:{port}': no cluster answers at this address \(Connection"
    ):
        on_ray(f"127.0.0.1:{port}")
    with pytest.raises(SpecError, match="no cluster answers at this address"):
        on_ray("127.0.0.1:99999")


def test_without_ray() -> None:
    code = "from onegru.scoring.ray import on_ray\non_ray('auto')"
    result = run_python_without("name == 'ray'", code)
    assert result.stderr.splitlines()[-1] == (
        "onegru.MissingExtraError: scoring on a cluster needs ray: pip install 'onegru[ray]'"
    )
