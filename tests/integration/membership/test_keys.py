"""A node with keys that open nothing of its namespace does not take part."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sojourn.actors.channel import Channel
from sojourn.actors.registry import Registry
from sojourn.actors.workflow import workflow
from sojourn.broker.server import EmbeddedServer
from sojourn.cluster.key_check import NoKeyFits, check_keys
from sojourn.codecs.keyring import Keyring

from tests.kits.queues_kit import Shop, keyring
from tests.kits.queues_kit import shop as new_shop

pytestmark = pytest.mark.integration

REGISTRY = Registry()
note = Channel("note", int)


@workflow(registry=REGISTRY)
async def waits() -> int:
    return await note.receive()


@pytest.fixture
async def shop(nats_server: EmbeddedServer, namespace: str) -> AsyncIterator[Shop]:
    async with new_shop(nats_server.url, namespace, REGISTRY) as made:
        yield made


def other() -> Keyring:
    return Keyring([b"o" * 32])


async def test_a_node_with_another_clusters_keys_is_refused_and_told_which_it_lacks(shop: Shop) -> None:
    await check_keys(shop.broker, shop.subjects, other())  # nothing is stored yet
    await shop.node()
    await shop.client.start("waits", id="a")

    with pytest.raises(NoKeyFits) as caught:
        await shop.node(keyring=other())

    (own,), (known,) = keyring().ids, other().ids
    assert str(caught.value) == (
        f"the records of namespace {shop.subjects.namespace!r} are sealed with key {own}, this node has key {known}: "
        "give it the namespace's key file, or use another --namespace"
    )
    assert await shop.client.handle("a").describe()


async def test_one_key_that_fits_is_enough(shop: Shop) -> None:
    """While keys are rotated records are sealed with either; what was sealed with one taken out too early is `sojourn check`'s to tell."""
    first = await shop.node()
    await shop.client.start("waits", id="a")
    await shop.end(first)
    both = Keyring([b"k" * 32, b"o" * 32])
    second = await shop.node(keyring=both)
    await shop.client.start("waits", id="b")
    await shop.end(second)

    await check_keys(shop.broker, shop.subjects, keyring())
    await check_keys(shop.broker, shop.subjects, other())
