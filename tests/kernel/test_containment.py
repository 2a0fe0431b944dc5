"""What users' functions raise is told apart and told safely."""

from __future__ import annotations

import _thread
import signal
from types import FrameType
from typing import Any

import pytest

from casework.kernel.containment import Escape, contained, guarded, in_words, is_interrupt, shown, text_of, type_of


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Leaving(BaseException):
    pass


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


def raises(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), "SystemExit: the function called sys.exit(3)"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration("x"), "StopIteration: x"),
        (StopAsyncIteration(), "StopAsyncIteration"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Leaving("now"), "Leaving: now"),
    ],
)
def test_what_is_no_exception_becomes_one_that_says_what_it_was(error: BaseException, told: str) -> None:
    with pytest.raises(Escape) as caught:
        guarded(raises, error)
    assert in_words(caught.value) == told
    assert type_of(caught.value) == type(error).__name__


def test_an_exception_stays_what_it_is() -> None:
    error = ValueError("no")
    assert contained(error) is error
    with pytest.raises(ValueError, match="no"):
        guarded(raises, error)


@pytest.mark.parametrize("error", [Speechless(), Rude()])
def test_an_exception_without_words_is_told_all_the_same(error: Exception) -> None:
    assert "__str__ raised" in text_of(error)
    assert "repr" in shown(Speechless())


def test_text_that_no_store_takes_is_made_storable() -> None:
    assert in_words(ValueError("a\udc00b\0c")) == "ValueError: a?b\ufffdc"
    assert len(text_of(ValueError("x" * 100_000))) == 4_000


def test_a_function_that_raises_keyboard_interrupt_is_no_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        raise KeyboardInterrupt
    assert not is_interrupt(caught.value)


def test_a_real_ctrl_c_ends_what_it_meets() -> None:
    def interrupted() -> None:
        _thread.interrupt_main()
        for _ in range(1_000_000):
            pass

    # A process that was started in the background ignores the signal, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            guarded(interrupted)
        assert is_interrupt(caught.value)
    finally:
        signal.signal(signal.SIGINT, before)


def test_so_does_one_that_a_handler_raises() -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            guarded(signal.raise_signal, signal.SIGUSR1)
        assert is_interrupt(caught.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
