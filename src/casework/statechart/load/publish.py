"""The key ``publish`` of a machine: what its executions publish to a stream."""

from __future__ import annotations

from typing import Any

from casework.kernel.schema import STREAM_ID, STREAM_ID_SAYS
from casework.statechart.load.source import Path, Problems
from casework.statechart.suggestions import suggestion

PUBLISH_KEYS = ("stream", "events", "data")


def normalised_publish(raw: Any, at: Path, problems: Problems) -> dict[str, Any] | None:
    """The key in its normalised form: a mapping in which what is the default does not stand."""
    given = {"stream": raw} if isinstance(raw, str) else raw
    if not isinstance(given, dict):
        problems.add(at, f"publish is {raw!r:.80}", "write the name of a stream, or {stream, events, data}")
        return None
    for name in given:
        if name not in PUBLISH_KEYS:
            problems.add((*at, name), f"unknown key {name!r}", suggestion(name, PUBLISH_KEYS), code="unknown-key")
    stream, events, data = given.get("stream"), given.get("events"), given.get("data", True)
    if not isinstance(stream, str) or not STREAM_ID.match(stream):
        problems.add((*at, "stream"), f"{stream!r:.80} is not a stream id", f"use {STREAM_ID_SAYS}")
    result: dict[str, Any] = {"stream": stream}
    if events is not None:
        events = [events] if isinstance(events, str) else events
        if not isinstance(events, list) or not events or not all(isinstance(each, str) and each for each in events):
            problems.add((*at, "events"), "events is no list of events", "leave it out to publish every transition")
        else:
            result["events"] = events
    if not isinstance(data, bool):
        problems.add((*at, "data"), "is not true or false")
    elif not data:
        result["data"] = False
    return result
