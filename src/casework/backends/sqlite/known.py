"""What this process has seen of the file lately, so that a write need not read again what was just read.

It is only ever a guess: a group of writes states each guess again in its own statements (``... AND attributes = ?``),
inside its transaction, and starts over when one was wrong. So an entry may be stale, but never wrong in itself: an
entry's item is private, since a reader could change the one that it was handed.
"""

from __future__ import annotations

from collections.abc import Mapping

from casework.backends.sqlite.layout import Layout
from casework.kernel.items import Item

Place = tuple[Layout, str, "str | int | None"]
"""Where a row is."""

Found = tuple[str | None, Item | None]
"""A row's text and its item; two Nones where there is no row."""

NOTHING: Found = (None, None)

GENERATION_CHARACTERS = 1_500_000
LARGEST_TEXT = 32_768
"""A longer text is not kept; reading it again costs little beside handling it."""


class Known:
    """Rows by place, in two generations: when the young one is full it becomes the old one, which is dropped.

    Several threads may use it at once: each step is one operation on a dictionary, and what is lost between two steps
    is only a guess less.
    """

    __slots__ = ("_old", "_size", "young")

    def __init__(self) -> None:
        self.young: dict[Place, Found] = {}
        self._old: dict[Place, Found] = {}
        self._size = 0

    def note(self, place: Place, text: str, item: Item) -> None:
        """Keep a row; ``item`` must be nobody else's."""
        if len(text) <= LARGEST_TEXT:
            self.young[place] = (text, item)
            self.grew(1, len(text))
        else:
            self.forget(place)

    def note_all(self, rows: Mapping[Place, Found]) -> None:
        """Keep what was committed: the rows that are there, and no longer those that are gone."""
        young, old = self.young, self._old
        count = characters = 0
        for place, row in rows.items():
            text = row[0]
            if text is not None and len(text) <= LARGEST_TEXT:
                young[place] = row
                count += 1
                characters += len(text)
            else:
                young.pop(place, None)
                old.pop(place, None)
        self.grew(count, characters)

    def grew(self, rows: int, characters: int) -> None:
        """So much was put into ``young``; begins a new generation when this one is full."""
        self._size += characters + 200 * rows
        if self._size > GENERATION_CHARACTERS:
            self._old, self.young, self._size = self.young, {}, 0

    def find(self, place: Place) -> Found | None:
        """The row as last seen; None when it is not known."""
        return self.young.get(place) or self._old.get(place)

    def forget(self, place: Place) -> None:
        """Drop a row."""
        self.young.pop(place, None)
        self._old.pop(place, None)
