"""The simulated store has what DynamoDB documents: each behaviour happens under some seed, and keeps its bound.

docs/design/simulator.md has the table: behaviour, source, test. Every test drives a tiny world, once for each of many
seeds, and looks at all that was seen: what must be among it, and what must not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from casework.errors import CaseworkError, ConditionFailed, Contention, OutcomeUnknown, Throttled
from casework.kernel.conditions import absent, equals, present
from casework.kernel.effects import All, Effect, Get, GetMany, Now, Query, Sleep, Spawn, Transact, Write
from casework.kernel.items import Check, Delete, Index, Put, Table, Update
from casework.simulation.carrier import Process
from casework.simulation.faults import NONE, Faults
from casework.simulation.partitions import READ_UNITS_A_SECOND, WRITE_UNITS_A_SECOND
from casework.simulation.world import World

ITEMS = Table(
    name="items", partition="id", sort="sort", indexes=(Index(name="due", partition="bucket", sort="rank"),),
    ttl="expires_at_s",
)  # fmt: skip
SEEDS = range(300)
Program = Generator[Effect, Any, Any]


def put(sort: str, when: Any = None, **attributes: Any) -> Put:
    return Put(ITEMS, {"id": "p", "sort": sort, **attributes}, when)


def key(sort: str) -> Any:
    return ITEMS.key("p", sort)


def play(
    *programs: Callable[[list[Any]], Program], faults: Faults = NONE, seeds: Any = SEEDS, before: Any = (),
    may_crash: bool = False,
) -> list[tuple[World, list[Any]]]:  # fmt: skip
    """Run programs side by side, each in a process of its own, once for each seed; what they noted, and the worlds."""
    played = []
    for seed in seeds:
        world = World(seed, (ITEMS,), faults=faults)
        for write in before:
            world.store.apply(world, write)
        notes: list[Any] = []
        for n, program in enumerate(programs):

            def main(process: Process, program: Any = program, notes: list[Any] = notes) -> Program:
                yield from program(notes)

            world.process(f"p{n}", main, may_crash=may_crash)
        world.run(lambda: False, steps_max=3000)
        played.append((world, notes))
    return played


def attempt(effect: Effect, name: str) -> Callable[[list[Any]], Program]:
    """A program that carries out one effect and notes what came of it."""

    def program(notes: list[Any]) -> Program:
        try:
            answer = yield effect
        except CaseworkError as error:
            notes.append((name, type(error)))
        else:
            notes.append((name, answer))

    return program


def outcomes(played: list[tuple[World, list[Any]]]) -> list[dict[str, Any]]:
    return [dict(notes) for _, notes in played]


def stored(world: World, *sorts: str) -> list[Any]:
    return [(world.store.get(key(sort)) or {}).get("v") for sort in sorts]


# --- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_that_overlap_conflict_and_what_is_stored_is_one_of_them_whole() -> None:
    one = Transact([put("a", v=1), put("b", v=1)])
    two = Transact([put("b", v=2), put("a", v=2)])
    played = play(attempt(one, "one"), attempt(two, "two"))
    seen = {(o["one"], o["two"]) for o in outcomes(played)}
    assert {(None, Contention), (Contention, None), (None, None)} == seen
    for world, notes in played:
        assert stored(world, "a", "b") in ([1, 1], [2, 2])
        assert world.store.locks == {} and None in dict(notes).values()


def test_transactions_may_abort_each_other_and_only_where_that_fault_is_on() -> None:
    one, two = Transact([put("a", v=1), put("b", v=1)]), Transact([put("a", v=2), put("b", v=2)])
    both = (Contention, Contention)
    mutual = play(attempt(one, "one"), attempt(two, "two"), faults=Faults(conflict=0.9))
    assert both in {(o["one"], o["two"]) for o in outcomes(mutual)}
    for world, notes in mutual:
        aborted = all(answer is Contention for _, answer in notes)
        assert stored(world, "a", "b") == [None, None] if aborted else stored(world, "a", "b") in ([1, 1], [2, 2])
    assert both not in {(o["one"], o["two"]) for o in outcomes(play(attempt(one, "one"), attempt(two, "two")))}


def test_a_plain_write_that_meets_a_transaction_is_refused_and_a_get_never_is() -> None:
    transaction = Transact([put("a", v=1), put("b", v=1)])
    played = play(
        attempt(transaction, "transaction"), attempt(Write(put("a", v=2)), "write"), attempt(Get(key("b")), "get")
    )
    found = outcomes(played)
    assert {o["write"] for o in found} == {None, Contention}
    assert {o["transaction"] for o in found} == {None}, "without the fault of conflicts a begun transaction wins"
    assert all(o["get"] is None or o["get"]["v"] == 1 for o in found)
    assert all(stored(world, "a")[0] == 1 for world, notes in played if dict(notes)["write"] is Contention)


def test_a_check_conflicts_with_a_write_of_its_item_and_leaves_no_trace() -> None:
    check = Transact([Check(key("a"), present()), put("c", v=1)])
    played = play(attempt(check, "check"), attempt(Transact([put("a", v=2)]), "put"), before=[put("a", v=1)])
    assert Contention in {o["check"] for o in outcomes(played)} | {o["put"] for o in outcomes(played)}
    assert all(stored(world, "a")[0] in (1, 2) for world, _ in played)


def test_items_of_a_transaction_become_visible_one_by_one_in_any_order_and_in_the_end_all() -> None:
    transaction = Transact([put("a", v=1), put("b", v=1)])

    def look(notes: list[Any]) -> Program:
        a = yield Get(key("a"))
        b = yield Get(key("b"))
        notes.append(("look", (a is not None, b is not None)))

    def look_back(notes: list[Any]) -> Program:
        b = yield Get(key("b"))
        a = yield Get(key("a"))
        notes.append(("back", (b is not None, a is not None)))

    played = play(attempt(transaction, "transaction"), look, look_back)
    assert (True, False) in {o["look"] for o in outcomes(played)}, "the first is there, the second not yet"
    assert (True, False) in {o["back"] for o in outcomes(played)}, "nor is the order that of the request"
    assert all(stored(world, "a", "b") == [1, 1] for world, _ in played)


def test_a_refused_transaction_changes_nothing_and_says_position_by_position_why() -> None:
    refused = []

    def program(notes: list[Any]) -> Program:
        try:
            yield Transact([put("a", v=2), put("b", absent(), v=2)])
        except ConditionFailed as error:
            refused.append(error.refusals)

    played = play(program, seeds=range(20), before=[put("b", v=1)])
    assert all(stored(world, "a", "b") == [None, 1] for world, _ in played)
    assert len(refused) == 20
    assert all(first is None and second is not None and second.item["v"] == 1 for first, second in refused)


def test_a_transaction_goes_on_without_the_process_that_sent_it() -> None:
    def program(notes: list[Any]) -> Program:
        if notes:
            return
        notes.append(("sent", True))
        yield Transact([put("a", v=1), put("b", v=1)])

    played = play(program, faults=Faults(crash=0.3), may_crash=True)
    seen = {tuple(stored(world, "a", "b")) for world, _ in played}
    assert seen == {(1, 1), (None, None)}, "all of it, or it was never sent; never a part"


def test_a_transaction_whose_answer_is_lost_is_repeated_under_its_token_and_applied_once() -> None:
    def program(notes: list[Any]) -> Program:
        try:
            yield Transact([put("a", absent(), v=1), put("b", absent(), v=1)])
            notes.append(("answer", None))
        except ConditionFailed:
            notes.append(("answer", ConditionFailed))

    played = play(program, faults=Faults(lost=0.6))
    assert {o["answer"] for o in outcomes(played)} == {None}, "its own first attempt never refuses it"
    assert max(world.steps for world, _ in played) > 5, "some were repeated"
    assert {world.store.writes_n for world, _ in played} == {2}


# --- reads ------------------------------------------------------------------------------------------------------------


def test_a_query_can_see_a_part_of_a_transaction_and_never_an_item_that_never_was() -> None:
    transaction = Transact([put("a", v=1), put("b", v=1)])
    played = play(attempt(transaction, "transaction"), attempt(Query(ITEMS, "p"), "query"))
    seen = {tuple(item["sort"] for item in o["query"].items) for o in outcomes(played)}
    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_a_query_can_see_its_first_items_earlier_than_its_last_ones() -> None:
    before = [put("a", v=0), put("b", v=0)]

    def write(notes: list[Any]) -> Program:
        yield Write(put("a", v=1))
        yield Write(put("b", v=1))

    def seen(faults: Faults) -> set[tuple[int, ...]]:
        played = play(write, attempt(Query(ITEMS, "p"), "query"), faults=faults, before=before)
        return {tuple(item["v"] for item in o["query"].items) for o in outcomes(played)}

    assert seen(NONE) == {(0, 0), (1, 0), (1, 1)}
    assert seen(Faults(torn_reads=1.0)) == {(0, 0), (1, 0), (1, 1), (0, 1)}, "b after a was written, a before"


def test_pages_that_follow_each_other_hand_out_no_item_twice() -> None:
    def write(notes: list[Any]) -> Program:
        yield Transact([put("a", v=1), put("b", v=1)])

    def page_through(notes: list[Any]) -> Program:
        seen: list[Any] = []
        after = None
        while True:
            page = yield Query(ITEMS, "p", limit=2, after=after)
            seen += [item["sort"] for item in page.items]
            after = page.next
            if after is None:
                break
        notes.append(("seen", tuple(seen)))

    before = [put("c", v=0), put("d", v=0), put("e", v=0)]
    ways = {o["seen"] for o in outcomes(play(write, page_through, faults=Faults(torn_reads=0.8), before=before))}
    assert {tuple("cde"), tuple("bcde"), tuple("abcde")} <= ways
    assert all(list(way) == sorted(set(way)) for way in ways)


def test_a_batch_of_gets_sees_each_item_at_an_instant_of_its_own() -> None:
    def write(notes: list[Any]) -> Program:
        yield Write(put("a", v=1))
        yield Write(put("b", v=1))

    def seen(faults: Faults) -> set[tuple[bool, ...]]:
        played = play(write, attempt(GetMany([key("a"), key("b")]), "get"), faults=faults)
        return {tuple(item is not None for item in o["get"]) for o in outcomes(played)}

    assert seen(NONE) == {(False, False), (True, False), (True, True)}
    assert (False, True) in seen(Faults(torn_reads=1.0))


def test_an_index_lags_by_no_more_than_its_bound_and_item_by_item() -> None:
    lag = 12

    def program(notes: list[Any]) -> Program:
        yield Write(put("a", bucket="x", rank="1"))
        yield Write(put("b", bucket="x", rank="2"))
        for n in range(lag + 3):
            page = yield Query(ITEMS, "x", "due")
            notes.append((n, tuple(item["sort"] for item in page.items)))

    played = play(program, faults=Faults(index_lag=lag))
    first = {o[0] for o in outcomes(played)}
    assert {(), ("a",), ("b",), ("a", "b")} == first
    assert {o[lag + 1] for o in outcomes(played)} == {("a", "b")}
    assert {o[0] for o in outcomes(play(program))} == {("a", "b")}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_plain_writes_answer_is_lost_before_or_after_it_was_applied_and_its_repeat_knows_its_nonce() -> None:
    write = Write(put("a", absent(), v=1))
    played = play(attempt(write, "write"), faults=Faults(lost=0.5))
    assert {o["write"] for o in outcomes(played)} == {None}, "not refused by its own first attempt"
    assert {world.store.writes_n for world, _ in played} == {1}
    assert max(world.steps for world, _ in played) > 3


def test_a_repeat_that_is_refused_by_another_writer_does_not_know_whether_it_was_applied() -> None:
    one, two = Write(put("a", absent(), v=1)), Write(Update(key("a"), {"v": 2}))
    played = play(attempt(one, "one"), attempt(two, "two"), faults=Faults(lost=0.5))
    assert {o["one"] for o in outcomes(played)} == {None, ConditionFailed, OutcomeUnknown}


def test_an_unknown_outcome_was_applied_before_or_is_applied_later_or_never() -> None:
    def program(notes: list[Any]) -> Program:
        try:
            yield Write(put("a", v=1))
        except OutcomeUnknown:
            there = (yield Get(key("a"))) is not None
            for _ in range(20):
                yield Sleep(0.001)
            notes.append(("then", (there, (yield Get(key("a"))) is not None)))

    played = play(program, faults=Faults(unknown=1.0))
    assert {o["then"] for o in outcomes(played)} == {(True, True), (False, True), (False, False)}


def test_a_transactions_unknown_outcome_is_all_of_it_or_nothing() -> None:
    played = play(attempt(Transact([put("a", v=1), put("b", v=1)]), "transaction"), faults=Faults(unknown=1.0))
    assert {o["transaction"] for o in outcomes(played)} == {OutcomeUnknown}
    assert {tuple(stored(world, "a", "b")) for world, _ in played} == {(1, 1), (None, None)}


@pytest.mark.parametrize("effect", [Write(put("a", v=1)), Transact([put("a", v=1)])])
def test_a_throttled_write_changes_nothing(effect: Effect) -> None:
    played = play(attempt(effect, "write"), faults=Faults(throttled=0.5))
    assert {o["write"] for o in outcomes(played)} == {None, Throttled}
    assert all((stored(world, "a") == [1]) is (dict(notes)["write"] is None) for world, notes in played)


@pytest.mark.parametrize("effect", [Get(key("a")), GetMany([key("a")]), Query(ITEMS, "p")])
def test_reads_are_throttled_too(effect: Effect) -> None:
    played = play(attempt(effect, "read"), faults=Faults(throttled_reads=0.5))
    assert Throttled in [o["read"] for o in outcomes(played)]
    assert any(o["read"] is not Throttled for o in outcomes(played))
    assert all(o["read"] is not Throttled for o in outcomes(play(attempt(effect, "read"))))


# --- partitions, time to live, clocks ---------------------------------------------------------------------------------


def units(effect: Effect, seconds: float, each: float, *, partition_limits: bool = True) -> float:
    """Units that a partition took within some seconds from a process that never stops asking, at ``each`` a request."""
    world = World(1, (ITEMS,), faults=Faults(partition_limits=partition_limits))
    taken = 0.0

    def main(process: Process) -> Program:
        nonlocal taken
        while True:
            try:
                yield effect
                taken += each
            except Throttled:
                yield Sleep(0.001)

    world.process("hot", main)
    end_us = world.now_us + int(seconds * 1e6)
    world.run(lambda: world.now_us >= end_us, steps_max=100_000)
    return taken


def test_a_partition_takes_a_thousand_write_units_a_second() -> None:
    for effect, each in ((Write(put("a", v="x" * 900)), 1), (Transact([put("a", v="x" * 900)]), 2)):
        taken = units(effect, 3.0, each)
        assert 3 * WRITE_UNITS_A_SECOND * 0.8 < taken <= 4.1 * WRITE_UNITS_A_SECOND
    assert units(Write(put("a", v="x" * 900)), 3.0, 1, partition_limits=False) > 10 * WRITE_UNITS_A_SECOND


def test_a_partition_takes_three_thousand_read_units_a_second() -> None:
    taken = units(Get(key("a")), 3.0, 1)
    assert 3 * READ_UNITS_A_SECOND * 0.8 < taken <= 4.1 * READ_UNITS_A_SECOND
    assert units(Get(key("a")), 3.0, 1, partition_limits=False) > 4 * READ_UNITS_A_SECOND


def test_partitions_do_not_share_their_units_and_a_hot_index_key_throttles_its_table() -> None:
    def throttled(bucket: Callable[[int], str]) -> int:
        world = World(1, (ITEMS,), faults=Faults(partition_limits=True))
        refused = 0

        def main(process: Process) -> Program:
            nonlocal refused
            for n in range(3000):
                try:
                    yield Write(Put(ITEMS, {"id": f"p{n}", "sort": "a", "bucket": bucket(n), "rank": "1"}))
                except Throttled:
                    refused += 1

        world.process("writer", main)
        world.run(lambda: False, steps_max=10_000)
        return refused

    assert throttled(lambda n: f"b{n}") == 0
    assert throttled(lambda n: "hot") > 1000


def test_an_expired_item_is_deleted_late_or_never_and_never_before_its_time() -> None:
    now_s = 1_750_000_000
    before = [put("old", v=1, expires_at_s=now_s - 10), put("new", v=1, expires_at_s=now_s + 3600), put("none", v=1)]

    def look(notes: list[Any]) -> Program:
        for n in range(4):
            yield Sleep(0.01)
            page = yield Query(ITEMS, "p")
            notes.append((n, len(page.items)))

    assert {o[3] for o in outcomes(play(look, before=before))} == {3}, "never"
    played = play(look, before=before, faults=Faults(ttl=0.4))
    assert {o[0] for o in outcomes(played)} == {3}, "an expired item is still returned"
    assert {o[3] for o in outcomes(played)} == {2, 3}, "late, or not yet"
    assert all(stored(world, "new", "none") == [1, 1] for world, _ in played)


def widths_of_clocks(faults: Faults) -> list[list[float]]:
    """Seconds between the bounds of a host's clock, before each of sixty requests, for each of sixty seeds."""
    widths: list[list[float]] = []
    for seed in range(60):
        world = World(seed, (ITEMS,), faults=faults)
        seen: list[float] = []

        def main(process: Process, world: World = world, seen: list[float] = seen) -> Program:
            for _ in range(60):
                moment = yield Now()
                assert moment.earliest_us <= world.now_us <= moment.latest_us
                seen.append((moment.latest_us - moment.earliest_us) / 1e6)
                yield Get(key("a"))
                yield Sleep(0.37)

        world.process("host", main, may_crash=False)
        world.run(lambda: False, steps_max=3000)
        assert len(seen) == 60
        widths.append(seen)
    return widths


