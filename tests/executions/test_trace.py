"""The trace accounts for every commit, so that a version without an entry means that something is wrong."""

from __future__ import annotations

import casework
from casework.backends.memory import MemoryBackend

CHILD = casework.Machine.from_dict({
    "id": "child",
    "context": {},
    "initial": "waiting",
    "states": {"waiting": {"on": {"Go": "over"}}, "over": {"type": "final"}},
})  # fmt: skip
PARENT = casework.Machine.from_dict({
    "id": "parent",
    "context": {"n": 0},
    "initial": "joining",
    "on": {"Count": {"actions": {"type": "assign", "params": {"n": {"expr": "context.n + 1"}}}}},
    "states": {
        "joining": {"invoke": {"id": "all", "src": {"machine": "child"}, "each": [1, 2, 3], "onDone": "over"}},
        "over": {"type": "final"},
    },
})  # fmt: skip


def versions(app: casework.App, id: str) -> list[int]:
    return [entry["version"] for entry in app.trace(id)]


def test_every_commit_has_an_entry_reports_that_decide_nothing_included() -> None:
    with casework.open(MemoryBackend(), machines=[PARENT, CHILD], trace_max=100, create=True) as app:
        app.start("parent", id="p")
        children = [child["id"] for child in app.inspect("p").children[0].children]
        assert len(children) == 3
        with app.worker(poll_s=0.01):
            for child in children:
                app.send(child, "Go")
            assert app.wait("p", timeout_s=30).status == "done"
        assert versions(app, "p") == list(range(1, app.get("p").version + 1))


def test_a_repeated_event_is_in_the_trace_as_a_repeat_and_takes_no_step() -> None:
    with casework.open(MemoryBackend(), machines=[PARENT, CHILD], trace_max=100, create=True) as app:
        app.start("parent", id="p")
        for _ in range(3):
            app.send("p", "Count", event_id="c-1")
        with app.worker(poll_s=0.01):
            children = [child["id"] for child in app.inspect("p").children[0].children]
            for child in children:
                app.send(child, "Go")
            assert app.wait("p", timeout_s=30).context == {"n": 1}
        events = [event for entry in app.trace("p") for event in entry["events"] if event["event"] == "Count"]
        assert [event.get("duplicate", False) for event in events] == [False, True, True]
        assert versions(app, "p") == list(range(1, app.get("p").version + 1))


def test_a_repeat_of_an_event_that_was_taken_is_no_dead_letter_after_the_end_and_a_new_one_is() -> None:
    machine = casework.Machine.from_dict({
        "id": "short", "initial": "a", "states": {"a": {"on": {"Go": "b"}}, "b": {"type": "final"}},
    })  # fmt: skip
    with casework.open(MemoryBackend(), machines=[machine], create=True) as app:
        app.start("short", id="s")
        assert app.handle("s", "Go", event_id="taken").status == "done"
        app.send("s", "Go", event_id="taken")
        app.send("s", "Go", {"n": 1}, event_id="new")
        with app.worker(poll_s=0.01) as worker:
            while app.inspect("s").messages:
                worker.bell.ring("s")
        assert [event["id"] for letter in app.dead_letters().items for event in letter.events] == ["new"]
