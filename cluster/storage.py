"""How full the broker is, as every node sees it: the account's bytes against its limit, and each stream's.

A full account stops every workflow at its next commit, so this is measured before it happens. Asking costs ten small requests a minute.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker
from sojourn.broker.subjects import Subjects

from .metrics import Metrics

STORAGE_SECONDS: Final = 60.0


async def keep_measuring_storage(broker: Broker, subjects: Subjects, metrics: Metrics) -> None:
    """Measure at once and then each minute, until cancelled. What the broker does not answer keeps its last value."""
    while True:
        with suppress(BrokerError):
            await measure_storage(broker, subjects, metrics)
        await asyncio.sleep(STORAGE_SECONDS)


async def measure_storage(broker: Broker, subjects: Subjects, metrics: Metrics) -> None:
    """Set the gauges once. Raises `BrokerError`."""
    account = await broker.account_limits()
    metrics.gauge("storage_bytes", account.bytes)
    if account.max_bytes > 0:
        metrics.gauge("storage_limit_bytes", account.max_bytes)
    for stream in subjects.streams:
        metrics.gauge("stream_bytes", (await broker.stream_info(stream)).bytes, stream=stream)
