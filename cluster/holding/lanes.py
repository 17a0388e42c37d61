"""The lanes of this node's deployment: who takes which, how nudges reach the one who has it, what happens when it dies.

Whoever owns a partition tells the node that has the lane directly (`nudges`). Nudges that are stored instead, because nobody was known
to have it or did not answer, come to one consumer that the deployment's nodes share, so any of them may get one. Such a nudge is
acknowledged only when the node that owns the lane of the actor's partition has noted it: this node, or a peer that is told by a
request. A lane that nobody owns is attached by the node that got the nudge. Whoever dies with a nudge in hand lets it come again after
`ACK_WAIT_SECONDS`; whoever dies with a lane is noticed by its peers at their next poll, and its successor lists HELD, and finds every
event that was not consumed.

Lanes that were ever needed are shared out among the deployment's ready nodes as partitions are among all (`ownership.plan`): a node that
joins takes its share, a node that leaves or dies gives its own away. The keys stay, because their epochs may only grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sojourn.broker.errors import BrokerClosed, BrokerError, InvalidName, NoResponders
from sojourn.broker.seam import ConsumerConfig, Delivery, Pull, Received, Subscription
from sojourn.broker.subjects import ActorId, Lane, Token, actor_id
from sojourn.cluster.hosting.nudges import LANE, NOTED
from sojourn.cluster.tenure.ownership import Mine, Owned, View, plan

from .lane_partition import LanePartition

if TYPE_CHECKING:
    from sojourn.cluster.deployments.versions import Versions
    from sojourn.cluster.hosting.services import PartitionServices
    from sojourn.cluster.metrics import Metrics
    from sojourn.cluster.tenure.directory import LaneDirectory

    from .holdings import Holdings

ACK_WAIT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 600.0
"""The broker forgets the consumer of a deployment without nodes after this time; what it had comes to the next one."""
AT_ONCE: Final = 64
"""Nudged actors that are seen to at a time, and stored nudges that are asked for ahead: what is not seen to within `ACK_WAIT_SECONDS`
comes again, to whoever is just as late.
"""
MAX_PENDING: Final = 1_000
"""Stored nudges that the deployment's nodes have in hand together."""
REQUESTS: Final = 8
"""Requests of partitions' owners that are worked on at a time."""
MOVE_SECONDS: Final = 10.0
"""How long a lane that moves waits for its actors to reach their next commit."""
KEPT_SECONDS: Final = 60.0
"""How long a lane that was taken in another's stead is not given back."""
AGAIN_SECONDS: Final = (0.05, 1.0)


