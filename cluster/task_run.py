"""One task at a worker, from its delivery to its acknowledgement (PROTOCOL 7).

    read the record -> (tell the owner that it begins again) -> run the step, in progress -> store the result -> acknowledge

A record that is older than the task says nothing: its leader may be behind, and is asked again when it is not (decision 0030).

The record's public index says whether the operation is pending, and with which attempt: a task of another attempt, of a run
that is over or of a step that has its result is acknowledged unrun. A worker holds no key and cannot verify what it reads; a wrong
index could make it skip a step (whose next attempt comes with its time-out) or run one in vain (whose result nobody takes).

While the step runs, every few seconds the broker is told that it does (else the task goes to another worker) and the record is
read again, after a heartbeat of the step within a second: a step whose operation is over is told so, as a local one is
(`current.step.cancelled`). An attempt that was overtaken by the next one goes on: its result counts.

A task that was handed out before is told to the owner before it runs: one whose workers die of it again and again fails its step
(`actors.queued.LOST_AT`), as a workflow that kills its nodes is quarantined (I7).

Dying is safe at every point: before the result is stored, the task comes again as the same attempt, and the step runs again; after
it, the task comes again and finds its operation over. Only between the two, while the result waits for the actor's owner, a
task may be run once more: the effect happens at least once, the result is recorded once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final
from zlib import crc32

from sojourn.actors.current import CurrentActor
from sojourn.actors.events import StepDone
from sojourn.actors.outcomes import of_exception
from sojourn.actors.task import Task, again_publish, parse_task, result_publish
from sojourn.broker.absence import ALL, PATIENCE_SECONDS
from sojourn.broker.errors import BrokerClosed, BrokerError, Refused
from sojourn.broker.nats_requests import MESSAGE_TOO_LARGE
from sojourn.broker.subjects import Subjects, actor_id
from sojourn.codecs.errors import RecordError
from sojourn.codecs.record import QueuedCall
from sojourn.codecs.seal import read_index

if TYPE_CHECKING:
    from sojourn.actors.execution import StepRunner
    from sojourn.actors.registry import Registry
    from sojourn.broker.frames import FrameStore
    from sojourn.broker.seam import Broker, Delivery, Publish

    from .hosting.services import Fault, Meter

PROGRESS_SECONDS: Final = 10.0
"""Between two signs of life of a running task, and two looks at its record; a third of the consumer's `ack_wait`."""
BEAT_SECONDS: Final = 1.0
"""Between two looks at the record that heartbeats of one step ask for."""
AGAIN_SECONDS: Final = (0.2, 5.0)
"""Pauses between attempts to reach the broker."""
ACK_ATTEMPTS: Final = 8
"""Of one acknowledgement; meanwhile the task stays in progress."""
BACK_SECONDS: Final = (0.05, 30.0)
"""First and longest delay of a task that is left for other workers."""
BACK_GROWTH: Final = 1.25
"""Factor from one delay to the next: while a tenth of the workers is new (a ramp), a task that only they can run meets ten others first."""
TELL_FROM: Final = 8
"""Deliveries from which a task that is left to others is a warning in the log; fewer are usual while two versions run."""
_LOG = logging.getLogger("sojourn.worker")


class Wanted(Enum):
    """What a record says of a task."""

    YES = "yes"
    OVERTAKEN = "overtaken"
    """Pending, with a later attempt: no reason to begin, none to stop."""
    NO = "no"


@dataclass(frozen=True, kw_only=True)
class TaskServices:
    """What tasks need of their worker."""

    broker: Broker
    subjects: Subjects
    frames: FrameStore
    registry: Registry
    runner: StepRunner
    meter: Meter
    worker: str
    """Its name, for people."""
    now: Callable[[], float]
    fault: Fault
    progress_seconds: float = PROGRESS_SECONDS


def wanted(task: Task, run: str, queued: Sequence[QueuedCall]) -> Wanted:
    """Whether the actor with this run and these queued steps waits for the task."""
    if run != task.run:
        return Wanted.NO
    for call in queued:
        if call.op == task.op:
            return Wanted.YES if call.attempt == task.attempt else Wanted.OVERTAKEN
    return Wanted.NO


