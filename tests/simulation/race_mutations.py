"""Planted faults in the single races of executions that the design names: our own programs with one guard taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import msgspec

from casework.executions import advance, control, deliver
from casework.executions.change import Change
from casework.executions.mailbox import message_of
from casework.executions.runtime import Parked
from casework.executions.state import Kept, State, state_of
from casework.kernel.items import Delete
from casework.kernel.programs import transact, write
from casework.simulation.scenarios import executions as scenarios
from casework.simulation.scenarios import races
from tests.simulation.planting import Fault, patched, together


def _without_token(writes: Sequence[Any]) -> Any:
    """A message is put by a plain write, which a driver repeats when its answer is lost, without a token."""
    yield from write(writes[0])


def _goes_on_over_a_spill(item: Any) -> State:
    """The next step does not look whether something is still spilled."""
    return msgspec.structs.replace(state_of(item), spill="")


def _drops_early_cancels(rt: Any, id: str, items: Any) -> Any:
    """A cancel that comes before what it cancels is thrown away."""
    yield from transact([Delete(advance.EXECUTIONS.key_of(item)) for item in items])
    return advance.Advanced(None)


def _stays_indexed(*_: Any) -> Any:
    """The messages of a suspended execution stay in the index."""
    return advance.Advanced(None)
    yield


def _few_stay_indexed(id: str) -> Any:
    """A message behind many that were set aside stays in the index."""
    return []
    yield


def _at_the_end_of_time(item: Any, rt: Any) -> Any:
    """Timers go before messages, whenever these were sent."""
    return msgspec.structs.replace(message_of(item, rt), sent_at_us=2**62)


_new_state = Change.new_state


def _clock_only(self: Change) -> State:
    """The send time is the clock's, whatever this execution sent before."""
    new = _new_state(self)
    if self.outbox:
        new.last_sent_us = self.now_us
    return new


def _fails_what_it_does_not_know(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that this process does not have is an error of the execution's."""

    def guarded(change: Change, event: Any, refusal: Any, take: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(change, event, refusal, take, *args, **kwargs)
        except Parked as reason:
            change.poison(reason, Kept("event", "deploy"))

    return guarded


FAULTS = (
    Fault("a message is put without a token", races.Nameless, patched(deliver, "transact", _without_token)),
    Fault("a step goes on over what is spilled", scenarios.Spill, patched(advance, "state_of", _goes_on_over_a_spill)),
    Fault(
        "a cancel that comes before its start is dropped",
        races.Recall,
        patched(advance, "_orphaned", _drops_early_cancels),
    ),
    Fault(
        "a suspended execution stays in the index",
        races.Backlog,
        lambda: together(
            mock.patch.object(advance, "_set_aside", _stays_indexed),
            mock.patch.object(control, "set_aside_all", _stays_indexed),
        ),
    ),
    Fault(
        "a message behind many that were set aside stays in the index",
        races.Backlog,
        patched(advance, "_newest_pending", _few_stay_indexed),
    ),
    Fault("a timer goes before an earlier message", races.Late, patched(advance, "message_of", _at_the_end_of_time)),
    Fault("send times are the clock's alone", scenarios.Chain, patched(Change, "new_state", _clock_only)),
    Fault(
        "what a worker does not know fails the execution",
        races.Deploy,
        lambda: mock.patch.object(advance, "_guarded", _fails_what_it_does_not_know(advance._guarded)),
    ),
)
