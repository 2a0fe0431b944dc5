"""``app.transaction()``: one transaction, any mix.

Intents are collected inside the block and committed at its end, all or none. What depends on something stored is
planned again when that moved; an intent that is refused for good names itself. An exception inside the block discards
them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from casework.app.core import Core
from casework.app.current import current_claim
from casework.app.intents import AppendIntent, FinishIntent, Intent, SendIntent, StartIntent, WriteIntent, result_of
from casework.arguments import check_instance, check_list, check_text
from casework.backends.drive import run
from casework.backends.drive_async import run_async
from casework.errors import CaseworkError, ConditionFailed, Contention, ItemTooLarge, Misuse, OutcomeUnknown, Refusal
from casework.idempotency.guarding import Claim
from casework.kernel.conditions import Condition
from casework.kernel.items import AnyWrite, Check, Delete, Item, Key, Put, Scalar, Table, Update
from casework.kernel.limits import MAX_TRANSACTION_WRITES
from casework.kernel.programs import Program, lost_again, now, transact
from casework.kernel.retry import RetryPolicy
from casework.streams.log import Op

RACES = RetryPolicy(first_pause_s=0.005, max_pause_s=0.25, rounds_max=16)


def commit(core: Core, intents: Sequence[Intent]) -> Program[None]:
    """Commit all intents in one transaction, or none.

    Raises TransactionRefused, LeaseLost, ExecutionExists by the intent that was refused; NoSuchExecution, UnknownEvent
    by a send; ItemTooLarge, Misuse; OutcomeUnknown when nothing tells what became of it.
    """
    if not intents:
        return
    doubt = _Doubt()
    try:
        attempt = yield from _try(core, intents, doubt)
    except OutcomeUnknown:
        raise
    except CaseworkError as error:
        if doubt.is_there:
            raise OutcomeUnknown(f"the answer to the transaction was lost, and trying it again met: {error}") from error
        raise
    for intent in intents:
        yield from intent.settle(core, attempt)


class _Doubt:
    """Whether an answer was lost, so that the transaction may be there, or on its way."""

    is_there = False


def _try(core: Core, intents: Sequence[Intent], doubt: _Doubt) -> Program[int]:
    """Look, plan and write until the transaction is applied; the number of the attempt that was.

    While there is doubt no refusal is final: what is in the way may be the transaction itself, seen in part.
    """
    moved: Sequence[tuple[Intent, Sequence[Refusal | None]]] = [(intent, ()) for intent in intents]
    lost = 0
    while True:
        for intent, _ in moved:
            yield from intent.look(core)
        if doubt.is_there and (applied := (yield from _was_applied(core, intents))):
            return applied
        moment = yield from now()
        attempt = lost + 1
        writes: list[AnyWrite] = []
        parts: list[tuple[Intent, slice]] = []
        for intent in intents:
            planned = yield from intent.plan(core, moment, attempt)
            parts.append((intent, slice(len(writes), len(writes) + len(planned))))
            writes += planned
        if not writes:
            return attempt  # all that was to be stored is there already
        _check_count(parts, len(writes))
        moved = []
        try:
            yield from transact(writes)
            return attempt
        except ConditionFailed as refused:
            if doubt.is_there and (applied := (yield from _was_applied(core, intents))):
                return applied
            moved = [(intent, refused.refusals[part]) for intent, part in parts if any(refused.refusals[part])]
        except Contention:
            pass
        except OutcomeUnknown:
            doubt.is_there = True
            applied = yield from _was_applied(core, intents)
            if applied is None:
                raise
            if applied:
                return applied
        for intent, refusals in moved:
            try:
                intent.refused(refusals)
            except CaseworkError:
                if not doubt.is_there:
                    raise
        names = "; ".join(intent.name for intent, _ in moved) or "the transaction"
        lost = yield from lost_again(lost, RACES, names)


def _was_applied(core: Core, intents: Sequence[Intent]) -> Program[int | None]:
    """The attempt that is in the store; 0: none, and another one is safe; None: no intent can tell."""
    answer: int | None = None
    for intent in intents:
        found = yield from intent.was_applied(core)
        if found:
            return found  # what one intent knows of itself holds for all
        answer = found if answer is None else answer
    return answer


def _check_count(parts: Sequence[tuple[Intent, slice]], count: int) -> None:
    if count > MAX_TRANSACTION_WRITES:
        sizes = ", ".join(f"{intent.name}: {part.stop - part.start}" for intent, part in parts)
        raise ItemTooLarge(
            f"a transaction has at most {MAX_TRANSACTION_WRITES} writes, this one {count} ({sizes}); split it"
        )


def _check_is(what: str, given: object, kind: type, wanted: str) -> None:
    if not isinstance(given, kind):
        raise Misuse(f"{what} is {given!r:.80}; give {wanted}")


class Owner(Protocol):
    """The application that a transaction belongs to, blocking or async."""

    core: Core
    backend: Any
    idempotency: Any


class Intents:
    """What a transaction's block collects. Nothing is written before the block ends."""

    def __init__(self, app: Owner) -> None:
        self._app = app
        self._core = app.core
        self._intents: list[Intent] = []
        self._is_open = True

    def add(self, intent: Intent) -> None:
        """Take any intent; Misuse after the block."""
        if not self._is_open:
            raise Misuse("this transaction has ended; open another one")
        self._intents.append(intent)

    def put(self, table: Table, item: Item, *, when: Condition | None = None) -> None:
        """Store an item of a table of your own, on condition of ``when``."""
        _check_is("put: table", table, Table, 'a casework.Table, such as Table(name="notes", partition="id")')
        _check_is("put: item", item, Mapping, "a mapping of attributes to values")
        self.add(WriteIntent(Put(table, dict(item), when)))

    def update(
        self, key: Key, set: Mapping[str, Scalar], *, remove: Sequence[str] = (), when: Condition | None = None
    ) -> None:
        """Set and remove attributes of an item of a table of your own."""
        _check_is("update: key", key, Key, "a key, such as notes.key('n-1')")
        _check_is("update: set", set, Mapping, "a mapping of attributes to values")
        check_list("update: remove", remove, check_text, "a list of names of attributes")
        self.add(WriteIntent(Update(key, dict(set), tuple(remove), when)))

    def delete(self, key: Key, *, when: Condition | None = None) -> None:
        """Remove an item of a table of your own."""
        _check_is("delete: key", key, Key, "a key, such as notes.key('n-1')")
        self.add(WriteIntent(Delete(key, when)))

    def check(self, key: Key, when: Condition) -> None:
        """Write nothing; refuse the transaction unless the condition holds."""
        _check_is("check: key", key, Key, "a key, such as notes.key('n-1')")
        _check_is("check: when", when, Condition, "a condition, such as casework.present()")
        self.add(WriteIntent(Check(key, when)))

    def send(self, id: str, event: str, data: Any = None, *, event_id: str | None = None, priority: int = 0) -> None:
        """Send an event to an execution, also to one that is started here; arguments are those of ``app.send``.

        Raises Misuse, NotJson at once; NoSuchExecution, UnknownEvent at the end of the block, with nothing written.
        """
        source = self._app.backend.token()
        self.add(SendIntent(id, event, {} if data is None else data, event_id, priority, source, self._intents))

    def append(self, stream: str, ops: Sequence[Op], *, expected_seq: int | None = None) -> AppendIntent:
        """Append operations to a stream; ``.results`` of what is returned is there after the block.

        All operations for one stream are stored side by side, in the order in which they were given. One that is in the
        stream already is answered with its own number. With ``expected_seq`` the whole transaction is refused unless
        the stream ends at that number (0: does not exist yet), or has all of them already. Raises OpIdReused,
        UnexpectedSeq at the end of the block, Misuse at once.
        """
        for intent in self._intents:
            if isinstance(intent, AppendIntent) and intent.stream == stream:
                intent.add(ops, expected_seq)
                return intent
        appending = AppendIntent(self._core.writer.log, stream)
        appending.add(ops, expected_seq)
        self.add(appending)
        return appending

    def start(self, machine: str, *, id: str | None = None, input: Any = None) -> StartIntent:
        """Start an execution; ``.execution`` of what is returned is there after the block.

        One that was started with the same id, machine and input is left as it is.
        """
        intent = StartIntent(self._core, machine, self._app.backend.token() if id is None else id, input)
        self.add(intent)
        return intent

    def finish(
        self,
        result: Any = None,
        *,
        claim: Claim | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        """Finish an idempotency claim: its result is stored in this transaction, or nothing of it is.

        Args:
            result: what later callers get; return the same from the function. Of a request: the JSON of its response.
            claim: by default the one under which this code runs.
            status: of a request under the middleware; 200 by default.
            headers: of its response.
            body: of its response, instead of ``result``.

        Raises Misuse when there is no claim, or it is of another store, and for ``status``, ``headers`` or ``body``
        where the claim is no request's.
        """  # fmt: skip
        if claim is not None:
            check_instance(
                "finish: claim", claim, Claim, "a claim, such as casework.current_claim() hands out, or None"
            )
        found = claim if claim is not None else current_claim()
        if found is None:
            raise Misuse("there is no claim to finish here: call it under @idempotent, with once() or the middleware")
        kind, pairs, data = result_of(found, result, status, headers, body)
        self.add(FinishIntent(self._app.idempotency.shared, found, kind, pairs, data))

    def _program(self) -> Program[None]:
        self._is_open = False
        return commit(self._core, self._intents)


class Transaction(Intents):
    """A block of ``with app.transaction() as tx``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is None:
            run(self._program(), self._app.backend)


class AsyncTransaction(Intents):
    """A block of ``async with app.transaction() as tx``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is None:
            await run_async(self._program(), self._app.backend)
