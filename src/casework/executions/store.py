"""The execution store as a component, for an engine that is not ours: the programs.

It stores what another engine computes, with the same items, conditions and indexes as our own runtime: an execution's
state, the events that it emits, the children that it starts, its timers, its trace and the ids of the events that it
has processed, all in one transaction that is conditional on the version. ``data`` is the engine's own and opaque here.

A store of another engine and our runtime must not share one prefix of tables: each would see executions of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from casework.arguments import check_flag, check_instance, check_list, check_text, wrong
from casework.errors import AlreadyProcessed, ConditionFailed, Contention, Misuse, OutcomeUnknown, StoreConflict
from casework.executions import store_items as items
from casework.executions.buckets import COMPONENT, SETTINGS, make_settings, note_settings, refresh, refresh_sometimes
from casework.executions.cursors import Place, read_place, write_place
from casework.executions.deliver import check_id
from casework.executions.event_ids import id_hash, is_recent, mark_sort
from casework.executions.state import (
    ID_HASH_BYTES,
    RECENT_IDS,
    STATE,
    STATUSES,
    decode_timers,
    encode_timers,
)
from casework.executions.store_items import OutboxEntry, Page, SpawnEntry, StoredExecution, TimerOp
from casework.executions.trace import entry_writes, read_trace
from casework.kernel.conditions import Condition, absent, all_of, equals, present
from casework.kernel.containment import shown
from casework.kernel.effects import GetMany, Query
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Put, Scalar, Update
from casework.kernel.limits import MAX_TRANSACTION_WRITES
from casework.kernel.paging import walk_all
from casework.kernel.programs import (
    Program,
    get,
    get_many,
    lost_again,
    now,
    query,
    query_all,
    token,
    transact,
    write,
)
from casework.kernel.retry import RetryPolicy
from casework.kernel.schema import EXECUTIONS, FORMAT, REGISTRY, bucket_of
from casework.statechart.jsonable import check_json

STATUS_NAMES = "status"
"""Partition of the registry in which statuses stand that are not our runtime's, so that listings find them."""

RACES = RetryPolicy(first_pause_s=0.005, max_pause_s=0.2, rounds_max=12)


class Shared(msgspec.Struct):
    """What the programs of one store share."""

    buckets: int
    """Into so many buckets new items are put."""
    trace_max: int = 200
    statuses: set[str] = msgspec.field(default_factory=lambda: set(STATUSES))
    """Statuses known to be registered."""
    born_us: int = 0
    """The last time at which an execution was created here."""
    read_buckets: int = 0
    """In so many buckets items may stand."""
    settings_read_us: int = 0
    is_own: bool = False
    """The store is known to be used by components, and not by our runtime."""

    def __post_init__(self) -> None:
        self.read_buckets = max(self.read_buckets, self.buckets)

    @property
    def write_buckets(self) -> int:
        """Into so many buckets new items are put."""
        return self.buckets

    def put_into(self, buckets: int) -> None:
        """Put new items into so many buckets from now on."""
        self.buckets = buckets

    def birth_us(self, now_us: int) -> int:
        """When an execution is created: no two have one time, since it tells the lives of an id apart."""
        self.born_us = max(now_us, self.born_us + 1)
        return self.born_us


# --- reading ----------------------------------------------------------------------------------------------------------


def load(shared: Shared, id: str) -> Program[StoredExecution | None]:
    """The execution, or None."""
    item = yield from get(EXECUTIONS.key(id, STATE))
    return None if item is None or item["status"] == "purging" else items.stored_of(item)


def load_for_event(shared: Shared, id: str, event_id: str) -> Program[tuple[StoredExecution | None, bool]]:
    """The execution, and whether it has processed that event, in one round trip.

    The two items are not read at one instant. So the state holds the last ids itself, and ``commit`` demands that the
    mark is absent: an event is never applied twice even if both reads missed it.
    """
    check_id(id)
    event_id = check_text("event_id", event_id)
    found = yield from get_many([EXECUTIONS.key(id, STATE), EXECUTIONS.key(id, mark_sort(event_id))])
    state, mark = found
    if state is None or state["status"] == "purging":
        return None, False
    recent = state.get("recent_ids", b"")
    is_known = isinstance(recent, bytes) and is_recent(recent, id_hash(event_id))
    return items.stored_of(state), mark is not None or is_known


