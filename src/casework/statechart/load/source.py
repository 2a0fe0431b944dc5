"""Where a definition came from, and the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping

Path = tuple[str | int, ...]


class Problems:
    """Collects problems as ``file:line: path: message (how to fix)``; lines are known for text, not for dicts."""

    def __init__(self, source: str = "machine", lines: Mapping[Path, int] | None = None) -> None:
        self.source = source
        self.lines = lines or {}
        self.found: list[str] = []
        self.warnings: list[str] = []

    def add(self, path: Path, message: str, fix: str = "") -> None:
        """Record an error at ``path``."""
        self.found.append(self._line(path, message, fix))

    def warn(self, path: Path, message: str, fix: str = "") -> None:
        """Record something that is permitted and probably not meant."""
        self.warnings.append(self._line(path, message, fix))

    def _line(self, path: Path, message: str, fix: str) -> str:
        return f"{self.place(path)}: {message}{f' ({fix})' if fix else ''}"

    def place(self, path: Path) -> str:
        """``file:line: path``."""
        place = f"{self.source}:"
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line:
                place += f"{line}:"
                break
        return f"{place} {spoken(path)}"


def spoken(path: Path) -> str:
    """A path as people write it: ``states.paid.on.Pay[0].target``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(top)"
