"""Consumers: a handler for every operation of some streams, from a named cursor that advances with what it wrote.

Consumers of one group share its streams: each holds a stream's cursor by a lease, at most its fair share of them, and
gives back what is too much when another one comes. A handler's writes go into the transaction that moves the cursor, so
that they take effect once; what it does elsewhere happens at least once.
"""

from __future__ import annotations

import collections
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from casework.arguments import check_choice, check_count, check_instance, check_seconds
from casework.errors import CaseworkError, ConditionFailed, CursorTooOld, LogChanged, Misuse, StoreError
from casework.kernel.conditions import Condition
from casework.kernel.containment import in_words
from casework.kernel.effects import Call, Flag, Handle
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Put, Scalar, Table, Update
from casework.kernel.limits import MAX_TRANSACTION_WRITES, checked_key
from casework.kernel.programs import Program, now, query_all, race, spawn, token, transact, write
from casework.kernel.retry import Pauses
from casework.kernel.schema import FORMAT, REGISTRY
from casework.streams import cursors
from casework.streams.cursors import Cursor, Lost
from casework.streams.log import Log, Op, check_stream, check_streams
from casework.streams.positions import Start, check_start, position_of
from casework.streams.read import OpPage
from casework.streams.waiting import wait_page

log_ = logging.getLogger("casework.streams")

MISSED_BEATS = 3


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a consumer."""

    batch_max: int = 50
    """Operations handled before the cursor moves past them, at most."""
    attempts_max: int = 5
    """After so many failed attempts an operation is poison."""
    on_poison: Literal["park", "stop"] = "park"
    """Put it aside and go on, or stop this stream for the group until somebody resumes it."""
    start: Start = "floor"
    """Where a new group begins in a stream: ``"floor"``, the first operation that was not truncated; ``"snapshot"``,
    behind the snapshot; ``"head"``, only what comes from now on; a number, behind that one; a datetime with its zone.
    A group that has been there goes on where it was; ``seek`` moves it."""
    on_truncated: Literal["stop", "floor", "snapshot"] = "stop"
    """When what it has not handled was truncated: stop this stream for the group and say so, or go on from there."""
    retry: Pauses = Pauses(first_pause_s=0.2, max_pause_s=30.0)
    """Pauses between attempts, of which ``attempts_max`` says how many there are. The stream is held meanwhile."""
    lease_s: float = 30.0
    """A crashed consumer's streams are taken over after so long. While a handler runs, its lease is renewed."""
    handler_max_s: float = 900.0
    """A handler that runs longer is no longer waited for by others: its lease is renewed no more."""
    heartbeat_s: float = 5.0
    """How often consumers of a group tell each other that they are there."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_count("batch_max", self.batch_max, 1, 100_000)
        check_count("attempts_max", self.attempts_max, 1)
        check_choice("on_poison", self.on_poison, ("park", "stop"))
        check_start("start", self.start)
        check_choice("on_truncated", self.on_truncated, ("stop", "floor", "snapshot"))
        check_instance("retry", self.retry, Pauses, "a casework.Pauses(first_pause_s=..., max_pause_s=...)")
        for name in ("lease_s", "handler_max_s", "heartbeat_s"):
            check_seconds(name, getattr(self, name), above=True)


class HandlerWrites:
    """The writes that take effect together with the cursor's move, and only then."""

    def __init__(self) -> None:
        self.writes: list[AnyWrite] = []

    def put(self, table: Table, item: Mapping[str, Scalar], when: Condition | None = None) -> None:
        """Store an item."""
        self.writes.append(Put(table, item, when))

    def update(self, key: Key, set: Mapping[str, Scalar], when: Condition | None = None) -> None:
        """Set attributes of an item."""
        self.writes.append(Update(key, set, when=when))

    def delete(self, key: Key, when: Condition | None = None) -> None:
        """Remove an item."""
        self.writes.append(Delete(key, when))

    def check(self, key: Key, when: Condition) -> None:
        """Refuse it all unless the condition holds."""
        self.writes.append(Check(key, when))


