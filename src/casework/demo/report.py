"""The end of the demo: the proof, the tasks, one order's timeline and its diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from casework.demo.ledger import BEGAN, EFFECT, ENDED, FAILED, Entry
from casework.demo.orders import Order
from casework.demo.proof import Kill, Proof
from casework.statechart.outline import outline

if TYPE_CHECKING:
    from rich.console import Console

MOST_PROBLEMS = 5


def print_proof(console: Console, proof: Proof) -> None:
    """The checks, and the task functions with their keys and runs."""
    heading(console, "The proof", "what the database says, held against what the ledger says")
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    for check in proof.checks:
        mark = Text("✓", style="bold green") if check.ok else Text("✗", style="bold red")
        table.add_row(mark, Text(check.name, style="" if check.ok else "bold red"), Text(check.detail, style="dim"))
        for problem in check.problems[:MOST_PROBLEMS]:
            table.add_row("", Text(f"  {problem}", style="red"), "")
        if len(check.problems) > MOST_PROBLEMS:
            table.add_row("", Text(f"  and {len(check.problems) - MOST_PROBLEMS} more", style="red"), "")
    console.print(table)
    heading(console, "The tasks", "each key is one thing to do; the outside does it once, however often it is asked")
    tasks = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=True)
    most = max((runs for task in proof.tasks.values() for runs in task.by_runs), default=1)
    tasks.add_column("task")
    for title in ("keys", "runs", "failed", "asked twice", "ran once"):
        tasks.add_column(title, justify="right")
    for runs in range(2, most + 1):
        tasks.add_column("twice" if runs == 2 else f"{runs} times", justify="right")
    for name, task in proof.tasks.items():
        numbers = (task.keys, task.runs, task.failed, task.twice, *(task.by_runs.get(n, 0) for n in range(1, most + 1)))
        tasks.add_row(
            Text(name, style="cyan"), *(str(number) if number else Text("-", style="dim") for number in numbers)
        )
    console.print(tasks)


def heading(console: Console, title: str, subtitle: str = "") -> None:
    """A heading of one line, with air above."""
    console.print()
    # Gaps stand outside the styled parts: in the picture of the demo, a part that begins with a space would lose it.
    console.print(Text.assemble((title, "bold"), "  ", (subtitle, "dim")))


def interesting_order(orders: Sequence[Order], proof: Proof, repeated: Mapping[str, int]) -> Order:
    """The order whose life had the most in it: taken over after the kill, a failing bank, a repeated webhook."""

    def score(order: Order) -> tuple[int, int]:
        runs = [runs for runs in proof.keys.values() if runs.order == order.id]
        taken_over = any(run.effects > 1 for run in runs)
        failed = any(run.failed for run in runs)
        is_repeated = repeated.get(order.id, 0) > 1
        points = 3 * taken_over + 3 * is_repeated + 2 * failed + (order.story == "pays")
        return points, -len(order.items)

    return max(orders, key=score)


def print_timeline(
    console: Console,
    order: Order,
    trace: Sequence[Mapping[str, Any]],
    entries: Sequence[Entry],
    webhooks: Sequence[int],
    kill: Kill | None = None,
) -> None:
    """What happened to one order, from the database's trace and from the ledger, in one line of time."""
    heading(console, f"Order {order.id}", f"{order.customer}: {', '.join(order.items)}; {order.amount_cents / 100:.2f}")
    rows: list[tuple[int, Text, Text]] = []
    held = [entry.key for entry in entries if entry.order == order.id and kill and entry.key in kill.held]
    if kill and held:
        rows.append((kill.at_us, Text("SIGKILL", style="bold red"), Text(f"worker {kill.worker}, pid {kill.pid}")))
    for at_us in webhooks:
        said = Text(f"PaymentApproved, event id b-{order.id}")
        if trace and at_us > trace[-1]["at_us"]:
            said.append("  repeated after the end: dropped", style="yellow")
        rows.append((at_us, Text("webhook", style="magenta"), said))
    for entry in entries:
        if entry.order == order.id:
            rows.append((entry.at_us, Text(entry.task, style="cyan"), _of_ledger(entry)))
    for commit in trace:
        for event in commit["events"]:
            text = _of_trace(event)
            if text is not None:
                rows.append((commit["at_us"], Text(f"version {commit['version']}", style="green"), text))
    if not rows:
        return
    rows.sort(key=lambda row: row[0])
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    for at_us, source, text in rows:
        table.add_row(Text(f"{(at_us - rows[0][0]) / 1e6:6.3f} s", style="dim"), source, text)
    console.print(table)


def _of_ledger(entry: Entry) -> Text:
    said = {
        BEGAN: ("runs", ""),
        EFFECT: ("takes effect outside", ""),
        ENDED: ("ends", ""),
        FAILED: (f"fails: {entry.reason}", "yellow"),
    }
    what, style = said[entry.what]
    about = f"attempt {entry.attempt}, pid {entry.pid}"
    key = f", key {entry.key}" if entry.what == BEGAN else ""
    return Text.assemble((what, style), "  ", (about + key, "dim"))


def _of_trace(event: Mapping[str, Any]) -> Text | None:
    name = str(event["event"])
    if event.get("duplicate"):
        return Text.assemble(name, "  ", ("repeated: dropped, no effect", "yellow"))
    if "to" not in event:
        return Text.assemble(name, "  ", (f"{event['counted']} of {event['of']}", "dim"))
    before, after = event["from"], event["to"]
    left, entered = [s for s in before if s not in after], [s for s in after if s not in before]
    if not left and not entered:
        return Text.assemble(name, "  ", ("stays in " + ", ".join(after), "dim"))
    return Text.assemble(name, "  → ", (", ".join(entered), "bold"))


def print_diagram(console: Console, definition: Mapping[str, Any], trace: Sequence[Mapping[str, Any]]) -> None:
    """The machine as an outline; the way that the order took stands out."""
    heading(console, f"Machine {definition['name']}", "● the way that this order took")
    visited = {path for commit in trace for event in commit["events"] for path in event.get("to", ())}
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    for line in outline(definition, visited):
        style = "bold green" if line.was_active else "dim"
        sign = "●" if line.was_active else "○"
        kind = f"({line.kind})" if line.kind in ("parallel", "final") else ""
        name = Text.assemble("   " * line.depth, (f"{sign} {line.key}", style), " ", (kind, "dim"))
        table.add_row(name, Text("   ".join(line.notes), style="" if line.was_active else "dim"))
    console.print(table)


def print_end(console: Console, proof: Proof, kept: str | None) -> None:
    """The last lines."""
    console.print()
    good = sum(check.ok for check in proof.checks)
    style = "bold green" if proof.ok else "bold red"
    verdict = "Proved" if proof.ok else "NOT proved"
    text = (
        f"{verdict}: {good} of {len(proof.checks)} statements hold. {proof.orders} orders, {proof.commits:,} commits, "
    )
    console.print(Text(f"{text}{proof.seconds:.1f} s.", style=style))
    if kept:
        console.print(Padding(Text(kept, style="dim"), (0, 0)), soft_wrap=True)
