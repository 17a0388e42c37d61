"""The small parts of the hosting side, each by itself."""

from __future__ import annotations

import asyncio

import pytest
from sojourn.cluster.faults import POINTS, UnknownFaultPoint, fault_from
from sojourn.cluster.hosting.alone import Alone
from sojourn.cluster.hosting.hot_cache import Hot, HotCache
from sojourn.cluster.hosting.pace import Pace
from sojourn.cluster.hosting.services import no_fault
from sojourn.cluster.hosting.views import sentence
from sojourn.cluster.mail.mailroom import HeldIndex, HeldRef
from sojourn.codecs.record import Index, Origin, Status

# ---- faults


def test_no_variable_means_no_fault() -> None:
    assert fault_from({}) is no_fault


def test_a_fault_happens_at_its_count_and_only_there() -> None:
    deaths: list[str] = []
    fault = fault_from({"SOJOURN_FAULT": "after_commit:2"}, kill=lambda: deaths.append("dead"))
    fault("before_commit", "a")
    fault("after_commit", "a")
    assert deaths == []
    fault("after_commit", "b")
    assert deaths == ["dead"]
    fault("after_commit", "b")
    assert deaths == ["dead"]


def test_a_fault_may_be_about_one_actor() -> None:
    deaths: list[str] = []
    fault = fault_from(
        {"SOJOURN_FAULT": "in_step@order-1:1, after_commit:9"}, kill=lambda: deaths.append("dead")
    )
    fault("in_step", "order-2")
    assert deaths == []
    fault("in_step", "order-1")
    assert deaths == ["dead"]


@pytest.mark.parametrize("wrong", ["nowhere:1", "after_commit", "after_commit:0", "after_commit:x"])
def test_a_fault_that_cannot_be_meant_names_the_points(wrong: str) -> None:
    with pytest.raises(UnknownFaultPoint) as caught:
        fault_from({"SOJOURN_FAULT": wrong})
    assert all(point in str(caught.value) for point in POINTS)


# ---- hot cache


