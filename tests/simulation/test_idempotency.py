# ruff: noqa: PT008 - the patches stand for functions
"""Idempotency in the simulator: 4 callers, crashes, pauses beyond the lease, skew, lost answers; and planted faults."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from casework.idempotency import guarding, lifecycle, record
from casework.kernel.conditions import AllOf, Equals, absent, any_of, present
from casework.simulation.runner import explore
from casework.simulation.scenarios.idempotency import SCENARIOS, OneKey, OneKeyPaused, OneKeyReleased

ALWAYS = any_of(absent(), present())


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_one_result_for_callers_of_its_payload_and_nobody_waits_for_ever(scenario: Any) -> None:
    report = explore(scenario, runs=1000)
    assert report.failure is None, f"seed {report.failure.seed}: {report.failure.problem}"


def _by_the_upper_bound(shared: Any, rec: Any, moment: Any, asked_us: int) -> bool:
    if rec.state == record.CLAIMED:
        return bool(moment.latest_us >= rec.lease_until_us)
    return bool(rec.state == record.RELEASED)


def _by_the_middle(shared: Any, rec: Any, moment: Any, asked_us: int) -> bool:
    if rec.state == record.CLAIMED:
        return bool(moment.middle_us >= rec.lease_until_us)
    return bool(rec.state == record.RELEASED)


Plant = Callable[[], contextlib.AbstractContextManager[Any]]
FAULTS: list[tuple[str, Any, Plant]] = [
    ("a lease is taken over by the upper bound of the clock", OneKey,
     lambda: mock.patch.object(lifecycle, "has_lapsed", _by_the_upper_bound)),
    ("a lease is taken over by the middle of the clock", OneKey,
     lambda: mock.patch.object(lifecycle, "has_lapsed", _by_the_middle)),
    ("a lease seen for a part of its length is taken over", OneKey,
     lambda: mock.patch.object(lifecycle, "STEADY_DRIFT", 0.3)),
    ("a completion is not fenced", OneKey, lambda: mock.patch.object(record, "held", lambda token: ALWAYS)),
    ("a completion looks at the state only", OneKeyPaused,
     lambda: mock.patch.object(record, "held", lambda token: Equals("state", "claimed"))),
    ("a takeover names the token, not the renewal", OneKeyPaused,
     lambda: mock.patch.object(record, "unchanged",
                               lambda rec: AllOf((Equals("token", rec.token), Equals("state", rec.state))))),
    ("a takeover names nothing", OneKeyReleased, lambda: mock.patch.object(record, "unchanged", lambda rec: ALWAYS)),
    ("the payload is not checked", OneKey, lambda: mock.patch.object(guarding, "_check_payload", lambda *_: None)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scenario", "plant"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_a_planted_fault_is_found(name: str, scenario: Any, plant: Plant) -> None:
    with plant():
        report = explore(scenario, runs=5000, shrinks=False)
    assert report.failure is not None, f"{name}: not found in {report.runs} runs"
