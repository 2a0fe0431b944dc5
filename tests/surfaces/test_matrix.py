"""One effect and one answer, or a refusal that the documentation names, on every server and in every framework."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.surfaces import cells, page
from tests.surfaces.cells import Cell
from tests.surfaces.running import serving

PACKAGES = {
    "asgi": ("fastapi", "litestar", "quart", "django", "ninja"),
    "wsgi": ("flask", "django", "rest_framework", "ninja"),
}


def needs(server: str) -> None:
    """Skip where a package of the extra ``dev`` is missing; in CI that is an error."""
    kind = {cells.ASGI_SITES: "asgi", cells.WSGI_SITES: "wsgi"}.get(cells.SERVERS[server], server)
    modules = [name for name in (*PACKAGES.get(kind, ()), *server.split("-")) if name not in ("sync", "gthread")]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert not (missing and os.environ.get("CI")), f"{missing} must be installed"
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; `make .venv/.dev` does it")


def failures(server: str, chosen: list[Cell], folder: Path) -> list[str]:
    """What is wrong with cells of a server, by cell."""
    found: list[str] = []
    with serving(server, folder) as (client, process):
        for cell in chosen:
            try:
                wrong = client.run(cell)
            except (OSError, AssertionError, ValueError) as error:
                wrong = [repr(error)]
            if cell.response == "background" and cell.effects:
                client.effects.has_begun(f"{cell.key}-background")
            found += [f"{cell.key}: {what}" for what in wrong]
    counts = client.effects.counts  # nothing comes after it: the server has ended
    for cell in chosen:
        count, behind = counts[cell.key], counts[f"{cell.key}-background"]
        if count != cell.effects or behind != (cell.effects if cell.response == "background" else 0):
            found.append(f"{cell.key}: {count} effects in the end, {behind} in the background")
    if found:
        found.append(process.log_tail())
    return found


@pytest.mark.parametrize("server", cells.SERVERS)
def test_what_is_chosen_has_each_response_request_and_client_on_each_site(server: str) -> None:
    for site in cells.SERVERS[server]:
        chosen = [cell for cell in cells.diagonal(server) if cell.site == site]
        possible = {cell.response for cell in cells.whole(server) if cell.site == site}
        assert {cell.response for cell in chosen} == possible
        assert {cell.request for cell in chosen} == set(cells.REQUESTS)
        assert {cell.client for cell in chosen} == set(cells.CLIENTS)


def test_the_reference_has_the_tables_of_the_matrix() -> None:
    assert page.PAGE.read_text("utf-8") == page.written(), "python -m tests.surfaces.page writes it"


@pytest.mark.slow
@pytest.mark.parametrize("server", cells.SERVERS)
def test_there_is_one_effect_and_one_answer(server: str, tmp_path: Path) -> None:
    needs(server)
    assert not failures(server, list(cells.diagonal(server)), tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", cells.SERVERS)
def test_there_is_one_effect_and_one_answer_in_every_cell(server: str, tmp_path: Path) -> None:
    needs(server)
    assert not failures(server, list(cells.whole(server)), tmp_path)
