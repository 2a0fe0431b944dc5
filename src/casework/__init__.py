"""Once. In order. To the end: durable guarantees on the database you already have.

This module is the public face: everything that an application needs is an attribute of ``casework``. What is heavy is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casework.app.aio import AsyncApp
    from casework.app.aio import open_app_async as open_async
    from casework.app.arguments import OpenArguments
    from casework.app.current import current_claim
    from casework.app.execution_store import (
        AsyncDynamoDBStore,
        AsyncExecutionStore,
        DynamoDBStore,
        ExecutionStore,
        SqliteStore,
    )
    from casework.app.idempotency_store import (
        AsyncDynamoDBIdempotencyStore,
        AsyncIdempotencyStore,
        DynamoDBIdempotencyStore,
        IdempotencyStore,
        MemoryIdempotencyStore,
        SqliteIdempotencyStore,
    )
    from casework.app.streams import StreamStore
    from casework.app.streams_aio import AsyncStreamStore
    from casework.app.sync import App
    from casework.app.sync import open_app as open
    from casework.errors import (
        AlreadyProcessed,
        AppendContention,
        AppendStopped,
        AppendTimeout,
        AppendUnknown,
        CaseworkError,
        ConditionFailed,
        Contention,
        CorruptItem,
        CursorAhead,
        CursorTooOld,
        ExecutionExists,
        InProgress,
        InvalidMachine,
        ItemTooLarge,
        LeaseLost,
        LogChanged,
        MissingExtra,
        MissingTable,
        Misuse,
        NewerFormat,
        NoSuchExecution,
        NotJson,
        OpIdReused,
        OutcomeUnknown,
        PayloadMismatch,
        RememberedError,
        ResultLost,
        ResultNotKept,
        StepLimit,
        StoreConflict,
        StoreError,
        StreamDamaged,
        StreamFull,
        TaskFailed,
        TaskNotClaimed,
        Throttled,
        TransactionRefused,
        Unavailable,
        UnexpectedSeq,
        UnknownEvent,
        UnknownMachine,
        WaitTimeout,
        WrongCursor,
    )
    from casework.executions.deliver import Execution
    from casework.executions.run_task import LATER, TaskContext
    from casework.executions.store_items import OutboxEntry, SpawnEntry, StoredExecution, TimerOp
    from casework.idempotency.guarding import Claim
    from casework.idempotency.record import ClaimResult, Record
    from casework.kernel.conditions import (
        absent,
        all_of,
        any_of,
        at_least,
        at_most,
        differs,
        equals,
        greater_than,
        less_than,
        not_,
        present,
    )
    from casework.kernel.items import Index, Table
    from casework.kernel.retry import Pauses
    from casework.simulation.invariants import invariant
    from casework.simulation.users import SimulationReport, simulate
    from casework.statechart import Machine
    from casework.streams.log import Appended, Op, StreamOptions
    from casework.surfaces.aiohttp import idempotent_aiohttp_app
    from casework.surfaces.asgi import IdempotencyMiddleware
    from casework.surfaces.consumer import SqsConsumer
    from casework.surfaces.decorator import idempotent
    from casework.surfaces.django import idempotent_django_view
    from casework.surfaces.flask import idempotent_flask_view
    from casework.surfaces.http import HttpRequest
    from casework.surfaces.messages import MessageHandler, SqsBatch, message_handler, sqs_batch
    from casework.surfaces.once import once
    from casework.surfaces.otel import OpenTelemetryHook
    from casework.surfaces.routes import idempotent_route
    from casework.surfaces.wsgi import IdempotencyWsgiMiddleware

__version__ = "0.1.0"

_WHERE = {
    "idempotent_aiohttp_app": "casework.surfaces.aiohttp:idempotent_aiohttp_app",
    "idempotent_flask_view": "casework.surfaces.flask:idempotent_flask_view",
    "idempotent_django_view": "casework.surfaces.django:idempotent_django_view",
    "OpenTelemetryHook": "casework.surfaces.otel:OpenTelemetryHook",
    "Claim": "casework.idempotency.guarding:Claim",
    "Index": "casework.kernel.items:Index",
    "Table": "casework.kernel.items:Table",
    "absent": "casework.kernel.conditions:absent",
    "present": "casework.kernel.conditions:present",
    "equals": "casework.kernel.conditions:equals",
    "differs": "casework.kernel.conditions:differs",
    "less_than": "casework.kernel.conditions:less_than",
    "at_most": "casework.kernel.conditions:at_most",
    "greater_than": "casework.kernel.conditions:greater_than",
    "at_least": "casework.kernel.conditions:at_least",
    "all_of": "casework.kernel.conditions:all_of",
    "any_of": "casework.kernel.conditions:any_of",
    "not_": "casework.kernel.conditions:not_",
    "SqsConsumer": "casework.surfaces.consumer:SqsConsumer",
    "SqsBatch": "casework.surfaces.messages:SqsBatch",
    "MessageHandler": "casework.surfaces.messages:MessageHandler",
    "sqs_batch": "casework.surfaces.messages:sqs_batch",
    "message_handler": "casework.surfaces.messages:message_handler",
    "HttpRequest": "casework.surfaces.http:HttpRequest",
    "IdempotencyWsgiMiddleware": "casework.surfaces.wsgi:IdempotencyWsgiMiddleware",
    "idempotent_route": "casework.surfaces.routes:idempotent_route",
    "IdempotencyMiddleware": "casework.surfaces.asgi:IdempotencyMiddleware",
    "current_claim": "casework.app.current:current_claim",
    "once": "casework.surfaces.once:once",
    "idempotent": "casework.surfaces.decorator:idempotent",
    "AsyncDynamoDBIdempotencyStore": "casework.app.idempotency_store:AsyncDynamoDBIdempotencyStore",
    "AsyncIdempotencyStore": "casework.app.idempotency_store:AsyncIdempotencyStore",
    "DynamoDBIdempotencyStore": "casework.app.idempotency_store:DynamoDBIdempotencyStore",
    "IdempotencyStore": "casework.app.idempotency_store:IdempotencyStore",
    "MemoryIdempotencyStore": "casework.app.idempotency_store:MemoryIdempotencyStore",
    "SqliteIdempotencyStore": "casework.app.idempotency_store:SqliteIdempotencyStore",
    "ClaimResult": "casework.idempotency.record:ClaimResult",
    "Record": "casework.idempotency.record:Record",
    "App": "casework.app.sync:App",
    "Appended": "casework.streams.log:Appended",
    "AsyncApp": "casework.app.aio:AsyncApp",
    "AsyncDynamoDBStore": "casework.app.execution_store:AsyncDynamoDBStore",
    "AsyncExecutionStore": "casework.app.execution_store:AsyncExecutionStore",
    "AsyncStreamStore": "casework.app.streams_aio:AsyncStreamStore",
    "DynamoDBStore": "casework.app.execution_store:DynamoDBStore",
    "ExecutionStore": "casework.app.execution_store:ExecutionStore",
    "SimulationReport": "casework.simulation.users:SimulationReport",
    "OutboxEntry": "casework.executions.store_items:OutboxEntry",
    "SpawnEntry": "casework.executions.store_items:SpawnEntry",
    "SqliteStore": "casework.app.execution_store:SqliteStore",
    "StoredExecution": "casework.executions.store_items:StoredExecution",
    "TimerOp": "casework.executions.store_items:TimerOp",
    "Execution": "casework.executions.deliver:Execution",
    "LATER": "casework.executions.run_task:LATER",
    "Machine": "casework.statechart:Machine",
    "OpenArguments": "casework.app.arguments:OpenArguments",
    "Op": "casework.streams.log:Op",
    "Pauses": "casework.kernel.retry:Pauses",
    "StreamOptions": "casework.streams.log:StreamOptions",
    "StreamStore": "casework.app.streams:StreamStore",
    "TaskContext": "casework.executions.run_task:TaskContext",
    "invariant": "casework.simulation.invariants:invariant",
    "simulate": "casework.simulation.users:simulate",
    "open": "casework.app.sync:open_app",
    "open_async": "casework.app.aio:open_app_async",
} | {
    name: f"casework.errors:{name}"
    for name in (
        "AlreadyProcessed", "AppendContention", "AppendStopped", "AppendTimeout", "AppendUnknown", "CaseworkError",
        "ConditionFailed", "Contention", "CorruptItem", "CursorAhead", "CursorTooOld", "ExecutionExists",
        "InProgress", "InvalidMachine", "ItemTooLarge", "LeaseLost", "LogChanged", "MissingExtra", "MissingTable",
        "Misuse", "NewerFormat", "NoSuchExecution", "NotJson", "OpIdReused", "OutcomeUnknown", "PayloadMismatch",
        "RememberedError", "ResultLost", "ResultNotKept", "StepLimit", "StoreConflict", "StoreError",
        "StreamDamaged", "StreamFull", "TaskFailed", "TaskNotClaimed", "Throttled", "TransactionRefused",
        "Unavailable", "UnexpectedSeq", "UnknownEvent", "UnknownMachine", "WaitTimeout", "WrongCursor",
    )
}  # fmt: skip


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = _WHERE[name].partition(":")
    except KeyError:
        raise AttributeError(f"module 'casework' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_WHERE, "__version__"])


__all__ = [
    "LATER",
    "AlreadyProcessed",
    "App",
    "AppendContention",
    "AppendStopped",
    "AppendTimeout",
    "AppendUnknown",
    "Appended",
    "AsyncApp",
    "AsyncDynamoDBIdempotencyStore",
    "AsyncDynamoDBStore",
    "AsyncExecutionStore",
    "AsyncIdempotencyStore",
    "AsyncStreamStore",
    "CaseworkError",
    "Claim",
    "ClaimResult",
    "ConditionFailed",
    "Contention",
    "CorruptItem",
    "CursorAhead",
    "CursorTooOld",
    "DynamoDBIdempotencyStore",
    "DynamoDBStore",
    "Execution",
    "ExecutionExists",
    "ExecutionStore",
    "HttpRequest",
    "IdempotencyMiddleware",
    "IdempotencyStore",
    "IdempotencyWsgiMiddleware",
    "InProgress",
    "Index",
    "InvalidMachine",
    "ItemTooLarge",
    "LeaseLost",
    "LogChanged",
    "Machine",
    "MemoryIdempotencyStore",
    "MessageHandler",
    "MissingExtra",
    "MissingTable",
    "Misuse",
    "NewerFormat",
    "NoSuchExecution",
    "NotJson",
    "Op",
    "OpIdReused",
    "OpenArguments",
    "OpenTelemetryHook",
    "OutboxEntry",
    "OutcomeUnknown",
    "Pauses",
    "PayloadMismatch",
    "Record",
    "RememberedError",
    "ResultLost",
    "ResultNotKept",
    "SimulationReport",
    "SpawnEntry",
    "SqliteIdempotencyStore",
    "SqliteStore",
    "SqsBatch",
    "SqsConsumer",
    "StepLimit",
    "StoreConflict",
    "StoreError",
    "StoredExecution",
    "StreamDamaged",
    "StreamFull",
    "StreamOptions",
    "StreamStore",
    "Table",
    "TaskContext",
    "TaskFailed",
    "TaskNotClaimed",
    "Throttled",
    "TimerOp",
    "TransactionRefused",
    "Unavailable",
    "UnexpectedSeq",
    "UnknownEvent",
    "UnknownMachine",
    "WaitTimeout",
    "WrongCursor",
    "absent",
    "all_of",
    "any_of",
    "at_least",
    "at_most",
    "current_claim",
    "differs",
    "equals",
    "greater_than",
    "idempotent",
    "idempotent_aiohttp_app",
    "idempotent_django_view",
    "idempotent_flask_view",
    "idempotent_route",
    "invariant",
    "less_than",
    "message_handler",
    "not_",
    "once",
    "open",
    "open_async",
    "present",
    "simulate",
    "sqs_batch",
]
