"""The backend on Amazon DynamoDB, and on servers that speak its protocol.

``plan.py`` decides (pure), ``sync.py`` and ``aio.py`` carry calls over boto3 and aiobotocore, ``tables.py`` makes and
verifies the tables, ``clock.py`` learns the service's time, ``metering.py`` and ``units.py`` count what calls cost.
Import from here: :class:`DynamoDBBackend`, :class:`AsyncDynamoDBBackend`, :class:`CallPolicy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casework.backends.dynamodb.aio import AsyncDynamoDBBackend
    from casework.backends.dynamodb.plan import CallPolicy
    from casework.backends.dynamodb.sync import DynamoDBBackend

__all__ = ["AsyncDynamoDBBackend", "CallPolicy", "DynamoDBBackend"]

_PLACES = {"AsyncDynamoDBBackend": "aio", "CallPolicy": "plan", "DynamoDBBackend": "sync"}


def __getattr__(name: str) -> Any:
    """Import on first use: nobody pays for the transport that is not used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
