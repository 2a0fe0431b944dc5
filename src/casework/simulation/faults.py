"""What goes wrong in a simulated world, and how often."""

from __future__ import annotations

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities, each for one occasion. All 0: a store without faults, whose schedule alone is at random."""

    lost: float = 0.0
    """A plain write's answer is lost, before or after it was applied, and the write is repeated, as an SDK does."""
    unknown: float = 0.0
    """A write's outcome stays unknown: applied before, applied later, or never."""
    throttled: float = 0.0
    """A write is throttled; nothing was applied."""
    throttled_reads: float = 0.0
    """A read is throttled."""
    conflict: float = 0.0
    """A transaction that meets another one aborts it, too (mutual aborts)."""
    slow: float = 0.0
    """An item of a transaction becomes visible up to 300 ms later than the ones before it."""
    torn_reads: float = 0.0
    """A query or a batch of gets sees its first items earlier than its last ones."""
    index_lag: int = 0
    """An index entry becomes visible up to so many steps after its item."""
    crash: float = 0.0
    """A process dies at a step; it is started again."""
    pause: float = 0.0
    """A process stands still for up to ``pause_s_max``, as in a garbage collection or a stopped virtual machine."""
    pause_s_max: float = 60.0
    skew_s_max: float = 0.0
    """The clocks of hosts are off by up to so much; the bound that programs are told holds."""
    clock_error_s: float = 0.0
    """The bound on the clock's error that programs are told beside the skew."""
    sampled_clocks: bool = False
    """Hosts know the service's time only from the ``Date`` headers of its answers, as on DynamoDB; their own clocks
    are skewed by up to ``skew_s_max``, drift, and stand still in a pause. Instead of the bound above."""
    clock_step_s_max: float = 0.0
    """With sampled clocks: the wall clock of a host that pauses is set, forward or back, by a quarter of that up to
    all of it (never by what the pause alone would make up for)."""
    partition_limits: bool = False
    """A partition takes 1,000 write units and 3,000 read units a second; what is more is throttled."""
    ttl: float = 0.0
    """An expired item is deleted at a look at it; else never."""


NONE = Faults()

ROUGH = Faults(
    lost=0.03, unknown=0.01, throttled=0.01, conflict=0.3, slow=0.1, torn_reads=0.2, index_lag=20, crash=0.003,
    pause=0.003,
    skew_s_max=5.0, clock_error_s=0.5, ttl=0.5,
)  # fmt: skip
"""Everything at once; the default of ``casework simulate --crashes``."""

HARSH = msgspec.structs.replace(
    ROUGH, throttled=0.03, throttled_reads=0.03, partition_limits=True, sampled_clocks=True, skew_s_max=60.0,
    clock_step_s_max=4000.0,
)  # fmt: skip
"""As before, with throttled reads, limits of partitions, and clocks that know the time from answers only."""
