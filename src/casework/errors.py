"""Every error that casework raises on purpose.

One root, :class:`CaseworkError`. The classes below it answer the two questions a caller has: whose fault is it,
and what can I do? ``Misuse`` is the caller's fault and is raised before anything was written. The store's outcomes
(``ConditionFailed`` to ``OutcomeUnknown``) say exactly how much is known about a write. The rest are named for what
the caller can do about them.

This module imports nothing from casework, so that every layer may raise these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class CaseworkError(Exception):
    """Root of all errors of casework."""


# --- the caller's fault: raised before anything was written -----------------------------------------------------


class Misuse(CaseworkError):
    """The call cannot work as it was made; nothing was written. The message shows the value and how to fix it."""


class ItemTooLarge(Misuse):
    """An item, or a transaction, is over a documented limit of the store; nothing was written."""


class MissingExtra(Misuse):
    """A part of casework needs a package that is not installed; the message names the ``pip install`` for it."""


class NotJson(Misuse):
    """A context, payload, input or result holds a value that JSON cannot hold unchanged; names the path to it."""


class InvalidMachine(Misuse):
    """A machine's definition is wrong. ``problems`` lists every one found, each with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class UnknownEvent(Misuse):
    """No state of the machine mentions this event; the message lists those that it knows."""


class UnknownMachine(Misuse):
    """No machine of this name was given to ``open``; the message lists those that were."""


class NoSuchExecution(Misuse):
    """There is no execution with this id in the store."""


class ExecutionExists(Misuse):
    """The id is taken by an execution that was started with another machine or other input."""


class TaskNotClaimed(Misuse):
    """The token does not belong to a task that is running: it was finished, was taken over, or its state was left."""


class OpIdReused(Misuse):
    """An operation's id is in the stream already, with other content; that operation was not stored.

    ``id`` is the operation's, ``seq`` the number of the one that has it (0: an earlier one of the same call).
    ``stored`` holds what became of the operations before it.
    """

    def __init__(self, id: str, seq: int, stored: Sequence[Any] = ()) -> None:
        self.id, self.seq, self.stored = id, seq, tuple(stored)
        where = f"at {seq}" if seq else "in the same call"
        super().__init__(f"operation id {id!r} is taken {where} by other content; give the new operation its own id")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.seq, self.stored)


class CursorAhead(Misuse):
    """A reader's cursor is above everything in the stream: it belongs to another stream, or the store was restored."""


class WrongCursor(Misuse):
    """A page's cursor that is none, or one of another query; begin again without it."""


# --- the store's outcomes -----------------------------------------------------------------------------------------


class StoreError(CaseworkError):
    """A store did not do what it was asked; the subclass says how much is known."""


class Refusal(NamedTuple):
    """Why one write of a request was refused."""

    why: str
    """``condition``, ``conflict``, ``throttled``, ``too_large`` or ``invalid``."""
    item: Mapping[str, Any] | None
    """The item that refused it (``condition`` only); None where there is none."""


class ConditionFailed(StoreError):
    """At least one condition did not hold, so nothing was written. Final: nothing was repeated before it.

    ``refusals`` stands position by position beside the writes of the request; None for a write that was fine.
    """

    def __init__(self, refusals: Sequence[Refusal | None], message: str = "") -> None:
        self.refusals = tuple(refusals)
        super().__init__(message or f"condition failed for write {[i for i, r in enumerate(self.refusals) if r]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusals, str(self))


class TransactionRefused(ConditionFailed):
    """A part of ``app.transaction()`` was refused, so nothing of it was written.

    ``intent`` says which one, in words; ``refusals`` stand beside the writes of that part.
    """

    def __init__(self, intent: str, refusals: Sequence[Refusal | None], why: str = "") -> None:
        self.intent, self._why = intent, why
        reason = f" ({why})" if why else ""
        super().__init__(refusals, f"{intent} was refused{reason}, so nothing of the transaction was written")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.intent, self.refusals, self._why)


class Contention(StoreError):
    """Another transaction held the same items; nothing was written. Trying again can succeed."""


class Throttled(StoreError):
    """The store asked for a slower pace; nothing was written. Trying again later can succeed."""


class Unavailable(StoreError):
    """The store could not be reached or could not work; nothing was written."""


class CodecFailed(Unavailable):
    """The codec that was given to ``open`` could not encode; nothing was written. A worker tries it again later."""


class OutcomeUnknown(StoreError):
    """The answer to a write was lost: it may have been applied or not, and nothing in the store tells which."""


class MissingTable(StoreError):
    """The store has no table of that name; ``casework dynamodb create`` or ``open(..., create=True)`` makes them."""


class CorruptItem(StoreError):
    """A stored item cannot be read. It is listed, never hidden, and never overwritten except by a repair."""


class ResultLost(CorruptItem):
    """A completed idempotency record misses a part of its result. It is not run again; purge the key to allow that."""


class NewerFormat(CorruptItem):
    """A stored item was written by a newer casework. It is left as it is; upgrade this process."""


class StreamDamaged(CorruptItem):
    """A stream has a hole that stays, or segments that overlap: deletion, or a bad restore.

    ``casework streams repair`` shows what is wrong and can mark a hole as lost, so that readers pass it.
    """


class StreamFull(StoreError):
    """The stream's head is at the largest integer; nothing was written. Begin another stream."""


