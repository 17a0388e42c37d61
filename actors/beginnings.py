"""Records of runs that begin: what a start makes, what is wrong with one, and what a cancel leaves that comes before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sojourn.codecs.errors import PayloadError
from sojourn.codecs.json_guard import Limits as JsonLimits
from sojourn.codecs.json_guard import check_size_and_depth
from sojourn.codecs.record import Envelope, Index, Parent, Record, Status, Wait

from .errors import NoSuchWorkflow
from .events import Event, Facts, Message, Reply
from .limits import Limits
from .registry import Registry
from .turns import EventRefused

START_TEXT = 512
"""Characters of the name and of the request id in a start."""


def new_record(
    before: Record | None,
    event: Event,
    now: float,
    facts: Facts,
    *,
    registry: Registry,
    limits: Limits,
    run: str,
    deployment: str = "",
) -> Record:
    """The record of a run that has not begun: it knows its arguments and waits for its start. `deployment`: whose
    code it is, if it is not here. `run`: the name of the run. Raises `EventRefused`.
    """
    body = event.body
    if wrong_field := _wrong_start(body, limits):
        raise _start_refused(event, "bad start", wrong_field)
    name = str(body.get("workflow"))
    args = bytes(body.get("args", b"[[],{}]"))
    try:
        if deployment:  # whose nodes decode them; what is stored until then has to be bounded, too
            check_size_and_depth(args, JsonLimits(limits.payload_bytes, limits.payload_depth))
        else:
            registry.workflow(name).signature.decode_args(args)
    except NoSuchWorkflow as unknown:
        raise _start_refused(event, "no such workflow", str(unknown)) from None
    except (PayloadError, TypeError) as wrong:
        raise _start_refused(event, "bad arguments", str(wrong)) from None
    sender, old = event.sender, before.envelope if before is not None else None
    first_op = old.next_op if old is not None else 1
    index = Index(
        actor=event.actor,
        run=run,
        workflow=name,
        status=Status.RUNNABLE,
        transition=0,
        created=now,
        updated=now,
        deployment=deployment or facts.deployment,
        parent=sender.actor if sender else "",
        tags=tuple(str(tag)[:200] for tag in body.get("tags") or ())[:64],
    )
    envelope = Envelope(
        commit=old.commit if old is not None else "",
        previous="",
        epoch=facts.epoch,
        next_op=first_op + 1,
        waits=(Wait(branch=0, op=first_op, kind="start"),),
        consumed=old.consumed if old is not None else frozenset(),
        seen=old.seen if old is not None else {},
        parent=Parent(sender.actor, sender.run, sender.op) if sender else None,
        request=str(body.get("request") or ""),
        ends=facts.ends if old is not None else (),
        args=msgspec.Raw(args),
        now=old.now if old is not None else 0.0,
    )
    return Record(index, envelope)


def delay_of(event: Event) -> float:
    """Seconds by which a start is to be delayed; 0.0 for none."""
    delay = event.body.get("delay")
    return float(delay) if isinstance(delay, int | float) and delay > 0 else 0.0


def record_of_no_start(event: Event, now: float, facts: Facts, *, run: str) -> Record:
    """What a parent's cancel begins that finds no record, so that the late start finds that it was cancelled (PROTOCOL
    6)."""
    sender = event.sender
    assert sender is not None, "decide() lets only a parent's cancel through"
    spawn = event.body.get("spawn")
    parent = Parent(sender.actor, sender.run, spawn if isinstance(spawn, int) else sender.op)
    index = Index(
        actor=event.actor,
        run=run,
        workflow="",
        status=Status.RUNNABLE,
        transition=0,
        created=now,
        updated=now,
        parent=sender.actor,
    )
    return Record(index, Envelope("", "", facts.epoch, parent=parent))


def _wrong_start(body: Mapping[str, Any], limits: Limits) -> str:
    """What is wrong with a start beside its arguments: whoever may start workflows may still not fill records, nor
    ask for what no broker can do. Empty: nothing."""
    tags, delay = body.get("tags"), body.get("delay")
    if tags is not None and not isinstance(tags, list):
        return "expected tags to be a list of texts"
    if isinstance(delay, int | float) and delay > limits.sleep_seconds:
        return f"expected a delay of at most {limits.sleep_seconds:g} seconds, received {delay:g}"
    for field in ("workflow", "request"):
        if len(str(body.get(field) or "")) > START_TEXT:
            return f"expected `{field}` to be text of at most {START_TEXT} characters"
    return ""


def _start_refused(event: Event, code: str, message: str) -> EventRefused:
    reply = (
        Reply(event.reply, {"ok": False, "actor": event.actor, "error": code, "message": message})
        if event.reply
        else None
    )
    answers: tuple[Message, ...] = ()
    if event.sender is not None:
        body = {"child": event.actor, "op": event.sender.op, "run": event.sender.run, "why": message}
        answers = (Message("refused", event.sender.actor, body),)
    return EventRefused(f"{code}: {message}", reply=reply, answers=answers)
