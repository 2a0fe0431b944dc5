"""Every scenario of our own programs: what `make test`, `make soak` and the benchmark run."""

from __future__ import annotations

from casework.simulation.scenarios import (
    buffering,
    components,
    consuming,
    executions,
    idempotency,
    lifecycle,
    races,
    records,
    repairing,
    streams,
    truncation,
)  # fmt: skip

SCENARIOS = (
    *executions.ALL, *races.ALL, *lifecycle.ALL, *components.ALL, *records.ALL, *streams.ALL, *truncation.ALL,
    *consuming.ALL, *buffering.ALL, *repairing.ALL, *idempotency.SCENARIOS,
)  # fmt: skip
