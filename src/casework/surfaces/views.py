"""One view at a time: what ``django.py`` and ``flask.py`` have in common.

The view sees the framework's own request, after its middleware, so that ``scope=`` can be the user who logged in.
What it raises for an answer below 500 (``flask.abort(404)``, Django's ``Http404``, an exception of the REST framework)
is an answer like any other.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from casework.app.current import running_under
from casework.errors import CaseworkError, Misuse
from casework.idempotency.calling import Heartbeat, begun_or_refused
from casework.idempotency.guarding import Claim
from casework.idempotency.lifecycle import Shared
from casework.kernel.effects import Outcome
from casework.kernel.programs import Program, call
from casework.surfaces.asgi import to_its_end
from casework.surfaces.heart import LoopHeart, ThreadHeart
from casework.surfaces.http import NOT_STORED, HttpGuard, HttpRequest, HttpResponse, check_whole, no_length, too_large
from casework.surfaces.settling import free, settle

log = logging.getLogger("casework.idempotency")

View = Callable[..., Any]


class Framework:
    """What differs between frameworks."""

    def request_of(self, args: tuple[Any, ...]) -> tuple[HttpRequest, list[str]]:
        """The request of a call of a view, its body apart, and the values of the header."""
        raise NotImplementedError

    def body_of(self, request: HttpRequest) -> bytes:
        """The body; the view can still read it. Misuse where something has read it before."""
        raise NotImplementedError

    def has_end(self, request: HttpRequest) -> bool:
        """Whether the framework can tell where the body ends; without a length some read none of it."""
        raise NotImplementedError

    def made(self, response: HttpResponse) -> Any:
        """The framework's own response."""
        raise NotImplementedError

    def is_async(self, view: View) -> bool:
        """Whether calling the view makes a coroutine."""
        return inspect.iscoroutinefunction(view)

    def native(self, request: HttpRequest, returned: Any) -> Any:
        """The framework's own response for what a view returned; None for something that is none."""
        raise NotImplementedError

    def answer_of(self, request: HttpRequest, error: Exception) -> Any:
        """The framework's own response for what a view raised; None where it has none, so that it is an error."""
        raise NotImplementedError

    def begun(self, request: HttpRequest) -> Any:
        """Status and headers of a response that the view sends by itself; None: it returns it, as most do."""
        return None

    def status_of(self, response: Any) -> int:
        """Its status."""
        return int(response.status_code)

    def is_streamed(self, response: Any) -> bool:
        """Whether the response has no whole body."""
        raise NotImplementedError

    def pairs(self, response: Any) -> list[tuple[str, str]]:
        """Its headers."""
        return [(str(name), str(value)) for name, value in response.headers.items()]

    def data(self, response: Any) -> bytes:
        """Its body."""
        raise NotImplementedError


