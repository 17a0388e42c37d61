"""Becoming the owner of a partition, and ceasing to be (PROTOCOL 3).

Six steps, in this order, each with a name at which tests crash:

1. `attach_owner`: compare-and-swap `owner.<p>` to this node, its lease, epoch + 1;
2. `attach_delete`: delete the partition's durable consumers of lower epochs;
3. `attach_create`: create those of this epoch (`p17-e42`), one on each of MAIL, CTL, WAKE;
4. `attach_fence`: write the fence into HELD;
5. `attach_list`: list HELD;
6. `attach_verify`: read `owner.<p>` once more from the leader, and leave if it is not this epoch's.

Whoever is interrupted between two of them leaves a state that the next owner takes over by the same steps.
Deleting a consumer answers the old owner's pull with 409, makes its late acknowledgements void, and gives
every unacknowledged message to the new consumer in order; resetting it would leave both owners pulling.

Normally exactly one former set of consumers exists, and its name is known from the record that was swapped.
Another (an attach that broke off before its third step) shows itself: the broker refuses overlapping filters
with 10100; only then are the consumers listed. A consumer of a higher epoch is never deleted: it means that
this attach is the late one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from sojourn.broker.errors import FencedOff, OutcomeUnknown, Refused, WrongLastSequence
from sojourn.broker.seam import Broker, ConsumerConfig
from sojourn.broker.subjects import Subjects
from sojourn.cluster.hosting.services import Fault, no_fault
from sojourn.cluster.tenure.directory import Directory, Entry
from sojourn.cluster.tenure.ownership import Owner
from sojourn.codecs.errors import SojournError

if TYPE_CHECKING:
    from sojourn.broker.held import HeldEvent, HeldStore

OVERLAPS = 10100
"""JetStream's code for a work queue's consumer whose filter overlaps another's."""
ATTEMPTS = 5
"""How often one step of unknown outcome is repeated before the attach is given up (and planned anew)."""
RETRY_SECONDS = 0.2

T = TypeVar("T")


class NotOwner(SojournError):
    """The partition is, or has become, somebody else's."""

    def __init__(self, partition: int, holder: str, epoch: int) -> None:
        """`holder`: "<node>/<lease>"."""
        super().__init__(partition, holder, epoch)
        self.partition = partition
        self.holder = holder
        self.epoch = epoch

    def __str__(self) -> str:
        """One sentence for the log."""
        return f"partition {self.partition} belongs to {self.holder} (epoch {self.epoch})"


@dataclass(frozen=True)
class Attached:
    """What an attach found, for the hosting side."""

    epoch: int
    held: Sequence[HeldEvent]
    consumers: Mapping[str, str]
    """Short name of the stream ("mail", "ctl", "wake") to the consumer's name."""
    moved: bool
    """Whether the holder changed (false: attached anew by the same life of the same node)."""
    taken_over: bool
    """Whether the former holder's lease ended while it held (not a planned hand-over): poison counting
    begins (I7).
    """


