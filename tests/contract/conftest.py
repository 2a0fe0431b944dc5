"""``pytest tests/contract --store URL`` runs the suite against any endpoint as well."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", default=None, metavar="URL", help="run the backend contract against this store")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = config.getoption("--store", default=None)
    return True if collection_path.name == "test_store.py" and named is None else None
