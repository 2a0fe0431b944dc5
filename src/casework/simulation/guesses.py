"""What is sent, given and returned where the user says nothing: guessed from what a machine's expressions read.

An expression reads an event in its transition, and in what that enters: entry actions, inputs of invocations, delays,
eventless transitions. The payload of a result is ``event.output`` (or ``event``) there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from casework.simulation.shapes import Reader, Shape, template_of
from casework.statechart import Machine
from casework.statechart.names import states_in, transitions_in

RESULT = "done.invoke."


class Guess(msgspec.Struct, frozen=True):
    """A payload that nobody gave."""

    template: Any
    """What it is drawn from."""
    reads: frozenset[str] = frozenset()
    """The keys that expressions read of it, at any depth."""
    calls: bool = False
    """Whether functions are called with it, whose code is not looked at."""


class Guesses:
    """A machine's guesses, each made once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.context = Shape()
        self._states = {state["path"]: state for state in states_in(machine.definition["root"])}
        self._payloads: dict[str, Guess] = {}
        self._given = Shape()
        first = Reader({"input": self._given})
        if machine.definition.get("context") is None:  # it begins as the input itself
            self._given.links.append(self.context)
        else:
            first.read(machine.definition["context"], into=self.context)
        for state in self._states.values():
            reader = Reader({"context": self.context, "event": Shape()})
            self._entering(reader, state)
            self._leaving(reader, state)
            for transition in transitions_in(state):
                self._taking(reader, transition)

    def input(self) -> Guess:
        """An input for an execution."""
        template = template_of(self._given)
        return _guess(template if isinstance(template, dict) and not _is_drawn(template) else {}, [self._given])

    def payload(self, event_type: str) -> Guess:
        """A payload for an event from outside."""
        found = self._payloads.get(event_type)
        if found is None:
            shape = Shape()
            calls = False
            for state in self._states.values():
                for transition in _taking(state, event_type):
                    calls |= self._read(shape, state, transition, is_result=False)
            template = template_of(shape)
            known = template if isinstance(template, dict) and not _is_drawn(template) else {}
            found = self._payloads[event_type] = _guess(known, [shape], calls=calls)
        return found

    def result(self, task: str) -> Guess:
        """What a task returns; null where nobody reads its result."""
        shape = Shape()
        calls = False
        for state in self._states.values():
            for invoke in state.get("invoke", []):
                if task in invoke["src"].values():
                    event_type = RESULT + invoke["id"]
                    for transition in [*invoke.get("onDone", []), *_taking(state, event_type)]:
                        calls |= self._read(shape, state, transition, is_result=True)
        is_used = shape.is_read or shape.keys or shape.elements is not None
        return _guess(template_of(shape) if is_used else None, [shape], calls=calls)

    def is_of_context(self, key: str) -> bool:
        """Whether a key is one that expressions read of the context itself."""
        return key in self.context.keys

    # --- what reads an event

    def _read(self, shape: Shape, state: Mapping[str, Any], transition: Mapping[str, Any], *, is_result: bool) -> bool:
        """Note what is read of a transition's event; whether functions see it, too."""
        reader = _Watched({"context": self.context, "event": shape}, is_result=is_result)
        self._taking(reader, transition)
        if transition.get("target"):
            self._leaving(reader, state)
        for path in self._reached(transition.get("target", [])):
            self._entering(reader, self._states[path])
            for each in self._states[path].get("always", []):
                self._taking(reader, each)
        return reader.calls

    def _reached(self, targets: Iterable[str]) -> Iterator[str]:
        """What a transition may enter in the same step: its targets, all below them, and where these go at once."""
        todo, seen = list(targets), set()
        while todo:
            path = todo.pop()
            if path in seen or path not in self._states:
                continue
            seen.add(path)
            yield path
            state = self._states[path]
            todo += [child["path"] for child in state.get("states", [])]
            todo += [target for each in state.get("always", []) for target in each.get("target", [])]

    def _taking(self, reader: Reader, transition: Mapping[str, Any]) -> None:
        _guard(reader, transition.get("guard"))
        self._actions(reader, transition.get("actions", []))

    def _entering(self, reader: Reader, state: Mapping[str, Any]) -> None:
        self._actions(reader, state.get("entry", []))
        self._actions(reader, state.get("actions", []))
        self._actions(reader, state.get("initial", {}).get("actions", []))
        reader.read(state.get("output"))
        for timer in state.get("after", []):
            reader.read(timer["delay"])
        for invoke in state.get("invoke", []):
            if "each" not in invoke:
                reader.read(invoke.get("input"))
                continue
            element = reader.list_in(invoke["each"])
            inner = Reader({**reader.names, "item": element, "index": Shape()}, is_result=reader.is_result)
            inner.read(invoke.get("input"))

    def _leaving(self, reader: Reader, state: Mapping[str, Any]) -> None:
        self._actions(reader, state.get("exit", []))

    def _actions(self, reader: Reader, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            params = action.get("params", {})
            match action["type"]:
                case "assign":
                    reader.read(params, into=self.context)
                case "if":
                    for branch in params["branches"]:
                        _guard(reader, branch.get("guard"))
                        self._actions(reader, branch["actions"])
                case "foreach":
                    element = reader.list_in(params["items"])
                    element.links.append(self.context.key(params["item"]))
                    self._actions(reader, params["actions"])
                case "block":
                    self._actions(reader, params["actions"])
                case kind:
                    if kind == "call" and isinstance(reader, _Watched):
                        reader.calls = True
                    reader.read(params)


class _Watched(Reader):
    """Remembers whether a function of the user's is called."""

    calls = False


def _guard(reader: Reader, guard: Mapping[str, Any] | None) -> None:
    if not guard:
        return
    if "expr" in guard:
        reader.read(guard, is_test=True)
        return
    if isinstance(reader, _Watched):
        reader.calls = True
    reader.read(guard.get("params"))


def _guess(template: Any, shapes: list[Shape], *, calls: bool = False) -> Guess:
    return Guess(template, frozenset(_keys(template)) | {name for shape in shapes for name in shape.keys}, calls)


def _keys(template: Any) -> Iterator[str]:
    if isinstance(template, Mapping):
        for name, value in template.items():
            if not str(name).startswith("$"):
                yield str(name)
            yield from _keys(value)
    elif isinstance(template, list):
        for each in template:
            yield from _keys(each)


def _is_drawn(template: Mapping[str, Any]) -> bool:
    return len(template) == 1 and next(iter(template)).startswith("$")


def _taking(state: Mapping[str, Any], event_type: str) -> list[Mapping[str, Any]]:
    """The transitions of ``on`` that an event may take."""
    return [each for each in state.get("on", []) if any(_matches(name, event_type) for name in each["event"])]


def _matches(descriptor: str, event_type: str) -> bool:
    prefix = descriptor.removesuffix(".*")
    return prefix in ("*", event_type) or event_type.startswith(prefix + ".")
