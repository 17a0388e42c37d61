"""Commands about one actor or all of them, for whoever starts and follows workflows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from .connection import Connection, connection_options, reported
from .output import Output, age, clean
from .values import DurationValue, JsonValue, NamedValue

if TYPE_CHECKING:
    from sojourn.codecs.record import Index


RESULT: Final = 4_000_000
"""Characters of a result that are shown: more than a payload may have, so that what is printed is JSON."""
TRACEBACK: Final = 20_000
"""Characters of a traceback that are shown: more than a record keeps."""
STATES: Final = (
    "running",
    "suspended",
    "runnable",
    "cancelling",
    "paused",
    "quarantined",
    "pin",
    "completed",
    "rejected",
    "failed",
    "cancelled",
    "terminated",
)
"""What --status takes: every status, and every hold."""


@click.command()
@click.argument("workflow")
@click.argument("args", nargs=-1, type=JsonValue())
@click.option("--id", "actor", help="Id of the actor.  [default: a fresh one]")
@click.option(
    "-a",
    "--arg",
    "named",
    multiple=True,
    type=NamedValue(),
    help="Keyword argument, name=JSON. May be repeated.",
)
@click.option(
    "--if-exists", type=click.Choice(["reject", "join", "restart"]), default="reject", show_default=True
)
@click.option("--delay", type=DurationValue(), help="Start after this time (`30s`, `2h`).")
@click.option("--tag", "tags", multiple=True, help="Tag to find it by. May be repeated.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@click.option(
    "--timeout",
    type=DurationValue(),
    help="How long to wait for a node to start it, and with --wait for its end.  [default: 30s for the start, and no limit]",
)
@connection_options
@reported
async def start(
    output: Output,
    connection: Connection,
    workflow: str,
    args: tuple[Any, ...],
    actor: str | None,
    named: tuple[tuple[str, Any], ...],
    if_exists: Any,
    delay: float | None,
    tags: tuple[str, ...],
    wait: bool,
    timeout: float | None,
) -> None:
    """Start WORKFLOW with ARGS, each JSON or a plain word.

    \b
    sojourn start onboard ada --id user-ada
    sojourn start transfer '{"from": "a", "to": "b"}' 100 --arg urgent=true
    """
    async with connection.client() as client:
        handle = await client.start(
            workflow,
            id=actor,
            args=list(args),
            kwargs=dict(named),
            if_exists=if_exists,
            delay=delay,
            tags=tags,
            timeout=30.0 if timeout is None else timeout,
        )
        if wait:
            _print_result(output, await handle.result(timeout=timeout))
        elif output.json:
            output.document({"id": handle.id, "run": handle.run, "workflow": workflow})
        else:
            output.say(handle.id)
            output.note(
                f"Follow it with `sojourn describe {handle.id}`; wait for it with `sojourn result {handle.id}`."
            )


@click.command()
@click.argument("actor")
@click.argument("channel")
@click.argument("payload", type=JsonValue(), default=None, required=False)
@click.option("--wait", type=click.Choice(["stored", "consumed"]), default="stored", show_default=True)
@connection_options
@reported
async def signal(
    output: Output, connection: Connection, actor: str, channel: str, payload: Any, wait: Any
) -> None:
    """Send PAYLOAD (JSON or a plain word; default null) to a CHANNEL of ACTOR.

    \b
    sojourn signal user-ada approval '{"ok": true}'
    """
    async with connection.client() as client:
        await client.handle(actor).signal(channel, payload, wait=wait)
    if output.json:
        output.document({"id": actor, "channel": channel, "state": wait})
    else:
        output.say(f"{wait}: mail on {channel} for {actor}")


@click.command()
@click.argument("actor")
@click.option(
    "--timeout", type=DurationValue(), help="Give up after this time.  [default: wait as long as it takes]"
)
@connection_options
@reported
async def result(output: Output, connection: Connection, actor: str, timeout: float | None) -> None:
    """Wait until ACTOR ends and print its result.

    Exit code 0 with the result; 1 when it was rejected, failed, was cancelled or is quarantined; 5 when it
    has not ended in time.
    """
    async with connection.client() as client:
        _print_result(output, await client.handle(actor).result(timeout=timeout))


def _print_result(output: Output, value: Any) -> None:
    if output.json:
        output.document(value)
    else:
        output.verbatim(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode(), RESULT)


@click.command("list")
@click.option("--workflow", help="Only this workflow.")
@click.option("--status", type=click.Choice(STATES), help="Only this state.")
@click.option("--stage", help="Only this stage.")
@click.option("--tag", help="Only with this tag.")
@click.option("--held", type=click.Choice(["paused", "quarantined", "pin"]), help="Only those held, and why.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@connection_options
@reported
async def list_actors(
    output: Output,
    connection: Connection,
    workflow: str | None,
    status: str | None,
    stage: str | None,
    tag: str | None,
    held: str | None,
    limit: int,
) -> None:
    """List actors and what each waits for, from their public indexes."""
    found: list[Index] = []
    more = False
    async with connection.client() as client:
        async for index in client.list(workflow=workflow, status=status, stage=stage):
            if (tag and tag not in index.tags) or (held and index.hold != held):
                continue
            if len(found) == limit:
                more = True
                break
            found.append(index)
    if output.json:
        output.document([index_document(index) for index in found])
        return
    now = time.time()
    output.table(
        ("id", "workflow", "state", "stage", "waits for", "for", "node"),
        (
            (i.actor, i.workflow, state_of(i), i.stage, i.hold_reason or i.wait, age(now - i.updated), i.node)
            for i in found
        ),
    )
    if more:
        output.note(f"The first {limit}; --limit shows more, --workflow, --status, --stage and --tag choose.")
    elif not found:
        output.note("No such actors.")


def state_of(index: Index) -> str:
    """The state as people read it: why it is held, else its status."""
    return index.hold or str(index.status)


def index_document(index: Index) -> dict[str, Any]:
    """An index as a JSON document."""
    return {
        "id": index.actor,
        "run": index.run,
        "workflow": index.workflow,
        "status": str(index.status),
        "hold": index.hold,
        "hold_reason": index.hold_reason,
        "stage": index.stage,
        "wait": index.wait,
        "deployment": index.deployment,
        "node": index.node,
        "created": index.created,
        "updated": index.updated,
        "transition": index.transition,
        "steps": index.steps,
        "children": index.children,
        "parent": index.parent,
        "tags": list(index.tags),
        "frame_bytes": index.frame_bytes,
    }


@click.command()
@click.argument("actor")
@connection_options
@reported
async def describe(output: Output, connection: Connection, actor: str) -> None:
    """Say in one sentence why ACTOR is not running, then the facts behind it."""
    async with connection.client() as client:
        description = await client.handle(actor).describe()
    if output.json:
        output.document(description.document())
        return
    output.say(clean(description.sentence), "bold")
    facts = dict(description.facts())
    trace = facts.pop("traceback", "")
    output.facts(facts.items())
    if trace:
        output.verbatim(f"\n{trace}", TRACEBACK)
