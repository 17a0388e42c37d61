"""One process that runs queued steps and nothing else (PROTOCOL 7).

A worker owns no partition, writes no record, holds no key and unpickles nothing. It takes one task for each free place, so what it
has taken it runs at once; how many wait is the broker's to know. Any number of workers share a queue, and a worker may serve
several, with places of its own for each.

`Worker.run` is the life of the process: connect, read which app the namespace belongs to, open the resources of steps, take tasks;
told to leave, it takes no more, finishes what runs within the grace period, hands the rest back and leaves. What was
handed back, or was running when the process died, comes to another worker as the same attempt.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sojourn.actors.execution import StepRunner
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.broker.clock import BrokerClock
from sojourn.broker.errors import (
    PERMISSION_DENIED,
    BrokerClosed,
    BrokerError,
    Refused,
    StreamNotFound,
)
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.subjects import Subjects, Token, token
from sojourn.broker.topology import read_topology
from sojourn.codecs.errors import SojournError

from .faults import fault_from
from .health import HealthServer, Verdict
from .hosting.services import Fault
from .lives import new_event_loop
from .metrics import Metrics
from .node import OtherApp
from .signals import run_until_told
from .steps.steps_loop import StepsLoop
from .task_run import PROGRESS_SECONDS, TaskRun, TaskServices

if TYPE_CHECKING:
    from sojourn.broker.seam import Delivery

GRACE_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 30.0
"""How long one request for a task waits at the broker."""
PAUSE_SECONDS: Final = 1.0
"""Before the next request after one that failed."""
MAX_CONCURRENCY: Final = 1_000


class NothingToDo(SojournError):
    """A worker was to serve a queue that no step of its app names."""

    def __init__(self, app: str, queue: str, known: tuple[str, ...]) -> None:
        """`known`: the queues that its steps name. `queue`: empty for any."""
        super().__init__(app, queue, known)
        self.app = app
        self.queue = queue
        self.known = known

    def __str__(self) -> str:
        """What is there instead."""
        there = f"its steps name {', '.join(self.known)}" if self.known else "none of its steps names one"
        wanted = f"has no step for queue {self.queue!r}" if self.queue else "has no step for a worker"
        return (
            f"app {self.app!r} {wanted}: {there}; "
            f'write @step(queue="{self.queue or "NAME"}"), or serve another --queue'
        )


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker runs. Times are seconds."""

    app: str
    """"module" or "module:attribute", as for `Registry.for_app`."""
    queues: tuple[str, ...]
    nats: NatsOptions
    concurrency: int = 1
    """Tasks at a time, for each queue."""
    namespace: str = "default"
    app_name: str | None = None
    """The app's name, compared with the namespace's; None: not compared."""
    worker_id: str | None = None
    """For people; None: drawn."""
    grace_seconds: float = GRACE_SECONDS
    """How long running tasks may go on once it was told to leave."""
    health_host: str = "127.0.0.1"
    health_port: int | None = 0
    """0: a free one; None: no health pages."""
    limits: Limits = field(default_factory=Limits)
    announce: bool = False
    """Print "worker <id> ready" on stdout when it takes tasks."""
    registry: Registry | None = None
    """Instead of importing `app`."""
    progress_seconds: float = PROGRESS_SECONDS
    fault: Fault | None = None
    """None: as the environment asks (`faults.VARIABLE`), which is nothing in production."""


