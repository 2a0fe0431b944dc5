"""A machine as a diagram: Mermaid (GitHub and many editors draw it) or PlantUML, with the active states marked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from casework.statechart.names import states_in

MAX_LABEL = 80
"""Longer labels of transitions are cut."""


_RESERVED = re.compile(
    r"(acc|as|branch|choice|class|click|default|direction|end|fork|hide|href|history|join|left|note|over|right|root"
    r"|scale|start|state|style|title|constructor|prototype|__|[0-9])",
    re.IGNORECASE,
)
"""What the name of a state does not begin with in a diagram: Mermaid or PlantUML would take it for a word of theirs."""


class Drawn(Protocol):
    """What is asked of a machine here."""

    name: str
    definition: dict[str, Any]


def mermaid(machine: Drawn, active: Iterable[str] = ()) -> str:
    """The machine as a Mermaid ``stateDiagram-v2``; ``active`` are paths of atomic states to mark.

    Pass ``snapshot.configuration`` to mark where an execution is. Unknown paths are ignored.
    """
    drawing = _Mermaid(machine.definition, active)
    return "\n".join(["stateDiagram-v2", *drawing.lines()]) + "\n"


def plantuml(machine: Drawn, active: Iterable[str] = ()) -> str:
    """The machine as PlantUML; ``active`` as for :func:`mermaid`."""
    drawing = _PlantUml(machine.definition, active)
    return "\n".join(["@startuml", f"title {drawing.escaped(machine.name)}", *drawing.lines(), "@enduml"]) + "\n"


class _Drawing:
    def __init__(self, definition: dict[str, Any], active: Iterable[str]) -> None:
        self.root = definition["root"]
        self.states = {state["path"]: state for state in states_in(self.root)}
        self.active = [path for path in active if path in self.states]
        self.names: dict[str, str] = {}
        for path in self.states:
            name = re.sub(r"\W", "_", path, flags=re.ASCII) or "_"
            if _RESERVED.match(name):
                name = f"s_{name}"
            while name in self.names.values():
                name += "_"
            self.names[path] = name

    def lines(self) -> list[str]:
        edges: list[str] = []
        for state in self.states.values():
            for label, transition in _labelled(state):
                edges += self.edges(state, transition, label)
        return [*self.inside(self.root, "    "), *edges, *self.marks()]

    def inside(self, state: dict[str, Any], indent: str) -> list[str]:
        found = []
        regions = state["kind"] == "parallel"
        for index, child in enumerate(state.get("states", [])):
            if regions and index and child["kind"] != "history":
                found.append(f"{indent}--")
            found += self.state(child, indent)
        for target in state.get("initial", {}).get("target", []):
            found.append(f"{indent}[*] --> {self.names[target]}")
        return found

    def state(self, state: dict[str, Any], indent: str) -> list[str]:
        name = self.names[state["path"]]
        label = state["key"]
        if state["kind"] == "history":
            label = "H*" if state["deep"] else "H"
        opening = f'{indent}state "{self.escaped(label)}" as {name}{self.colour(state)}'
        found = [opening]
        if state.get("states"):
            found = [f"{opening} {{", *self.inside(state, indent + "    "), f"{indent}}}"]
        said = [f"{part} / {_actions(state[part])}" for part in ("entry", "exit") if state.get(part)]
        said += [f"invoke {next(iter(invoke['src'].values()))}" for invoke in state.get("invoke", [])]
        found += self.described(state["path"], said, indent)
        found += self.beside(state["path"], indent)
        if state["kind"] == "final":
            found.append(f"{indent}{name} --> [*]")
        return found

    def edges(self, state: dict[str, Any], transition: dict[str, Any], label: str) -> list[str]:
        text = _label(label, transition)
        if state["path"] == "":
            said = [(target, f"from anywhere: {text}") for target in _targets(transition)]
            return [line for target, each in said for line in self.described(target, [each], "    ")]
        name = self.names[state["path"]]
        if not _targets(transition):
            return self.described(state["path"], [text], "    ")
        return [f"    {name} --> {self.names[target]} : {self.escaped(text)}" for target in _targets(transition)]

    def described(self, path: str, said: list[str], indent: str) -> list[str]:
        """Lines of text in the box of a state."""
        return [f"{indent}{self.names[path]} : {self.escaped(each)}" for each in said]

    def beside(self, path: str, indent: str) -> list[str]:
        """What stands beside the box of a state."""
        return []

    def colour(self, state: dict[str, Any]) -> str:
        return ""

    def marks(self) -> list[str]:
        return []

    def escaped(self, text: str) -> str:
        raise NotImplementedError


class _Mermaid(_Drawing):
    def __init__(self, definition: dict[str, Any], active: Iterable[str]) -> None:
        super().__init__(definition, active)
        self.notes: dict[str, list[str]] = {}

    def described(self, path: str, said: list[str], indent: str) -> list[str]:
        """A state with states inside can hold no text in Mermaid, but one note beside it can."""
        if not self.states[path].get("states"):
            return super().described(path, said, indent)
        self.notes.setdefault(path, []).extend(said)
        return []

    def beside(self, path: str, indent: str) -> list[str]:
        if not self.notes.get(path):
            return []
        return [f"{indent}note right of {self.names[path]} : {'<br/>'.join(map(self.escaped, self.notes[path]))}"]

    def marks(self) -> list[str]:
        if not self.active:
            return []
        names = ",".join(self.names[path] for path in self.active)
        return ["    classDef active fill:#ffd54f,stroke:#e65100,color:#000", f"    class {names} active"]

    def escaped(self, text: str) -> str:
        """Mermaid reads ``#code;`` as a character; these would end a label or a line."""
        return "".join(f"#{ord(each)};" if each in '#;:"{}<>%&\\`' else each for each in _one_line(text))


