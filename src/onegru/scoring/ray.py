"""A run's work on a Ray cluster: Ray Data hands blocks to actors, which write the parts that they score."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import onegru._native
from onegru.core.arguments import shown
from onegru.core.errors import OneGRUError, SpecError, needs_extra
from onegru.core.machine import usable_cpus
from onegru.engines.native import set_num_threads
from onegru.scoring.dataset import Block
from onegru.scoring.folder import Folder
from onegru.scoring.pipeline import Job, parts_of
from onegru.scoring.score import Execute

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/\s]+)):(?P<port>[0-9]{1,5})")
# What a client of HTTP/2 begins with, and the kind of the frame that a server answers with (RFC 9113, 3.4).
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = b"\x04"
_ALERT = b"\x15\x03"  # what a server with TLS answers to it (RFC 8446, 5.1)

# How a line of Ray's C++ library begins, and a line of Ray's logger in Python.
_OWN_LINE = re.compile(rb"\[\d{4}-\d\d-\d\d [\d:,]+ \w |\d{4}-\d\d-\d\d [\d:,]+\t")

_MOST_WRITTEN = 1 << 20  # bytes of what other threads write to stderr while Ray starts
_PATIENCE = 5.0  # seconds that a cluster may take to answer
_OBJECT_STORE = 128 << 20  # of a local cluster: only the numbers of items pass through it

# How often an item is begun. Ray Data starts actors again that died, and gives them their task again, which
# is then shorter by the parts that are there; but rows that kill every worker must end the run.
_ATTEMPTS = 5
# An item is at least this share of an actor's work, as a task has its cost, and at most that one, so that no
# actor waits long for the last.
_SMALLEST, _LARGEST = 1 / 16, 1 / 2


def on_ray(address: str) -> Execute:
    """What makes `score` do its work on a Ray cluster: `score(…, execute=on_ray("auto"))`.

    The rows, bits and files are those of a run on one machine, and a run may be begun on either and ended on
    the other. Each actor loads the model once, and computes with as many threads as it has CPUs: the scorer's
    `num_threads`, else 1. There are as many actors as the cluster has CPUs for, and `memory` is what each may
    take. When a worker dies, what it was at is done again by another; no row is lost or there twice.

    All machines of the cluster must have the files, the model and the folder of results at the same paths,
    and the same version of onegru.

    Args:
        address: "auto" for the cluster that this process is connected to, that RAY_ADDRESS names, or that
            this machine is in; "HOST:PORT" of one that this machine is in; "local" for one that is started
            here for the run, on all CPUs that the process may use.

    Raises:
        SpecError: the address is invalid, or nothing answers there; when it is run also if a machine lacks
            something, or has fewer CPUs than an actor needs.
        MissingExtraError: ray is not installed.
        OneGRUError: when it is run, if workers die again and again at the same rows.
    """
    _ray()
    if not isinstance(address, str) or (address not in ("auto", "local") and not _ADDRESS.fullmatch(address)):
        raise SpecError.of("ray", f"{shown(address)}; must be 'auto', 'local' or 'HOST:PORT'")
    _check_answers(address)

    def execute(
        job: Job, blocks: Sequence[Block], done: Collection[int], told: Callable[[int], None]
    ) -> None:
        if not blocks:
            return
        with _connected(address) as ray:
            try:
                _run(ray, job, blocks, done, told)
            finally:
                Folder(Path(job.output)).clear_leftovers()

    return execute


def _ray() -> Any:
    what = "scoring on a cluster"
    with needs_extra("ray", "ray", what), needs_extra("pandas", "ray", what):  # which Ray Data itself needs
        import ray
        import ray.data
    return ray


def _check_answers(address: str) -> None:
    """Raise SpecError if nothing answers, or another server than one of gRPC: Ray would wait for minutes.

    Of a cluster with TLS only Ray has the certificates; that something answers has to do.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return
    try:
        with socket.create_connection(
            (found["v6"] or found["host"], int(found["port"])), _PATIENCE
        ) as server:
            if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
                return
            server.sendall(_HTTP2)
            answer = server.recv(9, socket.MSG_WAITALL)
            if answer[3:4] != _SETTINGS:
                what = (
                    "a server with TLS; a cluster with TLS needs RAY_USE_TLS=1 here, as its machines have it"
                )
                what = what if answer.startswith(_ALERT) else "no cluster, but another server"
                raise SpecError.of("ray", f"{address!r}: {what}")
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SpecError.of("ray", f"{address!r}: no cluster answers there ({why})") from error


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster, and disconnected in the end unless it was connected before."""
    ray = _ray()
    if ray.is_initialized():
        present = ray.get_runtime_context().gcs_address
        if address not in ("auto", present):
            raise SpecError.of(
                "ray", f"{address!r}, but the process is connected to {present}; must be 'auto'"
            )
        with _quiet():
            yield ray
        return
    options: dict[str, Any] = {"address": address}
    # Of each actor of Ray Data its library says that it may not start again, which is right after the run.
    variables = {"RAY_BACKEND_LOG_LEVEL": "fatal"}
    if address == "local":
        variables["RAY_USAGE_STATS_ENABLED"] = "0"
        cpus = usable_cpus()
        options |= {"num_cpus": cpus, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    with _defaults(**variables), _quiet():
        try:
            with without_own_lines():
                ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
        except ConnectionError as error:
            what = "cannot connect; this machine must be in a cluster, and RAY_AUTH_MODE be as there"
            raise SpecError.of("ray", f"{address!r}: {what}") from error
        except Exception as error:  # Ray raises some errors as plain Exception
            words = (str(error).splitlines() or [type(error).__name__])[0]
            raise SpecError.of("ray", f"{address!r}: cannot connect ({words})") from error
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def without_own_lines() -> Iterator[None]:
    """Drop the lines that Ray writes to stderr while it starts; those of other threads come at the end."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        try:
            os.dup2(written.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written.read(_MOST_WRITTEN).splitlines(keepends=True):
                if not _OWN_LINE.match(line):
                    os.write(2, line)


@contextmanager
def _defaults(**variables: str) -> Iterator[None]:
    """Set variables of the environment that are not set, for as long as Ray reads them."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray Data's notices from the terminal: a run prints the same on a cluster as on one machine."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run(
    ray: Any, job: Job, blocks: Sequence[Block], done: Collection[int], told: Callable[[int], None]
) -> None:
    """Do the parts that are not done, by as many actors as there are CPUs for."""
    cpus = job.scorer.num_threads or 1
    actors = _room(ray, cpus)
    items = divide(blocks, done, actors)
    kit = _Kit(job, tuple(items), cpus, _ATTEMPTS, onegru._native.version(), os.getcwd())  # noqa: PTH109
    # A block for each item, as a block is a task.
    dataset = ray.data.from_items(list(range(len(items))), override_num_blocks=len(items)).map_batches(
        _Worker,
        fn_constructor_args=(kit,),
        batch_size=None,
        # One task at an actor: none waits there that would die with another.
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(items)), max_tasks_in_flight_per_actor=1),
        num_cpus=cpus,
    )
    dataset.context.enable_progress_bars = False
    for row in dataset.iter_rows():
        if row["error"]:
            raise pickle.loads(row["error"])
        told(int(row["rows"]))


def _room(ray: Any, cpus: int) -> int:
    """For how many actors of so many CPUs there is room."""
    most = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    room = sum(count // cpus for count in most)
    if not room:
        raise SpecError.of(
            "num_threads", f"{cpus}; must be at most {max(most, default=0)}, a machine's CPUs for Ray"
        )
    return room


def divide(blocks: Sequence[Block], done: Collection[int], actors: int) -> list[tuple[Block, ...]]:
    """What is not done, in items of similar size: small blocks side by side, a large one in several.

    An item that begins within a block reads what comes before in vain: no block is in more items than needed.
    """
    total = sum(part.number not in done for part in parts_of(blocks))
    least, most = (max(1, int(total * share / actors)) for share in (_SMALLEST, _LARGEST))
    items: list[tuple[Block, ...]] = []
    chosen: list[Block] = []
    for block in blocks:
        parts = tuple(part for part in block.parts if part.number not in done)
        for first in range(0, len(parts), most):
            chosen.append(replace(block, parts=parts[first : first + most]))
            if sum(len(piece.parts) for piece in chosen) >= least:
                items.append(tuple(chosen))
                chosen = []
    return [*items, tuple(chosen)] if chosen else items


@dataclass(frozen=True)
class _Kit:
    """What an actor is given: the job, all items, how to do them, and what must be there as it is here."""

    job: Job
    items: tuple[tuple[Block, ...], ...]
    threads: int
    attempts: int
    version: str
    folder: str


class _Worker:
    """An actor's part of the work; the model is loaded at the first item."""

    def __init__(self, kit: _Kit) -> None:
        self._kit = kit
        set_num_threads(kit.threads)
        with suppress(OSError):  # where it is missing, only relative paths cannot be found
            os.chdir(kit.folder)

    def __call__(self, batch: dict[str, Any]) -> pa.Table:
        """Do one item: for each, its rows, or the error that ends the run, pickled."""
        (number,) = batch["item"]
        blocks = self._kit.items[int(number)]
        error = b""
        try:
            self._do(int(number), blocks)
        except (OneGRUError, OSError, MemoryError) as found:
            error = pickle.dumps(found)
        rows = sum(part.rows for part in parts_of(blocks))
        return pa.table({"rows": [rows], "error": pa.array([error], pa.binary())})

    def _do(self, number: int, blocks: Sequence[Block]) -> None:
        kit = self._kit
        here = onegru._native.version()
        if here != kit.version:
            raise SpecError.of(
                "ray", f"onegru {here} on {socket.gethostname()}; must be {kit.version}, as here"
            )
        folder = Folder(Path(kit.job.output))
        if not folder.path.is_dir():
            what = f"the folder of results is not there on {socket.gethostname()}"
            raise SpecError(f"{folder.path}: {what}; must be shared by all machines")
        attempts = len(list(folder.path.glob(f".item-{number}.*.tmp")))
        if attempts == kit.attempts:
            first = blocks[0]
            place = f"{first.path}: row {first.first_row + first.parts[0].first}"
            raise OneGRUError(f"{place}: {attempts} workers died at it, or at rows that follow")
        (folder.path / f".item-{number}.{attempts}.tmp").touch()  # removed with what else a worker leaves
        # Those that are there are an earlier worker's, who died.
        done = {part.number for part in parts_of(blocks) if folder.part(part.number).exists()}
        kit.job.run(blocks, done)
