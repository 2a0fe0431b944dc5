"""Running one claimed task: the function beside a heartbeat, and what becomes of its result.

The function gets a :class:`TaskContext`. While it runs, its lease is renewed; when the claim is lost, the function is
told and what it returns is dropped. It is cancelled at its timeout where it can be: a coroutine is, a thread is not,
but what it returns later counts no more.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from casework.errors import (
    CodecFailed,
    Contention,
    CorruptItem,
    ItemTooLarge,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    TaskFailed,
    Throttled,
    Unavailable,
)
from casework.executions.runtime import Parked, Runtime
from casework.executions.state import STATE
from casework.executions.task_items import Task, public_token
from casework.executions.tasks import (
    attempt_failed,
    fail_task,
    finish_task,
    keep_for_outside,
    make_child,
    park_task,
    release_task,
    renew_task,
    task_input,
)
from casework.kernel.containment import in_words, text_of, type_of
from casework.kernel.effects import Flag, Outcome
from casework.kernel.programs import Program, call_blocking, get, now, race, spawn
from casework.kernel.schema import EXECUTIONS
from casework.statechart import checked_copy

log = logging.getLogger("casework.worker")

MAX_DETAILS_BYTES = 100_000

MAX_PAUSE_S = 5.0
"""A store that is down is asked so often, at least, whether it takes what came of a task."""


class Later:
    """The type of ``casework.LATER``, which a task returns when a webhook or a person completes it.

    They do so with ``app.complete_task(task.token, result)`` or ``app.fail_task(task.token, message)``. Until then the
    task stays claimed, for its ``timeout``, or 30 days; then its function is called again, with another token.
    """

    def __repr__(self) -> str:
        return "casework.LATER"


LATER = Later()
"""Return it from a task that a webhook or a person completes with ``app.complete_task(task.token, result)`` or
``app.fail_task(task.token, message)``. Until then the task stays claimed, for its ``timeout``, or 30 days; then its
function is called again, with another token."""


class TaskContext:
    """What a task function gets as its first argument."""

    def __init__(self, task: Task, rt: Runtime | None = None) -> None:
        self.execution_id = task.id
        """The execution that the task is a part of."""
        self.name = task.name
        """The id of the invocation, by default the path of the state that began it."""
        self.attempt = task.attempt
        """1 for the first attempt; crashed attempts count."""
        self.idempotency_key = task.key
        """The same for every attempt at this task; give it to whatever the function calls."""
        self.token = public_token(task)
        """Completes the task from outside, after ``return casework.LATER``. Another attempt has another one."""
        self.details: Any = _details_of(task, rt)
        """What an earlier attempt gave to ``heartbeat``."""
        self.is_lost = False
        """Another worker took over, or the state was left: what this call returns is dropped."""
        self.beats = 0

    def heartbeat(self, details: Any = None) -> None:
        """Say that the function is alive; ``details`` (JSON) are kept for the next attempt, should this one crash.

        Raises LeaseLost when the claim was lost, so that the function can end; NotJson, ItemTooLarge for ``details``.
        """
        if details is not None:
            copy = checked_copy(details, "heartbeat details")
            size = len(msgspec.json.encode(copy))
            if size > MAX_DETAILS_BYTES:
                raise ItemTooLarge(f"heartbeat details have {size:,} bytes, the limit is {MAX_DETAILS_BYTES:,}")
            self.details = copy
        self.beats += 1
        if self.is_lost:
            raise LeaseLost(f"task {self.idempotency_key!r} was taken over, or its state was left; stop working on it")


def _details_of(task: Task, rt: Runtime | None) -> Any:
    """Details that cannot be read are only a help that is missing."""
    if not task.details:
        return None
    try:
        return msgspec.json.decode(task.details if rt is None else rt.decode(task.details))
    except (msgspec.DecodeError, CorruptItem):
        log.warning("task %r: the details of an earlier attempt cannot be read", task.key)
        return None


Perform = Callable[["TaskRunner"], Program[Any]]
"""Makes the program that does a task's work."""


