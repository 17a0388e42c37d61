"""Dead letters: what could never be consumed, and why."""

from __future__ import annotations

import base64
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit
from .output import Output, age, clean, counted, moment
from .values import typed_or_piped

if TYPE_CHECKING:
    from sojourn.broker.dead import DeadLetter
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Parsed, Subjects


FAILURES: Final = 10
"""Letters that could not be sent again and are named; the rest are counted, and `--json` has all."""


@click.group()
def dead() -> None:
    """Dead letters: events that can never be consumed, each kept once with its reason, until somebody sends it again or removes
    it.
    """


@dead.command("list")
@click.option("--reason", help="Only letters with this reason.")
@click.option("--actor", help="Only letters that were for this actor.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="At most so many; 0: all.  [default: 100, with --ids all]"
)
@click.option(
    "--ids",
    is_flag=True,
    help="Only their numbers, one a line, for `sojourn dead resend -` and `dead remove -`.",
)
@connection_options
@reported
async def list_letters(
    output: Output,
    connection: Connection,
    reason: str | None,
    actor: str | None,
    limit: int | None,
    ids: bool,
) -> None:
    """List dead letters, the newest first."""
    from sojourn.broker.dead import DeadLetters

    if limit is None:
        limit = 0 if ids else 100
    newest: deque[tuple[DeadLetter, str, str]] = deque(maxlen=limit or None)
    reasons: Counter[str] = Counter()
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting("dead letters read") as count:
            async for letter in DeadLetters(broker, subjects).list():
                count(1)
                to, name = addressee(subjects, letter)
                if (reason is None or letter.reason == reason) and (actor is None or to == actor):
                    newest.append((replace(letter, payload=b"") if ids else letter, to, name))
                    reasons[letter.reason] += 1
    found = list(reversed(newest))
    if output.json:
        output.document([each[0].seq if ids else letter_document(*each, payload=False) for each in found])
        return
    if ids:
        output.lines(str(letter.seq) for letter, _, _ in found)
        return
    if not found:
        output.say("No dead letters.")
        return
    now = time.time()
    output.table(
        ("letter", "age", "reason", "for", "channel", "bytes", "detail"),
        (
            (
                letter.seq,
                age(now - letter.written),
                letter.reason,
                to,
                name,
                len(letter.payload),
                letter.detail,
            )
            for letter, to, name in found
        ),
    )
    total = reasons.total()
    words = ", ".join(f"{number} {why}" for why, number in reasons.most_common())
    older = f" {total - len(found)} older ones are not shown (--limit)." if total > len(found) else ""
    output.note(
        f"{counted(total, 'dead letter')}: {clean(words)}.{older} `sojourn dead show LETTER` prints one."
    )


@dead.command()
@click.argument("letter", type=click.IntRange(min=1))
@connection_options
@reported
async def show(output: Output, connection: Connection, letter: int) -> None:
    """Show one dead LETTER (a number of `dead list`) with its payload."""
    from sojourn.broker.dead import DeadLetters

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        async for found in DeadLetters(broker, subjects).list(from_seq=letter, limit=1):
            if found.seq == letter:
                to, name = addressee(subjects, found)
                _print(output, found, to, name)
                return
    raise CommandFailed(
        Exit.NOT_FOUND, f"no dead letter {letter}", "`sojourn dead list` shows those there are."
    )


_letters = click.argument("letters", nargs=-1, required=True, metavar="LETTER...")


@dead.command()
@_letters
@connection_options
@reported
async def resend(output: Output, connection: Connection, letters: tuple[str, ...]) -> Exit | None:
    """Send the mail of each LETTER again, to the actor and channel it was for, the oldest first, and take the letter away.

    For mail that fits now: the code that could not read it, or the full mailbox, is mended. `-` reads numbers from standard
    input: `sojourn dead list --reason payload --ids | sojourn dead resend -`. What was no mail from outside (a start, mail between
    workflows) is left. Needs the rights of an admin.
    """
    from sojourn.broker.errors import MailboxFull
    from sojourn.broker.seam import Publish
    from sojourn.broker.subjects import Mail, actor_id, channel_name

    async def again(broker: Broker, subjects: Subjects, letter: DeadLetter) -> str:
        if not isinstance(parsed_event(subjects, letter), Mail):
            return f"letter {letter.seq} is no mail from outside: {clean(letter.subject)}"
        to, name = addressee(subjects, letter)
        subject = subjects.mail(actor_id(to), channel_name(name))
        msg_id = f"resent-{letter.origin.created}-{letter.origin.seq}"  # sent, and not known to be: not twice
        try:
            await broker.publish(Publish(subject, letter.payload, letter.headers, msg_id=msg_id))
        except MailboxFull:
            return f"letter {letter.seq}: channel {name} of {to} is full"
        await broker.delete(subjects.dead_stream, letter.seq)
        return ""

    return await _each(output, connection, letters, again, "sent again")


