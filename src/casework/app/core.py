"""What a facade's operations share: the runtime, the bell, and the states that this process holds."""

from __future__ import annotations

import collections
import shlex
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from casework.errors import ConditionFailed, MissingTable, Misuse, OutcomeUnknown
from casework.executions.buckets import SETTINGS, read_number
from casework.executions.runtime import Codec, Options, Runtime
from casework.executions.state import State
from casework.executions.worker import Bell
from casework.kernel.conditions import absent, present
from casework.kernel.items import Put, Update
from casework.kernel.programs import Program, get, now, write
from casework.kernel.schema import FORMAT, REGISTRY, TABLES, check_format
from casework.statechart import Machine
from casework.streams.log import Log, StreamOptions
from casework.streams.writer import Writer

HELD_STATES = 1024
"""States that this process wrote last are kept for ``handle``, which then needs no read."""


class Core:
    """The shared part of an application.

    Args:
        machines: the machines of this process, with their functions.
        options: settings; ``buckets`` counts only for a store that has none yet, and ``dedupe_window_s`` must then be
            the store's.
        codec: what stores context, messages and results.
        streams: settings of the streams.

    Raises Misuse when two machines have one name, or a definition has errors.
    """

    def __init__(
        self, machines: Sequence[Machine], options: Options, codec: Codec | None, streams: StreamOptions | None = None
    ) -> None:
        self._check(machines)
        self.writer = Writer(Log(streams))
        self.rt = Runtime(machines, options, codec)
        self.bell = Bell()
        self.url = ""
        """The store's, where it was opened by one."""
        self.worker_error: BaseException | None = None
        """Why the worker of this process has ended before it was asked to; None again at the end of its block."""
        self._held: collections.OrderedDict[str, State] = collections.OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def _check(machines: Any) -> None:
        if not isinstance(machines, Sequence) or isinstance(machines, str):
            raise Misuse(f"machines is {machines!r:.80}; give a list: machines=[order]")
        for machine in machines:
            if not isinstance(machine, Machine):
                raise Misuse(
                    f"machines holds {machine!r:.80}, which is no machine; load it first: casework.Machine.load(path)"
                )
        names = [machine.name for machine in machines]
        for name in names:
            if names.count(name) > 1:
                raise Misuse(f"two machines are named {name!r}; a name is what executions are started by")
        for machine in machines:
            machine.knows_machines(names)

    def held(self, id: Any) -> State | None:
        """The state that this process wrote last, if it still holds it."""
        return self._held.get(id) if isinstance(id, str) else None

    def hold(self, state: State) -> None:
        """Remember a state that this process wrote and saw acknowledged."""
        with self._lock:
            self._held[state.id] = state
            self._held.move_to_end(state.id)
            if len(self._held) > HELD_STATES:
                self._held.popitem(last=False)

    def forget(self, id: Any) -> None:
        """Stop holding a state, if there is one of that id."""
        with self._lock:
            if isinstance(id, str):
                self._held.pop(id, None)


MAX_DEDUPE_WINDOW_S = 10 * 366 * 86_400
"""The longest dedupe window, ten years."""


def read_settings(core: Core) -> Program[bool]:
    """Take over the store's own settings; False when it has none yet.

    Raises MissingTable when it has no tables, or was made by an earlier casework that had fewer of them; Misuse when
    this process was given another dedupe window than the store has.
    """
    item = yield from get(SETTINGS)
    if item is None:
        return False
    check_format(item, "the store")
    window_s = int(item.get("dedupe_window_s", 0))
    given_s = core.rt.options.dedupe_window_s
    if given_s is not None and given_s != window_s:
        where = f" --store {shlex.quote(core.url)}" if core.url else ""
        raise Misuse(
            f"dedupe_window_s is {given_s}, but the store's window is {window_s}, and all its processes must have the "
            f"same; leave it out, or change the store's: `casework settings --dedupe-window-s {given_s}{where}`"
        )
    core.rt.options = msgspec.structs.replace(core.rt.options, buckets=int(item["buckets"]), dedupe_window_s=window_s)
    core.rt.read_buckets = read_number(item)
    if int(item.get("tables", 0)) < len(TABLES):
        raise MissingTable(
            "the store was made by an earlier casework and lacks tables; make them with `casework dynamodb create`, "
            "or open(..., create=True)"
        )
    return True


def write_settings(core: Core) -> Program[None]:
    """Give a new store its settings, whoever comes first decides; tell an older one of its new tables."""
    moment = yield from now()
    window_s = core.rt.options.dedupe_window_s or 0
    item: dict[str, Any] = {
        "kind": "settings",
        "name": "store",
        "format": FORMAT,
        "buckets": core.rt.options.buckets,
        "dedupe_window_s": window_s,
        "tables": len(TABLES),
        "created_at_us": moment.middle_us,
    }
    try:
        yield from write(Put(REGISTRY, item, absent()))
    except (ConditionFailed, OutcomeUnknown):
        yield from write(Update(SETTINGS, {"tables": len(TABLES)}, when=present()))
        yield from read_settings(core)
    else:
        core.rt.options = msgspec.structs.replace(core.rt.options, dedupe_window_s=window_s)


def change_dedupe_window(core: Core, window_s: int) -> Program[None]:
    """Give the store another dedupe window. Processes that have it open keep the old one until they open it again."""
    if type(window_s) is not int or not 0 <= window_s <= MAX_DEDUPE_WINDOW_S:
        raise Misuse(f"the dedupe window is {window_s!r:.80}; it must be 0 to {MAX_DEDUPE_WINDOW_S} seconds")
    yield from write(Update(SETTINGS, {"dedupe_window_s": window_s}, when=present()))
    core.rt.options = msgspec.structs.replace(core.rt.options, dedupe_window_s=window_s)
