"""Actors on the engine alone: a virtual clock, messages passed in memory, steps run one at a time.

The world does what owners do, in a fixed order and without a broker. By default each frame is captured, discarded
and restored at *every*
suspension, so a value that cannot be stored fails here as it would on a node. With `crash=True` every piece of work
is lost once before it is
recorded: code between two awaits and steps run twice, which is what a crash at any of these points does, and the
outcome must be the same.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson

from sojourn.actors import registry as registries
from sojourn.actors.branches import Branches
from sojourn.actors.current import CurrentActor
from sojourn.actors.engine import Engine
from sojourn.actors.events import (
    CancelStep,
    Decision,
    Event,
    Facts,
    LocalEvent,
    Message,
    RunStep,
    StepDone,
    Turn,
    Verdict,
    Warn,
)
from sojourn.actors.execution import StepRunner
from sojourn.actors.limits import Limits
from sojourn.actors.outcomes import of_exception, of_value
from sojourn.actors.registry import Registry
from sojourn.actors.step import Step
from sojourn.actors.task import Task, result_publish
from sojourn.actors.turns import EventRefused
from sojourn.actors.wire import Malformed, message_publish, outbox_publish, parse_event, undelivered
from sojourn.actors.workflow import WorkflowCall
from sojourn.broker.seam import Publish
from sojourn.broker.subjects import Step as StepSubject
from sojourn.broker.subjects import Subjects, actor_id, channel_name, token
from sojourn.cluster.task_run import Wanted, wanted
from sojourn.codecs.durations import Duration, duration
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Origin, OutboxEntry, Record

from .queues import Queued, WorldQueues
from .rehearsal import Executed, Rehearsal

R = TypeVar("R")
Fake = Callable[..., Any]
TURNS: Final = 100_000
"""Pieces of work in one settling; more means that actors keep each other busy for ever."""
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Workflows under test, their clock, and what passes between them."""

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        steps: Mapping[Step[..., Any] | str, Fake] | None = None,
        beginning: datetime = _BEGINNING,
        move: bool = True,
        crash: bool = False,
        workers: bool = True,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """A world at `beginning`. `steps` replaces steps (by themselves or by name) with functions, sync or async,
        of the
        same arguments; the others run as they are. `registry`: None is all that the process has defined. Queued steps
        run like local ones; with `workers=False` they wait in their queue (`queued`) until the test says `work`."""
        self.registry = registry if registry is not None else registries.default_registry
        self._fakes = {
            step if isinstance(step, str) else step.name: fake for step, fake in (steps or {}).items()
        }
        for name in self._fakes:
            self.registry.step(name)
        self._now = beginning.timestamp()
        self._move = move
        self._crash = crash
        self._numbers = itertools.count(1)
        spread = random.Random(seed)
        self._engine = Engine(
            self.registry, limits=limits, ids=lambda: f"run{next(self._numbers)}", random=spread.random
        )
        self._keyring = Keyring.ephemeral(lambda size: bytes(spread.getrandbits(8) for _ in range(size)))
        self._subjects = Subjects("test", 1)
        self._runner = StepRunner(self.registry, clock=lambda: self._now, limits=limits)
        self._records: dict[str, Record] = {}
        self._live: dict[str, Branches] = {}
        self._flushed: dict[str, set[int]] = {}
        self._rehearsals: dict[str, Rehearsal[Any]] = {}
        self._inboxes: dict[str, list[Event]] = {}
        self._steps: deque[tuple[str, RunStep]] = deque()
        self._workers = workers
        self._queues = WorldQueues(self.registry)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._timers: dict[tuple[str, str, int], int] = {}
        self._settling = False

    def __repr__(self) -> str:
        return f"<World at {self.now.isoformat()}, {len(self._records)} actors>"

    # the test's side

    @property
    def now(self) -> datetime:
        """The world's clock."""
        return datetime.fromtimestamp(self._now, UTC)

    async def start(
        self, call: WorkflowCall[R], *, id: str | None = None, delay: Duration | None = None
    ) -> Rehearsal[R]:
        """Start a workflow and run it as far as it goes. Default id: its name and a number."""
        name = actor_id(id or f"{call.workflow.name}-{next(self._numbers)}")
        body = {
            "request": f"r{next(self._numbers)}",
            "workflow": call.workflow.name,
            "args": orjson.Fragment(call.encoded()),
            "delay": None if delay is None else duration(delay),
            "by": "test",
        }
        await self.control(name, "start", body)
        return self.rehearsal(name)

    async def advance(self, delay: Duration) -> None:
        """Let time pass: everything that falls due on the way happens at its own time."""
        until = self._now + duration(delay)
        while self._agenda and self._agenda[0][0] <= until:
            await self.advance_to_next()
        self._now = until

    async def advance_to_next(self) -> bool:
        """Let time pass until the next timer fires; False when none is armed."""
        if not self._agenda:
            return False
        at, _, act = heapq.heappop(self._agenda)
        self._now = max(self._now, at)
        act()
        await self._settle()
        return True

    def queued(self, queue: str | None = None) -> list[Queued]:
        """Tasks of queued steps that wait for a worker, of one queue or of all."""
        return [task for task in self._queues if queue in (None, task.queue)]

    async def work(self, queue: str | None = None) -> bool:
        """A worker takes the first task, of one queue or of any, runs it and sends its result; False when there was none.

        A task whose operation is over it only takes away, as a real one would.
        """
        task = self._queues.take(queue)
        if task is None:
            return False
        await self._work_on(task)
        await self._settle()
        return True

    def rehearsal(self, id: str) -> Rehearsal[Any]:
        """The workflow of this id: started by the test, or a child."""
        if id not in self._rehearsals:
            self._rehearsals[id] = Rehearsal(self, id)
        return self._rehearsals[id]

    def record(self, id: str) -> Record | None:
        """What is stored of an actor."""
        return self._records.get(id)

    async def mail(self, actor: str, channel: str, payload: bytes) -> None:
        """A raw mail, as `nats pub` would send it."""
        self._publish(Publish(self._subjects.mail(actor_id(actor), channel_name(channel)), payload))
        await self._settle()

    async def control(self, actor: str, verb: str, body: Mapping[str, Any]) -> None:
        """A raw control message."""
        self._publish(Publish(self._subjects.ctl(actor_id(actor), token(verb)), orjson.dumps(body)))
        await self._settle()

    # the broker's side

    def _publish(self, message: Publish) -> None:
        """What the broker does: partition, store, deliver; schedules wait for their time."""
        if message.schedule_at is not None:
            headers, target = dict(message.headers), message.schedule_target or ""
            self._at(message.schedule_at, lambda: self._deliver(target, headers, message.payload))
            self._timers[_timer_key(message.subject)] = self._last_entry
            return
        if message.cancel_schedule is not None:
            entry = self._timers.pop(_timer_key(message.cancel_schedule), None)
            self._agenda = [item for item in self._agenda if item[1] != entry]
            heapq.heapify(self._agenda)
            return
        parsed = self._subjects.parse(message.subject)
        if isinstance(parsed, StepSubject):
            self._queues.put(parsed.queue, message)
            return
        self._deliver(message.subject, dict(message.headers), message.payload)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._last_entry = next(self._numbers)
        heapq.heappush(self._agenda, (when, self._last_entry, act))

    def _deliver(self, subject: str, headers: Mapping[str, str], payload: bytes) -> None:
        parts = subject.split(".")
        if parts[2] in ("mail", "ctl", "done", "send"):
            parts = [*parts[:2], "in", "0", *parts[2:]]
        parsed: Any = self._subjects.parse(".".join(parts))
        stream: Any = {"mail": "mail", "wake": "wake"}.get(parts[4] if parts[2] == "in" else parts[2], "ctl")
        origin = Origin(stream, 1, next(self._numbers))
        event = parse_event(
            parsed,
            origin,
            time=self._now,
            headers=headers,
            payload=payload,
            keyring=self._keyring,
            inbox_prefix="_INBOX",
        )
        if isinstance(event, Malformed):
            self.rehearsal(str(parsed.actor)).dead.append(event.reason)
        else:
            self._inboxes.setdefault(event.actor, []).append(event)

    # the owner's side

    async def _settle(self) -> None:
        """Do all that can be done now. Raises `RuntimeError` when it never ends."""
        if self._settling:
            return  # a fake step signals: the settling under way sees it
        self._settling = True
        try:
            for _ in range(TURNS):
                if not await self._do_one():
                    return
            raise RuntimeError(f"{TURNS} pieces of work and no end: do actors keep each other busy?")
        finally:
            self._settling = False

    async def _do_one(self) -> bool:
        for actor, inbox in list(self._inboxes.items()):
            for event in self._engine.order(inbox):
                if self._look_at(actor, event):
                    return True
        for actor, record in list(self._records.items()):
            for local in self._engine.continuations(record, frozenset(self._flushed[actor])):
                self._turn(actor, local, needs_frame=True)
                return True
            if self._engine.wants_seal(record, frozenset(self._flushed[actor])):
                self._commit(actor, self._engine.seal(record, self._now, self._facts(actor)))
                return True
        return await self._run_step()

    def _look_at(self, actor: str, event: Event) -> bool:
        decision = self._engine.decide(self._records.get(actor), event)
        if decision.verdict is Verdict.WAIT:
            return False
        self._inboxes[actor].remove(event)
        if decision.verdict is Verdict.CONSUME:
            try:
                self._turn(actor, event, needs_frame=decision.needs_frame)
            except EventRefused as refused:
                decision = Decision(Verdict.DEAD, refused.reason, answers=refused.answers)
        if decision.verdict is Verdict.DEAD:
            self.rehearsal(actor).dead.append(decision.reason)
            notice = undelivered(event, decision.reason)
            self._answer((notice,) if notice is not None else ())
        self._answer(decision.answers)
        return True

    def _answer(self, answers: tuple[Message, ...]) -> None:
        for message in answers:
            self._publish(message_publish(message, subjects=self._subjects, now=self._now))

    def _turn(self, actor: str, event: Event | LocalEvent, *, needs_frame: bool) -> None:
        turn = self._decide(actor, event, needs_frame)
        if self._crash and turn.ran:  # the process dies before the commit: the same again, from the record
            if turn.live is not None:
                turn.live.discard()
            turn = self._decide(actor, event, needs_frame)
        self._commit(actor, turn)

    def _decide(self, actor: str, event: Event | LocalEvent, needs_frame: bool) -> Turn:
        record, live = self._records.get(actor), self._live.pop(actor, None)
        if live is None and needs_frame and record is not None:
            live = self._engine.restore(record)
        return self._engine.turn(record, live, event, self._now, self._facts(actor))

    def _facts(self, actor: str) -> Facts:
        flushed = frozenset(self._flushed.get(actor, ()))
        return Facts(1, "world/1", "test", f"c{next(self._numbers)}", flushed)

    def _commit(self, actor: str, turn: Turn) -> None:
        record = turn.record
        self._records[actor], flushed = record, set[int]()
        if turn.live is not None:
            if self._move:
                turn.live.discard()
            else:
                self._live[actor] = turn.live
        for effect in turn.effects:
            if isinstance(effect, Warn):
                self.rehearsal(actor).warnings.append(effect.text)
            if isinstance(effect, RunStep):
                self._begin_step(actor, effect)
            elif isinstance(effect, CancelStep):
                self._steps = deque(
                    item for item in self._steps if item[1].call.op != effect.op or item[0] != actor
                )
        for entry in record.envelope.outbox:
            self._flush(record, entry)
            flushed.add(entry.n)
        self._flushed[actor] = flushed

    def _flush(self, record: Record, entry: OutboxEntry) -> None:
        self._publish(
            outbox_publish(
                entry,
                record.index,
                record.envelope.calls,
                subjects=self._subjects,
                keyring=self._keyring,
                now=self._now,
            )
        )

    def _begin_step(self, actor: str, run: RunStep) -> None:
        if run.delay > 0:
            self._at(self._now + run.delay, lambda: self._steps.append((actor, run)))
        else:
            self._steps.append((actor, run))

    async def _run_step(self) -> bool:
        if not self._steps:
            task = self._queues.take() if self._workers else None
            if task is not None:
                await self._work_on(task)
            return task is not None
        actor, run = self._steps.popleft()
        done = await self._attempt(actor, run)
        if self._crash:  # the process dies before the outcome is recorded: the step runs again
            done = await self._attempt(actor, run)
        record = self._records[actor]
        if any(call.op == run.call.op and call.attempt == run.call.attempt for call in record.envelope.calls):
            self._turn(actor, done, needs_frame=self._engine.needs_frame(record, done))
        return True

    async def _work_on(self, task: Task) -> None:
        """What a worker does: ask the record, run the step, send the result."""
        record = self._records.get(task.actor)
        index = record.index if record is not None else None
        if index is None or wanted(task, index.run, index.queued) is not Wanted.YES:
            return
        done = await self._attempt(task.actor, RunStep(task.call()))
        if self._crash:  # the worker dies before the result is stored: the same attempt runs again
            done = await self._attempt(task.actor, RunStep(task.call()))
        self._publish(result_publish(task, done, subjects=self._subjects, worker="world"))

    async def _attempt(self, actor: str, run: RunStep) -> StepDone:
        step = self.registry.step(run.call.step)
        args, kwargs = step.signature.decode_args(bytes(run.call.args))
        fake = self._fakes.get(step.name)
        if fake is not None:
            done = await _faked(step, fake, run, args, kwargs)
        else:
            index = self._records[actor].index
            who = CurrentActor(index.actor, index.run, index.workflow, index.deployment, self._now)
            done = await self._runner.run(run.call, who)
        outcome = "ok" if done.outcome.kind == "value" else done.outcome.kind
        self.rehearsal(actor).executed.append(
            Executed(step.name, run.call.attempt, tuple(args), dict(kwargs), outcome)
        )
        return done


async def _faked(step: Step[..., Any], fake: Fake, run: RunStep, args: Any, kwargs: Any) -> StepDone:
    """One attempt of a replaced step: its result crosses as the real one's would."""
    call = run.call
    try:
        value = fake(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        return StepDone(call.op, call.attempt, of_value(step.signature.encode_result(value)))
    except Exception as error:
        retryable = not isinstance(error, (TypeError, *step.no_retry))
        return StepDone(call.op, call.attempt, of_exception(error, step.raises), retryable=retryable)


def _timer_key(subject: str) -> tuple[str, str, int]:
    *_, actor, run, number = subject.split(".")
    return actor, run, int(number)
