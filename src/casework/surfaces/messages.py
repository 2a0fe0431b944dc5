"""Messages: a handler that takes each message once, for any broker, and for SQS batches in AWS Lambda.

Brokers deliver at least once. The handler here says what to do with a message: acknowledge it, because it was handled
now or before, or have it delivered again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from casework.arguments import check_function, check_instance, check_seconds, check_text
from casework.backends.user_calls import is_told_to_end
from casework.errors import InProgress, Misuse, PayloadMismatch, ResultNotKept
from casework.idempotency.codecs import NothingCodec
from casework.idempotency.guarding import Policy
from casework.idempotency.keys import fingerprint_of, identifies, make_key
from casework.kernel.containment import in_words, is_interrupt, text_of
from casework.surfaces.guard import Guard, Hook, Target

M = TypeVar("M")

log = logging.getLogger("casework.idempotency")

KEEP_S = 14 * 86_400.0
"""SQS keeps a message for 14 days at most; after that none can be delivered again."""


class Handled(msgspec.Struct, frozen=True):
    """What is to become of a message."""

    is_done: bool
    """Acknowledge it: it was handled, now or before. Else have it delivered again."""
    was_before: bool = False
    """It had been handled before; the function was not called."""
    error: BaseException | None = None
    """Why it is to be delivered again."""
    retry_after_s: float = 0.0
    """Not before so many seconds, where the broker can do that."""


class MessageHandler(Generic[M]):
    """A function that takes each message once. Made by :func:`message_handler`; call it with a message.

    Args:
        function: handles a message; what it raises has the message delivered again.
        target: where the records are.
        queue: a part of every key: two queues, and two consumers of one topic, never share a record.
        key: of a message.
        payload: of a message; what must be the same under one key.
        policy: how messages are guarded.
        hooks: called with an ``Event`` for everything that happens.
    """

    def __init__(
        self, function: Callable[[M], Any], target: Target, *, queue: str, key: Callable[[M], Any],
        payload: Callable[[M], Any] | None, policy: Policy, hooks: Sequence[Hook] = (),
    ) -> None:  # fmt: skip
        check_text("queue", queue, 500)
        check_function("key", key, "a function of a message")
        if payload is not None:
            check_function("payload", payload, "a function of a message")
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.guard = Guard(target, name=queue, policy=policy, codec=NothingCodec(), hooks=hooks)
        self._key, self._payload = key, payload

    def key_of(self, message: M) -> str:
        """The record's key for a message. Misuse when the message has none."""
        found = self._key(message)
        if not identifies(found):
            raise Misuse(f"{self.guard.name}: a message without a key, {found!r:.80}: {message!r:.120}")
        return make_key("queue", self.guard.name, None, found)

    def _identify(self, message: M) -> tuple[str, str]:
        return self.key_of(message), fingerprint_of(None if self._payload is None else self._payload(message))

    def __call__(self, message: M) -> Handled:
        """Handle a message, unless that was done; never raises an ``Exception``."""
        if self.is_async:
            raise Misuse(f"{self.guard.name}: the handler is a coroutine function; await handle_async(message)")
        ran = False

        def work() -> None:
            nonlocal ran
            ran = True
            self.function(message)

        try:
            key, fingerprint = self._identify(message)
            self.guard.run(key, fingerprint, work)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return self._failed(error)
        return Handled(True, was_before=not ran)

    async def handle_async(self, message: M) -> Handled:
        """As calling it, on an event loop, for a coroutine function."""
        ran = False

        async def work() -> None:
            nonlocal ran
            ran = True
            await self.function(message)

        try:
            key, fingerprint = self._identify(message)
            await self.guard.run_async(key, fingerprint, work)
        except BaseException as error:
            if is_interrupt(error) or is_told_to_end(error):
                raise
            return self._failed(error)
        return Handled(True, was_before=not ran)

    def _failed(self, error: BaseException) -> Handled:
        if isinstance(error, ResultNotKept):
            return Handled(True, was_before=True)
        if isinstance(error, InProgress):
            return Handled(False, error=error, retry_after_s=error.retry_after_s)
        if isinstance(error, PayloadMismatch):
            log.error("%s: %s", self.guard.name, text_of(error))
        else:
            log.warning("%s: a message is to be delivered again: %s", self.guard.name, in_words(error))
        return Handled(False, error=error)


def message_handler(
    target: Target,
    *,
    queue: str,
    key: Callable[[Any], Any],
    payload: Callable[[Any], Any] | None = None,
    lease_s: float = 30.0,
    max_run_s: float = 900.0,
    keep_s: float | None = KEEP_S,
    wait_s: float = 0.0,
    on_unavailable: str = "refuse",
    hooks: Sequence[Hook] = (),
) -> Callable[[Callable[[Any], Any]], MessageHandler[Any]]:
    """A handler of messages of any broker, that takes each message once.

    Args:
        target: an application, an idempotency store, or a function that returns one.
        queue: name of the queue or consumer.
        key: the id of a message: what is the same when it is delivered again, or sent twice.
        payload: what must be the same under one key; None: nothing is compared.
        lease_s: another consumer takes over so long after this one was last heard of.
        max_run_s: the longest that a message may take.
        keep_s: ids are kept so long; longer than the broker may deliver again.
        wait_s: wait so long for another consumer that has the message; by default it is delivered again later.
        on_unavailable: ``refuse`` (deliver again) or ``run`` (unprotected).
        hooks: called with an ``Event`` for everything that happens.
    """  # fmt: skip
    policy = Policy(lease_s=lease_s, max_run_s=max_run_s, keep_s=keep_s, wait_s=wait_s, on_unavailable=on_unavailable)

    def decorate(function: Callable[[Any], Any]) -> MessageHandler[Any]:
        return MessageHandler(function, target, queue=queue, key=key, payload=payload, policy=policy, hooks=hooks)

    return decorate


