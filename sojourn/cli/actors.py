"""Commands about one actor or all of them, for whoever starts and follows workflows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit
from .output import Output, age, counted, line, plain, waits
from .values import DurationValue, JsonValue, NamedValue

if TYPE_CHECKING:
    from sojourn.actors.handle import Handle
    from sojourn.codecs.record import Index


SORTED_AT: Final = 1_000
"""Found actors beyond twice the limit at which those that will not be shown are forgotten."""
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
STATE_ORDER: Final = (
    "quarantined",
    "pin",
    "paused",
    "cancelling",
    "running",
    "runnable",
    "suspended",
    "failed",
    "terminated",
    "cancelled",
    "rejected",
    "completed",
)
"""The same as lists show them: what needs somebody first."""
_RANK: Final = {state: rank for rank, state in enumerate(STATE_ORDER)}


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
        async with output.waiting("no node has taken the start yet; `sojourn nodes` shows which live"):
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
            async with output.waiting(_what_it_does(handle)):
                value = await handle.result(timeout=timeout)
            _print_result(output, value)
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
@click.option(
    "--timeout", type=DurationValue(), default="30s", show_default=True, help="How long to wait for that."
)
@connection_options
@reported
async def signal(
    output: Output,
    connection: Connection,
    actor: str,
    channel: str,
    payload: Any,
    wait: Any,
    timeout: float,
) -> None:
    """Send PAYLOAD (JSON or a plain word; default null) to a CHANNEL of ACTOR.

    \b
    sojourn signal user-ada approval '{"ok": true}'
    """
    from sojourn.actors.errors import NoAnswer

    async with connection.client() as client:
        handle = client.handle(actor)
        try:
            await handle.signal(channel, payload, wait=wait, timeout=timeout)
        except NoAnswer as late:
            if wait == "stored":
                raise
            # Its owner may well answer, and the actor not take it: what it does instead is the answer.
            said = plain(line((await handle.describe()).sentence))
            message = f"the mail on {channel} was not consumed within {late.seconds:g} s, and may be later. {waits(said, time.time())}"
            raise CommandFailed(Exit.TIMED_OUT, message) from None
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
        handle = client.handle(actor)
        async with output.waiting(_what_it_does(handle)):
            value = await handle.result(timeout=timeout)
    _print_result(output, value)


def _what_it_does(handle: Handle[Any]) -> Callable[[], Awaitable[str]]:
    """What a command that waits for the end says meanwhile."""

    async def say() -> str:
        sentence = plain(line((await handle.describe()).sentence))
        return f"{waits(sentence, time.time())} (Ctrl-C ends this command, not the workflow)"

    return say


def _print_result(output: Output, value: Any) -> None:
    if output.json:
        output.document(value)
    else:
        output.verbatim(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode(), RESULT)


@click.command("list")
@click.option("--workflow", help="Only this workflow.")
@click.option(
    "--status", "states", multiple=True, type=click.Choice(STATES), help="Only this state. May be repeated."
)
@click.option("--stage", help="Only this stage.")
@click.option("--tag", help="Only with this tag.")
@click.option("--held", type=click.Choice(["paused", "quarantined", "pin"]), help="Only those held, and why.")
@click.option(
    "--waiting-for", help="Only those whose wait has this in its words: `approval`, `step charge`, `sleep`."
)
@click.option(
    "--older-than", type=DurationValue(), help="Only those whose last commit is longer ago (`2h`, `3d`)."
)
@click.option("--deployment", help="Only those that this deployment ran last.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="At most so many; 0: all.  [default: 100, with --ids all]"
)
@click.option("--ids", is_flag=True, help="Only their ids, one a line, for `sojourn release -` and the like.")
@click.option(
    "--quick",
    is_flag=True,
    help="Stop at the first --limit that fit, in no order: where reading all records takes long.",
)
@connection_options
@reported
async def list_actors(
    output: Output,
    connection: Connection,
    workflow: str | None,
    states: tuple[str, ...],
    stage: str | None,
    tag: str | None,
    held: str | None,
    waiting_for: str | None,
    older_than: float | None,
    deployment: str | None,
    limit: int | None,
    ids: bool,
    quick: bool,
) -> None:
    """List actors and what each waits for, from their public indexes: what needs somebody first, then what lives,
    longest in its state first; then what has ended, the latest first.
    """
    now = time.time()
    if limit is None:
        limit = 0 if ids else 100

    def fits(index: Index) -> bool:
        return (
            (workflow is None or index.workflow == workflow)
            and (not states or state_of(index) in states)
            and (stage is None or index.stage == stage)
            and (tag is None or tag in index.tags)
            and (held is None or index.hold == held)
            and (waiting_for is None or waiting_for.lower() in index.wait.lower())
            and (older_than is None or now - index.updated >= older_than)
            and (deployment is None or index.deployment == deployment)
        )

    found: list[Index] = []
    counts: Counter[str] = Counter()
    cut = False
    async with connection.client() as client:
        with output.counting("records read") as count:
            async for index in client.list():
                count(1)
                if not fits(index):
                    continue
                if quick and limit and len(found) == limit:
                    cut = True
                    break
                counts[state_of(index)] += 1
                found.append(index)
                if limit and len(found) >= 2 * limit + SORTED_AT:  # of a million, no more than these are held
                    found.sort(key=_urgency)
                    del found[limit:]
    found.sort(key=_urgency)
    shown = found[: limit or None]
    if output.json:
        output.document([index.actor if ids else index_document(index) for index in shown])
        return
    if ids:
        output.lines(line(index.actor) for index in shown)
        return
    if not found:
        output.say("No such actors.")
        return
    several = len({index.deployment for index in shown}) > 1 or any(index.hold == "pin" for index in shown)
    output.table(
        (
            "id",
            "workflow",
            "state",
            "stage",
            "waits for",
            "for",
            *(("deployment",) if several else ()),
            *(() if output.is_narrow else ("node",)),
        ),
        (
            (
                i.actor,
                i.workflow,
                state_of(i),
                i.stage,
                plain(i.hold_reason) or waits(i.wait, now),
                age(now - i.updated),
                *((i.deployment,) if several else ()),
                *(() if output.is_narrow else (i.node,)),
            )
            for i in shown
        ),
    )
    words = ", ".join(
        f"{number} {state}" for state, number in sorted(counts.items(), key=lambda one: _RANK.get(one[0], 99))
    )
    if cut:
        output.note(f"The first {len(shown)} that fit, in no order; there are more.")
        return
    output.note(f"{counted(counts.total(), 'actor')}: {words}.")
    if len(shown) < counts.total():
        output.note(
            f"{counts.total() - len(shown)} more; --limit shows them, --workflow, --status, --waiting-for and others choose."
        )


def _urgency(index: Index) -> tuple[int, float, str]:
    return (
        _RANK.get(state_of(index), 99),
        -index.updated if index.status.ended else index.updated,
        index.actor,
    )


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
    now, index = time.time(), description.index
    output.say(waits(plain(line(description.sentence)), now), "bold")
    facts = {name: _readable(value, now) for name, value in description.facts()}
    trace = str(facts.pop("traceback", "")).strip()
    for name, at in (("created", index.created), ("last commit", index.updated)):
        facts[name] = f"{facts[name]} ({f'{age(now - at)} ago' if now - at >= 1 else 'now'})"
    output.facts(facts.items())
    if trace:
        output.verbatim(f"\n{trace}", TRACEBACK)


def _readable(value: object, now: float) -> object:
    if isinstance(value, str):
        return waits(plain(value), now)
    return [waits(plain(str(part)), now) for part in value] if isinstance(value, list) else value
