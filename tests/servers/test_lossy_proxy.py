"""The proxy loses what it is told to lose, and nothing else: checked against ministack with both SDKs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.servers.clients import create_table, dynamodb, dynamodb_async
from tests.servers.lossy_proxy import LossyProxy

ABSENT = "attribute_not_exists(id)"


@pytest.fixture
def table(ministack_url: str, unique: Callable[[str], str]) -> str:
    return create_table(dynamodb(ministack_url), unique("proxied"))


@pytest.fixture
def stored(ministack_url: str, table: str) -> Callable[[str], str | None]:
    """What the server really holds, read past the proxy."""
    client = dynamodb(ministack_url)

    def read(id: str) -> str | None:
        found = client.get_item(TableName=table, Key={"id": {"S": id}}, ConsistentRead=True).get("Item")
        return found and found["value"]["S"]

    return read


def put(table: str, id: str, value: str = "1", **more: Any) -> dict[str, Any]:
    return {"TableName": table, "Item": {"id": {"S": id}, "value": {"S": value}}, **more}


def test_without_rules_it_only_counts_and_keeps_the_connection(lossy_proxy: LossyProxy, table: str) -> None:
    client = dynamodb(lossy_proxy.url)
    for n in range(5):
        client.put_item(**put(table, str(n)))
    assert len(client.scan(TableName=table)["Items"]) == 5
    assert lossy_proxy.received == {"PutItem": 5, "Scan": 1}
    assert lossy_proxy.applied == lossy_proxy.received
    assert lossy_proxy.requests[0].json["Item"]["id"] == {"S": "0"}


def test_a_put_whose_answer_is_dropped_is_stored(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    lossy_proxy.on("PutItem").drop_answer()
    with pytest.raises(ConnectionClosedError):
        dynamodb(lossy_proxy.url, max_attempts=1).put_item(**put(table, "a"))
    assert stored("a") == "1"
    assert lossy_proxy.applied["PutItem"] == 1


def test_the_sdk_repeats_a_lost_put_and_is_refused_by_its_own_first_attempt(
    lossy_proxy: LossyProxy, table: str, stored: Any
) -> None:
    lossy_proxy.on("PutItem").drop_answer()
    with pytest.raises(ClientError, match="ConditionalCheckFailed") as refused:
        dynamodb(lossy_proxy.url).put_item(**put(table, "a", ConditionExpression=ABSENT))
    assert refused.value.response["ResponseMetadata"]["RetryAttempts"] == 1
    assert stored("a") == "1"
    assert lossy_proxy.applied["PutItem"] == 2


def test_the_async_sdk_repeats_a_lost_put_too(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    lossy_proxy.on("PutItem").drop_answer()

    async def write() -> None:
        async with dynamodb_async(lossy_proxy.url) as client:
            with pytest.raises(ClientError, match="ConditionalCheckFailed"):
                await client.put_item(**put(table, "a", ConditionExpression=ABSENT))
            await client.put_item(**put(table, "b"))
            await asyncio.gather(*(client.put_item(**put(table, f"c{n}")) for n in range(10)))

    asyncio.run(write())
    assert stored("a") == stored("b") == stored("c9") == "1"
    assert lossy_proxy.applied["PutItem"] == 13


def test_a_dropped_request_never_reaches_the_server(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    rule = lossy_proxy.on("PutItem").drop_request()
    client = dynamodb(lossy_proxy.url, max_attempts=1)
    with pytest.raises(ConnectionClosedError):
        client.put_item(**put(table, "a"))
    assert stored("a") is None
    assert (rule.acted, lossy_proxy.received["PutItem"], lossy_proxy.applied["PutItem"]) == (1, 1, 0)
    client.put_item(**put(table, "a"))
    assert stored("a") == "1"


def test_the_sdk_does_not_repeat_a_transaction_cancelled_by_a_conflict(lossy_proxy: LossyProxy, table: str) -> None:
    lossy_proxy.on("TransactWriteItems").transaction_conflict()
    client = dynamodb(lossy_proxy.url)
    request = {"TransactItems": [{"Put": put(table, "a")}, {"Put": put(table, "b")}]}
    with pytest.raises(client.exceptions.TransactionCanceledException) as cancelled:
        client.transact_write_items(**request)
    assert [one["Code"] for one in cancelled.value.response["CancellationReasons"]] == ["TransactionConflict", "None"]
    client.transact_write_items(**request)
    assert lossy_proxy.received["TransactWriteItems"] == 2
    assert lossy_proxy.applied["TransactWriteItems"] == 1


def test_a_transaction_whose_answer_is_lost_is_resolved_by_its_token(
    lossy_proxy: LossyProxy, table: str, stored: Any
) -> None:
    lossy_proxy.on("TransactWriteItems").drop_answer()
    answer = dynamodb(lossy_proxy.url).transact_write_items(
        TransactItems=[{"Put": put(table, "a", ConditionExpression=ABSENT)}]
    )
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert lossy_proxy.applied["TransactWriteItems"] == 2
    assert stored("a") == "1"


@pytest.mark.parametrize(
    ("method", "code", "status"),
    [
        ("transaction_conflict", "TransactionConflictException", 400),
        ("throttle", "ThrottlingException", 400),
        ("provisioned_throughput_exceeded", "ProvisionedThroughputExceededException", 400),
        ("server_error", "InternalServerError", 500),
    ],
)
def test_made_up_errors_of_a_plain_write_reach_the_sdk_and_not_the_server(
    lossy_proxy: LossyProxy, table: str, stored: Any, method: str, code: str, status: int
) -> None:
    getattr(lossy_proxy.on("PutItem"), method)()
    client = dynamodb(lossy_proxy.url, max_attempts=1)
    with pytest.raises(ClientError) as error:
        client.put_item(**put(table, "a"))
    assert error.value.response["Error"]["Code"] == code
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert stored("a") is None


@pytest.mark.parametrize(
    ("method", "reason"),
    [("throttle", "ThrottlingError"), ("provisioned_throughput_exceeded", "ProvisionedThroughputExceeded")],
)
def test_a_throttled_transaction_is_cancelled_with_the_reason_by_position(
    lossy_proxy: LossyProxy, table: str, method: str, reason: str
) -> None:
    getattr(lossy_proxy.on("TransactWriteItems"), method)()
    client = dynamodb(lossy_proxy.url, max_attempts=1)
    with pytest.raises(client.exceptions.TransactionCanceledException) as cancelled:
        client.transact_write_items(TransactItems=[{"Put": put(table, "a")}, {"Put": put(table, "b")}])
    assert [one["Code"] for one in cancelled.value.response["CancellationReasons"]] == [reason, "None"]


def test_a_transaction_in_progress_is_named(lossy_proxy: LossyProxy, table: str) -> None:
    lossy_proxy.on("TransactWriteItems").transaction_in_progress()
    client = dynamodb(lossy_proxy.url, max_attempts=1)
    with pytest.raises(client.exceptions.TransactionInProgressException):
        client.transact_write_items(TransactItems=[{"Put": put(table, "a")}])


def test_an_error_after_the_write_was_applied_leaves_it_stored(
    lossy_proxy: LossyProxy, table: str, stored: Any
) -> None:
    lossy_proxy.on("PutItem").server_error_after_applying()
    with pytest.raises(ClientError, match="InternalServerError"):
        dynamodb(lossy_proxy.url, max_attempts=1).put_item(**put(table, "a"))
    assert stored("a") == "1"


def test_a_rule_takes_the_nth_request_that_matches_and_is_then_spent(
    lossy_proxy: LossyProxy, table: str, stored: Any
) -> None:
    rule = lossy_proxy.on("PutItem", nth=2, times=2, when=lambda body: b'"late' in body).drop_request()
    client = dynamodb(lossy_proxy.url, max_attempts=1)
    outcomes = []
    for id in ["late-1", "other", "late-2", "late-3", "late-4"]:
        try:
            client.put_item(**put(table, id))
        except ConnectionClosedError:
            outcomes.append((id, "lost"))
        else:
            outcomes.append((id, "stored"))
    assert outcomes == [
        ("late-1", "stored"),
        ("other", "stored"),
        ("late-2", "lost"),
        ("late-3", "lost"),
        ("late-4", "stored"),
    ]
    assert (rule.matched, rule.acted) == (4, 2)
    assert stored("late-2") is None
    lossy_proxy.clear()
    assert lossy_proxy.received == {}


def test_an_answer_is_held_until_the_test_releases_it(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    held = lossy_proxy.on("PutItem").hold_answer()
    answered = threading.Event()

    def write() -> None:
        dynamodb(lossy_proxy.url).put_item(**put(table, "a"))
        answered.set()

    writer = threading.Thread(target=write)
    writer.start()
    held.wait_until_it_arrives()
    assert stored("a") == "1"
    assert not answered.is_set()
    held.release()
    writer.join(10)
    assert answered.is_set()


def test_a_held_request_is_overtaken(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    held = lossy_proxy.on("PutItem").hold_request()
    client = dynamodb(lossy_proxy.url)
    slow = threading.Thread(target=lambda: client.put_item(**put(table, "a", "slow")))
    slow.start()
    held.wait_until_it_arrives()
    client.put_item(**put(table, "a", "fast"))
    assert stored("a") == "fast"
    held.release()
    slow.join(10)
    assert stored("a") == "slow"


def test_a_delayed_request_arrives(lossy_proxy: LossyProxy, table: str, stored: Any) -> None:
    lossy_proxy.on("PutItem").delay(0.05)
    dynamodb(lossy_proxy.url).put_item(**put(table, "a"))
    assert stored("a") == "1"


def test_any_other_error_can_be_made_up(lossy_proxy: LossyProxy, table: str) -> None:
    lossy_proxy.on("GetItem").error("ResourceNotFoundException", "no such table")
    client = dynamodb(lossy_proxy.url)
    with pytest.raises(client.exceptions.ResourceNotFoundException, match="no such table"):
        client.get_item(TableName=table, Key={"id": {"S": "a"}})
    assert lossy_proxy.applied["GetItem"] == 0
