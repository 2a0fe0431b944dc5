"""Each option of an HTTP surface changes something, on all of them; and a type checker knows them."""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path

import pytest

from casework.app.current import current_claim
from casework.surfaces.http import HttpArguments
from tests.options.http_rows import HTTP, ROWS, seen
from tests.options.sites import Site
from tests.options.table import each, names


@pytest.mark.parametrize(("surface", "option"), each(HTTP), ids=names(HTTP))
def test_an_option_changes_something(surface: str, option: str) -> None:
    assert HTTP[surface][option].differs()


def test_a_type_checker_knows_the_options_that_there_are() -> None:
    known = typing.get_type_hints(HttpArguments, include_extras=True)
    assert set(known) == set(ROWS)


@pytest.mark.parametrize("surface", ["IdempotencyMiddleware", "IdempotencyWsgiMiddleware"])
def test_headers_of_one_connection_are_neither_stored_nor_replayed(surface: str) -> None:
    site = Site(surface)
    site.headers = {"Connection": "X-Hop, close", "X-Hop": "1", "Keep-Alive": "5", "X-A": "1"}
    key = seen(site, lambda: current_claim().key)
    assert site.store.get(key).headers in ((("X-A", "1"),), (("x-a", "1"),))
    again = site.send()
    assert again.is_replay and again.headers["x-a"] == "1"
    assert not {"x-hop", "connection", "keep-alive"} & set(again.headers)


SNIPPET = """\
import casework
from starlette.applications import Starlette
from starlette.routing import Route

store, app = casework.MemoryIdempotencyStore(), Starlette()
app.add_middleware(casework.IdempotencyMiddleware, store=store, scope=None, keep_s=None)
app.add_middleware(casework.IdempotencyMiddleware, store=store, scope=None, misspelt=1)
casework.IdempotencyWsgiMiddleware(lambda environ, start: [], store, scope=None, misspelt=1)
casework.idempotent_route(Route, store, scope=None, misspelt=1)
casework.idempotent_flask_view(store, scope=None, misspelt=1)
casework.idempotent_django_view(store, scope=None, misspelt=1)
casework.idempotent_django_view(store)
casework.idempotent_django_view(store, scope=None, style="Stripe")
casework.idempotent_aiohttp_app(object(), store, scope=None, misspelt=1)
"""


@pytest.mark.slow
def test_a_misspelt_option_of_an_http_surface_fails_in_a_type_checker(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    known = pytestconfig.cache.mkdir("mypy")  # what it has found out about casework, for the next run
    (tmp_path / "site.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(known), "site.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [7, 8, 9, 10, 11, 12, 13, 14], done.stdout
