"""One handler for each kind of event: what it does to the draft, and which branch goes on.

Each handler gets a `_Turn`: the draft, the driver (when user code may run) and the workflow's definition. Handlers
decide nothing about
whether an event applies (that is `decide`) and nothing about storing (that is the owner).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from sojourn.codecs.durations import Backoff
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.record import (
    Cancelling,
    Child,
    ErrorInfo,
    Hold,
    OutboxEntry,
    Outcome,
    PendingCall,
    Status,
    Wait,
)

from . import intentions as i
from . import queued
from .decide import UNDELIVERED
from .draft import Draft, outcome_words
from .drive import Driver
from .ending import children_awaited, grace_over, settle_end, terminal, terminated
from .errors import Cancelled, MailboxFull, NoSuchStep, ReceiveTimeout
from .events import Event, GoesOn, Reply, RunStep, StepDone, Warn
from .events import Message as InternalMessage
from .outcomes import REFUSED, of_exception, step_error
from .outside_waits import joined
from .registry import Registry
from .retry import Retry
from .verbs import Child as ChildHandle
from .workflow import Workflow

_REPLACE = msgspec.structs.replace
REASON = 300
"""Characters of the reason why mail was not taken."""
WORDS = 2_000
"""Characters of the reason that an operator gives, and of who it is."""
IN_PROCESS_BACKOFF = 5.0
"""Seconds; a longer wait before the next attempt is a durable timer (PROTOCOL 7)."""


class EventRefused(Exception):
    """An event cannot be consumed after all (its payload does not fit): dead letter with this reason. Nothing of the
    turn remains.

    `answers` go to another actor and `reply` to an inbox, both before the event is acknowledged.
    """

    def __init__(
        self, reason: str, *, reply: Reply | None = None, answers: tuple[InternalMessage, ...] = ()
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply
        self.answers = answers


@dataclass(slots=True)
class Message:
    """A whole mail, as `receive_message` gives it."""

    channel: str
    value: Any
    sender: str
    """Id of the actor that sent it; "" for mail from outside."""
    time: float
    """When the broker stored it, Unix seconds."""


@dataclass(slots=True)
class TurnInProgress:
    """What a handler works on. `driver` is None when the frame is not restored: then only the envelope changes."""

    draft: Draft
    driver: Driver | None
    registry: Registry
    workflow: Workflow[..., Any] | None
    random: Callable[[], float]

    @property
    def running(self) -> Driver:
        """The driver, where user code must run."""
        assert self.driver is not None, "decide() says which events need the frame"
        return self.driver

    @property
    def grace(self) -> float:
        """Seconds of grace of this workflow."""
        return self.workflow.grace if self.workflow is not None else 60.0

    def reply(self, event: Event, **facts: Any) -> None:
        """Answer the one who asked, once committed."""
        if event.reply:
            index = self.draft.base.index
            body = {"ok": True, "actor": index.actor, "run": index.run, "workflow": index.workflow, **facts}
            self.draft.effects.append(Reply(event.reply, body))


# the beginning


def start_code(turn: TurnInProgress) -> None:
    """Run the workflow function from its beginning."""
    assert turn.workflow is not None, "the engine looked it up"
    draft = turn.draft
    for op, wait in list(draft.waits.items()):
        if wait.kind == "start":
            draft.settle(op)
    try:
        args, kwargs = turn.workflow.signature.decode_args(bytes(draft.args))
        code = turn.workflow.fn(*args, **kwargs)
    except (PayloadError, TypeError) as wrong:
        # The start was accepted where this code is not: by another deployment's node, or before a change.
        terminal(draft, Status.FAILED, of_exception(wrong))
        return
    draft.args = msgspec.Raw(b"null")
    turn.running.start(code)


# mail and time


def mail(turn: TurnInProgress, event: Event) -> None:
    """Give mail to the branch that waits for its channel the longest."""
    draft, driver = turn.draft, turn.running
    for op in sorted(draft.waits):
        wait = draft.waits[op]
        if wait.kind != "receive" or event.channel not in wait.channels:
            continue
        branch = driver.waiting(op)
        if branch is None or not isinstance(branch.intention, i.Receive):
            continue
        receive = branch.intention
        channel = next(channel for channel in receive.channels if channel.name == event.channel)
        try:
            value = channel.type.decode(event.payload)
        except ValueError as wrong:
            raise EventRefused(f"payload: channel `{event.channel}`: {wrong}") from None
        if receive.message:
            value = Message(event.channel, value, event.sender.actor if event.sender else "", event.time)
        draft.settle(op)
        driver.resume(branch, value)
        return
    raise AssertionError("decide() found a branch that waits for this channel")


def timer(turn: TurnInProgress, event: Event) -> None:
    """A timer fired: it *is* the expiry, no clock is asked (PROTOCOL 4.5)."""
    fired, draft = event.body["n"], turn.draft
    for call in draft.calls.values():
        if call.deadline_timer == fired:
            draft.calls[call.op] = late = _REPLACE(call, deadline_timer=None)
            step_done(turn, StepDone(late.op, late.attempt, Outcome("timeout")))
            return
        if call.retry_timer == fired and call.queue:
            queued.publish(draft, call, draft.take_op())
            return
        if call.retry_timer == fired:
            again = _REPLACE(call, retry_timer=None, retry_at=None, runner=draft.facts.node)
            draft.calls[call.op] = again
            draft.effects.append(RunStep(again))
            return
    wait = next((wait for wait in draft.waits.values() if wait.timer == fired), None)
    if wait is None:
        grace_over(draft)
        return
    if wait.kind == "start":
        draft.settle(wait.op, fired=fired)
        start_code(turn)
        return
    _expire_earlier(turn, wait)
    if draft.waits.get(wait.op) is wait and turn.running.root is None:
        _expire(turn, wait, fired)


def _expire_earlier(turn: TurnInProgress, wait: Wait) -> None:
    """What was due before a timer that fired is due as well, although its own timer may come later: after an outage the broker sends
    what is overdue in any order, and a sleep must not outlast the time limit around it.
    """
    draft, driver, due = turn.draft, turn.running, wait.until or 0.0
    earlier = [
        other
        for other in draft.waits.values()
        if other.timer is not None and other.kind != "start" and (other.until or 0.0) < due
    ]
    for other in sorted(earlier, key=lambda each: each.until or 0.0):
        if draft.waits.get(other.op) is other and driver.root is None:
            _expire(turn, other)
            driver.run()


def _expire(turn: TurnInProgress, wait: Wait, fired: int | None = None) -> None:
    """The time of a wait is up. `fired`: its timer, unless that is still to come."""
    driver = turn.running
    turn.draft.settle(wait.op, fired=fired)
    if wait.kind == "timeout":
        driver.expire(wait.op, wait.branch)
        return
    branch = driver.waiting(wait.op)
    if branch is None:
        return
    receive = branch.intention
    if not isinstance(receive, i.Receive):
        driver.resume(branch)
    elif receive.has_default:
        driver.resume(branch, receive.default)
    else:
        driver.fail(branch, ReceiveTimeout(wait.channels, seconds=receive.timeout or 0.0))


# steps


def step_done(turn: TurnInProgress, done: StepDone) -> None:
    """An attempt of a step ended: give its result to the branch, try again, or keep it until the actor can
    resume."""
    draft = turn.draft
    call = draft.calls.get(done.op)
    if call is None or not queued.counts(call, done):
        return
    if done.may_be_tried_again and _try_again(turn, call, done):
        return
    draft.steps += 1
    draft.note(call.op, outcome=outcome_words(done.outcome), attempts=call.attempt)
    draft.call_over(call)
    if turn.driver is None or draft.hold is not None:
        draft.results[call.op] = done.outcome
    else:
        _give(turn, call, done.outcome)


def step_outcome(turn: TurnInProgress, event: Event) -> None:
    """The outcome of a step that ran on while its actor moved here, or the result of a queued one."""
    body = event.body
    if "again" in body:
        if done := queued.begins_again(turn.draft, turn.draft.calls[body["op"]], body):
            step_done(turn, done)
        return
    if "token" in body:
        step_done(turn, queued.done_of(body, turn.draft.limits.payload_bytes))
        return
    outcome = msgspec.json.decode(body["outcome"], type=Outcome)
    step_done(
        turn,
        StepDone(int(body["op"]), int(body["attempt"]), outcome, retryable=bool(body.get("retryable", True))),
    )


def _try_again(turn: TurnInProgress, call: PendingCall, done: StepDone) -> bool:
    draft, step = turn.draft, turn.registry.steps.get(call.step)
    options = orjson.loads(bytes(call.options))
    attempts = options.get("attempts", step.retry.attempts if step else 1)
    if call.attempt >= attempts:
        return False
    delay = done.retry_after
    if delay is None:
        retry = step.retry if step is not None else Retry()
        if "backoff" in options:
            retry = Retry(attempts, Backoff(*options["backoff"]))
        delay = retry.delay(call.attempt, turn.random)
    if call.queue:
        queued.again(draft, call, done.outcome, delay)
        draft.note(call.op, outcome="", attempts=call.attempt + 1)
        return True
    timer = draft.take_op() if delay > IN_PROCESS_BACKOFF else None
    if timer is not None:
        draft.arm(timer, draft.now + delay)
    again = _REPLACE(
        call,
        attempt=call.attempt + 1,
        runner=draft.facts.node,
        retry_timer=timer,
        retry_at=draft.now + delay,
        last_error=done.outcome.error,
    )
    draft.calls[call.op] = again
    draft.note(call.op, outcome="", attempts=again.attempt)
    if timer is None:
        draft.effects.append(RunStep(again, delay))
    return True


def _give(turn: TurnInProgress, call: PendingCall, outcome: Outcome) -> None:
    driver = turn.running
    branch = driver.waiting(call.op)
    turn.draft.settle(call.op)
    if branch is None:
        return
    try:
        step = turn.registry.step(call.step)
        if outcome.kind != "value":
            driver.fail(branch, step_error(call, outcome, step.raises))
            return
        value = step.signature.decode_result(bytes(outcome.value))
    except (ValueError, NoSuchStep) as wrong:  # it ran under another version of the code
        driver.fail(branch, wrong)
    else:
        driver.resume(branch, value)


# going on by the owner's own doing


def goes_on(turn: TurnInProgress, local: GoesOn) -> None:
    """A commit or flush that a branch waited for is done, or a recorded result can be given to it."""
    draft = turn.draft
    recorded = draft.results.pop(local.op, None)
    if recorded is not None:
        wait = draft.waits.get(local.op)
        _give(
            turn,
            PendingCall(op=local.op, step=wait.name if wait else "", args=msgspec.Raw(b"null")),
            recorded,
        )
        return
    wait = draft.waits.get(local.op)
    if wait is None:
        return
    if wait.kind == "start":
        start_code(turn)
        return
    driver = turn.running
    branch = driver.waiting(local.op)
    draft.settle(local.op)
    draft.note(local.op, outcome="ok" if local.error is None else "error")
    if branch is None:
        return
    if local.error is not None and wait.kind == "send":
        driver.fail(branch, MailboxFull(wait.name, _channel_of(draft, local.op)))
    elif local.error is not None:
        call = PendingCall(op=local.op, step=wait.name, args=msgspec.Raw(b"null"))
        driver.fail(branch, step_error(call, local.error, ()))
    elif wait.kind == "spawn":
        child = draft.children[wait.name]
        driver.resume(branch, ChildHandle(child.id, child.workflow))
    else:
        driver.resume(branch)


def _channel_of(draft: Draft, op: int) -> str:
    """The channel that a send of the record before this turn was for."""
    return next((entry.channel for entry in draft.base.envelope.outbox if entry.n == op), "")


# children


def child_done(turn: TurnInProgress, event: Event) -> None:
    """A child ended: keep its outcome, tell it to seal, wake whoever joins it."""
    draft, body = turn.draft, event.body
    child = draft.children[str(body["child"])]
    outcome = msgspec.json.decode(body["outcome"], type=Outcome)
    _child_over(turn, _REPLACE(child, status="ended", outcome=outcome))
    seal = msgspec.Raw(orjson.dumps({"run": body.get("child_run")}))
    draft.send(OutboxEntry(n=draft.take_op(), kind="seal", target=child.id, body=seal))


def child_refused(turn: TurnInProgress, event: Event) -> None:
    """A child's start was refused."""
    child = turn.draft.children[str(event.body["child"])]
    error = ErrorInfo(REFUSED, str(event.body.get("why", "")))
    _child_over(turn, _REPLACE(child, status="ended", outcome=Outcome("error", error=error)))


