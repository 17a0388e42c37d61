"""One actor at work: its events, its live coroutines, its commits, one after another.

The loop is a task only while there is something to do; each pass of it does one thing (`ActorWork.advance`). A commit that turns out to be
another's ends the pass: what was hot is discarded in silence and the unacknowledged events meet a fresh load. When nothing is left to do
the host rests: its record and coroutines stay in the hot cache, bounded and for seconds, and the host itself is forgotten once none of its
events is in memory and none of its steps runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sojourn.actors.events import Event, StepDone
from sojourn.broker.errors import BrokerClosed, BrokerError
from sojourn.broker.seam import Delivery
from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.cluster.mail.mailroom import Arrival

from .actor_work import ActorWork
from .commits import HigherEpoch, Overtaken, RecordTooLarge
from .known_record import KnownRecord

if TYPE_CHECKING:
    from sojourn.cluster.steps.local_steps import RunningCall

    from .serving import Serving

AGAIN_SECONDS: Final = (0.1, 5.0)
"""First and longest pause after something failed that may work later: a read without answer, a full stream."""
DEFECTS: Final = 3
"""Failures of Sojourn's own code in a row after which an actor is quarantined: it must not take its partition along (I6)."""


class ActorHost:
    """See the module. Made by a partition for an actor that has something to do; used on the engine's loop only."""

    def __init__(self, serving: Serving, actor: str) -> None:
        self.actor = actor
        self.mailbox = Mailbox(serving, actor)
        self._serving = serving
        self._known = KnownRecord(serving, actor, self.mailbox)
        self._work = ActorWork(serving, actor, self.mailbox, self._known)
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._defects = 0

    def __repr__(self) -> str:
        state = "at work" if self._task is not None else "resting"
        return (
            f"<ActorHost {self.actor} {state}, {len(self.mailbox)} events, {len(self._work.results)} results>"
        )

    # ---- what happens to it

    def deliver(self, event: Event, parsed: Arrival, delivery: Delivery) -> None:
        """An event of this actor arrived."""
        self.mailbox.deliver(event, parsed, delivery)
        self.wake()

    def step_ended(self, run: RunningCall, done: StepDone) -> None:
        """A local step of this actor ended."""
        self._work.results.append((run, done))
        self.wake()

    def wake(self) -> None:
        """Look at everything again."""
        self._again = True
        if self._task is None and not self._serving.over:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            # In the partition's context, not in that of the step whose end is told here.
            self._task = asyncio.create_task(
                self._run(), name=f"actor {self.actor}", context=self._serving.context
            )

    def reattached(self) -> None:
        """Every event that is not acknowledged comes again; the record and the coroutines stay."""
        self.mailbox.clear()
        self._work.reattached()
        self.wake()

    def drop(self) -> None:
        """Forget everything, in silence."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.mailbox.clear()
        self._known.forget()
        self._work.hand_over_results()

    async def wait_rest(self, seconds: float) -> None:
        """Return when its loop rests, or after that time."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=seconds)

    def lease_ended(self) -> None:
        """A runner is gone, or other code is here: look at pending calls and at the pin again."""
        self._known.look_again()
        self.wake()

    def look_away(self) -> None:
        """An actor on a lane has had events in HELD for a while: nudge again, see whether it is back."""
        self._work.look_away()
        self.wake()

    def nudged(self, *, news: bool) -> None:
        """The owner of the partition told this lane of the actor. `news`: events are in HELD that were not known."""
        self._work.in_doubt = self._work.in_doubt or not news
        self.wake()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Its loop, while it runs."""
        return self._task

    def oldest_waiting(self) -> float | None:
        """Arrival (local monotonic) of the oldest event that was not decided yet; None when there is none."""
        return min((item.arrived for item in self.mailbox if item.delivery is not None), default=None)

    # ---- the loop

    async def _run(self) -> None:
        pause = AGAIN_SECONDS[0]
        crowd = self._serving.services.crowd
        crowd.began()
        try:
            while self._again and not self._serving.over:
                self._again = False
                try:
                    while await self._work.advance():
                        pause = AGAIN_SECONDS[0]
                    self._defects = 0
                except Overtaken:
                    self._serving.services.meter.count("commit_conflicts")
                    self._known.forget()
                    self._again = True
                except HigherEpoch as later:
                    self._serving.lost(f"a record of {self.actor} has epoch {later.epoch}")
                    return
                except BrokerClosed:
                    return
                except RecordTooLarge as large:
                    await self._too_large(large)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
                except BrokerError as error:
                    self._serving.services.log.warning("%s: trying again: %s", self.actor, error)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
                except Exception as error:
                    await self._defect(error)
                    self._again = True
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_SECONDS[1])
        finally:
            crowd.ended()
            self._task = None
            self._rest()

    async def _too_large(self, large: RecordTooLarge) -> None:
        """A turn whose record no broker takes is not made: the actor is held with the last one that fits."""
        self._serving.services.log.error("%s: its record is too large: %s", self.actor, large)
        self._known.forget()
        await self._quarantine(f"its record would be too large: {large}")

    async def _defect(self, error: Exception) -> None:
        """Something failed that never should: the actor is held with its last good record, the others go on."""
        self._serving.services.log.exception("%s: a defect in Sojourn", self.actor)
        self._known.forget()
        self._defects += 1
        if self._defects >= DEFECTS:
            self._defects = 0
            await self._quarantine(f"a defect in Sojourn: {type(error).__name__}: {error}"[:2_000])

    async def _quarantine(self, reason: str) -> None:
        """Hold the actor, if that is possible now."""
        try:
            await self._work.quarantine(reason)
        except (Overtaken, HigherEpoch, BrokerError):
            return
        except Exception:
            # Not even that: its events stay unacknowledged, and it is tried again for as long as they come.
            self._serving.services.log.exception("%s: cannot be quarantined", self.actor)

    def emptied(self) -> None:
        """The last acknowledgement is confirmed: there may be nothing left to stay for, or more to sweep."""
        if len(self._serving.held.of(self.actor)):
            self.wake()
        elif self._task is None:
            self._rest()

    def _rest(self) -> None:
        """Nothing to do now: keep what may be needed soon, forget the rest, and wake up for what has a time."""
        serving = self._serving
        if serving.over:
            return
        self._known.rest()
        self.mailbox.park()
        if not len(self.mailbox) and not self._work.results and not self._known.owes_work():
            if self._timer is not None:
                self._timer.cancel()
            self._known.park()
            serving.hosts.retire(self)
            return
        now = serving.services.monotonic()
        moments = [item.not_before for item in self.mailbox if item.not_before > now]
        moments += self._work.moments()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moments:
            # At least a tenth of a second: what is due now was looked at just now and waits for something else.
            delay = max(0.1, min(moments) - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self.wake)
