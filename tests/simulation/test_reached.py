"""A simulation says what no run of it reached; its timeline says why tasks run again; its replay can be pasted."""

from __future__ import annotations

import re
from typing import Any

import pytest

import casework
from casework.errors import Misuse
from casework.simulation.reached import Counted, never
from casework.simulation.users import SimulationFailure, simulate

CHART = """
id: order
context: {n: 0}
initial: open
states:
  open:
    on:
      Paid: [{target: paid, guard: {expr: event.kind == "card"}}, {target: open, guard: {expr: context.n > 5}}]
      Close: closed
    after: {90m: closed}
  paid:
    initial: packing
    states:
      packing: {invoke: {src: {task: pack}, onDone: packed, onError: failed}}
      packed: {always: {target: sent, guard: {expr: context.n > 5}}}
      sent: {}
      failed: {}
  closed: {type: final}
"""


def machine(text: str = CHART) -> casework.Machine:
    return casework.Machine.from_yaml(text)


def test_states_and_transitions_that_no_run_reached_are_named_by_their_paths() -> None:
    report = simulate(machine(), runs=60, seed=1, crashes=False, events=[{"Paid": {"kind": "card"}}])
    assert report.ok
    assert report.never_entered == {"order": ["paid.sent", "paid.failed"]}
    assert report.never_taken == {
        "order": [
            "open: Paid [context.n > 5] -> open",
            "open: Close -> closed",
            "paid.packing: onError of pack -> paid.failed",
            "paid.packed: always [context.n > 5] -> paid.sent",
        ]
    }
    (reached,) = report.reached
    assert reached.states["paid.packing"] > 0 and reached.states["paid"] > 0
    timer = next(one for one in reached.transitions if one.event == "after 90m")
    assert str(timer) == "open: after 90m -> closed" and timer.taken == reached.states["closed"] > 0
    said = str(report)
    assert "60 runs, everything held in what was reached, 5 of 7 states and 3 of 7 transitions (seeds 1 to 60" in said
    assert "never entered:\n  paid.sent\n  paid.failed\n" in said
    assert "to reach them: give events" in said


def test_all_that_is_reached_is_said_to_be() -> None:
    report = simulate(machine("{id: x, initial: a, states: {a: {on: {Go: b}}, b: {type: final}}}"), runs=30)
    assert "everything held in all states and transitions (seeds" in str(report) and "\n" not in str(report)
    assert report.never_entered == report.never_taken == {} and report.reached[0].is_all


def test_a_state_that_is_entered_and_left_in_one_step_counts_as_entered() -> None:
    text = "{id: x, initial: a, states: {a: {on: {Go: b}}, b: {always: c}, c: {initial: d, states: {d: {}}}}}"
    assert simulate(machine(text), runs=30).never_entered == {}


def test_what_is_never_reached_is_shortened_where_a_whole_part_or_too_much_is() -> None:
    inner = ", ".join(f"s{n}: {{on: {{E{n}: '#x.a'}}}}" for n in range(3))
    outer = ", ".join(f"t{n}: {{}}" for n in range(20))
    chart = machine(f"{{id: x, initial: a, states: {{a: {{}}, b: {{initial: s0, states: {{{inner}}}}}, {outer}}}}}")
    lines = never([Counted(chart).reached()])
    assert lines[:3] == ["never entered:", "  a", "  b (and the 3 below it)"]
    assert "  and 10 more" in lines and not any("E0" in line for line in lines)


def test_a_simulation_leaves_the_machine_itself_alone() -> None:
    order = machine()
    before = [state.entry for state in order.tables.states]
    simulate(order, runs=3)
    assert [state.entry for state in order.tables.states] == before == [None] * len(before)


def test_a_failure_says_how_much_was_reached() -> None:
    report = simulate(machine(), runs=60, invariants=[lambda execution, history: not execution.is_in("closed")])
    assert not report.ok and re.search(r"reached up to here: \d of 7 states and \d of 7 transitions", str(report))
    assert report.reached[0].states["closed"] >= 1


# --- stand-ins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fials": 5}, "a stand-in has no 'fials' (did you mean 'fails'? to return a mapping with that key"),
        ({"fails": 0.1, "takse": "5s"}, "no 'takse' (did you mean 'takes'?"),
        ({"return": 5}, "no 'return' (did you mean 'returns'?"),
        ({"fails": 0.1, "amount": 3}, "no 'amount' (known: returns, fails, error, final, takes; to return a mapping"),
        ({"fails": 5}, "fails is 5"),
        ({"final": "yes"}, "final is 'yes'"),
        ({"error": 5}, "error is 5"),
        ({"takes": []}, "takes is empty"),
        ({"takes": "soon"}, "takes"),
    ],
)
def test_a_misspelt_stand_in_is_refused_before_anything_runs(given: Any, message: str) -> None:
    with pytest.raises(Misuse, match=re.escape(message)):
        simulate(machine(), tasks={"pack": given}, prepare=lambda: pytest.fail("it ran"))


