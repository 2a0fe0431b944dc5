"""What the programs of this package must know beside the store: machines, options, and what this process remembers.

A :class:`Runtime` is plain data. It holds no client, no clock and no lock; the facade makes one per application.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from casework.arguments import check_text
from casework.errors import CodecFailed, CorruptItem, InvalidMachine, UnknownMachine
from casework.executions.state import State
from casework.kernel.containment import guarded, in_words
from casework.kernel.items import Put
from casework.kernel.programs import Program, get, write
from casework.kernel.retry import RetryPolicy
from casework.kernel.schema import DEFAULT_BUCKETS, FORMAT, MACHINES, check_format
from casework.statechart import Machine

RACES = RetryPolicy(first_pause_s=0.005, max_pause_s=0.25, rounds_max=10)
"""After a lost race the execution is looked at again; somebody else may have done all that was to do."""


class Codec(Protocol):
    """Turns context, messages and results into what is stored, and back; may encrypt.

    A codec belongs to the store: its name stands in the store's settings, with a text that it encoded. The name is the
    attribute ``name``, text of at most 100 bytes, else the name of its class. It stays the same when a key is replaced:
    such a codec encodes with the new key, and decodes what either one encoded.
    """

    def encode(self, text: str) -> str:
        """The text to store."""

    def decode(self, text: str) -> str:
        """The text that was given to ``encode``."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an application's executions."""

    buckets: int = DEFAULT_BUCKETS
    """Buckets of the indexes, into which new items are put; of a store that is new. An older store has its own number,
    which ``casework settings`` can raise."""
    trace_max: int | None = None
    """Keep so many trace entries per execution; 0 keeps none and costs nothing. None: as many as the store says, which
    is what the first process gave that gave a number (0 until then), or `casework settings --trace-max`."""
    dedupe_window_s: int | None = None
    """Refuse repeated event ids for so long, at the price of a mark per event; 0: the last 32 ids only. A store has one
    window for all its processes: fixed when it is made (0 by default), changed by ``casework settings``; None takes
    it. Processes that have the store open when it is changed keep the old one until they open it again."""
    batch_max: int = 64
    """At most so many events of one execution go into one commit."""
    spill_above: int = 60
    """More messages, tasks and children than this in one commit are recorded in it and performed afterwards. The next
    commit may have to check the messages that one commit sent, and must still have room for what it takes itself."""
    spill_part: int = 90
    """So many of them are performed in one transaction; the rest of it is for the state and the spilled item."""


class Parked(Exception):
    """This process cannot advance the execution, another may: its next look is put off, nothing else changes."""


