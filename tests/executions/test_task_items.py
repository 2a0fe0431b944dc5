"""What stands in a task's item at each point of its life: a left-over of a claim would be taken for a claim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from casework.backends.drive import run
from casework.errors import CorruptItem, Misuse, NewerFormat, NotJson
from casework.executions.runtime import Runtime
from casework.executions.store_items import check_caused
from casework.executions.task_items import TaskRetry, read_public_token, task_of
from casework.executions.tasks import attempt_failed, claim_task, release_task, renew_task
from casework.kernel.items import Key
from casework.kernel.retry import fraction
from casework.kernel.schema import EXECUTIONS, FORMAT
from tests.executions.test_tasks import with_task
from tests.executions.watching import items_of, overwrite

OF_EACH = {"id", "sort", "format", "machine", "src", "input", "options", "key", "created_at_us", "pending", "rank_us"}
OF_A_CLAIM = {"token", "owner", "lease_us", "lease_until_us", "attempt", "beats"}


def stored(backend: Any) -> dict[str, Any]:
    (item,) = items_of(backend, "p", "w/")
    return item


def own(item: dict[str, Any]) -> set[str]:
    """Names without the store's own nonce."""
    return {name for name in item if not name.startswith("_")}


def test_a_new_task_is_due_now_and_nobody_holds_it() -> None:
    _, backend, _ = with_task()
    item = stored(backend)
    assert own(item) == OF_EACH
    assert item["format"] == FORMAT and item["rank_us"] == item["created_at_us"]
    assert str(item["pending"]).startswith("task/")


def test_a_claim_says_whose_it_is_until_when_and_which_attempt() -> None:
    app, backend, place = with_task()
    task = run(claim_task(app.core.rt, place, lease_s=30.0, owner="me"), backend)
    assert task is not None
    item = stored(backend)
    assert own(item) == OF_EACH | OF_A_CLAIM
    assert {name: item[name] for name in ("token", "owner", "lease_us", "attempt", "beats")} == {
        "token": task.token, "owner": "me", "lease_us": 30_000_000, "attempt": 1, "beats": 0,
    }  # fmt: skip
    assert item["rank_us"] == item["lease_until_us"] == task.lease_until_us
    assert task_of(item) == msgspec.structs.replace(task, rank_us=task.lease_until_us)


def test_a_renewal_moves_the_end_of_the_claim_and_counts() -> None:
    app, backend, place = with_task()
    task = run(claim_task(app.core.rt, place, lease_s=30.0), backend)
    assert task is not None
    before = stored(backend)
    backend.clock.advance(10.0)
    assert run(renew_task(task), backend)
    item = stored(backend)
    assert own(item) == own(before) and item["beats"] == 1 and item["token"] == before["token"]
    assert item["rank_us"] == item["lease_until_us"] >= int(before["lease_until_us"]) + 10_000_000 - 1


def test_a_task_that_is_given_back_keeps_nothing_of_the_claim_and_the_attempt_does_not_count() -> None:
    app, backend, place = with_task()
    task = run(claim_task(app.core.rt, place, owner="me"), backend)
    assert task is not None and run(release_task(task), backend)
    item = stored(backend)
    assert own(item) == OF_EACH | {"attempt"} and item["attempt"] == 0


def test_a_failed_attempt_keeps_its_error_and_nothing_of_the_claim() -> None:
    app, backend, place = with_task()
    task = run(claim_task(app.core.rt, place, owner="me"), backend)
    assert task is not None
    moment = backend.clock.now()
    due_us = run(attempt_failed(app.core.rt, task, {"message": "no", "type": "ValueError"}), backend)
    item = stored(backend)
    assert own(item) == OF_EACH | {"attempt", "last_error"} and item["attempt"] == 1
    assert "no" in str(item["last_error"]) and item["rank_us"] == due_us >= moment.middle_us + 10_000_000


def test_a_claim_of_a_parked_task_takes_the_mark_away() -> None:
    app, backend, place = with_task()
    overwrite(backend, {**stored(backend), "parked": 2, "pending": "parked/0"})
    assert run(claim_task(app.core.rt, place), backend) is not None
    item = stored(backend)
    assert "parked" not in item and str(item["pending"]).startswith("task/")


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["machine", "src", "input", "key", "rank_us"])
def test_a_task_that_lacks_what_each_has_is_corrupt_and_says_where(gone: str) -> None:
    _, backend, _ = with_task()
    item = {name: value for name, value in stored(backend).items() if name != gone}
    with pytest.raises(CorruptItem, match=f"task 'w/.*' of execution 'p' cannot be read: '{gone}'"):
        task_of(item)


