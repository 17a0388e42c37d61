"""One actor driven by the engine alone: no broker, a clock that is set by hand, steps that run inline.

With `parked=True` the frame is captured, discarded and restored between all turns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import orjson
from sojourn.actors.engine import Engine
from sojourn.actors.events import Event, Facts, Reply, RunStep, Sender, StepDone, Turn, Verdict
from sojourn.actors.limits import Limits
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.registry import Registry
from sojourn.codecs.record import Origin, OutboxEntry, Outcome, Record


class Actor:
    """Feeds events to the engine and does what an owner does, at once and without failures."""

    def __init__(self, *members: Any, parked: bool = True, limits: Limits | None = None) -> None:
        numbers = itertools.count(1)
        self.engine = Engine(Registry(members), limits=limits, ids=lambda: f"run{next(numbers)}")
        self.parked = parked
        self.record: Record | None = None
        self.live: Any = None
        self.now = 1_000.0
        self.mail: list[Event] = []
        self.sent: list[OutboxEntry] = []
        self.armed: dict[int, float] = {}
        self.replies: list[Reply] = []
        self.running: dict[int, RunStep] = {}
        self.executed: list[str] = []
        self.dead: list[str] = []
        self.commits = 0
        self._sequence = itertools.count(1)
        self._commit_ids = itertools.count(1)

    # events

    def event(self, kind: Any, stream: Any = "ctl", **facts: Any) -> Event:
        origin = Origin(stream, 1, next(self._sequence))
        return Event(kind, "a1", origin, self.now, **facts)

    def start(self, workflow: Any, *args: Any, sender: Sender | None = None, **more: Any) -> None:
        encoded = workflow.signature.encode_args(args, {})
        body = {"workflow": workflow.name, "args": encoded, "request": "r1", **more}
        self.deliver(self.event("start", body=body, sender=sender))

    def signal(self, channel: str, value: Any = None, **facts: Any) -> None:
        self.deliver(self.event("mail", "mail", channel=channel, payload=orjson.dumps(value), **facts))

    def cancel(self, **body: Any) -> None:
        self.deliver(self.event("cancel", body=body))

    def fire(self) -> None:
        """Let the next armed timer fire."""
        timer, at = min(self.armed.items(), key=lambda item: item[1])
        del self.armed[timer]
        self.now = max(self.now, at)
        assert self.record is not None
        self.deliver(self.event("timer", "wake", body={"run": self.record.index.run, "n": timer}))

    def child_done(self, child: str, outcome: Outcome, status: str = "completed") -> None:
        assert self.record is not None
        entry = self.record.envelope.children[child]
        body = {
            "child": child,
            "child_run": "c",
            "op": entry.op,
            "run": self.record.index.run,
            "outcome": msgspec.json.encode(outcome),
            "status": status,
        }
        self.deliver(self.event("child-done", "wake", body=body))

    def deliver(self, event: Event) -> None:
        """Hand an event to the actor and settle everything that follows."""
        self.mail.append(event)
        self.settle()

    def settle(self) -> None:
        while self._consume_one() or self._go_on() or self._run_one_step():
            pass

    # what an owner does

    def _consume_one(self) -> bool:
        for event in self.engine.order(self.mail):
            decision = self.engine.decide(self.record, event)
            if decision.verdict is Verdict.WAIT:
                continue
            self.mail.remove(event)
            if decision.verdict is Verdict.CONSUME:
                self._turn(event, decision.needs_frame)
            else:
                self.dead.append(f"{decision.verdict.value}: {decision.reason}")
                if decision.reply:
                    self.replies.append(decision.reply)
            return True
        return False

    def _go_on(self) -> bool:
        if self.record is None:
            return False
        for local in self.engine.continuations(self.record, frozenset()):
            self._turn(local, True)
            return True
        return False

    def _run_one_step(self) -> bool:
        for op, run in list(self.running.items()):
            del self.running[op]
            self._turn(
                self.attempt(run), self.engine.needs_frame(self.record, StepDone(op, 1, of_value(b"1")))
            )
            return True
        return False

    def attempt(self, run: RunStep) -> StepDone:
        step = self.engine.registry.step(run.call.step)
        self.executed.append(step.name)
        args, kwargs = step.signature.decode_args(bytes(run.call.args))
        try:
            value = asyncio.run(step.fn(*args, **kwargs)) if step.is_async else step.fn(*args, **kwargs)
            outcome = of_value(step.signature.encode_result(value))
        except Exception as error:
            outcome = of_exception(error, step.raises)
        return StepDone(run.call.op, run.call.attempt, outcome)

    def _turn(self, event: Any, needs_frame: bool) -> None:
        if self.live is None and needs_frame and self.record is not None:
            self.live = self.engine.restore(self.record)
        facts = Facts(1, "n1/l1", "v1", f"c{next(self._commit_ids)}", self._flushed())
        turn = self.engine.turn(self.record, self.live, event, self.now, facts)
        self._committed(turn)

    def _flushed(self) -> frozenset[int]:
        return frozenset(e.n for e in self.record.envelope.outbox) if self.record else frozenset()

    def _committed(self, turn: Turn) -> None:
        before = self._flushed()
        self.commits += 1
        self.record, self.live = turn.record, turn.live
        for entry in turn.record.envelope.outbox:
            if entry.n in before:
                continue
            if entry.kind == "arm":
                self.armed[entry.timer] = entry.at
            elif entry.kind == "disarm":
                self.armed.pop(entry.timer, None)
            else:
                self.sent.append(entry)
        for effect in turn.effects:
            if isinstance(effect, RunStep):
                self.running[effect.call.op] = effect
            elif isinstance(effect, Reply):
                self.replies.append(effect)
            else:
                self.running.pop(effect.op, None)
        if self.parked and self.live is not None:
            self.live.discard()
            self.live = None

    # reading

    @property
    def status(self) -> str:
        assert self.record is not None
        return str(self.record.index.status)

    @property
    def hold(self) -> str:
        assert self.record is not None
        return self.record.index.hold

    @property
    def result(self) -> Any:
        assert self.record is not None
        assert self.record.envelope.outcome is not None, f"not ended: {self.record.index}"
        return orjson.loads(bytes(self.record.envelope.outcome.value))

    @property
    def error(self) -> Any:
        assert self.record is not None
        outcome = self.record.envelope.outcome
        assert outcome is not None, f"not ended: {self.record.index} {self.record.envelope.hold}"
        return outcome.error

    def sent_kinds(self) -> list[str]:
        return [entry.kind for entry in self.sent]

    def children(self) -> Iterable[Any]:
        assert self.record is not None
        return self.record.envelope.children.values()
