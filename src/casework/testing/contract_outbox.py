"""The contract of an execution store: emits and spawns, kept until they are acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from casework.errors import Misuse
from casework.executions.store_items import StoredExecution

New = Callable[..., StoredExecution]


def events(store: Any, ids: set[str]) -> list[str]:
    """The texts of unacknowledged emits to these executions, in the order of the outbox."""
    return [entry.event for entry in store.pending_outbox() if entry.target_id in ids]


def children(store: Any, parent: str) -> list[str]:
    """The unacknowledged children of an execution, in the order of their ``seq``."""
    return [entry.child_id for entry in store.pending_spawns() if entry.parent_id == parent]


class OutboxContract:
    """Every emit and spawn stays until it is acknowledged."""

    def test_seqs_are_those_of_the_entries_in_the_order_of_the_emits(self, store: Any, new: New) -> None:
        exe = new()
        targets = [exe.id, exe.id + "-b", exe.id]
        seqs = store.commit(exe, [(target, f"event {n}") for n, target in enumerate(targets)])
        assert len(set(seqs)) == 3
        found = {entry.seq: (entry.target_id, entry.event) for entry in store.pending_outbox()}
        assert [found[seq] for seq in seqs] == [(target, f"event {n}") for n, target in enumerate(targets)]
        assert store.commit(exe, spawns=[(exe.id + "-c", "", "")]) == [] == store.commit(exe)

    def test_an_emit_without_a_target_has_none(self, store: Any, new: New) -> None:
        exe = new()
        (seq,) = store.commit(exe, [(None, "to nobody")])
        (entry,) = [entry for entry in store.pending_outbox() if entry.seq == seq]
        assert entry.target_id is None and entry.event == "to nobody"

    def test_an_acknowledged_entry_is_gone_and_no_other(self, store: Any, new: New) -> None:
        exe = new()
        first, second, third = store.commit(exe, [(exe.id, text) for text in ("1", "2", "3")])
        for _ in range(2):
            store.ack_outbox(second)
            assert events(store, {exe.id}) == ["1", "3"]
        (entry,) = [entry for entry in store.pending_outbox() if entry.seq == first]
        store.ack_outbox(entry)
        assert events(store, {exe.id}) == ["3"] and store.load(exe.id).version == 1
        store.ack_outbox(third)
        assert events(store, {exe.id}) == []

    def test_entries_of_one_execution_are_in_the_order_of_its_commits(self, store: Any, new: New) -> None:
        exe = new()
        seqs = []
        for n in range(8):
            seqs += store.commit(exe, [(exe.id, f"{n}.{k}") for k in range(3)])
            exe = store.load(exe.id) if n % 2 else exe
        assert seqs == sorted(seqs)
        assert events(store, {exe.id}) == [f"{n}.{k}" for n in range(8) for k in range(3)]

    def test_entries_of_several_executions_are_in_the_order_of_their_commits_in_time(
        self, store: Any, new: New
    ) -> None:
        sender, other = new("z"), new("a")
        for n in range(4):
            store.commit(sender, [(sender.id, f"{n}")])
            store.commit(other, [(sender.id, f"{n}'")])
        assert sorted(events(store, {sender.id})) == sorted(f"{n}{mark}" for n in range(4) for mark in ("", "'"))
        own = [event for event in events(store, {sender.id}) if not event.endswith("'")]
        assert own == ["0", "1", "2", "3"]

    @pytest.mark.parametrize("count", [88, 99, 120, 500])
    def test_more_emits_than_a_transaction_holds_keep_their_order(self, store: Any, new: New, count: int) -> None:
        exe = new()
        targets = [exe.id, exe.id + "-b", exe.id + "-c"]
        emits = [(targets[n % 3], str(n)) for n in range(count)]
        seqs = store.commit(exe, emits, processed_event_id="e", trace={"n": 1})
        assert seqs == sorted(seqs) and len(set(seqs)) == count
        assert events(store, set(targets)) == [str(n) for n in range(count)]
        for seq in seqs[30:60]:
            store.ack_outbox(seq)
        assert events(store, set(targets)) == [str(n) for n in range(count) if not 30 <= n < 60]

    def test_five_hundred_spawns_are_one_commit(self, store: Any, new: New) -> None:
        """And each is acknowledged by itself."""
        exe = new()
        names = [f"{exe.id}-{n:03d}" for n in range(500)]
        store.commit(exe, spawns=[(name, f"root.{n}", f"context {n}") for n, name in enumerate(names)])
        assert children(store, exe.id) == names
        entries = [entry for entry in store.pending_spawns() if entry.parent_id == exe.id]
        assert (entries[7].root_path, entries[7].context) == ("root.7", "context 7")
        random.Random(1).shuffle(entries)
        for entry in entries[:20]:
            store.ack_spawn(entry)
        for entry in entries[20:40]:
            store.ack_spawn(entry.seq)
        store.ack_spawn(entries[0])
        left = {entry.child_id for entry in entries[40:]}
        assert set(children(store, exe.id)) == left and len(children(store, exe.id)) == 460

    def test_entries_acknowledged_at_once_are_all_gone(self, store: Any, new: New) -> None:
        exe = new()
        seqs = store.commit(exe, [(exe.id, str(n)) for n in range(105)])
        answers = store.at_once("ack_outbox", [(seq,) for seq in seqs[:4]])
        done = [seq for seq, answer in zip(seqs, answers, strict=False) if answer is None]
        left = set(events(store, {exe.id}))
        assert len(left) == 105 - len(done) and len(done) >= 1
        assert {str(seqs.index(seq)) for seq in done}.isdisjoint(left)
        for seq in seqs[:4]:
            store.ack_outbox(seq)
        assert events(store, {exe.id}) == [str(n) for n in range(4, 105)]

    def test_a_spawn_is_acknowledged_like_an_emit(self, store: Any, new: New) -> None:
        exe = new()
        store.commit(exe, spawns=[("kid-1", "a.b", "one"), ("kid-2", "a.c", "two")])
        first, second = [entry for entry in store.pending_spawns() if entry.parent_id == exe.id]
        assert (first.child_id, first.root_path, first.context) == ("kid-1", "a.b", "one")
        store.ack_spawn(first)
        store.ack_spawn(first)
        assert children(store, exe.id) == ["kid-2"]
        store.ack_spawn(second.seq)
        assert children(store, exe.id) == []

    @pytest.mark.parametrize("seq", ["", "x", "1.2.3.4", 5, None])
    def test_what_is_no_seq_is_refused(self, store: Any, seq: Any) -> None:
        for name in ("ack_outbox", "ack_spawn"):
            with pytest.raises(Misuse):
                getattr(store, name)(seq)
