"""Every fault that a call can meet, for every effect, on both SDKs: which error it is, and what is then in the table.

A hook on the SDK's ``before-send`` stands for the service's front: it answers for it, or lets the call through to
ministack and then loses or spoils the answer, so that what counts as applied really is applied. ``FAULTS`` says for
each fault whether the call is let through, and which error a read and a write end with while it lasts.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from botocore import exceptions as sdk
from botocore.awsrequest import AWSResponse

from casework.backends.dynamodb import CallPolicy
from casework.backends.dynamodb.faults import _CODES, _CREDENTIALS, _INVALID, _SETUP, _TRANSPORT, _UNSENT
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
from casework.kernel.conditions import absent
from casework.kernel.effects import Get, GetMany, Query, Transact, Write
from casework.kernel.items import Put, Table, Update
from casework.kernel.retry import Pauses
from tests.dynamodb.conftest import Maker

THINGS = Table(name="things", partition="id", sort="n", sort_type="int")
PAUSES = Pauses(first_pause_s=0.001, max_pause_s=0.002)
SHORT = CallPolicy(deadline_s=0.03, unsent_max=2, throttled_max=2, conflict_max=2, lost_reads_max=2, pauses=PAUSES)
PATIENT = CallPolicy(deadline_s=20.0, pauses=PAUSES)


@dataclass(frozen=True)
class Kind:
    """A kind of effect, and the operation that carries it."""

    operation: str
    make: Callable[[str], Any]
    writes: bool = True


def put(id: str, n: int = 2) -> Put:
    return Put(THINGS, {"id": id, "n": n, "value": "new"}, when=absent())


EFFECTS = {
    "get": Kind("GetItem", lambda id: Get(THINGS.key(id, 2)), writes=False),
    "get_many": Kind("BatchGetItem", lambda id: GetMany([THINGS.key(id, 1), THINGS.key(id, 2)]), writes=False),
    "query": Kind("Query", lambda id: Query(THINGS, id), writes=False),
    "put": Kind("PutItem", lambda id: Write(put(id))),
    "update": Kind("UpdateItem", lambda id: Write(Update(THINGS.key(id, 2), {"value": "new"}))),
    "transact": Kind("TransactWriteItems", lambda id: Transact([put(id), put(id, 3)])),
}

NOT_APPLIED = (Contention, Throttled, Unavailable, MissingTable, Misuse, ItemTooLarge, ConditionFailed)
"""Errors that promise: nothing was written."""


class Raw:
    """The body of an answer that a hook makes up, for either SDK."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, **_: Any) -> Any:
        yield self.body

    async def read(self) -> bytes:
        return self.body


class MadeUp(AWSResponse):
    """An answer whose ``content`` can be awaited as well, as aiobotocore does."""

    is_awaited = False

    @property
    def content(self) -> Any:
        body = self.raw.body
        if not self.is_awaited:
            return body

        async def read() -> bytes:
            return bytes(body)

        return read()


@dataclass
class Fault:
    """One kind of fault, and the errors that it ends with."""

    read: Any = Unavailable
    write: Any = OutcomeUnknown
    status: int = 0
    body: bytes = b""
    error: BaseException | None = None
    is_applied: bool = False
    """The first attempt is let through, and its answer is lost to the fault."""
    leaves_keys_out: bool = False
    """The answer is that none of the keys were read."""
    only: tuple[str, ...] = tuple(EFFECTS)


def refused(code: str, status: int = 400, **more: Any) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "said", **more}).encode()


def answer(code: str, error: Any, status: int = 400, **more: Any) -> Fault:
    """A refusal of the service: nothing was carried out."""
    return Fault(error, error, status, refused(code), **more)


def cancelled(error: Any, *codes: str) -> Fault:
    reasons = [{"Code": code, "Message": "said"} for code in codes]
    body = refused("TransactionCanceledException", CancellationReasons=reasons)
    return Fault(error, error, 400, body, only=("transact",))


KIND_ERRORS: dict[str, Any] = {
    "conflict": Contention, "throttled": Throttled, "missing_table": MissingTable, "too_large": ItemTooLarge,
    "invalid": Misuse, "denied": Unavailable, "mismatch": Misuse,
}  # fmt: skip
"""What a refusal by code ends with; the kinds that are not here have rows of their own."""

