"""Reading ranges page by page, several side by side.

A cursor is bound to the bounds of its query. So a look at what is due fixes its bounds once, and keeps them over all
its pages: whoever made them anew for each page, from a clock that goes on, would be refused at the second page.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from casework.kernel.effects import Page, Query
from casework.kernel.items import Item
from casework.kernel.programs import Program, all_reads


class Walk:
    """One look at several ranges: each is read to its end, a page at a time, between the bounds it began with.

    Args:
        queries: the first page of each range.
    """

    __slots__ = ("left",)

    def __init__(self, queries: Sequence[Query]) -> None:
        self.left: list[Query] = list(queries)
        """The next page of every range that has one; empty at the end."""

    def next_pages(self, limit: int | None = None) -> Program[list[Item]]:
        """The items of the next page of each range that has one, at most ``limit`` of each.

        When an error is raised the walk stands where it stood: the same pages are read again by the next call.
        """
        reads = self.left if limit is None else [msgspec.structs.replace(query, limit=limit) for query in self.left]
        pages: list[Page] = yield from all_reads(reads)
        self.left = [
            msgspec.structs.replace(query, after=page.next)
            for query, page in zip(self.left, pages, strict=True)
            if page.next is not None
        ]
        return [item for page in pages for item in page.items]


def walk_all(queries: Sequence[Query]) -> Program[list[Item]]:
    """All items of several ranges. For what the caller holds in memory anyway."""
    walk = Walk(queries)
    items: list[Item] = []
    while walk.left:
        items += yield from walk.next_pages()
    return items
