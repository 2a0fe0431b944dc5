"""A function is one function, whichever way its module came into a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casework.idempotency.naming import qualified_name

SCRIPT = """
import enum, multiprocessing, sys
from pathlib import Path
import casework

STORE = casework.SqliteIdempotencyStore("shop.db")

class Currency(enum.Enum):
    EUR = 1

@casework.idempotent(STORE, key="order")
def refund(order, currency=Currency.EUR):
    with Path("calls.txt").open("a") as calls:
        calls.write(f"{__name__}\\n")
    return {"order": order}

if __name__ == "__main__":
    refund("o-1")
    spawned = multiprocessing.get_context("spawn").Process(target=refund, args=("o-1",))
    spawned.start()
    spawned.join()
    sys.exit(spawned.exitcode)
"""

WAYS = (
    ["shop.py"],
    ["-m", "shop"],
    ["-c", "import shop; shop.refund('o-1')"],
)


@pytest.mark.parametrize("first", WAYS, ids=["script", "module", "import"])
def test_a_script_its_children_and_who_imports_it_share_a_key(first: list[str], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    for words in (first, *WAYS):
        subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, timeout=60)
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == 1


def test_names_of_modules_stay_as_they_are() -> None:
    assert qualified_name(Path) == f"{Path.__module__}.Path"
    assert qualified_name(qualified_name) == "casework.idempotency.naming.qualified_name"
