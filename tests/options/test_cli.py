"""Each option of each command changes something: a table that is held against the commands as they are found."""

from __future__ import annotations

import http.server
import itertools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import casework
from casework.app.streams import StreamStore
from casework.app.workers import WorkerThread
from casework.errors import Misuse
from casework.relay.serve import RelayServer
from tests.options.command_rows import NOT_SEEN_HERE, ROWS
from tests.options.commands import CALLS, COMMANDS, COMMON, Folder, changes, copied, fill, having

Fresh = Callable[[], Folder]
WITH_TOKEN = tuple(having("--token"))


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


@pytest.fixture
def fresh(filled: Path, tmp_path: Path, looked_at: None) -> Fresh:
    """A filled folder each time."""
    count = itertools.count()
    return lambda: copied(filled, tmp_path / str(next(count)))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would run until it is stopped says what it was given, and ends; what follows ends with the first line."""

    def work(thread: WorkerThread) -> None:
        sys.stdout.write(f"{thread.worker.options} {thread.worker.rt.options}\n")
        logging.getLogger("casework").info("an attempt failed")

    def tail(streams: StreamStore, *given: Any) -> Iterator[casework.Op]:
        yield from itertools.islice(followed(streams, *given), 3)
        raise KeyboardInterrupt

    async def serve(server: RelayServer, sockets: Any = None) -> None:
        sys.stdout.write(f"host {server.config.host}\nport {server.config.port}\n{server.relay.settings}")

    def demo(options: Any, console: Any) -> None:
        raise Misuse(f"{options} {'shown' if console else 'silent'}")

    followed = StreamStore.tail
    monkeypatch.setattr(StreamStore, "tail", tail)
    monkeypatch.setattr(WorkerThread, "run", work)
    monkeypatch.setattr(RelayServer, "serve", serve)
    monkeypatch.setattr("casework.demo.run.run_demo", demo)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.set_threshold", lambda *sizes: None)


def test_every_command_has_a_call_and_every_option_a_row() -> None:
    assert set(CALLS) == set(COMMANDS)
    own = {(command, option) for command, options in COMMANDS.items() for option in options if option not in COMMON}
    rows = {(command, option) for command, options in ROWS.items() for option in options}
    assert own - {(command, "--token") for command in WITH_TOKEN} == rows | NOT_SEEN_HERE


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in ROWS.items() for option in options]
)
def test_an_option_changes_something(command: str, option: str, fresh: Fresh) -> None:
    assert option in ROWS[command][option].given
    changes(ROWS[command][option], command, fresh)


@pytest.mark.parametrize("command", having("--store"))
def test_the_store_is_the_one_on_the_line_or_of_the_environment(command: str, fresh: Fresh) -> None:
    call = (*command.split(), *CALLS[command])
    shell = fresh()
    said = shell.told(*call, "--store", "of-the-line")
    assert "'of-the-line'" in said and said.endswith("exit 2\n")
    assert "'of-the-line'" in shell.told(*call, "--store", "of-the-line", CASEWORK_STORE="of-the-environment")
    assert ("'of-the-environment'" in shell.told(*call, CASEWORK_STORE="of-the-environment")) == (command != "demo")


@pytest.mark.parametrize("command", having("--app"))
def test_the_application_is_the_one_on_the_line_or_of_the_environment(command: str, fresh: Fresh) -> None:
    call = (*command.split(), *(() if command in ("check", "simulate") else CALLS[command]))
    seen = "has no machines" if command in ("check", "simulate") else "'of-the-application'"
    shell = fresh()
    assert seen not in shell.told(*call)
    for said in (
        shell.told(*call, "--app", "shopapp:elsewhere"),
        shell.told(*call, CASEWORK_APP="shopapp:elsewhere"),
        shell.told(*call, "--app", "shopapp:elsewhere", CASEWORK_APP="nowhere:application"),
    ):
        assert seen in said and said.endswith("exit 2\n")


NOT_DONE = {"demo": "silent", "dynamodb verify": "dynamodb"}
"""Commands that do not come to their end here, and what they say then."""


@pytest.mark.parametrize("command", having("--json"))
def test_json_is_another_answer_and_one_that_is_json(command: str, fresh: Fresh) -> None:
    call = (*command.split(), *CALLS[command])
    plain, done = fresh().ended(*call), fresh().ended(*call, "--json")
    if command in NOT_DONE:
        assert NOT_DONE[command] in done.stderr
        return
    assert done.returncode == plain.returncode == 0
    assert done.stdout != plain.stdout
    for document in done.stdout.splitlines() if command == "streams read" else [done.stdout]:
        json.loads(document)


@pytest.mark.parametrize("command", having("--debug"))
def test_debug_shows_where_an_error_was_raised(command: str, fresh: Fresh) -> None:
    shell = fresh()
    call = [*command.split(), *CALLS[command]]
    if "--store" in COMMANDS[command]:
        call += ["--store", "nonsense"]
    elif "--prefix" in COMMANDS[command]:
        call += ["--prefix", "?"]
    elif command == "new":
        call[-1] = "class"
    else:
        call = [each.replace("r.replica", "no.replica").replace("shop:order", "no:order") for each in call]
    if command == "replica init":
        call[call.index("s")] = "a/b"
    assert "Traceback" not in shell.told(*call)
    assert "Traceback" in shell.told(*call, "--debug")


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A relay that refuses everybody, and the tokens that it was shown."""
    tokens: list[str] = []

    class Refusing(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, *told: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tokens
        server.shutdown()


@pytest.mark.parametrize("command", WITH_TOKEN)
def test_the_relay_is_shown_the_token_of_the_line_or_of_the_environment(
    command: str, fresh: Fresh, asked: tuple[str, list[str]]
) -> None:
    url, tokens = asked
    shell = fresh()
    shell.run("replica", "init", "own.replica", "--stream", "s", "--relay", url)
    shell.run("replica", "append", "own.replica", "x")
    call = (*command.split(), "own.replica")
    assert "exit 0" not in shell.told(*call, "--token", "line", CASEWORK_RELAY_TOKEN="environment")
    assert set(tokens) == {"Bearer line"}
    shell.told(*call, CASEWORK_RELAY_TOKEN="environment")
    assert set(tokens) == {"Bearer line", "Bearer environment"}
