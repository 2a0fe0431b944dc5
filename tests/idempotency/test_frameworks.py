"""The examples for FastAPI, Starlette, Flask and Django, on real servers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.idempotency.serving import Client, on_uvicorn, on_waitress

A, B = {"Authorization": "Bearer token-of-a"}, {"Authorization": "Bearer token-of-b"}
EXAMPLES = Path(__file__).parents[2] / "examples" / "idempotency"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check_payments(send: Client, performed: list[str], below: str = "") -> None:
    def post(path: str, *args: Any, **headers: Any) -> Any:
        return send(below + path, *args, **headers)

    first = post("/payments", {"order": "o-1", "amount": 5}, **A)
    again = post("/payments", {"order": "o-1", "amount": 5}, **A)
    assert (first.status, first.json["n"], again.status, again.json["n"]) == (201, 1, 201, 1)
    assert again.is_replay and not first.is_replay
    assert post("/payments", {"order": "o-2", "amount": 5}, **A).status == 422
    assert not post("/payments", {"order": "o-1", "amount": 5}, **B).is_replay
    for headers in ({}, {"Authorization": "Bearer token-of-nobody"}):
        stranger = post("/payments", {"order": "o-1", "amount": 5}, **headers)
        assert stranger.status in (400, 401, 403) and not stranger.is_replay and b'"n"' not in stranger.body
    assert performed.count("o-1") == 2 and "o-2" not in performed


def test_fastapi_routes_are_guarded_one_by_one() -> None:
    module = example("fastapi_app")
    with on_uvicorn(module.app) as post:
        check_payments(post, module.performed)
        assert post("/payments", {"order": "o-1", "amount": 5}, key=None, **A).status == 400
        assert post("/search").json["n"] != post("/search").json["n"]
        invalid = post("/payments", {"order": "o-9"}, key="v", **A)
        assert invalid.status == 422 and "loc" in invalid.json["detail"][0]
        assert post("/payments", {"order": "o-9", "amount": 5}, key="v", **A).status == 201, (
            "what is invalid takes no key"
        )
    assert module.performed.count("receipt") == 3, "background tasks run after the response, and before the server ends"


def test_starlette_with_other_middleware_above_and_below() -> None:
    module = example("starlette_app")
    with on_uvicorn(module.app) as post:
        check_payments(post, module.performed)
        assert post("/payments", {"order": "o-1", "amount": 5}, **A).headers["x-served-by"] == "below"
        plain = post("/export", key="e", **A)
        zipped = post("/export", key="e", **A, Accept_Encoding="gzip")
        assert zipped.is_replay and zipped.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers and plain.body.startswith(b"line 0\n")
        assert module.performed.count("export") == 1


def test_flask() -> None:
    module = example("flask_app")
    with on_waitress(module.app) as post:
        check_payments(post, module.performed)


def test_one_flask_view_is_guarded_by_itself() -> None:
    module = example("flask_app")
    with on_waitress(module.views) as post:
        check_payments(post, module.performed)


def django_example() -> Any:
    """The one of this process: Django is configured once."""
    return sys.modules.get("django_app") or example("django_app")


@pytest.fixture(scope="module")
def django_app() -> Any:
    return django_example()


def test_django_as_wsgi(django_app: Any) -> None:
    django_app.performed.clear()
    with on_waitress(django_app.application) as post:
        check_payments(post, django_app.performed)


def test_django_as_asgi(django_app: Any) -> None:
    import uvicorn  # noqa: F401 - before the records are cleared: it is an extra

    django_app.performed.clear()
    for key in list(django_app.store.records.keys()):
        django_app.store.purge(key)
    with on_uvicorn(django_app.asgi_application) as post:
        check_payments(post, django_app.performed)


def test_one_django_view_is_guarded_by_itself(django_app: Any) -> None:
    django_app.performed.clear()
    with on_waitress(django_app.plain_application) as post:
        check_payments(post, django_app.performed, "/views")
        plain = post("/payments", {"order": "o-3", "amount": 5}, key="p", **A)
        assert not plain.is_replay and not post("/payments", {"order": "o-3"}, key="p", **A).is_replay
