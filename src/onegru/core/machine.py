"""Detect the CPUs and the memory of this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use, by affinity and control groups on Linux."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        count = os.cpu_count() or 1
    return max(1, min([count, *_quotas(root)]))


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of usable CPUs, where CPUs that share a core count once on Linux."""
    cpus = usable_cpus(root)
    try:
        allowed = os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return cpus
    folder = root / "sys/devices/system/cpu"
    siblings = ((cpu, _read(folder / f"cpu{cpu}/topology/thread_siblings_list")) for cpu in allowed)
    return min(cpus, len({text.strip() or str(cpu) for cpu, text in siblings}))


def foreign_threads_run(root: Path = Path("/")) -> bool:
    """Whether a thread of this process that Python did not start is running or waiting for a CPU (Linux)."""
    own = {str(thread.native_id) for thread in threading.enumerate()}
    try:
        others = [task for task in (root / "proc/self/task").iterdir() if task.name not in own]
    except OSError:
        return False
    states = (_read(task / "stat").rpartition(")")[2] for task in others)
    return any(state.startswith(" R") for state in states)


def _quotas(root: Path) -> Iterator[int]:
    """Return the CPUs that each control group above this process allows, rounded up."""
    # In a container, the path can be the host's. Then only its root is visible.
    for line in _read(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        names = [name for name in path.split("/") if name]
        groups = [names[:depth] for depth in range(len(names) + 1)] if ".." not in names else [[]]
        for group in groups:
            if not controllers:  # version 2
                quota, _, period = _read(root.joinpath("sys/fs/cgroup", *group, "cpu.max")).partition(" ")
                yield from _cpus(quota, period)
            elif "cpu" in controllers.split(","):
                folder = root.joinpath("sys/fs/cgroup/cpu", *group)
                yield from _cpus(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _cpus(quota: str, period: str) -> Iterator[int]:
    """Yield the quota in CPUs; nothing for no quota, which is "max" in version 2 and -1 in version 1."""
    try:
        share, whole = int(quota), int(period)
    except ValueError:
        return
    if share > 0 and whole > 0:
        yield -(-share // whole)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def memory_size() -> int:
    """Return the machine's memory in bytes; 16 GiB if unknown, as on Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # unknown on this system
        return 2**34
