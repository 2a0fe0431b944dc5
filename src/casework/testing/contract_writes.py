"""The contract's part about writes, transactions and limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from casework.backends.port import Backend
from casework.errors import ConditionFailed, Contention, ItemTooLarge, MissingTable, Misuse, Throttled
from casework.kernel.conditions import absent, equals, present
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Check, Delete, Item, Put, Update
from casework.kernel.limits import MAX_INT, MAX_ITEM_BYTES, MAX_TRANSACTION_WRITES
from casework.testing.contract_tables import (
    CONTRACT_TABLES,
    EDGE_VALUES,
    MISSING,
    NUMBERED,
    PLAIN,
    SORTED,
    get,
    refused,
    write,
)


class WritesContract:
    """What each write leaves behind, alone and in transactions."""

    def test_every_value_comes_back_as_it_was_put(self, backend: Backend, place: str) -> None:
        item: Item = {"id": place, **{f"a{n}": value for n, value in enumerate(EDGE_VALUES)}}
        write(backend, Put(PLAIN, item))
        found = get(backend, PLAIN.key(place))
        assert found == item
        assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in item.items()}

    def test_awkward_names_of_attributes(self, backend: Backend, place: str) -> None:
        names = ["a b", "attributes", "b64", "select", "größe", "x.y", "#n", ":v", 'q"u', "ID", "n" * 255, "\U0001f600"]
        item: Item = {"id": place, **{name: n for n, name in enumerate(names)}}
        write(backend, Put(PLAIN, item, when=absent("größe")))
        assert get(backend, PLAIN.key(place)) == item
        write(backend, Update(PLAIN.key(place), {"a b": -1}, remove=["x.y"], when=equals(":v", 7)))
        del item["x.y"]
        assert get(backend, PLAIN.key(place)) == {**item, "a b": -1}

    def test_put_replaces_the_whole_item(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "old": 1, "both": 1}))
        backend.execute(Write(Put(PLAIN, {"id": place, "both": 2})))
        assert get(backend, PLAIN.key(place)) == {"id": place, "both": 2}

    def test_update_sets_and_removes_and_leaves_the_rest(self, backend: Backend, place: str) -> None:
        write(backend, Put(SORTED, {"id": place, "sort": "s", "keep": b"k", "change": 1, "go": True}))
        backend.execute(Write(Update(SORTED.key(place, "s"), {"change": "now text", "new": 2}, remove=["go", "never"])))
        expected = {"id": place, "sort": "s", "keep": b"k", "change": "now text", "new": 2}
        assert get(backend, SORTED.key(place, "s")) == expected

    def test_update_makes_an_item_that_is_not_there(self, backend: Backend, place: str) -> None:
        write(backend, Update(NUMBERED.key(place, -3), {"n": 1}, remove=["never"]))
        assert get(backend, NUMBERED.key(place, -3)) == {"id": place, "number": -3, "n": 1}
        write(backend, Update(PLAIN.key(place)))
        assert get(backend, PLAIN.key(place)) == {"id": place}

    def test_delete_removes_and_is_fine_with_nothing_there(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place}))
        write(backend, Delete(PLAIN.key(place)))
        assert get(backend, PLAIN.key(place)) is None
        write(backend, Delete(PLAIN.key(place)))
        assert get(backend, PLAIN.key(place)) is None

    def test_an_item_deleted_and_put_again_is_the_new_one(self, backend: Backend, place: str) -> None:
        key = SORTED.key(place, "s")
        for round_ in range(3):
            write(backend, Put(SORTED, {"id": place, "sort": "s", f"only{round_}": round_}, when=absent()))
            assert get(backend, key) == {"id": place, "sort": "s", f"only{round_}": round_}
            write(backend, Delete(key, when=present()))

    def test_the_ttl_attribute_is_an_attribute_like_any_other(self, backend: Backend, place: str) -> None:
        item: Item = {"id": place, "sort": "s", "expires_at_s": 4_000_000_000}
        write(backend, Put(SORTED, item))
        assert get(backend, SORTED.key(place, "s")) == item
        write(backend, Update(SORTED.key(place, "s"), {"expires_at_s": 4_000_000_001}))
        assert (
            refused(backend, Transact([Check(SORTED.key(place, "s"), equals("expires_at_s", 4_000_000_001))])) is None
        )

    def test_what_a_reader_does_to_an_item_changes_nothing_stored(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "n": 1}))
        first: Any = get(backend, PLAIN.key(place))
        first["n"] = 99
        (page_item,) = backend.execute(Query(PLAIN, place)).items
        page_item["n"] = 98
        assert get(backend, PLAIN.key(place)) == {"id": place, "n": 1}
        assert refused(backend, Transact([Update(PLAIN.key(place), {"n": 2}, when=equals("n", 99))])) is not None
        write(backend, Update(PLAIN.key(place), {"m": 3}))
        assert get(backend, PLAIN.key(place)) == {"id": place, "n": 1, "m": 3}

    # --- transactions ----------------------------------------------------------------------------------------------

    def test_a_transaction_applies_all_of_its_writes(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place + "-d"}), Put(PLAIN, {"id": place + "-u", "n": 1}))
        write(
            backend,
            Put(SORTED, {"id": place, "sort": "new"}, when=absent()),
            Update(PLAIN.key(place + "-u"), {"n": 2}, when=equals("n", 1)),
            Delete(PLAIN.key(place + "-d"), when=present()),
            Check(NUMBERED.key(place, 1), absent()),
        )
        assert get(backend, SORTED.key(place, "new")) is not None
        assert get(backend, PLAIN.key(place + "-u")) == {"id": place + "-u", "n": 2}
        assert get(backend, PLAIN.key(place + "-d")) is None

    def test_a_refused_transaction_changes_nothing_and_says_which_write(self, backend: Backend, place: str) -> None:
        """Refusals stand beside their writes; None for a write that was fine."""
        holder: Item = {"id": place + "-1", "n": 5, "blob": b"\x00"}
        write(backend, Put(PLAIN, holder), Put(PLAIN, {"id": place + "-2"}))
        error = refused(
            backend,
            Transact(
                [
                    Put(PLAIN, {"id": place + "-0"}, when=absent()),
                    Update(PLAIN.key(place + "-1"), {"n": 6}, when=equals("n", 4)),
                    Delete(PLAIN.key(place + "-2")),
                    Check(PLAIN.key(place + "-3"), present()),
                ]
            ),
        )
        assert error is not None
        fine, update, unconditional, check = error.refusals
        assert fine is None and unconditional is None
        assert update is not None and update.why == "condition" and update.item == holder
        assert check is not None and check.why == "condition" and check.item is None
        assert get(backend, PLAIN.key(place + "-0")) is None
        assert get(backend, PLAIN.key(place + "-1")) == holder
        assert get(backend, PLAIN.key(place + "-2")) is not None

    def test_a_transaction_of_the_most_writes(self, backend: Backend, place: str) -> None:
        write(backend, *(Put(SORTED, {"id": place, "sort": f"{n:03}"}) for n in range(MAX_TRANSACTION_WRITES)))
        assert len(backend.execute(Query(SORTED, place)).items) == MAX_TRANSACTION_WRITES

    def test_one_write_for_each_item_and_a_bounded_number(self, backend: Backend, place: str) -> None:
        key = PLAIN.key(place)
        with pytest.raises(Misuse, match="one write for each item"):
            write(backend, Put(PLAIN, {"id": place}), Check(key, absent()))
        with pytest.raises(Misuse):
            write(backend)
        with pytest.raises(ItemTooLarge):
            write(backend, *(Put(SORTED, {"id": place, "sort": f"{n:03}"}) for n in range(MAX_TRANSACTION_WRITES + 1)))
        assert get(backend, key) is None
        assert backend.execute(Query(SORTED, place)).items == []

    def test_effects_given_together_are_answered_each_by_itself(self, backend: Backend, place: str) -> None:
        """A refusal, a misuse or a missing table is the answer to its own effect only."""
        write(backend, Put(PLAIN, {"id": place, "n": 1}))
        outcomes = backend.execute_many(
            [
                Transact([Put(PLAIN, {"id": place + "-a"}, when=absent())]),
                Transact([Check(PLAIN.key(place), equals("n", 2))]),
                Get(PLAIN.key(place)),
                Write(Put(PLAIN, {"id": place + "-b", "v": 2**63})),
                Write(Put(PLAIN, {"id": place + "-c"})),
                Get(MISSING.key("x")),
                Transact([Put(MISSING, {"id": place})]),
                GetMany([PLAIN.key(place), PLAIN.key(place + "-nobody")]),
            ]
        )
        assert [type(outcome.error) for outcome in outcomes] == [
            type(None), ConditionFailed, type(None), Misuse, type(None), MissingTable, MissingTable, type(None),
        ]  # fmt: skip
        assert outcomes[2].value == {"id": place, "n": 1}
        assert outcomes[7].value == [{"id": place, "n": 1}, None]
        assert get(backend, PLAIN.key(place + "-a")) is not None
        assert get(backend, PLAIN.key(place + "-c")) is not None

    def test_of_many_that_race_for_one_item_exactly_one_wins(self, backend: Backend, place: str) -> None:
        outcomes = backend.execute_many(
            [Transact([Put(PLAIN, {"id": place, "by": n}, when=absent())]) for n in range(10)]
        )
        winners = [n for n, outcome in enumerate(outcomes) if outcome.error is None]
        for outcome in outcomes:
            assert outcome.error is None or isinstance(outcome.error, ConditionFailed | Contention)
        found = get(backend, PLAIN.key(place))
        assert winners == ([] if found is None else [found["by"]])

    def test_increments_by_several_threads_lose_nothing(self, backend: Backend, place: str) -> None:
        """Read, compare and set, by threads that race; a lost round is simply tried again."""
        threads, each = 4, 10
        key = PLAIN.key(place)
        errors: list[BaseException] = []

        def increment() -> None:
            done = 0
            for _ in range(2000):
                if done == each:
                    return
                item = get(backend, key)
                n = 0 if item is None else int(item["n"])
                try:
                    write(backend, Update(key, {"n": n + 1}, when=equals("n", n) if n else absent()))
                    done += 1
                except (ConditionFailed, Contention, Throttled):
                    pass
                except BaseException as error:
                    errors.append(error)
                    raise
            errors.append(AssertionError("2,000 rounds were not enough for 10 increments"))

        workers = [threading.Thread(target=increment) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert errors == []
        assert get(backend, key) == {"id": place, "n": threads * each}

    # --- limits ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "value", [None, 1.5, float("nan"), [1], {"a": 1}, 2**63, -(2**63) - 1, "a\0b", "\ud800", ...], ids=repr
    )
    def test_a_value_that_no_store_can_hold_is_misuse(self, backend: Backend, place: str, value: Any) -> None:
        for write_ in (Put(PLAIN, {"id": place, "v": value}), Update(PLAIN.key(place), {"v": value})):
            with pytest.raises(Misuse, match=r"\.v: "):
                write(backend, write_)
            with pytest.raises(Misuse):
                backend.execute(Write(write_))
        assert get(backend, PLAIN.key(place)) is None

    @pytest.mark.parametrize("name", ["", "_own", "n" * 256, "a\0", "\ud800", 7])
    def test_a_name_that_no_store_can_hold_is_misuse(self, backend: Backend, place: str, name: Any) -> None:
        with pytest.raises(Misuse):
            write(backend, Put(PLAIN, {"id": place, name: 1}))
        with pytest.raises(Misuse):
            write(backend, Update(PLAIN.key(place), {name: 1}))
        with pytest.raises(Misuse):
            write(backend, Update(PLAIN.key(place), remove=[name]))

    def test_a_key_that_no_store_can_hold_is_misuse(self, backend: Backend, place: str) -> None:
        """Too short, too long, of another type, or a sort where the table has none."""
        for key in (
            PLAIN.key(""),
            PLAIN.key("x" * 2049),
            PLAIN.key("a\0"),
            PLAIN.key(7),  # type: ignore[arg-type]
            PLAIN.key(place, "sort"),
            SORTED.key(place),
            SORTED.key(place, ""),
            SORTED.key(place, "x" * 1025),
            SORTED.key(place, 7),
            NUMBERED.key(place, "7"),
            NUMBERED.key(place, True),
            NUMBERED.key(place, MAX_INT + 1),
        ):
            for effect in (Get(key), GetMany([key]), Write(Update(key, {"n": 1})), Transact([Delete(key)])):
                with pytest.raises(Misuse):
                    backend.execute(effect)

    def test_the_longest_keys_work(self, backend: Backend, place: str) -> None:
        partition = place + "x" * (2048 - len(place))
        write(backend, Put(SORTED, {"id": partition, "sort": "\U0001f600" * 256}))
        assert get(backend, SORTED.key(partition, "\U0001f600" * 256)) is not None

    def test_an_attribute_of_an_index_has_the_type_of_its_key(self, backend: Backend, place: str) -> None:
        for wrong in ({"bucket": 7}, {"bucket": ""}, {"due_at_us": "soon"}, {"due_at_us": True}, {"label": b"x"}):
            with pytest.raises(Misuse):
                write(backend, Put(SORTED, {"id": place, "sort": "s", **wrong}))
            with pytest.raises(Misuse):
                write(backend, Update(SORTED.key(place, "s"), wrong))

    def test_the_key_cannot_be_changed_by_an_update(self, backend: Backend, place: str) -> None:
        for update in (
            Update(SORTED.key(place, "s"), {"id": "other"}),
            Update(SORTED.key(place, "s"), {"sort": "other"}),
            Update(SORTED.key(place, "s"), remove=["sort"]),
            Update(SORTED.key(place, "s"), {"a": 1}, remove=["a"]),
        ):
            with pytest.raises(Misuse):
                write(backend, update)

    def test_an_item_over_the_limit_is_refused_before_it_is_sent(self, backend: Backend, place: str) -> None:
        room = MAX_ITEM_BYTES - len("id") - len(place) - len("data")
        write(backend, Put(PLAIN, {"id": place, "data": "x" * room}))
        with pytest.raises(ItemTooLarge):
            write(backend, Put(PLAIN, {"id": place + "2", "data": "x" * room}))
        with pytest.raises(ItemTooLarge):
            write(backend, Put(PLAIN, {"id": place, "data": "\u00e9" * (room // 2 + 1)}))
        assert get(backend, PLAIN.key(place + "2")) is None

    def test_an_update_that_makes_an_item_too_large_is_refused(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "a": "x" * 250_000}))
        with pytest.raises(ItemTooLarge):
            write(backend, Update(PLAIN.key(place), {"b": b"x" * 250_000}), Put(PLAIN, {"id": place + "-other"}))
        assert set(get(backend, PLAIN.key(place)) or ()) == {"id", "a"}
        assert get(backend, PLAIN.key(place + "-other")) is None

    def test_a_failed_condition_outranks_a_limit(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place, "a": "x" * 250_000}))
        error = refused(
            backend,
            Transact([Update(PLAIN.key(place), {"b": "x" * 250_000}), Check(PLAIN.key(place + "-other"), present())]),
        )
        assert error is not None
        assert [refusal is not None for refusal in error.refusals] == [False, True]

    def test_a_transaction_over_four_megabytes_is_refused(self, backend: Backend, place: str) -> None:
        puts = [Put(SORTED, {"id": place, "sort": str(n), "data": "x" * 390_000}) for n in range(11)]
        with pytest.raises(ItemTooLarge):
            write(backend, *puts)
        assert backend.execute(Query(SORTED, place, limit=1)).items == []

    # --- tables ----------------------------------------------------------------------------------------------------

    def test_making_the_tables_again_is_harmless(self, backend: Backend, place: str) -> None:
        write(backend, Put(PLAIN, {"id": place}))
        backend.create_tables(CONTRACT_TABLES)
        assert get(backend, PLAIN.key(place)) == {"id": place}

    def test_a_table_that_is_missing_says_so(self, backend: Backend, place: str) -> None:
        for effect in (
            Get(MISSING.key(place)),
            GetMany([MISSING.key(place)]),
            Query(MISSING, place),
            Write(Put(MISSING, {"id": place})),
            Transact([Put(MISSING, {"id": place}), Put(PLAIN, {"id": place})]),
        ):
            with pytest.raises(MissingTable):
                backend.execute(effect)
        assert get(backend, PLAIN.key(place)) is None
