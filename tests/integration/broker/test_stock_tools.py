"""Buckets are what stock tools take them for: the client library's own KV and object layers read and write
them.
"""

from __future__ import annotations

import dataclasses

import nats
import pytest
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import actor_id
from sojourn.broker.topology import Topology, apply

pytestmark = pytest.mark.integration

ACTOR = actor_id("order-42")


async def test_records_are_keys_of_a_bucket_with_history(
    nats_server: EmbeddedServer, broker: NatsBroker, topology: Topology
) -> None:
    await apply(broker, dataclasses.replace(topology, history=3))
    frames = FrameStore(broker, topology.subjects)
    first = await frames.put(ACTOR, b"1", expect=0)
    second = await frames.put(ACTOR, b"2", expect=first)
    client = await nats.connect(nats_server.url)

    bucket = await client.jetstream().key_value(topology.subjects.frames_bucket)
    entry = await bucket.get(ACTOR)

    assert (entry.value, entry.revision) == (b"2", second)
    assert [old.value for old in await bucket.history(ACTOR)] == [b"1", b"2"]
    await client.close()


async def test_a_record_deleted_by_a_stock_tool_reads_as_empty_with_its_revision(
    nats_server: EmbeddedServer, broker: NatsBroker, topology: Topology
) -> None:
    frames = FrameStore(broker, topology.subjects)
    await frames.put(ACTOR, b"1", expect=0)
    client = await nats.connect(nats_server.url)
    bucket = await client.jetstream().key_value(topology.subjects.frames_bucket)
    await bucket.delete(ACTOR)
    await client.close()

    record = await frames.read(ACTOR)

    assert record is not None
    assert record.data == b""
    await frames.put(ACTOR, b"2", expect=record.revision)


async def test_large_values_lie_in_an_object_store(nats_server: EmbeddedServer, topology: Topology) -> None:
    client = await nats.connect(nats_server.url)
    values = await client.jetstream().object_store(topology.subjects.values_bucket)

    await values.put("r1-7", b"x" * 300_000)

    assert (await values.get("r1-7")).data == b"x" * 300_000
    await client.close()
