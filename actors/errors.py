"""Errors of workflows, steps, mail and clients, sorted by whose problem each is.

- *Domain*: `Rejected` is an expected answer of the user's own code and no error of Sojourn.
- *Control*: `Cancelled` ends a workflow or a step from outside; let it pass after cleaning up.
- *Outcome of others*: a step, a child or a workflow that was waited for did not end with a value
  (`StepFailed`, `ChildFailed`, ...), or not in time (`StepTimeout`, `ReceiveTimeout`, `ResultTimeout`: all
  are `TimeoutError`).
- *Request refused*: the caller asked for what cannot be (`AlreadyStarted`, `NoSuchWorkflow`, `MailboxFull`,
  ...).
- *Mistake in workflow code*: `NotInWorkflow`, `UnknownIntention`, `LimitExceeded`, `NeverAwaited`.

Each says what was expected, what was received, where, and what to do; the facts are attributes. All survive
pickling: an exception that a workflow holds across an await is stored with its frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from sojourn.codecs.durations import format_duration
from sojourn.codecs.errors import SojournError


def _restore(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Facts:
    """Pickle an exception by its state instead of by calling its constructor, whose arguments are facts and
    not the message.
    """

    __dict__: dict[str, Any]
    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


class Rejected(_Facts, Exception):  # an expected outcome, not an error
    """A workflow or step says no, for a reason of the domain: the expected way to end without a result.

    Never retried. A workflow that lets it pass ends `rejected`; whoever waits for the result gets it raised
    as itself. Facts are keyword arguments, must be JSON values, and can be read as attributes: `Rejected("not
    approved", reason="age").reason`.
    """

    def __init__(self, message: str = "", /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, Any] = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        known = ", ".join(sorted(facts)) or "none"
        raise AttributeError(
            f"Rejected({self.args[0] if self.args else ''!r}) has no fact {name!r}; its facts: {known}",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        facts = "".join(f", {name}={value!r}" for name, value in self.facts.items())
        return f"Rejected({self.message!r}{facts})"


class Cancelled(_Facts, asyncio.CancelledError):
    """The workflow or step is asked to end. Raised once, at the await; `finally` and `except` blocks may
    await within the grace period.

    Derives from `asyncio.CancelledError`, and so from `BaseException`: `except Exception` lets it pass, as it
    should.
    """

    def __init__(self, reason: str = "", *, by: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.by = by


class RetryLater(_Facts, SojournError):  # a request to the engine, not an error
    """Raised by a step: end this attempt as failed and try again `after` (seconds, `timedelta`, or text such
    as "30s"), whatever the backoff says. It counts as an attempt.
    """

    def __init__(self, after: Any, message: str = "") -> None:
        from sojourn.codecs.durations import duration

        self.after = duration(after)
        """Seconds to wait before the next attempt."""
        super().__init__(message or f"asked to be tried again after {format_duration(self.after)}")


class StepFailed(_Facts, SojournError):
    """A step did not succeed in any of its attempts, and its last exception has no class that may cross as
    data (a builtin, or one declared in `raises=[...]`).
    """

    def __init__(
        self, step: str, *, attempts: int, type: str, message: str, traceback: str = "", data: Any = None
    ) -> None:
        self.step = step
        self.attempts = attempts
        self.type = type
        """Class of the last exception, as text: "module:qualname"."""
        self.message = message
        self.traceback = traceback
        """Traceback of the last attempt; user frames only, cut to a bound."""
        self.data = data
        """`args` of the last exception, as JSON values."""
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"step {step!r} failed after {times}; the last one raised {type}: {message}")


class StepTimeout(_Facts, SojournError, TimeoutError):  # as TimeoutError
    """The last attempt of a step took longer than the step's timeout (`@step(timeout=...)` or
    `.options(timeout=...)`).
    """

    def __init__(self, step: str, *, seconds: float, attempts: int = 1) -> None:
        self.step = step
        self.seconds = seconds
        self.attempts = attempts
        super().__init__(
            f"step {step!r} took longer than its timeout of {format_duration(seconds)} (attempt {attempts}); "
            f"give it more with @step(timeout=...) or {step}.options(timeout=...)"
        )


class StepStuck(_Facts, SojournError):
    """A sync step ran past its timeout and its thread cannot be stopped; its next attempt waits until the
    thread ends.
    """

    def __init__(self, step: str, *, seconds: float, where: str = "") -> None:
        self.step = step
        self.seconds = seconds
        self.where = where
        """The line the thread is at, as "file:line in function"."""
        at = f" at {where}" if where else ""
        super().__init__(
            f"step {step!r}: the thread of an earlier attempt is still running after "
            f"{format_duration(seconds)}{at}; "
            "a thread cannot be stopped from outside: let the code ask current.step.cancelled, or give its "
            "blocking calls timeouts"
        )


class WorkersLost(_Facts, SojournError):
    """A queued step was begun again and again and never ended: its workers died, or were told to leave, while they
    ran it.
    """

    def __init__(self, step: str, *, times: int) -> None:
        self.step = step
        self.times = times
        super().__init__(
            f"step {step!r}: {times} workers began this attempt and were gone before it ended; look for what ends them "
            "(memory is the usual reason), and whether they may go on long enough once they are told to leave (--drain)"
        )


class ReceiveTimeout(_Facts, SojournError, TimeoutError):  # as TimeoutError
    """No mail came on the channels in time."""

    def __init__(self, channels: Iterable[str], *, seconds: float) -> None:
        self.channels = tuple(channels)
        self.seconds = seconds
        super().__init__(f"no mail on {_words(self.channels)} within {format_duration(seconds)}")


class ResultTimeout(_Facts, SojournError, TimeoutError):  # as TimeoutError
    """The workflow had not ended when the caller stopped waiting for it. It goes on; ask again."""

    def __init__(self, actor: str, *, seconds: float, status: str = "") -> None:
        self.actor = actor
        self.seconds = seconds
        self.status = status
        """The last status that was seen ("" when no record was found)."""
        seen = f"it is {status}" if status else "no record of it was found"
        super().__init__(
            f"{actor!r} has not ended within {format_duration(seconds)} ({seen}); it goes on, and can be "
            "waited for again"
        )


class NoAnswer(_Facts, SojournError, TimeoutError):  # as TimeoutError
    """No node answered a request in time. What was stored stays stored: the same request id finds it again."""

    def __init__(self, actor: str, *, request: str, seconds: float, hint: str = "") -> None:
        self.actor = actor
        self.request = request
        self.seconds = seconds
        does = f"no node answered for {actor!r} within {format_duration(seconds)}"
        super().__init__(f"{does}; {hint}" if hint else does)


class _Ended(_Facts, SojournError):
    """What a child and a workflow that ended without a value have in common."""

    _what: ClassVar[str] = "workflow"
    _did: ClassVar[str] = "ended"

    def __init__(
        self,
        actor: str,
        *,
        workflow: str = "",
        run: str = "",
        type: str = "",
        message: str = "",
        traceback: str = "",
        data: Any = None,
    ) -> None:
        self.actor = actor
        self.workflow = workflow
        self.run = run
        self.type = type
        """Class of the exception that ended it, as text: "module:qualname"; "" when there was none."""
        self.message = message
        self.traceback = traceback
        self.data = data
        who = f"{self._what} {actor!r}" + (f" ({workflow})" if workflow else "")
        why = ": ".join(part for part in (type.removeprefix("builtins:"), message) if part)
        super().__init__(f"{who} {self._did}" + (f": {why}" if why else ""))


class ChildFailed(_Ended):
    """A child that was joined ended `failed`."""

    _what = "child"
    _did = "failed"


class ChildCancelled(_Ended):
    """A child that was joined was cancelled (not through this workflow's own cancellation)."""

    _what = "child"
    _did = "was cancelled"


class ChildTerminated(_Ended):
    """A child that was joined was ended without cleanup."""

    _what = "child"
    _did = "was terminated"


class SpawnRefused(_Facts, SojournError):
    """The child could not be started: its id is taken, or its workflow is not known."""

    def __init__(self, actor: str, *, workflow: str, why: str) -> None:
        self.actor = actor
        self.workflow = workflow
        self.why = why
        super().__init__(f"child {actor!r} ({workflow}) was refused: {why}")


class WorkflowFailed(_Ended):
    """The workflow ended `failed`: a step, a child or a time-out that it did not handle, or a defect with
    `on_defect="fail"`.
    """

    _did = "failed"


class WorkflowCancelled(_Ended):
    """The workflow was cancelled."""

    _did = "was cancelled"


class WorkflowTerminated(_Ended):
    """The workflow was ended without cleanup, or did not clean up within its grace period."""

    _did = "was terminated"


class WorkflowQuarantined(_Ended):
    """The workflow is held with its last good record because its code raised a defect, or kept killing its
    node.

    Nothing is lost: deploy a fix and `sojourn release <id>`, which tries again from that record, or `sojourn
    terminate <id>`.
    """

    _did = "is quarantined (`sojourn describe` says why; `sojourn release` tries again)"


class AlreadyStarted(_Facts, SojournError):
    """The id belongs to an actor, and `if_exists` is "reject"."""

    def __init__(self, actor: str, *, run: str = "", status: str = "", workflow: str = "") -> None:
        self.actor = actor
        self.run = run
        self.status = status
        self.workflow = workflow
        seen = f" ({', '.join(part for part in (workflow, status) if part)})" if workflow or status else ""
        super().__init__(
            f'{actor!r} was started before{seen}; choose another id, or if_exists="join" to wait for that '
            'one, or "restart" to end it and begin anew'
        )


class DuplicateName(_Facts, SojournError):
    """Two different functions claim one name in a registry."""

    def __init__(self, kind: str, name: str, *, first: str, second: str) -> None:
        self.kind = kind
        self.name = name
        self.first = first
        self.second = second
        super().__init__(
            f"{kind} name {name!r} is taken by {first}; {second} claims it too: stored work is found by "
            "this name, so give one of them "
            f'another with @{kind}(name="...")'
        )


class _NoSuch(_Facts, SojournError):
    """A name that is not known, with the known ones and the nearest."""

    _what: ClassVar[str] = "name"

    def __init__(self, name: str, known: Iterable[str] = (), *, where: str = "", text: str = "") -> None:
        """`text` stands for the whole message where another process has worked it out."""
        from difflib import get_close_matches

        self.name = name
        self.known = tuple(sorted(known))
        self.near = tuple(get_close_matches(name, self.known, n=3, cutoff=0.6))
        if text:
            super().__init__(text)
            return
        text = f"no {self._what} {name!r}" + (f" in {where}" if where else "")
        if self.near:
            text += f"; did you mean {_words(self.near, last='or')}?"
        elif self.known:
            shown = ", ".join(repr(known) for known in self.known[:10])
            text += f"; known: {shown}" + (
                f" and {len(self.known) - 10} more" if len(self.known) > 10 else ""
            )
        else:
            text += f"; no {self._what} is known here"
        super().__init__(text)


class NoSuchWorkflow(_NoSuch):
    """No workflow of that name is registered."""

    _what = "workflow"


class NoSuchStep(_NoSuch):
    """No step of that name is registered."""

    _what = "step"


class NoSuchQueue(_NoSuch):
    """No step of the app names that queue, so no worker would ever take from it."""

    _what = "queue"


class NoSuchChannel(_NoSuch):
    """The workflow has no channel of that name."""

    _what = "channel"


class NoSuchActor(_Facts, SojournError):
    """No actor has that id: never started, or ended so long ago that its record is gone."""

    def __init__(self, actor: str, *, hint: str = "") -> None:
        self.actor = actor
        super().__init__(
            f"no actor {actor!r}: never started, or its record is past its retention"
            + (f"; {hint}" if hint else "")
        )


class NoSuchResource(_Facts, SojournError):
    """A step asked for a resource that no `@lifespan` has opened."""

    def __init__(self, type: str, known: Iterable[str] = ()) -> None:
        self.type = type
        self.known = tuple(sorted(known))
        opened = _words(self.known) if self.known else "none"
        super().__init__(
            f"no resource of type {type} (opened here: {opened}); yield one from a @lifespan, and ask for "
            "it in steps only"
        )


class MailboxFull(_Facts, SojournError):
    """The channel of the actor holds as many messages as it may; the message was not stored."""

    def __init__(self, actor: str, channel: str, *, limit: int | None = None) -> None:
        self.actor = actor
        self.channel = channel
        self.limit = limit
        bound = f" ({limit} messages)" if limit is not None else ""
        super().__init__(
            f"channel {channel!r} of {actor!r} is full{bound}; the message was not stored: send it again "
            "later"
        )


class DeadLettered(_Facts, SojournError):
    """The mail was stored, and then could not be taken by the actor; it is among the dead letters."""

    def __init__(self, actor: str, channel: str, *, reason: str, detail: str = "") -> None:
        self.actor = actor
        self.channel = channel
        self.reason = reason
        self.detail = detail
        why = f"{reason} ({detail})" if detail else reason
        super().__init__(
            f"mail for {actor!r} on {channel!r} could not be taken: {why}; `sojourn dead list` shows it"
        )


class Refused(_Facts, SojournError):
    """The owner of the actor refused a request; `code` is its reason in one word."""

    def __init__(self, actor: str, *, code: str, message: str) -> None:
        self.actor = actor
        self.code = code
        self.message = message
        super().__init__(f"{actor!r} refused: {message or code}")


class NotInWorkflow(_Facts, SojournError):
    """An asyncio or anyio primitive was used inside a workflow, where no event loop exists: nothing of it
    could be stored.
    """

    def __init__(self, primitive: str, function: str, line: int, counterpart: str | None = None) -> None:
        self.primitive = primitive
        self.function = function
        self.line = line
        self.counterpart = counterpart
        remedy = f"use {counterpart}" if counterpart else "do it in a step"
        super().__init__(f"{primitive} cannot be used inside a workflow ({function} line {line}); {remedy}")


class OnlyInWorkflow(_Facts, SojournError):
    """A verb of Sojourn that suspends a workflow was used outside of one."""

    def __init__(self, verb: str, instead: str = "") -> None:
        self.verb = verb
        super().__init__(f"{verb} works inside a workflow only" + (f"; {instead}" if instead else ""))


class UnknownIntention(_Facts, SojournError):
    """A workflow awaited something that is none of Sojourn's intentions, or one of a version this node does
    not know.
    """

    def __init__(self, received: str, expected: str = "an intention of Sojourn", where: str = "") -> None:
        self.received = received
        self.expected = expected
        self.where = where
        at = f" at {where}" if where else ""
        super().__init__(
            f"a workflow awaited {received}{at}; expected: {expected}. Await steps, children, channels and "
            "Sojourn's own verbs; do everything "
            "else in a step"
        )


class LimitExceeded(_Facts, SojournError):
    """Something is larger, longer or more than the configured limit."""

    def __init__(
        self, limit: str, *, value: float, allowed: float, where: str = "", remedy: str = ""
    ) -> None:
        self.limit = limit
        """Name of the limit: a field of `Limits`."""
        self.value = value
        self.allowed = allowed
        self.where = where
        at = f" in {where}" if where else ""
        super().__init__(
            f"{limit}{at}: {value:g} is over the limit of {allowed:g}" + (f"; {remedy}" if remedy else "")
        )


class Deadlock(_Facts, SojournError, RuntimeError):
    """Every branch of a workflow waits for another of its own branches (a lock, a task), so that nothing could ever
    end their waits. Raised at the await that closed the circle.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self.places = tuple(places)
        """Function and line at which each of the branches waits."""
        at = ", ".join(self.places)
        super().__init__(
            f"all branches of this workflow wait for each other ({at}): take locks in one order, do not await a task "
            "from what it awaits, and give waits a timeout"
        )


class DefinitionError(_Facts, SojournError, TypeError):
    """A decorator was put on something it cannot serve. Raised while the module is imported."""

    def __init__(self, what: str, *, function: str, remedy: str) -> None:
        self.what = what
        self.function = function
        self.remedy = remedy
        super().__init__(f"{function}: {what}; {remedy}")


class NeverAwaited(RuntimeWarning):
    """A call of a workflow or a step was made and then neither awaited, spawned nor started: nothing ran."""


def _words(names: Iterable[str], last: str = "and") -> str:
    quoted = [repr(name) for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
