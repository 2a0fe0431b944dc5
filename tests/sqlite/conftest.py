from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casework.backends.sqlite import SqliteBackend
from casework.kernel.items import Table

ITEMS = Table(name="items", partition="id")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    with SqliteBackend(path, busy_timeout_s=2.0) as backend:
        backend.create_tables([ITEMS])
        yield backend
