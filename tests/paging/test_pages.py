"""Everything that pages, with no item, one, a page less one, a page, a page and one, and ten pages.

Each case makes so many items on a store with small pages, and demands that all are found, each once. What workers find
they find by polling: who sends is another application, whose bell they do not hear. The list of places comes from the
source, so one that is not in the table fails it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app import sync
from casework.app.execution_store import ExecutionStore
from casework.app.idempotency_store import IdempotencyStore
from casework.app.streams import StreamStore
from casework.backends.drive import run
from casework.cli.idempotency import _page, _purge_expired
from casework.executions.buckets import WORKERS, let_writers_follow, raise_buckets
from casework.executions.mailbox import MAIL_BEGIN, MAIL_END
from casework.executions.membership import Membership, beat
from casework.executions.runtime import Runtime
from casework.executions.setting_aside import in_class
from casework.executions.store_items import StoredExecution, TimerOp
from casework.kernel.effects import Get, Query, Write
from casework.kernel.items import Put, Update
from casework.kernel.programs import query_all
from casework.kernel.schema import EXECUTIONS, FORMAT, IDEMPOTENCY, REGISTRY, STREAMS
from casework.streams.log import Op
from casework.streams.positions import _before
from casework.streams.tokens import Grant, create_token, list_tokens
from tests.paging.places import places
from tests.paging.stores import PAGE, SIZES, STORES, open_store

MACHINE = casework.Machine.from_yaml("""
id: m
initial: idle
context: {seen: [], outs: []}
states:
  idle:
    on:
      Add: {actions: [{type: assign, params: {seen: {expr: "context.seen + [event.i]"}}}]}
      Wait: waiting
      Work: working
      Each: joining
      End: over
  waiting: {after: {"1ms": over}}
  working: {invoke: {id: job, src: {task: job}, onDone: over}}
  joining:
    invoke:
      id: kids
      src: {machine: kid}
      each: {expr: "event.inputs"}
      onDone: {target: over, actions: [{type: assign, params: {outs: {expr: "event.output"}}}]}
  over: {type: final, output: {expr: context.outs}}
""")
KID = casework.Machine.from_yaml("""
id: kid
initial: over
context: {expr: "{'n': input}"}
states:
  over: {type: final, output: {expr: context.n}}
""")

PUBLISHER = casework.Machine.from_yaml("""
id: publisher
initial: a
publish: {stream: out, events: [Add]}
states:
  a: {on: {Add: {}, End: over}}
  over: {type: final}
