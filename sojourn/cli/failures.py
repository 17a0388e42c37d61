"""How a command fails: exit codes, and one sentence with what to do next.

Codes are part of the interface: scripts branch on them. An error that is in no family here is a defect of
Sojourn: its traceback is shown.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import click
from rich.text import Text

from sojourn.codecs.errors import SojournError

from .output import Output, clean, plain, terminal_safe

NO_ROOM = 10_047
"""JetStream's code for a store that is too small."""
TRACEBACK = 16_384
"""Characters of a traceback that are shown."""


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    """The command worked; its answer is a failure (the workflow failed, `check` found something)."""
    USAGE = 2
    UNREACHABLE = 3
    """No broker, or nobody who owns the actor, answers."""
    NOT_FOUND = 4
    TIMED_OUT = 5
    REFUSED = 6
    """The broker or the actor's owner said no."""
    DEFECT = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed command as it is reported."""

    code: Exit
    message: str
    hint: str = ""


class CommandFailed(SojournError):
    """A command's own verdict, with its exit code."""

    def __init__(self, code: Exit, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


def explain(error: BaseException) -> Failure:
    """The exit code and words for an error. `DEFECT` when nothing here expects it."""
    from sojourn.actors import errors as actors
    from sojourn.broker import errors as broker

    match error:
        case CommandFailed():
            return Failure(error.code, error.message, error.hint)
        case KeyboardInterrupt():
            return Failure(Exit.INTERRUPTED, "interrupted")
        case broker.ConnectFailed():
            return Failure(Exit.UNREACHABLE, str(error), _how_to_connect(error.reason))
        case actors.NoAnswer():
            return Failure(
                Exit.UNREACHABLE, str(error), "`sojourn nodes` shows which nodes live and what they own."
            )
        case broker.StreamNotFound() | broker.TopologyDrift() | broker.NoResponders():
            return Failure(Exit.UNREACHABLE, str(error))
        case actors.NoSuchActor():
            hint = "`sojourn list` shows the actors there are; mail for one that does not exist is kept for an hour."
            return Failure(Exit.NOT_FOUND, str(error), hint)
        case actors.NoSuchWorkflow() | actors.NoSuchChannel():
            return Failure(Exit.NOT_FOUND, str(error))
        case actors.AlreadyStarted():
            seen = ", ".join(part for part in (error.workflow, error.status) if part)
            return Failure(
                Exit.REFUSED,
                f"{error.actor!r} was started before" + (f" ({seen})" if seen else ""),
                "Choose another --id; or --if-exists join to use that one, or restart to end it and begin anew.",
            )
        case actors.Refused() if error.code == "bad arguments":
            return Failure(
                Exit.REFUSED, error.message, "`sojourn start --help` shows how arguments are written."
            )
        case actors.ResultTimeout():
            return Failure(Exit.TIMED_OUT, str(error))
        case broker.OutcomeUnknown():
            hint = "When it never answers: does --role (SOJOURN_ROLE) say the role that this user has?"
            return Failure(Exit.TIMED_OUT, str(error), hint)
        case broker.Refused() if error.is_denied:
            return Failure(Exit.REFUSED, str(error), _ROLES)
        case broker.Refused() if error.code == NO_ROOM:
            hint = "The server's store has no room for what the streams may hold: free disk space where its data lies, or give it more."
            return Failure(Exit.REFUSED, str(error), hint)
        case broker.InvalidName():
            return Failure(Exit.USAGE, str(error))
        case broker.BrokerError() | actors.MailboxFull() | actors.Refused():
            return Failure(Exit.REFUSED, str(error))
        case actors.Rejected():
            return Failure(Exit.FAILED, f"rejected: {error.message}{_facts(error.facts)}")
        case SojournError():
            return Failure(Exit.FAILED, str(error))
        case TimeoutError():
            return Failure(Exit.TIMED_OUT, str(error) or "no answer in the time given")
        case OSError() if error.filename is not None and not isinstance(error, ConnectionError):
            return Failure(Exit.FAILED, f"{error.filename}: {error.strerror}")
        case OSError():
            return Failure(Exit.UNREACHABLE, str(error))
        case _:
            return Failure(Exit.DEFECT, f"{type(error).__name__}: {error}")


_ROLES = (
    "This user may not do that. A signaller sends mail, a starter also starts and waits, a reader looks, an operator also cancels, "
    "terminates, pauses, resumes, releases and drains nodes, an admin does all: choose another with --role and --user "
    "(`sojourn roles` makes them)."
)


def _how_to_connect(reason: str) -> str:
    words = reason.lower()
    if "auth" in words:
        return "The server does not know this user: --user and SOJOURN_PASSWORD, or --creds, say who asks."
    if "timeout" in words:
        return "Nothing answers there: a wrong address, a firewall, or a server that hangs. --server or SOJOURN_SERVER names another."
    if "reset by peer" in words or "eof" in words:
        return "Something answers there and hangs up: it may want a user (--user and SOJOURN_PASSWORD, or --creds) or TLS (--tls-ca)."
    return "Start one with `sojourn dev app.py`, or name yours with --server or SOJOURN_SERVER."


def _facts(facts: Mapping[str, Any]) -> str:
    """Facts of a rejection in words, cut: they are the user's own data."""
    shown = ", ".join(f"{name} {str(value)[:100]}" for name, value in list(facts.items())[:10])
    return f" ({shown})" if shown else ""


def report(error: BaseException, output: Output) -> Exit:
    """Print the failure on standard error (as JSON with `--json`) and return the exit code."""
    failure = explain(error)
    if output.json:
        output.stderr.write(terminal_safe(_as_json(error, failure)))
        output.stderr.flush()
        return failure.code
    if failure.code is Exit.DEFECT:
        output.stderr.write(clean("".join(traceback.format_exception(error)), TRACEBACK))
    elif isinstance(shown := getattr(error, "shown", None), str):  # the user's own code failed: where
        output.stderr.write(clean(shown, TRACEBACK))
    message = getattr(error, "headline", failure.message)
    output.errors.print(Text("error: ", style="bold red") + Text(clean(plain(message), 2_000)))
    if failure.hint:
        output.errors.print(Text(failure.hint, style="dim"))
    return failure.code


def _as_json(error: BaseException, failure: Failure) -> str:
    import orjson

    document: dict[str, Any] = {
        "error": type(error).__name__,
        "message": failure.message,
        "exit": int(failure.code),
    }
    if failure.hint:
        document["hint"] = failure.hint
    facts = getattr(error, "facts", None)
    if isinstance(facts, Mapping):
        document["facts"] = dict(facts)
    return orjson.dumps(document, default=str).decode() + "\n"


@contextmanager
def told_in_words(output: Output) -> Iterator[None]:
    """End the process with the exit code of a failure, which is reported; what click says itself goes on."""
    try:
        yield
    except (SystemExit, click.ClickException):
        raise
    except (
        BaseException
    ) as error:  # every failure becomes an exit code and a sentence; defects keep their traceback
        sys.exit(report(error, output))
