"""Bad input: one line that says what to do, exit code 2, and nothing written."""

from __future__ import annotations

import json
import sqlite3
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import casework
from tests.cli.conftest import Shell


def stored(folder: Path) -> list[tuple[object, ...]]:
    """Every row of the executions."""
    with sqlite3.connect(folder / "casework.db") as connection:
        rows = connection.execute("select * from executions order by 1, 2").fetchall()
    connection.close()
    return rows


@pytest.fixture
def started(shell: Shell) -> Shell:
    shell.run("start", "order.yaml", "--id", "o-1")
    return shell


def test_a_broken_yaml_file_is_refused_with_every_problem_and_its_line(shell: Shell) -> None:
    (shell.folder / "broken.yaml").write_text("id: x\ninitial: nowhere\nstates:\n  a:\n    onn: {}\n  b: {type: odd}\n")
    for command in (("check", "broken.yaml"), ("start", "broken.yaml"), ("worker", "broken.yaml")):
        said = shell.refused(*command)
        assert "broken.yaml:5" in said and "onn" in said
        assert "broken.yaml:6" in said and "odd" in said
    (shell.folder / "torn.yaml").write_text("id: [x\n")
    assert "torn.yaml:" in shell.refused("start", "torn.yaml")
    assert not (shell.folder / "casework.db").exists()


def test_an_unknown_event_is_refused_with_the_known_ones(started: Shell) -> None:
    before = stored(started.folder)
    said = started.refused("send", "o-1", "Payed")
    assert "Payed" in said and "Paid" in said
    assert len(said.splitlines()) == 1
    assert stored(started.folder) == before


def test_an_unknown_id_is_refused_by_every_command(started: Shell) -> None:
    before = stored(started.folder)
    for command in ("show", "trace", "cancel", "terminate", "suspend", "resume", "retry", "purge"):
        assert "nobody" in started.refused(command, "nobody")
    for command in ("redrive", "migrate"):
        assert "nobody" in started.refused(command, "nobody", "--machine", "shop:order")
    assert "nobody" in started.refused("send", "nobody", "Paid")
    assert stored(started.folder) == before


@pytest.mark.parametrize(
    "url",
    ["postgres://host/db", "sqlite://two-slashes.db", "sqlite:///", "dynamodb://?regoin=x", "memory:", "nonsense"],
)
def test_a_store_that_cannot_work_is_refused(shell: Shell, url: str) -> None:
    for command in (("list",), ("start", "order.yaml"), ("send", "o-1", "Paid"), ("worker", "shop:order")):
        said = shell.refused(*command, "--store", url)
        assert len(said.splitlines()) == 1
    assert {path.name for path in shell.folder.iterdir()} <= {"order.yaml", "shop.py", "__pycache__"}


def test_a_file_that_is_not_there_is_not_made_by_looking(shell: Shell) -> None:
    for command in (("list",), ("show", "o-1"), ("send", "o-1", "Paid"), ("purge", "o-1")):
        assert "missing.db" in shell.refused(*command, "--store", "sqlite:///missing.db")
    assert not (shell.folder / "missing.db").exists()


def test_a_file_that_is_no_database_is_left_alone(shell: Shell) -> None:
    (shell.folder / "text.db").write_text("this is not a database, " * 50)
    assert "text.db" in shell.refused("list", "--store", "sqlite:///text.db")
    assert (shell.folder / "text.db").read_text() == "this is not a database, " * 50


def test_looking_makes_nothing_in_the_database_of_somebody_else(shell: Shell) -> None:
    with sqlite3.connect(shell.folder / "other.db") as connection:
        connection.execute("create table users (name text)")
    connection.close()
    (shell.folder / "empty.db").touch()
    before = (shell.folder / "other.db").read_bytes()
    for command in (
        ("list",), ("list", "--dead"), ("show", "o-1"), ("trace", "o-1"), ("wait", "o-1"), ("send", "o-1", "Paid"),
        ("purge", "o-1"), ("settings",), ("streams", "list"), ("streams", "head", "s"), ("streams", "read", "s"),
        ("token", "list"), ("idempotency", "list"), ("idempotency", "show", "k"),
    ):  # fmt: skip
        said = shell.refused(*command, "--store", "sqlite:///other.db")
        assert "other.db' has no tables of casework's (it holds users)" in said and len(said.splitlines()) == 1
        assert "(it is empty)" in shell.refused(*command, "--store", "sqlite:///empty.db")
    assert (shell.folder / "other.db").read_bytes() == before and (shell.folder / "empty.db").read_bytes() == b""
    assert not list(shell.folder.glob("*.db-*"))


