"""What each option of tables, conditions and transactions changes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import casework
from casework import Claim, Index, Op, Table
from casework.app.current import enter_claim, leave_claim
from casework.app.intents import WriteIntent
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.sqlite import SqliteBackend
from casework.backends.surroundings import VirtualClock
from casework.idempotency.guarding import Policy
from casework.kernel.conditions import Condition
from casework.kernel.items import Key, Put
from casework.kernel.programs import get, query, write
from casework.kernel.schema import EXECUTIONS
from casework.streams.consumer import HandlerWrites
from tests.options.applications import World
from tests.options.table import SOMETHING, Row, Rows, refusal, row

NOTES = Table(name="notes", partition="id")
OTHER = Table(name="other", partition="id")

# --- tables -----------------------------------------------------------------------------------------------------------


def asked(table: Table, item: Mapping[str, Any] | None = None, key: Any = None, **where: Any) -> Any:
    """What a store with this table says: of a key, or of a query."""
    backend = MemoryBackend(clock=VirtualClock())
    backend.create_tables([table])
    if item is not None:
        run(write(Put(table, item)), backend)
    if key is not None:
        return run(get(key), backend)
    return [found["id"] for found in run(query(table, **where), backend).items]


ITEM = {"id": "a", "other": "b", "n": 1, "m": "x", "until_s": 1}


def own_key(**options: Any) -> str:
    """The key of an item of a table with these options."""
    return str(Table(**{"name": "notes", "partition": "id", **options}).key_of(ITEM))


def put_with(sort_type: str, value: Any) -> str:
    """Whether an item with that sort key can be stored."""
    table = Table(name="notes", partition="id", sort="n", sort_type=sort_type)  # type: ignore[arg-type]
    return refusal(lambda: asked(table, {"id": "a", "n": value}, table.key("a", value)))


def indexed(value: Any = 1, **options: Any) -> Any:
    """What stands in an index with these options; or the error."""
    index = Index(**{"name": "by", "partition": "other", "sort": "n", "sort_type": "int", **options})
    table = Table(name="notes", partition="id", indexes=(index,))
    try:
        return asked(table, {**ITEM, "n": value}, partition="b", index="by")
    except Exception as error:
        return type(error).__name__


def forgets(ttl: str | None) -> bool:
    """Whether a store has forgotten an item, whose attribute ``until_s`` says 1970, in the course of its write."""
    table = Table(name="notes", partition="id", ttl=ttl)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(SqliteBackend(f"{folder}/s.db")) as backend:
        backend.create_tables([table])
        run(write(Put(table, ITEM)), backend)
        return run(get(table.key("a")), backend) is None


def stored_at(key: Key) -> Any:
    backend = MemoryBackend()
    backend.create_tables([NOTES, OTHER])
    for table, id in ((NOTES, "a"), (NOTES, "b"), (OTHER, "a")):
        run(write(Put(table, {"id": id, "at": f"{table.name} {id}"})), backend)
    found = run(get(key), backend)
    return found and found["at"]


PAIRS = Table(
    name="pairs",
    partition="id",
    sort="n",
    sort_type="int",
    indexes=(Index(name="by", partition="m", sort="m"), Index(name="of", partition="m", sort="id")),
)

TABLES: Rows = {
    "Table": {
        "name": row(lambda name: own_key(name=name), ("notes", "notes['a']"), ("other", "other['a']")),
        "partition": row(lambda name: own_key(partition=name), ("id", "notes['a']"), ("other", "notes['b']")),
        "sort": row(lambda name: own_key(sort=name), (None, "notes['a']"), ("m", "notes['a' 'x']")),
        "sort_type": row(
            lambda kind: (put_with(kind, "x"), put_with(kind, 1)), ("str", ("", "Misuse")), ("int", ("Misuse", ""))
        ),
        "ttl": row(forgets, (None, False), ("until_s", True)),
        "indexes": row(
            lambda indexes: refusal(
                lambda: asked(Table(name="notes", partition="id", indexes=indexes), ITEM, partition="x", index="by")
            ),
            ((), "Misuse"),
            ((Index(name="by", partition="m", sort="m"),), ""),
        ),
    },
    "Table.key": {
        "partition": row(lambda id: stored_at(NOTES.key(id)), ("a", "notes a"), ("b", "notes b")),
        "sort": row(lambda n: str(PAIRS.key("a", n)), (1, "pairs['a' 1]"), (2, "pairs['a' 2]")),
    },
    "Table.key_of": {"item": row(lambda id: stored_at(NOTES.key_of({"id": id})), ("a", "notes a"), ("b", "notes b"))},
    "Table.index": {"name": row(lambda name: PAIRS.index(name).sort, ("by", "m"), ("of", "id"))},
    "Key": {
        "table": row(lambda table: stored_at(Key(table, "a")), (NOTES, "notes a"), (OTHER, "other a")),
        "partition": row(lambda id: stored_at(Key(NOTES, id)), ("a", "notes a"), ("b", "notes b")),
        "sort": row(
            lambda n: asked(PAIRS, {"id": "a", "n": 1, "m": "x"}, Key(PAIRS, "a", n)) is None, (1, False), (2, True)
        ),
    },
    "Index": {
        "name": row(lambda name: indexed(name=name), ("by", ["a"]), ("of", "Misuse")),
        "partition": row(lambda name: indexed(partition=name), ("other", ["a"]), ("m", [])),
        "sort": row(lambda name: indexed(sort=name), ("n", ["a"]), ("missing", [])),
        "sort_type": row(lambda kind: indexed(sort_type=kind), ("int", ["a"]), ("str", "Misuse")),
    },
}

# --- conditions -------------------------------------------------------------------------------------------------------


def holds(*conditions: Condition) -> list[bool]:
    """Whether these hold where there is no item, and for two items, as a store says."""
    backend = MemoryBackend()
    backend.create_tables([NOTES])
    found = []
    for condition in conditions:
        for item in (None, {"id": "a", "n": 1}, {"id": "a", "n": 2, "m": 1}):
            run(write(Put(NOTES, item) if item else casework.kernel.items.Delete(NOTES.key("a"))), backend)
            found.append(not refusal(lambda when=condition: run(write(Put(NOTES, {"id": "a"}, when)), backend)))
    return found


def of_value(make: Callable[..., Condition], value: int) -> dict[str, Row]:
    """A comparison's options."""
    return {
        "attribute": row(lambda name: holds(make(name, value)), ("n", SOMETHING), ("m", SOMETHING)),
        "value": row(lambda value: holds(make("n", value)), (1, SOMETHING), (2, SOMETHING)),
    }


