"""Frames that an earlier Sojourn stored are resumed; those of a later one are told from broken ones."""

from __future__ import annotations

from typing import Any

import pytest
from engine_kit import Actor
from sojourn.actors.branches import Branch, Branches, Task
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import create_task, receive
from sojourn.actors.workflow import workflow
from sojourn.codecs import frames
from sojourn.codecs.errors import PinNotSatisfied

R = Registry()
left = Channel("left", int)
right = Channel("right", int)


@workflow(registry=R)
async def both() -> tuple[int, int]:
    task: Task[int] = create_task(receive(right))
    return await receive(left), await task


def waiting() -> Actor:
    actor = Actor(both, parked=False)
    actor.start(both)
    return actor


class Stored:
    """Stores what is given of a class by its name, as pickle did for instances of it."""

    def __init__(self, kind: type, state: Any) -> None:
        self.kind = kind
        self.state = state

    def __reduce__(self) -> Any:
        return object.__new__, (self.kind,), self.state


def stored_anew(actor: Actor, root: Any) -> None:
    """The actor's frame is what is given now, and nothing of it is live."""
    assert actor.record is not None
    frame = frames.dump(root)
    actor.live.discard()
    actor.live = None
    index, envelope = actor.record.index, actor.record.envelope
    actor.record = type(actor.record)(index, envelope, frame.data)


def test_a_frame_of_version_1_whose_branches_are_objects_is_resumed() -> None:
    actor = waiting()
    table = {branch.number: Stored(Branch, (1, *branch.state())) for branch in actor.live}
    stored_anew(actor, Stored(Branches, (1, table, actor.live.next_number, {})))

    actor.signal("right", 2)
    actor.signal("left", 1)

    assert actor.result == [1, 2]


@pytest.mark.parametrize(
    "root", [(99, 1, {}, ()), "no branches", Stored(Branches, (99, {}, 1, {})), (2, 1, {"later": 1}, ())]
)
def test_a_frame_of_a_later_version_is_not_for_this_node(root: Any) -> None:
    actor = waiting()
    stored_anew(actor, root)
    assert actor.record is not None
    with pytest.raises(
        PinNotSatisfied, match=r"branch state 99|this Sojourn reads|not known to this version"
    ):
        actor.engine.restore(actor.record)
