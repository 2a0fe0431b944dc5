"""Guarded views of Flask, Django and Django REST framework: an answer below 500 is stored, whether a view returns or
raises it; a view runs once; authentication comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from casework import MemoryIdempotencyStore, Misuse, idempotent_django_view, idempotent_flask_view
from tests.idempotency.serving import on_uvicorn, on_waitress
from tests.idempotency.test_frameworks import django_example

# --- Flask ------------------------------------------------------------------------------------------------------------


class Declined(Exception):
    pass


def flask_site(calls: list[str]) -> Any:
    import flask

    app, store = flask.Flask("site"), MemoryIdempotencyStore()
    guarded = idempotent_flask_view(store, scope=None)

    @app.errorhandler(Declined)
    def declined(error: Declined) -> Any:
        return {"declined": str(error)}, 402

    def do(name: str) -> Any:
        calls.append(name)
        if name == "abort":
            flask.abort(404, "nothing here")
        if name == "declined":
            raise Declined("card")
        if name == "broken":
            raise ZeroDivisionError
        if name == "unavailable":
            flask.abort(503)
        return {"n": len(calls)}, 201, {"X-Name": name}

    app.post("/plain/<name>")(guarded(do))

    @app.post("/async/<name>")
    @guarded
    async def do_async(name: str) -> Any:
        await asyncio.sleep(0)
        return do(name)

    app.config["PROPAGATE_EXCEPTIONS"] = False
    return app


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_flask_view_may_return_abort_or_raise(kind: str) -> None:
    calls: list[str] = []
    with on_waitress(flask_site(calls)) as post:
        for name, status in (("fine", 201), ("abort", 404), ("declined", 402)):
            first, again = (post(f"/{kind}/{name}", key=name) for _ in range(2))
            assert (first.status, again.status, again.body) == (status, status, first.body)
            assert again.is_replay and not first.is_replay and calls.count(name) == 1
        for name, status in (("broken", 500), ("unavailable", 503)):
            assert [post(f"/{kind}/{name}", key=name).status for _ in range(2)] == [status] * 2
            assert calls.count(name) == 2, "an error of the server frees the key"


# --- Django and Django REST framework ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def django() -> Iterator[Any]:
    """Django with views of its own and of the REST framework; ``django.calls`` is what they did."""
    django_example()
    from django.conf import settings
    from django.test.utils import override_settings

    with override_settings(REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []}):
        from tests.idempotency import django_views

        with override_settings(ROOT_URLCONF="tests.idempotency.django_views", DEBUG=False):
            assert settings.ROOT_URLCONF == "tests.idempotency.django_views"
            yield django_views


PLAIN = ("function", "method", "rest-function", "rest-method", "rest-above")


@pytest.mark.parametrize("view", PLAIN)
def test_a_django_view_may_return_or_raise(django: Any, view: str) -> None:
    from django.core.wsgi import get_wsgi_application

    django.calls.clear()
    with on_waitress(get_wsgi_application()) as post:
        for what, status in (("fine", 201), ("missing", 404), ("forbidden", 403)):
            first, again = (post(f"/{view}/", {"what": what}, key=f"{view}-{what}", **django.ALICE) for _ in range(2))
            assert (first.status, again.status) == (status, status)
            if status == 403:  # "not you" is no result
                assert django.calls.count(what) == 2
                continue
            assert again.body == first.body and again.is_replay and not first.is_replay
            assert django.calls.count(what) == 1
        assert post(f"/{view}/", {"what": "broken"}, key=f"{view}-broken", **django.ALICE).status == 500
        assert post(f"/{view}/", {"what": "broken"}, key=f"{view}-broken", **django.ALICE).status == 500
        assert django.calls.count("broken") == 2


@pytest.mark.parametrize("view", ["rest-function", "rest-method"])
def test_whoever_the_rest_framework_refuses_gets_no_replay(django: Any, view: str) -> None:
    from django.core.wsgi import get_wsgi_application

    django.calls.clear()
    with on_waitress(get_wsgi_application()) as post:
        assert post(f"/{view}/", {"what": "fine"}, key=f"{view}-auth", **django.ALICE).status == 201
        stranger = post(f"/{view}/", {"what": "fine"}, key=f"{view}-auth")
        assert stranger.status in (401, 403) and not stranger.is_replay
        declined = post(f"/{view}/", {"what": "declined"}, key=f"{view}-declined", **django.ALICE)
        again = post(f"/{view}/", {"what": "declined"}, key=f"{view}-declined", **django.ALICE)
    assert (declined.status, again.status, again.is_replay) == (402, 402, True)
    assert django.calls == ["fine", "declined"]


@pytest.mark.parametrize("view", ["async-function", "async-class"])
def test_an_async_django_view_runs_once(django: Any, view: str) -> None:
    from django.core.asgi import get_asgi_application

    django.calls.clear()
    with on_uvicorn(get_asgi_application()) as post:
        for what, status in (("fine", 201), ("missing", 404)):
            first, again = (post(f"/{view}/", {"what": what}, key=f"{view}-{what}") for _ in range(2))
            assert (first.status, again.status, again.body) == (status, status, first.body)
            assert again.is_replay and django.calls.count(what) == 1


def test_what_is_no_response_is_done_once_and_refused_afterwards(django: Any) -> None:
    from django.core.wsgi import get_wsgi_application

    django.calls.clear()
    with on_waitress(get_wsgi_application()) as post:
        post("/none/", {"what": "none"}, key="none")
        again = post("/none/", {"what": "none"}, key="none")
    assert django.calls == ["none"]
    assert again.status == 409 and "performed" in again.json["detail"]


def test_a_class_is_refused_at_decoration() -> None:
    class View:
        pass

    with pytest.raises(Misuse, match="as_view"):
        idempotent_django_view(MemoryIdempotencyStore(), scope=None)(View)
    with pytest.raises(Misuse, match="function"):
        idempotent_flask_view(MemoryIdempotencyStore(), scope=None)(3)  # type: ignore[arg-type]
