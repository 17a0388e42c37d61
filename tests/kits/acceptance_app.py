"""Workflows for the acceptance tests. Every effect is written to a journal of its own, outside of the system under test."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

from sojourn import (
    Cancelled,
    Channel,
    Rejected,
    StepFailed,
    current,
    gather,
    sleep,
    spawn,
    stage,
    step,
    timeout,
    workflow,
)

go = Channel("go", int)
_JOURNAL = os.environ.get("ACCEPTANCE_JOURNAL", os.devnull)


def note(*words: object) -> None:
    """Append one line with a single write, which a kill leaves whole or absent."""
    line = " ".join(str(word) for word in words) + "\n"
    handle = os.open(_JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@step(retry=1)
async def effect(name: str, seconds: float = 0.0) -> str:
    key = current.step.key
    note("begin", key, name, os.getpid())
    await asyncio.sleep(seconds)
    note("end", key, name, os.getpid())
    return name


@workflow
async def waits(value: int) -> int:
    """Two steps with a wait for mail between them."""
    await effect("before")
    stage("waiting")
    answer = await go.receive()
    await effect("after")
    return value + answer


@step(queue="acceptance", retry=1)
async def queued_effect(name: str, seconds: float = 0.0) -> str:
    """As `effect`, at a worker."""
    note("begin", current.step.key, name, os.getpid())
    await asyncio.sleep(seconds)
    note("end", current.step.key, name, os.getpid())
    return name


@workflow
async def queues(value: int, seconds: float = 0.0) -> int:
    """A queued step between two local ones."""
    await effect("before")
    stage("queued")
    await queued_effect("queued", seconds)
    await effect("after")
    return value


@step(queue="acceptance", retry=3)
async def deadly_at_work(name: str) -> str:
    note("begin", current.step.key, name, os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@workflow
async def kills_its_workers() -> str:
    """A queued step that no worker survives."""
    try:
        return await deadly_at_work("deadly")
    except StepFailed as failed:
        return failed.type


@workflow
async def works(seconds: float) -> str:
    """One long step."""
    return await effect("work", seconds)


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return await effect("woken")


@workflow
async def counts(steps: int) -> int:
    total = 0
    for number in range(steps):
        await effect(str(number))
        total += 1
    return total


@workflow
async def takes(number: int) -> list[int]:
    """Takes so many mails and returns them in order."""
    taken: list[int] = []
    while len(taken) < number:
        taken.append(await go.receive())
    return taken


@workflow
async def rejects() -> None:
    await effect("before")
    raise Rejected("no", reason="test")


@workflow
async def child(name: str) -> str:
    try:
        await go.receive()
        await effect(f"{name} done")
    except Cancelled:
        await effect(f"{name} cleanup")
        raise
    return name


@workflow
async def parent(children: int) -> list[str]:
    me = current.actor.id
    started = [await spawn(child(f"{me}-{n}"), id=f"{me}-c{n}") for n in range(children)]
    stage("joined")
    return [await each for each in started]


@workflow
async def sends_on(target: str, numbers: int) -> int:
    """Sends numbered mail to another actor."""
    from sojourn import send

    for number in range(numbers):
        await send(target, go, number)
    return numbers


@workflow
async def branches() -> list[Any]:
    try:
        async with timeout("20s"):
            return [*await gather(effect("left"), go.receive(), effect("right"))]
    except TimeoutError:
        return ["late"]


@workflow
async def kills_its_node(after: str) -> str:
    """Plain code that ends the process each time it runs on."""
    await effect("first")
    if after == "mail":
        await go.receive()
    os.kill(os.getpid(), signal.SIGKILL)
    return "not reached"


@step(retry=1)
async def deadly(name: str) -> str:
    note("begin", current.step.key, name, os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@workflow
async def runs_a_deadly_step() -> str:
    await go.receive()
    return await deadly("deadly")


@workflow
async def cleans_up() -> str:
    try:
        await go.receive()
    finally:
        note("cleanup", current.actor.id, "finally", os.getpid())
        await effect("cleanup")
    return "done"


@workflow
async def works_then_takes(seconds: float, number: int) -> list[int]:
    """A step, while which its mail piles up and is moved to HELD; then takes it."""
    await effect("work", seconds)
    taken: list[int] = []
    while len(taken) < number:
        taken.append(await go.receive())
    return taken


@workflow
async def awaits_asyncio() -> None:
    await effect("before")
    await asyncio.sleep(1)


@workflow
async def uses_asyncio_timeout() -> None:
    async with asyncio.timeout(5):
        await go.receive()


class Foreign:
    """Yields something that is none of our intentions."""

    def __await__(self) -> Any:
        yield "foreign"


@workflow
async def yields_something_else() -> None:
    await Foreign()


@workflow
async def holds_a_socket() -> int:
    connection = socket.socket()
    answer = await go.receive()
    connection.close()
    return answer
