"""Every public option of the library: the arguments of what the reference and ``__all__`` name.

What docs/reference does not show is not public; what it shows is found here, so a new option fails
:mod:`tests.options.test_public` until a table of this folder has a row that shows what it changes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import casework

ROOT = Path(__file__).parents[2]

OWNERS = {
    "App": "app", "AsyncApp": "app", "StreamStore": "streams", "AsyncStreamStore": "streams",
    "IdempotencyStore": "keys", "AsyncIdempotencyStore": "keys", "ExecutionStore": "executions",
    "AsyncExecutionStore": "executions", "Intents": "tx", "WorkerTask": "WorkerThread",
}  # fmt: skip
"""What the methods of a class are called in the tables. Two facades of one thing have the same rows; those of a
subclass are those of the class that has them first."""

HANDED_OUT = {
    "App", "AsyncApp", "Intents", "AppendIntent", "StartIntent", "WorkerThread", "WorkerTask", "Worker",
    "WorkerStatus", "Execution", "Listed", "Purged", "PurgedExecution", "DeadLetters", "DeadLetter", "Inspection",
    "ShownTask", "ShownTimer", "ShownMessage", "ShownEvent", "ShownFailure", "ShownChildren", "ChildResults",
    "ChildResult", "Appended", "BufferedWriter", "HandlerWrites", "ConsumerThread", "Consumer", "OpPage", "Segment",
    "Head", "Cursor", "Lag", "Parked", "GroupPage", "StreamPage", "Truncated", "Snapshot", "Finding", "Claim",
    "HttpRequest", "MessageHandler", "ClaimResult", "Record", "TaskCall", "SimulationReport", "SimulationFailure",
    "History", "OutboxEntry", "SpawnEntry", "Page", "PushReport", "Difference", "Step", "ArmTimer", "CancelTimer",
    "StartTask", "StartChildren", "StopInvoke", "Send", "CancelSend", "Log", "Problem", "TaskContext",
    "Machine", "ExecutionStoreContract", "StreamStoreContract", "casework.surfaces.guard.Event",
}  # fmt: skip
"""Classes whose objects casework makes: how is not for users. Options of their methods are for users."""

OF_THE_USER = {"Codec"}
"""What users write: casework calls it."""

SAME = {
    "Options": "open",
    "OpenArguments": "open",
    "Policy": "idempotent",
    "HttpOptions": "IdempotencyMiddleware",
}
"""The options of the one have the same names as some of the other, whose rows are theirs too: see
:func:`tests.options.test_public.test_options_under_two_names_are_the_same`."""


class Public(NamedTuple):
    """Something public, and which of its members are."""

    path: str
    what: Any
    members: frozenset[str] | None
    """None: all of them."""


def found_at(path: str) -> Any:
    """What a dotted path leads to."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise AssertionError(f"the reference names {path}, which is nowhere")


def documented() -> Iterator[Public]:
    """What docs/reference shows."""
    for page in sorted((ROOT / "docs/reference").glob("*.md")):
        for path, options in re.findall(
            r"^::: (\S+)\n((?:    .*\n|\n(?=    ))*)", page.read_text("utf-8"), re.MULTILINE
        ):
            shown = re.search(r"(?<![\w])members:((?: \[.*\])|(?: false)|(?:\n +- \w+)+)", options)
            members = None if shown is None else frozenset(re.findall(r"\w+", shown[1])) - {"false"}
            yield Public(path, found_at(path), members)


def exported() -> Iterator[Public]:
    """What ``from casework import *`` gives."""
    for name in casework.__all__:
        yield Public(f"casework.{name}", getattr(casework, name), None)


BACKENDS = (
    "casework.backends.dynamodb.DynamoDBBackend", "casework.backends.dynamodb.AsyncDynamoDBBackend",
    "casework.backends.sqlite.SqliteBackend", "casework.backends.memory.MemoryBackend",
    "casework.backends.threaded.ThreadedBackend",
)  # fmt: skip
"""What ``casework.open`` takes in place of a URL. How they are made is public; their methods are for drivers."""


def found() -> Iterator[Public]:
    """All of it."""
    yield from documented()
    yield from exported()
    for path in BACKENDS:
        yield Public(path, found_at(path), frozenset())


@functools.cache
def everything() -> Mapping[str, tuple[str, ...]]:
    """The options of each public place that has some, in their order."""
    by_id: dict[int, Public] = {}
    for public in found():
        by_id.setdefault(id(public.what), public)
    options: dict[str, tuple[str, ...]] = {}
    for public in by_id.values():
        for place, function in places_of(public):
            both = (*options.get(place, ()), *options_of(place, function))
            if both:
                options[place] = tuple(dict.fromkeys(both))
    return options


def places_of(public: Public) -> Iterator[tuple[str, Any]]:
    """What can be called: a function itself, a class, and its public methods."""
    what, name = public.what, public.path.rpartition(".")[2]
    if isinstance(what, types.ModuleType) or (inspect.isclass(what) and issubclass(what, BaseException)):
        return
    if not inspect.isclass(what):
        if inspect.isroutine(what):
            yield name, what
        return
    if name in OF_THE_USER:
        return
    if not {name, public.path} & HANDED_OUT:
        yield name, what
    for member, function in inspect.getmembers(what, inspect.isroutine):
        owner = owner_of(what, member)
        if owner is None or member.startswith("_"):
            continue
        if public.members is None or member in public.members:
            yield f"{owner}.{member}", function


def owner_of(kind: type, member: str) -> str | None:
    """The name of the class that a public method belongs to in the tables; None: it is not casework's."""
    for base in reversed(kind.__mro__):
        if member in vars(base) and base.__module__.startswith("casework"):
            return OWNERS.get(base.__name__, base.__name__)
    return None


def options_of(place: str, function: Any) -> Iterator[str]:
    """The names of the options of a place."""
    if typing.is_typeddict(function):
        yield from function.__annotations__
        return
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from MORE[place]
        elif name != "self":
            yield name


def fields(kind: Any) -> tuple[str, ...]:
    """The names of a struct's fields, or of a typed dictionary's keys."""
    return tuple(inspect.signature(kind).parameters) if not typing.is_typeddict(kind) else tuple(kind.__annotations__)


def _more() -> dict[str, tuple[str, ...]]:
    from casework.app.arguments import make_options
    from casework.streams.consumer import ConsumerOptions
    from casework.surfaces.http import HttpArguments

    http = tuple(typing.get_type_hints(HttpArguments))
    surfaces = (
        "IdempotencyMiddleware", "idempotent_route", "IdempotencyWsgiMiddleware", "idempotent_django_view",
        "idempotent_flask_view", "idempotent_aiohttp_app",
    )  # fmt: skip
    handler = tuple(
        name
        for name in inspect.signature(casework.message_handler).parameters
        if name not in ("target", "queue", "key")
    )
    return {
        **dict.fromkeys(surfaces, http),
        "streams.consumer": fields(ConsumerOptions),
        "sqs_batch": handler,
        "VirtualApp": tuple(inspect.signature(make_options).parameters),
        "Replica.view": ("encode", "decode", "keep"),
    }


MORE = _more()
"""What stands behind ``**options``."""
