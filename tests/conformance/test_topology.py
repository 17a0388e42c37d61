"""Streams as they are wanted and as they are: applying, fixed things, drift."""

from __future__ import annotations

import dataclasses

import pytest
from sojourn.broker.errors import Refused, StreamNotFound, TopologyDrift, TopologyRefused
from sojourn.broker.seam import Broker, ConsumerConfig, StreamConfig
from sojourn.broker.topology import Limits, Topology, apply, check_drift, check_partitioning

from .conftest import World

EVERYTHING = StreamConfig(
    "",
    (),
    retention="limits",
    discard="new",
    max_msgs_per_subject=7,
    discard_new_per_subject=True,
    max_bytes=1_000_000,
    max_age=3600.0,
    max_consumers=9,
    max_msg_size=4096,
    duplicate_window=60.0,
    allow_ttl=True,
    allow_atomic=True,
    allow_rollup=True,
    allow_direct=True,
    marker_ttl=5.0,
)


async def test_a_configuration_reads_back_as_it_was_given(world: World, broker: Broker) -> None:
    name = world.name()
    wanted = dataclasses.replace(
        EVERYTHING,
        name=name,
        subjects=(f"{name}.a.*", f"{name}.b.>"),
        transform=(f"{name}.a.*", f"{name}.c.{{{{wildcard(1)}}}}"),
        republish=(f"{name}.b.>", f"{name}-seen.>"),
    )

    await broker.create_stream(wanted)

    assert await broker.stream_config(name) == wanted


async def test_applying_twice_changes_nothing(world: World, broker: Broker) -> None:
    topology = Topology(namespace=world.name(), app="app")

    first = await apply(broker, topology)
    second = await apply(broker, topology)

    assert len(first) == 9
    assert second == ()
    assert await check_drift(broker, topology.namespace) == topology


async def test_a_changed_limit_is_applied_to_the_streams_it_concerns(world: World, broker: Broker) -> None:
    topology = Topology(namespace=world.name(), app="app")
    await apply(broker, topology)

    changed = dataclasses.replace(topology, limits=Limits(held_bytes=500_000_000), history=8)
    touched = await apply(broker, changed)

    assert touched == (topology.subjects.held_stream, topology.subjects.frames_stream)
    assert await check_drift(broker, topology.namespace) == changed


@pytest.mark.parametrize(("change", "field"), [({"partitions": 64}, "partitions"), ({"app": "other"}, "app")])
async def test_what_is_fixed_cannot_be_changed(
    world: World, broker: Broker, change: dict[str, object], field: str
) -> None:
    topology = Topology(namespace=world.name(), app="app")
    await apply(broker, topology)

    with pytest.raises(TopologyRefused) as caught:
        await apply(broker, dataclasses.replace(topology, **change))  # type: ignore[arg-type]  # fields by name

    assert caught.value.field == field
    assert await check_drift(broker, topology.namespace) == topology


async def test_a_namespace_without_topology_says_so(world: World, broker: Broker) -> None:
    with pytest.raises(StreamNotFound):
        await check_drift(broker, world.name())


async def test_drift_names_each_field_expected_and_received(world: World, broker: Broker) -> None:
    topology = Topology(namespace=world.name(), app="app")
    await apply(broker, topology)
    steps = topology.subjects.steps_stream
    present = await broker.stream_config(steps)
    assert present is not None
    await broker.update_stream(dataclasses.replace(present, max_bytes=12345, duplicate_window=30.0))

    with pytest.raises(TopologyDrift) as caught:
        await check_drift(broker, topology.namespace)

    assert [(d.where, d.field, d.expected, d.received) for d in caught.value.differences] == [
        (steps, "max_bytes", "-1", "12345"),
        (steps, "duplicate_window", "120.0", "30.0"),
    ]
    assert "sojourn topology apply" in str(caught.value)

    await apply(broker, topology)
    assert await check_drift(broker, topology.namespace) == topology


async def test_the_partition_probe_leaves_nothing_behind(world: World, broker: Broker) -> None:
    topology = Topology(namespace=world.name(), app="app", partitions=7)
    await apply(broker, topology)

    await check_partitioning(broker, topology.subjects)

    assert (await broker.stream_info(topology.subjects.ctl_stream)).messages == 0


async def test_overlapping_streams_are_refused(world: World, broker: Broker) -> None:
    name, other = world.name(), world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",)))

    with pytest.raises(Refused) as caught:
        await broker.create_stream(StreamConfig(other, (f"{name}.a.*",)))

    assert caught.value.code == 10065


async def test_more_consumers_than_the_stream_may_have_are_refused(world: World, broker: Broker) -> None:
    name = world.name()
    await broker.create_stream(StreamConfig(name, (f"{name}.>",), max_consumers=1))
    await broker.create_consumer(name, ConsumerConfig("a", (f"{name}.a",)))

    with pytest.raises(Refused) as caught:
        await broker.create_consumer(name, ConsumerConfig("b", (f"{name}.b",)))

    assert caught.value.code == 10026