Handler = Callable[[Op, HandlerWrites], Any]
"""A plain function, or on an event loop a coroutine function. It may raise: that is a failed attempt."""


def _check_signature(handler: Handler) -> None:
    """Misuse for one that could take no operation at all: each would be tried again and again, and parked."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # written in C, perhaps: it will say so itself
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise Misuse(
            f"handler is {handler!r:.80}, which cannot be called with an operation and its writes ({error}); "
            "write it as def handle(op, writes)"
        ) from None


class Consumer:
    """One consumer of a group: what its programs share.

    Args:
        log: what this process knows of its streams.
        group: the name of the cursors; consumers with one group share the streams.
        streams: the streams that the group consumes; the same list in each consumer of it.
        handler: called with each operation and a :class:`HandlerWrites`, in order within a stream.
        options: settings.
    """

    def __init__(
        self, log: Log, group: str, streams: Sequence[str], handler: Handler, options: ConsumerOptions | None = None
    ) -> None:
        check_stream(group, "group")
        check_streams(streams)
        if not callable(handler):
            raise Misuse(f"handler is {handler!r:.80}; give a function of an operation and its writes")
        _check_signature(handler)
        self.log = log
        self.group = group
        self.streams = tuple(dict.fromkeys(streams))
        self.handler = handler
        self.options = options or ConsumerOptions()
        self.stop = Flag()
        self.token = ""
        self.held: dict[str, tuple[Handle, Flag]] = {}
        self.handling: dict[str, int] = {}
        """By stream, since when (epoch microseconds) the handler has had the operation that it has now."""
        self.handled_n = 0
        self.failed_n = 0
        self.parked_n = 0
        self.errors_n = 0
        """Errors of its own, not of the handler: of the store, of what is stored, of its program."""
        self.rests: dict[str, tuple[int, int]] = {}
        """By stream whose follower ended with an error: how often, and until when (epoch microseconds) it is left."""


def consume(consumer: Consumer) -> Program[None]:
    """Handle what comes until ``consumer.stop`` is set, then finish the operation at hand and give the streams back."""
    consumer.token = yield from token()
    trouble = 0
    while not consumer.stop.is_set:
        pause_s = consumer.options.heartbeat_s
        try:
            share = yield from _beat(consumer)
            yield from _balance(consumer, share)
            trouble = 0
        except Exception as error:  # noqa: BLE001 - whatever it is, the next beat may go better
            trouble += 1
            _tell(consumer, "its beat", error)
            pause_s = _pause_s(trouble)
        yield from race(consumer.stop, timeout_s=pause_s)
    for _, leave in consumer.held.values():
        leave.set()
    for stream, (handle, _) in list(consumer.held.items()):
        yield from race(handle)
        if handle.outcome is not None and isinstance(handle.outcome.error, Exception):
            _tell(consumer, f"stream {stream!r}", handle.outcome.error)
    try:
        yield from transact([Delete(REGISTRY.key(_members(consumer.group), consumer.token))])
    except StoreError:
        pass  # it is forgotten when its heartbeats stay away


def _tell(consumer: Consumer, where: str, error: Exception) -> None:
    """Count and log an error of the consumer's own; with its traceback where nobody foresaw it."""
    consumer.errors_n += 1
    if isinstance(error, CaseworkError):
        log_.warning("group %r, %s: %s: %s", consumer.group, where, type(error).__name__, error)
    else:
        log_.error("group %r, %s: %s", consumer.group, where, in_words(error), exc_info=error)


def _pause_s(trouble: int) -> float:
    return min(30.0, 0.1 * 2.0 ** min(trouble, 9))


def _members(group: str) -> str:
    return f"consumer {group}"


