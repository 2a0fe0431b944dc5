"""What goes into a step and what comes out: events, snapshots, effects. Plain data, JSON through msgspec.

A snapshot is everything that a running chart remembers between events. An effect is something for the layer above
to do, in order of occurrence; the step itself does nothing but compute. Treat all of them as immutable: snapshots
share what did not change.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event. ``data`` is JSON, mostly a mapping; whoever brings events in checks it with ``check_json``."""

    type: str
    data: Any = msgspec.field(default_factory=dict)
    id: str = ""
    source: str = ""
    """The id of the execution that sent it, or empty."""
    stay: int = 0
    """The stay that a timer, task or child belongs to; 0 for all other events."""
    invoke: str = ""
    """The id of the invocation that this event reports on, or empty."""


class Snapshot(msgspec.Struct, omit_defaults=True, rename={"configuration": "states"}, gc=False):
    """A chart between two events. Encodes to short JSON: what has its default value is left out."""

    configuration: list[str]
    """Paths of the active atomic states, in document order; their ancestors are active as well."""
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    status: str = "running"
    """``running``, ``done`` or ``failed``."""
    history: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Per history state that has been recorded: the paths to restore."""
    stays: dict[str, int] = msgspec.field(default_factory=dict)
    """Per active state with ``after`` or ``invoke``: the number of this stay, unique within the execution."""
    stay_n: int = 0
    """The last stay number given out."""
    output: Any = None
    error: dict[str, Any] | None = None
    """What failed the execution: ``message``, ``type`` and ``where``."""


# --- effects --------------------------------------------------------------------------------------------------


class ArmTimer(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Deliver ``timer_event(name, stay)`` at ``due_us``."""

    name: str
    stay: int
    due_us: int


class CancelTimer(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The timer of that stay is no longer wanted. It may be the one that has just fired."""

    name: str
    stay: int


class StartTask(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run the task function ``src``; report with ``done_invoke`` or ``error_invoke``.

    ``options`` may hold ``retry`` (``max_attempts``, ``initial_us``, ``factor``, ``max_us``, ``jitter``),
    ``timeout_us`` and ``heartbeat_us``, each only where the definition gives it.
    """

    invoke_id: str
    state: str
    stay: int
    src: str
    input: Any
    options: dict[str, Any]


class StartChildren(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Start one execution of machine ``src`` per element of ``inputs``; report once ``join`` decides.

    ``each`` tells a list from a single child: with it the output is a list. ``join`` is ``all``, ``any`` or a count.
    An empty list of inputs is reported done with an empty list.
    """

    invoke_id: str
    state: str
    stay: int
    src: str
    inputs: list[Any]
    each: bool
    join: str | int
    options: dict[str, Any]


class StopInvoke(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The state was left: end the task or children of this invocation, where they still run."""

    invoke_id: str
    stay: int


class Send(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send an event after ``delay_us``.

    ``to`` is an execution id, ``parent``, ``child:<invoke id>``, or empty for the execution itself.
    """

    to: str
    event_type: str
    data: Any
    delay_us: int
    send_id: str


class CancelSend(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take back the delayed sends with this id that were not delivered yet."""

    send_id: str


class Log(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An entry for the log."""

    label: str
    value: Any


Effect = ArmTimer | CancelTimer | StartTask | StartChildren | StopInvoke | Send | CancelSend | Log


class Step(msgspec.Struct, gc=False):
    """The result of a step."""

    snapshot: Snapshot
    effects: list[Effect]
    taken: bool
    """Some transition was enabled. When False, ``snapshot`` is the one that was given."""
    fate: str = ""
    """Of an event from outside that no transition took. ``defer``: keep it and offer it again when the configuration
    changed (``first_taken``). ``fail``: the chart failed on it. Empty: it is ignored."""
    is_unhandled: bool = False
    """The event reports that an invocation failed, and no transition takes it: that alone failed the chart."""


def does_something(result: Step) -> bool:
    """Whether a deferred event, offered again, is taken now, or fails on the way."""
    return result.taken or (result.snapshot.status != "running" and result.fate != "fail")


# --- events that the layer above reports ----------------------------------------------------------------------


def timer_event(name: str, stay: int) -> Event:
    """The timer of an :class:`ArmTimer` is due."""
    return Event(name, {}, "", "", stay)


def done_invoke(invoke_id: str, stay: int, output: Any = None) -> Event:
    """The task or children of an invocation ended with ``output``."""
    return Event("done.invoke." + invoke_id, output, "", "", stay, invoke_id)


def error_invoke(invoke_id: str, stay: int, error: Any) -> Event:
    """The task or children of an invocation failed for good; ``error`` is JSON, by custom with a ``message``."""
    return Event("error.invoke." + invoke_id, error, "", "", stay, invoke_id)
