"""The engine: from (record, event, now) to (record', effects). No I/O, no clock (DESIGN 2).

The owner of an actor asks `decide` what an event means, restores the frame if user code will run, and asks `turn`
for the next record; it
commits that record and then carries out the effects. The same engine runs on a node and in the testing kit.

What a turn may do besides computing: it advances the live coroutines it was given. When the commit of a turn does
not become the actor's
record, the owner discards them in silence and loads afresh.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence

import msgspec
from sojourn.codecs import frames
from sojourn.codecs.data import describe_exception
from sojourn.codecs.errors import (
    CannotSuspend,
    ContextNotDeclared,
    FrameTooLarge,
    PayloadError,
    PinNotSatisfied,
    SojournError,
)
from sojourn.codecs.record import Attempts, Hold, Outcome, Record, Status
from sojourn.codecs.traceback_text import traceback_text

from .beginnings import delay_of, new_record, record_of_no_start
from .branches import Branch, Branches
from .decide import decide, rank
from .draft import Draft, sentence
from .drive import Driver
from .dropped_generators import CloseDropped
from .ending import code_over, settle_end, terminal, terminated
from .errors import Cancelled, UnknownIntention
from .events import Decision, Event, Facts, GoesOn, LocalEvent, Reply, RunStep, StepDone, Turn
from .joining import joins, still_due
from .limits import Limits
from .outcomes import is_defect, of_exception, of_value, status_of_error
from .registry import Registry
from .states import GOES_ON
from .turns import HANDLERS, EventRefused, TurnInProgress, goes_on, start_code, step_done

_REPLACE = msgspec.structs.replace
QUARANTINE_AT = 5
"""Resumptions in a row that did not live to see a commit (I7)."""
NOT_ERRORS = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
"""What would end a process, a generator or a task of ours, had user code not raised it."""
_REFUSALS = 1_000
"""How often one turn may raise `CannotSuspend` at awaits before the workflow counts as a defect."""


class _Defect(Exception):
    """User code raised what nobody expects."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Engine:
    """Decides for all actors of a node. Holds definitions and limits, never state of an actor."""

    def __init__(
        self,
        registry: Registry,
        *,
        limits: Limits | None = None,
        ids: Callable[[], str],
        random: Callable[[], float] = lambda: 0.0,
        deployment: str = "",
    ) -> None:
        """`ids` draws the names of runs (`[A-Za-z0-9_=-]`); `random`, from [0, 1), spreads retries. `deployment` is
        the label of the code in `registry`; empty: there is no other.
        """
        self.registry = registry
        self.deployment = deployment
        self.limits = limits or Limits()
        self._ids = ids
        self._random = random

    # decisions without a commit

    def decide(self, record: Record | None, event: Event) -> Decision:
        """What to do with an event. CONSUME means: give it to `turn`."""
        return decide(record, event, self.registry, self.limits, self.deployment)

    def order(self, events: Iterable[Event]) -> list[Event]:
        """The order in which one actor's events are looked at (PROTOCOL 4.1)."""
        found = list(events)
        if len(found) > 1:
            found.sort(key=rank)
        return found

    def continuations(self, record: Record, flushed: frozenset[int]) -> list[GoesOn]:
        """What can go on without any event: recorded results, and waits that the commit or the flush has ended."""
        return [] if record.envelope.hold is not None else self._could_go_on(record, flushed)

    def _could_go_on(self, record: Record, flushed: frozenset[int]) -> list[GoesOn]:
        """As `continuations`, of an actor that is held too: once it is not, nothing else will bring its owner to these."""
        envelope = record.envelope
        if record.index.status.ended:
            return []
        if not envelope.results and not any(wait.kind in GOES_ON for wait in envelope.waits):
            return []
        pending = {entry.n for entry in envelope.outbox} - flushed
        over = [
            wait.op
            for wait in envelope.waits
            if wait.kind in GOES_ON
            and wait.timer is None
            and not (wait.kind == "send" and wait.op in pending)
        ]
        return [GoesOn(op) for op in (*sorted(envelope.results), *over)]

    def pending_steps(self, record: Record, now: float) -> list[RunStep]:
        """Local steps of a record that have no result and wait for no durable timer."""
        return [
            RunStep(call, max(0.0, (call.retry_at or now) - now))
            for call in record.envelope.calls
            if call.runs_here
        ]

    def is_clean(self, record: Record, flushed: frozenset[int]) -> bool:
        """Whether consumed events may be acknowledged (PROTOCOL 4.8, in the stricter form that the model checks)."""
        envelope = record.envelope
        if any(entry.n not in flushed for entry in envelope.outbox):
            return False
        if record.index.status.ended:
            return record.index.sealed or envelope.parent is not None
        if any(call.runs_here for call in envelope.calls):
            return False
        return not self._could_go_on(record, flushed)

    def wants_seal(self, record: Record, flushed: frozenset[int]) -> bool:
        """Whether an ended actor without a parent is ready for its seal."""
        index, envelope = record.index, record.envelope
        flushed_all = all(entry.n in flushed for entry in envelope.outbox)
        return index.status.ended and not index.sealed and envelope.parent is None and flushed_all

    def _at_once(self, record: Record, op: int) -> bool:
        call = next((call for call in record.envelope.calls if call.op == op), None)
        step = self.registry.steps.get(call.step) if call is not None else None
        return step is not None and step.record == "at_once"

    def needs_frame(self, record: Record, event: LocalEvent) -> bool:
        """Whether a local event lets user code go on."""
        if record.envelope.hold is not None or not record.frame:
            return False
        if isinstance(event, GoesOn):
            return True
        if not event.may_be_tried_again:
            return True
        call = next((call for call in record.envelope.calls if call.op == event.op), None)
        return call is None or call.attempt >= self._attempts(call.step, call.options)

    def _attempts(self, step: str, options: msgspec.Raw) -> int:
        known = self.registry.steps.get(step)
        overrides = msgspec.json.decode(options)
        return int(overrides.get("attempts", known.retry.attempts if known else 1))

    # frames

    def missing(self, record: Record) -> list[frames.Missing]:
        """Code that the frame needs and this process lacks; empty when it can be resumed here."""
        return frames.satisfied(record.index.pin)

    def restore(self, record: Record) -> Branches:
        """The live branches of a record. Raises `PinNotSatisfied`, leaving everything as it was."""
        if not record.frame:
            return Branches()
        try:
            dropped = CloseDropped(f"{record.index.actor}/{record.index.run}")
            branches = Branches.of(frames.load(record.frame, record.index.pin, dropped=dropped))
        except NOT_ERRORS as raised:  # `__setstate__` of a user's class may even try to end the process
            raise PinNotSatisfied([], [f"restoring failed here: {type(raised).__name__}"]) from raised
        except (UnknownIntention, LookupError) as unknown:
            raise PinNotSatisfied([], [f"the frame of {record.index.actor}: {unknown}"]) from unknown
        branches.size = len(record.frame)
        return branches

    # turns

    def turn(
        self,
        record: Record | None,
        live: Branches | None,
        event: Event | LocalEvent,
        now: float,
        facts: Facts,
        more: Sequence[Event | LocalEvent] = (),
    ) -> Turn:
        """The record after an event, and after `more` of them that `joins` lets be taken with it, as far as they are
        still due then. Raises `EventRefused` when the event turns out to fit nothing: then nothing has changed."""
        if isinstance(event, StepDone | GoesOn):
            assert record is not None, "a local event belongs to a record"
            return self._local(record, live, event, now, facts, more)
        if event.kind == "start":
            return self._start(record, live, event, now, facts)
        if record is None:
            return self._cancelled_before_start(event, now, facts)
        if event.kind == "seal":
            return self.seal(record, now, facts, event)
        return self._run(record, live, event, now, facts, lambda turn: _take(turn, event), more)

    def _local(
        self,
        record: Record,
        live: Branches | None,
        event: LocalEvent,
        now: float,
        facts: Facts,
        more: Sequence[Event | LocalEvent],
    ) -> Turn:
        if isinstance(event, StepDone) and (event.record_first or self._at_once(record, event.op)):
            turn = self._run(record, None, event, now, facts, lambda turn: _take(turn, event))
            return _REPLACE(turn, live=live)
        if any(wait.op == event.op and wait.kind == "start" for wait in record.envelope.waits):
            live = Branches()
        return self._run(record, live, event, now, facts, lambda turn: _take(turn, event), more)

    def joins(self, record: Record, event: Event | LocalEvent) -> bool:
        """Whether an event that is to be consumed may be taken in one turn with others that may, with the frame at hand."""
        return joins(record, event) and not (isinstance(event, StepDone) and self._at_once(record, event.op))

    def _run(
        self,
        record: Record,
        live: Branches | None,
        event: Event | LocalEvent,
        now: float,
        facts: Facts,
        act: Callable[[TurnInProgress], None],
        more: Sequence[Event | LocalEvent] = (),
    ) -> Turn:
        draft = Draft(record, now, facts, self.limits)
        if isinstance(event, Event):
            draft.consume(event)
        workflow = self.registry.workflows.get(record.index.workflow)
        driver = None
        if live is not None and workflow is not None:
            driver = Driver(live, draft, self.registry, workflow)
        turn = TurnInProgress(draft, driver, self.registry, workflow, self._random)
        try:
            act(turn)
            if more:
                self._take_more(turn, more)
            self._advance(turn)
            return self._finish(draft, live)
        except EventRefused:
            raise
        except (Exception, *NOT_ERRORS) as raised:
            # User code also runs where only ours seems to: `__getstate__` when it is captured, `__str__` of what it raised.
            # Whatever came of it, this actor is held, and no other suffers (I6). What is wrong before any of it ran is the
            # owner's to judge.
            error = raised.error if isinstance(raised, _Defect) else raised
            if error is raised and not draft.ran:
                if isinstance(raised, Exception):
                    raise
                raise RuntimeError(f"{type(raised).__name__} out of a user's class") from raised
            if live is not None:
                live.discard()
            whole = traceback_text(error, whole=True) if error is raised else ""
            return self._held_for_defect(record, (event, *more), now, facts, error, whole)

    def _take_more(self, turn: TurnInProgress, more: Iterable[Event | LocalEvent]) -> None:
        """Take further events, each once the code has gone as far as those before it let it, until that ends the actor."""
        draft, driver = turn.draft, turn.driver
        before = {call.op: call for call in draft.base.envelope.calls}
        for event in more:
            if driver is not None:
                driver.run()
                if driver.root is not None:
                    return
            if draft.status is not None:
                return
            if still_due(draft, event, before):
                if isinstance(event, Event):
                    draft.consume(event)
                _take(turn, event)

    def _finish(self, draft: Draft, live: Branches | None) -> Turn:
        next_record = draft.finish()
        if live is not None and (next_record.index.status.ended or not live.table):
            live.discard()
            live = None
        return Turn(next_record, live, tuple(draft.effects), draft.ran)

    def _advance(self, turn: TurnInProgress) -> None:
        """Run user code as far as it goes, end the actor if its code is over, and capture what is left."""
        draft, driver = turn.draft, turn.driver
        if driver is None:
            return
        driver.run()
        for _ in range(_REFUSALS):
            if draft.status is None:
                self._end_if_over(turn, driver)
            if draft.status is not None or not draft.ran:
                return
            if not driver.branches.table:
                draft.frame, draft.pin, draft.pinned_to = b"", (), ""
                return
            try:
                driver.branches.capture_variables()
                frame = frames.dump(driver.branches.state(), size_limit=self.limits.frame_bytes)
            except (CannotSuspend, FrameTooLarge, ContextNotDeclared) as refused:
                self._raise_at_await(driver, refused)
                driver.run()
                continue
            draft.frame, draft.pin = frame.data, frame.pin
            alone = turn.workflow is not None and turn.workflow.pin == "deployment"
            draft.pinned_to = draft.facts.deployment if alone else ""
            driver.branches.size = len(frame.data)
            return
        raise _Defect(RuntimeError("the workflow goes on awaiting with values that cannot be stored"))

    def _end_if_over(self, turn: TurnInProgress, driver: Driver) -> None:
        draft = turn.draft
        if driver.root is not None and draft.ending is None:
            (value, error), driver.root = driver.root, (None, None)
            try:
                status, outcome = self._judge(turn, value, error)
            finally:
                del error  # a frame of its own traceback may know this one
            code_over(draft, driver, status, outcome, turn.grace)
        elif draft.ending is not None and draft.ran:
            settle_end(draft, bool(driver.branches.table), turn.grace)

    def _judge(
        self, turn: TurnInProgress, value: object, error: BaseException | None
    ) -> tuple[Status, Outcome]:
        """Status and outcome of a workflow whose code is over; raises `_Defect` for one that is to be held."""
        workflow, cancelling = turn.workflow, turn.draft.cancelling is not None
        assert workflow is not None, "its code ran"
        if error is None:
            try:
                return Status.COMPLETED, of_value(workflow.signature.encode_result(value))
            except PayloadError as wrong:
                error = wrong.of(f"result of workflow {workflow.name}")
            except TypeError as wrong:
                wrong.add_note(f"the result of workflow {workflow.name} cannot cross as data")
                error = wrong
        if is_defect(error) and workflow.on_defect == "hold" and not cancelling:
            raise _Defect(error)
        return status_of_error(error, cancelling), of_exception(error, workflow.raises)

    def _raise_at_await(self, driver: Driver, refused: SojournError) -> None:
        """Raise at the await of the branch that cannot be stored; what it had asked for is taken back."""
        culprit = _culprit(driver, self.limits.frame_bytes)
        driver.draft.undo(culprit.op)
        driver.fail(culprit, refused)

    def _held_for_defect(
        self,
        record: Record,
        events: Sequence[Event | LocalEvent],
        now: float,
        facts: Facts,
        error: BaseException,
        traceback: str,
    ) -> Turn:
        """Quarantine with the last good record: the events are not consumed; a step's result is kept, so it does not
        run again."""
        draft, event = Draft(record, now, facts, self.limits), events[0]
        info = describe_exception(error)
        words = f"{info.type}: {info.message}"[:2_000]
        if (
            isinstance(event, Event) and event.kind == "cancel"
        ):  # it is to end, and would be held and cancelled for ever
            draft.consume(event)
            terminated(draft, f"its cleanup cannot run: {words}")
            if event.reply:
                body = {"ok": True, "actor": event.actor, "run": record.index.run, "status": "terminated"}
                draft.effects.append(Reply(event.reply, body))
            return Turn(draft.finish(), None, tuple(draft.effects), ran=True)
        if isinstance(event, Event) and event.kind == "start":
            draft.consume(event)
            if event.reply:  # it is started; that it is held is told to whoever waits for the result
                body = {"ok": True, "actor": event.actor, "run": record.index.run, "hold": "quarantined"}
                draft.effects.append(Reply(event.reply, body))
        for done in events:
            if isinstance(done, StepDone) and done.op in draft.calls:
                del draft.calls[done.op]
                draft.results[done.op] = done.outcome
                draft.steps += 1
        draft.hold = Hold("quarantined", words, facts.node, draft.now, traceback or info.traceback)
        draft.ran = record.envelope.attempts.count > 0
        return Turn(draft.finish(), None, tuple(draft.effects), ran=True)

    # beginnings

    def _start(
        self, record: Record | None, live: Branches | None, event: Event, now: float, facts: Facts
    ) -> Turn:
        if record is not None and not record.index.status.ended:
            # Restart: end this run first; the start waits for its seal. It is not consumed yet, and it is the lease: what
            # this commit owes would else be taken for flushed by an owner that loads the record cold (PROTOCOL 4.7).
            draft = Draft(record, now, facts, self.limits)
            draft.lease = event.origin
            terminated(draft, "restarted")
            return self._finish(draft, live)
        base = self._new_record(record, event, now, facts)
        if delay := delay_of(event):
            return self._delayed(base, event, now, facts, delay)

        def act(turn: TurnInProgress) -> None:
            turn.reply(event, status="running")
            start_code(turn)

        return self._run(base, Branches(), event, now, facts, act)

    def admit(
        self, record: Record | None, event: Event, now: float, facts: Facts, *, deployment: str = ""
    ) -> Turn:
        """Take a start without running its code yet; `continuations` then begins it.

        For an owner that must count an attempt before user code runs, also for a run that has no record yet (I7); and
        for a run of another `deployment`, which goes on its lane at once (a delayed one when its time has come). Its
        code is not here, so its arguments are checked there. Raises `EventRefused` as `turn`.
        """
        base = self._new_record(record, event, now, facts, deployment)
        if delay := delay_of(event):
            return self._delayed(base, event, now, facts, delay)
        draft = Draft(base, now, facts, self.limits)
        draft.lane = deployment
        draft.consume(event)
        if event.reply:
            index = draft.base.index
            body = {"ok": True, "actor": index.actor, "run": index.run, "workflow": index.workflow}
            draft.effects.append(Reply(event.reply, {**body, "status": "runnable"}))
        return self._finish(draft, None)

    def _delayed(self, base: Record, event: Event, now: float, facts: Facts, delay: float) -> Turn:
        draft = Draft(base, now, facts, self.limits)
        draft.consume(event)
        (start,) = draft.waits.values()
        draft.wait(_REPLACE(start, timer=start.op, until=draft.now + delay))
        if event.reply:
            body = {"ok": True, "actor": base.index.actor, "run": base.index.run, "status": "suspended"}
            draft.effects.append(Reply(event.reply, body))
        return self._finish(draft, None)

    def _new_record(
        self, before: Record | None, event: Event, now: float, facts: Facts, deployment: str = ""
    ) -> Record:
        return new_record(
            before,
            event,
            now,
            facts,
            registry=self.registry,
            limits=self.limits,
            run=self._ids(),
            deployment=deployment,
        )

    def _cancelled_before_start(self, event: Event, now: float, facts: Facts) -> Turn:
        draft = Draft(record_of_no_start(event, now, facts, run=self._ids()), now, facts, self.limits)
        draft.consume(event)
        terminal(draft, Status.CANCELLED, of_exception(Cancelled("cancelled before its start")))
        return self._finish(draft, None)

    # commits that run no user code

    def seal(self, record: Record, now: float, facts: Facts, event: Event | None = None) -> Turn:
        """Close an ended actor: nothing of it is owed any more; its record expires after the retention."""
        draft = Draft(record, now, facts, self.limits)
        if event is not None:
            draft.consume(event)
        draft.sealed = True
        return Turn(draft.finish(), None)

    def take_over(self, record: Record, ops: Iterable[int], now: float, facts: Facts) -> Turn:
        """Become the runner of pending calls whose runner's lease is over, before running them (PROTOCOL 3)."""
        draft = Draft(record, now, facts, self.limits)
        for op in ops:
            if op in draft.calls:
                draft.calls[op] = _REPLACE(draft.calls[op], runner=facts.node)
        return Turn(draft.finish(), None)

    def attempt(self, record: Record, now: float, facts: Facts) -> Turn:
        """Count a resumption before user code runs (I7); the fifth in a row without a commit is not made:
        quarantined instead."""
        draft = Draft(record, now, facts, self.limits)
        count = record.envelope.attempts.count + 1
        draft.attempts = Attempts(count, facts.node)
        if count >= QUARANTINE_AT:
            reason = f"its last {count - 1} counted resumptions each ended their node (last: {record.envelope.attempts.by})"
            draft.hold = Hold("quarantined", reason, facts.node, draft.now)
            draft.attempts = Attempts()
        return Turn(draft.finish(), None)

    def hold(
        self,
        record: Record,
        kind: str,
        reason: str,
        now: float,
        facts: Facts,
        traceback: str = "",
        *,
        by: str = "",
    ) -> Turn:
        """Hold an actor: `quarantined`, or `pin` when its code is not here; off any lane then. `by`: who holds it,
        this node by default.
        """
        draft = Draft(record, now, facts, self.limits)
        if kind == "pin":
            draft.lane = ""
        draft.hold = msgspec.convert(
            {"kind": kind, "reason": reason, "by": by or facts.node, "at": draft.now, "traceback": traceback},
            Hold,
        )
        return Turn(draft.finish(), None)

    def lane(self, record: Record, deployment: str, now: float, facts: Facts) -> Turn:
        """Put an actor on the lane of a deployment that has its code (PROTOCOL 8), or take it off (""). A hold for its
        pin is over then.
        """
        draft = Draft(record, now, facts, self.limits)
        draft.lane = deployment
        if deployment and draft.hold is not None and draft.hold.kind == "pin":
            draft.hold = None
        return Turn(draft.finish(), None)

    def unhold(self, record: Record, now: float, facts: Facts) -> Turn:
        """End a hold (its pin is satisfied again)."""
        draft = Draft(record, now, facts, self.limits)
        draft.hold = None
        return Turn(draft.finish(), None)


def _take(turn: TurnInProgress, event: Event | LocalEvent) -> None:
    """What an event does to the draft and to the branches."""
    match event:
        case StepDone():
            step_done(turn, event)
        case GoesOn():
            goes_on(turn, event)
        case _:
            HANDLERS[event.kind](turn, event)


def _culprit(driver: Driver, size_limit: int) -> Branch:
    """The branch whose frames cannot be stored; when only their sum cannot (or what all share), the one that ran last."""
    table = driver.branches.table
    for branch in table.values():
        try:
            frames.dump(branch.coroutine, size_limit=size_limit)
        except (CannotSuspend, FrameTooLarge):
            return branch
    return table.get(driver.ran_last) or table[max(table)]


__all__ = ["Engine", "EventRefused", "Outcome", "sentence"]
