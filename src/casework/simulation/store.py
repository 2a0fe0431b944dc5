"""The simulated store: DynamoDB as it is documented, at its weakest.

Single-item writes and consistent gets happen at one instant. A transaction first checks its conditions and locks its
items, then its items become visible one by one, and only then is it answered; meanwhile a write to one of them is
refused, and so is another transaction. Queries and batches of gets may see their items at two instants. Index reads
lag. An answer may be lost before or after the write was applied; a plain write is then repeated with its nonce, a
transaction with its token. docs/design/simulator.md lists each documented behaviour with its source and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from casework.backends.memory import MemoryTables
from casework.backends.refusals import raise_refusals
from casework.errors import CaseworkError, Contention, Misuse, OutcomeUnknown, Throttled
from casework.kernel.effects import All, Cancelled, Get, GetMany, Page, Query, Transact, Write
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Table
from casework.kernel.limits import check_key, check_query, check_write, checked_keys
from casework.simulation.carrier import Carrier, Task
from casework.simulation.index import LaggingIndex
from casework.simulation.partitions import PartitionMeter

Place = tuple[str, str, str | int | None]

SLOW_DOWN = "the request is throttled; nothing was applied"


def place_of(key: Key) -> Place:
    """A key as a value that is quick to hash."""
    return (key.table.name, key.partition, key.sort)


class SimulatedStore:
    """The data, the locks and the transactions under way. Carried by a :class:`~casework.simulation.world.World`."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = MemoryTables()
        for table in tables:
            self.tables.create(table)
        self.locks: dict[Place, Flight] = {}
        self.index = LaggingIndex()
        self.writes_n = 0
        self.nonces: dict[Place, str] = {}
        """By item, the nonce of the plain write that wrote it last: how a repeat finds out whether it was applied."""
        self.nonces_n = 0
        self.partitions = PartitionMeter()
        self.watch: Callable[[Key, Item | None, Item | None], None] | None = None
        """Told of every item that becomes visible: its key, and the item before and after. For checkers."""

    # --- reads --------------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Item | None:
        """The item as it is now."""
        return self.tables.get(key)

    def query(self, world: Carrier, query: Query) -> Page:
        """A page as it is now; of an index, as it has become visible."""
        check_query(query)
        if query.index is not None:
            return self.index.query(self.tables, query, world.steps)
        return self.tables.query(query)

    # --- one write ----------------------------------------------------------------------------------------------------

    def apply(self, world: Carrier, write: AnyWrite) -> None:
        """Make a write visible, whatever its condition says."""
        self.show(world, write, write.key, place_of(write.key))

    def show(self, world: Carrier, write: AnyWrite, key: Key, place: Place) -> None:
        """Make a write visible, and let the indexes know of it in a while."""
        if type(write) is Check:
            return
        tables = self.tables
        before = tables.peek(key)
        tables.apply(write, key)
        self.writes_n += 1
        self.nonces.pop(place, None)
        if key.table.indexes:
            self.index.note(world, key, before, tables.peek(key))
        if self.watch is not None:
            self.watch(key, before, tables.peek(key))

    def try_write(self, world: Carrier, write: AnyWrite, nonce: str, *, is_repeat: bool) -> None:
        """One attempt at a plain write; raises what a service would answer."""
        key = write.key
        place = place_of(key)
        if place in self.locks:
            raise Contention(f"{key} is in a transaction")
        if self.nonces.get(place) == nonce:
            return  # an earlier attempt of this very write was applied
        if world.faults.partition_limits and not self.partitions.take_writes(world.now_us, self.tables, [write], 1):
            raise Throttled(SLOW_DOWN)
        refusal = self.tables.refusal(write, key)
        if refusal is not None:
            if is_repeat:
                raise OutcomeUnknown(f"{key}: a repeated write was refused by another writer's item")
            raise_refusals([refusal])
        self.show(world, write, key, place)
        self.nonces[place] = nonce


