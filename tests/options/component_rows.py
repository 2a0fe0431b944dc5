"""What each option of the execution store as a component changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import casework
from casework import StoredExecution, Table, TimerOp
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.executions.buckets import SETTINGS
from casework.kernel.conditions import present
from casework.kernel.items import Check, Put
from casework.kernel.programs import get
from casework.kernel.schema import TABLES
from tests.options.table import SOMETHING, OnLoop, Row, Rows, refusal, row


class World:
    """A store as a component on memory; ``store`` is under test, ``plain`` looks at what came of it."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.clock = VirtualClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.backend.create_tables([*TABLES, NOTES])
        self.plain = casework.ExecutionStore(self.backend)
        self._runner: asyncio.Runner | None = None
        if kind == "sync":
            self.store: Any = casework.ExecutionStore(self.backend, **options)
        else:
            self._runner = asyncio.Runner()
            on_loop = casework.AsyncExecutionStore(ThreadedBackend(self.backend), **options)
            self.store = OnLoop(on_loop, self._runner)

    def close(self) -> None:
        """Give back what is held."""
        if self._runner is not None:
            self.store.close()
            self._runner.close()


NOTES = Table(name="notes", partition="id")


def stored(w: World, id: str = "x", **fields: Any) -> StoredExecution:
    """An execution that is stored."""
    exe = StoredExecution(**{"id": id, "data": "{}", "machine": "m", **fields})
    w.store.save(exe)
    return exe


def loaded(w: World, **fields: Any) -> Any:
    """What is read of an execution that was stored with these fields."""
    return w.plain.load(stored(w, **fields).id)


def both(w: World, **committed: Any) -> World:
    """``x`` and ``y``, each committed with these."""
    for id in "xy":
        w.store.commit(StoredExecution(id, "{}", machine="m"), **committed)
    return w


def committed(w: World, *emits: Any, **options: Any) -> World:
    """``x``, committed with these."""
    w.store.commit(StoredExecution("x", "{}"), *emits, **options)
    return w


def of_id(call: Callable[[Any, str], Any], see: Callable[[World], Any] | None = None, **committed: Any) -> Row:
    """The execution of that id is the one that it is about."""

    def look(w: World, id: str) -> Any:
        answer = call(both(w, **committed).store, id)
        return answer if see is None else see(w)

    return row(look, ("x", SOMETHING), ("y", SOMETHING))


def family(w: World) -> World:
    """``x`` and its child ``y`` of the machine ``m``, the child done; and ``z`` of another one."""
    for exe in (
        StoredExecution("x", "{}", machine="m"), StoredExecution("y", "{}", machine="m", status="done", parent_id="x"),
        StoredExecution("z", "{}", machine="n"),
    ):  # fmt: skip
        w.store.save(exe)
    return w


def all_of(w: World, **options: Any) -> str:
    """The ids on every page of a listing."""
    family(w)
    found, cursor = "", None
    while True:
        page = w.store.list_executions(**options, cursor=cursor)
        found += "".join(each.id for each in page.items)
        cursor = page.next_cursor
        if cursor is None:
            return "".join(sorted(found))


def listed_after(w: World, skipped: int) -> int:
    """How many are listed behind the first one, or from the beginning."""
    page = family(w).store.list_executions(status="running", limit=1)
    while not page.items:
        page = w.store.list_executions(status="running", limit=1, cursor=page.next_cursor)
    return len(w.store.list_executions(status="running", cursor=page.next_cursor if skipped else None).items)


def acknowledged(w: World, what: str, which: int) -> Any:
    """What is left of two emits, or of two spawns, when one was acknowledged."""
    committed(w, [("y", "one"), ("y", "two")], spawns=[("c", "/", "one"), ("d", "/", "two")])
    look = {"ack_outbox": w.plain.pending_outbox, "ack_spawn": w.plain.pending_spawns}[what]
    getattr(w.store, what)(look()[which])
    return [getattr(each, "event", None) or each.context for each in look()]  # type: ignore[attr-defined]


def twice(w: World, event_id: str) -> str:
    """What a commit ends with after one that processed the event ``e``."""
    exe = StoredExecution("x", "{}")
    w.store.commit(exe, processed_event_id="e")
    return refusal(lambda: w.store.commit(exe, processed_event_id=event_id))


