"""What a suspended execution's messages and tasks do: they wait outside the ``pending`` index, and come back.

Suspending moves the state first and takes its messages and tasks out of the index then; who looks at one that was
forgotten sets it aside as well. Resuming moves the state first, too, with a note that its messages and tasks are still
to be put back. The note wakes workers as a spill does: whoever comes next goes on when the one who resumed it dies, or
is overtaken by a worker that takes a part of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from casework.errors import ConditionFailed, Contention, OutcomeUnknown
from casework.executions.mailbox import MAIL_BEGIN, MAIL_END
from casework.executions.runtime import RACES, Runtime
from casework.executions.state import State
from casework.executions.task_items import TASK_BEGIN, TASK_END
from casework.kernel.conditions import present
from casework.kernel.effects import Instant
from casework.kernel.items import Check, Item, Key, Put, Update
from casework.kernel.programs import Program, lost_again, now, query_all, transact, write
from casework.kernel.schema import EXECUTIONS, bucket_of

PART = 90
"""So many index entries are changed at once."""


def set_aside(item: Item) -> Update:
    """Takes an item out of the index. It keeps its rank: a lease that runs, or a pause before a retry, is in it."""
    return Update(EXECUTIONS.key_of(item), remove=("pending",), when=present())


def set_aside_all(state: State, tasks: Collection[Key] = ()) -> Program[None]:
    """Take all messages and tasks of a suspended execution out of the index.

    ``tasks``: where those stand that it waits for. One that a query does not see may have ended, or be on its way in
    the transaction that began it; only a write meets that, and is refused or waits.

    Raises ConditionFailed when the stored state is not ``state`` any more; what was changed by then stays so.
    """
    # Every item, whether it seems to be in the index or not: one that is being put back may not show its entry yet.
    seen = yield from _change_all(state, set_aside)
    unseen = [Update(place, remove=("pending",), when=present()) for place in tasks if place not in seen]
    for begin in range(0, len(unseen), PART):
        yield from _change_some(state, unseen[begin : begin + PART])


def finish_resume(rt: Runtime, state: State) -> Program[State]:
    """Put all messages and tasks of a resumed execution back into the index; its state without the note.

    Raises ConditionFailed when somebody else moved the state. The note stands then, for who comes next.
    """
    bucket = bucket_of(state.id, rt.options.buckets)

    def put_back(item: Item) -> Update:
        kind = "task" if str(item["sort"]).startswith(TASK_BEGIN) else "work"
        return Update(EXECUTIONS.key_of(item), {"pending": f"{kind}/{bucket}"}, when=present())

    # Every item, whether it seems to be in the index or not: one that is being set aside at this moment may still
    # show its entry, and a write of it conflicts with that.
    yield from _change_all(state, put_back)
    moment = yield from now()
    new = msgspec.structs.replace(state, version=state.version + 1, resume_status="", updated_at_us=moment.middle_us)
    yield from write(Put(EXECUTIONS, new.to_item(rt.options.buckets), state.unchanged()))
    return new


def _change_all(state: State, change: Callable[[Item], Update]) -> Program[set[Key]]:
    seen: set[Key] = set()
    for low, high in ((MAIL_BEGIN, MAIL_END), (TASK_BEGIN, TASK_END)):
        items = yield from query_all(EXECUTIONS, state.id, low=low, high=high)
        seen.update(EXECUTIONS.key_of(item) for item in items)
        updates = [change(item) for item in items]
        for begin in range(0, len(updates), PART):
            yield from _change_some(state, updates[begin : begin + PART])
    return seen


def _change_some(state: State, updates: Sequence[Update]) -> Program[None]:
    """Change index entries while the execution is as ``state`` says; items that are gone are left out."""
    lost = 0
    while updates:
        try:
            yield from transact([Check(state.key, state.unchanged()), *updates])
            return
        except ConditionFailed as refused:
            if refused.refusals[0] is not None:
                raise
            updates = [update for update, why in zip(updates, refused.refusals[1:], strict=True) if why is None]
        except (Contention, OutcomeUnknown) as error:
            lost = yield from lost_again(lost, RACES, error)


# --- putting off ------------------------------------------------------------------------------------------------------

PARK_FIRST_US, PARK_MAX_US = 60_000_000, 3_600_000_000
"""The next look at what cannot be gone on with is a minute later, then twice as long, up to an hour."""


def put_off(item: Item, reason: str, moment: Instant, *, parked: bool = True) -> dict[str, Any]:
    """Attributes that put an item's next look off, longer each time.

    ``parked``: others may have what is missing here, and find it in the partitions of what is parked.
    """
    times = int(item.get("parked_n", 0)) + 1
    pause_us = min(PARK_MAX_US, PARK_FIRST_US * 2 ** min(times - 1, 10))
    attributes: dict[str, Any] = {"rank_us": moment.middle_us + pause_us, "parked_n": times, "parked": reason[:500]}
    if parked and "pending" in item:
        attributes["pending"] = in_class("parked", item)
    return attributes


def in_class(kind: str, item: Item) -> str:
    """The partition of the index for ``kind`` in the bucket in which the item stands."""
    return f"{kind}/{str(item['pending']).rpartition('/')[2]}"
