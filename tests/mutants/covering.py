"""Which tests run which line, and how long each takes: one run of the quick tests under coverage, kept in a folder.

The map is made anew when asked for; until then a line is found by what stood around it then. A line that no test of it
runs cannot be noticed, and is told as such.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "casework"
KEPT = ROOT / ".mutants"
QUICK = "not slow and not soak and not servers"


class Map:
    """Tests by line of one file, and seconds by test."""

    def __init__(self, folder: Path = KEPT) -> None:
        self.data = coverage.CoverageData(str(folder / "coverage"))
        self.data.read()
        self.seconds: dict[str, float] = json.loads((folder / "seconds.json").read_text())
        self._source = folder / "source"
        self._numbers: dict[Path, list[int]] = {}

    def tests(self, file: Path, line: int) -> list[str]:
        """Ids of the tests that run ``line``, the quickest first."""
        then = self._line_then(file, line)
        contexts = self.data.contexts_by_lineno(str(file)).get(then, [])
        ids = {context.partition("|")[0] for context in contexts if context}
        if not ids and contexts:  # it ran while its module was imported: whatever uses the module may notice
            own = self.data.contexts_by_lineno(str(file)).values()
            ids = {context.partition("|")[0] for found in own for context in found}
        return sorted((id for id in ids if id in self.seconds), key=self.seconds.__getitem__)

    def _line_then(self, file: Path, line: int) -> int:
        """The number that ``line`` had when the map was made; for a new line, that of the one before it."""
        if file not in self._numbers:
            kept = self._source / file.relative_to(SOURCE)
            now = file.read_text().splitlines()
            before = kept.read_text().splitlines() if kept.exists() else now
            numbers: list[int] = []
            for _, old, old_end, new, new_end in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
                numbers += [max(1, min(old + n + 1, old_end)) for n in range(new_end - new)]
            self._numbers[file] = numbers
        return self._numbers[file][line - 1]


def record(
    folders: Sequence[str], jobs: int, *, marks: str = QUICK, folder: Path = KEPT, is_added: bool = False
) -> None:
    """Run the tests below ``folders`` and keep which lines each of them ran. One that fails is left out.

    ``is_added``: beside what is known of other tests, of the same source.
    """
    folder.mkdir(exist_ok=True)
    kept = folder / "seconds.json"
    known = json.loads(kept.read_text()) if is_added else {}
    kept.unlink(missing_ok=True)
    if not is_added:
        shutil.rmtree(folder / "source", ignore_errors=True)
        shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\nsource = {SOURCE}\ndata_file = {folder / 'coverage'}\n")
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal", "-m", marks,
        "-p", "tests.mutants.durations", f"--cov-config={settings}", f"--cov={SOURCE}", "--cov-context=test",
        "--cov-report=", *(["--cov-append"] if is_added else []), *folders,
    ]  # fmt: skip
    environment = {**os.environ, "CASEWORK_SECONDS": str(kept)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode == 1:
        print("what failed is left out", flush=True)
    elif done.returncode:
        raise SystemExit("the tests could not be run: see above")
    kept.write_text(json.dumps({**known, **json.loads(kept.read_text())}))
