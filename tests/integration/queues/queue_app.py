"""Steps for workers, and workflows that call them. What the steps did is in this module: one process runs all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sojourn.actors.channel import Channel
from sojourn.actors.current import current
from sojourn.actors.errors import Cancelled, Rejected, RetryLater, StepFailed
from sojourn.actors.lifespan import lifespan, resource
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import step
from sojourn.actors.verbs import gather
from sojourn.actors.workflow import workflow

R = Registry()
ran: Counter[str] = Counter()
"""How often each step ran, by step and key."""
attempts: list[int] = []
begun = threading.Event()
go = threading.Event()
told = threading.Event()
"""A step saw that it was cancelled."""
carry_on = Channel("carry-on", int)


def forget() -> None:
    ran.clear()
    attempts.clear()
    for event in (begun, go, told):
        event.clear()


@dataclass
class Picture:
    name: str
    sizes: dict[str, int]


class OutOfFilm(Exception):
    pass


class Camera:
    lens = "50 mm"


@lifespan(registry=R)
async def camera() -> AsyncIterator[Camera]:
    yield Camera()


@step(queue="gpu", registry=R)
async def resize(picture: Picture, *, by: int = 2) -> Picture:
    ran[current.step.key] += 1
    return Picture(f"{picture.name}/{resource(Camera).lens}", {k: v // by for k, v in picture.sizes.items()})


@step(queue="gpu", retry=Retry(3, "50ms"), raises=[OutOfFilm], registry=R)
def develop(kind: str) -> str:
    attempts.append(current.step.attempt)
    match kind:
        case "second time" if current.step.attempt < 2:
            raise OutOfFilm("none left")
        case "never":
            raise OutOfFilm("none left")
        case "rejected":
            raise Rejected("no such picture", number=7)
        case "later" if current.step.attempt < 2:
            raise RetryLater(after=0.3)
        case "large":
            return "x" * 300_000
        case "wrong type":
            return 3  # type: ignore[return-value]  # the mistake under test
    return f"{kind}, attempt {current.step.attempt}"


@step(queue="gpu", timeout="30s", registry=R)
def wait_for_go(n: int) -> int:
    ran["wait_for_go"] += 1
    attempts.append(current.step.attempt)
    begun.set()
    while not go.wait(0.02):
        if current.step.cancelled:
            told.set()
            return -1
    return n + 1


@step(queue="gpu", timeout="30s", registry=R)
async def sleep_long(n: int) -> int:
    ran["sleep_long"] += 1
    begun.set()
    try:
        await asyncio.sleep(25)
    except asyncio.CancelledError:
        told.set()
        raise
    return n


@step(queue="gpu", timeout="30s", registry=R)
def beats(n: int) -> int:
    begun.set()
    try:
        while not go.wait(0.02):
            current.step.heartbeat(n)
    except Cancelled:
        told.set()
        raise
    return n


@step(queue="gpu", timeout="400ms", queue_timeout=0, retry=Retry(2, "10ms"), registry=R)
def short(n: int) -> int:
    attempts.append(current.step.attempt)
    begun.set()
    while not current.step.cancelled:
        go.wait(0.02)
    told.set()
    return n


@step(queue="cpu", registry=R)
def count(n: int) -> int:
    ran[f"count {n}"] += 1
    return n


@step(registry=R)
def local(n: int) -> int:
    return n


@workflow(registry=R)
async def thumbnail(picture: Picture) -> Picture:
    return await resize(picture, by=4)


@workflow(registry=R)
async def developed(kind: str) -> str:
    try:
        return await develop(kind)
    except OutOfFilm as error:
        return f"out of film: {error}"
    except StepFailed as error:
        return f"failed: {error.type}"


@workflow(registry=R)
async def waiting(n: int) -> int:
    return await wait_for_go(n)


@workflow(registry=R)
async def sleeping(n: int) -> int:
    return await sleep_long(n)


@workflow(registry=R)
async def beating(n: int) -> int:
    return await beats(n)


@workflow(registry=R)
async def hurried(n: int) -> int:
    return await short(n)


@workflow(registry=R)
async def many(first: int, number: int) -> int:
    return sum(await gather(*(count(n) for n in range(first, first + number))))


@workflow(registry=R)
async def both(n: int) -> int:
    made = await local(n) + await count(n)
    return made + await local.options(queue="cpu")(n)
