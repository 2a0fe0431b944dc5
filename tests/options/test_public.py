"""The tables of this folder have a row for each option of everything that is public."""

from __future__ import annotations

import pytest

from tests.options import public
from tests.options.app_rows import APP
from tests.options.guarded_rows import GUARDED
from tests.options.http_rows import HTTP
from tests.options.key_rows import KEY_ROWS
from tests.options.public import SAME, everything
from tests.options.stream_rows import STREAM_ROWS
from tests.options.table import Rows
from tests.options.table_rows import CONDITIONS, HANDLED, TABLES, TRANSACTIONS

ALL: Rows = {**APP, **STREAM_ROWS, **KEY_ROWS, **GUARDED, **HTTP, **TABLES, **CONDITIONS, **TRANSACTIONS, **HANDLED}

CHANGE_NOTHING = {
    "Op(seq)": "what is read has it; an append gives it",
    "Op(at_us)": "as seq",
}
"""Options that are none, and why."""


PENDING = {
    "AsyncDynamoDBIdempotencyStore",
    "AsyncDynamoDBStore",
    "AsyncDynamoDBStore.create",
    "AsyncExecutionStore",
    "AsyncIdempotencyStore",
    "AsyncStreamStore",
    "BufferedWriter.put",
    "ConsumerOptions",
    "DynamoDBIdempotencyStore",
    "DynamoDBStore",
    "DynamoDBStore.create",
    "Event",
    "Execution.is_in",
    "ExecutionStore",
    "History.calls",
    "History.visited",
    "IdempotencyStore",
    "Machine.accepts",
    "Machine.action",
    "Machine.all_from_scxml",
    "Machine.from_dict",
    "Machine.from_scxml",
    "Machine.from_yaml",
    "Machine.guard",
    "Machine.load",
    "Machine.task",
    "MemoryIdempotencyStore",
    "Op",
    "OpPage.mark_at",
    "RelaySettings",
    "Replica",
    "Replica.append",
    "Replica.fold",
    "Replica.pull",
    "Replica.read",
    "Replica.rebase",
    "Replica.tail",
    "Replica.unpark",
    "Replica.view",
    "RetryPolicy",
    "SqliteIdempotencyStore",
    "SqliteStore",
    "StoredExecution",
    "StreamOptions",
    "StreamStore",
    "TaskContext.heartbeat",
    "TimerOp",
    "VirtualApp",
    "VirtualApp.advance",
    "VirtualApp.calls",
    "VirtualApp.fake",
    "Worker.when_ended",
    "WorkerOptions",
    "WorkerThread.wait",
    "app.raise_buckets",
    "cloudformation",
    "done_invoke",
    "error_invoke",
    "executions.ack_outbox",
    "executions.ack_spawn",
    "executions.append_trace",
    "executions.commit",
    "executions.delete_timer",
    "executions.due_timers",
    "executions.is_processed",
    "executions.list_executions",
    "executions.load",
    "executions.load_for_event",
    "executions.purge",
    "executions.raise_buckets",
    "executions.read_trace",
    "executions.save",
    "iam_policy",
    "invariant",
    "keys.run",
    "keys.run_on_loop",
    "open",
    "open_async",
    "rearm",
    "simulate",
    "start",
    "step",
    "streams.consumer",
    "timer_event",
}  # fmt: skip
"""Places whose rows are still to be written."""


def options_in(rows: Rows) -> set[str]:
    """The options that have a row; ``once, async`` is one of ``once``."""
    return {f"{place.split(',')[0]}({option})" for place, options in rows.items() for option in options}


def test_each_public_option_has_a_row() -> None:
    wanted = {
        f"{place}({option})"
        for place, options in everything().items()
        if place not in SAME and place not in PENDING
        for option in options
    }
    missing = wanted - options_in(ALL) - set(CHANGE_NOTHING)
    assert sorted(missing) == []
    assert sorted(options_in(ALL) - wanted) == [], "rows of what is not public"
    assert not set(CHANGE_NOTHING) & options_in(ALL)


@pytest.mark.parametrize("place", SAME)
def test_options_under_two_names_are_the_same(place: str) -> None:
    assert set(everything()[place]) <= set(everything()[SAME[place]])


def test_what_is_handed_out_or_named_otherwise_is_public() -> None:
    shown = {each.path for each in (*public.documented(), *public.exported())}
    names = shown | {path.rpartition(".")[2] for path in shown}
    assert {*public.HANDED_OUT, *public.OF_THE_USER, *public.OWNERS} <= names
    assert set(SAME) <= set(everything())
