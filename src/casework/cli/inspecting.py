"""``casework show``, ``list`` and ``trace``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from casework.cli.application import FromApp
from casework.cli.failures import command, say
from casework.cli.opening import AsJson, Debug, Id, Store, open_store, print_json

if TYPE_CHECKING:
    from casework.executions.inspection import Inspection, ShownFailure


@command
def show(id: Id, source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show an execution: its state, what it waits for, and why it does not go on.

    \b
    casework show o-1
    casework show o-1 --json | jq .tasks
    """
    with open_store(store, source) as app:
        seen = app.inspect(id)
    if as_json:
        print_json(seen)
        return
    for line in shown(seen):
        print(line)


def shown(seen: Inspection) -> Iterator[str]:
    """An inspection in lines."""
    import json

    execution = seen.execution
    machine = f"machine {execution.machine} {execution.machine_hash[:12]}, version {execution.version}"
    yield f"{execution.id}  {execution.status}  ({machine})"
    yield f"  in        {', '.join(execution.configuration) or '-'}"
    yield f"  started   {moment(execution.created_at_us)}, changed {moment(execution.updated_at_us)}"
    if execution.parent_id:
        yield f"  parent    {execution.parent_id}"
    yield f"  context   {json.dumps(execution.context, ensure_ascii=False)}"
    if execution.output is not None:
        yield f"  output    {json.dumps(execution.output, ensure_ascii=False)}"
    if execution.error is not None:
        yield f"  error     {json.dumps(execution.error, ensure_ascii=False)}"
    if seen.failure is not None:
        yield from _failed_at(seen.failure)
    if seen.is_draining:
        yield "  delivery  of its last step is still under way"
    yield from _waits(seen)
    for reason in seen.parked:
        yield f"  parked    {reason}"
    for letter in seen.dead_letters:
        yield f"  dead      {_types(letter.events)}: {letter.reason}, {moment(letter.at_us)}"
    for text in seen.unreadable:
        yield f"  unreadable {text}"


def _failed_at(failure: ShownFailure) -> Iterator[str]:
    import json

    event = failure.event
    own = "".join(f", {name} {event[name]}" for name in ("id", "source") if event[name])
    what = {"start": "its start", "timer": f"timer {event['type']}"}.get(event["kind"], event["type"])
    yield f"  failed at {what}{own}"
    if event["data"]:
        yield f"            {json.dumps(event['data'], ensure_ascii=False)}"
    if failure.error.get("where"):
        yield f"            in {failure.error['where']}"
    if failure.is_taken_again:
        yield "            it is kept: redrive takes it again, redrive --skip goes on without it"
    else:
        yield "            no transition takes that; redrive begins again what failed"
    if failure.note:
        yield f"            {failure.note}"


def _waits(seen: Inspection) -> Iterator[str]:
    for task in seen.tasks:
        due = f"due {away(task.due_at_us, seen.now_us)}"
        if task.status == "running":
            due = f"lease ends {away(task.due_at_us, seen.now_us)}"
        attempts = f"attempt {task.attempt} of {task.max_attempts}"
        yield f"  task      {task.src} ({task.name})  {task.status}, {attempts}, {due}"
        yield f"            key {task.key}"
        if task.last_error:
            yield f"            last error: {task.last_error}"
    for timer in seen.timers:
        what = f"send {timer.event} to {timer.to}" if timer.event else timer.name
        yield f"  timer     {what}  {away(timer.due_at_us, seen.now_us)} ({moment(timer.due_at_us)})"
    for message in seen.messages:
        own = f", id {message.id}" if message.id else ""
        yield f"  message   {message.type}  sent {away(message.sent_at_us, seen.now_us)}{own}"
    for event in seen.deferred:
        own = f", id {event.id}" if event.id else ""
        yield f"  deferred  {event.type}{own}: waits for a state that takes it"
    for children in seen.children:
        counted = f"{children.done} of {children.needed} needed are done, {children.total} in all"
        yield f"  children  {children.invoke}: {counted}{'' if children.is_open else '; not waited for any more'}"
        for child in _most_telling(children.children):
            why = f": {child['error']}" if child.get("error") else ""
            yield f"            {child['id']}  {child['status']}{why}"
            if child.get("parked"):
                yield f"              parked  {child['parked']}"
        if len(children.children) > 10:
            yield f"            ... {children.total - 10} more: casework list --parent {seen.execution.id}"