def test_a_clock_known_from_date_headers_is_wide_at_first_then_narrow_and_always_holds_the_true_time() -> None:
    widths = widths_of_clocks(Faults(sampled_clocks=True, skew_s_max=30.0))
    assert all(seen[0] > 500 for seen in widths), (
        "before the first answer nothing is known but that requests are signed"
    )
    assert all(max(seen[1:]) < 1.3 for seen in widths)
    assert all(seen[-1] < 0.5 for seen in widths), "many answers together know more than one"


def test_a_clock_that_a_pause_has_widened_asks_before_it_is_believed_and_its_bounds_hold() -> None:
    widths = widths_of_clocks(Faults(sampled_clocks=True, skew_s_max=30.0, pause=0.02, pause_s_max=120.0))
    assert max(max(seen[1:]) for seen in widths) < 60, "no pause of up to two minutes stays in what is told"
    assert sum(seen[-1] < 1.3 for seen in widths) > 30


def test_a_process_that_starts_again_has_forgotten_what_answers_told_it() -> None:
    widths: list[float] = []
    for seed in range(40):
        world = World(seed, (ITEMS,), faults=Faults(sampled_clocks=True, crash=0.1))

        def main(process: Process) -> Program:
            first = yield Now()
            if process.starts_n > 1:
                widths.append((first.latest_us - first.earliest_us) / 1e6)
            for _ in range(20):
                yield Get(key("a"))

        world.process("host", main)
        world.run(lambda: False, steps_max=100)
    assert widths and min(widths) > 500


