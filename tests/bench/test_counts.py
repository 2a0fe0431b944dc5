"""What casework must cost on DynamoDB, in calls and capacity units (docs/design/costs.md); counts, never timings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bench.counted import Counting, all_counts
from bench.executions import task_run
from casework.backends.dynamodb.metering import Usage

ARMED = 200


@pytest.fixture(scope="module")
def found(ministack_url: str) -> dict[str, Usage]:
    return all_counts(ministack_url, "counted", armed=ARMED)


@pytest.fixture
def counting(ministack_url: str, unique: Callable[[str], str]) -> Iterator[Counting]:
    with Counting(ministack_url, unique("counting"), buckets=4) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "calls", "write_units", "index_write_units", "read_units"),
    [
        ("in line", 2, 1, 0, 1),
        ("in line, held", 1, 1, 0, 0),
        ("send", 2, 2, 1, 1),
        ("consume", 2, 4, 1, 1),
        ("send from inside", 1, 4, 1, 0),
        ("consume from inside", 2, 4, 1, 1),
        ("claim", 2, 1, 2, 1),
        ("arm a timer", 2, 1, 1, 1),
        ("move a timer", 2, 1, 2, 1),
        ("cancel a timer", 2, 1, 1, 1),
    ],
)
def test_calls_and_units(
    found: dict[str, Usage], name: str, calls: int, write_units: float, index_write_units: float, read_units: float
) -> None:
    usage = found[name]
    assert (usage.calls, usage.faults) == (calls, 0)
    assert (usage.write_units, usage.index_write_units) == (write_units, index_write_units)
    assert (usage.read_units, usage.index_read_units) == (read_units, 0)


def test_an_event_by_mailbox_is_eight_units_with_the_index(found: dict[str, Usage]) -> None:
    assert sum(found[name].write_units + found[name].index_write_units for name in ("send", "consume")) == 8


def test_a_task_run_is_eleven_and_six_units(found: dict[str, Usage]) -> None:
    assert task_run(found) == (11, 6)


def test_a_look_for_due_timers_is_half_a_read_unit_for_each_bucket(found: dict[str, Usage]) -> None:
    usage = found["timers, none due"]
    assert (usage.calls, usage.read_units, usage.index_read_units) == (16, 0, 8)


def test_fork_and_join_is_below_ten_units_for_each_child_and_its_index_below_five(found: dict[str, Usage]) -> None:
    usage = found["fork and join of 10"]
    assert usage.write_units / 10 == pytest.approx(8.6)
    assert usage.index_write_units / 10 == pytest.approx(4.3)


def test_fork_and_join_in_chunks_costs_no_more_for_each_child(counting: Counting) -> None:
    counting.fork(120)
    usage = counting.found["fork and join of 120"]
    assert usage.write_units / 120 < 10
    assert usage.index_write_units / 120 < 5
