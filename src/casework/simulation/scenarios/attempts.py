"""Why a task runs again: what became of each claim of it, for the timeline of a user's chart."""

from __future__ import annotations

import msgspec

from casework.kernel.items import Item
from casework.simulation.carrier import Process
from casework.simulation.story import Story


class Attempt(msgspec.Struct):
    """One claim of a task."""

    n: int
    process: Process | None
    starts_n: int
    """How often its process had been started by then."""
    has_begun: bool = False
    is_handed_in: bool = False
    has_failed: bool = False
    is_external: bool = False
    is_given_back: bool = False

    @property
    def who(self) -> str:
        """The worker that claimed it."""
        return self.process.name if self.process is not None else "a worker"

    @property
    def has_died(self) -> bool:
        """Whether that worker's process died since."""
        return self.process is not None and (not self.process.is_up or self.process.starts_n != self.starts_n)


class Attempts:
    """The claims of all tasks of a run, by the task's key."""

    def __init__(self) -> None:
        self._all: dict[str, list[Attempt]] = {}

    def see(self, before: Item | None, after: Item, process: Process | None, story: Story) -> None:
        """A task's item became visible."""
        key, token = str(after["key"]), after.get("token")
        before_token = None if before is None else before.get("token")
        known = self._all.setdefault(key, [])
        if token and token != before_token:
            starts_n = process.starts_n if process is not None else 0
            known.append(Attempt(int(after.get("attempt", 0)), process, starts_n))
            self._forget(key, story)
            if process is not None:
                said = f"{after['src']!s} of {after['id']!s}, attempt {known[-1].n}"
                story.claimed.setdefault(process.name, {})[key] = said
        elif known and before_token and not token:
            is_counted = int(after.get("attempt", 0)) == known[-1].n
            known[-1].has_failed, known[-1].is_given_back = is_counted, not is_counted
        elif known and after.get("is_external"):
            known[-1].is_external = True

    def _forget(self, key: str, story: Story) -> None:
        for claimed in story.claimed.values():
            claimed.pop(key, None)

    def begins(self, key: str, n: int, story: Story) -> str:
        """Attempt ``n`` is about to run; why it does, where it is not the first: one clause."""
        self._forget(key, story)
        known = self._all.get(key, [])
        position = next((p for p in reversed(range(len(known))) if known[p].n == n), None)
        if position is None:
            return ""
        known[position].has_begun = True
        return _why(known[position - 1]) if position else ""

    def handed_in(self, key: str, n: int) -> None:
        """A worker is about to store what came of attempt ``n``."""
        for each in self._all.get(key, []):
            if each.n == n:
                each.is_handed_in = True


def _why(before: Attempt) -> str:
    """What became of the claim before."""
    which = f"attempt {before.n}"
    if before.has_failed:
        return f"{which} failed"
    if before.is_given_back:
        return f"{before.who} gave it back"
    if before.is_external:
        return f"nobody completed {which} in time"
    if before.has_died and not before.has_begun:
        return f"{before.who} died when it had claimed {which}, before it began, and the lease ended"
    if before.has_died and before.is_handed_in:
        return f"{before.who} died before what came of {which} was stored, and the lease ended"
    if before.has_died:
        return f"{before.who} died in {which}, and the lease ended"
    if not before.has_begun:
        return f"{before.who} did not hear that it had claimed {which}, and the lease ended"
    if before.is_handed_in:
        return f"what came of {which} was not stored (the store never got it), and the lease ended"
    return f"the lease of {which} ended while {before.who} still ran it or stood still"
