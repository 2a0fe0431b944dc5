"""A worker process for the tests: ``python worker_process.py STORE LEDGER``. Its tasks write to the ledger."""

from __future__ import annotations

import os
import signal
import sys
import threading

import casework

MACHINE = """
id: job
initial: idle
context: {ran: 0}
states:
  idle: {on: {Begin: working}, after: {"10ms": working}}
  working:
    invoke: {id: work, src: work, input: {n: {expr: "context.ran"}}, onDone: {target: done, actions: [count]}}
  done: {type: final, output: {expr: "context.ran"}}
"""


def make_machine(ledger: str) -> casework.Machine:
    machine = casework.Machine.from_yaml(MACHINE)

    @machine.task
    def work(task: casework.TaskContext, *, n: int) -> dict[str, int]:
        line = f"{task.idempotency_key} {task.attempt} {os.getpid()}\n"
        with open(ledger, "a") as file:
            file.write(line)
        return {"ran": n + 1}

    @machine.action
    def count(context: dict, event: dict) -> dict:
        return {"ran": context["ran"] + event["ran"]}

    return machine


def main() -> None:
    store, ledger = sys.argv[1:]
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with (
        casework.open(store, machines=[make_machine(ledger)], trace_max=50) as app,
        app.worker(poll_s=0.05, lease_s=1.0, heartbeat_s=0.5, concurrency=2, drain_s=5.0),
    ):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        stopped.wait()
    sys.stdout.write("stopped\n")


if __name__ == "__main__":
    main()
