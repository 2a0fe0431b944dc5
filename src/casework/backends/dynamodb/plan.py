"""How an effect is carried out, call by call. Pure: no I/O, no SDK, no clock, no randomness of its own.

Each effect becomes *steps*: a generator that yields :class:`Send` and :class:`Pause` and is sent a
:class:`~casework.backends.dynamodb.faults.Reply` for each send. The blocking and the async transport drive the same
steps, so everything that decides - what to repeat, when to give up, what a refusal after a repeat means - is here once.

**A lost answer** (promise P9). A refusal is final only while no earlier attempt can have been carried out, ours or the
SDK's. After such doubt the item that refused decides: it carries our nonce, so we wrote it; it carries another one, so
nobody can tell, which is ``OutcomeUnknown``. Only attempts that may have been carried out raise doubt: one that was
throttled, refused or never sent does not.

A ``Write`` without a condition, or with one that can come true again, may be repeated over what somebody else wrote in
the meantime: its owner says by choosing it that the last writer wins. Where that matters, use ``Transact``: the service
itself honours its token.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from casework.backends.dynamodb.encode import (
    Wire,
    decode_item,
    decode_page,
    encode_get,
    encode_key,
    encode_query,
    encode_transaction,
    encode_write,
    nonce_of,
    table_name,
)
from casework.backends.dynamodb.faults import DOUBTFUL, TRANSIENT, Fault, Reply, error_of, fault_of_reasons, reasons_of
from casework.backends.port import StoreEffect
from casework.errors import CaseworkError, ConditionFailed, Misuse, OutcomeUnknown, Refusal, Unavailable
from casework.kernel.conditions import evaluate
from casework.kernel.effects import Get, GetMany, Page, Query, Transact, Write
from casework.kernel.items import AnyWrite, Item, Key, Put, Update
from casework.kernel.limits import check_key, check_query, check_transaction, check_write
from casework.kernel.retry import Pauses

T = TypeVar("T")

TOKEN_LIFE_S = 540.0
"""A transaction's token is honoured for ten minutes; nothing is repeated after nine."""

LARGEST_BATCH = 100
"""Keys of one ``batch_get_item``."""


class Send(msgspec.Struct, frozen=True):
    """Make one call of the client; answered with a Reply."""

    method: str
    request: Wire


class Pause(msgspec.Struct, frozen=True):
    """Let time pass; answered with None."""

    seconds: float


Steps = Generator[Send | Pause, Any, T]
"""How one effect is carried out."""


class CallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long to repeat a call. One place for both transports."""

    deadline_s: float = 30.0
    """Nothing is repeated later than this after the first attempt; at most 540."""
    pauses: Pauses = Pauses(first_pause_s=0.02, max_pause_s=1.0)
    """Lengths of the pauses, with full jitter."""
    unsent_max: int = 3
    """Attempts that found nobody to connect to, before ``Unavailable``."""
    throttled_max: int = 6
    """Attempts that were throttled, before ``Throttled``."""
    conflict_max: int = 4
    """Attempts that met another transaction, before ``Contention``."""
    lost_reads_max: int = 6
    """Attempts of a read without an answer, before ``Unavailable``."""
    control_max: int = 5
    """Attempts of the first look at a table that is to be made."""


class Planner:
    """Turns effects into steps.

    Args:
        prefix: of the tables' names.
        policy: how long to repeat.
        token: makes fresh tokens (nonces, and the dice of the pauses).
    """

    def __init__(self, prefix: str, policy: CallPolicy, token: Callable[[], str]) -> None:
        self.prefix = prefix
        self.policy = policy
        self.token = token
        self._returns_items = {"put_item": False, "transact_write_items": False}

    def trust_items(self, trusted: bool) -> None:
        """Whether the service is known to hand back the item that refused a write, so that none means none."""
        for method in self._returns_items:
            self._returns_items[method] = trusted

    def steps(self, effect: StoreEffect) -> Steps[Any]:
        """The steps of ``effect``; Misuse at once when it breaks a limit."""
        if isinstance(effect, Write):
            if not isinstance(effect.write, Put | Update):
                raise Misuse(f"{effect.write!r:.80} cannot be written alone; use Transact, or a Put or Update")
            check_write(effect.write)
            return _readable(self._write(effect.write), effect)
        if isinstance(effect, Transact):
            check_transaction(effect.writes)
            return _readable(self._transact(effect.writes), effect)
        if isinstance(effect, Query):
            check_query(effect)
            return _readable(self._query(effect), effect)
        if isinstance(effect, Get):
            check_key(effect.key)
            return _readable(self._get(effect.key), effect)
        if isinstance(effect, GetMany):
            for key in effect.keys:
                check_key(key)
            return _readable(self._get_many(effect.keys), effect)
        raise Misuse(f"{effect!r:.80} is not an effect of a store")

    # --- reads ------------------------------------------------------------------------------------------------------

    def _read(self, method: str, request: Wire, what: str) -> Steps[Mapping[str, Any]]:
        pace = _Pace(self.policy, self.token, writes=False)
        while True:
            reply: Reply = yield Send(method, request)
            if reply.fault is None:
                return reply.response or {}
            pause = pace.pause_s(reply, reply.fault)
            if pause is None:
                raise error_of(reply.fault, what, doubt=False, writes=False)
            yield Pause(pause)

    def _get_wire(self, key: Key) -> Steps[Wire | None]:
        response = yield from self._read("get_item", encode_get(key, self.prefix), f"get {self.prefix}_{key}")
        return response.get("Item") or None

    def _get(self, key: Key) -> Steps[Item | None]:
        wire = yield from self._get_wire(key)
        return None if wire is None else decode_item(wire)

    def _query(self, query: Query) -> Steps[Page]:
        what = f"query {self.prefix}_{query.table.name}[{query.partition!r}]"
        response = yield from self._read("query", encode_query(query, self.prefix), what)
        return decode_page(query, response)

    def _get_many(self, keys: Sequence[Key]) -> Steps[list[Item | None]]:
        found: dict[tuple[str, Any, Any], Item] = {}
        wanted = list({(key.table.name, key.partition, key.sort): key for key in keys}.values())
        tables = {table_name(self.prefix, key.table): key.table for key in wanted}
        for start in range(0, len(wanted), LARGEST_BATCH):
            asked: Wire = {}
            for key in wanted[start : start + LARGEST_BATCH]:
                per_table = asked.setdefault(table_name(self.prefix, key.table), {"Keys": [], "ConsistentRead": True})
                per_table["Keys"].append(encode_key(key))
            for name, wire in (yield from self._batch(asked)):
                item = decode_item(wire)
                place = tables[name].key_of(item)
                found[(place.table.name, place.partition, place.sort)] = item
        answers = (found.get((key.table.name, key.partition, key.sort)) for key in keys)
        return [None if item is None else dict(item) for item in answers]

    def _batch(self, asked: Wire) -> Steps[list[tuple[str, Wire]]]:
        """All items of one batch; the keys that the service left out are asked for again."""
        pace = _Pace(self.policy, self.token, writes=False)
        found: list[tuple[str, Wire]] = []
        while asked:
            reply: Reply = yield Send("batch_get_item", {"RequestItems": asked})
            fault = reply.fault
            if fault is None:
                response = reply.response or {}
                got = [(name, wire) for name, wires in response.get("Responses", {}).items() for wire in wires]
                found += got
                asked = response.get("UnprocessedKeys") or {}
                if got or not asked:
                    pace.progress()
                    continue
                fault = Fault("throttled", "UnprocessedKeys", "the service returned none of the keys asked for")
            pause = pace.pause_s(reply, fault)
            if pause is None:
                count = sum(len(part["Keys"]) for part in asked.values())
                raise error_of(fault, f"get {count} items of {', '.join(asked)}", doubt=False, writes=False)
            yield Pause(pause)
        return found

    # --- writes -----------------------------------------------------------------------------------------------------

    def _write(self, write: Put | Update) -> Steps[None]:
        nonce = self.token()
        kind, request = encode_write(write, self.prefix, nonce)
        what = f"{kind} {self.prefix}_{write.key}"
        pace = _Pace(self.policy, self.token, writes=True)
        while True:
            reply: Reply = yield Send(f"{kind}_item", request)
            fault = reply.fault
            if fault is None:
                return
            pace.note(reply)
            if fault.kind == "refused":
                wire = yield from self._refusing_item("put_item", write, fault.response.get("Item"), pace, what)
                if nonce_of(wire) == nonce:
                    return
                if pace.doubt:
                    raise _unknown(what)
                raise ConditionFailed([Refusal("condition", None if not wire else decode_item(wire))])
            pause = pace.pause_s(reply, fault)
            if pause is None:
                raise error_of(fault, what, doubt=pace.doubt, writes=True)
            yield Pause(pause)

    def _refusing_item(
        self, method: str, write: AnyWrite, wire: Wire | None, pace: _Pace, what: str
    ) -> Steps[Wire | None]:
        """The item that refused a write; by one consistent get where the server may have kept it back.

        No item came with the refusal: believed of a server that is known to return it, unless the condition would have
        held for no item, so that there must be one.
        """
        if wire:
            self._returns_items[method] = True
            return wire
        if self._returns_items[method] and not evaluate(write.when, None):
            return None
        try:
            return (yield from self._get_wire(write.key))
        except Exception as error:
            if pace.doubt:
                raise _unknown(what) from error
            raise

    def _transact(self, writes: Sequence[AnyWrite]) -> Steps[None]:
        token = self.token()
        request = encode_transaction(writes, self.prefix, token)
        named = ", ".join(f"{self.prefix}_{write.key}" for write in writes[:3])
        what = f"transaction of {len(writes)} on {named}"
        pace = _Pace(self.policy, self.token, writes=True)
        while True:
            reply: Reply = yield Send("transact_write_items", request)
            fault = reply.fault
            if fault is None:
                return
            pace.note(reply)
            if fault.kind == "cancelled":
                reasons = reasons_of(fault)
                if any(reason.code == "ConditionalCheckFailed" for reason in reasons):
                    items = yield from self._refusing_items(writes, reasons, pace, what)
                    if any(nonce_of(wire) == token for wire in items.values()):
                        return
                    if pace.doubt:
                        raise _unknown(what)
                    raise ConditionFailed(
                        [
                            Refusal("condition", decode_item(wire) if wire else None) if position in items else None
                            for position in range(len(writes))
                            for wire in (items.get(position),)
                        ]
                    )
                fault = fault_of_reasons(fault, reasons)
            pause = pace.pause_s(reply, fault)
            if pause is None:
                raise error_of(fault, what, doubt=pace.doubt, writes=True)
            yield Pause(pause)

    def _refusing_items(
        self, writes: Sequence[AnyWrite], reasons: Sequence[Any], pace: _Pace, what: str
    ) -> Steps[dict[int, Wire | None]]:
        """The items that refused a transaction, by position; read where the server cannot have returned them all."""
        method = "transact_write_items"
        items: dict[int, Wire | None] = {}
        for position, reason in enumerate(reasons):
            if reason.code == "ConditionalCheckFailed":
                items[position] = reason.item
        if any(items.values()):
            self._returns_items[method] = True
        for position, wire in items.items():
            items[position] = yield from self._refusing_item(method, writes[position], wire, pace, what)
        return items


def _readable(steps: Steps[T], effect: StoreEffect) -> Steps[T]:
    """The steps; an answer that cannot be read, whatever is wrong with it, is no worse than one that was lost."""
    try:
        return (yield from steps)
    except CaseworkError:
        raise
    except Exception as error:
        said = f"{type(effect).__name__}: the answer cannot be read: {type(error).__name__}: {error}"
        if isinstance(effect, Write | Transact):
            raise OutcomeUnknown(
                f"{said} - it may have been carried out; read the items before repeating it"
            ) from error
        raise Unavailable(f"{said} - try again later") from error


def _unknown(what: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{what}: refused after an attempt whose answer was lost, and the item was not last written by it; "
        "it may have been carried out before somebody else wrote the item"
    )


class _Pace:
    """How often and how long one effect has been tried, and whether an attempt may have been carried out."""

    def __init__(self, policy: CallPolicy, dice: Callable[[], str], *, writes: bool) -> None:
        self._policy = policy
        self._dice = dice
        self._writes = writes
        self._rounds: dict[str, int] = {}
        self._lost_in_a_row = 0
        self._started_s: float | None = None
        self.doubt = False

    def progress(self) -> None:
        """The last attempt got something done: count from zero again."""
        self._rounds.clear()
        self._lost_in_a_row = 0

    def note(self, reply: Reply) -> None:
        """Take over the doubt that the SDK's own repeats raise."""
        if reply.doubtful:
            self.doubt = True

    def pause_s(self, reply: Reply, fault: Fault) -> float | None:
        """Seconds to pause before the next attempt; None: give up."""
        if self._started_s is None:
            self._started_s = reply.sent_s
        if fault.kind in DOUBTFUL:
            self.doubt = True
        if fault.kind not in TRANSIENT:
            return None
        rounds = self._rounds[fault.kind] = self._rounds.get(fault.kind, 0) + 1
        self._lost_in_a_row += 1
        pause = self._policy.pauses.pause_s(self._lost_in_a_row, self._dice())
        if reply.received_s + pause - self._started_s >= min(self._policy.deadline_s, TOKEN_LIFE_S):
            return None
        if not (self._writes and self.doubt) and rounds >= self._limit(fault.kind):
            return None
        return pause

    def _limit(self, kind: str) -> int:
        """Attempts of this kind before giving up; a write in doubt goes on until the deadline instead."""
        policy = self._policy
        limits = {"unsent": policy.unsent_max, "throttled": policy.throttled_max, "conflict": policy.conflict_max}
        return limits.get(kind, policy.lost_reads_max)
