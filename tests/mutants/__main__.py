"""``python -m tests.mutants``: try small changes of the source, and name those that no test notices."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutants.covering import KEPT, QUICK, ROOT, SOURCE, Map, record
from tests.mutants.mutations import candidates, parses
from tests.mutants.trying import Place, Tried, try_all


def main() -> int:
    """Exit code 1 when a mutant survived."""
    options = _options()
    if options.record or not (KEPT / "seconds.json").exists():
        record(options.tests or ["tests"], options.jobs, marks=options.marks)
    if options.add:
        record(options.add, options.jobs, marks=options.marks, is_added=True)
    chosen = _choose(options) if options.again is None else _survivors(Path(options.again))
    print(f"{len(chosen)} mutants, seed {options.seed}", flush=True)
    tried: list[Tried] = []
    for one in try_all(chosen, Map(), options.jobs):
        tried.append(one)
        if one.outcome != "noticed":
            print(f"{one.outcome} ({one.tests_n} tests): {one.place}", flush=True)
        elif sys.stderr.isatty():
            print(f"\r{len(tried)} of {len(chosen)}", end="\r", file=sys.stderr)
    _report(tried)
    if options.json:
        Path(options.json).write_text(json.dumps([_row(one) for one in tried], indent=1))
    return any(one.outcome == "survived" for one in tried)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("areas", nargs="*", help="folders or files below src/casework; default: all")
    parser.add_argument("--sample", type=int, default=12, help="so many mutants an area (default 12); 0: all")
    parser.add_argument("--since", metavar="REV", help="only lines that changed since REV")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    parser.add_argument("--record", action="store_true", help="make the map of lines and tests anew")
    parser.add_argument("--tests", nargs="*", help="with --record: only these folders of tests")
    parser.add_argument("--add", nargs="*", metavar="TESTS", help="add new tests to the map; the source is unchanged")
    parser.add_argument("--again", metavar="FILE", help="only what survived in FILE, written with --json")
    parser.add_argument("--marks", default=QUICK, help=f"with --record: tests to run (default: {QUICK!r})")
    parser.add_argument("--json", metavar="FILE", help="write every mutant with its outcome")
    return parser.parse_args()


def _choose(options: argparse.Namespace) -> list[Place]:
    """The sample: so many of each area, of lines that changed where that was asked for."""
    dice = random.Random(options.seed)
    changed = None if options.since is None else _changed_lines(options.since)
    areas = options.areas or sorted(_areas())
    chosen: list[Place] = []
    for area in areas:
        target = SOURCE / area
        files = sorted(target.rglob("*.py")) if target.is_dir() else [target.with_suffix(".py")]
        places = [
            Place(file, mutation)
            for file in files
            for mutation in candidates(file.read_bytes())
            if changed is None or mutation.line in changed.get(file, ())
        ]
        dice.shuffle(places)
        parsing = (place for place in places if parses(place.mutation.apply(place.file.read_bytes())))
        chosen += itertools.islice(parsing, options.sample or None)
    return chosen


def _survivors(file: Path) -> list[Place]:
    """What no test noticed the last time, where the source is still the same."""
    rows = [row for row in json.loads(file.read_text()) if row["outcome"] != "noticed"]
    wanted = {(row["file"], row["begin"], row["new"]) for row in rows}
    return [
        Place(ROOT / name, mutation)
        for name in sorted({row["file"] for row in rows})
        for mutation in candidates((ROOT / name).read_bytes())
        if (name, mutation.begin, mutation.new) in wanted
    ]


def _areas() -> set[str]:
    folders = {file.parent.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py")}
    return {folder for folder in folders if folder != "."}


def _changed_lines(since: str) -> dict[Path, set[int]]:
    """By file: numbers of the lines that are new or changed since ``since``."""
    command = ["git", "diff", "--unified=0", since, "--", "src"]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    changed: dict[Path, set[int]] = {}
    lines: set[int] = set()
    for row in diff.splitlines():
        if row.startswith("+++ "):
            lines = changed.setdefault(ROOT / row[6:], set())
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", row):
            begin, count = int(found[1]), int(found[2] or 1)
            lines.update(range(begin, begin + count))
    return changed


def _report(tried: list[Tried]) -> None:
    """A table: by area, how many of those that a test runs were noticed."""
    areas: dict[str, Counter[str]] = {}
    for one in tried:
        area = one.place.file.parent.relative_to(SOURCE).as_posix()
        areas.setdefault(area, Counter())[one.outcome] += 1
    print(f"\n{'area':32} noticed  survived  run by no quick test")
    for area, counts in sorted(areas.items()):
        print(f"{area:32} {counts['noticed']:7} {counts['survived']:9} {counts['unrun']:10}")


def _row(one: Tried) -> dict[str, object]:
    mutation = one.place.mutation
    file = one.place.file.relative_to(ROOT).as_posix()
    return {
        "file": file, "line": mutation.line, "begin": mutation.begin, "new": mutation.new, "what": mutation.what,
        "outcome": one.outcome, "tests": one.tests_n,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
