"""A machine as a diagram: :func:`mermaid` for documents, :func:`outline` for terminals. Pure text."""

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


def mermaid(definition: Mapping[str, Any], *, active: Collection[str] = ()) -> str:
    """A ``stateDiagram-v2`` of a normalised definition (``machine.definition``).

    Args:
        definition: what to draw.
        active: paths of states to highlight, such as an execution's configuration.
    """
    root = definition["root"]
    lines = ["stateDiagram-v2", *_mermaid_states(root, 1)]
    if root["kind"] == "compound":
        lines += [f"    [*] --> {_node_id(target)}" for target in root["initial"]["target"]]
    for state in states(root):
        for arrow in arrows(state):
            for target in arrow.targets:
                source = _node_id(arrow.source)
                lines.append(f"    {source} --> {_node_id(target)}{' : ' + _label(arrow.label) if arrow.label else ''}")
    marked = [state["path"] for state in states(root) if state["path"] in active]
    if marked:
        lines.append("    classDef active fill:#2e7d32,color:#fff")
        lines += [f"    class {_node_id(path)} active" for path in marked]
    return "\n".join(lines) + "\n"


def _mermaid_states(state: State, depth: int) -> Iterator[str]:
    pad = "    " * depth
    for position, child in enumerate(state.get("states", ())):
        if position and state["kind"] == "parallel":
            yield f"{pad}--"
        name = _node_id(child["path"])
        tasks = "".join(f"\\n{_label(note)}" for note in invocations(child))
        if child.get("states"):
            yield f'{pad}state "{child["key"]}{tasks}" as {name} {{'
            yield from _mermaid_states(child, depth + 1)
            if child["kind"] == "compound":
                yield from (f"{pad}    [*] --> {_node_id(target)}" for target in child["initial"]["target"])
            yield f"{pad}}}"
        elif child["kind"] == "history":
            yield f'{pad}state "{"H*" if child.get("deep") else "H"}" as {name}'
        else:
            yield f'{pad}state "{child["key"]}{tasks}" as {name}'
            if child["kind"] == "final":
                yield f"{pad}{name} --> [*]"


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


def _node_id(path: str) -> str:
    """A name that Mermaid takes: letters, digits and underscores, different for different paths."""
    return "s_" + "".join(c if c.isascii() and c.isalnum() else "__" if c == "." else f"_{ord(c):x}_" for c in path)


def _label(text: str) -> str:
    """A label without the signs that Mermaid reads as its own."""
    return text.replace('"', "'").replace(":", "∶").replace(";", ",").replace("\n", " ")  # noqa: RUF001
