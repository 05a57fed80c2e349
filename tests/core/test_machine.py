"""How many CPUs the process may use, and what its threads do, on made-up systems."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from onegru.core.machine import foreign_threads_run, usable_cores, usable_cpus


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for short, long in SHORT.items():
        files = {name.replace(short, long): text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


# Places in these systems, in short.
SHORT = {"G/": "sys/fs/cgroup/", "QUOTA": "cpu.cfs_quota_us", "PERIOD": "cpu.cfs_period_us"}
V1 = "12:cpuset:/other\n4:cpu,cpuacct:/a/b\n1:name=systemd:/a\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "count"),
    [
        # version 2: the process's own group and all above, the least of them, rounded up
        ("0::/\n", {}, 16),
        ("0::/\n", {"G/cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"G/cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"G/cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"G/cpu.max": "9900000 100000\n"}, 16),
        ("0::/a/b\n", {"G/a/b/cpu.max": "400000 100000\n"}, 4),
        (
            "0::/a/b\n",
            {"G/a/cpu.max": "200000 100000", "G/a/b/cpu.max": "max 100000"},
            2,
        ),
        ("0::/a/b\n", {"G/c/cpu.max": "200000 100000\n"}, 16),
        ("0::/a:b c\n", {"G/a:b c/cpu.max": "500000 100000\n"}, 5),
        # in a container: the host's path, with only its top visible
        ("0::/docker/1f\n", {"G/cpu.max": "200000 100000\n"}, 2),
        ("0::/../../x\n", {"G/cpu.max": "200000 100000\n", "sys/x/cpu.max": "100000 100000"}, 2),
        # version 1
        (
            V1,
            {
                "G/cpu/a/b/QUOTA": "-1\n",
                "G/cpu/a/b/PERIOD": "1",
            },
            16,
        ),
        (
            V1,
            {
                "G/cpu/a/b/QUOTA": "150000\n",
                "G/cpu/a/b/PERIOD": "50000\n",
            },
            3,
        ),
        (
            V1,
            {"G/cpu/QUOTA": "150000", "G/cpu/PERIOD": "100000"},
            2,
        ),
        # nonsense
        ("", {}, 16),
        ("x\n::\n0:\n\x00", {}, 16),
        ("0::/\n", {"G/cpu.max": "0 0\n"}, 16),
        ("0::/\n", {"G/cpu.max": "two\n"}, 16),
        ("0::/\n", {"G/cpu.max": "-5 100000\n"}, 16),
    ],
)
def test_quotas(tmp_path: Path, cgroup: str, files: dict[str, str], count: int) -> None:
    assert usable_cpus(system(tmp_path, cgroup, files)) == count


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 16
    assert usable_cores(tmp_path) == 16


def siblings(groups: list[str]) -> dict[str, str]:
    """The file of each CPU, which names those of its core."""
    lists = [(group, [int(n) for n in group.replace("-", ",").split(",")]) for group in groups]
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{group}\n"
        for group, cpus in lists
        for cpu in cpus
    }


@pytest.mark.parametrize(
    ("groups", "quota", "count"),
    [
        ([f"{cpu},{cpu + 8}" for cpu in range(8)], "max", 8),
        ([f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2)], "max", 8),
        ([str(cpu) for cpu in range(16)], "max", 16),
        # some of a core's CPUs are not ours; of some CPUs nothing is known
        ([f"{cpu},{cpu + 16}" for cpu in range(16)], "max", 16),
        (["0-1"], "max", 15),
        # a quota of fewer
        (["0-1", "2-3"], "300000 100000", 3),
        ([f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2)], "900000 100000", 8),
    ],
)
def test_cpus_that_share_a_core_count_once(tmp_path: Path, groups: list[str], quota: str, count: int) -> None:
    root = system(tmp_path, "0::/\n", {"G/cpu.max": f"{quota}\n", **siblings(groups)})
    assert usable_cores(root) == count


@pytest.mark.parametrize(
    ("states", "runs"), [("SS", False), ("SR", True), ("RS", False), ("SD", False), ("", False)]
)
def test_threads_that_python_did_not_start(states: str, runs: bool, tmp_path: Path) -> None:
    """The first thread is Python's; a process's name may have parentheses."""
    own = threading.main_thread().native_id or 0
    files = {f"proc/self/task/{own + n}/stat": f"{own + n} (a) R (b) {s} 1 2\n" for n, s in enumerate(states)}
    assert foreign_threads_run(system(tmp_path, "", files)) == runs