class Attacher:
    """Attaches and frees partitions for one life of the node, through the engine's connection."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        directory: Directory,
        held: HeldStore,
        *,
        node: str,
        lease: str,
        broker_now: Callable[[], float],
        window: int = 10_000,
        fault: Fault = no_fault,
    ) -> None:
        """`broker_now`: the broker's clock, Unix seconds; `window`: unacknowledged messages per consumer."""
        self._broker = broker
        self._directory = directory
        self._held = held
        self._node = node
        self._lease = lease
        self._broker_now = broker_now
        self._window = window
        self._fault = fault
        self._subjects = subjects
        self._streams = {
            "mail": (subjects.mail_stream, subjects.in_filter),
            "ctl": (subjects.ctl_stream, subjects.in_filter),
            "wake": (subjects.wake_stream, subjects.wake_filter),
        }

    def __repr__(self) -> str:
        """For whom it attaches."""
        return f"<Attacher for {self.runner}>"

    @property
    def runner(self) -> str:
        """ "<node>/<lease>"."""
        return f"{self._node}/{self._lease}"

    async def attach(self, p: int) -> Attached:
        """All six steps. Raises `NotOwner` (leave it), `OutcomeUnknown`, `Refused` (plan it anew)."""
        former = await self._settled(lambda: self._directory.owner(p))
        await self._check_may_attach(p, former)
        about = str(p)
        mine = await self._take(p, former)
        self._fault("attach_owner", about)
        await self._each_stream(lambda short: self._delete_former(p, short, former))
        self._fault("attach_delete", about)
        await self._each_stream(lambda short: self._create(p, short, mine.epoch))
        self._fault("attach_create", about)
        try:
            await self._settled(lambda: self._held.fence(p, mine.epoch))
            self._fault("attach_fence", about)
            held = await self._settled(lambda: self._held.list(p))
        except FencedOff as later:
            raise NotOwner(p, "a later owner", later.found_epoch) from later
        self._fault("attach_list", about)
        await self._settled(lambda: self.verify(p, mine.epoch))
        self._fault("attach_verify", about)
        before = former.value
        moved = before is None or before.runner != self.runner
        return Attached(
            mine.epoch,
            held,
            {short: self._subjects.consumer(p, mine.epoch) for short in self._streams},
            moved=moved,
            taken_over=moved and before is not None and before.state != "free",
        )

    async def verify(self, p: int, epoch: int) -> None:
        """Read `owner.<p>` from the leader. Raises `NotOwner` if this life does not hold it under this
        epoch.
        """
        owner = (await self._directory.owner(p)).value
        if owner is None or owner.runner != self.runner or owner.epoch != epoch or owner.state == "free":
            raise NotOwner(p, owner.runner if owner else "nobody", owner.epoch if owner else 0)

    async def releasing(self, p: int, epoch: int) -> None:
        """Announce a planned move: others wait for `free`. Raises `NotOwner`, `OutcomeUnknown`."""
        await self._settled(lambda: self._set_state(p, epoch, "releasing"))

    async def free(self, p: int, epoch: int) -> None:
        """The hand-over is complete: anyone may attach. Raises `NotOwner`, `OutcomeUnknown`."""
        await self._settled(lambda: self._set_state(p, epoch, "free"))

    async def _set_state(self, p: int, epoch: int, state: Literal["releasing", "free"]) -> None:
        entry = await self._directory.owner(p)
        owner = entry.value
        if owner is None or owner.runner != self.runner or owner.epoch != epoch:
            raise NotOwner(p, owner.runner if owner else "nobody", owner.epoch if owner else 0)
        if owner.state == state:
            return
        since = self._broker_now() if state == "free" else owner.since
        changed = Owner(owner.node, owner.lease, owner.epoch, state, since)
        await self._directory.put_owner(p, changed, expect=entry.revision)

    async def _check_may_attach(self, p: int, former: Entry[Owner]) -> None:
        """Free, ours, or its holder's lease has ended, read from the leader: a poll may lag behind."""
        owner = former.value
        if owner is None or owner.state == "free" or owner.runner == self.runner:
            return
        holder = (await self._settled(lambda: self._directory.member(owner.node))).value
        if holder is not None and holder.lease == owner.lease:
            raise NotOwner(p, owner.runner, owner.epoch)

    async def _take(self, p: int, former: Entry[Owner]) -> Owner:
        """The first step: swap the record. An unknown outcome is settled by reading: nobody else writes
        this value.
        """
        before = former.value
        kept = before is not None and before.runner == self.runner and before.state != "free"
        mine = Owner(
            node=self._node,
            lease=self._lease,
            epoch=(before.epoch if before is not None else 0) + 1,
            state="held",
            since=self._since(before, kept=kept),
        )

        async def swap() -> None:
            try:
                await self._directory.put_owner(p, mine, expect=former.revision)
            except (OutcomeUnknown, WrongLastSequence) as error:
                found = (await self._directory.owner(p)).value
                if found == mine:
                    return
                if isinstance(error, OutcomeUnknown) and found == before:
                    raise  # not stored yet: send it again
                raise NotOwner(p, found.runner if found else "nobody", found.epoch if found else 0) from error

        await self._settled(swap)
        return mine

    def _since(self, before: Owner | None, *, kept: bool) -> float:
        """When the partition last moved: the first attach of all is no move, so a cluster that starts is
        shared out at once.
        """
        if before is None:
            return 0.0
        return before.since if kept else self._broker_now()

    async def _delete_former(self, p: int, short: str, former: Entry[Owner]) -> None:
        if former.value is not None:
            name = self._subjects.consumer(p, former.value.epoch)
            await self._settled(lambda: self._broker.delete_consumer(self._streams[short][0], name))

    async def _create(self, p: int, short: str, epoch: int) -> None:
        stream, filter_of = self._streams[short]
        config = ConsumerConfig(
            name=self._subjects.consumer(p, epoch), filters=(filter_of(p),), max_ack_pending=self._window
        )
        for _ in range(ATTEMPTS):
            try:
                return await self._settled(lambda: self._broker.create_consumer(stream, config))
            except Refused as refused:
                if refused.code != OVERLAPS:
                    raise
                await self._settled(lambda: self.verify(p, epoch))
                await self._delete_lower(p, stream, epoch)
        raise OutcomeUnknown("creating a consumer", config.name, "others of its partition keep coming back")

    async def _delete_lower(self, p: int, stream: str, epoch: int) -> None:
        for name in await self._settled(lambda: self._broker.consumers(stream)):
            found = self._subjects.parse_consumer(name)
            if found is None or found[0] != p:
                continue
            if found[1] > epoch:
                raise NotOwner(p, "a later owner", found[1])
            if found[1] < epoch:
                await self._settled(_deleting(self._broker, stream, name))

    async def _each_stream(self, work: Callable[[str], Awaitable[None]]) -> None:
        results = await asyncio.gather(*(work(short) for short in self._streams), return_exceptions=True)
        for result in results:  # all three have ended before any error is told
            if isinstance(result, BaseException):
                raise result

    async def _settled(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat what may be repeated until its outcome is known, at most `ATTEMPTS` times."""
        for attempt in range(ATTEMPTS):
            try:
                return await work()
            except OutcomeUnknown:
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt raises")


def _deleting(broker: Broker, stream: str, name: str) -> Callable[[], Awaitable[bool]]:
    return lambda: broker.delete_consumer(stream, name)
