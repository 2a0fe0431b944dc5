"""What every site of the matrix has in common, and the tables of sites, requests and responses."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import casework

STORE = "CASEWORK_TEST_STORE"
"""The variable of the environment that names the file with the records."""

LIMIT = 11_000_000
"""Sites take requests up to this size; the large one has ten million bytes."""

FILE = Path(__file__)
"""The file that sites hand out."""


@functools.cache
def store() -> casework.SqliteIdempotencyStore:
    """The store of this process."""
    return casework.SqliteIdempotencyStore(os.environ[STORE])


def options(site: str) -> dict[str, Any]:
    """The options of a site's guard."""
    return {"scope": None, "name": site, "wait_s": 30, "max_request_bytes": LIMIT}


def seen(body: bytes) -> str:
    """What an application saw of a body that it does not parse."""
    return f"{len(body)}:{hashlib.sha256(body).hexdigest()[:12]}"


def parts(n: int, got: str) -> list[bytes]:
    """The body of a stream."""
    return [b"begin %d " % n, b"x" * 2000, f" {got} end".encode()]


def events(n: int) -> list[bytes]:
    """The body of an event stream."""
    return [b"data: %d\n\n" % n, b"data: more\n\n", b"data: end\n\n"]


class Broken(Exception):
    """What an application raises by mistake."""
