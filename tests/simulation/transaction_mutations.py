"""Planted faults in ``app.transaction()``: what is made of a lost answer, and what goes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casework.app import transaction
from casework.app.intents import AppendIntent, FinishIntent, StartIntent
from casework.kernel.programs import get, transact
from casework.kernel.schema import EXECUTIONS
from casework.simulation.scenarios.transactions import FinishedOnce, Transactions
from casework.streams.log import claim_key
from tests.simulation.planting import Fault, patched


def _never_there(core: Any, intents: Sequence[Any]) -> Any:
    """What was not answered is taken for not done."""
    yield from ()
    return 0


def _is_the_last(self: StartIntent, core: Any) -> Any:
    """An execution that this transaction did not start is taken for one that keeps another attempt out."""
    item = yield from get(EXECUTIONS.key(self.id, "0"))
    last = self._plans[max(self._plans)]
    is_own = item is not None and item["created_at_us"] == getattr(last, "created_at_us", 0)
    return max(self._plans) if is_own and self._found is None else 0


def _by_its_claim(self: AppendIntent, core: Any) -> Any:
    """An append is known by the number of its first operation, which another caller may have stored there."""
    if not self._batch or self._place is None:
        return None
    item = yield from get(claim_key(self.stream, self._batch[0].op.id))
    is_there = item is not None and item.get("seq") == self._place.top + 1
    return max(self._plans) if is_there else None


class _Confident:
    """A refusal is final, also after a lost answer."""

    @property
    def is_there(self) -> bool:
        return False

    @is_there.setter
    def is_there(self, value: bool) -> None:
        pass


def _one_by_one(writes: Sequence[Any]) -> Any:
    """What is asked for in one transaction is done in two."""
    half = len(writes) // 2
    if half:
        yield from transact(writes[:half])
    yield from transact(writes[half:])


_plan = FinishIntent.plan


def _whoever_holds_it(self: FinishIntent, core: Any, moment: Any, attempt: int) -> Any:
    """A key is finished by whoever comes, whether it still has the claim or not."""
    writes = yield from _plan(self, core, moment, attempt)
    return [type(write)(write.key, write.set, write.remove, None) for write in writes]


FAULTS = (
    Fault("what was not answered is tried again", Transactions, patched(transaction, "_was_applied", _never_there)),
    Fault("a start that was there before tells", Transactions, patched(StartIntent, "was_applied", _is_the_last)),
    Fault("an append is known by its claim", Transactions, patched(AppendIntent, "was_applied", _by_its_claim)),
    Fault("a refusal is final after a lost answer", Transactions, patched(transaction, "_Doubt", _Confident)),
    Fault("a transaction is done in two", FinishedOnce, patched(transaction, "transact", _one_by_one)),
    Fault("a key is finished without its claim", FinishedOnce, patched(FinishIntent, "plan", _whoever_holds_it)),
)