FAULTS: dict[str, Fault] = {
    **{code: answer(code, KIND_ERRORS[kind]) for code, kind in _CODES.items() if kind in KIND_ERRORS},
    **{code: Fault(status=500, body=refused(code)) for code, kind in _CODES.items() if kind == "lost"},
    "TransactionInProgressException": Fault(Unavailable, OutcomeUnknown, 400,
                                            refused("TransactionInProgressException")),
    "an unknown 4xx": answer("NeverHeardOf", Unavailable),
    "an unknown 403": answer("NeverHeardOf", Unavailable, 403),
    "429": answer("NeverHeardOf", Throttled, 429),
    "413": answer("NeverHeardOf", ItemTooLarge, 413),
    "500": Fault(status=500, body=b"{}"),
    "503 with a page": Fault(status=503, body=b"<html>busy</html>"),
    "500 after applying": Fault(status=500, body=refused("InternalServerError"), is_applied=True),
    "all conflicts": cancelled(Contention, "TransactionConflict", "None"),
    "conflict and throttling": cancelled(Throttled, "TransactionConflict", "ThrottlingError"),
    "capacity and conflict": cancelled(Throttled, "ProvisionedThroughputExceeded", "TransactionConflict"),
    "validation and conflict": cancelled(Misuse, "ValidationError", "TransactionConflict"),
    "collection too large": cancelled(ItemTooLarge, "None", "ItemCollectionSizeLimitExceeded"),
    "condition and conflict": cancelled(ConditionFailed, "ConditionalCheckFailed", "TransactionConflict"),
    "condition and throttling": cancelled(ConditionFailed, "ConditionalCheckFailed", "ThrottlingError"),
    "no reason known": cancelled(Misuse, "None", "NeverHeardOf"),
    "keys left out": Fault(Throttled, only=("get_many",), status=200, leaves_keys_out=True),
    "garbled": Fault((Unavailable, CorruptItem), status=200, body=b"<html>log in</html>"),
    "garbled after applying": Fault(status=200, body=b"<html>log in</html>", is_applied=True),
    "empty": Fault(status=200, body=b""),
    "empty after applying": Fault(status=200, body=b"", is_applied=True),
    "truncated": Fault(status=200, body=b'{"Item": {"id": {"S": "a"'),
    "truncated after applying": Fault(status=200, body=b'{"Item": {"id": {"S": "a"', is_applied=True),
    "time-out to connect": Fault(Unavailable, Unavailable, error=sdk.ConnectTimeoutError(endpoint_url="http://x")),
    "nobody there": Fault(Unavailable, Unavailable, error=sdk.EndpointConnectionError(endpoint_url="http://x")),
    "time-out to read": Fault(error=sdk.ReadTimeoutError(endpoint_url="http://x")),
    "time-out to read after applying": Fault(error=sdk.ReadTimeoutError(endpoint_url="http://x"), is_applied=True),
    "dropped": Fault(error=sdk.ConnectionClosedError(endpoint_url="http://x")),
    "dropped after applying": Fault(error=sdk.ConnectionClosedError(endpoint_url="http://x"), is_applied=True),
    "reset": Fault(error=ConnectionResetError(104, "reset")),
    "credentials missing": Fault(Unavailable, Unavailable, error=sdk.NoCredentialsError()),
    "credentials in part": Fault(Unavailable, Unavailable,
                                 error=sdk.PartialCredentialsError(provider="env", cred_var="secret")),
    "provider failing": Fault(Unavailable, Unavailable,
                              error=sdk.CredentialRetrievalError(provider="sts", error_msg="no answer")),
    "log-in expired": Fault(Unavailable, Unavailable, error=sdk.UnauthorizedSSOTokenError()),
}  # fmt: skip


FAULTS |= {
    **{name: Fault(Unavailable, Unavailable, error=type(name, (Exception,), {})()) for name in _CREDENTIALS | _UNSENT},
    **{name: Fault(Misuse, Misuse, error=type(name, (Exception,), {})()) for name in _SETUP | _INVALID},
    **{name: Fault(error=type(name, (Exception,), {})()) for name in _TRANSPORT - {"ClientError"}},
}
ELSEWHERE = {"ConditionalCheckFailedException", "TransactionCanceledException"}
"""Refusals whose answers carry more than a code; the rows of cancellations, and the tests of lost answers."""


