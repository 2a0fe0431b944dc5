"""Tasks: claim, heartbeat, finish, fail, give back.

A task function runs at least once. Every claim counts as an attempt, a crashed one too; it has a lease and a fencing
token. The result is taken at most once: finishing removes the task on condition of the token, and puts the result into
the mailbox, in one transaction. What a function does to the outside is made safe by its idempotency key, which is the
same for all attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from casework.errors import (
    ConditionFailed,
    Contention,
    CorruptItem,
    ItemTooLarge,
    OutcomeUnknown,
    TaskNotClaimed,
    Throttled,
)
from casework.executions.mailbox import Mail, mail_sort, put_message
from casework.executions.runtime import RACES, Runtime
from casework.executions.setting_aside import in_class, put_off
from casework.executions.task_items import DEFAULT_LEASE_S, Task, read_public_token, task_of
from casework.executions.telling import told
from casework.kernel.conditions import Condition, absent, all_of, equals, less_than, present
from casework.kernel.containment import guarded, text_of, type_of
from casework.kernel.effects import Instant
from casework.kernel.items import AnyWrite, Delete, Item, Key, Update
from casework.kernel.programs import Program, get, get_many, lost_again, now, token, transact, write
from casework.kernel.schema import EXECUTIONS
from casework.statechart import check_json, checked_copy
from casework.statechart import snapshot as chart

log = logging.getLogger("casework.worker")

MAX_RESULT_BYTES = 350_000
"""A task's result or error is stored in one message; more than this is a final error."""

EXTERNAL_LEASE_S = 30 * 86_400.0
"""A task that is to be completed from outside waits so long when its definition gives no timeout."""


def claim_task(
    rt: Runtime,
    place: Key,
    *,
    lease_s: float = DEFAULT_LEASE_S,
    takes: Callable[[Task], bool] = lambda task: True,
    owner: str = "",
) -> Program[Task | None]:
    """Claim the task at ``place`` if it is due; None when it is not there, not due, or somebody else was first.

    One that cannot be read is put off.

    Args:
        rt: machines and options.
        place: where the task is.
        lease_s: how long the claim holds unless it is renewed.
        takes: whether there is room to run it here; one that it refuses is left to others.
        owner: the name of the worker in the registry, by which others learn that it died; empty: it has none yet.
    """
    item = yield from get(place)
    if item is None or "pending" not in item:
        return None
    moment = yield from now()
    # What nobody holds is due by the clock, give or take its error; a lease must have ended for certain.
    if int(item["rank_us"]) > (moment.earliest_us if item.get("token") else moment.latest_us):
        return None
    try:
        task = task_of(item)
    except CorruptItem as error:
        log.warning("%s", error)
        yield from _park_unreadable(item, str(error), moment)
        return None
    if task.attempt >= task.options.retry.max_attempts:
        yield from _end_crashed(rt, task)
        return None
    if not takes(task):
        return None
    fresh = yield from token()
    lease_us = int(lease_s * 1e6)
    claimed = msgspec.structs.replace(
        task, attempt=task.attempt + 1, token=fresh, lease_us=lease_us, lease_until_us=moment.latest_us + lease_us,
        beats=0, is_external=False,
    )  # fmt: skip
    attributes = {**_claim_attributes(claimed), "owner": owner}
    if item.get("parked"):
        attributes["pending"] = in_class("task", item)
    try:
        yield from write(Update(place, attributes, ("is_external", "parked"), _unclaimed(task)))
    except ConditionFailed:
        return None
    except OutcomeUnknown:
        found = yield from get(place)
        if found is None or found.get("token") != fresh:
            return None
    return claimed


def _end_crashed(rt: Runtime, task: Task) -> Program[None]:
    """The last attempt did not come back: its worker died with it, or nobody completed it in time.

    The task is ended as it stands. A claim first would be one more attempt, and hide why it ends from whoever comes
    next when this worker dies in between.
    """
    if task.is_external:
        error = {"message": "nobody completed the task in time", "type": "Timeout"}
    else:
        error = {"message": "its worker stopped or lost its lease in the last attempt", "type": "Crashed"}
    yield from fail_task(rt, task, error, when=_unclaimed(task))


