"""``casework worker``: a process that does what is due."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.cli.failures import INTERRUPTED, command, say
from casework.cli.opening import Debug, Store, counted, find_machines, open_store
from casework.errors import Contention, Misuse, OutcomeUnknown, Throttled, Unavailable

if TYPE_CHECKING:
    from casework.app.sync import App, WorkerThread


@command
def worker(
    machines: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:ATTR...",
            help="A machine, a list of machines, or a function that returns them; MODULE alone: all machines in it.",
            show_default=False,
        ),
    ],
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
    trace_max: Annotated[int, typer.Option(min=0, help="Keep so many trace entries of each execution.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every failed attempt as well.")] = False,
    debug: Debug = False,
) -> None:
    """Do what is due: take events through their machines, run tasks, fire timers.

    Logs go to stderr. SIGTERM or Ctrl-C ends it after its running tasks, a second Ctrl-C at once. Start as many as you
    like, on as many hosts: they share the work.

    \b
    casework worker shop:order
    casework worker shop:machines billing --store "dynamodb://?region=eu-west-1" --concurrency 64
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not debug:
        logging.getLogger("botocore").setLevel(logging.WARNING)
    found = list(dict.fromkeys(machine for place in machines for machine in find_machines(place)))
    with contextlib.ExitStack() as stack:
        with _able_to_begin():
            app = stack.enter_context(open_store(store, found, make=True, trace_max=trace_max))
            thread = app.worker(
                concurrency=concurrency, poll_s=poll_s, lease_s=lease_s, heartbeat_s=heartbeat_s, drain_s=drain_s
            )
            _begin(app, thread)
        _stop_on_signals(thread.worker.stop.set, drain_s)
        spare_the_collector()
        names = ", ".join(machine.name for machine in found)
        say(f"worker {os.getpid()} is ready: {names}")
        thread.run()
        steps, tasks = counted(thread.worker.advanced_n, "step"), counted(thread.worker.tasks_n, "task")
        say(f"worker {os.getpid()} ended: {steps}, {tasks}")


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


def _stop_on_signals(stop: Callable[[], Any], drain_s: float) -> None:
    """Let SIGTERM and SIGINT end the worker gracefully; a second SIGINT ends the process at once."""
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        if not asked:
            os.write(2, f"casework: worker {os.getpid()} is leaving; running tasks have {drain_s:g} s\n".encode())
        asked.append(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
