"""Each query parameter and each setting of a relay changes something."""

from __future__ import annotations

import pytest

pytest.importorskip("litestar")

from tests.options.relay_rows import PARAMETERS, SETTINGS, parameters
from tests.options.table import each, names

RELAY = {**PARAMETERS, **SETTINGS}


def test_the_table_has_each_query_parameter_of_a_relay() -> None:
    assert parameters() == {*each(PARAMETERS)}


@pytest.mark.parametrize(("place", "option"), each(RELAY), ids=names(RELAY))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert RELAY[place][option].differs()
