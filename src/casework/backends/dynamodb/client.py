"""What the blocking and the async transport share: how a client is made, and how its calls are watched.

A client of ours is made with the SDK's own repeats switched off: casework repeats by itself, since only then does it
know what a refusal means. A client that the user hands in may repeat; every attempt that it makes is seen through
botocore's ``response-received`` event.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from casework.backends.dynamodb.clock import Doubt, ServiceClock
from casework.backends.dynamodb.encode import encode_get
from casework.backends.dynamodb.faults import (
    DOUBTFUL,
    Fault,
    GarbledAnswer,
    Reply,
    fault_of_answer,
    fault_of_exception,
)
from casework.backends.dynamodb.metering import METERED, Meter
from casework.backends.dynamodb.plan import CallPolicy, Pause, Send, Steps
from casework.errors import CaseworkError, MissingExtra, Misuse, Unavailable
from casework.kernel.schema import REGISTRY

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
CONCURRENCY = 32
"""Calls under way at once, and connections kept."""


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra; MissingExtra names the ``pip install`` that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"DynamoDB needs {module}: pip install casework[{extra}] ({error})") from error


def make_config(make: Callable[..., Any], concurrency: int, settings: Mapping[str, Any], merge: Any) -> Any:
    """The config of a client of ours.

    Args:
        make: ``Config`` of botocore, or ``AioConfig`` of aiobotocore.
        concurrency: connections kept.
        settings: arguments of ``make`` that are other than ours.
        merge: a config of the user's; what is set in it counts.
    """
    config = make(**{**config_of(concurrency), **settings})
    return config if merge is None else config.merge(merge)


def check_own(client: Any, **of_own: Any) -> None:
    """Misuse for what only a client of our own would have, where one of the user's was given."""
    given = [name for name, value in of_own.items() if value is not None]
    if client is not None and given:
        raise Misuse(
            f"{' and '.join(given)}: that is for a client of the store's own, and one was given; make yours with it, "
            "or leave client out"
        )


def config_of(concurrency: int) -> dict[str, Any]:
    """The settings of a client of ours, for ``Config(**...)`` of botocore and of aiobotocore."""
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": concurrency,
        "tcp_keepalive": True,
        "parameter_validation": False,
    }


def arguments_of(
    endpoint_url: str | None, region_name: str | None, found_region: str | None, *, has_credentials: bool
) -> dict[str, Any]:
    """The arguments that say where a client goes and as whom.

    Credentials and region are made up only for an endpoint that was named, and only when none are found: such an
    endpoint is a server on this machine that wants some but does not look at them.
    """
    arguments: dict[str, Any] = {"endpoint_url": endpoint_url, "region_name": region_name or found_region}
    if endpoint_url is not None:
        arguments["region_name"] = arguments["region_name"] or "us-east-1"
        if not has_credentials:
            arguments.update(aws_access_key_id="casework", aws_secret_access_key="casework")
    return arguments


def returns_items(client: Any) -> bool:
    """Whether the service behind ``client`` is AWS itself, which hands back the item that refused a write."""
    host = str(getattr(getattr(client, "meta", None), "endpoint_url", "")).partition("//")[2].partition("/")[0]
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def time_question(prefix: str) -> Send:
    """The cheapest call whose answer tells the time: an eventually consistent read of an item that is never there."""
    request = encode_get(REGISTRY.key("_time", "_time"), prefix)
    return Send("get_item", {**request, "ConsistentRead": False})


def time_steps(clock: ServiceClock, prefix: str, policy: CallPolicy) -> Steps[None]:
    """Ask the service for the time, since ``clock`` is in doubt; its answers go to the clock by themselves.

    Unavailable when one of the host's clocks has failed and no answer came: what would be written with a guessed time
    could be an hour off, and could not be written now anyway.
    """
    attempts = policy.unsent_max if clock.doubt() in ("failed", "wide") else 1
    for attempt in range(1, attempts + 1):
        reply: Reply | None = yield time_question(prefix)
        if clock.doubt() is None:
            return
        if reply is not None and reply.fault is None and not tells_time(reply.response):
            return  # a server that does not say what time it is: nothing better is to be had
        if attempt < attempts:
            yield Pause(policy.pauses.max_pause_s / 10)
    if clock.doubt() != "failed":
        return  # the bounds hold, they are only wide
    said = "" if reply is None or reply.fault is None else f" ({reply.fault.code}: {reply.fault.message})"
    raise Unavailable(
        "this host's clock was set, or the host stood still, and the service could not be asked what time it is"
        f"{said}. Nothing was written; try again"
    )


