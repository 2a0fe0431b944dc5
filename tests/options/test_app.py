"""Each option of an application, of its streams and of its idempotency records changes something, on both facades."""

from __future__ import annotations

import pytest

from tests.options.app_rows import APP
from tests.options.applications import World
from tests.options.key_rows import KEY_ROWS
from tests.options.stream_rows import STREAM_ROWS
from tests.options.table import each, names

TABLE = {**APP, **STREAM_ROWS, **KEY_ROWS}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("place", "option"), each(TABLE), ids=names(TABLE))
def test_an_option_changes_something(place: str, option: str, kind: str) -> None:
    options = {"trace_max": 10} if place == "app.trace" else {}
    assert TABLE[place][option].differs(lambda: World(kind, **options))
