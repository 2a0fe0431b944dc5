"""What each option of functions, blocks and messages that run once changes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

from botocore.awsrequest import AWSResponse
from urllib3 import HTTPResponse

import casework
from casework import MemoryIdempotencyStore, Unavailable
from casework.app.current import current_claim
from casework.idempotency.guarding import keep_alive
from tests.options.guarded import MESSAGE, Job, counted_looks
from tests.options.sites import in_thread
from tests.options.table import SOMETHING, Row, Rows, row
from tests.servers.clients import sqs

See = Callable[[str, Any], Any]


def renewals_after_55_s(surface: str, max_run_s: float) -> int:
    """How often the lease of a call is renewed that has run for 55 seconds."""
    job = Job(surface, max_run_s=max_run_s)

    def look() -> int:
        claim = current_claim()
        assert claim is not None
        claim.began_us -= 55_000_000
        in_thread(lambda: job.store.run(keep_alive(job.store.shared, claim)))()
        return int(job.own().renewals)

    return int(job.during(look))


def has_waited(surface: str, wait_s: float) -> bool:
    """Whether a second call waits ten seconds for the first one, which does not end before it."""
    job = Job(surface, wait_s=wait_s, lease_s=1000.0)

    def second() -> bool:
        began_us = job.clock.now().middle_us
        with counted_looks(job.clock, 0.5):
            assert in_thread(job.attempt)() in ("InProgress", "Redelivered")
        return job.clock.now().middle_us - began_us >= 10_000_000

    return bool(job.during(second))


def while_down(surface: str, on_unavailable: str) -> int:
    """How often the work is done while the store does not answer."""
    job = Job(surface, on_unavailable=on_unavailable)

    def claim(*arguments: Any) -> Any:
        raise Unavailable("down")

    job.store.records.claim = claim
    job.attempt()
    return job.calls


def after_loss(surface: str, on_lease_lost: str) -> Any:
    """What comes of a call whose claim was taken away, and whether it was ended at once."""
    job = Job(surface, on_lease_lost=on_lease_lost)

    def lose() -> None:
        claim = current_claim()
        assert claim is not None
        job.store.force_release(claim.key)
        in_thread(lambda: job.store.run(keep_alive(job.store.shared, claim)))()

    job.inside = lose
    return job.attempt()


def heard(surface: str, hooks: bool) -> list[str]:
    events: list[str] = []
    Job(surface, hooks=[lambda event: events.append(event.kind)] if hooks else []).call()
    return events


def stored_in(surface: str, other: bool) -> list[int]:
    """How many records two stores have after a call on one of them."""
    stores = MemoryIdempotencyStore(), MemoryIdempotencyStore()
    Job(surface, stores[other]).call()
    return [len(each.records) for each in stores]


def own_record(surface: str, field: str, **options: Any) -> Any:
    job = Job(surface, **options)
    job.call()
    (key,) = job.store.records.keys()
    return getattr(job.store.get(key), field)


SHARED: dict[str, Callable[[str], Row]] = {
    "target": lambda s: row(lambda other: stored_in(s, other), (False, [1, 0]), (True, [0, 1])),
    "lease_s": lambda s: row(
        lambda lease_s: (job := Job(s, lease_s=lease_s)) and job.during(lambda: job.own().lease_us),
        (5.0, 5_000_000),
        (6.0, 6_000_000),
    ),
    "max_run_s": lambda s: row(lambda max_run_s: renewals_after_55_s(s, max_run_s), (50.0, 0), (60.0, 1)),
    "keep_s": lambda s: row(lambda keep_s: own_record(s, "kept_us", keep_s=keep_s), (5.0, 5_000_000), (None, 0)),
    "wait_s": lambda s: row(lambda wait_s: has_waited(s, wait_s), (1.0, False), (10.0, True)),
    "on_unavailable": lambda s: row(lambda what: while_down(s, what), ("refuse", 0), ("run", 1)),
    "hooks": lambda s: row(lambda hooks: heard(s, hooks), (False, []), (True, ["claimed", "completed"])),
}


def shared(surface: str, *without: str) -> dict[str, Row]:
    """The rows that all of them have."""
    return {option: make(surface) for option, make in SHARED.items() if option not in without}


# --- functions --------------------------------------------------------------------------------------------------------


class Reversed:
    """A codec."""

    def encode(self, value: Any) -> bytes:
        return str(value).encode() + b"!"

    def decode(self, data: bytes) -> Any:
        return int(data[:-1])


def calls_of(surface: str, calls: Any, **options: Any) -> int:
    """How often the work is done in these calls."""
    job = Job(surface, **options)
    for key, data in calls:
        job.call(key, data)
    return job.calls


def named(surface: str, name: str, **options: Any) -> int:
    """How often the second of two operations on one store is done, where the first is called ``n``."""
    store = MemoryIdempotencyStore()
    Job(surface, store, name="n", **options).call()
    job = Job(surface, store, name=name, **options)
    job.call()
    return job.calls


def of_payload(surface: str, payload: Any) -> str:
    """What a second call with other data ends with."""
    job = Job(surface, payload=payload)
    job.call(data="d")
    return job.attempt(data="e")


def of_scope(tenants: list[str]) -> int:
    left = list(tenants)
    job = Job("idempotent", scope=lambda: left.pop(0))
    job.call()
    job.call()
    return job.calls


def typed(result: Any) -> Any:
    """A result that is no JSON, as the second caller gets it."""
    found = casework.idempotent(MemoryIdempotencyStore(), key="key", name="n", result=result)(lambda key: (key, 1))
    try:
        return found("k"), found("k")
    except casework.NotJson:
        return "NotJson"


def remembered(errors: list[type[BaseException]]) -> int:
    """How often work is done that fails."""
    job = Job("idempotent", remember=errors)

    def fail() -> None:
        raise ValueError("no")

    job.inside = fail
    assert [job.attempt(), job.attempt()] == ["ValueError", "ValueError"] or errors
    return job.calls


def read_again(cache: int) -> int:
    """How often the store is asked in two calls."""
    with casework.open("memory:") as app:
        job = Job("idempotent", app.idempotency, cache=cache)
        asked: list[int] = []
        run = app.idempotency.run
        app.idempotency.run = lambda program: asked.append(1) or run(program)  # type: ignore[method-assign, func-returns-value]
        job.call()
        job.call()
        return len(asked)


LOST = (("raise", "LeaseLost"), ("return", ""))
TWO = (("k", "d"), ("l", "d"))

FUNCTIONS: Rows = {
    "idempotent": {
        **shared("idempotent"),
        "key": row(lambda key: calls_of("idempotent", TWO, key=key, payload=False), ("key", 2), (["data"], 1)),
        "name": row(lambda name: named("idempotent", name), ("n", 0), ("m", 1)),
        "payload": row(
            lambda payload: of_payload("idempotent", payload),
            (True, "PayloadMismatch"),
            (False, ""),
        ),
        "scope": row(of_scope, (["a", "a"], 1), (["a", "b"], 2)),
        "result": row(typed, (tuple[str, int], (("k", 1), ("k", 1))), (Any, "NotJson")),
        "codec": row(lambda codec: own_record("idempotent", "body", codec=codec), (None, b"1"), (Reversed(), b"1!")),
        "remember": row(remembered, ([], 2), ([ValueError], 1)),
        "on_lease_lost": row(lambda what: after_loss("idempotent", what), *LOST),
        "cache": row(read_again, (0, 2), (1, 1)),
    },
    "idempotent, coroutine": {
        **shared("idempotent, coroutine", "wait_s"),
        "on_lease_lost": row(
            lambda what: after_loss("idempotent, coroutine", what), ("raise", "LeaseLost"), ("return", "")
        ),
    },
    "once": {
        **shared("once"),
        "key": row(lambda key: calls_of("once", [("k", "d"), (key, "d")]), ("k", 1), (("k", 1), 2)),
        "payload": row(
            lambda data: (job := Job("once")) and (job.call(data="d"), job.attempt(data=data))[1],
            ("d", ""),
            ("e", "PayloadMismatch"),
        ),
        "name": row(lambda name: named("once", name), ("n", 0), ("m", 1)),
        "codec": row(lambda codec: own_record("once", "body", codec=codec), (None, b"1"), (Reversed(), b"1!")),
        "on_lease_lost": row(lambda what: after_loss("once", what), *LOST),
    },
    "once, async": {
        **shared("once, async", "wait_s"),
        "on_lease_lost": row(lambda what: after_loss("once, async", what), *LOST),
    },
}


# --- claims and their hook --------------------------------------------------------------------------------------------


def told(tell: bool) -> list[str]:
    said: list[str] = []
    job = Job("idempotent")

    def lose() -> None:
        claim = current_claim()
        assert claim is not None
        claim.when_lost((lambda: said.append("lost")) if tell else (lambda: said.append("other")))
        claim.lose()

    job.inside = lose
    job.attempt()
    return said


def on_span(with_key: bool) -> Any:
    """The key on a span of OpenTelemetry."""
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s") as span:
        Job("once", hooks=[casework.OpenTelemetryHook(with_key=with_key)]).call()
        return "casework.idempotency.key" in span.attributes  # type: ignore[attr-defined]


REST: Rows = {
    "Claim.when_lost": {"tell": row(told, (True, ["lost"]), (False, ["other"]))},
    "OpenTelemetryHook": {"with_key": row(on_span, (False, False), (True, True))},
}


# --- messages ---------------------------------------------------------------------------------------------------------


def two_queues(surface: str, queue: str) -> int:
    """How often a message is handled in a queue after it was in the queue ``q``."""
    store = MemoryIdempotencyStore()
    Job(surface, store).call()
    job = Job(surface, store, queue=queue)
    job.call()
    return job.calls


def handled(store: Any = None, **options: Any) -> Any:
    """A handler, and the messages that it has taken."""
    taken: list[Any] = []
    make = casework.message_handler(store or MemoryIdempotencyStore(), **{**MESSAGE, **options})
    return make(taken.append), taken


def awaited(id: str) -> list[Any]:
    taken: list[Any] = []

    async def take(message: Any) -> None:
        taken.append(message["id"])

    handler = casework.message_handler(MemoryIdempotencyStore(), **MESSAGE)(take)
    asyncio.run(handler.handle_async({"id": id, "d": ""}))
    return taken


def in_time(stop_before_s: float, make: Callable[[float], Any] | None = None) -> Any:
    """What is reported of a batch for which two seconds are left."""
    handler = handled(key=lambda record: record["messageId"], payload=None)[0]
    own = casework.SqsBatch(handler, stop_before_s=stop_before_s) if make is None else make(stop_before_s)
    return own({"Records": [{"messageId": "m"}]}, Lambda(2000))


class Lambda:
    """What AWS hands to a function."""

    def __init__(self, left_ms: int) -> None:
        self.get_remaining_time_in_millis = lambda: left_ms


def batched(records: list[str], left_ms: int = 10_000) -> Any:
    taken: list[str] = []

    async def take(record: Any) -> None:
        taken.append(record["messageId"])

    make = casework.sqs_batch(MemoryIdempotencyStore(), queue="q")
    answer = asyncio.run(make(take).handle_async({"Records": [{"messageId": id} for id in records]}, Lambda(left_ms)))
    return taken, len(answer["batchItemFailures"])


def of_handler(other: bool) -> Any:
    handlers = [handled(key=lambda record: record["messageId"], payload=None) for _ in range(2)]
    casework.SqsBatch(handlers[other][0])({"Records": [{"messageId": "m"}]})
    return [len(taken) for _, taken in handlers]


SURFACE_OF_MESSAGES = {
    "queue": lambda s: row(lambda queue: two_queues(s, queue), ("q", 0), ("p", 1)),
    "key": lambda s: row(
        lambda key: calls_of(s, TWO, key=key),
        (lambda record: record.get("id") or record["messageId"], 2),
        (lambda record: "one", 1),
    ),
    "payload": lambda s: row(lambda payload: of_payload(s, payload), (lambda record: "same", ""), (repr, SOMETHING)),
}

MESSAGES: Rows = {
    "message_handler": {
        **shared("message_handler"),
        **{option: make("message_handler") for option, make in SURFACE_OF_MESSAGES.items()},
    },
    "MessageHandler.key_of": {
        "message": row(lambda id: handled()[0].key_of({"id": id}), ("m", SOMETHING), ("n", SOMETHING)),
    },
    "MessageHandler.handle_async": {"message": row(awaited, ("m", ["m"]), ("n", ["n"]))},
    "sqs_batch": {
        **shared("sqs_batch"),
        **{option: make("sqs_batch") for option, make in SURFACE_OF_MESSAGES.items()},
        "stop_before_s": row(
            lambda before_s: len(
                in_time(
                    before_s,
                    lambda own_s: casework.sqs_batch(MemoryIdempotencyStore(), queue="q", stop_before_s=own_s)(
                        lambda record: None
                    ),
                )["batchItemFailures"]
            ),
            (1.0, 0),
            (3.0, 1),
        ),
    },
    "SqsBatch": {
        "handler": row(of_handler, (False, [1, 0]), (True, [0, 1])),
        "stop_before_s": row(lambda before_s: len(in_time(before_s)["batchItemFailures"]), (1.0, 0), (3.0, 1)),
    },
    "SqsBatch.handle_async": {
        "event": row(batched, (["m"], (["m"], 0)), (["m", "n"], (["m", "n"], 0))),
        "context": row(lambda left_ms: batched(["m"], left_ms), (10_000, (["m"], 0)), (10, ([], 1))),
    },
}


# --- a consumer of SQS ------------------------------------------------------------------------------------------------


class Queue:
    """boto3's own client of SQS; what it would have sent, and one message in each answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.client = sqs("http://127.0.0.1:9")
        self.client.meta.events.register("before-send.sqs.*", self._answer)

    def _answer(self, request: Any, event_name: str, **more: Any) -> AWSResponse:
        self.asked.append((event_name.rpartition(".")[2], json.loads(request.body)))
        answer = io.BytesIO(b'{"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}')
        return AWSResponse(request.url, 200, {}, HTTPResponse(answer, preload_content=False))


