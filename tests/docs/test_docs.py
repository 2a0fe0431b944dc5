"""Every example of the README and of docs/ is run, and the runner itself is checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs import examples

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shown = [block for block in examples.blocks(page.read_text("utf-8")) if block.run]
    expected = sum(block.title is not None or block.language in {"python", "console"} for block in shown)
    try:
        assert examples.run(page, tmp_path) == expected
    finally:  # pages call their modules by the same names, and each must find its own
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{tmp_path}{os.sep}"):
                del sys.modules[name]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "page.md"


def test_blocks_share_names_write_files_and_run_commands(page: Path) -> None:
    page.write_text(
        '```yaml title="a.yaml"\nid: a\n```\n'
        "1. indented:\n\n    ```python\n    import pathlib; text = pathlib.Path('a.yaml').read_text()\n    ```\n"
        "```python\nassert text == 'id: a\\n'\n```\n"
        "```console\n$ cat a.yaml\nid: ...\n$ true\n```\n"
        "<!-- not run: needs an account -->\n```python\nraise SystemExit\n```\n"
        "```toml\nnot = run\n```\n"
    )
    assert examples.run(page, page.parent) == 4


def test_an_error_points_to_the_line_of_the_page(page: Path) -> None:
    page.write_text("# Title\n\n```python\nok = 1\nok / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as raised:
        examples.run(page, page.parent)
    assert (str(raised.traceback[-1].path), raised.traceback[-1].lineno + 1) == (str(page), 5)


@pytest.mark.parametrize("printed", ["$ cat missing", "$ echo one\ntwo"])
def test_a_command_that_fails_or_prints_something_else_is_reported(page: Path, printed: str) -> None:
    page.write_text(f"```console\n{printed}\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        examples.run(page, page.parent)


def test_a_fence_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(examples.blocks("\n```python\nx = 1\n"))


@pytest.mark.parametrize(
    ("expected", "printed", "equal"),
    [
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("took ... s", "took 0.1 s", True),
        ("a", "a b", False),
        ("a.c", "abc", False),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(expected: str, printed: str, equal: bool) -> None:
    assert examples.matches(expected, printed) is equal
