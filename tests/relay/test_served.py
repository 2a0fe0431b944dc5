"""The relay behind a real server: event streams, many clients at once, a graceful stop."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from casework.kernel.effects import Transact
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import Serving, World
from tests.streams.stores import Counted


def call(url: str, headers: dict[str, str], payload: Any = None) -> Any:
    data = None if payload is None else json.dumps(payload).encode()
    request = urllib.request.Request(url, data, {**headers, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def push(url: str, headers: dict[str, str], *ids: str) -> Any:
    ops = [{"id": id, "data": base64.b64encode(id.encode()).decode()} for id in ids]
    return call(f"{url}/v1/streams/s/ops", headers, {"ops": ops})["results"]


class Events:
    """A client of an event stream."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        self.connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        self.answer = self.connection.getresponse()

    def close(self) -> None:
        self.answer.close()
        self.connection.close()

    def next(self) -> dict[str, str] | None:
        """The fields of the next event; None at the end."""
        fields: dict[str, str] = {}
        while line := self.answer.readline():
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                return fields
        return None


def test_an_event_stream_gives_what_is_there_and_then_what_comes(serving: tuple[str, World]) -> None:
    url, world = serving
    headers = world.headers("s=read,append")
    push(url, headers, "a", "b")
    events = Events(f"{url}/v1/streams/s/events?after=1", headers)
    assert events.answer.getheader("content-type", "").startswith("text/event-stream")
    first = events.next()
    assert first is not None and first["id"].split()[0] == "2" and json.loads(first["data"])["id"] == "b"
    push(url, headers, "c")
    second = events.next()
    assert second is not None and (second["id"].split()[0], second["event"]) == ("3", "op")
    again = Events(f"{url}/v1/streams/s/events", {**headers, "Last-Event-ID": first["id"]})
    third = again.next()
    assert third is not None and third["id"] == second["id"], "a client that comes back goes on behind its last event"
    events.close()
    again.close()


def test_fifty_clients_that_push_at_once_are_each_answered_and_all_is_there(serving: tuple[str, World]) -> None:
    url, world = serving
    headers = world.headers("s=read,append")
    answers: dict[str, int] = {}
    wrong: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for n in range(4):
                (one,) = push(url, headers, f"{name}-{n}")
                answers[one["id"]] = one["seq"]
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    page = call(f"{url}/v1/streams/s/ops?limit=1000", headers)
    assert {op["id"]: op["seq"] for op in page["ops"]} == answers and len(answers) == 200
    assert sorted(answers.values()) == list(range(1, 201))


def test_a_stop_ends_what_only_waits_at_once_and_answers_a_push_under_way() -> None:
    gate, begun = threading.Event(), threading.Event()

    class Slow(Counted):
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact) and any(getattr(w, "item", {}).get("seq") == 2 for w in effect.writes):
                begun.set()
                gate.wait(60)
            return super().execute(effect)

    world = World(Slow(fresh_backend()))
    headers = world.headers("s=read,append")
    found: dict[str, Any] = {}
    serving = Serving(world)
    with serving as url:
        push(url, headers, "a")
        events = Events(f"{url}/v1/streams/s/events?after=1", headers)
        poll = f"{url}/v1/streams/s/ops?after=1&wait_s=20"
        threads = [
            threading.Thread(target=lambda: found.update(push=push(url, headers, "b"))),
            threading.Thread(target=lambda: found.update(poll=call(poll, headers))),
            threading.Thread(target=lambda: found.update(events=events.next())),
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        while world.relay.counts.waiting < 2:
            threads[0].join(0.01)
        serving.server.leave()
        threads[1].join(15)
        threads[2].join(15)
        assert (
            found["poll"] == {"ops": [], "next_after": 1, "mark": ""}
            and found["events"] is None
            and "push" not in found
        )
        gate.set()
        threads[0].join(30)
        events.close()
    assert found["push"] == [{"id": "b", "seq": 2, "duplicate": False}]
