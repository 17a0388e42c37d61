"""This node as a member of the cluster: joining, polling, moving partitions, doubting, draining (PROTOCOL 3).

One life of the node is one lease. A life begins with `join` (a new lease id, new services, the gate opened)
and ends by drain, or because the lease ended: then everything in memory is stale, is dropped silently, and a
new life begins.

    starting -> joined(lease 1) --lease ended--> rejoining -> joined(lease 2) ... --drain--> draining -> left

While joined, every 2 s and at each hint: poll the bucket, plan, attach and release. Hints (`sj.<ns>.members`)
are plain messages and only save time.

In doubt. A cut of either connection shuts the gate at once. When the broker can be asked again, leader reads
of `node.<id>` and of each `owner.<p>` decide: lease not ours, this life is over; a partition not ours, it is
dropped; else the gate opens, and after a cut of the engine's connection all partitions are attached anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from sojourn.broker.clock import BrokerClock
from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker, Received, Subscription
from sojourn.broker.subjects import Subjects, Token

from .holding.holdings import Holdings
from .holding.lanes import Lanes
from .holding.marks import Marks
from .metrics import Metrics
from .pulse import Pulse
from .storage import keep_measuring_storage
from .tenure.directory import Directory
from .tenure.gate import Gate, boot_seconds
from .tenure.guard import Guard
from .tenure.lease import LeaseLost, LeaseTerms, NodeIdInUse, Vitals
from .tenure.ownership import Member, Mine, View, plan
from .tenure.runners import Runners

POLL_SECONDS: Final = 2.0
HINT_SECONDS: Final = 0.02
"""Hints that come closer together than this are one."""
RETRY_SECONDS: Final = 0.25
RETRY_MAX_SECONDS: Final = 5.0
TOLD_SECONDS: Final = 2.0
"""How long a node that drains gives nothing away before the others know of it."""
MOVE_DEADLINE_SECONDS: Final = 10.0
"""How long a planned move waits for hot actors to reach their next commit."""
KEPT_SECONDS: Final = 60.0
"""How long a partition taken as a fallback is not given back."""

State = Literal["starting", "joined", "rejoining", "draining", "left"]


@dataclass(frozen=True)
class Life:
    """What exists once per lease."""

    lease: str
    holdings: Holdings
    marks: Marks
    lanes: Lanes | None = None
    """Of this node's deployment; None: this node serves none."""

    def serving(self) -> bool:
        """Whether partitions or lanes are still served."""
        lanes = self.lanes.holdings.serving() if self.lanes is not None else ()
        return bool(self.holdings.serving() or lanes)

    def all_holdings(self) -> tuple[Holdings, ...]:
        """Of partitions and of lanes."""
        return (self.holdings,) if self.lanes is None else (self.holdings, self.lanes.holdings)