def polled(field: str, *, of: str = "ReceiveMessage", fails: bool = False, **options: Any) -> Any:
    """What a consumer says of a field in its requests."""
    client = Queue()

    def take(message: Any) -> None:
        if fails:
            raise ValueError("no")

    handler = casework.message_handler(MemoryIdempotencyStore(), queue="q", key=lambda m: m["messageId"])(take)
    arguments: dict[str, Any] = {"queue_url": "https://sqs/q", "handler": handler, **options}
    casework.SqsConsumer(client.client, **arguments).poll_once()
    return [arguments.get(field) for name, arguments in client.asked if name == of]


def extended(visibility_s: int) -> list[int]:
    """The invisibility that messages under way are given, a third of it later."""
    from casework.surfaces.consumer import _UnderWay

    client = Queue()
    consumer = casework.SqsConsumer(client.client, "https://sqs/q", handled()[0], visibility_s=visibility_s)
    _UnderWay(consumer, [{"MessageId": "m", "ReceiptHandle": "r"}]).extend_all()
    return [each["VisibilityTimeout"] for each in client.asked[0][1]["Entries"]]


def received_by(other: bool) -> list[int]:
    clients = Queue(), Queue()
    casework.SqsConsumer(
        clients[other].client, "https://sqs/q", handled(key=lambda m: m["messageId"], payload=None)[0]
    ).poll_once()
    return [len(client.asked) for client in clients]


