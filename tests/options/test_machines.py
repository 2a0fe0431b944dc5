"""Each option of machines, of charts without a store, and of what AWS needs changes something."""

from __future__ import annotations

import pytest

from tests.options.machine_rows import MACHINES
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(MACHINES), ids=names(MACHINES))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert MACHINES[place][option].differs()
