"""The routes of a relay. ``make_app`` gives the ASGI application; its OpenAPI document is at ``/openapi.json``."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import msgspec
from litestar import Controller, Litestar, MediaType, Request, Response, get, post, put
from litestar.connection import ASGIConnection
from litestar.datastructures import ResponseHeader, State
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import Body, Parameter
from litestar.response import Stream

import casework
from casework.errors import LogChanged
from casework.relay.bounds import BEGUN, bounded
from casework.relay.problems import answer_error, problem_of, stored_ops
from casework.relay.service import Relay
from casework.relay.settings import PAGE_OPS_MAX, WAIT_S_MAX
from casework.relay.types import (
    FoundSnapshot,
    HeadInfo,
    Problem,
    Pulled,
    PulledOp,
    Push,
    Pushed,
    SnapshotBody,
    StreamNames,
    Truncate,
    TruncateResult,
)
from casework.streams.log import Op, Watcher
from casework.streams.marks import MARK_MAX
from casework.streams.read import OpPage

KEEP_ALIVE_S = 15.0
"""An event stream without operations says so often that it lives."""

READY_S = 2.0
"""``/ready`` waits so long for the store."""

StreamPath = Annotated[str, Parameter(description="Id of a stream.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~+-]{0,199}$")]
After = Annotated[int, Parameter(ge=0, le=2**63 - 2, description="Number of the last operation that you have.")]
Mark = Annotated[
    str,
    Parameter(
        pattern=r"^([oc][0-9a-f]{32})?$", max_length=MARK_MAX,
        description="The mark that came with `after`: you are told when the log is not the one that you have read.",
    ),
]  # fmt: skip

_ERRORS = {
    401: "No token, or none that is known.",
    404: "The stream does not exist, or the token has no right to it.",
    422: "Bad input; `place` says where.",
    500: "The store failed.",
}


def _responses(**more: str) -> dict[int, ResponseSpec]:
    texts = {**_ERRORS, **{int(status.lstrip("_")): text for status, text in more.items()}}
    return {
        status: ResponseSpec(Problem, description=text, media_type="application/problem+json", generate_examples=False)
        for status, text in sorted(texts.items())
    }


def _relay(state: State) -> Relay:
    relay: Relay = state.relay
    return relay


def _authorization(request: Request[Any, Any, Any]) -> str | None:
    return request.headers.get("authorization")


def _pulled(page: OpPage) -> Pulled:
    return Pulled([PulledOp(op.seq, op.id, op.data, op.at_us) for op in page.ops], page.next_after, page.mark)


async def _authorized(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Who it is and what they may do, before a byte of the body is read. A route without ``right`` asks for a token."""
    relay = _relay(connection.app.state)
    header = connection.headers.get("authorization")
    right = handler.opt.get("right")
    if right is None:
        await relay.token(header)
    else:
        await relay.allow(header, str(connection.path_params["stream"]), right)


