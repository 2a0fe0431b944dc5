"""What was run: a seed replays a run on the same code only, so whatever shows a failure says which code that was."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

PACKAGE = Path(__file__).resolve().parents[1]
GIT_S = 5.0


class _Machine(Protocol):
    """What is asked of a machine here."""

    name: str
    hash: str


@functools.lru_cache
def casework_version() -> str:
    """Casework's version; of a checkout, the commit too, and whether anything was changed since."""
    # Importing the face by name would have the simulated world know every domain.
    version = sys.modules["casework"].__version__
    commit = commit_of(PACKAGE)
    return f"casework {version}{f', commit {commit}' if commit else ''}"


def commit_of(package: Path) -> str:
    """The commit of the checkout whose ``src`` the package lies in; empty where there is none, or no git.

    Args:
        package: folder of the package. One that was installed into somebody else's checkout is not of that commit.
    """
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    return commit + (", changed since" if _git(root, "status", "--porcelain", "--", "src") else "")


def _git(root: Path, *words: str) -> str:
    """What git answers; nothing when it cannot."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(machines: Iterable[_Machine]) -> str:
    """The definitions of machines by name and digest, and casework's own version."""
    return "; ".join([*(f"{machine.name} {machine.hash[:12]}" for machine in machines), casework_version()])
