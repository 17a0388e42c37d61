"""Operators' verbs on one actor: control messages that its owner carries out and records with who sent
them.
"""

from __future__ import annotations

from typing import Any

import click

from .connection import Connection, connection_options, reported
from .output import Output
from .values import DurationValue

_timeout = click.option(
    "--timeout",
    type=DurationValue(),
    default="30s",
    show_default=True,
    help="How long to wait for its owner to answer; what was sent stays in force.",
)


async def _send(
    output: Output, connection: Connection, verb: str, actor: str, done: str, **options: Any
) -> None:
    async with connection.client() as client:
        handle = client.handle(actor)
        changed = await getattr(handle, verb)(**options)
        # What its code has to carry out is only kept while no node has that code.
        kept = verb == "cancel" and changed and (await handle.describe()).index.hold == "pin"
    if output.json:
        document = {"id": actor, "request": verb, "changed": changed is not False}
        output.document({**document, "kept": True} if kept else document)
    elif changed is False:
        output.say(f"{actor}: nothing changed, it had ended already")
    elif kept:
        output.say(
            f"{actor}: {done}; it is cancelled when a node with its code runs, and none does now", "yellow"
        )
        output.note(
            f"`sojourn describe {actor}` says which code; `sojourn terminate {actor}` ends it now, without its cleanup."
        )
    else:
        output.say(f"{actor}: {done}")


@click.command()
@click.argument("actor")
@click.option("--reason", default="", help="Why; the workflow can read it.")
@click.option(
    "--grace", type=DurationValue(), help="How long its cleanup may take.  [default: the workflow's own]"
)
@_timeout
@connection_options
@reported
async def cancel(
    output: Output, connection: Connection, actor: str, reason: str, grace: float | None, timeout: float
) -> None:
    """Cancel ACTOR: `Cancelled` is raised where it waits, its cleanup runs, its children are cancelled too."""
    await _send(
        output, connection, "cancel", actor, "asked to cancel", reason=reason, timeout=timeout, grace=grace
    )


@click.command()
@click.argument("actor")
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def terminate(output: Output, connection: Connection, actor: str, reason: str, timeout: float) -> None:
    """End ACTOR at once, without running its cleanup. Needs none of its code."""
    await _send(output, connection, "terminate", actor, "asked to terminate", reason=reason, timeout=timeout)


@click.command()
@click.argument("actor")
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def pause(output: Output, connection: Connection, actor: str, reason: str, timeout: float) -> None:
    """Hold ACTOR where it is: its mail is kept, its code does not run until `sojourn resume`."""
    await _send(output, connection, "pause", actor, "asked to pause", reason=reason, timeout=timeout)


@click.command()
@click.argument("actor")
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def resume(output: Output, connection: Connection, actor: str, reason: str, timeout: float) -> None:
    """Let a paused ACTOR go on."""
    await _send(output, connection, "resume", actor, "asked to resume", reason=reason, timeout=timeout)


@click.command()
@click.argument("actor")
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def release(output: Output, connection: Connection, actor: str, reason: str, timeout: float) -> None:
    """Try a quarantined ACTOR again, from its last good record."""
    await _send(output, connection, "release", actor, "asked to be released", reason=reason, timeout=timeout)
