"""The worker: a shell that does what is due.

It looks at the ``pending`` index of its buckets, timers first, and advances every execution that it finds there once in
a sweep; it claims due tasks and runs their functions beside the sweep. A bell shortens the wait: it only says "look at
this execution", so losing or repeating a ring is harmless. No error of the store and none of an execution ends it.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from casework.errors import CaseworkError, StoreError, WrongCursor
from casework.executions.advance import Advanced, advance
from casework.executions.membership import Membership, keep_membership, leave
from casework.executions.publish import deliver
from casework.executions.run_task import Perform, TaskRunner, run_task
from casework.executions.runtime import Runtime
from casework.executions.task_items import Task
from casework.executions.tasks import claim_task
from casework.kernel.effects import Flag, Handle, Outcome, Query
from casework.kernel.items import Key
from casework.kernel.paging import Walk
from casework.kernel.programs import Program, now, race, run_together, spawn
from casework.kernel.schema import EXECUTIONS
from casework.streams.log import Log

log = logging.getLogger("casework.worker")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a worker."""

    poll_s: float = 1.0
    """Look at the index at least so often while nothing rings."""
    concurrency: int = 16
    """Tasks at once."""
    group: int = 256
    """Executions advanced at once; on a store with shared commits they share one."""
    drain_s: float = 30.0
    """On stop: wait so long for running tasks, then give them back uncounted."""
    lease_s: float = 30.0
    """A task's lease; it is renewed at a third of it."""
    heartbeat_s: float = 5.0
    """How often workers tell each other that they are there."""


class Bell:
    """Says which executions to look at. Safe to ring from any thread; a full bell forgets names, never the ring."""

    def __init__(self, room: int = 10_000) -> None:
        self.flag = Flag()
        self._ids: collections.deque[str] = collections.deque(maxlen=room)

    def ring(self, id: str) -> None:
        """Ask for a look at execution ``id``."""
        self._ids.append(id)
        self.flag.set()

    def rung(self, most: int) -> list[str]:
        """Take up to ``most`` of the rung executions, each once."""
        rung = self._ids
        self.flag.clear()  # before the look: a ring from now on is heard at the next one
        if not rung:
            return []
        ids: dict[str, None] = {}
        with contextlib.suppress(IndexError):  # another worker of this process may take the last one
            while rung and len(ids) < most:
                ids[rung.popleft()] = None
        if rung:
            self.flag.set()
        return list(ids)


class Alarms:
    """When something that this worker itself put off comes due, so that it need not wait for the next poll.

    A help, like the bell: what is missing here is found by polling.
    """

    def __init__(self, room: int = 10_000) -> None:
        self._due: list[int] = []
        self._room = room

    def add(self, due_us: int) -> None:
        """Look again at ``due_us``."""
        if len(self._due) < self._room:
            heapq.heappush(self._due, due_us)

    def seconds_until(self, now_us: int, at_most_s: float) -> float:
        """How long to wait; alarms that have passed are dropped."""
        while self._due and self._due[0] <= now_us:
            heapq.heappop(self._due)
        if not self._due:
            return at_most_s
        return min(at_most_s, (self._due[0] - now_us) / 1e6 + 0.001)


class Worker:
    """What a worker's programs share: settings, flags, and counts of what was done.

    Args:
        rt: machines and options.
        options: settings.
        bell: rung by whoever sends in this process.
        log: what this process knows of its streams.
        perform: the program that does a task's work; None: it calls the task's function.
    """

    def __init__(
        self,
        rt: Runtime,
        options: WorkerOptions | None = None,
        bell: Bell | None = None,
        log: Log | None = None,
        perform: Perform | None = None,
    ) -> None:
        self.rt = rt
        self.perform = perform
        self.log = log or Log()
        self.options = options or WorkerOptions()
        self.bell = bell or Bell()
        self.alarms = Alarms()
        self.stop = Flag()
        self.membership = Membership()
        self.running: dict[str, tuple[TaskRunner, Handle]] = {}
        self.advanced_n = 0
        self.tasks_n = 0
        self.trouble_n = 0

    def buckets(self) -> Sequence[int]:
        """The buckets that are this worker's to look at."""
        return self.membership.own_buckets(self.rt.options.buckets)


