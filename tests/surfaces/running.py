"""Starts the servers of the matrix, each a process of its own with every site that it can serve."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.servers.ports import Port
from tests.servers.process import Server
from tests.surfaces.clients import Client
from tests.surfaces.effects import PORT, counting
from tests.surfaces.sites import STORE

ROOT = Path(__file__).parents[2]
ASGI, WSGI = "tests.surfaces.serve:asgi", "tests.surfaces.serve:wsgi"


def command(server: str, port: int) -> list[str]:
    """How a server is started."""
    at = f"127.0.0.1:{port}"
    name, _, kind = server.partition("-")
    rest = {
        "uvicorn": ["uvicorn", ASGI, "--port", str(port), "--log-level", "warning"],
        "hypercorn": ["hypercorn", ASGI, "--bind", at],
        "daphne": ["daphne", "-b", "127.0.0.1", "-p", str(port), ASGI],
        "gunicorn": ["gunicorn", WSGI, "--bind", at, "--worker-class", kind],
        "waitress": ["waitress", "--listen", at, "--threads", "8", WSGI],
        "aiohttp": ["tests.surfaces.aiohttp_sites", str(port)],
        "wsgiref": ["tests.surfaces.serve", "wsgiref", str(port)],
    }[name]
    if kind == "gthread":
        rest += ["--threads", "8"]
    return [sys.executable, "-m", *rest]


@contextlib.contextmanager
def serving(server: str, folder: Path) -> Iterator[tuple[Client, Server]]:
    """A client of a server that runs."""
    port = Port()
    with counting() as effects:
        environment = {
            PORT: str(effects.port), STORE: str(folder / "keys.db"), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        process = Server(
            command(server, port.number), log=folder / "log", ready_path="/ready", port=port, environment=environment
        )
        process.start()
        try:
            yield Client(port.number, effects), process
        finally:
            process.stop()