def test_clocks_of_hosts_are_skewed_within_the_bound_that_they_are_told() -> None:
    middles: set[int] = set()
    for seed in range(60):
        world = World(seed, (ITEMS,), faults=Faults(skew_s_max=5.0, clock_error_s=0.5))

        def main(process: Process, world: World = world) -> Program:
            moment = yield Now()
            assert moment.earliest_us <= world.now_us <= moment.latest_us
            middles.add(round((moment.middle_us - world.now_us) / 1e6))
            yield Sleep(0)

        world.process("host", main)
        world.run(lambda: False, steps_max=10)
    assert min(middles) <= -4 and max(middles) >= 4


def test_reads_that_go_together_are_torn_and_throttled_each_by_itself() -> None:
    together = All([Get(key("a")), Query(ITEMS, "p")])
    transaction = Transact([put("a", v=1), put("b", v=1)])
    torn = play(attempt(together, "read"), attempt(transaction, "write"), faults=Faults(torn_reads=0.5))
    seen = {(item is not None, len(page.items)) for item, page in (o["read"] for o in outcomes(torn))}
    assert {(False, 0), (False, 1), (False, 2), (True, 1), (True, 2)} <= seen, "each has an instant of its own"
    throttled = {
        o["read"] is Throttled for o in outcomes(play(attempt(together, "read"), faults=Faults(throttled_reads=0.3)))
    }
    assert throttled == {True, False}


