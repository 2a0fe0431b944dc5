"""What each option of ``casework.open`` and ``open_async``, and of an application in virtual time, changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import casework
from casework import LATER, StreamOptions
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.backends.threaded import ThreadedBackend
from casework.executions.advance import advance
from casework.executions.buckets import SETTINGS
from casework.kernel.effects import Transact
from casework.kernel.programs import get
from casework.kernel.schema import EXECUTIONS, STREAM_CLAIMS, TABLES
from casework.testing import VirtualApp
from tests.options.applications import machines
from tests.options.table import SOMETHING, OnLoop, Row, Rows, refusal, row


class Plain:
    """A codec."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


class Opened:
    """An application on a store in memory, as one facade or the other opens it."""

    def __init__(self, kind: str, store: Any = None, *, tables: bool = True, **options: Any) -> None:
        self.backend = MemoryBackend(seed=1, clock=VirtualClock()) if store is None else store
        if tables:
            self.backend.create_tables(TABLES)
        given = {"machines": machines(), **options}
        self._runner: asyncio.Runner | None = None
        if kind == "VirtualApp":
            self.app: Any = VirtualApp(**given)
            self.backend = self.app.backend
        elif kind == "open":
            self.app = casework.open(self.backend, **given)
        else:
            self._runner = asyncio.Runner()
            own = casework.open_async(ThreadedBackend(self.backend), **given)
            try:
                self._runner.run(own.__aenter__())
            except BaseException:
                self._runner.close()
                raise
            self.app = OnLoop(own, self._runner)

    def close(self) -> None:
        """Give back what is held."""
        self.app.close()
        if self._runner is not None:
            self._runner.close()

    def items(self, table: Any) -> list[Any]:
        """What stands in a table."""
        return list(self.backend.tables.stored(table).items.values())


def opened(see: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    """A look at what was opened with an option."""

    def look(kind: str, option: str, value: Any) -> Any:
        own = Opened(kind, **{**given, option: value})
        try:
            return see(own)
        finally:
            own.close()

    return look


def setting(name: str) -> Callable[[Opened], Any]:
    """What stands in the store's settings."""

    def look(own: Opened) -> Any:
        found = run(get(SETTINGS), own.backend)
        assert found is not None
        return found[name]

    return look


def context_of(own: Opened) -> Any:
    """Whether a context stands in the store as it is."""
    own.app.start("lamp", id="x", input={"n": 12345})
    return any("12345" in str(item) for item in own.items(EXECUTIONS))


def forgotten(own: Opened) -> bool:
    """Whether an event's id is unknown after 40 others."""
    own.app.start("lamp", id="x")
    for n in range(40):
        own.app.handle("x", "Add", event_id=f"e-{n}")
    return not own.app.handle("x", "Add", event_id="e-0").is_duplicate


def at_once(own: Opened) -> int:
    """How many of three events one commit takes."""
    own.app.start("lamp", id="x")
    for _ in range(3):
        own.app.send("x", "Add")
    run(advance(own.app.core.rt, "x"), own.backend)
    return int(own.app.get("x").context["n"])


def transactions(own: Opened) -> int:
    """How many transactions begin three children."""
    own.app.start("lamp", id="x")
    execute, made = own.backend.execute, []

    def count(effect: Any) -> Any:
        if isinstance(effect, Transact):
            made.append(effect)
        return execute(effect)

    own.backend.execute = count
    own.app.handle("x", "Fan")
    while run(advance(own.app.core.rt, "x"), own.backend).has_more:
        pass
    return len(made)


def expires(own: Opened) -> bool:
    own.app.streams.append("s", [casework.Op("a", b"")])
    return any("expires_at_s" in item for item in own.items(STREAM_CLAIMS))


def traced(own: Opened) -> int:
    own.app.start("lamp", id="x")
    own.app.handle("x", "Add")
    return len(own.app.trace("x"))


def started(own: Opened) -> str:
    return refusal(lambda: own.app.start("lamp", id="x"))


def in_store(kind: str, option: str, other: bool) -> list[int]:
    """How many executions two stores have, one of which was opened."""
    stores = [MemoryBackend(clock=VirtualClock()) for _ in range(2)]
    own = Opened(kind, stores[other])
    own.app.start("lamp", id="x")
    own.close()
    return [len(each.tables.stored(EXECUTIONS).items) if each.tables._tables else 0 for each in stores]


def made(kind: str, option: str, create: Any) -> str:
    """How an application is opened where there are no tables."""
    try:
        Opened(kind, tables=False, create=create).close()
    except casework.MissingTable as error:
        return type(error).__name__
    return ""


EXECUTION_OPTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, Any], ...]]] = {
    "buckets": (opened(setting("buckets")), ((16, 16), (32, 32))),
    "trace_max": (opened(traced), ((None, 0), (10, 2))),
    "dedupe_window_s": (opened(forgotten), ((0, True), (3600, False))),
    "batch_max": (opened(at_once), ((1, 1), (64, 3))),
    "spill_above": (opened(transactions), ((60, 1), (1, SOMETHING))),
    "spill_part": (opened(transactions, spill_above=1), ((90, SOMETHING), (1, SOMETHING))),
}

OPTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, Any], ...]]] = {
    **EXECUTION_OPTIONS,
    "machines": (opened(started), (([], "UnknownMachine"), (machines(), ""))),
    "codec": (opened(context_of), ((None, True), (Plain(), False))),
}

OF_A_STORE: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, Any], ...]]] = {
    **OPTIONS,
    "store": (in_store, ((False, [1, 0]), (True, [0, 1]))),
    "create": (made, ((False, "MissingTable"), (True, ""))),
    "streams": (opened(expires), ((None, False), (StreamOptions(claims_expire_s=5.0), True))),
}


def of_kind(kind: str, option: str) -> Row:
    """The row of an option of one of them."""
    see, pairs = OF_A_STORE[option]
    return Row(lambda value: see(kind, option, value), pairs)


# --- virtual time -----------------------------------------------------------------------------------------------------


def virtual(**options: Any) -> VirtualApp:
    """An application in virtual time with an execution ``x``."""
    app = VirtualApp(machines(), **options)
    app.start("lamp", id="x")
    return app


def advanced(duration: str) -> str:
    app = virtual()
    app.handle("x", "Later")
    app.advance(duration)
    return app.get("x").status


def faked(task: str, *outcomes: Any) -> Any:
    app = virtual()
    found = refusal(lambda: app.fake(task, *outcomes))
    app.handle("x", "On")
    return found or app.wait("x").context["out"]


def called(task: str) -> int:
    app = virtual()
    app.fake("shine", LATER)
    app.handle("x", "On")
    app.settle()
    return len(app.calls(task))


VIRTUAL: Rows = {
    "VirtualApp": {
        **{option: Row(lambda value, option=option: OF_A_STORE[option][0]("VirtualApp", option, value), pairs)
           for option, (_, pairs) in OF_A_STORE.items() if option not in ("store", "create")},
        "seed": row(lambda seed: VirtualApp(machines(), seed=seed).start("lamp").id, (1, SOMETHING), (2, SOMETHING)),
    },
    "VirtualApp.advance": {"duration": row(advanced, ("59m", "running"), ("1h", "done"))},
    "VirtualApp.fake": {
        "task": row(faked, ("shine", None), ("shone", "Misuse")),
        "outcomes": row(lambda outcome: faked("shine", outcome), (1, 1), (2, 2)),
    },
    "VirtualApp.calls": {"task": row(called, ("shine", 1), ("other", 0))},
}  # fmt: skip

OPENING: Rows = {
    **{kind: {option: of_kind(kind, option) for option in OF_A_STORE} for kind in ("open", "open_async")},
    **VIRTUAL,
}
