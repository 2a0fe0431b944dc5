"""Results of a join that are too large for the parent: read from the children, page by page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from casework.arguments import check_count, check_instance, check_text
from casework.errors import Misuse, WrongCursor
from casework.executions.deliver import check_id, read_state, view
from casework.executions.joins import child_id
from casework.executions.runtime import Runtime
from casework.executions.state import STATE, state_of
from casework.kernel.programs import Program, get_many
from casework.kernel.schema import EXECUTIONS

MAX_LIMIT = 100
"""Children of one page; their states are read at once."""


class Reference(msgspec.Struct, kw_only=True):
    """Where the results of a join are; the join's output where they are over 64 KB in all."""

    invoke: str
    stay: int
    total: int
    done: int
    each: bool


class ChildResult(msgspec.Struct, kw_only=True):
    """What became of one child."""

    ordinal: int
    """Position of its input in the list that the children were started for."""
    id: str
    status: str
    """As of any execution; ``purged`` when it is there no more."""
    output: Any = None
    error: dict[str, Any] | None = None


class ChildResults(msgspec.Struct):
    """A page of results; only a ``next`` of None ends them."""

    items: list[ChildResult]
    next: str | None


def child_results(
    rt: Runtime, id: str, reference: Mapping[str, Any], *, limit: int = MAX_LIMIT, cursor: str | None = None
) -> Program[ChildResults]:
    """A page of what the children of a join ended with, in the order of their inputs.

    Args:
        rt: machines and options.
        id: the parent.
        reference: the output of the join, as the chart got it.
        limit: at most so many, 1 to 100.
        cursor: ``next`` of the page before.

    Raises NoSuchExecution; Misuse when the reference is none, or a limit or cursor is wrong.
    """
    check_id(id)
    check_count("limit", limit, 1, MAX_LIMIT)
    if cursor is not None:
        check_text("cursor", cursor)
    check_instance("reference", reference, Mapping, "the output of a join, as the chart got it")
    try:
        where = msgspec.convert(reference, Reference)
    except msgspec.ValidationError as error:
        raise Misuse(f"{reference!r:.80} is not the output of a join with large results: {error}") from None
    first = _position(cursor, where.total)
    parent = yield from read_state(id)
    last = min(where.total, first + limit)
    ids = [child_id(id, where.invoke, where.stay, n, parent.created_at_us) for n in range(first, last)]
    items = yield from get_many([EXECUTIONS.key(child, STATE) for child in ids])
    results = []
    for ordinal, (child, item) in enumerate(zip(ids, items, strict=True), first):
        if item is None:
            results.append(ChildResult(ordinal=ordinal, id=child, status="purged"))
            continue
        seen = view(rt, state_of(item))
        results.append(ChildResult(ordinal=ordinal, id=child, status=seen.status, output=seen.output, error=seen.error))
    return ChildResults(results, None if last >= where.total else _cursor(last))


def _cursor(position: int) -> str:
    return base64.urlsafe_b64encode(f"c{position}".encode()).decode().rstrip("=")


def _position(cursor: str | None, total: int) -> int:
    if cursor is None:
        return 0
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        position = int(text.removeprefix("c"))
    except (binascii.Error, ValueError, TypeError, UnicodeDecodeError):
        position = -1
    if not 0 <= position <= total:
        raise WrongCursor(f"{cursor!r:.80} is not a cursor of these results; pass the one that a page handed back")
    return position
