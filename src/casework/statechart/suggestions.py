"""The way out of a wrong name: what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or the list of what is known."""
    names = sorted(set(known))
    return close_to(wrong, names) or (f"known: {', '.join(names)}" if names else "none are known")


def close_to(wrong: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or nothing."""
    import difflib  # on the way to an error only: it is slow to import

    close = difflib.get_close_matches(wrong, sorted(known), 1)
    return f"did you mean {close[0]!r}?" if close else ""
