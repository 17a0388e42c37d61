"""`sojourn drain`: a node hands over what it has and leaves, as SIGTERM asks it."""

from __future__ import annotations

import asyncio
import time

import click

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit
from .output import Output, clean
from .values import DurationValue

POLL_SECONDS = 0.2


@click.command()
@click.argument("node")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it has left.")
@click.option(
    "--timeout", type=DurationValue(), default="60s", show_default=True, help="How long to wait for that."
)
@connection_options
@reported
async def drain(output: Output, connection: Connection, node: str, wait: bool, timeout: float) -> Exit | None:
    """Drain NODE: it finishes or hands over what it runs, within its own grace period, and leaves. Nothing is cancelled.

    `sojourn nodes` lists the nodes. Exit code 5 when it is still there after the time given.
    """
    from sojourn.broker.errors import NoResponders
    from sojourn.broker.subjects import token
    from sojourn.cluster.tenure.directory import Directory

    began = time.monotonic()
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        directory = Directory(broker, subjects)
        member = (await directory.member(token(node, "a node id"))).value
        label = member.deployment if member is not None else ""
        try:
            await broker.request(subjects.drain(token(node, "a node id")))
        except NoResponders:
            raise CommandFailed(
                Exit.NOT_FOUND, f"no node {clean(node)!r} answers", "`sojourn nodes` lists those that live."
            ) from None
        left = False
        while wait and not left and time.monotonic() - began < timeout:
            left = (await directory.member(node)).value is None
            if not left:
                await asyncio.sleep(POLL_SECONDS)
        members = (await directory.poll(subjects.partitions)).members.values()
    last = label and not any(
        m.deployment == label and m.node != node and m.state != "draining" for m in members
    )
    seconds = time.monotonic() - began
    if output.json:
        output.document({"node": node, "left": left, "seconds": round(seconds, 3)})
    elif left:
        output.say(f"{node} has left after {seconds:.1f} s", "green")
    else:
        output.say(f"{node} drains", "yellow" if wait else "")
    if wait and not left:
        output.note(
            "A step that runs longer keeps it; `sojourn nodes` shows how many run. It goes on draining."
        )
    if last:
        output.note(
            f"It was the last node of deployment {label}: `sojourn versions show {label}` says which workflows need that code."
        )
    return Exit.TIMED_OUT if wait and not left else None