def handled_by(other: bool) -> list[int]:
    handlers = [handled(key=lambda m: m["messageId"], payload=None) for _ in range(2)]
    casework.SqsConsumer(Queue().client, "https://sqs/q", handlers[other][0]).poll_once()
    return [len(taken) for _, taken in handlers]


CONSUMER: Rows = {
    "SqsConsumer": {
        "client": row(received_by, (False, [2, 0]), (True, [0, 2])),
        "queue_url": row(
            lambda url: polled("QueueUrl", queue_url=url),
            ("https://sqs/q", ["https://sqs/q"]),
            ("https://sqs/p", ["https://sqs/p"]),
        ),
        "handler": row(handled_by, (False, [1, 0]), (True, [0, 1])),
        "visibility_s": row(
            lambda s: (polled("VisibilityTimeout", visibility_s=s), extended(s)), (30, ([30], [30])), (60, ([60], [60]))
        ),
        "wait_s": row(lambda s: polled("WaitTimeSeconds", wait_s=s), (0, [0]), (5, [5])),
        "retry_s": row(
            lambda s: polled("VisibilityTimeout", of="ChangeMessageVisibility", fails=True, retry_s=s),
            (0, [0]),
            (7, [7]),
        ),
    },
}


GUARDED: Rows = {**FUNCTIONS, **REST, **MESSAGES, **CONSUMER}