class TaskRunner:
    """One claimed task under way.

    Args:
        rt: machines and options.
        task: the claim.
        ring: asks for a look at an execution.
        alarm: asks for a look at a time, in microseconds since the epoch.
        perform: the program that does the task's work; None: :func:`call_function`.
        answered: set when the store answers, and waited for where it did not.
    """

    def __init__(
        self, rt: Runtime, task: Task, ring: Callable[[str], None], alarm: Callable[[int], None] = lambda due_us: None,
        perform: Perform | None = None, answered: Flag | None = None,
    ) -> None:  # fmt: skip
        self.answered = answered or Flag()
        self.perform = perform or call_function
        self.rt = rt
        self.task = task
        self.ring = ring
        self.alarm = alarm
        self.give_back = Flag()
        """Set when the worker leaves and waits no longer."""
        self.context = TaskContext(task, rt)


def find_function(rt: Runtime, task: Task) -> Callable[..., Any]:
    """The function of a task; Parked when this process has none of that name."""
    machine = rt.machines.get(task.machine)
    function = machine.tasks.get(task.src) if machine is not None else None
    if function is None:
        raise Parked(f"this process has no task {task.src!r} of machine {task.machine!r}")
    return function


def call_function(runner: TaskRunner) -> Program[Any]:
    """The program that calls a task's function with its input. Raises Parked, CorruptItem before it begins."""
    function = find_function(runner.rt, runner.task)
    kwargs = keyword_arguments(runner.rt, runner.task)
    return call_blocking(function, runner.context, **kwargs)


def run_task(runner: TaskRunner) -> Program[None]:
    """Run the function of a claimed task, keep its lease alive, and store what came of it."""
    task = runner.task
    try:
        work = runner.perform(runner)
    except (Parked, CorruptItem) as reason:
        if isinstance(reason, Parked) and task.is_open and task.src in runner.rt.machines:
            yield from make_child(runner.rt, task)
            runner.ring(task.id)
        else:
            yield from park_task(task, str(reason))
        return
    handle = yield from spawn(work, f"function {task.src}")
    failure = yield from _watch(runner, handle)
    if failure is not None:
        handle.cancel()
        yield from _insist(runner, lambda: _settle_failure(runner, failure))
    elif handle.outcome is not None:
        outcome = handle.outcome
        yield from _insist(runner, lambda: settle_outcome(runner, outcome))


def _insist(runner: TaskRunner, settle: Callable[[], Program[None]]) -> Program[None]:
    """Store what came of a task, again and again while the store is down: the function's work is not thrown away.

    The claim may run out meanwhile. It still stands as long as nobody else has taken it, and settling finds out.
    """
    pause_s = 0.1
    while True:
        try:
            yield from settle()
            return
        except CodecFailed:
            raise  # for this result it may never be better; the lease runs out, and others are told
        except (Unavailable, Throttled, Contention, OutcomeUnknown) as error:
            if runner.give_back.is_set:
                raise
            log.warning("task %r: what came of it is not stored yet: %s", runner.task.key, in_words(error))
        runner.answered.clear()
        yield from race(runner.answered, runner.give_back, timeout_s=pause_s)
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)


def settle_outcome(runner: TaskRunner, outcome: Outcome[Any]) -> Program[None]:
    """Store what a task's function returned or raised; dropped when the claim was lost meanwhile."""
    if outcome.error is not None:
        kept = yield from _settle_error(runner, outcome.error)
    elif isinstance(outcome.value, Later):
        kept = yield from keep_for_outside(runner.task)
    else:
        kept = yield from finish_task(runner.rt, runner.task, outcome.value)
    if not kept:
        log.info("task %r: the claim was lost, its result is dropped", runner.task.key)
    runner.ring(runner.task.id)


def keyword_arguments(rt: Runtime, task: Task) -> Mapping[str, Any]:
    """What a task's function is called with; CorruptItem when it cannot be read."""
    given = task_input(rt, task)
    return given if isinstance(given, dict) else {} if given is None else {"input": given}


