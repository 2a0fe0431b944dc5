"""Errors as the log and the trace tell them: one short line."""

from __future__ import annotations

from typing import Any

MAX_TOLD = 300


def told(error: Any) -> str:
    """An error as executions and tasks keep it (``{"type": ..., "message": ...}``) in a line."""
    if not isinstance(error, dict):
        return "no reason was given" if error is None else _line(str(error))
    kind, message = str(error.get("type") or ""), _line(str(error.get("message") or ""))
    if not kind or message.startswith(f"{kind}:"):
        return message or "no reason was given"
    return f"{kind}: {message}" if message else kind


def _line(text: str) -> str:
    """The first line that says something, at most ``MAX_TOLD`` characters of it."""
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0].strip() if lines else ""
    return first if len(first) <= MAX_TOLD else f"{first[:MAX_TOLD]}..."
