"""Outcomes: how a step, a child or a workflow ended, between exceptions and data.

Only classes that are verified builtins or that the caller declared are ever built from data; everything else arrives
as `StepFailed` or
`ChildFailed` with the facts as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sojourn.codecs.data import Type, describe_exception, rebuild_exception, words, words_of
from sojourn.codecs.errors import PayloadError, PayloadTooLarge
from sojourn.codecs.record import Child, ErrorInfo, Outcome, PendingCall, Status

from .errors import (
    Cancelled,
    ChildCancelled,
    ChildFailed,
    ChildTerminated,
    Rejected,
    SpawnRefused,
    StepFailed,
    StepTimeout,
)

REJECTED = "sojourn:Rejected"
REFUSED = "sojourn:SpawnRefused"
MAX_FACTS: Final = 64 * 1024
"""Bytes of the facts of one `Rejected`."""
_ANY: Final = Type(Any)
_FROM_OUTSIDE = "_sojourn_outcome"


def of_value(encoded: bytes) -> Outcome:
    """The outcome of a return value, encoded as JSON."""
    return Outcome("value", msgspec.Raw(encoded))


def of_exception(error: BaseException, declared: tuple[type[BaseException], ...] = ()) -> Outcome:
    """The outcome of a raised exception."""
    if isinstance(error, Rejected):
        return Outcome("rejected", error=rejection(error))
    if isinstance(error, Cancelled):
        said = " ".join(filter(None, (error.reason, f"({error.by})" if error.by else "")))
        return Outcome("cancelled", error=ErrorInfo(type="sojourn:Cancelled", message=said))
    kinds = tuple(kind for kind in declared if issubclass(kind, Exception))
    return Outcome("error", error=describe_exception(error, declared=kinds))


def rejection(error: Rejected) -> ErrorInfo:
    """A `Rejected` as data: its facts as a JSON object."""
    info = describe_exception(error)
    known = vars(error)
    text, facts = known.get("message"), known.get("facts")
    return msgspec.structs.replace(
        info,
        type=REJECTED,
        message=words(text) if isinstance(text, str) else info.message,
        data=msgspec.Raw(_facts(facts if isinstance(facts, Mapping) else {})),
    )


def _facts(facts: Mapping[Any, Any]) -> bytes:
    """Facts as a JSON object of bounded size; what is no data, or too large, is said in words: the rejection itself must
    cross in any case."""
    members: list[bytes] = []
    left = MAX_FACTS
    for name, value in facts.items():
        try:
            encoded = _ANY.encode(value)
        except PayloadTooLarge as large:
            encoded = msgspec.json.encode(f"<too large: {large.size} bytes>")
        except PayloadError:
            encoded = msgspec.json.encode(words_of(value))
        key = msgspec.json.encode(words_of(name))
        if len(key) + len(encoded) > left:
            encoded = msgspec.json.encode(f"<too large: {len(encoded)} bytes>")
        if len(key) + len(encoded) > left:
            break
        left -= len(key) + len(encoded)
        members.append(key + b":" + encoded)
    return b"{" + b",".join(members) + b"}"


def rejected(outcome: Outcome) -> Rejected:
    """The `Rejected` that an outcome stands for."""
    info = outcome.error or ErrorInfo(REJECTED, "")
    facts: Any = _facts_back(info)
    return Rejected(info.message, **(facts if isinstance(facts, dict) else {}))


def _facts_back(info: ErrorInfo) -> Any:
    """The facts of an error as values. Not by orjson: it makes a float of an integer over 64 bits."""
    try:
        return msgspec.json.decode(info.data)
    except msgspec.DecodeError:
        return None


def step_error(
    call: PendingCall, outcome: Outcome, declared: tuple[type[BaseException], ...]
) -> BaseException:
    """What is raised at the await of a step that did not end with a value."""
    info = outcome.error or ErrorInfo("", "")
    if outcome.kind == "rejected":
        return from_outside(rejected(outcome))
    if outcome.kind == "timeout":
        return from_outside(StepTimeout(call.step, seconds=call.timeout or 0.0, attempts=call.attempt))
    kinds = tuple(kind for kind in declared if issubclass(kind, Exception))
    known = rebuild_exception(info, declared=kinds) if outcome.kind == "error" else None
    if known is None:
        known = StepFailed(
            call.step,
            attempts=call.attempt,
            type=info.type or outcome.kind,
            message=info.message,
            traceback=info.traceback,
            data=_facts_back(info),
        )
    elif info.traceback:
        known.add_note(f"in step {call.step!r}, attempt {call.attempt}:\n{info.traceback}")
    return from_outside(known)


def child_error(child: Child) -> BaseException:
    """What is raised at the join of a child that did not end with a value."""
    outcome = child.outcome or Outcome("terminated")
    info = outcome.error or ErrorInfo("", "")
    if outcome.kind == "rejected":
        return from_outside(rejected(outcome))
    if info.type == REFUSED:
        return from_outside(SpawnRefused(child.id, workflow=child.workflow, why=info.message))
    kind = {"cancelled": ChildCancelled, "terminated": ChildTerminated}.get(outcome.kind, ChildFailed)
    return from_outside(
        kind(
            child.id,
            workflow=child.workflow,
            type=info.type,
            message=info.message,
            traceback=info.traceback,
            data=_facts_back(info),
        )
    )


def from_outside(error: BaseException) -> BaseException:
    """Mark an exception as the outcome of something that was waited for: uncaught, it fails the workflow and is no
    defect of its code."""
    error.__dict__[_FROM_OUTSIDE] = True
    return error


def is_defect(error: BaseException) -> bool:
    """Whether an exception that left the workflow's code is a mistake in that code (DESIGN 3, Outcomes)."""
    waiting = [error]
    while waiting:  # no recursion: groups may lie in groups as deep as anyone likes
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        elif not isinstance(one, Rejected | Cancelled | TimeoutError) and _FROM_OUTSIDE not in one.__dict__:
            return True
    return False


def status_of_error(error: BaseException, cancelling: bool) -> Status:
    """The terminal status of an actor whose code ended with this exception."""
    if isinstance(error, Rejected):
        return Status.REJECTED
    if isinstance(error, Cancelled):
        return Status.CANCELLED
    return Status.FAILED
