"""The tables of this folder have a row for each option of everything that is public."""

from __future__ import annotations

import pytest

import casework
from tests.executions.stepping import fresh_backend
from tests.options import public
from tests.options.app_rows import APP
from tests.options.backend_rows import BACKENDS, ON_SERVICE
from tests.options.component_rows import COMPONENT, OF_THE_STORE
from tests.options.guarded_rows import GUARDED
from tests.options.http_rows import HTTP
from tests.options.key_rows import KEY_ROWS
from tests.options.machine_rows import MACHINES
from tests.options.opening_rows import OPENING
from tests.options.public import SAME, everything
from tests.options.replica_rows import REPLICA
from tests.options.running_rows import ON_AN_APPLICATION, RUNNING
from tests.options.simulation_rows import SIMULATION
from tests.options.store_rows import ON_DYNAMODB, STORES
from tests.options.stream_rows import STREAM_ROWS
from tests.options.table import Rows
from tests.options.table_rows import CONDITIONS, HANDLED, TABLES, TRANSACTIONS


def relay_settings() -> Rows:
    """The relay's, which needs an extra."""
    pytest.importorskip("litestar")
    from tests.options.relay_rows import SETTINGS

    return SETTINGS


ALL: Rows = {
    **APP, **STREAM_ROWS, **KEY_ROWS, **GUARDED, **HTTP, **TABLES, **CONDITIONS, **TRANSACTIONS, **HANDLED,
    **COMPONENT, **OPENING, **RUNNING, **ON_AN_APPLICATION, **MACHINES, **SIMULATION, **REPLICA, **relay_settings(),
    **STORES, **ON_DYNAMODB, **BACKENDS, **ON_SERVICE,
}  # fmt: skip

CHANGE_NOTHING = {
    "Op(seq)": "what is read has it; an append gives it",
    "Op(at_us)": "as seq",
    **{f"StoredExecution({name})": "what is read has it; a commit gives it" for name in OF_THE_STORE},
}
"""Options that are none, and why."""


def options_in(rows: Rows) -> set[str]:
    """The options that have a row; ``once, async`` is one of ``once``."""
    return {f"{place.split(',')[0]}({option})" for place, options in rows.items() for option in options}


def test_each_public_option_has_a_row() -> None:
    wanted = {
        f"{place}({option})" for place, options in everything().items() if place not in SAME for option in options
    }
    missing = wanted - options_in(ALL) - set(CHANGE_NOTHING)
    assert sorted(missing) == []
    assert sorted(options_in(ALL) - wanted) == [], "rows of what is not public"
    assert not set(CHANGE_NOTHING) & options_in(ALL)


@pytest.mark.parametrize("place", SAME)
def test_options_under_two_names_are_the_same(place: str) -> None:
    assert set(everything()[place]) <= set(everything()[SAME[place]])


def test_what_is_handed_out_or_named_otherwise_is_public() -> None:
    shown = {each.path for each in public.found()}
    names = shown | {path.rpartition(".")[2] for path in shown}
    assert {*public.HANDED_OUT, *public.OF_THE_USER, *public.OWNERS} <= names
    assert set(SAME) <= set(everything())


def test_what_an_operation_says_of_its_place_before_it_is_stored_counts_for_nothing() -> None:
    streams = casework.StreamStore(fresh_backend())
    streams.append("s", [casework.Op("a", b"", seq=7, at_us=7)])
    (op,) = streams.read("s")
    assert op.seq == 1 and op.at_us > 7