class Flight:
    """A transaction under way: its items are locked, and become visible one by one. It outlives its process."""

    __slots__ = (
        "is_dead", "is_repeated", "keys", "left", "number", "owner", "places", "process", "verdict", "wake_number",
        "writes",
    )  # fmt: skip

    def __init__(self, owner: Task | None, writes: Sequence[AnyWrite], keys: Sequence[Key], number: int) -> None:
        self.owner = owner
        self.writes = writes
        self.keys = keys
        self.places = [place_of(key) for key in keys]
        self.left: list[int] | None = None
        """Positions of what is not visible yet; None before it began."""
        self.verdict: tuple[Exception | None] | None = None
        """The answer, while whoever waits for it stands still."""
        self.number = number
        self.process = None
        self.is_dead = False
        self.wake_number = 0
        self.is_repeated = False
        """It was applied and its answer lost: a repeat with its token is told so, and changes nothing."""

    def step(self, world: Carrier) -> None:
        """Begin, make the next item visible, or answer."""
        if self.verdict is not None:
            self._tell(world, self.verdict[0])
        elif self.is_repeated:
            self._answer(world, None)
        elif self.left is None:
            self._begin(world)
        else:
            position = self.left.pop()
            write, place = self.writes[position], self.places[position]
            world.store.show(world, write, self.keys[position], place)
            world.store.locks.pop(place, None)  # each item is free as soon as it is visible
            if world.timeline is not None:
                world.timeline.note(world, self.owner, f"  visible: {world.timeline.write(write)}")
            if not self.left:
                self._answer(world, None)
            elif world.faults.slow and world.choices.happens(world.faults.slow):
                world.put_off(self, world.now_us + 1000 * (1 + world.choices.below(300)))

    def _begin(self, world: Carrier) -> None:
        store = world.store
        locks = store.locks
        if locks:
            others = {flight.number: flight for place in self.places if (flight := locks.get(place)) is not None}
            if others:
                for other in others.values():
                    if (
                        other.left is not None
                        and len(other.left) == len(other.writes)
                        and world.choices.happens(world.faults.conflict)
                    ):
                        other.abort(world)
                self._answer(world, Contention("an item is in another transaction"))
                return
        try:
            if world.faults.partition_limits and not store.partitions.take_writes(
                world.now_us, store.tables, self.writes, 2
            ):
                raise Throttled(SLOW_DOWN)
            raise_refusals(store.tables.refusals(self.writes, self.keys))
        except CaseworkError as error:
            self._answer(world, error)
            return
        for place in self.places:
            locks[place] = self
        self.left = list(range(len(self.writes) - 1, -1, -1))
        if len(self.left) > 1 and world.choices.happens(0.5):
            # the order in which items become visible is nobody's promise
            first = world.choices.below(len(self.left))
            self.left.append(self.left.pop(first))

    def abort(self, world: Carrier) -> None:
        """Another transaction got in the way before any item was visible."""
        self._unlock(world)
        self._answer(world, Contention("aborted by another transaction"))

    def _unlock(self, world: Carrier) -> None:
        locks = world.store.locks
        for place in self.places:
            if locks.get(place) is self:
                del locks[place]

    def _answer(self, world: Carrier, error: Exception | None) -> None:
        is_awaited = self.owner is not None and not self.owner.is_dead
        if world.faults.lost and is_awaited and world.choices.happens(world.faults.lost):
            # The answer is lost, and the request is sent again with its token: applied, it is told so; refused, it is
            # tried again, since only what was applied is remembered under a token.
            self.is_repeated, self.left = error is None, None
            return
        self._tell(world, error)

    def _tell(self, world: Carrier, error: Exception | None) -> None:
        """Hand the answer over, as soon as its process runs."""
        owner = self.owner
        if owner is not None and not owner.is_dead and owner.process.paused_until_us > world.now_us:
            self.verdict = (error,)
            world.put_off(self, owner.process.paused_until_us)
            return
        world.retire(self)
        self.is_dead = True
        if owner is not None and not owner.is_dead and owner.flight is self:
            owner.flight = None
            world.answer(owner, None, Cancelled() if owner.is_cancelled else error)


# --- the effects of a store, as the world carries them out ----------------------------------------------------------


_AGAIN: Any = object()
"""A read that takes another turn, at which it sees the rest."""