def work(worker: Worker) -> Program[None]:
    """Do what is due until ``worker.stop`` is set, then finish what is held."""
    yield from spawn(keep_membership(worker.membership, worker.options.heartbeat_s), "membership")
    try:
        yield from _sweep_until_stopped(worker)
        yield from leave(worker.membership)  # before the drain, in which nobody would look at its buckets
        yield from drain_tasks(worker)
    except Exception:
        with contextlib.suppress(CaseworkError):  # others take its buckets at once; what went wrong is the news
            yield from leave(worker.membership)
        raise
    yield from leave(worker.membership)  # again, where the store did not hear of it


def _sweep_until_stopped(worker: Worker) -> Program[None]:
    trouble = 0
    while not worker.stop.is_set:
        did = 0
        try:
            did = yield from sweep(worker)
            trouble = 0
        except (StoreError, WrongCursor) as error:  # the next sweep begins with pages of its own
            trouble += 1
            worker.trouble_n += 1
            log.warning("sweep: %s: %s", type(error).__name__, error)
            yield from race(worker.stop, timeout_s=min(30.0, 0.1 * 2 ** min(trouble, 9)))
        if not did and not worker.stop.is_set:
            moment = yield from now()
            pause_s = worker.alarms.seconds_until(moment.earliest_us, worker.options.poll_s)
            yield from race(worker.bell.flag, worker.stop, timeout_s=pause_s)


