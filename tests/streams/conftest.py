"""The stores on which the tests of streams run."""

from tests.streams.stores import store

__all__ = ["store"]
