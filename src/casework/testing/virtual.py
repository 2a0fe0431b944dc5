"""An application in virtual time, for tests: no thread, no waiting, tasks that a test replaces.

Time stands still until the test moves it. What is due is done on the test's own thread, by the same programs as in
production, one thing after the other, so that a test is as repeatable as the functions that it calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from casework.app.arguments import check_rest, make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.arguments import check_count
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.errors import CaseworkError, Misuse, WaitTimeout
from casework.executions.advance import advance
from casework.executions.deliver import Execution
from casework.executions.publish import deliver
from casework.executions.run_task import TaskContext, TaskRunner, find_function, keyword_arguments, settle_outcome
from casework.executions.runtime import Codec, Parked
from casework.executions.task_items import Task
from casework.executions.tasks import claim_task
from casework.kernel.containment import contained, is_interrupt
from casework.kernel.effects import Outcome
from casework.kernel.items import Item, Key
from casework.kernel.programs import Program, query
from casework.kernel.schema import EXECUTIONS, INDEX_KINDS
from casework.statechart import Machine
from casework.statechart.durations import delay_us
from casework.streams.log import StreamOptions

ROUNDS_MAX = 10_000
"""Rounds of work without the clock moving, after which something goes round in a circle."""


class TaskCall:
    """One call of a task function."""

    def __init__(self, task: TaskContext, kwargs: dict[str, Any]) -> None:
        self.execution_id = task.execution_id
        self.idempotency_key = task.idempotency_key
        self.attempt = task.attempt
        self.kwargs = kwargs
        self.token = task.token

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"<{self.idempotency_key} attempt {self.attempt}: {arguments}>"


class VirtualApp(App):
    """An :class:`~casework.App` whose time a test moves.

    Args:
        machines: the machines under test.
        seed: of ids and jitter.
        codec: as for ``casework.open``.
        streams: as for ``casework.open``.
        options: the others of ``casework.open`` but ``store`` and ``create``: the store is in memory, with its tables.
    """

    def __init__(
        self, machines: Sequence[Machine], *, seed: int = 0, codec: Codec | None = None,
        streams: StreamOptions | None = None, **options: Any,
    ) -> None:  # fmt: skip
        check_count("seed", seed)
        check_rest(None, streams)
        self.clock = VirtualClock()
        super().__init__(
            Core(machines, make_options(**options), codec, streams),
            MemoryBackend(seed=seed, clock=self.clock),
            owns_backend=True,
        )
        prepare(self.core, self.backend, create=True)
        self._fakes: dict[str, Callable[..., Any]] = {}
        self._calls: dict[str, list[TaskCall]] = {}

    # --- fake tasks -------------------------------------------------------------------------------------------------

    def fake(self, task: str, *outcomes: Any) -> None:
        """Replace a task function.

        Args:
            task: its name in the definition.
            outcomes: what its calls do, one after the other, the last one again and again: a value is returned, an
                exception is raised, a function is called with the task's own arguments.
        """
        known = {src for machine in self.core.rt.machines.values() for src in machine.names.tasks}
        if task not in known:
            raise Misuse(f"no machine of this app has a task {task!r}; known: {', '.join(sorted(known)) or 'none'}")
        left = list(outcomes or (None,))

        def function(context: TaskContext, **kwargs: Any) -> Any:
            outcome = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome(context, **kwargs) if callable(outcome) else outcome

        self._fakes[task] = function

    def calls(self, task: str) -> list[TaskCall]:
        """The calls of a task's function so far, attempts included."""
        return self._calls.get(task, [])

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self) -> int:
        """Do everything that is due now, and what comes of it; how many things were done."""
        total = 0
        for _ in range(ROUNDS_MAX):
            did = sum(self._do(item) for item in self._due())
            total += did
            if not did:
                return total
        raise CaseworkError(f"still busy after {ROUNDS_MAX} rounds without time passing; something goes in a circle")

    def advance(self, duration: str | float) -> None:
        """Let time pass, and let everything happen at its own time.

        Args:
            duration: such as ``"30d"``, ``"1h30m"``, ``"500ms"``; a number is milliseconds.
        """
        try:
            end_us = self.clock.now().latest_us + delay_us(duration)
        except ValueError as error:
            raise Misuse(str(error)) from None
        self.settle()
        while (next_us := self._next_due_us()) is not None and next_us <= end_us:
            self._move_to(next_us)
            self.settle()
        self._move_to(end_us)
        self.settle()

    def wait(self, id: str, *, timeout_s: float | None = None) -> Execution:
        """Let time pass until the execution has ended. Raises WaitTimeout when nothing is left that could end it."""
        limit_us = None if timeout_s is None else self.clock.now().latest_us + round(timeout_s * 1e6)
        while True:
            self.settle()
            execution = self.get(id)
            if execution.has_ended:
                return execution
            next_us = self._next_due_us()
            if next_us is None or (limit_us is not None and next_us > limit_us):
                where = ", ".join(execution.configuration) or execution.status
                why = "nothing is due any more" if next_us is None else f"not within {timeout_s:g} s"
                raise WaitTimeout(f"execution {id!r:.200} has not ended ({why}); it is in {where}")
            self._move_to(next_us)

    def _move_to(self, at_us: int) -> None:
        self.clock.advance(max(0, at_us - self.clock.now().latest_us) / 1e6)

    # --- work -------------------------------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        return [f"{kind}/{b}" for kind in INDEX_KINDS for b in range(self.core.rt.read_buckets)]

    def _due(self) -> list[Item]:
        now_us = self.clock.now().earliest_us
        items: list[Item] = []
        for partition in self._partitions():
            items += run(_first(partition, now_us, None), self.backend)
        items.sort(key=lambda item: (item["rank_us"], item["id"], item["sort"]))
        seen: set[str] = set()
        chosen = []
        for item in items:
            id, sort = str(item["id"]), str(item["sort"])
            what = f"{id} {sort}" if sort.startswith("w/") else f"{id} o/" if sort.startswith("o/") else id
            if what not in seen:
                seen.add(what)
                chosen.append(item)
        return chosen

    def _next_due_us(self) -> int | None:
        firsts = [run(_first(partition, None, 1), self.backend) for partition in self._partitions()]
        return min((int(items[0]["rank_us"]) for items in firsts if items), default=None)

    def _do(self, item: Item) -> bool:
        id, sort = str(item["id"]), str(item["sort"])
        if sort.startswith("w/"):
            return self._run_task(Key(EXECUTIONS, id, sort))
        if sort.startswith("o/"):
            return run(deliver(self.core.writer.log, self.core.rt, [id]), self.backend) > 0
        done = run(advance(self.core.rt, id), self.backend)
        if done.parked:
            raise CaseworkError(f"execution {id!r:.200} cannot be advanced: {done.parked}")
        return done.is_held or done.has_more

    def _run_task(self, place: Key) -> bool:
        task = run(claim_task(self.core.rt, place), self.backend)
        if task is None:
            return False
        runner = TaskRunner(self.core.rt, task, lambda id: None)
        outcome = self._call(runner, task)
        run(settle_outcome(runner, outcome), self.backend)
        return True

    def _call(self, runner: TaskRunner, task: Task) -> Outcome[Any]:
        try:
            function = self._fakes.get(task.src) or find_function(self.core.rt, task)
            kwargs = dict(keyword_arguments(self.core.rt, task))
        except Parked as reason:
            raise Misuse(f"{reason}; register it, or replace it with app.fake({task.src!r}, ...)") from None
        self._calls.setdefault(task.src, []).append(TaskCall(runner.context, kwargs))
        try:
            result = function(runner.context, **kwargs)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            return Outcome(result)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return Outcome(error=contained(error))


def _first(partition: str, until_us: int | None, limit: int | None) -> Program[list[Item]]:
    page = yield from query(EXECUTIONS, partition, index="pending", high=until_us, limit=limit)
    return page.items
