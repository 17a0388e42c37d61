"""Messages so large that no copy of them fits, with what Sojourn adds to one: they keep nothing else from being moved (I6)."""

from __future__ import annotations

import orjson
import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.broker.seam import Publish
from sojourn.broker.topology import Limits as StreamLimits

from .conftest import MIB, MakeOwner

pytestmark = pytest.mark.integration

REGISTRY = Registry()
STREAMS = StreamLimits(mail_bytes=64 * MIB, held_bytes=64 * MIB, dead_bytes=64 * MIB, payload_bytes=8 * MIB)
note = Channel("note", int)

KINDS = (
    "ctl.{0}.start",
    "ctl.{0}.cancel",
    "ctl.{0}.spawned",
    "done.{0}.7",
    "send.{0}.note",
    "mail.{0}.note",
    "mail.nobody.note",
    "ctl.nobody.start",
)
BODY = orjson.dumps({"from": "x", "run": "r", "op": 1, "payload": 1})


@workflow(registry=REGISTRY)
async def waits() -> int:
    return await note.receive()


@pytest.mark.parametrize("spare", [0, 300, 40_000], ids=["full", "nearly full", "with room for little"])
async def test_a_message_that_fills_the_brokers_limit_is_dead_and_the_next_ones_are_moved(
    owners: MakeOwner, spare: int
) -> None:
    owner = await owners()
    await owner.start("held", "waits")
    await owner.until_waiting("held", "receive")
    await owner.control("held", "pause")
    await owner.until("held", lambda record: record.index.hold == "paused")
    payload = BODY.ljust(owner.watcher.max_message - spare)
    for kind in KINDS:
        subject = f"sj.{owner.subjects.namespace}.{kind.format('held')}"
        await owner.watcher.publish(Publish(subject, payload))
    for number in range(3):
        await owner.signal("held", "note", number)
    await owner.until_messages("held", 3)
    await owner.until_quiet()
    assert await owner.dead_reasons() == ["too large"] * len(KINDS)
    (letter, *_) = [one async for one in owner.services.dead.list()]
    assert (letter.payload, str(len(payload)) in letter.detail) == (b"", True)
    assert owner.lost == []