def timed(w: World, *ops: TimerOp) -> list[tuple[str, float]]:
    """The timers that are armed."""
    committed(w, timers=[TimerOp("schedule", "a", 5.0), *ops])
    return [(path, at_s) for _, path, at_s in w.plain.due_timers(100.0)]


def left(w: World, id: str = "x", path: str = "a", fire_at: float = 5.0) -> Any:
    """The timers that are left when one was deleted."""
    both(w, timers=[TimerOp("schedule", "a", 5.0), TimerOp("schedule", "b", 6.0)])
    w.store.delete_timer(id, path, fire_at)
    return [(id, path) for id, path, _ in w.plain.due_timers(100.0)]


def also(w: World, *writes: Any) -> Any:
    said = refusal(lambda: committed(w, also=writes))
    return said, run(get(NOTES.key("n")), w.backend)


def lengths(w: World) -> list[int]:
    return [len(w.plain.read_trace(id)) for id in "xy"]


def purged(w: World, id: str = "x", version: int = 1) -> str:
    both(w).store.purge(id, version)
    return "".join(id for id in "xy" if w.plain.load(id))


def raised(w: World, number: int) -> Any:
    stored(w)
    w.store.raise_buckets(number)
    item = run(get(SETTINGS), w.backend)
    assert item is not None
    return item["buckets"]


def born(w: World, created_at_us: int) -> Any:
    return loaded(w, created_at_us=created_at_us).created_at_us


def kept(w: World, id: str) -> list[bool]:
    both(w)
    stored(w, id, version=1)
    found = [w.plain.load(each) for each in "xy"]
    return [each is not None and each.version == 2 for each in found]


ONE = {"trace": {"n": 1}}

