"""Pytest fixtures for the servers. A plugin of tests/conftest.py, so that every test has them.

Each process of the tests (each worker of pytest-xdist too) starts a server when its first test asks for it and stops it
at the end. A server is shared by the tests of that process, so a test names its tables for itself: see ``unique``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.servers import process
from tests.servers.lossy_proxy import LossyProxy

SERVER_FIXTURES = frozenset({"ministack_url", "roto_url", "moto_url", "roto_server", "lossy_proxy", "server_url"})


@pytest.hookimpl(tryfirst=True)  # before `-m "not servers"` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses a server is marked ``servers``, without having to remember it."""
    for item in items:
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)


def not_here(error: process.NotInstalled) -> NoReturn:
    """Skip where a developer lacks the server; fail in CI, where a skipped test would go unseen."""
    if os.environ.get("CI"):
        pytest.fail(f"{error} (CI is set, so this is not skipped)", pytrace=False)
    pytest.skip(str(error))


def running(make: Callable[[], process.Server]) -> Iterator[process.Server]:
    """A started server, stopped afterwards."""
    try:
        server = make()
    except process.NotInstalled as error:
        not_here(error)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def server_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the logs of this session's servers; pytest keeps it for the last three runs."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def _ministack(server_logs: Path) -> Iterator[process.Server]:
    yield from running(lambda: process.ministack(server_logs))


@pytest.fixture(scope="session")
def _roto(server_logs: Path) -> Iterator[process.Server]:
    yield from running(lambda: process.roto(server_logs))


@pytest.fixture(scope="session")
def _moto(server_logs: Path) -> Iterator[process.Server]:
    yield from running(lambda: process.moto(server_logs))


@pytest.fixture(scope="session")
def ministack_url(_ministack: process.Server) -> str:
    """Endpoint of ministack: DynamoDB (transactions, tokens, contention) and SQS."""
    return _ministack.url


@pytest.fixture(scope="session")
def roto_url(_roto: process.Server) -> str:
    """Endpoint of roto, in memory. No token replay, no ALL_OLD on single writes, no consumed capacity."""
    return _roto.url


@pytest.fixture(scope="session")
def moto_url(_moto: process.Server) -> str:
    """Endpoint of moto: one caller at a time and small tables only."""
    return _moto.url


@pytest.fixture
def roto_server(tmp_path: Path) -> Iterator[process.Server]:
    """A roto of this test's own with durable data: ``kill()``, ``start()``, ``restart_after_kill()``, ``url``."""
    yield from running(lambda: process.roto(tmp_path, data=tmp_path / "roto-data"))


@pytest.fixture(params=["ministack", "roto", "moto"])
def server_url(request: pytest.FixtureRequest) -> str:
    """The test runs once per server. Starts only the one that it is about to use."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def lossy_proxy(ministack_url: str) -> Iterator[LossyProxy]:
    """A proxy in front of ministack, without rules; see ``tests/servers/lossy_proxy.py``."""
    with LossyProxy(ministack_url) as proxy:
        yield proxy


@pytest.fixture
def unique() -> Callable[[str], str]:
    """``unique("orders")`` is a table name or prefix that no other test uses on the shared servers."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"
