"""The combining writer: concurrent appends of one process to one stream share transactions.

Each call stands in the stream's lane. One of the callers at a time has the seat and stores the front of the queue for
all; whoever comes meanwhile waits, and goes with the next transaction. There is no thread or task of the writer's own:
when nobody appends, nothing runs. The programs need a driver that knows ``Race`` over flags, which both have.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence

from casework.arguments import check_seconds
from casework.errors import AppendStopped, AppendTimeout
from casework.kernel.effects import Flag
from casework.kernel.programs import Program, now, race, sleep
from casework.streams.append import Appending, Pending, answers, check_expected, checked
from casework.streams.log import BATCH_OPS_MAX, Appended, Log, Op

QUEUE_CALLS_MAX = 1000
"""So many calls of one stream wait at most; further ones wait at the door."""

LANES_MAX = 1000
"""Streams that nobody appends to now are remembered up to so many."""

TURNS = 10
"""A leader lets others have so many turns before it takes what waits, when the last transaction had more callers."""


class _Entry:
    """One call in a lane."""

    __slots__ = ("deadline_us", "done", "error", "flag", "is_put", "pendings")

    def __init__(self, pendings: list[Pending], deadline_us: int | None, *, is_put: bool = False) -> None:
        self.is_put = is_put  # nobody waits for it
        self.pendings = pendings
        self.deadline_us = deadline_us
        self.flag = Flag()
        self.done = False
        self.error: BaseException | None = None

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done = True
        self.flag.set()

    def stored(self) -> list[Appended]:
        return [pending.outcome for pending in self.pendings if pending.outcome is not None]


class _Lane:
    """Those who append to one stream. Deques only: their ends are safe to use from several threads."""

    def __init__(self) -> None:
        self.queue: collections.deque[_Entry] = collections.deque()
        self.seat: collections.deque[None] = collections.deque([None])
        self.door: collections.deque[Flag] = collections.deque()
        self.last_group = 1
        self.work: Appending | None = None
        self.broken: BaseException | None = None
        """What a put failed with: those behind it are not stored either, until a flush has said so."""


class Writer:
    """What the callers of one process share. Safe to use from several threads, or from the tasks of one loop.

    Args:
        log: what this process knows of its streams.
        queue_max: calls of one stream that wait at most; more are held back.
    """

    def __init__(self, log: Log, *, queue_max: int = QUEUE_CALLS_MAX) -> None:
        self.log = log
        self.queue_max = queue_max
        self._lanes: dict[str, _Lane] = {}
        self._failed: collections.deque[BaseException] = collections.deque()

    def lane(self, stream: str) -> _Lane:
        """The lane of a stream."""
        return self._lanes.setdefault(stream, _Lane())

    def append(
        self,
        stream: str,
        ops: Sequence[Op],
        *,
        deadline_s: float | None = None,
        expected_seq: int | None = None,
        shown: list[Pending] | None = None,
    ) -> Program[list[Appended]]:
        """Store operations as :func:`casework.streams.append.append` does, together with those of other callers.

        Returns when they are stored; arguments and errors are the same. After a cancellation they may be stored.
        Those with an ``expected_seq`` go alone, in one transaction. ``shown`` is given the operations, so that another
        task can see how far they are.
        """
        if deadline_s is not None:
            check_seconds("deadline_s", deadline_s)
        pendings = checked(stream, ops)
        if expected_seq is not None:
            check_expected(stream, pendings, expected_seq)
        if shown is not None:
            shown += pendings
        deadline_us = None
        if deadline_s is not None:
            moment = yield from now()
            deadline_us = moment.middle_us + round(deadline_s * 1e6)
        if expected_seq is not None:
            work = Appending(self.log, stream, pendings, expected_seq=expected_seq)
            yield from work.run(deadline_us=deadline_us)
            return answers(pendings)
        lane, entry = self.lane(stream), _Entry(pendings, deadline_us)
        yield from self._enter(stream, lane, entry)
        yield from self._wait(stream, lane, entry)
        self._let_go(stream, lane)
        if entry.error is not None:
            raise entry.error
        return answers(pendings)

    def _let_go(self, stream: str, lane: _Lane) -> None:
        """Forget a lane in which nobody is, where many are known."""
        is_idle = not lane.queue and not lane.door and lane.seat and lane.work is None and lane.broken is None
        if is_idle and len(self._lanes) > LANES_MAX and self._lanes.get(stream) is lane:
            self._lanes.pop(stream, None)

    def put(self, stream: str, ops: Sequence[Op]) -> Program[None]:
        """Put operations behind those that wait, and return; :meth:`flush` stores them and raises what went wrong.

        What is put behind something that could not be stored is not stored either, so that whoever puts again what
        was not flushed keeps its order; an operation whose id is taken by other content holds nothing up. When a
        transaction's worth waits, this call stores it, so that what waits in memory is bounded.
        """
        entry = _Entry(checked(stream, ops), None, is_put=True)
        lane = self.lane(stream)
        yield from self._enter(stream, lane, entry)
        is_forgotten = self._lanes.get(stream) is not lane  # let go in this very moment: no flush will find it
        is_full = sum(len(waiting.pendings) for waiting in tuple(lane.queue)) >= BATCH_OPS_MAX
        if (is_forgotten or is_full) and _take_seat(lane):
            yield from self._lead(stream, lane)

    def flush(self) -> Program[None]:
        """Wait until all that was put before is stored; raises the first error among them, to one caller."""
        for stream, lane in tuple(self._lanes.items()):
            entry = _Entry([], None)
            lane.queue.append(entry)
            yield from self._wait(stream, lane, entry)
            if entry.error is not None:
                raise entry.error
        if self._failed:
            error = self._failed.popleft()
            self._failed.clear()
            for lane in tuple(self._lanes.values()):
                lane.broken = None
            raise error

    def _enter(self, stream: str, lane: _Lane, entry: _Entry) -> Program[None]:
        """Stand in the queue; at the door first while it is full."""
        while len(lane.queue) >= self.queue_max:
            if _take_seat(lane):
                yield from self._lead(stream, lane)
                continue
            entry.flag.clear()
            lane.door.append(entry.flag)
            try:
                if len(lane.queue) >= self.queue_max:
                    yield from race(entry.flag)
            except BaseException:
                if entry.flag.is_set:  # the place that was meant for it goes to somebody else
                    self._open_door(lane, 1)
                raise
            finally:
                if not entry.flag.is_set:  # else it was taken out by whoever woke it
                    with contextlib.suppress(ValueError):
                        lane.door.remove(entry.flag)
        lane.queue.append(entry)

    def _open_door(self, lane: _Lane, places_n: int) -> None:
        """Let so many in: waking all for a few places costs the more the more wait."""
        for _ in range(places_n):
            try:
                lane.door.popleft().set()
            except IndexError:
                return

    def _wait(self, stream: str, lane: _Lane, entry: _Entry) -> Program[None]:
        """Until the entry is done: by whoever has the seat, or by this caller when it gets it."""
        try:
            while True:
                entry.flag.clear()
                if entry.done:
                    return
                if _take_seat(lane):
                    yield from self._lead(stream, lane, entry)
                    continue
                timeout_s = None
                if entry.deadline_us is not None:
                    moment = yield from now()
                    timeout_s = (entry.deadline_us - moment.middle_us) / 1e6
                    if timeout_s <= 0:
                        self._leave(stream, lane, entry)
                        return
                yield from race(entry.flag, timeout_s=timeout_s)
        except BaseException:
            # The caller goes: a wake-up that was meant for it must reach somebody else.
            entry.done = True
            with contextlib.suppress(ValueError):
                lane.queue.remove(entry)
            _wake_next(lane)
            raise

    def _leave(self, stream: str, lane: _Lane, entry: _Entry) -> None:
        """Give up waiting at the deadline; what is in flight may still be stored."""
        with contextlib.suppress(ValueError):  # it is not there while somebody is storing it
            lane.queue.remove(entry)
        entry.finish(self.timeout(stream, entry.pendings))

    def timeout(self, stream: str, pendings: Sequence[Pending]) -> AppendTimeout:
        """The error of a caller whose deadline has passed, with what is stored of its operations and what may be."""
        work = self.lane(stream).work
        in_flight = set(work.in_flight) if work is not None else set()
        unknown = [pending.op.id for pending in pendings if pending in in_flight and not pending.is_settled]
        stored = [pending.outcome for pending in pendings if pending.outcome is not None]
        return AppendTimeout(
            f"stream {stream!r}: the deadline passed; {len(stored)} of {len(pendings)} operations are stored. "
            "Append the same again: what is stored is answered with its own number",
            stored,
            unknown,
        )

    def _lead(self, stream: str, lane: _Lane, own: _Entry | None = None) -> Program[None]:
        """Having the seat, store the front of the queue for all; with ``own``, until that is done."""
        try:
            # Those whom the last transaction released come back about now, and can go with this one.
            for _ in range(TURNS):
                if len(lane.queue) >= lane.last_group:
                    break
                yield from sleep(0)
            while True:
                yield from self._store_front(stream, lane, own)
                if own is None or own.done or not lane.queue:
                    return
        finally:
            lane.seat.append(None)
            _wake_next(lane)

    def _store_front(self, stream: str, lane: _Lane, own: _Entry | None) -> Program[None]:
        group = self._without_broken(lane, self._take_group(lane))

        def more(waiting: int) -> list[Pending]:
            """Who came while this round was prepared goes with it."""
            joined = self._without_broken(lane, self._take_group(lane, waiting))
            group.extend(joined)
            return [pending for entry in joined for pending in entry.pendings]

        pendings = [pending for entry in group for pending in entry.pendings]
        lane.work = Appending(self.log, stream, pendings, more)
        error: BaseException | None = None
        try:
            if pendings:
                yield from lane.work.run(deadline_us=own.deadline_us if own is not None else None)
        except AppendTimeout as timeout:
            error = timeout
        except Exception as raised:  # noqa: BLE001 - it belongs to every caller of the group
            error = raised
        except BaseException:
            self._put_back(lane, group)
            raise
        finally:
            lane.work = None
        lane.last_group = len(group)
        left = []
        for entry in group:
            if all(pending.is_settled for pending in entry.pendings):
                entry.finish()
            elif isinstance(error, AppendTimeout) and entry is not own:
                left.append(entry)  # it was not this caller's deadline
            else:
                entry.finish(_own_error(error, entry))
            if entry.is_put and entry.done:
                self._note_failure(entry)
                lane.broken = lane.broken or entry.error
        self._put_back(lane, left)

    def _without_broken(self, lane: _Lane, group: list[_Entry]) -> list[_Entry]:
        """The group without what was put behind something that failed, which fails, too."""
        if lane.broken is None:
            return group
        for entry in group:
            if entry.is_put:
                entry.finish(lane.broken)
                self._note_failure(entry)
        return [entry for entry in group if not entry.done]

    def _note_failure(self, entry: _Entry) -> None:
        """Keep the error of an entry for which nobody waits, until the next flush."""
        error = entry.error or (entry.pendings[0].call.refused if entry.pendings else None)
        if error is not None and len(self._failed) < self.queue_max:
            self._failed.append(error)

    def _take_group(self, lane: _Lane, size: int = 0) -> list[_Entry]:
        """The front of the queue, up to a transaction's worth of operations, of which ``size`` are there already."""
        group: list[_Entry] = []
        while lane.queue and (not size or size + len(lane.queue[0].pendings) <= BATCH_OPS_MAX):
            try:
                entry = lane.queue.popleft()
            except IndexError:
                break
            if entry.done:
                continue
            group.append(entry)
            size += len(entry.pendings)
        self._open_door(lane, self.queue_max - len(lane.queue))
        return group

    def _put_back(self, lane: _Lane, entries: Sequence[_Entry]) -> None:
        for entry in reversed(entries):
            if not entry.done:
                lane.queue.appendleft(entry)


def _take_seat(lane: _Lane) -> bool:
    try:
        lane.seat.pop()
    except IndexError:
        return False
    return True


def _wake_next(lane: _Lane) -> None:
    """The seat is free: let the first who waits for it look."""
    for position in range(len(lane.queue)):
        try:
            waiting = lane.queue[position]
        except IndexError:  # another thread took it
            return
        if not waiting.is_put:
            waiting.flag.set()
            return


def _own_error(error: BaseException | None, entry: _Entry) -> BaseException:
    """The group's error as it concerns one of its callers."""
    assert error is not None
    if not isinstance(error, AppendStopped):
        return error
    ids = {pending.op.id for pending in entry.pendings}
    return type(error)(str(error), entry.stored(), [id for id in error.unknown if id in ids])
