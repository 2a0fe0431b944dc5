"""The contract of an execution store: versions, atomicity, processed events, the trace, purge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from casework.errors import AlreadyProcessed, ConditionFailed, ItemTooLarge, Misuse, NotJson, StoreConflict
from casework.executions.store_items import StoredExecution, TimerOp
from casework.kernel.conditions import absent, equals
from casework.kernel.items import Put, Update
from casework.kernel.schema import REGISTRY

New = Callable[..., StoredExecution]


def everything(exe: StoredExecution) -> Mapping[str, Any]:
    """Arguments of a commit with all that one can have."""
    return {
        "emits": [(None, f"own {exe.id}"), (exe.id + "-other", "theirs")],
        "processed_event_id": "event-1",
        "spawns": [(exe.id + "-child", "root", "context")],
        "timers": [TimerOp("schedule", "timer", 1.0)],
        "trace": {"did": "it"},
    }


def mine(store: Any, exe: StoredExecution) -> list[Any]:
    """The emits that were not acknowledged, with a target of the test's own or with a text that holds its id."""
    marks = (exe.id, exe.id + "-other")
    return [entry for entry in store.pending_outbox() if entry.target_id in marks or exe.id in entry.event]


def found_of(store: Any, exe: StoredExecution) -> dict[str, int]:
    """How much of ``everything`` there is."""
    return {
        "emits": len(mine(store, exe)),
        "spawns": sum(entry.parent_id == exe.id for entry in store.pending_spawns()),
        "timers": sum(id == exe.id for id, _, _ in store.due_timers(2.0)),
        "trace": len(store.read_trace(exe.id)),
        "processed": int(store.is_processed(exe.id, "event-1")),
    }


