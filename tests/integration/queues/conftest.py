"""A namespace per test, with the app of `queue_app`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sojourn.broker.server import EmbeddedServer

from tests.kits.queues_kit import Shop
from tests.kits.queues_kit import shop as new_shop

from . import queue_app


@pytest.fixture
async def shop(nats_server: EmbeddedServer, namespace: str) -> AsyncIterator[Shop]:
    queue_app.forget()
    async with new_shop(nats_server.url, namespace, queue_app.R) as made:
        yield made