def sweep(worker: Worker) -> Program[int]:
    """Do all that is due now; how much was done. An execution is taken once in a sweep, so none starves others."""
    did = yield from _answer_bell(worker)
    seen: set[str] = set()
    for kind in ("timer", "work"):
        walk = yield from _look_at(worker, kind)
        while walk.left and not worker.stop.is_set:
            items = yield from walk.next_pages(max(16, worker.options.group // len(walk.left)))
            if items:
                did += yield from _do(worker, items, seen)
            # What was rung is answered between pages: a backlog of others does not delay it.
            did += yield from _answer_bell(worker)
            if kind == "work":
                break  # back to the timers first: a backlog of messages must not delay them
    return did


def _look_at(worker: Worker, kind: str) -> Program[Walk]:
    """A look at what is due by now; what comes due meanwhile is for the next one."""
    moment = yield from now()
    # A look at work is harmless when it is early; a timer that is not certainly due would be looked at in vain.
    until_us = moment.latest_us if kind == "work" else moment.earliest_us
    return Walk([Query(EXECUTIONS, f"{kind}/{bucket}", "pending", None, until_us) for bucket in worker.buckets()])


def _answer_bell(worker: Worker) -> Program[int]:
    did = 0
    while ids := worker.bell.rung(worker.options.group):
        did += yield from _advance_all(worker, ids)
        if worker.stop.is_set:
            break
    return did


def _do(worker: Worker, items: Sequence[Any], seen: set[str]) -> Program[int]:
    """Advance the executions and claim the tasks among the items of an index page."""
    executions: dict[str, None] = {}
    deliveries: dict[str, None] = {}
    tasks: list[Key] = []
    for item in items:
        id, sort = str(item["id"]), str(item["sort"])
        if sort.startswith("w/"):
            place = f"{id} {sort}"
            if place not in worker.running and place not in seen:
                tasks.append(Key(EXECUTIONS, id, sort))
                seen.add(place)
        elif sort.startswith("o/"):
            deliveries[id] = None
        elif id not in seen:
            executions[id] = None
            seen.add(id)
    did = 0
    for group in _chunks(list(executions), worker.options.group):
        did += yield from _advance_all(worker, group)
    for group in _chunks(list(deliveries), worker.options.group):
        did += yield from _deliver(worker, group)
    did += yield from _claim_all(worker, tasks)
    return did


def _deliver(worker: Worker, ids: Sequence[str]) -> Program[int]:
    """Append what executions publish to their streams."""
    try:
        return (yield from deliver(worker.log, worker.rt, ids))
    except StoreError as error:
        _report(worker, f"what {len(ids)} executions publish", error)
        return 0


def _advance_all(worker: Worker, ids: Sequence[str]) -> Program[int]:
    outcomes: list[Outcome[Advanced]] = yield from run_together([advance(worker.rt, id) for id in ids])
    did = 0
    published: list[str] = []
    for id, outcome in zip(ids, outcomes, strict=True):
        if outcome.error is not None:
            _report(worker, f"execution {id!r:.200}", outcome.error)
        elif outcome.value is not None and outcome.value.is_held:
            did += 1
            if outcome.value.failed:
                log.warning("execution %r failed: %s", id, outcome.value.failed)
            if outcome.value.state is not None and outcome.value.state.machine in worker.rt.options.publish:
                published.append(id)
            wakes = outcome.value.state.wakes_at() if outcome.value.state is not None else None
            if wakes is not None:
                worker.alarms.add(wakes[1])
            if outcome.value.has_more:
                worker.bell.ring(id)
        elif outcome.value is not None and outcome.value.parked:
            level = logging.WARNING if outcome.value.is_news else logging.INFO
            log.log(level, "execution %r is parked: %s", id, outcome.value.parked)
    worker.advanced_n += did
    if published:
        yield from _deliver(worker, published)
    return did


def _claim_all(worker: Worker, places: Sequence[Key]) -> Program[int]:
    room = worker.options.concurrency - len(worker.running)
    if room <= 0 or not places:
        return 0
    chosen = places[:room]
    programs = [claim_task(worker.rt, place, lease_s=worker.options.lease_s) for place in chosen]
    outcomes: list[Outcome[Task | None]] = yield from run_together(programs)
    did = 0
    for place, outcome in zip(chosen, outcomes, strict=True):
        if outcome.error is not None:
            _report(worker, f"task {place}", outcome.error)
        elif outcome.value is not None:
            yield from _start_task(worker, outcome.value)
            did += 1
    worker.tasks_n += did
    return did


def _start_task(worker: Worker, task: Task) -> Program[None]:
    place = f"{task.id} {task.sort}"
    runner = TaskRunner(worker.rt, task, worker.bell.ring, worker.alarms.add, worker.perform)

    def carry() -> Program[None]:
        try:
            yield from run_task(runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this task only
            _report(worker, f"task {task.key!r}", error)
        finally:
            worker.running.pop(place, None)
            worker.bell.flag.set()

    handle = yield from spawn(carry(), f"task {task.key}")
    worker.running[place] = (runner, handle)


def drain_tasks(worker: Worker) -> Program[None]:
    """Wait for running tasks, at most ``drain_s``; give back uncounted what still runs then."""
    started = yield from now()
    while worker.running:
        moment = yield from now()
        left_s = worker.options.drain_s - (moment.middle_us - started.middle_us) / 1e6
        if left_s <= 0:
            break
        yield from race(*[handle for _, handle in worker.running.values()], timeout_s=left_s)
        yield from _answer_bell_last(worker)
    for runner, handle in list(worker.running.values()):
        runner.give_back.set()
        yield from race(handle, timeout_s=5.0)


def _answer_bell_last(worker: Worker) -> Program[None]:
    try:
        ids = worker.bell.rung(worker.options.group)
        if ids:
            yield from _advance_all(worker, ids)
    except StoreError as error:
        _report(worker, "drain", error)


def _report(worker: Worker, what: str, error: BaseException) -> None:
    worker.trouble_n += 1
    level = logging.INFO if isinstance(error, CaseworkError) else logging.ERROR
    log.log(level, "%s: %s: %s", what, type(error).__name__, error, exc_info=None if level == logging.INFO else error)


def _chunks(values: list[str], size: int) -> Iterator[list[str]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]
