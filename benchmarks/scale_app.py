"""The workflows that `scale` parks."""

from __future__ import annotations

from sojourn import Channel, sleep, workflow

word = Channel("word", str)


@workflow
async def waits() -> str:
    """Until a signal comes."""
    return await word.receive()


@workflow
async def sleeps(seconds: float) -> str:
    """With a timer at the broker."""
    await sleep(seconds)
    return "awake"
