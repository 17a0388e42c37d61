"""Questions of somebody who may only ask: no answer to one changes what becomes of anybody's messages."""

from __future__ import annotations

import pytest
from sojourn.actors.answers import Question, encode, parse_answer
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.codecs.record import Origin

from .conftest import MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)


@workflow(registry=REGISTRY)
async def waits() -> int:
    return await note.receive()


async def consumed(owner: Owner, origin: Origin) -> bool:
    question = encode(Question("a", "consumed", origin))
    answer = parse_answer((await owner.watcher.request(owner.subjects.query(0), question)).payload)
    assert answer is not None
    assert answer.error == ""
    return answer.consumed


async def test_who_asks_for_messages_that_are_still_to_come_does_not_have_them_dropped(
    owners: MakeOwner,
) -> None:
    owner = await owners()
    await owner.start("a", "waits")
    await owner.until_waiting("a", "receive")
    for short, stream in (
        ("mail", owner.subjects.mail_stream),
        ("ctl", owner.subjects.ctl_stream),
        ("wake", owner.subjects.wake_stream),
    ):
        info = await owner.watcher.stream_info(stream)
        for ahead in range(1, 4):
            assert not await consumed(owner, Origin(short, info.created, info.last_seq + ahead))  # type: ignore[arg-type]  # any short name
        assert not await consumed(owner, Origin(short, info.created + 1, 1))  # type: ignore[arg-type]  # any short name
        assert not await consumed(owner, Origin(short, info.created, -1))  # type: ignore[arg-type]  # any short name
    await owner.signal("a", "note", 7)
    assert completed(await owner.until_ended("a")) == 7
    await owner.start("b", "waits")
    await owner.until_waiting("b", "receive")
    await owner.until_quiet()