class StreamsController(Controller):
    """Streams by their ids."""

    path = "/v1/streams"
    guards = (_authorized,)
    tags = ("streams",)
    security = ({"bearer": []},)

    @post(
        "/{stream:str}/ops", status_code=200, summary="Push", opt={"right": "append"},
        responses=_responses(
            _409="An operation's id is taken by other content, or the stream does not end at `expected_seq`.",
            _413="Too many operations, or too many bytes.",
            _503="Not all is stored: push the same again.",
        ),
    )  # fmt: skip
    async def push(
        self, request: Request[Any, Any, Any], state: State, stream: StreamPath, data: Annotated[Push, Body()]
    ) -> Pushed:
        """Store operations at the end of the stream. A repeat is answered with the numbers of the first time."""
        relay = _relay(state)
        passed_s = asyncio.get_running_loop().time() - request.scope[BEGUN]  # type: ignore[literal-required]
        ops = [Op(op.id, op.data) for op in data.ops]
        return Pushed(stored_ops(await relay.push(stream, ops, passed_s, expected_seq=data.expected_seq)))

    @get(
        "/{stream:str}/ops", summary="Pull", opt={"right": "read"},
        responses=_responses(
            _409="The log is not the one of the mark.", _410="What comes after the cursor was truncated.",
        ),
    )  # fmt: skip
    async def pull(
        self,
        request: Request[Any, Any, Any],
        state: State,
        stream: StreamPath,
        after: After = 0,
        limit: Annotated[int, Parameter(ge=1, le=PAGE_OPS_MAX, description="At most so many.")] = PAGE_OPS_MAX,
        wait_s: Annotated[
            float, Parameter(ge=0, le=WAIT_S_MAX, description="Long poll: wait so long for operations.")
        ] = 0.0,
        mark: Mark = "",
    ) -> Pulled:
        """The operations after a number, in order and without a hole."""
        relay = _relay(state)
        limit, wait_s = min(limit, relay.settings.max_page_ops), min(wait_s, relay.settings.max_wait_s)
        header = _authorization(request)
        may_go_on = functools.partial(relay.is_allowed, header, stream, "read")
        return _pulled(await relay.pull(stream, after, limit, wait_s, may_go_on, mark))

    @get(
        "/{stream:str}/events", summary="Follow", media_type="text/event-stream", opt={"right": "read"},
        responses=_responses(
            _409="The log is not the one of the mark.", _410="What comes after the cursor was truncated.",
        ),
    )  # fmt: skip
    async def events(
        self,
        request: Request[Any, Any, Any],
        state: State,
        stream: StreamPath,
        after: After = 0,
        mark: Mark = "",
    ) -> Stream:
        """Server-sent events, one for each operation; its id is its number and mark, its data an operation as JSON.

        A header ``Last-Event-ID``, which clients send by themselves when they come back, outranks both parameters.
        An event ``problem`` ends the stream when the log becomes another one; its data is a problem.
        """
        relay = _relay(state)
        last_event_id = request.headers.get("last-event-id", "")
        came_back = re.fullmatch("([0-9]{1,18})(?: ([oc][0-9a-f]{32}))?", last_event_id)
        position, mark = (int(came_back[1]), came_back[2] or "") if came_back else (after, mark)
        await relay.must_exist(stream, position, mark)
        settings = relay.settings
        most = settings.max_event_bytes
        first = await relay.store.page(stream, position, settings.max_page_ops, max_bytes=most, mark=mark)
        header = _authorization(request)
        events = _events(relay, stream, first, lambda: relay.is_allowed(header, stream, "read"))
        return Stream(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @get("/{stream:str}", summary="Head", opt={"right": "read"}, responses=_responses())
    async def head(self, request: Request[Any, Any, Any], state: State, stream: StreamPath) -> HeadInfo:
        """The last number, the floor and the snapshot of a stream."""
        relay = _relay(state)
        head = await relay.store.head(stream)
        if head.last_seq == 0:
            raise relay.not_found(stream)
        return HeadInfo(stream, head.last_seq, head.floor_seq, head.snapshot_seq)

    @get("/", summary="List", responses=_responses())
    async def names(
        self,
        request: Request[Any, Any, Any],
        state: State,
        limit: Annotated[int, Parameter(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Parameter(max_length=2000)] = None,
    ) -> StreamNames:
        """Ids of the streams that the token may read. A page may be short, even empty: only a null cursor ends it."""
        relay = _relay(state)
        token = await relay.token(_authorization(request))
        return StreamNames(*await relay.names(token, limit, cursor))

    @post(
        "/{stream:str}/truncate", status_code=200, summary="Truncate", opt={"right": "admin"},
        responses=_responses(_413="Too many bytes."),
    )  # fmt: skip
    async def truncate(
        self, request: Request[Any, Any, Any], state: State, stream: StreamPath, data: Annotated[Truncate, Body()]
    ) -> TruncateResult:
        """Remove the operations up to a number. Needs the right ``admin``."""
        relay = _relay(state)
        await relay.must_exist(stream, 0)
        done = await relay.store.truncate(stream, data.upto)
        return TruncateResult(done.floor_seq, done.removed_ops, done.kept_ops)

    @get("/{stream:str}/snapshot", summary="Snapshot", opt={"right": "read"}, responses=_responses())
    async def snapshot(self, request: Request[Any, Any, Any], state: State, stream: StreamPath) -> FoundSnapshot:
        """The newest snapshot."""
        relay = _relay(state)
        found = await relay.store.load_snapshot(stream)
        if found is None:
            raise relay.not_found(stream)
        return FoundSnapshot(found.seq, found.data, await relay.store.mark(stream, found.seq))

    @put(
        "/{stream:str}/snapshot", status_code=204, summary="Store a snapshot", opt={"right": "admin"},
        responses=_responses(_413="Too large."),
    )  # fmt: skip
    async def store_snapshot(
        self, request: Request[Any, Any, Any], state: State, stream: StreamPath, data: Annotated[SnapshotBody, Body()]
    ) -> None:
        """Replace the snapshot by a newer one. Needs the right ``admin``."""
        relay = _relay(state)
        await relay.must_exist(stream, 0)
        await relay.store.snapshot(stream, data.seq, data.data)


async def _events(
    relay: Relay, stream: str, page: OpPage, is_allowed: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """The lines of an event stream; a comment now and then lets a client that is gone be noticed.

    The token is looked at as often as it is for any other request; where it has ended, so does the stream.
    """
    yield b": operations follow\n\n"
    with relay.watcher(stream) as watcher:
        async for lines in _followed(relay, watcher, page, is_allowed):
            yield lines


async def _followed(
    relay: Relay, watcher: Watcher, page: OpPage, is_allowed: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    settings = relay.settings
    begun_us = told_us = relay.store.backend.now().middle_us
    while True:
        for op, op_mark in zip(page.ops, page.marks(), strict=True):
            data = msgspec.json.encode(PulledOp(op.seq, op.id, op.data, op.at_us))
            yield b"id: %d %b\nevent: op\ndata: %b\n\n" % (op.seq, op_mark.encode(), data)
        relay.counts.ops_pulled += len(page.ops)
        now_us = relay.store.backend.now().middle_us
        if page.ops or now_us - told_us >= KEEP_ALIVE_S * 1e6:
            if not page.ops:
                yield b": nothing new\n\n"
            told_us = now_us
        wait_s = min(KEEP_ALIVE_S, max(0.1, settings.token_cache_s))
        if settings.max_stream_s is not None:
            wait_s = min(wait_s, settings.max_stream_s - (now_us - begun_us) / 1e6)
        if relay.stopping.is_set or wait_s <= 0 or not await is_allowed():
            return
        most, after, mark = settings.max_event_bytes, page.next_after, page.mark
        try:
            page = await relay.wait(watcher, after, settings.max_page_ops, wait_s, max_bytes=most, mark=mark)
        except LogChanged as changed:
            yield b"event: problem\ndata: %b\n\n" % msgspec.json.encode(problem_of(changed))
            return


@get("/health", tags=["operations"], summary="Health", security=[])
async def health(state: State) -> dict[str, str]:
    """Whether this process answers, whatever the store does: what it does not, a restart may mend."""
    return {"status": "stopping" if _relay(state).stopping.is_set else "ok"}


@get("/ready", tags=["operations"], summary="Ready", security=[], responses={503: _responses(_503="Not now.")[503]})
async def ready(state: State) -> dict[str, str]:
    """Whether requests can be served: the store answers within two seconds, and the relay is not stopping."""
    await _relay(state).must_be_ready(READY_S)
    return {"status": "ready"}


@get("/metrics", tags=["operations"], summary="Metrics", media_type=MediaType.TEXT, security=[])
async def metrics(state: State) -> str:
    """Counts since the start, in Prometheus' text format."""
    relay = _relay(state)
    lines = []
    for name, value in msgspec.structs.asdict(relay.counts).items():
        kind = "gauge" if name == "waiting" else "counter"
        suffix = "" if kind == "gauge" else "_total"
        lines += [f"# TYPE casework_relay_{name}{suffix} {kind}", f"casework_relay_{name}{suffix} {value}"]
    counts = relay.store.log.counts
    for name, value in (("rounds", counts.rounds_n), ("lost_rounds", counts.lost_rounds_n)):
        lines += [f"# TYPE casework_streams_{name}_total counter", f"casework_streams_{name}_total {value}"]
    longest_s = counts.longest_wait_us / 1e6
    lines += ["# TYPE casework_streams_longest_wait_s gauge", f"casework_streams_longest_wait_s {longest_s}"]
    lines += ["# TYPE casework_relay_errors_total counter"]
    lines += [
        f'casework_relay_errors_total{{status="{code}"}} {count}' for code, count in sorted(relay.answers.items())
    ]
    return "\n".join(lines) + "\n"


def _waits_s(scope: Any) -> float:
    """How long a request may wait for operations."""
    asked = re.search(rb"(?:^|&)wait_s=([0-9]{1,3}(?:\.[0-9]{1,6})?)", scope.get("query_string", b""))
    return min(WAIT_S_MAX, float(asked[1])) if asked and scope["method"] == "GET" else 0.0


def make_app(relay: Relay) -> Litestar:
    """The ASGI application of a relay."""

    async def settle() -> None:
        relay.stopping.set()
        await relay.store.settle()

    return Litestar(
        [StreamsController, health, ready, metrics],
        middleware=[bounded(relay.settings, _waits_s, relay.note_cut_off)],
        state=State({"relay": relay}),
        exception_handlers={Exception: answer_error},
        request_max_body_size=relay.settings.max_body_bytes,
        on_shutdown=[settle],
        openapi_config=OpenAPIConfig(
            title="casework relay",
            version=casework.__version__,
            description="Streams over HTTP: many writers append, readers get every operation once, in one order.",
            path="/",
            components=Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}),
        ),
        response_headers=[ResponseHeader(name="X-Content-Type-Options", value="nosniff")],
        debug=False,
    )


__all__ = ["Response", "make_app"]
