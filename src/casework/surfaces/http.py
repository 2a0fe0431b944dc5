"""Idempotent HTTP requests: what ASGI and WSGI have in common. Pure: no I/O, no server.

The ``Idempotency-Key`` header is that of the IETF draft (draft-ietf-httpapi-idempotency-key-header): a structured-field
string, 400 when it is missing or malformed, 422 when it was used with another payload, 409 while the first request is
under way. Stripe's style is an option: 400 for another payload, ``Idempotent-Replayed``, errors of the server replayed.
Errors are problem+json (RFC 9457).
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

import msgspec

from casework.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_list,
    check_text,
    wrong,
)
from casework.errors import (
    CaseworkError,
    CorruptItem,
    InProgress,
    LeaseLost,
    Misuse,
    PayloadMismatch,
    StoreError,
)
from casework.idempotency.guarding import Policy, was_kept
from casework.idempotency.keys import digest, make_key, text_of
from casework.idempotency.record import MAX_RESULT_BYTES, Record
from casework.surfaces.guard import Guard, Hook, Target

NEVER_REPLAYED = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade", "set-cookie", "set-cookie2", "content-length", "date", "server", "www-authenticate",
))  # fmt: skip
"""Headers of one connection or one client; those of another must not get them."""

NOT_RESULTS = frozenset((401, 403, 407, 408, 409, 413, 421, 423, 425, 429))
"""Answers that say "not now" or "not you": they are not what the operation came to, and the key stays free."""

NOT_STORED = "Idempotency-Not-Stored"
"""Response header that says why a response was not stored, and so cannot be replayed."""


NOT_KEPT_WHY = {
    "too-large": "its response was too large to be stored",
    "streamed": "its response was a stream",
    "cut-off": "its response was shorter than it said",
    "unknown": "its response is of a kind that cannot be stored",
}
"""By the header's value: what whoever repeats the request is told."""


class HttpRequest(msgspec.Struct):
    """A request, as ``scope=``, ``applies=`` and ``fingerprint=`` see it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names in lower case; of repeated headers the last one."""
    body: bytes = b""
    native: Any = None
    """The ASGI scope, the WSGI environ, or the framework's own request."""
    arguments: Mapping[str, Any] = {}
    """What the endpoint of a FastAPI route is called with: its dependencies' results, a verified user among them."""


class HttpResponse(msgspec.Struct):
    """A response to send."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


Scope = Callable[[HttpRequest], str | None]


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are guarded; the arguments of the middlewares."""

    scope: Scope | None
    """Who the caller is: the tenant, the user. Two scopes never share a key. None: all callers are one; say so."""
    style: Literal["ietf", "stripe"] = "ietf"
    header: str = "Idempotency-Key"
    methods: Sequence[str] = ("POST", "PATCH")
    required: bool = False
    """Refuse a request without a key."""
    applies: Callable[[HttpRequest], bool] | None = None
    """Which requests of these methods are guarded; None: all."""
    keep_status: Callable[[int], bool] | None = None
    """Which responses are stored; None: all below 500 but those of ``NOT_RESULTS``. Others release the key."""
    fingerprint: Callable[[HttpRequest], Any] | None = None
    """What must be the same under one key; None: method, path, query and body (JSON in canonical form)."""
    allow_headers: Sequence[str] | None = None
    """Only these response headers are stored; None: all but those of ``NEVER_REPLAYED``."""
    deny_headers: Sequence[str] = ()
    """These response headers are not stored, either."""
    max_request_bytes: int = 1_000_000
    """A larger guarded request is refused with 413: its body has to be read for the fingerprint."""
    max_response_bytes: int = 1_000_000
    """A larger response is passed on and not stored, and a header says so; at most 3,500,000."""
    in_progress_status: int = 409
    """409, or 423."""

    def __post_init__(self) -> None:
        """Misuse for what cannot be."""
        check_choice("style", self.style, ("ietf", "stripe"))
        check_text("header", self.header, 100)
        if not self.header.isascii() or not self.header.replace("-", "").isalnum():
            raise wrong("header", self.header, "the name of a header, such as Idempotency-Key")
        check_list("methods", self.methods, check_text, "a list of methods: ('POST', 'PATCH')")
        if not self.methods:
            raise wrong("methods", self.methods, "one method at least, such as ('POST', 'PATCH')")
        check_flag("required", self.required)
        for name in ("scope", "applies", "keep_status", "fingerprint"):
            if getattr(self, name) is not None:
                check_function(name, getattr(self, name), "a function, or None")
        for name in ("allow_headers", "deny_headers"):
            if name == "deny_headers" or getattr(self, name) is not None:
                check_list(name, getattr(self, name), check_text, "a list of names of headers")
        check_count("max_request_bytes", self.max_request_bytes, 1)
        check_count("max_response_bytes", self.max_response_bytes, 1, MAX_RESULT_BYTES)
        if type(self.in_progress_status) is not int or self.in_progress_status not in (409, 423):
            raise wrong("in_progress_status", self.in_progress_status, "409 or 423")


