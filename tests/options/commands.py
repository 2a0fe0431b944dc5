"""The commands as they are found, and a folder on which each of them has something to do.

``CALLS`` has the smallest call of each command that does something there; what every option changes is seen beside it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

import casework
from casework.app.sync import App
from casework.backends.drive import run
from casework.cli.app import app as command_line
from casework.kernel.effects import Flag
from casework.replica import Replica
from casework.streams import cursors
from casework.streams.consumer import Consumer, ConsumerOptions
from casework.streams.consumer import follow as consume
from tests.cli.conftest import DEFINITION, FUNCTIONS, Shell


class Option(NamedTuple):
    """An option as its command has it."""

    name: str
    kind: Any
    is_flag: bool
    envvar: str | None


def _walk(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(found, "commands", {}).items():
        yield from _walk(each, (*path, name))
    if not hasattr(found, "commands"):
        yield " ".join(path), found


def _options(command: Any) -> Iterator[Option]:
    for each in command.params:
        if each.param_type_name == "option":
            yield Option(each.opts[0], each.type_descriptor.annotation, each.is_flag, each.envvar)


COMMANDS: dict[str, dict[str, Option]] = {
    name: {option.name: option for option in _options(command)}
    for name, command in _walk(typer.main.get_command(command_line))
}
"""The options of each command, by name."""

COMMON = ("--app", "--store", "--json", "--debug")
"""One rule each, for all commands that have them."""


def having(option: str) -> list[str]:
    """The commands with an option of that name."""
    return [command for command, options in COMMANDS.items() if option in options]


RELAY = "http://127.0.0.1:9"
"""Nobody listens there."""

CALLS: dict[str, tuple[str, ...]] = {
    "demo": (),
    "new": ("ticket",),
    "check": ("shop:order",),
    "simulate": ("shop:order", "--runs", "2", "--seed", "1", "--may-fail"),
    "start": ("shop:order",),
    "send": ("o-1", "Paid"),
    "worker": ("shop:order",),
    "wait": ("e-1",),
    "show": ("o-1",),
    "list": (),
    "trace": ("o-1",),
    "cancel": ("o-1",),
    "terminate": ("o-1",),
    "suspend": ("o-1",),
    "resume": ("o-1",),
    "retry": ("o-1",),
    "redrive": ("f-1", "--machine", "shop:order"),
    "purge": ("e-1",),
    "migrate": ("o-1", "--machine", "shop:order"),
    "settings": (),
    "relay": (),
    "token create": ("s=read",),
    "token list": (),
    "token revoke": ("none",),
    "streams list": (),
    "streams head": ("s",),
    "streams read": ("s",),
    "streams append": ("s", "op-9", "x"),
    "streams truncate": ("s", "2"),
    "streams repair": ("s",),
    "streams groups": (),
    "streams seek": ("parks", "s", "--to", "floor"),
    "streams resume": ("stops", "s"),
    "streams parked": ("parks", "s"),
    "streams replay": ("parks", "s"),
    "replica init": ("new.replica", "--stream", "s", "--relay", RELAY),
    "replica append": ("r.replica", "x"),
    "replica push": ("r.replica",),
    "replica pull": ("r.replica",),
    "replica sync": ("r.replica",),
    "replica read": ("r.replica",),
    "replica tail": ("r.replica",),
    "replica rebase": ("r.replica",),
    "replica status": ("r.replica",),
    "replica differences": ("r.replica",),
    "replica unpark": ("r.replica", "parked"),
    "dynamodb create": (),
    "dynamodb verify": (),
    "dynamodb template": (),
    "dynamodb iam": (),
    "idempotency show": ("shop.pay/1",),
    "idempotency list": (),
    "idempotency release": ("shop.pay/1",),
    "idempotency purge": ("shop.pay/1",),
}

APPLICATION = """\
import casework
from shop import order


class Codec:
    name = "plain"

    def encode(self, text):
        return text

    def decode(self, text):
        return text


def elsewhere():
    return {"store": "of-the-application"}


def coded():
    return {"codec": Codec()}
"""
FAMILY = """\
import casework

