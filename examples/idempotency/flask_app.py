"""Flask: the whole application is guarded, or one view. ``waitress-serve flask_app:app``"""

import functools
import hashlib
import hmac

from flask import Flask, abort, g, request

import casework

store = casework.MemoryIdempotencyStore()  # casework.DynamoDBIdempotencyStore() in production
performed: list[str] = []

TOKENS = {hashlib.sha256(f"token-of-{tenant}".encode()).digest(): tenant for tenant in ("a", "b")}


def tenant_of(authorization: str) -> str | None:
    """Whose token it is; None for an unknown one."""
    given = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).digest()
    return next((tenant for known, tenant in TOKENS.items() if hmac.compare_digest(known, given)), None)


def authenticated(view):  # type: ignore[no-untyped-def]
    @functools.wraps(view)
    def checked():  # type: ignore[no-untyped-def]
        g.tenant = tenant_of(request.headers.get("Authorization", ""))
        return view() if g.tenant else abort(401)

    return checked


app = Flask(__name__)
app.wsgi_app = casework.IdempotencyWsgiMiddleware(  # type: ignore[method-assign]
    app.wsgi_app,
    store,
    # The guard stands outside of Flask here, so it looks at the token itself; without a tenant it refuses.
    scope=lambda request: tenant_of(request.headers.get("authorization", "")),
)


@app.post("/payments")
@authenticated
def pay():  # type: ignore[no-untyped-def]
    performed.append(request.get_json()["order"])
    return {"n": len(performed)}, 201


views = Flask("views")


@views.post("/payments")
@authenticated  # first who it is, then what was stored
@casework.idempotent_flask_view(store, scope=lambda request: g.tenant, name="views")
def pay_by_view():  # type: ignore[no-untyped-def]
    return pay()
