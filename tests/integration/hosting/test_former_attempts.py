"""A step whose lease ended while it ran goes on: the next attempt on the same node waits for it, and does not fail because of it.

node a runs attempt 1, is frozen, loses its lease; node b runs attempt 1 again, which fails; a comes back, gets the actor, and is to run
attempt 2 while its attempt 1 is still at it
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
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
