"""What an application knows of machines is its own: opening changes no machine."""

from __future__ import annotations

import os
from typing import Any

import pytest

import casework
from casework.errors import Misuse

PARENT = {
    "id": "parent",
    "initial": "a",
    "states": {"a": {"invoke": {"src": "kid", "onDone": "b"}}, "b": {"type": "final"}},
}
KID = {"id": "kid", "initial": "x", "states": {"x": {"type": "final"}}}
WORKS = {
    "id": "works",
    "initial": "a",
    "states": {"a": {"entry": "note", "invoke": {"src": {"task": "do"}, "onDone": "b"}}, "b": {"type": "final"}},
}


def machine(definition: dict[str, Any]) -> casework.Machine:
    return casework.Machine.from_dict(definition)


def test_one_machine_in_two_applications_of_which_the_second_lacks_the_machine_that_it_names() -> None:
    parent, kid = machine(PARENT), machine(KID)
    with casework.open("memory:", machines=[parent, kid]) as first:
        with (
            casework.open("memory:", machines=[parent]) as second,
            pytest.raises(Misuse, match="task or machine 'kid'"),
        ):
            second.worker()
        with first.worker():
            first.start("parent", id="p")
            assert first.wait("p", timeout_s=60).status == "done"


def test_opening_leaves_a_machine_as_it_was() -> None:
    parent = machine(PARENT)
    before = (parent.machines, parent.missing_functions(), [str(each) for each in parent.check()])
    for _ in range(2):  # closed, and opened again
        casework.open("memory:", machines=[parent, machine(KID)]).close()
    assert (parent.machines, parent.missing_functions(), [str(each) for each in parent.check()]) == before


def test_what_is_registered_after_opening_counts() -> None:
    works = machine(WORKS)
    with casework.open("memory:", machines=[works]) as app:
        with pytest.raises(Misuse, match="action 'note'; works: task 'do'"):
            app.worker()
        works.action(name="note")(lambda context, event: {"noted": True})
        works.task(name="do")(lambda task: None)
        with app.worker():
            app.start("works", id="w")
            assert app.wait("w", timeout_s=60).context == {"noted": True}


def test_the_same_machine_twice_is_one_and_two_of_one_name_are_refused() -> None:
    kid = machine(KID)
    with casework.open("memory:", machines=(kid, kid)) as app:
        assert app.start("kid", id="k").status == "done"
    for other in (machine(KID), machine({**KID, "version": 2})):
        with pytest.raises(Misuse, match="two machines are named 'kid'"):
            casework.open("memory:", machines=[kid, other])


def test_a_machine_goes_on_in_a_forked_process(tmp_path: Any) -> None:
    url, works = f"sqlite:///{tmp_path}/shop.db", machine(WORKS)
    works.action(name="note")(lambda context, event: {"noted": os.getpid()})
    works.task(name="do")(lambda task: None)
    with casework.open(url, machines=[works]) as app:
        app.start("works", id="parent")
        child = os.fork()
        if not child:
            with casework.open(url, machines=[works]) as own:
                own.start("works", id="child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert app.get("child").context == {"noted": child} and app.get("parent").context == {"noted": os.getpid()}
