"""A plugin of pytest that writes how long each test took, for ``covering.py``; those that failed are left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what set-up, call and tear-down took."""
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write them; under xdist the controller hears of all."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        Path(os.environ["CASEWORK_SECONDS"]).write_text(
            json.dumps({id: took for id, took in SECONDS.items() if id not in FAILED})
        )
