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

    def add(self, path: Path, message: str, fix: str = "", line: int = 0) -> None:
        """Record an error at ``path``; ``line`` where that is not the path's own."""
        self.found.append(self._line(path, message, fix, line))

    def warn(self, path: Path, message: str, fix: str = "") -> None:
        """Record something that is permitted and probably not meant."""
        self.warnings.append(self._line(path, message, fix))

    def _line(self, path: Path, message: str, fix: str, line: int = 0) -> str:
        return f"{self.place(path, line)}: {message}{f' ({fix})' if fix else ''}"

    def place(self, path: Path, line: int = 0) -> str:
        """``file:line: path``."""
        if line:
            return f"{self.source}:{line}: {spoken(path)}"
        place = f"{self.source}:"
        for length in range(len(path), -1, -1):
            known = self.lines.get(path[:length])
            if known:
                place += f"{known}:"
                break
        return f"{place} {spoken(path)}"


def spoken(path: Path) -> str:
    """A path as people write it: ``states.paid.on.Pay[0].target``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(top)"
