"""Each option of a backend changes something, made by hand or named by a URL."""

from __future__ import annotations

import pytest

from casework.app.stores import _DYNAMODB_OPTIONS
from tests.options.backend_rows import BACKENDS, BY_URL, ON_SERVICE, URL, OnBackend, OnUrl
from tests.options.table import each, names

pytestmark = pytest.mark.usefixtures("quick_clients")


@pytest.mark.parametrize(("place", "option"), each(BACKENDS), ids=names(BACKENDS))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert BACKENDS[place][option].differs()


@pytest.mark.parametrize(("place", "option"), each(ON_SERVICE), ids=names(ON_SERVICE))
def test_an_option_on_dynamodb_changes_something(place: str, option: str) -> None:
    assert ON_SERVICE[place][option].differs(lambda: OnBackend(place))


@pytest.mark.parametrize(("place", "option"), each(BY_URL), ids=names(BY_URL))
def test_an_option_in_a_url_changes_something(place: str, option: str) -> None:
    assert BY_URL[place][option].differs(lambda: OnUrl(place))


def test_the_table_has_each_option_that_may_stand_in_a_url() -> None:
    assert set(URL) == set(_DYNAMODB_OPTIONS)