class Membership:
    """See the module. Engine loop only; it is the guard's `Reports`."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        clock: BrokerClock,
        gate: Gate,
        vitals: Vitals,
        metrics: Metrics,
        make_life: Callable[[str, Membership], Awaitable[Life]],
        make_member: Callable[[], Member],
        *,
        terms: LeaseTerms = LeaseTerms(),  # noqa: B008 - immutable
        now: Callable[[], float] = boot_seconds,
        log: logging.Logger = logging.getLogger("sojourn.cluster"),  # noqa: B008 - process-wide by design
    ) -> None:
        """`make_member` draws a new lease id each time; `make_life` builds services for it."""
        self._broker = broker
        self._subjects = subjects
        self._directory = Directory(broker, subjects)
        self._clock = clock
        self._gate = gate
        self._vitals = vitals
        self._metrics = metrics
        self._make_life = make_life
        self._make_member = make_member
        self._terms = terms
        self._now = now
        self._log = log
        self._guard: Guard | None = None
        self._member: Member | None = None
        self._life: Life | None = None
        self._state: State = "starting"
        self._view = View(subjects.partitions, {}, {})
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: list[Subscription] = []
        self._verifying: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._cuts = 0
        self._engine_was_cut = False
        self._unserved_since: dict[int, float] = {}
        self._kept_until: dict[int, float] = {}
        self._runners = Runners(self._directory, self._runner_ended)
        self._pulse = Pulse(
            clock,
            gate,
            vitals,
            metrics,
            partitions=lambda: self._life.holdings.partitions() if self._life is not None else (),
            marks=lambda: self._life.marks if self._life is not None else None,
            now=now,
        )
        self._former: tuple[Life, ...] = ()
        self._move_seconds = MOVE_DEADLINE_SECONDS
        self._settled = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        """State, lease, partitions."""
        return f"<Membership {self._state} {self._member and self._member.runner} {self._life and self._life.holdings}>"

    @property
    def state(self) -> State:
        """Where in its life the node is."""
        return self._state

    @property
    def view(self) -> View:
        """The cluster as last polled."""
        return self._view

    @property
    def life(self) -> Life | None:
        """The present life; None before the first and between two."""
        return self._life

    def lives(self, runner: str) -> bool:
        """Whether the lease of "<node>/<lease>" may still live. See the module."""
        if self._member is not None and self._member.runner == runner:
            return True
        lives = self._runners.lives(runner, self._view)
        if self._runners.is_asked():
            self._wake.set()
        return lives

    # beginning and end
    async def start(self, guard: Guard) -> None:
        """Join and begin to poll. Raises `NodeIdInUse`, `BrokerError` when the broker cannot be asked."""
        self._guard = guard
        self._broker.on_connection(self._on_engine_connection)
        node = Token(self._make_member().node)
        self._subscriptions = [
            await self._broker.subscribe(self._subjects.probe(node, Token("engine")), self._answer),
            await self._broker.subscribe(self._subjects.members(), self._on_hint),
        ]
        self._vitals.tick = self._vitals.answered = self._now()
        for name, work in self._pulse.tasks():
            self._spawn(work, name)
        await self._join()
        self._spawn(self._keep_polling(), "poll")
        self._spawn(keep_measuring_storage(self._broker, self._subjects, self._metrics), "storage")

    async def wait_failed(self) -> None:
        """Return never, or raise what makes this node unable to go on (its id is in use, the guard is
        gone).
        """
        await asyncio.shield(self._failure)

    async def wait_settled(self) -> None:
        """Return when the node serves: it has joined, and what it found to attach is attached (or another's by now).

        Partitions that others are to hand over to it come later; it need not wait for those.
        """
        await self._settled.wait()

    async def drain(self, seconds: float) -> None:
        """Hand everything over, wait for local steps, end the lease; within `seconds`, whatever happens."""
        deadline = self._now() + seconds
        self._state = "draining"
        self._move_seconds = max(0.5, seconds - 1.0)
        telling = self._spawn(self._tell_draining(), "draining")
        await asyncio.wait({telling}, timeout=min(TOLD_SECONDS, seconds))
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - self._now()):
                if self._life is not None and self._life.lanes is not None:
                    self._life.lanes.drain(self._move_seconds)
                while self._life is not None and self._life.serving():
                    self._moved.clear()
                    await self._moved.wait()
                for life in (*self._former, *((self._life,) if self._life else ())):
                    for holdings in life.all_holdings():
                        await holdings.wait_steps_finished()
        await self.leave()

    async def _tell_draining(self) -> None:
        """Have the lease say so; others take nothing over that they think this node will have."""
        with suppress(LeaseLost):
            while True:
                try:
                    await self._checked_guard().become("draining")
                except BrokerError as error:
                    self._log.warning("the others are not told of the drain yet: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    break
        self._hint()

    async def leave(self) -> None:
        """Drop what is still served, end the lease, stop. Twice is fine; takes a second at most."""
        if self._state == "left":
            return
        self._state = "left"
        self._gate.shut("left")
        if self._life is not None:
            self._drop_all(self._life)
            # What still runs is broken off when the process closes. That is no outcome, and must not be told to the actors'
            # new owners as one: they run it again. (After a drain in time nothing runs any more.)
            services = self._life.holdings.services
            services.steps.abandon(services)
        tasks = [task for task in (*self._tasks, self._verifying, self._rejoining) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(BrokerError, LeaseLost, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._checked_guard().leave()
                await self._broker.send(self._subjects.members())
        for subscription in self._subscriptions:
            with suppress(BrokerError):
                await subscription.stop()

    @staticmethod
    def _drop_all(life: Life) -> None:
        life.holdings.drop_all()
        if life.lanes is not None:
            life.lanes.drop()

    async def _join(self) -> None:
        """One new life. Repeats what has no known outcome."""
        wait = RETRY_SECONDS
        while True:
            member = self._make_member()
            try:
                await self._checked_guard().join(member)
                await self._clock.sync()
                self._member = member
                self._life = await self._make_life(member.lease, self)
                self._gate.open()
                if self._life.lanes is not None:
                    await self._life.lanes.start()
                await self._checked_guard().become("ready")
            except (LeaseLost, BrokerError) as error:
                self._gate.shut("not joined")
                if self._life is not None:
                    self._drop_all(self._life)
                    self._life = None
                self._log.warning("not joined yet: %s", error, extra={"node": member.node})
                await asyncio.sleep(wait)
                wait = min(RETRY_MAX_SECONDS, 2 * wait)
                continue
            break
        self._state = "joined"
        self._log.info("joined", extra={"node": member.node, "lease": member.lease})
        self._hint()
        self._wake.set()

    # polling
    async def _keep_polling(self) -> None:
        while True:
            try:
                await self._poll()
            except BrokerError as error:
                self._log.debug("the cluster bucket could not be read: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
                    await asyncio.sleep(HINT_SECONDS)
            self._wake.clear()

    async def _poll(self) -> None:
        asked = self._runners.take_asked()
        try:
            view = await self._directory.poll(self._subjects.partitions)
        except BaseException:
            self._runners.put_back(asked)
            raise
        self._vitals.answered = self._now()
        await self._runners.settle(self._view, view, asked)
        self._view = view
        self._vitals.members = view.members
        life = self._life
        if self._state not in ("joined", "draining") or life is None or self._member is None:
            return
        found = view.members.get(self._member.node)
        if found is None or found.lease != self._member.lease:
            await self._check_lease()
        self._note_unserved(view)
        if life.lanes is not None:
            await life.lanes.viewed(view)
        if self._life is life and self._gate.is_open():
            life.holdings.look_at_doubts()
            self._move(view, life.holdings, self._member)

    def _move(self, view: View, holdings: Holdings, member: Member) -> None:
        now = self._now()
        mine = Mine(
            member.runner,
            serving=holdings.serving(),
            busy=holdings.busy(),
            kept={p for p, until in self._kept_until.items() if now < until},
            unserved={p: now - since for p, since in self._unserved_since.items()},
        )
        planned = plan(view, mine, self._clock.now(), move_seconds=self._terms.move)
        for p in planned.release:
            holdings.release(p, self._move_seconds)
        for p in planned.attach:
            if p in planned.fallback:
                self._kept_until[p] = now + KEPT_SECONDS
            holdings.attach(p)
        if not planned.attach and not holdings.busy():
            self._settled.set()

    def _note_unserved(self, view: View) -> None:
        now = self._now()
        unserved = [p for p in range(view.partitions) if view.holder(p) is None]
        self._unserved_since = {p: self._unserved_since.get(p, now) for p in unserved}
        self._metrics.gauge("partitions_unowned", len(unserved))
        for state in ("joining", "ready", "draining"):
            count = sum(member.state == state for member in view.members.values())
            self._metrics.gauge("members", count, state=state)

    def _runner_ended(self, runner: str) -> None:
        if self._life is not None:
            for holdings in self._life.all_holdings():
                holdings.lease_ended(runner)

    # in doubt
    def _on_engine_connection(self, up: bool) -> None:
        if up:
            self._metrics.count("reconnects", connection="engine")
            self._begin_verifying()
        else:
            self._engine_was_cut = True
            self._cut("the engine's connection was cut")

    def guard_connection(self, up: bool) -> None:
        """As `Reports`: the guard's connection was cut or is back."""
        if up:
            self._metrics.count("reconnects", connection="guard")
        else:
            self._cut("the guard's connection was cut")
        self._begin_verifying()

    def _cut(self, why: str) -> None:
        self._cuts += 1
        if self._state in ("joined", "draining"):
            level = logging.WARNING if self._gate.is_open() else logging.DEBUG
            self._gate.shut(why)
            self._log.log(level, "%s: nothing is started or committed until the lease is read", why)

    def _begin_verifying(self) -> None:
        if self._state in ("joined", "draining") and (self._verifying is None or self._verifying.done()):
            self._verifying = asyncio.get_running_loop().create_task(self._verify(), name="membership-verify")

    async def _verify(self) -> None:
        """Leader reads of the lease and of every owner, until they say something; then open the gate, or
        end this life.
        """
        while self._life is not None and self._state in ("joined", "draining"):
            cuts, life = self._cuts, self._life
            try:
                if not await self._check_lease():
                    return
                for holdings in life.all_holdings():
                    await holdings.verify()
            except BrokerError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if cuts != self._cuts:
                continue
            self._gate.open()
            self._log.info("the lease holds: going on", extra={"node": self._member and self._member.node})
            if self._engine_was_cut:
                self._engine_was_cut = False
                for holdings in life.all_holdings():
                    holdings.reattach_all("the connection was cut")
            self._wake.set()
            return

    async def _check_lease(self) -> bool:
        """Read this node's lease from the leader; end this life if it is not ours. Raises `BrokerError`."""
        member = self._member
        if member is None:
            return False
        found = (await self._directory.member(member.node)).value
        self._vitals.answered = self._now()
        if found is not None and found.lease == member.lease:
            return True
        if self._member is member:
            self._end_life(
                "the key holds no lease" if found is None else f"the key holds lease {found.lease}"
            )
        return False

    def lease_lost(self, reason: str) -> None:
        """As `Reports`: the guard found the lease ended."""
        self._end_life(reason)

    def member_ended(self, member: Member) -> None:
        """As `Reports`: the guard ended a dead peer's lease."""
        self._metrics.count("leases_ended")
        self._hint()
        self._wake.set()

    def guard_failed(self, error: Exception) -> None:
        """As `Reports`: without a guard nobody renews the lease; the node must leave."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _end_life(self, reason: str) -> None:
        """Everything in memory is stale: drop it silently, then join anew (unless this node is leaving
        anyway).
        """
        life = self._life
        if life is None or self._state not in ("joined", "draining"):
            return  # while it joins, the guard refuses to make it ready, and `_join` begins again
        self._life = None
        self._gate.shut("the lease has ended")
        self._settled.clear()
        self._metrics.count("leases_lost")
        self._log.error(
            "the lease has ended (%s): dropping %d partitions", reason, len(life.holdings.serving())
        )
        self._drop_all(life)
        life.holdings.services.steps.lease_ended(life.holdings.services)
        self._former = (*self._former, life)[-8:]
        if self._member is not None:
            self._runners.over(self._member.runner)
        if self._state == "joined":
            self._state = "rejoining"
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin(), name="membership-rejoin")

    async def _rejoin(self) -> None:
        try:
            await self._join()
        except (NodeIdInUse, Exception) as error:
            if not self._failure.done():
                self._failure.set_exception(error)

    # hints
    async def _answer(self, request: Received) -> None:
        if request.reply:
            await self._broker.reply(request, b"{}")

    async def _on_hint(self, _: Received) -> None:
        self._wake.set()

    def changed(self) -> None:
        """Something was attached, freed or lost here: look at once, and tell the others."""
        self._moved.set()
        self._hint()
        self._wake.set()

    def _hint(self) -> None:
        self._spawn(self._send_hint(), "hint")

    async def _send_hint(self) -> None:
        with suppress(BrokerError):
            await self._broker.send(self._subjects.members())

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"membership-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _checked_guard(self) -> Guard:
        if self._guard is None:
            raise RuntimeError("Membership.start was not called")
        return self._guard

    def facts(self) -> Mapping[str, object]:
        """For `/readyz` and `sojourn nodes`: plain values, safe to read from another thread."""
        holdings = self._life.holdings if self._life is not None else None
        return {
            "state": self._state,
            "gate": self._gate.why(),
            "partitions": sorted(holdings.serving()) if holdings is not None else [],
            "went_back": sorted(holdings.went_back()) if holdings is not None else [],
            "settled": self._settled.is_set(),
        }
