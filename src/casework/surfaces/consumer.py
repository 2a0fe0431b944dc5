"""A polling consumer for SQS, without Lambda: receives, keeps invisible what is under way, deletes what is done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from casework.arguments import check_count, check_instance, check_text
from casework.errors import Misuse
from casework.surfaces.messages import MessageHandler, sqs_group

log = logging.getLogger("casework.idempotency")

BATCH_MAX = 10
"""Messages that SQS hands out at once."""


class SqsConsumer:
    """Receives messages of a queue and handles them one after the other; several consumers may share a queue.

    While messages are under way their invisibility is extended, so that slow work is not delivered to another consumer.
    What fails is made visible again; on a FIFO queue so is the rest of its group, unhandled.

    Args:
        client: a boto3 client for SQS.
        queue_url: the queue.
        handler: of one message, a plain function; messages have the shape of Lambda's records (``body``,
            ``messageId``, ``attributes``).
        visibility_s: invisibility of a message, extended every third of it.
        wait_s: of a long poll, 0 to 20.
        retry_s: a message that failed is visible again after so long.
    """

    def __init__(
        self, client: Any, queue_url: str, handler: MessageHandler[Any], *, visibility_s: int = 30, wait_s: int = 20,
        retry_s: int = 0,
    ) -> None:  # fmt: skip
        check_text("queue_url", queue_url)
        check_instance("handler", handler, MessageHandler, "what casework.message_handler makes")
        if handler.is_async:
            raise Misuse("SqsConsumer runs on a thread; give it a handler that is a plain function")
        check_count("visibility_s", visibility_s, 1, 43_200)
        check_count("wait_s", wait_s, 0, 20)
        check_count("retry_s", retry_s, 0, 43_200)
        self.client, self.queue_url, self.handler = client, queue_url, handler
        self.visibility_s, self.wait_s, self.retry_s = visibility_s, wait_s, retry_s
        self.stop = threading.Event()
        """Set it to end after the batch under way; safe in a signal handler."""
        self._thread: threading.Thread | None = None
        self.is_fifo = queue_url.endswith(".fifo")

    def run(self) -> None:
        """Consume on the calling thread until ``stop`` is set. Errors of SQS are logged, and tried again."""
        while not self.stop.is_set():
            try:
                self.poll_once()
            except Exception:
                log.exception("receiving from %s failed; trying again", self.queue_url)
                self.stop.wait(1.0)

    def poll_once(self) -> int:
        """Receive one batch and handle it; how many messages were deleted."""
        answer = self.client.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=BATCH_MAX, WaitTimeSeconds=self.wait_s,
            VisibilityTimeout=self.visibility_s, AttributeNames=["All"], MessageAttributeNames=["All"],
        )  # fmt: skip
        messages = answer.get("Messages", [])
        if not messages:
            return 0
        under_way = _UnderWay(self, messages)
        deleted = 0
        closed: set[str] = set()
        with under_way:
            for message in messages:
                record = record_of(message, self.is_fifo)
                group = sqs_group(record)
                if group in closed or (self.stop.is_set() and deleted):
                    under_way.give_back(message, 0)
                    continue
                handled = self.handler(record)
                if handled.is_done:
                    self.client.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])
                    under_way.forget(message)
                    deleted += 1
                    continue
                if group is not None:
                    closed.add(group)
                under_way.give_back(message, max(self.retry_s, min(int(handled.retry_after_s), self.visibility_s)))
        return deleted

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="casework-sqs", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop.set()
        if self._thread is not None:
            self._thread.join()


def record_of(message: Mapping[str, Any], is_fifo: bool) -> dict[str, Any]:
    """A received message in the shape of Lambda's records."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message.get("Body", ""),
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": dict(message.get("MessageAttributes", {})),
        "eventSource": "aws:sqs",
        "eventSourceARN": "queue.fifo" if is_fifo else "queue",
    }


class _UnderWay:
    """Keeps the messages of a batch invisible while it is handled."""

    def __init__(self, consumer: SqsConsumer, messages: Sequence[Mapping[str, Any]]) -> None:
        self._consumer = consumer
        self._handles = {str(message["MessageId"]): str(message["ReceiptHandle"]) for message in messages}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._extend, name="casework-visibility", daemon=True)

    def forget(self, message: Mapping[str, Any]) -> None:
        """The message is done with."""
        self._handles.pop(str(message["MessageId"]), None)

    def give_back(self, message: Mapping[str, Any], after_s: int) -> None:
        """Make a message visible again after so many seconds. If that fails, it becomes visible by itself."""
        self.forget(message)
        try:
            self._consumer.client.change_message_visibility(
                QueueUrl=self._consumer.queue_url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=after_s
            )
        except Exception:
            log.warning("message %s could not be given back at once", message["MessageId"], exc_info=True)

    def _extend(self) -> None:
        while not self._ended.wait(self._consumer.visibility_s / 3):
            self.extend_all()

    def extend_all(self) -> None:
        """Extend the invisibility of what is not done yet."""
        entries = [
            {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": self._consumer.visibility_s}
            for n, handle in enumerate(list(self._handles.values()))
        ]
        if not entries:
            return
        try:
            self._consumer.client.change_message_visibility_batch(QueueUrl=self._consumer.queue_url, Entries=entries)
        except Exception:
            log.warning("the visibility of %d messages could not be extended", len(entries), exc_info=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
