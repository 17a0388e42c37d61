"""A list of HELD by a leader that is behind is no list: what it lacks would be taken for consumed (decision 0040)."""

from __future__ import annotations

from typing import Any

import pytest
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.held import HeldStore, Move, Moved
from sojourn.broker.memory import MemoryServer
from sojourn.broker.seam import Stored
from sojourn.broker.subjects import Mail, actor_id, channel_name
from sojourn.broker.topology import Topology, apply
from sojourn.codecs.record import Origin

TOPOLOGY = Topology(namespace="n", app="app", partitions=1)


class Behind:
    """A connection to servers that have nothing after `until` while that is set."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.until: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def scan(self, stream: str, subject_filter: str, **bounds: Any) -> Any:
        async for stored in self._broker.scan(stream, subject_filter, **bounds):
            if self.until is None or stored.seq <= self.until:
                yield stored

    async def read_next(self, stream: str, subject_filter: str, seq: int) -> Stored | None:
        found: Stored | None = await self._broker.read_next(stream, subject_filter, seq)
        return None if found is not None and self.until is not None and found.seq > self.until else found


async def test_an_owner_does_not_begin_with_the_list_of_a_leader_that_is_behind_its_fence() -> None:
    broker = await MemoryServer().connect()
    await apply(broker, TOPOLOGY)
    behind = Behind(broker)
    held = HeldStore(behind, TOPOLOGY.subjects)
    await held.fence(0, 1)
    event = Mail(0, actor_id("a"), channel_name("c"))
    moved = await held.move(
        0, [Move(event, Stored("SJ_n_MAIL", 1, "x", b"1", {}, 1.0), Origin("mail", 1, 1))]
    )
    assert isinstance(moved, Moved)
    fence = await held.fence(0, 2)
    behind.until = 0
    with pytest.raises(OutcomeUnknown, match="behind"):
        await held.list(0)
    with pytest.raises(OutcomeUnknown, match="behind"):
        await held.look(0)
    behind.until = fence
    assert [event.payload for event in await held.list(0)] == [b"1"]
    assert [event.payload for event in await held.look(0)] == [b"1"]
