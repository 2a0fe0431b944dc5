"""The pytest plugin: the fixture ``casework_app``. Loaded in every run of pytest, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from casework.simulation.users import SimulationReport
    from casework.testing.virtual import VirtualApp


@pytest.fixture
def casework_app() -> Iterator[Callable[..., VirtualApp]]:
    """A maker of applications in virtual time; see ``casework.testing.VirtualApp``.

    ``app = casework_app(order_machine)``; options are those of ``casework.open`` but ``store`` and ``create``.
    """
    from casework.testing.virtual import VirtualApp

    made: list[VirtualApp] = []

    def make(*machines: Any, **options: Any) -> VirtualApp:
        app = VirtualApp(machines, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def casework_simulation() -> Callable[..., SimulationReport]:
    """``casework.simulate`` for a test: a run that fails is an AssertionError that shows its timeline and its seed.

    ``casework_simulation(order, runs=200)``; options are those of ``casework.simulate``.
    """
    from casework.simulation.users import simulate

    def check(machines: Any, **options: Any) -> SimulationReport:
        __tracebackhide__ = True
        report = simulate(machines, **{"runs": 200, **options})
        report.check()
        return report

    return check
