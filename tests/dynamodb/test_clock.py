"""The service's time lies within the bounds whatever the host's clocks do, and never runs backwards."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from casework.backends.dynamodb.clock import DRIFT, FLEET_SKEW_S, UNKNOWN_S, ServiceClock

START_S = 1_750_000_000.0


class World:
    """True time, and a host whose two clocks are wrong in the ways that clocks are."""

    def __init__(self, *, wall_offset_s: float = 0.0, drift: float = 0.0) -> None:
        self.true_s = START_S
        self._monotonic_s, self._wall_s = 77.0, START_S + wall_offset_s
        self._drift = drift
        self.clock = ServiceClock(monotonic_s=lambda: self._monotonic_s, wall_s=lambda: self._wall_s)

    def pass_time(self, seconds: float, *, frozen: bool = False) -> None:
        """``frozen``: the monotonic clock stands still meanwhile, as in a Lambda between calls."""
        self.true_s += seconds
        self._wall_s += seconds * (1 + self._drift)
        if not frozen:
            self._monotonic_s += seconds * (1 + self._drift)

    def set_wall_clock(self, by_s: float) -> None:
        self._wall_s += by_s

    def call(self, before_s: float = 0.01, after_s: float = 0.01, *, skew_s: float = 0.0) -> None:
        """A round trip; the header is written in between, by a host of the service whose clock is off by ``skew_s``."""
        sent = self.clock.mark()
        self.pass_time(before_s)
        date = format_datetime(datetime.fromtimestamp(int(self.true_s + skew_s), UTC), usegmt=True)
        self.pass_time(after_s)
        self.clock.observe(date, sent, self.clock.mark())

    def assert_right(self) -> None:
        now = self.clock.now()
        assert now.earliest_us / 1e6 <= self.true_s + 1e-3, "the lower bound is ahead of the service's time"
        assert now.latest_us / 1e6 >= self.true_s - 1e-3, "the upper bound is behind the service's time"


def width_s(clock: ServiceClock) -> float:
    now = clock.now()
    return (now.latest_us - now.earliest_us) / 1e6


def test_without_an_answer_a_live_lease_of_half_a_second_is_not_stolen_by_a_host_four_minutes_fast() -> None:
    world = World(wall_offset_s=240.0)
    lease_ends_s = world.true_s + 0.5
    assert world.clock.now().earliest_us / 1e6 < lease_ends_s
    assert width_s(world.clock) >= 2 * UNKNOWN_S
    assert not world.clock.has_sample


def test_one_answer_bounds_the_time_of_a_host_an_hour_off_to_a_little_over_a_second() -> None:
    for offset_s in (-3600.0, 3600.0):
        world = World(wall_offset_s=offset_s)
        world.call()
        world.assert_right()
        assert width_s(world.clock) < 1.0 + 2 * FLEET_SKEW_S + 0.05


def test_many_answers_narrow_the_bound_to_little_more_than_a_round_trip() -> None:
    world = World(wall_offset_s=7.0)
    for _ in range(200):
        world.call()
        world.pass_time(0.0137)
    world.assert_right()
    assert width_s(world.clock) < 0.02 + 2 * FLEET_SKEW_S + 0.03


def test_the_bound_widens_with_the_drift_while_no_answer_comes() -> None:
    world = World()
    world.call()
    before_s = width_s(world.clock)
    world.pass_time(1000.0)
    assert 0 <= width_s(world.clock) - before_s - 2 * 1000 * DRIFT < 0.01


def test_an_answer_without_a_date_or_with_nonsense_teaches_nothing() -> None:
    clock = ServiceClock()
    mark = clock.mark()
    for date in (None, "", "yesterday"):
        clock.observe(date, mark, mark)
    assert not clock.has_sample


def test_a_frozen_host_does_not_trust_its_monotonic_clock() -> None:
    world = World()
    world.call()
    world.pass_time(600.0, frozen=True)
    world.assert_right()


def test_a_call_that_spans_a_freeze_does_not_pull_the_upper_bound_below_the_time() -> None:
    world = World()
    sent = world.clock.mark()
    date = format_datetime(datetime.fromtimestamp(int(world.true_s), UTC), usegmt=True)
    world.pass_time(900.0, frozen=True)
    world.clock.observe(date, sent, world.clock.mark())
    world.assert_right()


def test_one_wrong_answer_is_healed_by_the_next() -> None:
    world = World()
    world.call()
    world.call(skew_s=3600.0)
    world.assert_right()
    for _ in range(3):
        world.call()
    world.pass_time(1.0)
    world.assert_right()


def test_a_freeze_or_a_step_of_the_wall_clock_is_doubted_until_an_answer_comes() -> None:
    for seconds in (-3600.0, -2.0, 2.0, 3600.0):
        world = World()
        assert world.clock.doubt() == "unknown"
        world.call()
        assert world.clock.doubt() is None
        world.set_wall_clock(seconds)  # forward: the same as a freeze in which the monotonic clock stands still
        assert world.clock.doubt() == "failed"
        world.call()
        assert world.clock.doubt() is None
        assert width_s(world.clock) < 1.3


def test_an_answer_that_was_under_way_in_a_freeze_does_not_end_the_doubt() -> None:
    world = World()
    world.call()
    sent = world.clock.mark()
    date = format_datetime(datetime.fromtimestamp(int(world.true_s), UTC), usegmt=True)
    world.pass_time(900.0, frozen=True)
    world.clock.observe(date, sent, world.clock.mark())
    assert world.clock.doubt() == "failed"


def test_a_host_of_which_both_clocks_failed_knows_the_time_after_one_answer() -> None:
    world = World()
    world.call()
    world.pass_time(3600.0, frozen=True)
    world.set_wall_clock(-3 * 3600.0)
    assert world.clock.doubt() == "failed"
    world.clock.now()
    world.call()
    world.assert_right()
    assert width_s(world.clock) < 1.3


def test_two_clocks_that_stood_still_together_are_noticed_at_the_next_answer_and_right_after_another() -> None:
    world = World()
    world.call()
    world.true_s += 3600.0  # a virtual machine that was stopped whole
    assert world.clock.doubt() is None, "nothing on this host can tell"
    world.call()
    assert world.clock.doubt() == "failed", "the answer and the clocks contradict each other"
    world.call()
    world.assert_right()
    assert world.clock.doubt() is None and width_s(world.clock) < 1.3


def test_after_a_quarter_of_an_hour_without_an_answer_another_one_is_wanted() -> None:
    world = World()
    world.call()
    world.pass_time(901.0)
    assert world.clock.doubt() == "stale"
    world.assert_right()


_USUAL = [
    st.tuples(st.just("pass"), st.floats(0, 5000)),
    st.tuples(st.just("call"), st.floats(0.0001, 3.0)),
    st.tuples(st.just("look"), st.just(0.0)),
    st.tuples(st.just("freeze, set, look"), st.floats(0, 5000)),
]
_FREEZES = [st.tuples(st.just(what), st.floats(0, 5000)) for what in ("freeze", "freeze in a call")]
_STEPS = st.one_of(  # a freeze and a step back that make up for each other cannot be seen by anybody on the host
    st.lists(st.one_of(*_USUAL, *_FREEZES, st.tuples(st.just("set"), st.floats(0, 7200))), max_size=40),
    st.lists(st.one_of(*_USUAL, st.tuples(st.just("set"), st.floats(-7200, 7200))), max_size=40),
)


@given(
    steps=_STEPS,
    offset_s=st.floats(-86400, 86400),
    drift=st.floats(-DRIFT / 2, DRIFT / 2),
    skew_s=st.floats(-FLEET_SKEW_S, FLEET_SKEW_S),
)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_time_that_is_relied_on_is_within_the_bounds_and_never_runs_backwards(
    steps: list[tuple[str, float]], offset_s: float, drift: float, skew_s: float
) -> None:
    """As a backend does: it asks first where the clock is in doubt. Several failures may come before the next look."""
    world = World(wall_offset_s=offset_s, drift=drift)
    last = None
    for what, seconds in steps:
        if what == "pass":
            world.pass_time(seconds)
        elif what == "freeze":
            world.pass_time(seconds, frozen=True)
        elif what == "set":
            world.set_wall_clock(seconds)
        elif what == "freeze in a call":
            sent = world.clock.mark()
            date = format_datetime(datetime.fromtimestamp(int(world.true_s + skew_s), UTC), usegmt=True)
            world.pass_time(seconds, frozen=True)
            world.clock.observe(date, sent, world.clock.mark())
        elif what == "call":
            world.call(seconds / 2, seconds / 2, skew_s=skew_s)
        if "look" in what:
            if what != "look":  # both clocks fail at once, by different amounts
                world.call(skew_s=skew_s)
                world.pass_time(seconds, frozen=True)
                world.set_wall_clock(-2.5 * seconds - 3.0)
            while world.clock.doubt() in ("unknown", "failed"):
                world.call(skew_s=skew_s)
            world.assert_right()
            now = world.clock.now()
            if last is not None:
                assert now.earliest_us >= last.earliest_us
                assert now.middle_us >= last.middle_us
            last = now
