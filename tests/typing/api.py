"""What type checkers see of the public face, used rightly. Checked by mypy and pyright (`make lint`); never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from sojourn.codecs.record import Index

import sojourn
from sojourn import (
    Channel,
    Child,
    Client,
    Handle,
    Registry,
    Rejected,
    Retry,
    Step,
    StepCall,
    Workflow,
    WorkflowCall,
    current,
    gather,
    lifespan,
    map,
    race,
    receive,
    resource,
    send,
    sleep,
    spawn,
    step,
    workflow,
)


@dataclass
class Profile:
    name: str


@dataclass
class Decision:
    ok: bool
    reason: str = ""


class Pool:
    async def insert(self, profile: Profile) -> int:
        return len(profile.name)


@lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@step
async def fetch_profile(user: str, *, deep: bool = False) -> Profile:
    await resource(Pool).insert(Profile(user))
    return Profile(user)


@step(retry=Retry(attempts=5, backoff="1s..1m"), timeout=timedelta(seconds=30), raises=[KeyError])
async def run_checks(profile: Profile) -> bool:
    assert_type(current.step.key, str)
    return profile.name != ""


@step
def add(a: int, b: int = 1) -> int:
    return a + b


@step(retry=3, values="pickle", record="at_once")
def anything(value: object) -> None:
    return None


@step(queue="gpu", queue_timeout="2h")
def render(name: str, *, size: int = 64) -> bytes:
    return name.encode() * size


approval = Channel("approval", Decision)
untyped = Channel("untyped")


@workflow
async def onboard(user: str) -> int:
    profile = await fetch_profile(user, deep=True)
    assert_type(profile, Profile)
    approved = await run_checks(profile)
    assert_type(approved, bool)
    decision = await approval.receive(timeout="3d")
    assert_type(decision, Decision)
    perhaps = await approval.receive(timeout="3d", default=None)
    assert_type(perhaps, Decision | None)
    anyhow = await untyped.receive()
    assert_type(anyhow, Any)
    if not decision.ok:
        raise Rejected("not approved", reason=decision.reason)
    await sleep("1h30m")
    return await add(1)


@workflow(name="all-of-it", on_defect="fail", grace="2m", channels=[approval, "plain"], registry=Registry())
async def parent(user: str, *, count: int = 1) -> str:
    assert_type(await onboard(user), int)
    child = await spawn(onboard(user), id=f"{user}-1", policy="abandon", tags=["a"])
    assert_type(child, Child[int])
    assert_type(await child, int)
    sums = await map(add, [1, 2, 3], limit=2)
    assert_type(sums, list[int])
    assert_type(await map(add.options(timeout="5s"), [1]), list[int])
    both = await gather(add(1), fetch_profile(user))
    assert_type(both, tuple[int, Profile])
    name, first = await race(a=add(1), b=add(2))
    assert_type(name, str)
    assert_type(first, int)
    await send("other", approval, Decision(True))
    assert_type(await receive(approval), Decision)
    assert_type(current.actor.id, str)
    await anything(object())
    return "done"


def definitions_keep_their_parameters_and_results() -> None:
    assert_type(onboard("ada"), WorkflowCall[int])
    assert_type(parent("ada", count=3), WorkflowCall[str])
    assert_type(add(1, b=2), StepCall[int])
    assert_type(add.options(timeout="1h", retry=7)(1), StepCall[int])
    assert_type(render("a", size=3), StepCall[bytes])
    assert_type(render.options(queue="large", queue_timeout=timedelta(days=2))("a"), StepCall[bytes])
    assert_type(run_checks(Profile("ada")), StepCall[bool])
    coroutine: Coroutine[Any, Any, int] = add(1)
    coroutine.close()
    flow: Workflow[[str], int] = onboard
    action: Step[[Profile], bool] = run_checks
    del flow, action


async def clients_know_what_comes_back(client: Client) -> None:
    handle = await client.start(onboard("ada"), id="user-ada", if_exists="join", delay="1h", tags=["vip"])
    assert_type(handle, Handle[int])
    assert_type(await handle.result(timeout="1h"), int)
    assert_type(await client.start("onboard", args=["ada"], kwargs={}), Handle[Any])
    assert_type(client.handle("user-ada", parent), Handle[str])
    assert_type(client.handle("user-ada"), Handle[Any])
    await handle.signal(approval, Decision(True), wait="consumed")
    await handle.signal("approval", {"ok": True})
    assert_type(await handle.cancel(reason="x", grace=3), bool)
    assert_type((await handle.describe()).sentence, str)
    async for index in client.list(workflow=onboard, status="suspended"):
        assert_type(index, Index)
    async with Client.connect("nats://127.0.0.1:4222", namespace="shop") as connected:
        assert_type(connected, Client)


def errors_have_typed_facts(failed: sojourn.StepFailed, exists: sojourn.AlreadyStarted) -> None:
    assert_type(failed.attempts, int)
    assert_type(exists.run, str)
    timeouts: list[TimeoutError] = []
    timeouts.append(sojourn.StepTimeout("charge", seconds=3))
