"""The decisions of ``plan.py`` and ``faults.py``, on replies made up here: no server, no SDK, no time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from casework.backends.dynamodb.encode import NONCE, decode_item, decode_value, encode_item
from casework.backends.dynamodb.faults import Fault, Kind, Reply, fault_of_answer, fault_of_exception
from casework.backends.dynamodb.plan import CallPolicy, Pause, Planner, Send
from casework.errors import (
    ConditionFailed,
    Contention,
    CorruptItem,
    ItemTooLarge,
    MissingTable,
    Misuse,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from casework.kernel.conditions import absent, equals, present
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Check, Delete, Index, Put, Table, Update

THINGS = Table(
    name="things",
    partition="id",
    sort="n",
    sort_type="int",
    indexes=(Index(name="due", partition="bucket", sort="at"),),
)
FLAT = Table(name="flat", partition="id")
PUT = Put(THINGS, {"id": "a", "n": 1, "v": 1}, when=absent())
UPDATE = Update(THINGS.key("a", 1), {"v": 2}, when=equals("v", 1))


class Play:
    """Carries out steps against replies made up one by one; the clock moves ``seconds`` with each call."""

    def __init__(self, effect: Any, *, seconds: float = 0.0, policy: CallPolicy | None = None) -> None:
        names = itertools.count()
        self.planner = Planner("p", policy or CallPolicy(), lambda: f"token-{next(names)}")
        self.effect, self.seconds = effect, seconds
        self.sent: list[Send] = []
        self.paused: list[float] = []
        self.now_s = 100.0

    def run(self, replies: Sequence[Any] | Callable[[int], Any]) -> Any:
        make = replies if callable(replies) else lambda n: replies[n]
        steps = self.planner.steps(self.effect)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                assert callable(replies) or len(self.sent) == len(replies), "fewer calls than expected"
                return stop.value
            if isinstance(step, Pause):
                self.paused.append(step.seconds)
                self.now_s += step.seconds
                answer = None
                continue
            reply = make(len(self.sent))
            self.sent.append(step)
            started_s = self.now_s
            self.now_s += self.seconds
            if isinstance(reply, dict):
                reply = Reply(reply)
            elif isinstance(reply, Fault):
                reply = Reply(None, reply)
            answer = Reply(reply.response, reply.fault, reply.doubtful, started_s, self.now_s)


def fault(kind: Kind, **response: Any) -> Fault:
    return Fault(kind, kind, f"{kind} made up", response)


def cancelled(*codes: str, items: dict[int, Any] | None = None, messages: dict[int, str] | None = None) -> Fault:
    items, messages = items or {}, messages or {}
    reasons = [
        {"Code": code, "Message": messages.get(n), **({"Item": items[n]} if n in items else {})}
        for n, code in enumerate(codes)
    ]
    return Fault("cancelled", "TransactionCanceledException", "cancelled", {"CancellationReasons": reasons})


def wire(nonce: str | None = "theirs", **attributes: Any) -> dict[str, Any]:
    return {**encode_item(attributes), **({} if nonce is None else {NONCE: {"S": nonce}})}


OLD = wire(id="a", n=1, v=7)
WRITES = [pytest.param(PUT, id="put"), pytest.param(UPDATE, id="update")]

# --- a single write -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_a_write_carries_a_nonce_and_demands_that_the_items_is_another(write: Any) -> None:
    play = Play(Write(write))
    play.run([{}])
    request = play.sent[0].request
    assert "NOT (#" in request["ConditionExpression"]
    assert NONCE in request["ExpressionAttributeNames"].values()
    assert request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    stored = request["Item"][NONCE] if "Item" in request else None
    assert stored == ({"S": "token-0"} if stored else None)
    assert {"S": "token-0"} in request["ExpressionAttributeValues"].values()


@pytest.mark.parametrize("write", WRITES)
def test_a_first_refusal_is_final_and_hands_over_the_item_without_the_nonce(write: Any) -> None:
    with pytest.raises(ConditionFailed) as refused:
        Play(Write(write)).run([fault("refused", Item=OLD)])
    assert refused.value.refusals[0] == ("condition", {"id": "a", "n": 1, "v": 7})


@pytest.mark.parametrize("sdk_repeated", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_refusal_by_our_own_nonce_means_applied(write: Any, sdk_repeated: bool) -> None:
    refusal = Reply(None, fault("refused", Item=wire("token-0", id="a", n=1)), doubtful=sdk_repeated)
    play = Play(Write(write))
    play.run([refusal] if sdk_repeated else [fault("lost"), refusal])
    assert len({str(send) for send in play.sent}) == 1, "the repeat is the same request"


@pytest.mark.parametrize("item", [OLD, None])
@pytest.mark.parametrize("sdk_repeated", [False, True])
def test_a_refusal_after_doubt_by_any_other_item_is_unknown(item: Any, sdk_repeated: bool) -> None:
    refusal = Reply(None, fault("refused", Item=item), doubtful=sdk_repeated)
    replies: list[Any] = [refusal] if sdk_repeated else [fault("lost"), refusal]
    with pytest.raises(OutcomeUnknown):
        Play(Write(UPDATE)).run([*replies, *([{}] if item is None else [])])


@pytest.mark.parametrize("kind", ["throttled", "conflict", "unsent"])
def test_a_repeat_of_what_cannot_have_been_applied_leaves_the_refusal_final(kind: Kind) -> None:
    with pytest.raises(ConditionFailed):
        Play(Write(PUT)).run([fault(kind), fault("refused", Item=OLD)])


def test_a_refusal_without_its_item_costs_one_consistent_get_until_the_server_is_known_to_return_it() -> None:
    play = Play(Write(UPDATE))
    with pytest.raises(ConditionFailed) as refused:
        play.run([fault("refused"), {"Item": OLD}])
    assert play.sent[1].method == "get_item"
    assert play.sent[1].request["ConsistentRead"] is True
    assert refused.value.refusals[0].item == {"id": "a", "n": 1, "v": 7}  # type: ignore[union-attr]
    play.planner.trust_items(True)
    play.sent.clear()
    with pytest.raises(ConditionFailed) as refused:
        play.run([fault("refused")])
    assert refused.value.refusals[0].item is None  # type: ignore[union-attr]


def test_a_condition_that_allows_no_item_was_refused_by_one_so_it_is_read_even_from_a_trusted_server() -> None:
    play = Play(Write(PUT))
    play.planner.trust_items(True)
    with pytest.raises(ConditionFailed) as refused:
        play.run([fault("refused"), {"Item": OLD}])
    assert refused.value.refusals[0].item is not None  # type: ignore[union-attr]


def test_when_the_refusing_item_cannot_be_read_nothing_was_written_all_the_same() -> None:
    with pytest.raises(Unavailable):
        Play(Write(PUT)).run(lambda n: fault("refused") if n == 0 else fault("lost"))
    with pytest.raises(OutcomeUnknown):
        Play(Write(PUT)).run(lambda n: [fault("lost"), fault("refused")][n] if n < 2 else fault("lost"))


FINAL: list[tuple[Kind, type[Exception]]] = [
    ("throttled", Throttled),
    ("conflict", Contention),
    ("unsent", Unavailable),
    ("lost", OutcomeUnknown),
    ("denied", Unavailable),
    ("setup", Misuse),
    ("credentials", Unavailable),
    ("unexpected", Unavailable),
    ("invalid", Misuse),
    ("too_large", ItemTooLarge),
    ("missing_table", MissingTable),
    ("mismatch", Misuse),
]


@pytest.mark.parametrize("effect", [Write(PUT), Transact([PUT])], ids=["write", "transaction"])
@pytest.mark.parametrize(("kind", "error"), FINAL)
def test_a_fault_that_lasts_becomes_its_error(effect: Any, kind: Kind, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        Play(effect, seconds=1.0).run(lambda n: fault(kind))
    assert type(raised.value) is error


@pytest.mark.parametrize("effect", [Write(PUT), Transact([PUT])], ids=["write", "transaction"])
@pytest.mark.parametrize("kind", [kind for kind, _ in FINAL])
def test_after_doubt_nothing_but_our_own_item_or_a_success_resolves_it(effect: Any, kind: Kind) -> None:
    with pytest.raises(OutcomeUnknown):
        Play(effect, seconds=1.0).run(lambda n: fault("lost") if n == 0 else fault(kind))
    with pytest.raises(OutcomeUnknown):
        Play(effect, seconds=1.0).run(lambda n: Reply(None, fault(kind), doubtful=True))


def test_nothing_is_repeated_after_nine_minutes_whatever_the_policy_says() -> None:
    play = Play(Transact([PUT]), seconds=10.0, policy=CallPolicy(deadline_s=86400.0))
    with pytest.raises(OutcomeUnknown):
        play.run(lambda n: fault("lost"))
    assert 500 < play.now_s - 100.0 <= 550


def test_pauses_grow_and_are_bounded() -> None:
    play = Play(Write(PUT), seconds=0.1)
    with pytest.raises(OutcomeUnknown):
        play.run(lambda n: fault("lost"))
    assert max(play.paused) <= 1.0
    assert max(play.paused[:3]) <= 0.08


# --- a transaction --------------------------------------------------------------------------------------------------

MIXED = Transact(
    [
        PUT,
        Update(THINGS.key("a", 2), {}, ["old"]),
        Delete(THINGS.key("a", 3), present()),
        Check(THINGS.key("a", 4), equals("v", 1)),
    ]
)


def test_a_transaction_is_sent_frozen_with_its_token_which_is_its_nonce() -> None:
    play = Play(MIXED)
    play.run([fault("lost"), fault("in_progress"), fault("conflict"), {}])
    assert len({str(send) for send in play.sent}) == 1
    request = play.sent[0].request
    assert request["ClientRequestToken"] == "token-0"
    put, update, delete, check = request["TransactItems"]
    assert put["Put"]["Item"][NONCE] == {"S": "token-0"}
    assert update["Update"]["UpdateExpression"] == "SET #0 = :0 REMOVE #1"
    assert NONCE not in str(delete) + str(check), "what stores no nonce demands none"


def test_refusals_stand_by_position_with_their_items() -> None:
    with pytest.raises(ConditionFailed) as refused:
        Play(MIXED).run(
            [
                cancelled(
                    "None", "TransactionConflict", "ConditionalCheckFailed", "ConditionalCheckFailed", items={3: OLD}
                )
            ]
        )
    assert refused.value.refusals == (None, None, ("condition", None), ("condition", {"id": "a", "n": 1, "v": 7}))


def test_one_item_with_our_nonce_shows_that_the_whole_transaction_was_applied() -> None:
    ours = wire("token-0", id="a", n=1)
    play = Play(MIXED)
    answer = play.run(
        [fault("lost"), cancelled("ConditionalCheckFailed", "None", "ConditionalCheckFailed", "None", items={0: ours})]
    )
    assert answer is None, "applied, and not refused"


@pytest.mark.parametrize("doubt", ["lost", "in_progress"])
def test_a_transaction_refused_after_doubt_by_others_is_unknown(doubt: Kind) -> None:
    refusal = cancelled("None", "None", "ConditionalCheckFailed", "ConditionalCheckFailed", items={3: OLD})
    with pytest.raises(OutcomeUnknown):
        Play(MIXED).run([fault(doubt), refusal])


def test_mixed_reasons_a_failed_condition_then_validation_then_throttling_then_conflict() -> None:
    def outcome(*codes: str, **more: Any) -> type[Exception]:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its type is the answer
            Play(MIXED, seconds=0.1).run(lambda n: cancelled(*codes, **more) if n < 20 else {"Item": OLD})
        return raised.type

    conflict, throttled, slow = "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"
    assert outcome(conflict, throttled, "ValidationError", "ConditionalCheckFailed", items={3: OLD}) is ConditionFailed
    assert outcome(conflict, throttled, "ValidationError", "None") is Misuse
    assert outcome(conflict, slow, "ValidationError", "None") is Misuse
    size = {2: "Item size to update has exceeded the maximum allowed size"}
    assert outcome(conflict, throttled, "ValidationError", "None", messages=size) is ItemTooLarge
    assert outcome("None", "ItemCollectionSizeLimitExceeded", conflict, "None") is ItemTooLarge
    assert outcome(conflict, throttled, "None", "None") is Throttled
    assert outcome(conflict, slow, "None", "None") is Throttled
    assert outcome("None", conflict, "None", "None") is Contention
    assert outcome("None", "SomethingNew", "None", "None") is Misuse


def test_reasons_are_read_from_the_message_where_a_server_lists_them_only_there() -> None:
    message = "Transaction cancelled, please refer cancellation reasons [None, None, ConditionalCheckFailed, None]"
    with pytest.raises(ConditionFailed) as refused:
        Play(MIXED).run([Fault("cancelled", "TransactionCanceledException", message), {"Item": OLD}])
    assert [bool(refusal) for refusal in refused.value.refusals] == [False, False, True, False]


def test_limits_are_checked_before_anything_is_sent() -> None:
    for effect in (
        Write(Put(THINGS, {"id": "a", "n": 1, "v": "x" * 410_000})),
        Write(Delete(THINGS.key("a", 1))),  # type: ignore[arg-type]
        Transact([PUT, PUT]),
        Transact([]),
        Get(THINGS.key("a", "text")),
        Query(THINGS, "a", limit=0),
        GetMany([FLAT.key("")]),
        "nonsense",
    ):
        play = Play(effect)
        with pytest.raises(Misuse):
            play.run([])
        assert play.sent == []


# --- reads ----------------------------------------------------------------------------------------------------------


def test_get_many_merges_duplicates_asks_in_hundreds_and_again_for_what_was_left_out() -> None:
    keys = [THINGS.key("a", n) for n in (*range(150), 3, 3)]

    play = Play(GetMany(keys))
    steps = play.planner.steps(play.effect)
    answer: Any = None
    sizes = []
    found: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            found = stop.value
            break
        assert isinstance(step, Send)
        asked = step.request["RequestItems"]["p_things"]
        assert asked["ConsistentRead"] is True
        sizes.append(len(asked["Keys"]))
        served, left = asked["Keys"][:70], asked["Keys"][70:]
        answer = Reply(
            {
                "Responses": {"p_things": list(reversed(served))},
                "UnprocessedKeys": {"p_things": {**asked, "Keys": left}} if left else {},
            }
        )
    assert sizes == [100, 30, 50]
    assert [item["n"] for item in found] == [*range(150), 3, 3]
    assert found[3] is not found[150]


def test_get_many_gives_up_when_the_service_returns_nothing_for_long() -> None:
    asked = {"p_flat": {"Keys": [{"id": {"S": "a"}}]}}
    with pytest.raises(Throttled):
        Play(GetMany([FLAT.key("a")])).run(lambda n: {"Responses": {}, "UnprocessedKeys": asked})


def test_a_query_page_ends_with_a_cursor_that_begins_the_next_one() -> None:
    query = Query(THINGS, "b0", index="due", low="1", high="5", limit=2, reverse=True)
    last = encode_item({"bucket": "b0", "at": "3", "id": "a", "n": 1})
    play = Play(query)
    page = play.run([{"Items": [last], "LastEvaluatedKey": last}])
    request = play.sent[0].request
    assert request["IndexName"] == "due"
    assert "ConsistentRead" not in request
    assert request["KeyConditionExpression"] == "#0 = :0 AND #1 BETWEEN :1 AND :2"
    assert request["ScanIndexForward"] is False
    following = Play(Query(THINGS, "b0", index="due", low="1", high="5", reverse=True, after=page.next))
    assert following.run([{"Items": []}]).next is None
    assert following.sent[0].request["ExclusiveStartKey"] == last
    with pytest.raises(Misuse, match="belongs to another query"):
        Play(Query(THINGS, "b1", index="due", after=page.next)).run([])


def test_a_query_of_a_table_is_consistent() -> None:
    last = encode_item({"id": "a", "n": 2})
    play = Play(Query(THINGS, "a"))
    page = play.run([{"Items": [], "LastEvaluatedKey": last}])
    assert play.sent[0].request["ConsistentRead"] is True
    following = Play(Query(THINGS, "a", after=page.next))
    following.run([{}])
    assert following.sent[0].request["ExclusiveStartKey"] == last


def test_a_partition_without_sort_key_ends_with_its_one_item() -> None:
    item = encode_item({"id": "a"})
    assert Play(Query(FLAT, "a", limit=1)).run([{"Items": [item], "LastEvaluatedKey": item}]).next is None


def test_integers_are_exact_and_what_casework_never_stores_is_reported() -> None:
    item = {"small": -(2**63), "large": 2**63 - 1, "yes": True, "no": False, "text": "", "raw": b"\0"}
    assert decode_item(encode_item(item)) == item
    assert decode_item({"a": {"S": "x"}, NONCE: {"S": "n"}, "_other": {"M": {}}}) == {"a": "x"}
    for foreign in ({"N": "1.5"}, {"NULL": True}, {"L": []}, {"SS": ["a"]}, {}):
        with pytest.raises(CorruptItem):
            decode_value(foreign, "attribute 'a'")


# --- faults ---------------------------------------------------------------------------------------------------------


def named(name: str, *bases: str) -> Exception:
    """An exception with the names of the SDK's, without the SDK."""
    kind: type[Exception] = Exception
    for one in (*reversed(bases), name):
        kind = type(one, (kind,), {})
    return kind("text")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (named("EndpointConnectionError", "ConnectionError", "BotoCoreError"), "unsent"),
        (named("ConnectTimeoutError", "HTTPClientError", "BotoCoreError"), "unsent"),
        (named("ReadTimeoutError", "HTTPClientError", "BotoCoreError"), "lost"),
        (named("ConnectionClosedError", "HTTPClientError", "BotoCoreError"), "lost"),
        (named("ResponseStreamingError", "HTTPClientError", "BotoCoreError"), "lost"),
        (named("NoCredentialsError", "BotoCoreError"), "credentials"),
        (named("CredentialRetrievalError", "BotoCoreError"), "credentials"),
        (named("TokenRetrievalError", "BotoCoreError"), "credentials"),
        (named("UnauthorizedSSOTokenError", "SSOError", "BotoCoreError"), "credentials"),
        (named("MetadataRetrievalError", "BotoCoreError"), "credentials"),
        (named("ResponseParserError"), "lost"),
        (named("NoRegionError", "BotoCoreError"), "setup"),
        (named("ParamValidationError", "BotoCoreError"), "invalid"),
        (ConnectionResetError("reset"), "lost"),
        (TimeoutError("late"), "lost"),
        (ValueError("a bug"), None),
    ],
)
def test_an_exception_of_the_sdk_says_whether_the_request_can_have_arrived(error: Exception, kind: str | None) -> None:
    found = fault_of_exception(error)
    assert (found and found.kind) == kind


