"""Programs driven by hand: to a certain effect, there to wait while others run, and then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from casework.backends.drive import perform
from casework.backends.memory import MemoryBackend
from casework.errors import Contention, OutcomeUnknown
from casework.kernel.effects import Effect, Transact, Write
from casework.kernel.items import AnyWrite, Check
from casework.kernel.programs import Program
from casework.kernel.schema import TABLES


def fresh_backend(**options: Any) -> MemoryBackend:
    """A reference backend with casework's tables."""
    backend = MemoryBackend(seed=1, **options)
    backend.create_tables(TABLES)
    return backend


class Stepped:
    """A program that a test drives: ``until(Transact)`` stops before that effect is carried out."""

    def __init__(self, program: Program[Any], backend: Any) -> None:
        self.program = program
        self.backend = backend
        self.result: Any = None
        self.done = False
        self.effect: Effect | None = self._send(None)

    def _send(self, answer: Any) -> Effect | None:
        try:
            return self.program.send(answer)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
            return None

    def step(self) -> None:
        """Carry out the effect that it waits at, and go on to the next one."""
        assert self.effect is not None
        try:
            answer = perform(self.effect, self.backend)
        except Exception as error:
            try:
                self.effect = self.program.throw(error)
            except StopIteration as stop:
                self.done, self.result, self.effect = True, stop.value, None
            return
        self.effect = self._send(answer)

    def until(self, *kinds: type) -> Stepped:
        """Go on until it waits at an effect of one of these kinds."""
        while not isinstance(self.effect, kinds):
            assert not self.done, "the program ended before it came there"
            self.step()
        return self

    def finish(self) -> Any:
        """Go on to the end; its result."""
        while not self.done:
            self.step()
        return self.result


class LosesAnswers:
    """A backend that applies a write and says that it does not know: the nth writes named, counted from 1."""

    def __init__(self, backend: MemoryBackend, lose: Sequence[int]) -> None:
        self._backend = backend
        self._lose = set(lose)
        self.writes = 0

    def execute(self, effect: Any) -> Any:
        answer = self._backend.execute(effect)
        if isinstance(effect, Write | Transact):
            self.writes += 1
            if self.writes in self._lose:
                raise OutcomeUnknown("the answer was lost")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Torn:
    """A backend whose transactions become visible item by item: the first at once, the others when ``land`` is called.

    Until then another transaction on one of those items is refused with ``Contention``, as DynamoDB does.
    """

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self.in_flight: list[AnyWrite] = []
        self.tears = True

    def execute(self, effect: Any) -> Any:
        if not isinstance(effect, Transact):
            return self._backend.execute(effect)
        held = {(write.key.partition, write.key.sort) for write in self.in_flight}
        if any((write.key.partition, write.key.sort) in held for write in effect.writes):
            raise Contention("an item is in another transaction")
        refusals = self._backend.tables.refusals(effect.writes)
        if any(refusals) or not self.tears:
            return self._backend.execute(effect)
        first, *rest = effect.writes
        self._backend.tables.apply(first)
        self.in_flight += [write for write in rest if not isinstance(write, Check)]
        return None

    def land(self) -> None:
        """Let everything become visible."""
        for write in self.in_flight:
            self._backend.tables.apply(write)
        self.in_flight = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def items_of(backend: Any, id: str, prefix: str = "") -> list[dict[str, Any]]:
    """The items of one partition whose sort key begins so, in order."""
    from casework.backends.drive import run
    from casework.kernel.programs import query_all
    from casework.kernel.schema import EXECUTIONS

    return [item for item in run(query_all(EXECUTIONS, id), backend) if str(item["sort"]).startswith(prefix)]
