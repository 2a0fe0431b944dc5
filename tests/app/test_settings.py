"""What a store decides for every process that opens it: the codec, the trace, the dedupe window."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

import casework
from casework.app.settings import SETTINGS, take_codec
from casework.app.sync import App
from casework.backends.drive import run
from casework.backends.memory import MemoryBackend
from casework.errors import Misuse
from casework.kernel.effects import Get

LIGHT = {"id": "light", "initial": "on", "context": {"word": "secret"}, "states": {"on": {"on": {"Go": {}}}}}


class Keyed:
    """Encodes with its first key, decodes with any of them, as rotating keys do."""

    def __init__(self, *keys: str, name: Any = None) -> None:
        self.keys = keys
        if name is not None:
            self.name = name

    def encode(self, text: str) -> str:
        return f"{self.keys[0]}:{base64.b64encode(text.encode()).decode()}"

    def decode(self, text: str) -> str:
        key, _, rest = text.partition(":")
        if key not in self.keys:
            raise ValueError(f"no key {key[:5]!r}")
        return base64.b64decode(rest).decode()


class Garbling(Keyed):
    """A wrong key that is not noticed by the codec itself."""

    def decode(self, text: str) -> str:
        return text[::-1]


class FromPlain(Keyed):
    """Reads what was stored without a codec as well."""

    def decode(self, text: str) -> str:
        return super().decode(text) if text.partition(":")[0] in self.keys else text


def machine() -> casework.Machine:
    return casework.Machine.from_dict(LIGHT)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture(params=["blocking", "async"])
def opens(request: pytest.FixtureRequest, backend: MemoryBackend) -> Callable[..., None]:
    """Opens the store, and closes it: for what becomes of an attempt."""

    def blocking(**arguments: Any) -> None:
        casework.open(backend, create=True, **arguments).close()

    def on_a_loop(**arguments: Any) -> None:
        from casework.backends.threaded import ThreadedBackend

        async def go() -> None:
            async with casework.open_async(ThreadedBackend(backend), create=True, **arguments):
                pass

        asyncio.run(go())

    return blocking if request.param == "blocking" else on_a_loop


def opened(backend: MemoryBackend, *codec: Any) -> App:
    return casework.open(backend, machines=[machine()], codec=codec[0] if codec else None, create=True)


def settings(backend: MemoryBackend) -> dict[str, Any]:
    found = backend.execute(Get(SETTINGS))
    return {name: found.get(name) for name in ("codec", "codec_probe", "trace_max")}


# --- the codec belongs to the store -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (None, "with the codec 'Keyed', and this process has no codec; give the store's codec"),
        (Keyed("k1", name="other"), "with the codec 'Keyed', and this process has the codec 'other'"),
        (Keyed("k2"), "'Keyed' of this process cannot read what this store's codec of that name wrote .*ValueError"),
        (Garbling("k1", name="Keyed"), "it decodes to something else"),
    ],
)
def test_a_process_without_the_stores_codec_is_refused_when_it_opens_it(
    opens: Callable[..., None], backend: MemoryBackend, codec: Any, said: str
) -> None:
    opened(backend, Keyed("k1")).start("light", id="l")
    before = settings(backend)
    for machines in ([machine()], []):
        with pytest.raises(Misuse, match=said):
            opens(machines=machines, codec=codec)
    assert settings(backend) == before
    assert opened(backend, Keyed("k1")).get("l").context == {"word": "secret"}


def test_a_store_without_a_codec_refuses_a_process_that_has_one(
    opens: Callable[..., None], backend: MemoryBackend
) -> None:
    opens(machines=[machine()])
    with pytest.raises(Misuse, match="with no codec, and this process has the codec 'Keyed'"):
        opens(machines=[machine()], codec=Keyed("k1"))
    assert settings(backend)["codec"] == ""


def test_who_has_no_machines_does_not_decide_that_there_is_no_codec(
    opens: Callable[..., None], backend: MemoryBackend
) -> None:
    opens()
    assert settings(backend)["codec"] is None
    opens(machines=[machine()], codec=Keyed("k1"))
    assert settings(backend)["codec"] == "Keyed"
    with pytest.raises(Misuse, match="has no codec"):
        opens()


def test_of_two_processes_that_open_a_new_store_at_once_one_decides_and_the_other_is_refused() -> None:
    class Late(MemoryBackend):
        """Another process opens the store between this one's look and its write."""

        def execute(self, effect: Any) -> Any:
            found = super().execute(effect)
            if isinstance(effect, Get) and effect.key == SETTINGS and found is not None and "codec" not in found:
                opened(other, Keyed("k1"))
            return found

    late = Late()
    other = MemoryBackend()
    other.tables = late.tables
    casework.open(other, create=True)
    with pytest.raises(Misuse, match="with the codec 'Keyed'"):
        opened(late)
    assert settings(other)["codec"] == "Keyed"


