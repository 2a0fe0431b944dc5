"""What this process has seen of the file lately, so that a write need not read again what was just read.

It is only ever a guess: a group of writes states each guess again in its own statements (``... AND attributes = ?``),
inside its transaction, and starts over when one was wrong. So an entry may be stale, but never wrong in itself: an
entry's item is private, since a reader could change the one that it was handed.
"""

from __future__ import annotations

from casework.backends.sqlite.layout import Layout
from casework.kernel.items import Item

Place = tuple[Layout, str, "str | int | None"]
"""Where a row is."""

Found = tuple[str | None, Item | None]
"""A row's text and its item; two Nones where there is no row."""

NOTHING: Found = (None, None)

_GENERATION_CHARACTERS = 4_000_000
_LARGEST_TEXT = 32_768


class Known:
    """Rows by place, in two generations: when the young one is full it becomes the old one, which is dropped."""

    __slots__ = ("_old", "_size", "_young")

    def __init__(self) -> None:
        self._young: dict[Place, Found] = {}
        self._old: dict[Place, Found] = {}
        self._size = 0

    def note(self, place: Place, text: str, item: Item) -> None:
        """Keep a row; ``item`` must be nobody else's."""
        size = len(text)
        if size > _LARGEST_TEXT:
            self.forget(place)
            return
        self._size += size + 200
        if self._size > _GENERATION_CHARACTERS:
            self._old, self._young, self._size = self._young, {}, size + 200
        self._young[place] = (text, item)

    def find(self, place: Place) -> Found | None:
        """The row as last seen; None when it is not known."""
        return self._young.get(place) or self._old.get(place)

    def forget(self, place: Place) -> None:
        """Drop a row."""
        self._young.pop(place, None)
        self._old.pop(place, None)