class Worker:
    """One worker. `run` once; `drain` and `leave` from the same loop."""

    def __init__(self, options: WorkerOptions) -> None:
        """Nothing is connected yet. Raises `NothingToDo`, `InvalidName`, `ValueError`."""
        if not 1 <= options.concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency: expected 1 to {MAX_CONCURRENCY}, received {options.concurrency}")
        self._options = options
        self._id = token(options.worker_id or f"w-{secrets.token_hex(5)}", "a worker's id")
        self._registry = options.registry or Registry.for_app(options.app)
        self._queues = _served(options, self._registry)
        self._metrics = Metrics({"worker": self._id})
        self._running: Counter[Token] = Counter()
        self._tasks: dict[str, TaskRun] = {}
        """By operation."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refused: set[Token] = set()
        """Queues of which the broker knows nothing yet, or has too many readers."""
        self._draining = asyncio.Event()
        self._leaving = asyncio.Event()
        self._ready = asyncio.Event()
        self._broker: NatsBroker | None = None
        self._health: HealthServer | None = None
        self._log = logging.getLogger("sojourn.worker")

    def __repr__(self) -> str:
        """Its id, its queues, and what it runs."""
        return f"<Worker {self._id} queues={','.join(self._queues)} running={self._running.total()}>"

    @property
    def id(self) -> str:
        """The worker's id."""
        return self._id

    @property
    def metrics(self) -> Metrics:
        """What it counts."""
        return self._metrics

    @property
    def health_address(self) -> str:
        """Where the health pages are; empty when there are none."""
        return self._health.address if self._health is not None else ""

    async def wait_ready(self) -> None:
        """Return when it takes tasks."""
        await self._ready.wait()

    def drain(self) -> None:
        """Take no more tasks, finish what runs, and end `run`."""
        self._draining.set()

    def leave(self) -> None:
        """End `run` at once: what runs is handed back."""
        self._draining.set()
        self._leaving.set()

    async def run(self) -> None:
        """Take and run tasks until told to leave. Raises `SojournError` when it cannot start."""
        async with AsyncExitStack() as stack:
            services = await self._start(stack)
            places = [
                asyncio.create_task(self._place(services, queue), name=f"place {number} of {queue}")
                for queue in self._queues
                for number in range(self._options.concurrency)
            ]
            self._ready.set()
            self._log.info(
                "takes tasks of %s, %d at a time",
                ", ".join(self._queues),
                self._options.concurrency,
                extra={"worker": self._id},
            )
            if self._options.announce:
                print(f"worker {self._id} ready", flush=True)
            try:
                await _any(self._draining.wait(), *places)
                self._log.info("leaving: %d tasks run", self._running.total(), extra={"worker": self._id})
                await self._finish(places)
            finally:
                for place in places:
                    place.cancel()
                await asyncio.gather(*places, return_exceptions=True)
        self._log.info("left", extra={"worker": self._id})

    async def _finish(self, places: list[asyncio.Task[None]]) -> None:
        """Wait for what runs, as long as that may take."""
        leaving = asyncio.create_task(self._leaving.wait())
        finishing = asyncio.ensure_future(asyncio.gather(*places))
        try:
            await asyncio.wait(
                (leaving, finishing),
                timeout=self._options.grace_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            leaving.cancel()
            finishing.cancel()
            await asyncio.gather(leaving, finishing, return_exceptions=True)

    async def _start(self, stack: AsyncExitStack) -> TaskServices:
        options = self._options
        self._loop = asyncio.get_running_loop()
        broker = self._broker = await NatsBroker.connect(replace(options.nats, name=f"sojourn-{self._id}"))
        stack.push_async_callback(broker.close)
        subjects = await self._subjects(broker)
        clock = BrokerClock(broker, subjects.steps_stream)
        await clock.sync()
        loop = StepsLoop(self._registry.lifespans, new_event_loop)
        stack.push_async_callback(loop.stop)
        resources = await loop.start()
        runner = StepRunner(
            self._registry,
            clock=clock.now,
            limits=options.limits,
            resources=resources,
            loop=loop.loop,
            on_beat=self._on_beat,
        )
        stack.push_async_callback(runner.close)
        await self._start_health(stack)
        return TaskServices(
            broker=broker,
            subjects=subjects,
            frames=FrameStore(broker, subjects),
            registry=self._registry,
            runner=runner,
            meter=self._metrics,
            worker=self._id,
            now=clock.now,
            fault=options.fault or fault_from(os.environ),
            progress_seconds=options.progress_seconds,
        )

    async def _subjects(self, broker: NatsBroker) -> Subjects:
        options, names = self._options, Subjects(self._options.namespace, 1)
        topology = await read_topology(broker, names)
        if topology is None:
            raise StreamNotFound(names.cluster_stream)
        if options.app_name is not None and topology.app != options.app_name:
            raise OtherApp(options.namespace, topology.app, options.app_name)
        return topology.subjects

    async def _start_health(self, stack: AsyncExitStack) -> None:
        options = self._options
        if options.health_port is None:
            return
        self._health = HealthServer(
            options.health_host,
            options.health_port,
            live=lambda: Verdict(True, "alive"),
            ready=self._is_ready,
            metrics=self._metrics.text,
        )
        await self._health.start()
        stack.push_async_callback(self._health.stop)

    def _is_ready(self) -> Verdict:
        if not self._ready.is_set():
            return Verdict(False, "starting")
        if self._draining.is_set():
            return Verdict(False, f"leaving: {self._running.total()} tasks run")
        if self._refused:
            return Verdict(False, f"no task can be had of queue {', '.join(sorted(self._refused))}")
        connected = self._broker is not None and self._broker.connected
        words = f"{'takes tasks' if connected else 'not connected'}, {self._running.total()} tasks run"
        return Verdict(connected, words)

    def _on_beat(self, key: str) -> None:
        """A step has sent a heartbeat; on any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ask, key)

    def _ask(self, key: str) -> None:
        run = self._tasks.get(key)
        if run is not None:
            run.ask()

    # one place for one task at a time

    async def _place(self, services: TaskServices, queue: Token) -> None:
        self._metrics.gauge("step_queue_running", self._running[queue], queue=queue)
        while not self._draining.is_set():
            delivery = await self._next(services, queue)
            if delivery is None:
                continue
            self._running[queue] += 1
            self._metrics.gauge("step_queue_running", self._running[queue], queue=queue)
            run = TaskRun(services, queue, delivery)
            key = run.task.key if run.task is not None else ""
            self._tasks[key] = run
            try:
                await run.run()
            finally:
                if self._tasks.get(key) is run:
                    del self._tasks[key]
                self._running[queue] -= 1
                self._metrics.gauge("step_queue_running", self._running[queue], queue=queue)

    async def _next(self, services: TaskServices, queue: Token) -> Delivery | None:
        """The next task, or None after a while; asks no more once it is to leave."""
        subjects = services.subjects
        asking = asyncio.create_task(
            services.broker.fetch(subjects.steps_stream, subjects.step_consumer(queue), wait=FETCH_SECONDS)
        )
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait((asking, draining), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return None  # a task that is on its way just now comes again after the consumer's `ack_wait`
            delivery = asking.result()
            self._refused.discard(queue)
            return delivery
        except BrokerClosed:
            raise
        except Refused as refused:
            if queue not in self._refused:  # told once: every place meets it, every second
                self._refused.add(queue)
                self._log.warning("no task of queue %s can be had: %s (%s)", queue, refused, _why(refused))
            await asyncio.wait((draining,), timeout=PAUSE_SECONDS)
            return None
        except BrokerError as error:  # the connection says itself that it is lost, and when it is back
            self._log.debug("no task of queue %s could be asked for: %s", queue, error)
            await asyncio.wait((draining,), timeout=PAUSE_SECONDS)
            return None
        finally:
            asking.cancel()
            draining.cancel()
            await asyncio.gather(asking, draining, return_exceptions=True)


def _why(refused: Refused) -> str:
    if refused.code == PERMISSION_DENIED:
        return "its user may not take from this queue: see `sojourn roles config --queue`"
    return "a node of this app makes the queue when it starts"


async def _any(waiting: Coroutine[Any, Any, object], *places: asyncio.Task[None]) -> None:
    """Return when told to; raise what ended a place."""
    told = asyncio.ensure_future(waiting)
    try:
        done, _ = await asyncio.wait((told, *places), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        told.cancel()
        await asyncio.gather(told, return_exceptions=True)


def _served(options: WorkerOptions, registry: Registry) -> tuple[Token, ...]:
    if not options.queues:
        raise NothingToDo(options.app, "", tuple(sorted(registry.queues)))
    for queue in options.queues:
        if queue not in registry.queues:
            raise NothingToDo(options.app, queue, tuple(sorted(registry.queues)))
    return tuple(token(queue, "a queue's name") for queue in dict.fromkeys(options.queues))


def run_worker(options: WorkerOptions) -> int:
    """Run a worker in this process until a signal ends it; the exit code: 0 finished, 128 + signal left at once.

    Call it in the main thread. Raises `SojournError` when the worker cannot start.
    """
    gc.freeze()
    return run_until_told(lambda: Worker(options), drain_seconds=options.grace_seconds)
