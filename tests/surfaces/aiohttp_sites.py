"""A site of aiohttp, which is its own server: ``python -m tests.surfaces.aiohttp_sites PORT``."""

from __future__ import annotations

import sys
from typing import Any

from casework import idempotent_aiohttp_app
from tests.surfaces.asgi_sites import is_form
from tests.surfaces.effects import perform_async
from tests.surfaces.sites import FILE, LIMIT, Broken, events, options, parts, seen, store


async def answer(request: Any) -> Any:
    from aiohttp import web

    kind = request.match_info["kind"]
    got = f"amount={(await request.post())['amount']}" if is_form(request.content_type) else seen(await request.read())
    n = await perform_async(request.headers["Idempotency-Key"])
    headers = {"X-Effect": str(n)}
    if kind == "missing":
        raise web.HTTPNotFound(text=f"none {n} {got}", headers=headers)
    if kind == "redirect":
        raise web.HTTPSeeOther(f"/there/{n}", headers=headers)
    if kind == "broken":
        raise Broken(kind)
    if kind == "file":
        return web.FileResponse(FILE, headers=headers)
    if kind == "nothing":
        return web.Response(status=204, headers=headers)
    if kind in ("stream", "events"):
        headers["Content-Type"] = "text/plain" if kind == "stream" else "text/event-stream"
        response = web.StreamResponse(status=201 if kind == "stream" else 200, headers=headers)
        await response.prepare(request)
        for piece in parts(n, got) if kind == "stream" else events(n):
            await response.write(piece)
        return response
    return web.json_response({"n": n, "got": got}, status=503 if kind == "unavailable" else 201, headers=headers)


async def ready(request: Any) -> Any:
    from aiohttp import web

    return web.Response(status=204)


def site() -> Any:
    from aiohttp import web

    below, app = web.Application(client_max_size=LIMIT), web.Application(client_max_size=LIMIT)
    below.router.add_post("/{kind}", answer)
    idempotent_aiohttp_app(below, store(), **options("aiohttp"))
    app.add_subapp("/aiohttp", below)
    app.router.add_get("/ready", ready)
    return app


if __name__ == "__main__":
    from aiohttp import web

    web.run_app(site(), host="127.0.0.1", port=int(sys.argv[1]), print=None, handler_cancellation=True)
