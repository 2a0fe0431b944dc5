"""What the SQLite rows of ``bench.executions`` measure: events on executions that are stored, fsync on.

The chart is a flat one of four states that counts its events. Every measurement runs on a copy of one prepared file and
checks in the end that each execution has counted its events exactly once.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import casework
from casework.app.sync import App
from casework.backends.drive import run, run_many
from casework.backends.sqlite.connections import CHECKPOINT_PAGES
from casework.cli.worker import spare_the_collector
from casework.executions import deliver
from casework.executions.membership import beat
from casework.kernel.effects import Transact
from casework.kernel.items import Delete
from casework.kernel.schema import bucket_of
from casework.statechart import Machine

COUNT: dict[str, Any] = {"type": "assign", "params": {"n": {"expr": "context.n + 1"}}}
PAYLOAD = {"ref": "p-77"}
GROUP = 500


def flat() -> Machine:
    edges = zip("abcd", "bcda", strict=True)
    states = {key: {"on": {"go": {"target": target, "actions": COUNT}}} for key, target in edges}
    return Machine.from_dict({"id": "flat", "initial": "a", "context": {"n": 0}, "states": states})


def ids_of(executions: int) -> list[str]:
    """Ids in no order that the file would profit from."""
    return [f"order-{number * 7919 % 1_000_003:07d}" for number in range(executions)]


def open_at(path: Path) -> App:
    return casework.open(f"sqlite:///{path}", machines=[flat()])


class Prepared:
    """Files with executions, and with events that wait; made once and copied for each measurement.

    Args:
        folder: where they go.
        executions: how many.
    """

    def __init__(self, folder: Path, executions: int) -> None:
        self.folder = folder
        self.ids = ids_of(executions)
        self._copies = 0

    @functools.cache  # noqa: B019 - one object, for the length of a run
    def with_events(self, each: int) -> Path:
        """A file in which so many events wait for each execution."""
        path = self.folder / f"prepared-{each}.db"
        with open_at(path) as app:
            for start in range(0, len(self.ids), GROUP):
                ids = self.ids[start : start + GROUP]
                together(app, [deliver.start(app.core.rt, "flat", id, {}) for id in ids])
            for _ in range(each):
                for start in range(0, len(self.ids), GROUP):
                    ids = self.ids[start : start + GROUP]
                    together(app, [deliver.send(app.core.rt, id, "go", PAYLOAD) for id in ids])
        return path

    @contextlib.contextmanager
    def copy(self, each: int) -> Iterator[Path]:
        """A copy to measure on.

        Its write-ahead log has its full length, as on a store that has been in use for a while: a log that still grows
        makes every fsync slower, and a peer that has just made its executions has one that no longer grows.
        """
        self._copies += 1
        path = self.folder / f"copy-{self._copies}.db"
        shutil.copy(self.with_events(each), path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            while log_pages(path) < CHECKPOINT_PAGES + 1000:
                connection.execute("UPDATE executions SET attributes = attributes || ' '")
                connection.execute("UPDATE executions SET attributes = rtrim(attributes)")
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
            yield path
        for left in self.folder.glob(path.name + "*"):
            left.unlink()


def log_pages(path: Path) -> int:
    """4 KB pages in the write-ahead log."""
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size // 4120 if log.exists() else 0


def together(app: App, programs: Sequence[Any]) -> None:
    for outcome in run_many(programs, app.backend):
        outcome.result()


def check(path: Path, ids: Sequence[str], counts: int) -> None:
    """Every execution has counted so many events, and none waits."""
    with open_at(path) as app:
        for id in ids:
            found = app.inspect(id)
            if found.execution.context["n"] != counts or found.messages:
                raise SystemExit(f"{id}: counted {found.execution.context['n']} of {counts}")


# --- the worker path --------------------------------------------------------------------------------------------------


def _work(path: Path, ids: Sequence[str], each: int, barrier: Any, answers: Any) -> None:
    """A worker process: the worker that ``casework worker`` runs, until the events of its own buckets are taken."""
    with open_at(path) as app:
        thread = app.worker(heartbeat_s=60.0)
        worker = thread.worker
        run(beat(worker.membership, 60.0), app.backend)  # say that it is there, then look who else is
        barrier.wait()
        run(beat(worker.membership, 60.0), app.backend)
        share, buckets = worker.share(), app.core.rt.options.buckets
        own = set(share.buckets)
        mine = sum(
            1 for id in ids
            if (bucket := bucket_of(id, buckets)) in own and share.takes({"id": id, "pending": f"work/{bucket}"})
        )  # fmt: skip
        spare_the_collector()
        barrier.wait()
        ended: list[float] = []

        def watch() -> None:
            while worker.advanced_n < mine:
                time.sleep(0.001)
            ended.append(time.monotonic())
            worker.stop.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        started, processor_s = time.monotonic(), time.process_time()
        thread.run()
        watcher.join()
        answers.put((started, ended[0], time.process_time() - processor_s))


def worker_path(prepared: Prepared, processes: int, each: int = 1) -> tuple[float, float]:
    """Events a second that worker processes consume together, and microseconds of processor time for each event.

    ``each`` events of an execution share its commit.
    """
    context = multiprocessing.get_context("spawn")
    with prepared.copy(each) as path:
        barrier, answers = context.Barrier(processes), context.Queue()
        workers = [
            context.Process(target=_work, args=(path, prepared.ids, each, barrier, answers)) for _ in range(processes)
        ]
        for worker in workers:
            worker.start()
        found = [answers.get(timeout=600) for _ in workers]
        for worker in workers:
            worker.join()
        check(path, prepared.ids, each)
    elapsed = max(ended for _, ended, _ in found) - min(started for started, _, _ in found)
    events = len(prepared.ids) * each
    return events / elapsed, sum(processor_s for _, _, processor_s in found) * 1e6 / events


def latencies_ms(prepared: Prepared, events_per_s: int, seconds: float) -> list[float]:
    """From the moment an event is sent to the commit that holds what came of it, at a steady rate, sorted.

    The sender sends in groups of a hundredth of a second beside a worker in the same process, which hears its bell.
    """
    found: list[float] = []
    with prepared.copy(0) as path, open_at(path) as app:
        whole = app.backend.execute_many

        def timed(effects: Sequence[Any]) -> Any:
            outcomes = whole(effects)
            now_us = time.time_ns() // 1000
            for effect in effects:
                if type(effect) is Transact:
                    for write in effect.writes:
                        if type(write) is Delete and str(write.key.sort).startswith("e/"):
                            found.append((now_us - int(str(write.key.sort)[2:19])) / 1000)
            return outcomes

        app.backend.execute_many = timed  # type: ignore[method-assign]
        each = max(1, events_per_s // 100)
        count = min(int(events_per_s * seconds), len(prepared.ids))
        with app.worker():
            started = time.monotonic()
            for start in range(0, count, each):
                ids = prepared.ids[start : min(start + each, count)]
                together(app, [deliver.send(app.core.rt, id, "go", PAYLOAD) for id in ids])
                for id in ids:
                    app.core.bell.ring(id)
                time.sleep(max(0.0, started + (start + each) / events_per_s - time.monotonic()))
            deadline = time.monotonic() + 60
            while len(found) < count and time.monotonic() < deadline:
                time.sleep(0.005)
        if len(found) != count:
            raise SystemExit(f"{len(found)} of {count} events were consumed")
        check(path, prepared.ids[:count], 1)
    return sorted(found)


# --- from callers -----------------------------------------------------------------------------------------------------


def calls_per_s(prepared: Prepared, kind: str, count: int, threads: int) -> float:
    """Calls a second of ``app.send``, or of ``app.handle`` with the state read (``handle``) or held (``held``)."""
    with prepared.copy(0) as path, open_at(path) as app:
        if kind == "held":
            ids = prepared.ids[: min(threads * 8, len(prepared.ids))]
            for id in ids:
                app.handle(id, "go", PAYLOAD)
            targets = [ids[n % len(ids)] for n in range(count)]
        else:
            targets = prepared.ids[:count]
        call: Callable[..., Any] = app.send if kind == "send" else app.handle

        def work(mine: Sequence[str]) -> None:
            for id in mine:
                call(id, "go", PAYLOAD)

        workers = [threading.Thread(target=work, args=(targets[n::threads],)) for n in range(threads)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.perf_counter() - started
        if kind == "handle":
            check(path, targets, 1)
        return len(targets) / elapsed
