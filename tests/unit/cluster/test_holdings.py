"""The partitions of one life: one operation at a time, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.held import HeldEvent
from sojourn.cluster.holding.attach import Attached, Attacher, NotOwner
from sojourn.cluster.holding.holdings import Holdings
from sojourn.cluster.holding.marks import Marks, StorageWentBack
from sojourn.cluster.hosting.services import PartitionServices
from sojourn.cluster.metrics import Metrics
from sojourn.cluster.tenure.gate import Gate

ELSEWHERE = NotOwner(1, "other/L1", 9)


class FakeAttacher:
    """Answers as scripted; what it was asked is in `asked`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.epoch = 0
        self.fail: dict[str, list[Exception]] = {}
        self.slow = asyncio.Event()
        self.slow.set()

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        await self.slow.wait()
        if self.fail.get(what):
            raise self.fail[what].pop(0)

    async def attach(self, p: int) -> Attached:
        await self._answer("attach")
        self.epoch += 1
        return Attached(self.epoch, [], {"mail": "m"}, moved=True, taken_over=False)

    async def verify(self, p: int, epoch: int) -> None:
        await self._answer("verify")

    async def releasing(self, p: int, epoch: int) -> None:
        await self._answer("releasing")

    async def free(self, p: int, epoch: int) -> None:
        await self._answer("free")


class FakeMarks:
    def __init__(self) -> None:
        self.back: StorageWentBack | None = None

    async def check(self, p: int) -> None:
        if self.back is not None:
            raise self.back

    async def write(self, p: int) -> None:
        pass

    def forget(self, p: int) -> None:
        pass


@dataclass
class FakePartition:
    told: list[str] = field(default_factory=list)
    fail: dict[str, Exception] = field(default_factory=dict)
    steps: asyncio.Event = field(default_factory=asyncio.Event)
    on_lost: Callable[[str], None] = lambda reason: None

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what in self.fail:
            raise self.fail[what]

    async def start(
        self, held: Sequence[HeldEvent], consumers: Mapping[str, str], *, taken_over: bool = False
    ) -> None:
        self._note("start")

    async def reattached(self, epoch: int, held: Sequence[HeldEvent], consumers: Mapping[str, str]) -> None:
        self._note(f"reattached {epoch}")

    async def release(self, deadline: float) -> None:
        self._note("release")

    async def wait_steps_finished(self) -> None:
        await self.steps.wait()

    def drop(self) -> None:
        self._note("drop")

    def lease_ended(self, runner: str) -> None:
        self._note(f"ended {runner}")

    def statistics(self) -> Any:
        return None


