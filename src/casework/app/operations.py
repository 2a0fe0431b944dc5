"""Every operation of an application, as a program over its :class:`~casework.app.core.Core`.

The two facades drive these; their docstrings are the public documentation of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from casework.app.core import Core
from casework.arguments import check_count, check_flag, check_seconds, check_text
from casework.errors import Misuse, WaitTimeout
from casework.executions import buckets, control, deliver, inspection, listing, purging, results, retrying, tasks
from casework.executions.deliver import Execution
from casework.executions.trace import read_trace
from casework.kernel.programs import Program, now, sleep
from casework.statechart.durations import delay_us


def start(core: Core, machine: str, *, id: str | None = None, input: Any = None) -> Program[Execution]:
    """Start an execution of ``machine``; the execution after its first step.

    Args:
        machine: the name of a machine given to ``open``.
        id: the execution's id, 1 to 512 bytes of printable text; None makes one up. Starting again with the same id,
            machine and input returns the execution that there is.
        input: what the machine's initial context is computed from, JSON.

    Raises:
        UnknownMachine, NotJson, Misuse: the call is wrong; nothing was written.
        ExecutionExists: the id is taken by another machine or other input.
    """
    yield from buckets.refresh_sometimes(core.rt)
    execution = yield from deliver.start(core.rt, machine, id, input)
    core.bell.ring(execution.id)
    return execution


def send(
    core: Core, id: str, event: str, data: Any = None, *, event_id: str | None = None, priority: int = 0
) -> Program[None]:
    """Put an event into an execution's mailbox; returns once it is stored, before it is processed.

    Args:
        id: the execution.
        event: the event's type; one that its machine knows.
        data: the payload, JSON; None is an empty mapping.
        event_id: your own id of the event. Sent again, it has no second effect within the dedupe window
            (the execution's last 32 ids, or the store's ``dedupe_window_s``).
        priority: 0 to 4; events of a higher one are looked at before those of other executions.

    Raises:
        NoSuchExecution, UnknownEvent, NotJson, Misuse: the call is wrong; nothing was written.
    """
    payload = {} if data is None else data
    yield from buckets.refresh_sometimes(core.rt)
    yield from deliver.send(core.rt, id, event, payload, event_id=event_id, priority=priority)
    core.bell.ring(id)


def handle(
    core: Core, id: str, event: str, data: Any = None, *, event_id: str | None = None, priority: int = 0
) -> Program[Execution]:
    """Process an event now, in line, and return the execution after it.

    Due timers fire before it; it may overtake events that wait in the mailbox. A duplicate is answered with the current
    state (``is_duplicate``). Under contention the event is sent instead, and processed by a worker.

    Arguments and errors are those of ``send``; Misuse, too, when this process lacks the machine or its functions.
    """
    payload = {} if data is None else data
    deliver.check_id(id)
    yield from buckets.refresh_sometimes(core.rt)
    try:
        execution, state = yield from deliver.handle(
            core.rt, id, event, payload, event_id=event_id, priority=priority, held=core.held(id)
        )
    except BaseException:
        core.forget(id)
        raise
    if state is None:
        core.forget(id)
    else:
        core.hold(state)
    core.bell.ring(id)
    return execution


def get(core: Core, id: str) -> Program[Execution]:
    """The execution as it is now. Raises NoSuchExecution."""
    return (yield from deliver.load(core.rt, id))


def inspect(core: Core, id: str) -> Program[inspection.Inspection]:
    """The execution with all that it waits for: tasks, timers, messages, children, dead letters; and why it is parked.

    Raises NoSuchExecution.
    """
    return (yield from inspection.inspect(core.rt, id))


def wait(core: Core, id: str, *, timeout_s: float | None = None) -> Program[Execution]:
    """Wait until an execution has ended: done, failed or cancelled. Its status, output and error tell how.

    Args:
        id: the execution.
        timeout_s: seconds to wait at most; None: for ever.

    Raises:
        WaitTimeout: it has not ended yet; it goes on. Raised at once where this process's own worker has ended with an
            error, which is its ``__cause__``.
        NoSuchExecution: there is none.
    """
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s)
    started = yield from now()
    pause_s = 0.005
    while True:
        execution = yield from deliver.load(core.rt, id)
        if execution.has_ended:
            return execution
        moment = yield from now()
        elapsed_s = (moment.middle_us - started.middle_us) / 1e6
        if core.worker_error is not None:
            error = core.worker_error
            raise WaitTimeout(
                f"execution {id!r:.200} has not ended, and the worker of this process has ended with an error: "
                f"{type(error).__name__}: {error}; start another one (or wait elsewhere, if other workers go on)"
            ) from error
        if timeout_s is not None and elapsed_s >= timeout_s:
            where = ", ".join(execution.configuration) or execution.status
            raise WaitTimeout(f"execution {id!r:.200} has not ended within {timeout_s:g} s; it is in {where}")
        left_s = pause_s if timeout_s is None else min(pause_s, timeout_s - elapsed_s)
        yield from sleep(left_s)
        pause_s = min(0.5, pause_s * 1.5)


def list_executions(
    core: Core,
    *,
    status: str | None = None,
    machine: str | None = None,
    parent: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Program[listing.Listed]:
    """A page of executions. It may be short, even empty: only a ``next`` of None ends the listing.

    Args:
        status: only those with this status.
        machine: only those of this machine.
        parent: only the children of this execution, those of earlier stays included.
        limit: at most so many, 1 to 1000.
        cursor: ``next`` of the page before, with the same filters.
    """  # fmt: skip
    return (
        yield from listing.list_executions(
            core.rt, status=status, machine=machine, parent=parent, limit=limit, cursor=cursor
        )
    )


def child_results(
    core: Core, id: str, reference: Mapping[str, Any], *, limit: int = 100, cursor: str | None = None
) -> Program[results.ChildResults]:
    """A page of what the children of a join ended with, where their results are over 64 KB in all.

    Such results stay in the children, and the chart's output of the join is a reference to them.

    Args:
        id: the parent.
        reference: the output of the join, as the chart got it.
        limit: at most so many, 1 to 100.
        cursor: ``next`` of the page before.
    """
    return (yield from results.child_results(core.rt, id, reference, limit=limit, cursor=cursor))


def dead_letters(core: Core, *, limit: int = 100, cursor: str | None = None) -> Program[listing.DeadLetters]:
    """A page of messages that nobody could take: sent to executions that had ended, or never appeared."""
    return (yield from listing.list_dead_letters(core.rt, limit=limit, cursor=cursor))


def trace(core: Core, id: str) -> Program[list[dict[str, Any]]]:
    """The trace of an execution, oldest entry first; empty unless ``trace_max`` was given to ``open``."""
    yield from deliver.read_state(id)
    return (yield from read_trace(id))


def cancel(core: Core, id: str) -> Program[Execution]:
    """Ask an execution to end: by a ``cancel`` event where its machine knows one, else by terminating it."""
    core.forget(id)
    execution = yield from control.cancel(core.rt, id)
    core.bell.ring(id)
    return execution


def terminate(core: Core, id: str) -> Program[Execution]:
    """End an execution now, whatever its machine says. Its tasks and children are stopped, its parent is told."""
    core.forget(id)
    return (yield from control.terminate(core.rt, id))


def suspend(core: Core, id: str) -> Program[Execution]:
    """Stop an execution where it stands: events wait, timers do not fire, no task starts. Running tasks go on."""
    core.forget(id)
    return (yield from control.suspend(core.rt, id))


def resume(core: Core, id: str) -> Program[Execution]:
    """Let a suspended execution go on; timers that came due meanwhile fire now."""
    core.forget(id)
    execution = yield from control.resume(core.rt, id)
    core.bell.ring(id)
    return execution


def retry(core: Core, id: str) -> Program[Execution]:
    """Let what an execution has put off be due now: its cause is gone, and the pause need not be waited for.

    That is a task whose attempt failed, a task whose worker has died, and whatever is parked. What runs, or is to be
    completed from outside, is left alone. No attempt is counted, and a repeat is harmless.

    Raises NoSuchExecution; Misuse when it has ended, is suspended or is being purged.
    """
    core.forget(id)
    execution = yield from retrying.retry(core.rt, id)
    core.bell.ring(id)
    return execution


def redrive(core: Core, id: str, *, skip: bool = False) -> Program[Execution]:
    """Let a failed execution go on: the event at which it failed is taken again, in the state before it.

    Tasks and timers that it waited for begin again, the tasks under new idempotency keys. Where it fails once more,
    its status is ``failed``, and all is kept as before. ``inspect`` tells the event and the error.

    Args:
        id: the execution.
        skip: go on without the event.

    Raises NoSuchExecution; Misuse when it has not failed, or the event cannot be taken again.
    """
    if not isinstance(skip, bool):
        raise Misuse(f"skip is {skip!r:.80}; it must be True or False")
    core.forget(id)
    execution = yield from control.redrive(core.rt, id, skip=skip)
    core.bell.ring(id)
    return execution


def migrate(core: Core, id: str, *, to: str | None = None) -> Program[Execution]:
    """Let an execution go on with this process's definition of its machine, or of the machine named ``to``.

    Raises Misuse with all that does not fit; nothing was written then.
    """
    core.forget(id)
    machine = None if to is None else core.rt.machine_named(to)
    return (yield from control.migrate(core.rt, id, machine))


def purge(core: Core, id: str, *, force: bool = False, tree: bool = False) -> Program[int]:
    """Delete an ended execution and everything of it; the number of items deleted. Then its id is free.

    Args:
        id: the execution.
        force: delete one that has not ended, too.
        tree: delete its descendants first. Without it they stay: executions of their own, which are then found by
            their ids only.
    """
    check_flag("force", force)
    check_flag("tree", tree)
    core.forget(id)
    return (yield from control.purge(core.rt, id, force=force, tree=tree))


def purge_ended(
    core: Core,
    *,
    before: str | timedelta | datetime,
    status: str | None = None,
    machine: str | None = None,
    dry_run: bool = False,
    limit: int = 100,
    cursor: str | None = None,
) -> Program[purging.Purged]:
    """Delete executions that ended before a time, each with its descendants, page by page.

    A ``next`` of None ends it. An execution that could not be deleted has a ``problem``, and does not stop the others.
    Interrupted, it is simply done again.

    Args:
        before: how long ago they have ended at least (``"30d"``, a timedelta), or before when (a datetime with its
            zone, ``"2026-11-01"``, ``"2026-11-01T12:00:00+01:00"``; UTC where a text names none).
        status: only ``done``, ``failed`` or ``cancelled`` ones.
        machine: only those of this machine; their descendants go with them, whatever their machine is.
        dry_run: delete nothing, only tell what would be.
        limit: look at no more than so many, 1 to 1000.
        cursor: ``next`` of the page before, with the same filters.
    """  # fmt: skip
    check_flag("dry_run", dry_run)
    check_count("limit", limit, 1, 1000)
    for name, text in (("status", status), ("machine", machine), ("cursor", cursor)):
        if text is not None:
            check_text(name, text)
    moment = yield from now()
    before_us = _before_us(before, moment.earliest_us)
    return (
        yield from purging.purge_ended(
            core.rt, before_us, status=status, machine=machine, limit=limit, cursor=cursor, is_dry_run=dry_run
        )
    )


def _before_us(before: Any, now_us: int) -> int:
    """The time that ``before`` names; Misuse when it names none."""
    try:
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise ValueError("a datetime needs its zone: datetime(..., tzinfo=UTC)")
            return round(before.timestamp() * 1e6)
        if isinstance(before, timedelta):
            return now_us - round(before.total_seconds() * 1e6)
        if isinstance(before, str) and before[:5].endswith("-"):
            at = datetime.fromisoformat(before)
            return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6)
        if isinstance(before, str) and not before.strip().isdigit():
            return now_us - delay_us(before)
    except (ValueError, OverflowError) as error:
        raise Misuse(f"before is {before!r:.80}: {error}") from None
    raise Misuse(f"before is {before!r:.80}; give an age such as '30d' or '12h', or a date such as '2026-11-01'")


def complete_task(core: Core, token: str, result: Any = None) -> Program[None]:
    """Finish a task that returned ``casework.LATER``, by its token: from a webhook, or for a person.

    Raises TaskNotClaimed when nothing waits for the token any more; NotJson, Misuse. OutcomeUnknown when the task has
    ended and nothing tells whether by this answer or by another one at the same moment.
    """
    yield from tasks.complete_from_outside(core.rt, token, result)
    core.bell.flag.set()


def fail_task(core: Core, token: str, message: str) -> Program[None]:
    """End a task that returned ``casework.LATER`` with an error, by its token. Raises as ``complete_task``."""
    check_text("message", message, 100_000, may_be_empty=True)
    yield from tasks.fail_from_outside(core.rt, token, message)
    core.bell.flag.set()


def raise_buckets(core: Core, number: int) -> Program[bool]:
    """Give the store more buckets, for more throughput of its indexes and more workers; nothing has to be stopped.

    True: new items are put into all of them from now on. False: a living worker does not know them yet; workers learn
    of them at their next heartbeat, and the last one that does completes the raise.

    Args:
        number: buckets, up to 1,024; all of them are looked at all the time.

    Raises Misuse for a number below the store's: what stands in a bucket must be found there.
    """
    return (yield from buckets.raise_buckets(core.rt, number))