def _most_telling(children: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
    """Ten of the children, those that failed first."""
    return sorted(children, key=lambda child: child["status"] != "failed")[:10]


def _types(events: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(event.get("type", "?")) for event in events)


def moment(at_us: int) -> str:
    """A time for people, in UTC."""
    if not at_us:
        return "-"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def away(at_us: int, now_us: int) -> str:
    """How far a time is away: ``in 3.2 s``, ``5 min ago``."""
    seconds = abs(at_us - now_us) / 1e6
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            text = f"{seconds / size:.0f} {unit}"
            break
    else:
        text = f"{seconds:.1f} s"
    return f"in {text}" if at_us > now_us else f"{text} ago"


@command
def list_(
    status: Annotated[
        str | None,
        typer.Option(help="pending, running, suspended, done, failed, cancelled or purging.", show_default=False),
    ] = None,
    machine: Annotated[str | None, typer.Option(help="Only those of this machine.", show_default=False)] = None,
    parent: Annotated[str | None, typer.Option(help="Only those with this parent.", show_default=False)] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Messages that nobody could take, instead of executions.")
    ] = False,
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 1000.")] = 100,
    cursor: Annotated[
        str | None, typer.Option(help="Go on where the page before ended, with the same options.", show_default=False)
    ] = None,
    source: FromApp = None,
    store: Store = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List executions, or dead letters.

    \b
    casework list --status failed
    casework list --machine order --limit 1000 --json
    casework list --dead
    """
    with open_store(store, source) as app:
        if dead:
            letters = app.dead_letters(limit=limit, cursor=cursor)
            _print_page(
                letters, as_json, ("at", "execution", "events", "reason"),
                [
                    (moment(each.at_us), each.execution_id, _types(each.events), each.reason) for each in letters.items
                ],
            )  # fmt: skip
            return
        page = _whole_page(app, limit, cursor, status=status, machine=machine, parent=parent)
    rows = [(each.id, each.status, each.machine, _place(each), moment(each.updated_at_us)) for each in page.items]
    _print_page(page, as_json, ("id", "status", "machine", "in", "changed"), rows)
    for text in page.unreadable:
        say(f"unreadable: {text}")


def _place(execution: Any) -> str:
    """Where an execution is, and why it does not go on."""
    states = ", ".join(execution.configuration)
    return " ".join(part for part in (states, f"(parked: {execution.parked})" if execution.parked else "") if part)


def _whole_page(app: Any, limit: int, cursor: str | None, **filters: Any) -> Any:
    """One page; short pages of the store are joined until there is something to show."""
    page = app.list(limit=limit, cursor=cursor, **filters)
    while page.next is not None and len(page.items) < limit:
        more = app.list(limit=limit - len(page.items), cursor=page.next, **filters)
        page.items += more.items
        page.unreadable += more.unreadable
        page.next = more.next
    return page


def _print_page(page: Any, as_json: bool, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if as_json:
        print_json(page)
        return
    table = [titles, *rows] if rows else []
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))] if table else []
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not rows:
        say("nothing to list")
    if page.next is not None:
        say(f"more with --cursor {page.next}")


@command
def trace(id: Id, source: FromApp = None, store: Store = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what happened to an execution, commit by commit.

    Workers and applications keep a trace where trace_max (--trace-max) is set.

    \b
    casework trace o-1
    """
    with open_store(store, source) as app:
        entries = app.trace(id)
        error = app.get(id).error
    if as_json:
        print_json({"id": id, "entries": entries})
        return
    if not entries:
        say(f"execution {id!r:.200} has no trace; workers keep one with --trace-max 200")
    for line in timeline(entries, error):
        print(line)


def timeline(entries: Sequence[dict[str, Any]], error: Any = None) -> Iterator[str]:
    """A trace in lines: time, version, event, which states were left and entered, and the execution's error."""
    from casework.executions.telling import told

    first_us = entries[0]["at_us"] if entries else 0
    for entry in entries:
        head = f"{moment(entry['at_us'])}  +{(entry['at_us'] - first_us) / 1e6:.3f} s  v{entry['version']}"
        for event in entry["events"] or [{"event": "(nothing to be done)"}]:
            why = f"  ({event['error']})" if event.get("error") else ""
            yield f"{head}  {event['event']}  {_moved(event)}{why}".rstrip()
    if entries and entries[-1]["status"] not in ("running", "pending"):
        why = f": {told(error)}" if error is not None else ""
        yield f"{moment(entries[-1]['at_us'])}  {entries[-1]['status']}{why}"


def _moved(event: dict[str, Any]) -> str:
    for word in ("deferred", "given up"):
        if event.get(word):
            return word
    if event.get("duplicate"):
        return f"repeated (id {event.get('id')}): dropped"
    if "counted" in event:
        return f"{event['counted']} of {event['of']}"
    before, after = event.get("from") or [], event.get("to") or []
    entered = [path for path in after if path not in before]
    if entered:
        left = [path for path in before if path not in after]
        return f"{', '.join(left)} -> {', '.join(entered)}" if left else f"-> {', '.join(entered)}"
    ignored = ": ignored, no transition takes it" if event.get("ignored") else ""
    return f"stays in {', '.join(after)}{ignored}" if after else ""
