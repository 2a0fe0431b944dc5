"""Each option of an HTTP surface changes something, on all of them; and a type checker knows them."""

from __future__ import annotations

import subprocess
import sys
import threading
import typing
from pathlib import Path
from typing import Any

import pytest

from casework import Unavailable
from casework.app.current import current_claim
from casework.idempotency.guarding import Policy, keep_alive
from casework.surfaces.http import HttpArguments, HttpOptions
from tests.options.sites import SURFACES, Site, in_thread
from tests.options.table import Row, row


def seen(site: Site, look: Any) -> Any:
    """What is seen from inside the page."""
    found: list[Any] = []
    site.inside = lambda: found.append(look())
    site.send()
    return found[0]


def own_record(site: Site) -> Any:
    claim = current_claim()
    assert claim is not None
    return site.store.get(claim.key)


def renewals_after_55_s(surface: str, max_run_s: float) -> int:
    """How often the lease of a page is renewed that has run for 55 seconds."""
    site = Site(surface, max_run_s=max_run_s)

    def look() -> Any:
        claim = current_claim()
        assert claim is not None
        claim.began_us -= 55_000_000
        site.store.run(keep_alive(site.store.shared, claim))
        return own_record(site).renewals

    return seen(site, look)


def of_scope(surface: str, scope: Any) -> Any:
    site = Site(surface, scope=scope)
    site.send(who="a")
    site.send(who="b")
    return site.calls


def with_fingerprint(surface: str, fingerprint: Any) -> Any:
    site = Site(surface, fingerprint=fingerprint)
    site.send(b"1")
    return site.send(b"2").status


def replayed(surface: str, **options: Any) -> list[str]:
    """The page's own headers in a replay."""
    site = Site(surface, **options)
    site.send()
    return sorted({"x-a", "x-b"} & set(site.send().headers))


def meanwhile(surface: str, **options: Any) -> Any:
    """What a repeated request gets while the first one is under way, and does not end before it."""
    site = Site(surface, wait_s=0.0, **options)
    return seen(site, lambda: in_thread(site.send)().status)


def waits(surface: str, wait_s: float) -> Any:
    """What a repeated request gets; it can only be the result where it waits for it."""
    here = threading.Event()
    site = Site(surface, wait_s=wait_s, scope=lambda request: request.headers.get("who") or here.set() or "b")
    results: list[Any] = []

    def inside() -> None:
        results.append(in_thread(lambda: site.send(key="k")))
        if wait_s:
            here.wait(20)
        else:
            results.append(results.pop()())

    site.inside = inside
    site.send(who="b")
    return (results[0]() if callable(results[0]) else results[0]).status


def while_down(surface: str, on_unavailable: Any) -> int:
    def claim(*arguments: Any) -> Any:
        raise Unavailable("down")

    site = Site(surface, on_unavailable=on_unavailable)
    site.store.records.claim = claim
    return site.send().status


def lost(surface: str, on_lease_lost: Any) -> Any:
    site = Site(surface, on_lease_lost=on_lease_lost)
    site.inside = lambda: site.store.force_release(current_claim().key)
    return site.send().status


def named(surface: str, name: str) -> int:
    """Two sites on one store, the other one with the usual name."""
    other = Site(surface)
    other.send()
    site = Site(surface, other.store, name=name)
    site.send()
    return site.calls


def heard(surface: str, hooks: Any) -> Any:
    events: list[str] = []
    Site(surface, hooks=[lambda event: events.append(event.kind)] if hooks else []).send()
    return events


def stripe(surface: str, style: Any) -> Any:
    site = Site(surface, style=style)
    site.send()
    return sorted(name for name in site.send().headers if name.endswith("replayed"))


def for_ever(surface: str, keep_s: Any) -> Any:
    site = Site(surface, keep_s=keep_s)
    key = seen(site, lambda: current_claim().key)
    return site.store.get(key).kept_us


ROWS: dict[str, Row] = {
    "scope": row(of_scope, (None, 1), (lambda request: request.headers["who"], 2)),
    "style": row(stripe, ("ietf", ["idempotency-replayed"]), ("stripe", ["idempotent-replayed"])),
    "header": row(
        lambda s, name: Site(s, header=name).twice(key=None, x_key="k"), ("Idempotency-Key", 2), ("X-Key", 1)
    ),
    "methods": row(lambda s, methods: Site(s, methods=methods).twice(method="PUT"), (["POST"], 2), (["PUT"], 1)),
    "required": row(lambda s, required: Site(s, required=required).send(key=None).status, (False, 201), (True, 400)),
    "applies": row(lambda s, applies: Site(s, applies=applies).twice(), (None, 1), (lambda request: False, 2)),
    "keep_status": row(lambda s, keep: Site(s, keep_status=keep).twice(), (None, 1), (lambda status: False, 2)),
    "fingerprint": row(with_fingerprint, (None, 422), (lambda request: "same", 201)),
    "allow_headers": row(lambda s, names: replayed(s, allow_headers=names), (None, ["x-a", "x-b"]), (["X-A"], ["x-a"])),
    "deny_headers": row(lambda s, names: replayed(s, deny_headers=names), ((), ["x-a", "x-b"]), (["X-A"], ["x-b"])),
    "max_request_bytes": row(lambda s, most: Site(s, max_request_bytes=most).send(b"123").status, (2, 413), (3, 201)),
    "max_response_bytes": row(
        lambda s, most: Site(s, max_response_bytes=most).send().headers.get("idempotency-not-stored"),
        (4, "too-large"), (5, None),
    ),
    "in_progress_status": row(lambda s, status: meanwhile(s, in_progress_status=status), (409, 409), (423, 423)),
    "lease_s": row(
        lambda s, lease_s: (site := Site(s, lease_s=lease_s)) and seen(site, lambda: own_record(site).lease_us),
        (5.0, 5_000_000), (6.0, 6_000_000),
    ),
    "max_run_s": row(renewals_after_55_s, (50.0, 0), (60.0, 1)),
    "keep_s": row(for_ever, (5.0, 5_000_000), (None, 0)),
    "wait_s": row(waits, (0.0, 409), (20.0, 201)),
    "on_unavailable": row(while_down, ("refuse", 503), ("run", 201)),
    "on_lease_lost": row(lost, ("raise", 409), ("return", 201)),
    "name": row(named, ("requests", 0), ("others", 1)),
    "hooks": row(heard, (False, []), (True, ["claimed", "completed"])),
}  # fmt: skip


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("option", ROWS)
def test_an_option_changes_something(surface: str, option: str) -> None:
    see, pairs = ROWS[option]
    assert Row(lambda value: see(surface, value), pairs).differs()


def test_the_table_has_each_option_of_an_http_surface() -> None:
    assert set(ROWS) == {*HttpOptions.__struct_fields__, *Policy.__struct_fields__, "name", "hooks"}


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
"""


@pytest.mark.slow
def test_a_misspelt_option_of_an_http_surface_fails_in_a_type_checker(tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "site.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [7, 8, 9, 10, 11, 12, 13], done.stdout
