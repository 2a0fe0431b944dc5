"""Starlette: the whole application is guarded, with other middleware above and below. ``uvicorn starlette_app:app``"""

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import casework

store = casework.MemoryIdempotencyStore()
performed: list[str] = []


async def pay(request: Request) -> Response:
    payment = await request.json()
    performed.append(payment["order"])
    return JSONResponse({"n": len(performed)}, 201, background=BackgroundTask(performed.append, "receipt"))


async def export(request: Request) -> Response:
    performed.append("export")
    return StreamingResponse((f"line {n}\n" for n in range(100)), media_type="text/plain")


async def add_header(request: Request, call_next):  # type: ignore[no-untyped-def]
    response = await call_next(request)
    response.headers["x-served-by"] = "below"
    return response


app = Starlette(
    routes=[Route("/payments", pay, methods=["POST"]), Route("/export", export, methods=["POST"])],
    middleware=[
        Middleware(GZipMiddleware, minimum_size=10),  # above: each client gets the encoding that it asked for
        Middleware(casework.IdempotencyMiddleware, store=store, scope=lambda request: request.headers.get("x-tenant")),
        Middleware(BaseHTTPMiddleware, dispatch=add_header),  # below: it makes every response a stream
    ],
)