@pytest.mark.parametrize(
    ("code", "status", "message", "kind"),
    [
        ("com.amazonaws#ConditionalCheckFailedException", 400, "", "refused"),
        ("ValidationException", 400, "Item size has exceeded the maximum allowed size", "too_large"),
        ("ValidationException", 400, "One or more parameter values were invalid", "invalid"),
        ("ItemCollectionSizeLimitExceededException", 400, "", "too_large"),
        ("InternalServerError", 500, "", "lost"),
        ("SomethingNew", 503, "", "lost"),
        ("SomethingNew", 429, "", "throttled"),
        ("SomethingNew", 400, "", "unexpected"),
        ("SomethingNew", 403, "", "unexpected"),
        ("407", 407, "", "unexpected"),
        ("LimitExceededException", 400, "", "throttled"),
        ("413", 413, "", "too_large"),
        ("ExpiredTokenException", 400, "", "denied"),
        ("TransactionInProgressException", 400, "", "in_progress"),
    ],
)
def test_an_answer_of_the_service_says_what_went_wrong(code: str, status: int, message: str, kind: str) -> None:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert fault_of_answer(answer).kind == kind


def test_every_error_says_what_to_do() -> None:
    for code, word in (
        ("AccessDeniedException", "iam_policy"),
        ("ExpiredTokenException", "renew"),
        ("UnrecognizedClientException", "credentials"),
        ("ResourceNotFoundException", "casework dynamodb create"),
    ):
        with pytest.raises(Exception, match=word):
            Play(Write(PUT)).run([fault_of_answer({"Error": {"Code": code, "Message": "m"}})])
    for error, word in (("NoCredentialsError", "credentials"), ("NoRegionError", "region")):
        with pytest.raises(Misuse if word == "region" else Unavailable, match=word):
            Play(Write(PUT)).run([fault_of_exception(named(error, "BotoCoreError"))])