def _unclaimed(task: Task) -> Condition:
    """Holds while the task is as it was read: claimed by nobody else, neither given back nor put off, not set aside.

    The key says that it is still the task that was read: the same place may hold one of the id's next life.
    """
    if task.token:
        return all_of(equals("token", task.token), equals("beats", task.beats), present("pending"))
    same = (equals("key", task.key), equals("rank_us", task.rank_us))
    return all_of(absent("token"), *same, present("pending"))


def _claim_attributes(task: Task) -> dict[str, Any]:
    return {
        "attempt": task.attempt,
        "token": task.token,
        "beats": task.beats,
        "lease_us": task.lease_us,
        "lease_until_us": task.lease_until_us,
        "rank_us": task.lease_until_us,
    }


def renew_task(task: Task, *, details: Any = None, rt: Runtime | None = None) -> Program[bool]:
    """Extend the lease by its length; False when the claim is lost, and what the function does no longer counts.

    Args:
        task: the claim; updated in place.
        details: JSON that the next attempt finds, should this one crash.
        rt: has the codec for ``details``.
    """
    moment = yield from now()
    until_us = moment.latest_us + task.lease_us
    attributes: dict[str, Any] = {"lease_until_us": until_us, "rank_us": until_us}
    if details is not None:
        check_json(details, "heartbeat details")
        text = msgspec.json.encode(details).decode()
        task.details = text if rt is None else rt.encode(text)
        attributes["details"] = task.details
    try:
        yield from _move_lease(task, attributes)
        task.lease_until_us = until_us
        return True
    except ConditionFailed:
        return False
    except OutcomeUnknown:
        found = yield from get(task.place)
        if found is None or found.get("token") != task.token:
            return False
        task.lease_until_us = int(found["lease_until_us"])
        return True


def _move_lease(task: Task, attributes: dict[str, Any]) -> Program[None]:
    """Change a claim's end, while it stands and nothing newer was said of it.

    A change may arrive long after its sender gave it up: it must not cut short what was stored since.
    """
    task.beats += 1
    newer = all_of(equals("token", task.token), less_than("beats", task.beats))
    yield from write(Update(task.place, {**attributes, "beats": task.beats}, when=newer))


def finish_task(rt: Runtime, task: Task, result: Any) -> Program[bool]:
    """Store the result and remove the task; False when the claim was lost, and nothing was stored.

    A result that is not JSON, or too large, becomes a final error event: repeating would not make it fit.
    """
    try:
        result = guarded(checked_copy, result, "result")
    except Exception as error:  # noqa: BLE001 - a value of the user's may do anything when it is read
        return (yield from fail_task(rt, task, {"message": text_of(error), "type": type_of(error)}))
    size = len(msgspec.json.encode(result))
    if size > MAX_RESULT_BYTES:
        message = f"the task's result has {size:,} bytes, the limit is {MAX_RESULT_BYTES:,}; return a reference"
        return (yield from fail_task(rt, task, {"message": message, "type": "ItemTooLarge"}))
    ended = yield from _end_task(rt, task, chart.done_invoke(task.name, task.stay, result))
    return ended is not False


def fail_task(rt: Runtime, task: Task, error: dict[str, Any], *, when: Condition | None = None) -> Program[bool]:
    """Store the error as the task's end and remove the task; False when the claim was lost (or ``when`` is false)."""
    ended = yield from _end_failed(rt, task, error, when)
    if ended is not False:
        log.warning("%s failed for good: %s", attempt_of(task), told(error))
    return ended is not False


def _end_failed(rt: Runtime, task: Task, error: dict[str, Any], when: Condition | None = None) -> Program[bool | None]:
    body = {**error, "attempts": task.attempt}
    return (yield from _end_task(rt, task, chart.error_invoke(task.name, task.stay, body), when))


