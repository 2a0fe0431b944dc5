"""Events, inputs and results for simulated charts, as a user writes them.

A payload is JSON in which a mapping with one key that begins with ``$`` stands for something drawn anew each time::

    {"$int": [1, 100]}      {"$choice": ["card", "cash"]}      {"$text": 8}      {"$id": "order"}
    {"$maybe": 5}           (null now and then)                {"$list": [{"$int": [1, 3]}, 4]}   (0 to 4 elements)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from casework.errors import Misuse
from casework.statechart import Machine, check_json
from casework.statechart.durations import delay_us

Below = Callable[[int], int]
"""Draws a number below a bound; 0 is the plainest."""


class EventSpec(msgspec.Struct, frozen=True):
    """An event to send: what it is, and how."""

    type: str
    data: Any = None
    """A payload, or a function of a ``random.Random`` that returns one; None: guessed."""
    has_id: bool = True
    """False: it is sent without an event id, so that a duplicate of it counts as another event."""
    after_s: float | None = None
    """Wait so long before it; None: a pause by chance."""


_KEYS = {"type", "data", "id", "after"}


def event_spec(given: Any, where: str) -> EventSpec:
    """An event as a user writes it: ``Paid``, ``(Paid, data)``, ``{Paid: data}``, ``{type, data, id, after}``.

    Raises Misuse.
    """
    if isinstance(given, EventSpec):
        return given
    if isinstance(given, str):
        return EventSpec(given)
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):
        return EventSpec(given[0], _data(given[1], where))
    if isinstance(given, Mapping) and isinstance(given.get("type"), str) and set(given) <= _KEYS:
        after = given.get("after")
        try:
            after_s = None if after is None else delay_us(after) / 1e6
        except ValueError as error:
            raise Misuse(f"{where}: after: {error}") from None
        return EventSpec(given["type"], _data(given.get("data"), where), given.get("id", True) is not False, after_s)
    if isinstance(given, Mapping) and len(given) == 1:
        kind, data = next(iter(given.items()))
        return EventSpec(str(kind), _data(data, where))
    raise Misuse(
        f"{where}: {given!r:.80} is not an event; write Paid, {{Paid: {{...}}}} or "
        "{type: Paid, data: {...}, id: false, after: 5s}"
    )


def _data(data: Any, where: str) -> Any:
    if data is not None and not callable(data):
        check_json(data, where)
        fill(data, lambda bound: 0)
    return data


def check_events(specs: Sequence[EventSpec], machines: Sequence[Machine]) -> None:
    """Misuse for an event that no machine takes."""
    for spec in specs:
        if not any(machine.accepts(spec.type) for machine in machines):
            known = sorted({kind for machine in machines for kind in known_events(machine)})
            raise Misuse(f"no machine here has a transition for event {spec.type!r}; known: {', '.join(known)}")


def known_events(machine: Machine) -> list[str]:
    """The types of event that a machine takes from outside; wildcards become one that they match."""
    found = (concrete(descriptor) for descriptor in machine.event_types)
    return [kind for kind in dict.fromkeys(found) if kind and machine.accepts(kind)]


def concrete(descriptor: str) -> str:
    """A type that a descriptor matches; empty for ``*``, and for what comes from inside."""
    if descriptor == "*" or descriptor.startswith(("done.", "error.", "after:")) or descriptor in ("error", "error.*"):
        return ""
    return descriptor.removesuffix("*") + "any" if descriptor.endswith(".*") else descriptor


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(data: Any, below: Below) -> Any:
    """A payload drawn from a template or from a user's function."""
    if callable(data):
        return data(random.Random(below(1 << 20)))
    return fill(data, below)


def fill(template: Any, below: Below) -> Any:
    """``template`` with its ``$`` parts drawn. Raises Misuse for one that is not known."""
    if isinstance(template, list | tuple):
        return [fill(each, below) for each in template]
    if not isinstance(template, Mapping):
        return template
    if len(template) == 1:
        name, argument = next(iter(template.items()))
        if isinstance(name, str) and name.startswith("$"):
            return _drawn(name, argument, below)
    return {name: fill(each, below) for name, each in template.items()}


def _drawn(name: str, argument: Any, below: Below) -> Any:
    match name, argument:
        case "$int", [int(low), int(high)] if low <= high:
            return low + below(high - low + 1)
        case "$choice", [_, *_]:
            return fill(argument[below(len(argument))], below)
        case "$text", int(length) if length > 0:
            return "".join("abcdefghijklmnopqrstuvwxyz"[below(26)] for _ in range(length))
        case "$id", str(prefix):
            return f"{prefix}-{below(1000)}"
        case "$maybe", _:
            return None if below(4) == 3 else fill(argument, below)
        case "$list", [each, int(most)] if most >= 0:
            return [fill(each, below) for _ in range(below(most + 1))]
    raise Misuse(
        f"{{{name}: {argument!r:.60}}} cannot be drawn; there are $int: [1, 9], $choice: [a, b], $text: 8, $id: order, "
        "$maybe: x, $list: [x, 4]"
    )


# --- files ------------------------------------------------------------------------------------------------------------


class EventsFile(msgspec.Struct, frozen=True):
    """What ``--events`` names: events drawn by chance, a script sent in order, the input, and stand-ins for tasks."""

    events: list[Any] | None = None
    script: list[Any] | None = None
    input: Any = None
    tasks: dict[str, Any] = {}


def read_events_file(text: str, source: str) -> EventsFile:
    """The file's content: a list of events, or a mapping with ``events``, ``script``, ``input``, ``tasks``.

    Raises Misuse.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Misuse(f"{source}: {' '.join(str(error).split())}") from None
    if isinstance(value, list):
        return EventsFile(events=value)
    try:
        return msgspec.convert(value, _StrictEventsFile)
    except msgspec.ValidationError as error:
        raise Misuse(f"{source}: {error}; it holds a list of events, or events, script, input and tasks") from None


class _StrictEventsFile(EventsFile, frozen=True, forbid_unknown_fields=True):
    pass
