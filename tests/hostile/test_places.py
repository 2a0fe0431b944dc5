"""No place that takes a function of a user's is left out of the tests of this folder."""

from __future__ import annotations

from tests.hostile import test_functions, test_workers
from tests.hostile.places import TESTED, found_in_source, place_of


def test_every_place_that_takes_a_function_is_named() -> None:
    unknown = [found for found in found_in_source() if place_of(found) is None]
    assert not unknown, f"say in tests/hostile/places.py how these are tested: {unknown}"


def test_no_place_is_named_that_is_gone() -> None:
    assert {place_of(found) for found in found_in_source()} >= set(TESTED)


def test_every_place_is_tested() -> None:
    assert {*test_workers.PLACES, *test_functions.PLACES} == set(TESTED)
