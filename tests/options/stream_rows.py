"""What each option of an application's streams changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from casework.backends.drive import run
from casework.kernel.effects import Flag
from casework.kernel.schema import STREAMS
from casework.streams import cursors
from casework.streams.consumer import Consumer, ConsumerOptions, HandlerWrites, follow
from casework.streams.log import Op
from tests.options.applications import World
from tests.options.table import Row, refusal, row

THREE = [Op("a", b"1"), Op("b", b"22"), Op("c", b"333")]


def filled(w: World) -> Any:
    """Three operations in ``s``, one in ``t``; the streams under test."""
    w.virtual.streams.append("s", THREE)
    w.virtual.streams.append("t", [Op("d", b"4444")])
    return w.app.streams


def of_stream(read: Any, *, s: Any = 3, t: Any = 1) -> Row:
    """What is read is that stream's."""
    return row(lambda w, stream: read(filled(w), stream), ("s", s), ("t", t))


def after(read: Any) -> Row:
    return row(lambda w, after: [op.id for op in read(filled(w), after)], (0, ["a", "b", "c"]), (2, ["c"]))


def poisoned(w: World, group: str = "g", stream: str = "s", *, on_poison: str = "park", ids: str = "abcd") -> Any:
    """The group has failed at these operations of the stream, and has come to its end, or stands at the first."""
    streams = filled(w)
    leave = Flag()

    def handle(op: Op, writes: HandlerWrites) -> None:
        if op.id in "cd" or on_poison == "stop":
            leave.set()
        if op.id in ids:
            raise ValueError("no")

    options = ConsumerOptions(attempts_max=1, on_poison=on_poison, batch_max=1)
    consumer = Consumer(w.virtual.streams.log, group, [stream], handle, options)
    consumer.token = "me"
    cursor = run(cursors.take(group, stream, "me", 30), w.backend)
    assert cursor is not None
    run(follow(consumer, cursor, leave), w.backend)
    return streams


def parked(w: World, group: str = "g", stream: str = "s", **options: Any) -> list[int]:
    return [each.op.seq for each in w.app.streams.parked(group, stream, **options)]


def come_to(w: World, group: str, stream: str) -> int:
    poisoned(w, "g", "s")
    return int(w.app.streams.cursor(group, stream).after)


def behind(w: World, group: str, streams: list[str]) -> list[int]:
    return [each.lag for each in poisoned(w, "g", "s").lag(group, streams)]


def resumed(w: World, group: str = "g", stream: str = "s", **options: Any) -> Any:
    """Both groups stand at both streams' first operations; which of them go on."""
    for each, name in (("g", "s"), ("g", "t"), ("h", "s")):
        poisoned(w, each, name, on_poison="stop", ids="ad")
    w.app.streams.resume(group, stream, **options)
    states = [w.app.streams.cursor(each, name) for each, name in (("g", "s"), ("g", "t"), ("h", "s"))]
    return [state.is_stopped for state in states], states[0].after


def unparked(w: World, group: str = "g", stream: str = "s", seq: int = 1) -> Any:
    for each, name in (("g", "s"), ("g", "t"), ("h", "s")):
        poisoned(w, each, name, ids="abd")
    w.app.streams.unpark(group, stream, seq)
    return [parked(w, each, name) for each, name in (("g", "s"), ("g", "t"), ("h", "s"))]


def floors(w: World, stream: str = "s", upto: int = 1, **options: Any) -> Any:
    streams = filled(w)
    w.virtual.streams.append("s", [Op("e", b"5")])
    w.virtual.clock.advance(100)
    done = streams.truncate(stream, upto, **options)
    return [streams.head(each).floor_seq for each in ("s", "t")], done.removed_ops


def snapshots(w: World, stream: str = "s", seq: int = 1, data: bytes = b"data") -> Any:
    streams = filled(w)
    streams.snapshot(stream, seq, data)
    return [None if found is None else (found.seq, found.data) for found in map(streams.load_snapshot, ("s", "t"))]