def _beat(consumer: Consumer) -> Program[int]:
    """Say that this consumer is there; its share of the streams."""
    moment = yield from now()
    kind = _members(consumer.group)
    item: dict[str, Scalar] = {
        "kind": kind, "name": consumer.token, "format": FORMAT, "heard_us": moment.middle_us,
        "expires_at_s": moment.middle_us // 1_000_000 + 86_400,
    }  # fmt: skip
    yield from write(Put(REGISTRY, item))
    beats = yield from query_all(REGISTRY, kind)
    oldest_us = moment.middle_us - int(MISSED_BEATS * consumer.options.heartbeat_s * 1e6)
    members = sum(int(each["heard_us"]) >= oldest_us for each in beats) or 1
    return -(-len(consumer.streams) // members)


def _balance(consumer: Consumer, share: int) -> Program[None]:
    """Give back what is above the share; take free streams up to it, begin at a place of this consumer's own."""
    moment = yield from now()
    for stream, (handle, _) in list(consumer.held.items()):
        if handle.outcome is None:
            continue
        del consumer.held[stream]
        if isinstance(handle.outcome.error, Exception):
            _tell(consumer, f"stream {stream!r}", handle.outcome.error)
            ended_n = consumer.rests.get(stream, (0, 0))[0] + 1
            consumer.rests[stream] = ended_n, moment.middle_us + round(_pause_s(ended_n) * 1e6)
        else:
            consumer.rests.pop(stream, None)
    for stream in list(consumer.held)[share:]:
        consumer.held[stream][1].set()
    ring = collections.deque(consumer.streams)
    ring.rotate(-(hash_of(consumer.token) % len(ring)))
    for stream in ring:
        if len(consumer.held) >= share:
            return
        if stream in consumer.held or consumer.rests.get(stream, (0, 0))[1] > moment.middle_us:
            continue
        options = consumer.options
        cursor = yield from cursors.take(
            consumer.group, stream, consumer.token, options.lease_s, log=consumer.log, start=options.start
        )
        if cursor is not None:
            leave = Flag()
            handle = yield from spawn(follow(consumer, cursor, leave), f"{consumer.group} {stream}")
            consumer.held[stream] = (handle, leave)
            yield from spawn(keep_held(consumer, stream, handle), f"lease of {consumer.group} {stream}")


def keep_held(consumer: Consumer, stream: str, follower: Handle) -> Program[None]:
    """Renew a stream's lease while the handler has an operation of it, for as long as it is followed."""
    options = consumer.options
    while not follower.done:
        yield from race(follower, timeout_s=options.lease_s / 3)
        moment = yield from now()
        since_us = consumer.handling.get(stream)
        taken_s = 0.0 if since_us is None else (moment.middle_us - since_us) / 1e6
        if taken_s < options.lease_s / 6:
            continue  # the cursor's own move renews it
        if taken_s > options.handler_max_s:
            log_.warning("group %r, stream %r: the handler has been at it for %.0f s", consumer.group, stream, taken_s)
            continue
        try:
            yield from cursors.extend(consumer.group, stream, consumer.token, options.lease_s)
        except ConditionFailed:
            return  # another consumer's by now; the follower learns it when it moves the cursor
        except Exception as error:  # noqa: BLE001 - the next renewal may go better
            _tell(consumer, f"stream {stream!r}, renewal", error)


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(text.encode()[:8], "big")


def follow(consumer: Consumer, cursor: Cursor, leave: Flag) -> Program[None]:
    """Handle the operations of one stream from a cursor that this consumer holds, until told to leave or it is lost."""
    alone_until = trouble = 0
    lease_s = consumer.options.lease_s
    while not leave.is_set:
        size = 1 if cursor.after < alone_until else consumer.options.batch_max
        try:
            if trouble:  # the pause may have been longer than the lease, and what was in doubt may have been applied
                cursor = yield from cursors.renew(cursor, lease_s)
            if cursor.replay:
                cursor = yield from _replay(consumer, cursor, leave)
            try:
                page = yield from wait_page(
                    consumer.log, cursor.stream, cursor.after, size, wait_s=lease_s / 3, stop=leave, mark=cursor.mark
                )
            except CursorTooOld as error:
                cursor = yield from _below_floor(consumer, cursor, error)
                page = OpPage([], cursor.after)
            except LogChanged as error:
                log_.error("group %r: %s", consumer.group, error)
                mark = cursor.mark
                yield from cursors.note_failure(cursor, cursor.after, str(error), lease_s, mark=mark, stop=True)
                return
            if page.ops:
                cursor, refused = yield from _handle_page(consumer, cursor, page, leave)
                alone_until = max(alone_until, refused)
            elif page.next_after > cursor.after:
                cursor = yield from cursors.advance(cursor, page.next_after, (), lease_s, page.mark)
            elif not cursor.is_stopped:
                cursor = yield from cursors.renew(msgspec.structs.replace(cursor, trouble="", trouble_n=0), lease_s)
            trouble = 0
            if cursor.is_stopped:
                return
        except Lost:
            return
        except Exception as error:  # noqa: BLE001 - it would end this stream for the group, and nobody would see it
            trouble += 1
            _tell(consumer, f"stream {cursor.stream!r}", error)
            if not isinstance(error, StoreError):
                cursor = yield from cursors.note_trouble(cursor, in_words(error), trouble)
            yield from race(leave, timeout_s=_pause_s(trouble))
    yield from cursors.release(cursor)


def _below_floor(consumer: Consumer, cursor: Cursor, error: CursorTooOld) -> Program[Cursor]:
    """What comes next was truncated: go on behind it, or stop and say how to go on."""
    options = consumer.options
    if options.on_truncated == "stop":
        way = f"`casework streams seek {cursor.group} {cursor.stream} --to floor` lets the group go on"
        log_.error("group %r: %s; %s", cursor.group, error, way)
        return (yield from cursors.note_failure(cursor, cursor.after, f"{error}; {way}", options.lease_s, stop=True))
    position = yield from position_of(consumer.log, cursor.stream, options.on_truncated)
    log_.warning("group %r: %s; it goes on behind %d", cursor.group, error, position)
    return (yield from cursors.advance(cursor, max(position, cursor.after), (), options.lease_s))


def _replay(consumer: Consumer, cursor: Cursor, leave: Flag) -> Program[Cursor]:
    """Handle the parked operations that somebody wants handled once more, each once; Lost when more come meanwhile."""
    position = 0
    while True:
        page = yield from cursors.parked_items(cursor, position)
        for item in page:
            position = int(item["seq"])
            if "replay" not in item:
                continue
            if leave.is_set:
                return cursor
            cursor = yield from _replay_one(consumer, cursor, item)
        if not page:
            return (yield from cursors.end_replay(cursor, consumer.options.lease_s))


def _replay_one(consumer: Consumer, cursor: Cursor, item: Item) -> Program[Cursor]:
    """Handle one parked operation: it is gone together with what its handler wrote, or stays with the new error."""
    lease_s, own = consumer.options.lease_s, HandlerWrites()
    op = cursors.parked_of(cursor.stream, item).op
    moment = yield from now()
    consumer.handling[cursor.stream] = moment.middle_us
    failed: Exception | None = None
    try:
        yield Call(consumer.handler, (op, own), may_block=True)
        for one in own.writes:
            checked_key(one)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
        failed = error
    finally:
        consumer.handling.pop(cursor.stream, None)
    if failed is None:
        try:
            cursor = yield from cursors.settle_parked(cursor, op.seq, own.writes, lease_s)
            consumer.handled_n += 1
            return cursor
        except (ConditionFailed, Misuse) as error:
            failed = error
    consumer.failed_n += 1
    log_.warning("group %r, stream %r, %d again: %s", consumer.group, cursor.stream, op.seq, in_words(failed))
    return (yield from cursors.park_again(cursor, item, in_words(failed), lease_s))


def _handle_page(consumer: Consumer, cursor: Cursor, page: OpPage, leave: Flag) -> Program[tuple[Cursor, int]]:
    """Handle a page and move the cursor past what went well; then deal with the operation that failed, if one did.

    The second value is 0, or when the writes of several operations were refused together the last one of them: up to
    there each is to be handled alone, so that the one to blame is found.
    """
    lease_s = consumer.options.lease_s
    done, writes, failed = cursor.after, HandlerWrites(), None
    moment = yield from now()
    for op in page.ops:
        own = HandlerWrites()
        consumer.handling[cursor.stream] = moment.middle_us
        try:
            yield Call(consumer.handler, (op, own), may_block=True)
            own_keys = {checked_key(one)[0] for one in own.writes}
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            failed = error
            break
        finally:
            consumer.handling.pop(cursor.stream, None)
        keys = {one.key for one in writes.writes}
        too_many = len(writes.writes) + len(own.writes) >= MAX_TRANSACTION_WRITES
        if done > cursor.after and (too_many or keys & own_keys):
            try:
                cursor = yield from cursors.advance(cursor, done, writes.writes, lease_s, page.mark_at(done))
            except (ConditionFailed, Misuse):
                return cursor, page.ops[-1].seq
            writes = HandlerWrites()
        writes.writes += own.writes
        done = op.seq
        consumer.handled_n += 1
        moment = yield from now()
        if leave.is_set or (cursor.lease_end_us - moment.latest_us) / 1e6 < lease_s * 2 / 3:
            break  # the move of the cursor renews the lease; what the next handler takes is up to the lease's keeper
    try:
        if done > cursor.after:
            past = page.next_after if done == page.ops[-1].seq else done
            cursor = yield from cursors.advance(cursor, past, writes.writes, lease_s, page.mark_at(past))
    except (ConditionFailed, Misuse) as error:
        if len(page.ops) > 1:
            return cursor, page.ops[-1].seq
        failed, op = error, page.ops[0]
    if failed is not None:
        cursor = yield from _failed(consumer, cursor, page, op, failed, leave)
    return cursor, 0


def _failed(
    consumer: Consumer, cursor: Cursor, page: OpPage, op: Op, failed: Exception, leave: Flag
) -> Program[Cursor]:
    """Count a failed attempt, pause; after the last one park the operation, or stop."""
    options = consumer.options
    consumer.failed_n += 1
    error = in_words(failed)
    attempts = cursor.attempts + 1
    before, lease_s = page.mark_at(op.seq - 1), options.lease_s
    log_.warning("group %r, stream %r, %d: attempt %d: %s", consumer.group, cursor.stream, op.seq, attempts, error)
    if attempts < options.attempts_max:
        cursor = yield from cursors.note_failure(cursor, op.seq - 1, error, lease_s, mark=before)
        dice = yield from token()
        return (yield from _pause(cursor, options.retry.pause_s(attempts, dice), lease_s, leave))
    if options.on_poison == "stop":
        return (yield from cursors.note_failure(cursor, op.seq - 1, error, lease_s, mark=before, stop=True))
    consumer.parked_n += 1
    return (yield from cursors.park(cursor, op, error, lease_s, page.mark_at(op.seq)))


def _pause(cursor: Cursor, pause_s: float, lease_s: float, leave: Flag) -> Program[Cursor]:
    """Let a pause pass, unless told to leave, and keep the stream meanwhile."""
    part_s = lease_s / 3
    while pause_s > part_s and not leave.is_set:
        yield from race(leave, timeout_s=part_s)
        pause_s -= part_s
        cursor = yield from cursors.renew(cursor, lease_s)
    if not leave.is_set:
        yield from race(leave, timeout_s=pause_s)
    return cursor