def mail_undelivered(turn: TurnInProgress, event: Event) -> None:
    """Mail that was stored could not be taken by its receiver: it is noted with the operation that sent it, and logged."""
    body = event.body
    turn.draft.note(int(body["op"]), outcome=UNDELIVERED)
    to, channel, why = (
        "".join(letter if letter.isprintable() else "?" for letter in _words(body, field)[:REASON])
        for field in ("actor", "channel", "why")
    )
    turn.draft.effects.append(
        Warn(f"mail to {to} on {channel} was not taken and is among the dead letters: {why}")
    )


def _child_over(turn: TurnInProgress, child: Child) -> None:
    draft = turn.draft
    draft.set_child(child)
    draft.note(child.op, outcome=child.outcome.kind if child.outcome else "ended")
    for op, wait in list(draft.waits.items()):
        if wait.kind != "join" or wait.name != child.id:
            continue
        branch = turn.running.waiting(op)
        draft.settle(op)
        if branch is not None and isinstance(branch.intention, i.Join):
            joined(turn.running, branch, child, branch.intention)
    if draft.ending is not None and not children_awaited(draft):
        left = bool(turn.driver.branches.table) if turn.driver is not None else bool(draft.frame)
        settle_end(draft, left, turn.grace)


# operators and cancellation