def attempt_of(task: Task) -> str:
    """A task's attempt in words, for the log."""
    attempts = f"attempt {task.attempt} of {task.options.retry.max_attempts}"
    return f"execution {task.id!r}: task {task.src!r} ({task.name}), {attempts},"


def make_child(rt: Runtime, task: Task) -> Program[bool]:
    """End a claimed task that is a machine's invocation after all: its execution then starts the child."""
    event = chart.Event(task.src, task_input(rt, task), stay=task.stay, invoke=task.name)
    return (yield from _end_task(rt, task, event, kind="machine")) is not False


def _end_task(
    rt: Runtime, task: Task, event: chart.Event, when: Condition | None = None, *, kind: str = "result"
) -> Program[bool | None]:
    """Remove the task with what it ends with; False when somebody else has it or ended it.

    None when it has ended and nothing tells whether it was here: the answer was lost, and the message is not there,
    since it was taken already or never stored. A round that was lost is tried again, since the condition lets only one
    count: a result that was dropped here would cost an attempt, or be lost with the one who brought it from outside.
    """
    moment = yield from now()
    source = yield from token()
    mail = Mail(event.type, event.data, task.key, task.name, event.stay, event.invoke, kind=kind)
    sent_at_us = rt.send_time_us(moment.middle_us)
    sort = mail_sort(sent_at_us, source, task.stay)
    put = put_message(task.id, sort, [mail], rt.options.buckets, sent_at_us=sent_at_us, now_us=moment.middle_us, rt=rt)
    writes: list[AnyWrite] = [Delete(task.place, when or equals("token", task.token)), put]
    lost, is_unknown = 0, False
    while True:
        try:
            yield from transact(writes)
            return True
        except (ConditionFailed, OutcomeUnknown) as error:
            if isinstance(error, ConditionFailed) and not is_unknown:
                return False
            is_unknown = True
            found, message = yield from get_many([task.place, put.key])
            if message is not None:
                return True
            if found is None:
                return None
            if found.get("token") != task.token or isinstance(error, ConditionFailed):
                return False
            lost = yield from lost_again(lost, RACES, error)
        except (Contention, Throttled) as error:
            unknown = OutcomeUnknown(f"an answer was lost, and trying it again met: {error}")
            lost = yield from lost_again(lost, RACES, unknown if is_unknown else error)


def attempt_failed(rt: Runtime, task: Task, error: dict[str, Any], *, details: Any = None) -> Program[int | None]:
    """An attempt raised: put the task off for the next one, or end it with the error after the last.

    The time of the next attempt in microseconds, 0 when there is none; None when the claim was lost.
    """
    retry = task.options.retry
    if task.attempt >= retry.max_attempts:
        return 0 if (yield from fail_task(rt, task, error)) else None
    dice = yield from token()
    moment = yield from now()
    due_us = moment.middle_us + retry.pause_us(task.attempt, dice)
    later: dict[str, Any] = {"rank_us": due_us, "last_error": str(error.get("message", ""))[:1000].replace("\0", " ")}
    if details is not None:
        later["details"] = rt.encode(msgspec.json.encode(details).decode())
    if not (yield from _give_back(task, later)):
        return None
    pause_s = (due_us - moment.middle_us) / 1e6
    log.info("%s failed: %s; the next one is in %.3g s", attempt_of(task), told(error), pause_s)
    return due_us


def release_task(task: Task) -> Program[bool]:
    """Give a task back uncounted, due now: this worker is leaving."""
    moment = yield from now()
    return (yield from _give_back(task, {"rank_us": moment.middle_us, "attempt": task.attempt - 1}))


