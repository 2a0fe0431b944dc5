"""The claim under which the calling code runs. It follows threads and tasks as context variables do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from casework.idempotency.guarding import Claim

_current: ContextVar[Claim | None] = ContextVar("casework_claim", default=None)


def current_claim() -> Claim | None:
    """The claim under which the calling code runs; None outside of guarded work, and when it runs unprotected."""
    return _current.get()


def enter_claim(claim: Claim | None) -> Token[Claim | None]:
    """Make ``claim`` the current one, until :func:`leave_claim`."""
    if claim is not None:
        claim.outer = _current.get()
    return _current.set(claim)


def leave_claim(token: Token[Claim | None]) -> None:
    """Make the claim before it the current one again."""
    _current.reset(token)


@contextmanager
def running_under(claim: Claim | None) -> Iterator[None]:
    """Make ``claim`` the current one for a block."""
    token = enter_claim(claim)
    try:
        yield
    finally:
        leave_claim(token)