class Live:
    """Counts how often it was discarded."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.discarded = 0

    def discard(self) -> None:
        self.discarded += 1


def hot(size: int = 100, *, busy: bool = False, partition: int = 0) -> Hot:
    return Hot(None, 1, partition, live=Live(size), busy=busy)


def test_the_least_recently_used_is_evicted_and_discarded_in_silence() -> None:
    cache = HotCache(max_entries=2, max_bytes=10**9)
    first, second, third = hot(), hot(), hot()
    live = first.live
    cache.keep("a", first, 1.0)
    cache.keep("b", second, 2.0)
    cache.keep("c", third, 3.0)
    assert "a" not in cache
    assert isinstance(live, Live)
    assert live.discarded == 1
    assert cache.get("b") is second
    assert cache.get("c") is third


def test_a_use_makes_an_entry_the_newest() -> None:
    cache = HotCache(max_entries=2, max_bytes=10**9)
    first = hot()
    cache.keep("a", first, 1.0)
    cache.keep("b", hot(), 2.0)
    cache.keep("a", first, 3.0)
    cache.keep("c", hot(), 4.0)
    assert "a" in cache
    assert "b" not in cache


def test_the_bound_by_bytes_counts_frames() -> None:
    cache = HotCache(max_entries=100, max_bytes=50_000)
    for n in range(10):
        cache.keep(f"a{n}", hot(2_000), float(n))
    statistics = cache.statistics()
    assert statistics.weight <= 50_000
    assert 0 < statistics.entries < 10


def test_what_a_turn_uses_is_not_evicted() -> None:
    cache = HotCache(max_entries=1, max_bytes=10**9)
    cache.keep("busy", hot(busy=True), 1.0)
    cache.keep("new", hot(busy=True), 2.0)
    assert "busy" in cache
    assert cache.evict_idle(1_000.0) == 0


def test_idle_entries_go_and_a_partition_goes_as_a_whole() -> None:
    cache = HotCache(max_entries=10, max_bytes=10**9, idle_seconds=10.0)
    cache.keep("old", hot(), 0.0)
    cache.keep("fresh", hot(partition=3), 95.0)
    assert cache.evict_idle(100.0) == 1
    assert cache.count(3) == 1
    cache.drop_partition(3)
    assert "fresh" not in cache
    assert cache.count(3) == 0
    assert cache.statistics().weight == 0


# ---- held events by reference


def ref(seq: int, kind: str = "mail", name: str = "note") -> HeldRef:
    return HeldRef(seq, kind, name, float(seq))


def origin(seq: int) -> Origin:
    return Origin("mail", 1, seq)


def test_held_events_are_found_by_origin_and_counted_once() -> None:
    index = HeldIndex()
    index.add("a", origin(1), ref(10))
    index.add("a", origin(1), ref(10))
    index.add("a", origin(2), ref(11, "ctl", "cancel"))
    index.add("b", origin(3), ref(12))
    assert len(index) == 3
    assert index.get("a", origin(2)) == ref(11, "ctl", "cancel")
    assert not index.has("b", origin(1))
    assert sorted(index.actors()) == ["a", "b"]
    index.remove("a", origin(1))
    index.remove("a", origin(1))
    index.remove("a", origin(2))
    assert list(index.actors()) == ["b"]


def test_mail_of_one_channel_is_found_in_the_order_it_was_moved() -> None:
    index = HeldIndex()
    for seq in range(5):
        index.add("a", origin(seq), ref(10 + seq, name=("x", "y")[seq % 2]))
    assert [o.seq for o in index.of("a").mail["x"]] == [0, 2, 4]
    assert [o.seq for o in index.of("a").mail["y"]] == [1, 3]
    index.replace([("b", origin(9), ref(1))])
    assert list(index.actors()) == ["b"]


# ---- pace


def test_a_burst_of_a_seconds_transitions_is_free_and_the_next_waits_its_turn() -> None:
    pace = Pace(10.0)
    assert [pace.pause(100.0) for _ in range(10)] == [0.0] * 10
    assert pace.pause(100.0) == pytest.approx(0.1)
    assert pace.pause(100.0) == pytest.approx(0.2)
    assert pace.pause(102.0) == 0.0


# ---- running alone


async def test_a_suspect_waits_for_running_steps_and_blocks_all_others() -> None:
    alone = Alone()
    alone.step_started()
    acquiring = asyncio.create_task(alone.acquire("suspect"))
    await asyncio.sleep(0)
    assert not acquiring.done()
    assert alone.blocks("other")
    assert not alone.blocks("suspect")
    alone.step_ended()
    await acquiring
    free = asyncio.create_task(alone.wait_free())
    await asyncio.sleep(0)
    assert not free.done()
    alone.release("other")
    assert alone.blocks("other")
    alone.release("suspect")
    await free
    assert not alone.blocks("other")


async def test_suspects_go_one_after_another() -> None:
    alone = Alone()
    await alone.acquire("first")
    second = asyncio.create_task(alone.acquire("second"))
    await asyncio.sleep(0)
    assert not second.done()
    alone.release("first")
    await second
    assert alone.blocks("first")
    await alone.acquire("second")  # again is fine
    alone.release("second")


# ---- words


def index(**facts: object) -> Index:
    return Index(
        actor="a",
        run="r",
        workflow="w",
        status=facts.pop("status", Status.SUSPENDED),  # type: ignore[arg-type]  # a test's shorthand
        transition=1,
        created=0.0,
        updated=100.0,
        **facts,  # type: ignore[arg-type]  # as above
    )


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"wait": "receive approval"}, "It waits for receive approval, since 1m."),
        ({"status": Status.COMPLETED}, "It has ended as completed, 1m ago."),
        ({"hold": "paused", "hold_reason": "audit"}, "It is paused (audit); `resume` lets it go on."),
        ({"hold": "quarantined"}, "It is in quarantine; `release` tries again from its last good record."),
        ({"hold": "pin"}, "Its code is not here; it goes on when a node with that code owns it."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_an_actor_does_not_run_is_one_sentence(facts: dict[str, object], said: str) -> None:
    assert sentence(index(**facts), 160.0) == said
