"""What the demo shows while it runs: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from casework.demo.ledger import BEGAN, EFFECT, ENDED, FAILED, Entry
from casework.demo.workers import WorkerProcess

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_EVERY_S = 1.0


class Progress:
    """The numbers of the moment."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.started = 0
        self.ended = 0
        self.where: Counter[str] = Counter()
        self.webhooks = 0
        self.repeats = 0
        self.charges = 0
        self.bank_failures = 0
        self.runs: Counter[int] = Counter()
        """Ended runs by process."""
        self.busy: Counter[int] = Counter()
        """Runs under way by process."""

    def count(self, news: Sequence[Entry]) -> None:
        """Take new lines of the ledger into account."""
        for entry in news:
            self.busy[entry.pid] += {BEGAN: 1, EFFECT: 0}.get(entry.what, -1)
            self.runs[entry.pid] += entry.what in (ENDED, FAILED)
            self.charges += entry.task == "charge_card" and entry.what == ENDED
            self.bank_failures += entry.what == FAILED and "503" in entry.reason


class Screen(Protocol):
    """Where the demo tells what happens."""

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """Something worth a line of its own."""

    def update(self, at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> None:
        """The numbers moved."""

    def close(self) -> None:
        """The demo is over, or broken off."""


def open_screen(console: Console | None) -> Screen:
    """The screen for a console; None: say nothing."""
    if console is None:
        return Silent()
    return Live(console) if console.is_terminal else Plain(console)


class Silent:
    """For ``--json``."""

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """Nothing."""

    def update(self, at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain:
    """Lines without colours, one a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_s = -PLAIN_EVERY_S

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """A line, at once."""
        self._console.print(f"{at_s:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def update(self, at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> None:
        """A line now and then."""
        if at_s - self._last_s < PLAIN_EVERY_S:
            return
        self._last_s = at_s
        self.event(
            at_s,
            f"{progress.ended:4}/{progress.total} orders ended, {progress.started - progress.ended} under way; "
            f"{progress.charges} cards charged, {progress.bank_failures} failed attempts; "
            f"{progress.webhooks} webhooks, {progress.repeats} repeats",
        )

    def close(self) -> None:
        """Nothing to give back."""


class Live:
    """A panel that is redrawn in place, below the lines of what happened."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as RichLive

        self._console = console
        self._live = RichLive(console=console, refresh_per_second=12, transient=True)
        self._live.start()

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """A line above the panel."""
        from rich.text import Text

        self._console.print(Text.assemble((f"{at_s:5.1f} s  ", "dim"), (text, style)))

    def update(self, at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> None:
        """Redraw."""
        self._live.update(panel(at_s, progress, workers))

    def close(self) -> None:
        """Take the panel away."""
        self._live.stop()


def panel(at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> RenderableType:
    """The live panel."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        Text("orders", style="bold"),
        ProgressBar(
            progress.total, progress.ended, width=48, pulse=progress.ended == 0, animation_time=time.monotonic()
        ),
        Text(f"{progress.ended}/{progress.total} ended"),
        Text(f"{progress.started - progress.ended} under way", style="dim"),
        Text(f"{at_s:.0f} s", style="dim"),
    )
    grid = Table.grid(padding=(0, 2))
    for worker in workers:
        name = Text(f"worker {worker.number}", style="bold")
        if worker.was_killed:
            grid.add_row(name, Text(f"pid {worker.pid}", style="dim"), Text("✗ killed", style="red"), Text(""))
        else:
            busy = max(0, progress.busy[worker.pid])
            done = Text(f"{progress.runs[worker.pid]} tasks done", style="dim")
            grid.add_row(name, Text(f"pid {worker.pid}", style="dim"), done, Text("■" * min(busy, 32), style="cyan"))
    outside = Text.assemble(
        ("bank     ", "bold"),
        f"{progress.charges} cards charged, ",
        (f"{progress.bank_failures} failed attempts", "yellow"),
        f", {progress.webhooks} webhooks delivered, ",
        (f"{progress.repeats} of them repeats", "yellow"),
    )
    return Padding(Group(bar, grid, outside), (1, 2))
