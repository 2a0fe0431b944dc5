"""Planted faults in the lives of an id, in resuming, redriving and publishing, and in the store component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import msgspec

from casework.errors import ConditionFailed
from casework.executions import advance, change, control, deferring, publish, setting_aside, store, tasks
from casework.executions import redriving as driving
from casework.executions.change import Change
from casework.executions.state import State
from casework.kernel.conditions import Condition, absent, all_of, equals, present
from casework.kernel.items import Delete, Key
from casework.kernel.programs import token, transact
from casework.simulation.scenarios import components, executions, lifecycle, redriving
from casework.simulation.scenarios import deferring as early
from casework.streams.log import Op
from tests.simulation.planting import Fault, patched, together

# --- the lives of an id -----------------------------------------------------------------------------------------------


def _of_any_life(task: Any) -> Condition:
    """A claim asks that nobody else holds what stands there, and not which task that is."""
    return all_of(absent("token"), equals("src", task.src)) if not task.token else equals("token", task.token)


class _Whatever:
    """Is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _without_birth(self: State) -> Condition:
    """A state is guarded by its version alone, which begins anew after a purge."""
    return equals("version", self.version)


# --- resuming and burying ---------------------------------------------------------------------------------------------

_finish_resume = setting_aside.finish_resume


def _gives_up_when_overtaken(rt: Any, state: State) -> Any:
    """Whoever resumes leaves the rest to whoever overtakes it."""
    try:
        return (yield from _finish_resume(rt, state))
    except ConditionFailed:
        return state


def _takes_the_note_away(rt: Any, state: State) -> Any:
    """A worker that meets a resume under way takes it for done."""
    yield from control._move_status(rt, state, state.status, resume_status="")


def _thrown_away(rt: Any, state: State, messages: Sequence[Any], moment: Any, has_next: bool) -> Any:
    """Messages of an ended execution are removed, and nobody is told."""
    yield from transact([Delete(message.key, present()) for message in messages[:45]])
    return advance.Advanced(state, has_more=has_next)


_fail, _as_before = Change._fail, driving._as_before


def _unremembered(self: Change, kept: Any, error: Any) -> None:
    """The id of an event at which the execution fails is not remembered."""
    self.given.clear()
    _fail(self, kept, error)


def _half_made(self: Change, kept: Any, error: Any) -> None:
    """A state keeps nothing of its event."""
    _fail(self, msgspec.structs.replace(kept, is_taken_again=False), error)


_enact = Change._enact


def _counts_in_half(self: Change, kind: str, event: Any, result: Any) -> None:
    """What a step has begun before it failed is done."""
    for effect in result.effects if result.snapshot.status == "failed" else ():
        change._APPLY[type(effect)](self, effect)
    _enact(self, kind, event, result)


_offer = deferring.offer


def _last_first(driven: Any) -> None:
    """What is deferred comes in the wrong order."""
    driven.data.deferred = driven.data.deferred[::-1]
    _offer(driven)


def _dropped(driven: Any, failure: Any, point: Any) -> None:
    """An event that fails a second time is given up."""
    _as_before(driven, failure, point)
    driven.data.failure.event.is_taken_again = False


# --- publishing -------------------------------------------------------------------------------------------------------

_append = publish.append


def _under_new_ids(log: Any, stream: str, ops: Sequence[Op]) -> Any:
    """What is published gets its ids when it is appended, so that a repeat is another operation."""
    fresh = yield from token()
    return (yield from _append(log, stream, [msgspec.structs.replace(op, id=f"{op.id}/{fresh}") for op in ops]))


_deliveries = Change._deliveries


def _unchecked(self: Change, new: State) -> Any:
    """The next commit does not ask whether what the last one publishes is visible."""
    sent = list(self.data.sent)
    puts = _deliveries(self, new)
    self.data.sent = sent
    return puts


def _of_no_life(state: State, number: int) -> str:
    """What is published is named by version and position alone, which begin anew after a purge."""
    return f"{state.id}/{state.version}/{number}"


def _where_another_stood(state: State, part: int) -> str:
    """What is published stands at version and part alone, where what an earlier life published has stood."""
    return f"o/{state.version:016d}/{part:04d}"


def _of_whoever(state: State, keys: Sequence[Key]) -> Any:
    """A purge deletes without asking whether its life is still the one that stands."""
    yield from transact([Delete(key) for key in keys])


# --- the store component ----------------------------------------------------------------------------------------------


def _any_version(attribute: str, value: Any) -> Condition:
    """A commit asks neither for the version nor for the timers, which move with it here."""
    return present() if attribute in ("version", "timers") else equals(attribute, value)


def _any_timers(attribute: str, value: Any) -> Condition:
    return present() if attribute == "timers" else equals(attribute, value)


FAULTS = (
    Fault("a claim takes the task of another life", lifecycle.Lives, patched(tasks, "_unclaimed", _of_any_life)),
    Fault(
        "a result of another life counts",
        lifecycle.Lives,
        lambda: mock.patch.object(change, "task_key", return_value=_Whatever()),
    ),
    Fault("a state of another life is overwritten", lifecycle.Lives, patched(State, "unchanged", _without_birth)),
    Fault("what two lives publish has one name", lifecycle.LivesPublished, patched(publish, "op_id", _of_no_life)),
    Fault("two lives publish at one place", lifecycle.LivesPublished, patched(publish, "_sort", _where_another_stood)),
    Fault(
        "a late purge deletes what another life has",
        lifecycle.LivesPublished,
        patched(control, "_delete_part", _of_whoever),
    ),
    Fault(
        "a resume that is overtaken is taken for done",
        executions.Control,
        lambda: together(
            mock.patch.object(control, "finish_resume", _gives_up_when_overtaken),
            mock.patch.object(advance, "finish_resume", _takes_the_note_away),
        ),
    ),
    Fault("messages of what has failed are thrown away", redriving.Redrives, patched(advance, "_bury", _thrown_away)),
    Fault("what a failed step has begun counts", redriving.Redrives, patched(Change, "_enact", _counts_in_half)),
    Fault("an event that fails its execution is not kept", redriving.Redrives, patched(Change, "_fail", _half_made)),
    Fault("an event that fails is not remembered", redriving.Redrives, patched(Change, "_fail", _unremembered)),
    Fault("an event that fails twice is given up", redriving.Redrives, patched(driving, "_as_before", _dropped)),
    Fault("what is deferred is offered last first", early.Early, patched(deferring, "offer", _last_first)),
    Fault("what is deferred is not kept", early.Early, patched(deferring, "keep", lambda data, event: "")),
    Fault("a repeat of what is deferred is kept", early.Early, patched(change, "is_recent", lambda *_: False)),
    Fault("a repeated append has new ids", lifecycle.Published, patched(publish, "append", _under_new_ids)),
    Fault(
        "what is published may be visible in any order", lifecycle.Published, patched(Change, "_deliveries", _unchecked)
    ),
    Fault("a commit overwrites any version", components.Engines, patched(store, "equals", _any_version)),
    Fault("a timer is removed whatever became of it", components.Engines, patched(store, "equals", _any_timers)),
)
