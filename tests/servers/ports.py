"""Ports that no other test process takes at the same time.

Asking the kernel for a free port and closing it again is a race between the workers of pytest-xdist: two can be told
the same one. So a port is held by a locked file for as long as its server may need it, restarts included. The range
lies below the ports that Linux gives to outgoing connections.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000


class Port:
    """A free port of the loopback address, held until ``release``."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"casework-test-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for number in random.sample(range(_FIRST, _LAST), 200):
            self._lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _try_to_bind(number)
            except OSError:
                os.close(self._lock)
                continue
            self.number = number
            return
        raise RuntimeError(f"no free port between {_FIRST} and {_LAST}; remove what holds them")

    def release(self) -> None:
        """Let others have the port."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _try_to_bind(number: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, number))
