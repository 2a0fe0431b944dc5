"""The backend in its two flavours, blocking and async, behind one face, so that each test runs on both."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from casework.backends.dynamodb import AsyncDynamoDBBackend, CallPolicy, DynamoDBBackend
from casework.kernel.retry import Pauses
from tests.servers.clients import dynamodb, dynamodb_async

QUICK = CallPolicy(deadline_s=3.0, pauses=Pauses(first_pause_s=0.001, max_pause_s=0.01))


BLOCKING = frozenset(
    {"execute", "execute_many", "create_tables", "verify_tables", "wait_until_it_answers", "close", "create"}
)


class Driven:
    """An async backend, driven from a blocking test."""

    def __init__(self, backend: AsyncDynamoDBBackend, runner: asyncio.Runner) -> None:
        self.backend, self.runner = backend, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if name not in BLOCKING:
            return found
        return lambda *args, **kwargs: self.runner.run(found(*args, **kwargs), context=contextvars.copy_context())


class Maker:
    """Makes backends of one flavour and closes them after the test."""

    def __init__(self, flavour: str, runner: asyncio.Runner) -> None:
        self.flavour, self._runner = flavour, runner
        self._closing: list[Callable[[], Any]] = []

    def __call__(self, url: str | None, *, sdk_attempts: int | None = None, **options: Any) -> Any:
        """A backend for ``url``; ``sdk_attempts`` hands it a client made by the test, which repeats by itself."""
        options.setdefault("policy", QUICK)
        if self.flavour == "sync":
            client = None if sdk_attempts is None else dynamodb(url, max_attempts=sdk_attempts)  # type: ignore[arg-type]
            backend: Any = DynamoDBBackend(client, endpoint_url=None if client else url, **options)
            self._closing += [backend.close] if client is None else [client.close, backend.close]
            return backend
        client = None
        if sdk_attempts is not None:
            manager = dynamodb_async(url, max_attempts=sdk_attempts)  # type: ignore[arg-type]
            client = self._runner.run(manager.__aenter__())
            self._closing.append(lambda: self._runner.run(manager.__aexit__(None, None, None)))
        driven = Driven(AsyncDynamoDBBackend(client, endpoint_url=None if client else url, **options), self._runner)
        self._closing.append(driven.close)
        return driven

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


@pytest.fixture(autouse=True)
def sdk_repeats_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own pauses of seconds between its repeats test nothing of ours."""
    from botocore.retries.standard import ExponentialBackoff

    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.001)


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    with asyncio.Runner() as runner:
        maker = Maker(request.param, runner)
        yield maker
        maker.close()


@pytest.fixture
def prefix(unique: Callable[[str], str]) -> str:
    return unique("t")


def outcomes_of(backend: Any, effects: Sequence[Any]) -> list[str]:
    """``ok`` or the name of its error, for each effect in turn."""
    names = []
    for effect in effects:
        try:
            backend.execute(effect)
            names.append("ok")
        except Exception as error:
            names.append(type(error).__name__)
    return names
