"""Django: the whole application is guarded, or one view. ``waitress-serve django_app:application``"""

import hashlib
import hmac
import json
from collections.abc import Callable

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

import casework

store = casework.MemoryIdempotencyStore()
performed: list[str] = []

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="example", MIDDLEWARE=[], USE_TZ=True)

TOKENS = {hashlib.sha256(f"token-of-{tenant}".encode()).digest(): tenant for tenant in ("a", "b")}


def tenant_of(authorization: str) -> str | None:
    """Whose token it is; None for an unknown one."""
    given = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).digest()
    return next((tenant for known, tenant in TOKENS.items() if hmac.compare_digest(known, given)), None)


def tenant(request: casework.HttpRequest) -> str | None:
    """The guard stands outside of Django here, so it looks at the token itself; without a tenant it refuses."""
    return tenant_of(request.headers.get("authorization", ""))


def authenticated(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def checked(request: HttpRequest) -> HttpResponse:
        request.tenant = tenant_of(request.headers.get("authorization", ""))  # type: ignore[attr-defined]
        return HttpResponse(status=401) if request.tenant is None else view(request)  # type: ignore[attr-defined]

    return checked


@authenticated
def pay(request: HttpRequest) -> HttpResponse:
    performed.append(json.loads(request.body)["order"])
    return JsonResponse({"n": len(performed)}, status=201)


@authenticated  # first who it is, then what was stored
@casework.idempotent_django_view(store, scope=lambda request: request.native.tenant, name="views")
def pay_by_view(request: HttpRequest) -> HttpResponse:
    return pay(request)


urlpatterns = [path("payments", pay), path("views/payments", pay_by_view)]

application = casework.IdempotencyWsgiMiddleware(get_wsgi_application(), store, scope=tenant)
asgi_application = casework.IdempotencyMiddleware(get_asgi_application(), store, scope=tenant)
plain_application = get_wsgi_application()  # for the view that is guarded by itself
