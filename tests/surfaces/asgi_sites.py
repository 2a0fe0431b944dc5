"""Sites of Starlette, FastAPI, Litestar and Quart: each answers ``/<kind of response>``, behind a guard."""

from __future__ import annotations

from typing import Any

from casework import IdempotencyMiddleware, idempotent_route
from tests.surfaces.effects import perform_async
from tests.surfaces.sites import FILE, LIMIT, Broken, events, options, parts, seen, store

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def is_form(kind: str | None) -> bool:
    return (kind or "").startswith(FORMS)


async def streamed(pieces: list[bytes]) -> Any:
    for piece in pieces:
        yield piece


async def starlette_answer(request: Any, kind: str) -> Any:
    from starlette.background import BackgroundTask
    from starlette.exceptions import HTTPException
    from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

    if is_form(request.headers.get("content-type")):
        async with request.form() as form:
            got = f"amount={form['amount']}"
    else:
        got = seen(await request.body())
    key = request.headers["idempotency-key"]
    n = await perform_async(key)
    headers = {"X-Effect": str(n)}
    if kind == "missing":
        raise HTTPException(404, f"none {n} {got}", headers)
    if kind == "broken":
        raise Broken(kind)
    made: dict[str, Any] = {
        "small": lambda: JSONResponse({"n": n, "got": got}, 201, headers),
        "stream": lambda: StreamingResponse(streamed(parts(n, got)), 201, headers, "text/plain"),
        "events": lambda: StreamingResponse(streamed(events(n)), 200, headers, "text/event-stream"),
        "file": lambda: FileResponse(FILE, 200, headers, filename="a.txt"),
        "nothing": lambda: Response(None, 204, headers),
        "redirect": lambda: RedirectResponse(f"/there/{n}", 303, headers),
        "unavailable": lambda: JSONResponse({"n": n, "got": got}, 503, headers),
        "background": lambda: JSONResponse(
            {"n": n, "got": got}, 201, headers, background=BackgroundTask(perform_async, f"{key}-background")
        ),
    }
    return made[kind]()


def starlette_app(wrap: Any = None) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def answer(request: Any) -> Any:
        return await starlette_answer(request, request.path_params["kind"])

    return Starlette(routes=[(wrap or Route)("/{kind}", answer, methods=["POST"])])


def starlette() -> Any:
    return IdempotencyMiddleware(starlette_app(), store(), **options("starlette"))


def starlette_route() -> Any:
    from starlette.routing import Route

    return starlette_app(idempotent_route(Route, store(), **options("starlette_route")))


def fastapi_app(route_class: Any = None) -> Any:
    from fastapi import APIRouter, FastAPI, Request
    from fastapi.routing import APIRoute

    router = APIRouter(route_class=route_class or APIRoute)

    async def answer(request: Request, kind: str) -> Any:
        return await starlette_answer(request, kind)

    answer.__annotations__ = {"request": Request, "kind": str}
    router.add_api_route("/{kind}", answer, methods=["POST"], response_model=None)
    app = FastAPI()
    app.include_router(router)
    return app


def fastapi() -> Any:
    return IdempotencyMiddleware(fastapi_app(), store(), **options("fastapi"))


def fastapi_route() -> Any:
    from fastapi.routing import APIRoute

    return fastapi_app(idempotent_route(APIRoute, store(), **options("fastapi_route")))


async def litestar_answer(request: Any, kind: str) -> Any:
    from litestar import Response
    from litestar.background_tasks import BackgroundTask
    from litestar.exceptions import HTTPException
    from litestar.response import File, Redirect, ServerSentEvent, Stream

    if is_form(request.headers.get("content-type")):
        got = f"amount={(await request.form())['amount']}"
    else:
        got = seen(await request.body())
    key = request.headers["idempotency-key"]
    n = await perform_async(key)
    headers = {"X-Effect": str(n)}
    if kind == "missing":
        raise HTTPException(status_code=404, detail=f"none {n} {got}", headers=headers)
    if kind == "broken":
        raise Broken(kind)
    made: dict[str, Any] = {
        "small": lambda: Response({"n": n, "got": got}, status_code=201, headers=headers),
        "stream": lambda: Stream(streamed(parts(n, got)), status_code=201, headers=headers, media_type="text/plain"),
        "events": lambda: ServerSentEvent(iter(["1", "2", "3"]), status_code=200, headers=headers),
        "file": lambda: File(FILE, filename="a.txt", status_code=200, headers=headers),
        "nothing": lambda: Response(None, status_code=204, headers=headers),
        "redirect": lambda: Redirect(f"/there/{n}", status_code=303, headers=headers),
        "unavailable": lambda: Response({"n": n, "got": got}, status_code=503, headers=headers),
        "background": lambda: Response(
            {"n": n, "got": got}, status_code=201, headers=headers,
            background=BackgroundTask(perform_async, f"{key}-background"),
        ),
    }  # fmt: skip
    return made[kind]()


def litestar() -> Any:
    from litestar import Litestar, Request, post
    from litestar.middleware import DefineMiddleware
    from litestar.response import ServerSentEvent

    async def answer(request: Any, kind: str) -> Any:
        return await litestar_answer(request, kind)

    answer.__annotations__ = {"request": Request, "kind": str, "return": Any}

    async def event_stream(request: Any) -> Any:  # Litestar takes the type of the content from the annotation
        return await litestar_answer(request, "events")

    event_stream.__annotations__ = {"request": Request, "return": ServerSentEvent}
    guard = DefineMiddleware(IdempotencyMiddleware, store=store(), **options("litestar"))
    handlers = [post("/{kind:str}")(answer), post("/events")(event_stream)]
    return Litestar(handlers, middleware=[guard], request_max_body_size=LIMIT, openapi_config=None)


def quart() -> Any:
    from quart import Quart, Response, abort, jsonify, redirect, request, send_file

    app = Quart("site")

    async def answer(kind: str) -> Any:
        if is_form(request.content_type):
            got = f"amount={(await request.form)['amount']}"
        else:
            got = seen(await request.get_data())
        key = request.headers["Idempotency-Key"]
        n = await perform_async(key)
        if kind == "missing":
            abort(Response(f"none {n} {got}", 404, {"X-Effect": str(n)}))
        if kind == "broken":
            raise Broken(kind)
        if kind == "background":
            app.add_background_task(perform_async, f"{key}-background")
        if kind in ("small", "background", "unavailable"):
            response = jsonify(n=n, got=got)
            response.status_code = 503 if kind == "unavailable" else 201
        elif kind == "file":
            response = await send_file(FILE, as_attachment=True)
        elif kind == "redirect":
            response = redirect(f"/there/{n}", 303)
        elif kind == "nothing":
            response = Response(b"", 204)
        elif kind == "stream":
            response = Response(streamed(parts(n, got)), 201, mimetype="text/plain")
        else:
            response = Response(streamed(events(n)), 200, mimetype="text/event-stream")
        response.headers["X-Effect"] = str(n)
        return response

    app.add_url_rule("/<kind>", "answer", answer, methods=["POST"])
    app.asgi_app = IdempotencyMiddleware(app.asgi_app, store(), **options("quart"))  # type: ignore[method-assign,assignment]
    return app
