"""Promise P9 on a server behind a proxy that loses requests and answers: resolved or unknown, never guessed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from casework.backends.dynamodb import CallPolicy, DynamoDBBackend
from casework.errors import ConditionFailed, Contention, MissingTable, OutcomeUnknown, Throttled, Unavailable
from casework.kernel.conditions import absent, equals
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Check, Delete, Put, Table, Update
from casework.kernel.retry import Pauses
from tests.dynamodb.conftest import Maker
from tests.servers.lossy_proxy import LossyProxy, Rule

THINGS = Table(name="things", partition="id", sort="n", sort_type="int")
CLIENTS = [pytest.param(None, id="own-client"), pytest.param(4, id="injected-client-that-repeats")]


def put(value: str = "mine", when: Any = None) -> Put:
    return Put(THINGS, {"id": "a", "n": 1, "value": value}, when=when or absent())


@pytest.fixture(params=CLIENTS)
def sdk_attempts(request: pytest.FixtureRequest) -> int | None:
    attempts: int | None = request.param
    return attempts


@pytest.fixture
def backend(make: Maker, lossy_proxy: LossyProxy, prefix: str, sdk_attempts: int | None) -> Any:
    backend = make(lossy_proxy.url, sdk_attempts=sdk_attempts, prefix=prefix)
    backend.create_tables([THINGS])
    lossy_proxy.clear()
    return backend


@pytest.fixture
def other(make: Maker, ministack_url: str, prefix: str) -> Any:
    """Somebody else, whose calls do not go through the proxy."""
    return make(ministack_url, prefix=prefix)


LOSSES: list[Any] = [
    pytest.param(Rule.drop_request, id="before-it-was-applied"),
    pytest.param(Rule.drop_answer, id="after-it-was-applied"),
    pytest.param(Rule.server_error, id="500-before"),
    pytest.param(Rule.server_error_after_applying, id="500-after"),
]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("times", [1, 2])
def test_a_write_whose_answer_was_lost_is_resolved(
    backend: Any, lossy_proxy: LossyProxy, lose: Callable[[Rule], Rule], times: int
) -> None:
    lose(lossy_proxy.on("PutItem", times=times))
    assert backend.execute(Write(put())) is None
    assert backend.execute(Get(THINGS.key("a", 1))) == {"id": "a", "n": 1, "value": "mine"}
    lose(lossy_proxy.on("UpdateItem", times=times))
    backend.execute(Write(Update(THINGS.key("a", 1), {"value": "next"}, when=equals("value", "mine"))))
    assert backend.execute(Get(THINGS.key("a", 1)))["value"] == "next"  # type: ignore[index]
    with pytest.raises(ConditionFailed) as refused:  # and the next refusal is final again
        backend.execute(Write(put()))
    assert refused.value.refusals[0].item == {"id": "a", "n": 1, "value": "next"}  # type: ignore[union-attr]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("times", [1, 2])
def test_a_transaction_whose_answer_was_lost_is_resolved_and_sent_unchanged(
    backend: Any, lossy_proxy: LossyProxy, lose: Callable[[Rule], Rule], times: int
) -> None:
    lose(lossy_proxy.on("TransactWriteItems", times=times))
    writes = [put(), Delete(THINGS.key("a", 2)), Check(THINGS.key("a", 3), absent())]
    assert backend.execute(Transact(writes)) is None
    assert backend.execute(GetMany([THINGS.key("a", n) for n in (1, 2)])) == [
        {"id": "a", "n": 1, "value": "mine"},
        None,
    ]
    bodies = {request.body for request in lossy_proxy.requests if request.operation == "TransactWriteItems"}
    assert len(bodies) == 1


@pytest.mark.parametrize("wrap", [Write, lambda write: Transact([write])], ids=["write", "transaction"])
@pytest.mark.parametrize("lose", [Rule.drop_request, Rule.server_error])
def test_a_refusal_after_a_loss_by_somebody_elses_item_is_unknown(
    backend: Any, other: Any, lossy_proxy: LossyProxy, wrap: Callable[[Put], Any], lose: Callable[[Rule], Rule]
) -> None:
    other.execute(Write(put("theirs")))
    lose(lossy_proxy.on(None))
    with pytest.raises(OutcomeUnknown):
        backend.execute(wrap(put()))
    assert other.execute(Get(THINGS.key("a", 1)))["value"] == "theirs"


def test_an_answer_lost_and_the_item_then_written_by_another_is_unknown(
    backend: Any, other: Any, lossy_proxy: LossyProxy, ministack_url: str, prefix: str
) -> None:
    """A commits 7 to 8, the answer is lost, B commits 8 to 9, A's repeat is refused: unknown, not stale."""
    other.execute(Write(Put(THINGS, {"id": "a", "n": 1, "version": 7})))
    held = lossy_proxy.on("UpdateItem", nth=2).hold_request()
    lossy_proxy.on("UpdateItem").drop_answer()

    def overtake() -> None:
        held.wait_until_it_arrives()
        with DynamoDBBackend(endpoint_url=ministack_url, prefix=prefix) as third:
            third.execute(Write(Put(THINGS, {"id": "a", "n": 1, "version": 9}, when=equals("version", 8))))
        held.release()

    thread = threading.Thread(target=overtake)
    thread.start()
    with pytest.raises(OutcomeUnknown):
        backend.execute(Write(Update(THINGS.key("a", 1), {"version": 8}, when=equals("version", 7))))
    thread.join()
    assert other.execute(Get(THINGS.key("a", 1)))["version"] == 9


