"""Placement and the plan of one node: pure decisions over a polled view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import pytest
from sojourn.cluster.tenure.ownership import (
    FALLBACK_SECONDS,
    MOVE_SECONDS,
    Member,
    Mine,
    Owned,
    Owner,
    Plan,
    View,
    neighbours,
    placement,
    plan,
    rendezvous,
)

NOW = 1000.0


def member(
    node: str, state: Literal["joining", "ready", "draining"] = "ready", capacity: float = 1.0
) -> Member:
    return Member(node=node, lease="L1", state=state, capacity=capacity)


def view(members: list[Member], holders: Mapping[int, str] | None = None, *, since: float = 0.0) -> View:
    """`holders` maps partitions to node ids; each holds under lease L1."""
    owners = {
        p: Owned(Owner(node=node, lease="L1", epoch=3, state="held", since=since), revision=p + 1)
        for p, node in (holders or {}).items()
    }
    return View(32, {m.node: m for m in members}, owners)


def mine(node: str, seen: View, **facts: object) -> Mine:
    serving = {p for p in range(32) if (h := seen.holder(p)) is not None and h.node == node}
    return Mine(runner=f"{node}/L1", **{"serving": serving, **facts})  # type: ignore[arg-type]  # facts by name


def settle(members: list[Member], holders: dict[int, str]) -> dict[int, str]:
    """Let every node follow its plan until nothing moves; the holders afterwards."""
    for _ in range(10):
        seen = view(members, holders)
        plans = {m.node: plan(seen, mine(m.node, seen), NOW) for m in members}
        if all(p == Plan() for p in plans.values()):
            return holders
        for p in plans.values():
            for partition in p.release:
                holders.pop(partition, None)
        attached = [(partition, node) for node, p in plans.items() for partition in p.attach]
        assert len(dict(attached)) == len(attached), "two nodes would attach one partition on the same view"
        holders.update(attached)
    raise AssertionError("the plans never came to rest")


def test_three_nodes_share_thirty_two_partitions_evenly() -> None:
    holders = settle([member("a"), member("b"), member("c")], {})
    assert sorted(Counter(holders.values()).values()) == [10, 11, 11]


def test_capacity_weights_the_shares() -> None:
    holders = settle([member("a", capacity=3.0), member("b")], {})
    assert Counter(holders.values()) == {"a": 24, "b": 8}


def test_a_node_that_joins_takes_only_its_share() -> None:
    before = settle([member("a"), member("b")], {})
    after = settle([member("a"), member("b"), member("c")], dict(before))
    moved = [p for p in before if before[p] != after[p]]
    assert len(moved) == Counter(after.values())["c"] == 10


def test_a_node_that_leaves_moves_only_its_own_partitions() -> None:
    before = settle([member("a"), member("b"), member("c")], {})
    after = settle([member("a"), member("b")], dict(before))
    assert all(after[p] == before[p] for p in before if before[p] != "c")
    assert Counter(after.values()) == {"a": 16, "b": 16}


def test_a_partition_whose_holders_lease_ended_is_attached_although_its_node_joined_anew() -> None:
    reborn = Member(node="b", lease="L2", state="ready")
    seen = View(1, {"b": reborn}, {0: Owned(Owner("b", "L1", 7, "held"), 9)})
    assert plan(seen, Mine("b/L2"), NOW) == Plan(attach=(0,))


def test_a_partition_held_by_a_living_node_is_never_attached() -> None:
    seen = view([member("a"), member("b")], dict.fromkeys(range(32), "a"))
    assert plan(seen, mine("b", seen), NOW).attach == ()


def test_a_releasing_partition_waits_until_it_is_free() -> None:
    owners = {0: Owned(Owner("a", "L1", 3, "releasing"), 5)}
    seen = View(1, {"a": member("a", "draining"), "b": member("b")}, owners)
    assert plan(seen, Mine("b/L1"), NOW) == Plan()
    freed = View(1, seen.members, {0: Owned(Owner("a", "L1", 3, "free"), 6)})
    assert plan(freed, Mine("b/L1"), NOW) == Plan(attach=(0,))


def test_a_draining_node_releases_everything_at_once_and_attaches_nothing() -> None:
    seen = view([member("a", "draining"), member("b")], {0: "a", 1: "a", 2: "b"}, since=NOW)
    assert plan(seen, mine("a", seen), NOW) == Plan(release=(0, 1))


def test_a_joining_node_is_given_nothing() -> None:
    seen = view([member("a"), member("b", "joining")], {})
    assert set(placement(seen).values()) == {"a"}
    assert plan(seen, mine("b", seen), NOW) == Plan()


def test_a_partition_moves_at_most_once_in_five_seconds() -> None:
    seen = view([member("a"), member("b")], dict.fromkeys(range(32), "a"), since=NOW)
    assert plan(seen, mine("a", seen), NOW + MOVE_SECONDS - 0.1).release == ()
    assert len(plan(seen, mine("a", seen), NOW + MOVE_SECONDS).release) == 16


def test_a_partition_its_appointed_node_does_not_take_is_taken_by_the_next_in_order_later() -> None:
    seen = view([member("a"), member("b")], {})
    placed = placement(seen)
    p = next(p for p in placed if placed[p] == "b")
    waited = FALLBACK_SECONDS * (1 + rendezvous(p, {"a": 1.0, "b": 1.0}).index("a"))
    assert p not in plan(seen, mine("a", seen, unserved={p: waited - 0.1}), NOW).attach
    late = plan(seen, mine("a", seen, unserved={p: waited}), NOW)
    assert p in late.attach
    assert late.fallback == {p}


def test_a_fallback_is_not_given_back_while_it_is_kept() -> None:
    seen = view([member("a"), member("b")], dict.fromkeys(range(32), "a"))
    assert plan(seen, mine("a", seen, kept=range(32)), NOW).release == ()


def test_a_partition_held_but_not_served_by_this_node_is_attached_again() -> None:
    seen = view([member("a"), member("b")], dict.fromkeys(range(32), "a"))
    assert plan(seen, mine("a", seen, serving=set(range(31))), NOW).attach == (31,)


def test_nothing_is_decided_about_a_busy_partition() -> None:
    seen = view([member("a")], {})
    assert plan(seen, mine("a", seen, busy=set(range(31))), NOW).attach == (31,)


def test_a_node_whose_lease_is_not_in_the_view_does_nothing() -> None:
    seen = view([member("b")], {0: "a"})
    assert plan(seen, Mine("a/L1", serving={0}), NOW) == Plan()
    assert plan(seen, Mine("b/L9", serving={0}), NOW) == Plan()


@pytest.mark.parametrize(
    ("members", "beside"),
    [("a", ()), ("ab", ("b",)), ("abc", ("b", "c")), ("abcd", ("b", "d"))],
)
def test_ring_neighbours_are_the_next_and_the_previous_node(members: str, beside: tuple[str, ...]) -> None:
    assert neighbours("a", list(members)) == beside


def test_lanes_that_were_never_needed_are_placed_nowhere_and_the_others_evenly() -> None:
    members = [member("a"), member("b")]
    owned = view(members, dict.fromkeys((3, 7, 20, 31), "a"))
    lanes = View(32, owned.members, owned.owners, only=frozenset((3, 7, 20, 31, 9)))
    placed = placement(lanes)
    assert placed.keys() == lanes.only
    assert Counter(placed.values()) == {"a": 3, "b": 2}
    planned = plan(lanes, Mine("a/L1", serving={3, 7, 20, 31}), NOW)
    assert len(planned.release) == 1
    assert plan(lanes, Mine("b/L1"), NOW).attach == (9,)


@pytest.mark.parametrize("capacities", [(1.0,) * 12, (1.0, 2.0, 0.5) * 4], ids=["alike", "of three sizes"])
def test_shares_are_even_and_only_the_share_of_who_comes_or_goes_moves(capacities: tuple[float, ...]) -> None:
    members: list[Member] = []
    holders: dict[int, str] = {}

    def check(before: dict[int, str], most: float) -> None:
        total = sum(m.capacity for m in members)
        shares = Counter(holders.values())
        assert shares.total() == 32
        assert all(abs(shares[m.node] - 32 * m.capacity / total) < 1.0 for m in members)
        assert sum(before[p] != holders[p] for p in before) <= most

    for number, capacity in enumerate(capacities):
        members.append(member(f"n{number}", capacity=capacity))
        before = dict(holders)
        settle(members, holders)
        # (Shares of unlike sizes are rounded, so that a join may shift the odd one out.)
        check(before, Counter(holders.values())[f"n{number}"] + (0 if len(set(capacities)) == 1 else 3))
    while len(members) > 1:
        gone = members.pop(len(members) // 2)
        before = dict(holders)
        theirs = [p for p, node in holders.items() if node == gone.node]
        for p in theirs:
            del holders[p]
        settle(members, holders)
        check(before, len(theirs) + (0 if len(set(capacities)) == 1 else 3))
