"""``advance``: the one unit of work of an execution.

One query reads the state and its waiting messages; as many of them as fit go through the chart, merged with the due
timers by time; one transaction commits everything that came of it. It is safe under any concurrency: whoever loses the
race has changed nothing, and whoever does not know whether it won looks again, since what was taken is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from casework.errors import (
    ConditionFailed,
    Contention,
    CorruptItem,
    ItemTooLarge,
    Misuse,
    OutcomeUnknown,
)
from casework.executions.branches import NOTE_BEGIN
from casework.executions.change import Change
from casework.executions.event_ids import id_hash, is_recent
from casework.executions.failing import kept_of
from casework.executions.mailbox import MAIL_BEGIN, MAIL_END, Mail, Message, dead_letter, message_of
from casework.executions.runtime import (
    NO_MACHINE,
    RACES,
    Parked,
    Runtime,
    has_functions,
    machine_of,
    store_definition,
)
from casework.executions.setting_aside import finish_resume, put_off, set_aside
from casework.executions.spill import drain, fits, spill_writes
from casework.executions.state import STATE, State, Timer, decode_data, encode_data, state_of
from casework.executions.telling import told
from casework.kernel.conditions import Condition, absent, equals, present
from casework.kernel.containment import is_interrupt
from casework.kernel.effects import Call, Instant, Now, Query, Transact, Write
from casework.kernel.items import AnyWrite, Check, Delete, Item, Put, Update
from casework.kernel.limits import check_write
from casework.kernel.programs import Program, lost_again, now, query, transact, write
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine, UnboundFunction

ORPHAN_US = 3_600_000_000
"""A message whose execution does not appear within an hour becomes a dead letter."""

MAX_STATE_BYTES = 400_000
"""An execution that goes on is no larger, so that one can always be ended, with the reason in its state."""

WRITES_WITH_STATE = 80
"""A batch ends when so many writes must go with the state."""


class Advanced(msgspec.Struct, gc=False):
    """What ``advance`` found and did."""

    state: State | None
    """The state afterwards, as this process wrote it or read it; None when there is none."""
    is_held: bool = False
    """Whether this process wrote that state and saw it acknowledged."""
    has_more: bool = False
    """Whether messages or due timers were left for another commit."""
    parked: str = ""
    """Why this process could not advance it."""
    is_news: bool = False
    """Whether its next look was put off for that just now."""
    failed: str = ""
    """Why it failed, where it failed in this very commit."""


class Marked(msgspec.Struct, gc=False):
    """What a commit learned of marks of event ids: those that stand, and those that have run out."""

    known: frozenset[str] = frozenset()
    stale: dict[str, int] = {}


def advance(rt: Runtime, id: str) -> Program[Advanced]:
    """Take what waits for execution ``id`` through its chart, and commit what comes of it.

    Raises Contention after too many lost races; the store's errors. Never raises for what is wrong with the execution:
    that fails it, or parks it.
    """
    lost = 0
    batch_max = rt.options.batch_max
    marked = Marked()
    unstorable: list[Misuse] = []
    while True:
        page = yield Query(EXECUTIONS, id, None, STATE, MAIL_END, batch_max + 1)
        items: list[Item] = page.items
        try:
            if not items or items[0]["sort"] != STATE:
                return (yield from _orphaned(rt, id, items))
            state = state_of(items[0])
            if state.spill:
                yield from drain(rt, state)
                continue
            if state.is_resuming:
                yield from finish_resume(rt, state)
                continue
            has_next = page.next is not None
            return (yield from _advance_once(rt, state, items[1:], has_next, batch_max, marked, unstorable))
        except Parked as reason:
            return (yield from _park(items, str(reason)))
        except CorruptItem as reason:
            return (yield from _park(items, f"{type(reason).__name__}: {reason}"))
        except ConditionFailed as refused:
            marked = look_at_marks(refused, marked, (yield from now()))
        except Misuse as error:
            # What came of the events cannot be stored: try one alone, then fail the execution with it.
            if batch_max == 1:
                unstorable.append(error)
            if len(unstorable) > 2:
                return (yield from _park(items, f"it cannot be stored, not even as failed: {error}"))
            batch_max = 1
            continue
        except (Contention, OutcomeUnknown):
            pass
        lost = yield from lost_again(lost, RACES, f"execution {id!r:.200}")


def _advance_once(
    rt: Runtime, state: State, items: Sequence[Item], has_next: bool, batch_max: int, marked: Marked,
    unstorable: Sequence[Misuse],
) -> Program[Advanced]:  # fmt: skip
    moment: Instant = yield Now()
    messages = [message_of(item, rt) for item in items]
    if state.status in ("suspended", "purging"):
        return (yield from _set_aside(state, items, has_next))
    if state.ended:
        return (yield from _bury(rt, state, messages, moment, has_next))
    change: Change | None
    try:
        machine = rt.by_hash.get(state.machine_hash)
        if machine is None:
            machine = yield from machine_of(rt, state)
        if has_functions(machine):
            arguments = (rt, machine, state, messages, moment, batch_max, marked, unstorable, has_next)
            change = yield Call(plan, arguments, what=f"an action or guard of machine {machine.name!r}")
        else:
            change = plan(rt, machine, state, messages, moment, batch_max, marked, unstorable, has_next)
    except Parked:
        change = _recalled(rt, state, messages, moment)
        if change is None:
            raise
    if change is None:
        return Advanced(state, has_more=False)
    new = yield from commit(rt, change, state.unchanged())
    left = has_next or len(change.consumed) < len(messages) or change.next_due() is not None
    failed = told(change.data.snap.error) if new.status == "failed" else ""
    return Advanced(new, is_held=True, has_more=left, failed=failed)


def _recalled(rt: Runtime, state: State, messages: Sequence[Message], moment: Instant) -> Change | None:
    """The end of a child whose parent waits no longer, where this process cannot go on with it: that takes no chart."""
    for message in messages:
        for position, mail in enumerate(message.mails):
            if mail.kind == "cancel":
                change = Change(rt, NO_MACHINE, state, decode_data(state, rt.decode(state.data)), moment)
                change.take(mail)
                rest = [*message.mails[:position], *message.mails[position + 1 :]]
                if rest:
                    change.rewritten.append((message, rest))
                else:
                    change.consumed.append(message)
                return change
    return None


def plan(
    rt: Runtime, machine: Machine, state: State, messages: Sequence[Message], moment: Instant, batch_max: int,
    marked: Marked, unstorable: Sequence[Misuse] = (), has_next: bool = False,
) -> Change | None:  # fmt: skip
    """Everything that one commit is to do; None when nothing waits. Pure but for the user's own functions.

    Args:
        rt: machines and options.
        machine: the definition that the execution runs.
        state: the state as it was read.
        messages: waiting messages, in order.
        moment: the store's time.
        batch_max: take at most so many events.
        marked: what is known of marks of event ids.
        unstorable: why what came of the first event could not be stored; it fails the execution. Two: not even its
            failure could be stored, so that less of it is kept.
        has_next: more messages wait than were read.
    """
    data = decode_data(state, rt.decode(state.data))
    change = Change(rt, machine, state, data, moment)
    change.marks_stale = marked.stale
    refusal = unstorable[0] if unstorable else None
    change.is_brief = len(unstorable) > 1
    taken = 0
    if state.status == "pending":
        _guarded(change, None, refusal, change.begin, data.input)
        taken = 1
    waiting = iter(messages)
    message = next(waiting, None)
    while not change.ended and taken < batch_max and (not taken or change.size() < WRITES_WITH_STATE):
        if message is None and has_next and messages:
            break  # the next message may have been sent before the next timer was due
        timer = change.next_due()
        if timer is not None and (message is None or timer.due_us <= message.sent_at_us):
            _guarded(change, timer, refusal, change.fire, timer)
            taken += 1
        elif message is not None:
            taken += _take_message(change, message, marked.known, refusal, alone=batch_max == 1)
            message = next(waiting, None)
        else:
            break
    return change if taken else None


def _take_message(
    change: Change, message: Message, known: frozenset[str], refusal: Misuse | None, *, alone: bool
) -> int:
    """Take the mails of one message (``alone``: only its first); what is left when the execution ends is put back."""
    mails = message.mails
    for position, mail in enumerate(mails):
        change.priority = max(change.priority, message.priority)
        _guarded(change, mail, refusal, change.take, mail, known=known)
        if (change.ended or alone) and position + 1 < len(mails):
            change.rewritten.append((message, mails[position + 1 :]))
            return position + 1
    change.consumed.append(message)
    return len(mails)


def _guarded(
    change: Change, what: Mail | Timer | None, refusal: Misuse | None, take: Any, *args: Any, **kwargs: Any
) -> None:
    """Take an event; an error that the chart does not turn into an event fails the execution, not the worker.

    Args:
        change: what it goes into.
        what: the event; None: the start.
        refusal: why what comes of it cannot be stored: it fails, instead of being taken.
        take: what takes it, and ``args``, ``kwargs`` for that.
    """
    if refusal is not None:
        change.refusal = type(refusal)(f"what this event caused cannot be stored: {refusal}")
    try:
        if refusal is None or what is not None:
            take(*args, **kwargs)
    except UnboundFunction as error:
        raise Parked(str(error)) from None
    except Parked:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        change.poison(error, kept_of(change.rt, what))
    if change.refusal is not None and not change.ended:
        change.outbox = {}
        change.poison(change.refusal, kept_of(change.rt, what))


def commit(rt: Runtime, change: Change, condition: Condition) -> Program[State]:
    """Store a change, on condition that the stored state satisfies ``condition``; the new state.

    What does not fit one transaction is recorded in it and performed at once, or by whoever comes next.
    """
    new, writes = yield from plan_writes(rt, change, condition)
    first = writes[0]
    if len(writes) > 1 or not isinstance(first, Put):
        yield Transact(writes)
    else:
        yield Write(first)
    if new.spill:
        try:
            new = yield from drain(rt, new)
        except (ConditionFailed, Contention, OutcomeUnknown):
            pass  # the note in the state stands: whoever moved it, or the next to look, goes on
    return new


def plan_writes(rt: Runtime, change: Change, condition: Condition) -> Program[tuple[State, list[AnyWrite]]]:
    """The state after a change, and the writes of its transaction, the state's first; what does not fit is spilled.

    Raises ItemTooLarge when the state would fill its item.
    """
    for name in change.machines_to_store():
        yield from store_definition(rt, rt.machines[name])
    new, writes, caused = change.finish()
    if not (change.fans or change.recalls) and fits(rt, writes, caused):
        writes += caused
    else:
        change.data.sent = [place for place in change.data.sent if place[1].startswith(("o/", NOTE_BEGIN))]
        new.data = rt.encode(encode_data(change.data))
        writes += spill_writes(rt, new, caused, change.fans, change.recalls)
    put = Put(EXECUTIONS, new.to_item(rt.options.buckets), condition)
    if not change.ended and len(new.data) > MAX_STATE_BYTES // 4 and (size := check_write(put)) > MAX_STATE_BYTES:
        raise ItemTooLarge(
            f"execution {new.id!r:.200} would have {size:,} bytes, the limit is {MAX_STATE_BYTES:,} (the rest of an "
            "item is for its end); keep less in its context"
        )
    return new, [put, *writes]


def look_at_marks(refused: ConditionFailed, marked: Marked, moment: Instant) -> Marked:
    """Which event ids a refused commit showed to be taken already, and which marks have run out."""
    known, stale = set(marked.known), dict(marked.stale)
    for refusal in refused.refusals:
        item = refusal.item if refusal is not None else None
        if item is None or not str(item.get("sort", "")).startswith("s/"):
            continue
        if int(item["expires_at_s"]) * 1_000_000 < moment.earliest_us:
            stale[str(item["sort"])] = int(item["expires_at_s"])
        else:
            known.add(str(item["sort"]))
    return Marked(frozenset(known), stale)


# --- executions that take no events ---------------------------------------------------------------------------------


def _bury(rt: Runtime, state: State, messages: Sequence[Message], moment: Instant, has_next: bool) -> Program[Advanced]:
    """Turn the messages of an ended execution into dead letters; reports that nobody waits for are dropped.

    The state is asked once more: a query may have seen it ended and, behind it, a message to the id's next life.
    """
    writes: list[AnyWrite] = []
    for message in messages[:45]:
        writes.append(Delete(message.key, present()))
        lost = [mail for mail in message.mails if _is_lost(mail, state)]
        if lost:
            n = str(message.key.sort)[2:].replace("/", "-")
            reason = f"the execution had ended: {state.status}"
            writes.append(dead_letter(state.id, moment.middle_us, n, reason, lost, rt.options.buckets, rt))
    if writes:
        yield from transact([Check(state.key, state.unchanged()), *writes])
    return Advanced(state, has_more=has_next or len(messages) > 45)


def _is_lost(mail: Mail, state: State) -> bool:
    """Whether a mail that nobody takes any more is worth keeping: a repeat of an event that was taken is not."""
    if mail.kind == "given":
        return not is_recent(state.recent_ids, id_hash(mail.id))
    return mail.kind == ""


def _set_aside(state: State, items: Sequence[Item], has_next: bool) -> Program[Advanced]:
    """Take the messages of a suspended execution out of the index; resuming puts them back."""
    aside = [item for item in items if "pending" in item]
    if has_next and not aside:
        aside = yield from _newest_pending(state.id)
    writes: list[AnyWrite] = [set_aside(item) for item in aside]
    if writes:
        # Were it resumed meanwhile, nobody would put them back.
        yield from transact([Check(state.key, state.unchanged()), *writes[:90]])
    return Advanced(state, has_more=len(writes) > 90)


def _newest_pending(id: str) -> Program[list[Item]]:
    """Messages that stand in the index behind many that were set aside before: left there, they would be found at
    every look, and hide other executions.
    """
    cursor = None
    while True:
        page = yield from query(EXECUTIONS, id, low=MAIL_BEGIN, high=MAIL_END, limit=90, reverse=True, after=cursor)
        found = [item for item in page.items if "pending" in item]
        cursor = page.next
        if found or cursor is None:
            return found


def _orphaned(rt: Runtime, id: str, items: Sequence[Item]) -> Program[Advanced]:
    """Messages without an execution: a cancel leaves a cancelled state for the start to find, others wait an hour."""
    if not items:
        return Advanced(None)
    moment = yield from now()
    messages = [message_of(item, rt) for item in items]
    for message in messages:
        if any(mail.kind == "cancel" for mail in message.mails):
            tombstone = State(
                id=id, version=1, status="cancelled", machine="", machine_hash="", data="{}", listed=False,
                created_at_us=moment.middle_us, updated_at_us=moment.middle_us,
            )  # fmt: skip
            put = Put(EXECUTIONS, tombstone.to_item(rt.options.buckets), absent())
            yield from transact([put, Delete(message.key, present())])
            return Advanced(tombstone, has_more=len(messages) > 1)
    old = [message for message in messages if message.sent_at_us + ORPHAN_US <= moment.earliest_us][:45]
    if old:
        writes: list[AnyWrite] = []
        for message in old:
            n = str(message.key.sort)[2:].replace("/", "-")
            mails: list[Mail] = message.mails
            reason = "there was no such execution within an hour"
            writes += [
                Delete(message.key, present()),
                dead_letter(id, moment.middle_us, n, reason, mails, rt.options.buckets, rt),
            ]
        yield from transact([Check(EXECUTIONS.key(id, STATE), absent()), *writes])
        return Advanced(None, has_more=len(old) < len(messages))
    return (yield from _park(list(items), "there is no such execution yet"))


def _park(items: Sequence[Item], reason: str) -> Program[Advanced]:
    """Put off the next look at what stands in the index, longer each time; nothing else changes."""
    moment = yield from now()
    is_there = items[0]["sort"] == STATE  # a message without an execution may only be early
    is_news = False
    for item in items:
        rank = item.get("rank_us")
        if rank is None or int(rank) > moment.middle_us:
            continue
        attributes = put_off(item, reason, moment, parked=is_there)
        update = Update(EXECUTIONS.key_of(item), attributes, when=equals("rank_us", int(rank)))
        try:
            yield from write(update)
        except ConditionFailed:
            continue  # it moved by itself
        is_news = is_there
    return Advanced(None, parked=reason, is_news=is_news)
