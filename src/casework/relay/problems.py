"""Errors as HTTP answers: which status, and what stands in the problem document."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import ClientException, HTTPException, ValidationException

from casework.errors import (
    AppendStopped,
    CaseworkError,
    CursorAhead,
    CursorTooOld,
    LogChanged,
    Misuse,
    OpIdReused,
    OutcomeUnknown,
    Throttled,
    UnexpectedSeq,
)
from casework.relay.service import NotFound, NotReady, Relay, TooLarge, Unauthorized
from casework.relay.types import Problem, StoredOp
from casework.streams.log import Appended

log = logging.getLogger("casework.relay")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2

LOG_CHANGED = "urn:casework:log-changed"
"""Type of the problem that a reader's position is of another log."""

UNEXPECTED_SEQ = "urn:casework:unexpected-seq"
"""Type of the problem that the stream does not end where a push expected it to."""

TITLES = {
    400: "bad request", 401: "a token is needed", 404: "not found", 405: "method not allowed", 409: "id is taken",
    410: "truncated", 413: "too large", 422: "bad input", 500: "failed", 503: "not all is stored",
}  # fmt: skip


def problem_of(error: Exception) -> Problem:
    """The problem that an error is told as."""
    if isinstance(error, OpIdReused):
        return _problem(409, str(error), id=error.id, seq=error.seq, stored=stored_ops(error.stored))
    if isinstance(error, UnexpectedSeq):
        moved = _problem(409, str(error), type=UNEXPECTED_SEQ, last_seq=error.last_seq)
        return msgspec.structs.replace(moved, title="the stream ends elsewhere")
    if isinstance(error, LogChanged):
        changed = _problem(409, str(error), type=LOG_CHANGED, last_seq=error.last_seq)
        return msgspec.structs.replace(changed, title="the log is another one")
    if isinstance(error, AppendStopped):
        return _problem(503, str(error), stored=stored_ops(error.stored), unknown=list(error.unknown))
    if isinstance(error, Throttled | OutcomeUnknown):
        return _problem(503, f"the store could not take it now: {error}; push the same again", stored=[], unknown=[])
    if isinstance(error, NotReady):
        return _problem(503, str(error))
    if isinstance(error, CursorTooOld):
        return _problem(410, str(error), floor_seq=error.floor_seq, snapshot_seq=error.snapshot_seq)
    if isinstance(error, Unauthorized):
        return _problem(401, str(error))
    if isinstance(error, NotFound):
        return _problem(404, str(error))
    if isinstance(error, TooLarge):
        return _problem(413, str(error))
    if isinstance(error, CursorAhead):
        return _problem(422, str(error), place="after")
    if isinstance(error, Misuse):
        return _problem(422, str(error))
    if isinstance(error, ValidationException):
        return _validation(error)
    if isinstance(error, RecursionError):
        return _problem(422, "the JSON is nested too deeply")
    if isinstance(error, HTTPException):
        status = 422 if isinstance(error, ClientException) and error.status_code == 400 else error.status_code
        return _problem(status, str(error.detail))
    return _problem(500, "the store failed; nothing more is known here, the relay's log has it")


def _validation(error: ValidationException) -> Problem:
    extra: Any = error.extra
    first = extra[0] if isinstance(extra, list) and extra else {}
    place = ".".join(str(part) for part in (first.get("source"), first.get("key")) if part) or None
    return _problem(422, str(first.get("message") or error.detail), place=place)


def _problem(status: int, detail: str, **more: Any) -> Problem:
    return Problem(title=TITLES.get(status, "failed"), status=status, detail=detail, **more)


def stored_ops(answers: Sequence[Appended]) -> list[StoredOp]:
    """What became of operations, for the wire."""
    return [StoredOp(answer.id, answer.seq, answer.is_duplicate) for answer in answers]


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer for whatever a route raised."""
    problem = problem_of(error)
    relay: Relay = request.app.state.relay
    relay.answers[problem.status] += 1
    if problem.status >= 500:
        level = logging.WARNING if isinstance(error, CaseworkError) else logging.ERROR
        log.log(level, "%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error, exc_info=error)
    headers = {}
    if problem.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    allow = getattr(error, "headers", None)
    if problem.status == 405 and allow:
        headers.update(allow)
    body = msgspec.json.encode(problem)
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)
