"""Flask: the whole application is guarded, or one view. ``waitress-serve flask_app:app``"""

from flask import Flask, request

import casework

store = casework.MemoryIdempotencyStore()  # casework.DynamoDBIdempotencyStore() in production
performed: list[str] = []

app = Flask(__name__)
app.wsgi_app = casework.IdempotencyWsgiMiddleware(  # type: ignore[method-assign]
    app.wsgi_app, store, scope=lambda request: request.headers.get("x-tenant")
)


@app.post("/payments")
def pay():  # type: ignore[no-untyped-def]
    performed.append(request.get_json()["order"])
    return {"n": len(performed)}, 201


views = Flask("views")


@views.post("/payments")
@casework.idempotent_flask_view(store, scope=lambda request: request.headers.get("x-tenant"), name="views")
def pay_by_view():  # type: ignore[no-untyped-def]
    return pay()
