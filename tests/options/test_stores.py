"""Each option of the stores that stand alone changes something."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import casework
from casework.backends.dynamodb import DynamoDBBackend
from casework.backends.dynamodb.aio import AsyncDynamoDBBackend
from tests.options.store_rows import ON_DYNAMODB, STORES, OnDynamoDB
from tests.options.table import each, names

pytestmark = pytest.mark.usefixtures("quick_clients")


@pytest.mark.parametrize(("place", "option"), each(STORES), ids=names(STORES))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert STORES[place][option].differs()


@pytest.mark.parametrize(("place", "option"), each(ON_DYNAMODB), ids=names(ON_DYNAMODB))
def test_an_option_on_dynamodb_changes_something(place: str, option: str) -> None:
    assert ON_DYNAMODB[place][option].differs(lambda: OnDynamoDB(place.removesuffix(".create")))


OF_ITS_OWN = {
    "endpoint_url": "http://127.0.0.1:9",
    "region_name": "eu-west-1",
    "config": object(),
    "connect_timeout": 1,
}


@pytest.mark.parametrize("option", OF_ITS_OWN)
@pytest.mark.parametrize(
    "make",
    [
        casework.DynamoDBIdempotencyStore, casework.AsyncDynamoDBIdempotencyStore, casework.AsyncDynamoDBStore,
        DynamoDBBackend, AsyncDynamoDBBackend,
    ],
)  # fmt: skip
def test_what_a_client_of_the_users_would_not_have_is_refused_beside_it(make: Any, option: str) -> None:
    if option not in inspect.signature(make).parameters:
        return  # it has no such option
    with pytest.raises(casework.Misuse, match=f"{option}.*a client of the store's own, and one was given"):
        make(client=object(), **{option: OF_ITS_OWN[option]})
