"""Trying again now what an execution has put off: on the word of somebody who knows that its cause is gone.

Three things are put off: a task whose attempt failed, until its pause is over; a task whose worker died, until its
lease ends; and what was parked. A task that runs, or that somebody outside is to complete, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from casework.errors import ConditionFailed, Contention, CorruptItem, Misuse, OutcomeUnknown, Throttled
from casework.executions.buckets import WORKERS
from casework.executions.deliver import Execution, read_state, view
from casework.executions.mailbox import MAIL_BEGIN, MAIL_END
from casework.executions.runtime import RACES, Runtime
from casework.executions.setting_aside import in_class
from casework.executions.state import State, state_of
from casework.executions.task_items import TASK_BEGIN, TASK_END, Task, task_of
from casework.kernel.conditions import all_of, equals, present
from casework.kernel.effects import Instant
from casework.kernel.items import Item, Scalar, Update
from casework.kernel.programs import Program, get, get_many, lost_again, now, query_all, write
from casework.kernel.schema import EXECUTIONS, REGISTRY


def retry(rt: Runtime, id: str) -> Program[Execution]:
    """Let what an execution has put off be due now: tasks in their pause, tasks of dead workers, what is parked.

    No attempt is counted by it, and none that runs is disturbed. A repeat changes nothing that has begun meanwhile.
    Raises NoSuchExecution; Misuse when it has ended, is suspended or is being purged.
    """
    state = yield from read_state(id)
    _check_goes_on(state)
    moment = yield from now()
    item = yield from get(state.key)
    if item is not None and state_of(item).created_at_us == state.created_at_us:
        yield from _look_now(_of_state(item))
    for low, high in ((MAIL_BEGIN, MAIL_END), ("o/", "o0")):
        for each in (yield from query_all(EXECUTIONS, id, low=low, high=high)):
            yield from _look_now(_of_parked(each, "work", moment))
    tasks = yield from query_all(EXECUTIONS, id, low=TASK_BEGIN, high=TASK_END)
    owners = yield from _owners(tasks)
    for each in tasks:
        yield from _look_now(_of_task(each, owners, moment))
    return view(rt, (yield from read_state(id)))


def _check_goes_on(state: State) -> None:
    hint = {
        "suspended": "resume it first",
        "failed": "drive it again (redrive, `casework redrive`)",
        "purging": "purge it again to finish that",
    }.get(state.status, "it has ended, and nothing of it waits")
    if state.ended or state.status in ("suspended", "purging"):
        raise Misuse(f"execution {state.id!r:.200} is {state.status} and has nothing to try again; {hint}")


def _look_now(update: Update | None) -> Program[None]:
    """Change an entry of the index, unless it moved by itself."""
    lost = 0
    while update is not None:
        try:
            yield from write(update)
            return
        except ConditionFailed:
            return  # it moved, or a repeat met what this call had written
        except (Contention, Throttled, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, RACES, error)


def _of_state(item: Item) -> Update | None:
    """A parked state stands again where it would without that."""
    wake = state_of(item).wakes_at()
    if wake is None or not item.get("parked") or "pending" not in item:
        return None
    kind, rank_us = wake
    return _moved(item, {"pending": in_class(kind, item), "rank_us": rank_us})


def _of_parked(item: Item, kind: str, moment: Instant) -> Update | None:
    """A message or a delivery that is parked is looked at now."""
    if not item.get("parked") or "pending" not in item:
        return None
    return _moved(item, {"pending": in_class(kind, item), "rank_us": moment.middle_us})


def _of_task(item: Item, owners: Mapping[str, Item], moment: Instant) -> Update | None:
    """A task that waits is due now; one that runs, or that somebody outside has, is left alone."""
    if "pending" not in item:
        return None  # set aside with its execution
    due: dict[str, Scalar] = {"rank_us": moment.middle_us, "pending": in_class("task", item)}
    if int(item["rank_us"]) <= moment.middle_us and item["pending"] == due["pending"]:
        return None
    if not item.get("token"):
        return _moved(item, due)
    try:
        task = task_of(item)
    except CorruptItem:
        return None
    if task.is_external or not _is_gone(task, owners.get(str(item.get("owner", ""))), moment):
        return None
    same = all_of(equals("token", task.token), equals("beats", task.beats), present("pending"))
    return Update(task.place, {**due, "lease_until_us": moment.middle_us}, when=same)


def _is_gone(task: Task, owner: Item | None, moment: Instant) -> bool:
    """Whether the worker that claimed a task is known to be dead: it has missed its heartbeats, and renewed no lease
    since. One that leaves says so and still runs its tasks; one that nothing is known of may be alive.
    """
    until_us = int(owner["until_us"]) if owner is not None else 0
    renewed_us = task.lease_until_us - task.lease_us
    return 0 < until_us < moment.earliest_us and renewed_us <= until_us


def _owners(tasks: Sequence[Item]) -> Program[dict[str, Item]]:
    """The rows of the workers that have claimed tasks, by name."""
    names = sorted({str(item["owner"]) for item in tasks if item.get("owner") and item.get("token")})
    rows = yield from get_many([REGISTRY.key(WORKERS, name) for name in names])
    return {name: row for name, row in zip(names, rows, strict=True) if row is not None}


def _moved(item: Item, attributes: Mapping[str, Scalar]) -> Update | None:
    """The change of an entry that is still the one that was read; None when it stands there already."""
    if all(item.get(name) == value for name, value in attributes.items()):
        return None
    same = [equals("rank_us", item["rank_us"]), equals("pending", item["pending"])]
    if "key" in item:
        same.append(equals("key", item["key"]))
    return Update(EXECUTIONS.key_of(item), attributes, when=all_of(*same))
