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
    from casework.app.execution_store import (
        AsyncDynamoDBStore,
        AsyncExecutionStore,
        DynamoDBStore,
        ExecutionStore,
        SqliteStore,
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
        InvalidMachine,
        ItemTooLarge,
        LeaseLost,
        MissingExtra,
        MissingTable,
        Misuse,
        NewerFormat,
        NoSuchExecution,
        NotJson,
        OpIdReused,
        OutcomeUnknown,
        StepLimit,
        StoreConflict,
        StoreError,
        StreamDamaged,
        StreamFull,
        TaskFailed,
        TaskNotClaimed,
        Throttled,
        Unavailable,
        UnknownEvent,
        UnknownMachine,
        WaitTimeout,
    )
    from casework.executions.deliver import Execution
    from casework.executions.run_task import LATER, TaskContext
    from casework.executions.runtime import Publish
    from casework.executions.store_items import OutboxEntry, SpawnEntry, StoredExecution, TimerOp
    from casework.statechart import Machine
    from casework.streams.log import Appended, Op, StreamOptions

__version__ = "0.1.0"

_WHERE = {
    "App": "casework.app.sync:App",
    "Appended": "casework.streams.log:Appended",
    "AsyncApp": "casework.app.aio:AsyncApp",
    "AsyncDynamoDBStore": "casework.app.execution_store:AsyncDynamoDBStore",
    "AsyncExecutionStore": "casework.app.execution_store:AsyncExecutionStore",
    "AsyncStreamStore": "casework.app.streams_aio:AsyncStreamStore",
    "DynamoDBStore": "casework.app.execution_store:DynamoDBStore",
    "ExecutionStore": "casework.app.execution_store:ExecutionStore",
    "OutboxEntry": "casework.executions.store_items:OutboxEntry",
    "SpawnEntry": "casework.executions.store_items:SpawnEntry",
    "SqliteStore": "casework.app.execution_store:SqliteStore",
    "StoredExecution": "casework.executions.store_items:StoredExecution",
    "TimerOp": "casework.executions.store_items:TimerOp",
    "Execution": "casework.executions.deliver:Execution",
    "LATER": "casework.executions.run_task:LATER",
    "Machine": "casework.statechart:Machine",
    "Publish": "casework.executions.runtime:Publish",
    "Op": "casework.streams.log:Op",
    "StreamOptions": "casework.streams.log:StreamOptions",
    "StreamStore": "casework.app.streams:StreamStore",
    "TaskContext": "casework.executions.run_task:TaskContext",
    "open": "casework.app.sync:open_app",
    "open_async": "casework.app.aio:open_app_async",
} | {
    name: f"casework.errors:{name}"
    for name in (
        "AlreadyProcessed", "AppendContention", "AppendStopped", "AppendTimeout", "AppendUnknown", "CaseworkError",
        "ConditionFailed", "Contention", "CorruptItem", "CursorAhead", "CursorTooOld", "ExecutionExists",
        "InvalidMachine", "ItemTooLarge", "LeaseLost", "MissingExtra", "MissingTable", "Misuse", "NewerFormat",
        "NoSuchExecution", "NotJson", "OpIdReused", "OutcomeUnknown", "StepLimit", "StoreConflict", "StoreError",
        "StreamDamaged", "StreamFull", "TaskFailed", "TaskNotClaimed", "Throttled", "Unavailable",
        "UnknownEvent", "UnknownMachine", "WaitTimeout",
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
    "AsyncDynamoDBStore",
    "AsyncExecutionStore",
    "AsyncStreamStore",
    "CaseworkError",
    "ConditionFailed",
    "Contention",
    "CorruptItem",
    "CursorAhead",
    "CursorTooOld",
    "DynamoDBStore",
    "Execution",
    "ExecutionExists",
    "ExecutionStore",
    "InvalidMachine",
    "ItemTooLarge",
    "LeaseLost",
    "Machine",
    "MissingExtra",
    "MissingTable",
    "Misuse",
    "NewerFormat",
    "NoSuchExecution",
    "NotJson",
    "Op",
    "OpIdReused",
    "OutboxEntry",
    "OutcomeUnknown",
    "Publish",
    "SpawnEntry",
    "SqliteStore",
    "StepLimit",
    "StoreConflict",
    "StoreError",
    "StoredExecution",
    "StreamDamaged",
    "StreamFull",
    "StreamOptions",
    "StreamStore",
    "TaskContext",
    "TaskFailed",
    "TaskNotClaimed",
    "Throttled",
    "TimerOp",
    "Unavailable",
    "UnknownEvent",
    "UnknownMachine",
    "WaitTimeout",
    "open",
    "open_async",
]
