"""The tables of docs/reference/servers.md, made of the cells: ``python -m tests.surfaces.page`` writes them into it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from tests.surfaces.cells import RESPONSES, SERVERS, Cell, is_possible

PAGE = Path(__file__).parents[2] / "docs/reference/servers.md"
BEGIN, END = "<!-- made by tests/surfaces/page.py -->\n", "<!-- until here -->\n"

GUARDS = {
    "starlette": ("Starlette", "`IdempotencyMiddleware`"),
    "starlette_route": ("Starlette", "`idempotent_route`"),
    "fastapi": ("FastAPI", "`IdempotencyMiddleware`"),
    "fastapi_route": ("FastAPI", "`idempotent_route`"),
    "litestar": ("Litestar", "`IdempotencyMiddleware`"),
    "quart": ("Quart", "`IdempotencyMiddleware`"),
    "django_async": ("Django (ASGI)", "`IdempotencyMiddleware`"),
    "django_async_view": ("Django (ASGI)", "`idempotent_django_view`"),
    "ninja_async": ("Django Ninja (ASGI)", "`IdempotencyMiddleware`"),
    "aiohttp": ("aiohttp", "`idempotent_aiohttp_app`"),
    "flask": ("Flask", "`IdempotencyWsgiMiddleware`"),
    "flask_view": ("Flask", "`idempotent_flask_view`"),
    "django": ("Django", "`IdempotencyWsgiMiddleware`"),
    "django_view": ("Django", "`idempotent_django_view`"),
    "rest": ("Django REST framework", "`idempotent_django_view`"),
    "ninja": ("Django Ninja", "`IdempotencyWsgiMiddleware`"),
}
"""Framework and guard of each site."""

COLUMNS = {
    "JSON, 204, redirect, 4xx": ("small", "nothing", "redirect", "missing"),
    "with work behind it": ("background",),
    "stream": ("stream",),
    "file": ("file",),
    "event stream": ("events",),
    "5xx, exception": ("unavailable", "broken"),
}
"""The columns of the second table, and the responses that each stands for."""


def one(values: Sequence[str]) -> str:
    """The one thing that is said of several cells."""
    assert len(set(values)) == 1, values
    return values[0]


def becomes(site: str, response: str) -> str:
    """What a repeated request gets."""
    cell = Cell(next(server for server, sites in SERVERS.items() if site in sites), site, "json", response, "waits")
    if not is_possible(cell):
        return "-"
    if cell.effects == 2:
        return "performed again"
    return "409" if cell.is_not_stored else "replayed"


def in_chunks(server: str) -> str:
    """Which guards of a server refuse a body in chunks."""
    sites = [site for site in SERVERS[server] if Cell(server, site, "chunked", "small", "waits").no_length]
    if len(sites) == len(SERVERS[server]):
        return "411"
    names = [f"{guard} of {framework}" for framework, guard in map(GUARDS.__getitem__, sites)]
    return f"taken; 411 from {' and '.join(names)}" if names else "taken"


def tables() -> str:
    """Both tables."""
    assert set(itertools.chain(*COLUMNS.values())) == set(RESPONSES)
    lines = ["| server | frameworks | a body in chunks |", "|---|---|---|"]
    for server, sites in SERVERS.items():
        frameworks = ", ".join(dict.fromkeys(GUARDS[site][0] for site in sites))
        lines.append(f"| {server} | {frameworks} | {in_chunks(server)} |")
    lines += ["", f"| framework | guard | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    for site, (framework, guard) in GUARDS.items():
        said = [one([becomes(site, response) for response in responses]) for responses in COLUMNS.values()]
        lines.append(f"| {framework} | {guard} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with its tables as they should be."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