ONE, TWO = casework.equals("n", 1), casework.equals("n", 2)

CONDITIONS: Rows = {
    "absent": {
        "attribute": row(
            lambda name: holds(casework.absent(name)), (None, [True, False, False]), ("m", [True, True, False])
        ),
    },
    "present": {
        "attribute": row(
            lambda name: holds(casework.present(name)), (None, [False, True, True]), ("m", [False, False, True])
        ),
    },
    **{
        name: of_value(getattr(casework, name), 2 if name == "less_than" else 1)
        for name in ("equals", "differs", "less_than", "at_most", "greater_than", "at_least")
    },
    "all_of": {
        "conditions": row(
            lambda given: holds(casework.all_of(*given)), ([ONE], [False, True, False]), ([ONE, TWO], [False] * 3)
        ),
    },
    "any_of": {
        "conditions": row(
            lambda given: holds(casework.any_of(*given)),
            ([ONE], [False, True, False]),
            ([ONE, TWO], [False, True, True]),
        ),
    },
    "not_": {
        "condition": row(
            lambda given: holds(casework.not_(given)), (ONE, [True, False, True]), (TWO, [True, True, False])
        ),
    },
}

# --- transactions -----------------------------------------------------------------------------------------------------


def noted(w: World, collect: Callable[[Any], Any]) -> Any:
    """The notes after a transaction, where there were ``a`` and ``b`` before; or the error that it ended with."""
    w.backend.create_tables([NOTES, OTHER])
    for id in ("a", "b"):
        run(write(Put(NOTES, {"id": id, "n": 1, "m": 1})), w.backend)
    said = refusal(lambda: w.commit(collect))
    return said or sorted(
        "".join(f"{value}" for value in item.values() if value) + table.name[0]
        for table in (NOTES, OTHER) for item in w.backend.tables.stored(table).items.values()
    )  # fmt: skip