def guarded(view: View, guard: HttpGuard, framework: Framework) -> View:
    """The view behind its guard. Misuse for what is no view."""
    if isinstance(view, type):
        raise Misuse(
            f"{view.__qualname__} is a class; guard its method, such as post, or the view that its as_view() makes"
        )
    if not callable(view):
        raise Misuse(f"{view!r:.80} is no view; it must be a function of a request")
    if framework.is_async(view):

        @functools.wraps(view)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            request, values = framework.request_of(args)
            if request.method not in guard.methods or not (values or guard.options.required):
                return await view(*args, **kwargs)

            async def work(claim: Claim | None) -> Outcome[Any]:
                with running_under(claim):
                    try:
                        return Outcome(await view(*args, **kwargs))
                    except BaseException as error:  # noqa: BLE001 - handed on as it is, or as the framework answers it
                        return Outcome(error=error)

            store = guard.store
            served = serve(guard, store.shared, framework, request, values, work, LoopHeart(store))
            # A framework may cancel a view whose client has left; what was begun goes on to its end.
            return (await to_its_end(store.run_on_loop(served))).result()

        return coroutine

    @functools.wraps(view)
    def plain(*args: Any, **kwargs: Any) -> Any:
        request, values = framework.request_of(args)
        if request.method not in guard.methods or not (values or guard.options.required):
            return view(*args, **kwargs)

        def work(claim: Claim | None) -> Outcome[Any]:
            with running_under(claim):
                try:
                    return Outcome(view(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - handed on as it is, or as the framework answers it
                    return Outcome(error=error)

        store = guard.blocking_store()
        return store.run(serve(guard, store.shared, framework, request, values, work, ThreadHeart(store))).result()

    return plain


def serve(
    guard: HttpGuard,
    shared: Shared,
    framework: Framework,
    request: HttpRequest,
    values: list[str],
    work: Callable[[Claim | None], Any],
    heart: Heartbeat,
) -> Program[Outcome[Any]]:
    """One request to a guarded view: replay, refuse, or call the view and settle what comes of it."""
    try:
        key = guard.key_of(request, values)
        if key is None:
            unguarded: Outcome[Any] = yield from call(work, None)
            return unguarded
        limit = guard.options.max_request_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise too_large(limit)
        if not framework.has_end(request):
            raise no_length()
        request.body = framework.body_of(request)
        check_whole(length, request.body)
        if len(request.body) > limit:  # it came in chunks
            raise too_large(limit)
        begun = yield from begun_or_refused(guard, shared, key, guard.fingerprint_of(request))
    except CaseworkError as error:
        return Outcome(framework.made(guard.refused(error)))
    claim = begun.claim
    if begun.record is not None:
        guard.notify("replayed", key)
        return Outcome(framework.made(guard.replay(begun.record)))
    if claim is None:
        guard.notify("unprotected", key)
        outcome: Outcome[Any] = yield from call(work, None)
        response = None if outcome.error is not None else framework.native(request, outcome.value)
        return _marked(outcome if response is None else Outcome(response), "store-unavailable")
    claim.answers_http = True
    heart.watch(claim)
    try:
        outcome = yield from call(work, claim)
        answer = _answer(framework, request, outcome)
    except BaseException as error:
        heart.unwatch(claim)
        if not isinstance(error, GeneratorExit):
            yield from free(guard, shared, claim)
        raise
    heart.unwatch(claim)
    if answer.outcome.error is not None and not answer.why:
        yield from free(guard, shared, claim)
        return answer.outcome
    settled = yield from settle(guard, shared, claim, answer.status, answer.headers, answer.body, why=answer.why)
    if settled.instead is not None:
        return Outcome(framework.made(settled.instead))
    return _marked(answer.outcome, settled.not_stored)


class _Answer(msgspec.Struct):
    """What a view came to: an error, or a response that can be stored, or one that cannot."""

    outcome: Outcome[Any]
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    why: str = ""


def _answer(framework: Framework, request: HttpRequest, outcome: Outcome[Any]) -> _Answer:
    begun = framework.begun(request)
    if begun is not None:  # whatever came after that: the client has a part of it
        return _Answer(outcome, begun.status, begun.headers, why="streamed")
    if isinstance(outcome.error, Exception):
        answered = framework.answer_of(request, outcome.error)
        if answered is None:
            return _Answer(outcome)
        outcome = Outcome(answered)
    elif outcome.error is not None:
        return _Answer(outcome)
    response = framework.native(request, outcome.value)
    if response is None:
        log.warning(
            "a guarded view returned a %s, which is no response; what it did is not done again, and cannot be "
            "replayed: guard the whole application, or what makes the response", type(outcome.value).__qualname__
        )  # fmt: skip
        return _Answer(outcome, why="unknown")
    try:
        is_streamed = framework.is_streamed(response)
        body = b"" if is_streamed else framework.data(response)
    except Exception as error:  # noqa: BLE001 - a template that cannot be rendered is an error of the view
        return _Answer(Outcome(error=error))
    why = "streamed" if is_streamed else ""
    return _Answer(Outcome(response), framework.status_of(response), framework.pairs(response), body, why)


def _marked(outcome: Outcome[Any], not_stored: str) -> Outcome[Any]:
    """With the header that says why a response was not stored, where it is a response."""
    headers = getattr(outcome.value, "headers", None)
    if not_stored and headers is not None:
        headers[NOT_STORED] = not_stored
    return outcome