def _watch(runner: TaskRunner, handle: Any) -> Program[str | None]:
    """Renew the lease until the function ends (None), or say why it must not go on."""
    task, context = runner.task, runner.context
    moment = yield from now()
    watch = _Watch(task, moment.middle_us)
    while True:
        yield from race(handle, runner.give_back, timeout_s=watch.seconds_left(moment.middle_us))
        if handle.done:
            return None
        if runner.give_back.is_set:
            return "leaving"
        moment = yield from now()
        why = watch.overdue(moment.middle_us, context.beats)
        if why:
            return why
        if moment.middle_us < watch.renew_us:
            continue
        try:
            kept = yield from renew_task(task, details=context.details, rt=runner.rt)
            watch.renew_us = moment.middle_us + task.lease_us // 3
            runner.answered.set()
        except StoreError as error:
            log.warning("task %r: lease not renewed: %s", task.key, in_words(error))
            kept = moment.earliest_us < task.lease_until_us
            watch.renew_us = moment.middle_us + min(task.lease_us // 10, 1_000_000)
        if not kept:
            context.is_lost = True
            return "lost"


class _Watch:
    """When a running task is to be looked at next. What it may take does not depend on the lease, nor the other way."""

    __slots__ = ("_beat_us", "_beats", "_options", "_started_us", "renew_us")

    def __init__(self, task: Task, now_us: int) -> None:
        self._options = task.options
        self._started_us = self._beat_us = now_us
        self._beats = 0
        self.renew_us = now_us + task.lease_us // 3

    def seconds_left(self, now_us: int) -> float:
        """Until the next look."""
        looks = [self.renew_us]
        if self._options.timeout_us:
            looks.append(self._started_us + self._options.timeout_us)
        if self._options.heartbeat_us:
            looks.append(self._beat_us + self._options.heartbeat_us)
        return max(0.0, (min(looks) - now_us) / 1e6)

    def overdue(self, now_us: int, beats: int) -> str:
        """Which of its bounds has passed; empty: none."""
        if beats != self._beats:
            self._beats, self._beat_us = beats, now_us
        if self._options.timeout_us and now_us - self._started_us >= self._options.timeout_us:
            return "timeout"
        if self._options.heartbeat_us and now_us - self._beat_us >= self._options.heartbeat_us:
            return "heartbeat"
        return ""


def _settle_failure(runner: TaskRunner, why: str) -> Program[None]:
    runner.context.is_lost = True
    if why == "leaving":
        yield from release_task(runner.task)
        return
    if why == "lost":
        log.info("task %r: the claim was lost while the function ran", runner.task.key)
        return
    limit_us = runner.task.options.timeout_us if why == "timeout" else runner.task.options.heartbeat_us
    message = f"no {'result' if why == 'timeout' else 'heartbeat'} within {limit_us / 1e6:g} s"
    yield from _attempt_failed(runner, {"message": message, "type": "Timeout"})
    runner.ring(runner.task.id)


def _settle_error(runner: TaskRunner, error: BaseException) -> Program[bool]:
    rt, task = runner.rt, runner.task
    body = {"message": text_of(error), "type": type_of(error)}
    is_final = isinstance(error, TaskFailed) and not error.retry
    if isinstance(error, TypeError) and not _fits(runner):
        if (yield from _is_of_another_version(rt, task)):
            reason = f"task {task.src!r} as this process has it cannot take its input: {error}"
            yield from park_task(task, f"{reason}; the execution runs another version of the machine")
            return True
        is_final = True
        body["message"] = f"task {task.src!r} cannot take its input: {text_of(error)}"
    if is_final:
        return (yield from fail_task(rt, task, body))
    return (yield from _attempt_failed(runner, body))


def _attempt_failed(runner: TaskRunner, error: dict[str, Any]) -> Program[bool]:
    due_us = yield from attempt_failed(runner.rt, runner.task, error, details=runner.context.details)
    if due_us:
        runner.alarm(due_us)
    return due_us is not None


def _is_of_another_version(rt: Runtime, task: Task) -> Program[bool]:
    """Whether the task's execution runs another definition than this process's: its function may take other input."""
    machine = rt.machines.get(task.machine)
    state = yield from get(EXECUTIONS.key(task.id, STATE))
    return machine is not None and state is not None and state.get("machine_hash") != machine.hash


def _fits(runner: TaskRunner) -> bool:
    """Whether the function's parameters can take the input; when not, no retry will help."""
    try:
        function = find_function(runner.rt, runner.task)
    except Parked:
        return True  # it is not the function that was called
    try:
        signature = inspect.signature(function)
    except Exception:  # noqa: BLE001 - any callable may have any signature, or none
        return True
    try:
        signature.bind(runner.context, **keyword_arguments(runner.rt, runner.task))
    except TypeError:
        return False
    return True