WHEN = ((casework.present(), SOMETHING), (casework.absent(), "TransactionRefused"))
A_OR_B = ((NOTES.key("a"), SOMETHING), (NOTES.key("b"), SOMETHING))


def write_rows(name: str, noted: Callable[[Any, Callable[[Any], Any]], Any]) -> dict[str, dict[str, Row]]:
    """What both a transaction and a consumer's handler can do with items."""
    a = NOTES.key("a")
    return {
        f"{name}.put": {
            "table": row(
                lambda w, table: noted(w, lambda tx: tx.put(table, {"id": "c"})), (NOTES, SOMETHING), (OTHER, SOMETHING)
            ),
            "item": row(
                lambda w, id: noted(w, lambda tx: tx.put(NOTES, {"id": id})), ("c", SOMETHING), ("d", SOMETHING)
            ),
            "when": row(lambda w, when: noted(w, lambda tx: tx.put(NOTES, {"id": "a"}, when=when)), *WHEN),
        },
        f"{name}.update": {
            "key": row(lambda w, key: noted(w, lambda tx: tx.update(key, {"n": 2})), *A_OR_B),
            "set": row(lambda w, n: noted(w, lambda tx: tx.update(a, {"n": n})), (2, SOMETHING), (3, SOMETHING)),
            "when": row(lambda w, when: noted(w, lambda tx: tx.update(a, {"n": 2}, when=when)), *WHEN),
        },
        f"{name}.delete": {
            "key": row(lambda w, key: noted(w, lambda tx: tx.delete(key)), *A_OR_B),
            "when": row(lambda w, when: noted(w, lambda tx: tx.delete(a, when=when)), *WHEN),
        },
        f"{name}.check": {
            "key": row(
                lambda w, id: noted(w, lambda tx: tx.check(NOTES.key(id), casework.present())),
                ("a", SOMETHING),
                ("z", "TransactionRefused"),
            ),
            "when": row(lambda w, when: noted(w, lambda tx: tx.check(a, when)), *WHEN),
        },
    }


def mailboxes(w: World, *given: Any, **options: Any) -> Any:
    w.started()
    w.commit(lambda tx: tx.send(*given, **options))
    return [[(m.type, m.data, m.id) for m in w.virtual.inspect(of).messages] for of in ("x", "y")]


def first_of_two(w: World, priority: int) -> str:
    """Whose event is looked at first, where another one of priority 0 came before it."""
    w.started().virtual.send("x", "Add")
    w.virtual.clock.advance(1)
    w.commit(lambda tx: tx.send("y", "Add", priority=priority))
    found = w.backend.tables.stored(EXECUTIONS).items.values()
    return str(
        min((each for each in found if str(each["sort"]).startswith("e/")), key=lambda each: each["rank_us"])["id"]
    )


def appended(w: World, stream: str = "s", ops: str = "a") -> Any:
    w.commit(lambda tx: tx.append(stream, [Op(id, b"") for id in ops]))
    return [[op.id for op in w.virtual.streams.read(each)] for each in ("s", "t")]


def begun(w: World, machine: str = "lamp", id: str | None = "n", input: Any = None) -> Any:
    intent = w.commit(lambda tx: tx.start(machine, id=id, input=input))
    return intent.execution


def claim_of(w: World, key: str, *, answers_http: bool = False) -> Claim:
    """A claim under which this code could run."""
    shared = w.app.idempotency.shared
    token = w.app.idempotency.claim(key, "f", 1, 30.0).token
    claim = Claim(key, "n", token, Policy(), epoch=1, is_reclaimed=False)
    claim.answers_http, claim.shared = answers_http, shared
    return claim


