"""Messages: each is handled once, whoever delivers it and however often."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from casework import (
    AsyncDynamoDBIdempotencyStore,
    MemoryIdempotencyStore,
    Misuse,
    SqsConsumer,
    message_handler,
    sqs_batch,
)
from tests.servers.clients import sqs


def event(*bodies: str, fifo: bool = False, groups: str = "") -> dict[str, Any]:
    records = []
    for n, body in enumerate(bodies):
        attributes = {"MessageGroupId": groups[n] if groups else "g", "SequenceNumber": str(n)} if fifo else {}
        records.append({
            "messageId": f"m-{body}", "body": body, "attributes": attributes, "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders" + (".fifo" if fifo else ""),
        })  # fmt: skip
    return {"Records": records}


def failed(answer: dict[str, Any]) -> list[str]:
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def test_a_batch_delivered_again_is_handled_once() -> None:
    seen: list[str] = []

    @sqs_batch(MemoryIdempotencyStore(), queue="orders")
    def handle(record: Any) -> str:
        seen.append(record["body"])
        return "ignored"

    assert failed(handle(event("a", "b"))) == failed(handle(event("a", "b", "c"))) == []
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize("is_async", [False, True])
def test_only_what_failed_is_reported_and_on_fifo_the_rest_of_its_group(is_async: bool) -> None:
    seen: list[str] = []

    def work(record: Any) -> None:
        seen.append(record["body"])
        if record["body"] == "bad":
            raise ValueError("bad")

    async def work_async(record: Any) -> None:
        await asyncio.sleep(0)
        work(record)

    handle = sqs_batch(MemoryIdempotencyStore(), queue="orders")(work_async if is_async else work)
    assert failed(handle(event("a", "bad", "c"))) == ["m-bad"]
    assert seen == ["a", "bad", "c"]
    seen.clear()
    handle = sqs_batch(MemoryIdempotencyStore(), queue="orders")(work_async if is_async else work)
    assert failed(handle(event("a", "bad", "c", "d", fifo=True, groups="1112"))) == ["m-bad", "m-c"]
    assert seen == ["a", "bad", "d"]
    assert failed(handle(event("bad", "c", fifo=True))) == ["m-bad", "m-c"]
    assert "c" not in seen


class Context:
    def __init__(self, *left_ms: int) -> None:
        self.left_ms = list(left_ms)

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms.pop(0)


def test_no_message_is_begun_without_time_even_when_none_is_left() -> None:
    seen: list[str] = []
    handle = sqs_batch(MemoryIdempotencyStore(), queue="orders")(lambda record: seen.append(record["body"]))
    assert failed(handle(event("a", "b", "c"), Context(5000, 900, 0))) == ["m-b", "m-c"]
    assert seen == ["a"]


def test_a_message_that_another_consumer_has_is_delivered_again_later() -> None:
    store = MemoryIdempotencyStore()
    handler = message_handler(store, queue="orders", key=lambda m: m["id"])(lambda m: None)
    fingerprint = handler._identify({"id": 1})[1]
    store.claim(handler.key_of({"id": 1}), fingerprint, 1, 20)
    handled = handler({"id": 1})
    assert not handled.is_done and 0 < handled.retry_after_s <= 20


def test_two_queues_never_share_a_record_and_a_message_needs_a_key() -> None:
    store, seen = MemoryIdempotencyStore(), []
    one = message_handler(store, queue="one", key=lambda m: m.get("id"))(lambda m: seen.append("one"))
    two = message_handler(store, queue="two", key=lambda m: m.get("id"))(lambda m: seen.append("two"))
    assert (one({"id": 1}).was_before, two({"id": 1}).was_before, two({"id": 1}).was_before) == (False, False, True)
    assert seen == ["one", "two"]
    assert isinstance(one({}).error, Misuse)
    with pytest.raises(Misuse, match="queue"):
        message_handler(store, queue="", key=lambda m: m)(lambda m: None)


def test_a_message_with_the_same_id_and_another_body_is_reported() -> None:
    seen: list[str] = []
    handle = sqs_batch(MemoryIdempotencyStore(), queue="q", key=lambda r: 7)(lambda record: seen.append(record["body"]))
    assert failed(handle(event("a", "b"))) == ["m-b"]
    assert seen == ["a"]


def test_an_async_handler_works_on_dynamodb_batch_after_batch(ministack_url: str, unique: Callable[[str], str]) -> None:
    seen: list[str] = []
    store = AsyncDynamoDBIdempotencyStore(table=unique("keys"), endpoint_url=ministack_url)

    @sqs_batch(store, queue="orders")
    async def handle(record: Any) -> None:
        seen.append(record["body"])

    assert failed(handle(event("a", "b"))) == failed(handle(event("a", "b"))) == []
    assert seen == ["a", "b"]


# --- a real queue ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(ministack_url: str) -> Any:
    client = sqs(ministack_url)
    yield client
    client.close()


def send(client: Any, url: str, *bodies: str, group: str = "g") -> None:
    for body in bodies:
        fifo = {"MessageGroupId": group, "MessageDeduplicationId": body} if url.endswith(".fifo") else {}
        client.send_message(QueueUrl=url, MessageBody=json.dumps(body), **fifo)


def waiting(client: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def test_a_consumer_keeps_the_order_of_a_fifo_queue_and_handles_each_message_once(
    client: Any, unique: Callable[[str], str]
) -> None:
    url = client.create_queue(
        QueueName=unique("orders") + ".fifo", Attributes={"FifoQueue": "true", "VisibilityTimeout": "2"}
    )["QueueUrl"]
    send(client, url, "1", "2", "3")
    seen: list[str] = []

    def work(record: Any) -> None:
        seen.append(json.loads(record["body"]))
        if seen == ["1", "2"]:
            raise ValueError("not yet")

    handler = message_handler(MemoryIdempotencyStore(), queue="orders", key=lambda r: r["messageId"])(work)
    consumer = SqsConsumer(client, url, handler, visibility_s=2, wait_s=1)
    assert consumer.poll_once() == 1
    while waiting(client, url):
        consumer.poll_once()
    assert seen == ["1", "2", "2", "3"]


def test_slow_work_is_kept_from_other_consumers(client: Any, unique: Callable[[str], str]) -> None:
    url = client.create_queue(QueueName=unique("slow"), Attributes={"VisibilityTimeout": "1"})["QueueUrl"]
    send(client, url, "slow")
    seen: list[str] = []
    extended = threading.Event()
    original = client.change_message_visibility_batch

    def counted(**kwargs: Any) -> Any:
        answer = original(**kwargs)
        counted.times += 1  # type: ignore[attr-defined]
        if counted.times == 5:  # type: ignore[attr-defined]
            extended.set()
        return answer

    counted.times = 0  # type: ignore[attr-defined]
    client.change_message_visibility_batch = counted

    def work(record: Any) -> None:
        assert extended.wait(30)  # five thirds of the visibility
        other = client.receive_message(QueueUrl=url, WaitTimeSeconds=0)
        assert "Messages" not in other
        seen.append(record["body"])

    handler = message_handler(MemoryIdempotencyStore(), queue="slow", key=lambda r: r["messageId"])(work)
    assert SqsConsumer(client, url, handler, visibility_s=1, wait_s=1).poll_once() == 1
    assert seen == ['"slow"'] and waiting(client, url) == 0


def test_a_consumer_runs_in_a_thread_until_it_is_stopped(client: Any, unique: Callable[[str], str]) -> None:
    url = client.create_queue(QueueName=unique("thread"))["QueueUrl"]
    done = threading.Event()
    handler = message_handler(MemoryIdempotencyStore(), queue="t", key=lambda r: r["messageId"])(lambda r: done.set())
    with SqsConsumer(client, url, handler, wait_s=1) as consumer:
        send(client, url, "x")
        assert done.wait(30)
    assert consumer.stop.is_set() and waiting(client, url) == 0
