"""Tables are made, verified, and what is different is named; a backend opens nothing early and leaks nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from casework.aws import cloudformation, iam_policy
from casework.backends.dynamodb import AsyncDynamoDBBackend, DynamoDBBackend
from casework.backends.dynamodb.encode import table_name
from casework.backends.dynamodb.tables import describe, differences
from casework.errors import MissingExtra, MissingTable, Misuse, Unavailable
from casework.kernel.conditions import absent
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Put
from casework.kernel.schema import EXECUTIONS, MACHINES, TABLES
from tests.dynamodb.conftest import QUICK, Maker
from tests.servers.clients import dynamodb
from tests.servers.lossy_proxy import LossyProxy


@pytest.mark.parametrize("server", ["ministack", "roto", "moto"])
def test_tables_are_made_with_indexes_and_ttl_and_found_right(
    request: pytest.FixtureRequest, make: Maker, prefix: str, server: str
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    backend = make(url, prefix=prefix)
    assert [problem for problem in backend.verify_tables() if "is missing" in problem] == [
        f"table {table_name(prefix, table)} is missing; make it with `casework dynamodb create`" for table in TABLES
    ]
    backend.create_tables()
    backend.create_tables()
    assert backend.verify_tables() == []
    ttl = dynamodb(url).describe_time_to_live(TableName=f"{prefix}_executions")["TimeToLiveDescription"]
    assert ttl["TimeToLiveStatus"] == "ENABLED"
    assert dynamodb(url).describe_table(TableName=f"{prefix}_executions")["Table"]["ItemCount"] == 0


def test_ttl_is_switched_on_for_a_table_that_was_there_and_differences_are_named(
    make: Maker, ministack_url: str, prefix: str
) -> None:
    client = dynamodb(ministack_url)
    request = describe(prefix, EXECUTIONS)
    request["GlobalSecondaryIndexes"] = request["GlobalSecondaryIndexes"][:1]
    request["GlobalSecondaryIndexes"][0]["Projection"] = {"ProjectionType": "ALL"}
    names = {key["AttributeName"] for key in request["KeySchema"]} | {"pending", "rank_us"}
    request["AttributeDefinitions"] = [a for a in request["AttributeDefinitions"] if a["AttributeName"] in names]
    client.create_table(**request)
    backend = make(ministack_url, prefix=prefix)
    problems = backend.verify_tables([EXECUTIONS])
    assert any("TTL on 'expires_at_s' is DISABLED" in problem for problem in problems)
    backend.create_tables([EXECUTIONS])
    problems = backend.verify_tables([EXECUTIONS])
    assert not any("TTL" in problem for problem in problems)
    assert any("pending projects ALL, not KEYS_ONLY" in problem for problem in problems)
    assert any("listing is missing" in problem for problem in problems)


def test_a_table_with_replicas_another_key_or_provisioned_capacity_is_named() -> None:
    found = {**describe("p", MACHINES), "Replicas": [{"RegionName": "eu-west-1"}], "TableStatus": "ACTIVE"}
    found["KeySchema"] = [{"AttributeName": "other", "KeyType": "HASH"}]
    problems = " ".join(differences("p", MACHINES, found))
    for word in ("global table", "PROVISIONED", "HASH other", "HASH hash S"):
        assert word in problems


def test_a_ttl_that_cannot_be_switched_on_is_a_warning(make: Maker, lossy_proxy: LossyProxy, prefix: str) -> None:
    lossy_proxy.on("UpdateTimeToLive", times=None).error("AccessDeniedException", "no dynamodb:UpdateTimeToLive")
    backend = make(lossy_proxy.url, prefix=prefix)
    with pytest.warns(UserWarning, match="expired items stay.*UpdateTimeToLive"):
        backend.create_tables([EXECUTIONS])


def test_a_permission_that_is_missing_is_named_by_verify(make: Maker, lossy_proxy: LossyProxy, prefix: str) -> None:
    backend = make(lossy_proxy.url, prefix=prefix)
    backend.create_tables([EXECUTIONS])
    denied = "User: x is not authorized to perform: dynamodb:ConditionCheckItem"
    lossy_proxy.on("TransactWriteItems", times=None).error("AccessDeniedException", denied)
    lossy_proxy.on("Query", times=None, when=lambda body: b"listing" in body).error("AccessDeniedException", "Query")
    problems = backend.verify_tables([EXECUTIONS])
    assert len(problems) == 2
    assert denied in problems[0]
    assert "executions/listing: query is refused" in problems[1]
    [tried] = [r.json for r in lossy_proxy.requests if r.operation == "TransactWriteItems"]
    assert {kind for action in tried["TransactItems"] for kind in action} == {
        "Put",
        "Update",
        "Delete",
        "ConditionCheck",
    }


def test_the_constructor_contacts_nobody_and_a_missing_table_names_the_way_out(
    make: Maker, ministack_url: str, prefix: str
) -> None:
    make("http://127.0.0.1:9")
    backend = make(ministack_url, prefix=prefix)
    for effect in (
        Get(MACHINES.key("h")),
        GetMany([MACHINES.key("h")]),
        Query(MACHINES, "h"),
        Write(Put(MACHINES, {"hash": "h"})),
        Transact([Put(MACHINES, {"hash": "h"}, when=absent())]),
    ):
        with pytest.raises(MissingTable, match=f"{prefix}_machines.*casework dynamodb create"):
            backend.execute(effect)


def test_a_backend_closes_twice_and_does_not_work_afterwards(make: Maker, ministack_url: str) -> None:
    backend = make(ministack_url)
    backend.now()
    backend.close()
    backend.close()
    with pytest.raises(Misuse, match="was closed"):
        backend.execute(Get(MACHINES.key("h")))


@pytest.mark.parametrize("injected", [False, True])
def test_the_time_is_learned_from_the_services_answers(make: Maker, ministack_url: str, injected: bool) -> None:
    backend = make(ministack_url, sdk_attempts=3 if injected else None)
    if make.flavour == "async":
        assert not backend.clock.has_sample
        backend.create()
    now = backend.now()
    assert now.latest_us - now.earliest_us < 2_000_000
    assert backend.clock.has_sample


def test_another_event_loop_is_misuse(ministack_url: str) -> None:
    backend = AsyncDynamoDBBackend(endpoint_url=ministack_url)

    async def use() -> None:
        await backend.execute(Get(MACHINES.key("h")))

    with asyncio.Runner() as first:
        with pytest.raises(MissingTable):
            first.run(use())
        with asyncio.Runner() as second, pytest.raises(Misuse, match="another event loop"):
            second.run(use())
        first.run(backend.close())


def test_without_credentials_or_region_the_caller_is_told_what_to_give(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(Misuse, match="name the region"):
        make(None).execute(Get(MACHINES.key("h")))
    with pytest.raises(Unavailable, match="give the client credentials"):  # a provider may fail for a while
        make(None, region_name="eu-west-1").execute(Get(MACHINES.key("h")))


@pytest.mark.parametrize("flavour", [DynamoDBBackend, AsyncDynamoDBBackend])
def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch, flavour: Any) -> None:
    for name in ("boto3", "aiobotocore", "aiobotocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    backend = flavour(region_name="eu-west-1")
    use = backend.now if flavour is DynamoDBBackend else lambda: asyncio.run(backend.create())
    with pytest.raises(MissingExtra, match=r"pip install casework\[dynamodb"):
        use()


def test_importing_the_backend_imports_no_sdk() -> None:
    program = (
        "import sys; from casework.backends.dynamodb import AsyncDynamoDBBackend, DynamoDBBackend; import casework.aws;"
        "DynamoDBBackend(); AsyncDynamoDBBackend();"
        "assert not {'boto3', 'botocore', 'aiobotocore'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_forked_child_makes_a_client_of_its_own(ministack_url: str, prefix: str) -> None:
    with DynamoDBBackend(endpoint_url=ministack_url, prefix=prefix) as backend:
        backend.create_tables([MACHINES])
        mine = backend._open()
        pid = os.fork()
        if pid == 0:
            try:
                backend.execute(Write(Put(MACHINES, {"hash": "child"})))
                os._exit(0 if backend._open() is not mine else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert backend.execute(Get(MACHINES.key("child"))) == {"hash": "child"}


def test_a_failed_set_up_leaks_nothing(make: Maker, unique: Callable[[str], str]) -> None:
    backend = make("http://127.0.0.1:9", prefix=unique("t"), policy=QUICK)
    with pytest.raises(Unavailable):
        backend.create_tables()
    backend.close()
    with pytest.raises(Misuse):
        backend.create_tables()


def test_a_server_that_is_still_starting_is_waited_for(make: Maker, lossy_proxy: LossyProxy, prefix: str) -> None:
    lossy_proxy.on("DescribeTable", times=2).drop_request()
    make(lossy_proxy.url, prefix=prefix).wait_until_it_answers()
    assert lossy_proxy.received["DescribeTable"] == 3


def test_a_server_that_never_answers_is_named(make: Maker) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        make("http://127.0.0.1:9").wait_until_it_answers(0.0)


# --- templates ------------------------------------------------------------------------------------------------------


def test_the_template_describes_the_tables_that_create_makes() -> None:
    template = cloudformation("shop")
    assert json.loads(json.dumps(template)) == template
    tables = {name: one["Properties"] for name, one in template["Resources"].items()}
    assert set(tables) == {
        "ExecutionsTable", "MachinesTable", "IdempotencyTable", "StreamsTable", "StreamClaimsTable", "RegistryTable",
    }  # fmt: skip
    for table in TABLES:
        properties = tables[table.name.title().replace("_", "") + "Table"]
        assert properties["TableName"] == {"Fn::Sub": f"${{Prefix}}_{table.name}"}
        made = describe("shop", table)
        assert all(properties[name] == value for name, value in made.items() if name != "TableName")
        assert (properties.get("TimeToLiveSpecification") is not None) == (table.ttl is not None)
    assert template["Parameters"]["Prefix"]["Default"] == "shop"


def test_a_policy_lists_every_action_of_a_transaction_and_no_more() -> None:
    app, worker, admin = (iam_policy("shop", role) for role in ("app", "worker", "admin"))  # type: ignore[arg-type]
    items = app["Statement"][0]
    assert items["Action"] == [
        f"dynamodb:{action}"
        for action in (
            "BatchGetItem", "GetItem", "Query", "ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem",
        )
    ]  # fmt: skip
    assert items["Resource"] == [f"arn:aws:dynamodb:*:*:table/shop_{table.name}" for table in TABLES]
    assert app["Statement"][1] == {
        "Sid": "CaseworkIndexes",
        "Effect": "Allow",
        "Action": ["dynamodb:Query"],
        "Resource": ["arn:aws:dynamodb:*:*:table/shop_executions/index/listing"],
    }
    assert any(arn.endswith("/index/pending") for arn in worker["Statement"][1]["Resource"])
    assert "dynamodb:CreateTable" in admin["Statement"][2]["Action"]
    assert admin["Statement"][3] == {
        "Sid": "CaseworkWalks",
        "Effect": "Allow",
        "Action": ["dynamodb:Scan"],
        "Resource": ["arn:aws:dynamodb:*:*:table/shop_idempotency"],
    }
    assert "Scan" not in json.dumps([app, worker]) and "Create" not in json.dumps([app, worker])
    assert "Delete" not in json.dumps(admin["Statement"][2])
    assert '"*"' not in json.dumps([app, worker, admin]).replace('"dynamodb:*"', '"*"')
    with pytest.raises(Misuse, match="role is 'boss'"):
        iam_policy("shop", "boss")  # type: ignore[arg-type]
