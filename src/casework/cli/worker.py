"""``casework worker``: a process that does what is due."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from casework.cli.application import FromApp
from casework.cli.failures import INTERRUPTED, UNRETURNED, command, say
from casework.cli.opening import Debug, Store, counted, find_machines, open_store
from casework.errors import Contention, Misuse, OutcomeUnknown, Throttled, Unavailable

if TYPE_CHECKING:
    from casework.app.sync import App
    from casework.app.workers import WorkerThread

LAST_S = 5.0
"""Threads that functions of the user's began have so long to end, once the worker has ended."""

OVERDUE_S = 20.0
"""So long after the time to drain the process ends, whatever holds it up: a store that hangs, for one."""


@command
def worker(
    machines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE:ATTR...",
            help="A machine, a list of machines, or a function that returns them; MODULE alone: all machines in it. "
            "Those of --app are added.",
            show_default=False,
        ),
    ] = None,
    source: FromApp = None,
    store: Store = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at once.")] = 16,
    poll_s: Annotated[float, typer.Option(min=0.001, help="Look for work at least so often.")] = 1.0,
    lease_s: Annotated[
        float, typer.Option(min=0.1, help="A crashed worker's task is taken over after so long.")
    ] = 30.0,
    heartbeat_s: Annotated[
        float, typer.Option(min=0.05, help="How often workers tell each other that they are there; three are missed.")
    ] = 5.0,
    drain_s: Annotated[
        float, typer.Option(min=0, help="On SIGTERM or SIGINT, wait so long for running tasks, then give them back.")
    ] = 30.0,
    trace_max: Annotated[
        int | None,
        typer.Option(
            min=0, show_default=False, help="Keep so many trace entries of each execution [default: the store's]"
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every failed attempt as well.")] = False,
    debug: Debug = False,
) -> None:
    """Do what is due: take events through their machines, run tasks, fire timers.

    Logs go to stderr. SIGTERM or Ctrl-C ends it after its running tasks, a second Ctrl-C at once. Start as many as you
    like, on as many hosts: they share the work.

    \b
    casework worker shop:order
    casework worker --app shop:application
    casework worker shop:machines billing --store "dynamodb://?region=eu-west-1" --concurrency 64
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not debug:
        logging.getLogger("botocore").setLevel(logging.WARNING)
    if not machines and not source:
        raise Misuse("name machines, such as shop:order, or an application: --app shop:application")
    found = list(dict.fromkeys(machine for place in machines or () for machine in find_machines(place)))
    with contextlib.ExitStack() as stack:
        with _able_to_begin():
            app = stack.enter_context(open_store(store, source, found, make=True, trace_max=trace_max))
            thread = app.worker(
                concurrency=concurrency, poll_s=poll_s, lease_s=lease_s, heartbeat_s=heartbeat_s, drain_s=drain_s
            )
            _begin(app, thread)
        _stop_on_signals(thread.worker.stop.set, drain_s)
        spare_the_collector()
        names = ", ".join(app.core.rt.machines)
        say(f"worker {os.getpid()} is ready: {names}")
        thread.run()
        steps, tasks = counted(thread.worker.advanced_n, "step"), counted(thread.worker.tasks_n, "task")
        say(f"worker {os.getpid()} ended: {steps}, {tasks}")
        _leave_no_thread(thread)


def _leave_no_thread(thread: WorkerThread) -> None:
    """End the process although a function of the user's, or a thread that one began, never comes back."""
    status = thread.worker.status()
    if status.stuck or status.executions_held_up:
        names = ", ".join(sorted({*status.stuck, *status.executions_held_up}))
        say(f"worker {os.getpid()} is gone although these have not returned: {names}")
        _go(UNRETURNED)
    others = [each for each in threading.enumerate() if not each.daemon and each is not threading.current_thread()]
    if others:
        threading.Thread(target=_go_later, args=(others,), name="casework-last", daemon=True).start()


def _go_later(others: list[threading.Thread]) -> None:
    """What the user's functions began may end by itself; Python would wait for it for ever."""
    deadline_s = time.monotonic() + LAST_S
    for each in others:
        each.join(max(0.0, deadline_s - time.monotonic()))
    if any(each.is_alive() for each in others):
        names = ", ".join(sorted(each.name for each in others if each.is_alive()))
        say(f"worker {os.getpid()} is gone although these threads still run: {names}")
        _go(UNRETURNED)


def _go(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def _able_to_begin() -> Iterator[None]:
    """Misuse where the store does not answer, or takes no writes: then there is nothing that a worker could do."""
    try:
        yield
    except Unavailable as error:
        raise Misuse(f"the worker cannot begin: {error}") from error


def _begin(app: App, thread: WorkerThread) -> None:
    """Tell the other workers that this one is there, which shows whether the store takes writes."""
    from casework.backends.drive import run
    from casework.executions.membership import beat

    with contextlib.suppress(Contention, OutcomeUnknown, Throttled):  # they pass; the worker beats again
        run(beat(thread.worker.membership, thread.worker.options.heartbeat_s), app.backend)


def spare_the_collector() -> None:
    """Let Python's cycle collector run less often; for a process that is nothing but a worker.

    A group of executions in lockstep makes thousands of short-lived objects, hardly any of them in a cycle. With the
    default thresholds the collector looks at all of them several times a group, a tenth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _go_when_overdue(drain_s: float) -> None:
    time.sleep(drain_s + OVERDUE_S)
    say(f"worker {os.getpid()} is gone although it could not end in order, {OVERDUE_S:g} s after the time to drain")
    _go(UNRETURNED)


def _stop_on_signals(stop: Callable[[], Any], drain_s: float) -> None:
    """Let SIGTERM and SIGINT end the worker gracefully; a second SIGINT ends the process at once."""
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        is_first = not asked
        asked.append(number)  # before the word of it: whoever reads that may send the next signal at once
        if is_first:
            os.write(2, f"casework: worker {os.getpid()} is leaving; running tasks have {drain_s:g} s\n".encode())
            threading.Thread(target=_go_when_overdue, args=(drain_s,), name="casework-overdue", daemon=True).start()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
