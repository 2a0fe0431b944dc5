"""A program that gives up when its store has not answered for long enough, however many calls that were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from casework.errors import OutcomeUnknown, Unavailable
from casework.kernel.effects import All, Call, Get, GetMany, Now, Query, Transact, Write
from casework.kernel.programs import Program

T = TypeVar("T")

_OF_THE_STORE = (Get, GetMany, Query, Write, Transact, All)


def bounded(program: Program[T], silence_us: int, steady_us: Callable[[], int]) -> Program[T]:
    """Carry ``program``, and send nothing more to a store that has been silent for ``silence_us``.

    What was sent before is waited for; the program is told ``Unavailable`` at its next effect of the store. An answer,
    and a call of a function, end the silence.
    """
    answer: Any = None
    error: BaseException | None = None
    silent_since_us: int | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = error = None
        asks_store = isinstance(effect, _OF_THE_STORE)
        if asks_store:
            now_us = steady_us()
            if silent_since_us is None:
                silent_since_us = now_us
            elif now_us - silent_since_us >= silence_us:
                error = Unavailable(f"the store has not answered for {silence_us / 1e6:g} s; try again later")
                continue
        elif isinstance(effect, Now) and silent_since_us is None:
            silent_since_us = steady_us()  # a clock in doubt asks the service
        try:
            answer = yield effect
        except GeneratorExit:
            program.close()
            raise
        except BaseException as raised:  # noqa: BLE001 - it is the program's to judge
            error = raised
        if isinstance(effect, Call) or (asks_store and not isinstance(error, Unavailable | OutcomeUnknown)):
            silent_since_us = None
