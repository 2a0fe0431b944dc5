"""What a program can ask for.

A program yields one of these and receives its result; an error of the store is raised at the yield. Reads are ``Get``,
``GetMany`` and ``Query``; writes are ``Write`` (one item, at the price of a plain write) and ``Transact`` (all or
nothing). ``Now``, ``Token`` and ``Sleep`` are the world outside the store. ``Call`` runs a user's function. The last
group is for shells, the long-running programs that start others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from casework.kernel.items import AnyWrite, Item, Key, Put, Table, Update

T = TypeVar("T")


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Base of all effects.

    Effects that hold only data are left out of the cycle collector (``gc=False``): a worker makes dozens for each
    event, and they cannot be part of a cycle.
    """


# --- reads ---------------------------------------------------------------------------------------------------------


class Get(Effect, frozen=True):
    """One item, consistently; answers ``Item | None``."""

    key: Key


class GetMany(Effect, frozen=True):
    """Several items, each consistent by itself; answers ``list[Item | None]`` in the order of the keys."""

    keys: Sequence[Key]


class Query(Effect, frozen=True):
    """A page of one partition, in sort order; answers a :class:`Page`.

    On a table it is strongly consistent, but read-committed: it may show a part of a transaction. On an index it lags.
    """

    table: Table
    partition: str
    index: str | None = None
    low: str | int | None = None
    """First sort value, inclusive; None: from the beginning."""
    high: str | int | None = None
    """Last sort value, inclusive; None: to the end."""
    limit: int | None = None
    """At most so many items; None: as many as a page of the store holds (1 MB)."""
    reverse: bool = False
    after: str | None = None
    """Cursor of the page before this one."""


class Page(msgspec.Struct, gc=False):
    """Items of a query. ``next`` is None at the end, else the cursor for ``Query(after=...)``."""

    items: list[Item]
    next: str | None = None


# --- writes --------------------------------------------------------------------------------------------------------


class Write(Effect, frozen=True):
    """One put or update as a plain write; answers None.

    Resolved through a nonce when its answer was lost, hence no delete here: a deleted item keeps no nonce.
    """

    write: Put | Update


class Transact(Effect, frozen=True):
    """All of the writes, or none; answers None. At most one write for each item."""

    writes: Sequence[AnyWrite]


class All(Effect, frozen=True):
    """Several reads at once; answers their results in order, or raises the first error by position."""

    reads: Sequence[Get | GetMany | Query]


# --- the world -----------------------------------------------------------------------------------------------------


class Now(Effect, frozen=True):
    """The store's time; answers an :class:`Instant`."""


class Instant(msgspec.Struct, frozen=True, gc=False):
    """The time as far as it is known, in microseconds since the epoch: it lies between the two bounds."""

    earliest_us: int
    latest_us: int

    @property
    def middle_us(self) -> int:
        """The best single guess."""
        return (self.earliest_us + self.latest_us) // 2


class Token(Effect, frozen=True):
    """A fresh random identifier; answers ``str`` (22 characters, URL-safe, 128 bits)."""


class Sleep(Effect, frozen=True):
    """Answers None after ``seconds``."""

    seconds: float


class Call(Effect, frozen=True, gc=True):
    """Run ``function(*args, **kwargs)`` and answer its result; a coroutine is awaited by the async driver.

    ``may_block`` says that it is not a short computation: it runs beside the loop, never inside a group's commit.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    may_block: bool = False
    what: str = ""
    """What is called, for logs; empty: the function's name."""


# --- for shells ----------------------------------------------------------------------------------------------------


class RunMany(Effect, frozen=True, gc=True):
    """Run programs side by side, sharing commits where the store can; answers a list of :class:`Outcome`."""

    programs: Sequence[Any]


class Outcome(msgspec.Struct, Generic[T]):
    """What became of one program: its value, or its error."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Unfinished(Exception):
    """Stands for the outcome of a program that still waits for a function of the user's: it goes on by itself.

    ``handle`` is done when it has ended.
    """

    def __init__(self, name: str, handle: Handle) -> None:
        self.name, self.handle = name, handle
        super().__init__(f"{name} has not returned")


class Spawn(Effect, frozen=True, gc=True):
    """Start a program beside this one; answers a :class:`Handle`. It is cancelled when its spawner ends."""

    program: Any
    name: str = ""


class Handle:
    """A spawned program. ``done`` turns true when it has ended; ``outcome`` then says how."""

    __slots__ = ("cancel_requested", "name", "outcome", "task", "wake")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.outcome: Outcome[Any] | None = None
        self.cancel_requested = False
        self.wake: Callable[[], None] | None = None
        self.task: Any = None  # the driver's own

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.outcome is not None

    def cancel(self) -> None:
        """Ask it to end: a ``Cancelled`` is raised at its next yield."""
        self.cancel_requested = True
        if self.wake is not None:
            self.wake()


class Race(Effect, frozen=True, gc=True):
    """Wait until one of the handles has ended, a signal is set, or ``timeout_s`` passed; answers None.

    The caller looks at its handles and signals afterwards; nothing is cancelled.
    """

    waits: Sequence[Handle | Flag]
    timeout_s: float | None = None


class Flag:
    """Something that happened, set by :class:`Signal` or from outside with :meth:`set`; stays set until cleared."""

    __slots__ = ("is_set", "listeners")

    def __init__(self) -> None:
        self.is_set = False
        self.listeners: dict[Callable[[], None], None] = {}  # a dict: in the order in which they came

    def set(self) -> None:
        """Set it, and wake whoever races for it. Safe to call from any thread and from a signal handler."""
        self.is_set = True
        for listener in tuple(self.listeners):
            listener()

    def clear(self) -> None:
        """Unset it."""
        self.is_set = False


class Signal(Effect, frozen=True, gc=True):
    """Set a flag; answers None."""

    flag: Flag


class Cancelled(BaseException):
    """Raised inside a spawned program that was cancelled. Not an ``Exception``: user code cannot swallow it."""
