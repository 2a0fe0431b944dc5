"""The map of lines and tests outlives small changes of the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants import covering


@pytest.mark.parametrize(
    ("before", "now", "numbers"),
    [
        ("a\nb\nc\n", "a\nb\nc\n", [1, 2, 3]),
        ("a\nb\nc\n", "new\na\nb\nc\n", [1, 1, 2, 3]),
        ("a\nb\nc\n", "a\nnew\nnewer\nb\nc\n", [1, 1, 1, 2, 3]),
        ("a\nb\nc\n", "a\nc\n", [1, 3]),
        ("a\nb\nc\n", "a\nB\nc\n", [1, 2, 3]),
        (None, "a\nb\n", [1, 2]),
    ],
)
def test_a_line_is_found_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, now: str, numbers: list[int]
) -> None:
    monkeypatch.setattr(covering, "SOURCE", tmp_path / "now")
    folders = [tmp_path / "now", tmp_path / "kept" / "source"]
    for folder, text in zip(folders, (now, before), strict=True):
        folder.mkdir(parents=True)
        if text is not None:
            (folder / "x.py").write_text(text)
    (tmp_path / "kept" / "seconds.json").write_text(json.dumps({}))
    known = covering.Map(tmp_path / "kept")
    assert [known._line_then(tmp_path / "now" / "x.py", n + 1) for n in range(len(numbers))] == numbers
