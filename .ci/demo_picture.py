"""Draws docs/assets/demo.svg from a run of the demo: `.venv/bin/python .ci/demo_picture.py`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from casework.demo.run import DemoOptions, run_demo
from casework.demo.screen import Progress, panel
from casework.demo.workers import WorkerProcess

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "demo.svg"


class Snapshot:
    """A screen that keeps the lines, and the live panel as it was in the middle."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_panel = False

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """As a terminal shows it, without the name of this run's folder."""
        words = [word if not word.startswith("sqlite:") else "sqlite:///demo.db" for word in text.split(" ")]
        self._console.print(Text.assemble((f"{at_s:5.1f} s  ", "dim"), (" ".join(words), style)))

    def update(self, at_s: float, progress: Progress, workers: Sequence[WorkerProcess]) -> None:
        """The panel, once: when the new worker is at work."""
        if not self._has_panel and workers[0].was_killed and progress.runs[workers[-1].pid] > 5:
            self._has_panel = True
            self._console.print(panel(at_s, progress, workers))

    def close(self) -> None:
        """Nothing to give back."""


def main() -> None:
    """Run the demo and write the picture."""
    console = Console(record=True, force_terminal=True, color_system="truecolor", width=118, file=io.StringIO())
    console.print(Text.assemble(("$ ", "dim"), ("casework demo", "bold")))
    proof = run_demo(DemoOptions(), console, Snapshot(console))
    if not proof.ok:
        sys.exit("the demo did not prove what it should; no picture")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(console.export_svg(title="casework demo"), "utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
