"""Several processes and threads on one file: nothing is lost, nothing happens twice, nothing acknowledged goes away."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from casework.backends.sqlite import SqliteBackend
from casework.errors import ConditionFailed
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Get, GetMany, Transact
from casework.kernel.items import Put, Update
from tests.sqlite.conftest import ITEMS

SPAWN = multiprocessing.get_context("spawn")
COUNTERS = 3


def increment(backend: SqliteBackend, name: str, by: str) -> None:
    """Raise a counter by one and note who did it, in one transaction."""
    while True:
        counter = backend.execute(Get(ITEMS.key(name)))
        n = 0 if counter is None else counter["n"]
        try:
            backend.execute(
                Transact(
                    [
                        Update(ITEMS.key(name), {"n": n + 1}, when=equals("n", n) if n else absent()),
                        Put(ITEMS, {"id": f"{name}/{n + 1}", "by": by}, when=absent()),
                    ]
                )
            )
            return
        except ConditionFailed:
            continue


def process_of_threads(path: str, process: int, threads: int, each: int, answers: Any) -> None:
    errors: list[str] = []
    with SqliteBackend(path, busy_timeout_s=60) as backend:

        def work(thread: int) -> None:
            try:
                for number in range(each):
                    increment(backend, f"c{(number + thread) % COUNTERS}", f"{process}.{thread}.{number}")
            except BaseException as error:
                errors.append(repr(error))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    answers.put(errors)


@pytest.mark.parametrize(
    ("processes", "threads", "each"),
    [(2, 3, 20), pytest.param(4, 4, 1250, marks=pytest.mark.soak)],
)
def test_processes_and_threads_lose_no_update_and_repeat_none(
    path: Path, processes: int, threads: int, each: int
) -> None:
    with SqliteBackend(path) as backend:
        backend.create_tables([ITEMS])
    answers = SPAWN.Queue()
    workers = [
        SPAWN.Process(target=process_of_threads, args=(str(path), n, threads, each, answers)) for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    errors = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert errors == [[]] * processes
    with SqliteBackend(path) as backend:
        counters = [backend.execute(Get(ITEMS.key(f"c{n}"))) for n in range(COUNTERS)]
        totals = [0 if counter is None else counter["n"] for counter in counters]
        assert sum(totals) == processes * threads * each
        keys = [ITEMS.key(f"c{c}/{n}") for c, total in enumerate(totals) for n in range(1, total + 1)]
        done = [item["by"] for item in backend.execute(GetMany(keys))]
        assert len(set(done)) == len(done) == processes * threads * each
        assert backend.execute(Get(ITEMS.key(f"c0/{totals[0] + 1}"))) is None


def commit_until_killed(path: str, pipe: Any, threads: int) -> None:
    backend = SqliteBackend(path)
    lock = threading.Lock()

    def work(thread: int) -> None:
        number = 0
        while True:
            id = f"{thread}-{number}"
            backend.execute(Transact([Put(ITEMS, {"id": id}, when=absent()), Put(ITEMS, {"id": id + "-too"})]))
            with lock:
                pipe.send(id)
            number += 1

    for n in range(threads):
        threading.Thread(target=work, args=(n,), daemon=True).start()
    threading.Event().wait()


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_every_acknowledged_commit_outlives_a_kill(path: Path, rounds: int) -> None:
    with SqliteBackend(path) as backend:
        backend.create_tables([ITEMS])
    for round_ in range(rounds):
        mine, theirs = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=commit_until_killed, args=(str(path), theirs, 4))
        with SqliteBackend(path) as backend:
            for thread in range(4):  # ids of the round before
                for number in range(2000):
                    if backend.execute(Get(ITEMS.key(f"{thread}-{number}"))) is None:
                        break
                    backend.execute(Transact([_delete(f"{thread}-{number}"), _delete(f"{thread}-{number}-too")]))
        process.start()
        theirs.close()
        acknowledged = [mine.recv() for _ in range(60 + 7 * round_)]
        os.kill(process.pid or 0, signal.SIGKILL)
        try:
            while True:
                acknowledged.append(mine.recv())
        except EOFError:
            pass
        process.join()
        with SqliteBackend(path) as backend:
            for id in acknowledged:
                assert backend.execute(GetMany([ITEMS.key(id), ITEMS.key(id + "-too")])) == [
                    {"id": id},
                    {"id": id + "-too"},
                ]


def _delete(id: str) -> Any:
    from casework.kernel.items import Delete

    return Delete(ITEMS.key(id))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_works_on_connections_and_locks_of_its_own(path: Path, backend: SqliteBackend) -> None:
    backend.execute(Transact([Put(ITEMS, {"id": "before", "n": 1})]))
    with backend._file.reader():  # a connection is lent, and the lead is held, while the process forks
        backend._combiner._leader = object()  # type: ignore[assignment]
        child = os.fork()
        if child == 0:
            try:
                found = backend.execute(Get(ITEMS.key("before")))
                backend.execute(Transact([Put(ITEMS, {"id": "child", "n": found["n"] + 1}, when=absent())]))
                backend.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        backend._combiner._leader = None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.execute(Get(ITEMS.key("child"))) == {"id": "child", "n": 2}
    backend.execute(Transact([Put(ITEMS, {"id": "after"})]))
    assert backend.execute(Get(ITEMS.key("after"))) == {"id": "after"}
