"""The pytest plugin: the fixture ``casework_app``. Loaded in every run of pytest, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from casework.testing.virtual import VirtualApp


@pytest.fixture
def casework_app() -> Iterator[Callable[..., VirtualApp]]:
    """A maker of applications in virtual time; see ``casework.testing.VirtualApp``.

    ``app = casework_app(order_machine)``; options are those of ``casework.open``.
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
