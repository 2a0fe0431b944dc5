"""Each option of tables, of conditions, of transactions and of a handler's writes changes something."""

from __future__ import annotations

import pytest

from tests.options.applications import World
from tests.options.table import each, names
from tests.options.table_rows import CONDITIONS, HANDLED, TABLES, TRANSACTIONS

PLAIN = {**TABLES, **CONDITIONS}


@pytest.mark.parametrize(("place", "option"), each(PLAIN), ids=names(PLAIN))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert PLAIN[place][option].differs()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("place", "option"), each(TRANSACTIONS), ids=names(TRANSACTIONS))
def test_an_option_of_a_transaction_changes_something(place: str, option: str, kind: str) -> None:
    assert TRANSACTIONS[place][option].differs(lambda: World(kind))


@pytest.mark.parametrize(("place", "option"), each(HANDLED), ids=names(HANDLED))
def test_an_option_of_a_handlers_writes_changes_something(place: str, option: str) -> None:
    assert HANDLED[place][option].differs(lambda: World("sync"))
