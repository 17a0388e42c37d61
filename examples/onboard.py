"""Onboarding of a user: the app of `sojourn demo`, and of its nodes (`sojourn node
sojourn.examples.onboard`).

A profile is fetched, a check runs in the background, a person decides, an account is provisioned. Users who
need watching get a child workflow that lives as long as their onboarding does. Nothing here knows about
nodes, crashes or NATS.

With ONBOARD_JOURNAL set, every step leaves a line in that file when it begins and when it ends: a witness
outside of Sojourn by which the demo judges what really happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from dataclasses import dataclass

from sojourn import Channel, Rejected, current, sleep, spawn, stage, step, workflow

CHECK_SECONDS = 2.0


@dataclass(frozen=True)
class Profile:
    """What the directory knows about a user."""

    user: str
    email: str
    watched: bool


@dataclass(frozen=True)
class Decision:
    """A person's answer, as it is mailed to the workflow."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Receipt:
    """What onboarding ends with."""

    user: str
    account: str
    checked: bool


approval = Channel("approval", Decision)


def journal(event: str, user: str, **facts: str) -> None:
    """Note that a step of `user` began or ended, in one append that a crash cannot tear."""
    path = os.environ.get("ONBOARD_JOURNAL")
    if not path:
        return
    line = json.dumps(
        {
            "event": event,
            "step": current.step.name,
            "key": current.step.key,
            "attempt": current.step.attempt,
            "user": user,
            "pid": os.getpid(),
            "at": time.time(),
            **facts,
        }
    )
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


@step(timeout="10s")
async def fetch_profile(user: str, watched: bool) -> Profile:
    """Look the user up."""
    journal("begin", user)
    profile = Profile(user, f"{user}@example.org", watched)
    journal("end", user)
    return profile


@step(timeout="30s")
async def run_checks(profile: Profile) -> bool:
    """The background check: slow, and safe to repeat."""
    journal("begin", profile.user)
    await asyncio.sleep(CHECK_SECONDS)
    journal("end", profile.user)
    return True


@step(timeout="10s")
async def provision(user: str, checked: bool) -> Receipt:
    """Open the account."""
    journal("begin", user)
    receipt = Receipt(user, f"acc-{secrets.token_hex(4)}", checked)
    journal("end", user, account=receipt.account)
    return receipt


@step(timeout="10s")
async def close_case(user: str) -> None:
    """Tell the watchers that there is nothing to watch any more."""
    journal("begin", user)
    journal("end", user)


@workflow
async def watch_case(user: str) -> None:
    """Watches a user for a day; closes the case however it ends, also when it is cancelled."""
    try:
        await sleep("24h")
    finally:
        await close_case(user)


@workflow
async def onboard(user: str, watched: bool = False) -> Receipt:
    """One user's way from a name to an account."""
    profile = await fetch_profile(user, watched)
    if profile.watched:
        await spawn(watch_case(user), id=f"watch-{user}")
    stage("checking")
    checked = await run_checks(profile)
    stage("waiting for approval")
    decision = await approval.receive(timeout="3d")
    if not decision.ok:
        raise Rejected("not approved", reason=decision.reason)
    stage("provisioning")
    return await provision(user, checked)
