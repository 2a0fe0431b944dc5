"""Settings of a relay, read from arguments and the environment, and checked before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from casework.arguments import check_count, check_seconds
from casework.errors import Misuse

PUSH_DEADLINE_VARIABLE = "CASEWORK_RELAY_PUSH_DEADLINE_SECS"

PUSH_DEADLINE_S = 20.0
"""Below the 30 seconds after which an API gateway gives up, so that the client gets an answer that says something."""


PAGE_OPS_MAX, WAIT_S_MAX = 1000, 20
"""No pull may ask for more: the relay's own description says so, and clients are made from it."""


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a relay."""

    push_deadline_s: float = PUSH_DEADLINE_S
    """A push is answered after so long, whatever is stored by then."""
    max_body_bytes: int = 6 * 1024 * 1024
    """A larger request gets 413. AWS Lambda takes no more either."""
    max_push_ops: int = 1000
    """A push of more operations gets 413."""
    max_page_ops: int = 1000
    """A page, and what an event stream reads at a time, has at most so many operations, 1 to 1,000."""
    max_page_bytes: int = 4 * 1024 * 1024
    """A page ends when its data has so many bytes."""
    max_wait_s: float = 20.0
    """A long poll waits at most so long, whatever it asks for; 0 to 20."""
    max_event_bytes: int = 256 * 1024
    """An event stream reads so many bytes at a time: a client that stands still holds no more."""
    slow_client_s: float = 30.0
    """A client that takes nothing for so long loses its connection."""
    max_connections: int = 2000
    """More connections at once get 503."""
    header_s: float = 10.0
    """A connection on which no request's head is complete after so long is closed."""
    max_stream_s: float | None = None
    """An event stream ends after so long, for gateways that cut it; the client comes back by itself."""
    token_cache_s: float = 5.0
    """A token that was revoked or has ended is taken so long at most, on an event stream and a long poll, too."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_seconds("push_deadline_s", self.push_deadline_s, 0, 3600, above=True)
        for name in (
            "max_body_bytes",
            "max_push_ops",
            "max_page_bytes",
            "max_event_bytes",
            "max_connections",
        ):
            check_count(name, getattr(self, name), 1)
        check_count("max_page_ops", self.max_page_ops, 1, PAGE_OPS_MAX)
        check_seconds("max_wait_s", self.max_wait_s, 0, WAIT_S_MAX)
        check_seconds("slow_client_s", self.slow_client_s, above=True)
        check_seconds("header_s", self.header_s, above=True)
        if self.max_stream_s is not None:
            check_seconds("max_stream_s", self.max_stream_s, above=True)
        check_seconds("token_cache_s", self.token_cache_s)


def read_push_deadline(given: float | None, environment: Mapping[str, str]) -> float:
    """The push deadline in seconds: as given, else from the environment, else 20. Misuse for what cannot be one."""
    text: object = given
    where = "--push-deadline"
    if given is None:
        where = PUSH_DEADLINE_VARIABLE
        text = environment.get(PUSH_DEADLINE_VARIABLE)
        if text is None:
            return PUSH_DEADLINE_S
    try:
        seconds = float(str(text))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise Misuse(f"{where} is {text!r}; it must be a number of seconds above 0, at most 3600")
    return seconds
