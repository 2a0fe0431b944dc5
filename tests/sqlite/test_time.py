"""The processes of a host agree on the time, whatever is done to the host's clock, and it never runs backwards."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import casework
from casework.backends.sqlite import SqliteBackend, reaping
from casework.backends.surroundings import HostClock
from casework.kernel.effects import Get, Write
from casework.kernel.items import Put, Table
from tests.sqlite.clocked import clock_of, machine

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
ITEMS = Table(name="things", partition="id", ttl="over_at_s")


class Host:
    """A host whose two clocks the test moves; its processes are backends on one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steady_us, self.wall_us = 5_000_000_000, 1_750_000_000_000_000
        self.open: list[SqliteBackend] = []

    def process(self) -> SqliteBackend:
        clock = HostClock(steady_us=lambda: self.steady_us, wall_us=lambda: self.wall_us)
        backend = SqliteBackend(self.path, clock=clock)
        backend.create_tables([ITEMS])
        self.open.append(backend)
        return backend

    def passes(self, us: int) -> None:
        self.steady_us += us
        self.wall_us += us


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "host.db")
    yield host
    for backend in host.open:
        backend.close()


def now_us(backend: SqliteBackend) -> int:
    return backend.now().earliest_us


def write(backend: SqliteBackend, id: str = "x", **more: Any) -> None:
    backend.execute(Write(Put(ITEMS, {"id": id, **more})))


