"""A run of a user's chart in the user's words: which event, which transition, which task, who died.

Kept instead of the timeline of effects: what is read and written to the store is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from casework.simulation.timeline import Timeline

if TYPE_CHECKING:
    from casework.simulation.carrier import Carrier, Task


class Story(Timeline):
    """The lines of a run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.doing: dict[str, list[str]] = {}
        """What each process does just now for tasks, as ``runs charge of order-1``."""
        self.claimed: dict[str, dict[str, str]] = {}
        """Tasks that each process claimed and does not run yet, by key, as ``charge of order-1, attempt 2``."""
        self.is_closed = False
        """What did not hold has been told: nothing after it matters."""

    def event(self, world: Carrier, who: str, what: str) -> None:
        """Something happened to ``who``, or was done by it."""
        if what == "is killed":
            running = self.doing.pop(who, [])
            claimed = self.claimed.pop(who, {}).values()
            what += f" while it {', '.join(running)}" if running else ""
            what += f" when it had claimed {', '.join(claimed)}" if claimed else ""
        if self.is_closed:
            return
        self.add(f"{elapsed((world.now_us - 1_750_000_000_000_000) / 1e6):>12}  {who:<10} {what}"[:300])

    def note(self, world: Carrier, task: Task | None, what: str) -> None:
        """Left out: single items of the store."""

    def answered(self, world: Carrier, task: Task, value: Any, error: BaseException | None) -> None:
        """Left out: single effects."""


def elapsed(seconds: float) -> str:
    """A time as people say it, with what is small left out when it is long."""
    if seconds < 60:
        return f"{seconds:.3f} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{int(minutes)} min {rest:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d}:{minutes:02d}:{int(rest):02d}" if days else f"{hours}:{minutes:02d}:{int(rest):02d} h"


def payload(data: Any) -> str:
    """A payload in a few characters; nothing for an empty one."""
    if data is None or data == {}:
        return ""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, default=str)
    return " " + (text if len(text) <= 80 else text[:77] + "...")


def step_of(event: Mapping[str, Any]) -> str:
    """One thing that was taken: the event, and from where to where it led."""
    name = spoken(str(event.get("event", "")))
    id = f" (id {event['id']})" if event.get("id") else ""
    if event.get("duplicate"):
        return f"{name}{id} was taken before, and is dropped"
    before, after = event.get("from"), event.get("to")
    if after is None:
        return f"{name}{id}"
    there = ", ".join(after) or "(nowhere)"
    if not before:
        return f"begins in {there}"
    here = ", ".join(before)
    return f"{name}{id}: {here} -> {there}" if here != there else f"{name}{id}: stays in {here}"


def spoken(event_type: str) -> str:
    """An event's type as its author thinks of it."""
    if event_type.startswith("after:"):
        return f"timer of {event_type.split(':', 2)[2]}"
    if event_type.startswith("done.invoke."):
        return f"result of {event_type.removeprefix('done.invoke.')}"
    if event_type.startswith("error.invoke."):
        return f"failure of {event_type.removeprefix('error.invoke.')}"
    return event_type