class Lanes:
    """See the module. One per life of the node; engine loop only."""

    def __init__(
        self,
        services: PartitionServices,
        holdings: Holdings,
        directory: LaneDirectory,
        versions: Versions,
        metrics: Metrics,
        homes: Holdings,
    ) -> None:
        """`holdings`: of lanes; `homes`: of partitions; `services`: those of partitions."""
        self.holdings = holdings
        self._versions = versions
        self._homes = homes
        self._services = services
        self._directory = directory
        self._metrics = metrics
        self._label = Token(directory.label)
        self._pull: Pull | None = None
        self._subscription: Subscription | None = None
        self._nudges: dict[ActorId, list[Delivery]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._told = asyncio.Semaphore(REQUESTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unserved: dict[int, float] = {}
        self._kept_until: dict[int, float] = {}
        self._draining = False
        self._until = 0.0
        """When a node that leaves gives up handing over (local monotonic)."""
        self._over = False

    def __repr__(self) -> str:
        """Which, and how many."""
        return f"<Lanes of {self._label}: {sorted(self.holdings.serving())}>"

    async def start(self) -> None:
        """Begin to hear nudges. Raises `BrokerError`."""
        services = self._services
        mine = services.subjects.probe(Token(services.node_id), LANE)
        self._subscription = await services.broker.subscribe(mine, self._on_forwarded)
        await self._begin_pull()

    async def viewed(self, view: View) -> None:
        """A poll: tell partitions of deployments that came or went; attach lanes of this one that a dead or leaving peer
        had. Raises `BrokerError`.
        """
        if await self._versions.observe(view):
            for partition in self._homes.partitions():
                partition.look_again()
        owners = {} if self._over or self._draining else await self._directory.lanes()
        if self._over or self._draining:  # perhaps only since a moment
            self._give_up()
            return
        peers = {node: m for node, m in view.members.items() if m.deployment == self._label}
        self._move(View(view.partitions, peers, owners, only=self._needed(view, owners)))
        self._metrics.gauge("lanes_served", len(self.holdings.serving()))

    def _needed(self, view: View, owners: Mapping[int, Owned]) -> frozenset[int]:
        """Lanes to be shared out: those that were ever needed and, once any was, those of all partitions of other deployments. (Else each
        would be taken, with a backlog behind it, by whoever happens to get its first nudge.)
        """
        if not owners:
            return frozenset()
        holders = {p: view.holder(p) for p in range(view.partitions)}
        foreign = (p for p, m in holders.items() if m is not None and m.deployment != self._label)
        return frozenset((*owners, *foreign))

    def _move(self, lanes: View) -> None:
        """Take and give lanes as they are placed among the deployment's nodes."""
        services, now = self._services, self._services.monotonic()
        self._unserved = {p: self._unserved.get(p, now) for p in lanes.placed() if lanes.holder(p) is None}
        mine = Mine(
            services.runner,
            serving=self.holdings.serving(),
            busy=self.holdings.busy(),
            kept={p for p, until in self._kept_until.items() if now < until},
            unserved={p: now - since for p, since in self._unserved.items()},
        )
        planned = plan(lanes, mine, services.clock.now())
        for p in planned.release:
            self.holdings.release(p, MOVE_SECONDS)
        for p in planned.attach:
            if p in planned.fallback:
                self._kept_until[p] = now + KEPT_SECONDS
            self.holdings.attach(p)

    def drain(self, seconds: float) -> None:
        """Hear no more nudges, and hand every lane over to the peers."""
        self._draining = True
        self._until = self._services.monotonic() + seconds
        if self._pull is not None:
            self._spawn(self._stop_pull(), "stop")
        self._give_up()

    def _give_up(self) -> None:
        """Hand over what is served: of a lane that was being attached, or looked at, when the node began to leave, that comes later."""
        if not self._over:
            for p in self.holdings.serving():
                self.holdings.release(p, max(0.0, self._until - self._services.monotonic()))

    def drop(self) -> None:
        """The lease has ended, or the node leaves: forget everything at once."""
        if self._over:
            return
        self._over = True
        self.holdings.drop_all()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        self._spawn(self._stop_pull(), "stop")
        if self._subscription is not None:
            self._spawn(self._subscription.stop(), "unsubscribe")

    # nudges
    async def _begin_pull(self) -> None:
        services = self._services
        name = services.subjects.lane_consumer(self._label)
        config = ConsumerConfig(
            name,
            (services.subjects.lane_filter(self._label),),
            ack_wait=ACK_WAIT_SECONDS,
            max_ack_pending=MAX_PENDING,
            inactive_threshold=IDLE_SECONDS,
        )
        await services.broker.create_consumer(services.subjects.wake_stream, config)
        self._pull = await services.broker.pull(
            services.subjects.wake_stream,
            name,
            self._on_nudge,
            self._on_pull_lost,
            batch=AT_ONCE,
            shared=True,
        )

    def _on_pull_lost(self, reason: str) -> None:
        if not self._over and not self._draining:
            self._services.log.info("nudges of lane %s: %s", self._label, reason)
            self._spawn(self._pull_again(), "pull")

    async def _pull_again(self) -> None:
        pause = AGAIN_SECONDS[0]
        while not self._over and not self._draining:
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])
            with suppress(BrokerError):
                await self._begin_pull()
                return

    async def _stop_pull(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None:
            with suppress(BrokerError):
                await pull.stop()

    def _on_nudge(self, delivery: Delivery) -> None:
        if self._over:
            return
        parsed = self._services.subjects.parse(delivery.message.subject)
        if not isinstance(parsed, Lane):
            self._spawn(self._acknowledge([delivery]), "acknowledge")
            return
        waiting = self._nudges.get(parsed.actor)
        if waiting is not None:
            waiting.append(delivery)  # whoever sees to the actor looks again afterwards
            return
        self._nudges[parsed.actor] = [delivery]
        self._spawn(self._see_to(parsed.actor), "nudge")

    async def _see_to(self, actor: ActorId) -> None:
        """Bring the actor's nudges to the owner of its lane, until none is left."""
        while nudges := self._nudges[actor]:
            self._nudges[actor] = []
            async with self._slots:
                if not await self._bring(actor):
                    break  # they come again, to somebody else
                await self._acknowledge(nudges)
        del self._nudges[actor]

    async def _bring(self, actor: ActorId) -> bool:
        """Have the nudge noted by whoever owns the lane, this node if nobody does. False: this node leaves."""
        pause = AGAIN_SECONDS[0]
        while not self._over:
            try:
                if await self._note(actor) or await self._pass_on(actor):
                    return True
            except BrokerClosed:
                return False
            except BrokerError as error:
                self._services.log.debug("a nudge of %s: trying again: %s", actor, error)
            if self._draining:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS[1])
        return False

    async def _note(self, actor: ActorId) -> bool:
        """Whether this node has the lane, and has noted the nudge. While it does not know whether it has, it has not."""
        partition = self.holdings.partition(self._services.subjects.partition_of(actor))
        if not isinstance(partition, LanePartition) or not self._services.may_act():
            return False
        return await partition.nudged(actor)

    async def _pass_on(self, actor: ActorId) -> bool:
        """Whether the peer that has the lane has noted the nudge; begins to attach a lane that nobody has."""
        services = self._services
        p = services.subjects.partition_of(actor)
        owner = (await self._directory.owner(p)).value
        theirs = owner is not None and owner.state != "free" and owner.runner != services.runner
        if owner is None or not theirs or not services.lives(owner.runner):
            if not self._draining and p not in self.holdings.busy():
                self.holdings.attach(p)
            return False
        try:
            answer = await services.broker.request(
                services.subjects.probe(Token(owner.node), LANE), actor.encode()
            )
        except NoResponders:
            return False
        return answer.payload == NOTED

    async def _on_forwarded(self, request: Received) -> None:
        """Somebody takes this node for the owner of these actors' lanes."""
        if not self._over:
            self._spawn(self._note_all(request), "note")

    async def _note_all(self, request: Received) -> None:
        noted = False
        try:
            actors = [actor_id(name) for name in request.payload.decode().split("\n")]
            async with self._told:
                noted = all(await asyncio.gather(*(self._note(actor) for actor in actors)))
        except (InvalidName, UnicodeDecodeError, BrokerError) as error:
            self._services.log.debug("nudges were not noted: %s", error)
        with suppress(BrokerError):
            await self._services.broker.reply(request, NOTED if noted else b"not mine")

    async def _acknowledge(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(BrokerError):  # it comes again, and says nothing new
                await self._services.broker.ack(delivery)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"lanes-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._services.log.error("lanes of %s: a defect in Sojourn", self._label, exc_info=error)
