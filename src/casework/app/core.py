"""What a facade's operations share: the runtime, the bell, and the states that this process holds.

What an application knows is its own: the machines that it was given are not changed, so that another one can have them.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any

from casework.arguments import check_text, shown
from casework.errors import Misuse
from casework.executions.runtime import Codec, Options, Runtime
from casework.executions.state import State
from casework.executions.worker import Bell
from casework.statechart import Machine
from casework.streams.log import Log, StreamOptions
from casework.streams.writer import Writer

HELD_STATES = 1024
"""States that this process wrote last are kept for ``handle``, which then needs no read."""


class Core:
    """The shared part of an application.

    Args:
        machines: the machines of this process, with their functions.
        options: settings; what the store decides is taken over from it when it is opened.
        codec: what stores context, messages and results; it must be the store's.
        streams: settings of the streams.

    Raises Misuse when two machines have one name, or something is no machine or no codec.
    """

    def __init__(
        self, machines: Sequence[Machine], options: Options, codec: Codec | None, streams: StreamOptions | None = None
    ) -> None:
        if codec is not None:
            codec_name(codec)
        self.writer = Writer(Log(streams))
        self.rt = Runtime(_distinct(machines), options, codec)
        self.reads_executions = True
        """It has to do with executions, so its codec must be the store's; not so where only streams are used."""
        self.bell = Bell()
        self.url = ""
        """The store's, where it was opened by one."""
        self.worker_error: BaseException | None = None
        """Why the worker of this process has ended before it was asked to; None again at the end of its block."""
        self._held: collections.OrderedDict[str, State] = collections.OrderedDict()
        self._lock = threading.Lock()

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


def _distinct(machines: Any) -> list[Machine]:
    """The machines of an application, each once; Misuse for anything else, and for two of one name."""
    if not isinstance(machines, Sequence) or isinstance(machines, str | bytes):
        raise Misuse(f"machines is {shown(machines)}; give a list: machines=[order]")
    found: dict[str, Machine] = {}
    for machine in machines:
        if not isinstance(machine, Machine):
            raise Misuse(
                f"machines holds {shown(machine)}, which is no machine; load it first: casework.Machine.load(path)"
            )
        if found.setdefault(machine.name, machine) is not machine:
            raise Misuse(
                f"two machines are named {machine.name!r}; a name is what executions are started by, so give one of "
                "them another id, or leave one out (a process runs older definitions of a machine by itself)"
            )
    return list(found.values())


def codec_name(codec: Any) -> str:
    """What a codec is called in a store's settings; Misuse for what is none."""
    for method in ("encode", "decode"):
        if isinstance(codec, type) or not callable(getattr(codec, method, None)):
            raise Misuse(f"codec is {shown(codec)}; give an object with the methods encode(text) and decode(text)")
    name = getattr(codec, "name", None)
    if name is None:
        name = type(codec).__qualname__.rpartition(".")[2]
    check_text("the codec's name", name, 100)
    return str(name)