class HttpArguments(TypedDict, total=False):
    """What every HTTP surface takes beside its store: the fields of :class:`HttpOptions` and of ``Policy``."""

    scope: Required[Scope | None]
    style: Literal["ietf", "stripe"]
    header: str
    methods: Sequence[str]
    required: bool
    applies: Callable[[HttpRequest], bool] | None
    keep_status: Callable[[int], bool] | None
    fingerprint: Callable[[HttpRequest], Any] | None
    allow_headers: Sequence[str] | None
    deny_headers: Sequence[str]
    max_request_bytes: int
    max_response_bytes: int
    in_progress_status: int
    lease_s: float
    max_run_s: float
    keep_s: float | None
    wait_s: float
    on_unavailable: Literal["refuse", "run"]
    on_lease_lost: Literal["raise", "return"]
    name: str
    """A part of every key; the same in all processes that serve the same routes."""
    hooks: Sequence[Hook]
    """Called with an ``Event`` for everything that happens."""


class HttpGuard(Guard):
    """The guard of an HTTP surface.

    Args:
        target: where the records are.
        options: how requests are guarded.
        policy: how operations are guarded.
        name: a part of every key; the same in all processes that serve the same routes.
        hooks: called with an ``Event`` for everything that happens.
    """

    def __init__(
        self,
        target: Target,
        options: HttpOptions,
        *,
        policy: Policy,
        name: str = "requests",
        hooks: Sequence[Hook] = (),
    ) -> None:
        super().__init__(target, name=name, policy=policy, hooks=hooks)
        self.options = options
        self.header = options.header.lower()
        self.methods = frozenset(method.upper() for method in options.methods)
        self._allowed = None if options.allow_headers is None else {name.lower() for name in options.allow_headers}
        self._denied = NEVER_REPLAYED | {name.lower() for name in options.deny_headers}
        self._replayed = "Idempotent-Replayed" if options.style == "stripe" else "Idempotency-Replayed"

    # --- the request --------------------------------------------------------------------------------------------------

    def key_of(self, request: HttpRequest, values: Sequence[str]) -> str | None:
        """The record's key for a request whose header has these values; None: it is not guarded.

        Raises BadRequest.
        """
        options = self.options
        if options.applies is not None and not options.applies(request):
            return None
        if not values:
            if options.required:
                raise BadRequest("missing-key", 400, f"This request needs the header {options.header}.")
            return None
        if len(values) > 1:
            raise BadRequest("bad-key", 400, f"The header {options.header} stands there {len(values)} times.")
        key = parse_key(values[0])
        if key is None:
            raise BadRequest(
                "bad-key",
                400,
                f'{options.header} must be 1 to 255 printable ASCII characters, such as "8e03978e-40d5".',
            )
        if options.scope is None:
            return make_key("http", self.name, None, key)
        scope = options.scope(request)
        if not isinstance(scope, str) or not scope:
            raise BadRequest("no-scope", 400, "This request has an idempotency key, but nothing says whose it is.")
        return make_key("http", self.name, scope, key)

    def fingerprint_of(self, request: HttpRequest) -> str:
        """The digest of what must be the same under one key."""
        if self.options.fingerprint is not None:
            return digest(text_of(self.options.fingerprint(request), "fingerprint").encode())
        head = ascii(
            (request.method, request.path, request.query)
        ).encode()  # whatever they hold, none runs into another
        return digest(head + canonical_body(request.headers.get("content-type", ""), request.body))

    # --- the response -------------------------------------------------------------------------------------------------

    def is_result(self, status: int) -> bool:
        """Whether a response is what the operation came to, so that it is stored."""
        if self.options.keep_status is not None:
            return self.options.keep_status(status)
        if self.options.style == "stripe":
            return status not in NOT_RESULTS
        return status < 500 and status not in NOT_RESULTS

    def stored_headers(self, headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """The response headers that may be replayed to whoever repeats the request."""
        denied, allowed = self._denied, self._allowed
        hop = [value for name, value in headers if name.lower() == "connection"]
        if hop:
            denied = denied | {token.strip().lower() for value in hop for token in value.split(",")}
        return [
            (name, value)
            for name, value in headers
            if (lower := name.lower()) not in denied and (allowed is None or lower in allowed)
        ]

    def replay(self, record: Record) -> HttpResponse:
        """The stored response again; a problem where it was not stored."""
        if not was_kept(record):
            why = record.body.decode(errors="replace")
            return problem(
                "response-not-stored", 409, f"This request was performed, but {why}. It is not performed again."
            )
        headers = [*record.headers, (self._replayed, "true"), ("Content-Length", str(len(record.body)))]
        if record.status in (204, 304):
            headers.pop()
        return HttpResponse(record.status, headers, record.body)

    def refused(self, error: Exception) -> HttpResponse:
        """The response for an error that kept the request from being performed."""
        retry = [("Retry-After", "1")]
        if isinstance(error, BadRequest):
            return problem(error.kind, error.status, str(error))
        if isinstance(error, PayloadMismatch):
            status = 400 if self.options.style == "stripe" else 422
            text = "This idempotency key was used before with another request. Use a new key for a new request."
            return problem("payload-mismatch", status, text)
        if isinstance(error, InProgress):
            retry = [("Retry-After", str(max(1, math.ceil(min(error.retry_after_s, 60)))))]
            text = "A request with this idempotency key is under way. Try again later."
            return problem("in-progress", self.options.in_progress_status, text, retry)
        if isinstance(error, LeaseLost):
            text = "Another request with this idempotency key took over. Try again to get its response."
            return problem("lease-lost", 409, text, retry)
        if isinstance(error, CorruptItem):
            return problem("unreadable-record", 500, "The record of this idempotency key cannot be read.")
        if isinstance(error, StoreError):
            text = "Idempotency keys cannot be looked up now. Nothing was performed. Try again later."
            return problem("store-unavailable", 503, text, retry)
        raise error


class BadRequest(CaseworkError):
    """A request that is refused before anything is looked up."""

    def __init__(self, kind: str, status: int, message: str) -> None:
        self.kind, self.status = kind, status
        super().__init__(message)


def is_cut_off(status: int, headers: Iterable[tuple[Any, Any]], size: int) -> bool:
    """Whether a body is not the one that its headers tell of: something below has stopped it half way."""
    for name, value in headers:
        if name.lower() in (b"content-length", "content-length"):
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            return text.isdigit() and int(text) != size and status not in (204, 304)
    return False


def no_length() -> BadRequest:
    """A body in chunks, where nothing says to the application where it ends: it would be taken for an empty one."""
    return BadRequest("no-length", 411, "A request with an idempotency key needs a Content-Length here.")


def check_whole(length: str, body: bytes) -> None:
    """BadRequest for a body that is shorter than its Content-Length: its client has left, and it is not performed."""
    if length.isdigit() and len(body) < int(length):
        raise BadRequest("cut-off", 400, f"The body ended after {len(body)} of {length} bytes.")


def too_large(limit: int) -> BadRequest:
    """The refusal of a request whose body is over the limit."""
    return BadRequest("too-large", 413, f"A request with an idempotency key may have at most {limit:,} bytes.")


_PARAMETERS = re.compile(
    r"""(?: \ * ; \ * [a-z*][a-z0-9_.*-]*                    # a name, and perhaps a value:
         (?: = (?: "(?:[ !\x23-\x5b\x5d-\x7e]|\\["\\])*"    # a string,
                | -?[0-9]{1,15}(?:\.[0-9]{1,3})?              # a number,
                | \?[01]                                     # a boolean,
                | :[A-Za-z0-9+/=]*:                          # bytes,
                | [A-Za-z*][!-~]*?                           # or a token
         ))? (?=\ *;|\ *$) )*""",
    re.VERBOSE,
)
_STRING = re.compile(r'"((?:[ !\x23-\x5b\x5d-\x7e]|\\["\\])*)"')


def parse_key(text: str) -> str | None:
    """The key in a header's value: a structured-field string, or the bare text that many clients send.

    Parameters behind a string are no part of the key (RFC 8941, sections 3.1.2 and 3.3.3). None for what is no key.
    """
    text = text.strip(" \t")
    if text.startswith('"'):
        found = _STRING.match(text)
        if found is None or not _PARAMETERS.fullmatch(text, found.end()):
            return None
        text = re.sub(r"\\(.)", r"\1", found[1])
    return text if _is_key(text) else None


def _is_key(text: str) -> bool:
    return 1 <= len(text) <= 255 and text.isascii() and text.isprintable() and not text.isspace()


def canonical_body(content_type: str, body: bytes) -> bytes:
    """The body for the fingerprint: JSON without regard to spaces and order, a form of several parts without regard to
    the text between them, which a client makes up anew for each attempt; all else as it is.
    """
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if body and (kind == "application/json" or kind.endswith("+json")):
        try:
            return b"json\n" + ascii(_json(body.decode())).encode()
        except (ValueError, RecursionError):
            pass  # not JSON, whatever it says: that is the application's to judge
    elif kind.startswith("multipart/") and (boundary := _BOUNDARY.search(parameters)):
        parts = body.split(b"--" + (boundary[1] or boundary[2]).encode("latin-1"))
        return b"".join([kind.encode(), b"\n", *(b"%d\n%b" % (len(part), part) for part in parts)])
    return b"raw\n" + kind.encode() + b"\n" + body


_BOUNDARY = re.compile(r"""(?:^|;)\s*boundary=(?:"([^"]+)"|([^;\s"]+))""", re.IGNORECASE)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """An object's members in one order. ValueError where a name stands twice: readers differ in which one counts."""
    pairs.sort(key=operator.itemgetter(0))
    if any(name == following for (name, _), (following, _) in itertools.pairwise(pairs)):
        raise ValueError("a name stands twice")
    return "object", pairs


# Numbers stay text: two that a float cannot keep apart are two numbers.
_json = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=str.encode, parse_int=str.encode, parse_constant=_no_constant
).decode


