"""Pauses and the retry policy: the one place that says how long to pause and when to give up.

Full jitter: the pause is uniform between 0 and an exponentially growing bound (Exponential Backoff And Jitter, AWS
Architecture Blog, 2015). Randomness is an effect, so the policy turns a token into a fraction.
"""

from __future__ import annotations

import hashlib

import msgspec

from casework.arguments import check_seconds


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """How long to pause before something is tried again, for whoever counts the attempts elsewhere."""

    first_pause_s: float = 0.01
    """Bound of the first pause, in seconds; each pause is at random below its bound, which doubles every time."""
    max_pause_s: float = 1.0
    """No pause is longer."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_seconds("first_pause_s", self.first_pause_s)
        check_seconds("max_pause_s", self.max_pause_s)

    def pause_s(self, lost_rounds: int, dice: str) -> float:
        """Seconds to pause after the given number of lost rounds (1 or more); ``dice`` is a fresh token."""
        return _pause_s(self.first_pause_s, self.max_pause_s, lost_rounds, dice)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long to try again after a write that lost a race or was throttled."""

    first_pause_s: float = 0.01
    """Bound of the first pause, in seconds."""
    max_pause_s: float = 1.0
    """No pause is longer."""
    rounds_max: int = 12
    """Give up after so many lost rounds in a row."""

    def gives_up(self, lost_rounds: int) -> bool:
        """Whether to stop after so many lost rounds in a row."""
        return lost_rounds >= self.rounds_max

    def pause_s(self, lost_rounds: int, dice: str) -> float:
        """Seconds to pause after the given number of lost rounds (1 or more); ``dice`` is a fresh token."""
        return _pause_s(self.first_pause_s, self.max_pause_s, lost_rounds, dice)


def _pause_s(first_pause_s: float, max_pause_s: float, lost_rounds: int, dice: str) -> float:
    bound = min(max_pause_s, first_pause_s * 2.0 ** min(lost_rounds - 1, 30))
    return bound * fraction(dice)


def fraction(dice: str) -> float:
    """A number in [0, 1) that is uniform when ``dice`` is a fresh token."""
    digest = hashlib.blake2b(dice.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


DEFAULT_RETRY = RetryPolicy()
