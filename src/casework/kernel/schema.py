"""Every table of casework, in one place, and the format number of its items.

Each item carries ``format``. An item of a newer format than ``FORMAT`` is refused unchanged and never rewritten by
older code: see :func:`check_format`.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Mapping
from typing import Any

from casework.errors import CorruptItem, NewerFormat
from casework.kernel.items import Index, Table

FORMAT = 1

EXECUTIONS = Table(
    name="executions",
    partition="id",
    sort="sort",
    indexes=(
        Index(name="pending", partition="pending", sort="rank_us", sort_type="int"),
        Index(name="listing", partition="listing", sort="listed"),
    ),
    ttl="expires_at_s",
)
"""One partition per execution: its state at sort ``0``, its messages, tasks, dead letters and trace beside it."""

MACHINES = Table(name="machines", partition="hash")
"""Definitions by the hash of their content."""

IDEMPOTENCY = Table(name="idempotency", partition="key", sort="part", ttl="expires_at_s")
"""One partition per key: the record at sort ``0``, and beside it the chunks of a result that is too large for it."""

REGISTRY = Table(name="registry", partition="kind", sort="name", ttl="expires_at_s")
"""Settings made with the tables, the workers' heartbeats, and the names of streams."""

STREAMS = Table(name="streams", partition="stream_id", sort="seq", sort_type="int")
"""One partition per stream: its head at sort ``0``, each segment at its last sequence number, its snapshot below zero.

Partitions that begin with ``@`` hold the cursors of consumers and what they parked; no stream's id begins so.
"""

STREAM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~+-]{0,199}\Z")
"""What a stream's id matches."""

STREAM_ID_SAYS = "1 to 200 of the characters A-Z a-z 0-9 . _ : ~ + -, the first one a letter or digit"

STREAM_CLAIMS = Table(name="stream_claims", partition="claim", ttl="expires_at_s")
"""One item for each operation of a stream: its sequence number and a digest of its content."""

TABLES = (EXECUTIONS, MACHINES, IDEMPOTENCY, STREAMS, STREAM_CLAIMS, REGISTRY)

INDEX_KINDS = ("timer", "work", "task", "parked")
"""What stands in the ``pending`` index, each kind in partitions of its own (``timer/3``): executions by the time of
their next timer; messages, and executions that have something left to do; tasks; and whatever of these was put off,
since a process lacked what it needs. None of them hides another."""

DEFAULT_BUCKETS = 16
"""Buckets of the ``pending`` and ``listing`` indexes of a new store; the registry's settings have a store's number."""

MAX_BUCKETS = 1024
"""The most buckets. All of them are looked at all the time, whatever stands in them."""


@functools.lru_cache(8192)
def bucket_of(id: str, buckets: int) -> int:
    """The bucket of an execution: spreads the indexes over partitions, and workers over executions.

    By a jump hash (Lamping and Veach, 2014, "A Fast, Minimal Memory, Consistent Hash Algorithm"): when there are more
    buckets, an execution keeps its own or moves to a new one, never to another old one. So whoever goes through the
    buckets in order, while their number is raised, meets all.
    """
    key = zlib.crc32(id.encode())
    bucket, jump = 0, 0
    while jump < buckets:
        bucket = jump
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        jump = ((bucket + 1) << 31) // ((key >> 33) + 1)
    return bucket


def check_format(item: Mapping[str, Any], what: str) -> None:
    """Raise NewerFormat when ``item`` was written by newer code, CorruptItem when it has no format number."""
    found = item.get("format")
    if type(found) is not int:
        raise CorruptItem(f"{what} has no format number; its attributes are {sorted(item)}")
    if found > FORMAT:
        raise NewerFormat(f"{what} has format {found}, this casework reads up to {FORMAT}; upgrade this process")
