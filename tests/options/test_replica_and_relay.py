"""Each option of a replica, and each query parameter of a relay, changes something."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litestar")

from casework.backends.drive import run
from casework.replica import Replica
from casework.streams.append import append
from casework.streams.log import Log, Op
from tests.executions.stepping import fresh_backend
from tests.options.table import Rows, each, names, row
from tests.relay.conftest import World, client_of

# --- the relay --------------------------------------------------------------------------------------------------------


def asked(path: str, **query: Any) -> Any:
    """The answer of a relay with three operations in ``s`` and one in ``t``."""
    backend = fresh_backend()
    for stream, ids in (("s", "abc"), ("t", "d")):
        run(append(Log(), stream, [Op(id, b"x") for id in ids]), backend)
    world = World(backend, max_stream_s=0.001)
    with client_of(world, world.headers("s=read", "t=read")) as client:
        answer = client.get(path, params={name: value for name, value in query.items() if value is not None})
        return answer.json() if "json" in answer.headers["content-type"] else answer.text


def pulled(**query: Any) -> list[int]:
    return [op["seq"] for op in asked("/v1/streams/s/ops", **query)["ops"]]


OTHER = "o" + "0" * 32
"""A mark that no operation has."""


def followed(mark: str | None) -> int:
    """How many operations come behind the second one, or the status of a refusal."""
    answer = asked("/v1/streams/s/events", after=2, mark=mark)
    return int(answer["status"]) if isinstance(answer, dict) else answer.count("event: op")


def listed_after(cursor: str | None) -> list[str]:
    backend = fresh_backend()
    for stream in "st":
        run(append(Log(), stream, [Op("a", b"x")]), backend)
    world = World(backend)
    with client_of(world, world.headers("s=read", "t=read")) as client:
        first = client.get("/v1/streams", params={"limit": 1}).json()
        found = client.get("/v1/streams", params={"cursor": first["cursor"]} if cursor else {}).json()
        return list(found["streams"])


RELAY: Rows = {
    "/v1/streams/{stream}/ops": {
        "after": row(lambda after: pulled(after=after), (0, [1, 2, 3]), (2, [3])),
        "limit": row(lambda limit: pulled(limit=limit), (1, [1]), (2, [1, 2])),
        "mark": row(
            lambda mark: asked("/v1/streams/s/ops", after=2, mark=mark).get("status"), (None, None), (OTHER, 409)
        ),
    },
    "/v1/streams/{stream}/events": {
        "after": row(lambda after: asked("/v1/streams/s/events", after=after).count("event: op"), (0, 3), (2, 1)),
        "mark": row(followed, (None, 1), (OTHER, 409)),
    },
    "/v1/streams": {
        "limit": row(lambda limit: asked("/v1/streams", limit=limit)["streams"], (1, ["s"]), (2, ["s", "t"])),
        "cursor": row(listed_after, (None, ["s", "t"]), ("next", ["t"])),
    },
}

NOT_SEEN = {("/v1/streams/{stream}/ops", "wait_s"): "only time shows it; tests/relay has it with a waiting client"}


def parameters() -> set[tuple[str, str]]:
    """The query parameters in the relay's own description."""
    with client_of(World(fresh_backend())) as client:
        paths = client.get("/openapi.json").json()["paths"]
    return {
        (path, one["name"])
        for path, methods in paths.items()
        for operation in methods.values()
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    }


def test_the_table_has_each_query_parameter_of_a_relay() -> None:
    assert parameters() == {*each(RELAY), *NOT_SEEN}


@pytest.mark.parametrize(("place", "option"), each(RELAY), ids=names(RELAY))
def test_a_query_parameter_changes_something(place: str, option: str) -> None:
    assert RELAY[place][option].differs()


# --- replicas ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replica() -> Iterator[Replica]:
    """A replica that has pulled three operations."""
    with tempfile.TemporaryDirectory() as folder, Replica(Path(folder) / "r.replica", stream="s") as made:
        made.file.store_page(0, [Op(id, id.encode(), seq, 1) for seq, id in enumerate("abc", 1)], 3, "", 0)
        yield made


def read(after: int) -> list[int]:
    with replica() as own:
        return [op.seq for op in own.read(after)]


def joined(state: str, op: Op) -> str:
    return state + op.id


def folded(name: str = "f", function: Any = joined, initial: str = "", **options: Any) -> Any:
    """The state, and what the fold ``f`` in the file has then: its number and its bytes."""
    with replica() as own:
        return own.fold(name, function, initial, **options), own.file.fold("f")


def decoded(decode: Any) -> Any:
    with replica() as own:
        own.fold("f", joined, "")
        return own.fold("f", joined, "", decode=decode)


def parked(**options: Any) -> Any:
    with replica() as own:
        for id in ("x", "y"):
            own.append(b"1", id=id)
            own.file.park(id, "no")
        own.unpark(**{"id": "x", **options})
        return sorted((each.op.id, each.state) for each in own.file.own("waiting", "parked"))


def appended(data: bytes = b"1", **options: Any) -> Any:
    with replica() as own:
        own.append(data, **options)
        (waiting,) = own.file.own("waiting")
        return waiting.op.id, waiting.op.data


def plain(value: bytes) -> str:
    return value.decode().strip('"')


REPLICA: Rows = {
    "fold": {
        "name": row(lambda name: folded(name)[1] is None, ("f", False), ("g", True)),
        "function": row(
            lambda function: folded(function=function)[0], (joined, "abc"), (lambda state, op: state + "-", "---")
        ),
        "initial": row(lambda initial: folded(initial=initial)[0], ("", "abc"), ("x", "xabc")),
        "encode": row(
            lambda encode: folded(encode=encode)[1], (str.encode, (3, b"abc")), (lambda state: b"1", (3, b"1"))
        ),
        "decode": row(decoded, (plain, "abc"), (lambda value: "other", "other")),
        "keep": row(lambda keep: folded(keep=keep), (True, ("abc", (3, b'"abc"'))), (False, ("abc", None))),
    },
    "append": {
        "data": row(lambda data: appended(data)[1], (b"1", b"1"), (b"2", b"2")),
        "id": row(lambda id: appended(id=id)[0], ("a-1", "a-1"), ("a-2", "a-2")),
    },
    "unpark": {
        "id": row(
            lambda id: [state for _, state in parked(id=id)], ("x", ["waiting", "parked"]), ("y", ["parked", "waiting"])
        ),
        "drop": row(lambda drop: len(parked(drop=drop)), (False, 2), (True, 1)),
        "new_id": row(lambda id: [each for each, _ in parked(new_id=id)], (None, ["x", "y"]), ("z", ["y", "z"])),
    },
    "read": {"after": row(read, (0, [1, 2, 3]), (2, [3]))},
}  # fmt: skip


def test_the_table_has_each_option_of_these_methods() -> None:
    for method, rows in REPLICA.items():
        assert set(rows) == set(inspect.signature(getattr(Replica, method)).parameters) - {"self"}


@pytest.mark.parametrize(("place", "option"), each(REPLICA), ids=names(REPLICA))
def test_an_option_of_a_replica_changes_something(place: str, option: str) -> None:
    assert REPLICA[place][option].differs()
