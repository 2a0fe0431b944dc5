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


def tenant(request: casework.HttpRequest) -> str | None:
    return request.headers.get("x-tenant")


pay_by_view = casework.idempotent_django_view(store, scope=tenant, name="views")(pay)  # or as a decorator

urlpatterns = [path("payments", pay), path("views/payments", pay_by_view)]

application = casework.IdempotencyWsgiMiddleware(get_wsgi_application(), store, scope=tenant)
asgi_application = casework.IdempotencyMiddleware(get_asgi_application(), store, scope=tenant)
plain_application = get_wsgi_application()  # for the view that is guarded by itself
