"""Start a server, wait until it answers, stop or kill it: always by its own process id."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.ports import LOOPBACK, Port

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class NotInstalled(Exception):
    """The server is not on this machine; the message says how to get it."""


class ServerFailed(Exception):
    """The server ended, or did not answer in time; the message ends with its log."""


class Server:
    """One server process on a port of its own; the port stays the same over restarts."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        ready_path: str,
        port: Port,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = list(command)
        self.log = log
        self.url = f"http://{LOOPBACK}:{port.number}"
        self._port = port
        self._ready_path = ready_path
        self._environment = {**_environment_without_aws(), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; only while it runs."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it and return once it answers; ``ServerFailed`` with its log when it does not."""
        assert self._process is None, "the server is running already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.log.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = _guard(self._process.pid)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to end (SIGTERM), insist after a while, and give the port back."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._forget()
        self._port.release()

    def kill(self) -> None:
        """End it without a word (SIGKILL), as a crash of the machine would; ``start`` may follow."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._forget()

    def restart_after_kill(self) -> None:
        """Kill it and start it again on the same port and data."""
        self.kill()
        self.start()

    def log_tail(self, lines: int = 30) -> str:
        """The end of what it wrote."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.command[0]} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"{self.command[0]} did not answer in {START_TIMEOUT_S} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self._port.number, timeout=2)
        try:
            connection.request("GET", self._ready_path)
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()

    def _forget(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._process = None
        if self._guard is not None:
            self._guard.communicate(b"ended\n")
            self._guard = None


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Kill ``pid`` when this process goes away, however it goes.

    The guard waits for a line. It gets one when the server was stopped; if the writing end of the pipe closes first,
    the tests were killed and nobody else would end the server.
    """
    return subprocess.Popen(
        ["sh", "-c", f"read -r line || kill -9 {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _environment_without_aws() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _executable(name: str, places: Sequence[Path], how_to_get_it: str) -> str:
    for place in places:
        if (place / name).exists():
            return str(place / name)
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(f"{name} is not installed; {how_to_get_it}")
    return found


def ministack(folder: Path) -> Server:
    """DynamoDB and SQS: the most faithful, and the only one that honours ClientRequestToken. Not started yet."""
    executable = _executable("ministack", [ROOT / ".venvs/ministack/bin"], "`make servers` brings it")
    port = Port()
    return Server(
        [executable],
        log=folder / "ministack.log",
        ready_path="/_ministack/health",
        port=port,
        environment={"BIND_HOST": LOOPBACK, "GATEWAY_PORT": str(port.number), "SERVICES": "dynamodb,sqs"},
    )


def roto(folder: Path, *, data: Path | None = None) -> Server:
    """DynamoDB, an independent second; with ``data`` every commit is synced and survives a kill. Not started yet."""
    executable = _executable("roto-server", [ROOT / ".venvs/roto/bin"], "`make servers` brings it")
    port = Port()
    storage = ["--ephemeral"] if data is None else ["--data-dir", str(data), "--durable"]
    return Server(
        [executable, "--host", LOOPBACK, "--port", str(port.number), *storage],
        log=folder / "roto.log",
        ready_path="/",
        port=port,
        environment={"NO_COLOR": "1"},
    )


def moto(folder: Path) -> Server:
    """DynamoDB as users have it in their own tests; never for contention, it loses writes. Not started yet."""
    executable = _executable("moto_server", [Path(sys.executable).parent], "`pip install -e '.[dev]'` brings it")
    port = Port()
    return Server(
        [executable, "-H", LOOPBACK, "-p", str(port.number)],
        log=folder / "moto.log",
        ready_path="/moto-api/",
        port=port,
    )