class Asks:
    """When to ask for the time. Only where a clock has failed it cannot wait; else once in a while is enough."""

    EVERY_S: Mapping[Doubt, float] = {"unknown": 30.0, "failed": 0.0, "stale": 30.0, "wide": 5.0}

    def __init__(self) -> None:
        self._asked_s: float | None = None

    def may_ask(self, doubt: Doubt, now_s: float) -> bool:
        """Whether to ask now; notes it if so."""
        if self._asked_s is not None and now_s - self._asked_s < self.EVERY_S[doubt]:
            return False
        self._asked_s = now_s
        return True


def tells_time(response: Mapping[str, Any] | None) -> bool:
    """Whether an answer bears the service's time."""
    return bool((response or {}).get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))


_attempts: ContextVar[list[Fault | None] | None] = ContextVar("casework_attempts", default=None)


def watch(client: Any) -> None:
    """Have every attempt of ``client`` noted. Harmless when done twice, or to a stub without events."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("response-received.dynamodb", _note_attempt, unique_id="casework-attempts")
        events.register("before-parse.dynamodb", _check_answer, unique_id="casework-answers")


def _check_answer(response_dict: Mapping[str, Any] | None = None, **_: Any) -> None:
    """GarbledAnswer for what the SDK would take for an empty answer, as if there were no such item.

    A service's answer is a JSON object, and carries a checksum; a page of a proxy's, or half an answer, is neither.
    """
    if response_dict is None or response_dict.get("status_code", 200) >= 300:
        return
    body, headers = response_dict.get("body"), response_dict.get("headers") or {}
    if not isinstance(body, bytes):
        return
    checksum = headers.get("x-amz-crc32")
    if checksum and not headers.get("content-encoding"):
        if str(zlib.crc32(body)) != checksum:
            raise GarbledAnswer(f"the answer's checksum is {zlib.crc32(body)}, and should be {checksum}")
        return
    if not _is_object(body):
        raise GarbledAnswer(f"the answer is no JSON object: {body[:80]!r}")


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False


def _note_attempt(
    parsed_response: Mapping[str, Any] | None = None, exception: BaseException | None = None, **_: Any
) -> None:
    attempts = _attempts.get()
    if attempts is None:
        return
    if exception is not None:
        attempts.append(fault_of_exception(exception) or Fault("lost", type(exception).__name__, str(exception)))
    elif parsed_response is not None and "Error" in parsed_response:
        attempts.append(fault_of_answer(parsed_response))
    else:
        attempts.append(None)


class Call:
    """One call: made, begun when the client is there, ended by :meth:`answered` or :meth:`failed`."""

    __slots__ = ("_attempts", "_clock", "_is_begun", "_meter", "_sent", "method", "request")

    def __init__(self, send: Send, clock: ServiceClock, meter: Meter | None) -> None:
        self.method = send.method
        self.request = send.request
        if meter is not None and send.method in METERED:
            self.request = {**send.request, "ReturnConsumedCapacity": "INDEXES"}
        self._clock, self._meter = clock, meter
        self._attempts: list[Fault | None] = []
        self._is_begun = False
        self._sent = clock.mark()

    def begin(self) -> None:
        """It is sent now; the attempts that the SDK makes in this thread or task belong to it."""
        _attempts.set(self._attempts)
        self._is_begun = True
        self._sent = self._clock.mark()

    def answered(self, response: Mapping[str, Any]) -> Reply:
        """The reply for an answer of the service."""
        return self._end(response, None)

    def failed(self, error: Exception) -> Reply:
        """The reply for an exception; raises it again when it is ours.

        Once the call was made, anything else came of an answer that the SDK cannot read.
        """
        fault = fault_of_exception(error)
        if fault is None and (not self._is_begun or isinstance(error, CaseworkError)):
            raise error
        if fault is None:
            fault = Fault("lost", type(error).__name__, f"the answer cannot be read: {error}")
        return self._end(None, fault)

    def _end(self, response: Mapping[str, Any] | None, fault: Fault | None) -> Reply:
        received = self._clock.mark()
        _attempts.set(None)
        metadata = (response or (fault.response if fault else {})).get("ResponseMetadata", {})
        self._clock.observe(metadata.get("HTTPHeaders", {}).get("date"), self._sent, received)
        if self._meter is not None:
            self._meter.count(self.method, response)
        earlier = self._attempts[:-1]
        unseen = metadata.get("RetryAttempts", 0) > len(earlier)
        doubtful = unseen or any(one is None or one.kind in DOUBTFUL for one in earlier)
        return Reply(response, fault, doubtful, self._sent[0], received[0])
