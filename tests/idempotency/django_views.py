"""Views for ``test_views.py``: one of each way to write one, guarded."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path
from django.views import View
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.exceptions import APIException, AuthenticationFailed, NotFound
from rest_framework.exceptions import PermissionDenied as RestPermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from casework import MemoryIdempotencyStore, idempotent_django_view

calls: list[str] = []
store = MemoryIdempotencyStore()
ALICE = {"Authorization": "Bearer alice"}


def guarded(name: str, scope: Any = None) -> Any:
    return idempotent_django_view(store, scope=scope, name=name)


def do(what: str) -> int:
    calls.append(what)
    if what == "broken":
        raise ZeroDivisionError
    return len(calls)


def answer(request: HttpRequest) -> JsonResponse:
    what = json.loads(request.body)["what"]
    n = do(what)
    if what == "missing":
        raise Http404("nothing here")
    if what == "forbidden":
        raise PermissionDenied
    return JsonResponse({"n": n}, status=201)


@guarded("function")
def function(request: HttpRequest) -> Any:
    return answer(request)


class Method(View):
    @guarded("method")
    def post(self, request: HttpRequest) -> Any:
        return answer(request)


@guarded("none")
def none(request: HttpRequest) -> Any:
    do("none")
    return {"n": 1}  # as a view of Django Ninja below its decorator


@guarded("async-function")
async def async_function(request: HttpRequest) -> Any:
    return answer(request)


class AsyncClass(View):
    @guarded("async-class")
    async def post(self, request: HttpRequest) -> Any:
        return answer(request)


# --- Django REST framework --------------------------------------------------------------------------------------------


class Named:
    is_authenticated = True
    username = "alice"


class ByName(BaseAuthentication):
    def authenticate(self, request: Request) -> Any:
        if request.headers.get("Authorization") != "Bearer alice":
            raise AuthenticationFailed
        return Named(), None


class Declined(APIException):
    status_code = 402


def rest_answer(request: Request) -> Response:
    what = request.data["what"]
    n = do(what)
    if what == "missing":
        raise NotFound
    if what == "forbidden":
        raise RestPermissionDenied
    if what == "declined":
        raise Declined("card")
    return Response({"n": n, "user": request.user.username}, status=201)


def user(request: Any) -> str:
    return str(request.native.user.username)


@api_view(["POST"])
@authentication_classes([ByName])
@permission_classes([])
@guarded("rest-function", user)
def rest_function(request: Request) -> Response:
    return rest_answer(request)


class RestMethod(APIView):
    authentication_classes = (ByName,)
    permission_classes = ()

    @guarded("rest-method", user)
    def post(self, request: Request) -> Response:
        return rest_answer(request)


@guarded("rest-above")
@api_view(["POST"])
@authentication_classes([ByName])
@permission_classes([])
def rest_above(request: Request) -> Response:
    return rest_answer(request)


urlpatterns = [
    path("function/", function),
    path("method/", Method.as_view()),
    path("none/", none),
    path("async-function/", async_function),
    path("async-class/", AsyncClass.as_view()),
    path("rest-function/", rest_function),
    path("rest-method/", RestMethod.as_view()),
    path("rest-above/", rest_above),
]