@dead.command()
@_letters
@connection_options
@reported
async def remove(output: Output, connection: Connection, letters: tuple[str, ...]) -> Exit | None:
    """Take each LETTER away: it has been dealt with, or nobody will. There is no way back.

    `-` reads numbers from standard input: `sojourn dead list --actor order-42 --ids | sojourn dead remove -`. Needs the rights of
    an admin.
    """

    async def away(broker: Broker, subjects: Subjects, letter: DeadLetter) -> str:
        await broker.delete(subjects.dead_stream, letter.seq)
        return ""

    return await _each(output, connection, letters, away, "removed")


async def _each(
    output: Output,
    connection: Connection,
    letters: tuple[str, ...],
    act: Callable[[Broker, Subjects, DeadLetter], Awaitable[str]],
    done: str,
) -> Exit | None:
    """Do it for each letter, in the order in which they were written, and say for which it was not done, and why. One after the other:
    mail keeps its order.
    """
    from sojourn.broker.dead import DeadLetters

    wanted = {_number(one) for one in typed_or_piped(letters)}
    failures: dict[int, str] = {}
    left = set(wanted)
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting(f"{done}, of {len(wanted):,}") as count:
            async for letter in DeadLetters(broker, subjects).list(from_seq=min(wanted, default=1)):
                if not left:
                    break
                if letter.seq in left:
                    left.discard(letter.seq)
                    if why := await act(broker, subjects, letter):
                        failures[letter.seq] = why
                    count(1)
    failures |= {seq: f"no dead letter {seq}" for seq in left}
    if output.json:
        output.document(
            {
                "done": sorted(wanted - failures.keys()),
                "failed": {str(seq): failures[seq] for seq in sorted(failures)},
            }
        )
    else:
        output.say(f"{counted(len(wanted) - len(failures), 'letter')} {done}", "green")
        for seq in sorted(failures)[:FAILURES]:
            output.say(failures[seq], "yellow")
        if len(failures) > FAILURES:
            output.note(f"{len(failures) - FAILURES} more were not; --json names all.")
    if not failures:
        return None
    return Exit.NOT_FOUND if len(left) == len(failures) else Exit.REFUSED


def _number(text: str) -> int:
    if not text.isdecimal():
        raise click.BadParameter(
            f"expected the number of a letter (`sojourn dead list`), received {clean(text)!r}",
            param_hint="LETTER",
        )
    return int(text)


def _print(output: Output, letter: DeadLetter, to: str, name: str) -> None:
    if output.json:
        output.document(letter_document(letter, to, name, payload=True))
        return
    output.facts(
        (
            ("letter", letter.seq),
            ("reason", letter.reason),
            ("detail", letter.detail),
            ("for", to),
            ("channel or verb", name),
            ("subject", letter.subject),
            ("first stored", moment(letter.time)),
            ("given up", moment(letter.written)),
            ("origin", f"{letter.origin.stream} {letter.origin.seq}"),
            ("payload", f"{len(letter.payload)} bytes"),
        )
    )
    output.verbatim(letter.payload.decode("utf-8", "backslashreplace"), 10_000)


def addressee(subjects: Subjects, letter: DeadLetter) -> tuple[str, str]:
    """The actor a letter was for and its channel or verb; empty when its subject cannot be parsed."""
    parsed = parsed_event(subjects, letter)
    name = next(
        (str(getattr(parsed, a)) for a in ("channel", "verb", "op", "name", "kind") if hasattr(parsed, a)), ""
    )
    return str(getattr(parsed, "actor", "")), name


def parsed_event(subjects: Subjects, letter: DeadLetter) -> Parsed | None:
    """What the letter was before."""
    return subjects.parse(letter.subject) or subjects.parse(_as_stored(letter.subject))


def _as_stored(subject: str) -> str:
    """The subject of an event that was held (the one its sender wrote) as the partitions' streams have it."""
    parts = subject.split(".")
    return ".".join((*parts[:2], "in", "0", *parts[2:]))


def letter_document(letter: DeadLetter, to: str, name: str, *, payload: bool) -> dict[str, Any]:
    """A dead letter as a JSON document; the payload as text, or base64 when it is no UTF-8."""
    document: dict[str, Any] = {
        "letter": letter.seq,
        "reason": letter.reason,
        "detail": letter.detail,
        "actor": to,
        "name": name,
        "subject": letter.subject,
        "time": letter.time,
        "written": letter.written,
        "origin": {
            "stream": letter.origin.stream,
            "created": letter.origin.created,
            "seq": letter.origin.seq,
        },
        "bytes": len(letter.payload),
    }
    if payload:
        try:
            document["payload"] = letter.payload.decode()
        except UnicodeDecodeError:
            document["payload_base64"] = base64.b64encode(letter.payload).decode()
    return document
