"""What the kernel and the SQLite backend cost, without charts: ``python -m bench.kernel [--json] [--events N]``.

- **durable events**: each event is one Query of its execution's partition (state and message), a decode, a trivial
  step, and one transaction (the state on condition of its version, the message removed on condition that it is there).
  Groups of 256 programs run in lockstep; one process, and two on disjoint executions of one file.
- **combined commits**: 64 threads that each commit one small put at a time.
- **single commits**: one thread, one put at a time.

The disk's own fsync is measured beside them, since it bounds all of it. Every process checks at the end that each
execution has taken its event exactly once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from typing import Any

import msgspec

from casework.backends.drive import run_many
from casework.backends.sqlite import SqliteBackend
from casework.kernel.conditions import absent, equals, present
from casework.kernel.effects import Get, Transact, Write
from casework.kernel.items import Delete, Put, Update
from casework.kernel.programs import Program, query, transact
from casework.kernel.schema import EXECUTIONS, MACHINES

GROUP = 256


def fill(backend: SqliteBackend, ids: list[str]) -> None:
    """One state and one message for each id."""
    data = msgspec.json.encode({"configuration": ["paid"], "context": {"amount": 4200, "items": [1, 2, 3]}}).decode()
    for start in range(0, len(ids), 1000):
        backend.execute_many(
            [
                Transact(
                    [
                        Put(
                            EXECUTIONS,
                            {
                                "id": id, "sort": "0", "format": 1, "version": 1, "status": "running",
                                "machine": "order", "machine_hash": "ab" * 16, "data": data, "timers": "[]",
                                "recent_ids": "", "listing": "running/3", "listed": f"order/{id}",
                            },
                            when=absent(),
                        ),
                        Put(
                            EXECUTIONS,
                            {
                                "id": id, "sort": "e/1750000000000000/src/0", "format": 1,
                                "event": '{"type":"Paid","data":{"ref":"p-77"}}', "sent_at_us": 1750000000000000,
                                "pending": "work/3", "rank_us": 1750000000000000 + number,
                            },
                            when=absent(),
                        ),
                    ]
                )
                for number, id in enumerate(ids[start : start + 1000], start)
            ]
        )  # fmt: skip


def take_event(id: str) -> Program[None]:
    """What a worker does with one flat event, without the chart."""
    page = yield from query(EXECUTIONS, id, limit=26)
    state, message = page.items
    data = msgspec.json.decode(state["data"])  # type: ignore[arg-type]
    event = msgspec.json.decode(message["event"])  # type: ignore[arg-type]
    data["context"]["ref"] = event["data"]["ref"]
    version: int = state["version"]  # type: ignore[assignment]
    changes = {"version": version + 1, "data": msgspec.json.encode(data).decode(), "updated_at_us": 1750000000000001}
    yield from transact(
        [
            Update(EXECUTIONS.key(id, "0"), changes, when=equals("version", version)),
            Delete(EXECUTIONS.key(id, message["sort"]), when=present()),  # type: ignore[arg-type]
        ]
    )


def consume(backend: SqliteBackend, ids: list[str], threads: int = 1, times_s: list[float] | None = None) -> float:
    """Seconds to take the event of every id; ``times_s`` takes the time of each group."""
    groups = [ids[start : start + GROUP] for start in range(0, len(ids), GROUP)]
    errors: list[BaseException] = []

    def work(mine: list[list[str]]) -> None:
        for group in mine:
            began = time.perf_counter()
            errors.extend(o.error for o in run_many([take_event(id) for id in group], backend) if o.error)
            if times_s is not None:
                times_s.append(time.perf_counter() - began)

    started = time.perf_counter()
    if threads == 1:
        work(groups)
    else:
        workers = [threading.Thread(target=work, args=(groups[n::threads],)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    elapsed = time.perf_counter() - started
    if errors:
        raise errors[0]
    return elapsed


def check(backend: SqliteBackend, ids: list[str]) -> None:
    """Every execution has taken its event exactly once."""
    for id in ids:
        state = backend.execute(Get(EXECUTIONS.key(id, "0")))
        if state["version"] != 2 or backend.execute(Get(EXECUTIONS.key(id, "e/1750000000000000/src/0"))) is not None:
            raise AssertionError(f"{id}: {state}")


def _consume_in_process(path: str, ids: list[str], threads: int, ready: Any, go: Any, answer: Any) -> None:
    with SqliteBackend(path) as backend:
        backend.execute(Get(EXECUTIONS.key("warm", "0")))
        ready.release()
        go.wait()
        answer.put(consume(backend, ids, threads))


def events_per_s(
    folder: str, events: int, processes: int, threads: int = 1, times_s: list[float] | None = None
) -> float:
    """Events per second, all processes together."""
    path = os.path.join(folder, f"events-{processes}-{threads}.db")
    ids = [f"order-{number * 7919 % 1_000_003:07d}" for number in range(events)]
    with SqliteBackend(path) as backend:
        backend.create_tables([EXECUTIONS])
        fill(backend, ids)
    if processes == 1:
        with SqliteBackend(path) as backend:
            backend.execute(Get(EXECUTIONS.key("warm", "0")))
            elapsed = consume(backend, ids, threads, times_s)
    else:
        context = multiprocessing.get_context("spawn")
        ready, go, answer = context.Semaphore(0), context.Event(), context.Queue()
        workers = [
            context.Process(target=_consume_in_process, args=(path, ids[n::processes], threads, ready, go, answer))
            for n in range(processes)
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            ready.acquire()
        go.set()
        elapsed = max(answer.get() for _ in workers)
        for worker in workers:
            worker.join()
    with SqliteBackend(path) as backend:
        check(backend, ids)
    return events / elapsed


def combined_commits_per_s(folder: str, commits: int, threads: int = 64) -> float:
    """Commits per second of threads that each put one item at a time."""
    with SqliteBackend(os.path.join(folder, f"combined-{threads}.db")) as backend:
        backend.create_tables([MACHINES])
        each = commits // threads

        def work(thread: int) -> None:
            for number in range(each):
                backend.execute(Write(Put(MACHINES, {"hash": f"{thread}-{number}", "n": number})))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return each * threads / (time.perf_counter() - started)


def fsync_us(folder: str) -> float:
    """Microseconds of one 4 KB write with fsync."""
    with open(os.path.join(folder, "fsync"), "wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(200):
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - started) / 200 * 1e6


def rows(events: int = 40_000) -> list[dict[str, Any]]:
    """One row for each measurement; there is no peer here, so ratios are left out."""
    times_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        measured = [
            ("fsync of 4 KB on this disk", "us", fsync_us(folder)),
            ("durable events, 1 process", "events/s", events_per_s(folder, events, 1, 1, times_s)),
            ("a group of 256, read to commit, p99", "ms", sorted(times_s)[len(times_s) * 99 // 100] * 1e3),
            ("durable events, 1 process, 2 threads", "events/s", events_per_s(folder, events, 1, 2)),
            ("durable events, 2 processes", "events/s", events_per_s(folder, events, 2)),
            ("combined commits, 64 threads", "commits/s", combined_commits_per_s(folder, events)),
            ("single commits, 1 thread", "us", 1e6 / combined_commits_per_s(folder, 2000, 1)),
        ]
    return [
        {"name": name, "unit": unit, "ours": round(value, 1), "peer": None, "peer_name": None, "ratio": None}
        for name, unit, value in measured
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the rows as a table, or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernel", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--events", type=int, default=40_000, help="events of each measurement")
    given = parser.parse_args(arguments)
    found = rows(given.events)
    if given.json:
        print(json.dumps({"rows": found}))
    else:
        for row in found:
            print(f"{row['name']:40} {row['ours']:>12,.1f} {row['unit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
