"""Sites of Flask: each answers ``/<kind of response>``, behind a guard."""

from __future__ import annotations

from typing import Any

from casework import IdempotencyWsgiMiddleware, idempotent_flask_view
from tests.surfaces.effects import perform
from tests.surfaces.sites import FILE, Broken, events, options, parts, seen, store


def flask_answer(kind: str) -> Any:
    from flask import Response, abort, jsonify, redirect, request, send_file

    form = request.mimetype in ("application/x-www-form-urlencoded", "multipart/form-data")
    got = f"amount={request.form['amount']}" if form else seen(request.get_data())
    key = request.headers["Idempotency-Key"]
    n = perform(key)
    if kind == "missing":
        abort(Response(f"none {n} {got}", 404, {"X-Effect": str(n)}))
    if kind == "broken":
        raise Broken(kind)
    response: Any
    if kind in ("small", "background", "unavailable"):
        response = jsonify(n=n, got=got)
        response.status_code = 503 if kind == "unavailable" else 201
    elif kind == "file":
        response = send_file(FILE, as_attachment=True)
    elif kind == "redirect":
        response = redirect(f"/there/{n}", 303)
    elif kind == "nothing":
        response = Response(b"", 204)
    elif kind == "stream":
        response = Response(iter(parts(n, got)), 201, mimetype="text/plain")
    else:
        response = Response(iter(events(n)), 200, mimetype="text/event-stream")
    if kind == "background":
        response.call_on_close(lambda: perform(f"{key}-background"))
    response.headers["X-Effect"] = str(n)
    return response


def flask_app(wrap: Any = None) -> Any:
    from flask import Flask

    app = Flask("site")

    def answer(kind: str) -> Any:
        return flask_answer(kind)

    app.add_url_rule("/<kind>", "answer", wrap(answer) if wrap else answer, methods=["POST"])
    return app


def flask() -> Any:
    return IdempotencyWsgiMiddleware(flask_app(), store(), **options("flask"))


def flask_view() -> Any:
    return flask_app(idempotent_flask_view(store(), **options("flask_view")))
