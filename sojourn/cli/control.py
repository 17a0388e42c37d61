"""Operators' verbs on one actor or many: control messages that the owner of each carries out and records with who sent
them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from .connection import Connection, connection_options, reported
from .failures import Exit, Failure, explain
from .output import Output, clean, counted
from .values import DurationValue, typed_or_piped

if TYPE_CHECKING:
    from sojourn.actors.client import Client

AT_ONCE: Final = 64
"""Actors that are asked at a time: a node answers thousands a second, and none is flooded by an operator who is in a hurry."""
SHOWN: Final = 10
"""Failures that are told one by one; the rest are counted, and `--json` has all."""

_NEEDS_CODE: Final = {
    "cancel": "it is cancelled when a node with its code runs, and none does now",
    "resume": "it goes on when a node with its code runs, and none does now",
    "release": "it goes on when a node with its code runs, and none does now",
}
"""What its code has to carry out is only kept while no node has that code: what is said then."""

_actors = click.argument("actors", nargs=-1, required=True, metavar="ACTOR...")
_timeout = click.option(
    "--timeout",
    type=DurationValue(),
    default="30s",
    show_default=True,
    help="How long to wait for its owner to answer; what was sent stays in force.",
)


async def _send(
    output: Output, connection: Connection, verb: str, actors: tuple[str, ...], done: str, **options: Any
) -> Exit | None:
    """Ask for one verb on each actor. One that fails ends the command with its words; of several all are tried."""
    named = tuple(dict.fromkeys(typed_or_piped(actors)))
    if not named:
        output.say("No actors were named.")
        return None
    async with connection.client() as client:
        if actors == named and len(named) == 1:
            _say(output, await _ask(client, verb, named[0], options), done)
            return None
        return await _send_to_all(output, client, verb, named, done, options)


async def _ask(client: Client, verb: str, actor: str, options: dict[str, Any]) -> dict[str, Any]:
    """What came of it for one actor, as `--json` has it."""
    handle = client.handle(actor)
    changed = await getattr(handle, verb)(**options)
    document = {"id": actor, "request": verb, "changed": changed is not False}
    if verb in _NEEDS_CODE and changed is not False:
        described = await handle.describe()
        details = described.details
        if described.index.hold == "pin" or (
            details is not None and details.missing and not details.elsewhere
        ):
            return {**document, "kept": True}
    return document


def _say(output: Output, answer: dict[str, Any], done: str) -> None:
    actor = answer["id"]
    if output.json:
        output.document(answer)
    elif not answer["changed"]:
        output.say(f"{actor}: nothing changed, it had ended already")
    elif answer.get("kept"):
        output.say(f"{actor}: {done}; {_NEEDS_CODE[answer['request']]}", "yellow")
        output.note(
            f"`sojourn describe {actor}` says which code; `sojourn terminate {actor}` ends it now, without its cleanup."
        )
    else:
        output.say(f"{actor}: {done}")


async def _send_to_all(
    output: Output,
    client: Client,
    verb: str,
    named: tuple[str, ...],
    done: str,
    options: dict[str, Any],
) -> Exit | None:
    """Ask all of them, some at a time, and sum up. The exit code is that of the first that failed, in the order given."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(actor: str) -> dict[str, Any] | Failure:
        async with gate:
            answer: dict[str, Any] | Failure
            try:
                answer = await _ask(client, verb, actor, options)
            except Exception as error:
                answer = explain(error)
                if answer.code is Exit.DEFECT:
                    raise
            count(1)
            return answer

    with output.counting(f"asked, of {len(named):,}") as count:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(actor)) for actor in named]
    answers = list(zip(named, (task.result() for task in tasks), strict=True))
    failed = [answer for _, answer in answers if isinstance(answer, Failure)]
    if output.json:
        output.document(
            [
                {"id": actor, "request": verb, "error": answer.message, "exit": int(answer.code)}
                if isinstance(answer, Failure)
                else answer
                for actor, answer in answers
            ]
        )
    else:
        _sum_up(output, [answer for _, answer in answers if isinstance(answer, dict)], verb, done)
        for failure in failed[:SHOWN]:
            output.say(clean(failure.message), "yellow")
        if failed:
            more = (
                f", {len(failed) - SHOWN} of them not shown (--json names all)" if len(failed) > SHOWN else ""
            )
            output.say(f"{counted(len(failed), 'actor')} of {len(named)} failed{more}", "red")
            output.note(failed[0].hint or "What was sent stays in force; the command may be repeated.")
    return failed[0].code if failed else None