class CommitsContract:
    """One transaction, conditional on the version."""

    # --- versions -----------------------------------------------------------------------------------------------------

    def test_what_is_committed_is_loaded(self, store: Any, new: New) -> None:
        exe = new(machine_hash="h" * 64, status="waiting", parent_id="somebody")
        assert store.load(exe.id) is None and exe.version == 0
        assert store.commit(exe) == [] and exe.version == 1
        loaded = store.load(exe.id)
        for name in ("id", "data", "version", "machine", "machine_hash", "status", "parent_id"):
            assert getattr(loaded, name) == getattr(exe, name)
        loaded.data, loaded.status = "changed", "done"
        store.save(loaded)
        assert loaded.version == 2 and store.load(exe.id).data == "changed"

    @pytest.mark.parametrize("data", ["", "x", "ä漢字🙂", '{"a": [1, null]}', "x" * 300_000], ids=len)
    def test_data_is_opaque_text(self, store: Any, new: New, data: str) -> None:
        exe = new(data=data)
        store.save(exe)
        assert store.load(exe.id).data == data

    def test_a_stale_copy_changes_nothing_and_hears_what_is_there(self, store: Any, new: New) -> None:
        exe = new()
        store.save(exe)
        stale = store.load(exe.id)
        store.save(store.load(exe.id))
        stale.data = "stale"
        with pytest.raises(StoreConflict) as caught:
            store.commit(stale, **everything(exe))
        assert (caught.value.id, caught.value.expected, caught.value.found) == (exe.id, 1, 2)
        assert stale.version == 1 and store.load(exe.id).data == exe.data
        assert set(found_of(store, exe).values()) == {0}

    def test_a_copy_of_what_is_not_there_conflicts_with_nothing_found(self, store: Any, new: New) -> None:
        exe = new(version=3)
        with pytest.raises(StoreConflict) as caught:
            store.commit(exe, **everything(exe))
        assert (caught.value.expected, caught.value.found) == (3, None) and exe.version == 3
        assert store.load(exe.id) is None and set(found_of(store, exe).values()) == {0}

    def test_a_new_execution_under_a_taken_id_conflicts(self, store: Any, new: New) -> None:
        store.save(new())
        second = new(data="second")
        with pytest.raises(StoreConflict) as caught:
            store.save(second)
        assert (caught.value.expected, caught.value.found, second.version) == (0, 1, 0)

    def test_of_many_that_commit_one_version_at_once_one_wins(self, store: Any, new: New) -> None:
        exe = new()
        store.save(exe)
        copies = [store.load(exe.id) for _ in range(6)]
        for n, copy in enumerate(copies):
            copy.data = f"copy {n} {exe.id}"
        answers = store.at_once("commit", [(copy, [(None, copy.data)]) for copy in copies])
        won = [copy for copy, answer in zip(copies, answers, strict=True) if isinstance(answer, list)]
        assert len(won) == 1 and won[0].version == 2 and store.load(exe.id).data == won[0].data
        assert sum(copy.version == 1 for copy in copies) == 5
        assert [entry.event for entry in mine(store, exe)] == [won[0].data]

    def test_an_execution_can_be_committed_without_having_been_loaded(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, timers=[TimerOp("schedule", "a", 1.0)], trace={"n": 1})
        again = new(data="again", version=1)
        store.commit(again, timers=[TimerOp("schedule", "b", 2.0)], trace={"n": 2})
        assert again.version == 2 and [path for id, path, _ in store.due_timers(3.0) if id == exe.id] == ["a", "b"]
        assert [entry["n"] for entry in store.read_trace(exe.id)] == [1, 2]

    # --- atomicity ----------------------------------------------------------------------------------------------------

    def test_everything_is_committed_together(self, store: Any, new: New) -> None:
        exe = new()
        seqs = store.commit(exe, **everything(exe))
        assert len(seqs) == 2
        assert found_of(store, exe) == {"emits": 2, "spawns": 1, "timers": 1, "trace": 1, "processed": 1}

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"emits": [(None, "x" * 500_000)]}, ItemTooLarge),
            ({"spawns": [("child", "root", "x" * 500_000)]}, ItemTooLarge),
            ({"emits": [(None, {"not": "text"})]}, Misuse),
            ({"timers": [TimerOp("explode", "timer", 1.0)]}, Misuse),
            ({"timers": [TimerOp("schedule", "timer", float("nan"))]}, Misuse),
            ({"timers": [TimerOp("schedule", "timer", float("inf"))]}, Misuse),
        ],
    )
    def test_what_cannot_be_stored_is_refused_as_a_whole(
        self, store: Any, new: New, change: dict[str, Any], error: type[Exception]
    ) -> None:
        exe = new()
        store.save(exe)
        with pytest.raises(error):
            store.commit(exe, **{**everything(exe), **change})
        assert exe.version == 1 and store.load(exe.id).version == 1
        assert set(found_of(store, exe).values()) == {0}

    def test_an_execution_that_is_too_large_is_refused(self, store: Any, new: New) -> None:
        exe = new(data="x" * 420_000)
        with pytest.raises(ItemTooLarge):
            store.save(exe)
        assert exe.version == 0 and store.load(exe.id) is None

    @pytest.mark.parametrize(
        "change",
        [{"id": ""}, {"id": "a\nb"}, {"id": "x" * 600}, {"data": {"n": 1}}, {"status": ""}, {"status": "a/b"},
         {"status": "purging"}, {"version": -1}, {"version": None}],
    )  # fmt: skip
    def test_what_is_no_execution_is_refused(self, store: Any, new: New, change: dict[str, Any]) -> None:
        exe = msgspec.structs.replace(new(), **change)
        with pytest.raises(Misuse):
            store.commit(exe)

    # --- the caller's own writes --------------------------------------------------------------------------------------

    def test_the_callers_own_writes_are_part_of_it(self, store: Any, new: New) -> None:
        """They are written with the commit, and their refusal refuses it, position by position."""
        exe = new()
        own: dict[str, Any] = {"kind": "contract", "name": exe.id, "n": 1}
        store.commit(exe, also=[Put(REGISTRY, own, absent())])
        with pytest.raises(ConditionFailed) as caught:
            store.commit(
                exe,
                **everything(exe),
                also=[Put(REGISTRY, {**own, "name": exe.id + "-2"}), Put(REGISTRY, {**own, "n": 2}, absent())],
            )
        assert not isinstance(caught.value, StoreConflict)
        refusals = caught.value.refusals
        assert len(refusals) == 2 and refusals[0] is None and refusals[1] is not None
        assert exe.version == 1 and set(found_of(store, exe).values()) == {0}
        store.commit(exe, also=[Update(REGISTRY.key("contract", exe.id), {"n": 3}, when=equals("n", 1))])
        assert exe.version == 2

    # --- processed events ---------------------------------------------------------------------------------------------

    def test_an_event_is_processed_once_and_remembered(self, store: Any, new: New) -> None:
        """However many events follow, until the execution is purged."""
        exe = new()
        store.commit(exe, processed_event_id="e")
        assert store.is_processed(exe.id, "e") and not store.is_processed(exe.id, "other")
        with pytest.raises(AlreadyProcessed) as caught:
            store.commit(exe, [(None, f"again {exe.id}")], processed_event_id="e")
        assert issubclass(AlreadyProcessed, StoreConflict) and caught.value.event_id == "e"
        assert exe.version == 1 and mine(store, exe) == []
        for n in range(40):
            store.commit(exe, processed_event_id=f"e{n}")
        assert store.is_processed(exe.id, "e") and store.is_processed(exe.id, "e0")
        with pytest.raises(AlreadyProcessed):
            store.commit(store.load(exe.id), processed_event_id="e")

    def test_an_execution_is_loaded_for_an_event(self, store: Any, new: New) -> None:
        exe = new()
        assert store.load_for_event(exe.id, "e") == (None, False)
        store.commit(exe, processed_event_id="e")
        for event, is_known in (("e", True), ("f", False)):
            loaded, processed = store.load_for_event(exe.id, event)
            assert loaded.version == 1 and processed is is_known
        other = new("b")
        store.save(other)
        assert store.load_for_event(other.id, "e")[1] is False

    # --- the trace ----------------------------------------------------------------------------------------------------

    def test_the_trace_keeps_the_last_entries_oldest_first(self, opened: Callable[..., Any], new: New) -> None:
        store = opened(trace_max=5)
        exe = new()
        for n in range(12):
            store.commit(exe, trace={"n": n})
        store.commit(exe)
        assert [entry["n"] for entry in store.read_trace(exe.id)] == [7, 8, 9, 10, 11]
        indexes = [entry["index"] for entry in store.read_trace(exe.id)]
        assert indexes == [7, 8, 9, 10, 11], "the first entry of all has the index 0"

    def test_entries_can_be_added_outside_a_commit(self, store: Any, new: New) -> None:
        """Before and after commits, by copies that are stale in nothing but the trace; no entry is lost or doubled."""
        exe = new()
        store.commit(exe, trace={"n": 0})
        copy = store.load(exe.id)
        store.append_trace(exe.id, {"n": 1})
        assert store.load(exe.id).version == 1
        store.commit(exe, trace={"n": 2})
        with pytest.raises(StoreConflict):
            store.commit(copy, trace={"n": 9})
        store.append_trace(exe.id, {"n": 3})
        store.commit(exe)
        store.append_trace(exe.id, {"n": 4})
        assert [entry["n"] for entry in store.read_trace(exe.id)] == [0, 1, 2, 3, 4]
        with pytest.raises(StoreConflict):
            store.append_trace(exe.id + "-nobody", {"n": 1})

    def test_entries_that_are_added_at_once_all_stand(self, store: Any, new: New) -> None:
        exe = new()
        store.save(exe)
        store.at_once("append_trace", [(exe.id, {"n": n}) for n in range(5)])
        store.commit(exe, trace={"n": 5})
        entries = store.read_trace(exe.id)
        assert sorted(entry["n"] for entry in entries) == [0, 1, 2, 3, 4, 5] and entries[-1]["n"] == 5
        assert len({entry["index"] for entry in entries}) == 6

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"x": float("inf")}, ".x"), ({"x": [{"y": {1, 2}}]}, ".x[0].y"), ({"x": float("nan")}, ".x"),
            ({"x": (1,)}, ".x"), ({1: "x"}, ""), ({"x": b""}, ".x"), ({"x": 2**64}, ".x"), ({"x": "\ud800"}, ".x"),
        ],
    )  # fmt: skip
    def test_what_json_cannot_hold_is_refused_with_its_path(self, store: Any, new: New, value: Any, path: str) -> None:
        exe = new()
        store.save(exe)
        spawns = [("k", "r", ""), ("k", "r", value)]
        for where, call, given, options in (
            ("trace", store.commit, [exe], {"trace": value}),
            ("trace", store.append_trace, [exe.id, value], {}),
            ("context of spawn 1", store.commit, [exe], {"spawns": spawns}),
        ):
            with pytest.raises(NotJson, match=re.escape(where + path)):
                call(*given, **options)
        assert store.read_trace(exe.id) == [] and store.load(exe.id).version == exe.version == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"emits": [("x", "\ud800")]}, {"emits": [("x", None)]}, {"emits": [("x",)]}, {"emits": [(5, "e")]},
            {"spawns": [("k", "r")]}, {"spawns": [("k", None, "")]}, {"spawns": [("", "r", "")]}, {"trace": "text"},
        ],
        ids=repr,
    )  # fmt: skip
    def test_what_cannot_be_stored_is_refused_before_anything_is_written(
        self, store: Any, new: New, wrong: dict[str, Any]
    ) -> None:
        exe = new()
        with pytest.raises(Misuse):
            store.commit(exe, **wrong)
        assert store.load(exe.id) is None and exe.version == 0

    @pytest.mark.parametrize("name", ["data", "machine", "machine_hash", "status"])
    @pytest.mark.parametrize("value", [None, 5, "\ud800"])
    def test_an_execution_is_made_of_text(self, store: Any, new: New, name: str, value: Any) -> None:
        exe = new()
        setattr(exe, name, value)
        with pytest.raises(Misuse):
            store.save(exe)
        assert store.load(exe.id) is None

    def test_the_context_of_a_spawn_may_be_json(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, spawns=[(exe.id + "-c", "", {"a": [1, None, 2.5]})])
        (entry,) = [entry for entry in store.pending_spawns() if entry.parent_id == exe.id]
        assert entry.context == {"a": [1, None, 2.5]}

    # --- purge --------------------------------------------------------------------------------------------------------

    def test_purge_deletes_everything_while_the_version_is_the_one_given(self, store: Any, new: New) -> None:
        """And nothing of anybody else."""
        exe, bystander = new(), new("b")
        for each in (exe, bystander):
            store.commit(each, **everything(each))
        stale = store.load(exe.id)
        assert store.purge(exe.id, 2) is False and store.load(exe.id).version == 1
        assert store.purge(exe.id, 1) is True
        assert store.load(exe.id) is None and store.load_for_event(exe.id, "event-1") == (None, False)
        assert not store.is_processed(exe.id, "event-1") and store.read_trace(exe.id) == []
        assert [id for id, _, _ in store.due_timers(2.0) if id in (exe.id, bystander.id)] == [bystander.id]
        assert {entry.parent_id for entry in store.pending_spawns()} & {exe.id, bystander.id} == {bystander.id}
        assert found_of(store, bystander) == {"emits": 2, "spawns": 1, "timers": 1, "trace": 1, "processed": 1}
        assert store.purge(exe.id, 1) is False, "it is gone"
        with pytest.raises(StoreConflict) as caught:
            store.save(stale)
        assert caught.value.found is None and store.load(exe.id) is None

    @pytest.mark.parametrize("count", [1, 120])
    def test_every_emit_stays_until_it_is_acknowledged_whoever_is_purged(
        self, store: Any, new: New, count: int
    ) -> None:
        """Those to nobody, to the sender itself and to another; alone and packed; in the id's next life, too."""
        sender, target = new(), new("b")
        store.save(target)
        seqs = store.commit(sender, [(to, "x") for to in (None, sender.id, target.id) for _ in range(count)])
        store.commit(sender, spawns=[(sender.id + "-c", "", "")])
        assert store.purge(sender.id, 2) and store.purge(target.id, 1)
        left = {entry.seq for entry in store.pending_outbox()}
        assert left.issuperset(seqs) and not [one for one in store.pending_spawns() if one.parent_id == sender.id]
        reborn = new()
        store.save(reborn)
        assert store.purge(reborn.id, 1)
        for seq in seqs[:3]:
            assert seq in {entry.seq for entry in store.pending_outbox()}
            store.ack_outbox(seq)
        assert left.difference(seqs[:3]) >= {entry.seq for entry in store.pending_outbox()} & set(seqs)

    def test_a_purged_id_is_free_and_a_copy_of_its_earlier_life_stays_stale(self, store: Any, new: New) -> None:
        store.save(new())
        stale = store.load(new().id)
        assert store.purge(stale.id, 1)
        reborn = new(data="reborn")
        store.save(reborn)
        assert reborn.version == 1
        stale.data = "stale"
        with pytest.raises(StoreConflict):
            store.commit(stale, timers=[TimerOp("schedule", "t", 1.0)])
        assert store.load(stale.id).data == "reborn"

    def test_what_was_sent_to_an_execution_that_is_to_come_is_not_purged(self, store: Any, new: New) -> None:
        exe = new()
        (seq,) = store.commit(exe, [(exe.id + "-to-come", "hello")])
        assert store.purge(exe.id + "-to-come", 1) is False
        assert seq in {entry.seq for entry in store.pending_outbox()}

    def test_a_large_execution_is_purged_as_a_whole(self, store: Any, new: New) -> None:
        exe = new()
        for n in range(60):
            store.commit(exe, [(None, "x")], processed_event_id=f"e{n}", trace={"n": n})
        assert store.purge(exe.id, 60) is True and store.load(exe.id) is None
        assert not any(store.is_processed(exe.id, f"e{n}") for n in range(60)) and store.read_trace(exe.id) == []

    def test_closing_twice_is_harmless(self, opened: Callable[..., Any]) -> None:
        store = opened()
        assert store.close() is None
        assert store.close() is None