@pytest.mark.parametrize(
    "codec", ["base64", object(), Keyed, 5, Keyed("k", name=""), Keyed("k", name=7), Keyed("k" * 0, name="x" * 101)]
)
def test_what_is_no_codec_is_refused_before_anything_is_opened(codec: Any, tmp_path: Any) -> None:
    with pytest.raises(Misuse, match="codec"):
        casework.open(f"sqlite:///{tmp_path}/shop.db", machines=[machine()], codec=codec)
    with pytest.raises(Misuse, match="codec"):
        casework.open_async(f"sqlite:///{tmp_path}/shop.db", machines=[machine()], codec=codec)
    assert list(tmp_path.iterdir()) == []


def test_a_codec_that_does_not_give_back_what_it_got_is_refused_and_decides_nothing(
    opens: Callable[..., None], backend: MemoryBackend
) -> None:
    opens()
    for codec in (Garbling("k"), Keyed()):
        with pytest.raises(Misuse, match=r"does not give back|cannot encode"):
            opens(machines=[machine()], codec=codec)
    assert settings(backend)["codec"] is None


def test_a_key_is_replaced_while_the_old_processes_go_on(backend: MemoryBackend) -> None:
    old = opened(backend, Keyed("k1"))
    old.start("light", id="l1")
    both, new = Keyed("k2", "k1"), Keyed("k2")
    rotating = opened(backend, both)
    rotating.start("light", id="l2")
    assert rotating.get("l1").context == {"word": "secret"}
    run(take_codec(both), backend)
    with pytest.raises(Misuse, match="another key"):
        opened(backend, Keyed("k1"))
    assert opened(backend, new).get("l2").context == {"word": "secret"}


def test_another_codec_takes_over_only_when_it_reads_what_is_there(backend: MemoryBackend) -> None:
    opened(backend).start("light", id="l")
    with pytest.raises(Misuse, match="cannot read what no codec stored"):
        run(take_codec(Keyed("k1")), backend)
    run(take_codec(FromPlain("k1")), backend)
    app = opened(backend, FromPlain("k1"))
    assert app.get("l").context == {"word": "secret"}
    app.handle("l", "Go")
    with pytest.raises(Misuse, match="this process has no codec"):
        opened(backend)
    with pytest.raises(Misuse, match="no codec cannot read what the codec 'FromPlain' stored"):
        run(take_codec(None), backend)


# --- the trace --------------------------------------------------------------------------------------------------------


def test_who_says_nothing_of_the_trace_keeps_the_stores(opens: Callable[..., None], backend: MemoryBackend) -> None:
    opens()
    assert settings(backend)["trace_max"] is None
    first = casework.open(backend, machines=[machine()], trace_max=5)
    first.start("light", id="l")
    opened(backend).handle("l", "Go")
    assert [entry["version"] for entry in first.trace("l")] == [1, 2], "no gap where the second process worked"
    casework.open(backend, machines=[machine()], trace_max=0).handle("l", "Go")
    assert settings(backend)["trace_max"] == 5, "the first one decides"
