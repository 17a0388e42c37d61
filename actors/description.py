"""`describe`: why an actor is not running, in one sentence, and the facts behind it.

Made from the public index alone when no owner answers, and then says so; nothing here unpickles or needs a
key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from sojourn.codecs.durations import format_duration
from sojourn.codecs.record import Index, SourceLine, Status

from .answers import Details, Running


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of one actor."""

    index: Index
    """Its public facts."""
    details: Details | None
    """What only its owner knows; None when no node answered."""
    refusal: str = ""
    """Why the owner could not say anything: mostly that it lacks the key of the record."""

    @property
    def sentence(self) -> str:
        """Why it is not running now (or that it is, or has ended)."""
        return explain(self.index, self.details, self.refusal)

    def facts(self) -> Iterator[tuple[str, object]]:
        """Names and values, for people, the important ones first; some are empty."""
        index, details = self.index, self.details or Details()
        yield "id", index.actor
        yield "run", index.run
        yield "workflow", index.workflow
        yield "status", str(index.status) + (f" ({index.hold})" if index.hold else "")
        yield "stage", index.stage
        yield "waits for", index.wait
        yield "at", [place(chain[-1]) for chain in index.stacks if chain]
        yield "held because", index.hold_reason
        yield "asked by", details.asked_by
        yield "missing", [words for words in details.missing if words != index.hold_reason]
        yield "could run on", list(details.elsewhere)
        yield "steps", [running_words(running) for running in details.running]
        yield (
            "failed, never awaited",
            [one.name for one in index.operations if one.kind == "task" and one.outcome == "error"],
        )
        yield (
            "mail not taken",
            [
                f"to {one.name}"
                for one in index.operations
                if one.kind == "send" and one.outcome == "undelivered"
            ],
        )
        yield "unread mail", [f"{unread.channel}: {unread.messages}" for unread in details.unread]
        yield "children", index.children or ""
        yield "parent", index.parent
        yield "tags", list(index.tags)
        yield "deployment", index.deployment
        yield "node", index.node if details.hot or index.status is Status.RUNNING else ""
        yield "created", moment(index.created)
        yield "last commit", moment(index.updated)
        yield "commits", index.transition
        yield "steps done", index.steps
        yield "frame", f"{index.frame_bytes} bytes" if index.frame_bytes else ""
        yield (
            "largest variables",
            [f"{name}: {size} bytes" for name, size in list(details.variables.items())[:5]],
        )
        yield "moves", [f"{move.node} at {moment(move.at)}" for move in index.itinerary[-5:]]
        yield "traceback", details.traceback

    def document(self) -> dict[str, Any]:
        """Everything as JSON values."""
        index = msgspec.to_builtins(self.index)
        details = None if self.details is None else msgspec.to_builtins(self.details)
        return {
            "sentence": self.sentence,
            "answered": self.details is not None,
            "index": index,
            "details": details,
        }


def explain(index: Index, details: Details | None, refusal: str = "") -> str:
    """One sentence: why the actor is not running."""
    who = f"{index.actor} ({index.workflow})"
    if index.status.ended:
        why = f": {details.error}" if details is not None and details.error else ""
        return f"{who} {_ENDED[index.status]} at {moment(index.updated)}{why}."
    said = _held(index, details) or _doing(index, details or Details())
    if refusal:
        return f"{who} {said}. Its node cannot open its record: {refusal}."
    if details is None:
        return f"{who} {said}. No node answers for it now; it goes on when one does."
    if details.missing and not details.elsewhere and not index.hold:
        ran = f" It ran on deployment {index.deployment}." if index.deployment else ""
        return f"{who} {said}. No living node has the code it is suspended in ({details.missing[0]}).{ran}"
    return f"{who} {said}."


_ENDED = {
    Status.COMPLETED: "completed",
    Status.REJECTED: "ended with a rejection",
    Status.FAILED: "failed",
    Status.CANCELLED: "was cancelled",
    Status.TERMINATED: "was terminated without cleanup",
}


def _held(index: Index, details: Details | None) -> str:
    because = f": {index.hold_reason}" if index.hold_reason else ""
    match index.hold:
        case "paused":
            return f"is paused{because}; `sojourn resume {index.actor}` lets it go on"
        case "quarantined":
            return f"is quarantined{because}; `sojourn release {index.actor}` tries again from its last good record"
        case "pin":
            missing = f" ({details.missing[0]})" if details is not None and details.missing else because
            such = f", such as one of deployment {index.deployment}" if index.deployment else ""
            return f"waits for a node that has the code it was suspended in{such}{missing}"
        case _:
            return ""


def _doing(index: Index, details: Details) -> str:
    cancelling = "is being cancelled and " if index.status is Status.CANCELLING else ""
    active = [running for running in details.running if running.seconds is not None]
    later = [running for running in details.running if running.next_retry is not None]
    queued = [running for running in details.running if running.queue and running.next_retry is None]
    if active:
        return f"{cancelling}runs {running_words(active[0])}" + (
            f" and {len(active) - 1} more" if active[1:] else ""
        )
    if queued:
        more = f" and {len(queued) - 1} more" if queued[1:] else ""
        return f"{cancelling}waits for queued {running_words(queued[0])}{more}"
    if later:
        return f"{cancelling}waits to try again: {running_words(later[0])}"
    if index.status is Status.RUNNABLE:
        return f"{cancelling}is about to go on"
    waits = f"{cancelling}waits: {index.wait}" if index.wait else f"{cancelling}is {index.status}"
    unread = [f"{unread.messages} on {unread.channel}" for unread in details.unread]
    return waits + (f" (unread mail: {', '.join(unread[:3])})" if unread else "")


def running_words(running: Running) -> str:
    """A running or waiting step in words."""
    words = f"step {running.step}, attempt {running.attempt} of {running.attempts}"
    if running.seconds is not None:
        words += f", for {format_duration(round(running.seconds))}"
    if running.next_retry is not None:
        words += f", next at {moment(running.next_retry)}"
    if running.stuck:
        words += f", stuck at {running.where}" if running.where else ", stuck"
    if running.queue:
        words += f", queue {running.queue}"
        words += f", since {moment(running.since)}: {_queue_words(running)}" if running.since else ""
    if running.heartbeat_age is not None:
        words += f", last heartbeat {format_duration(round(running.heartbeat_age))} ago"
    if running.last_error:
        words += f", last error: {running.last_error}"
    return words


def _queue_words(running: Running) -> str:
    """Who could run it, and what else waits."""
    if not running.at_work and not running.free:
        return f"no worker takes from the queue, {_tasks(running.waiting)} waiting"
    return (
        f"{_tasks(running.at_work)} at work, {_tasks(running.waiting)} waiting, free places: {running.free}"
    )


def _tasks(count: int) -> str:
    return f"{count} task" + ("" if count == 1 else "s")


def place(line: SourceLine) -> str:
    """One place in the user's code."""
    return f"{line.module}:{line.function} line {line.line}"


def moment(at: float) -> str:
    """Broker time as text, UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