def finished(w: World, *, is_request: bool = False, **options: Any) -> Any:
    """The record of the claim that a transaction finishes, of a function or of a request."""
    entered = enter_claim(claim_of(w, "k", answers_http=is_request))
    try:
        w.commit(lambda tx: tx.finish(**options))
    finally:
        leave_claim(entered)
    return w.virtual.idempotency.get("k")


def of_request(w: World, **options: Any) -> Any:
    return finished(w, is_request=True, **options)


def of_claim(w: World, outer: bool) -> Any:
    """Which of two claims a transaction finishes: the one that it is given, else the one under which it runs."""
    claims = claim_of(w, "k"), claim_of(w, "l")
    entered = enter_claim(claims[1])
    try:
        w.commit(lambda tx: tx.finish(claim=claims[0] if outer else None))
    finally:
        leave_claim(entered)
    return [w.virtual.idempotency.get(key).state for key in ("k", "l")]


WRITES = write_rows("tx", noted)
WRITES["tx.update"]["remove"] = row(
    lambda w, names: noted(w, lambda tx: tx.update(NOTES.key("a"), {}, remove=names)),
    ([], SOMETHING),
    (["m"], SOMETHING),
)

TRANSACTIONS: Rows = {
    **WRITES,
    "tx.add": {
        "intent": row(
            lambda w, id: noted(w, lambda tx: tx.add(WriteIntent(Put(NOTES, {"id": id})))),
            ("c", SOMETHING),
            ("d", SOMETHING),
        ),
    },
    "tx.send": {
        "id": row(lambda w, id: [len(each) for each in mailboxes(w, id, "Add")], ("x", [1, 0]), ("y", [0, 1])),
        "event": row(lambda w, event: mailboxes(w, "x", event)[0][0][0], ("Add", "Add"), ("On", "On")),
        "data": row(lambda w, data: mailboxes(w, "x", "Add", data)[0][0][1], (None, {}), ({"by": 2}, {"by": 2})),
        "event_id": row(lambda w, id: mailboxes(w, "x", "Add", event_id=id)[0][0][2], ("e", "e"), (None, SOMETHING)),
        "priority": row(first_of_two, (0, "x"), (4, "y")),
    },
    "tx.append": {
        "stream": row(appended, ("s", [["a"], []]), ("t", [[], ["a"]])),
        "ops": row(lambda w, ops: appended(w, ops=ops)[0], ("a", ["a"]), ("ab", ["a", "b"])),
        "expected_seq": row(
            lambda w, seq: refusal(lambda: w.commit(lambda tx: tx.append("s", [Op("a", b"")], expected_seq=seq))),
            (0, ""),
            (1, "UnexpectedSeq"),
        ),
    },
    "tx.start": {
        "machine": row(lambda w, name: begun(w, name).machine, ("lamp", "lamp"), ("second", "second")),
        "id": row(lambda w, id: begun(w, id=id).id, ("n", "n"), (None, SOMETHING)),
        "input": row(lambda w, input: begun(w, input=input).context["n"], (None, 0), ({"n": 5}, 5)),
    },
    "tx.finish": {
        "result": row(lambda w, result: finished(w, result=result).body, (1, b"1"), (2, b"2")),
        "claim": row(of_claim, (False, ["claimed", "completed"]), (True, ["completed", "claimed"])),
        "status": row(lambda w, status: of_request(w, status=status).status, (None, 200), (201, 201)),
        "headers": row(
            lambda w, headers: of_request(w, headers=headers).headers, (None, SOMETHING), ({"X-A": "1"}, SOMETHING)
        ),
        "body": row(lambda w, body: of_request(w, body=body).body, (b"x", b"x"), (b"y", b"y")),
    },
}
"""On a world with an application, blocking or not."""


def handled(w: World, collect: Callable[[HandlerWrites], Any]) -> Any:
    """As ``noted``, by the writes of a consumer's handler."""
    writes = HandlerWrites()
    collect(writes)

    def apply(tx: Any) -> None:
        for each in writes.writes:
            tx.add(WriteIntent(each))

    return noted(w, apply)


HANDLED: Rows = write_rows("HandlerWrites", handled)
