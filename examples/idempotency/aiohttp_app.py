"""aiohttp: the whole application is guarded, below the middleware that finds out who the caller is."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

import casework

store = casework.MemoryIdempotencyStore()  # casework.AsyncDynamoDBIdempotencyStore() in production
performed: list[str] = []

TOKENS = {hashlib.sha256(f"token-of-{tenant}".encode()).digest(): tenant for tenant in ("a", "b")}


def tenant_of(authorization: str) -> str | None:
    """Whose token it is; None for an unknown one."""
    given = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).digest()
    return next((tenant for known, tenant in TOKENS.items() if hmac.compare_digest(known, given)), None)


@web.middleware
async def authenticated(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    request["tenant"] = tenant_of(request.headers.get("Authorization", ""))
    if request["tenant"] is None:
        raise web.HTTPUnauthorized
    return await handler(request)


async def pay(request: web.Request) -> web.Response:
    performed.append((await request.json())["order"])
    return web.json_response({"n": len(performed)}, status=201)


def application() -> web.Application:
    app = web.Application(middlewares=[authenticated])  # first who it is, then what was stored
    app.router.add_post("/payments", pay)
    casework.idempotent_aiohttp_app(app, store, scope=lambda request: request.native["tenant"])
    return app


if __name__ == "__main__":
    web.run_app(application())
