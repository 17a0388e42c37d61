"""The workflows that `steps_bench` runs in a node process."""

from __future__ import annotations

from sojourn import Channel, receive, step, workflow

word = Channel("word", str)
go = Channel("go", int)


@step
async def add_one(number: int) -> int:
    return number + 1


@workflow
async def chain(steps: int) -> int:
    """W1, W3: steps one after another."""
    number = 0
    for _ in range(steps):
        number = await add_one(number)
    return number


@workflow
async def answer() -> str:
    """W2: waits for one signal and returns it."""
    return await word.receive()


@workflow
async def relay(steps: int) -> int:
    """W5: a past of many steps, then one short resumption for each signal."""
    number = 0
    for _ in range(steps):
        number = await add_one(number)
    while number >= 0:
        number = await receive(go)
    return number
