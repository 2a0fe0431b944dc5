"""The CloudFormation template of the tables, and the IAM policies of those who use them. Pure: plain dicts for JSON.

Write them out with ``json.dumps``; CloudFormation reads JSON as well as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from casework.arguments import check_choice, check_instance, check_list, check_text
from casework.backends.dynamodb.encode import table_name
from casework.backends.dynamodb.tables import describe
from casework.errors import Misuse
from casework.kernel.items import Table
from casework.kernel.schema import TABLES

Role = Literal["app", "worker", "admin"]

PREFIX = "[a-zA-Z0-9_.-]{1,64}"
"""What names of tables begin with."""

_READ = ("BatchGetItem", "GetItem", "Query")
_WRITE = ("ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem")
_ADMIN = ("CreateTable", "DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive")

_WALKED = frozenset(("idempotency",))
"""Tables that operators walk through from end to end (``casework idempotency list``); no working path does."""

_WORKERS_INDEXES = frozenset(("pending",))
"""Indexes that only workers sweep."""


def cloudformation(prefix: str = "casework", tables: Sequence[Table] = TABLES) -> dict[str, Any]:
    """A template that makes the tables as ``casework dynamodb create`` does; they outlive the stack.

    Args:
        prefix: default of the template's parameter ``Prefix``.
        tables: casework's own, and yours if ``app.transaction()`` writes to them.
    """
    _check(prefix, tables)
    resources: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for table in tables:
        properties = describe(prefix, table)
        properties["TableName"] = {"Fn::Sub": f"${{Prefix}}_{table.name}"}
        properties["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
        if table.ttl is not None:
            properties["TimeToLiveSpecification"] = {"AttributeName": table.ttl, "Enabled": True}
        logical = "".join(part.capitalize() for part in table.name.replace("-", "_").split("_")) + "Table"
        resources[logical] = {
            "Type": "AWS::DynamoDB::Table",
            "DeletionPolicy": "Retain",
            "UpdateReplacePolicy": "Retain",
            "Properties": properties,
        }
        outputs[f"{logical}Arn"] = {"Value": {"Fn::GetAtt": [logical, "Arn"]}}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Tables of casework",
        "Parameters": {
            "Prefix": {
                "Type": "String",
                "Default": prefix,
                "AllowedPattern": PREFIX,
                "Description": "Beginning of the tables' names; the same as in the URL's ?prefix=",
            }
        },
        "Resources": resources,
        "Outputs": outputs,
    }


def iam_policy(
    prefix: str = "casework",
    role: Role = "app",
    *,
    tables: Sequence[Table] = TABLES,
    region: str = "*",
    account: str = "*",
    partition: str = "aws",
) -> dict[str, Any]:
    """The least that a role needs. Each action inside a transaction is authorised by itself, so each is listed.

    Args:
        prefix: of the tables' names.
        role: ``app`` sends, starts, waits and lists; ``worker`` also sweeps what is due; ``admin`` also makes the
            tables and verifies them, and lists idempotency keys.
        tables: casework's own, and yours if ``app.transaction()`` writes to them.
        region: AWS region; ``*`` allows all.
        account: AWS account number; ``*`` allows all.
        partition: ``aws``, ``aws-cn`` or ``aws-us-gov``.
    """
    _check(prefix, tables)
    check_choice("role", role, ("app", "worker", "admin"))
    for name, text in (("region", region), ("account", account), ("partition", partition)):
        check_text(name, text, 100)
    arns = {
        table.name: f"arn:{partition}:dynamodb:{region}:{account}:table/{table_name(prefix, table)}" for table in tables
    }
    indexes = [
        f"{arns[table.name]}/index/{index.name}"
        for table in tables
        for index in table.indexes
        if role != "app" or index.name not in _WORKERS_INDEXES
    ]
    statements = [_statement("CaseworkItems", _READ + _WRITE, list(arns.values()))]
    if indexes:
        statements.append(_statement("CaseworkIndexes", ("Query",), indexes))
    if role == "admin":
        statements.append(_statement("CaseworkTables", _ADMIN, list(arns.values())))
        walked = [arns[table.name] for table in tables if table.name in _WALKED]
        if walked:
            statements.append(_statement("CaseworkWalks", ("Scan",), walked))
    return {"Version": "2012-10-17", "Statement": statements}


def _check(prefix: Any, tables: Any) -> None:
    check_text("prefix", prefix, 200, may_be_empty=True)
    if prefix and not re.fullmatch(PREFIX, prefix):
        raise Misuse(f"prefix is {prefix!r:.100}; names of tables begin with 1 to 64 letters, digits, _, . and -")
    check_list("tables", tables, _check_table, "a list of casework.Table")


def _check_table(what: str, given: Any) -> None:
    check_instance(what, given, Table, "a casework.Table(...)")


def _statement(sid: str, actions: Sequence[str], resources: list[str]) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": resources,
    }
