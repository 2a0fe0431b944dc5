"""Each option of workers, of consumers and of streams changes something."""

from __future__ import annotations

import pytest

from tests.options.applications import World
from tests.options.running_rows import ON_AN_APPLICATION, RUNNING
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(RUNNING), ids=names(RUNNING))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert RUNNING[place][option].differs()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("place", "option"), each(ON_AN_APPLICATION), ids=names(ON_AN_APPLICATION))
def test_an_application_hands_it_on(place: str, option: str, kind: str) -> None:
    assert ON_AN_APPLICATION[place][option].differs(lambda: World(kind))
