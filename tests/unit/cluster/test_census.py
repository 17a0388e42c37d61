"""Who needs which deployment: counts by line and pin, and when one is drained."""

from __future__ import annotations

from typing import Any

from sojourn.cluster.census import Census, count
from sojourn.cluster.deployments.deployment import Deployment, Source
from sojourn.cluster.deployments.versions import Policy
from sojourn.codecs.record import Index, SourceLine, Status

TEXT = Source("app", "order", 10, ("async def order():", "    await nap()", "    await note.receive()"))
V1 = Deployment("v1", "app", "3.11", {"order": ("app:order#1",)}, {}, (TEXT,), code=("app:same#1",))
V2 = Deployment("v2", "app", "3.11", {"order": ("app:order#2",)}, {}, code=("app:same#1",))
AT = SourceLine("app", "order", 12)


def index(actor: str, *, pin: tuple[str, ...] = ("app:order#1",), updated: float = 5.0, **more: Any) -> Index:
    facts: dict[str, Any] = {"deployment": "v1", "stacks": ((AT,),), **more}
    status = facts.pop("status", Status.SUSPENDED)
    return Index(actor, "r", "order", status, 1, 0.0, updated, pin=pin, **facts)


def taken(*indexes: Index, current: str = "v2", **nodes: int) -> Census:
    return count(Policy(current), {"v1": V1, "v2": V2}, nodes or {"v1": 1, "v2": 1}, indexes)


def test_actors_are_counted_by_line_with_the_text_and_the_longest_wait() -> None:
    v1 = taken(
        index("a", updated=7.0), index("b", updated=3.0), index("c", status=Status.COMPLETED)
    ).deployments["v1"]
    (line,) = v1.lines
    assert (line.function, line.line, line.source) == ("order", 12, "await note.receive()")
    assert (line.count, line.oldest) == (2, 3.0)
    assert v1.suspended == 2


def test_an_actor_needs_its_deployment_unless_another_that_lives_or_receives_can_run_it() -> None:
    found = taken(
        index("a"), index("b", pin=("app:same#1",)), index("c", pin=("app:same#1",), pinned_to="v1")
    )
    v1 = found.deployments["v1"]
    assert (v1.suspended, v1.needing) == (3, 2)
    assert {(group.pin, group.pinned_to): group.others for group in v1.pins} == {
        (("app:order#1",), ""): (),
        (("app:same#1",), ""): ("v2",),
        (("app:same#1",), "v1"): (),
    }
    assert taken(index("b", pin=("app:same#1",)), current="v1", v1=1).deployments["v1"].needing == 1


def test_a_deployment_is_drained_when_nothing_starts_on_it_and_nothing_needs_it() -> None:
    assert taken().deployments["v1"].drained
    assert not taken(current="v1").deployments["v1"].drained
    assert not taken(index("a")).deployments["v1"].drained
    assert taken(index("b", pin=("app:same#1",)), index("n", pin=(), stacks=())).deployments["v1"].drained


def test_actors_on_lanes_and_those_without_any_node_are_told_apart() -> None:
    found = taken(index("a", lane="v1"), index("b", hold="pin"), index("c", deployment="v0"))
    v1, v0 = found.deployments["v1"], found.deployments["v0"]
    assert (v1.on_lane, v1.without_node, found.without_node()) == (1, 1, 1)
    assert (v0.registered, v0.nodes, v0.suspended) == (False, 0, 1)


def test_a_ramp_makes_every_deployment_of_it_receive() -> None:
    found = count(Policy("v1", {"v1": 90, "v2": 10}), {"v1": V1, "v2": V2}, {"v1": 1}, [])
    assert [(one.receives, one.weight) for _, one in sorted(found.deployments.items())] == [
        (True, 90),
        (True, 10),
    ]
