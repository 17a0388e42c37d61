"""Reads whose "not there" counts (PROTOCOL 4.3, 4.4).

A stream's leader that does not have a message may not have it *yet*. With three replicas the consumer that delivers a message has a
leader of its own, on another server, which may have taken the message up a moment before the stream's leader did; and a server
that was paused goes on answering as the leader for a moment after another has been elected. Both say "no message found" of a message
that is stored. (Seen: mail that had just been delivered was taken for gone, dropped, and came again after newer mail.)

So a message is not asked for by its sequence alone, but for the first one from there on: a later one proves that the leader has come
so far, and that the message is gone. Where there is no later one, the leader has to say that its stream is as long, and is asked
again. (A server with three replicas pays so much more for its state than for a read that asking for it each time held up a busy
cluster.) It is given time to get there: longer than a server goes on as leader of a cluster that it has lost. (It looks
every 10 s whether it had word from the others within 10 s, so up to 20 s; a pause of a second comes on top.) A
stream that is still shorter then has gone back (I8), and the message is not in it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sojourn.broker.seam import Broker, Stored, StreamInfo

ALL: Final = ">"
PATIENCE_SECONDS: Final = 25.0
PAUSE_SECONDS: Final = (0.02, 1.0)
"""First and longest pause between two looks at how far the leader has come."""


async def read_surely(
    broker: Broker, stream: str, seq: int, *, patience: float = PATIENCE_SECONDS
) -> Stored | None:
    """The message with this sequence, which was stored once, from the leader; None: it is stored no more. Raises as `Broker.read`."""
    found = await broker.read_next(stream, ALL, seq)
    if found is None:
        await state_reaching(broker, stream, seq, patience=patience)
        found = await broker.read_next(stream, ALL, seq)
    return found if found is not None and found.seq == seq else None


async def read_next_surely(
    broker: Broker,
    stream: str,
    subject_filter: str,
    seq: int,
    *,
    seen: int,
    patience: float = PATIENCE_SECONDS,
) -> Stored | None:
    """The first message under the filter with a sequence of at least `seq`, from the leader; None: there is none up to `seen`, the
    highest sequence that is known to have been stored. Raises as `Broker.read_next`.
    """
    found = await broker.read_next(stream, subject_filter, seq)
    if found is not None:
        return found
    if await broker.read_next(stream, ALL, seen) is None:
        await state_reaching(broker, stream, seen, patience=patience)
    return await broker.read_next(stream, subject_filter, seq)


async def state_reaching(
    broker: Broker, stream: str, seq: int, *, patience: float = PATIENCE_SECONDS
) -> StreamInfo:
    """The stream's state by a leader that has come as far as `seq`; if none does within `patience` seconds, by one that has not.

    What is concluded has to rest on this very answer: the next one may be another server's. Raises as `Broker.stream_info`.
    """
    pause, left = PAUSE_SECONDS[0], patience
    while (info := await broker.stream_info(stream)).last_seq < seq and left > 0:
        await asyncio.sleep(pause)
        left -= pause
        pause = min(2 * pause, PAUSE_SECONDS[1])
    return info