# --- SQS --------------------------------------------------------------------------------------------------------------

Record = Mapping[str, Any]


def sqs_key(record: Record) -> Any:
    """The id that SQS gave to a message: the same for every delivery, another for every sending.

    Not the deduplication id: it may be a digest of the body, and the same body, sent again on purpose, would be lost.
    """
    return record.get("messageId") or record.get("MessageId")


def sqs_group(record: Record) -> str | None:
    """The group of a message of a FIFO queue; None on a standard queue."""
    attributes = record.get("attributes") or record.get("Attributes") or {}
    group: str | None = attributes.get("MessageGroupId")
    is_fifo = str(record.get("eventSourceARN", "")).endswith(".fifo") or "SequenceNumber" in attributes
    return group if is_fifo else None


class SqsBatch:
    """A handler for AWS Lambda: takes an SQS event, standard or FIFO, and reports which messages failed.

    The event source mapping needs ``ReportBatchItemFailures``. On a FIFO queue the messages of a group behind one that
    failed are not handled, and reported too, so that their order stays.

    Args:
        handler: of one message.
        stop_before_s: with less than this left of the function's time no further message is begun.
    """

    def __init__(self, handler: MessageHandler[Any], *, stop_before_s: float = 1.0) -> None:
        check_instance("handler", handler, MessageHandler, "what casework.message_handler makes")
        check_seconds("stop_before_s", stop_before_s, 0, 900)
        self.handler = handler
        self.stop_before_s = stop_before_s

    def __call__(self, event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """Handle a batch; the answer that Lambda expects. A coroutine handler runs under ``asyncio.run``."""
        if self.handler.is_async:
            import asyncio

            return asyncio.run(self._run_and_close(event, context))
        return self._report(self._each(event, context))

    async def _run_and_close(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        try:
            return await self.handle_async(event, context)
        finally:
            close_loop = getattr(self.handler.guard.store, "close_loop", None)
            if close_loop is not None:  # each batch has a loop of its own, and so a client of its own
                await close_loop()

    async def handle_async(self, event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """As calling it, on a running loop."""
        failed: list[str] = []
        closed: set[str] = set()
        for record in _records_of(event):
            if self._is_left(record, closed, context):
                failed.append(record["messageId"])
                continue
            if not (await self.handler.handle_async(record)).is_done:
                self._close(record, closed)
                failed.append(record["messageId"])
        return self._report(failed)

    def _each(self, event: Mapping[str, Any], context: Any) -> list[str]:
        failed: list[str] = []
        closed: set[str] = set()
        for record in _records_of(event):
            if self._is_left(record, closed, context):
                failed.append(record["messageId"])
                continue
            if not self.handler(record).is_done:
                self._close(record, closed)
                failed.append(record["messageId"])
        return failed

    def _is_left(self, record: Record, closed: set[str], context: Any) -> bool:
        """Whether a message is not even begun: its group has failed, or no time is left."""
        if sqs_group(record) in closed:
            return True
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        if remaining is not None and remaining() < self.stop_before_s * 1000:
            self._close(record, closed)
            return True
        return False

    def _close(self, record: Record, closed: set[str]) -> None:
        group = sqs_group(record)
        if group is not None:
            closed.add(group)

    def _report(self, failed: list[str]) -> dict[str, Any]:
        return {"batchItemFailures": [{"itemIdentifier": id} for id in failed]}


def _records_of(event: Mapping[str, Any]) -> Sequence[Record]:
    records = event.get("Records")
    if not isinstance(records, Sequence):
        raise Misuse(f"{event!r:.120} is no event of an SQS queue: it has no Records")
    return records


def sqs_batch(
    target: Target, *, queue: str, key: Callable[[Record], Any] = sqs_key, stop_before_s: float = 1.0, **options: Any
) -> Callable[[Callable[[Record], Any]], SqsBatch]:
    """A Lambda handler for an SQS queue, of a function that handles one record.

    Args:
        target: an application, an idempotency store, or a function that returns one.
        queue: name of the queue.
        key: of a record; by default its message id. Take an id of the business from the body, or the deduplication id
            that your senders choose, where the same thing may be sent as two messages.
        stop_before_s: with less than this left of the function's time no further message is begun.
        options: those of :func:`message_handler`.
    """

    def decorate(function: Callable[[Record], Any]) -> SqsBatch:
        options.setdefault("payload", lambda record: record.get("body"))
        return SqsBatch(message_handler(target, queue=queue, key=key, **options)(function), stop_before_s=stop_before_s)

    return decorate
