"""Children and joins: started once, reporting once, ended with their parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.drive import run
from casework.errors import Misuse
from casework.executions.advance import advance
from casework.executions.joins import child_id
from casework.executions.mailbox import Mail, mail_sort, put_message
from casework.executions.state import Data
from casework.kernel.effects import Transact
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine
from casework.testing import VirtualApp
from tests.executions.watching import (
    WatchedBackend,
    app_on,
    data_of,
    items_of,
    machine,
    state_item,
    watched_app,
    work,
)

Maker = Callable[..., VirtualApp]

PARENT = """
id: parent
initial: idle
context: {out: null, why: null}
states:
  idle: {on: {go: waiting}}
  waiting:
    invoke:
      id: kid
      src: {machine: child}
      input: {n: 1}
      onDone: {target: good, actions: {type: assign, params: {out: {expr: event.output}}}}
      onError: {target: bad, actions: {type: assign, params: {why: {expr: event.error}}}}
    on: {leave: idle, tell: {actions: {type: send, params: {event: poke, to: "child:kid", data: {n: 5}}}}}
  good: {type: final}
  bad: {on: {leave: idle}}
"""

JOIN = """
id: parent
initial: idle
context: {inputs: {expr: "get(input, 'inputs', [])"}, out: null, why: null}
states:
  idle: {on: {go: waiting}}
  waiting:
    invoke:
      id: kid
      src: {machine: child}
      each: {expr: context.inputs}
      input: {n: {expr: item}, index: {expr: index}}
      join: all
      onDone: {target: good, actions: {type: assign, params: {out: {expr: event.output}}}}
      onError: {target: bad, actions: {type: assign, params: {why: {expr: event.error}}}}
    on: {leave: idle}
  good: {type: final}
  bad: {on: {leave: idle}}
"""

CHILD = """
id: child
initial: open
context: {n: {expr: "get(input, 'n', 0)"}, pokes: []}
states:
  open:
    on:
      poke: {actions: {type: assign, params: {pokes: {expr: "context.pokes + [event.n]"}}}}
      cry: {actions: {type: send, params: {event: leave, to: parent}}}
      end: ended
      fail: {actions: {type: raise, params: {event: error.custom, data: {message: broken}}}}
  ended: {type: final}