""")


@MACHINE.task
def job(task: Any) -> None:
    """Nothing: what counts is that it is found."""


class World:
    """A store with small pages, and applications on it."""

    def __init__(self, backend: Any, stack: contextlib.ExitStack) -> None:
        self.backend = backend
        self.stack = stack
        self.store = ExecutionStore(backend, buckets=2)
        self.streams = StreamStore(backend)

    @functools.cached_property
    def app(self) -> Any:
        """The first of them; not there where the execution store is used alone, whose tables are its own."""
        return self.open()

    def open(self, **options: Any) -> Any:
        """Another application, as of another process."""
        return self.stack.enter_context(
            sync.open_app(self.backend, machines=[MACHINE, KID, PUBLISHER], buckets=2, trace_max=1000, **options)
        )

    @contextlib.contextmanager
    def worker(self, **options: Any) -> Iterator[Any]:
        """A worker that hears no bell but its own; it must end well."""
        with self.open(**options).worker(poll_s=0.01, heartbeat_s=0.5) as worker:
            yield worker

    def started(self, n: int, name: str = "x") -> list[str]:
        """So many executions."""
        ids = [f"{name}-{n}-{i}" for i in range(n)]
        for id in ids:
            self.app.start("m", id=id)
        return ids

    def all_done(self, ids: list[str]) -> None:
        for id in ids:
            assert self.app.wait(id, timeout_s=60).status == "done"

    def paged(self, read: Callable[..., Any], items: str = "items", next: str = "next") -> list[Any]:
        """All items of a listing, page by page."""
        found: list[Any] = []
        cursor = None
        while True:
            page = read(cursor=cursor)
            found += getattr(page, items)
            cursor = getattr(page, next)
            if cursor is None:
                return found


Case = Callable[[World, int], None]


# --- workers ----------------------------------------------------------------------------------------------------------


def timers(world: World, n: int) -> None:
    ids = world.started(n)
    for id in ids:
        world.app.handle(id, "Wait")
    with world.worker():
        world.all_done(ids)


def messages_of_many(world: World, n: int) -> None:
    ids = world.started(n)
    for id in ids:
        world.app.send(id, "End")
    with world.worker():
        world.all_done(ids)


def messages_of_one(world: World, n: int) -> None:
    (id,) = world.started(1, f"one-{n}")
    for i in range(n):
        world.app.send(id, "Add", {"i": i})
    world.app.send(id, "End")
    with world.worker(batch_max=64):
        world.all_done([id])
    added = [e["event"] for entry in world.app.trace(id) for e in entry["events"] if e["event"] == "Add"]
    assert len(added) == n


def messages_of_a_suspended_one(world: World, n: int) -> None:
    (id,) = world.started(1, f"one-{n}")
    for i in range(n):
        world.app.send(id, "Add", {"i": i})
    world.app.suspend(id)
    for i in range(n):
        world.app.send(id, "Add", {"i": n + i})
    with world.worker():
        assert len(world.app.inspect(id).messages) == 2 * n
        assert world.app.resume(id).status == "running"
        world.app.send(id, "End")
        world.all_done([id])
    assert world.app.get(id).context["seen"] == list(range(2 * n))


def tasks(world: World, n: int) -> None:
    ids = world.started(n)
    for id in ids:
        world.app.handle(id, "Work")
    with world.worker():
        world.all_done(ids)


def children(world: World, n: int) -> None:
    (id,) = world.started(1, f"parent-{n}")
    world.app.send(id, "Each", {"inputs": list(range(n))})
    with world.worker():
        world.all_done([id])
    assert world.app.get(id).output == list(range(n))
    found = world.paged(lambda cursor: world.app.list(parent=id, limit=PAGE, cursor=cursor))
    assert [child.output for child in found] == list(range(n))


def large_results(world: World, n: int) -> None:
    text = "x" * 3000
    (id,) = world.started(1, f"large-{n}")
    world.app.send(id, "Each", {"inputs": [f"{i}{text}" for i in range(n)]})
    with world.worker():
        world.all_done([id])
    output = world.app.get(id).output
    if isinstance(output, dict):
        found = world.paged(lambda cursor: world.app.child_results(id, output, limit=PAGE, cursor=cursor))
        output = [result.output for result in found]
    assert output == [f"{i}{text}" for i in range(n)]


def deliveries(world: World, n: int) -> None:
    before = world.streams.head("out").last_seq
    for id in (f"left-{n}", f"taken-{n}"):
        world.app.start("publisher", id=id)
        for i in range(n):
            world.app.handle(id, "Add", {"i": i})
    world.app.terminate(f"left-{n}")
    world.app.purge(f"left-{n}")  # brings all that it published to the stream
    assert world.streams.head("out").last_seq == before + n
    with world.worker():
        while world.streams.head("out").last_seq < before + 2 * n:
            world.backend.sleep(0.005)
    assert len(list(world.streams.read("out", after=before)) if n else []) == 2 * n


def parked(world: World, n: int) -> None:
    """What a worker without the machine has put off, one with it takes at its first look."""
    ids = world.started(n, "parked")
    for id in ids:
        world.app.send(id, "End")
    other = world.stack.enter_context(sync.open_app(world.backend, machines=[KID]))
    with other.worker(poll_s=0.01):
        while sum(bool(world.app.inspect(id).parked) for id in ids) < n:
            world.backend.sleep(0.005)
    with world.worker():
        world.all_done(ids)


def tried_again(world: World, n: int) -> None:
    """Each message that was put off is looked at now."""
    (id,) = world.started(1, f"again-{n}")
    for i in range(n):
        world.app.send(id, "Add", {"i": i})
    read = functools.partial(query_all, EXECUTIONS, id, low=MAIL_BEGIN, high=MAIL_END)
    for item in run(read(), world.backend):
        off = {"parked": "put off", "pending": in_class("parked", item)}
        world.backend.execute(Write(Update(EXECUTIONS.key_of(item), off)))
    world.app.retry(id)
    assert [str(item["pending"]).partition("/")[0] for item in run(read(), world.backend)] == ["work"] * n


# --- listings ---------------------------------------------------------------------------------------------------------


def executions_listed(world: World, n: int) -> None:
    ids = world.started(n)
    for limit in (PAGE, 1000):
        found = world.paged(lambda cursor: world.app.list(machine="m", limit=limit, cursor=cursor))  # noqa: B023
        listed = [execution.id for execution in found]
        assert len(set(listed)) == len(listed)
        assert set(ids) <= set(listed)


def dead_letters(world: World, n: int) -> None:
    ids = world.started(n)
    for id in ids:
        world.app.terminate(id)
        world.app.send(id, "Add", {"i": 1})
    (one,) = world.started(1, f"dead-{n}")
    world.app.terminate(one)
    for i in range(n):
        world.app.send(one, "Add", {"i": i})
    with world.worker():
        wanted = {*ids} | ({one} if n else set())
        while True:
            found = world.paged(lambda cursor: world.app.dead_letters(limit=PAGE, cursor=cursor))
            mine = [letter for letter in found if letter.execution_id in wanted]
            if sum(len(letter.events) for letter in mine) >= 2 * n:
                break
            world.backend.sleep(0.005)
    assert sum(len(letter.events) for letter in mine) == 2 * n
    assert sum(len(letter.events) for letter in world.app.inspect(one).dead_letters) == n


def trace_and_purge(world: World, n: int) -> None:
    (id,) = world.started(1, f"traced-{n}")
    for i in range(n):
        world.app.handle(id, "Add", {"i": i})
    trace = world.app.trace(id)
    assert len(trace) == n + 1
    world.app.terminate(id)
    world.app.purge(id)
    assert world.backend.execute(Query(EXECUTIONS, id)).items == []


def purge_by_age(world: World, n: int) -> None:
    ids = world.started(n, "aged")
    for id in ids:
        world.app.terminate(id)
    purged = world.paged(lambda cursor: world.app.purge_ended(before="2999-01-01", limit=PAGE, cursor=cursor))
    assert {one.id for one in purged if one.problem == ""} >= set(ids)
    for id in ids:
        assert world.backend.execute(Query(EXECUTIONS, id)).items == []


# --- the execution store as a component -------------------------------------------------------------------------------


def component(world: World, n: int) -> None:
    store = world.store
    ids = [f"c-{n}-{i}" for i in range(n)]
    for id in ids:
        exe = StoredExecution(id, "{}", machine="c", status=f"status-{id}")
        timer = TimerOp("schedule", "t", 1.0)
        store.commit(exe, [(None, id)], spawns=[(f"{id}-kid", "root", "{}")], timers=[timer], processed_event_id="e")
    listed = world.paged(
        lambda cursor: store.list_executions(machine="c", limit=PAGE, cursor=cursor), next="next_cursor"
    )
    found = [exe.id for exe in listed]
    assert set(ids) <= set(found)
    assert len(set(found)) == len(found)
    assert [e.event for e in store.pending_outbox() if e.event in ids] == ids
    assert [e.parent_id for e in store.pending_spawns() if e.parent_id in ids] == ids
    assert sorted(id for id, _, _ in store.due_timers(2.0) if id in ids) == sorted(ids)


def component_purge(world: World, n: int) -> None:
    exe = StoredExecution(f"cp-{n}", "{}", machine="c")
    world.store.commit(exe, [(None, f"{n}:{i}") for i in range(n)])
    for i in range(n):
        world.store.append_trace(exe.id, {"i": i})
    assert [entry["i"] for entry in world.store.read_trace(exe.id)] == list(range(n))
    assert world.store.purge(exe.id, exe.version)
    left = world.backend.backend.execute(Query(EXECUTIONS, exe.id)).items
    assert all(str(item["sort"]).startswith("o/") for item in left), "emits outlive it"
    assert len([e for e in world.store.pending_outbox() if e.event.startswith(f"{n}:")]) == n


# --- the registry -----------------------------------------------------------------------------------------------------


def workers(world: World, n: int) -> None:
    members = [Membership(Runtime()) for _ in range(n)]
    for _ in range(2):
        for member in members:
            run(beat(member, 60.0), world.backend)
    for member in members:
        assert {m.name for m in members} == {member.name, *member.others}
    looked_at = {unit for member in members for unit in member.share().units}
    assert not n or len(looked_at) == 16 * members[0].share().parts
    for row in _rows(world, WORKERS):
        world.backend.execute(Write(Put(REGISTRY, {**row, "until_us": 0})))


def workers_that_must_know(world: World, n: int) -> None:
    rt = Runtime()
    moment = world.backend.now().middle_us
    for i in range(n):
        row = {"kind": WORKERS, "name": f"w-{n}-{i:02}", "format": FORMAT, "heard_us": 1, "buckets": 5000}
        world.backend.execute(Write(Put(REGISTRY, {**row, "until_us": moment + 10**9, "buckets": 5000})))
    if n:  # the last of them does not know
        world.backend.execute(Write(Put(REGISTRY, {**row, "until_us": moment + 10**9, "buckets": 1})))
    buckets = 20 + SIZES.index(n)
    assert run(raise_buckets(rt, buckets), world.backend) is (n == 0)
    for row in _rows(world, WORKERS):
        world.backend.execute(Write(Put(REGISTRY, {**row, "until_us": 0})))
    item = world.backend.execute(Get(REGISTRY.key("settings", "store")))
    assert run(let_writers_follow(rt, item), world.backend) is True


def _rows(world: World, kind: str) -> list[Any]:
    return list(world.backend.backend.execute(Query(REGISTRY, kind)).items)


def tokens(world: World, n: int) -> None:
    before = len(run(list_tokens(), world.backend))
    for i in range(n):
        run(create_token([Grant("s", ("read",))], label=f"{i}"), world.backend)
    assert len(run(list_tokens(), world.backend)) == before + n


# --- streams ----------------------------------------------------------------------------------------------------------


def _segments(world: World, stream: str, n: int) -> None:
    for i in range(n):
        world.streams.append(stream, [Op(f"op-{i}", b"x")])


def stream_reads(world: World, n: int) -> None:
    stream = f"s-{n}"
    _segments(world, stream, n)
    if n:
        read = list(world.streams.read(stream))
        assert [op.id for op in read] == [f"op-{i}" for i in range(n)]
        assert world.streams.repair(stream) == []
        assert [op.id for op in world.streams.read(stream, after=n - 1)] == [f"op-{n - 1}"]
        while world.streams.truncate(stream, n, repush_window_s=0).kept_ops:
            world.backend.sleep(0.05)  # what is younger than the bound of the store's clock is kept
        left = world.backend.backend.execute(Query(STREAMS, stream, low=1)).items
        assert [item["seq"] for item in left] == [n], "the last one stays"


def stream_names(world: World, n: int) -> None:
    for i in range(n):
        world.streams.append(f"named-{n}-{i:02}", [Op("a", b"x")])
    for limit in (PAGE, 1000):
        found = world.paged(lambda cursor: world.streams.list(limit=limit, cursor=cursor), "streams", "next_cursor")  # noqa: B023
        assert [name for name in found if name.startswith(f"named-{n}-")] == [f"named-{n}-{i:02}" for i in range(n)]


def groups_listed(world: World, n: int) -> None:
    for i in range(n):
        world.streams.seek(f"group-{n}-{i:02}", "grouped", "head")
    for limit in (PAGE, 1000):
        found = world.paged(lambda cursor: world.streams.groups(limit=limit, cursor=cursor), "groups", "next_cursor")  # noqa: B023
        names = [each.group for each in found if each.group.startswith(f"group-{n}-")]
        assert names == [f"group-{n}-{i:02}" for i in range(n)]


def marks_and_places(world: World, n: int) -> None:
    """Each position has its own mark, and is found by the time of its operation."""
    stream = f"marked-{n}"
    for i in range(n):
        world.streams.append(stream, [Op(f"{i}", b"x")])
    ops = list(world.streams.read(stream))
    marks = [world.streams.mark(stream, op.seq) for op in ops]
    assert len(set(marks)) == n
    assert marks == world.streams.page(stream).marks()
    for op in ops:
        earlier = [each.seq for each in ops if each.at_us < op.at_us]
        assert run(_before(stream, 0, n, op.at_us), world.backend) == max(earlier, default=0)
    _segments(world, f"{stream}-more", n)
    assert run(_before(f"{stream}-more", 0, n, 2**62), world.backend) == n


def snapshots(world: World, n: int) -> None:
    from casework.streams import retention

    stream = f"shot-{n}"
    _segments(world, stream, 2)
    with pytest.MonkeyPatch.context() as patch:  # a real chunk has 300 KB, and what is stored so is stored compressed
        patch.setattr(retention, "CHUNK_BYTES", 40)
        body = b"".join(i.to_bytes(4, "big") * 7 for i in range(0, 37 * n, 3)) if n else b""
        world.streams.snapshot(stream, 1, body)
        shot = world.streams.load_snapshot(stream)
        assert shot is not None
        assert shot.data == body
        world.streams.snapshot(stream, 2, b"small")
        assert world.streams.load_snapshot(stream).data == b"small"
    assert len(world.backend.backend.execute(Query(STREAMS, stream, low=-100, high=-1)).items) == 1


def parked_operations(world: World, n: int) -> None:
    stream = f"parked-{n}"
    _segments(world, stream, n + 1)

    def handle(op: Any, writes: Any) -> None:
        if op.id != f"op-{n}":
            raise ValueError("not this one")

    with world.streams.consumer("g", [stream], handle, attempts_max=1, batch_max=5) as consumer:
        while world.streams.cursor("g", stream).after < n + 1:
            world.backend.sleep(0.005)
        assert consumer is not None
    assert [parked.op.id for parked in world.streams.parked("g", stream)] == [f"op-{i}" for i in range(n)]
    assert len(world.streams.parked("g", stream, limit=PAGE + 1)) == min(n, PAGE + 1)
    (lag,) = world.streams.lag("g", [stream])
    assert lag.parked == n


def consumers(world: World, n: int) -> None:
    """Each knows all others of its group, so that they share the streams evenly."""
    from casework.streams.consumer import Consumer, ConsumerOptions, _beat

    names = [f"c-{i}" for i in range(max(n, 1))]
    group = [
        Consumer(world.streams.log, f"group-{n}", names, lambda op, writes: None, ConsumerOptions(heartbeat_s=60))
        for _ in range(n)
    ]
    for i, consumer in enumerate(group):
        consumer.token = f"token-{i}"
        share = run(_beat(consumer), world.backend)
        assert share == -(-len(names) // (i + 1))


# --- idempotency ------------------------------------------------------------------------------------------------------


def keys(world: World, n: int) -> None:
    store = IdempotencyStore(world.backend)
    for i in range(n):
        store.claim(f"k-{n}/{i:02}", "f", 1, 0.001 if i % 2 else 600.0)
    for limit in (PAGE, 1000):
        found: list[str] = []
        after = None
        while True:
            records, unreadable, after = _page(store, None, f"k-{n}/", limit, after)
            found += [record.key for record in records]
            assert unreadable == []
            if after is None:
                break
        assert sorted(found) == [f"k-{n}/{i:02}" for i in range(n)]


def expired_keys(world: World, n: int) -> None:
    for i in range(n):
        item = {"key": f"old-{n}/{i:02}", "part": "0", "format": FORMAT, "state": "released", "expires_at_s": 1}
        world.backend.execute(Write(Put(IDEMPOTENCY, item)))
    _purge_expired(IdempotencyStore(world.backend))
    assert [world.backend.execute(Get(IDEMPOTENCY.key(f"old-{n}/{i:02}", "0"))) for i in range(n)] == [None] * n


def chunks_of_a_key(world: World, n: int) -> None:
    for i in range(n):
        world.backend.execute(Write(Put(IDEMPOTENCY, {"key": f"big-{n}", "part": f"c/{i:02}", "format": FORMAT})))
    assert IdempotencyStore(world.backend).purge(f"big-{n}") == n
    assert world.backend.execute(Query(IDEMPOTENCY, f"big-{n}")).items == []


# --- the table --------------------------------------------------------------------------------------------------------

TABLE: dict[str, tuple[Case, ...]] = {
    "cli/idempotency:_page": (keys,),
    "cli/idempotency:_purge_expired": (expired_keys,),
    "executions/advance:_newest_pending": (messages_of_a_suspended_one,),
    "executions/advance:advance": (messages_of_one,),
    "executions/branches:branches_of": (children,),
    "executions/buckets:let_writers_follow": (workers_that_must_know,),
    "executions/control:_deliver_all": (deliveries,),
    "executions/control:purge": (trace_and_purge,),
    "executions/inspection:inspect": (messages_of_a_suspended_one,),
    "executions/listing:_entries": (executions_listed,),
    "executions/listing:dead_letters_of": (dead_letters,),
    "executions/listing:list_dead_letters": (dead_letters,),
    "executions/membership:beat": (workers,),
    "executions/publish:deliver": (deliveries,),
    "executions/purging:purge_ended": (purge_by_age,),
    "executions/retrying:retry": (tried_again,),
    "executions/setting_aside:_change_all": (messages_of_a_suspended_one,),
    "executions/store:_all_statuses": (component,),
    "executions/store_purging:_delete_rest": (component_purge,),
    "executions/store:_pending": (component,),
    "executions/store:list_executions": (component,),
    "executions/trace:read_trace": (trace_and_purge, component_purge),
    "executions/worker:_look_at": (timers, messages_of_many, tasks, children, large_results),
    "executions/worker:_look_at_parked": (parked,),
    "idempotency/operating:purge": (chunks_of_a_key,),
    "streams/append:look": (stream_reads,),
    "streams/consumer:_beat": (consumers,),
    "streams/cursors:lag_of": (parked_operations,),
    "streams/cursors:parked_items": (parked_operations,),
    "streams/cursors:parked_ops": (parked_operations,),
    "streams/groups:list_groups": (groups_listed,),
    "streams/marks:mark_of": (marks_and_places,),
    "streams/positions:_before": (marks_and_places,),
    "streams/read:_explain_end": (stream_reads,),
    "streams/read:_has_changed": (stream_reads,),
    "streams/read:read_page": (stream_reads,),
    "streams/retention:_look_through": (stream_reads,),
    "streams/retention:get_snapshot": (snapshots,),
    "streams/retention:list_streams": (stream_names,),
    "streams/retention:put_snapshot": (snapshots,),
    "streams/retention:truncate": (stream_reads,),
    "streams/tokens:list_tokens": (tokens,),
}

CASES = list(dict.fromkeys(case for cases in TABLE.values() for case in cases))


def test_every_place_that_pages_is_in_the_table() -> None:
    found = places()
    assert found - TABLE.keys() == set(), "put the new place into TABLE, with a case that reads ten pages of it"
    assert TABLE.keys() - found == set(), "it pages no more; take it out of TABLE"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("store", STORES)
def test_every_item_of_every_page_is_found(
    case: Case, store: str, request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    with contextlib.ExitStack() as stack:
        opened = contextlib.contextmanager(open_store)(store, request, tmp_path, unique)
        world = World(stack.enter_context(opened), stack)
        for n in SIZES:
            case(world, n)
        assert world.backend.cut_n > 0, "it read more than one page"
