"""Every run of small scenarios in which at most so many decisions are not the plain one, with our own programs.

A decision that is not plain interrupts whoever went, lets something fail, or draws another random number. Without
faults one to four of them are tried at every set of places, with lost answers, conflicts and crashes one or two: no
seed can miss them. A soak tries one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from casework.executions.runtime import Options
from casework.simulation.faults import NONE, Faults
from casework.simulation.runner import explore_all
from casework.simulation.scenarios import components, executions, idempotency, lifecycle, redriving, streams
from tests.simulation.test_planted_faults import FAULTS, MISFIT

LOST = Faults(lost=1.0)
UNKNOWN = Faults(unknown=1.0)
STUMBLES = Faults(crash=1.0, pause=1.0)
INDEX_LAG = Faults(index_lag=8)
CONFLICTS = Faults(conflict=1.0, slow=1.0)


class TwoSenders(executions.Mailbox):
    """One event in line, one by mailbox."""

    events, workers = 1, 1


class OneStay(executions.Tasks):
    """A task, and the state that waits for it left."""

    rounds = 1


class TwoWords(executions.Chain):
    """Two events from one execution to another, with two workers."""

    events, workers = 2, 2


class TwoKids(executions.Children):
    """A join of two, left and entered again."""

    children = 2


class OneSuspension(executions.Control):
    """Suspended and resumed once, with more messages than one commit takes."""

    options = Options(buckets=1, batch_max=1)
    events, workers, moves_n = 2, 1, 2


class TwoCallers(idempotency.OneKey):
    """Two callers of one key with one payload."""

    payloads = ("a", "a")


class TwoEngines(components.Engines):
    """Two engines and one event."""

    events = 1


class TwoTransitions(lifecycle.Published):
    """What one event publishes on both sides."""

    events, workers = 1, 1


class TwoLives(lifecycle.Lives):
    """An id that is purged and started again once."""

    lives, events, workers = 2, 1, 1


class TwoLivesPublished(lifecycle.LivesPublished):
    """The same with a stream, and another one who purges."""

    lives, events, workers, intrusions = 2, 1, 1, 1


class OneRedrive(redriving.Redrives):
    """One event, which fails at first, and one operator."""

    events, repeats, workers, operators = 1, 1, 1, ("one",)


class OneTimer(executions.Timers):
    """Armed, and armed again."""

    events, workers = 1, 1


class SmallSpill(executions.Spill):
    """Four children, where a commit takes three."""

    children, workers = 4, 1


class TwoWriters(streams.Appends):
    """Two writers of one batch each, and two readers."""

    writers, callers, batches = 2, 1, 1


class Small(NamedTuple):
    """A small scenario, and how many deviations are tried at all places."""

    scenario: Any
    plain: int
    """Without faults."""
    faulty: int
    """With each fault."""
    stumbles: int
    """With deaths and pauses, which can be at every step."""

    def runs(self, more: int = 0) -> Iterator[tuple[Faults, int]]:
        """Each fault with its bound."""
        yield NONE, self.plain + more
        for faults in (LOST, UNKNOWN, INDEX_LAG, CONFLICTS):
            yield faults, self.faulty + more
        yield STUMBLES, self.stumbles + more


SMALL = (
    Small(TwoSenders, 3, 2, 1),
    Small(OneStay, 2, 2, 1),
    Small(TwoWords, 2, 1, 1),
    Small(TwoKids, 1, 1, 1),
    Small(OneSuspension, 2, 2, 1),
    Small(TwoCallers, 4, 2, 2),
    Small(TwoEngines, 1, 1, 1),
    Small(TwoTransitions, 2, 1, 1),
    Small(TwoLives, 1, 1, 1),
    Small(TwoLivesPublished, 1, 1, 1),
    Small(OneRedrive, 2, 1, 1),
    Small(OneTimer, 3, 1, 1),
    Small(SmallSpill, 1, 1, 1),
    Small(TwoWriters, 2, 1, 1),
)


each_small = pytest.mark.parametrize("small", SMALL, ids=[small.scenario.__name__ for small in SMALL])


def run_all(small: Small, more: int = 0) -> None:
    for faults, bound in small.runs(more):
        report, is_complete = explore_all(small.scenario, faults=faults, deviations_max=bound, runs_max=2_000_000)
        assert report.failure is None, f"{report.failure.problem}, decisions {report.failure.choices}"
        assert is_complete, f"more than {report.runs} runs"


@each_small
def test_no_run_within_the_bound_breaks_a_promise(small: Small) -> None:
    run_all(small)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@each_small
def test_no_run_with_one_deviation_more_breaks_a_promise(small: Small) -> None:
    run_all(small, more=1)


FOUND = (
    "state stored without asking for its version",
    "messages removed after the state was stored",
    "messages sent after the state was stored",
    "an unknown outcome is taken for a success",
    "event ids are not remembered",
    "a claim without a condition",
    "a suspended mailbox is emptied",
    "a resume that is overtaken is taken for done",
    "a repeated append has new ids",
    "a commit overwrites any version",
    "a timer is removed whatever became of it",
    "a completion is not fenced",
)
"""Planted faults that need no luck: a small scenario and few deviations show them, whatever the seed."""


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found_without_luck(name: str) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    (small,) = [small for small in SMALL if issubclass(small.scenario, fault.scenario)]
    impatient = type(small.scenario.__name__, (small.scenario,), {"steps_max": 6000})
    with fault.plant():
        reports = (explore_all(impatient, faults=faults, deviations_max=bound)[0] for faults, bound in small.runs())
        failure = next((report.failure for report in reports if report.failure is not None), None)
    assert failure is not None, f"{name}: no run within the bound of {impatient.__name__} shows it"
    assert not MISFIT.search(failure.problem), f"{name} does not fit the code: {failure.problem}"
