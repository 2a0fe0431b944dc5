"""The table: servers, sites, requests, responses and clients, and what is said to happen in each cell.

A cell holds when there was one effect and every client has the one answer, or when it is one of :data:`REFUSED` or
:data:`AGAIN`, which docs/reference/servers.md tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

ASGI_SITES = (
    "starlette", "starlette_route", "fastapi", "fastapi_route", "litestar", "quart", "django_async",
    "django_async_view", "ninja_async",
)  # fmt: skip
WSGI_SITES = ("flask", "flask_view", "django", "django_view", "rest", "ninja")
SERVERS = {
    "uvicorn": ASGI_SITES,
    "hypercorn": ASGI_SITES,
    "daphne": ASGI_SITES,
    "aiohttp": ("aiohttp",),
    "gunicorn-sync": WSGI_SITES,
    "gunicorn-gthread": WSGI_SITES,
    "gunicorn-gevent": WSGI_SITES,
    "waitress": WSGI_SITES,
    "wsgiref": WSGI_SITES,
}
"""Which sites each server serves."""

REQUESTS = ("json", "form", "multipart", "chunked", "empty", "large")
RESPONSES = (
    "small", "stream", "events", "file", "nothing", "redirect", "missing", "unavailable", "broken", "background",
)  # fmt: skip
CLIENTS = ("waits", "at-once", "another-payload", "leaves-before", "leaves-during", "leaves-after")

NO_BACKGROUND = (
    "django",
    "django_view",
    "django_async",
    "django_async_view",
    "rest",
    "ninja",
    "ninja_async",
    "aiohttp",
)
"""Django and aiohttp have no work that is done after a response."""

VIEWS = ("flask_view", "django_view", "django_async_view", "rest", "aiohttp")
"""Sites that guard a view, which ends before the parts of a stream are made, or sends them itself."""

AGAIN = ("unavailable", "broken")
"""Responses that are not what the request came to: the key stays free, and the next request is performed."""


class Cell(NamedTuple):
    """One of all."""

    server: str
    site: str
    request: str
    response: str
    client: str

    @property
    def key(self) -> str:
        """An idempotency key of its own."""
        return "-".join(self)

    @property
    def no_length(self) -> bool:
        """Whether the request is refused with 411, since nothing says where its body ends."""
        if self.request != "chunked" or SERVERS[self.server] is not WSGI_SITES:
            return False
        if self.server == "waitress":  # it hands a body in chunks on with its length
            return False
        return self.server == "wsgiref" or self.site in ("django_view", "rest")

    @property
    def effects(self) -> int:
        """How often it takes effect, for a client that sends it and repeats it."""
        return 0 if self.no_length else 2 if self.response in AGAIN else 1

    @property
    def is_not_stored(self) -> bool:
        """Whether the response is passed on and a repeated request refused with 409."""
        return self.response == "events" or (self.site in VIEWS and self.response in ("stream", "file"))


def is_possible(cell: Cell) -> bool:
    """Whether there is such a thing: work after a response; a request without a body of which a part is missing.

    wsgiref takes the end of a connection for the end of the headers: a guard cannot see that they were more.
    """
    if (cell.server, cell.request, cell.client) == ("wsgiref", "empty", "leaves-before"):
        return False
    return not (cell.response == "background" and cell.site in NO_BACKGROUND)


def whole(server: str) -> Iterator[Cell]:
    """Every cell of a server."""
    for parts in itertools.product(SERVERS[server], REQUESTS, RESPONSES, CLIENTS):
        cell = Cell(server, *parts)
        if is_possible(cell):
            yield cell


def diagonal(server: str) -> Iterator[Cell]:
    """Cells of a server in which each of its sites meets each request, each response and each client."""
    for site in SERVERS[server]:
        responses = [name for name in RESPONSES if is_possible(Cell(server, site, "json", name, "waits"))]
        shift = list(SERVERS).index(server) + SERVERS[server].index(site)
        for number, response in enumerate(responses):
            request = REQUESTS[(number + shift) % len(REQUESTS)]
            client = CLIENTS[(number + shift + number // len(CLIENTS) + shift // len(REQUESTS)) % len(CLIENTS)]
            cell = Cell(server, site, request, response, client)
            yield cell if is_possible(cell) else cell._replace(request="json")