def back_delay(worker: str, seq: int, deliveries: int) -> float:
    """Seconds after which a task comes again that this worker gives back.

    Each delay has a share of its own (a quarter to the whole) that follows from worker, task and delivery: the broker serves free places in
    the order in which they asked, so two tasks that came again together met the two wrong workers each time, for as long as they
    lived (tried).
    """
    first, most = BACK_SECONDS
    share = 0.25 + 0.75 * (crc32(f"{worker}/{seq}/{deliveries}".encode()) / 2**32)
    return min(most, first * BACK_GROWTH ** min(deliveries - 1, 64)) * share


class TaskRun:
    """One delivery of one task. `run` does all of it and raises nothing but what cancels it."""

    def __init__(self, services: TaskServices, queue: str, delivery: Delivery) -> None:
        """`delivery` was fetched for this queue."""
        self._services = services
        self._queue = queue
        self._delivery = delivery
        self._cancelled = False
        self._settled = False
        self._asked = asyncio.Event()
        """Its step has sent a heartbeat: it wants to know whether to go on."""
        self.task = parse_task(delivery.message.payload)

    def __repr__(self) -> str:
        return f"<TaskRun {self._queue} {self.task.key if self.task else 'malformed'}>"

    async def run(self) -> None:
        """Everything up to the acknowledgement. Cancelled, the task is handed back for another worker."""
        try:
            outcome = await self._run()
        except asyncio.CancelledError:
            self._count("left")
            await self._back(0.0)
            raise
        except BrokerClosed:
            outcome = "left"
        self._count(outcome)

    def _count(self, outcome: str) -> None:
        self._services.meter.count("step_queue_finished", queue=self._queue, outcome=outcome)

    async def _run(self) -> str:
        task = self.task
        if task is None:
            return await self._leave_to_others("is none that this version of Sojourn knows")
        if task.step not in self._services.registry.steps:
            return await self._leave_to_others(f"is for step {task.step!r}, which this app does not have")
        services = self._services
        ticking = asyncio.create_task(self._keep_alive(task), name=f"progress of {task.key}")
        try:
            found = await self._look(task)
            if found is None:
                return await self._leave_to_others("belongs to a record that cannot be read here")
            if found is not Wanted.YES:
                await self._ack()
                return "unrun"
            if self._services.runner.is_running(task.key):
                return await self._leave_to_others("is for a step of which another attempt runs here")
            services.fault("worker_before_run", task.actor)
            if self._delivery.redelivered:
                await self._publish(
                    task, again_publish(task, subjects=services.subjects, worker=services.worker)
                )
            done = await self._execute(task)
            services.fault("worker_before_publish", task.actor)
            if not self._cancelled:
                done = await self._store(task, done)
            services.fault("worker_after_publish", task.actor)
            await self._ack()
            return "cancelled" if self._cancelled else _word(done)
        finally:
            ticking.cancel()

    async def _execute(self, task: Task) -> StepDone:
        services = self._services
        actor = CurrentActor(task.actor, task.run, task.workflow, task.deployment, services.now())
        try:
            return await services.runner.run(task.call(), actor)
        except Exception as defect:
            _LOG.exception("%s: a defect in running its step", task.key)
            return StepDone(task.op, task.attempt, of_exception(defect))

    async def _store(self, task: Task, done: StepDone) -> StepDone:
        """Publish the result until it is stored; one that the broker does not take is a failure. What was stored."""
        services = self._services
        message = result_publish(task, done, subjects=services.subjects, worker=services.worker)
        try:
            await self._publish(task, message)
        except Refused as too_large:
            done = StepDone(done.op, done.attempt, of_exception(too_large), done.seconds, retryable=False)
            message = result_publish(task, done, subjects=services.subjects, worker=services.worker)
            await self._publish(task, message)
        return done

    async def _publish(self, task: Task, message: Publish) -> None:
        """Publish for the actor's owner until it is stored. Raises `Refused` when it is too large to be."""
        pause = AGAIN_SECONDS[0]
        while True:
            try:
                await self._services.broker.publish(message)
                return
            except BrokerClosed:
                raise
            except BrokerError as error:
                if isinstance(error, Refused) and error.code == MESSAGE_TOO_LARGE:
                    raise
                _LOG.warning("the owner of %s is not told yet: %s", task.key, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])

    async def _ack(self) -> None:
        """Acknowledge the task. If that cannot be told for a while, it comes again and is found to be over."""
        self._settled = True
        pause = AGAIN_SECONDS[0]
        for _ in range(ACK_ATTEMPTS):
            try:
                await self._services.broker.ack(self._delivery)
                return
            except BrokerClosed:
                return
            except BrokerError as error:
                _LOG.info("%r: its acknowledgement has no answer: %s", self, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])

    async def _leave_to_others(self, why: str) -> str:
        """Give the task back, for workers of another version; again and again until its attempt times out."""
        delay = back_delay(self._services.worker, self._delivery.message.seq, self._delivery.deliveries)
        _LOG.log(
            logging.WARNING if self._delivery.deliveries >= TELL_FROM else logging.INFO,
            "a task in queue %s %s; it is left to other workers and comes again in %.1f s (delivery %d)",
            self._queue,
            why,
            delay,
            self._delivery.deliveries,
        )
        await self._back(delay)
        return "left to others"

    async def _back(self, delay: float) -> None:
        if self._settled:
            return
        self._settled = True
        try:
            await self._services.broker.hand_back(self._delivery, delay)
        except BrokerError as error:
            _LOG.info("%r could not be handed back and comes again by itself: %s", self, error)

    # while it runs

    def ask(self) -> None:
        """Look at the record soon: the step has sent a heartbeat."""
        self._asked.set()

    async def _keep_alive(self, task: Task) -> None:
        """Signs of life for the broker, and looks at the record for the step: regularly, and when it asks, each second at most."""
        services = self._services
        loop = asyncio.get_running_loop()
        due = loop.time() + services.progress_seconds
        while True:
            await asyncio.sleep(min(BEAT_SECONDS, services.progress_seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._asked.wait()
            self._asked.clear()
            if not self._cancelled and await self._look_once(task) is Wanted.NO:
                self._cancelled = True
                services.runner.cancel(task.key)
            if loop.time() < due:
                continue
            due = loop.time() + services.progress_seconds
            try:
                if not await services.broker.in_progress(self._delivery):
                    _LOG.warning("%s: its queue was made anew; the task may run elsewhere too", task.key)
            except BrokerClosed:
                return
            except BrokerError as error:
                _LOG.info("%s: the broker was not told that it runs: %s", task.key, error)

    async def _look(self, task: Task) -> Wanted | None:
        """What the record says, asked until it is known; None: it cannot be read here."""
        pause = AGAIN_SECONDS[0]
        while True:
            try:
                return await self._read(task)
            except RecordError as error:
                _LOG.warning("the record of %s cannot be read here: %s", task.actor, error)
                return None
            except BrokerClosed:
                raise
            except BrokerError as error:
                _LOG.info("the record of %s was not read: %s", task.actor, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])

    async def _look_once(self, task: Task) -> Wanted:
        try:
            return await self._read(task)
        except (RecordError, BrokerError):
            return Wanted.YES

    async def _read(self, task: Task) -> Wanted:
        """Raises `RecordError`, `BrokerError`."""
        services, actor = self._services, actor_id(task.actor)
        stored = await services.frames.read(actor)
        if (stored.revision if stored is not None else 0) < task.revision:
            # Its leader is behind, or it has expired, or the bucket was restored: as in `broker.absence`.
            await self._wait_until_leader_has(task.revision)
            stored = await services.frames.read(actor)
        if stored is None or not stored.data:
            return Wanted.NO
        index = read_index(stored.data)
        return wanted(task, index.run, index.queued)

    async def _wait_until_leader_has(self, revision: int) -> None:
        """Return when the leader of the records has one as new as that, or after `PATIENCE_SECONDS`. A worker may not ask for the
        stream's state. Raises `BrokerError`.
        """
        services, pause, left = self._services, AGAIN_SECONDS[0], PATIENCE_SECONDS
        while (
            await services.broker.read_next(services.subjects.frames_stream, ALL, revision) is None
            and left > 0
        ):
            await asyncio.sleep(pause)
            left -= pause


def _word(done: StepDone) -> str:
    """An outcome as the metrics have it."""
    return {"value": "ok", "error": "failed"}.get(done.outcome.kind, done.outcome.kind)
