"""The workflows of a chaos run, as its nodes import them. Every effect leaves lines in a journal outside of Sojourn.

A second version of this code is made by replacing "one" with "two" throughout: the constants change, so no frame of the one version may be
resumed by the other, and each result says under which version the actor began and ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from sojourn import (
    Channel,
    Rejected,
    Retry,
    Semaphore,
    current,
    gather,
    race,
    receive,
    send,
    sleep,
    spawn,
    stage,
    step,
    timeout,
    workflow,
)

go = Channel("go", dict)
left = Channel("left", dict)
right = Channel("right", dict)
line = Channel("line", int)

_JOURNAL = os.environ.get("CHAOS_JOURNAL", os.devnull)
_NODE = os.environ.get("CHAOS_NODE", "")


def note(what: str, key: str, name: str, attempt: int = 0) -> None:
    """Append one line with a single write, which a kill leaves whole or absent."""
    entry = {
        "what": what,
        "key": key,
        "name": name,
        "attempt": attempt,
        "pid": os.getpid(),
        "node": _NODE,
        "at": time.time(),
    }
    handle = os.open(_JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(handle)


@step(retry=1)
async def effect(name: str, seconds: float = 0.0) -> str:
    key, attempt = current.step.key, current.step.attempt
    note("begin", key, name, attempt)
    await asyncio.sleep(seconds)
    note("end", key, name, attempt)
    return name


@step(retry=1)
def blocking_effect(name: str, seconds: float = 0.0) -> str:
    """The same, in a thread."""
    key, attempt = current.step.key, current.step.attempt
    note("begin", key, name, attempt)
    time.sleep(seconds)
    note("end", key, name, attempt)
    return name


def _fail_first(name: str, failures: int) -> int:
    attempt = current.step.attempt
    note("begin", current.step.key, name, attempt)
    if attempt <= failures:
        raise RuntimeError(f"attempt {attempt}")
    note("end", current.step.key, name, attempt)
    return attempt


@step(retry=Retry(attempts=4, backoff="100ms..500ms"))
async def fails_first(name: str, failures: int) -> int:
    """Fails so many attempts, then returns the attempt that did not."""
    return _fail_first(name, failures)


@workflow
async def steps(count: int, seconds: float, failures: int) -> dict[str, Any]:
    began, done = "one", 0
    for n in range(count):
        await (blocking_effect(f"s{n}", seconds) if n % 3 == 2 else effect(f"s{n}", seconds))
        done += 1
    attempt = await fails_first("flaky", failures)
    return {"began": began, "ended": "one", "done": done, "attempt": attempt}


@step(queue="chaos", retry=1)
async def at_worker(name: str, seconds: float = 0.0) -> str:
    """As `effect`, at a worker."""
    key, attempt = current.step.key, current.step.attempt
    note("begin", key, name, attempt)
    await asyncio.sleep(seconds)
    note("end", key, name, attempt)
    return name


@step(queue="chaos", retry=Retry(attempts=4, backoff="100ms..500ms"))
def fails_first_at_worker(name: str, failures: int) -> int:
    """As `fails_first`, in a thread of a worker."""
    return _fail_first(name, failures)


@workflow
async def queued(count: int, seconds: float, failures: int) -> dict[str, Any]:
    """Steps at workers, one after another and side by side, with a local one between."""
    began, done = "one", 0
    for n in range(count):
        await at_worker(f"q{n}", seconds)
        done += 1
    await effect("between")
    names = await gather(*(at_worker(f"p{n}", seconds) for n in range(3)))
    attempt = await fails_first_at_worker("flaky", failures)
    return {"began": began, "ended": "one", "done": done, "attempt": attempt, "names": list(names)}


@workflow
async def mail(lines: int) -> dict[str, Any]:
    """Takes mail of two channels until each line of it, a sender on a channel, has said that it is over."""
    began = "one"
    taken: list[list[Any]] = []
    over: set[str] = set()
    while len(over) < lines:
        message = await receive(left, right)
        sender = message["line"]
        if message["n"] < 0:
            over.add(sender)
            continue
        taken.append([sender, message["n"]])
        if message["n"] % 4 == 0:
            await effect(f"m-{sender}-{message['n']}")
    return {"began": began, "ended": "one", "taken": taken}


@workflow
async def timers(rounds: int, seconds: float) -> dict[str, Any]:
    began, late = "one", 0
    for n in range(rounds):
        await sleep(seconds)
        await effect(f"t{n}")
        if await go.receive(timeout=seconds, default=None) is None:
            late += 1
    return {"began": began, "ended": "one", "late": late}


@workflow
async def sibling(name: str, kind: int) -> str:
    await effect(f"child {name}", 0.05)
    if kind == 1:
        await go.receive()
        await effect(f"told {name}")
    if kind == 2:
        raise Rejected("no", reason=name)
    return name


@workflow
async def family(me: str, children: int) -> dict[str, Any]:
    began = "one"
    started = [await spawn(sibling(f"{me}-c{n}", n % 3), id=f"{me}-c{n}") for n in range(children)]
    stage("joining")
    ended: list[str] = []
    for child in started:
        try:
            ended.append(await child)
        except Rejected as rejected:
            ended.append(f"rejected {rejected.reason}")
    await effect("joined")
    return {"began": began, "ended": "one", "children": ended}


@workflow(grace=600)
async def patient(me: str) -> None:
    try:
        await effect("entered")
        await go.receive()
    finally:
        note("plain-cleanup", me, "finally")
        await effect("cleanup")


@workflow(grace=600)
async def cancelled(me: str, with_child: bool) -> None:
    try:
        await effect("entered")
        if with_child:
            await spawn(patient(f"{me}-c0"), id=f"{me}-c0")
        await go.receive()
    finally:
        note("plain-cleanup", me, "finally")
        await effect("cleanup")


@workflow
async def racing(seconds: float) -> dict[str, Any]:
    began = "one"
    which, value = await race(mail=go.receive(), late=sleep(seconds))
    await effect(f"won {which}")
    slow = "in time"
    try:
        async with timeout(seconds):
            await effect("before the time-out")
            await sleep(2 * seconds)
    except TimeoutError:
        slow = "timed out"
    await effect("after the time-out")
    return {"began": began, "ended": "one", "which": which, "value": value, "slow": slow}


@workflow
async def rejects(fail: bool) -> None:
    await effect("before")
    await sleep(0.2)
    if fail:
        await fails_first("hopeless", 99)
    raise Rejected("no", reason="chaos")


@workflow
async def gathers(width: int, seconds: float) -> dict[str, Any]:
    began = "one"
    gate = Semaphore(3)

    async def branch(n: int) -> str:
        async with gate:
            await sleep(0.05)
            return await effect(f"g{n}", seconds)

    names = await gather(*(branch(n) for n in range(width)), effect("beside", seconds))
    return {"began": began, "ended": "one", "names": list(names)}


@workflow
async def relay(target: str, count: int) -> dict[str, Any]:
    """Sends numbers to another actor."""
    began = "one"
    for n in range(count):
        await send(target, line, n)
        if n % 5 == 0:
            await effect(f"sent {n}")
    return {"began": began, "ended": "one", "sent": count}


@workflow
async def takes_relay(count: int) -> dict[str, Any]:
    began = "one"
    taken: list[int] = []
    while len(taken) < count:
        taken.append(await line.receive())
    await effect("all taken")
    return {"began": began, "ended": "one", "taken": taken}


@workflow(grace=600)
async def sleeper(me: str, seconds: float) -> None:
    try:
        await effect("entered")
        await sleep(seconds)
        await effect("woke, which is years too early")
    finally:
        note("plain-cleanup", me, "finally")
        await effect("cleanup")
