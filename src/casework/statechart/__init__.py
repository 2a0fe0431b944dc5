"""Durable statecharts, the pure part: load a machine, step it. No clock, no randomness, no I/O but a file to load.

Everything that other layers need is here; the modules behind it may change.
"""

from casework.statechart.actions import FunctionEvent, UnboundFunction
from casework.statechart.findings import Problem
from casework.statechart.jsonable import check_json, checked_copy
from casework.statechart.model import Machine, canonical_json
from casework.statechart.publishing import Publish
from casework.statechart.snapshot import (
    ArmTimer,
    CancelSend,
    CancelTimer,
    Effect,
    Event,
    Log,
    Send,
    Snapshot,
    StartChildren,
    StartTask,
    Step,
    StopInvoke,
    done_invoke,
    error_invoke,
    timer_event,
)
from casework.statechart.step import (
    MAX_MICROSTEPS,
    active_names,
    awaited_events,
    first_taken,
    misfits,
    rearm,
    start,
    step,
    tags_of,
)

__all__ = [
    "MAX_MICROSTEPS",
    "ArmTimer",
    "CancelSend",
    "CancelTimer",
    "Effect",
    "Event",
    "FunctionEvent",
    "Log",
    "Machine",
    "Problem",
    "Publish",
    "Send",
    "Snapshot",
    "StartChildren",
    "StartTask",
    "Step",
    "StopInvoke",
    "UnboundFunction",
    "active_names",
    "awaited_events",
    "canonical_json",
    "check_json",
    "checked_copy",
    "done_invoke",
    "error_invoke",
    "first_taken",
    "misfits",
    "rearm",
    "start",
    "step",
    "tags_of",
    "timer_event",
]
