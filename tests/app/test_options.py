"""Every option of every public function, class and method, with values that it cannot have: refused before anything.

The table is made from the signatures. A new option is in it at once, under the kind that its annotation names, and
fails until it is checked. What is refused is ``Misuse`` that names the option or shows the value; nothing is written,
no file is made. A misspelt name is answered by Python itself, with ``TypeError``.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import casework
from casework.backends.memory import MemoryBackend
from casework.errors import Misuse
from casework.idempotency.guarding import Policy
from tests.options.places import NOTES, PLACES, World, options_of

HALF = "\ud800"
HUGE = 2**70


WRONG: dict[str, list[Any]] = {
    "int": ["3", b"3", 2.5, True, -1, math.nan, HUGE, [3]],
    "float": ["3", b"3", True, -1.0, math.nan, math.inf, 1e300, [3]],
    "str": [5, b"k", True, HALF, "a\0b", ["k"]],
    "bool": [0, 1, "no", "False", b"", math.nan],
    "bytes": ["text", 5, [1]],
    "function": [5, "f", b"f", [print]],
    "texts": [5, "POST", b"POST", [5], True],
    "list": [5, "text", b"b", True],
    "mapping": [5, "text", [1]],
    "object": [5, "text", b"b", True],
}
"""By kind, what no option of that kind takes."""


def kinds_of(annotation: str) -> set[str]:
    """The kinds that an annotation names; empty for what takes anything."""
    found = set()
    for part in annotation.replace("'", "").split(" | "):
        base = part.split("[")[0].split(".")[-1]
        if base in ("Any", "T", "M", "object", "_Scalar", "KeySource", "Target", "Clock"):
            return set()
        found.add(
            {
                "int": "int", "float": "float", "str": "str", "bool": "bool", "bytes": "bytes", "Literal": "str",
                "None": "None", "Callable": "function", "Handler": "function", "Hook": "function", "Scope": "function",
                "Mapping": "mapping", "Path": "str", "PathLike": "str",
            }.get(base, "texts" if part in ("Sequence[str]", "list[str]") else "list" if base in LISTS else "object")
        )  # fmt: skip
    return found


LISTS = ("Sequence", "Iterable", "list", "tuple")


def wrong_values(annotation: str) -> Iterator[Any]:
    """What an option with this annotation cannot be."""
    kinds = kinds_of(annotation)
    if not kinds:
        return
    for kind in sorted(kinds - {"None"}):
        for value in WRONG[kind]:
            if not any(fits(value, other) for other in kinds - {kind}):
                yield value
    if "None" not in kinds:
        yield None
    yield object()


def fits(value: Any, kind: str) -> bool:
    """Whether a value may be right under another kind of the same option."""
    if kind == "str":
        return isinstance(value, str)
    if kind in ("int", "float"):
        return isinstance(value, int | float | str | bytes) and not isinstance(value, str | bytes | bool)
    if kind in ("list", "texts"):
        return isinstance(value, list)
    return kind == "bytes" and isinstance(value, bytes)


VALID: dict[str, Any] = {
    "id": "x", "event": "Go", "machine": "light", "token": "t", "message": "m", "reference": {}, "number": 16,
    "key": "k", "fingerprint": "f", "fingerprint_version": 1, "lease_ttl_seconds": 5.0, "status": 200, "headers": None,
    "body": b"", "expires_after_seconds": None, "timeout_seconds": 0.0, "items": [], "stream": "s", "ops": [],
    "group": "g", "streams": ["s"], "handler": lambda op, writes: None, "seq": 1, "upto": 1, "wait_s": 0.0,
    "event_id": "e", "exe": casework.StoredExecution("x", "{}"), "entry": {}, "path": "a", "fire_at": 1.0, "at_s": 1.0,
    "version": 1, "queue": "q", "data": b"d", "name": "n", "function": lambda state, op: state, "initial": 0,
    "scope": None, "queue_url": "https://sqs/q", "attribute": "a", "value": 1,
    "item": {"id": "a"}, "text": "id: x",
    "definition": {"id": "x"}, "set": {"n": 1}, "table": NOTES, "when": casework.absent(), "duration": "1s", "after": 0,
    "machines": [], "partition": "p", "sort": "q", "before": "30d", "to": "head",
}  # fmt: skip
"""What a required argument gets while another one is wrong."""


RIGHT_ANYWAY: dict[tuple[str, str], tuple[Any, ...]] = {
    ("ConsumerOptions", "start"): (5,),
    ("executions.delete_timer", "fire_at"): (-1.0,),
    ("executions.due_timers", "at_s"): (-1.0,),
    ("idempotent", "payload"): (True,),
    ("simulate", "invariants"): (None,),
}
"""Values that would be wrong by their kind, and are not: times before 1970, arguments with a meaning of their own."""


ROWS = [(place, name, annotation) for place in PLACES for name, annotation in options_of(place)]


WITH_A_SENTENCE_OF_ITS_OWN = (
    casework.NotJson, casework.InvalidMachine, casework.UnknownEvent, casework.UnknownMachine,
)  # fmt: skip


def required(world: World, place: str, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """What the required arguments of a place get."""
    special = {
        "target": world.app, "backend": world.backend, "client": object(), "path": world.folder / "file.db",
        "handler": VALID["handler"] if place.startswith("streams") else world.handler,
        "key": VALID["key"] if place.startswith(("keys", "once")) else str,
    }  # fmt: skip
    if place.startswith(("executions.", "keys.", "app.")):
        del special["path"]
    if place.startswith("tx."):
        special["key"] = NOTES.key("a")
    if place == "tx.finish":
        claim = casework.Claim("k", "n", "t", Policy(), epoch=1, is_reclaimed=False)
        claim.answers_http, claim.shared = True, world.app.idempotency.shared
        return {"claim": claim}
    if place == "simulate":
        return {"machines": [world.machine], "runs": 1}
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [
        n for n, each in parameters.items() if each.default is each.empty and each.kind not in kinds and n != "self"
    ]
    return {name: special.get(name, VALID.get(name)) for name in names}


def attempt(world: World, place: str, name: str, value: Any) -> str:
    """What is wrong with how a wrong value is answered; empty when it is refused as it should be."""
    function = PLACES[place](world)
    parameters = inspect.signature(function).parameters
    arguments = {**required(world, place, parameters), name: value}
    only = [each for each, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_ONLY]
    positional = [arguments.pop(each) for each in only if each in arguments]
    said = f"{name}={value!r}"
    try:
        answer = function(*positional, **arguments)
    except WITH_A_SENTENCE_OF_ITS_OWN:
        return ""
    except Misuse as error:
        is_told = name in str(error) or repr(value)[:40] in str(error)
        return "" if is_told else f"{said}: the message does not name it: {error}"
    except Exception as error:
        return f"{said}: {type(error).__name__}: {error}"
    if inspect.iscoroutine(answer):
        answer.close()
    return f"{said}: accepted"


@pytest.mark.parametrize(("place", "name", "annotation"), ROWS, ids=[f"{place}({name})" for place, name, _ in ROWS])
def test_an_option_refuses_what_it_cannot_be(place: str, name: str, annotation: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    found = [
        said
        for value in wrong_values(annotation)
        if value not in RIGHT_ANYWAY.get((place, name), ()) and (said := attempt(world, place, name, value))
    ]
    assert not found, f"{place}: {annotation}\n" + "\n".join(found)
    assert world.stored() == world.before, "something was written"
    assert list(tmp_path.iterdir()) == [], "a file was made"


@pytest.mark.parametrize("place", PLACES)
def test_a_misspelt_option_is_refused(place: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    function = PLACES[place](world)
    parameters = inspect.signature(function).parameters
    arguments = required(world, place, parameters)
    positional = [
        arguments.pop(each) for each, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and each in arguments
    ]
    with pytest.raises((TypeError, Misuse), match="misspelt"):
        function(*positional, **arguments, misspelt=1)
    assert world.stored() == world.before and list(tmp_path.iterdir()) == []


ZERO = [
    ("open", "buckets"), ("open", "batch_max"), ("open", "spill_above"), ("open", "spill_part"),
    ("WorkerOptions", "concurrency"), ("WorkerOptions", "group"), ("WorkerOptions", "poll_s"),
    ("WorkerOptions", "lease_s"), ("WorkerOptions", "heartbeat_s"), ("ConsumerOptions", "attempts_max"),
    ("ConsumerOptions", "batch_max"), ("ConsumerOptions", "lease_s"), ("ConsumerOptions", "heartbeat_s"),
    ("StreamOptions", "lost_rounds_max"), ("Policy", "lease_s"), ("Policy", "max_run_s"), ("Policy", "keep_s"),
    ("RelaySettings", "push_deadline_s"), ("RelaySettings", "max_push_ops"), ("app.list", "limit"),
    ("streams.page", "limit"), ("streams.list", "limit"), ("streams.read", "limit"),
    ("keys.claim", "lease_ttl_seconds"),
    ("simulate", "runs"), ("simulate", "workers"), ("SqsConsumer", "visibility_s"), ("ExecutionStore", "buckets"),
    ("IdempotencyMiddleware", "max_response_bytes"), ("DynamoDBIdempotencyStore", "read_timeout"),
]  # fmt: skip

EMPTY = [
    ("app.start", "id"), ("app.start", "machine"), ("app.send", "event"), ("app.send", "event_id"),
    ("keys.claim", "key"), ("keys.renew", "token"), ("streams.append", "stream"), ("streams.consumer", "group"),
    ("message_handler", "queue"), ("once", "name"), ("SqliteStore", "path"), ("Replica", "path"),
    ("executions.load", "id"), ("executions.is_processed", "event_id"), ("IdempotencyMiddleware", "header"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "name"), ZERO)
def test_zero_is_refused_where_it_makes_no_sense(place: str, name: str, tmp_path: Path) -> None:
    assert not attempt(World(tmp_path), place, name, 0)


@pytest.mark.parametrize(("place", "name"), EMPTY)
def test_an_empty_text_is_refused_where_something_is_named(place: str, name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not attempt(world, place, name, "")
    assert world.stored() == world.before and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        ("ConsumerOptions", "on_poison", "Stop", "'park', 'stop'"),
        ("Policy", "on_unavailable", "Refuse", "'refuse', 'run'"),
        ("IdempotencyMiddleware", "methods", "POST", "('POST', 'PATCH')"),
        ("IdempotencyMiddleware", "style", "Stripe", "'ietf', 'stripe'"),
        ("app.list", "status", "runing", "'running'"),
        ("SqliteStore", "path", ":memory:", "casework.open('memory:')"),
        ("SqliteIdempotencyStore", "path", ":memory:", "path of a file"),
        ("Replica", "path", ":memory:", "path of a file"),
        ("SqliteStore", "path", None, "path of a file"),
        ("Table", "sort_type", "float", "'str', 'int'"),
    ],
)  # fmt: skip
def test_the_message_says_what_to_write(place: str, name: str, value: Any, said: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    function = PLACES[place](world)
    arguments = required(world, place, inspect.signature(function).parameters)
    with pytest.raises(Misuse, match=re.escape(said)):
        function(**{**arguments, name: value})
    assert list(tmp_path.iterdir()) == [] and not Path(":memory:").exists()


# --- the store as a component -----------------------------------------------------------------------------------------


class Status(str, enum.Enum):  # noqa: UP042 - as in Python before 3.11, whose text is the member's name
    """As engines have it: its own text is another than the word that it stands for."""

    RUNNING = "running"


@pytest.mark.parametrize(
    "arguments",
    [
        {"emits": [("a",)]}, {"emits": [("a", "b", "c")]}, {"emits": ["ab"]}, {"emits": [("a", 5)]},
        {"emits": [(HALF, "x")]}, {"emits": [(None, HALF)]}, {"emits": [(5, "x")]}, {"spawns": [("a", "b")]},
        {"spawns": [("a", "b", None)]}, {"spawns": [(HALF, "b", "c")]}, {"timers": [("schedule", "a", 1.0)]},
        {"timers": [casework.TimerOp("arm", "a", 1.0)]}, {"timers": [casework.TimerOp("schedule", "a", math.nan)]},
        {"timers": [casework.TimerOp("schedule", HALF, 1.0)]}, {"trace": {"x": math.inf}}, {"trace": {"x": {1}}},
        {"also": [{"id": "x"}]}, {"processed_event_id": HALF}, {"processed_event_id": ""},
    ],
    ids=str,
)  # fmt: skip
def test_a_commit_that_cannot_be_stored_writes_nothing(arguments: dict[str, Any], tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(Misuse):
        world.executions.commit(casework.StoredExecution("new", "{}"), **arguments)
    assert world.stored() == world.before


@pytest.mark.parametrize("field", ["id", "data", "machine", "machine_hash", "status", "parent_id"])
def test_no_field_of_an_execution_may_hold_half_a_character_or_no_text(field: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    for wrong in (HALF, 5, b"x"):
        execution = msgspec.structs.replace(casework.StoredExecution("new", "{}"), **{field: wrong})
        with pytest.raises(Misuse):
            world.executions.save(execution)
    assert world.stored() == world.before


def test_a_status_of_an_enumeration_is_the_word_that_it_stands_for() -> None:
    store = casework.ExecutionStore(MemoryBackend())
    store.create_tables()
    store.save(casework.StoredExecution("new", "{}", status=Status.RUNNING, machine="m"))
    for status in (Status.RUNNING, "running", [Status.RUNNING]):
        found = store.list_executions(status=status, machine="m").items
        assert [(each.id, each.status) for each in found] == [("new", "running")]
