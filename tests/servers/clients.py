"""SDK clients for a server on loopback, with credentials that mean nothing.

Import this only in tests that need an SDK: it imports boto3.
"""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

CREDENTIALS = {"region_name": "us-east-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}


def dynamodb(endpoint_url: str, *, max_attempts: int = 3, **config: Any) -> Any:
    """A boto3 client; ``max_attempts=1`` switches the SDK's own repeats off."""
    return boto3.client(
        "dynamodb", endpoint_url=endpoint_url, config=_config(Config, max_attempts, config), **CREDENTIALS
    )


def sqs(endpoint_url: str, *, max_attempts: int = 3, **config: Any) -> Any:
    """A boto3 client for SQS."""
    return boto3.client("sqs", endpoint_url=endpoint_url, config=_config(Config, max_attempts, config), **CREDENTIALS)


def dynamodb_async(endpoint_url: str, *, max_attempts: int = 3, **config: Any) -> Any:
    """An aiobotocore client: ``async with dynamodb_async(url) as client``."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    settings = _config(AioConfig, max_attempts, config)
    return get_session().create_client("dynamodb", endpoint_url=endpoint_url, config=settings, **CREDENTIALS)


def _config(kind: Any, max_attempts: int, more: dict[str, Any]) -> Any:
    return kind(
        retries={"total_max_attempts": max_attempts, "mode": "standard"}, connect_timeout=5, read_timeout=30, **more
    )


def create_table(client: Any, name: str, *, sort_key: bool = False) -> str:
    """A table with the string key ``id`` (and ``n``), ready for use; its name."""
    keys = [{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}][: 1 + sort_key]
    client.create_table(
        TableName=name,
        KeySchema=keys,
        AttributeDefinitions=[{"AttributeName": key["AttributeName"], "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
    )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    return name
