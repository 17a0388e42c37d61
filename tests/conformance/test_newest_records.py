"""Each actor's newest record, once, whatever history the bucket keeps."""

from __future__ import annotations

import pytest
from sojourn.broker.frames import FrameStore
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import actor_id
from sojourn.broker.topology import Topology, apply


@pytest.mark.parametrize("history", [1, 5])
async def test_a_scan_of_the_newest_gives_each_actor_once(broker: Broker, history: int) -> None:
    topology = Topology(namespace=f"newest{history}", app="newest", partitions=2, history=history)
    await apply(broker, topology)
    frames = FrameStore(broker, topology.subjects)
    for number in range(7):
        revision = 0
        for again in range(number + 1):
            revision = await frames.put(actor_id(f"a{number}"), b"%d" % again, expect=revision)
    found = [(actor, record.data) async for actor, record in frames.newest()]
    assert sorted(found) == [(f"a{number}", b"%d" % number) for number in range(7)]
