"""The relay's answers: what is stored, what is refused and how it is told."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from casework.backends.drive import run
from casework.backends.surroundings import VirtualClock
from casework.errors import Misuse, OutcomeUnknown, Throttled, Unavailable
from casework.kernel.effects import Transact
from casework.relay.settings import PUSH_DEADLINE_VARIABLE, read_push_deadline
from casework.streams.tokens import create_token, list_tokens, read_grant, revoke_token, verify_token
from tests.executions.stepping import fresh_backend
from tests.relay.conftest import World, client_of
from tests.streams.stores import Counted

Client = TestClient[Litestar]


def body(*ids: str, data: str = "") -> dict[str, Any]:
    return {"ops": [{"id": id, "data": base64.b64encode((data or id).encode()).decode()} for id in ids]}


def push(client: Client, *ids: str, stream: str = "s", data: str = "") -> Any:
    return client.post(f"/v1/streams/{stream}/ops", json=body(*ids, data=data))


def pull(client: Client, stream: str = "s", **query: Any) -> Any:
    return client.get(f"/v1/streams/{stream}/ops", params=query)


# --- pushing and pulling ------------------------------------------------------------------------------------


def test_what_was_pushed_is_pulled_in_order(client: Client) -> None:
    answer = push(client, "a", "b")
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [{"id": "a", "seq": 1, "duplicate": False}, {"id": "b", "seq": 2, "duplicate": False}]
    }
    page = pull(client).json()
    assert [(op["seq"], op["id"], base64.b64decode(op["data"])) for op in page["ops"]] == [
        (1, "a", b"a"),
        (2, "b", b"b"),
    ]
    assert page["next_after"] == 2 and page["ops"][0]["at_us"] > 0
    assert [op["id"] for op in pull(client, after=1).json()["ops"]] == ["b"]
    assert pull(client, after=2).json() == {"ops": [], "next_after": 2, "mark": ""}
    assert pull(client, after=2, mark=page["mark"]).json() == {"ops": [], "next_after": 2, "mark": page["mark"]}
    assert client.get("/v1/streams/s").json() == {"stream": "s", "last_seq": 2, "floor_seq": 0, "snapshot_seq": 0}


def test_a_push_again_is_answered_with_the_numbers_of_the_first_time(client: Client) -> None:
    push(client, "a", "b")
    assert push(client, "b", "c").json()["results"] == [
        {"id": "b", "seq": 2, "duplicate": True}, {"id": "c", "seq": 3, "duplicate": False},
    ]  # fmt: skip


def test_a_page_ends_at_its_limit_and_the_next_goes_on(client: Client) -> None:
    push(client, *(f"{n:03}" for n in range(250)))
    first = pull(client, limit=100).json()
    assert (len(first["ops"]), first["next_after"]) == (100, 100)
    assert pull(client, after=100, limit=1000).json()["ops"][0]["seq"] == 101


def test_a_long_poll_is_answered_when_something_comes(client: Client) -> None:
    push(client, "a")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(pull(client, after=1, wait_s=20).json()))
    waiting.start()
    push(client, "b")
    waiting.join(20)
    assert [op["id"] for op in found[0]["ops"]] == ["b"]


def test_a_snapshot_is_stored_and_read_and_a_truncated_cursor_is_told_of_it(client: Client, world: World) -> None:
    for id in "abcd":
        push(client, id)
    assert client.put("/v1/streams/s/snapshot", json={"seq": 3, "data": "YWJj"}).status_code == 204
    mark = pull(client, limit=3).json()["mark"]
    assert client.get("/v1/streams/s/snapshot").json() == {"seq": 3, "data": "YWJj", "mark": mark}
    from casework.streams.log import Log
    from casework.streams.retention import truncate

    assert client.post("/v1/streams/s/truncate", json={"upto": 2}).json() == {
        "floor_seq": 2, "removed_ops": 0, "kept_ops": 2,
    }  # fmt: skip
    run(truncate(Log(), "s", 2, repush_window_s=-10), world.blocking)
    answer = pull(client, after=0)
    assert answer.status_code == 410
    assert (answer.json()["floor_seq"], answer.json()["snapshot_seq"]) == (2, 3)
    assert pull(client, after=3).json()["ops"][0]["id"] == "d"


def test_the_streams_that_a_token_may_read_are_listed(world: World) -> None:
    with client_of(world, world.headers("*=append")) as writer:
        for stream in ("s1", "s2", "t1"):
            push(writer, "a", stream=stream)
        assert writer.get("/v1/streams").json() == {"streams": [], "cursor": None}
        only_s = writer.get("/v1/streams", headers=world.headers("s*=read"))
        assert only_s.json() == {"streams": ["s1", "s2"], "cursor": None}


# --- who may do what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer x", "Basic abc", "Bearer cw_12345678_" + "x" * 44])
def test_without_a_known_token_nothing_is_said(world: World, header: str | None) -> None:
    with client_of(world) as client:
        headers = {} if header is None else {"Authorization": header}
        for answer in (
            client.get("/v1/streams/s/ops", headers=headers),
            client.get("/v1/streams", headers=headers),
            client.post("/v1/streams/s/ops", headers=headers, json=body("a")),
        ):
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


def test_a_forbidden_stream_and_one_that_is_not_there_get_the_same_answer(world: World) -> None:
    with client_of(world, world.headers("*=append")) as writer:
        push(writer, "a", stream="secret")
    with client_of(world, world.headers("s1=read,append", "public-*=read")) as client:
        for method, path, payload in (
            ("GET", "ops", None), ("POST", "ops", body("x")), ("GET", "", None), ("GET", "events", None),
            ("GET", "snapshot", None), ("PUT", "snapshot", {"seq": 1, "data": ""}), ("POST", "truncate", {"upto": 1}),
        ):  # fmt: skip
            answers = [
                client.request(method, f"/v1/streams/{stream}/{path}".rstrip("/"), json=payload)
                for stream in ("secret", "nowher")
            ]
            assert [answer.status_code for answer in answers] == [404, 404], (method, path)
            texts = [answer.text.replace(name, "X") for answer, name in zip(answers, ("secret", "nowher"), strict=True)]
            assert texts[0] == texts[1]
        assert pull(client, "public-x").status_code == 404, "it may be read, but is not there"


def test_reading_gives_no_right_to_append_nor_appending_to_read_nor_either_to_truncate(world: World) -> None:
    with client_of(world) as client:
        client.headers.update(world.headers("s=append"))
        assert push(client, "a").status_code == 200
        assert pull(client).status_code == 404
        client.headers.update(world.headers("s=read"))
        assert pull(client).status_code == 200
        assert push(client, "b").status_code == 404
        client.headers.update(world.headers("s=read,append"))
        assert client.post("/v1/streams/s/truncate", json={"upto": 1}).status_code == 404
        client.headers.update(world.headers("s=admin"))
        assert client.post("/v1/streams/s/truncate", json={"upto": 1}).status_code == 200
        assert push(client, "c").status_code == 200, "admin includes the others"


def test_a_revoked_token_is_refused(world: World) -> None:
    token = world.token("s=append")
    with client_of(world, {"Authorization": f"Bearer {token}"}) as client:
        assert push(client, "a").status_code == 200
        (info,) = run(list_tokens(), world.blocking)
        assert (
            run(revoke_token(info.id), world.blocking) is True and run(revoke_token(info.id), world.blocking) is False
        )
        assert push(client, "b").status_code == 401


def test_a_token_ends_and_its_secret_is_stored_nowhere() -> None:
    clock = VirtualClock()
    backend = fresh_backend(clock=clock)
    token, info = run(create_token([read_grant("*=read")], label="for Ann", ttl_s=60), backend)
    assert run(verify_token(token), backend) == info and info.allows("x", "read") and not info.allows("x", "append")
    secret = token.rsplit("_", 1)[-1] if token.count("_") == 2 else token[12:]
    stored = backend.tables._tables["registry"].items
    assert secret not in repr(stored) and "for Ann" in repr(stored)
    assert run(verify_token(token[:-1] + ("a" if token[-1] != "a" else "b")), backend) is None
    clock.advance(61)
    assert run(verify_token(token), backend) is None


def test_the_id_of_a_token_is_letters_and_digits_so_that_a_command_can_name_it() -> None:
    backend = fresh_backend()
    assert all(run(create_token([read_grant("*=read")]), backend)[1].id.isalnum() for _ in range(300))


@pytest.mark.parametrize("text", ["", "s", "s=", "s=write", "=read", "s=read,,write", "a/b=read", "é=read"])
def test_a_grant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="is not a grant"):
        read_grant(text)


# --- what is refused ----------------------------------------------------------------------------------------


def test_an_id_that_is_taken_by_other_content_is_refused_by_name(client: Client) -> None:
    push(client, "a")
    answer = client.post("/v1/streams/s/ops", json={"ops": [*body("b")["ops"], *body("a", data="other")["ops"]]})
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["id"], problem["seq"]) == ("a", 1) and "'a' is taken" in problem["detail"]
    assert problem["stored"] == [{"id": "b", "seq": 2, "duplicate": False}]
    assert answer.headers["content-type"].startswith("application/problem+json")


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({}, None),
        ({"ops": []}, "ops"),
        ({"ops": [{"id": "a"}]}, "ops[0]"),
        ({"ops": [{"id": "a", "data": "YQ=="}, {"id": 7, "data": "YQ=="}]}, "ops[1].id"),
        ({"ops": [{"id": "a", "data": "not base64!"}]}, "ops[0].data"),
        ({"ops": [{"id": "", "data": ""}]}, "ops[0].id"),
        ({"ops": [{"id": "a\nb", "data": ""}]}, None),
        ({"ops": [{"id": "a", "data": "", "more": 1}]}, "ops[0]"),
    ],
)
def test_bad_input_is_refused_with_its_place_and_nothing_is_stored(
    client: Client, payload: Any, place: str | None
) -> None:
    answer = client.post("/v1/streams/s/ops", json=payload)
    assert answer.status_code == 422, answer.text
    if place is not None:
        assert place in json.dumps(answer.json()).replace("$.", ""), answer.text
    assert pull(client).status_code == 404


@pytest.mark.parametrize("text", ["", "{", "[1", "null", '"x"', "\udcff", '{"ops": NaN}'])
def test_a_body_that_is_not_json_is_refused(client: Client, text: str) -> None:
    answer = client.post(
        "/v1/streams/s/ops",
        content=text.encode("utf-8", "surrogateescape"),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=1001", "limit=x", "wait_s=-1", "wait_s=21", f"after={2**63}"]
)
def test_a_query_that_cannot_be_answered_is_refused(client: Client, query: str) -> None:
    push(client, "a")
    answer = client.get(f"/v1/streams/s/ops?{query}")
    assert answer.status_code == 422 and query.partition("=")[0] in answer.text


def test_a_cursor_above_the_head_is_refused(client: Client) -> None:
    push(client, "a")
    answer = pull(client, after=9)
    assert answer.status_code == 422 and answer.json()["place"] == "after"


def test_what_is_too_large_is_refused_with_413(make_world: Callable[..., World]) -> None:
    world = make_world(fresh_backend(), max_body_bytes=600_000, max_push_ops=10)
    with client_of(world, world.headers("s=append,read")) as client:
        assert push(client, *(str(n) for n in range(11))).status_code == 413
        assert push(client, "big", data="x" * 380_001).status_code == 413
        assert push(client, "body", data="x" * 600_000).status_code == 413
        assert push(client, *(str(n) for n in range(10))).status_code == 200
        assert len(pull(client).json()["ops"]) == 10


def test_a_page_ends_at_its_bytes(make_world: Callable[..., World]) -> None:
    world = make_world(fresh_backend(), max_page_bytes=250)
    with client_of(world, world.headers("s=append,read")) as client:
        push(client, *(str(n) for n in range(10)), data="x" * 100)
        assert [len(pull(client, after=after).json()["ops"]) for after in (0, 2, 8)] == [2, 2, 2]


# --- the store fails ----------------------------------------------------------------------------------------


class Failing(Counted):
    """A store whose transactions on streams fail from the nth on."""

    error: Exception = Unavailable("nobody answers")
    after = 0

    def execute(self, effect: Any) -> Any:
        if isinstance(effect, Transact) and any(write.key.table.name == "streams" for write in effect.writes):
            if self.rounds() >= self.after:
                raise self.error
        elif isinstance(effect, Transact):
            return self._backend.execute(effect)
        return super().execute(effect)


def test_a_store_that_fails_before_the_deadline_is_a_500_that_tells_no_secrets(
    make_world: Callable[..., World],
) -> None:
    world = make_world(Failing(fresh_backend()))
    with client_of(world, world.headers("s=append,read"), raises=False) as client:
        answer = push(client, "a")
    assert answer.status_code == 500 and "nobody answers" not in answer.text


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Throttled("slower")])
def test_a_push_that_is_not_all_stored_is_a_503_that_says_what_is(
    make_world: Callable[..., World], error: Exception
) -> None:
    store = Failing(fresh_backend())
    store.error, store.after = error, 1
    world = make_world(store, push_deadline_s=1.0)
    names = [f"{n:03}" for n in range(120)]
    with client_of(world, world.headers("s=append,read")) as client:
        answer = push(client, *names)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
        assert [one["seq"] for one in answer.json()["stored"]] == list(range(1, 96))
        store.after = 1000
        again = push(client, *names).json()["results"]
        assert [one["seq"] for one in again] == list(range(1, 121))
        assert sum(one["duplicate"] for one in again) >= 95, "what the first call went on with may be among them"
        assert client.get("/health").json() == {"status": "ok"}


def test_a_push_whose_round_hangs_is_answered_at_its_deadline(make_world: Callable[..., World]) -> None:
    inner, gate = fresh_backend(), threading.Event()

    class Hangs(Counted):
        def execute(self, effect: Any) -> Any:
            if isinstance(effect, Transact) and any(write.key.table.name == "streams" for write in effect.writes):
                gate.wait(60)
            return super().execute(effect)

    world = make_world(Hangs(inner), push_deadline_s=0.1)
    with client_of(world, world.headers("s=append,read")) as client:
        answer = push(client, "a", "b")
        assert answer.status_code == 503 and answer.json()["unknown"] == ["a", "b"] and answer.json()["stored"] == []
        gate.set()


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "nan", "inf", "3601", "1e9"])
def test_a_push_deadline_that_cannot_be_one_refuses_to_start(value: str) -> None:
    with pytest.raises(Misuse, match=PUSH_DEADLINE_VARIABLE):
        read_push_deadline(None, {PUSH_DEADLINE_VARIABLE: value})


def test_the_push_deadline_is_the_arguments_else_the_environments_else_20_seconds() -> None:
    assert read_push_deadline(None, {}) == 20
    assert read_push_deadline(None, {PUSH_DEADLINE_VARIABLE: "7.5"}) == 7.5
    assert read_push_deadline(3, {PUSH_DEADLINE_VARIABLE: "7.5"}) == 3
    with pytest.raises(Misuse, match="--push-deadline"):
        read_push_deadline(-3, {})


def test_metrics_count_what_was_done(client: Client) -> None:
    push(client, "a", "b")
    push(client, "b")
    pull(client)
    client.get("/v1/streams/unknown/ops")
    lines = client.get("/metrics").text.splitlines()
    assert "casework_relay_ops_pushed_total 3" in lines and "casework_relay_duplicates_total 1" in lines
    assert "casework_relay_ops_pulled_total 2" in lines and 'casework_relay_errors_total{status="404"} 1' in lines


def test_a_reader_with_a_mark_of_another_log_is_told_so(client: Client) -> None:
    push(client, "a", "b")
    mark = pull(client).json()["mark"]
    assert pull(client, after=2, mark=mark).status_code == 200
    other = "o" + "0" * 32
    for path, after, at in (("ops", 2, other), ("ops", 9, mark), ("events", 2, other), ("events", 9, mark)):
        answer = client.get(f"/v1/streams/s/{path}", params={"after": after, "mark": at})
        problem = answer.json()
        assert (answer.status_code, problem["type"], problem["last_seq"]) == (409, "urn:casework:log-changed", 2)
    for path in ("ops", "events"):
        assert client.get(f"/v1/streams/s/{path}", params={"after": 2, "mark": "nonsense"}).status_code == 422
    came_back = client.get("/v1/streams/s/events", headers={"Last-Event-ID": f"2 {other}"})
    assert came_back.status_code == 409, "an event's id carries its mark"
    assert client.get("/v1/streams/none/ops", params={"after": 9, "mark": mark}).status_code == 404