def test_a_process_that_stands_still_hears_no_answer() -> None:
    transaction = Transact([put("a", v=1), put("b", v=1), put("c", v=1)])
    waited_us = []
    for seed in SEEDS:
        world = World(seed, (ITEMS,), faults=Faults(pause=0.2, pause_s_max=5.0))

        def tick() -> Program:
            for _ in range(20):
                yield Sleep(0.0001)

        def main(process: Process, world: World = world) -> Program:
            yield Spawn(tick())
            began_us = world.now_us
            yield transaction
            assert process.paused_until_us <= world.now_us
            waited_us.append(world.now_us - began_us)

        world.process("p", main, may_crash=False)
        world.run(lambda: False, steps_max=3000)
    assert len(waited_us) == len(SEEDS)
    assert min(waited_us) < 100_000 < 1_000_000 < max(waited_us)


def test_a_host_may_stand_still_between_what_it_read_and_its_look_at_the_clock() -> None:
    waited_us = []
    for seed in SEEDS:
        world = World(seed, (ITEMS,), faults=Faults(pause=0.2, pause_s_max=5.0))

        def main(process: Process, world: World = world) -> Program:
            yield Get(key("a"))
            read_us = world.now_us
            instant = yield Now()
            waited_us.append(instant.middle_us - read_us)

        world.process("p", main, may_crash=False)
        world.run(lambda: False, steps_max=100)
    assert len(waited_us) == len(SEEDS)
    assert min(waited_us) < 1_000 < 1_000_000 < max(waited_us)


def test_a_delete_and_a_put_of_one_item_are_single_writes_that_never_overlap() -> None:
    delete, write = Transact([Delete(key("a"), equals("v", 0))]), Write(put("a", equals("v", 0), v=1))
    played = play(attempt(delete, "delete"), attempt(write, "write"), before=[put("a", v=0)])
    assert {(o["delete"], o["write"]) for o in outcomes(played)} <= {
        (None, ConditionFailed), (None, Contention), (ConditionFailed, None),
    }  # fmt: skip


def test_the_table_in_the_design_names_every_test_of_this_file_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "simulator.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    own = {name for name in globals() if name.startswith("test_")}
    of_the_harness = {"test_the_table_in_the_design_names_every_test_of_this_file_and_no_other"}
    assert named == own - of_the_harness