def repaired(w: World, stream: str = "s", *, apply: bool = False) -> Any:
    """Of each stream an operation is gone."""
    streams = filled(w)
    w.virtual.streams.append("t", [Op("e", b"5")])
    w.virtual.streams.append("s", [Op("f", b"5")])
    items = w.backend.tables.stored(STREAMS).items
    for place in [place for place in items if place in (("s", 3), ("t", 1))]:
        del items[place]
        w.backend.tables.stored(STREAMS).order[place[0]].remove((place[1], place[0], place[1]))
    found = streams.repair(stream, apply=apply)
    return found[0].stream if hasattr(found[0], "stream") else len(found), len(streams.repair(stream))


def waited(w: World, **options: Any) -> Any:
    page = filled(w).wait(**{"stream": "s", "after": 0, "wait_s": 0.0, **options})
    return [op.id for op in page.ops]


def has_waited(w: World, wait_s: float = 0.05, *, is_stopped: bool = False) -> bool:
    """Whether a wait at the end of a stream takes its time, where each look at the clock takes 10 ms."""
    flag, streams = Flag(), filled(w)
    if is_stopped:
        flag.set()
    clock, look = w.virtual.clock, w.virtual.clock.now
    clock.now = lambda: clock.advance(0.01) or look()  # type: ignore[func-returns-value]
    began_us = look().middle_us
    streams.wait("s", 3, wait_s=wait_s, stop=flag)
    return (look().middle_us - began_us) / 1e6 >= 0.05


def tailed(w: World, stream: str = "s", after: int = 0, *, is_stopped: bool = False) -> Any:
    flag = Flag()
    if is_stopped:
        flag.set()
    found = []
    for op in filled(w).tail(stream, after, stop=flag):
        found.append(op.id)
        if op.id in "cd":
            flag.set()
    return found


def appended(w: World, stream: str = "s", ops: Any = ()) -> Any:
    filled(w).append(stream, ops or [Op("z", b"")])
    return [w.virtual.streams.head(each).last_seq for each in ("s", "t")]


def in_time(w: World, deadline_s: float | None) -> str:
    look = w.virtual.clock.now
    w.virtual.clock.now = lambda: w.virtual.clock.advance(1) or look()  # type: ignore[func-returns-value]
    return refusal(lambda: w.app.streams.append("s", [Op(f"{n}", b"x") for n in range(1000)], deadline_s=deadline_s))


def listed_after(w: World, skipped: int) -> list[str]:
    first = filled(w).list(limit=1)
    return list(w.app.streams.list(cursor=first.next_cursor if skipped else None).streams)


def sought(w: World, group: str = "g", stream: str = "s", to: Any = 1) -> list[int]:
    filled(w).seek(group, stream, to)
    return [w.app.streams.cursor(each, name).after for each, name in (("g", "s"), ("g", "t"), ("h", "s"))]


def replayed(w: World, group: str = "g", stream: str = "s", seq: int | None = None) -> int:
    """How many of the parked operations are to be handled once more."""
    poisoned(w)
    poisoned(w, "h", "t", ids="d")
    return int(w.app.streams.replay_parked(group, stream, seq))


def grouped(w: World, **options: Any) -> Any:
    for group in ("g", "h"):
        filled(w).seek(group, "s", 1)
    return w.app.streams.groups(**options)


def grouped_after(w: World, skipped: int) -> int:
    first = grouped(w, limit=1)
    return len(w.app.streams.groups(cursor=first.next_cursor if skipped else None).groups)


def marked(read: Callable[[Any, str], Any]) -> Row:
    """A mark that no operation has is another log's."""

    def see(w: World, mark: str) -> str:
        streams = filled(w)
        return refusal(lambda: read(streams, mark))

    return row(see, ("", ""), ("o" + "0" * 32, "LogChanged"))


