"""Dead letters: what could never be consumed, and why."""

from __future__ import annotations

import base64
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import click

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit
from .output import Output, age, clean, counted, moment

if TYPE_CHECKING:
    from sojourn.broker.dead import DeadLetter
    from sojourn.broker.subjects import Subjects


@click.group()
def dead() -> None:
    """Dead letters: events that can never be consumed, each kept once with its reason."""


@dead.command("list")
@click.option("--reason", help="Only letters with this reason.")
@click.option("--actor", help="Only letters that were for this actor.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@connection_options
@reported
async def list_letters(
    output: Output, connection: Connection, reason: str | None, actor: str | None, limit: int
) -> None:
    """List dead letters, the newest first."""
    from sojourn.broker.dead import DeadLetters

    newest: deque[tuple[DeadLetter, str, str]] = deque(maxlen=limit)
    reasons: Counter[str] = Counter()
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting("dead letters read") as count:
            async for letter in DeadLetters(broker, subjects).list():
                count(1)
                to, name = addressee(subjects, letter)
                if (reason is None or letter.reason == reason) and (actor is None or to == actor):
                    newest.append((letter, to, name))
                    reasons[letter.reason] += 1
    found = list(reversed(newest))
    if output.json:
        output.document([letter_document(*each, payload=False) for each in found])
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
    parsed = subjects.parse(letter.subject) or subjects.parse(_as_stored(letter.subject))
    name = next(
        (str(getattr(parsed, a)) for a in ("channel", "verb", "op", "name", "kind") if hasattr(parsed, a)), ""
    )
    return str(getattr(parsed, "actor", "")), name


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
