"""How many CPUs the process may use, on made-up systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onegru.cpus import usable_cpus


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


V1 = "12:cpuset:/other\n4:cpu,cpuacct:/a/b\n1:name=systemd:/a\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "count"),
    [
        # version 2: the process's own group and all above, the least of them, rounded up
        ("0::/\n", {}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 16),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "200000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"sys/fs/cgroup/c/cpu.max": "200000 100000\n"}, 16),
        ("0::/a:b c\n", {"sys/fs/cgroup/a:b c/cpu.max": "500000 100000\n"}, 5),
        # in a container: the host's path, of which only the top is to be seen
        ("0::/docker/1f\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/../../x\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n", "sys/x/cpu.max": "100000 100000"}, 2),
        # version 1
        (V1, {"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "1"}, 16),
        (
            V1,
            {
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "50000\n",
            },
            3,
        ),
        (V1, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 2),
        # nonsense
        ("", {}, 16),
        ("x\n::\n0:\n\x00", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "0 0\n"}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "two\n"}, 16),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "-5 100000\n"}, 16),
    ],
)
def test_quotas(tmp_path: Path, cgroup: str, files: dict[str, str], count: int) -> None:
    assert usable_cpus(system(tmp_path, cgroup, files)) == count


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 16
