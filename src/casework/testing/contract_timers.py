"""The contract of an execution store: timers, one for each path of an execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.errors import Misuse, StoreConflict
from casework.executions.store_items import StoredExecution, TimerOp

New = Callable[..., StoredExecution]


def due(store: Any, now: float, *ids: str) -> list[tuple[str, str, float]]:
    """What is due at ``now`` of these executions."""
    return [timer for timer in store.due_timers(now) if timer[0] in ids]


class TimersContract:
    """Timers are armed, moved and cancelled by commits, and removed one by one when they have fired."""

    def test_a_timer_is_due_from_its_time_on_until_it_is_removed(self, store: Any, new: New) -> None:
        exe = new()
        fire_at = 1_700_000_000.123456
        store.commit(exe, timers=[TimerOp("schedule", "a.b", fire_at)])
        assert due(store, fire_at - 0.001, exe.id) == []
        for _ in range(2):
            assert due(store, fire_at, exe.id) == [(exe.id, "a.b", fire_at)] == due(store, fire_at + 1, exe.id)
        assert store.delete_timer(exe.id, "a.b", fire_at) is True
        assert due(store, fire_at, exe.id) == []
        assert store.delete_timer(exe.id, "a.b", fire_at) is False

    def test_due_timers_of_all_executions_are_sorted_by_their_times(self, store: Any, new: New) -> None:
        ids = []
        for n, times in enumerate(([5.0, 1.0], [4.0, 2.0, 99.0], [3.0])):
            exe = new(str(n))
            ids.append(exe.id)
            store.commit(exe, timers=[TimerOp("schedule", f"t{time}", time) for time in times])
        assert [at for _, _, at in due(store, 10.0, *ids)] == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert [at for _, _, at in due(store, 3.0, *ids)] == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize(
        ("ops", "left"),
        [
            ([TimerOp("cancel", "t"), TimerOp("schedule", "t", 2.0)], [2.0]),
            ([TimerOp("schedule", "t", 2.0), TimerOp("cancel", "t")], []),
            ([TimerOp("schedule", "t", 2.0)], [2.0]),
            ([TimerOp("schedule", "t", 3.0), TimerOp("schedule", "t", 2.0)], [2.0]),
            ([TimerOp("cancel", "t"), TimerOp("cancel", "t")], []),
            ([TimerOp("cancel", "other")], [1.0]),
        ],
    )
    def test_a_path_has_one_timer_and_the_last_change_of_a_commit_counts(
        self, store: Any, new: New, ops: list[TimerOp], left: list[float]
    ) -> None:
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", "t", 1.0)])
        store.commit(exe, timers=ops)
        assert [at for _, _, at in due(store, 10.0, exe.id)] == left

    def test_a_commit_without_timers_leaves_them_alone(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", "t", 1.0)])
        store.save(exe)
        store.save(store.load(exe.id))
        assert due(store, 1.0, exe.id) == [(exe.id, "t", 1.0)]

    def test_a_timer_is_removed_only_while_it_has_that_time(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", "t", 1.0), TimerOp("schedule", "u", 1.0)])
        store.commit(exe, timers=[TimerOp("schedule", "t", 2.0)])
        assert store.delete_timer(exe.id, "t", 1.0) is False and store.delete_timer(exe.id, "x", 2.0) is False
        assert due(store, 5.0, exe.id) == [(exe.id, "u", 1.0), (exe.id, "t", 2.0)]
        assert store.delete_timer(exe.id, "t", 2.0) is True
        assert due(store, 5.0, exe.id) == [(exe.id, "u", 1.0)]
        assert store.delete_timer(exe.id + "-nobody", "t", 1.0) is False

    def test_removing_a_timer_leaves_the_version_alone(self, store: Any, new: New) -> None:
        """So a commit by a copy that was loaded before goes through, and does not bring the timer back."""
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", path, 1.0) for path in ("a", "b", "c")])
        copy = store.load(exe.id)
        assert store.delete_timer(exe.id, "a", 1.0) and store.load(exe.id).version == 1
        store.commit(copy, timers=[TimerOp("schedule", "d", 1.0)])
        assert [path for _, path, _ in due(store, 1.0, exe.id)] == ["b", "c", "d"], "what was removed stays removed"
        with pytest.raises(StoreConflict):
            store.commit(exe, timers=[TimerOp("cancel", "b")])
        assert store.delete_timer(exe.id, "b", 1.0)
        store.commit(copy)
        store.commit(copy, timers=[TimerOp("cancel", "c")])
        assert [path for _, path, _ in due(store, 1.0, exe.id)] == ["d"]

    def test_timers_removed_at_once_are_each_removed_by_one(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", path, 1.0) for path in "abcd"])
        answers = store.at_once("delete_timer", [(exe.id, path, 1.0) for path in "aabb"])
        assert answers.count(True) <= 2
        for path in "ab":
            store.delete_timer(exe.id, path, 1.0)
        assert [path for _, path, _ in due(store, 1.0, exe.id)] == ["c", "d"]

    @pytest.mark.parametrize("now", [float("nan"), float("inf"), "1", None])
    def test_what_is_no_time_is_refused(self, store: Any, now: Any) -> None:
        with pytest.raises(Misuse):
            store.due_timers(now)
        with pytest.raises(Misuse):
            store.delete_timer("x", "t", now)
