"""A scan is whole, or it fails: whoever lists HELD takes what is not in the list for gone."""

from __future__ import annotations

import nats
import pytest
from nats.aio.msg import Msg
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish, StreamConfig
from sojourn.broker.server import EmbeddedServer

pytestmark = pytest.mark.integration

LOSSY = "lossy"


@pytest.mark.parametrize("lost", [None, 0, 1, 2], ids=["none", "the first", "one between", "the last"])
async def test_a_message_that_is_lost_on_its_way_is_not_taken_for_gone(lost: int | None) -> None:
    """A relay stands for a route between servers that was cut in the middle of an answer."""
    async with EmbeddedServer() as server:
        broker = await NatsBroker.connect(NatsOptions(servers=server.url))
        await broker.create_stream(StreamConfig("S", ("s.>",)))
        for n in range(3):
            await broker.publish(Publish(f"s.{n}"))
        relay = await nats.connect(server.url)

        async def pass_on(request: Msg) -> None:
            inbox = relay.new_inbox()
            answers = await relay.subscribe(inbox)
            await relay.publish(request.subject.replace(LOSSY, "$JS.API"), request.data, reply=inbox)
            for n in range(4):
                answer = await answers.next_msg()
                if n != lost:
                    await relay.publish(request.reply, answer.data, headers=answer.headers)
            await answers.unsubscribe()

        await relay.subscribe(f"{LOSSY}.DIRECT.GET.S", cb=pass_on)
        await relay.flush()
        far = await NatsBroker.connect(NatsOptions(servers=server.url, api_prefix=LOSSY))
        if lost is None:
            assert [stored.seq async for stored in far.scan("S", "s.>")] == [1, 2, 3]
        else:
            with pytest.raises(OutcomeUnknown, match="lost on their way"):
                [stored async for stored in far.scan("S", "s.>")]
        await far.close()
        await relay.close()
        await broker.close()
