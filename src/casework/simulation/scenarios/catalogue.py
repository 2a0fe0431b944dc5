"""Every scenario of our own programs: what `make test`, `make soak` and the benchmark run."""

from __future__ import annotations

from casework.simulation.scenarios import (
    buffering,
    components,
    consuming,
    deciding,
    deferring,
    deploying,
    executions,
    freezing,
    idempotency,
    lifecycle,
    operated,
    operators,
    outcomes,
    races,
    raising,
    records,
    redriving,
    repairing,
    returning,
    streams,
    transactions,
    truncation,
)  # fmt: skip

SCENARIOS = (
    *executions.ALL, *freezing.ALL, *races.ALL, *deploying.ALL, *lifecycle.ALL, *outcomes.ALL, *operators.ALL,
    *operated.ALL, *redriving.ALL, *deferring.ALL, *components.ALL, *returning.ALL, *raising.ALL,
    *records.ALL, *streams.ALL, *deciding.ALL, *truncation.ALL, *consuming.ALL, *buffering.ALL, *repairing.ALL,
    *idempotency.SCENARIOS, *transactions.ALL,
)  # fmt: skip
