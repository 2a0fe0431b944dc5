"""The tables that the backend contract works on, values at the edges of what a store holds, and small means of asking.

Every test uses partitions of its own (``place``), so that the suite can run again and again against one real store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from casework.backends.port import Backend, StoreEffect
from casework.errors import ConditionFailed
from casework.kernel.effects import Get, Page, Query, Transact
from casework.kernel.items import AnyWrite, Index, Item, Key, Table
from casework.kernel.limits import MAX_INT, MIN_INT

T = TypeVar("T")

PLAIN = Table(name="contract_plain", partition="id")
SORTED = Table(
    name="contract_sorted",
    partition="id",
    sort="sort",
    indexes=(
        Index(name="due", partition="bucket", sort="due_at_us", sort_type="int"),
        Index(name="labels", partition="shelf", sort="label"),
    ),
    ttl="expires_at_s",
)
NUMBERED = Table(name="contract_numbered", partition="id", sort="number", sort_type="int")
MISSING = Table(name="contract_nobody_makes_this", partition="id")

CONTRACT_TABLES = (PLAIN, SORTED, NUMBERED)

EDGE_VALUES: tuple[str | int | bool | bytes, ...] = (
    "",
    "a",
    "A",
    "1",
    "\u00e9",
    "e\u0301",
    "\uffff",
    "\U00010000",
    '"\\\u2028\x7f\x01',
    '{"b64": "AA=="}',
    "x" * 1000,
    0,
    1,
    -1,
    2**53 + 1,
    MAX_INT,
    MIN_INT,
    True,
    False,
    b"",
    b"\x00",
    b"\xff\xfe",
    b"a",
)
"""Values at which stores have been known to differ; of each type, and some that look alike in another type."""

TEXT_IN_ORDER = (
    "!",
    "0",
    "A",
    "a",
    "aa",
    "b",
    "\u00e9",
    "\u4e2d",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0001f600",
)
"""Strings by code point: the order of their UTF-8 bytes, not that of UTF-16."""

NUMBERS_IN_ORDER = (MIN_INT, -(10**10), -10, -9, -1, 0, 1, 9, 10, 2**53, 2**53 + 1, MAX_INT)


def get(backend: Backend, key: Key) -> Item | None:
    """The item at ``key``."""
    item: Item | None = backend.execute(Get(key))
    return item


def write(backend: Backend, *writes: AnyWrite) -> None:
    """One transaction."""
    backend.execute(Transact(writes))


def put_all(backend: Backend, writes: Sequence[AnyWrite]) -> None:
    """Many writes, in transactions of 25."""
    for start in range(0, len(writes), 25):
        backend.execute(Transact(writes[start : start + 25]))


def query_pages(backend: Backend, query: Query) -> list[Page]:
    """Every page of a query."""
    pages: list[Page] = []
    after = query.after
    while True:
        page: Page = backend.execute(
            Query(query.table, query.partition, query.index, query.low, query.high, query.limit, query.reverse, after)
        )
        pages.append(page)
        if page.next is None:
            return pages
        after = page.next
        assert len(pages) < 10_000, "the pages of a query never end"


def query_items(backend: Backend, query: Query) -> list[Item]:
    """The items of every page of a query."""
    return [item for page in query_pages(backend, query) for item in page.items]


def refused(backend: Backend, effect: StoreEffect) -> ConditionFailed | None:
    """The refusal of a write, or None when it was applied."""
    try:
        backend.execute(effect)
    except ConditionFailed as error:
        return error
    return None


def eventually(backend: Backend, ask: Callable[[], T], expected: T, *, within_s: float = 20.0) -> None:
    """Ask until the answer is as expected: an index may lag. A store that does not lag is asked once."""
    pause_s, waited_s = 0.02, 0.0
    found: Any = ask()
    while found != expected and waited_s < within_s:
        backend.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(1.0, pause_s * 2)
        found = ask()
    assert found == expected