class StoreConflict(StoreError):
    """``commit`` found another version than the caller had loaded; nothing was written. Load again and decide."""

    def __init__(self, id: str, expected: int | None, found: int | None) -> None:
        self.id, self.expected, self.found = id, expected, found
        super().__init__(f"execution {id!r:.200}: expected version {expected}, found {found}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.expected, self.found)


class AlreadyProcessed(StoreConflict):
    """``commit`` was given an event that the execution has processed before; nothing was written. Drop the event."""

    def __init__(self, id: str, version: int | None, event_id: str) -> None:
        super().__init__(id, version, version)
        self.event_id = event_id
        self.args = (f"execution {id!r:.200} has processed event {event_id!r} already",)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.expected, self.event_id)


# --- what can happen while a machine runs -------------------------------------------------------------------------


class WaitTimeout(CaseworkError, TimeoutError):
    """The execution did not end within the time given to ``wait``; it goes on."""


class StepLimit(CaseworkError):
    """A machine took more microsteps for one event than its bound, or a program more steps than its limit."""


class CursorTooOld(CaseworkError):
    """A reader asked for operations that were truncated.

    Go on from the snapshot (``snapshot_seq``, 0: there is none) or, knowing that operations are missed, from
    ``floor_seq``.
    """

    def __init__(self, stream: str, after: int, floor_seq: int, snapshot_seq: int) -> None:
        self.stream, self.after, self.floor_seq, self.snapshot_seq = stream, after, floor_seq, snapshot_seq
        way = (
            f"load the snapshot at {snapshot_seq} and read after it" if snapshot_seq >= floor_seq else
            f"there is no snapshot; read after {floor_seq}, knowing that what was before is gone"
        )  # fmt: skip
        super().__init__(f"stream {stream!r} was truncated up to {floor_seq}, the cursor is {after}: {way}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stream, self.after, self.floor_seq, self.snapshot_seq)


class LogChanged(CaseworkError):
    """A reader's position is not one of this log: the store was restored from a backup, or the stream was made again.

    What was read up to ``after`` is not, or not all, in the stream now, which ends at ``last_seq``. Find the last
    position whose mark the stream still gives, and go on from there; a replica does so by itself.
    """

    def __init__(self, stream: str, after: int, last_seq: int) -> None:
        self.stream, self.after, self.last_seq = stream, after, last_seq
        what = f"it ends at {last_seq}" if last_seq < after else f"another operation stands at {after}"
        super().__init__(
            f"stream {stream!r} is not the log that was read up to {after}: {what}. Was the store restored from a "
            "backup, or the stream made again? Find the last position in common and read on from there"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stream, self.after, self.last_seq)


class UnexpectedSeq(CaseworkError):
    """A stream does not end where an append expected it to end: somebody else appended. Nothing was stored.

    Read what is new behind ``expected_seq``, decide again, and append with the number of the last operation read.
    ``last_seq`` is where the stream ends.
    """

    def __init__(self, stream: str, expected_seq: int, last_seq: int) -> None:
        self.stream, self.expected_seq, self.last_seq = stream, expected_seq, last_seq
        super().__init__(
            f"stream {stream!r} ends at {last_seq}, not at {expected_seq} as expected; nothing was stored. Read what "
            "is new, decide again, and append with the number of the last operation that you have read"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stream, self.expected_seq, self.last_seq)


class AppendStopped(CaseworkError):
    """An append ended before all was stored. ``stored`` says what was, ``unknown`` holds ids that may have been.

    Append the same operations again: what is stored is answered with its own sequence number.
    """

    def __init__(self, message: str, stored: Sequence[Any] = (), unknown: Sequence[str] = ()) -> None:
        self.stored, self.unknown = tuple(stored), tuple(unknown)
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.stored, self.unknown)


class AppendTimeout(AppendStopped, TimeoutError):
    """The append's deadline passed."""


class AppendContention(AppendStopped, Contention):
    """Other writers won too many rounds in a row; route a stream to one process."""


class AppendUnknown(AppendStopped, OutcomeUnknown):
    """The answer to the last round was lost, again and again; ``unknown`` may have been stored."""


class TaskFailed(CaseworkError):
    """Raise it in a task to fail for good: no retry, the message becomes the error event's ``message``.

    ``retry=True`` asks for a retry by the task's policy, as any other exception does.
    """

    def __init__(self, message: str, *, retry: bool = False) -> None:
        self.retry = retry
        super().__init__(message)


class PayloadMismatch(CaseworkError):
    """The idempotency key was used before with another payload. Nothing was run; use a new key for a new request."""


class InProgress(CaseworkError):
    """Somebody else holds the idempotency key, and did not end within the time to wait. Try again later.

    ``retry_after_s`` says when the holder's lease ends at the latest, as far as it is known.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.retry_after_s)


class ResultNotKept(CaseworkError):
    """The operation was performed, but its result could not be stored; it is not performed a second time."""


class RememberedError(CaseworkError):
    """The first call raised an error that was remembered, but its class cannot be made again here.

    ``type_name`` is the class's name; the text is that of the first error.
    """

    def __init__(self, message: str, type_name: str) -> None:
        self.type_name = type_name
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.type_name)


class LeaseLost(CaseworkError):
    """The work went on past its lease and somebody else took over; what it does now is not recorded."""
