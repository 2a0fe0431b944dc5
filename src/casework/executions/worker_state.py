"""What the programs of one worker share: its settings, the bell, what it holds, and what others may know of it.

``Worker`` is plain data with flags; the programs that use it are in :mod:`casework.executions.worker` and
:mod:`casework.executions.holding`.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from casework.arguments import check_count, check_seconds
from casework.errors import CaseworkError
from casework.executions.membership import Membership
from casework.executions.run_task import Perform, TaskRunner
from casework.executions.runtime import Runtime
from casework.executions.shares import Share
from casework.kernel.containment import guarded, in_words, text_of, type_of
from casework.kernel.effects import Flag, Handle
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

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_seconds("poll_s", self.poll_s, 0.001)
        check_count("concurrency", self.concurrency, 1, 100_000)
        check_count("group", self.group, 1, 100_000)
        check_seconds("drain_s", self.drain_s)
        check_seconds("lease_s", self.lease_s, 0.1)
        check_seconds("heartbeat_s", self.heartbeat_s, 0.05)


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
        self.membership = Membership(rt)
        self.calls: Calls = NoCalls()
        """Where functions of users run, as far as a worker must know of it."""
        self.running: dict[str, Held] = {}
        self.held_up: dict[str, Handle] = {}
        """Executions whose action or guard has not returned: they go on by themselves, and are left alone meanwhile."""
        self.answered = Flag()
        """Set when the store answered a program of this worker's: a sign of life, should it have been down."""
        self.is_alive = False
        """Whether it works: it was begun, and has not ended."""
        self.error: BaseException | None = None
        """What it ended with, where it did not end because it was asked to."""
        self.ended = Flag()
        """Set when it has ended."""
        self.advanced_n = 0
        self.tasks_n = 0
        self.trouble_n = 0
        self.waiting_n = 0
        self.last_look_us = 0
        self.parked_look_us = 0
        """When it looks again at what is parked; 0: it has not looked yet."""
        self.parked_pause_us = 0
        self.left_n = 0
        self.was_full = False

    def share(self) -> Share:
        """What is this worker's to look at."""
        return self.membership.share()

    def has_ended(self, error: BaseException | None) -> None:
        """It works no more; with the error that ended it, or because it was asked to."""
        self.is_alive, self.error = False, error
        self.ended.set()

    def when_ended(self, callback: Callable[[BaseException | None], Any]) -> None:
        """Call ``callback`` with the error, or None, when the worker has ended; at once if it has.

        It is called on the worker's thread, or on the loop of ``open_async``: let it set an event or send a signal.
        """
        told: list[bool] = []

        def tell() -> None:
            if not told:
                told.append(True)
                try:
                    guarded(callback, self.error)
                except Exception as error:
                    log.error("when_ended: %s", in_words(error), exc_info=error)

        self.ended.listeners[tell] = None
        if self.ended.is_set:
            tell()

    def status(self) -> WorkerStatus:
        """What the worker does just now; safe to ask from any thread."""
        calls = self.calls
        return WorkerStatus(
            is_alive=self.is_alive,
            error="" if self.error is None else in_words(self.error),
            tasks_running=len(self.running),
            threads_used=calls.threads_used,
            threads_stuck=calls.threads_left,
            stuck=tuple(calls.names_left),
            is_loop_free=calls.is_loop_free,
            executions_held_up=tuple(self.held_up),
            tasks_waiting=self.waiting_n,
            last_look_us=self.last_look_us,
            advanced_n=self.advanced_n,
            tasks_n=self.tasks_n,
            trouble_n=self.trouble_n,
        )

    def report(self, what: str, error: BaseException) -> None:
        """Log an error that was survived, and count it."""
        self.trouble_n += 1
        is_known = isinstance(error, CaseworkError)
        level = logging.INFO if is_known else logging.ERROR
        log.log(level, "%s: %s: %s", what, type_of(error), text_of(error), exc_info=None if is_known else error)


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does just now."""

    is_alive: bool
    error: str
    """What it ended with; empty: nothing."""
    tasks_running: int
    """Tasks that it holds."""
    threads_used: int
    """Threads that run functions of yours now."""
    threads_stuck: int
    """Those among them whose function has not returned although nobody waits for it any more: its task timed out, was
    lost or given back. Each takes a place of ``concurrency`` until it returns."""
    stuck: tuple[str, ...]
    """The names of such functions, coroutines that were told to end included."""
    is_loop_free: bool
    """False while a coroutine function blocks the loop of all others."""
    executions_held_up: tuple[str, ...]
    """Executions whose action or guard has not returned."""
    tasks_waiting: int
    """Due tasks that the last look found and left for lack of room; there may be more."""
    last_look_us: int
    """When it last looked for due work, in microseconds since the epoch; 0: never."""
    advanced_n: int
    """Commits of executions so far."""
    tasks_n: int
    """Tasks claimed so far."""
    trouble_n: int
    """Errors survived so far."""


class Calls(Protocol):
    """What a worker must know of the place where functions of users run."""

    @property
    def threads_used(self) -> int:
        """Threads that run a function now."""

    @property
    def threads_left(self) -> int:
        """Threads whose function nobody waits for, and which it has not given back."""

    @property
    def coroutines_left(self) -> int:
        """Coroutines that were told to end, and have not."""

    @property
    def names_left(self) -> list[str]:
        """The functions that nobody waits for, and that still run."""

    @property
    def is_loop_free(self) -> bool:
        """False while a coroutine blocks the loop."""


class NoCalls:
    """Functions that always come back, as in virtual time."""

    threads_used = threads_left = coroutines_left = 0
    is_loop_free = True

    @property
    def names_left(self) -> list[str]:
        """None."""
        return []


class Held(NamedTuple):
    """A task that a worker holds."""

    runner: TaskRunner
    handle: Handle