def _give_back(task: Task, attributes: dict[str, Any]) -> Program[bool]:
    update = Update(
        task.place, attributes, ("token", "owner", "beats", "lease_us", "lease_until_us"), equals("token", task.token)
    )
    lost = 0
    while True:
        try:
            yield from write(update)
            return True
        except ConditionFailed:
            return False
        except OutcomeUnknown as error:
            found = yield from get(task.place)
            if found is None or found.get("token") != task.token:
                return found is not None and "token" not in found  # only its holder gives it back
            lost = yield from lost_again(lost, RACES, error)
        except (Contention, Throttled) as error:
            lost = yield from lost_again(lost, RACES, error)


def keep_for_outside(task: Task) -> Program[bool]:
    """Keep the claim until somebody completes it by its token, or the task's timeout; then it is due again."""
    moment = yield from now()
    until_us = moment.latest_us + (task.options.timeout_us or int(EXTERNAL_LEASE_S * 1e6))
    lost = 0
    while True:
        try:
            yield from _move_lease(task, {"lease_until_us": until_us, "rank_us": until_us, "is_external": True})
            return True
        except ConditionFailed:
            return False
        except OutcomeUnknown as error:  # were it dropped, whoever was asked would be asked again
            found = yield from get(task.place)
            if found is None or found.get("token") != task.token:
                return False
            if found.get("is_external"):
                return True
            lost = yield from lost_again(lost, RACES, error)
        except (Contention, Throttled) as error:
            lost = yield from lost_again(lost, RACES, error)


def _claimed(public: str) -> Program[Task]:
    place, claim = read_public_token(public)
    item = yield from get(place)
    if item is None or item.get("token") != claim:
        raise TaskNotClaimed(
            "no task waits for this token: it was completed, given to another attempt, or its state was left"
        )
    return task_of(item)


def complete_from_outside(rt: Runtime, public: str, result: Any) -> Program[None]:
    """Finish a task by its token. Raises TaskNotClaimed, NotJson, ItemTooLarge, Misuse; OutcomeUnknown."""
    check_json(result, "result")
    size = len(msgspec.json.encode(result))
    if size > MAX_RESULT_BYTES:
        raise ItemTooLarge(
            f"the result has {size:,} bytes, the limit is {MAX_RESULT_BYTES:,}; complete with a reference"
        )
    task = yield from _claimed(public)
    _tell((yield from _end_task(rt, task, chart.done_invoke(task.name, task.stay, result))))


def fail_from_outside(rt: Runtime, public: str, message: str) -> Program[None]:
    """End a task by its token with an error. Raises TaskNotClaimed, Misuse; OutcomeUnknown."""
    task = yield from _claimed(public)
    _tell((yield from _end_failed(rt, task, {"message": message, "type": "TaskFailed"})))


def _tell(ended: bool | None) -> None:
    """Let whoever answered from outside know whether the answer counts: two may have the token."""
    if ended is None:
        raise OutcomeUnknown("the task has ended, by this answer or by another one at the same moment")
    if not ended:
        raise TaskNotClaimed("the task was completed or given to another attempt just now")


def task_input(rt: Runtime, task: Task) -> Any:
    """The keyword arguments of the task's function; CorruptItem when they cannot be read."""
    try:
        return msgspec.json.decode(rt.decode(task.input))
    except msgspec.DecodeError as error:
        raise CorruptItem(f"the input of task {task.key!r} cannot be read: {error}") from None


def park_task(task: Task, reason: str) -> Program[None]:
    """Give back, uncounted and put off, a task that this process cannot run."""
    item = yield from get(task.place)
    if item is None or item.get("token") != task.token:
        return
    moment = yield from now()
    if (yield from _give_back(task, {**put_off(item, reason, moment), "attempt": task.attempt - 1})):
        log.warning("execution %r: task %r (%s) is parked: %s", task.id, task.src, task.name, reason)


def _park_unreadable(item: Item, reason: str, moment: Instant) -> Program[None]:
    """Put off a task that cannot be read; nothing else of it changes."""
    update = Update(EXECUTIONS.key_of(item), put_off(item, reason, moment), when=equals("rank_us", item["rank_us"]))
    try:
        yield from write(update)
    except (ConditionFailed, OutcomeUnknown):
        return