def _sum_up(output: Output, answers: list[dict[str, Any]], verb: str, done: str) -> None:
    counts = Counter("kept" if one.get("kept") else "done" if one["changed"] else "ended" for one in answers)
    if counts["done"]:
        output.say(f"{counted(counts['done'], 'actor')}: {done}", "green")
    if counts["kept"]:
        output.say(f"{counted(counts['kept'], 'actor')}: {done}; {_NEEDS_CODE[verb]}", "yellow")
    if counts["ended"]:
        output.say(f"{counted(counts['ended'], 'actor')}: nothing changed, they had ended already")


@click.command()
@_actors
@click.option("--reason", default="", help="Why; the workflow can read it.")
@click.option(
    "--grace", type=DurationValue(), help="How long its cleanup may take.  [default: the workflow's own]"
)
@_timeout
@connection_options
@reported
async def cancel(
    output: Output,
    connection: Connection,
    actors: tuple[str, ...],
    reason: str,
    grace: float | None,
    timeout: float,
) -> Exit | None:
    """Cancel each ACTOR: `Cancelled` is raised where it waits, its cleanup runs, its children are cancelled too.

    `-` reads ids from standard input: `sojourn list --workflow order --ids | sojourn cancel -`.
    """
    return await _send(
        output, connection, "cancel", actors, "asked to cancel", reason=reason, timeout=timeout, grace=grace
    )


@click.command()
@_actors
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def terminate(
    output: Output, connection: Connection, actors: tuple[str, ...], reason: str, timeout: float
) -> Exit | None:
    """End each ACTOR at once, without running its cleanup. Needs none of its code.

    `-` reads ids from standard input: `sojourn list --held pin --ids | sojourn terminate -`.
    """
    return await _send(
        output, connection, "terminate", actors, "asked to terminate", reason=reason, timeout=timeout
    )


@click.command()
@_actors
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def pause(
    output: Output, connection: Connection, actors: tuple[str, ...], reason: str, timeout: float
) -> Exit | None:
    """Hold each ACTOR where it is: its mail is kept, its code does not run until `sojourn resume`.

    `-` reads ids from standard input: `sojourn list --stage charging --ids | sojourn pause -`.
    """
    return await _send(output, connection, "pause", actors, "asked to pause", reason=reason, timeout=timeout)


@click.command()
@_actors
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def resume(
    output: Output, connection: Connection, actors: tuple[str, ...], reason: str, timeout: float
) -> Exit | None:
    """Let each paused ACTOR go on.

    `-` reads ids from standard input: `sojourn list --held paused --ids | sojourn resume -`.
    """
    return await _send(
        output, connection, "resume", actors, "asked to resume", reason=reason, timeout=timeout
    )


@click.command()
@_actors
@click.option("--reason", default="", help="Why; recorded.")
@_timeout
@connection_options
@reported
async def release(
    output: Output, connection: Connection, actors: tuple[str, ...], reason: str, timeout: float
) -> Exit | None:
    """Try each quarantined ACTOR again, from its last good record.

    `-` reads ids from standard input: `sojourn list --held quarantined --ids | sojourn release -`.
    """
    return await _send(
        output, connection, "release", actors, "asked to be released", reason=reason, timeout=timeout
    )
