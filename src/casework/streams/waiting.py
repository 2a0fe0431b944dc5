"""Waiting for what is appended, at a cost of what happens and not of who waits.

An append of this process wakes those who wait for its stream. For what other processes append, one of all who wait in
this process has a seat: it looks at the heads of all their streams, many in one call, after pauses that grow while a
stream is idle. Who is woken and wants the same page as others reads it once with them.
"""

from __future__ import annotations

from typing import Any

from casework.arguments import check_seconds
from casework.kernel.effects import Flag
from casework.kernel.items import Item
from casework.kernel.programs import Program, get_many, now, race
from casework.streams.log import LAST_POLL_S, Log, Look, Watch, Watcher, check_stop, check_stream, head_key
from casework.streams.read import OpPage, read_page

SEEN_FOR_S = 5.0
"""Who waits for a stream in which nothing happens reads it again so often, with all others: the log may have been
restored from a backup, and a head that went back wakes nobody."""

LOOKS_MAX = 8
"""Pages of one stream that are kept to be shared; who comes after more of them reads for itself."""

KEPT_BYTES = 32_768
"""A larger page is forgotten once those have it who wanted it while it was read."""


def wait_page(
    log: Log,
    stream: str,
    after: int = 0,
    limit: int = 1000,
    *,
    wait_s: float,
    stop: Flag | None = None,
    max_bytes: int | None = None,
    mark: str = "",
) -> Program[OpPage]:
    """A page as :func:`read_page` gives it; while it is empty, wait for operations for up to ``wait_s``.

    Those of one process who wait share one poll, and an append of this process wakes them at once. ``stop`` ends the
    wait early. For drivers that know ``Race``.
    """
    check_stream(stream)
    with Watcher(log, stream) as watcher:
        return (yield from wait_again(
            log, watcher, after, limit, wait_s=wait_s, stop=stop, max_bytes=max_bytes, mark=mark
        ))  # fmt: skip


def wait_again(
    log: Log,
    watcher: Watcher,
    after: int,
    limit: int,
    *,
    wait_s: float,
    stop: Flag | None = None,
    max_bytes: int | None = None,
    mark: str = "",
) -> Program[OpPage]:
    """As :func:`wait_page`, for one who waits again and again from where the last page ended.

    What was found empty is not read again before something happens, or :data:`SEEN_FOR_S` is over.
    """
    check_seconds("wait_s", wait_s)
    check_stop(stop)
    started = moment = yield from now()
    waits = [watcher.flag] if stop is None else [watcher.flag, stop]
    try:
        while True:
            page = yield from _look(log, watcher, moment.middle_us, (after, limit, max_bytes, mark))
            moment = yield from now()
            left_s = wait_s - (moment.middle_us - started.middle_us) / 1e6
            if page.ops or page.next_after > after:
                watcher.flag.set()  # there may be more behind it
                return page
            if left_s <= 0 or (stop is not None and stop.is_set):
                return page
            yield from _wait(log, watcher, waits, moment.middle_us, left_s)
    finally:
        _hand_over(log)


def _look(log: Log, own: Watcher, now_us: int, asked: tuple[int, int, int | None, str]) -> Program[OpPage]:
    """The page, read anew unless others of this process are reading it, or have read it and were not woken since."""
    after, limit, max_bytes, mark = asked
    own.after = after
    own.flag.clear()
    if own.is_new:  # what others read was read before it came
        own.is_new = False
        return (yield from read_page(log, own.stream, after, limit, max_bytes=max_bytes, mark=mark))
    looks = own.watch.looks
    look = looks.get(asked)
    if look is not None and abs(now_us - look.began_us) < SEEN_FOR_S * 1e6:
        if not look.over.is_set:
            yield from race(look.over)
        if look.page is not None:
            found: OpPage = look.page
            return found
    look = looks[asked] = Look(now_us)
    while len(looks) > LOOKS_MAX:
        looks.pop(next(iter(looks)), None)
    try:
        page = yield from read_page(log, own.stream, after, limit, max_bytes=max_bytes, mark=mark)
        look.page = page
        if sum(len(op.data) for op in page.ops) > KEPT_BYTES:
            looks.pop(asked, None)
        return page
    except BaseException:
        looks.pop(asked, None)
        raise
    finally:
        look.over.set()


def _wait(log: Log, own: Watcher, waits: list[Flag], now_us: int, left_s: float) -> Program[None]:
    """Until there may be something new; whoever gets the seat looks for all."""
    if not own.watch.due_us:
        own.watch.due_us = now_us + round(own.watch.pause_s * 1e6)
        log.new_watch.set()
    log.idle[own] = None  # before it tries the seat: whoever leaves that sees it
    try:
        log.seat.pop()
    except IndexError:
        try:
            yield from race(*waits, timeout_s=left_s)
        finally:
            log.idle.pop(own, None)
        return
    log.idle.pop(own, None)
    try:
        yield from _poll(log, waits, left_s)
    finally:
        log.seat.append(None)


def _hand_over(log: Log) -> None:
    """Have another one take the seat where it is free."""
    if log.seat:
        for watcher in tuple(log.idle):
            watcher.flag.set()
            return


def _poll(log: Log, waits: list[Flag], left_s: float) -> Program[None]:
    """Look at all streams that somebody waits for, each when it is due, until this one is woken or its time is over."""
    until_us: int | None = None
    while True:
        log.new_watch.clear()
        moment = yield from now()
        now_us = moment.middle_us
        if until_us is None:
            until_us = now_us + round(left_s * 1e6)
        due = [(stream, watch) for stream, watch in tuple(log.watches.items()) if _is_due(watch, now_us)]
        if due:
            heads = yield from get_many([head_key(stream) for stream, _ in due])
            for (_, watch), head in zip(due, heads, strict=True):
                watch.pause_s = min(watch.pause_s * 1.5, LAST_POLL_S)
                watch.due_us = now_us + round(watch.pause_s * 1e6)
                if _has_more(head, watch):
                    watch.wake()
        if now_us >= until_us or any(flag.is_set for flag in waits):
            return
        next_us = min((watch.due_us for watch in tuple(log.watches.values()) if watch.due_us), default=until_us)
        pause_s = min(LAST_POLL_S, max(0.001, (min(next_us, until_us) - now_us) / 1e6))
        yield from race(*waits, log.new_watch, timeout_s=pause_s)
        if any(flag.is_set for flag in waits):
            return


def _is_due(watch: Watch, now_us: int) -> bool:
    """Whether its head is looked at now: soon is now, so that streams come to be looked at together.

    Where the clock went back it is due, too.
    """
    return bool(watch.due_us) and not watch.pause_s * 5e5 < watch.due_us - now_us <= LAST_POLL_S * 1e6


def _has_more(head: Item | None, watch: Watch) -> bool:
    """Whether somebody has not read all of it, and was not woken; a head that is damaged is for the reader to tell."""
    last: Any = 0 if head is None else head.get("last_seq", 0)
    behind = [each for each in tuple(watch.watchers) if type(last) is not int or each.after < last]
    return any(not watcher.flag.is_set for watcher in behind)
