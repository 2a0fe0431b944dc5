"""The functions and machines that a definition names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Names(NamedTuple):
    """What a definition names; ``tasks`` are all that may be tasks, ``only_tasks`` those said to be."""

    actions: frozenset[str]
    guards: frozenset[str]
    tasks: frozenset[str]
    only_tasks: frozenset[str]
    only_machines: frozenset[str]


def names_in(definition: dict[str, Any]) -> Names:
    """Collect the names in a normalised definition."""
    found: dict[str, set[str]] = {"action": set(), "guard": set(), "task": set(), "machine": set(), "name": set()}
    for state in states_in(definition["root"]):
        for part in ("entry", "exit", "actions"):
            _actions(state.get(part, []), found)
        _actions(state.get("initial", {}).get("actions", []), found)
        for transition in transitions_in(state):
            _guard(transition.get("guard"), found)
            _actions(transition.get("actions", []), found)
        for invoke in state.get("invoke", []):
            kind, name = next(iter(invoke["src"].items()))
            found[kind].add(name)
    return Names(
        frozenset(found["action"]),
        frozenset(found["guard"]),
        frozenset(found["task"] | found["name"]),
        frozenset(found["task"]),
        frozenset(found["machine"]),
    )


def states_in(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The normalised state and all below it, in document order."""
    yield node
    for child in node.get("states", []):
        yield from states_in(child)


def transitions_in(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All transitions of one normalised state."""
    for part in ("on", "always", "onDone"):
        yield from state.get(part, [])
    for timer in state.get("after", []):
        yield from timer["transitions"]
    for invoke in state.get("invoke", []):
        yield from invoke.get("onDone", [])
        yield from invoke.get("onError", [])


def actions_in(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All actions of one normalised state and its transitions, those within others too."""
    lists = [state.get(part, []) for part in ("entry", "exit", "actions")]
    lists.append(state.get("initial", {}).get("actions", []))
    lists += [transition.get("actions", []) for transition in transitions_in(state)]
    for actions in lists:
        yield from _inside(actions)


def _inside(actions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for action in actions:
        yield action
        if action["type"] == "if":
            for branch in action["params"]["branches"]:
                yield from _inside(branch["actions"])
        elif action["type"] in ("foreach", "block"):
            yield from _inside(action["params"]["actions"])


def _guard(guard: dict[str, Any] | None, found: dict[str, set[str]]) -> None:
    if guard and "name" in guard:
        found["guard"].add(guard["name"])


def _actions(actions: list[dict[str, Any]], found: dict[str, set[str]]) -> None:
    for action in actions:
        if action["type"] == "call":
            found["action"].add(action["name"])
        elif action["type"] == "if":
            for branch in action["params"]["branches"]:
                _guard(branch.get("guard"), found)
                _actions(branch["actions"], found)
        elif action["type"] in ("foreach", "block"):
            _actions(action["params"]["actions"], found)
