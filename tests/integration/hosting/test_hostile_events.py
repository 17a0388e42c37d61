"""What somebody outside or an actor's own code may do to a partition: it goes on, and the others with it (I6)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import publish_state, sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import Token, actor_id

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()


@dataclass
class Quits:
    """A class that ends the process when it is made from data."""

    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise SystemExit(self.x)


note = Channel("note", Quits)


@workflow(registry=REGISTRY)
async def one() -> int:
    await sleep(0.01)
    return 1


@workflow(registry=REGISTRY)
async def takes(value: Quits) -> int:
    return (await note.receive()).x


@workflow(registry=REGISTRY)
async def leaves() -> int:
    raise SystemExit(3)


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"args":' * 50_000], ids=["list", "object"])
async def test_json_deeper_than_any_decoder_goes_is_dead_and_stops_nothing(
    owners: MakeOwner, payload: bytes
) -> None:
    owner = await owners()
    for kind in (
        owner.subjects.ctl(actor_id("deep"), Token("start")),
        owner.subjects.wake(actor_id("deep"), Token("nudge")),
    ):
        await owner.watcher.publish(Publish(kind, payload))
    await owner.start("after", "one")
    assert completed(await owner.until_ended("after")) == 1
    await owner.until_quiet()
    assert (sorted(await owner.dead_reasons()), owner.lost) == (["ctl `start`", "wake `nudge`"], [])


async def test_a_class_that_quits_on_data_from_outside_ends_no_node(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("refused", "takes", {"x": -1})
    await owner.start("taken", "takes", {"x": 1})
    await owner.until_waiting("taken", "receive")
    await owner.signal("taken", "note", {"x": -1})
    await owner.signal("taken", "note", {"x": 2})
    assert completed(await owner.until_ended("taken")) == 2
    await owner.until_quiet()
    assert sorted(await owner.dead_reasons()) == ["bad arguments", "payload"]


async def test_a_workflow_that_ends_the_process_is_held_alone(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("leaves", "leaves")
    held = await owner.until("leaves", lambda record: record.index.hold == "quarantined")
    await owner.start("after", "one")
    assert completed(await owner.until_ended("after")) == 1
    assert "SystemExit" in held.index.hold_reason


@workflow(registry=REGISTRY)
async def grows() -> int:
    state = os.urandom(50_000).hex()
    await note.receive()
    publish_state(state)
    await note.receive()
    return len(state)


async def test_an_actor_whose_record_no_broker_takes_is_held_and_says_so(owners: MakeOwner) -> None:
    owner = await owners()
    config = await owner.watcher.stream_config(owner.subjects.frames_stream)
    assert config is not None
    await owner.watcher.update_stream(replace(config, max_msg_size=80_000))
    await owner.start("large", "grows")
    await owner.until_waiting("large", "receive")
    await owner.signal("large", "note", {"x": 1})
    held = await owner.until("large", lambda record: record.index.hold == "quarantined")
    assert held.index.hold_reason.startswith("its record would be too large: ")
    await owner.control("large", "terminate")
    assert (await owner.until_ended("large")).index.status == "terminated"
