"""Stores on which the races of streams are played, and what plays there: an older writer, a counter of effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casework.backends.drive import run
from casework.backends.sqlite import SqliteBackend
from casework.errors import ConditionFailed, Contention
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import All, Effect, Transact
from casework.kernel.items import Put, Update
from casework.kernel.programs import Program, get, query_all, write
from casework.kernel.schema import STREAMS, TABLES
from casework.streams.append import append
from casework.streams.log import Log, Op, StreamOptions, head_key, segment_of
from casework.streams.read import read_page
from tests.executions.stepping import Stepped, fresh_backend

STORES = [
    "memory",
    "sqlite",
    pytest.param("ministack", marks=pytest.mark.servers),
    pytest.param("roto", marks=pytest.mark.servers),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Any]:
    """The test runs once on each store, with casework's tables and nothing in them."""
    yield from open_store(request, tmp_path, unique)


def open_store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Any]:
    """The store that ``request.param`` names, closed afterwards."""
    client: Any = None
    if request.param == "memory":
        backend: Any = fresh_backend()
    elif request.param == "sqlite":
        backend = SqliteBackend(str(tmp_path / "streams.db"))
        backend.create_tables(TABLES)
    else:
        from casework.backends.dynamodb import DynamoDBBackend
        from tests.servers.clients import dynamodb

        client = dynamodb(request.getfixturevalue(f"{request.param}_url"), max_attempts=1)
        backend = DynamoDBBackend(client, prefix=unique("streams"))
        backend.create_tables(TABLES)
    yield backend
    backend.close()
    if client is not None:
        client.close()


def log(**options: Any) -> Log:
    """A process of its own. Unless told otherwise, the grace of every hole has passed, whatever the clocks' bounds."""
    grace_s = options.pop("grace_s", -10.0)
    made = StreamOptions(**{"jitter_s": 0.002, **options})
    msgspec.structs.force_setattr(made, "grace_s", grace_s)  # nobody can ask for less than none
    return Log(made)


def ops(*ids: str) -> list[Op]:
    """Operations with these ids, whose data says the id."""
    return [Op(id, id.encode()) for id in ids]


def put(backend: Any, *ids: str, of: Log | None = None) -> list[int]:
    """Append in one call; the sequence numbers."""
    return [one.seq for one in run(append(of or log(), "s", ops(*ids)), backend)]


def ids(backend: Any, after: int = 0, of: Log | None = None) -> list[str]:
    """What a reader gets after its cursor, in one page."""
    return [op.id for op in run(read_page(of or log(), "s", after), backend).ops]


def head(backend: Any) -> int | None:
    item = run(get(head_key("s")), backend)
    return None if item is None else item.get("last_seq")  # type: ignore[return-value]


def segments(backend: Any) -> list[tuple[int, int, bool]]:
    """First, last and whether it is a marker, of every segment."""
    found = [segment_of(item) for item in run(query_all(STREAMS, "s", low=1), backend)]
    return [(segment.first, segment.last, segment.is_marker) for segment in found]


def add_one() -> Program[int]:
    """What an older writer does first: ADD 1 to the counter, whatever it is; its new number."""
    while True:
        item = yield from get(head_key("s"))
        last = int(item.get("last_seq", 0)) if item else 0
        when = absent("last_seq") if last == 0 else equals("last_seq", last)
        try:
            yield from write(Update(head_key("s"), {"last_seq": last + 1}, when=when))
        except (ConditionFailed, Contention):
            continue
        return last + 1


def put_at(number: int, id: str) -> Program[bool]:
    """What an older writer does second: put its operation where there is none; False when there is one."""
    item = {"stream_id": "s", "seq": number, "id": id, "data": id.encode()}
    while True:
        try:
            yield from write(Put(STREAMS, item, when=absent()))
        except ConditionFailed:
            return False
        except Contention:
            continue
        return True


def naive_append(id: str) -> Program[int]:
    """The classic mistake: the number first, then the operation; again with a new number when it is taken."""
    while True:
        number = yield from add_one()
        if (yield from put_at(number, id)):
            return number


def naive_read(after: int) -> Program[list[int]]:
    """The reader of the classic mistake: whatever stands above the cursor."""
    items = yield from query_all(STREAMS, "s", low=after + 1)
    return [int(item["seq"]) for item in items]


class Counted:
    """A backend that keeps the effects that it was asked for."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.effects: list[Effect] = []

    def execute(self, effect: Any) -> Any:
        self.effects.append(effect)
        return self._backend.execute(effect)

    def execute_many(self, effects: Any) -> Any:
        self.effects.append(All(list(effects)))
        return self._backend.execute_many(effects)

    def rounds(self) -> int:
        return sum(isinstance(effect, Transact) for effect in self.effects)

    def reads(self) -> int:
        return len(self.effects) - self.rounds()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def appending(backend: Any, *names: str, of: Log | None = None) -> Stepped:
    """An append that the test drives."""
    return Stepped(append(of or log(), "s", ops(*names)), backend)