parent = casework.Machine.from_yaml(
    "{id: parent, initial: a, states: {a: {invoke: {src: {machine: child}, onDone: b}}, b: {type: final}}}"
)
child = casework.Machine.from_yaml("{id: child, initial: a, states: {a: {on: {Go: {}}}}}")
ended = casework.Machine.from_yaml("{id: ended, initial: a, states: {a: {type: final}}}")
asked = casework.Machine.from_yaml(
    "{id: asked, initial: a, states: {a: {on: {cancel: b}}, b: {}}}"
)
later = casework.Machine.from_yaml("{id: later, initial: a, states: {a: {}, b: {type: final}}}")
"""


def fill(folder: Path) -> None:
    """Write what the calls find: machines, executions, a stream with groups, keys, replicas."""
    for name, text in (
        ("order.yaml", DEFINITION), ("shop.py", FUNCTIONS), ("shopapp.py", APPLICATION), ("family.py", FAMILY),
        ("warns.yaml", "{id: warns, initial: a, states: {a: {}, b: {}}}\n"),
        ("events.yaml", "{script: [Paid, Ship], tasks: {ship: {returns: x, fails: 1.0, final: true}}}\n"),
        ("lines.jsonl", '{"id": "of-a-line", "data": "x"}\n'),
    ):  # fmt: skip
        (folder / name).write_text(text)
    order = casework.Machine.load(folder / "order.yaml")
    order.task(name="ship")(lambda task: None)
    made: dict[str, Any] = {}
    exec(FAMILY, made)
    family = [each for each in made.values() if isinstance(each, casework.Machine)]
    with casework.open(f"sqlite:///{folder}/casework.db", machines=[order, *family], create=True, trace_max=9) as app:
        for id in ("o-1", "f-1"):
            app.start("order", id=id)
        app.handle("f-1", "Fail")
        app.start("ended", id="e-1")
        app.start("asked", id="a-1")
        app.start("parent", id="p-1")
        app.terminate("p-1")
        app.idempotency.claim("shop.pay/1", "", 1, 3600)
        token = app.idempotency.claim("shop.pay/2", "", 1, 3600).token
        app.idempotency.complete("shop.pay/2", str(token), 200, [], b"", None)
        for n in (1, 2, 3):
            app.streams.append("s", [casework.Op(f"op-{n}", b"x")])
        follow(app, "parks", on_poison="park")
        follow(app, "stops", on_poison="stop")
    with Replica(folder / "r.replica", stream="s", relay=RELAY) as replica:
        replica.append(b"x", id="parked")
        replica.file.park("parked", "no room")
        replica.append(b"x", id="waits")
        replica.file.store_page(0, [casework.Op("far-1", b"x", 1), casework.Op("far-2", b"x", 2)], 2, "", 0)


def follow(app: App, group: str, **options: Any) -> None:
    """Let a group of consumers fail at everything."""
    leave = Flag()

    def fail(op: Any, writes: Any) -> None:
        if op.seq == 3:
            leave.set()
        raise ValueError(f"{group} cannot")

    consumer = Consumer(app.streams.log, group, ["s"], fail, ConsumerOptions(attempts_max=1, **options))
    consumer.token = "me"
    cursor = run(cursors.take(group, "s", "me", 30), app.backend)
    assert cursor is not None
    run(consume(consumer, cursor, leave), app.backend)


def stored(folder: Path) -> dict[str, Any]:
    """All that stands in a folder: databases by their rows, other files by their bytes."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or path.name.endswith(("-wal", "-shm")) or path.is_dir():
            continue
        if path.suffix in (".db", ".replica"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                found[path.name] = "\n".join(connection.iterdump())
        else:
            found[path.name] = path.read_bytes()
    return found


class Row(NamedTuple):
    """An option beside the same call without it: what is seen with it alone, or gone with it alone."""

    given: tuple[str, ...]
    """The option, as it is written."""
    seen: str = ""
    """A pattern that is found with the option and not without."""
    gone: str = ""
    """A pattern that is found without the option and not with it."""
    call: tuple[str, ...] | None = None
    """Arguments of the command; None: those of ``CALLS``."""
    without: tuple[str, ...] = ()
    """What stands in the option's place without it."""
    then: tuple[str, ...] = ()
    """Looked at afterwards, instead of what the call prints."""
    first: tuple[tuple[str, ...], ...] = ()
    """Calls before it."""


class Folder(Shell):
    """A filled folder with the command line in it; commands that would run for long are only looked at."""

    def told(self, *args: str, **variables: str) -> str:
        """All that a call prints, with its exit code: both streams as one text."""
        done = self.ended(*args, **variables)
        return f"{done.stdout}{done.stderr}exit {done.returncode}\n"

    def ended(self, *args: str, **variables: str) -> Any:
        """As ``run``, whatever the exit code is."""
        with process_kept():
            return self.run(*args, code=None, **variables)

    def environment(self, **variables: str) -> dict[str, str]:
        found = super().environment()
        return {**{name: text for name, text in found.items() if not name.startswith("CASEWORK_")}, **variables}


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """The handlers of signals and of the log as they were: a worker sets its own."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    handlers, level = logging.root.handlers, logging.root.level
    logging.root.handlers = []
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        logging.root.handlers = handlers
        logging.root.setLevel(level)


def copied(filled: Path, folder: Path) -> Folder:
    """A filled folder of the caller's own."""
    shutil.copytree(filled, folder)
    return Folder(folder)


RATES = re.compile(r'"(seconds|seeds_per_s|steps_per_s)": .*')


def changes(row: Row, command: str, fresh: Callable[[], Folder]) -> None:
    """AssertionError where an option does not change what its row says."""
    looks = []
    for given in (row.without, row.given):
        shell = fresh()
        for before in row.first:
            shell.run(*before)
        text = shell.told(*command.split(), *(CALLS[command] if row.call is None else row.call), *given)
        looks.append(shell.told(*row.then) if row.then else text)
        looks[-1] += f"files {' '.join(sorted(path.name for path in shell.folder.iterdir()))}\n"
    without, with_it = looks
    if not row.seen and not row.gone:
        assert RATES.sub("", without) != RATES.sub("", with_it), without
    for pattern, has, has_not in ((row.seen, with_it, without), (row.gone, without, with_it)):
        if pattern:
            assert re.search(pattern, has, re.MULTILINE), f"{pattern!r} is not in {has!r}"
            assert not re.search(pattern, has_not, re.MULTILINE), f"{pattern!r} is in {has_not!r}, too"
