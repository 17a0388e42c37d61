"""One partition while this node owns it (PROTOCOL 3, 4): deliveries become events of actors, actors work, the rest is books.

Membership attaches, and tells this class; this class tells membership with `on_lost` that something does not fit an owner: an
acknowledgement was refused, a newer fence or a record of a higher epoch was met, the pull broke off. Whether the partition is
still ours is then membership's question; it attaches anew or drops.

Memory: an actor has an `ActorHost` while one of its events is in memory or one of its steps runs; an event in HELD has a
reference. Nothing else is kept here for an actor; what is hot is in the node's cache, bounded and for seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sojourn.broker.dead import DeadLettered
from sojourn.broker.errors import BrokerClosed, BrokerError
from sojourn.broker.seam import Delivery, Pull
from sojourn.cluster.mail.acks import Acknowledger
from sojourn.cluster.mail.arrivals import Unparsable, arrival
from sojourn.cluster.mail.floors import Floors
from sojourn.cluster.mail.late_timers import EVERY_SECONDS as LOOK_AT_TIMERS_SECONDS
from sojourn.cluster.mail.late_timers import LateTimers
from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.cluster.mail.mailroom import HeldRef
from sojourn.cluster.mail.moves import Mover
from sojourn.cluster.mail.strays import Strays
from sojourn.codecs.record import Origin

from .actor_host import ActorHost
from .queries import Queries
from .serving import COUNTED_AFTER_TAKEOVER, Serving

if TYPE_CHECKING:
    from sojourn.actors.events import StepDone
    from sojourn.broker.held import HeldEvent
    from sojourn.cluster.steps.local_steps import RunningCall

    from .services import PartitionServices

TICK_SECONDS: Final = 1.0
PULL_BATCH: Final = 200
"""Messages of one stream that are on their way here at a time."""
LOOKS: Final = 200
"""Actors with held events that are loaded at a time after an attach, and when other code is here."""
AWAY_LOOKS: Final = 50
"""Actors on lanes whose held events nobody took for a while that are looked at per second."""
LOOK_SECONDS: Final = 5.0
"""How long one actor's loop may keep the next ones from being looked at."""


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """A snapshot for metrics and placement."""

    partition: int
    epoch: int
    hot: int
    """Actors of this partition in the hot cache."""
    hosts: int
    """Actors with something in memory to do."""
    waiting: int
    held: int
    unacknowledged: int
    running_steps: int
    oldest_runnable: float
    unknown: int
    """Actors without a record that have held mail."""
    away: int
    """Actors on a lane that have held events."""
    pinned: int
    """Actors held because no node has their code."""
    quarantined: Mapping[str, int]
    """Actors in quarantine now, by workflow."""