def test_an_interrupt_while_the_commands_are_imported_is_no_traceback(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> object:
        raise KeyboardInterrupt

    module = types.ModuleType("casework.cli.app")
    monkeypatch.setattr(module, "__getattr__", interrupt, raising=False)
    monkeypatch.setitem(sys.modules, "casework.cli.app", module)
    assert shell.run("list", code=130).stderr == "casework: interrupted\n"


BANK = """\
import casework

loan = casework.Machine.from_yaml(
    "{id: loan, initial: a, states: {a: {invoke: {src: {machine: check}, onDone: b}}, b: {type: final}}}"
)
check = casework.Machine.from_yaml("{id: check, initial: a, states: {a: {type: final}}}")
acting = casework.Machine.from_yaml("{id: acting, initial: a, states: {a: {entry: act}}}")
"""


def test_a_start_without_the_other_machines_says_how_to_name_them(shell: Shell) -> None:
    (shell.folder / "bank.py").write_text(BANK)
    said = shell.refused("start", "bank:loan")
    assert "machine 'check'" in said and "`casework start loan --machine bank`" in said
    assert shell.run("start", "loan", "--machine", "bank", "--id", "l-1").stdout == "l-1\n"
    assert "register them in 'bank'" in shell.refused("start", "bank:acting")
    (shell.folder / "loan.yaml").write_text("{id: loan, initial: a, states: {a: {entry: act}}}")
    assert "as MODULE:NAME" in shell.refused("start", "loan.yaml")


def test_a_machine_file_named_without_its_ending_is_hinted_at(shell: Shell) -> None:
    (shell.folder / "my-loan.json").write_text("{}")
    for command in ("start", "check", "worker"):
        assert "did you mean order.yaml?" in shell.refused(command, "order")
        assert "did you mean my-loan.json?" in shell.refused(command, "my-loan")
        assert "did you mean" not in shell.refused(command, "nothing")


def test_a_worker_on_a_store_that_takes_no_writes_does_not_begin(
    started: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    monkeypatch.setattr("casework.backends.sqlite.committing.begin", refuse)
    said = started.refused("worker", "shop:order")
    assert "cannot begin" in said and "read-only" in said and len(said.splitlines()) == 1


def test_looking_makes_no_tables_beside_those_of_another_component(shell: Shell) -> None:
    casework.SqliteIdempotencyStore(shell.folder / "keys.db").backend.close()
    said = shell.refused("list", "--store", "sqlite:///keys.db")
    assert "lacks tables" in said and "`casework start`" in said
    assert "nothing to list" in shell.run("idempotency", "list", "--store", "sqlite:///keys.db").stderr


def test_missing_tables_are_refused_with_the_way_to_make_them(
    shell: Shell, ministack_url: str, unique: Callable[[str], str]
) -> None:
    url = f"dynamodb://?endpoint={ministack_url}&region=eu-west-1&prefix={unique('none')}"
    for command in (("list",), ("start", "order.yaml"), ("send", "o-1", "Paid")):
        assert "casework dynamodb create" in shell.refused(*command, "--store", url)
    assert shell.run("dynamodb", "verify", "--store", url, code=1).stdout.count("missing") >= 1
    shell.run("dynamodb", "create", "--store", url)
    assert shell.run("dynamodb", "verify", "--store", url).stdout == "all is well\n"
    assert shell.run("start", "order.yaml", "--id", "o-1", "--store", url).stdout == "o-1\n"


def test_a_too_large_context_is_refused(started: Shell) -> None:
    before = stored(started.folder)
    (started.folder / "large.yaml").write_text(
        "id: large\ncontext: {all: {expr: input.all}}\ninitial: a\nstates: {a: {}}\n"
    )
    (started.folder / "large.json").write_text(json.dumps({"all": "x" * 500_000}))
    said = started.refused("start", "large.yaml", "--id", "big", "--input", "@large.json")
    assert "execution 'big' cannot be started, since its input is too large" in said and "the limit is" in said
    assert stored(started.folder) == before


@pytest.mark.parametrize("data", ['{"a": NaN}', '{"a": [1, Infinity]}', '{"a": 1e999}', "{a: 1}", "@missing.json", ""])
def test_a_payload_that_is_not_json_is_refused(started: Shell, data: str) -> None:
    before = stored(started.folder)
    assert len(started.refused("send", "o-1", "Paid", data).splitlines()) == 1
    assert len(started.refused("start", "order.yaml", "--id", "x", "--input", data).splitlines()) == 1
    assert stored(started.folder) == before


@pytest.mark.parametrize(
    "place", ["nowhere.yaml", "nowhere:order", "shop:nothing", "shop:casework", "no such", "json", ":order"]
)
def test_a_machine_that_cannot_be_found_is_refused(shell: Shell, place: str) -> None:
    assert len(shell.refused("start", place).splitlines()) == 1
    assert not (shell.folder / "casework.db").exists()


def test_a_module_that_breaks_is_refused_with_its_line(shell: Shell) -> None:
    (shell.folder / "bad.py").write_text("x = 1\nx / 0\n")
    assert "bad.py:2" in shell.refused("worker", "bad:order")


def test_a_start_that_needs_functions_says_where_they_must_come_from(shell: Shell) -> None:
    text = (shell.folder / "order.yaml").read_text().replace("  open:\n", "  open:\n    entry: greet\n")
    (shell.folder / "acting.yaml").write_text(text)
    said = shell.refused("start", "acting.yaml")
    assert "greet" in said and "MODULE:NAME" in said
    assert not (shell.folder / "casework.db").exists()


def test_a_process_ends_with_these_codes_too(started: Shell) -> None:
    assert started.process("show", "o-1").stderr == ""
    done = started.process("show", "nobody", code=2)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(started: Shell) -> None:
    done = started.run("show", "nobody", "--debug", code=2)
    assert "Traceback" in done.stderr


def test_other_misuse_is_refused(started: Shell) -> None:
    assert "status" in started.refused("list", "--status", "odd")
    assert "limit" in started.refused("list", "--limit", "0")
    assert "cursor" in started.refused("list", "--cursor", "odd")
    assert "priority" in started.refused("send", "o-1", "Paid", "--priority", "9")
    assert "class" in started.refused("new", "class")
    started.run("start", code=2)
    started.run("nonsense", code=2)