class Bench:
    """Holdings over fakes, with a clock the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gate = Gate(now=lambda: 0.0)
        self.gate.extend(1.0)
        self.gate.open()
        self.attacher = FakeAttacher()
        self.marks = FakeMarks()
        self.made: list[FakePartition] = []
        self.next = FakePartition
        self.changed = asyncio.Event()
        services = SimpleNamespace(
            node_id="a",
            lease_id="L1",
            runner="a/L1",
            monotonic=lambda: self.now,
            random=random.Random(1),
            may_act=self.gate.is_open,
            held=SimpleNamespace(forget=lambda p: None),
            log=__import__("logging").getLogger("test"),
        )
        self.holdings = Holdings(
            cast(PartitionServices, services),
            cast(Attacher, self.attacher),
            cast(Marks, self.marks),
            self._make,
            Metrics({}),
            on_change=self.changed.set,
        )

    def _make(self, p: int, epoch: int, services: object, *, on_lost: Callable[[str], None]) -> FakePartition:
        made = self.next()
        made.on_lost = on_lost
        made.steps.set()
        self.made.append(made)
        return made

    async def settled(self) -> None:
        """Until no operation is under way."""
        async with asyncio.timeout(5):
            while self.holdings._operations:
                self.changed.clear()
                await self.changed.wait()

    async def attached(self) -> FakePartition:
        self.holdings.attach(1)
        await self.settled()
        return self.made[-1]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_partition_is_attached_once_however_often_it_is_asked_for(bench: Bench) -> None:
    bench.holdings.attach(1)
    bench.holdings.attach(1)
    await bench.settled()
    bench.holdings.attach(1)
    assert bench.holdings.serving() == {1}
    assert bench.attacher.asked == ["attach"]
    assert bench.made[0].told == ["start"]


async def test_an_attach_that_is_elsewhere_leaves_nothing_behind(bench: Bench) -> None:
    bench.attacher.fail["attach"] = [ELSEWHERE]
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.holdings.serving() == bench.holdings.busy() == frozenset()


async def test_an_attach_that_failed_waits_longer_each_time(bench: Bench) -> None:
    bench.attacher.fail["attach"] = [OutcomeUnknown("attach", "p", "no answer")] * 2
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.holdings.busy() == {1}
    bench.now = 1.0
    assert bench.holdings.busy() == frozenset()
    bench.holdings.attach(1)
    await bench.settled()
    bench.now = 2.9
    assert bench.holdings.busy() == {1}
    bench.now = 3.0
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.holdings.serving() == {1}
    assert bench.holdings.busy() == frozenset()


async def test_a_partition_whose_start_failed_is_dropped(bench: Bench) -> None:
    bench.next = lambda: FakePartition(fail={"start": RuntimeError("no")})  # type: ignore[assignment]  # a factory
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.made[0].told == ["start", "drop"]
    assert bench.holdings.serving() == frozenset()


async def test_i8_a_partition_whose_storage_went_back_is_not_served(bench: Bench) -> None:
    bench.marks.back = StorageWentBack(1, "mail", "up to 9", "it up to 3")
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.attacher.asked == []
    assert list(bench.holdings.went_back()) == [1]
    bench.marks.back = None
    bench.now = 10.0
    await bench.attached()
    assert bench.holdings.went_back() == {}


async def test_a_doubt_is_followed_by_a_look_and_a_new_attach(bench: Bench) -> None:
    partition = await bench.attached()
    partition.on_lost("an ack was refused")
    partition.on_lost("again")
    await bench.settled()
    assert bench.attacher.asked == ["attach", "verify", "attach"]
    assert partition.told == ["start", "reattached 2"]


async def test_a_doubt_about_what_is_elsewhere_drops_it(bench: Bench) -> None:
    partition = await bench.attached()
    bench.attacher.fail["verify"] = [ELSEWHERE]
    partition.on_lost("409")
    await bench.settled()
    assert partition.told == ["start", "drop"]
    partition.on_lost("late")
    assert bench.holdings.busy() == frozenset()


async def test_a_doubt_that_comes_while_it_is_attached_anew_is_answered_by_that(bench: Bench) -> None:
    """The attach deletes its own former consumers, which breaks off its own former pulls."""
    partition = await bench.attached()
    bench.attacher.slow.clear()
    partition.on_lost("first")
    await asyncio.sleep(0)
    partition.on_lost("409 consumer deleted")
    bench.attacher.slow.set()
    await bench.settled()
    assert partition.told == ["start", "reattached 2"]


async def test_a_doubt_about_the_new_pulls_is_looked_at_again(bench: Bench) -> None:
    partition = await bench.attached()
    real = partition.reattached

    async def reattached(epoch: int, *rest: Any) -> None:
        await real(epoch, *rest)
        if epoch == 2:
            partition.on_lost("the new pull broke off")

    partition.reattached = reattached  # type: ignore[method-assign]  # one instance only
    partition.on_lost("first")
    await bench.settled()
    assert partition.told == ["start", "reattached 2", "reattached 3"]


async def test_while_the_gate_is_shut_doubts_wait_for_the_reconnect(bench: Bench) -> None:
    partition = await bench.attached()
    bench.gate.shut("cut")
    partition.on_lost("the pull broke off")
    assert bench.holdings.busy() == frozenset()
    await bench.holdings.verify()
    bench.gate.open()
    bench.holdings.reattach_all("the connection was cut")
    await bench.settled()
    assert partition.told == ["start", "reattached 2"]


async def test_a_doubt_that_came_while_the_gate_was_shut_is_looked_at_when_it_opens_without_a_reconnect(
    bench: Bench,
) -> None:
    """The guard's connection was cut, the gate shut for a moment, and just then a pull broke off."""
    partition = await bench.attached()
    bench.gate.shut("the guard's connection was cut")
    partition.on_lost("the consumer's leader moved")
    bench.gate.open()
    bench.holdings.look_at_doubts()
    await bench.settled()
    assert partition.told == ["start", "reattached 2"]
    bench.holdings.look_at_doubts()
    assert bench.holdings.busy() == frozenset()


async def test_a_partition_that_is_doubted_again_and_again_waits_longer_each_time(bench: Bench) -> None:
    partition = await bench.attached()
    holding = bench.holdings._held[1]
    pauses = []
    for _ in range(7):
        pauses.append(bench.holdings._pause(holding))
        holding.looked_at = bench.now
    assert pauses == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    bench.now += 21
    assert bench.holdings._pause(holding) == 0.0
    assert partition.told == ["start"]


