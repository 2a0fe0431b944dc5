"""Each option of a replica changes something."""

from __future__ import annotations

import pytest

from tests.options.replica_rows import REPLICA
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(REPLICA), ids=names(REPLICA))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert REPLICA[place][option].differs()