class Hook:
    """Answers for the service on ``before-send`` while it is armed."""

    def __init__(self, flavour: str) -> None:
        self.is_async = flavour == "async"
        self.fault: Fault | None = None
        self.left = self.sent = 0

    def arm(self, fault: Fault, times: int) -> None:
        self.fault, self.left, self.sent = fault, times, 0

    def __call__(self, request: Any, **_: Any) -> Any:
        fault = self.fault
        if fault is None or not self.left:
            return None
        self.left -= 1
        self.sent += 1
        if fault.is_applied and self.sent == 1:
            headers = {str(name): _text(value) for name, value in request.headers.items()}
            with urllib.request.urlopen(urllib.request.Request(request.url, request.body, headers)) as answered:
                assert answered.status == 200
        if fault.error is not None:
            raise fault.error
        body = fault.body
        if fault.leaves_keys_out:
            body = json.dumps({"Responses": {}, "UnprocessedKeys": json.loads(request.body)["RequestItems"]}).encode()
        made = MadeUp(request.url, fault.status, {}, Raw(body))
        made.is_awaited = self.is_async
        return made


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Front:
    """A backend with the hook before its service."""

    def __init__(self, make: Maker, url: str, prefix: str, policy: CallPolicy, operation: str) -> None:
        self.backend = make(url, prefix=prefix, policy=policy)
        opened = self.backend._open()
        client = self.backend.runner.run(opened) if make.flavour == "async" else opened
        self.hook = Hook(make.flavour)
        client.meta.events.register(f"before-send.dynamodb.{operation}", self.hook)

    def outcome(self, effect: Any, fault: Fault, times: int) -> BaseException | None:
        self.hook.arm(fault, times)
        try:
            self.backend.execute(effect)
        except Exception as error:
            return error
        finally:
            self.hook.left = 0
        return None


def rows(kind: str) -> list[tuple[str, Fault, Any]]:
    """The faults that this kind of effect can meet, with the error that is due."""
    writes = EFFECTS[kind].writes
    return [
        (name, fault, fault.write if writes else fault.read)
        for name, fault in FAULTS.items()
        if kind in fault.only and (writes or not fault.is_applied)
    ]


@pytest.fixture
def plain(make: Maker, ministack_url: str, prefix: str) -> Any:
    """Somebody else, who looks into the table."""
    backend = make(ministack_url, prefix=prefix)
    backend.create_tables([THINGS])
    return backend


@pytest.mark.slow
@pytest.mark.parametrize("kind", EFFECTS)
def test_a_fault_that_lasts_ends_with_its_error_and_never_says_not_applied_of_what_was(
    make: Maker, ministack_url: str, prefix: str, plain: Any, kind: str
) -> None:
    front = Front(make, ministack_url, prefix, SHORT, EFFECTS[kind].operation)
    wrong = []
    for n, (name, fault, due) in enumerate(rows(kind)):
        error = front.outcome(EFFECTS[kind].make(f"x{n}"), fault, 1_000_000)
        if not isinstance(error, due) or not front.hook.sent:
            wrong.append(f"{name}: {error!r:.200}, not {due}")
        is_there = plain.execute(Get(THINGS.key(f"x{n}", 2))) is not None
        assert is_there == fault.is_applied, name
        if is_there and isinstance(error, NOT_APPLIED):
            wrong.append(f"{name}: {error!r:.200}, and it was applied")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EFFECTS)
def test_a_fault_that_passes_is_got_over_when_another_attempt_can_and_leaves_one_write(
    make: Maker, ministack_url: str, prefix: str, plain: Any, kind: str
) -> None:
    front = Front(make, ministack_url, prefix, PATIENT, EFFECTS[kind].operation)
    wrong = []
    for n, (name, fault, due) in enumerate(rows(kind)):
        error = front.outcome(EFFECTS[kind].make(f"x{n}"), fault, 1)
        if error is not None and not isinstance(error, due):
            wrong.append(f"{name}: {error!r:.200}")
        if error is not None and due in (OutcomeUnknown, Throttled, Contention):
            wrong.append(f"{name}: {error!r:.200}, though the next attempt would have got through")
        if EFFECTS[kind].writes and (error is None) != (plain.execute(Get(THINGS.key(f"x{n}", 2))) is not None):
            wrong.append(f"{name}: {error!r:.200} does not tell what is in the table")
    assert not wrong, "\n".join(wrong)


def test_every_fault_that_the_adapters_know_has_a_row() -> None:
    known = set(_CODES) | _CREDENTIALS | _SETUP | _UNSENT | _INVALID | (_TRANSPORT - {"ClientError"})
    assert known - ELSEWHERE <= set(FAULTS)
    assert set(_CODES.values()) <= set(KIND_ERRORS) | {"lost", "in_progress", "refused", "cancelled"}
