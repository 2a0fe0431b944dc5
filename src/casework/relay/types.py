"""What goes over the wire; the OpenAPI document is made from these."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

StreamId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~+-]{0,199}$", description="Id of a stream.")]
Seq = Annotated[int, Meta(ge=0, le=2**63 - 2)]


class PushedOp(msgspec.Struct, forbid_unknown_fields=True):
    """An operation to store."""

    id: Annotated[str, Meta(min_length=1, max_length=512, description="Its writer's own name for it.")]
    data: Annotated[bytes, Meta(description="Its content, in base64.")]


class Push(msgspec.Struct, forbid_unknown_fields=True):
    """Operations to store, in order."""

    ops: Annotated[list[PushedOp], Meta(min_length=1)]
    expected_seq: (
        Annotated[
            int, Meta(ge=0, le=2**63 - 2, description="Store all of them, in one transaction, if the stream ends here.")
        ]
        | None
    ) = None


class StoredOp(msgspec.Struct):
    """What became of a pushed operation."""

    id: str
    seq: Seq
    duplicate: bool
    """It had been stored before."""


class Pushed(msgspec.Struct):
    """What became of each operation, in the order of the push."""

    results: list[StoredOp]


class PulledOp(msgspec.Struct):
    """An operation of the stream."""

    seq: Seq
    id: str
    data: Annotated[bytes, Meta(description="Its content, in base64.")]
    at_us: int


class Pulled(msgspec.Struct):
    """Contiguous operations; ask for the next ones with ``after`` set to ``next_after``."""

    ops: list[PulledOp]
    next_after: Seq
    mark: str = ""
    """Of ``next_after``: hand it in with the next request, to be told when the log is another one. Empty: none."""


class HeadInfo(msgspec.Struct):
    """The head of a stream."""

    stream: str
    last_seq: Seq
    floor_seq: Seq
    snapshot_seq: Seq


class StreamNames(msgspec.Struct):
    """Ids of streams; go on with ``cursor`` until it is null."""

    streams: list[str]
    cursor: str | None


class Truncate(msgspec.Struct, forbid_unknown_fields=True):
    """Remove the operations up to a number."""

    upto: Seq


class TruncateResult(msgspec.Struct):
    """What a truncation did."""

    floor_seq: Seq
    removed_ops: int
    kept_ops: int


class SnapshotBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a reader needs instead of the operations up to ``seq``."""

    seq: Annotated[int, Meta(ge=1, le=2**63 - 2)]
    data: Annotated[bytes, Meta(description="In base64.")]


class FoundSnapshot(msgspec.Struct):
    """What a reader needs instead of the operations up to ``seq``."""

    seq: Seq
    data: Annotated[bytes, Meta(description="In base64.")]
    mark: str = ""
    """Of ``seq``, to go on from it; empty: none is known."""


class Problem(msgspec.Struct, omit_defaults=True):
    """An error (RFC 9457), with what the caller can do in ``detail``."""

    title: str
    status: int
    detail: str = ""
    type: str | None = None
    """409: ``urn:casework:log-changed`` when the log is not the one that was read."""
    last_seq: int | None = None
    """409: where the log ends that there is now."""
    place: str | None = None
    """422: where in the request."""
    id: str | None = None
    """409: the operation whose id is taken."""
    seq: int | None = None
    """409: the number of the operation that has the id."""
    stored: list[StoredOp] | None = None
    """409 and 503: what is stored."""
    unknown: list[str] | None = None
    """503: ids of operations that may be stored."""
    floor_seq: int | None = None
    """410: operations up to this number are gone."""
    snapshot_seq: int | None = None
    """410: go on from the snapshot, 0: there is none."""
