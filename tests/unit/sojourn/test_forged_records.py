"""What lists and counts make of records that a foreign hand put into the bucket: they hold no key, and must not be led astray."""

from __future__ import annotations

import time

import pytest
from sojourn.actors.requests import Requests
from sojourn.broker.frames import FrameStore
from sojourn.broker.memory import MemoryServer
from sojourn.broker.subjects import actor_id
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.census import take_census
from sojourn.cluster.hosting.views import list_indexes
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Envelope, Index, Record, Status
from sojourn.codecs.seal import seal_record

from sojourn.cli.output import moment

FOREIGN = Keyring.ephemeral(lambda n: b"f" * n)
TOPOLOGY = Topology(namespace="forged", app="app", partitions=1)


def forged(actor: str) -> bytes:
    """A record with nothing right in it but its form."""
    index = Index(actor, "r", "w\x1b[2J", Status.SUSPENDED, 1, 1e308, -1e308, stage="a\nb", stacks=((),))
    return seal_record(Record(index, Envelope("c", "b", 1)), FOREIGN, namespace="forged")


async def test_a_record_that_names_another_actor_is_listed_for_none() -> None:
    """`sojourn list --ids | sojourn terminate -` would end whom the record names."""
    broker = await MemoryServer(time.time).connect()
    await apply(broker, TOPOLOGY)
    frames = FrameStore(broker, TOPOLOGY.subjects)
    await frames.put(actor_id("liar"), forged("victim\nsecond-victim"), expect=0)
    await frames.put(actor_id("honest"), forged("honest"), expect=0)
    await frames.put(actor_id("none"), b"none", expect=0)
    requests = Requests(broker, TOPOLOGY.subjects, ids=lambda: "id", random=lambda: 0.5)
    assert [index.actor async for index in requests.indexes()] == ["honest"]
    assert [index.actor async for index in list_indexes(broker, TOPOLOGY.subjects)] == ["honest"]
    census = await take_census(broker, TOPOLOGY.subjects)
    assert [one.suspended for one in census.deployments.values()] == [1]


@pytest.mark.parametrize("unix", [1e308, -1e308, 1e15, float("nan"), float("inf")])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(unix: float) -> None:
    assert moment(unix) == f"{unix:g}"
