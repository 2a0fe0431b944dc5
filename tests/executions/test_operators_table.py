"""Every operator's action in every status, once and twice: what docs/how-to/control.md says of it, on every store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.backends.drive import run
from casework.cli.app import app as command_line
from casework.errors import Misuse, NoSuchExecution
from casework.executions import control
from casework.kernel.effects import Transact
from casework.kernel.items import Delete
from casework.statechart import Machine
from tests.executions.watching import ByHand, machine, work
from tests.streams.stores import STORES, open_store

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "control.md"

ORDER = """
id: order
context: {}
initial: open
states:
  open:
    on: {Break: {actions: fix}, Finish: over, Note: {actions: fix}, cancel: refunding}
    after: {1h: over}
  refunding: {after: {1h: over}}
  over: {type: final}
"""

PARENT = """
id: parent
initial: a
states: {a: {invoke: {id: kid, src: {machine: order}}}}
"""


def table() -> dict[tuple[str, str], str]:
    """(action, situation) -> what the page says comes of it."""
    text = PAGE.read_text("utf-8").partition("## What each does")[2]
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line[:1] == "|"]
    situations = rows[0][1:]
    return {
        (row[0].replace("`", ""), situation): cell
        for row in rows[2:]
        for situation, cell in zip(situations, row[1:], strict=True)
    }


TABLE = table()
ACTIONS = list(dict.fromkeys(action for action, _ in TABLE))
SITUATIONS = list(dict.fromkeys(situation for _, situation in TABLE))

broken = [False]


def machines(action: str) -> list[Machine]:
    text = ORDER.replace(", cancel: refunding", "") if action == "cancel, machine does not" else ORDER
    order, parent = machine(text), machine(PARENT)

    @order.action(name="fix")
    def fix(context: Any, event: Any) -> None:
        if broken[0] and event.type == "Break":
            raise ValueError("broken")

    return [order, parent]


def app_of(backend: Any, action: str) -> App:
    core = Core(machines(action), make_options(), None)
    prepare(core, backend, create=True)
    return App(core, backend, owns_backend=False)


def bring_to(app: App, situation: str, takes_cancel: bool) -> str:
    """An execution in that situation; its id."""
    if situation == "pending":
        app.start("parent", id="p")
        return str(app.inspect("p").children[0].children[0]["id"])
    app.start("order", id="x")
    broken[0] = situation in ("failed", "driven on")
    if situation in ("failed", "driven on"):
        app.handle("x", "Break")
    broken[0] = False
    if situation == "driven on":
        app.redrive("x")
    elif situation == "cleaning up" and takes_cancel:
        app.cancel("x")
    elif situation == "suspended":
        app.suspend("x")
    elif situation == "done":
        app.handle("x", "Finish")
    elif situation in ("cancelled", "purging"):
        app.terminate("x")
    if situation == "purging":
        purge = ByHand(control.purge(app.core.rt, "x"), app.backend)
        purge.up_to().perform()
        purge.up_to(lambda effect: isinstance(effect, Transact) and any(isinstance(w, Delete) for w in effect.writes))
        purge.program.close()
        app.core.forget("x")
    return "x"


METHODS: dict[str, Callable[[Any, str], Any]] = {
    "cancel, machine takes it": lambda app, id: app.cancel(id),
    "cancel, machine does not": lambda app, id: app.cancel(id),
    "terminate": lambda app, id: app.terminate(id),
    "suspend": lambda app, id: app.suspend(id),
    "resume": lambda app, id: app.resume(id),
    "retry": lambda app, id: app.retry(id),
    "redrive": lambda app, id: app.redrive(id),
    "redrive --skip": lambda app, id: app.redrive(id, skip=True),
    "migrate to what it runs": lambda app, id: app.migrate(id),
    "purge": lambda app, id: app.purge(id),
}


def test_every_action_of_the_page_is_tried() -> None:
    assert sorted(METHODS) == sorted(ACTIONS) and len(SITUATIONS) == 9 and len(TABLE) == 90


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Any]:
    yield from open_store(request, tmp_path, unique)


def check(app: App, id: str, act: Callable[[], Any], expected: str) -> None:
    """Act twice: the first has the result that the page names, the second changes nothing more."""
    before = app.get(id)
    if expected == "refused":
        for _ in range(2):
            with pytest.raises(Misuse):
                act()
            assert app.get(id) == before, "nothing was changed"
    elif expected == "gone":
        act()
        for _ in range(2):
            with pytest.raises(NoSuchExecution):
                act()
    else:
        act()
        after = app.get(id)
        assert after.status == expected
        act()
        assert app.get(id) == after, "a repeat changes nothing"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_in_every_status_does_what_the_page_says_and_twice_is_as_once(store: Any, action: str) -> None:
    for number, situation in enumerate(SITUATIONS):
        app = app_of(store, action)
        id = bring_to(app, situation, takes_cancel=action != "cancel, machine does not")
        try:
            check(app, id, lambda app=app, id=id: METHODS[action](app, id), TABLE[action, situation])  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"{situation}: {error}") from error
        for left in (id, "p"):
            try:
                app.purge(left, force=True)
            except NoSuchExecution:
                pass
        assert number < 9


@pytest.mark.parametrize("action", ACTIONS)
def test_with_coroutines_it_is_the_same(tmp_path: Path, action: str) -> None:
    async def twice(situation: str, id: str, url: str) -> None:
        async with casework.open_async(url, machines=machines(action)) as app:
            expected = TABLE[action, situation]
            for turn in range(2):
                if expected == "refused":
                    with pytest.raises(Misuse):
                        await METHODS[action](app, id)
                elif expected == "gone" and turn:
                    with pytest.raises(NoSuchExecution):
                        await METHODS[action](app, id)
                else:
                    done = await METHODS[action](app, id)
                    assert expected == "gone" or done.status == expected, situation

    for number, situation in enumerate(SITUATIONS):
        url = f"sqlite:///{tmp_path}/{number}.db"
        with casework.open(url, machines=machines(action)) as app:
            id = bring_to(app, situation, takes_cancel=action != "cancel, machine does not")
        asyncio.run(twice(situation, id, url))


CODE = '''
import casework
order = casework.Machine.from_yaml("""{text}""")
parent = casework.Machine.from_yaml("""{parent}""")
@order.action
def fix(context, event):
    pass
'''


@pytest.mark.parametrize("action", ACTIONS)
def test_on_the_command_line_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    text = ORDER.replace(", cancel: refunding", "") if action == "cancel, machine does not" else ORDER
    name = "shop_" + re.sub(r"\W", "_", action)
    (tmp_path / f"{name}.py").write_text(CODE.format(text=text, parent=PARENT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command, *options = action.partition(",")[0].removesuffix(" to what it runs").split()
    if command in ("cancel", "redrive", "migrate"):
        options += ["--machine", f"{name}:order"]
    for number, situation in enumerate(SITUATIONS):
        url = f"sqlite:///{tmp_path}/{number}.db"
        with casework.open(url, machines=machines(action)) as app:
            id = bring_to(app, situation, takes_cancel=action != "cancel, machine does not")
        expected = TABLE[action, situation]
        for turn in range(2):
            with pytest.raises(SystemExit) as ended:
                command_line([command, id, *options, "--store", url])
            code = ended.value.code or 0
            said = capsys.readouterr()
            wanted = 2 if expected == "refused" or (expected == "gone" and turn) else 0
            assert code == wanted, f"{situation}, turn {turn}: {said}"


# --- what must not end a clean-up


def test_a_cancel_of_a_suspended_execution_lets_its_clean_up_run(store: Any) -> None:
    app = app_of(store, "cancel, machine takes it")
    app.start("order", id="x")
    app.send("x", "Note")
    app.suspend("x")
    assert app.cancel("x").configuration == ["refunding"] == app.cancel("x").configuration
    work(app, "x")
    assert app.get("x").status == "running" and app.inspect("x").messages == []


def test_a_cancel_after_a_cancel_event_that_somebody_sent_does_not_end_the_clean_up(store: Any) -> None:
    app = app_of(store, "cancel, machine takes it")
    app.start("order", id="x")
    app.handle("x", "cancel")
    for _ in range(2):
        assert app.cancel("x").configuration == ["refunding"] and app.get("x").status == "running"
    assert app.terminate("x").status == "cancelled"


def test_a_cancel_from_a_process_without_the_machine_does_not_pass_over_its_clean_up(store: Any) -> None:
    app = app_of(store, "cancel, machine takes it")
    app.start("order", id="x")
    core = Core([], make_options(), None)
    prepare(core, store, create=True)
    other = App(core, store, owns_backend=False)
    with pytest.raises(Misuse, match="or terminate it"):
        other.cancel("x")
    assert app.get("x").configuration == ["open"]
    app.cancel("x")
    assert other.cancel("x").status == "running", "it is asked already"
    assert other.terminate("x").status == "cancelled"
    assert run is not None
