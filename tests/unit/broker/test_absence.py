"""A leader that has not come so far yet says "not there" of what is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sojourn.broker.absence import read_next_surely, read_surely, state_reaching
from sojourn.broker.memory import MemoryServer
from sojourn.broker.seam import Publish, Stored, StreamConfig, StreamInfo
from sojourn.cluster.mail.floors import Floors
from sojourn.codecs.record import Origin


class Lagging:
    """A broker whose leader has taken up what is stored only up to some sequence; it comes on with each look at its state."""

    def __init__(self, broker: Any, upto: int, step: int) -> None:
        self._broker = broker
        self.upto = upto
        self._step = step

    async def read(self, stream: str, seq: int) -> Stored | None:
        return await self._broker.read(stream, seq) if seq <= self.upto else None

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        found = await self._broker.read_next(stream, subject_filter, seq)
        return found if found is not None and found.seq <= self.upto else None

    async def stream_info(self, stream: str) -> StreamInfo:
        info = await self._broker.stream_info(stream)
        self.upto += self._step
        values = {
            name: getattr(info, name) for name in ("name", "created", "first_seq", "messages", "bytes", "now")
        }
        return StreamInfo(**values, last_seq=min(info.last_seq, self.upto))


@pytest.fixture
async def lagging() -> Callable[[int, int], Lagging]:
    """A stream of four messages, and a leader of it that lags."""
    broker = await MemoryServer(time.time).connect()
    await broker.create_stream(StreamConfig("MAIL", ("m.>",)))
    for number in range(4):
        await broker.publish(Publish(f"m.{number}"))
    return lambda upto, step: Lagging(broker, upto, step)


Make = Callable[[int, int], Lagging]


async def test_a_message_that_the_leader_takes_up_a_moment_later_is_there(lagging: Make) -> None:
    found = await read_surely(lagging(2, 1), "MAIL", 4)  # type: ignore[arg-type]  # reads are all that is used
    assert found is not None
    first = await read_next_surely(lagging(2, 1), "MAIL", "m.>", 3, seen=4)  # type: ignore[arg-type]
    assert first is not None
    assert first.seq == 3


async def test_what_is_deleted_is_not_there_once_the_leader_has_come_so_far(lagging: Make) -> None:
    made = lagging(2, 1)
    await made._broker.delete("MAIL", 4)
    assert await read_surely(made, "MAIL", 4) is None  # type: ignore[arg-type]
    assert made.upto >= 4


async def test_a_stream_that_stays_too_short_has_gone_back(lagging: Make) -> None:
    made = lagging(2, 0)
    assert (await state_reaching(made, "MAIL", 3, patience=0.05)).last_seq == 2  # type: ignore[arg-type]
    assert await read_surely(made, "MAIL", 3, patience=0.05) is None  # type: ignore[arg-type]


async def test_mail_that_was_just_delivered_is_not_taken_for_gone_by_a_leader_that_lags(
    lagging: Make,
) -> None:
    made = lagging(2, 1)
    created = (await made.stream_info("MAIL")).created
    made.upto = 2
    floors = Floors(made, {"mail": ("MAIL", "m.>")}, {"mail": created})  # type: ignore[arg-type]
    newest = Origin("mail", created, 4)
    floors.saw(newest)
    assert await floors.stored(newest)
    assert not floors.is_gone(newest)
    made.upto = 0
    floors.touch("mail")
    await floors.refresh()
    assert not floors.is_gone(newest)


class Wavering(Lagging):
    """The leader's state, and that of a server that lags, in turns."""

    async def stream_info(self, stream: str) -> StreamInfo:
        info = await super().stream_info(stream)
        self.upto = 2 if self.upto > 2 else 4
        return info


async def test_an_answer_that_shows_a_long_stream_is_not_taken_back_by_a_shorter_one(lagging: Make) -> None:
    made = lagging(2, 0)
    wavering = Wavering(made._broker, 4, 0)
    created = (await made._broker.stream_info("MAIL")).created
    floors = Floors(wavering, {"mail": ("MAIL", "m.>")}, {"mail": created})  # type: ignore[arg-type]
    assert await floors.storage_went_back([Origin("mail", created, 4)]) == ""
