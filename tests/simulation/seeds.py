"""Where the tests of the simulator begin to look.

`make test` begins at the same seed in every run, so that it says the same of the same code everywhere: what it finds is
found by a change, and by whoever made it. Luck belongs into `make soak`, which begins elsewhere each time.
"""

from __future__ import annotations

import secrets
import zlib

SEEDS = 10**9


def fixed_seed(name: str) -> int:
    """The first seed of the test of that name, the same in every run."""
    return zlib.crc32(name.encode()) % SEEDS


def fresh_seed() -> int:
    """A first seed that nobody knows before."""
    return secrets.randbelow(SEEDS)
