"""What a transaction has begun and a query does not see yet: a suspend sets it aside, a purge waits for it.

On DynamoDB the items of a transaction become visible one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from casework.backends.drive import run
from casework.errors import Contention
from casework.executions import control
from casework.executions.tasks import claim_task
from casework.kernel.effects import Transact
from casework.kernel.items import Item, Key
from casework.kernel.schema import EXECUTIONS
from tests.executions.test_children import QUICK
from tests.executions.test_children_listed import STARTED, settle
from tests.executions.test_tasks import with_task
from tests.executions.watching import ByHand, items_of, machine, overwrite, watched_app


def hide(backend: Any, place: Key) -> Item:
    """The item is there for writes, and no query shows it yet."""
    item: Item = backend.tables.get(place)
    backend.tables.stored(EXECUTIONS).store(place, None)
    return item


def touches(place: Key) -> Callable[[Any], bool]:
    return lambda effect: isinstance(effect, Transact) and any(write.key == place for write in effect.writes)


def meets(hand: ByHand, place: Key, backend: Any, item: Item) -> None:
    """A write that meets the transaction is refused; then the item shows."""
    hand.up_to(touches(place)).lose_answer(Contention("an item is in another transaction"), applied=False)
    overwrite(backend, item)
    hand.finish()


def test_a_suspend_sets_a_task_aside_that_no_query_shows_yet() -> None:
    app, backend, place = with_task()
    item = hide(backend, place)
    meets(ByHand(control.suspend(app.core.rt, "p"), backend), place, backend, item)
    assert "pending" not in backend.tables.get(place)
    assert run(claim_task(app.core.rt, place), backend) is None
    app.resume("p")
    assert run(claim_task(app.core.rt, place), backend) is not None


def test_a_suspend_sets_a_task_aside_that_is_being_put_back_and_does_not_show_it_yet() -> None:
    app, backend, place = with_task()
    item = backend.tables.get(place)
    overwrite(backend, {name: value for name, value in item.items() if name != "pending"})
    meets(ByHand(control.suspend(app.core.rt, "p"), backend), place, backend, item)
    assert "pending" not in backend.tables.get(place)


def test_a_suspend_of_one_whose_task_has_ended_just_now_is_done() -> None:
    app, backend, place = with_task()
    hide(backend, place)
    assert app.suspend("p").status == "suspended"
    assert backend.tables.get(place) is None


def test_a_purge_of_a_tree_takes_children_whose_note_no_query_shows_yet() -> None:
    app, backend = watched_app(machine(STARTED), machine(QUICK))
    app.start("parent", id="p", input={"inputs": [1, 2]})
    settle(app)
    assert app.get("p").status == "done"
    (note,) = items_of(backend, "p", "f/")
    place = EXECUTIONS.key_of(note)
    hide(backend, place)
    meets(ByHand(control.purge(app.core.rt, "p", tree=True), backend), place, backend, note)
    assert backend.tables.stored(EXECUTIONS).items == {}


def test_a_purge_by_force_takes_a_task_that_no_query_shows_yet() -> None:
    app, backend, place = with_task()
    item = hide(backend, place)
    meets(ByHand(control.purge(app.core.rt, "p", force=True), backend), place, backend, item)
    assert items_of(backend, "p") == []
