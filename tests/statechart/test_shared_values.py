"""A value that holds the same values many times is refused by its size, wherever it is handed in, unspread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.errors import InvalidMachine, NotJson
from casework.statechart import Machine


def bomb(inner: Any = "a", width: int = 30, levels: int = 7) -> Any:
    """Some hundred objects that stand for twenty billion values."""
    for _ in range(levels):
        inner = [inner] * width
    return inner


def states(levels: int = 7, width: int = 10) -> Any:
    state: Any = {"type": "final"}
    for _ in range(levels):
        state = {"initial": "s0", "states": dict.fromkeys([f"s{n}" for n in range(width)], state)}
    return state


DOCUMENTS: dict[str, Any] = {
    "context": {"states": {"a": {}}, "context": {"x": bomb()}},
    "meta": {"states": {"a": {}}, "meta": bomb()},
    "entry": {"states": {"a": {"entry": bomb()}}},
    "guard": {"states": {"a": {"on": {"go": {"target": "a", "guard": {"type": "g", "params": {"x": bomb()}}}}}}},
    "input of a task": {"states": {"a": {"invoke": {"src": "t", "input": {"x": bomb()}}}}},
    "transitions": {"states": {"a": {"on": {"go": bomb({"target": "a"})}}}},
    "states": states(),
    "mappings": {"states": {"a": {}}, "context": states()},
}


@pytest.mark.parametrize("where", DOCUMENTS)
def test_a_definition(where: str) -> None:
    with pytest.raises(InvalidMachine, match="more than 100,000 values"):
        Machine.from_dict({"id": "m", "initial": next(iter(DOCUMENTS[where]["states"])), **DOCUMENTS[where]})


CALLS: dict[str, Callable[[casework.App], Any]] = {
    "start": lambda app: app.start("m", input=bomb(), id="n"),
    "send": lambda app: app.send("m", "go", bomb()),
    "handle": lambda app: app.handle("m", "go", bomb()),
    "complete_task": lambda app: app.complete_task("m/1/t", bomb()),
    "transaction": lambda app: app.transaction().__enter__().send("m", "go", bomb()),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_payload(call: str) -> None:
    machine = Machine.from_dict({"id": "m", "initial": "a", "states": {"a": {"on": {"go": "a"}}}})
    with casework.open("memory:", machines=[machine]) as app:
        app.start("m", id="m")
        before = app.get("m")
        with pytest.raises(NotJson, match="more than 1,000,000 values"):
            CALLS[call](app)
        assert app.get("m") == before


def test_what_is_large_and_shares_nothing_is_taken() -> None:
    machine = Machine.from_dict(
        {"id": "m", "initial": "a", "states": {"a": {}}, "context": {"x": [[n] for n in range(40_000)]}}
    )
    assert len(machine.definition["context"]["x"]) == 40_000
