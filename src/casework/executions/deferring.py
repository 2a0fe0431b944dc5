"""Deferred events: what no state has taken yet, in the execution's own state, with their ids, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from casework.executions.mailbox import Mail, mail_sort, put_message
from casework.executions.runtime import Runtime
from casework.executions.state import Data, Kept
from casework.kernel.effects import Instant
from casework.kernel.items import Put
from casework.kernel.programs import Program, token
from casework.statechart import snapshot as chart

MAX_DEFERRED, MAX_DEFERRED_BYTES = 100, 64 * 1024
"""So many deferred events are kept; what comes then is a dead letter, and the execution goes on."""


def keep(data: Data, event: chart.Event) -> str:
    """Add an event to what is deferred; the reason, where it cannot be."""
    kept = Kept("event", event.type, event.data, event.id, event.source)
    if len(data.deferred) >= MAX_DEFERRED:
        return f"it was to be deferred, and {MAX_DEFERRED} events are already"
    if len(msgspec.json.encode([*data.deferred, kept])) > MAX_DEFERRED_BYTES:
        return f"it was to be deferred, and would take what is to over {MAX_DEFERRED_BYTES // 1024} KB"
    data.deferred = [*data.deferred, kept]
    return ""


def forget(data: Data, place: int | None) -> None:
    """Take one out of what is deferred."""
    if place is not None:
        data.deferred = data.deferred[:place] + data.deferred[place + 1 :]


def offer(change: Any) -> None:
    """Offer what is deferred to the states that are active now, in order; again, when these change by that."""
    place = 0
    while place < len(change.data.deferred) and not change.ended:
        before = change.data.snap.configuration
        if not change.step(event_of(change.data.deferred[place]), "event", place):
            place += 1
        elif change.data.snap.configuration != before:
            place = 0


def offer_later(rt: Runtime, id: str, moment: Instant) -> Program[Put]:
    """A message that has a worker, who has the functions, offer what is deferred to the states that are active."""
    source = yield from token()
    sent_at_us = rt.send_time_us(moment.middle_us)
    sort = mail_sort(sent_at_us, source, 0)
    mails = [Mail("offer", kind="offer")]
    return put_message(id, sort, mails, rt.options.buckets, sent_at_us=sent_at_us, now_us=moment.middle_us, rt=rt)


def put_off(change: Any, event: chart.Event) -> None:
    """Keep an event until a state takes it; or give it up, where too many are kept."""
    refusal = keep(change.data, event)
    if refusal:
        change.refused.append(([Mail(event.type, event.data, event.id, event.source)], refusal))
    if change.rt.options.trace_max:
        where = change.data.snap.configuration
        change.note_step(event, where, where, None)
        change.events[-1]["given up" if refusal else "deferred"] = True


def event_of(kept: Kept) -> chart.Event:
    """The event as the chart takes it."""
    return chart.Event(kept.type, kept.data, kept.id, kept.source)


def mail_of(kept: Kept) -> Mail:
    """The event as a dead letter keeps it."""
    return Mail(kept.type, kept.data, kept.id, kept.source)
