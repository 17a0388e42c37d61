"""Local steps that this life of the node runs, and who is told when one ends.

A step belongs to the actor that called it, and its end is told to that actor's host. When the partition moves, or is lost, the step runs
on (PROTOCOL 3): what it did is done, so its outcome is published to `done`, sealed, and the new owner consumes it like any event. A call
whose runner lives is not started by anyone else, and this node asks its own memory before it starts a call of its own again: a step that
runs is adopted, one whose outcome is on its way through `done` is not repeated.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sojourn.actors.current import CurrentActor
from sojourn.actors.events import StepDone
from sojourn.actors.outcomes import of_exception
from sojourn.actors.wire import done_publish
from sojourn.broker.errors import BrokerClosed, BrokerError
from sojourn.codecs.record import PendingCall

if TYPE_CHECKING:
    from sojourn.cluster.hosting.services import PartitionServices

MAX_HANDED_OVER: Final = 10_000
"""Operations remembered whose outcome this node hands over by way of `done`."""
AGAIN_SECONDS: Final = (0.2, 5.0)


@dataclass(slots=True, eq=False)
class RunningCall:
    """One attempt that runs here, or waits for its backoff to pass."""

    key: str
    p: int
    actor: CurrentActor
    call: PendingCall
    listener: Callable[[RunningCall, StepDone], None] | None
    """None: the partition is elsewhere, the outcome goes to `done`."""
    wanted: bool = True
    """False: nobody waits for the outcome at all."""
    task: asyncio.Task[None] | None = None
    """While it waits for its backoff, or for permission to begin."""
    lease_ended: bool = False
    """The lease under which it was started is over: if it has not begun, it never does."""


Listener = Callable[[RunningCall, StepDone], None]


class LocalSteps:
    """Running local steps by operation id. One per life of a node; used on the engine's loop only."""

    def __init__(self) -> None:
        self._running: dict[str, RunningCall] = {}
        self._actors: Counter[str] = Counter()
        self._handed_over: OrderedDict[str, int] = OrderedDict()
        self._publishing: dict[int, int] = {}
        self._handing_over: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<LocalSteps running={len(self._running)}>"

    def __len__(self) -> int:
        return len(self._running)

    def count(self, p: int) -> int:
        """Steps of a partition that run here, outcomes being published included."""
        return sum(run.p == p for run in self._running.values()) + self._publishing.get(p, 0)

    def runs(self, actor: str) -> bool:
        """Whether a step of this actor runs here."""
        return actor in self._actors

    def start(
        self,
        services: PartitionServices,
        p: int,
        actor: CurrentActor,
        call: PendingCall,
        listener: Listener,
        *,
        delay: float = 0.0,
    ) -> None:
        """Run one attempt after `delay` seconds. The call is committed and names this node as its runner."""
        key = operation_key(actor.id, actor.run, call.op)
        run = RunningCall(key, p, actor, call, listener)
        if (
            key not in self._running
        ):  # else an earlier attempt goes on, of a lease that is over: the runner of steps has this one wait
            self._actors[actor.id] += 1
        self._running[key] = run
        if delay <= 0 and services.may_act() and not services.alone.blocks(actor.id):
            self._begin(services, run)
        else:
            run.task = asyncio.create_task(self._begin_later(services, run, delay), name=f"step {key}")

    def adopt(self, key: str, attempt: int, listener: Listener) -> bool:
        """Tell `listener` of the end of a call that runs here already. True also when its outcome is on its way through `done`."""
        run = self._running.get(key)
        if run is not None and run.call.attempt >= attempt:
            run.listener = listener
            return True
        return self._handed_over.get(key, 0) >= attempt

    def cancel(self, services: PartitionServices, key: str) -> None:
        """Nobody waits for this call any more: tell the step, and forget its outcome."""
        run = self._running.get(key)
        if run is None:
            return
        run.wanted = False
        if run.task is not None:
            run.task.cancel()
        services.step_runner.cancel(key)
        self._forget(run)

    def disown(self, p: int) -> int:
        """The partition is elsewhere: outcomes of its steps go to `done` from now on. How many run."""
        running = [run for run in self._running.values() if run.p == p]
        for run in running:
            run.listener = None
        return len(running)

    def lease_ended(self, services: PartitionServices) -> None:
        """The lease under which these run is over: an attempt that has not begun never does, since whoever owns its actor starts it now.

        What runs goes on, and its outcome to `done`. (The gate opens again for the node's next life: an attempt that waits at it would
        pass.)
        """
        for run in tuple(self._running.values()):
            run.lease_ended = True
            if run.task is not None:
                self.cancel(services, run.key)

    def abandon(self, services: PartitionServices) -> None:
        """End every step and forget its outcome: the node leaves at once."""
        for key in tuple(self._running):
            self.cancel(services, key)
        for task in tuple(self._handing_over):
            task.cancel()

    async def wait_finished(self, p: int) -> None:
        """Return when no step of the partition runs here and every outcome owed to `done` is stored."""
        while self.count(p):
            self._changed.clear()
            await self._changed.wait()

    async def _begin_later(self, services: PartitionServices, run: RunningCall, delay: float) -> None:
        if delay > 0:
            await asyncio.sleep(delay)
        if run.listener is not None and not services.may_act():
            await services.wait_may_act()
        while services.alone.blocks(run.actor.id):
            await services.alone.wait_free()
        run.task = None
        self._begin(services, run)

    def _begin(self, services: PartitionServices, run: RunningCall) -> None:
        services.alone.step_started()
        try:
            services.fault("in_step", run.actor.id)
            services.step_runner.start(
                run.call,
                run.actor,
                lambda ended: self._ended(services, run, ended),
                still=lambda: not run.lease_ended and (run.listener is None or services.may_act()),
                not_begun=lambda: self._not_begun(services, run),
            )
        except Exception as error:
            self._ended(services, run, error)

    def _not_begun(self, services: PartitionServices, run: RunningCall) -> None:
        """The gate was shut, or time stood still, before the code could begin: as if it had not been asked for yet."""
        services.alone.step_ended()
        if run.lease_ended or not run.wanted:
            self._forget(run)
            return
        run.task = asyncio.create_task(self._begin_later(services, run, 0.0), name=f"step {run.key}")

    def _ended(self, services: PartitionServices, run: RunningCall, ended: StepDone | Exception) -> None:
        services.alone.step_ended()
        if isinstance(ended, Exception):
            services.log.error("%s: a defect in running its step", run.key, exc_info=ended)
            ended = StepDone(run.call.op, run.call.attempt, of_exception(ended))
        if run.wanted:
            if run.listener is not None:
                run.listener(run, ended)
            else:
                self.hand_over(services, run, ended)
        self._forget(run)

    def _forget(self, run: RunningCall) -> None:
        if self._running.get(run.key) is run:
            del self._running[run.key]
            self._actors[run.actor.id] -= 1
            if not self._actors[run.actor.id]:
                del self._actors[run.actor.id]
        self._changed.set()

    def hand_over(self, services: PartitionServices, run: RunningCall, done: StepDone) -> None:
        """A step has ended, but its partition was lost before the result was known to be committed: it goes to `done`.

        Whoever owns the actor now waits for it, as long as this node lives. If it was committed after all, it has no effect.
        """
        # From now on, not once it is stored: the actor may be back before that.
        self._handed_over[run.key] = done.attempt
        while len(self._handed_over) > MAX_HANDED_OVER:
            self._handed_over.popitem(last=False)
        self._publishing[run.p] = self._publishing.get(run.p, 0) + 1
        task = asyncio.create_task(self._publish(services, run, done), name=f"outcome of {run.key}")
        self._handing_over.add(task)

        def over(_: asyncio.Task[None]) -> None:
            self._handing_over.discard(task)
            self._publishing[run.p] -= 1
            self._changed.set()

        task.add_done_callback(over)

    async def _publish(self, services: PartitionServices, run: RunningCall, done: StepDone) -> None:
        """Store the outcome for whoever owns the actor now. Goes on until it is stored, or this process ends."""
        services.fault("orphan_outcome", run.actor.id)
        message = done_publish(
            run.actor.id,
            run.actor.run,
            done.op,
            done.attempt,
            done.outcome,
            retryable=done.retryable,
            subjects=services.subjects,
            keyring=services.keyring,
        )
        pause = AGAIN_SECONDS[0]
        while True:
            try:
                await services.broker.publish(message)
                break
            except BrokerClosed:
                return
            except BrokerError as error:
                services.log.warning("the outcome of %s is not stored yet: %s", run.key, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_SECONDS[1])


def operation_key(actor: str, run: str, op: int) -> str:
    """The operation id, "<actor>/<run>/<n>"."""
    return f"{actor}/{run}/{op}"