def do_read(world: Carrier, task: Task, effect: Get | GetMany | Query) -> None:
    """One read."""
    try:
        answer = _READERS[type(effect)](world, task, effect)
    except CaseworkError as error:
        task.partial = None
        world.answer(task, None, error)
        return
    if answer is not _AGAIN:
        world.answer(task, answer)


def do_all(world: Carrier, task: Task, effect: All) -> None:
    """Several reads, each at an instant of its own."""
    answers = task.answers
    if answers is None:
        answers = task.answers = []
    if effect.reads:
        read = effect.reads[len(answers)]
        try:
            reader = _READERS.get(type(read))
            if reader is None:
                raise Misuse(f"{read!r:.80} is not a read")
            answer = reader(world, task, read)
        except CaseworkError as error:
            task.partial = task.answers = None
            world.answer(task, None, error)
            return
        if answer is _AGAIN:
            return
        answers.append(answer)
    if len(answers) == len(effect.reads):
        task.answers = None
        world.answer(task, answers)


def _throttle(world: Carrier) -> None:
    """Refuse a read now and then."""
    if world.faults.throttled_reads and world.choices.happens(world.faults.throttled_reads):
        raise Throttled(SLOW_DOWN)


def _meter(world: Carrier, table: Table, partition: str, index: str | None, items: Sequence[Item | None]) -> None:
    """Take a read's units from its partition; Throttled when they are used up."""
    if not world.store.partitions.take_read(world.now_us, table, partition, index, items):
        raise Throttled(SLOW_DOWN)


def _get(world: Carrier, task: Task, effect: Get) -> Item | None:
    """A consistent get: at one instant, and never in conflict with a transaction."""
    key, faults = effect.key, world.faults
    check_key(key)
    if faults.throttled_reads:
        _throttle(world)
    item: Item | None = world.store.tables.get(key)
    if faults.partition_limits:
        _meter(world, key.table, key.partition, None, [item])
    if item is not None and faults.ttl and key.table.ttl is not None:
        _reap(world, key.table, [item])
    return item


def _get_many(world: Carrier, task: Task, effect: GetMany) -> list[Item | None]:
    """A batch of gets: each at an instant of its own."""
    store, keys, seen = world.store, effect.keys, task.partial
    if seen is None:
        for key in keys:
            check_key(key)
        _throttle(world)
        if len(keys) > 1 and world.choices.happens(world.faults.torn_reads):
            half = 1 + world.choices.below(len(keys) - 1)
            task.partial = [store.get(key) for key in keys[:half]]
            return _AGAIN  # type: ignore[no-any-return]
        seen = []
    task.partial = None
    items = seen + [store.get(key) for key in keys[len(seen) :]]
    if world.faults.partition_limits:
        for key, item in zip(keys, items, strict=True):
            _meter(world, key.table, key.partition, None, [item])
    return list(items)


def _query(world: Carrier, task: Task, effect: Query) -> Page:
    """A query: read-committed, so it may see its first items earlier than its last ones."""
    faults, is_first = world.faults, task.partial is None
    if is_first and faults.throttled_reads:
        _throttle(world)
    page = world.store.query(world, effect)
    if faults.partition_limits:
        _meter(world, effect.table, effect.partition, effect.index, page.items)
    if not is_first:
        page = _torn(effect, task.partial[0], task.partial[1], page)
        task.partial = None
    elif effect.index is None and len(page.items) > 1 and world.choices.happens(faults.torn_reads):
        task.partial = [page.items, world.choices.below(len(page.items))]
        return _AGAIN  # type: ignore[no-any-return]
    if effect.index is None and faults.ttl and effect.table.ttl is not None:
        _reap(world, effect.table, page.items)
    return page  # type: ignore[no-any-return]


_READERS: dict[type, Callable[[Carrier, Task, Any], Any]] = {Get: _get, GetMany: _get_many, Query: _query}


def _torn(query: Query, before: list[Item], split: int, after: Page) -> Page:
    """The first ``split`` items as they were, those behind them as they are."""
    sort = query.table.sort
    if sort is None:
        return after
    border = before[split][sort]
    early = before[:split]
    if query.reverse:
        late = [item for item in after.items if item[sort] <= border]  # type: ignore[operator]
    else:
        late = [item for item in after.items if item[sort] >= border]  # type: ignore[operator]
    items = early + late
    ends_before = after.next is not None and not late  # its cursor is not behind what was seen first
    if ends_before or (query.limit is not None and len(items) > query.limit):
        return after
    return Page(items, after.next)


