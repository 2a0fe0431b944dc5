"""Purging a tree, and all that ended before a time: nothing stays behind, and nothing else goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from casework.app.sync import App
from casework.errors import Misuse, NoSuchExecution
from casework.executions import control
from casework.kernel.effects import Transact
from casework.kernel.schema import EXECUTIONS
from tests.executions.test_children import CHILD, PARENT, QUICK, kids_of
from tests.executions.test_children_listed import NESTED, STARTED, settle, states
from tests.executions.watching import ByHand, WatchedBackend, app_on, machine, state_item, watched_app

TEXTS = (NESTED, STARTED, CHILD, QUICK.replace("id: child", "id: quick"))


def an_app() -> tuple[App, WatchedBackend]:
    return watched_app(*(machine(text) for text in TEXTS))


def left(app: App) -> list[Any]:
    return list(app.backend.tables.stored(EXECUTIONS).items)  # type: ignore[attr-defined]


def grown(app: App, id: str = "g") -> None:
    """Three generations, a stay that was left among them, and the end of it all."""
    app.start("grand", id=id, input={"inputs": [[1, 2], [3]]})
    settle(app)
    app.handle(id, "again")
    settle(app)


def test_a_tree_goes_with_all_its_generations_and_stays() -> None:
    app, _ = an_app()
    grown(app)
    assert len(states(app)) > 8
    app.terminate("g")
    settle(app)
    items = len(left(app))
    assert app.purge("g", tree=True) == items and left(app) == []


def test_without_the_tree_the_children_stay() -> None:
    app, _ = an_app()
    app.start("parent", id="p", input={"inputs": [1, 2]})
    kids = kids_of(app, "p")
    app.terminate("p")
    app.purge("p")
    assert sorted(states(app)) == sorted(kids)


def test_children_that_have_not_heard_of_the_end_go_too() -> None:
    app, _ = an_app()
    grown(app)
    app.terminate("g")
    app.purge("g", tree=True)
    assert left(app) == []


def test_a_tree_that_is_at_work_goes_by_force_only() -> None:
    app, _ = an_app()
    grown(app)
    with pytest.raises(Misuse, match="cancel it first"):
        app.purge("g", tree=True)
    assert app.purge("g", tree=True, force=True) and left(app) == []


def test_an_interrupted_purge_of_a_tree_is_finished_as_one_whoever_finishes_it() -> None:
    for steps in range(1, 40):
        app, backend = an_app()
        app.start("parent", id="p", input={"inputs": [1, 2, 3]})
        settle(app)
        app.terminate("p")
        purging = ByHand(control.purge(app.core.rt, "p", tree=True), backend)
        for _ in range(steps):
            if not purging.done:
                purging.up_to()
            if not purging.done:
                purging.perform()
        is_over = purging.done
        purging.program.close()
        if not is_over:
            app.purge("p")
        assert left(app) == [], steps
        if is_over:
            return
    raise AssertionError("it never ended")


def aged(app: App, backend: Any) -> None:
    """Executions that ended 40, 20 and 0 days ago, one that runs, and a child that failed."""
    for days in (40, 20, 0):
        app.start("quick", id=f"q{days}")
        app.start("parent", id=f"p{days}", input={"inputs": [1, 2]})
        settle(app)
        app.handle(kids_of(app, f"p{days}")[0], "fail")
        settle(app)
        app.terminate(f"p{days}")
        settle(app)
        backend.clock.advance({40: 20, 20: 20, 0: 0}[days] * 86_400)
    app.start("child", id="runs")


def purged(app: App, **filters: Any) -> list[str]:
    found, cursor = [], None
    for _ in range(200):
        page = app.purge_ended(cursor=cursor, **filters)
        assert not [one.problem for one in page.items if one.problem]
        found += [one.id for one in page.items]
        cursor = page.next
        if cursor is None:
            return sorted(found)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_what_ended_before_a_time_goes_with_its_descendants_and_nothing_else(limit: int) -> None:
    app, backend = an_app()
    aged(app, backend)
    before = left(app)
    for older, wanted in (("30d", ["p40", "q40"]), ("10d", ["p20", "p40", "q20", "q40"])):
        assert purged(app, before=older, limit=limit, dry_run=True) == wanted
    assert left(app) == before, "a dry run changes nothing"
    assert purged(app, before="30d", limit=limit) == ["p40", "q40"]
    assert not [key for key in left(app) if key[0].startswith(("p40", "q40"))], "descendants included"
    assert [key for key in before if not key[0].startswith(("p40", "q40"))] == left(app)
    assert purged(app, before="30d", limit=limit) == []
    backend.clock.advance(1)  # type: ignore[attr-defined]
    assert purged(app, before="0s", limit=limit) == ["p0", "p20", "q0", "q20"]
    assert {key[0] for key in left(app)} == {"runs"}


def test_by_status_and_by_machine() -> None:
    app, backend = an_app()
    aged(app, backend)
    assert purged(app, before="10d", status="done") == ["q20", "q40"]
    assert purged(app, before="10d", machine="child") == [], "children go with their parents"
    assert purged(app, before="10d", machine="parent", status="cancelled") == ["p20", "p40"]
    for wrong in ("running", "nonsense"):
        with pytest.raises(Misuse, match="what has ended is done, failed, cancelled"):
            app.purge_ended(before="10d", status=wrong)


def test_a_failed_child_whose_parent_was_purged_alone_goes_by_itself() -> None:
    app, backend = an_app()
    aged(app, backend)
    app.purge("p40")
    orphan = next(id for id, item in states(app).items() if id.startswith("p40") and item["status"] == "failed")
    assert orphan in purged(app, before="30d")
    assert orphan not in states(app)


def test_a_purge_that_was_interrupted_is_finished_by_the_next() -> None:
    app, backend = an_app()
    aged(app, backend)
    purging = ByHand(control.purge(app.core.rt, "p0", tree=True), backend).up_to()
    purging.perform()
    purging.program.close()
    assert state_item(backend, "p0")["status"] == "purging"
    assert "p0" in purged(app, before="30d") and not [id for id in states(app) if id.startswith("p0")]


def test_one_that_cannot_be_purged_is_told_and_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    app, backend = an_app()
    aged(app, backend)
    backend.tables.stored(EXECUTIONS).items[("q40", "0")]["format"] = 99
    page = app.purge_ended(before="30d", limit=1000)
    assert {one.id: bool(one.problem) for one in page.items} == {"q40": True, "p40": False}
    assert "format 99" in next(one.problem for one in page.items if one.id == "q40")
    assert "q40" in states(app)


def test_times_are_ages_dates_and_datetimes_and_nothing_else() -> None:
    app, backend = an_app()
    aged(app, backend)
    now = datetime.fromtimestamp(backend.now().earliest_us / 1e6, UTC)
    day = timedelta(days=1)
    for before in ("30d", "720h", 30 * day, now - 30 * day, (now - 30 * day).isoformat(), f"{now - 30 * day:%Y-%m-%d}"):
        assert purged(app, before=before, dry_run=True) == ["p40", "q40"], before
    for wrong in (30, "30", "", None, "soon", "2026-13-45", now.replace(tzinfo=None), -1, "-3d"):
        with pytest.raises(Misuse, match="before is"):
            app.purge_ended(before=wrong)  # type: ignore[arg-type]


def test_two_purges_at_once_leave_nothing_and_raise_nothing_odd() -> None:
    app, backend = an_app()
    app.start("parent", id="p", input={"inputs": [1, 2, 3]})
    settle(app)
    app.terminate("p")
    other = app_on(backend, *(machine(text) for text in TEXTS))
    first = ByHand(control.purge(app.core.rt, "p", tree=True), backend).up_to(Transact)
    other.purge("p", tree=True)
    try:
        first.finish()
    except NoSuchExecution:
        pass
    assert left(app) == []


def test_a_parent_alone_has_no_trouble_with_a_machine_nobody_knows() -> None:
    app, _ = watched_app(machine(PARENT))
    app.start("parent", id="p")
    app.handle("p", "go")
    app.terminate("p")
    assert app.purge("p", tree=True) and left(app) == []
