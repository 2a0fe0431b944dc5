"""--app MODULE:FUNCTION: what an application is, for every command, from one place of the program."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import casework
from casework.app.aio import open_app_async
from casework.app.arguments import OpenArguments
from casework.app.sync import open_app
from tests.cli.conftest import Shell

APPLICATION = """\
import base64
import casework
from shop import order


class Codec:
    name = "shop-codec"

    def encode(self, text):
        return "s:" + base64.b64encode(text.encode()).decode()

    def decode(self, text):
        assert text.startswith("s:")
        return base64.b64decode(text[2:]).decode()


def application():
    return {"store": "sqlite:///of-the-app.db", "machines": [order], "codec": Codec(), "trace_max": 9}


def bare():
    return {"store": "sqlite:///of-the-app.db", "machines": [order]}


def over_a_backend():
    from casework.backends.sqlite import SqliteBackend
    return {**application(), "store": SqliteBackend("of-the-app.db"), "create": True}


def misspelt():
    return {"machine": [order]}


def failing():
    raise RuntimeError("no such secret")


nothing = None
"""

APP = ("--app", "shopapp:application")


@pytest.fixture
def app_shell(shell: Shell) -> Shell:
    (shell.folder / "shopapp.py").write_text(APPLICATION)
    return shell


def test_the_mapping_has_the_arguments_of_open() -> None:
    names = set(OpenArguments.__annotations__)
    for function in (open_app, open_app_async):
        assert names == set(inspect.signature(function).parameters)
    assert names == set(inspect.signature(casework.open).parameters)


def test_every_command_works_on_the_application(app_shell: Shell) -> None:
    run = app_shell.run
    run("start", "order", "--id", "o-1", *APP)
    assert not (app_shell.folder / "casework.db").exists()
    run("send", "o-1", "Paid", *APP)
    assert '"paid": 0' in run("show", "o-1", *APP).stdout
    assert "o-1" in run("list", *APP).stdout
    run("suspend", "o-1", *APP)
    run("resume", "o-1", *APP)
    assert "v1" in run("trace", "o-1", *APP).stdout
    assert "shop-codec" in run("settings", *APP).stdout
    assert app_shell.json("check", *APP)["ok"]
    run("streams", "append", "s", "op-1", "x", *APP)
    assert "s" in run("streams", "list", *APP).stdout
    run("token", "create", "*=admin", *APP)
    run("idempotency", "list", *APP)
    run("simulate", "--runs", "2", "--may-fail", *APP)
    run("cancel", "o-1", *APP)
    run("purge", "o-1", "--force", *APP)


def test_a_command_without_the_codec_is_refused_and_streams_need_none(app_shell: Shell) -> None:
    store = ("--store", "sqlite:///of-the-app.db")
    app_shell.run("start", "order", "--id", "o-1", *APP)
    for command in (("show", "o-1"), ("list",), ("send", "o-1", "Paid"), ("cancel", "o-1"), ("worker", "shop:order")):
        said = app_shell.refused(*command, *store)
        assert "the codec 'shop-codec', and this process has no codec" in said and "--app" in said
    app_shell.refused("worker", "--app", "shopapp:bare")
    app_shell.run("streams", "list", *store)
    app_shell.run("token", "create", "*=admin", *store)
    app_shell.run("idempotency", "list", *store)
    assert "shop-codec" in app_shell.run("settings", *store).stdout


def test_the_command_line_goes_before_the_application_and_the_environment_behind_it(
    app_shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEWORK_STORE", "sqlite:///of-the-environment.db")
    app_shell.run("start", "order", "--id", "o-1", *APP)
    app_shell.run("start", "order", "--id", "o-2", *APP, "--store", "sqlite:///of-the-line.db")
    monkeypatch.setenv("CASEWORK_APP", "shopapp:application")
    assert "o-1" in app_shell.run("list").stdout
    assert "o-2" in app_shell.run("list", "--store", "sqlite:///of-the-line.db").stdout
    assert not (app_shell.folder / "of-the-environment.db").exists()


def test_an_application_over_a_backend_of_its_own(app_shell: Shell) -> None:
    app_shell.run("start", "order", "--id", "o-1", "--app", "shopapp:over_a_backend")
    assert "o-1" in app_shell.run("list", *APP).stdout


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("shopapp", "write MODULE:FUNCTION"),
        ("shopappp:application", "there is no module 'shopappp'"),
        ("shopapp:applicatio", "has no 'applicatio'"),
        ("shopapp:nothing", "it must return the arguments of casework.open as a mapping"),
        ("shopapp:misspelt", "gives 'machine', which casework.open does not take (did you mean 'machines'?)"),
        ("shopapp:failing", "shopapp.py:35: RuntimeError: no such secret"),
    ],
)
def test_what_is_no_application_is_refused_with_what_to_write(app_shell: Shell, place: str, said: str) -> None:
    for command in (("list",), ("worker",), ("check",), ("start", "order"), ("streams", "list")):
        assert said in app_shell.refused(*command, "--app", place)
    assert not list(app_shell.folder.glob("*.db"))


def test_commands_that_need_machines_say_both_ways_of_naming_them(app_shell: Shell) -> None:
    for command in (("worker",), ("check",), ("simulate",), ("redrive", "o-1"), ("migrate", "o-1")):
        said = app_shell.refused(*command)
        assert "shop:order" in said and "--app shop:application" in said


def every_command() -> list[Any]:
    import typer.main

    from casework.cli.app import app

    found = []

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for key, each in command.commands.items():
                walk(each, f"{name} {key}".strip())
        else:
            found.append(pytest.param(command, id=name))

    walk(typer.main.get_command(app), "")
    return found


WITHOUT_A_STORE = {"demo", "new", "template", "iam"}


@pytest.mark.parametrize("command", every_command())
def test_every_command_that_takes_a_store_or_machines_takes_an_application(command: Any) -> None:
    options = {option for each in command.params for option in each.opts}
    if command.name in WITHOUT_A_STORE or "file" in options:
        assert "--app" not in options
        return
    assert "--app" in options
