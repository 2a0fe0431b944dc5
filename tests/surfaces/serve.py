"""All sites in one application: ``tests.surfaces.serve:wsgi`` and ``:asgi``, the first part of a path names the site.

``python -m tests.surfaces.serve wsgiref PORT`` serves with the standard library's server, which does as little for an
application as mod_wsgi's embedded mode: the bare connection as input, and no body in chunks.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

MODULES = {
    "starlette": "asgi_sites", "starlette_route": "asgi_sites", "fastapi": "asgi_sites", "fastapi_route": "asgi_sites",
    "litestar": "asgi_sites", "quart": "asgi_sites", "flask": "wsgi_sites", "flask_view": "wsgi_sites",
    "django": "django_sites", "django_view": "django_sites", "rest": "django_sites", "ninja": "django_sites",
    "ninja_async": "django_sites", "django_async": "django_sites", "django_async_view": "django_sites",
}  # fmt: skip
"""Where each site is."""


@functools.cache
def app_of(site: str, kind: str) -> Any:
    """The application of a site; ``kind`` is ``asgi`` or ``wsgi``."""
    module = importlib.import_module(f"tests.surfaces.{MODULES[site]}")
    return getattr(module, kind)(site) if MODULES[site] == "django_sites" else getattr(module, site)()


def below(path: str) -> tuple[str, str]:
    """The site of a path, and the path as the site sees it; Django's sites see all of it."""
    site = path.split("/")[1]
    return site, path if MODULES.get(site) == "django_sites" else path[len(site) + 1 :]


def wsgi(environ: Any, start_response: Any) -> Any:
    """Every WSGI site."""
    site, path = below(environ["PATH_INFO"])
    if site == "ready":
        start_response("204 No Content", [])
        return []
    return app_of(site, "wsgi")({**environ, "PATH_INFO": path}, start_response)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Every ASGI site."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    site, path = below(scope["path"])
    if site == "ready":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await app_of(site, "asgi")({**scope, "path": path, "raw_path": path.encode()}, receive, send)


def serve_wsgiref(port: int) -> None:
    """One thread for each connection, and nothing else."""
    import socketserver
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", port), WSGIRequestHandler)
    server.set_app(wsgi)
    server.serve_forever()


if __name__ == "__main__":
    {"wsgiref": serve_wsgiref}[sys.argv[1]](int(sys.argv[2]))