def is_processed(shared: Shared, id: str, event_id: str) -> Program[bool]:
    """Whether the execution has processed that event; remembered until it is purged."""
    check_id(id)
    event_id = check_text("event_id", event_id)
    found = yield from get(EXECUTIONS.key(id, mark_sort(event_id)))
    return found is not None


def list_executions(
    shared: Shared,
    *,
    status: str | Iterable[str] | None = None,
    machine: str | None = None,
    roots_only: bool = False,
    parent: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Program[Page]:
    """A page of executions. A page may be short; only a ``next_cursor`` of None ends the listing.

    Of no order but that within a page, which is by id. What is being purged has the status ``purging``.

    Args:
        shared: of the store.
        status: only these statuses, one or several.
        machine: only those of this machine.
        roots_only: only those without a parent.
        parent: only children of this execution.
        limit: at most so many items, 1 to 1000.
        cursor: ``next_cursor`` of the page before, with the same filters.
    """  # fmt: skip
    asked = None if status is None else _names(status)
    check_flag("roots_only", roots_only)
    machine = None if machine is None else check_text("machine", machine)
    parent = None if parent is None else check_text("parent", parent)
    place = read_place(cursor, [asked, machine, roots_only, parent], limit)
    # Without a filter the first page says which statuses there are; the cursor keeps them.
    statuses = asked if asked is not None else place.names or (yield from _all_statuses(shared))
    low, high = (None, None) if machine is None else (f"{machine}/", f"{machine}0")
    page = Page([], None)
    walked = 0
    while place.partition < len(statuses) * shared.read_buckets:
        bucket, n = divmod(place.partition, len(statuses))  # more buckets stand behind those that were there
        room = limit - len(page.items)
        found = yield from query(
            EXECUTIONS, f"{statuses[n]}/{bucket}", index="listing", low=low, high=high, limit=room, after=place.inner
        )
        keys = [EXECUTIONS.key(str(item["id"]), STATE) for item in found.items]
        settings, *states = yield from get_many([SETTINGS, *keys])
        note_settings(shared, settings)
        page.items += [
            items.stored_of(state)
            for state in states
            if state is not None
            and state["status"] in statuses
            and (machine is None or state["machine"] == machine)
            and (not roots_only or "parent_id" not in state)
            and (parent is None or state.get("parent_id") == parent)
        ]
        walked += 1
        names = [] if asked is not None else statuses
        place = Place(place.binding, place.partition + (found.next is None), found.next, names)
        if len(page.items) >= limit or (walked >= 64 and page.items):
            break
    page.items.sort(key=lambda found: found.id)
    page.next_cursor = write_place(place) if place.partition < len(statuses) * shared.read_buckets else None
    return page


def _names(status: str | Iterable[str]) -> list[str]:
    given: Any = [status] if isinstance(status, str) or hasattr(status, "value") else status
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise wrong("status", status, "a status, several in a list, or None")
    return sorted({check_text("status", getattr(each, "value", each)) for each in given})


def _all_statuses(shared: Shared) -> Program[list[str]]:
    registered = yield from query_all(REGISTRY, STATUS_NAMES)
    shared.statuses |= {str(item["name"]) for item in registered}
    return sorted(shared.statuses)


# --- commit -----------------------------------------------------------------------------------------------------------


def commit(
    shared: Shared,
    exe: StoredExecution,
    emits: Sequence[tuple[str | None, str]] = (),
    *,
    processed_event_id: str | None = None,
    spawns: Sequence[tuple[str, str, str]] = (),
    timers: Sequence[TimerOp] = (),
    trace: Mapping[str, Any] | None = None,
    also: Sequence[AnyWrite] = (),
) -> Program[list[str]]:
    """Store the execution and everything that the step caused, in one transaction; the ``seq`` of each emit, in order.

    Args:
        shared: of the store.
        exe: version 0 for a new one. Its version is one higher afterwards, and as before after any failure.
        emits: events as (target execution or None, text). Each stays until it is acknowledged.
        processed_event_id: the event that this step processed.
        spawns: children to start, as (child id, root path, context text).
        timers: what to arm and cancel, one timer per path; of several for one path the last one counts.
        trace: an entry for the trace, JSON.
        also: the caller's own writes, to any table of this store.

    Raises:
        StoreConflict: the stored version is another one (``found`` is None when there is none). Nothing was written.
        AlreadyProcessed: the event was processed before. Nothing was written.
        ItemTooLarge, Misuse: it cannot be stored as it is. Nothing was written.
        ConditionFailed: a condition of ``also`` did not hold; ``refusals`` stand beside ``also``. Nothing was written.
        OutcomeUnknown: the answer was lost, and the store does not tell; load again.
    """  # fmt: skip
    items.check_stored(exe)
    _check_entry(trace)
    items.check_caused(emits, spawns)
    items.check_timers(timers)
    check_list("also", also, _check_write, "a list of Put, Update, Delete and Check")
    if processed_event_id is not None:
        processed_event_id = check_text("processed_event_id", processed_event_id)
    yield from own_store(shared)
    yield from _register_status(shared, exe.status)
    if not exe.version:
        _take_over(exe, None)  # a copy of another one begins without its trace, its timers and its events
    elif exe.known_timers is None:
        _take_over(exe, (yield from get(exe.key)))
    yield from refresh_sometimes(shared)
    writer = yield from token()
    lost = 0
    while True:
        moment = yield from now()
        plan = _Plan(shared, exe, emits, processed_event_id, spawns, timers, trace, also, moment.middle_us, writer)
        try:
            yield from transact(plan.writes)
            break
        except ConditionFailed as refused:
            _take_over(exe, plan.settle_refusal(refused))
        except Contention:
            pass
        except OutcomeUnknown:
            if not (yield from _was_applied(exe, plan)):
                raise
            break
        lost = yield from lost_again(lost, RACES, f"execution {exe.id!r:.200}")
    plan.settle()
    return plan.seqs


def _check_write(what: str, given: Any) -> None:
    check_instance(what, given, (Put, Update, Delete, Check), "a Put, Update, Delete or Check")


def _take_over(exe: StoredExecution, state: Mapping[str, Any] | None) -> None:
    """Take what a commit must know of the stored state and its caller cannot change: timers, trace, recent ids."""
    state = state or {}
    exe.known_timers = str(state.get("timers", ""))
    exe.trace_n, exe.trace_low = int(state.get("trace_n", 0)), int(state.get("trace_low", 1))
    exe.recent_ids = state.get("recent_ids", b"")
    exe.last_commit_us = int(state.get("last_sent_us", 0))
    exe.created_at_us = int(state.get("created_at_us", exe.created_at_us))
    exe.bucket = items.listed_in(state)


def own_store(shared: Shared) -> Program[None]:
    """Note in the settings that another engine's executions stand here, once; Misuse when our runtime's do."""
    while not shared.is_own:
        settings = yield from refresh(shared)
        if settings is None:
            yield from make_settings(shared)
        elif "owner" in settings:
            if settings["owner"] != COMPONENT:
                raise Misuse(
                    "casework.open has used these tables with machines: its executions and those of this component "
                    "would be mixed up. Give one of them another prefix, or another file. Nothing was written"
                )
            shared.is_own = True
        else:
            try:
                yield from write(Update(SETTINGS, {"owner": COMPONENT}, when=all_of(present(), absent("owner"))))
            except ConditionFailed:
                pass  # somebody else decides at this moment


def _register_status(shared: Shared, status: str) -> Program[None]:
    if status not in shared.statuses:
        yield from write(Put(REGISTRY, {"kind": STATUS_NAMES, "name": status, "format": FORMAT}))
        shared.statuses.add(status)


def _was_applied(exe: StoredExecution, plan: _Plan) -> Program[bool]:
    """Whether a commit whose answer was lost is the one that stands: its writer's mark is in the state."""
    current = yield from get(exe.key)
    return current is not None and current.get("writer") == plan.writer


class _Plan:
    """The transaction of one commit."""

    def __init__(
        self, shared: Shared, exe: StoredExecution, emits: Sequence[tuple[str | None, str]], event_id: str | None,
        spawns: Sequence[tuple[str, str, str]], timers: Sequence[TimerOp], trace: Mapping[str, Any] | None,
        also: Sequence[AnyWrite], now_us: int, writer: str,
    ) -> None:  # fmt: skip
        self.exe = exe
        self.event_id = event_id
        self.also = also
        self.asks_timers = bool(timers)
        known = exe.known_timers or ""
        self.timers_text = items.timers_after(known, timers) if timers else known
        self.at_us = max(now_us, exe.last_commit_us + 1) if exe.version else shared.birth_us(now_us)
        version = exe.version + 1
        self.writer = writer
        self.trace_n, self.trace_low = exe.trace_n, exe.trace_low
        self.recent_ids = exe.recent_ids
        if event_id is not None:
            self.recent_ids = (exe.recent_ids + id_hash(event_id))[-RECENT_IDS * ID_HASH_BYTES :]
        rest: list[AnyWrite] = []
        if event_id is not None:
            mark: Item = {"id": exe.id, "sort": mark_sort(event_id), "format": FORMAT}
            rest.append(Put(EXECUTIONS, mark, absent()))
        if trace is not None and shared.trace_max:
            self.trace_n += 1
            entries, self.trace_low = entry_writes(
                exe.id, self.trace_n, exe.trace_low, dict(trace), shared.trace_max, counts_from=0
            )
            rest += entries
        room = MAX_TRANSACTION_WRITES - 1 - len(rest) - len(also)
        puts, self.seqs = items.outgoing(exe, version, self.at_us, emits, spawns, shared.buckets, room)
        self.writes: list[AnyWrite] = [self._state(shared, version), *rest, *puts, *also]

    def _state(self, shared: Shared, version: int) -> AnyWrite:
        exe = self.exe
        bucket = self.bucket = max(exe.bucket, bucket_of(exe.id, shared.buckets))  # never back: see State.bucket_in
        attributes: dict[str, Any] = {
            "format": FORMAT,
            "version": version,
            "status": exe.status,
            "machine": exe.machine,
            "machine_hash": exe.machine_hash,
            "data": exe.data,
            "created_at_us": exe.created_at_us or self.at_us,
            "updated_at_us": self.at_us,
            "last_sent_us": self.at_us,
            "writer": self.writer,
            "listing": f"{exe.status}/{bucket}",
            "listed": f"{exe.machine}/{exe.id}",
        }
        if exe.parent_id is not None:
            attributes["parent_id"] = exe.parent_id
        if self.trace_n != exe.trace_n:  # else somebody may have added to it: leave it alone
            attributes |= {"trace_n": self.trace_n, "trace_low": self.trace_low}
        if self.recent_ids:
            attributes["recent_ids"] = self.recent_ids
        removed: tuple[str, ...] = ()
        if self.timers_text:
            if self.asks_timers:
                attributes["timers"] = self.timers_text
                attributes["pending"] = f"{items.DUE}/{bucket}"
                attributes["rank_us"] = decode_timers(self.timers_text)[0].due_us
        elif self.asks_timers:
            removed = ("timers", "pending", "rank_us")
        if exe.version == 0:
            return Put(EXECUTIONS, {"id": exe.id, "sort": STATE, **attributes}, absent())
        condition = equals("version", exe.version)
        if exe.created_at_us:  # the id may have been purged and used again
            condition = all_of(condition, equals("created_at_us", exe.created_at_us))
        if self.asks_timers:
            condition = all_of(condition, _same("timers", exe.known_timers))
        if self.trace_n != exe.trace_n:
            condition = all_of(condition, _same("trace_n", exe.trace_n))
        return Update(exe.key, attributes, removed, condition)

    def settle(self) -> None:
        """Move the caller's execution on to what is stored now."""
        exe = self.exe
        exe.version += 1
        exe.trace_n, exe.trace_low, exe.recent_ids = self.trace_n, self.trace_low, self.recent_ids
        exe.last_commit_us = self.at_us
        exe.created_at_us, exe.updated_at_us = exe.created_at_us or self.at_us, self.at_us
        exe.known_timers = self.timers_text
        exe.bucket = self.bucket

    def _is_same(self, found: Mapping[str, Any]) -> bool:
        """Whether the state that refused is the one that was loaded, but for what moves without its version."""
        exe = self.exe
        if not exe.version or found["version"] != exe.version or found["status"] == "purging":
            return False
        return not exe.created_at_us or found.get("created_at_us") == exe.created_at_us

    def settle_refusal(self, refused: ConditionFailed) -> Mapping[str, Any]:
        """The stored state to plan with again, when only its timers or trace moved; else raise what it means."""
        refusals = refused.refusals
        if refusals[0] is not None:
            found = refusals[0].item
            version = None if found is None else int(found["version"])
            if found is not None and self._is_same(found):
                return found
            raise StoreConflict(self.exe.id, self.exe.version, version) from None
        if self.event_id is not None and refusals[1] is not None:
            raise AlreadyProcessed(self.exe.id, self.exe.version, self.event_id) from None
        own = refusals[len(refusals) - len(self.also) :] if self.also else ()
        if any(refusal is not None for refusal in own):
            raise ConditionFailed(own, "a condition of the caller's own writes did not hold") from None
        raise StoreConflict(self.exe.id, self.exe.version, self.exe.version) from None


def _same(attribute: str, value: Scalar | None) -> Condition:
    """Holds while the attribute is what was read; empty and 0 are stored as absent."""
    return equals(attribute, value) if value else absent(attribute)


# --- outbox and spawns ------------------------------------------------------------------------------------------------


def pending_outbox(shared: Shared) -> Program[list[OutboxEntry]]:
    """Every emit that was not acknowledged, in the order of ``seq``."""
    found = yield from _outgoing(shared, items.OUT)
    entries = [entry for item in found for entry in items.outbox_entries(item)]
    return sorted(entries, key=lambda entry: entry.seq)


def pending_spawns(shared: Shared) -> Program[list[SpawnEntry]]:
    """Every child to start that was not acknowledged, in the order of ``seq``."""
    found = yield from _outgoing(shared, items.SPAWN)
    entries = [entry for item in found for entry in items.spawn_entries(item)]
    return sorted(entries, key=lambda entry: entry.seq)


def _outgoing(shared: Shared, kind: str) -> Program[list[Item]]:
    """The items of one class of the pending index, of all buckets, read from the table."""
    entries = yield from _pending(shared, kind, None)
    keys = [Key(EXECUTIONS, str(item["id"]), str(item["sort"])) for item in entries]
    found: list[Item | None] = yield from get_many(keys)
    heads = [EXECUTIONS.key_of(item) for item in found if item is not None and "total" in item]
    bodies = yield from get_many([items.body_key(key) for key in heads])
    packed = {key: body["entries"] for key, body in zip(heads, bodies, strict=True) if body is not None}
    outgoing: list[Item] = []
    for item in found:
        if item is not None and "total" in item:
            entries_text = packed.get(EXECUTIONS.key_of(item))
            if entries_text is not None:  # else the last one was acknowledged between the two looks
                outgoing.append({**item, "entries": entries_text})
        elif item is not None:
            outgoing.append(item)
    return outgoing


def _pending(shared: Shared, kind: str, until_us: int | None) -> Program[list[Item]]:
    """The entries of one class of the pending index, of all buckets; also of those that were added meanwhile."""
    entries: list[Item] = []
    looked = 0
    while looked < shared.read_buckets:
        buckets = range(looked, shared.read_buckets)
        entries += yield from walk_all(
            [Query(EXECUTIONS, f"{kind}/{bucket}", "pending", None, until_us) for bucket in buckets]
        )
        looked = buckets.stop
        yield from refresh(shared)
    return entries


def acknowledge(shared: Shared, seq: str) -> Program[None]:
    """Remove one emit or spawn; harmless when it is gone."""
    key, position, total = items.read_seq(seq)
    if total == 1:
        yield from transact([Delete(key)])
        return
    lost = 0
    while True:
        item = yield from get(key)
        if item is None:
            return
        left = items.without(item, position)
        same = _same("acked", str(item.get("acked", "")))
        try:
            if left is None:
                yield from transact([Delete(key, same), Delete(items.body_key(key))])
            else:
                yield from write(Update(key, {"acked": left}, when=all_of(present(), same)))
            return
        except (ConditionFailed, Contention):
            lost = yield from lost_again(lost, RACES, f"entry {seq!r}")


# --- timers and trace -------------------------------------------------------------------------------------------------


def due_timers(shared: Shared, at_s: float) -> Program[list[tuple[str, str, float]]]:
    """Timers due at ``at_s`` (epoch seconds), as (execution, path, fire time), earliest first."""
    at_us = items.to_us(at_s, "at_s")
    entries = yield from _pending(shared, items.DUE, at_us)
    ids = [str(item["id"]) for item in entries]
    states: list[Item | None] = (yield GetMany([EXECUTIONS.key(id, STATE) for id in ids])) if ids else []
    due = [
        (timer.due_us, str(state["id"]), timer.name)
        for state in states
        if state is not None and state["status"] != "purging"
        for timer in decode_timers(str(state.get("timers", "")))
        if timer.due_us <= at_us
    ]
    return [(id, path, due_us / 1e6) for due_us, id, path in sorted(due)]


def delete_timer(shared: Shared, id: str, path: str, fire_at: float) -> Program[bool]:
    """Remove the timer of that path while it still has that time; the version stays. False: there was none such."""
    check_id(id)
    path = check_text("path", path)
    fire_at_us = items.to_us(fire_at, "fire_at")
    bucket = bucket_of(id, shared.buckets)
    lost = 0
    while True:
        state = yield from get(EXECUTIONS.key(id, STATE))
        if state is None or "timers" not in state:
            return False
        before = decode_timers(str(state["timers"]))
        after = [timer for timer in before if timer.name != path or timer.due_us != fire_at_us]
        if len(after) == len(before):
            return False
        key = EXECUTIONS.key(id, STATE)
        when = equals("timers", state["timers"])
        try:
            if after:
                attributes: dict[str, Any] = {
                    "timers": encode_timers(after), "pending": f"{items.DUE}/{bucket}", "rank_us": after[0].due_us,
                }  # fmt: skip
                yield from write(Update(key, attributes, when=when))
            else:
                yield from write(Update(key, {}, ("timers", "pending", "rank_us"), when))
            return True
        except (ConditionFailed, Contention):
            lost = yield from lost_again(lost, RACES, f"timer {path!r} of {id!r}")


def append_trace(shared: Shared, id: str, entry: Mapping[str, Any]) -> Program[int]:
    """Add an entry to an execution's trace outside a commit; its index. The version stays.

    Raises StoreConflict when there is no such execution, or it is being purged; NotJson.
    """
    check_id(id)
    check_instance("entry", entry, Mapping, "a mapping, JSON")
    _check_entry(entry)
    lost = 0
    while True:
        state = yield from get(EXECUTIONS.key(id, STATE))
        if state is None or state["status"] == "purging":
            raise StoreConflict(id, None, None)
        n = int(state.get("trace_n", 0)) + 1
        low = int(state.get("trace_low", 1))
        writes, low = entry_writes(id, n, low, dict(entry), max(1, shared.trace_max), counts_from=0)
        # Of this life, and not of one that is being purged: what came to stand behind a purge would be the next life's.
        born = _same("created_at_us", state.get("created_at_us", 0))
        when = all_of(present(), _same("trace_n", n - 1), equals("status", state["status"]), born)
        move = Update(EXECUTIONS.key(id, STATE), {"trace_n": n, "trace_low": low}, when=when)
        try:
            yield from transact([move, *writes])
            return n - 1
        except (ConditionFailed, Contention):
            lost = yield from lost_again(lost, RACES, f"trace of {id!r}")


def _check_entry(entry: Mapping[str, Any] | None) -> None:
    """Misuse, NotJson for what is no entry of a trace."""
    if entry is None:
        return
    if not isinstance(entry, Mapping):
        raise Misuse(f"trace is {shown(entry)}; give a mapping")
    check_json(dict(entry), "trace")


def trace_of(shared: Shared, id: str) -> Program[list[dict[str, Any]]]:
    """The entries of an execution's trace, oldest first, each with its ``index``."""
    check_id(id)
    return (yield from read_trace(id))