class Runtime:
    """Machines by name and hash, options, and what this process knows to be stored.

    Args:
        machines: the machines of this process, with their functions.
        options: settings.
        codec: what stores context, messages and results.
    """

    def __init__(
        self, machines: Sequence[Machine] = (), options: Options | None = None, codec: Codec | None = None
    ) -> None:
        self.options = options or Options()
        self.read_buckets = self.options.buckets
        """In so many buckets items may stand; never fewer than new ones are put into."""
        self.settings_read_us = 0
        """When the store's number was read last by a process that puts; 0: it was opened just now."""
        self.codec = codec
        self.machines: dict[str, Machine] = {}
        self.by_hash: dict[str, Machine] = {}
        self.stored: set[str] = set()
        self._sent_at_us = 0
        self._born_us = 0
        names = [machine.name for machine in machines]
        for given in machines:
            machine = given.beside(names)
            self.machines[machine.name] = machine
            self.by_hash[machine.hash] = machine

    @property
    def write_buckets(self) -> int:
        """Into so many buckets new items are put."""
        return self.options.buckets

    def put_into(self, buckets: int) -> None:
        """Put new items into so many buckets from now on."""
        self.options = msgspec.structs.replace(self.options, buckets=buckets)

    def machine_named(self, name: str) -> Machine:
        """The machine of that name; UnknownMachine with the names that there are."""
        check_text("the machine's name", name)
        try:
            return self.machines[name]
        except KeyError:
            known = ", ".join(sorted(self.machines)) or "none"
            raise UnknownMachine(
                f"no machine {name!r} was given to casework.open(machines=[...]); known: {known}"
            ) from None

    def publishes(self, state: State) -> bool:
        """Whether the definition that an execution runs publishes anything, as far as this process has met it."""
        machine = self.by_hash.get(state.machine_hash)
        return machine is not None and machine.publish is not None

    def send_time_us(self, now_us: int) -> int:
        """The send time of a message from outside: later than that of any that this process sent before."""
        self._sent_at_us = max(now_us, self._sent_at_us + 1)
        return self._sent_at_us

    def birth_us(self, now_us: int) -> int:
        """When an execution is started: no two that this process starts have one time."""
        self._born_us = max(now_us, self._born_us + 1)
        return self._born_us

    def encode(self, text: str) -> str:
        """What to store for a text of the user's. CodecFailed when the codec raises: it may be able to, later."""
        if self.codec is None:
            return text
        try:
            encoded = guarded(self.codec.encode, text)
        except Exception as error:
            raise CodecFailed(f"the codec cannot encode: {in_words(error)} - nothing was written") from error
        if type(encoded) is not str:
            raise CodecFailed(f"the codec's encode() returned {type(encoded).__name__}, not text; nothing was written")
        return encoded

    def encode_value(self, value: Any) -> Any:
        """What to store for a value of the user's inside a JSON text that is not encoded as a whole."""
        return value if self.codec is None else self.encode(msgspec.json.encode(value).decode())

    def decode_value(self, value: Any) -> Any:
        """The value that was given to ``encode_value``."""
        return value if self.codec is None else msgspec.json.decode(self.decode(value))

    def decode(self, text: str) -> str:
        """The text of the user's that was stored."""
        if self.codec is None:
            return text
        try:
            decoded = guarded(self.codec.decode, text)
        except Exception as error:
            raise CorruptItem(f"the codec cannot decode a stored text: {in_words(error)}") from error
        if type(decoded) is not str:
            raise CorruptItem(f"the codec's decode() returned {type(decoded).__name__}, not text")
        return decoded


NO_MACHINE = Machine.from_dict({"id": "none", "initial": "none", "states": {"none": {}}})
"""Stands in where ending takes no step of a chart, so that an execution of an unknown machine can be ended too."""


def has_functions(machine: Machine) -> bool:
    """Whether a step of this machine may run functions of the user's, which may be slow."""
    return bool(machine.actions or machine.guards)


def store_definition(rt: Runtime, machine: Machine) -> Program[None]:
    """Keep a machine's definition under its hash, once per process and hash."""
    if machine.hash in rt.stored:
        return
    found = yield from get(MACHINES.key(machine.hash))
    if found is None:
        yield from write(Put(MACHINES, _definition_item(machine)))
    rt.stored.add(machine.hash)


def _definition_item(machine: Machine) -> dict[str, Any]:
    return {
        "hash": machine.hash,
        "format": FORMAT,
        "name": machine.name,
        "definition": msgspec.json.encode(machine.definition).decode(),
    }


def machine_of(rt: Runtime, state: State) -> Program[Machine]:
    """The machine that an execution runs: the definition it started with, with this process's functions.

    A child that was started where nobody knew its machine has no definition yet: it gets this process's.

    Raises Parked when this process has no machine of that name, or the definition is stored nowhere.
    """
    known = rt.by_hash.get(state.machine_hash)
    if known is not None:
        return known
    current = rt.machines.get(state.machine)
    if current is None:
        raise Parked(f"this process has no machine {state.machine!r}")
    if not state.machine_hash:
        return current
    definition = yield from stored_definition(state.machine_hash)
    if definition is None:
        raise Parked(f"definition {state.machine_hash[:12]} of machine {state.machine!r} is not stored")
    try:
        machine = current.rebound(definition)
    except InvalidMachine as error:
        raise Parked(f"this process cannot run definition {state.machine_hash[:12]}: {error}") from None
    rt.by_hash[state.machine_hash] = machine
    return machine


def stored_definition(hash: str) -> Program[dict[str, Any] | None]:
    """The definition stored under ``hash``, if any; an empty hash stands for none."""
    if not hash:
        return None
    item = yield from get(MACHINES.key(hash))
    if item is None:
        return None
    check_format(item, f"machine definition {hash[:12]}")
    try:
        definition: dict[str, Any] = msgspec.json.decode(str(item["definition"]))
    except (KeyError, msgspec.DecodeError) as error:
        raise CorruptItem(f"machine definition {hash[:12]} cannot be read: {error}") from None
    return definition