def test_after_a_step_back_time_goes_on_at_the_pace_of_the_steady_clock(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    process = host.process()
    before_us = now_us(process)
    host.wall_us -= 3 * HOUR_US
    host.passes(900_000_000)
    with caplog.at_level(logging.INFO, "casework"):
        passed_us = now_us(process) - before_us
        now_us(process)
    assert 898_000_000 < passed_us <= 900_000_000
    assert len(caplog.records) == 1, "a step is told once"
    assert "set back by 10799.1 s" in caplog.text


def test_it_is_slower_by_a_thousandth_until_the_hosts_clock_has_caught_up(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    process = host.process()
    now_us(process)
    host.wall_us -= 10_000_000
    now_us(process)
    host.passes(9_000_000_000)
    assert 900_000 < now_us(process) - host.wall_us < 1_100_000
    host.passes(1_100_000_000)
    with caplog.at_level(logging.INFO, "casework"):
        assert now_us(process) == host.wall_us
    assert "has caught up" in caplog.text


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("back_us", [3 * HOUR_US, 400 * DAY_US])
def test_a_process_that_starts_after_a_step_back_agrees_with_those_before(
    host: Host, closes: bool, back_us: int
) -> None:
    first = host.process()
    write(first)
    before_us = now_us(first)
    if closes:
        first.close()
    host.wall_us -= back_us
    host.passes(60_000_000)
    second = host.process()
    assert 59_900_000 < now_us(second) - before_us <= 60_000_000
    if not closes:
        assert abs(now_us(second) - now_us(first)) < 1000


def test_what_was_written_while_the_clock_was_ahead_for_a_moment_is_found_by_who_saw_nothing_of_it(host: Host) -> None:
    worker, sender = host.process(), host.process()
    now_us(worker)
    now_us(sender)
    host.wall_us += DAY_US
    sent_us = now_us(sender)
    write(sender)
    host.wall_us -= DAY_US
    assert now_us(worker) < sent_us, "it has not looked yet"
    host.passes(1_000_000)
    assert now_us(worker) >= sent_us
    assert abs(now_us(worker) - now_us(sender)) < 2000


def test_a_short_process_with_a_wrong_clock_leaves_its_time_behind(host: Host) -> None:
    worker = host.process()
    now_us(worker)
    host.wall_us += DAY_US
    short = host.process()
    write(short)
    sent_us = now_us(short)
    short.close()
    host.wall_us -= DAY_US
    host.passes(1_000_000)
    assert now_us(worker) >= sent_us
    assert now_us(host.process()) >= sent_us


def test_a_freeze_in_which_the_steady_clock_stands_still_is_followed_and_told(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    process = host.process()
    now_us(process)
    host.wall_us += HOUR_US
    with caplog.at_level(logging.INFO, "casework"):
        assert now_us(process) == host.wall_us
        now_us(process)
    assert len(caplog.records) == 1
    assert "set forward by 3600.0 s, or the host stood still" in caplog.text


def test_a_usual_day_is_not_told(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    first, second = host.process(), host.process()
    with caplog.at_level(logging.INFO, "casework"):
        for n in range(1, 100):
            host.passes(n * 10_000_000)
            host.wall_us += (-1) ** n * 900  # corrected now and then
            write(first)
            now_us(second)
    assert not caplog.records


def test_a_clock_that_is_a_day_ahead_deletes_nothing_for_a_day(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "EVERY_S", 0.0)
    process = host.process()
    write(process, "kept", over_at_s=host.wall_us // 1_000_000 + 3600)
    write(process, "over", over_at_s=host.wall_us // 1_000_000 - 10)

    def laps(backend: SqliteBackend) -> None:
        for _ in range(10):
            write(backend, "tick")

    laps(process)
    assert process.execute(Get(ITEMS.key("over"))) is None
    host.wall_us += DAY_US
    now_us(process)
    laps(process)
    again = host.process()  # a process that starts while the clock is ahead
    laps(again)
    assert process.execute(Get(ITEMS.key("kept"))) is not None
    host.wall_us -= DAY_US  # and right again: what is kept counts by the host's clock
    host.passes(1_800_000_000)
    laps(process)
    laps(again)
    assert process.execute(Get(ITEMS.key("kept"))) is not None
    host.passes(1_900_000_000 + DAY_US)
    laps(process)
    assert process.execute(Get(ITEMS.key("kept"))) is None


def test_after_the_host_was_started_again_time_does_not_begin_before_what_is_in_the_file(host: Host) -> None:
    first = host.process()
    write(first)
    before_us = now_us(first)
    first.close()
    with sqlite3.connect(host.path) as connection:
        connection.execute("UPDATE casework_writers SET boot = 'another'")
    connection.close()
    host.steady_us, host.wall_us = 1_000_000, host.wall_us - DAY_US
    second = host.process()
    assert 0 <= now_us(second) - before_us < 1000
    host.passes(10_000_000)
    assert 9_980_000 < now_us(second) - before_us <= 10_001_000


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pass", "set", "freeze", "first", "second", "opens"]), st.integers(-DAY_US, DAY_US)
    ),
    max_size=25,
)  # fmt: skip


@given(steps=_STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_time_never_runs_backwards_and_never_slower_than_the_steady_clock(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    host = Host(tmp_path_factory.mktemp("host") / "h.db")
    processes = [host.process(), host.process()]
    begun = [(now_us(process), host.steady_us) for process in processes]
    last_us = [at_us for at_us, _ in begun]
    for what, by_us in steps:
        if what == "pass":
            host.passes(abs(by_us))
        elif what == "set":
            host.wall_us += by_us
        elif what == "freeze":
            host.wall_us += abs(by_us)
        elif what == "opens":
            third = host.process()
            write(third)
            third.close()
        else:
            n = what == "second"
            at_us = now_us(processes[n])
            write(processes[n])
            assert at_us >= last_us[n]
            passed_us = host.steady_us - begun[n][1]
            assert at_us >= begun[n][0] + passed_us * 999 // 1000 - 1000
            last_us[n] = at_us
    host.passes(1_000_000)
    for _ in range(2):
        times = [now_us(process) for process in processes]
        for process in processes:
            write(process)
        host.passes(1_000_000)
    assert abs(times[0] - times[1]) < 3000, "they agree within a second or two"
    for backend in host.open:
        backend.close()


@pytest.mark.slow
def test_what_is_sent_and_armed_acts_at_once_in_another_process_after_steps_in_both_directions(tmp_path: Path) -> None:
    path, offset = tmp_path / "two.db", tmp_path / "offset"
    offset.write_text("0")
    command = [sys.executable, "-m", "tests.sqlite.clocked", str(path), str(offset)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as worker:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "works\n"
        for n, by_us in enumerate((-3 * HOUR_US, DAY_US, 0, -DAY_US)):
            offset.write_text(str(by_us))
            with (
                SqliteBackend(path, clock=clock_of(offset)) as backend,
                casework.open(backend, machines=[machine()]) as app,
            ):
                if n == 1:
                    offset.write_text("0")  # it was ahead for the moment in which this process opened the file
                app.start("light", id=f"l-{n}")
                app.send(f"l-{n}", "Switch")
                assert app.wait(f"l-{n}", timeout_s=60).status == "done"
        worker.stdin.write("leave\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "left\n"
