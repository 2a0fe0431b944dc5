"""A group of requests that share one commit: decided in Python, stated again in SQL.

First each request's conditions are evaluated, in order, over an overlay, so that a later request of the group sees the
earlier ones; a refused request leaves no trace in it. What the overlay then holds is written with one statement for
each table and kind of change, and each of these statements names the text that the row had when it was evaluated. The
rows may have been read before the transaction began: if one has changed since, the number of rows written tells, the
transaction is rolled back and the group is decided once more over rows read inside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from casework.backends.refusals import raise_refusals
from casework.backends.sqlite.known import NOTHING, Found, Known, Place
from casework.backends.sqlite.layout import Layout
from casework.backends.sqlite.reading import fetch_texts, most_bytes
from casework.errors import Refusal
from casework.kernel.conditions import Absent
from casework.kernel.items import AnyWrite, Check, Delete, Item, Put, apply_write
from casework.kernel.limits import MAX_ITEM_BYTES, size_of


class Request:
    """One ``Write`` or ``Transact``: its writes with their places, and what became of it."""

    __slots__ = ("error", "places", "size", "writes")

    def __init__(self, writes: Sequence[AnyWrite], places: Sequence[Place], size: int) -> None:
        self.writes = writes
        self.places = places
        self.size = size
        self.error: BaseException | None = None


class StaleGuess(Exception):
    """A row is not what it was taken for; nothing of the group may be committed."""


def guess(
    requests: Iterable[Request], known: Known, read: Callable[[list[Place]], Mapping[Place, str]]
) -> dict[Place, Found]:
    """The rows that the group touches, as last seen; the unknown ones are read.

    A row that nobody has seen is taken for absent where its write asks for that: the usual put of something new.
    """
    rows: dict[Place, Found] = {}
    unknown: list[Place] = []
    find = known.find
    for request in requests:
        for write, place in zip(request.writes, request.places, strict=True):
            if place in rows:
                continue
            row = find(place)
            if row is None:
                row = NOTHING
                if not (type(write) is Put and type(write.when) is Absent and write.when.attribute is None):
                    unknown.append(place)
            rows[place] = row
    if unknown:
        rows.update(read_rows(unknown, read))
    return rows


def read_rows(places: list[Place], read: Callable[[list[Place]], Mapping[Place, str]]) -> dict[Place, Found]:
    """The rows at ``places``, nothing assumed; CorruptItem when one cannot be read."""
    rows = dict.fromkeys(places, NOTHING)
    for place, text in read(places).items():
        rows[place] = (text, place[0].item_of(place[1], place[2], text))
    return rows


def decide(requests: Iterable[Request], rows: Mapping[Place, Found]) -> dict[Place, Found]:
    """Evaluate each request in order; the overlay: what the accepted ones leave, by place."""
    overlay: dict[Place, Found] = {}
    for request in requests:
        request.error = None
        try:
            staged = _stage(request, rows, overlay)
        except Exception as error:
            request.error = error
        else:
            overlay.update(staged)
    return overlay


def _stage(request: Request, rows: Mapping[Place, Found], overlay: Mapping[Place, Found]) -> list[tuple[Place, Found]]:
    """What the request's writes leave; raises its refusal."""
    staged: list[tuple[Place, Found]] = []
    refused: dict[int, Refusal] | None = None
    position = -1
    for write, place in zip(request.writes, request.places, strict=True):
        position += 1
        before = (overlay.get(place) or rows[place])[1]
        when = write.when
        kind = type(write)
        if when is not None and not when.holds(before):
            refused = refused or {}
            refused[position] = Refusal("condition", None if before is None else dict(before))
        elif kind is Delete:
            staged.append((place, NOTHING))
        elif kind is not Check:
            after: Item = apply_write(write, before)  # type: ignore[assignment]
            text = place[0].text_of(after)
            if most_bytes(text) > MAX_ITEM_BYTES and size_of(after, write.key) > MAX_ITEM_BYTES:
                refused = refused or {}
                refused[position] = Refusal("too_large", None)
            staged.append((place, (text, after)))
    if refused is not None:
        raise_refusals([refused.get(position) for position in range(len(request.writes))])
    return staged


class _Changes:
    """The rows to write of one table, by kind of statement."""

    __slots__ = ("deletes", "inserts", "moves", "updates")

    def __init__(self) -> None:
        self.inserts: list[tuple[object, ...]] = []
        self.updates: list[tuple[object, ...]] = []
        self.moves: list[tuple[object, ...]] = []
        self.deletes: list[tuple[object, ...]] = []


def sort_out(rows: Mapping[Place, Found], overlay: Mapping[Place, Found]) -> tuple[dict[Layout, _Changes], list[Place]]:
    """The changes to write, and the places that no change states again, which have to be looked at."""
    changes: dict[Layout, _Changes] = {}
    unstated = [place for place in rows if place not in overlay] if len(overlay) < len(rows) else []
    for place, (text, item) in overlay.items():
        layout = place[0]
        old_text, old_item = rows[place]
        if text == old_text:
            unstated.append(place)
            continue
        mine = changes.get(layout)
        if mine is None:
            mine = changes[layout] = _Changes()
        key = place[1:] if layout.sort is not None else place[1:2]
        if item is None:
            mine.deletes.append((*key, old_text))
        elif old_item is None:
            mine.inserts.append((*key, text, *layout.entries_of(item)))
        elif layout.same_entries(old_item, item):
            mine.updates.append((text, *key, old_text))
        else:
            mine.moves.append((text, *layout.entries_of(item), *key, old_text))
    return changes, unstated


def flush(
    connection: sqlite3.Connection,
    rows: Mapping[Place, Found],
    changes: Mapping[Layout, _Changes],
    unstated: Sequence[Place],
) -> None:
    """Write the changes inside the open transaction; StaleGuess when a row is not what ``rows`` says."""
    if unstated:
        texts = fetch_texts(connection, unstated)
        for place in unstated:
            if texts.get(place) != rows[place][0]:
                raise StaleGuess()
    for layout, mine in changes.items():
        for statement, values in (
            (layout.delete, mine.deletes),
            (layout.update, mine.updates),
            (layout.update_entries, mine.moves),
            (layout.insert, mine.inserts),
        ):
            if values and connection.executemany(statement, values).rowcount != len(values):
                raise StaleGuess()


def forget(known: Known, places: Iterable[Place]) -> None:
    """After a wrong guess, or a failure."""
    for place in places:
        known.forget(place)
