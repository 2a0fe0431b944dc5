"""Everything that stands in an execution's partition, for people: what it waits for, and why it does not go on."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.errors import CorruptItem, NoSuchExecution
from casework.executions.branches import Branch, branches_of
from casework.executions.deliver import Execution, check_id, view
from casework.executions.listing import DeadLetter, dead_letter_of
from casework.executions.mailbox import DEAD_BEGIN, MAIL_BEGIN, message_of
from casework.executions.runtime import Runtime
from casework.executions.state import STATE, Failure, decode_data, decode_timers, state_of
from casework.executions.task_items import TASK_BEGIN, task_of
from casework.executions.telling import told
from casework.kernel.items import Item
from casework.kernel.programs import Program, get_many, now, query_all
from casework.kernel.schema import EXECUTIONS

CHILDREN_SHOWN = 100
"""Of an invocation with more children, the first so many are read, those that failed before the others; their number is
always exact."""

BRANCHES_SHOWN = 20
"""Of an execution that went round, the last so many of its invocations of machines are shown."""


class ShownTask(msgspec.Struct, kw_only=True):
    """A task that is to be performed, or is being performed."""

    name: str
    src: str
    key: str
    attempt: int
    max_attempts: int
    status: str
    """``due``, ``waiting`` for its next attempt, ``running``, ``external`` (completed by its token), ``suspended``."""
    due_at_us: int
    """When it is due (again): of a running one, the end of its lease."""
    last_error: str = ""
    parked: str = ""


class ShownTimer(msgspec.Struct, kw_only=True):
    """An armed timer, or a delayed send."""

    name: str
    due_at_us: int
    event: str = ""
    to: str = ""


class ShownMessage(msgspec.Struct, kw_only=True):
    """An event that waits in the mailbox."""

    type: str
    data: Any
    sent_at_us: int
    id: str = ""
    source: str = ""


class ShownEvent(msgspec.Struct, kw_only=True):
    """An event that is deferred."""

    type: str
    data: Any
    id: str = ""
    source: str = ""


class ShownFailure(msgspec.Struct, kw_only=True):
    """At which event an execution failed. The execution is in the state before that event."""

    event: dict[str, Any]
    """``type``, ``data``, ``id``, ``source``; and ``kind``: ``start``, ``event``, ``timer``, ``delayed`` (a delayed
    send), ``result`` (of a task) or ``report`` (of children)."""
    error: dict[str, Any]
    """``message``, ``type``, and ``where`` in the machine."""
    is_taken_again: bool
    """Whether a redrive takes the event again. Not that a task or child failed: a redrive begins that again."""
    note: str = ""
    """Where the payload is, when it is too large for the state."""


class ShownChildren(msgspec.Struct, kw_only=True):
    """The children of one invocation."""

    invoke: str
    machine: str
    total: int
    done: int
    """How many reported that they are done while they were waited for."""
    needed: int
    is_open: bool = True
    """Whether the execution waits for them."""
    children: list[dict[str, str]]
    """Of the first of them: ``id`` and ``status``; ``error`` of one that failed, ``parked`` where a worker could not go
    on with it."""


class Inspection(msgspec.Struct, kw_only=True):
    """An execution with all that it waits for."""

    execution: Execution
    now_us: int
    tasks: list[ShownTask] = []
    timers: list[ShownTimer] = []
    messages: list[ShownMessage] = []
    deferred: list[ShownEvent] = []
    """Events that no state has taken yet, and that are kept until one does."""
    children: list[ShownChildren] = []
    dead_letters: list[DeadLetter] = []
    parked: list[str] = []
    """Why a worker that looked could not go on."""
    failure: ShownFailure | None = None
    """Of a failed execution: at which event, and why."""
    unreadable: list[str] = []
    redrives: int = 0
    is_draining: bool = False
    """Writes of its last step are still being delivered."""


def inspect(rt: Runtime, id: str) -> Program[Inspection]:
    """The execution with all that stands in its partition. Raises NoSuchExecution, CorruptItem."""
    check_id(id)
    items = yield from query_all(EXECUTIONS, id, low=STATE, high="y")
    moment = yield from now()
    if not items or items[0]["sort"] != STATE:
        raise NoSuchExecution(f"there is no execution {id!r:.200}; `casework list` shows those that there are")
    state = state_of(items[0])
    found = Inspection(execution=view(rt, state), now_us=moment.middle_us, is_draining=bool(state.spill))
    for item in items:
        try:
            _add(rt, found, item)
        except CorruptItem as error:
            found.unreadable.append(str(error))
    if not state.machine:
        return found
    data = decode_data(state, rt.decode(state.data))
    found.redrives = data.redrives
    found.failure = _failure(data.failure) if data.failure is not None else None
    found.deferred = [
        ShownEvent(type=kept.type, data=kept.data, id=kept.id, source=kept.source) for kept in data.deferred
    ]
    found.timers = [
        ShownTimer(name=timer.name, due_at_us=timer.due_us, event=timer.event_type, to=timer.to)
        for timer in ([] if state.ended else decode_timers(state.timers))
    ]
    for branch in (yield from branches_of(rt, state))[-BRANCHES_SHOWN:]:
        children = yield from _children(rt, branch)
        found.children.append(children)
    return found


def _add(rt: Runtime, found: Inspection, item: Item) -> None:
    sort = str(item["sort"])
    if item.get("parked"):
        found.parked.append(str(item["parked"]))
    if sort.startswith(MAIL_BEGIN):
        message = message_of(item, rt)
        found.messages += [
            ShownMessage(type=mail.type, data=mail.data, sent_at_us=message.sent_at_us, id=mail.id, source=mail.source)
            for mail in message.mails
        ]
    elif sort.startswith(TASK_BEGIN):
        found.tasks.append(_shown_task(item, found.now_us))
    elif sort.startswith(DEAD_BEGIN):
        found.dead_letters.append(dead_letter_of(item, rt))


def _failure(failure: Failure) -> ShownFailure:
    kept = failure.event
    event = {"kind": kept.kind, "type": kept.type, "data": kept.data, "id": kept.id, "source": kept.source}
    note = ""
    if failure.is_lost:
        note = "its payload was too large to be kept; only a redrive that skips it goes on"
    elif failure.letter:
        note = "its payload is kept as a dead letter for 14 days"
    return ShownFailure(event=event, error=failure.error, is_taken_again=kept.is_taken_again, note=note)


def _shown_task(item: Item, now_us: int) -> ShownTask:
    task = task_of(item)
    due_at_us = int(item.get("rank_us") or 0)
    if "pending" not in item:
        status = "suspended"
    elif task.is_external:
        status = "external"
    elif task.token:
        status = "running" if task.lease_until_us > now_us else "due"
    else:
        status = "waiting" if due_at_us > now_us else "due"
    return ShownTask(
        name=task.name, src=task.src, key=task.key, attempt=task.attempt, max_attempts=task.options.retry.max_attempts,
        status=status, due_at_us=due_at_us, last_error=task.last_error, parked=str(item.get("parked", "")),
    )  # fmt: skip


def _children(rt: Runtime, branch: Branch) -> Program[ShownChildren]:
    first = [ordinal for ordinal in branch.failed if ordinal >= CHILDREN_SHOWN]
    ordinals = [*first, *range(min(branch.total, CHILDREN_SHOWN))][:CHILDREN_SHOWN]
    ids = [branch.child(ordinal) for ordinal in ordinals]
    items = yield from get_many([EXECUTIONS.key(each, STATE) for each in ids])
    missing = "not started yet" if branch.is_open else "purged, or never started"
    return ShownChildren(
        invoke=branch.invoke, machine=branch.machine, total=branch.total, done=branch.done, needed=branch.needed,
        is_open=branch.is_open,
        children=[_shown_child(rt, each, item, missing) for each, item in zip(ids, items, strict=True)],
    )  # fmt: skip


def _shown_child(rt: Runtime, id: str, item: Item | None, missing: str) -> dict[str, str]:
    if item is None:
        return {"id": id, "status": missing}
    shown = {"id": id, "status": str(item.get("status"))}
    if item.get("parked"):
        shown["parked"] = str(item["parked"])
    if item.get("status") == "failed":
        try:
            shown["error"] = told(view(rt, state_of(item)).error)
        except CorruptItem as error:
            shown["error"] = str(error)
    return shown
