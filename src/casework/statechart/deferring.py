"""What becomes of an event that no transition takes: it is ignored, kept for a later state, or fails the chart.

``defer`` of an active state, an outer one included, keeps the events that it names. ``on_unhandled`` decides about all
others: the innermost state that has it, in each region; of several regions the strictest word counts.
"""

from __future__ import annotations

from casework.statechart.configuration import Configuration
from casework.statechart.nodes import StateNode, any_matches
from casework.statechart.snapshot import Event, Snapshot

FATES = ("ignore", "defer", "fail")
"""From the mildest to the strictest."""


def fate_of(configuration: Configuration, event: Event) -> str:
    """``defer``, ``fail`` or nothing. Only of events from outside: not of timers and reports, nor of error events."""
    if event.stay or event.invoke or event.type == "error" or event.type.startswith("error."):
        return ""
    if any(state.defer and any_matches(state.defer, event.type) for state in configuration.active):
        return "defer"
    found = max((_said(atomic) for atomic in configuration.nodes), key=FATES.index)
    return "" if found == "ignore" else found


def _said(atomic: StateNode) -> str:
    return next((state.on_unhandled for state in (atomic, *atomic.ancestors) if state.on_unhandled), "ignore")


def failed_on(snapshot: Snapshot, configuration: Configuration, event: Event) -> Snapshot:
    """The chart, failed where it stood."""
    where = ", ".join(configuration.paths)
    error = {"message": f"no transition takes {event.type!r:.200} in {where}", "type": "UnhandledEvent", "where": where}
    return Snapshot(
        snapshot.configuration,
        snapshot.context,
        "failed",
        snapshot.history,
        snapshot.stays,
        snapshot.stay_n,
        None,
        error,
    )
