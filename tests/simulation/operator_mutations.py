"""Planted faults in what operators do: of each operation one guard, or a half."""

from __future__ import annotations

from typing import Any

from casework.executions import advance, control, deliver, retrying, setting_aside
from casework.executions.change import Change
from casework.executions.state import decode_data
from casework.kernel.items import Delete
from casework.kernel.programs import transact
from casework.simulation.scenarios.operated import Operated
from tests.simulation.planting import Fault, Plant, patched, together

_cancel, _move_status = control.cancel, control._move_status


def _ends_the_clean_up(rt: Any, id: str) -> Any:
    """A cancel of what was asked already ends it."""
    state = yield from deliver.read_state(id)
    if state.machine and decode_data(state, state.data).cancel == "asked":
        return (yield from control.terminate(rt, id, reason="cancelled"))
    return (yield from _cancel(rt, id))


def _ends_again(rt: Any, state: Any) -> Any:
    """What has ended is ended once more."""
    if state.spill:
        yield from control.drain(rt, state)
        return False
    return state.status != "purging"


_end = Change.end


def _tells_nobody(self: Change, status: str, error: Any = None) -> None:
    """The parent of what an operator ended is not told."""
    parent, self.data.parent = self.data.parent, None if status == "cancelled" else self.data.parent
    _end(self, status, error)
    self.data.parent = parent


def _leaves_all(state: Any, tasks: Any = ()) -> Any:
    """A suspend moves the state, and leaves messages and tasks where they are."""
    yield from ()


_set_aside_all = setting_aside.set_aside_all


def _clears_the_note(rt: Any, state: Any) -> Any:
    """A resume puts nothing back."""
    return (yield from _move_status(rt, state, state.status, resume_status=""))


def _forgotten(rt: Any, state: Any, data: Any, *, skip: bool) -> Any:
    """A redrive goes on without the event, asked or not."""
    yield from ()


def _of_whoever(state: Any, keys: Any) -> Any:
    yield from transact([Delete(key) for key in keys])


def _no_children(rt: Any, state: Any) -> Any:
    yield from ()
    return 0


def _resume_faults() -> Plant:
    return lambda: together(
        patched(control, "finish_resume", _clears_the_note)(), patched(advance, "finish_resume", _clears_the_note)()
    )


FAULTS = (
    Fault("a cancel that is repeated ends the clean-up", Operated, patched(control, "cancel", _ends_the_clean_up)),
    Fault("what has ended is terminated again", Operated, patched(control, "_can_end", _ends_again)),
    Fault("a parent is not told of an operator's end", Operated, patched(Change, "end", _tells_nobody)),
    Fault("a suspend leaves tasks in the index", Operated, patched(control, "set_aside_all", _leaves_all)),
    Fault(
        "a suspend leaves a task that it does not see",
        Operated,
        patched(control, "set_aside_all", lambda state, tasks=(): _set_aside_all(state)),
    ),
    Fault("a resume puts nothing back", Operated, _resume_faults()),
    Fault("a redrive loses the event", Operated, patched(control, "kept_event", _forgotten)),
    Fault("a retry leaves what is in its pause", Operated, patched(retrying, "_of_task", lambda *_: None)),
    Fault("a retry takes what runs", Operated, patched(retrying, "_is_gone", lambda *_: True)),
    Fault("an operator's migration leaves its tasks behind", Operated, patched(control, "_move_tasks", lambda *_: [])),
    Fault("a purge leaves the descendants", Operated, patched(control, "_purge_children", _no_children)),
    Fault("a purge of a tree meets the next life", Operated, patched(control, "_delete_part", _of_whoever)),
)
