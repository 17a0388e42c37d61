"""The partitions that one life of this node serves: attach, attach anew, hand over, drop.

Each partition has at most one operation under way; what happens to it meanwhile is remembered and looked at
when that is over. Membership decides what to attach and release (`ownership.plan`) and when everything is in
doubt; the hosting side says when one partition is (`on_lost`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sojourn.broker.errors import BrokerError
from sojourn.cluster.hosting.services import (
    Meter,
    PartitionFactory,
    PartitionMarks,
    PartitionServices,
    ServedPartition,
)

from .attach import Attacher, NotOwner
from .marks import StorageWentBack
from .tally import Tally

ATTACHES: Final = 16
"""In flight per node (PROTOCOL 3)."""
JITTER_SECONDS: Final = 2.0
"""Over which re-attaches after a reconnect are spread at most, so that a restarted broker is not stormed."""
JITTER_PER_PARTITION: Final = 0.02
"""With few partitions there is no storm: each adds this much to the spread."""
AGAIN_SECONDS: Final = 1.0
AGAIN_MAX_SECONDS: Final = 30.0
"""First and longest wait after an attach that failed."""
CALM_SECONDS: Final = 20.0
"""A partition in doubt again within this time after the last look waits before the next ..."""
LOOK_SECONDS: Final = 0.25
LOOK_MAX_SECONDS: Final = 4.0
"""... first this, then doubled, at most that: while a cluster elects leaders, acknowledgements meet
nobody, and new consumers each time would only add elections.
"""
WENT_BACK_SECONDS: Final = 10.0
"""How often a partition whose storage went back is looked at again."""


@dataclass(eq=False)
class _Holding:
    """One partition while it is served."""

    epoch: int
    partition: ServedPartition = field(init=False)
    releasing: bool = False
    looks: int = 0
    """How many looks in a row came soon after each other."""
    looked_at: float = float("-inf")
    doubted: str = ""
    """Why `owner.<p>` must be looked at; empty when there is no doubt."""


class Holdings:
    """See the module. Engine loop only."""

    def __init__(
        self,
        services: PartitionServices,
        attacher: Attacher,
        marks: PartitionMarks,
        factory: PartitionFactory,
        metrics: Meter,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change`: something was attached, freed or lost (membership polls again and tells the
        others).
        """
        self._services = services
        self._attacher = attacher
        self._marks = marks
        self._factory = factory
        self._metrics = metrics
        self._on_change = on_change
        self._log = services.log
        self._tally = Tally(services.log, {"node": services.node_id, "lease": services.lease_id})
        self._held: dict[int, _Holding] = {}
        self._operations: dict[int, asyncio.Task[None]] = {}
        self._departed: set[asyncio.Task[None]] = set()
        self._failures: dict[int, tuple[int, float]] = {}
        self._went_back: dict[int, str] = {}
        self._in_flight = asyncio.Semaphore(ATTACHES)
        self._over = False

    def __repr__(self) -> str:
        """What is served and what is under way."""
        return f"<Holdings of {self._services.runner} serving={sorted(self._held)} busy={sorted(self._operations)}>"

    @property
    def services(self) -> PartitionServices:
        """Of this life of the node."""
        return self._services

    def serving(self) -> frozenset[int]:
        """Partitions attached, those being released included."""
        return frozenset(self._held)

    def busy(self) -> frozenset[int]:
        """Partitions about which nothing is to be decided now."""
        now = self._services.monotonic()
        waiting = (p for p, (_, until) in self._failures.items() if now < until)
        return frozenset((*self._operations, *waiting))

    def went_back(self) -> dict[int, str]:
        """Partitions not served because their storage went back, with why (I8)."""
        return dict(self._went_back)

    def partition(self, p: int) -> ServedPartition | None:
        """The partition, if it is served and not being handed over."""
        holding = self._held.get(p)
        return holding.partition if holding is not None and not holding.releasing else None

    def partitions(self) -> list[ServedPartition]:
        """What is served, for statistics."""
        return [holding.partition for holding in self._held.values()]

    # what membership asks for
    def attach(self, p: int) -> None:
        """Begin to attach the partition."""
        if p not in self._held:
            self._begin(p, self._attach(p))

    def release(self, p: int, seconds: float) -> None:
        """Begin a planned move, bounded in time."""
        holding = self._held.get(p)
        if holding is not None and not holding.releasing:
            self._begin(p, self._release(p, holding, self._services.monotonic() + seconds))

    def doubt(self, p: int, reason: str) -> None:
        """The hosting side lost its pull, an acknowledgement was refused, a later epoch was seen: look at
        `owner.<p>`.
        """
        holding = self._held.get(p)
        if holding is None or holding.releasing or self._over:
            return
        holding.doubted = holding.doubted or reason
        # While the gate is shut nothing can be decided: the doubt is kept for `look_at_doubts`.
        if p not in self._operations and self._services.may_act():
            self._begin(p, self._look(p, holding, delay=self._pause(holding)))

    async def verify(self) -> None:
        """After a disconnect: read every `owner.<p>` and mark from the leader, drop what is not ours or went
        back. Raises `BrokerError`.
        """
        held = [(p, holding) for p, holding in self._held.items() if p not in self._operations]
        verdicts = await asyncio.gather(
            *(self._verify_one(p, holding) for p, holding in held), return_exceptions=True
        )
        for (p, holding), verdict in zip(held, verdicts, strict=True):
            if isinstance(verdict, NotOwner):
                self._lose(p, holding, verdict)
            elif isinstance(verdict, StorageWentBack):
                self._note_went_back(p, verdict)
                self._drop(p, holding)
            elif isinstance(verdict, BaseException):
                raise verdict
        self._tell()

    async def _verify_one(self, p: int, holding: _Holding) -> None:
        await self._attacher.verify(p, holding.epoch)
        await self._marks.check(p)

    def reattach_all(self, reason: str) -> None:
        """After a reconnect: attach everything anew under epoch + 1, spread over a moment."""
        spread = min(JITTER_SECONDS, JITTER_PER_PARTITION * len(self._held))
        for p, holding in tuple(self._held.items()):
            if holding.releasing:
                continue
            holding.doubted = holding.doubted or reason
            if p not in self._operations:
                self._begin(p, self._look(p, holding, delay=self._services.random.uniform(0.0, spread)))

    def look_at_doubts(self) -> None:
        """The gate is open: look at what came into doubt while it was shut. Called after each poll."""
        for p, holding in tuple(self._held.items()):
            if holding.doubted and not holding.releasing and p not in self._operations:
                self._begin(p, self._look(p, holding, delay=self._pause(holding)))

    def drop_all(self) -> None:
        """The lease has ended, or the node leaves at once: forget everything silently. Nothing is attached
        any more.
        """
        self._over = True
        for task in self._operations.values():
            task.cancel()
        for p, holding in tuple(self._held.items()):
            self._drop(p, holding)

    def lease_ended(self, runner: str) -> None:
        """Tell every partition that a runner is over."""
        for holding in tuple(self._held.values()):
            holding.partition.lease_ended(runner)

    async def wait_steps_finished(self) -> None:
        """Return when no local step of a partition that was served here runs any more and its outcome is
        stored.
        """
        while self._departed:
            await asyncio.wait(self._departed)

    # operations
    def _begin(self, p: int, work: Coroutine[Any, Any, None]) -> None:
        if self._over or p in self._operations:
            work.close()
            return
        self._tally.begin(self._services.monotonic())
        task = asyncio.get_running_loop().create_task(self._guarded(p, work), name=f"partition-{p}")
        self._operations[p] = task
        task.add_done_callback(lambda _: self._ended(p, work))

    def _ended(self, p: int, work: Coroutine[Any, Any, None]) -> None:
        work.close()  # cancelled before its first step it was never begun
        self._operations.pop(p, None)
        holding = self._held.get(p)
        if holding is not None and holding.doubted and not holding.releasing and self._services.may_act():
            self._begin(p, self._look(p, holding, delay=self._pause(holding)))
        self._tell()
        self._on_change()

    def _tell(self) -> None:
        """Sum up in the log what was done, once nothing is under way."""
        if not self._operations:
            self._tally.tell(self._services.monotonic(), len(self._held))

    async def _guarded(self, p: int, work: Coroutine[Any, Any, None]) -> None:
        """No operation ends with an exception: what is wrong is logged, the partition is planned anew
        later.
        """
        try:
            await work
        except NotOwner as elsewhere:
            self._tally.note(p, "left to others", f"held by {elsewhere.holder}")
        except StorageWentBack as back:
            self._note_went_back(p, back)
        except BrokerError as error:
            self._fail(p)
            self._tally.note(p, "not served yet, trying again", str(error), worried=True)
        except Exception:
            self._fail(p)
            self._log.exception("partition %d could not be served; trying again", p, extra=self._extra(p))
        else:
            self._failures.pop(p, None)

    def _note_went_back(self, p: int, back: StorageWentBack) -> None:
        if p not in self._went_back:
            self._log.critical("%s", back, extra=self._extra(p))
        self._went_back[p] = str(back)
        self._failures[p] = (0, self._services.monotonic() + WENT_BACK_SECONDS)

    def _fail(self, p: int) -> None:
        self._metrics.count("attach_failures")
        times = self._failures.get(p, (0, 0.0))[0] + 1
        wait = min(AGAIN_MAX_SECONDS, AGAIN_SECONDS * 2 ** min(times - 1, 10))
        self._failures[p] = (times, self._services.monotonic() + wait)

    async def _attach(self, p: int) -> None:
        started = self._services.monotonic()
        async with self._in_flight:
            await self._marks.check(p)
            self._went_back.pop(p, None)
            attached = await self._attacher.attach(p)
            holding = _Holding(attached.epoch)

            def on_lost(reason: str) -> None:
                if self._held.get(p) is holding:  # one that was dropped casts no doubt on its successor
                    self.doubt(p, reason)

            holding.partition = self._factory(p, attached.epoch, self._services, on_lost=on_lost)
            self._held[p] = holding
            try:
                await holding.partition.start(
                    attached.held, attached.consumers, taken_over=attached.taken_over
                )
            except BaseException:
                self._drop(p, holding)
                raise
        why = "takeover" if attached.taken_over else "free"
        self._note_attach(p, attached.epoch, why, started)

    async def _look(self, p: int, holding: _Holding, *, delay: float) -> None:
        """Attach anew if it is still ours; drop it if not (PROTOCOL 3)."""
        if delay:
            await asyncio.sleep(delay)
        reason, holding.doubted = holding.doubted, ""
        started = self._services.monotonic()
        holding.looked_at = started
        try:
            await self._attacher.verify(p, holding.epoch)
            async with self._in_flight:
                await self._marks.check(p)
                attached = await self._attacher.attach(p)
                holding.epoch = attached.epoch
                # The attach itself broke the old pull off: that is no new doubt. What comes from now on is.
                holding.doubted = ""
                await holding.partition.reattached(attached.epoch, attached.held, attached.consumers)
        except NotOwner as elsewhere:
            self._lose(p, holding, elsewhere)
        except BrokerError:
            # Not known whether it is ours: the doubt stays, and `_ended` or the next reconnect looks again.
            holding.doubted = reason
            await asyncio.sleep(AGAIN_SECONDS)
        except BaseException:
            self._drop(p, holding)  # attached anew from nothing
            raise
        else:
            self._tally.note(p, "attached anew", reason)
            self._note_attach(p, holding.epoch, "again", started)

    def _pause(self, holding: _Holding) -> float:
        """How long to wait before the next look; none unless the last one was a short while ago."""
        calm = self._services.monotonic() - holding.looked_at > CALM_SECONDS
        holding.looks = 0 if calm else holding.looks + 1
        return min(LOOK_MAX_SECONDS, LOOK_SECONDS * 2 ** min(holding.looks - 1, 10)) if holding.looks else 0.0

    async def _release(self, p: int, holding: _Holding, deadline: float) -> None:
        holding.releasing = True
        try:
            await self._attacher.releasing(p, holding.epoch)
            await holding.partition.release(deadline)
            with suppress(BrokerError):
                await self._marks.write(p)
        except NotOwner as elsewhere:
            return self._lose(p, holding, elsewhere)
        except BaseException:
            # Whatever went wrong while settling: after a drop nothing is written here, so it can be given
            # away.
            self._drop(p, holding)
            with suppress(BrokerError, NotOwner):
                await self._attacher.free(p, holding.epoch)
            raise
        try:
            await self._attacher.free(p, holding.epoch)
        finally:
            # Nothing is served here any more. If it is not known to be free, the next plan finds it held by this node and
            # served by nobody, and attaches it anew.
            self._forget(p, holding)
        self._tally.note(p, "handed over")
        return None

    # endings
    def _lose(self, p: int, holding: _Holding, elsewhere: NotOwner) -> None:
        self._tally.note(p, "lost", f"held by {elsewhere.holder}", worried=True)
        self._metrics.count("partitions_lost")
        self._drop(p, holding)

    def _drop(self, p: int, holding: _Holding) -> None:
        if self._held.get(p) is holding:
            holding.partition.drop()
        self._forget(p, holding)

    def _forget(self, p: int, holding: _Holding) -> None:
        if self._held.get(p) is not holding:
            return
        del self._held[p]
        self._marks.forget(p)
        self._services.held.forget(p)
        task = asyncio.get_running_loop().create_task(
            holding.partition.wait_steps_finished(), name=f"partition-{p}-steps"
        )
        self._departed.add(task)
        task.add_done_callback(self._steps_finished)

    def _steps_finished(self, task: asyncio.Task[None]) -> None:
        self._departed.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("outcomes of moved steps were not stored", exc_info=error)

    def _note_attach(self, p: int, epoch: int, why: str, started: float) -> None:
        seconds = self._services.monotonic() - started
        self._metrics.count("attaches", why=why)
        self._metrics.observe("attach_seconds", seconds, why=why)
        self._tally.note(p, "attached" if why == "free" else "taken over")
        self._log.debug("attached (%s) under epoch %d in %.3f s", why, epoch, seconds, extra=self._extra(p))

    def _extra(self, p: int) -> dict[str, object]:
        return {"node": self._services.node_id, "lease": self._services.lease_id, "partition": p}
