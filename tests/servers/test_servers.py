"""The servers do what the tests of casework need from them; where one does not, it is written down here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.servers import process
from tests.servers.clients import create_table, dynamodb, dynamodb_async, sqs
from tests.servers.ports import Port

Unique = Callable[[str], str]


def item(id: str, value: str) -> dict[str, dict[str, str]]:
    return {"id": {"S": id}, "value": {"S": value}}


def test_an_item_that_was_put_is_read_back(server_url: str, unique: Unique) -> None:
    client = dynamodb(server_url)
    table = create_table(client, unique("items"))
    client.put_item(TableName=table, Item=item("a", "1"), ConditionExpression="attribute_not_exists(id)")
    assert client.get_item(TableName=table, Key={"id": {"S": "a"}}, ConsistentRead=True)["Item"] == item("a", "1")
    assert "Item" not in client.get_item(TableName=table, Key={"id": {"S": "b"}}, ConsistentRead=True)
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        client.put_item(TableName=table, Item=item("a", "2"), ConditionExpression="attribute_not_exists(id)")
    assert client.get_item(TableName=table, Key={"id": {"S": "a"}})["Item"] == item("a", "1")


def test_a_transaction_is_all_or_nothing_and_says_which_write_refused(server_url: str, unique: Unique) -> None:
    client = dynamodb(server_url)
    table = create_table(client, unique("items"))
    put = {"TableName": table, "ConditionExpression": "attribute_not_exists(id)"}
    client.transact_write_items(
        TransactItems=[{"Put": {**put, "Item": item("a", "1")}}, {"Put": {**put, "Item": item("b", "1")}}]
    )
    with pytest.raises(client.exceptions.TransactionCanceledException) as refused:
        client.transact_write_items(
            TransactItems=[
                {"Put": {**put, "Item": item("c", "2")}},
                {"Put": {**put, "Item": item("a", "2"), "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}},
            ]
        )
    reasons = refused.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed"]
    assert reasons[1]["Item"] == item("a", "1")
    stored = client.scan(TableName=table, ConsistentRead=True)["Items"]
    assert sorted(one["id"]["S"] for one in stored) == ["a", "b"]


def test_the_async_client_reads_what_the_sync_client_wrote(server_url: str, unique: Unique) -> None:
    client = dynamodb(server_url)
    table = create_table(client, unique("items"))
    client.put_item(TableName=table, Item=item("a", "1"))

    async def read() -> object:
        async with dynamodb_async(server_url) as async_client:
            return (await async_client.get_item(TableName=table, Key={"id": {"S": "a"}}, ConsistentRead=True))["Item"]

    assert asyncio.run(read()) == item("a", "1")


def test_ministack_honours_the_token_of_a_repeated_transaction(ministack_url: str, unique: Unique) -> None:
    client = dynamodb(ministack_url)
    table = create_table(client, unique("items"))
    request = {
        "ClientRequestToken": unique("t")[:36],
        "TransactItems": [
            {"Put": {"TableName": table, "Item": item("a", "1"), "ConditionExpression": "attribute_not_exists(id)"}}
        ],
    }
    client.transact_write_items(**request)
    client.transact_write_items(**request)  # the same request: answered again, not refused by its own first attempt
    request["TransactItems"][0]["Put"]["Item"] = item("a", "2")
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        client.transact_write_items(**request)
    assert client.get_item(TableName=table, Key={"id": {"S": "a"}})["Item"] == item("a", "1")


def test_ministack_has_fifo_queues(ministack_url: str, unique: Unique) -> None:
    client = sqs(ministack_url)
    queue = client.create_queue(QueueName=unique("bell") + ".fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for _ in range(2):
        client.send_message(QueueUrl=queue, MessageBody="o-1", MessageGroupId="o-1", MessageDeduplicationId="ring-1")
    messages = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["o-1"]


def test_roto_keeps_acknowledged_items_over_a_kill(roto_server: process.Server, unique: Unique) -> None:
    client = dynamodb(roto_server.url)
    table = create_table(client, unique("items"))
    for n in range(20):
        client.put_item(TableName=table, Item=item(str(n), "kept"))
    first_pid = roto_server.pid
    roto_server.restart_after_kill()
    assert roto_server.pid != first_pid
    stored = client.scan(TableName=table, ConsistentRead=True)["Items"]
    assert sorted(int(one["id"]["S"]) for one in stored) == list(range(20))


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    server = process.Server(
        [sys.executable, "-c", "print('the disk is full'); raise SystemExit(3)"],
        log=tmp_path / "log",
        ready_path="/",
        port=Port(),
    )
    with pytest.raises(process.ServerFailed, match=r"(?s)ended with 3.*the disk is full"):
        server.start()
    server.stop()


def test_two_ports_are_never_the_same_even_before_they_are_used() -> None:
    ports = [Port() for _ in range(20)]
    try:
        assert len({port.number for port in ports}) == 20
        for port in ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port.number))
    finally:
        for port in ports:
            port.release()


def test_a_missing_server_skips_for_a_developer_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.servers.fixtures import not_here

    missing = process.NotInstalled("ministack is not installed; `make servers` brings it")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make servers"):
        not_here(missing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make servers"):
        not_here(missing)


def test_a_server_does_not_outlive_tests_that_were_killed(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        from tests.servers import process
        from tests.servers.ports import Port
        port = Port()
        command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port.number)]
        server = process.Server(command, log=Path(sys.argv[1]), ready_path="/", port=port)
        server.start()
        print(server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "log")],
        cwd=process.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ends_within(int(killed.stdout), seconds=10)


def ends_within(pid: int, *, seconds: float) -> bool:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return True  # ended; whoever adopted it has not looked yet
        time.sleep(0.02)
    return False