def problem(kind: str, status: int, detail: str, headers: Sequence[tuple[str, str]] = ()) -> HttpResponse:
    """An error as problem+json."""
    body = msgspec.json.encode({
        "type": f"urn:casework:idempotency:{kind}", "title": kind.replace("-", " ").capitalize(), "status": status,
        "detail": detail,
    })  # fmt: skip
    pairs = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body))), *headers]
    return HttpResponse(status, pairs, body)


def make_guard(target: Target, arguments: HttpArguments) -> HttpGuard:
    """A guard of a surface's keyword arguments."""
    rest: dict[str, Any] = dict(arguments)
    own = {name: rest.pop(name) for name in ("name", "hooks") if name in rest}
    policy = {name: rest.pop(name) for name in Policy.__struct_fields__ if name in rest}
    if "scope" not in rest:
        raise Misuse("say scope=: a function of the request that says who the caller is, or None where all are one")
    try:
        options = HttpOptions(**rest)
    except TypeError as error:
        known = ", ".join((*HttpOptions.__struct_fields__, *Policy.__struct_fields__, "name", "hooks"))
        raise Misuse(f"{error}; known: {known}") from None
    if policy.get("on_lease_lost") == "cancel":
        raise Misuse("on_lease_lost is 'cancel'; a request can be answered with 'raise' or 'return'")
    return HttpGuard(target, options, policy=Policy(**policy), **own)


def basic_scope(request: HttpRequest) -> str | None:
    """A scope for callers who authenticate with ``Authorization``: a digest of that header. None without it."""
    given = request.headers.get("authorization")
    return base64.urlsafe_b64encode(bytes.fromhex(digest(given.encode()))).decode() if given else None
