"""What ``casework.open`` takes, checked before anything is opened.

:class:`OpenArguments` are the arguments as a mapping, for a function that returns them: one place in a program that
says what its application is, for ``casework.open(**application())`` in each of its processes and for
``casework worker --app shop:application``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from casework.app.settings import MAX_DEDUPE_WINDOW_S, TRACE_MAX
from casework.arguments import check_count, check_flag, check_instance
from casework.backends.port import AsyncBackend, Backend
from casework.executions.runtime import Codec, Options
from casework.kernel.schema import DEFAULT_BUCKETS, MAX_BUCKETS
from casework.statechart import Machine
from casework.streams.log import StreamOptions


class OpenArguments(TypedDict, total=False):
    """The arguments of :func:`casework.open`, each of which may be left out."""

    store: str | Backend | AsyncBackend | None
    machines: Sequence[Machine]
    create: bool | None
    codec: Codec | None
    streams: StreamOptions | None
    buckets: int
    trace_max: int | None
    dedupe_window_s: int | None
    batch_max: int
    spill_above: int
    spill_part: int


def make_options(
    *,
    buckets: int = DEFAULT_BUCKETS,
    trace_max: int | None = None,
    dedupe_window_s: int | None = None,
    batch_max: int = 64,
    spill_above: int = 60,
    spill_part: int = 90,
) -> Options:
    """The options of an application. Misuse for values that cannot be."""
    check_count("buckets", buckets, 1, MAX_BUCKETS)
    if trace_max is not None:
        check_count("trace_max", trace_max, 0, TRACE_MAX)
    if dedupe_window_s is not None:
        check_count("dedupe_window_s", dedupe_window_s, 0, MAX_DEDUPE_WINDOW_S)
    check_count("batch_max", batch_max, 1, 64)
    check_count("spill_above", spill_above, 1, 60)
    check_count("spill_part", spill_part, 1, 90)
    return Options(
        buckets=buckets, trace_max=trace_max, dedupe_window_s=dedupe_window_s, batch_max=batch_max,
        spill_above=spill_above, spill_part=spill_part,
    )  # fmt: skip


def check_rest(create: Any, streams: Any) -> None:
    """Misuse unless these are what ``open`` takes under their names."""
    if create is not None:
        check_flag("create", create)
    if streams is not None:
        check_instance("streams", streams, StreamOptions, "a casework.StreamOptions(...)")
