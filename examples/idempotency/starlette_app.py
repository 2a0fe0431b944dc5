"""Starlette: the whole application is guarded, with other middleware above and below. ``uvicorn starlette_app:app``"""

import hashlib
import hmac

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser, requires
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import casework

store = casework.MemoryIdempotencyStore()
performed: list[str] = []


TOKENS = {hashlib.sha256(f"token-of-{tenant}".encode()).digest(): tenant for tenant in ("a", "b")}


class ByToken(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        given = hashlib.sha256(conn.headers.get("authorization", "").removeprefix("Bearer ").encode()).digest()
        for known, tenant in TOKENS.items():
            if hmac.compare_digest(known, given):
                return AuthCredentials(["authenticated"]), SimpleUser(tenant)
        return None


def tenant(request: casework.HttpRequest) -> str | None:
    """The user whom the middleware above has verified; without one the guard refuses."""
    user = request.native["user"]
    return user.username if user.is_authenticated else None


@requires("authenticated")
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
        Middleware(AuthenticationMiddleware, backend=ByToken()),  # above: first who it is, then what was stored
        Middleware(casework.IdempotencyMiddleware, store=store, scope=tenant),
        Middleware(BaseHTTPMiddleware, dispatch=add_header),  # below: it makes every response a stream
    ],
)
