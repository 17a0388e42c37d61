"""A server that was paused goes on answering as the leader until it hears of another: it refuses a commit for a revision that it has not
heard of, and reads out an older record (tried on three servers, see docs/reference/nats-answers.md). Neither is another's commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.step import step
from sojourn.actors.workflow import workflow
from sojourn.broker.errors import WrongLastSequence
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Ack, Publish, Stored, StreamInfo
from sojourn.broker.subjects import Subjects, actor_id

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)
ran: Counter[str] = Counter()
may_end = threading.Event()


@step(registry=REGISTRY)
def charge(n: int) -> int:
    ran["charge"] += 1
    may_end.wait(20)
    return n


@step(registry=REGISTRY)
def ship(n: int) -> int:
    ran["ship"] += 1
    return n


@workflow(registry=REGISTRY)
async def order(n: int) -> int:
    charged = await charge(n)
    return charged + await ship(await note.receive())


class Behind:
    """A connection whose leader of the records has none after `older` until it is asked for its state the second time."""

    def __init__(self, broker: NatsBroker, stream: str, subject: str) -> None:
        self._broker = broker
        self._stream = stream
        self._subject = subject
        self.older: Stored | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, message: Publish, *, timeout: float = 2.0) -> Ack:
        if self.older is not None and message.subject == self._subject:
            raise WrongLastSequence(self.older.seq, message.expect_last, message.subject)
        return await self._broker.publish(message, timeout=timeout)

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        if self.older is not None and subject == self._subject:
            return self.older
        return await self._broker.read_last(stream, subject)

    async def stream_info(self, stream: str) -> StreamInfo:
        info = await self._broker.stream_info(stream)
        if self.older is not None and stream == self._stream:
            info = replace(info, last_seq=self.older.seq)
            self.older = None
        return info


async def test_a_commit_that_a_leader_refuses_which_is_behind_runs_no_step_again(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects
) -> None:
    ran.clear()
    may_end.clear()
    frame = subjects.frame(actor_id("o"))
    behind = Behind(await connect(), subjects.frames_stream, frame)
    owner = await owners(broker=behind, patience=5.0)
    await owner.start("o", "order", 1)
    await owner.until_waiting("o", "call")
    older = await owner.watcher.read_last(subjects.frames_stream, frame)
    may_end.set()
    await owner.until_waiting("o", "receive")
    await owner.until_quiet()
    behind.older = older
    await owner.signal("o", "note", 2)
    async with asyncio.timeout(20):
        while behind.older is not None and not ran["ship"] and ran["charge"] < 2:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    behind.older = None
    assert completed(await owner.until_ended("o")) == 3
    assert ran == {"charge": 1, "ship": 1}