class Partition:
    """See the module. Used on the engine's loop only."""

    def __init__(
        self,
        p: int,
        epoch: int,
        services: PartitionServices,
        *,
        on_lost: Callable[[str], None],
        lane: str = "",
    ) -> None:
        """`on_lost(reason)` may be called more than once. `lane`: see `Serving.lane`."""
        self._services = services
        self._on_lost = on_lost
        self._hosts: dict[str, ActorHost] = {}
        self._pulls: list[Pull] = []
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lane = lane
        subjects = services.subjects
        acks = Acknowledger(services.broker, subjects.held_stream, self._lost)
        self._serving = Serving(p, epoch, services, self._new_floors(p), acks, self._lost, self, lane=lane)
        self._serving.mover = Mover(self._serving)
        self._queries = Queries(self._serving, self._mailbox_of)

    def __repr__(self) -> str:
        serving = self._serving
        return (
            f"<Partition {serving.p} epoch={serving.epoch} hosts={len(self._hosts)} held={len(serving.held)}>"
        )

    # ---- membership's side

    async def start(
        self, held: Sequence[HeldEvent], consumers: Mapping[str, str], *, taken_over: bool = False
    ) -> None:
        """Attached: take up the actors that have held events, then begin to pull. See `services.ServedPartition`."""
        serving = self._serving
        serving.counted = COUNTED_AFTER_TAKEOVER if taken_over else 0
        serving.taken_over = taken_over
        serving.held.replace(_reference(event) for event in held)
        self._spawn(self._tick())
        if not serving.lane:
            await self._queries.start()
        await self._serve(consumers)

    async def reattached(self, epoch: int, held: Sequence[HeldEvent], consumers: Mapping[str, str]) -> None:
        """The same owner attached anew: everything that is not acknowledged comes again."""
        serving = self._serving
        serving.acks.forget()
        serving.mover.forget()
        await self._stop_pulls()  # from its first line on, what the old pulls say is not heard
        serving.mover = Mover(serving)
        serving.floors = self._new_floors(serving.p)
        serving.epoch = epoch
        if serving.lane:
            # It may have been told of later events since the list was read, and have said that it noted them.
            for event in held:
                serving.held.add(*_reference(event))
        else:
            serving.held.replace(_reference(event) for event in held)
        for host in tuple(self._hosts.values()):
            host.reattached()
        serving.unacknowledged = 0
        await self._serve(consumers)

    async def release(self, deadline: float) -> None:
        """Planned move: see `services.ServedPartition`."""
        serving, services = self._serving, self._services
        serving.releasing = True
        await self._stop_pulls()
        while (pending := self._pending()) and (left := deadline - services.monotonic()) > 0:
            await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self.drop()

    async def wait_steps_finished(self) -> None:
        """Return when no step of this partition runs here and every outcome owed to `done` is stored."""
        await self._services.steps.wait_finished(self._serving.group)

    def drop(self) -> None:
        """Forget everything, in silence. Twice is fine."""
        serving, services = self._serving, self._services
        if serving.over:
            return
        serving.over = True
        self._generation += 1
        services.steps.disown(serving.group)
        serving.acks.forget()
        serving.mover.forget()
        for task in self._tasks:
            task.cancel()
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            self._spawn(pull.stop())
        self._spawn(self._queries.stop())
        for host in tuple(self._hosts.values()):
            host.drop()
        self._hosts.clear()
        services.hot_cache.drop_partition(serving.p)

    def lease_ended(self, runner: str) -> None:
        """The lease is over for certain: calls that name it may be taken over."""
        for host in tuple(self._hosts.values()):
            host.lease_ended()

    def look_again(self) -> None:
        """Other code is here, or a deployment registered: look at every actor that is held again, some at a time (I11)."""
        # Hosts too: an actor whose first event is just being moved is not in the index yet.
        self._spawn(self._look_at(tuple(dict.fromkeys((*self._serving.held.actors(), *self._hosts)))))

    def statistics(self) -> PartitionStatistics:
        """A frozen snapshot."""
        serving, services = self._serving, self._services
        oldest = [at for host in self._hosts.values() if (at := host.oldest_waiting()) is not None]
        return PartitionStatistics(
            partition=serving.p,
            epoch=serving.epoch,
            hot=services.hot_cache.count(serving.p),
            hosts=len(self._hosts),
            waiting=sum(len(host.mailbox) for host in self._hosts.values()),
            held=len(serving.held),
            unacknowledged=serving.unacknowledged,
            running_steps=services.steps.count(serving.group),
            oldest_runnable=services.monotonic() - min(oldest) if oldest else 0.0,
            unknown=len(serving.unknown),
            away=len(serving.away),
            pinned=len(serving.pinned),
            quarantined=Counter(serving.quarantined.values()),
        )

    # ---- deliveries

    async def _serve(self, consumers: Mapping[str, str]) -> None:
        """Take up actors with held events before any newer mail of theirs (PROTOCOL 3), then pull."""
        self._generation += 1
        generation = self._generation
        # Newer mail cannot overtake what is held: every pass of an actor's loop looks at the index of HELD first.
        self.look_again()
        if consumers:
            await self._serving.floors.begin()
        for short, consumer in consumers.items():
            stream = self._serving.floors.stream(short)
            pull = await self._services.broker.pull(
                stream,
                consumer,
                self._receiver(short, generation),
                self._pull_lost(generation),
                batch=PULL_BATCH,
                room=self._services.crowd,
            )
            self._pulls.append(pull)

    def _pull_lost(self, generation: int) -> Callable[[str], None]:
        def lost(reason: str) -> None:
            if generation == self._generation:
                self._lost(f"the pull broke off: {reason}")

        return lost

    def _receiver(self, short: str, generation: int) -> Callable[[Delivery], None]:
        created = self._services.stream_created[short]

        def receive(delivery: Delivery) -> None:
            if generation == self._generation and not self._serving.over:
                origin = Origin(short, created, delivery.message.seq)  # type: ignore[arg-type]  # `consumers` has the three names
                self._receive(origin, delivery)

        return receive

    def _receive(self, origin: Origin, delivery: Delivery) -> None:
        floors = self._serving.floors
        floors.saw(origin)
        if floors.is_gone(origin):
            return  # it was in the buffer; what is gone never becomes an event again (4.4)
        found = arrival(delivery.message, origin, self._services)
        if isinstance(found, Unparsable):
            self._spawn(self._bury(origin, delivery, found.reason))
            return
        event, parsed = found
        self._services.meter.count("events", kind=event.kind)
        self._host(event.actor).deliver(event, parsed, delivery)

    async def _bury(self, origin: Origin, delivery: Delivery, reason: str) -> None:
        """What is no event at all goes to the dead letters by its sequence."""
        label, _, detail = reason.partition(": ")
        while not self._serving.over:
            try:
                written = await self._services.dead.write(origin, delivery.message, label, detail)
            except BrokerClosed:
                return
            except BrokerError:
                written = DeadLettered.FULL
            if written is not DeadLettered.FULL:
                self._services.meter.count("dead_letters", reason="malformed")
                self._serving.acks.acknowledge(delivery, lambda: self._serving.floors.touch(origin.stream))
                return
            await asyncio.sleep(TICK_SECONDS)

    def _host(self, actor: str) -> ActorHost:
        host = self._hosts.get(actor)
        if host is None:
            host = self._hosts[actor] = ActorHost(self._serving, actor)
        return host

    def _mailbox_of(self, actor: str) -> Mailbox | None:
        host = self._hosts.get(actor)
        return host.mailbox if host is not None else None

    # ---- its actors' side: `serving.Hosts`

    def wake(self, actor: str) -> None:
        """See `serving.Hosts`. One that is not here has nothing to look at."""
        if (host := self._hosts.get(actor)) is not None:
            host.wake()

    def emptied(self, actor: str) -> None:
        """See `serving.Hosts`."""
        if (host := self._hosts.get(actor)) is not None:
            host.emptied()

    def step_ended(self, run: RunningCall, done: StepDone) -> None:
        """See `serving.Hosts`."""
        self._host(run.actor.id).step_ended(run, done)

    def retire(self, host: ActorHost) -> None:
        """See `serving.Hosts`."""
        if self._hosts.get(host.actor) is host:
            del self._hosts[host.actor]

    # ---- bookkeeping

    async def _look_at(self, actors: Sequence[str]) -> None:
        """Load these actors, some at a time."""
        for start in range(0, len(actors), LOOKS):
            part = [self._host(actor) for actor in actors[start : start + LOOKS]]
            for host in part:
                host.lease_ended()
            for host in part:
                await host.wait_rest(LOOK_SECONDS)

    async def _tick(self) -> None:
        """About once a second, whatever goes wrong in it: nobody else would look at what is looked at here."""
        serving, services = self._serving, self._services
        timers = LateTimers(services.broker, services.subjects, serving.p)
        strays = Strays(services.held, serving.p)
        look = services.monotonic() + services.random.uniform(0.0, LOOK_AT_TIMERS_SECONDS)
        while not serving.over:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await serving.floors.refresh()
                if not serving.lane and services.monotonic() >= look:
                    look = services.monotonic() + LOOK_AT_TIMERS_SECONDS
                    await self._look_at_timers(timers)
                    await self._look_for_strays(strays)
                self._look_around()
            except Exception:
                services.log.exception("partition %d: a defect in its housekeeping", serving.p)

    def _look_around(self) -> None:
        """Idle hot actors, actors on lanes whose held events nobody took, mail for nobody that has expired."""
        serving, services = self._serving, self._services
        now = services.monotonic()
        for actor in tuple(
            islice((actor for actor, look in serving.away.items() if look.at <= now), AWAY_LOOKS)
        ):
            self._host(actor).look_away()
        now = services.clock.now()
        for actor in [actor for actor, expires in serving.unknown.items() if expires <= now]:
            del serving.unknown[actor]  # its loop notes the next time, if there is one
            self._host(actor).wake()
        serving.unknown_events = sum(len(serving.held.of(actor)) for actor in serving.unknown)
        if evicted := services.hot_cache.evict_idle(services.monotonic()):
            services.meter.count("evicted", evicted)

    async def _look_at_timers(self, timers: LateTimers) -> None:
        """Some of the armed timers: what the broker failed to fire is armed again."""
        services = self._services
        if not services.may_act():
            return
        with suppress(BrokerError):
            late = await timers.look(services.clock.now())
            if late:
                services.meter.count("timers_armed_again", late)
                services.log.warning("armed %d timers again that were overdue", late)

    async def _look_for_strays(self, strays: Strays) -> None:
        """Some of HELD: an event that is not known here is taken up, its record says what it is."""
        serving = self._serving
        if not self._services.may_act():
            return
        epoch = serving.epoch
        with suppress(BrokerError):
            found = await strays.look(serving.held)
            if serving.over or serving.releasing or serving.epoch != epoch:
                return
            for event in found:
                serving.held.add(*_reference(event))
                self._host(event.actor).look_away()  # on a lane its node is told, too

    def _pending(self) -> set[asyncio.Task[None]]:
        """What has to end before the partition can be handed over; each may bring forth another."""
        serving = self._serving
        loops = {host.task for host in self._hosts.values() if host.task is not None}
        return loops | serving.acks.tasks() | serving.mover.tasks()

    async def _stop_pulls(self) -> None:
        self._generation += 1
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            await pull.stop()

    def _lost(self, reason: str) -> None:
        if not self._serving.over:
            self._on_lost(reason)

    def _new_floors(self, p: int) -> Floors:
        subjects = self._services.subjects
        streams = {
            "mail": (subjects.mail_stream, subjects.in_filter(p)),
            "ctl": (subjects.ctl_stream, subjects.in_filter(p)),
            "wake": (subjects.wake_stream, subjects.wake_filter(p)),
        }
        if self._lane:
            return Floors(
                self._services.broker,
                streams,
                self._services.stream_created,
                patience=self._services.patience,
            )

        async def is_last_owner() -> bool:
            return await self._services.held.is_last_fence(p, self._serving.epoch)

        return Floors(
            self._services.broker,
            streams,
            self._services.stream_created,
            is_last_owner=is_last_owner,
            patience=self._services.patience,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _reference(event: HeldEvent) -> tuple[str, Origin, HeldRef]:
    return event.actor, event.origin, HeldRef(event.seq, event.kind, event.name, event.time)
