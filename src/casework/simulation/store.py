"""The simulated store: DynamoDB as it is documented, at its weakest.

Single-item writes and consistent gets happen at one instant. A transaction first checks its conditions and locks its
items, then its items become visible one by one, and only then is it answered; meanwhile a write to one of them is
refused, and so is another transaction. Queries and batches of gets may see their items at two instants. Index reads
lag. An answer may be lost before or after the write was applied; a plain write is then repeated with its nonce, a
transaction with its token. docs/design/simulator.md lists each documented behaviour with its source and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from casework.backends.memory import MemoryTables
from casework.backends.refusals import raise_refusals
from casework.errors import CaseworkError, Contention, OutcomeUnknown, Throttled
from casework.kernel.effects import Cancelled, Get, GetMany, Page, Query, Transact, Write
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Table
from casework.kernel.limits import check_key, check_query, check_transaction, check_write
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
        """Make a write visible, and let the indexes know of it in a while."""
        if type(write) is Check:
            return
        key = write.key
        before = self.tables.peek(key) if key.table.indexes or self.watch is not None else None
        self.tables.apply(write)
        self.writes_n += 1
        if self.nonces:
            self.nonces.pop(place_of(key), None)
        if key.table.indexes:
            self.index.note(world, key, before, self.tables.peek(key))
        if self.watch is not None:
            self.watch(key, before, self.tables.peek(key))

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
        refusal = self.tables.refusal(write)
        if refusal is not None:
            if is_repeat:
                raise OutcomeUnknown(f"{key}: a repeated write was refused by another writer's item")
            raise_refusals([refusal])
        self.apply(world, write)
        self.nonces[place] = nonce


class Flight:
    """A transaction under way: its items are locked, and become visible one by one. It outlives its process."""

    __slots__ = ("is_repeated", "left", "number", "owner", "process", "writes")

    def __init__(self, owner: Task | None, writes: Sequence[AnyWrite], number: int) -> None:
        self.owner = owner
        self.writes = writes
        self.left: list[AnyWrite] | None = None
        self.number = number
        self.process = None
        self.is_repeated = False
        """It was applied and its answer lost: a repeat with its token is told so, and changes nothing."""

    def step(self, world: Carrier) -> None:
        """Begin, make the next item visible, or answer."""
        if self.is_repeated:
            self._answer(world, None)
        elif self.left is None:
            self._begin(world)
        elif self.left:
            write = self.left.pop()
            world.store.apply(world, write)
            world.store.locks.pop(place_of(write.key), None)  # each item is free as soon as it is visible
            if world.timeline is not None:
                world.timeline.note(world, self.owner, f"  visible: {world.timeline.write(write)}")
            if not self.left:
                self._end(world)

    def _begin(self, world: Carrier) -> None:
        store = world.store
        places = [place_of(write.key) for write in self.writes]
        if store.locks:
            others = {id(store.locks[place]): store.locks[place] for place in places if place in store.locks}
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
            raise_refusals(store.tables.refusals(self.writes))
        except CaseworkError as error:
            self._answer(world, error)
            return
        for place in places:
            store.locks[place] = self
        self.left = list(reversed(self.writes))
        if len(self.left) > 1 and world.choices.happens(0.5):
            # the order in which items become visible is nobody's promise
            first = world.choices.below(len(self.left))
            self.left.append(self.left.pop(first))

    def abort(self, world: Carrier) -> None:
        """Another transaction got in the way before any item was visible."""
        self._unlock(world)
        self._answer(world, Contention("aborted by another transaction"))

    def _unlock(self, world: Carrier) -> None:
        for write in self.writes:
            place = place_of(write.key)
            if world.store.locks.get(place) is self:
                del world.store.locks[place]

    def _end(self, world: Carrier) -> None:
        self._unlock(world)
        self._answer(world, None)

    def _answer(self, world: Carrier, error: Exception | None) -> None:
        is_awaited = self.owner is not None and not self.owner.is_dead
        if world.faults.lost and is_awaited and world.choices.happens(world.faults.lost):
            # The answer is lost, and the request is sent again with its token: applied, it is told so; refused, it is
            # tried again, since only what was applied is remembered under a token.
            self.is_repeated, self.left = error is None, None
            return
        world.retire(self)
        owner = self.owner
        if owner is not None and not owner.is_dead and owner.flight is self:
            owner.flight = None
            world.answer(owner, None, Cancelled() if owner.is_cancelled else error)


# --- the effects of a store, as the world carries them out ----------------------------------------------------------


def _is_throttled(world: Carrier, task: Task) -> bool:
    """Whether a read is throttled, which is its answer then."""
    faults = world.faults
    if faults.throttled_reads and world.choices.happens(faults.throttled_reads):
        task.partial = None
        world.answer(task, None, Throttled(SLOW_DOWN))
        return True
    return False


def _meter(world: Carrier, table: Table, partition: str, index: str | None, items: Sequence[Item | None]) -> None:
    """Take a read's units from its partition; Throttled when they are used up."""
    if world.faults.partition_limits:
        store = world.store
        if not store.partitions.take_read(world.now_us, table, partition, index, items):
            raise Throttled(SLOW_DOWN)