GROUPS = (("g", 3), ("h", 0))
PAIRS = (("g", "s", 0), ("g", "t", 1), ("h", "s", 2))

STREAM_ROWS = {
    "streams.append": {
        "stream": row(appended, ("s", [4, 1]), ("t", [3, 2])),
        "ops": row(
            lambda w, ids: appended(w, ops=[Op(id, b"") for id in ids]), ("x", [4, 1]), ("xyz", [6, 1])
        ),
        "deadline_s": row(in_time, (None, ""), (0.5, "AppendTimeout")),
        "expected_seq": row(
            lambda w, seq: refusal(lambda: filled(w).append("s", [Op("z", b"")], expected_seq=seq)),
            (3, ""), (2, "UnexpectedSeq"),
        ),
    },
    "streams.page": {
        "stream": of_stream(lambda streams, stream: len(streams.page(stream).ops)),
        "after": after(lambda streams, after: streams.page("s", after).ops),
        "limit": row(lambda w, limit: len(filled(w).page("s", limit=limit).ops), (1, 1), (2, 2)),
        "max_bytes": row(lambda w, most: len(filled(w).page("s", max_bytes=most).ops), (1, 1), (None, 3)),
        "mark": marked(lambda streams, mark: streams.page("s", 2, mark=mark)),
    },
    "streams.mark": {
        "stream": row(lambda w, stream: bool(filled(w).mark(stream, 1)), ("s", True), ("none", False)),
        "after": row(lambda w, after: bool(filled(w).mark("s", after)), (1, True), (0, False)),
    },
    "streams.wait": {
        "stream": row(lambda w, stream: waited(w, stream=stream), ("s", ["a", "b", "c"]), ("t", ["d"])),
        "after": row(lambda w, after: waited(w, after=after), (0, ["a", "b", "c"]), (2, ["c"])),
        "limit": row(lambda w, limit: waited(w, limit=limit), (1, ["a"]), (2, ["a", "b"])),
        "max_bytes": row(lambda w, most: waited(w, max_bytes=most), (1, ["a"]), (None, ["a", "b", "c"])),
        "wait_s": row(has_waited, (0.0, False), (0.05, True)),
        "stop": row(lambda w, stop: has_waited(w, is_stopped=stop), (False, True), (True, False)),
        "mark": marked(lambda streams, mark: streams.wait("s", 2, wait_s=0, mark=mark)),
    },
    "streams.read": {
        "stream": of_stream(lambda streams, stream: len(list(streams.read(stream)))),
        "after": after(lambda streams, after: streams.read("s", after)),
        "limit": row(lambda w, limit: len(list(filled(w).read("s", limit=limit))), (1, 1), (None, 3)),
        "mark": marked(lambda streams, mark: list(streams.read("s", 2, mark=mark))),
    },
    "streams.tail": {
        "stream": row(tailed, ("s", ["a", "b", "c"]), ("t", ["d"])),
        "after": row(lambda w, after: tailed(w, after=after), (0, ["a", "b", "c"]), (2, ["c"])),
        "stop": row(lambda w, stop: tailed(w, is_stopped=stop), (False, ["a", "b", "c"]), (True, [])),
        "mark": marked(lambda streams, mark: next(streams.tail("s", 2, mark=mark))),
    },
    "streams.head": {"stream": of_stream(lambda streams, stream: streams.head(stream).last_seq)},
    "streams.list": {
        "limit": row(lambda w, limit: filled(w).list(limit=limit).streams, (1, ["s"]), (2, ["s", "t"])),
        "cursor": row(listed_after, (0, ["s", "t"]), (1, ["t"])),
    },
    "streams.truncate": {
        "stream": row(lambda w, stream: floors(w, stream)[0], ("s", [1, 0]), ("t", [0, 1])),
        "upto": row(lambda w, upto: floors(w, upto=upto)[0], (1, [1, 0]), (3, [3, 0])),
        "repush_window_s": row(
            lambda w, window_s: floors(w, upto=3, repush_window_s=window_s)[1], (3600.0, 0), (1.0, 3)
        ),
    },
    "streams.snapshot": {
        "stream": row(snapshots, ("s", [(1, b"data"), None]), ("t", [None, (1, b"data")])),
        "seq": row(lambda w, seq: snapshots(w, seq=seq)[0][0], (1, 1), (2, 2)),
        "data": row(lambda w, data: snapshots(w, data=data)[0][1], (b"x", b"x"), (b"y", b"y")),
    },
    "streams.load_snapshot": {
        "stream": row(
            lambda w, stream: (filled(w).snapshot("s", 1, b"d"), w.app.streams.load_snapshot(stream) is None)[1],
            ("s", False), ("t", True),
        ),
    },
    "streams.repair": {
        "stream": row(
            lambda w, stream: (repaired(w), len(w.app.streams.repair(stream)))[1], ("s", 1), ("u", 0)
        ),
        "apply": row(lambda w, apply: repaired(w, apply=apply)[1], (False, 1), (True, 0)),
    },
    "streams.lag": {
        "group": row(lambda w, group: behind(w, group, ["s"]), ("g", [0]), ("h", [3])),
        "streams": row(lambda w, streams: behind(w, "g", streams), (["s"], [0]), (["s", "t"], [0, 1])),
    },
    "streams.cursor": {
        "group": row(lambda w, group: come_to(w, group, "s"), *GROUPS),
        "stream": row(lambda w, stream: come_to(w, "g", stream), ("s", 3), ("t", 0)),
    },
    "streams.seek": {
        "group": row(sought, ("g", [1, 0, 0]), ("h", [0, 0, 1])),
        "stream": row(lambda w, stream: sought(w, stream=stream), ("s", [1, 0, 0]), ("t", [0, 1, 0])),
        "to": row(lambda w, to: sought(w, to=to)[0], (1, 1), ("head", 3)),
    },
    "streams.replay_parked": {
        "group": row(replayed, ("g", 3), ("h", 0)),
        "stream": row(lambda w, stream: replayed(w, stream=stream), ("s", 3), ("t", 0)),
        "seq": row(lambda w, seq: replayed(w, seq=seq), (None, 3), (1, 1)),
    },
    "streams.groups": {
        "limit": row(lambda w, limit: len(grouped(w, limit=limit).groups), (1, 1), (2, 2)),
        "cursor": row(grouped_after, (0, 2), (1, 1)),
    },
    "streams.parked": {
        "group": row(lambda w, group: (poisoned(w), parked(w, group))[1], ("g", [1, 2, 3]), ("h", [])),
        "stream": row(lambda w, stream: (poisoned(w), parked(w, stream=stream))[1], ("s", [1, 2, 3]), ("t", [])),
        "limit": row(lambda w, limit: (poisoned(w), parked(w, limit=limit))[1], (1, [1]), (2, [1, 2])),
        "after": row(lambda w, after: (poisoned(w), parked(w, after=after))[1], (0, [1, 2, 3]), (2, [3])),
    },
    "streams.unpark": {
        "group": row(unparked, ("g", [[2], [1], [1, 2]]), ("h", [[1, 2], [1], [2]])),
        "stream": row(
            lambda w, stream: unparked(w, stream=stream), ("s", [[2], [1], [1, 2]]), ("t", [[1, 2], [], [1, 2]])
        ),
        "seq": row(lambda w, seq: unparked(w, seq=seq)[0], (1, [2]), (2, [1])),
    },
    "streams.resume": {
        "group": row(lambda w, group: resumed(w, group)[0], ("g", [False, True, True]), ("h", [True, True, False])),
        "stream": row(
            lambda w, stream: resumed(w, stream=stream)[0], ("s", [False, True, True]), ("t", [True, False, True])
        ),
        "skip": row(lambda w, skip: resumed(w, skip=skip)[1], (False, 0), (True, 1)),
    },
}  # fmt: skip