async def test_after_a_reconnect_what_is_elsewhere_is_dropped_before_the_gate_opens(bench: Bench) -> None:
    partition = await bench.attached()
    bench.attacher.fail["verify"] = [ELSEWHERE]
    await bench.holdings.verify()
    assert partition.told == ["start", "drop"]


async def test_i8_storage_that_went_back_while_the_connection_was_cut_drops_the_partition(
    bench: Bench,
) -> None:
    partition = await bench.attached()
    bench.marks.back = StorageWentBack(1, "mail", "up to 9", "it up to 3")
    await bench.holdings.verify()
    assert partition.told == ["start", "drop"]
    assert list(bench.holdings.went_back()) == [1]
    assert bench.holdings.busy() == {1}


async def test_a_verification_of_unknown_outcome_is_told(bench: Bench) -> None:
    partition = await bench.attached()
    bench.attacher.fail["verify"] = [OutcomeUnknown("read", "owner.1", "no answer")]
    with pytest.raises(OutcomeUnknown):
        await bench.holdings.verify()
    assert partition.told == ["start"]


async def test_a_planned_move_announces_settles_and_frees(bench: Bench) -> None:
    partition = await bench.attached()
    bench.holdings.release(1, 5.0)
    bench.holdings.release(1, 5.0)
    partition.on_lost("pulls end when a partition settles")
    await bench.settled()
    assert bench.attacher.asked == ["attach", "releasing", "free"]
    assert partition.told == ["start", "release"]
    assert bench.holdings.serving() == frozenset()


async def test_a_move_that_could_not_settle_drops_and_frees(bench: Bench) -> None:
    bench.next = lambda: FakePartition(fail={"release": RuntimeError("no")})  # type: ignore[assignment]  # a factory
    partition = await bench.attached()
    bench.holdings.release(1, 5.0)
    await bench.settled()
    assert partition.told == ["start", "release", "drop"]
    assert bench.attacher.asked[-1] == "free"


async def test_a_move_of_what_another_took_meanwhile_drops_it(bench: Bench) -> None:
    partition = await bench.attached()
    bench.attacher.fail["releasing"] = [ELSEWHERE]
    bench.holdings.release(1, 5.0)
    await bench.settled()
    assert partition.told == ["start", "drop"]
    assert "free" not in bench.attacher.asked


async def test_the_end_of_a_life_drops_everything_at_once_and_attaches_nothing_more(bench: Bench) -> None:
    partition = await bench.attached()
    bench.attacher.slow.clear()
    partition.on_lost("a look is under way")
    await asyncio.sleep(0)
    bench.holdings.drop_all()
    assert partition.told == ["start", "drop"]
    bench.attacher.slow.set()
    await bench.settled()
    bench.holdings.attach(2)
    assert bench.holdings.busy() == bench.holdings.serving() == frozenset()
    assert partition.told == ["start", "drop"]


async def test_steps_that_still_run_after_a_move_are_waited_for(bench: Bench) -> None:
    partition = await bench.attached()
    partition.steps.clear()
    bench.holdings.release(1, 5.0)
    await bench.settled()
    waiting = asyncio.create_task(bench.holdings.wait_steps_finished())
    await asyncio.sleep(0)
    assert not waiting.done()
    partition.steps.set()
    async with asyncio.timeout(5):
        await waiting


async def test_every_partition_is_told_of_a_lease_that_ended(bench: Bench) -> None:
    partition = await bench.attached()
    bench.holdings.lease_ended("b/L1")
    assert partition.told == ["start", "ended b/L1"]


async def test_a_release_whose_last_write_has_no_answer_leaves_nothing_that_nobody_serves() -> None:
    """The partition was settled and given up; only `free` is not known to be written. It must not stay in our books as
    being released for as long as the lease lives: not served, the next plan attaches it anew.
    """
    bench = Bench()
    bench.holdings.attach(1)
    await bench.settled()
    bench.attacher.fail["free"] = [OutcomeUnknown("put", "owner.1", "no answer")]
    bench.holdings.release(1, 5.0)
    await bench.settled()
    assert bench.holdings.serving() == frozenset()
    bench.now += 60.0
    bench.holdings.attach(1)
    await bench.settled()
    assert bench.holdings.serving() == {1}