@pytest.mark.parametrize("wrap", [Write, lambda write: Transact([write])], ids=["write", "transaction"])
def test_a_write_that_never_gets_an_answer_is_unknown_at_the_deadline(
    make: Maker, lossy_proxy: LossyProxy, prefix: str, wrap: Callable[[Put], Any], sdk_attempts: int | None
) -> None:
    policy = CallPolicy(deadline_s=0.2, pauses=Pauses(first_pause_s=0.001, max_pause_s=0.01))
    backend = make(lossy_proxy.url, sdk_attempts=sdk_attempts and 2, prefix=prefix, policy=policy)
    backend.create_tables([THINGS])
    lossy_proxy.on("PutItem", times=None).drop_answer()
    lossy_proxy.on("TransactWriteItems", times=None).drop_request()
    with pytest.raises(OutcomeUnknown):
        backend.execute(wrap(put()))


def test_a_throttled_write_that_the_sdk_repeated_leaves_its_refusal_final(
    backend: Any, other: Any, lossy_proxy: LossyProxy
) -> None:
    other.execute(Write(put("theirs")))
    lossy_proxy.on("PutItem", times=2).throttle()
    with pytest.raises(ConditionFailed):
        backend.execute(Write(put()))


def test_throttling_conflicts_and_failures_are_told_apart_when_they_last(backend: Any, lossy_proxy: LossyProxy) -> None:
    def outcome(effect: Any, rule: Callable[[Rule], Rule]) -> type[BaseException]:
        lossy_proxy.clear()
        rule(lossy_proxy.on(None, times=None))
        with pytest.raises(Exception) as error:  # noqa: PT011 - its type is the answer
            backend.execute(effect)
        return error.type

    for write in (Write(put()), Transact([put(), put_at(2)])):
        assert outcome(write, Rule.throttle) is Throttled
        assert outcome(write, Rule.provisioned_throughput_exceeded) is Throttled
        assert outcome(write, Rule.transaction_conflict) is Contention
        assert outcome(write, lambda rule: rule.error("AccessDeniedException", "not dynamodb:PutItem")) is Unavailable
        assert outcome(write, lambda rule: rule.error("ResourceNotFoundException", "no")) is MissingTable
    for read in (Get(THINGS.key("a", 1)), GetMany([THINGS.key("a", 1)]), Query(THINGS, "a")):
        assert outcome(read, Rule.throttle) is Throttled
        assert outcome(read, Rule.server_error) is Unavailable
        assert outcome(read, Rule.drop_request) is Unavailable
    lossy_proxy.clear()
    assert backend.execute(Get(THINGS.key("a", 1))) is None


def put_at(n: int) -> Put:
    return Put(THINGS, {"id": "a", "n": n})


def test_a_transaction_in_progress_is_waited_for_with_the_same_token(backend: Any, lossy_proxy: LossyProxy) -> None:
    lossy_proxy.on("TransactWriteItems", nth=1).drop_answer()
    lossy_proxy.on("TransactWriteItems", nth=2, times=2).transaction_in_progress()
    backend.execute(Transact([put()]))
    tokens = {r.json["ClientRequestToken"] for r in lossy_proxy.requests if r.operation == "TransactWriteItems"}
    assert len(tokens) == 1
    assert backend.execute(Get(THINGS.key("a", 1)))["value"] == "mine"  # type: ignore[index]


def test_a_passing_conflict_is_repeated_inside(backend: Any, lossy_proxy: LossyProxy) -> None:
    lossy_proxy.on("PutItem", times=2).transaction_conflict()
    backend.execute(Write(put()))
    lossy_proxy.on("TransactWriteItems", times=2).transaction_conflict()
    backend.execute(Transact([put_at(2), put_at(3)]))
    assert lossy_proxy.received["PutItem"] == lossy_proxy.received["TransactWriteItems"] == 3
    assert [item["n"] for item in backend.execute(Query(THINGS, "a")).items] == [1, 2, 3]


def test_nobody_at_the_endpoint_is_unavailable_not_unknown(make: Maker, sdk_attempts: int | None) -> None:
    backend = make("http://127.0.0.1:9", sdk_attempts=sdk_attempts)
    for effect in (Write(put()), Transact([put()]), Get(THINGS.key("a", 1))):
        with pytest.raises(Unavailable, match="check the endpoint"):
            backend.execute(effect)
