"""Each option of a simulation changes something."""

from __future__ import annotations

import pytest

from tests.options.simulation_rows import SIMULATION
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(SIMULATION), ids=names(SIMULATION))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert SIMULATION[place][option].differs()
