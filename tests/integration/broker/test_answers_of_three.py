"""What answers prove while two of three servers are silent (docs/reference/nats-answers.md)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest
from sojourn.broker.absence import PATIENCE_SECONDS
from sojourn.broker.dead import DeadLettered, DeadLetters
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish, Stored, StreamConfig
from sojourn.broker.topology import Topology, apply
from sojourn.codecs.record import Origin

from .cluster import Cluster, cluster, silent, until_known

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

T = TypeVar("T")
TOPOLOGY = Topology(namespace="n", app="app", replicas=3)
ORIGIN = Origin("ctl", 1, 7)
EVENT = Stored("SJ_n_CTL", 7, "sj.n.ctl.a.go", b"{}", {}, 1.0)


async def until_unknown(read: Callable[[], Awaitable[object]]) -> None:
    with suppress(OutcomeUnknown):
        while await read():  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.1)


async def stream_led_by(leader: str, servers: Cluster, broker: NatsBroker) -> str:
    """A new stream with this leader."""
    for n in itertools.count():
        name = f"NEW{n}"
        await until_known(
            lambda name=name: broker.create_stream(StreamConfig(name, (f"{name}.>",), replicas=3))
        )
        if await until_known(lambda name=name: servers.leader(broker, name)) == leader:
            return name
    raise AssertionError("unreachable")


async def test_a_leader_that_has_lost_the_others_answers_for_a_while_and_what_it_has_not_stored_is_not_settled() -> (
    None
):
    async with cluster() as servers:
        broker = await NatsBroker.connect(NatsOptions(servers=servers.urls, reconnect_wait=0.05))
        await until_known(lambda: apply(broker, TOPOLOGY))
        dead_stream = TOPOLOGY.subjects.dead_stream
        name = await until_known(lambda: servers.leader(broker, dead_stream))
        leader = servers.servers[name]
        alone = await NatsBroker.connect(NatsOptions(servers=(leader.url,)))
        dead = DeadLetters(alone, TOPOLOGY.subjects)
        message = Publish("sj.n.dead.mail.1.8", msg_id="8", expect_last=None)
        new = await stream_led_by(name, servers, broker)
        await alone.publish(Publish(f"{new}.1"))
        with silent(*[server for server in servers.servers.values() if server is not leader]):
            async with asyncio.timeout(PATIENCE_SECONDS):
                # Under way is neither stored nor refused: not for the one that sends it again.
                with pytest.raises(OutcomeUnknown, match="no answer"):
                    await alone.publish(message, timeout=0.3)
                with pytest.raises(OutcomeUnknown, match="duplicate"):
                    await alone.publish(message, timeout=0.3)
                with pytest.raises(OutcomeUnknown, match="no answer"):
                    await dead.write(ORIGIN, EVENT, "no such actor")
                with pytest.raises(OutcomeUnknown, match="in flight"):
                    await dead.write(ORIGIN, EVENT, "no such actor")
                # The patience with a leader that has not come so far is longer than it takes itself for one.
                await until_unknown(lambda: alone.stream_info(new))
        written = await until_known(lambda: dead.write(ORIGIN, EVENT, "no such actor"))
        assert written in (DeadLettered.ALREADY, DeadLettered.WRITTEN)
        assert await until_known(lambda: dead.read(ORIGIN)) is not None
        await alone.close()
        await broker.close()
