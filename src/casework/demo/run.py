"""The demo from beginning to end: orders come in, workers work, one is killed, everything is proved.

:func:`run_demo` is what the command calls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from casework.demo.ledger import Reader
from casework.demo.orders import Order, read_orders
from casework.demo.screen import Progress, Screen, open_screen
from casework.demo.workers import WorkerProcess, wait_until_ready
from casework.errors import Misuse

if TYPE_CHECKING:
    from rich.console import Console

    from casework.app.sync import App
    from casework.demo.proof import Proof

TRACE_MAX = 1000
GIVE_UP_AFTER_S = 150.0
ORDERS_PER_S = 32
CONFIRM_S, CONFIRM_REMOTE_S = 4.0, 12.0
"""How long customers have to confirm their payment: long against the time that a webhook takes on that store."""


class DemoOptions(msgspec.Struct, kw_only=True):
    """What the command line asks for."""

    store: str | None = None
    orders: int = 200
    workers: int = 2
    seed: int = 1
    keep: bool = False


def run_demo(options: DemoOptions, console: Console | None, screen: Screen | None = None) -> Proof:
    """Run the demo and return its proof.

    Args:
        options: what is asked for.
        console: shows what happens; None keeps it silent.
        screen: shows it while it happens; None: what fits the console.

    Raises Misuse before anything is made; DemoFailed when it could not be carried through.
    """
    orders = read_orders(options.orders)
    if not 1 <= options.workers <= 16:
        raise Misuse(f"--workers is {options.workers}; use 1 to 16")
    folder = Path(tempfile.mkdtemp(prefix="casework-demo-"))
    try:
        demo = Demo(options, orders, folder, console, screen)
    except BaseException:
        folder.rmdir()
        raise
    try:
        with terminating() as demo.go_on:
            return demo.run()
    finally:
        demo.clean_up()


@contextlib.contextmanager
def terminating() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end the demo as Ctrl-C does, so that it takes its workers along.

    Yields what raises KeyboardInterrupt once either was sent: one that comes at a bad moment (inside a callback of the
    import system, for example) is raised where Python lets it go.
    """
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    def go_on() -> None:
        if asked:
            raise KeyboardInterrupt

    try:
        before = [(number, signal.signal(number, handle)) for number in (signal.SIGTERM, signal.SIGINT)]
    except ValueError:  # not the main thread
        yield go_on
        return
    try:
        yield go_on
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def not_interrupted() -> Iterator[None]:
    """Hold off an impatient second Ctrl-C, so that no worker is left behind."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which is the only one to be interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Demo:
    """One run of the demo."""

    def __init__(
        self,
        options: DemoOptions,
        orders: Sequence[Order],
        folder: Path,
        console: Console | None,
        screen: Screen | None = None,
    ) -> None:
        self.options = options
        self.orders = orders
        self.folder = folder
        self.console = console
        self.url = store_of_its_own(options.store, folder)
        self.is_remote = self.url.startswith("dynamodb:")
        self.ledger = Reader(folder / "ledger.jsonl")
        self.workers: list[WorkerProcess] = []
        self.progress = Progress(len(orders))
        self.screen = screen or open_screen(console)
        self.began = time.monotonic()
        self.is_complete = False
        self.go_on: Callable[[], None] = lambda: None
        """Raises KeyboardInterrupt when the demo is to end."""
        self._looked_s = 0.0

    @property
    def at_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def run(self) -> Proof:
        """Everything, in order."""
        self.screen.event(self.at_s, f"{len(self.orders)} orders, {self.options.workers} workers, {self.url}", "bold")
        import casework
        from casework.demo.machine import machines
        from casework.demo.world import World

        found = machines()
        with casework.open(self.url, machines=found, trace_max=TRACE_MAX, create=True) as app:
            for _ in range(self.options.workers):
                self.start_worker()
            wait_until_ready(self.workers)
            who = " and ".join(f"{worker.number} (pid {worker.pid})" for worker in self.workers)
            self.screen.event(self.at_s, f"workers {who} are ready; orders come in", "green")
            world = World(
                app, self.orders, self.options.seed, per_s=ORDERS_PER_S,
                confirm_within_s=CONFIRM_REMOTE_S if self.is_remote else CONFIRM_S,
            )  # fmt: skip
            kill = self.work(app, world)
            self.late_webhooks(app, world)
            for worker in self.workers:
                worker.stop()
            return self.finish(app, world, kill, found[0].definition)

    def start_worker(self) -> WorkerProcess:
        """One more worker."""
        declined = " ".join(order.id for order in self.orders if order.story == "declined")
        environment = {
            "CASEWORK_DEMO_LEDGER": str(self.ledger.path),
            "CASEWORK_DEMO_SEED": str(self.options.seed),
            "CASEWORK_DEMO_DECLINED": declined,
        }
        poll_s = 0.2 if self.is_remote else 0.05
        worker = WorkerProcess(len(self.workers) + 1, self.url, self.folder, environment, poll_s)
        self.workers.append(worker)
        return worker

    def work(self, app: App, world: Any) -> Any:
        """Let the world go on until every order has ended; kill a worker in the middle."""
        kill = None
        seen = 0
        while not (world.is_idle and self.progress.ended == len(self.orders)):
            self.ledger.look()
            news = self.ledger.entries[seen:]
            seen += len(news)
            self.progress.count(news)
            world.look(news, self.progress.ended)
            self.watch(app, world)
            if kill is None and world.started * 2 >= len(self.orders):
                kill = self.kill_one()
            if self.at_s > GIVE_UP_AFTER_S:
                self.screen.event(self.at_s, "some orders have not ended; looking at what there is", "red")
                break
            time.sleep(0.01)
        self.screen.event(self.at_s, f"{self.progress.ended} orders have ended", "green")
        return kill

    def watch(self, app: App, world: Any) -> None:
        """Look at the database now and then, and show where things stand."""
        from casework.demo.evidence import listed_orders

        self.go_on()
        for worker in self.workers:
            worker.check()
        progress = self.progress
        progress.started, progress.webhooks, progress.repeats = world.started, world.webhooks, world.repeats
        if self.at_s - self._looked_s > (1.0 if self.is_remote else 0.25):
            progress.ended = len(listed_orders(app, "done"))
            self._looked_s = self.at_s
        self.screen.update(self.at_s, progress, self.workers)

    def kill_one(self) -> Any:
        """SIGKILL to the first worker, in the middle of a task; a new one takes its place. None: not yet."""
        from casework.demo.proof import Kill

        victim = self.workers[0]
        if not victim.kill_in_the_middle(self.ledger):
            return None
        held = [entry.key for entry in victim.held]
        text = f"worker {victim.number} (pid {victim.pid}) killed with SIGKILL, {len(held)} tasks in its hands"
        self.screen.event(self.at_s, text, "bold red")
        new = self.start_worker()
        self.screen.event(self.at_s, f"worker {new.number} (pid {new.pid}) takes its place", "green")
        return Kill(victim.number, victim.pid, round(self.at_s, 2), time.time_ns() // 1000, held)

    def late_webhooks(self, app: App, world: Any) -> None:
        """Webhooks repeated after the end; the workers take them out of the mailboxes."""
        late = world.late_webhooks()
        if not late:
            return
        self.screen.event(self.at_s, f"the bank repeats {late} webhooks of orders that ended long ago")
        until = time.monotonic() + 20
        waiting = [id for id, times in world.sent_at_us.items() if len(times) > 1]
        while waiting and time.monotonic() < until:
            waiting = [id for id in waiting if app.inspect(id).messages]
            time.sleep(0.02)

    def finish(self, app: App, world: Any, kill: Any, definition: Any) -> Proof:
        """Read everything back, prove it, show it."""
        from casework.demo.evidence import gather
        from casework.demo.proof import prove

        self.screen.event(self.at_s, "reading everything back")
        evidence = gather(app, self.orders)
        self.ledger.look()
        self.screen.close()
        webhooks = Counter({id: len(times) for id, times in world.sent_at_us.items()})
        proof = prove(
            self.orders, evidence, self.ledger.entries, webhooks, kill, store=self.url, seconds=self.at_s,
        )  # fmt: skip
        self.is_complete = True
        if self.console is not None:
            from casework.demo import report

            report.print_proof(self.console, proof)
            order = report.interesting_order([o for o in self.orders if o.id in evidence.orders], proof, webhooks)
            times = world.sent_at_us.get(order.id, [])
            report.print_timeline(self.console, order, evidence.traces[order.id], self.ledger.entries, times, kill)
            report.print_diagram(self.console, definition, evidence.traces[order.id])
            report.print_end(self.console, proof, self.how_to_look() if self.options.keep else None)
        return proof

    def how_to_look(self) -> str:
        """Where things were kept, and what to do with them."""
        return f"kept: {self.url}\nledger: {self.ledger.path}\nlook:  casework list --store '{self.url}'"

    def clean_up(self) -> None:
        """End the workers, whatever happened, and remove what need not be kept."""
        with not_interrupted():
            self.screen.close()
            for worker in self.workers:
                worker.stop(wait_s=8.0 if self.is_complete else 1.0)
            if self.options.keep:
                return
            if self.is_remote and self.url != self.options.store:
                drop_tables(self.url)
            shutil.rmtree(self.folder, ignore_errors=True)


def drop_tables(url: str) -> None:
    """Delete the tables that the demo made under a prefix of its own."""
    from casework.app.stores import open_backend
    from casework.backends.dynamodb.encode import table_name
    from casework.backends.dynamodb.plan import Send
    from casework.kernel.schema import TABLES

    prefix = url.partition("prefix=")[2].partition("&")[0]
    backend: Any = open_backend(url)

    def steps() -> Iterator[Any]:
        for table in TABLES:
            yield Send("delete_table", {"TableName": table_name(prefix, table)})

    backend.carry(steps())
    backend.close()


def store_of_its_own(given: str | None, folder: Path) -> str:
    """The store's URL: a file in the demo's folder, or the tables of a prefix that nobody else has."""
    if not given:
        return f"sqlite:///{folder}/demo.db"
    if given.startswith("dynamodb:"):
        if "prefix=" in given:
            return given
        joint = "&" if given.partition("?")[2] else "" if given.endswith("?") else "?"
        return f"{given}{joint}prefix=casework-demo-{os.urandom(4).hex()}"
    if given.startswith("memory:"):
        raise Misuse("the demo's workers are processes of their own, so memory: cannot hold their store")
    path = Path(given.removeprefix("sqlite:///"))
    if given.startswith("sqlite:///") and path.exists():
        raise Misuse(f"{str(path)!r} exists; the demo makes a file of its own, so give a new name")
    return given
