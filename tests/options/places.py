"""The places that have options, and their options as their signatures have them: what the tables of options stand on.

:mod:`tests.app.test_options` gives each option values that it cannot have; the tables of this folder show what each
option changes. A new option is under both at once, and fails until it is looked after.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import casework
from casework.app.idempotency_store import IdempotencyStore
from casework.app.streams import StreamStore
from casework.app.sync import App
from casework.aws import cloudformation, iam_policy
from casework.backends.memory import MemoryBackend
from casework.executions.worker import WorkerOptions
from casework.idempotency.guarding import Policy
from casework.relay.settings import RelaySettings
from casework.replica import Replica
from casework.streams.consumer import ConsumerOptions
from casework.surfaces.http import HttpOptions
from casework.testing.virtual import VirtualApp

MACHINE = {"id": "light", "initial": "on", "states": {"on": {"on": {"Go": {}}, "invoke": {"src": {"task": "t"}}}}}


class World:
    """A store, a store of each kind on it, and whether anything was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backend = MemoryBackend()
        self.machine = casework.Machine.from_dict(MACHINE)
        self.machine.task(name="t")(lambda task: None)
        self.app = casework.open(self.backend, machines=[self.machine], create=True)
        self.app.start("light", id="x")
        self.executions = casework.ExecutionStore(self.backend)
        self.handler = casework.message_handler(self.app, queue="q", key=lambda message: message)(lambda message: None)
        self.before = self.stored()

    def stored(self) -> str:
        tables = self.backend.tables._tables
        return repr({name: sorted(map(repr, found.items.items())) for name, found in tables.items()})


Place = Callable[[World], Callable[..., Any]]


def method(owner: str, name: str) -> Place:
    return lambda world: getattr({"app": world.app, "streams": world.app.streams, "keys": world.app.idempotency,
                                  "executions": world.executions}[owner], name)  # fmt: skip


