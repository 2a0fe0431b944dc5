"""No two different operations share a key, and everything of a payload counts, or it is refused."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from casework import MemoryIdempotencyStore, Misuse, PayloadMismatch, idempotent, message_handler, once
from casework.idempotency.keys import MAX_KEY_BYTES, fingerprint_of, make_key
from casework.surfaces.http import canonical_body, parse_key

PARTS = ("a", "b", "a/b", "a@b", "a:b", "a%40b", "a%2Fb", "@", "/", '"', 'a/"b"', "#", "ä", "http", "queue")


def test_no_two_kinds_names_scopes_and_keys_meet() -> None:
    kinds = ("", "http", "queue", "once")
    scopes = (None, *PARTS)
    made = {
        (kind, name, scope, value): make_key(kind, name, scope, value)
        for kind, name, scope, value in itertools.product(kinds, PARTS, scopes, (*PARTS, 1, ("a", "b")))
    }
    assert len(set(made.values())) == len(made)


def test_a_guard_without_a_scope_and_one_with_scopes_never_share_a_record() -> None:
    assert make_key("http", "requests", None, "alice/1") != make_key("http", "requests", "alice", "1")


def test_a_key_that_was_cut_is_never_a_whole_one() -> None:
    cut = make_key("", "name", None, "x" * 5000)
    assert len(cut.encode()) <= MAX_KEY_BYTES
    head, _, value = cut.partition("/")
    assert make_key("", head, None, value.strip('"')) != cut
    assert make_key("", "name", None, "x" * 5000) == cut != make_key("", "name", None, "x" * 5001)
    assert len(make_key("", "name", "ä" * 900, "é" * 900).encode()) <= MAX_KEY_BYTES


@pytest.mark.parametrize("found", [None, "", " ", (), [], {}, (None, None), [""], {"id": None}])
def test_a_message_whose_key_is_missing_is_not_acknowledged(found: Any) -> None:
    handled: list[Any] = []
    handler = message_handler(MemoryIdempotencyStore(), queue="q", key=lambda message: found)(handled.append)
    for message in ("one", "two"):
        outcome = handler(message)
        assert not outcome.is_done and isinstance(outcome.error, Misuse)
    assert handled == []


def test_messages_with_the_keys_1_and_text_1_are_two() -> None:
    handled: list[Any] = []
    handler = message_handler(MemoryIdempotencyStore(), queue="q", key=lambda message: message)(handled.append)
    assert all(handler(message).is_done for message in (1, "1", 1))
    assert handled == [1, "1"]


def test_a_number_that_cannot_be_text_is_refused() -> None:
    with pytest.raises(Misuse, match="bits"):
        make_key("", "name", None, 10**5000)


def test_a_block_without_a_key_is_misuse() -> None:
    with pytest.raises(Misuse, match="missing"):
        once(MemoryIdempotencyStore(), ())


# --- payloads ---------------------------------------------------------------------------------------------------------


class Loose(pydantic.BaseModel, extra="allow"):
    id: str


class Root(pydantic.RootModel[dict[str, int]]):
    pass


@dataclasses.dataclass
class Plain:
    id: str

    @functools.cached_property
    def size(self) -> int:
        return len(self.id)


class Below(Plain):
    def __init__(self, id: str, amount: int) -> None:
        super().__init__(id)
        self.amount = amount


@attrs.define
class Defined:
    id: str
    amount: int = 0


class Struct(msgspec.Struct):
    id: str
    amount: int = 0


class Pair(tuple):  # type: ignore[type-arg]
    _fields = ("id", "amount")


DIFFERENT = [
    (Loose(id="1", amount=5), Loose(id="1", amount=5000)),  # type: ignore[call-arg]
    (Root({"a": 1}), Root({"a": 2})),
    (Defined("1", 5), Defined("1", 6)),
    (Struct("1", 5), Struct("1", 6)),
    (Pair(("1", 5)), Pair(("1", 6))),
    (datetime.datetime(2026, 10, 25, 2, 30), datetime.datetime(2026, 10, 25, 2, 30, fold=1)),  # noqa: DTZ001
    (datetime.time(2, 30), datetime.time(2, 30, fold=1)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_all_of_a_payload_counts(one: Any, other: Any) -> None:
    ran: list[Any] = []

    @idempotent(MemoryIdempotencyStore(), key="id")
    def pay(id: int, order: Any) -> None:
        ran.append(order)

    pay(1, one)
    pay(1, one)
    with pytest.raises(PayloadMismatch):
        pay(1, other)
    assert ran == [one]


def test_what_would_not_count_is_refused() -> None:
    with pytest.raises(Misuse, match="'amount'"):
        fingerprint_of(Below("1", 5))


def test_what_follows_from_the_rest_changes_nothing() -> None:
    one, other = Plain("1"), Plain("1")
    assert one.size == 1
    assert fingerprint_of(one) == fingerprint_of(other)


# --- functions that have no name of their own -------------------------------------------------------------------------


class CalledItself:
    def __call__(self, id: str) -> str:
        return "called " + id

    async def later(self, id: str) -> str:
        return "later " + id


def plain(id: str, rate: int = 1) -> int:
    return rate


@pytest.mark.parametrize("function", [lambda id: id, functools.partial(plain, rate=2), CalledItself()])
def test_what_has_no_name_needs_one(function: Any) -> None:
    store = MemoryIdempotencyStore()
    with pytest.raises(Misuse, match="name="):
        idempotent(store, key="id")(function)
    guarded = idempotent(store, key="id", name="named")(function)
    assert guarded("1") == function("1") == guarded("1")
    assert store.records.keys() == ['named/"1"']


def test_two_closures_of_one_function_are_two_operations_and_need_names() -> None:
    store = MemoryIdempotencyStore()

    def made(rate: int, name: str | None = None) -> Any:
        @idempotent(store, key="id", name=name)
        def charge(id: str) -> int:
            return rate

        return charge

    first = made(1)
    assert first("a") == 1 and made(1)("a") == 1, "the same function, made twice"
    with pytest.raises(Misuse, match="two functions"):
        made(2)
    assert made(2, "twice")("a") == 2
    assert first("a") == 1


def test_an_application_that_is_made_twice_guards_its_functions_twice() -> None:
    def application() -> Any:
        store = MemoryIdempotencyStore()

        @idempotent(store, key="id")
        def charge(id: str) -> int:
            return len(store.records.keys())

        return charge

    assert application()("a") == application()("a") == 1


# --- HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("k", "k"), ('"k"', "k"), (' "k" ', "k"), ('"k";p=1', "k"), ('"k" ; a="x;y";b', "k"), (r'"a\"b"', 'a"b'),
        ('"k";p=:YQ==:', "k"), ('"k";p=?1', "k"), ('"k";p=-1.5', "k"), ("k;p=1", "k;p=1"),
        ('"k', None), ('"k" x', None), ('"k";', None), ('"k";P=1', None), ('""', None), ('" "', None), ("", None),
        (r'"a\b"', None), ("\u00e9", None), ("k" * 256, None), ('"a"b"', None),
    ],
)  # fmt: skip
def test_the_header_is_a_structured_string_or_bare_text(text: str, key: str | None) -> None:
    assert parse_key(text) == key


def test_a_form_of_several_parts_is_the_same_with_another_boundary() -> None:
    def body(boundary: str, value: str) -> bytes:
        return f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n--{boundary}--\r\n'.encode()

    one = canonical_body('multipart/form-data; boundary="b-1"', body("b-1", "5"))
    assert canonical_body("Multipart/Form-Data; charset=utf-8; boundary=other", body("other", "5")) == one
    assert canonical_body("multipart/form-data; boundary=b-1", body("b-1", "6")) != one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
        (b'{"a": 123456789012345678901234}', b'{"a": 123456789012345678901235}'),
        (b'{"a": 0.1}', b'{"a": 0.10000000000000000001}'),
        (b'{"a": 1}', b'{"a": "1"}'),
        (b'{"a": null}', b"{}"),
        (b"[1, 2]", b"[2, 1]"),
    ],
)
def test_json_that_says_something_else_is_another_payload(one: bytes, other: bytes) -> None:
    assert canonical_body("application/json", one) != canonical_body("application/json", other)


def test_json_in_another_order_and_with_other_spaces_is_the_same() -> None:
    one = canonical_body("application/json", b'{"b": [1.0, {"d": 1, "c": 2}], "a": "x"}')
    assert canonical_body("application/vnd.api+json", b'{"a":"x","b":[1.0,{"c":2,"d":1}]}') == one
