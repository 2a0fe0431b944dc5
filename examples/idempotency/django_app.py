"""Django: the whole application is guarded, as WSGI and as ASGI. ``waitress-serve django_app:application``"""

import json

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

import casework

store = casework.MemoryIdempotencyStore()
performed: list[str] = []

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="example", MIDDLEWARE=[], USE_TZ=True)


def pay(request: HttpRequest) -> JsonResponse:
    performed.append(json.loads(request.body)["order"])
    return JsonResponse({"n": len(performed)}, status=201)


urlpatterns = [path("payments", pay)]


def tenant(request: casework.HttpRequest) -> str | None:
    return request.headers.get("x-tenant")


application = casework.IdempotencyWsgiMiddleware(get_wsgi_application(), store, scope=tenant)
asgi_application = casework.IdempotencyMiddleware(get_asgi_application(), store, scope=tenant)
