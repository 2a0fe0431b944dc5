"""Waiting for somebody else's claim to end, with one poll per key and process.

Of all who wait for a key in a process one looks at the store, with growing pauses, and the others wait for what it
finds. When that one leaves, because its own time is over or it was cancelled, another takes its place. A claim that
ends in the same process wakes them at once.
"""

from __future__ import annotations

from casework.arguments import check_seconds
from casework.errors import CorruptItem, NewerFormat
from casework.idempotency.lifecycle import Poll, Shared, check_key, has_lapsed, load_body, read
from casework.idempotency.record import CLAIMED, COMPLETED, Record
from casework.kernel.effects import Flag, Instant
from casework.kernel.programs import Program, now, race

FIRST_PAUSE_S, MAX_PAUSE_S, GROWTH = 0.02, 1.0, 1.6


def wait_for_completion(shared: Shared, key: str, timeout_seconds: float) -> Program[Record | None]:
    """The completed record; None when the time is over, or the claim was released, expired, or lapsed. Never claims.

    Args:
        shared: of the store.
        key: what to wait for.
        timeout_seconds: wait so long at most; 0 looks once.
    """  # fmt: skip
    check_key(key)
    check_seconds("timeout_seconds", timeout_seconds)
    until_us = shared.steady_us() + round(timeout_seconds * 1e6)
    poll: Poll | None = None
    while True:
        poll = poll or shared.polls.setdefault(key, Poll())
        changed = poll.changed
        if poll.is_over:
            return (yield from _answer(shared, poll.record))
        try:
            poll.lead.pop()
        except IndexError:
            left_s = (until_us - shared.steady_us()) / 1e6
            if left_s <= 0:
                return None
            poll.followers += 1
            try:
                yield from race(changed, timeout_s=left_s)
            finally:
                poll.followers -= 1
            continue
        return (yield from _lead(shared, key, poll, until_us))


def _answer(shared: Shared, record: Record | None) -> Program[Record | None]:
    return None if record is None else (yield from load_body(shared, record))


def _lead(shared: Shared, key: str, poll: Poll, until_us: int) -> Program[Record | None]:
    """Look until the claim has ended or the time is over; then tell the others, or hand the lead over."""
    try:
        record = yield from _look_until_over(shared, key, poll, until_us)
    except BaseException:
        _hand_over(shared, key, poll)
        raise
    if not poll.is_over:
        _hand_over(shared, key, poll)
        return None
    return (yield from _answer(shared, record))


def _hand_over(shared: Shared, key: str, poll: Poll) -> None:
    if not poll.followers and shared.polls.get(key) is poll:
        shared.polls.pop(key, None)
    poll.lead.append(True)
    _wake(poll)


def _wake(poll: Poll) -> None:
    changed, poll.changed = poll.changed, Flag()
    changed.set()


def _look_until_over(shared: Shared, key: str, poll: Poll, until_us: int) -> Program[Record | None]:
    pause_s = FIRST_PAUSE_S
    while True:
        poll.nudge.clear()
        moment = yield from now()
        asked_us = shared.steady_us()
        is_over, record = yield from _look(shared, key, moment, asked_us)
        if is_over:
            poll.record = record
            poll.is_over = True
            if shared.polls.get(key) is poll:
                shared.polls.pop(key, None)
            _wake(poll)
            return record
        left_s = (until_us - shared.steady_us()) / 1e6
        if left_s <= 0:
            return None
        pause = min(pause_s, left_s)
        if record is not None and moment.earliest_us == moment.latest_us:
            pause = min(pause, max(0.001, (record.lease_until_us - moment.earliest_us) / 1e6))
        yield from race(poll.nudge, timeout_s=pause)
        pause_s = min(MAX_PAUSE_S, pause_s * GROWTH)


def _look(shared: Shared, key: str, moment: Instant, asked_us: int) -> Program[tuple[bool, Record | None]]:
    """Whether there is nothing more to wait for, and the record: the completed one then, the claim until then."""
    try:
        record = yield from read(shared, key)
    except NewerFormat:
        raise
    except CorruptItem:
        return True, None
    if record is None or has_lapsed(shared, record, moment, asked_us):
        return True, None
    if record.state == COMPLETED:
        return True, record
    assert record.state == CLAIMED
    shared.note(record, shared.steady_us())
    return False, record
