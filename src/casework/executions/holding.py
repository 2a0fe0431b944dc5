"""The tasks that a worker holds: claimed while there is room, run beside its sweep, given back when it leaves.

Room is counted by what a task needs. A plain function needs a thread, and one that never comes back keeps it although
its task is over; a coroutine function needs the loop, which another one may block. A worker claims no task that it
could not run: others can.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence

from casework.executions.run_task import TaskRunner, find_function, run_task
from casework.executions.runtime import Parked
from casework.executions.task_items import Task
from casework.executions.tasks import claim_task
from casework.executions.worker_state import Held, Worker
from casework.kernel.effects import Outcome
from casework.kernel.items import Key
from casework.kernel.programs import Program, now, race, run_together, spawn

log = logging.getLogger("casework.worker")

GIVE_BACK_S = 5.0
"""A leaving worker waits so long, for all of them together, for its tasks to be given back."""


def place_of(place: Key) -> str:
    """By which a worker knows the tasks that it holds."""
    return f"{place.partition} {place.sort}"


class Room:
    """How many more tasks of each kind a worker can run; what is taken is taken off."""

    __slots__ = ("coroutines", "threads")

    def __init__(self, worker: Worker) -> None:
        calls = worker.calls
        free = worker.options.concurrency - len(worker.running)
        self.threads = max(0, free - calls.threads_left)
        self.coroutines = max(0, free - calls.coroutines_left) if calls.is_loop_free else 0
        _tell_of_left(worker)

    @property
    def most(self) -> int:
        """For so many tasks at most there is room."""
        return max(self.threads, self.coroutines)

    def takes(self, worker: Worker, task: Task) -> bool:
        """Whether there is room for this one, which then has it."""
        try:
            is_coroutine = inspect.iscoroutinefunction(find_function(worker.rt, task))
        except Parked:
            return True  # it is only put off
        if (self.coroutines if is_coroutine else self.threads) <= 0:
            return False
        self.coroutines -= 1
        self.threads -= 1
        return True


def _tell_of_left(worker: Worker) -> None:
    """Say of each function more that does not return, once that none finds room, and once that it is well again."""
    calls, most = worker.calls, worker.options.concurrency
    left = max(calls.threads_left, calls.coroutines_left)
    is_full = left >= most or not calls.is_loop_free
    if left > worker.left_n and not is_full:
        names = ", ".join(sorted(set(calls.names_left)))
        log.warning("%d of %d places are taken by functions that did not return in time: %s", left, most, names)
    worker.left_n = left
    if is_full is worker.was_full:
        return
    worker.was_full = is_full
    if not is_full:
        log.warning("functions have returned; this worker claims tasks of every kind again")
    elif not calls.is_loop_free:
        log.critical("a coroutine function blocks the loop of all others; this worker claims no task for one meanwhile")
    else:
        names = ", ".join(sorted(set(calls.names_left)))
        what = f"{left} functions did not return when their tasks were over ({names})"
        log.critical("%s: this worker has no room for more of their kind, and claims none meanwhile", what)


def has_room(worker: Worker) -> bool:
    """Whether there is room for another task at all, and so a reason to look for one."""
    return Room(worker).most > 0


def claim_all(worker: Worker, places: Sequence[Key]) -> Program[int]:
    """Claim tasks while there is room for them, and begin to run them; how many."""
    did = 0
    left = list(places)
    while left and (room := Room(worker)).most > 0:
        chosen, left = left[: room.most], left[room.most :]
        programs = [_claim(worker, room, place) for place in chosen]
        outcomes: list[Outcome[Task | None]] = yield from run_together(programs)
        for place, outcome in zip(chosen, outcomes, strict=True):
            if outcome.error is not None:
                worker.report(f"task {place}", outcome.error)
            elif outcome.value is not None:
                yield from _start_task(worker, outcome.value)
                did += 1
    worker.tasks_n += did
    return did


def _claim(worker: Worker, room: Room, place: Key) -> Program[Task | None]:
    return claim_task(
        worker.rt,
        place,
        lease_s=worker.options.lease_s,
        takes=lambda task: room.takes(worker, task),
        owner=worker.membership.name,
    )


def _start_task(worker: Worker, task: Task) -> Program[None]:
    place = place_of(task.place)
    runner = TaskRunner(worker.rt, task, worker.bell.ring, worker.alarms.add, worker.perform, worker.answered)

    def carry() -> Program[None]:
        try:
            yield from run_task(runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this task only
            worker.report(f"task {task.key!r}", error)
        finally:
            worker.running.pop(place, None)
            worker.bell.flag.set()

    handle = yield from spawn(carry(), f"task {task.key}")
    worker.running[place] = Held(runner, handle)


def drain_tasks(worker: Worker, meanwhile: Callable[[Worker], Program[None]]) -> Program[None]:
    """Wait for running tasks, at most ``drain_s``; give back uncounted what still runs then.

    Args:
        worker: whose tasks.
        meanwhile: done whenever one has ended.
    """
    yield from _wait_for_all(worker, worker.options.drain_s, meanwhile)
    for held in list(worker.running.values()):
        task = held.runner.task
        log.warning("task %r (%s) has not ended within the time to drain: it is given back", task.key, task.src)
        held.runner.give_back.set()
    yield from _wait_for_all(worker, GIVE_BACK_S, meanwhile)


def _wait_for_all(worker: Worker, at_most_s: float, meanwhile: Callable[[Worker], Program[None]]) -> Program[None]:
    started = yield from now()
    while worker.running:
        moment = yield from now()
        left_s = at_most_s - (moment.middle_us - started.middle_us) / 1e6
        if left_s <= 0:
            return
        yield from race(*[held.handle for held in worker.running.values()], timeout_s=left_s)
        yield from meanwhile(worker)