def test_a_stand_in_may_be_a_result_with_any_other_keys_and_with_those_below_returns() -> None:
    assert simulate(machine(), runs=2, crashes=False, tasks={"pack": {"receipt": 1}}).ok
    assert simulate(machine(), runs=2, crashes=False, tasks={"pack": {"returns": {"fials": 1}}}).ok
    with pytest.raises(Misuse, match=r"no machine here has a task 'pak' \(did you mean 'pack'"):
        simulate(machine(), tasks={"pak": 1})
    with pytest.raises(Misuse, match="it is a mapping from a task's name"):
        simulate(machine(), tasks=["pack"])  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "order.yaml", [], [None], 5])
def test_what_is_no_machine_is_refused_with_what_to_give(given: Any) -> None:
    with pytest.raises(Misuse, match=r"takes a machine or a list of some, not .*; give casework\.Machine\.load"):
        simulate(given)


@pytest.mark.parametrize("option", ["events", "script", "invariants"])
def test_a_single_thing_where_a_list_belongs_is_refused(option: str) -> None:
    with pytest.raises(Misuse, match=f"{option} is 'Paid'; it is a list"):
        simulate(machine(), **{option: "Paid"})


# --- the timeline -----------------------------------------------------------------------------------------------------

TASK = "{id: order, initial: a, states: {a: {invoke: {src: {task: pay_out}, onDone: b}}, b: {type: final}}}"


def found(check: Any, **options: Any) -> SimulationFailure:
    report = simulate(machine(TASK), invariants=[check], **options)
    assert report.failure is not None
    return report.failure


def again(execution: casework.Execution, history: Any) -> bool:
    return all(call.attempt == 1 for call in history.calls())


def test_a_task_that_runs_again_is_explained_whatever_became_of_its_first_attempt() -> None:
    reasons: set[str] = set()
    died = "worker-N died when it had claimed attempt N, before it began, and the lease ended"
    explained_n = 0
    for seed in range(0, 600, 2):
        if explained_n >= 6 and died in reasons and len(reasons) > 1:
            break
        report = simulate(machine(TASK), runs=1, seed=seed, invariants=[again])
        if report.failure is None:
            continue
        lines = [line for line in report.failure.timeline.splitlines() if re.search(r"attempt [2-9] \(key", line)]
        assert lines and all(", since " in line for line in lines), report.failure.timeline
        reasons |= {re.sub(r"\d+", "N", line.rpartition(", since ")[2]) for line in lines}
        explained_n += 1
    assert died in reasons
    assert len(reasons) > 1
    assert all("lease" in reason for reason in reasons)


def test_a_worker_that_dies_between_its_claim_and_the_call_is_said_to_have_claimed() -> None:
    def never_claimed_in_vain(execution: casework.Execution, history: Any) -> bool:
        return all(call.attempt == 1 for call in history.calls()[:1])

    timelines = [found(never_claimed_in_vain, seed=seed, runs=2000).timeline for seed in range(0, 80_000, 10_000)]
    said = r"is killed when it had claimed pay_out of order-\d, attempt 1$"
    assert any(re.search(said, timeline, re.MULTILINE) for timeline in timelines), timelines


def test_an_attempt_that_failed_is_the_reason_for_the_next() -> None:
    timeline = found(again, tasks={"pay_out": {"fails": 0.5}}, crashes=False, runs=50).timeline
    assert re.search(r"attempt 2 \(key order-\d/1/a-\w+\), since attempt 1 failed$", timeline, re.MULTILINE)


def test_the_timeline_ends_with_the_commit_that_broke_something() -> None:
    for seed in range(10):
        failure = found(lambda execution, history: not execution.is_in("b"), seed=seed)
        assert re.search(r"order-\d is done$", failure.timeline.splitlines()[-1]), failure.timeline


def test_the_replay_line_has_every_option_that_matters() -> None:
    failure = found(
        again, seed=0, tasks={"pay_out": {"fails": 0.5}}, may_fail=True, duplicates=False, events=[], input=5
    )
    assert re.fullmatch(
        r"casework\.simulate\(order, crashes=True, duplicates=False, input=5, invariants=\[again\], "
        r"tasks=\{'pay_out': \{'fails': 0\.5\}\}, may_fail=True, seed=\d+, runs=1\)",
        failure.command,
    )
    order = machine(TASK)
    replayed = eval(failure.command, {"casework": casework, "order": order, "again": again}).failure
    assert replayed == failure


def test_a_function_without_a_name_is_written_by_its_place() -> None:
    assert re.search(r"invariants=\[<lambda of test_reached.py:\d+>\]", found(lambda execution, history: False).command)
