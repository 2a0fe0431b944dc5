"""The way out of a wrong name: what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or the list of what is known."""
    import difflib  # on the way to an error only: it is slow to import

    names = sorted(set(known))
    close = difflib.get_close_matches(wrong, names, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none are known"