class _PlantUml(_Drawing):
    def colour(self, state: dict[str, Any]) -> str:
        return " #ffd54f" if state["path"] in self.active else ""

    def escaped(self, text: str) -> str:
        """PlantUML reads ``<U+0000>`` as a character."""
        return "".join(f"<U+{ord(each):04X}>" if each in '"\\<>{}~' else each for each in _one_line(text))


def _targets(transition: dict[str, Any]) -> list[str]:
    found: list[str] = transition.get("target", [])
    return found


def _labelled(state: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The transitions of one state with what triggers them."""
    found = [(" ".join(each["event"]), each) for each in state.get("on", [])]
    found += [("", each) for each in state.get("always", [])]
    found += [("done", each) for each in state.get("onDone", [])]
    for timer in state.get("after", []):
        found += [(f"after {_delay(timer['delay'])}", each) for each in timer["transitions"]]
    for invoke in state.get("invoke", []):
        src = next(iter(invoke["src"].values()))
        found += [(f"{src} done", each) for each in invoke.get("onDone", [])]
        found += [(f"{src} failed", each) for each in invoke.get("onError", [])]
    return found


def _label(event: str, transition: dict[str, Any]) -> str:
    parts = [event] if event else []
    guard = transition.get("guard")
    if guard:
        parts.append(f"[{guard.get('name') or guard.get('expr')}]")
    if transition.get("actions"):
        parts.append(f"/ {_actions(transition['actions'])}")
    return " ".join(parts) or "always"


def _actions(actions: list[dict[str, Any]]) -> str:
    return ", ".join(_action(action) for action in actions)


def _action(action: dict[str, Any]) -> str:
    kind = str(action.get("name") or action["type"])
    params = action.get("params", {})
    if action["type"] in ("raise", "send") and isinstance(params.get("event"), str):
        return f"{kind} {params['event']}"
    if action["type"] == "assign":
        return f"{kind} {', '.join(params)}"
    return kind


def _delay(delay: Any) -> str:
    if isinstance(delay, dict):
        return str(delay.get("expr"))
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)):
        if delay and delay % size == 0:
            return f"{delay // size}{unit}"
    return f"{delay}us"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 3] + "..."
