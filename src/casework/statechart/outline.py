"""A machine as an indented list for terminals, with the way that an execution took. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

State = Mapping[str, Any]


class Arrow(NamedTuple):
    """One transition, ready to be shown."""

    source: str
    label: str
    targets: tuple[str, ...]
    """Paths; empty for one that stays where it is."""


class Line(NamedTuple):
    """One state of an outline."""

    depth: int
    path: str
    key: str
    kind: str
    notes: tuple[str, ...]
    """What is invoked here, and where transitions lead."""
    was_active: bool


def outline(definition: Mapping[str, Any], visited: Collection[str] = ()) -> list[Line]:
    """The states of a normalised definition as an indented list.

    Args:
        definition: what to show.
        visited: paths of states that an execution was in; those around them count as well.
    """
    around = {prefix for path in visited for prefix in _prefixes(path)}
    found = []
    for state in states(definition["root"]):
        notes = [f"⚙ {note}" for note in invocations(state)]
        notes += [f"{arrow.label or 'always'} → {', '.join(arrow.targets) or 'stays'}" for arrow in arrows(state)]
        path = state["path"]
        found.append(Line(path.count("."), path, state["key"], state["kind"], tuple(notes), path in around))
    return found


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def states(root: State) -> Iterator[State]:
    """The states below ``root``, in document order."""
    for child in root.get("states", ()):
        yield child
        yield from states(child)


def invocations(state: State) -> list[str]:
    """What a state invokes, each in a few words."""
    found = []
    for invoke in state.get("invoke", ()):
        (_, src), *_ = invoke["src"].items()
        found.append(f"{src} for each" if "each" in invoke else str(src))
    return found


def arrows(state: State) -> list[Arrow]:
    """The transitions of a state, in the order in which they are tried."""
    found: list[Arrow] = []

    def add(label: str, transitions: Any) -> None:
        for transition in transitions:
            found.append(Arrow(state["path"], label + _guard(transition), tuple(transition.get("target", ()))))

    for transition in state.get("on", ()):
        add(" ".join(transition["event"]), [transition])
    for invoke in state.get("invoke", ()):
        add("done", invoke.get("onDone", ()))
        add("error", invoke.get("onError", ()))
    for timer in state.get("after", ()):
        add(f"after {_delay(timer['delay'])}", timer["transitions"])
    add("done", state.get("onDone", ()))
    add("", state.get("always", ()))
    return found


def _guard(transition: State) -> str:
    guard = transition.get("guard")
    if not guard:
        return ""
    return f" [{guard.get('expr') or guard.get('name')}]"


def _delay(delay: Any) -> str:
    """Microseconds in the largest unit that holds them exactly."""
    if not isinstance(delay, int):
        return str(delay["expr"]) if isinstance(delay, Mapping) and "expr" in delay else str(delay)
    for unit, size_us in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        if delay and delay % size_us == 0:
            return f"{delay // size_us}{unit}"
    return f"{delay / 1000:g}ms"
