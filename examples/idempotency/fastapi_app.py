"""FastAPI: one router whose routes are guarded, beside one that is not. ``uvicorn fastapi_app:app``"""

import hashlib
import hmac
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

import casework

store = casework.MemoryIdempotencyStore()  # casework.AsyncDynamoDBIdempotencyStore() in production
performed: list[str] = []

TOKENS = {hashlib.sha256(f"token-of-{tenant}".encode()).digest(): tenant for tenant in ("a", "b")}


def authenticated(credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    given = hashlib.sha256(credentials.credentials.encode()).digest()
    for known, tenant in TOKENS.items():
        if hmac.compare_digest(known, given):
            return tenant
    raise HTTPException(401)


class Payment(BaseModel):
    order: str
    amount: int


# The guard looks a key up after the dependencies have answered, and finds there who the caller is.
guarded = APIRouter(
    route_class=casework.idempotent_route(
        APIRoute, store, scope=lambda request: request.arguments["tenant"], required=True
    )
)


@guarded.post("/payments", status_code=201)
async def pay(
    payment: Payment, tenant: Annotated[str, Depends(authenticated)], background: BackgroundTasks
) -> dict[str, int]:
    performed.append(payment.order)
    background.add_task(performed.append, "receipt")
    return {"amount": payment.amount, "n": len(performed)}


app = FastAPI()
app.include_router(guarded)


@app.post("/search")
async def search() -> dict[str, int]:
    performed.append("search")
    return {"n": len(performed)}
