"""A shared task list that works offline: ``python examples/tasks.py FILE COMMAND``.

Start a relay in one terminal and make a token:

    casework relay --store sqlite:///tasks.db
    export CASEWORK_RELAY_TOKEN=$(casework token create 'tasks=read,append' --store sqlite:///tasks.db)

Then, in two other terminals, each with a file of its own:

    python examples/tasks.py ann.replica add "buy milk"
    python examples/tasks.py ben.replica add "call Eve"
    python examples/tasks.py ann.replica sync
    python examples/tasks.py ben.replica sync
    python examples/tasks.py ann.replica done 1

Stop the relay and go on: everything but ``sync`` works. Both see the same list once they have synced.
"""

from __future__ import annotations

import json
import os
import sys

from casework import Op
from casework.errors import CaseworkError
from casework.replica import Replica

Tasks = dict[str, dict[str, object]]


def apply(tasks: Tasks, op: Op) -> Tasks:
    """The list after one operation. Every replica folds the same operations in the same order to the same list."""
    change = json.loads(op.data)
    if change["type"] == "added":
        return {**tasks, op.id: {"text": change["text"], "done": False}}
    if change["type"] == "done" and change["task"] in tasks:
        return {**tasks, change["task"]: {**tasks[change["task"]], "done": True}}
    return tasks


def show(replica: Replica) -> None:
    """Print the list: what the relay has, and on top of it what is only here yet."""
    shared = replica.fold("tasks", apply, {})
    for number, (id, task) in enumerate(replica.view("tasks", apply, {}).items(), 1):
        note = "" if shared.get(id) == task else "   (not synced)"
        print(f"{number}. [{'x' if task['done'] else ' '}] {task['text']}{note}")


def main(arguments: list[str]) -> int:
    """Run one command on one file."""
    if len(arguments) < 2:
        print(__doc__)
        return 2
    file, command, *rest = arguments
    relay = os.environ.get("TASKS_RELAY", "http://127.0.0.1:8420")
    with Replica(file, stream="tasks", relay=relay) as replica:
        if command == "add":
            replica.append(json.dumps({"type": "added", "text": " ".join(rest)}).encode())
        elif command == "done":
            id = list(replica.view("tasks", apply, {}))[int(rest[0]) - 1]
            replica.append(json.dumps({"type": "done", "task": id}).encode())
        elif command == "sync":
            try:
                replica.sync()
            except CaseworkError as error:
                print(f"not synced: {error}")
        elif command != "list":
            print(__doc__)
            return 2
        show(replica)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
