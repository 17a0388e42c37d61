"""Queued steps as the engine sees them: a committed call with a token, a task in the outbox, and a durable timer per attempt.

Nobody's lease stands behind such a call: its record is clean while it waits, and what brings the owner back is the result
itself, or the timer (I11). A lost worker changes nothing here: its task comes to another one, as the same attempt. The next
attempt begins on a failure, or when the timer of the present one fires; the result of an older attempt counts for as long
as the operation is pending, its failure does not. Backoff is a durable timer, whatever its length: the owner keeps nothing
of these calls in memory.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sojourn.codecs.data import describe_exception
from sojourn.codecs.errors import PayloadTooLarge
from sojourn.codecs.record import OutboxEntry, Outcome, PendingCall

from .errors import NoSuchQueue, UnknownIntention, WorkersLost
from .events import StepDone

if TYPE_CHECKING:
    from .draft import Draft
    from .registry import Registry
    from .step import Step

LOST_AT: Final = 5
"""Workers gone in the middle of one attempt; then the step has failed, for it may be what ends them."""
ROOM: Final = 64 * 1024
"""Bytes of a result beside its value: traceback, notes, facts."""
_REPLACE = msgspec.structs.replace


def check_queue(step: Step[..., Any], queue: str, registry: Registry, where: str) -> None:
    """Whether this step may go to that queue. Raises `NoSuchQueue`, `UnknownIntention`."""
    if queue not in registry.queues:
        raise NoSuchQueue(queue, registry.queues, where=where)
    if step.values == "pickle":
        raise UnknownIntention(
            f"step {step.name!r} in queue {queue!r}, with values='pickle'",
            "a step whose arguments and result cross as JSON: workers unpickle nothing",
            where,
        )


def token_of(draft: Draft, op: int) -> str:
    """128 bits that nobody can guess, of what was drawn for this run and for this commit (96 bits each), and the operation."""
    drawn = f"{draft.base.index.run}/{draft.facts.commit}/{op}"
    return hashlib.blake2b(drawn.encode(), digest_size=16).hexdigest()


def publish(draft: Draft, call: PendingCall, number: int) -> None:
    """This commit asks a worker to run the attempt, and arms the timer that ends it. `number` is the outbox entry's.

    Raises `LimitExceeded` when the attempt may take longer than any sleep.
    """
    timer = draft.take_op()
    draft.arm(timer, draft.now + call.queue_timeout + (call.timeout or 0.0))
    call = _REPLACE(call, retry_timer=None, retry_at=None, deadline_timer=timer)
    draft.calls[call.op] = call
    draft.send(OutboxEntry(n=number, kind="task", target=call.queue, op=call.op))


def again(draft: Draft, call: PendingCall, error: Outcome, delay: float) -> None:
    """The next attempt, after `delay` seconds. The timer of this one is armed no more."""
    draft.disarm(call.deadline_timer)
    draft.drop_task(call.op)
    following = _REPLACE(call, attempt=call.attempt + 1, last_error=error.error, deadline_timer=None, lost=0)
    if delay <= 0:
        publish(draft, following, draft.take_op())
        return
    timer, delay = draft.take_op(), min(delay, draft.limits.sleep_seconds)
    draft.arm(timer, draft.now + delay)
    draft.calls[call.op] = _REPLACE(following, retry_timer=timer, retry_at=draft.now + delay)


def refusal(call: PendingCall, body: Any) -> str:
    """Why a result from a worker is none for this call; empty: it counts. `body` is as `task.parse_result` made it."""
    if "token" not in body:
        return "result of a queued step: it has no token"
    if body["token"] != call.token:
        return "result of a queued step: its token is not this call's"
    return ""


def counts(call: PendingCall, done: StepDone) -> bool:
    """Whether the end of an attempt means anything to its call."""
    if done.attempt == call.attempt:
        return True
    return bool(call.queue) and done.attempt < call.attempt and not done.may_be_tried_again


def is_last_straw(call: PendingCall, body: Any) -> bool:
    """Whether this is one lost worker too many. `body` says that the attempt begins again."""
    return body["attempt"] == call.attempt and call.lost + 1 >= LOST_AT


def begins_again(draft: Draft, call: PendingCall, body: Any) -> StepDone | None:
    """A worker was gone before it had ended this attempt. What the step has come to, if that was one too many."""
    if body["attempt"] != call.attempt:
        return None
    if is_last_straw(call, body):
        error = describe_exception(WorkersLost(call.step, times=LOST_AT))
        return StepDone(call.op, call.attempt, Outcome("error", error=error), retryable=False)
    draft.calls[call.op] = _REPLACE(call, lost=call.lost + 1)
    return None


def done_of(body: Any, payload_bytes: int) -> StepDone:
    """The end of an attempt as a worker tells it. One that is larger than a record may take is a failure instead."""
    outcome: Outcome = body["outcome"]
    retryable = bool(body["retryable"])
    size = len(outcome.value) if outcome.kind == "value" else int(body["size"]) - ROOM
    if size > payload_bytes:
        outcome = Outcome("error", error=describe_exception(PayloadTooLarge(size, payload_bytes)))
        retryable = False
    after = body["retry_after"]
    return StepDone(
        int(body["op"]),
        int(body["attempt"]),
        outcome,
        retry_after=max(0.0, float(after)) if after is not None else None,
        retryable=retryable,
    )