def do_get(world: Carrier, task: Task, effect: Get) -> None:
    """A consistent get: at one instant, and never in conflict with a transaction."""
    if _is_throttled(world, task):
        return
    key = effect.key
    try:
        check_key(key)
        item = world.store.get(key)
        _meter(world, key.table, key.partition, None, [item])
    except CaseworkError as error:
        world.answer(task, None, error)
        return
    if item is not None and world.faults.ttl:
        _reap(world, key.table, [item])
    world.answer(task, item)


def do_get_many(world: Carrier, task: Task, effect: GetMany) -> None:
    """A batch of gets: each at an instant of its own."""
    store = world.store
    if task.partial is None and _is_throttled(world, task):
        return
    try:
        for key in effect.keys:
            check_key(key)
        is_torn = task.partial is None and len(effect.keys) > 1 and world.choices.happens(world.faults.torn_reads)
        if is_torn:
            half = 1 + world.choices.below(len(effect.keys) - 1)
            task.partial = [store.get(key) for key in effect.keys[:half]]
            return
        seen = task.partial or []
        task.partial = None
        items = seen + [store.get(key) for key in effect.keys[len(seen) :]]
        for key, item in zip(effect.keys, items, strict=True):
            _meter(world, key.table, key.partition, None, [item])
    except CaseworkError as error:
        world.answer(task, None, error)
        return
    world.answer(task, items)


def do_query(world: Carrier, task: Task, effect: Query) -> None:
    """A query: read-committed, so it may see its first items earlier than its last ones."""
    if task.partial is None and _is_throttled(world, task):
        return
    try:
        page = world.store.query(world, effect)
        _meter(world, effect.table, effect.partition, effect.index, page.items)
    except CaseworkError as error:
        task.partial = None
        world.answer(task, None, error)
        return
    if task.partial is not None:
        page = _torn(effect, task.partial[0], task.partial[1], page)
        task.partial = None
    elif effect.index is None and len(page.items) > 1 and world.choices.happens(world.faults.torn_reads):
        task.partial = [page.items, world.choices.below(len(page.items))]
        return
    if world.faults.ttl and effect.index is None:
        _reap(world, effect.table, page.items)
    world.answer(task, page)


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
    if query.limit is not None and len(items) > query.limit:
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
            if place_of(key) not in world.store.locks and world.choices.happens(world.faults.ttl):
                world.store.apply(world, Delete(key))


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
        check_transaction(effect.writes)
    except CaseworkError as error:
        world.answer(task, None, error)
        return
    faults = world.faults
    if faults.throttled and world.choices.happens(faults.throttled):
        world.answer(task, None, Throttled(SLOW_DOWN))
        return
    flight = Flight(task, effect.writes, world.next_number())
    if faults.unknown and world.choices.happens(faults.unknown):
        flight.owner = None
        if world.choices.below(3):
            world.admit(flight)  # applied some time, whoever waits for it
        world.answer(task, None, OutcomeUnknown("the answer was lost"))
        return
    task.flight = flight
    world.block(task)
    world.admit(flight)
