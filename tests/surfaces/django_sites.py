"""Sites of Django, Django REST framework and Django Ninja: each answers ``<site>/<kind of response>``."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings

from tests.surfaces.effects import perform, perform_async
from tests.surfaces.sites import FILE, Broken, events, options, parts, seen, store

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="matrix", MIDDLEWARE=[], USE_TZ=True,
        LOGGING_CONFIG=None, INSTALLED_APPS=["rest_framework"], DATA_UPLOAD_MAX_MEMORY_SIZE=None,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
    )  # fmt: skip
    import django

    django.setup()

from django.http import FileResponse, Http404, HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.urls import path
from ninja import NinjaAPI
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from casework import IdempotencyMiddleware, IdempotencyWsgiMiddleware, idempotent_django_view

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class SeeOther(HttpResponseRedirect):
    """A redirect that is followed with GET."""

    status_code = 303


def got_of(request: Any) -> str:
    if request.content_type in FORMS:
        return f"amount={request.POST['amount']}"
    return seen(request.body)


def respond(kind: str, n: int, got: str, *, is_async: bool = False) -> Any:
    if kind == "missing":
        raise Http404(f"none {n} {got}")
    if kind == "broken":
        raise Broken(kind)
    headers = {"X-Effect": str(n)}

    def flow(pieces: list[bytes]) -> Any:
        async def later() -> Any:
            for piece in pieces:
                yield piece

        return later() if is_async else iter(pieces)

    made: dict[str, Any] = {
        "small": lambda: JsonResponse({"n": n, "got": got}, status=201, headers=headers),
        "stream": lambda: StreamingHttpResponse(
            flow(parts(n, got)), status=201, headers=headers, content_type="text/plain"
        ),
        "events": lambda: StreamingHttpResponse(flow(events(n)), headers=headers, content_type="text/event-stream"),
        "file": lambda: FileResponse(FILE.open("rb"), as_attachment=True, headers=headers),
        "nothing": lambda: HttpResponse(status=204, headers=headers),
        "redirect": lambda: SeeOther(f"/there/{n}", headers=headers),
        "unavailable": lambda: JsonResponse({"n": n, "got": got}, status=503, headers=headers),
    }
    return made[kind]()


def plain(request: Any, kind: str) -> Any:
    got = got_of(request)
    return respond(kind, perform(request.headers["Idempotency-Key"]), got)


async def coroutine(request: Any, kind: str) -> Any:
    got = await sync_to_async(got_of)(request)  # as whatever blocks is called: on the thread of its request
    return respond(kind, await perform_async(request.headers["Idempotency-Key"]), got, is_async=True)


class Rest(APIView):
    """A view of the REST framework."""

    @idempotent_django_view(store, **options("rest"))
    def post(self, request: Any, kind: str) -> Any:
        form = request.content_type.split(";")[0] in FORMS
        got = f"amount={request.data['amount']}" if form else seen(request._request.body)
        n = perform(request.headers["Idempotency-Key"])
        if kind == "missing":
            raise NotFound(f"none {n} {got}")
        if kind in ("small", "unavailable"):
            return Response({"n": n, "got": got}, 201 if kind == "small" else 503, headers={"X-Effect": str(n)})
        return respond(kind, n, got)


api = NinjaAPI(urls_namespace="matrix", docs_url=None, openapi_url=None)


@api.post("/{kind}")
def ninja_operation(request: Any, kind: str) -> Any:
    return plain(request, kind)


async_api = NinjaAPI(urls_namespace="matrix-async", docs_url=None, openapi_url=None)


@async_api.post("/{kind}")
async def ninja_async_operation(request: Any, kind: str) -> Any:
    return await coroutine(request, kind)


urlpatterns = [
    path("django/<kind>", plain),
    path("django_view/<kind>", idempotent_django_view(store, **options("django_view"))(plain)),
    path("django_async/<kind>", coroutine),
    path("django_async_view/<kind>", idempotent_django_view(store, **options("django_async_view"))(coroutine)),
    path("rest/<kind>", Rest.as_view()),
    path("ninja/", api.urls),
    path("ninja_async/", async_api.urls),
]


def wsgi(site: str) -> Any:
    """The application for a site; one with ``_view`` in its name, and the REST framework's, guards its views."""
    from django.core.wsgi import get_wsgi_application

    app = get_wsgi_application()
    if site.endswith("_view") or site == "rest":
        return app
    return IdempotencyWsgiMiddleware(app, store(), **options(site))


def asgi(site: str) -> Any:
    """As :func:`wsgi`."""
    from django.core.asgi import get_asgi_application

    app = get_asgi_application()
    return app if site.endswith("_view") else IdempotencyMiddleware(app, store(), **options(site))
