"""Stores by URL.

===============================================================  ==================================================
``sqlite:///shop.db``, ``sqlite:////var/lib/shop.db``            a file, relative or absolute; the embedded default
``dynamodb://?region=eu-west-1&prefix=shop&endpoint=http://...`` Amazon DynamoDB, or a server that speaks its API
``memory:``                                                      this process's memory, gone at its end
===============================================================  ==================================================
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from casework.arguments import check_text, wrong
from casework.backends.port import AsyncBackend, Backend
from casework.errors import Misuse

ENVIRONMENT = "CASEWORK_STORE"
"""The environment variable that names the store where none is given."""

DEFAULT_URL = "sqlite:///casework.db"

_DYNAMODB_OPTIONS = {"region": "region_name", "prefix": "prefix", "endpoint": "endpoint_url", "meter": "meter"}


def store_url(given: str | None) -> str:
    """The URL to use: the one given; for None the environment's, else the file casework.db in the working directory."""
    if given is not None:
        return given
    return os.environ.get(ENVIRONMENT) or DEFAULT_URL


def open_backend(url: str) -> Backend:
    """The blocking backend for a URL. Nothing is contacted yet, but an SQLite file is opened.

    Raises Misuse for a URL that cannot work, with what would; MissingExtra when a package is not installed.
    """
    scheme, rest = _scheme_of(url)
    if scheme == "memory":
        from casework.backends.memory import MemoryBackend

        if rest:
            raise Misuse(f"{url!r:.200}: write memory: with nothing behind it")
        return MemoryBackend()
    if scheme == "sqlite":
        from casework.backends.sqlite import SqliteBackend

        return SqliteBackend(sqlite_path(url))
    from casework.backends.dynamodb.sync import DynamoDBBackend

    return DynamoDBBackend(**_dynamodb_arguments(url))


def open_backend_async(url: str) -> AsyncBackend:
    """The backend for a URL on an event loop: native for DynamoDB, a bounded pool of threads for the others."""
    scheme, _ = _scheme_of(url)
    if scheme == "dynamodb":
        from casework.backends.dynamodb.aio import AsyncDynamoDBBackend

        return AsyncDynamoDBBackend(**_dynamodb_arguments(url))
    from casework.backends.threaded import ThreadedBackend

    return ThreadedBackend(open_backend(url), owns_blocking=True)


def is_embedded(url: str) -> bool:
    """Whether the store's tables may be made without asking: it is a file or memory, not a service that bills."""
    return _scheme_of(url)[0] != "dynamodb"


def _scheme_of(url: Any) -> tuple[str, str]:
    scheme, colon, rest = url.partition(":") if isinstance(url, str) else ("", "", "")
    if not colon or scheme not in ("memory", "sqlite", "dynamodb"):
        raise Misuse(
            f"{url!r:.200} is not the URL of a store; use sqlite:///file.db, "
            "dynamodb://?region=eu-west-1&prefix=casework, or memory:"
        )
    return scheme, rest


def sqlite_path(url: str) -> str:
    """The path of the file in an SQLite URL; Misuse when there is none."""
    rest = url.partition(":")[2]
    if rest.strip("/").startswith(":memory:"):
        raise Misuse(f"{url!r:.200}: for a store in this process's memory write memory:")
    if "?" in rest:
        raise Misuse(f"{url!r:.200}: an SQLite store has no options; write {url.partition('?')[0]!r:.200}")
    if not rest.startswith("///") or len(rest) < 4:
        raise Misuse(f"{url!r:.200}: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return rest[3:]


def check_place(endpoint_url: Any, region_name: Any) -> None:
    """Misuse unless these can say where DynamoDB is; None leaves it to the environment."""
    if endpoint_url is not None:
        check_text("endpoint_url", endpoint_url)
        if not endpoint_url.startswith(("http://", "https://")):
            raise wrong("endpoint_url", endpoint_url, "an address such as http://127.0.0.1:8000")
    if region_name is not None:
        check_text("region_name", region_name, 100)


def _dynamodb_arguments(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/"):
        raise Misuse(f"{url!r:.200}: write dynamodb://?region=...&prefix=...&endpoint=... with nothing before the ?")
    arguments: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _DYNAMODB_OPTIONS:
            known = ", ".join(_DYNAMODB_OPTIONS)
            raise Misuse(f"{url!r:.200}: {name!r} is not an option of a DynamoDB store; known: {known}")
        if not value:
            raise Misuse(f"{url!r:.200}: option {name!r} has no value")
        arguments[_DYNAMODB_OPTIONS[name]] = value
    if "meter" in arguments:
        arguments["meter"] = arguments["meter"].lower() in ("1", "true", "yes")
    return arguments
