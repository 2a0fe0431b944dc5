"""Each option of functions, blocks, messages and queues that run once changes something."""

from __future__ import annotations

import pytest

from tests.options.guarded_rows import GUARDED
from tests.options.table import each, names


@pytest.mark.parametrize(("place", "option"), each(GUARDED), ids=names(GUARDED))
def test_an_option_changes_something(place: str, option: str) -> None:
    assert GUARDED[place][option].differs()
