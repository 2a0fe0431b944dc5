"""Small machines, a backend that counts what it carries out, and programs driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from casework.app.arguments import make_options
from casework.app.core import Core
from casework.app.sync import App, prepare
from casework.backends.drive import perform, run
from casework.backends.dynamodb.units import Units, write_units
from casework.backends.memory import MemoryBackend
from casework.backends.surroundings import VirtualClock
from casework.executions.advance import Advanced, advance
from casework.executions.state import STATE, Data, State, decode_data, state_of
from casework.kernel.effects import Get, GetMany, Outcome, Query, Transact, Write
from casework.kernel.items import Item
from casework.kernel.programs import Program
from casework.kernel.schema import EXECUTIONS
from casework.statechart import Machine

T = TypeVar("T")


def machine(text: str) -> Machine:
    return Machine.from_yaml(text, source="machine.yaml")


class WatchedBackend(MemoryBackend):
    """A memory backend that keeps the effects it carried out, and what the writes cost by DynamoDB's rules."""

    def __init__(self, **options: Any) -> None:
        super().__init__(seed=1, **options)
        self.reads: list[Any] = []
        self.written: list[Any] = []
        self.units = Units(0.0, 0.0)

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Get | GetMany | Query):
            self.reads.append(effect)
            return super().execute(effect)
        writes = effect.writes if isinstance(effect, Transact) else [effect.write]
        before = [self.tables.get(write.key) for write in writes]
        answer = super().execute(effect)
        self.written.append(effect)
        each = [
            write_units(write, item, transactional=isinstance(effect, Transact))
            for write, item in zip(writes, before, strict=True)
        ]
        self.units = Units(self.units.base + sum(u.base for u in each), self.units.index + sum(u.index for u in each))
        return answer

    def execute_many(self, effects: Sequence[Any]) -> list[Outcome[Any]]:
        outcomes: list[Outcome[Any]] = []
        for effect in effects:
            try:
                outcomes.append(Outcome(self.execute(effect)))
            except Exception as error:
                outcomes.append(Outcome(error=error))
        return outcomes

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def forget(self) -> None:
        self.reads, self.written, self.units = [], [], Units(0.0, 0.0)

    def calls(self) -> list[str]:
        return [type(effect).__name__ for effect in (*self.reads, *self.written)]


def watched_app(*machines: Machine, **options: Any) -> tuple[App, WatchedBackend]:
    """A blocking application in virtual time on a watched backend."""
    backend = WatchedBackend(clock=VirtualClock())
    return app_on(backend, *machines, **options), backend


def app_on(backend: MemoryBackend, *machines: Machine, **options: Any) -> App:
    """One more process on the same store."""
    core = Core(machines, make_options(**options), None)
    prepare(core, backend, create=True)
    return App(core, backend, owns_backend=False)


def work_once(app: App, id: str) -> Advanced:
    return run(advance(app.core.rt, id), app.backend)


def work(app: App, id: str) -> Advanced:
    """Advance one execution until it has nothing more to do."""
    while True:
        done = work_once(app, id)
        if not done.has_more:
            return done


def items_of(backend: Any, id: str, begin: str = "") -> list[Item]:
    """The items of a partition whose sort key begins so."""
    page = backend.execute(Query(EXECUTIONS, id))
    return [item for item in page.items if str(item["sort"]).startswith(begin)]


def state_item(backend: Any, id: str) -> Item:
    item = backend.execute(Get(EXECUTIONS.key(id, STATE)))
    assert item is not None
    return item  # type: ignore[no-any-return]


def data_of(app: App, id: str) -> tuple[State, Data]:
    state = state_of(state_item(app.backend, id))
    return state, decode_data(state, app.core.rt.decode(state.data))


def overwrite(backend: Any, item: Item) -> None:
    """Store an item as no code of ours would."""
    backend.tables.stored(EXECUTIONS).store(EXECUTIONS.key_of(item), item)


class ByHand:
    """A program that is driven to an effect, left there while others run, and driven on."""

    def __init__(self, program: Program[Any], backend: Any) -> None:
        self.program = program
        self.backend = backend
        self.waiting: Any = None
        self.value: Any = None
        self.done = False
        self._answer: Any = None
        self._error: BaseException | None = None
        self._step()

    def _step(self) -> None:
        try:
            if self._error is not None:
                error, self._error = self._error, None
                self.waiting = self.program.throw(error)
            else:
                self.waiting = self.program.send(self._answer)
        except StopIteration as stop:
            self.done, self.value, self.waiting = True, stop.value, None

    def perform(self) -> None:
        """Carry out the effect that the program waits for."""
        try:
            self._answer = perform(self.waiting, self.backend)
        except Exception as error:
            self._error = error
        self._step()

    def lose_answer(self, error: Exception, *, applied: bool) -> None:
        """Carry the effect out or not, and tell the program that nobody knows."""
        if applied:
            perform(self.waiting, self.backend)
        self._error = error
        self._step()

    def up_to(self, found: Callable[[Any], bool] = lambda effect: isinstance(effect, Write | Transact)) -> ByHand:
        """Drive on until the program waits for such an effect (by default: a write), which is not carried out."""
        while not self.done and not found(self.waiting):
            self.perform()
        assert not self.done, f"it ended with {self.value!r} first"
        return self

    def finish(self) -> Any:
        while not self.done:
            self.perform()
        return self.value
