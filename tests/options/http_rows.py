"""What each option of the HTTP surfaces changes, on all of them."""

from __future__ import annotations

import threading
from typing import Any

import casework
from casework import MemoryIdempotencyStore, Unavailable
from casework.app.current import current_claim
from casework.idempotency.guarding import keep_alive
from tests.options.sites import SURFACES, Site, in_thread
from tests.options.table import Row, Rows, row


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


def of_surface(surface: str, option: str) -> Row:
    """The row of an option on one of them."""
    see, pairs = ROWS[option]
    return Row(lambda value: see(surface, value), pairs)


def stored_in(surface: str, other: bool) -> list[int]:
    """How many records two stores have after a request to a site on one of them."""
    stores = MemoryIdempotencyStore(), MemoryIdempotencyStore()
    Site(surface, stores[other]).send()
    return [len(each.records) for each in stores]


def served_by(surface: str, other: bool) -> list[int]:
    """How often the pages of two sites were called, one of which got a request."""
    sites = Site(surface), Site(surface)
    sites[other].send()
    return [site.calls for site in sites]


def of_class(own: bool) -> bool:
    """Whether a route of the class that was given is there."""
    from fastapi.routing import APIRoute

    class Own(APIRoute):
        """A site's own."""

    return issubclass(casework.idempotent_route(Own if own else APIRoute, MemoryIdempotencyStore(), scope=None), Own)


def own_rows(surface: str) -> dict[str, Row]:
    """What only some of them have, or what is not their own: the site and the store."""
    rows = {"store": row(lambda other: stored_in(surface, other), (False, [1, 0]), (True, [0, 1]))}
    if surface.endswith(("Middleware", "_app")):
        rows["app"] = row(lambda other: served_by(surface, other), (False, [1, 0]), (True, [0, 1]))
    if surface == "idempotent_route":
        rows["route_class"] = row(of_class, (False, False), (True, True))
    return rows


HTTP: Rows = {
    surface: {**own_rows(surface), **{option: of_surface(surface, option) for option in ROWS}} for surface in SURFACES
}