def methods_of(owner: str, kind: type, without: tuple[str, ...] = ()) -> dict[str, Place]:
    names = [name for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")]
    return {f"{owner}.{name}": method(owner, name) for name in names if name not in without}


def decorated(make: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator with its function: some options can only be checked together with it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        def handle(value: Any) -> None: ...

        return make(*args, **kwargs)(handle)

    call.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return call


def of_struct(make: Callable[..., Any], *structs: Any, skip: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A function whose keyword arguments are the fields of these structs."""
    given = [each for each in inspect.signature(make).parameters.values() if each.kind is not each.VAR_KEYWORD]
    fields = {
        field.name: inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY,
            annotation=inspect.signature(struct).parameters[field.name].annotation,
            default=inspect.Parameter.empty if field.required else None,
        )
        for struct in structs for field in msgspec.structs.fields(struct) if field.name not in skip
    }  # fmt: skip

    def call(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    call.__signature__ = inspect.Signature([*given, *fields.values()])  # type: ignore[attr-defined]
    return call


def view(request: Any) -> None: ...


async def asgi(scope: Any, receive: Any, send: Any) -> None: ...


def http(make: Callable[..., Any], *before: Any) -> Place:
    def place(world: World) -> Callable[..., Any]:
        def call(**options: Any) -> Any:
            found = make(*before, world.app, **{"scope": None, **options})
            return found(view) if make in VIEWS else found

        return of_struct(call, HttpOptions, Policy, skip=("on_lease_lost",))

    return place


VIEWS = (casework.idempotent_django_view, casework.idempotent_flask_view)


def on_aiohttp(world: World) -> Callable[..., Any]:
    from aiohttp import web

    return http(casework.idempotent_aiohttp_app, web.Application())(world)


def file_in(make: Callable[..., Any], name: str = "path") -> Place:
    def place(world: World) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            return make(**{name: world.folder / "file.db", **arguments})

        call.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
        return call

    return place


NOTES = casework.Table(name="notes", partition="id")


def in_transaction(name: str) -> Place:
    return lambda world: getattr(world.app.transaction(), name)


def of_replica(name: str) -> Place:
    def place(world: World) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with tempfile.TemporaryDirectory() as folder, Replica(Path(folder) / "r.replica", stream="s") as own:
                return getattr(own, name)(*arguments, **options)

        call.__signature__ = inspect.signature(getattr(Replica, name).__get__(object()))  # type: ignore[attr-defined]
        return call

    return place


NOT_ASKED = ("close", "run", "run_on_loop", "check_is_open", "raise_buckets")
"""Without options of their own, or not for users."""

PLACES: dict[str, Place] = {
    **methods_of("app", App, NOT_ASKED),
    **methods_of("streams", StreamStore, NOT_ASKED),
    **methods_of("keys", IdempotencyStore, NOT_ASKED),
    **methods_of("executions", casework.ExecutionStore, NOT_ASKED),
    "open": lambda world: casework.open,
    "open_async": lambda world: casework.open_async,
    "WorkerOptions": lambda world: WorkerOptions,
    "ConsumerOptions": lambda world: ConsumerOptions,
    "StreamOptions": lambda world: casework.StreamOptions,
    "Policy": lambda world: Policy,
    "RelaySettings": lambda world: RelaySettings,
    "VirtualApp": lambda world: VirtualApp,
    "IdempotencyStore": lambda world: casework.IdempotencyStore,
    "ExecutionStore": lambda world: casework.ExecutionStore,
    "StreamStore": lambda world: casework.StreamStore,
    "MemoryIdempotencyStore": lambda world: casework.MemoryIdempotencyStore,
    "SqliteIdempotencyStore": file_in(casework.SqliteIdempotencyStore),
    "SqliteStore": file_in(casework.SqliteStore),
    "Replica": file_in(Replica),
    "DynamoDBStore": lambda world: casework.DynamoDBStore,
    "DynamoDBStore.create": lambda world: casework.DynamoDBStore.create,
    "DynamoDBIdempotencyStore": lambda world: casework.DynamoDBIdempotencyStore,
    "AsyncDynamoDBIdempotencyStore": lambda world: casework.AsyncDynamoDBIdempotencyStore,
    "AsyncDynamoDBStore": lambda world: casework.AsyncDynamoDBStore,
    "idempotent": lambda world: decorated(casework.idempotent),
    "message_handler": lambda world: decorated(casework.message_handler),
    "sqs_batch": lambda world: decorated(casework.sqs_batch),
    "SqsBatch": lambda world: casework.SqsBatch,
    "SqsConsumer": lambda world: casework.SqsConsumer,
    "OpenTelemetryHook": lambda world: casework.OpenTelemetryHook,
    "once": lambda world: casework.once,
    "IdempotencyMiddleware": http(casework.IdempotencyMiddleware, asgi),
    "IdempotencyWsgiMiddleware": http(casework.IdempotencyWsgiMiddleware, lambda environ, start: []),
    "idempotent_django_view": http(casework.idempotent_django_view),
    "idempotent_flask_view": http(casework.idempotent_flask_view),
    "idempotent_aiohttp_app": on_aiohttp,
    "simulate": lambda world: casework.simulate,
    "Machine.task": lambda world: world.machine.task,
    "Machine.action": lambda world: world.machine.action,
    "Machine.guard": lambda world: world.machine.guard,
    "Machine.from_yaml": lambda world: casework.Machine.from_yaml,
    "Machine.from_scxml": lambda world: casework.Machine.from_scxml,
    "Machine.all_from_scxml": lambda world: casework.Machine.all_from_scxml,
    "Machine.from_dict": lambda world: casework.Machine.from_dict,
    "Machine.load": lambda world: casework.Machine.load,
    **{
        f"tx.{name}": in_transaction(name)
        for name in ("put", "update", "delete", "check", "send", "append", "start", "finish")
    },
    **{
        f"Replica.{name}": of_replica(name)
        for name in ("append", "fold", "read", "pull", "tail", "rebase", "unpark", "view")
    },
    "BufferedWriter.put": lambda world: world.app.streams.writer().put,
    "Pauses": lambda world: casework.Pauses,
    "VirtualApp.advance": lambda world: VirtualApp([]).advance,
    "cloudformation": lambda world: cloudformation,
    "iam_policy": lambda world: iam_policy,
    "Table": lambda world: casework.Table,
    "Index": lambda world: casework.Index,
}

OWN_PARAMETERS = (
    "self", "target", "client", "config", "clock", "store", "backend", "table", "source", "writer", "codec",
)  # fmt: skip
"""Objects of the user's or of other tests: what they are is asked where they are used."""


def options_of(place: str, *, all_of_them: bool = False) -> Iterator[tuple[str, str]]:
    """The options of a place, with their annotations; objects of the user's only with ``all_of_them``."""
    function = PLACES[place](World(Path("unused")))
    left_out = ("self", "target", "backend") if all_of_them else OWN_PARAMETERS
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in left_out and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            annotation = parameter.annotation
            yield name, annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
