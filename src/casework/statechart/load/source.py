"""Where a definition came from, and the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from casework.statechart.findings import Located, Place, Problem
from casework.statechart.suggestions import suggestion

Path = tuple[str | int, ...]


class Places:
    """Where the parts of a normalised definition stand: states by their path, all else by the mapping itself."""

    def __init__(self) -> None:
        self.states: dict[str, Place] = {}
        self.functions: dict[tuple[str, str], Place] = {}
        """Where each kind of function is named first."""
        self.parts: dict[int, tuple[Any, Place]] = {}
        """By identity; the mapping is kept, so that no other can get its identity."""

    def of(self, part: Any) -> Place | None:
        """Where a mapping of the normalised definition stands, if that was noted."""
        found = self.parts.get(id(part))
        return found[1] if found is not None and found[0] is part else None


class Problems:
    """Collects problems with their place; lines and columns are known for text, not for dicts."""

    def __init__(self, source: str = "machine", lines: Mapping[Path, int] | None = None) -> None:
        self.source = source
        self.lines = lines or {}
        self.columns: Mapping[Path, int] = {}
        self.found: list[str] = []

    def add(self, path: Path, message: str, fix: str = "", line: int = 0, code: str = "definition") -> None:
        """Record an error at ``path``; ``line`` where that is not the path's own."""
        place = Place(self.source, line, 0, spoken(path)) if line else self.place(path)
        self.found.append(Located.of(Problem("error", code, message, fix, place)))

    def unknown_key(self, path: Path, known: Iterable[str]) -> None:
        """Record that nothing reads the key at the end of ``path``."""
        name = str(path[-1])
        self.add(path, f"unknown key {name!r}", suggestion(name, known), code="unknown-key")

    def place(self, path: Path) -> Place:
        """Where a path stands: at its own line and column, or those of what it is in."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return Place(self.source, self.lines[path[:length]], self.columns.get(path[:length], 0), spoken(path))
        return Place(self.source, 0, 0, spoken(path))


def spoken(path: Path) -> str:
    """A path as people write it: ``states.paid.on.Pay[0].target``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(top)"
