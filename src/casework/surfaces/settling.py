"""What becomes of a guarded request when its application has ended: one program for every HTTP surface."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from casework.errors import CaseworkError, LeaseLost, StoreError
from casework.idempotency.guarding import Claim, finish, give_up, not_kept
from casework.idempotency.lifecycle import Shared
from casework.kernel.programs import Program
from casework.surfaces.http import NOT_KEPT_WHY, HttpGuard, HttpResponse, is_cut_off


class Settled(msgspec.Struct, frozen=True):
    """What the client gets."""

    not_stored: str = ""
    """The value of the header that says why the response was not stored; ``""``: it needs none."""
    instead: HttpResponse | None = None
    """Another response, since the claim was lost."""


def settle(
    guard: HttpGuard,
    shared: Shared,
    claim: Claim,
    status: int,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    why: str = "",
) -> Program[Settled]:
    """Store a response that came to its end, note that it was performed and cannot be stored, or free the key.

    Args:
        guard: the guard.
        shared: what its store's callers share.
        claim: the claim; it has ended afterwards.
        status: of the response.
        headers: of the response.
        body: of the response, whole.
        why: a key of ``NOT_KEPT_WHY`` where the response cannot be stored.
    """
    if claim.is_finished:  # by a transaction of the application's
        guard.notify("completed", claim.key, claim)
        return Settled()
    if not guard.is_result(status):
        yield from free(guard, shared, claim)
        return Settled()
    if not why:
        why = "cut-off" if is_cut_off(status, headers, len(body)) else ""
    if not why and len(body) > guard.options.max_response_bytes:
        why = "too-large"
    try:
        if why:
            yield from not_kept(shared, claim, status, NOT_KEPT_WHY[why])
            guard.notify("not_kept", claim.key, claim)
            return Settled(why)
        kept = yield from finish(shared, claim, status, guard.stored_headers(headers), body)
    except CaseworkError as error:
        is_down = isinstance(error, StoreError)
        guard.notify("unrecorded" if is_down else "not_kept", claim.key, claim)
        return Settled("store-unavailable" if is_down else "too-large")
    guard.notify("completed" if kept else "lost", claim.key, claim)
    if kept or guard.policy.on_lease_lost == "return":
        return Settled()
    return Settled(instead=guard.refused(LeaseLost("another request took over")))


def free(guard: HttpGuard, shared: Shared, claim: Claim) -> Program[None]:
    """The request was not performed: the next one begins at once."""
    if claim.is_ended:
        return
    kept = yield from give_up(shared, claim)
    guard.notify("released" if kept else "lost", claim.key, claim)
