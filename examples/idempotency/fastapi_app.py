"""FastAPI: one router whose routes are guarded, beside one that is not. ``uvicorn fastapi_app:app``"""

from fastapi import APIRouter, BackgroundTasks, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

import casework

store = casework.MemoryIdempotencyStore()  # casework.AsyncDynamoDBIdempotencyStore() in production
performed: list[str] = []


class Payment(BaseModel):
    order: str
    amount: int


def tenant(request: casework.HttpRequest) -> str | None:
    return request.headers.get("x-tenant")


guarded = APIRouter(route_class=casework.idempotent_route(APIRoute, store, scope=tenant, required=True))


@guarded.post("/payments", status_code=201)
async def pay(payment: Payment, background: BackgroundTasks) -> dict[str, int]:
    performed.append(payment.order)
    background.add_task(performed.append, "receipt")
    return {"amount": payment.amount, "n": len(performed)}


app = FastAPI()
app.include_router(guarded)


@app.post("/search")
async def search() -> dict[str, int]:
    performed.append("search")
    return {"n": len(performed)}
