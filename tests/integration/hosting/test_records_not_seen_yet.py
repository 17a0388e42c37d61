"""A leader that is behind, as one that was paused, has no record of an actor that began a moment ago, or that of the run before (decision
0030): what the newer record caused is not given up for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.nats import NatsBroker
from sojourn.broker.seam import Stored
from sojourn.broker.subjects import Subjects, actor_id

from .conftest import MakeOwner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()


@workflow(registry=REGISTRY)
async def naps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


class Behind:
    """A connection to a leader that has none of the newer records of one actor, for so many reads."""

    def __init__(self, broker: NatsBroker, subject: str, reads: int, older: Stored | None = None) -> None:
        self._broker = broker
        self._subject = subject
        self._older = older
        self.reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def read_last(self, stream: str, subject: str) -> Stored | None:
        if subject == self._subject and self.reads:
            self.reads -= 1
            return self._older
        return await self._broker.read_last(stream, subject)


async def test_a_timer_is_not_taken_for_nobodys(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects
) -> None:
    first = await owners()
    await first.start("n", "naps", 0.5)
    await first.until_waiting("n", "sleep")
    await first.until_quiet()
    first.die()
    second = await owners(
        broker=Behind(await connect(), subjects.frame(actor_id("n")), 2), taken_over=True, patience=5.0
    )
    assert completed(await second.until_ended("n")) == "awake"
    await second.until_quiet()


async def test_a_timer_of_a_new_run_is_not_taken_for_one_of_the_run_before(
    owners: MakeOwner, connect: Callable[[], Awaitable[NatsBroker]], subjects: Subjects
) -> None:
    first = await owners()
    await first.start("m", "naps", 0.0)
    await first.until_ended("m")
    await first.until_quiet()
    frame = subjects.frame(actor_id("m"))
    ended = await first.watcher.read_last(subjects.frames_stream, frame)
    await first.start("m", "naps", 0.5, if_exists="restart")
    await first.until_waiting("m", "sleep")
    await first.until_quiet()
    first.die()
    second = await owners(broker=Behind(await connect(), frame, 2, ended), taken_over=True, patience=5.0)
    assert completed(await second.until_ended("m")) == "awake"
    await second.until_quiet()
