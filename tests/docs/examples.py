"""Runs the examples of a Markdown file as a reader would: from top to bottom, in an empty folder.

* ```` ```python ```` is executed; the blocks of a file share their names.
* ```` ```yaml title="order.yaml" ```` (any language, Python too) is written to that file.
* ```` ```console ```` runs each line that starts with ``$ `` and compares what it prints with the lines below it, where
  a line ``...`` stands for any lines, and ``...`` within a line for any text. Nothing below it: only the exit code.
* `<!-- not run: REASON -->` on the line before a block leaves it out. Other languages are only for reading.

An error points to the line of the Markdown file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*)(?P<rest>.*)$")
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is the line of its first line of text, from 1."""

    language: str
    title: str | None
    text: str
    line: int
    run: bool


def blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a file, in order. A fence that is never closed is an error."""
    source = markdown.splitlines()
    number = 0
    while number < len(source):
        opening = FENCE.match(source[number])
        number += 1
        if opening is None:
            continue
        run = number < 2 or NOT_RUN.search(source[number - 2]) is None
        first = number
        while number < len(source) and source[number].strip() != opening["ticks"]:
            number += 1
        if number == len(source):
            raise ValueError(f"the block that opens in line {first} is not closed")
        indent = len(opening["indent"])
        text = "".join(line[indent:] + "\n" for line in source[first:number])
        title = TITLE.search(opening["rest"])
        yield Block(opening["language"], title and title[1], text, first + 1, run)
        number += 1


def run(file: Path, folder: Path) -> int:
    """Run the examples of ``file`` in ``folder``, which is the working directory; how many were run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks(file.read_text("utf-8")):
        if not block.run:
            continue
        if block.title is not None:
            (folder / block.title).write_text(block.text, "utf-8")
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(file), "exec"), names)
        elif block.language == "console":
            run_console(block, file, folder)
        else:
            continue
        count += 1
    return count


def run_console(block: Block, file: Path, folder: Path) -> None:
    """Run the commands of a block; AssertionError with what was printed where it differs."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "100"}
    for command, expected in commands(block.text):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        where = f"{file.name}:{block.line}: $ {command}"
        assert done.returncode == 0, f"{where}\nended with {done.returncode}:\n{done.stdout}"
        assert not expected or matches(expected, done.stdout), f"{where}\nprinted:\n{done.stdout}\nnot:\n{expected}"


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is said to print."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0].strip() == "", f"a console block begins with a command: {parts[0]!r}"
    found = []
    for part in parts[1:]:
        command, _, expected = part.partition("\n")
        found.append((command, expected.strip("\n")))
    return found


def matches(expected: str, printed: str) -> bool:
    """Equal but for space at the ends of lines; ``...`` stands for anything."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())

    pattern = ".*".join(re.escape(part) for part in tidy(expected).split("..."))
    return re.fullmatch(pattern, tidy(printed), re.DOTALL) is not None