def _reap(world: Carrier, table: Table, items: Sequence[Item]) -> None:
    """Delete items whose time to live is over, as the service does some day; whoever looks may still see them."""
    name = table.ttl
    if name is None:
        return
    for item in items:
        expires_at_s = item.get(name)
        if isinstance(expires_at_s, int) and expires_at_s * 1_000_000 < world.now_us:
            key = table.key_of(item)
            place = place_of(key)
            if place not in world.store.locks and world.choices.happens(world.faults.ttl):
                world.store.show(world, Delete(key), key, place)


def do_write(world: Carrier, task: Task, effect: Write) -> None:
    """A plain write with a nonce; its answer may be lost, and it is repeated then."""
    faults, choices, store = world.faults, world.choices, world.store
    if task.nonce is None:
        try:
            check_write(effect.write)
        except CaseworkError as error:
            world.answer(task, None, error)
            return
        store.nonces_n += 1
        task.nonce = f"{store.nonces_n}"
        task.is_repeat = False
    if faults.throttled and not task.is_repeat and choices.happens(faults.throttled):
        task.nonce = None
        world.answer(task, None, Throttled(SLOW_DOWN))
        return
    if faults.unknown and choices.happens(faults.unknown):
        _write_unknown(world, task, effect)
        return
    if faults.lost and choices.happens(faults.lost):
        task.is_repeat = True
        if choices.below(2):
            try:
                store.try_write(world, effect.write, task.nonce, is_repeat=False)
            except CaseworkError:
                pass
        return  # it is sent again at its next turn
    try:
        store.try_write(world, effect.write, task.nonce, is_repeat=task.is_repeat)
    except Contention as error:
        if task.is_repeat:
            return  # an earlier attempt may have been applied: only another repeat can tell
        task.nonce = None
        world.answer(task, None, error)
    except CaseworkError as error:
        task.nonce = None
        world.answer(task, None, error)
    else:
        task.nonce = None
        world.answer(task, None)


def _write_unknown(world: Carrier, task: Task, effect: Write) -> None:
    """Give up on a write that may have been applied, or may still be."""
    nonce, task.nonce = task.nonce, None
    when = world.choices.below(3)
    if when == 0:
        try:
            world.store.try_write(world, effect.write, nonce or "", is_repeat=False)
        except CaseworkError:
            pass
    elif when == 1:
        world.admit(LateWrite(effect.write, nonce or "", world.next_number()))
    world.answer(task, None, OutcomeUnknown("the answer was lost"))


class LateWrite:
    """A write whose sender gave up on it, still on its way to the store."""

    __slots__ = ("nonce", "number", "process", "write")

    def __init__(self, write: AnyWrite, nonce: str, number: int) -> None:
        self.write = write
        self.nonce = nonce
        self.number = number
        self.process = None

    def step(self, world: Carrier) -> None:
        """It arrives."""
        try:
            world.store.try_write(world, self.write, self.nonce, is_repeat=False)
        except CaseworkError:
            pass
        if world.timeline is not None:
            world.timeline.note(world, None, f"a late write arrives: {world.timeline.write(self.write)}")
        world.retire(self)


def do_transact(world: Carrier, task: Task, effect: Transact) -> None:
    """A transaction: a flight of its own, which the process waits for; repeats carry a token, so it flies once."""
    try:
        keys, _ = checked_keys(effect.writes)
    except CaseworkError as error:
        world.answer(task, None, error)
        return
    faults = world.faults
    if faults.throttled and world.choices.happens(faults.throttled):
        world.answer(task, None, Throttled(SLOW_DOWN))
        return
    flight = Flight(task, effect.writes, keys, world.next_number())
    if faults.unknown and world.choices.happens(faults.unknown):
        flight.owner = None
        if world.choices.below(3):
            world.admit(flight)  # applied some time, whoever waits for it
        world.answer(task, None, OutcomeUnknown("the answer was lost"))
        return
    task.flight = flight
    world.block(task)
    world.admit(flight)
