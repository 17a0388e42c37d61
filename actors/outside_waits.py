"""How a branch begins to wait for the world: time, mail, steps, children, the mailboxes of others.

Each function gets the driver, the branch, and the intention that it yielded. What it raises is raised at the await, and what it had
begun is taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sojourn.broker.subjects import actor_id
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.record import Child as ChildRecord
from sojourn.codecs.record import OutboxEntry, Outcome, PendingCall

from . import intentions as i
from . import queued
from .branches import Branch
from .errors import AlreadyStarted, LimitExceeded, NoSuchActor, NoSuchChannel, NoSuchWorkflow
from .events import RunStep
from .outcomes import child_error

if TYPE_CHECKING:
    from .drive import Driver


def _timed(
    driver: Driver, branch: Branch, intention: i.Intention, kind: Any, until: float | None, **facts: Any
) -> None:
    op = driver.draft.next_op
    timer = op if until is not None else None
    driver.begin(branch, intention, kind, timer=timer, until=until, **facts)


def sleep(driver: Driver, branch: Branch, intention: i.Sleep) -> None:
    """Until a time; one that has come is no wait."""
    now = driver.draft.now
    until = intention.until if intention.until is not None else now + (intention.seconds or 0.0)
    if until <= now:
        driver.resume(branch)
    else:
        _timed(driver, branch, intention, "sleep", until)


def receive(driver: Driver, branch: Branch, intention: i.Receive) -> None:
    """For mail on channels that the workflow has."""
    names = tuple(channel.name for channel in intention.channels)
    known = driver.workflow.channels
    if known is not None:
        for name in names:
            if name not in known:
                raise NoSuchChannel(name, known, where=f"workflow {driver.workflow.name}")
    until = None if intention.timeout is None else driver.draft.now + intention.timeout
    _timed(driver, branch, intention, "receive", until, channels=names)


def call(driver: Driver, branch: Branch, intention: i.Call) -> None:
    """For a step, on this node or at a worker of its queue."""
    step = driver.registry.step(intention.step)
    driver.within_payload(intention.args)
    if intention.queue is not None:
        queued.check_queue(step, intention.queue, driver.registry, f"step {step.name}")
    op = driver.begin(branch, intention, "call", name=step.name)
    options: dict[str, Any] = {}
    if intention.attempts is not None:
        options["attempts"] = intention.attempts
    if intention.backoff is not None:
        options["backoff"] = intention.backoff
    call = PendingCall(
        op=op,
        step=step.name,
        args=msgspec.Raw(intention.args),
        runner=driver.draft.facts.node,
        first_started=driver.draft.now,
        timeout=intention.timeout if intention.timeout is not None else step.timeout,
        options=msgspec.Raw(msgspec.json.encode(options)),
    )
    driver.draft.begin(
        op, "step" if intention.queue is None else f"step in queue {intention.queue}", step.name
    )
    if intention.queue is None:
        driver.draft.add_call(call)
        driver.draft.effects.append(RunStep(call))
        return
    wait = step.queue_timeout if intention.queue_timeout is None else intention.queue_timeout
    facts = {"queue": intention.queue, "queue_timeout": wait, "token": queued.token_of(driver.draft, op)}
    queued.publish(driver.draft, msgspec.structs.replace(call, runner="", **facts), op)


def spawn(driver: Driver, branch: Branch, intention: i.Spawn) -> None:
    """For a child's start to be on its way."""
    draft, index = driver.draft, driver.draft.base.index
    workflow = driver.registry.workflow(intention.workflow)
    driver.within_payload(intention.args)
    alive = sum(child.status != "ended" for child in draft.children.values())
    if alive >= draft.limits.children:
        raise LimitExceeded("children", value=alive + 1, allowed=draft.limits.children, where=index.actor)
    child_id = intention.id or _child_id(index.actor, index.run, draft.next_op)
    actor_id(child_id)
    if child_id in draft.children or child_id == index.actor:
        raise AlreadyStarted(child_id, workflow=workflow.name, status="a child of this workflow")
    op = driver.begin(branch, intention, "spawn", name=child_id)
    draft.set_child(ChildRecord(child_id, op, workflow.name, intention.policy))
    draft.begin(op, "spawn", child_id)
    body = {"workflow": workflow.name, "args": msgspec.Raw(intention.args), "tags": intention.tags}
    draft.send(OutboxEntry(n=op, kind="start", target=child_id, body=msgspec.Raw(msgspec.json.encode(body))))