def test_a_task_of_a_newer_format_or_with_broken_options_is_refused() -> None:
    _, backend, _ = with_task()
    with pytest.raises(NewerFormat):
        task_of({**stored(backend), "format": FORMAT + 1})
    with pytest.raises(CorruptItem, match="cannot be read"):
        task_of({**stored(backend), "options": "{"})


@pytest.mark.parametrize("token", ["", "x", "nonsense!", "WzEsMl0", "\u00e9", "WyJhIiwiYiJd"])
def test_what_is_no_task_token_is_misuse(token: str) -> None:
    with pytest.raises(Misuse, match="is not a task's token"):
        read_public_token(token)


def test_a_task_token_says_where_the_task_is_and_proves_the_claim() -> None:
    assert read_public_token("WyJpZCIsInMiLCJ0Il0") == (Key(EXECUTIONS, "id", "s"), "t")


# --- pauses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "attempt", "pause_us"),
    [
        (TaskRetry(jitter=False), 1, 1_000_000),
        (TaskRetry(jitter=False), 3, 4_000_000),
        (TaskRetry(jitter=False), 10**6, 300_000_000),
        (TaskRetry(jitter=False, max_us=2_500_000), 3, 2_500_000),
        (TaskRetry(jitter=False, initial_us=600_000_000), 1, 600_000_000),
        (TaskRetry(jitter=False, initial_us=600_000_000), 5, 600_000_000),
        (TaskRetry(jitter=False, factor=1.0), 9, 1_000_000),
        (TaskRetry(jitter=0.0), 1, 1_000_000),
        (TaskRetry(), 2, int(2_000_000 * (1 - 0.5 * fraction("dice")))),
        (TaskRetry(jitter=0.2), 2, int(2_000_000 * (1 - 0.2 * fraction("dice")))),
        (TaskRetry(jitter=1.0), 1, int(1_000_000 * (1 - fraction("dice")))),
    ],
    ids=str,
)
def test_a_pause_grows_by_its_factor_to_its_most_less_its_random_share(
    retry: TaskRetry, attempt: int, pause_us: int
) -> None:
    assert retry.pause_us(attempt, "dice") == pause_us


# --- what a commit of the store component causes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("emits", "spawns", "error", "says"),
    [
        ("ab", (), Misuse, r"emits.*a list of \(target, event\)"),
        ((), {"a": 1}, Misuse, r"spawns.*a list of \(child, root path, context\)"),
        ([("a", "x", 1)], (), Misuse, "emit 0 is .*a pair of the target"),
        ([("a", "x"), "ab"], (), Misuse, "emit 1 is 'ab'"),
        ([("", "x")], (), Misuse, "id"),
        ([(None, b"x")], (), Misuse, "emit 0 is a bytes; encode events as text first"),
        ([(None, "\ud800")], (), NotJson, "emit 0"),
        ((), [("a", "b")], Misuse, "spawn 0 is .*the child's id, its root path and its context"),
        ((), ["abc"], Misuse, "spawn 0 is 'abc'"),
        ((), [("", "b", "c")], Misuse, "id"),
        ((), [("a", "b", "c"), ("a", 1, "c")], Misuse, "spawn 1: the root path is a int; give text"),
        ((), [("a", "\ud800", "c")], NotJson, "root path of spawn 0"),
        ((), [("a", "b", "\ud800")], NotJson, "context of spawn 0"),
    ],
)
def test_what_cannot_be_caused_is_refused_with_its_number(emits: Any, spawns: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        check_caused(emits, spawns)


def test_what_can_be_caused_passes() -> None:
    check_caused([(None, "x"), ("a", ""), ["b", "y"]], [("a", "b", "c"), ["d", "", {"n": 1}]])


# --- a runtime ------------------------------------------------------------------------------------------------------


def test_an_unknown_machine_is_told_with_those_that_there_are() -> None:
    app, _, _ = with_task()
    with pytest.raises(Misuse, match=r"no machine 'nobody' was given .*; known: pay$"):
        app.core.rt.machine_named("nobody")
    with pytest.raises(Misuse, match=r"known: none$"):
        Runtime().machine_named("nobody")
