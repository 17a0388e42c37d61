"""One attempt of a step, as values: while it runs, how its code ended, and what that means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.record import Outcome, PendingCall

from . import outcomes
from .current import CurrentStep, cancel
from .errors import Cancelled, Rejected, RetryLater
from .events import StepDone
from .step import Step


@dataclass(frozen=True, slots=True)
class RunningStep:
    """One attempt that runs now, or is stuck."""

    key: str
    step: str
    attempt: int
    seconds: float
    """How long it has been running."""
    stuck: bool
    where: str
    """The line a stuck thread is at."""
    heartbeat: Any
    """Details of its last heartbeat, or None."""
    heartbeat_age: float | None


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """What a runner does now."""

    running: int
    queued: int
    stuck: int
    finished: int


@dataclass(slots=True)
class Ended:
    """How the user's function ended: kept as a value, because some exceptions (StopIteration, SystemExit)
    must not travel through futures.
    """

    value: Any = None
    error: BaseException | None = None


class Attempt:
    """One attempt from its start until its code has really ended. `settled` is called once, when its outcome is
    known; `late` is settled when stuck code ends.
    """

    __slots__ = (
        "call",
        "holds_place",
        "key",
        "late",
        "loop",
        "over",
        "seen",
        "settled",
        "started",
        "step",
        "stuck",
        "task",
        "thread",
        "timed_out",
    )

    def __init__(
        self,
        call: PendingCall,
        step: Step[..., Any],
        seen: CurrentStep,
        loop: asyncio.AbstractEventLoop,
        settled: Callable[[Attempt, Ended], None],
    ) -> None:
        self.call = call
        self.step = step
        self.seen = seen
        self.key = seen.key
        self.loop = loop
        self.started = loop.time()
        self.settled = settled
        self.over = False
        """Its outcome is known."""
        self.late: asyncio.Future[Ended] | None = None
        self.task: asyncio.Task[None] | None = None
        self.thread = 0
        self.timed_out = False
        self.stuck = False
        self.holds_place = False
        """A stuck thread that keeps its place, because too many are stuck."""

    def cancel(self) -> None:
        """Tell the step, once: a second `CancelledError` would break into the cleanup that the first one
        began.
        """
        told = self.seen.cancelled
        cancel(self.seen)
        if self.task is not None and not told:
            # Soon, not now: a task that is cancelled before its first turn never runs, and would not tell
            # that it has ended.
            self.loop.call_soon(self.task.cancel, "nobody waits for this step any more")

    def end(self, ended: Ended) -> None:
        """Settle the attempt; the first to do so wins."""
        if not self.over:
            self.over = True
            self.settled(self, ended)


def step_done(
    call: PendingCall, step: Step[..., Any], ended: Ended, seconds: float, attempt: Attempt | None
) -> StepDone:
    """What an ended attempt means: its outcome, and whether another attempt makes sense."""
    error = ended.error
    if error is None:
        return _with_value(call, step, ended.value, seconds)
    if isinstance(error, asyncio.CancelledError):
        if attempt is not None and attempt.timed_out:
            return StepDone(call.op, call.attempt, Outcome("timeout"), seconds)
        if isinstance(error, Cancelled) or (attempt is not None and attempt.seen.cancelled):
            reason = error.args[0] if error.args else ""
            return StepDone(
                call.op, call.attempt, outcomes.of_exception(Cancelled(str(reason))), seconds, retryable=False
            )
    return StepDone(
        call.op,
        call.attempt,
        outcomes.of_exception(error, step.raises),
        seconds,
        retry_after=error.after if isinstance(error, RetryLater) else None,
        retryable=not isinstance(error, (Rejected, TypeError, *step.no_retry)),
    )


def _with_value(call: PendingCall, step: Step[..., Any], value: Any, seconds: float) -> StepDone:
    """A result that does not cross is a failure, and no second attempt: the step has done its work, and would
    return the same.
    """
    try:
        return StepDone(
            call.op, call.attempt, outcomes.of_value(step.signature.encode_result(value)), seconds
        )
    except PayloadError as error:
        outcome = outcomes.of_exception(error.of(f"result of step {step.name!r}"))
        info = outcome.error
        if info is not None:
            info = msgspec.structs.replace(info, traceback="")
        return StepDone(
            call.op, call.attempt, msgspec.structs.replace(outcome, error=info), seconds, retryable=False
        )


def not_awaited(value: Any, step: Step[..., Any]) -> TypeError:
    """The mistake of a plain `def` that returns an awaitable, which is closed here."""
    close = getattr(value, "close", None)
    if callable(close):
        close()
    return TypeError(
        f"step {step.name!r} is a plain `def` and returned an awaitable; write `async def` and await it there"
    )