def join(driver: Driver, branch: Branch, intention: i.Join) -> None:
    """For the end of a child."""
    child = driver.draft.children.get(intention.child)
    if child is None:
        raise NoSuchActor(intention.child, hint="it is no child of this workflow")
    if child.status == "ended":
        if child.joined and child.outcome is None:
            raise RuntimeError(
                f"another object of child {child.id} has its result: await the one that spawn() returned"
            )
        joined(driver, branch, child, intention)
    else:
        driver.begin(branch, intention, "join", name=child.id)


def joined(driver: Driver, branch: Branch, child: ChildRecord, intention: i.Join) -> None:
    """Give a branch the outcome of the child it joins. From then on the frame has its result, and the record has not."""
    if intention.keeper is not None and intention.keeper.taken is not None:  # by another branch, just now
        driver.resume(branch, intention.keeper.taken[0])
        return
    outcome = child.outcome or Outcome("terminated")
    if outcome.kind != "value":
        driver.draft.set_child(msgspec.structs.replace(child, joined=True, outcome=_brief(outcome)))
        driver.fail(branch, child_error(child))
        return
    try:
        workflow = driver.registry.workflow(child.workflow)
        value = workflow.signature.decode_result(bytes(outcome.value))
    except (PayloadError, NoSuchWorkflow) as wrong:  # the child ended under another version of the code
        driver.fail(branch, wrong)
        return
    if intention.keeper is not None:
        intention.keeper.keep(value)
        driver.draft.set_child(msgspec.structs.replace(child, joined=True, outcome=None))
    driver.resume(branch, value)


def _brief(outcome: Outcome) -> Outcome:
    """What the record keeps of an error that was raised in the code: it is raised again when the child is awaited again."""
    if outcome.error is not None and outcome.error.traceback:
        return msgspec.structs.replace(outcome, error=msgspec.structs.replace(outcome.error, traceback=""))
    return outcome


def send(driver: Driver, branch: Branch, intention: i.Send) -> None:
    """For a message to be stored."""
    driver.within_payload(intention.payload)
    actor_id(intention.target)
    op = driver.begin(branch, intention, "send", name=intention.target)
    entry = OutboxEntry(
        n=op,
        kind="send",
        target=intention.target,
        channel=intention.channel,
        at=driver.draft.now + (intention.timeout if intention.timeout is not None else 60.0),
        body=msgspec.Raw(intention.payload),
    )
    driver.draft.send(entry)
    driver.draft.begin(op, "send", intention.target)


def cancel_child(driver: Driver, branch: Branch, intention: i.CancelChild) -> None:
    """For the request to be on its way to the child."""
    child = driver.draft.children.get(intention.child)
    if child is None:
        raise NoSuchActor(intention.child, hint="it is no child of this workflow")
    if child.status == "ended":
        driver.resume(branch)
        return
    op = driver.begin(branch, intention, "cancel-child", name=child.id)
    body = msgspec.json.encode({"reason": intention.reason, "spawn": child.op})
    kind: Any = "terminate" if intention.terminate else "cancel"
    driver.draft.send(OutboxEntry(n=op, kind=kind, target=child.id, body=msgspec.Raw(body)))
    driver.draft.set_child(msgspec.structs.replace(child, status="cancelling"))


def checkpoint(driver: Driver, branch: Branch, intention: i.Checkpoint) -> None:
    """For this commit."""
    driver.begin(branch, intention, "checkpoint")


def _child_id(actor: str, run: str, op: int) -> str:
    """The id of a child that was given none: unique per parent, run and operation, and short enough for a subject."""
    return f"{actor[:96]}-{run[:8]}-{op}"


OUTSIDE: Final[dict[type[i.Intention], Callable[[Driver, Branch, Any], None]]] = {
    i.Sleep: sleep,
    i.Call: call,
    i.Receive: receive,
    i.Spawn: spawn,
    i.Join: join,
    i.Send: send,
    i.CancelChild: cancel_child,
    i.Checkpoint: checkpoint,
}
"""How each of these intentions begins its wait."""