def cancel(turn: TurnInProgress, event: Event) -> None:
    """Cancel: raised once at the await; cleanup may await within the grace period."""
    draft, body = turn.draft, event.body
    grace = body.get("grace")
    timer_number = draft.take_op()
    seconds = max(0.0, float(grace)) if isinstance(grace, int | float) else turn.grace
    draft.arm(timer_number, draft.now + min(seconds, draft.limits.sleep_seconds))
    reason, by = _words(body, "reason"), _words(body, "by")
    draft.cancelling = Cancelling(
        by=by, reason=reason, at=draft.now, grace_timer=timer_number, delivered=True
    )
    draft.hold = None
    turn.reply(event, status="cancelling")
    if any(wait.kind == "start" for wait in draft.waits.values()):
        terminal(draft, Status.CANCELLED, of_exception(Cancelled("cancelled before its start")))
    elif turn.driver is not None and turn.driver.branches.table:
        turn.driver.cancel_root(Cancelled(reason, by=by))


def terminate(turn: TurnInProgress, event: Event) -> None:
    """End without cleanup."""
    reason, by = _words(event.body, "reason"), _words(event.body, "by")
    terminated(turn.draft, (reason or "terminated by an operator") + (f" ({by})" if by else ""))
    turn.reply(event, status="terminated")


def pause(turn: TurnInProgress, event: Event) -> None:
    """Hold the actor for an operator; what runs goes on, nothing new begins."""
    draft = turn.draft
    draft.hold = Hold("paused", _words(event.body, "reason"), _words(event.body, "by"), draft.now)
    turn.reply(event, hold="paused")


def _words(body: Mapping[str, Any], field: str) -> str:
    """Text of an operator's message, of a length that a record can hold."""
    return str(body.get(field) or "")[:WORDS]


def unhold(turn: TurnInProgress, event: Event) -> None:
    """Resume a paused actor, release a quarantined one: it tries again from its last good record."""
    turn.draft.hold = None
    turn.reply(event, hold="")


HANDLERS: dict[str, Callable[[TurnInProgress, Event], None]] = {
    "mail": mail,
    "timer": timer,
    "done": step_outcome,
    "child-done": child_done,
    "refused": child_refused,
    "undelivered": mail_undelivered,
    "cancel": cancel,
    "terminate": terminate,
    "pause": pause,
    "resume": unhold,
    "release": unhold,
}
"""Kind of event -> its handler. `start` makes the record itself and `seal` closes it: see `engine`."""
