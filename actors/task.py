"""What goes to the workers of a queue and comes back from them, as JSON: one task, one result (PROTOCOL 7).

A task holds everything that a worker needs: the arguments as data, never pickled, and two things that its result must repeat.
The *token*, 128 random bits, is in the commit that asked for the step: a result without it is of another call. The *mark*
is an HMAC that only nodes can make, over operation, attempt and token: records can be read by more than those who may hold
tasks, and whoever knows a token only from there cannot answer. It holds for one attempt of one operation of one run.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec
from sojourn.broker.errors import InvalidName
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import Subjects, actor_id, token
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.json_guard import Limits, check_size_and_depth
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Index, Outcome, PendingCall

from .events import StepDone

TASK_VERSION: Final = 1
MAX_DEPTH: Final = 128
"""Levels of an outcome. What a decoder takes depends on how deep its caller stands: one of 990 levels was taken here, and the record that
held it could not be read."""
AFTER_ALL: Final = 60.0
"""Seconds for which a task is kept beyond the time-out of its attempt: then nobody wants it, if no worker has said so."""


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt of a queued step, as a worker gets it."""

    v: int
    actor: str
    run: str
    workflow: str
    deployment: str
    """Which version of the app asked for it; for people."""
    transition: int
    op: int
    attempt: int
    token: str
    mark: str
    step: str
    args: msgspec.Raw
    """JSON array [args, kwargs]."""
    timeout: float
    """Seconds that the attempt may take once it runs."""
    revision: int = 0
    """Of the actor's record when this was published: an older one says nothing about this task (decision 0030)."""

    @property
    def key(self) -> str:
        """The operation id, "<actor>/<run>/<n>"."""
        return f"{self.actor}/{self.run}/{self.op}"

    def call(self) -> PendingCall:
        """As what runs steps wants it."""
        return PendingCall(
            op=self.op, step=self.step, args=self.args, attempt=self.attempt, timeout=self.timeout
        )


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an attempt ended at a worker. Whoever may publish to `done` can write anything here."""

    run: str
    op: int
    attempt: int
    token: str
    mark: str
    outcome: msgspec.Raw = msgspec.Raw(b"null")
    """An `Outcome`; null with `again`."""
    again: bool = False
    """No result yet: a task that another worker had before is about to be run."""
    retryable: bool = True
    retry_after: float | None = None
    worker: str = ""
    seconds: float = 0.0


_encode = msgspec.json.Encoder().encode
_task = msgspec.json.Decoder(Task).decode
_result = msgspec.json.Decoder(Result).decode
_outcome = msgspec.json.Decoder(Outcome).decode


def _marked(actor: str, run: str, op: int, attempt: int, secret: str) -> tuple[str, ...]:
    return actor, run, str(op), str(attempt), secret


def task_publish(
    call: PendingCall, index: Index, *, revision: int = 0, subjects: Subjects, keyring: Keyring
) -> Publish:
    """The task of a committed call; `revision`: of the record that has it. Published twice, it is stored once for as long as the
    stream remembers ids; a later copy finds at the worker that its operation is over, or is run again as the same attempt.
    """
    marked = _marked(index.actor, index.run, call.op, call.attempt, call.token)
    task = Task(
        v=TASK_VERSION,
        actor=index.actor,
        run=index.run,
        workflow=index.workflow,
        deployment=index.deployment,
        transition=index.transition,
        op=call.op,
        attempt=call.attempt,
        token=call.token,
        mark=keyring.mac("step result", *marked),
        step=call.step,
        args=call.args,
        timeout=call.timeout or 0.0,
        revision=revision,
    )
    lasts = call.queue_timeout + task.timeout + AFTER_ALL
    return Publish(
        subjects.step(token(call.queue)),
        _encode(task),
        msg_id=keyring.mac("step task", *marked),
        ttl=math.ceil(lasts),
    )


def parse_task(payload: bytes) -> Task | None:
    """The task, or None for what is none, or of a version that this Sojourn does not know."""
    try:
        task = _task(payload)
        actor_id(task.actor)
    except (*UNDECODABLE, InvalidName):
        return None
    return task if task.v == TASK_VERSION else None


def result_publish(task: Task, done: StepDone, *, subjects: Subjects, worker: str) -> Publish:
    """The result of a task, for the owner of its actor."""
    result = Result(
        run=task.run,
        op=task.op,
        attempt=task.attempt,
        token=task.token,
        mark=task.mark,
        outcome=msgspec.Raw(_encode(done.outcome)),
        retryable=done.retryable,
        retry_after=done.retry_after,
        worker=worker,
        seconds=round(done.seconds, 3),
    )
    return Publish(subjects.done(actor_id(task.actor), token(str(task.op))), _encode(result))


def again_publish(task: Task, *, subjects: Subjects, worker: str) -> Publish:
    """Tell the owner that the attempt begins once more: whoever had it is gone, and it may be the step's doing."""
    result = Result(
        run=task.run,
        op=task.op,
        attempt=task.attempt,
        token=task.token,
        mark=task.mark,
        again=True,
        worker=worker,
    )
    return Publish(subjects.done(actor_id(task.actor), token(str(task.op))), _encode(result))


def parse_result(
    payload: bytes, *, actor: str, op: str, keyring: Keyring
) -> dict[str, object] | Literal["shape", "mark", "outcome"]:
    """The members of a result whose mark holds, with its outcome decoded; else what is wrong with it."""
    try:
        result = _result(payload)
    except UNDECODABLE:
        return "shape"
    if str(result.op) != op or not keyring.verify_mac(
        result.mark, "step result", *_marked(actor, result.run, result.op, result.attempt, result.token)
    ):
        return "mark"
    told = {"run": result.run, "op": result.op, "attempt": result.attempt, "token": result.token}
    if result.again:
        return {**told, "again": True}
    try:
        check_size_and_depth(bytes(result.outcome), Limits(len(payload), MAX_DEPTH))
        outcome = _outcome(result.outcome)
    except (*UNDECODABLE, PayloadError):
        return "outcome"
    if outcome.kind == "terminated":
        return "outcome"
    return {
        **told,
        "outcome": outcome,
        "size": len(payload),
        "retryable": result.retryable,
        "retry_after": result.retry_after,
        "worker": result.worker,
    }
