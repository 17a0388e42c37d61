"""What happens at the bounds of streams: a channel's 20 messages, and dead letters of 64 KiB."""

from __future__ import annotations

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.broker.topology import Limits

from .conftest import MIB, MakeOwner, completed

pytestmark = pytest.mark.integration

PER_SUBJECT = 20
STREAMS = Limits(mail_bytes=16 * MIB, held_bytes=16 * MIB, dead_bytes=64 * 1024, per_subject=PER_SUBJECT)
REGISTRY = Registry()
note = Channel("note", str)


@workflow(registry=REGISTRY)
async def collect(n: int) -> list[str]:
    return [await note.receive() for _ in range(n)]


async def test_mail_that_a_full_mailbox_cannot_hold_is_dead_and_the_rest_is_kept(owners: MakeOwner) -> None:
    owner = await owners()
    await owner.start("full", "collect", PER_SUBJECT)
    await owner.until_waiting("full", "receive")
    await owner.control("full", "pause")
    await owner.until("full", lambda record: record.index.hold == "paused")
    for n in range(PER_SUBJECT + 5):
        await owner.signal("full", "note", str(n))
        await owner.until_messages("mail", 0)
    assert await owner.messages("held") == PER_SUBJECT
    assert await owner.dead_reasons() == ["mailbox full"] * 5
    await owner.control("full", "resume")
    assert completed(await owner.until_ended("full")) == [str(n) for n in range(PER_SUBJECT)]
    await owner.until_quiet()


async def test_mail_from_outside_is_counted_and_dropped_when_the_dead_letters_are_full(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("ended", "collect", 0)
    await owner.until_ended("ended")
    for _ in range(10):
        await owner.signal("ended", "note", "x" * 10_000)
    await owner.until_messages("mail", 0)
    await owner.until_quiet()
    written, dropped = owner.services.dead.written.total(), owner.services.dead.dropped.total()
    assert written + dropped == 10
    assert dropped >= 4