COMPONENT: Rows = {
    "StoredExecution": {
        "id": row(lambda w, id: loaded(w, id=id).id, ("x", "x"), ("y", "y")),
        "data": row(lambda w, data: loaded(w, data=data).data, ("{}", "{}"), ("[]", "[]")),
        "version": row(
            lambda w, version: (stored(w), refusal(lambda: stored(w, version=version)))[1],
            (0, "StoreConflict"),
            (1, ""),
        ),
        "machine": row(lambda w, name: loaded(w, machine=name).machine, ("m", "m"), ("n", "n")),
        "machine_hash": row(lambda w, text: loaded(w, machine_hash=text).machine_hash, ("a", "a"), ("b", "b")),
        "status": row(lambda w, status: loaded(w, status=status).status, ("running", "running"), ("done", "done")),
        "parent_id": row(lambda w, id: loaded(w, parent_id=id).parent_id, (None, None), ("p", "p")),
        "created_at_us": row(born, (0, SOMETHING), (5, 5)),
    },
    "TimerOp": {
        "action": row(
            lambda w, action: timed(w, TimerOp(action, "a", 7.0)), ("schedule", [("a", 7.0)]), ("cancel", [])
        ),
        "path": row(lambda w, path: len(timed(w, TimerOp("schedule", path, 7.0))), ("a", 1), ("b", 2)),
        "fire_at": row(
            lambda w, at_s: timed(w, TimerOp("schedule", "a", at_s)), (6.0, [("a", 6.0)]), (7.0, [("a", 7.0)])
        ),
    },
    "executions.load": {"id": row(lambda w, id: stored(w) and w.store.load(id) is None, ("x", False), ("z", True))},
    "executions.load_for_event": {
        "id": row(lambda w, id: (stored(w), w.store.load_for_event(id, "e")[0] is None)[1], ("x", False), ("z", True)),
        "event_id": row(
            lambda w, id: committed(w, processed_event_id="e").store.load_for_event("x", id)[1],
            ("e", True),
            ("f", False),
        ),
    },
    "executions.save": {"exe": row(kept, ("x", [True, False]), ("y", [False, True]))},
    "executions.commit": {
        "exe": row(
            lambda w, id: (w.store.commit(StoredExecution(id, "{}")), w.plain.load("x") is None)[1],
            ("x", False),
            ("y", True),
        ),
        "emits": row(lambda w, emits: len(committed(w, emits).plain.pending_outbox()), ([], 0), ([("y", "e")], 1)),
        "processed_event_id": row(
            twice,
            ("e", "AlreadyProcessed"),
            ("f", ""),
        ),
        "spawns": row(
            lambda w, spawns: len(committed(w, spawns=spawns).plain.pending_spawns()), ([], 0), ([("c", "/", "{}")], 1)
        ),
        "timers": row(
            lambda w, timers: len(committed(w, timers=timers).plain.due_timers(9.0)),
            ([], 0),
            ([TimerOp("schedule", "a", 5.0)], 1),
        ),
        "trace": row(
            lambda w, entry: [each["n"] for each in committed(w, trace=entry).plain.read_trace("x")],
            (None, []),
            ({"n": 1}, [1]),
        ),
        "also": row(
            lambda w, writes: also(w, *writes),
            ([], ("", None)),
            ([Put(NOTES, {"id": "n"})], ("", {"id": "n"})),
            ([Check(NOTES.key("n"), present())], ("ConditionFailed", None)),
        ),
    },
    "executions.list_executions": {
        "status": row(lambda w, status: all_of(w, status=status), ("running", "xz"), ("done", "y"), (None, "xyz")),
        "machine": row(lambda w, machine: all_of(w, machine=machine), ("m", "xy"), ("n", "z")),
        "roots_only": row(lambda w, only: all_of(w, roots_only=only), (False, "xyz"), (True, "xz")),
        "parent": row(lambda w, parent: all_of(w, parent=parent), (None, "xyz"), ("x", "y")),
        "limit": row(
            lambda w, limit: len(family(w).store.list_executions(status="running", limit=limit).items), (1, 1), (2, 2)
        ),
        "cursor": row(listed_after, (0, 2), (1, 1)),
    },
    "executions.is_processed": {
        "id": row(
            lambda w, id: committed(w, processed_event_id="e").store.is_processed(id, "e"), ("x", True), ("y", False)
        ),
        "event_id": row(
            lambda w, id: committed(w, processed_event_id="e").store.is_processed("x", id), ("e", True), ("f", False)
        ),
    },
    "executions.ack_outbox": {
        "entry": row(lambda w, which: acknowledged(w, "ack_outbox", which), (0, ["two"]), (1, ["one"])),
    },
    "executions.ack_spawn": {
        "entry": row(lambda w, which: acknowledged(w, "ack_spawn", which), (0, ["two"]), (1, ["one"])),
    },
    "executions.due_timers": {
        "at_s": row(
            lambda w, at_s: len(both(w, timers=[TimerOp("schedule", "a", 5.0)]).store.due_timers(at_s)),
            (4.0, 0),
            (5.0, 2),
        ),
    },
    "executions.delete_timer": {
        "id": row(left, ("x", SOMETHING), ("y", SOMETHING)),
        "path": row(lambda w, path: left(w, path=path), ("a", SOMETHING), ("c", SOMETHING)),
        "fire_at": row(lambda w, at_s: left(w, fire_at=at_s), (5.0, SOMETHING), (6.0, SOMETHING)),
    },
    "executions.append_trace": {
        "id": of_id(lambda store, id: store.append_trace(id, {}), lengths),
        "entry": row(
            lambda w, n: (stored(w), w.store.append_trace("x", {"n": n}), w.plain.read_trace("x")[0]["n"])[2],
            (1, 1),
            (2, 2),
        ),
    },
    "executions.read_trace": {
        "id": row(lambda w, id: len(committed(w, **ONE).store.read_trace(id)), ("x", 1), ("y", 0)),
    },
    "executions.purge": {
        "id": row(purged, ("x", "y"), ("y", "x")),
        "version": row(lambda w, version: purged(w, version=version), (1, "y"), (2, "xy")),
    },
    "executions.raise_buckets": {"number": row(raised, (16, 16), (32, 32))},
}
"""On a world with a store as a component, blocking or not."""

OF_THE_STORE = {
    "updated_at_us": 5,
    "trace_n": 5,
    "trace_low": 3,
    "recent_ids": b"12345678",
    "last_commit_us": 5,
    "known_timers": "x",
    "bucket": 7,
}
"""Fields of an execution that a commit gives it: with values that a copy of another one may have."""
