"""One benchmark by name: ``python -m bench NAME [--json] [options]``; without a name, the list of them.

A benchmark is a module of this package with ``rows(...)``, which yields what it measured. Its keyword arguments are the
options: ``rows(events=10_000, quick=False)`` takes ``--events N`` and ``--quick``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import bench

Row = dict[str, Any]


def names() -> list[str]:
    """Modules of this package that are benchmarks."""
    found = [module.name for module in pkgutil.iter_modules(bench.__path__) if not module.ispkg]
    return [name for name in found if name != "__main__" and hasattr(importlib.import_module(f"bench.{name}"), "rows")]


def headline(name: str) -> str:
    """The first line of a benchmark's docstring, without its command."""
    text = importlib.import_module(f"bench.{name}").__doc__ or ""
    return text.strip().splitlines()[0].split(": ``")[0].rstrip(".,:")


def parser_of(name: str, rows: Callable[..., Iterable[Row]]) -> argparse.ArgumentParser:
    """An option for each keyword argument of ``rows``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=importlib.import_module(f"bench.{name}").__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help='print {"rows": [...]}')
    parser.add_argument(
        "--markdown", action="store_true", help="print a table with the command, the machine and versions"
    )
    for parameter in inspect.signature(rows).parameters.values():
        option, default = f"--{parameter.name.replace('_', '-')}", parameter.default
        if default is False:
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=type(default), default=default, help=f"default: {default!r}")
    return parser


def measured(rows: Iterable[Row], name: str) -> list[Row]:
    """All rows, with a line on stderr that says how far it is."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(40), TextColumn("{task.completed} rows"),
        TimeElapsedColumn(),
    )  # fmt: skip
    found: list[Row] = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        for row in rows:
            found.append(row)
            progress.update(task, completed=len(found), description=f"{name}: {row['name']:.60}")
    return found


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}".rstrip("0").rstrip(".")


def table(rows: list[Row], title: str) -> Table:
    """The rows, each with a bar for ours (upper) and for the peer's, on one scale for the row."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None)
    for column in ("", "unit", "ours", "peer", "ratio"):
        made.add_column(column, justify="left" if column in ("", "unit") else "right", overflow="fold")
    made.add_column("peer is")
    made.add_column("ours over peer", width=24)
    for row in rows:
        ours, peer, ratio = row["ours"], row["peer"], row["ratio"]
        cells = [row["name"], row["unit"], shown(ours), shown(peer), "-" if ratio is None else f"{ratio:g}x"]
        made.add_row(*cells, row["peer_name"] or "-", bars(ours, peer))
    return made


def markdown(rows: list[Row]) -> Iterator[str]:
    """The rows as a table for docs/design/costs.md."""
    yield "| what | unit | casework | peer | ratio | peer is |"
    yield "|---|---|--:|--:|--:|---|"
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:g}x"
        peer = "" if row["peer"] is None else shown(row["peer"])
        yield f"| {row['name']} | {row['unit']} | {shown(row['ours'])} | {peer} | {ratio} | {row['peer_name'] or ''} |"


def surroundings(command: str) -> str:
    """When and where something was measured, and how busy that machine was."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), processor)
    versions = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for package in ("msgspec", "boto3"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    load = f"{os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    when = time.strftime("%Y-%m-%d")
    return (
        f"`{command}`, {when}: {platform.system()} on {processor}, {os.cpu_count()} cores, load {load} over the last "
        f"five minutes; {', '.join(versions)}."
    )


def bars(ours: float | None, peer: float | None) -> Any:
    """Two bars, one above the other."""
    if not ours or not peer:
        return ""
    most = max(ours, peer)
    both = Table.grid()
    both.add_row(Bar(most, 0, ours, width=24, color="green"))
    both.add_row(Bar(most, 0, peer, width=24, color="bright_black"))
    return both


def main(arguments: list[str]) -> int:
    known = names()
    if not arguments or arguments[0] in ("-h", "--help") or arguments[0] not in known:
        wanted = [name for name in arguments[:1] if not name.startswith("-")]
        print(f"no benchmark {wanted[0]!r}; there are:" if wanted else "python -m bench NAME [--json] [options]\n")
        for name in known:
            print(f"  {name:14} {headline(name)}")
        return 2 if wanted else 0
    name = arguments[0]
    rows = importlib.import_module(f"bench.{name}").rows
    given = vars(parser_of(name, rows).parse_args(arguments[1:]))
    as_json, as_markdown = given.pop("json"), given.pop("markdown")
    found = measured(rows(**given), name)
    if as_json:
        print(json.dumps({"rows": found}))
    elif as_markdown:
        command = " ".join(["python -m bench", *(each for each in arguments if each != "--markdown")])
        print("\n".join([surroundings(command), "", *markdown(found)]))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(found, headline(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
