"""What the tests of this folder share."""

from __future__ import annotations

import functools

import pytest
from botocore.loaders import create_loader


@pytest.fixture
def quick_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read what botocore knows of its services once, not each again, and look for no credentials."""
    monkeypatch.setattr("botocore.session.create_loader", LOADER)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


LOADER = functools.cache(create_loader)
