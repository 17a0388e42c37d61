"""A step whose lease ended while it ran goes on: the next attempt on the same node waits for it, and does not fail because of it.

node a runs attempt 1, is frozen, loses its lease; node b runs attempt 1 again, which fails; a comes back, gets the actor, and is to run
attempt 2 while its attempt 1 is still at it
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter

import pytest
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.actors.retry import Retry
from sojourn.actors.step import step
from sojourn.actors.workflow import workflow

from .conftest import Crash, MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()
started, may_end = asyncio.Event(), asyncio.Event()


@step(registry=REGISTRY, retry=Retry(2, "10ms"))
async def patient() -> str:
    if started.is_set():
        raise ConnectionError("somebody else is at it")
    started.set()
    await may_end.wait()
    return "the first one's"


@workflow(registry=REGISTRY)
async def waits() -> str:
    return await patient()


async def test_an_attempt_waits_for_an_earlier_one_that_its_node_still_runs_and_takes_its_result(
    owners: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sojourn.actors.turns.IN_PROCESS_BACKOFF", 0.0)  # the backoff is a durable timer
    first = await owners()
    await first.start("w", "waits")
    await started.wait()
    first.living.discard(first.services.runner)
    first.partition.drop()
    crash = Crash("after_flush", about="w")  # its attempt has failed, the timer of the next one is armed
    await owners(fault=crash, taken_over=True)
    await crash.happened.wait()

    base = await owners(attach=False)
    services = dataclasses.replace(
        base.services, steps=first.services.steps, step_runner=first.services.step_runner
    )
    again = Owner(base.broker, base.subjects, services, base.epoch, base.living, base.watcher)
    await again.attach(taken_over=True)
    await again.until(
        "w", lambda record: any(call.attempt == 2 and call.runs_here for call in record.envelope.calls)
    )
    may_end.set()
    assert completed(await again.until_ended("w")) == "the first one's"
    await again.until_quiet()
    assert not services.steps.runs("w")
    again.partition.drop()


ran: Counter[str] = Counter()
holds_the_thread = threading.Event()


@step(registry=REGISTRY)
def takes_a_thread(name: str) -> str:
    ran[name] += 1
    if name == "first" and ran[name] == 1:
        holds_the_thread.wait(20)
    return name


@workflow(registry=REGISTRY)
async def threaded(name: str) -> str:
    return await takes_a_thread(name)


async def test_an_attempt_that_waits_for_a_thread_when_its_lease_ends_never_begins(owners: MakeOwner) -> None:
    """Whoever owns its actor starts it now."""
    first = await owners(limits=Limits(step_threads=1))
    runner = first.services.step_runner
    await first.start("t1", "threaded", "first")
    await first.until("t1", lambda record: bool(record.envelope.calls))
    await first.start("t2", "threaded", "second")
    async with asyncio.timeout(20):
        while not runner.statistics().queued:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    first.living.discard(first.services.runner)
    first.partition.drop()
    first.services.steps.lease_ended(first.services)
    second = await owners(taken_over=True)
    assert completed(await second.until_ended("t1")) == "first"
    assert completed(await second.until_ended("t2")) == "second"
    holds_the_thread.set()
    async with asyncio.timeout(20):
        while runner.statistics().running + runner.statistics().queued:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert ran == {"first": 2, "second": 1}
    assert len(first.services.steps) == 0
