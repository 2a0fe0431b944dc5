"""Each option of an application, opened one way or the other, changes something."""

from __future__ import annotations

import pytest

from tests.options.opening_rows import OPENING
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(OPENING), ids=names(OPENING))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert OPENING[place][option].differs()