output: {n: {expr: context.n}}
"""

QUICK = """
id: child
initial: ended
context: {n: {expr: "get(input, 'n', 0)"}}
states: {ended: {type: final}}
output: {n: {expr: context.n * 10}}
"""


def two(parent: str = PARENT, child: str = CHILD) -> tuple[Machine, Machine]:
    return machine(parent), machine(child)


def kids_of(app: Any, id: str) -> list[str]:
    """Ids of the children that are there, in the order of their ordinals."""
    stored = app.backend.tables.stored(EXECUTIONS).items
    found = [key for key, item in stored.items() if key[1] == "0" and item.get("parent_id") == id]
    return sorted((key[0] for key in found), key=lambda kid: int(kid.rpartition("-")[0].rpartition(".")[2]))


def begun(app: Any, text_input: Any = None) -> str:
    app.start("parent", id="p", input=text_input)
    app.handle("p", "go")
    (kid,) = kids_of(app, "p")
    return kid


# --- a single child ---------------------------------------------------------------------------------------------------


def test_a_child_is_created_pending_with_its_parents_own_transaction() -> None:
    app, backend = watched_app(*two())
    app.start("parent", id="p")
    backend.forget()
    app.handle("p", "go")
    assert sum(isinstance(each, Transact) for each in backend.written) == 1
    (kid,) = kids_of(app, "p")
    assert app.get(kid).status == "pending" and app.get(kid).parent_id == "p"
    assert app.get("p").waiting_for == ["kid"]


def test_its_output_is_its_parents_event(casework_app: Maker) -> None:
    app = casework_app(*two(child=QUICK))
    app.start("parent", id="p")
    app.handle("p", "go")
    done = app.wait("p")
    assert done.status == "done" and done.context["out"] == {"n": 10} and done.waiting_for == []


def test_its_end_and_its_report_are_one_transaction(casework_app: Maker) -> None:
    app, backend = watched_app(*two())
    kid = begun(app)
    work(app, kid)
    backend.forget()
    app.handle(kid, "end")
    (transaction,) = [each for each in backend.written if isinstance(each, Transact)]
    assert {write.key.partition for write in transaction.writes} == {kid, "p"}


def test_a_failing_child_is_an_error_event_of_its_parent(casework_app: Maker) -> None:
    app = casework_app(*two())
    kid = begun(app)
    app.settle()
    app.handle(kid, "fail")
    app.settle()
    why = app.get("p").context["why"]
    assert why["message"] == "broken" and why["child"] == kid and app.get(kid).status == "failed"


def test_a_poisoned_or_terminated_child_reaches_its_parent_too(casework_app: Maker) -> None:
    spinning = CHILD.replace("end: ended", "end: circle").replace(
        "  ended: {type: final}", "  circle: {always: circle2}\n  circle2: {always: circle}\n  ended: {type: final}"
    )
    app = casework_app(*two(child=spinning))
    kid = begun(app)
    app.settle()
    app.send(kid, "end")
    app.settle()
    assert app.get("p").context["why"]["type"] == "StepLimit"
    app = casework_app(*two())
    kid = begun(app)
    app.terminate(kid)
    app.settle()
    assert app.get("p").context["why"]["type"] == "Cancelled"


def test_parent_and_child_send_to_each_other(casework_app: Maker) -> None:
    app = casework_app(*two())
    kid = begun(app)
    app.handle("p", "tell")
    app.settle()
    assert app.get(kid).context["pokes"] == [5]
    app.handle(kid, "cry")
    app.settle()
    assert app.get("p").configuration == ["idle"] and app.get(kid).status == "cancelled"


def test_a_send_to_a_parent_or_child_that_is_not_there_is_an_error_of_the_chart(casework_app: Maker) -> None:
    app = casework_app(machine(CHILD.replace("  open:", "  open:", 1).replace(
        "      end: ended", "      end: ended\n      error.communication: ended")))  # fmt: skip
    app.start("child", id="c")
    app.handle("c", "cry")
    assert app.get("c").status == "done"


# --- reports ----------------------------------------------------------------------------------------------------------


def report(app: Any, source: str, *, stay: int = 1, ordinal: int = 0, invoke: str = "kid", n: int = 0) -> None:
    """A report as a child would send it."""
    moment = app.backend.now()
    mail = Mail("child", {"ok": True, "value": "forged"}, "", source, stay, invoke, kind="child", ordinal=ordinal)
    at_us = moment.middle_us
    put = put_message("p", mail_sort(at_us, source, n), [mail], app.core.rt.options.buckets, sent_at_us=at_us)
    app.backend.execute(Transact([put]))


def test_a_stray_report_changes_nothing() -> None:
    app, _ = watched_app(*two())
    kid = begun(app)
    report(app, kid, stay=2, n=1)
    report(app, kid, stay=0, n=2)
    report(app, kid, ordinal=1, n=3)
    report(app, kid, ordinal=-1, n=4)
    report(app, kid, invoke="other", n=5)
    report(app, "somebody", n=6)
    report(app, child_id("p", "kid", 1, 0, 12345), n=7)
    work(app, "p")
    assert app.get("p").configuration == ["waiting"] and items_of(app.backend, "p", "e/") == []
    report(app, kid, n=8)
    report(app, kid, n=9)
    work(app, "p")
    assert app.get("p").context["out"] == "forged" and app.get("p").status == "done"


def test_a_child_reports_once_even_when_two_workers_end_it() -> None:
    app, backend = watched_app(*two(JOIN, QUICK))
    other = app_on(backend, *two(JOIN, QUICK))
    app.start("parent", id="p", input={"inputs": [1, 2, 3]})
    app.handle("p", "go")
    for kid in kids_of(app, "p"):
        for each in (app, other, app):
            run(advance(each.core.rt, kid), backend)
    assert len(items_of(backend, "p", "e/")) == 3
    work(app, "p")
    assert app.get("p").context["out"] == [{"n": 10}, {"n": 20}, {"n": 30}]


def test_a_child_of_an_earlier_stay_cannot_end_a_later_one(casework_app: Maker) -> None:
    app = casework_app(*two())
    first = begun(app)
    app.settle()
    app.handle("p", "leave")
    app.handle("p", "go")
    assert len(kids_of(app, "p")) == 2
    second = next(kid for kid in kids_of(app, "p") if kid != first)
    app.settle()
    assert app.get(first).status == "cancelled" and app.get("p").configuration == ["waiting"]
    app.handle(second, "end")
    app.settle()
    assert app.get("p").status == "done"


def test_a_child_of_an_earlier_life_of_its_parents_id_cannot_end_a_join(casework_app: Maker) -> None:
    app = casework_app(*two())
    first = begun(app)
    app.settle()
    app.purge("p", force=True)
    second = [app.start("parent", id="p"), app.handle("p", "go"), *(k for k in kids_of(app, "p") if k != first)][-1]
    app.settle()
    app.handle(first, "end")
    app.settle()
    assert app.get("p").configuration == ["waiting"] and app.get("p").waiting_for == ["kid"]
    app.handle(second, "end")  # type: ignore[arg-type]
    app.settle()
    assert app.get("p").status == "done"


# --- joins ------------------------------------------------------------------------------------------------------------


def joined(casework_app: Maker, inputs: list[Any], join: str, child: str = CHILD) -> tuple[VirtualApp, list[str]]:
    app = casework_app(*two(JOIN.replace("join: all", f"join: {join}"), child))
    app.start("parent", id="p", input={"inputs": inputs})
    app.handle("p", "go")
    app.settle()
    return app, kids_of(app, "p")


def test_all_waits_for_every_child_and_keeps_their_order(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [7, 8, 9], "all")
    for kid in reversed(kids):
        assert app.get("p").configuration == ["waiting"]
        app.handle(kid, "end")
        app.settle()
    assert app.get("p").context["out"] == [{"n": 7}, {"n": 8}, {"n": 9}]


def test_all_fails_with_the_first_failure_and_cancels_the_rest(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [7, 8, 9], "all")
    app.handle(kids[1], "fail")
    app.settle()
    why = app.get("p").context["why"]
    assert (why["message"], why["child"], why["index"]) == ("broken", kids[1], 1)
    assert [app.get(kid).status for kid in kids] == ["cancelled", "failed", "cancelled"]


def test_any_takes_the_first_result_and_cancels_the_rest(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [7, 8, 9], "any")
    app.handle(kids[0], "fail")
    app.settle()
    assert app.get("p").configuration == ["waiting"]
    app.handle(kids[2], "end")
    app.settle()
    assert app.get("p").context["out"] == [{"n": 9}]
    assert [app.get(kid).status for kid in kids] == ["failed", "cancelled", "done"]


def test_any_fails_when_every_child_has(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [7, 8], "any")
    for kid in kids:
        assert app.get("p").configuration == ["waiting"]
        app.handle(kid, "fail")
        app.settle()
    assert app.get("p").configuration == ["bad"]


def test_a_count_waits_for_so_many_and_fails_once_they_cannot_come(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [1, 2, 3, 4], "2")
    app.handle(kids[3], "end")
    app.handle(kids[0], "fail")
    app.settle()
    assert app.get("p").configuration == ["waiting"]
    app.handle(kids[1], "end")
    app.settle()
    assert app.get("p").context["out"] == [{"n": 2}, {"n": 4}]
    app, kids = joined(casework_app, [1, 2, 3, 4], "2")
    for kid in kids[:2]:
        app.handle(kid, "fail")
        app.settle()
        assert app.get("p").configuration == ["waiting"]
    app.handle(kids[2], "fail")
    app.settle()
    assert app.get("p").configuration == ["bad"]


def test_a_count_above_the_number_of_children_means_all(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [1, 2], "5")
    for kid in kids:
        app.handle(kid, "end")
    app.settle()
    assert app.get("p").context["out"] == [{"n": 1}, {"n": 2}]


def test_an_empty_list_is_done_at_once_in_any_state(casework_app: Maker) -> None:
    for initial in ("idle", "waiting"):
        app = casework_app(*two(JOIN.replace("initial: idle", f"initial: {initial}")))
        app.start("parent", id="p", input={"inputs": []})
        if initial == "idle":
            app.handle("p", "go")
        assert app.get("p").status == "done" and app.get("p").context["out"] == []


def test_reports_that_decide_nothing_take_no_step_of_the_chart(casework_app: Maker) -> None:
    app, kids = joined(casework_app, list(range(50)), "all")
    for kid in kids[:49]:
        app.handle(kid, "end")
    app.settle()
    _, data = data_of(app, "p")
    assert data.invokes["kid"].done == 49 and app.get("p").configuration == ["waiting"]


def test_results_over_64_kb_in_all_stay_in_the_children(casework_app: Maker) -> None:
    child = QUICK.replace("output: {n: {expr: context.n * 10}}", "output: {text: {expr: \"'x' * context.n\"}}")
    app, kids = joined(casework_app, [30_000, 30_000, 30_000], "all", child)
    done = app.get("p")
    assert done.status == "done"
    where = done.context["out"]
    assert (where["total"], where["done"], where["each"]) == (3, 3, True)
    assert [len(app.get(kid).output["text"]) for kid in kids] == [30_000] * 3
    first = app.child_results("p", where, limit=2)
    rest = app.child_results("p", where, limit=2, cursor=first.next)
    assert [(r.ordinal, r.id, r.status) for r in [*first.items, *rest.items]] == [
        (n, kid, "done") for n, kid in enumerate(kids)
    ]
    assert rest.next is None
    assert len(rest.items[0].output["text"]) == 30_000
    for wrong in ({"reference": {"a": 1}}, {"reference": where, "limit": 0}, {"reference": where, "cursor": "x y"}):
        with pytest.raises(Misuse):
            app.child_results("p", **wrong)
    app, _ = joined(casework_app, [30_000, 30_000], "all", child)
    assert [len(each["text"]) for each in app.get("p").context["out"]] == [30_000] * 2


def test_the_children_of_a_join_are_found_by_their_ids(casework_app: Maker) -> None:
    app, kids = joined(casework_app, [1, 2], "all")
    assert [app.get(kid).context["n"] for kid in kids] == [1, 2]


# --- the end of a parent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["leave", "terminate", "cancel"])
def test_ending_a_parent_or_leaving_the_state_ends_its_children(casework_app: Maker, end: str) -> None:
    app, kids = joined(casework_app, [1, 2, 3], "all")
    app.handle(kids[0], "end")
    app.settle()
    app.handle("p", "leave") if end == "leave" else getattr(app, end)("p")
    app.settle()
    assert [app.get(kid).status for kid in kids] == ["done", "cancelled", "cancelled"]
    assert app.dead_letters().items == []


def test_nested_children_end_with_their_grandparent(casework_app: Maker) -> None:
    middle = PARENT.replace("id: parent", "id: child").replace("initial: idle", "initial: waiting").replace(
        "{machine: child}", "{machine: leaf}")  # fmt: skip
    app = casework_app(machine(PARENT), machine(middle), machine(CHILD.replace("id: child", "id: leaf")))
    kid = begun(app)
    app.settle()
    (leaf,) = kids_of(app, kid)
    assert app.get(leaf).status == "running"
    app.terminate("p")
    app.settle()
    assert app.get(kid).status == "cancelled" == app.get(leaf).status


def test_results_pass_through_nested_children(casework_app: Maker) -> None:
    middle = PARENT.replace("id: parent", "id: child").replace("initial: idle", "initial: waiting").replace(
        "{machine: child}", "{machine: leaf}") + "\noutput: {n: {expr: context.out.n + 1}}\n"  # fmt: skip
    app = casework_app(machine(PARENT), machine(middle), machine(QUICK.replace("id: child", "id: leaf")))
    app.start("parent", id="p")
    app.handle("p", "go")
    assert app.wait("p").context["out"] == {"n": 11}


def test_ids_of_deeply_nested_children_stay_within_their_limit() -> None:
    id = "p" * 500
    child = child_id(id, "kid", 1, 0, 1)
    assert len(child) <= 512 and child != child_id(id, "kid", 1, 1, 1) and child == child_id(id, "kid", 1, 0, 1)


def test_children_that_begin_and_end_in_one_step_are_not_begun(casework_app: Maker) -> None:
    app = casework_app(
        *two(PARENT.replace("idle: {on: {go: waiting}}", "idle: {on: {go: waiting}, after: {1s: idle}}"))
    )
    app.start("parent", id="p")
    app.send("p", "go")
    app.send("p", "leave")
    app.settle()
    assert kids_of(app, "p") == [] and app.get("p").waiting_for == []


def test_a_cancel_for_a_child_that_is_not_there_leaves_a_cancelled_state_for_its_start_to_find() -> None:
    app, backend = watched_app(*two(JOIN))
    app.start("parent", id="p", input={"inputs": list(range(200))})
    rt = app.core.rt
    born_us = state_item(backend, "p")["created_at_us"]
    third = child_id("p", "kid", 1, 150, born_us)
    cancel = put_message(
        third, mail_sort(1, "p", 0), [Mail("cancel", source="p", kind="cancel")], rt.options.buckets, sent_at_us=1
    )
    backend.execute(Transact([cancel]))
    run(advance(rt, third), backend)
    assert state_item(backend, third)["status"] == "cancelled"
    assert app.get(third).status == "cancelled" and app.get(third).configuration == []
    app.handle("p", "go")
    work(app, "p")
    assert app.get(third).status == "cancelled" and len(kids_of(app, "p")) == 199
    assert items_of(backend, third, "e/") == [] and items_of(backend, "p", "x/") == []


# --- many -------------------------------------------------------------------------------------------------------------


def many(children: int) -> tuple[Any, WatchedBackend, list[str]]:
    app, backend = watched_app(*two(JOIN.replace("context.inputs", "event.inputs"), QUICK))
    app.start("parent", id="p")
    backend.forget()
    app.handle("p", "go", {"inputs": list(range(children))})
    work(app, "p")
    kids = kids_of(app, "p")
    for kid in kids:
        work(app, kid)
    work(app, "p")
    return app, backend, kids


def test_a_fork_and_join_of_ten_costs_no_more_than_ten_write_units_per_child() -> None:
    """DESIGN section 10: base 10 per child, index units apart and below 5."""
    app, backend, kids = many(10)
    assert app.get("p").status == "done" and len(kids) == 10
    base, index = backend.units.base / 10, backend.units.index / 10
    assert base <= 10 and index < 5, (base, index)


@pytest.mark.parametrize("children", [60, 61, 99, 100, 1000])
def test_any_number_of_children_is_started_once_and_joined(children: int) -> None:
    app, backend, kids = many(children)
    done = app.get("p")
    assert len(kids) == children and done.status == "done"
    assert done.context["out"] == [{"n": n * 10} for n in range(children)]
    assert backend.units.base / children <= 10 and backend.units.index / children < 5
    note = items_of(backend, "p", "f/")
    assert items_of(backend, "p") == [state_item(backend, "p"), *note] and len(note) == 1


@pytest.mark.slow
def test_ten_thousand_children_cost_the_same_each_and_end_with_their_parent() -> None:
    app, backend, kids = many(10_000)
    assert app.get("p").status == "done" and len(kids) == 10_000
    assert backend.units.base / 10_000 <= 10 and backend.units.index / 10_000 < 5
    app.start("parent", id="q")
    app.handle("q", "go", {"inputs": list(range(10_000))})
    work(app, "q")
    app.terminate("q")
    kids = kids_of(app, "q")
    assert len(kids) == 10_000
    for kid in kids:
        work(app, kid)
    assert {app.get(kid).status for kid in kids} <= {"cancelled", "done"}


@pytest.mark.parametrize("children", [60, 200, 1000])
def test_terminating_a_parent_of_many_reaches_every_one(children: int) -> None:
    app, backend = watched_app(*two(JOIN))
    app.start("parent", id="p", input={"inputs": list(range(children))})
    app.handle("p", "go")
    work(app, "p")
    app.terminate("p")
    kids = kids_of(app, "p")
    assert len(kids) == children
    for kid in kids:
        work(app, kid)
    assert {app.get(kid).status for kid in kids} == {"cancelled"}
    assert items_of(backend, "p", "x/") == [] and not app.dead_letters().items


@pytest.mark.slow
def test_a_parent_with_a_long_id_and_ten_thousand_children_can_be_ended() -> None:
    """What tells them all would be too large for one transaction; so would be poisoning the parent for it."""
    app, backend = watched_app(*two(JOIN.replace("context.inputs", "event.inputs")))
    id = "p" * 300
    app.start("parent", id=id)
    app.send(id, "go", {"inputs": list(range(10_000))})
    work(app, id)
    app.send(id, "leave")
    work(app, id)
    assert app.get(id).configuration == ["idle"] and items_of(backend, id, "x/") == []
    kids = kids_of(app, id)
    for kid in kids[::100]:
        work(app, kid)
        assert app.get(kid).status == "cancelled"
    assert len(kids) == 10_000


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_child_runs_the_definition_that_its_parents_process_had(casework_app: Maker) -> None:
    """A deploy with another child comes between the start of a child and its first step."""
    app, backend = watched_app(*two())
    kid = begun(app)
    newer = app_on(backend, machine(PARENT), machine(QUICK))
    assert not run(advance(newer.core.rt, kid), backend).parked
    assert newer.get(kid).status == "running" and newer.get(kid).configuration == ["open"]
    newer.handle(kid, "end")
    work(newer, "p")
    assert newer.get("p").context["out"] == {"n": 1}


def test_a_child_whose_start_fails_keeps_its_input_for_a_redrive() -> None:
    looping = CHILD.replace("initial: open", "initial: circle").replace(
        "states:\n", "states:\n  circle: {always: {target: circle2}}\n  circle2: {always: circle}\n"
    )
    app, backend = watched_app(*two(child=looping))
    kid = begun(app)
    work(app, kid)
    assert app.get(kid).status == "failed"
    _, data = data_of(app, kid)
    assert isinstance(data, Data) and data.input == {"n": 1}
    assert app.redrive(kid).status == "failed"
    app.core.rt.by_hash[app.get(kid).machine_hash] = machine(CHILD)
    assert app.redrive(kid).context["n"] == 1 and backend is app.backend
