"""Score the parts of a run as tasks on a Ray cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import onegru._native
from onegru.core.arguments import shown
from onegru.core.errors import OneGRUError, SpecError, needs_extra
from onegru.core.machine import usable_cpus
from onegru.engines.native import set_num_threads
from onegru.scoring.dataset import Part
from onegru.scoring.folder import Folder
from onegru.scoring.pipeline import Job
from onegru.scoring.score import Execute

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/\s]+)):(?P<port>[0-9]{1,5})")
_PATIENCE = 5.0  # seconds to wait for a connection to the cluster
_OBJECT_STORE = 128 << 20  # of a local cluster, which only transfers jobs and part numbers

# Attempts for a task. Each attempt is shorter by the existing parts, but rows that kill every worker must end
# the run.
_ATTEMPTS = 5
# Smallest and largest size of a task, as a fraction of a worker's work: tasks have a cost, but no worker
# should wait long for the last one.
_SMALLEST, _LARGEST = 1 / 16, 1 / 2


def on_ray(address: str) -> Execute:
    """Return a function for `score(…, execute=on_ray("auto"))` that does the work on a Ray cluster.

    Rows, bits and files are the same as on one machine. You can start a run on one and finish it on the
    other. Each worker loads the model once, and uses one CPU per thread: the scorer's `num_threads`, or 1.
    There are as many workers as the CPUs of the cluster allow, and `memory` applies to each. If a worker
    dies, another repeats its task; no row is lost or duplicated.

    All machines of the cluster must have the files, the model and the folder of results at the same paths,
    and the same version of onegru.

    Args:
        address: "auto" for the cluster that this process is connected to, that RAY_ADDRESS names, or that
            this machine is in; "HOST:PORT" for one that this machine is in; "local" for a new one on this
            machine, for the run, on all CPUs that the process may use.

    Raises:
        SpecError: the address is invalid, or no cluster answers there. In the run, also if a machine lacks
            something, or has fewer CPUs than a worker needs.
        MissingExtraError: ray is not installed.
        OneGRUError: in the run, if workers die repeatedly at the same rows.
    """
    with needs_extra("ray", "ray", "scoring on a cluster"):
        import ray  # noqa: F401
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None and address not in ("auto", "local"):
        raise SpecError.of("ray", f"{shown(address)}; must be 'auto', 'local' or 'HOST:PORT'")
    if found is not None:  # Ray itself would wait for minutes
        try:
            socket.create_connection((found["v6"] or found["host"], int(found["port"])), _PATIENCE).close()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise SpecError.of("ray", f"{address!r}: no cluster answers at this address ({why})") from error

    def execute(job: Job, parts: Sequence[Part], on_rows: Callable[[int], None]) -> None:
        if not parts:
            return
        with _connected(address) as ray:
            try:
                _run(ray, job, parts, on_rows)
            finally:
                Folder(Path(job.output)).clear_leftovers()

    return execute


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to a cluster and yield Ray; disconnect at the end unless it was connected before."""
    import ray

    if ray.is_initialized():
        present = ray.get_runtime_context().gcs_address
        if address not in ("auto", present):
            what = f"{address!r}, but the process is connected to {present}; must be 'auto'"
            raise SpecError.of("ray", what)
        yield ray
        return
    options: dict[str, Any] = {"address": address}
    if address == "local":
        cpus = usable_cpus()
        options |= {"num_cpus": cpus, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    try:
        ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError as error:
        what = "cannot connect; this machine must be in the cluster, and have the same RAY_AUTH_MODE"
        raise SpecError.of("ray", f"{address!r}: {what}") from error
    except Exception as error:  # Ray raises some errors as plain Exception
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise SpecError.of("ray", f"{address!r}: cannot connect ({words})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _run(ray: Any, job: Job, parts: Sequence[Part], on_rows: Callable[[int], None]) -> None:
    """Score parts on as many workers as the CPUs allow."""
    cpus = job.scorer.num_threads or 1
    most = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    if cpus > max(most, default=0):
        what = f"{cpus}; must be at most {max(most, default=0)}, a machine's CPUs for Ray"
        raise SpecError.of("num_threads", what)
    run = ray.remote(num_cpus=cpus, max_retries=_ATTEMPTS - 1)(_run_task)
    # In a list, so that tasks get a reference, and a worker fetches the job once.
    setup = [ray.put(_Setup(job, cpus, onegru._native.version(), os.getcwd()))]  # noqa: PTH109
    tasks = {run.remote(setup, item): item for item in divide(parts, sum(n // cpus for n in most))}
    try:
        while tasks:
            (finished, *_), _ = ray.wait(list(tasks))
            item = tasks.pop(finished)
            try:
                ray.get(finished)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                location = f"{item[0].path}: row {item[0].groups_row + item[0].first}"
                what = f"{location}: {_ATTEMPTS} workers died at this row, or at a following row"
                raise OneGRUError(what) from error
            on_rows(sum(part.rows for part in item))
    finally:
        for task in tasks:
            ray.cancel(task, force=True)
        if tasks:
            ray.wait(list(tasks), num_returns=len(tasks), timeout=_PATIENCE)


def divide(parts: Sequence[Part], workers: int) -> list[list[Part]]:
    """Return the parts as items of similar size, which overlap as little as possible.

    An item that begins within row groups must also read the rows before it.
    """
    least, most = (max(1, int(len(parts) * share / workers)) for share in (_SMALLEST, _LARGEST))
    items: list[list[Part]] = [[]]
    for _, same in groupby(parts, lambda part: (part.path, part.groups)):
        own = list(same)
        for first in range(0, len(own), most):
            if len(items[-1]) >= least:
                items.append([])
            items[-1] += own[first : first + most]
    return items


@dataclass(frozen=True)
class _Setup:
    """Data that all tasks share: the job, and the settings that must be the same on a worker."""

    job: Job
    threads: int
    version: str
    folder: str  # the working directory


@lru_cache(1)
def _fetch(setup: Any) -> _Setup:
    """Return the setup, which each worker fetches once, so that the model is loaded once."""
    import ray

    fetched: _Setup = ray.get(setup)
    return fetched


def _run_task(setup: Sequence[Any], parts: Sequence[Part]) -> None:
    """Score the missing parts of a task; a worker that died may have written the others."""
    shared, job, here = _fetch(setup[0]), _fetch(setup[0]).job, onegru._native.version()
    if here != shared.version:
        raise SpecError.of(
            "ray", f"onegru {here} on {socket.gethostname()}; must be {shared.version}, as on this machine"
        )
    set_num_threads(shared.threads)
    # If the folder is missing, only relative paths cannot be found.
    with chdir(shared.folder) if Path(shared.folder).is_dir() else nullcontext():
        folder = Folder(Path(job.output))
        if not folder.path.is_dir():
            what = f"the folder of results does not exist on {socket.gethostname()}"
            raise SpecError(f"{folder.path}: {what}; must be shared by all machines")
        job.run([part for part in parts if not folder.part(part.number).exists()])
