"""What one kind of work has to wait for another in a worker of this process, and how soon it works after an outage."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import casework
from casework.backends.memory import MemoryBackend
from casework.errors import Unavailable
from casework.kernel.effects import Transact, Write

BUSY = "{id: busy, initial: a, states: {a: {invoke: {src: {task: work}, onDone: b}}, b: {type: final}}}"
QUICK = "{id: quick, initial: a, states: {a: {on: {go: b}, after: {200ms: b}}, b: {type: final}}}"
HOT = "{id: hot, context: {}, initial: a, states: {a: {on: {ping: {}}}}}"


def machines(work: Any) -> list[casework.Machine]:
    busy = casework.Machine.from_yaml(BUSY)
    busy.task(name="work")(work)
    return [busy, casework.Machine.from_yaml(QUICK), casework.Machine.from_yaml(HOT)]


def events_beside_tasks_s(tasks: int, events: int) -> float:
    """Seconds until the last of some events is taken, behind a backlog of tasks that take longer than the run."""
    go_on = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'bench.db'}"
        with casework.open(store, machines=machines(lambda task: go_on.wait(60) and None)) as app:
            for n in range(tasks):
                app.start("busy", id=f"busy-{n}")
            with app.worker(concurrency=16, drain_s=0):
                began = time.monotonic()
                for n in range(events):
                    app.start("quick", id=f"quick-{n}")
                    app.send(f"quick-{n}", "go")
                for n in range(events):
                    app.wait(f"quick-{n}", timeout_s=60)
                took_s = time.monotonic() - began
                go_on.set()
    return took_s


def timers_beside_sends_s(timers: int, threads: int) -> float:
    """Seconds by which timers of 200 ms are late, that another process has armed, while threads of this one send."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'bench.db'}"
        found = machines(lambda task: None)
        with casework.open(store, machines=found) as app, casework.open(store, machines=found) as other:
            app.start("hot", id="hot")

            def send() -> None:
                for _ in itertools.takewhile(lambda n: not stop.is_set(), itertools.count()):
                    app.send("hot", "ping")

            senders = [threading.Thread(target=send) for _ in range(threads)]
            with app.worker():
                for sender in senders:
                    sender.start()
                began = time.monotonic()
                for n in range(timers):
                    other.start("quick", id=f"quick-{n}")
                for n in range(timers):
                    other.wait(f"quick-{n}", timeout_s=60)
                took_s = time.monotonic() - began
                stop.set()
                for sender in senders:
                    sender.join()
    return took_s - 0.2


class Down(MemoryBackend):
    """A store that can be down."""

    is_down = False

    def execute_many(self, effects: Any) -> Any:
        if self.is_down:
            raise Unavailable("it is down")
        return super().execute_many(effects)

    def execute(self, effect: Any) -> Any:
        if self.is_down and isinstance(effect, Transact | Write):
            raise Unavailable("it is down")
        return super().execute(effect)


def settled_after_outage_s(outage_s: float) -> float:
    """Seconds from the end of an outage until an event that is sent then has been taken."""
    backend = Down()
    with casework.open(backend, machines=machines(lambda task: None), create=True) as app:
        app.start("quick", id="before")
        with app.worker() as worker:
            app.wait("before", timeout_s=60)
            backend.is_down = True
            time.sleep(outage_s)
            backend.is_down = False
            began = time.monotonic()
            app.start("quick", id="after")
            app.send("after", "go")
            app.wait("after", timeout_s=60)
            assert worker.is_alive
            return time.monotonic() - began


def rows() -> Iterator[tuple[str, float]]:
    """Each measurement, by its name, in seconds."""
    yield "50 events behind 1,000 tasks that do not end", events_beside_tasks_s(1000, 50)
    yield "15 timers of another process, 8 threads sending: late by", timers_beside_sends_s(15, 8)
    yield "from the end of an outage of 10 s to an event taken", settled_after_outage_s(10.0)
