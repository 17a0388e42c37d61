"""Driving the branches of one actor within one turn: an event loop in miniature, with intentions in place of futures.

A branch runs until it yields an intention. Intentions that concern other actors, steps or time become waits in the
draft; those that
concern branches of the same actor are answered here, at once or when another branch ends. Branches run one at a time
in the order in which
they became ready, so a workflow is single-threaded and its order is reproducible within a turn.

Cancelling follows asyncio: `Cancelled` is raised at the await, once; a branch that waits for others cancels them
first and is cancelled when
they have ended; one that is not suspended gets it at its next await, one that has not begun never runs. A message
that was taken from a channel is
never lost this way.

What user code may do wrong here it is told at its await, and whatever the handler had begun is taken back. Branches
that wait for each other and nothing
else would wait for ever, since no event ends such waits: the one that waited last is told (`Deadlock`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from sojourn.broker.subjects import actor_id
from sojourn.codecs import frames
from sojourn.codecs.errors import PayloadError, PayloadTooLarge
from sojourn.codecs.record import Child as ChildRecord
from sojourn.codecs.record import OutboxEntry, Outcome, PendingCall, SourceLine, Wait

from . import intentions as i
from .branches import Branch, Branches, Task, driveable, is_fresh
from .current import CurrentActor
from .draft import Draft
from .errors import (
    AlreadyStarted,
    Cancelled,
    Deadlock,
    LimitExceeded,
    NoSuchActor,
    NoSuchChannel,
    NoSuchWorkflow,
    UnknownIntention,
)
from .events import RunStep
from .inside import counterpart, entered, name_of_yield
from .outcomes import child_error
from .registry import Registry
from .scopes import TaskGroup
from .workflow import Workflow

T = TypeVar("T")
SWITCHES = 10_000
"""Resumptions of branches in one turn; a workflow that needs more never reaches a durable wait (a busy loop)."""
SWITCH_REFUSALS = 3
"""How often one turn may raise that at awaits: code that swallows it would hold the node's loop for ever."""


class EndlessTurn(Exception):
    """The code goes on switching branches although it was told that this turn is too long."""


class Driver:
    """Runs the ready branches of an actor until all are suspended or ended. One is made for each turn that runs user
    code."""

    def __init__(
        self, branches: Branches, draft: Draft, registry: Registry, workflow: Workflow[..., Any]
    ) -> None:
        self.branches = branches
        self.draft = draft
        self.root: tuple[Any, BaseException | None] | None = None
        """What the workflow function returned or raised, once it has."""
        index = draft.base.index
        self.actor = CurrentActor(index.actor, index.run, index.workflow, draft.facts.deployment, draft.now)
        """What `current.actor` says in this turn."""
        self._registry = registry
        self._workflow = workflow
        self._ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self._current: Branch | None = None
        self.ran_last = 0
        """Number of the branch that ran last."""
        self._switches = 0
        self._refusals = 0
        self._new: set[int] = set()
        """Branches that have not begun; they do so in the turn that made them."""
        self._spreading: set[int] = set()
        """Branches whose cancellation is being passed on: tasks may wait for each other in a circle."""
        self._touched: set[int] = set()

    # feeding

    def start(self, coroutine: Any) -> None:
        """Run the workflow function's coroutine as branch 0."""
        self._ready.append((self.branches.add(coroutine, task=False), None, None))

    def resume(self, branch: Branch, value: Any = None) -> None:
        """End a branch's wait with a value."""
        branch.intention = None
        self._ready.append((branch, value, None))

    def fail(self, branch: Branch, error: BaseException) -> None:
        """End a branch's wait with an exception."""
        branch.intention = None
        self._ready.append((branch, None, error))

    def waiting(self, op: int) -> Branch | None:
        """The branch whose present wait is this operation."""
        for branch in self.branches:
            if branch.op == op and branch.intention is not None:
                return branch
        return None

    def cancel_all(self, error: Cancelled) -> None:
        """Cancel every branch: those the workflow function does not wait for are left when it has ended."""
        for branch in list(self.branches):
            self.cancel(branch, error)

    def cancel_root(self, error: Cancelled) -> None:
        """Cancel the workflow function, and so whatever it waits for."""
        root = self.branches.table.get(0)
        if root is not None:
            self.cancel(root, error)

    def expire(self, op: int, number: int) -> None:
        """A time limit of a branch was reached."""
        branch = self.branches.table.get(number)
        scope = next((scope for scope in branch.scopes if scope.op == op), None) if branch else None
        if branch is not None and scope is not None:
            scope.fired = True
            self.cancel(branch, Cancelled("timeout"))

    def _cancellation(self) -> Cancelled:
        """What a branch gets that could not be cancelled at once: with the reason, if the whole workflow is cancelled."""
        asked = self.draft.cancelling
        return Cancelled(asked.reason, by=asked.by) if asked is not None else Cancelled()

    # running

    def run(self) -> None:
        """Run until every branch is suspended or ended. Raises `EndlessTurn` when that never comes."""
        if not self._ready:
            return
        self.draft.ran = True
        with entered(self):
            while self._ready:
                branch, value, error = self._ready.popleft()
                if self.branches.table.get(branch.number) is branch:
                    self._step(branch, value, error)
                if not self._ready:
                    self._end_deadlock()
        self._current = None
        for number in self._touched:
            self._locate(number)
        self._touched.clear()

    def _step(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        self._current = branch
        self.ran_last = branch.number
        self._switches += 1
        if self._switches > SWITCHES:
            self._switches = 0
            self._refusals += 1
            if self._refusals > SWITCH_REFUSALS:
                raise EndlessTurn(f"{SWITCHES} switches between branches in one turn, again and again")
            error = LimitExceeded(
                "switches",
                value=SWITCHES + 1,
                allowed=SWITCHES,
                where="one turn",
                remedy="the loop never waits for anything",
            )
        context, coroutine = self.branches.context, branch.coroutine
        if branch.number in self._new:
            self._new.remove(branch.number)
            if not is_fresh(coroutine):
                self._ended(branch, None, _awaited_twice(coroutine))
                return
            if branch.must_cancel:
                branch.must_cancel = False
                error = self._cancellation()
        try:
            go_on = coroutine.send if error is None else coroutine.throw
            yielded = context.run(go_on, value if error is None else error)
        except StopIteration as stop:
            self._ended(branch, stop.value, None)
        except (
            BaseException
        ) as raised:  # no code of an actor may end the node: neither by `exit()` nor by Ctrl-C's class
            # Through the base class: the exception's own class may say anything about itself.
            traceback = sys.exc_info()[2]
            self._ended(
                branch, None, BaseException.with_traceback(raised, traceback.tb_next if traceback else None)
            )
        else:
            self._suspended(branch, yielded)

    def _suspended(self, branch: Branch, yielded: Any) -> None:
        """Begin the wait that a branch asked for; what is wrong with it is raised at the await."""
        handler = _HANDLERS.get(type(yielded))
        if handler is None:
            self.fail(branch, self._unknown(branch, yielded))
            return
        if branch.must_cancel and not isinstance(yielded, i.LeaveTimeout | i.LeaveGroup):
            branch.must_cancel = False
            _dispose(yielded)
            self.fail(branch, self._cancellation())
            return
        branch.op = 0
        self._touched.add(branch.number)
        try:
            handler(self, branch, yielded)
        except (
            Exception
        ) as wrong:  # what is forked may have an `__await__` of the user's that raises anything
            if branch.op:
                self.draft.undo(branch.op)
            branch.op = 0
            _dispose(yielded)
            self.fail(branch, wrong)

    def _unknown(self, branch: Branch, yielded: Any) -> UnknownIntention:
        chain = _where(branch.coroutine)
        at = " > ".join(f"{place.function} line {place.line}" for place in chain)
        foreign = name_of_yield(yielded)
        if foreign is not None:
            use = counterpart(foreign)
            return UnknownIntention(foreign, f"{use}" if use else "an intention of Sojourn", at)
        return UnknownIntention(f"a {type(yielded).__qualname__}", where=at)

    def _ended(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        del self.branches.table[branch.number]
        for scope in branch.scopes:
            self.draft.settle(scope.op)
        if branch.number == 0:
            self.root = (value, error)
            return
        task = branch.task
        assert task is not None, "every branch but the first has a task"
        task._ended, task._value, task._error = True, value, error
        if task._group is not None:
            task._group.tasks.remove(task)  # a group that lives long must not make every frame larger
            self._group_lost(task._group, error)
        for number in task._waiters:
            waiter = self.branches.table.get(number)
            if waiter is not None and waiter.intention is not None:
                self._evaluate(waiter, task)
        task._waiters = []

    def _locate(self, number: int) -> None:
        """Store with a branch's wait where in the user's code it stands."""
        branch = self.branches.table.get(number)
        if branch is None or branch.intention is None:
            return
        wait = self.draft.waits.get(branch.op)
        if wait is not None and not wait.stack:
            self.draft.waits[branch.op] = msgspec.structs.replace(wait, stack=_where(branch.coroutine))

    # waits on the world

    def _begin(self, branch: Branch, intention: i.Intention, kind: Any, **facts: Any) -> int:
        op = self.draft.take_op()
        branch.intention, branch.op = intention, op
        self.draft.wait(Wait(branch=branch.number, op=op, kind=kind, **facts))
        return op

    def _timed(
        self, branch: Branch, intention: i.Intention, kind: Any, until: float | None, **facts: Any
    ) -> None:
        op = self.draft.next_op
        timer = op if until is not None else None
        self._begin(branch, intention, kind, timer=timer, until=until, **facts)

    def _sleep(self, branch: Branch, intention: i.Sleep) -> None:
        now = self.draft.now
        until = intention.until if intention.until is not None else now + (intention.seconds or 0.0)
        if until <= now:
            self.resume(branch)
        else:
            self._timed(branch, intention, "sleep", until)

    def _receive(self, branch: Branch, intention: i.Receive) -> None:
        names = tuple(channel.name for channel in intention.channels)
        known = self._workflow.channels
        if known is not None:
            for name in names:
                if name not in known:
                    raise NoSuchChannel(name, known, where=f"workflow {self._workflow.name}")
        until = None if intention.timeout is None else self.draft.now + intention.timeout
        self._timed(branch, intention, "receive", until, channels=names)

    def _call(self, branch: Branch, intention: i.Call) -> None:
        step = self._registry.step(intention.step)
        self._within_payload(intention.args)
        op = self._begin(branch, intention, "call", name=step.name)
        options: dict[str, Any] = {}
        if intention.attempts is not None:
            options["attempts"] = intention.attempts
        if intention.backoff is not None:
            options["backoff"] = intention.backoff
        call = PendingCall(
            op=op,
            step=step.name,
            args=msgspec.Raw(intention.args),
            runner=self.draft.facts.node,
            first_started=self.draft.now,
            timeout=intention.timeout if intention.timeout is not None else step.timeout,
            options=msgspec.Raw(msgspec.json.encode(options)),
        )
        self.draft.add_call(call)
        self.draft.begin(op, "step", step.name)
        self.draft.effects.append(RunStep(call))

    def _spawn(self, branch: Branch, intention: i.Spawn) -> None:
        draft, index = self.draft, self.draft.base.index
        workflow = self._registry.workflow(intention.workflow)
        self._within_payload(intention.args)
        alive = sum(child.status != "ended" for child in draft.children.values())
        if alive >= draft.limits.children:
            raise LimitExceeded("children", value=alive + 1, allowed=draft.limits.children, where=index.actor)
        child_id = intention.id or _child_id(index.actor, index.run, draft.next_op)
        actor_id(child_id)
        if child_id in draft.children or child_id == index.actor:
            raise AlreadyStarted(child_id, workflow=workflow.name, status="a child of this workflow")
        op = self._begin(branch, intention, "spawn", name=child_id)
        draft.set_child(ChildRecord(child_id, op, workflow.name, intention.policy))
        draft.begin(op, "spawn", child_id)
        body = {"workflow": workflow.name, "args": msgspec.Raw(intention.args), "tags": intention.tags}
        draft.send(
            OutboxEntry(n=op, kind="start", target=child_id, body=msgspec.Raw(msgspec.json.encode(body)))
        )

    def _join(self, branch: Branch, intention: i.Join) -> None:
        child = self.draft.children.get(intention.child)
        if child is None:
            raise NoSuchActor(intention.child, hint="it is no child of this workflow")
        if child.status == "ended":
            self.joined(branch, child)
        else:
            self._begin(branch, intention, "join", name=child.id)

    def joined(self, branch: Branch, child: ChildRecord) -> None:
        """Give a branch the outcome of the child it joins."""
        outcome = child.outcome or Outcome("terminated")
        if outcome.kind != "value":
            self.fail(branch, child_error(child))
            return
        try:
            workflow = self._registry.workflow(child.workflow)
            value = workflow.signature.decode_result(bytes(outcome.value))
        except (PayloadError, NoSuchWorkflow) as wrong:  # the child ended under another version of the code
            self.fail(branch, wrong)
        else:
            self.resume(branch, value)

    def _send(self, branch: Branch, intention: i.Send) -> None:
        self._within_payload(intention.payload)
        actor_id(intention.target)
        op = self._begin(branch, intention, "send", name=intention.target)
        entry = OutboxEntry(
            n=op,
            kind="send",
            target=intention.target,
            channel=intention.channel,
            at=self.draft.now + (intention.timeout if intention.timeout is not None else 60.0),
            body=msgspec.Raw(intention.payload),
        )
        self.draft.send(entry)
        self.draft.begin(op, "send", intention.target)

    def _cancel_child(self, branch: Branch, intention: i.CancelChild) -> None:
        child = self.draft.children.get(intention.child)
        if child is None:
            raise NoSuchActor(intention.child, hint="it is no child of this workflow")
        if child.status == "ended":
            self.resume(branch)
            return
        op = self._begin(branch, intention, "cancel-child", name=child.id)
        body = msgspec.json.encode({"reason": intention.reason, "spawn": child.op})
        kind: Any = "terminate" if intention.terminate else "cancel"
        self.draft.send(OutboxEntry(n=op, kind=kind, target=child.id, body=msgspec.Raw(body)))
        self.draft.set_child(msgspec.structs.replace(child, status="cancelling"))

    def _checkpoint(self, branch: Branch, intention: i.Checkpoint) -> None:
        self._begin(branch, intention, "checkpoint")

    def _within_payload(self, payload: bytes) -> None:
        allowed = self.draft.limits.payload_bytes
        if len(payload) > allowed:
            raise PayloadTooLarge(len(payload), allowed)

    # waits on branches of this actor

    def create_task(self, awaitable: Awaitable[T], group: TaskGroup | None = None) -> Task[T]:
        """Run an awaitable as a further branch; it becomes ready behind those that are. Raises `LimitExceeded`,
        `TypeError`."""
        self._room_for(1)
        return self._add_branch(self._runnable(awaitable), group)

    def _room_for(self, more: int) -> None:
        allowed, wanted = self.draft.limits.branches, len(self.branches.table) + more
        if more and wanted > allowed:
            raise LimitExceeded(
                "branches", value=wanted, allowed=allowed, remedy="use children (spawn) or fewer at a time"
            )

    def _runnable(self, awaitable: Awaitable[Any]) -> Any:
        """What runs an awaitable, if nothing else does. Raises `RuntimeError`, `TypeError`."""
        coroutine = driveable(awaitable)
        if not is_fresh(coroutine) or any(other.coroutine is coroutine for other in self.branches):
            raise _awaited_twice(coroutine)
        return coroutine

    def _add_branch(self, coroutine: Any, group: TaskGroup | None = None) -> Task[Any]:
        branch = self.branches.add(coroutine, task=True)
        assert branch.task is not None, "just made with one"
        if group is not None:
            branch.task._group = group
            group.tasks.append(branch.task)
        self._new.add(branch.number)
        self._ready.append((branch, None, None))
        return branch.task

    def _fork(self, branch: Branch, intention: i.Fork) -> None:
        """All or none: what is wrong with one awaitable is told before any other has begun. One that is there twice
        runs once, as in asyncio."""
        distinct = {id(awaitable): awaitable for awaitable in intention.awaitables}
        self._room_for(len(distinct))
        coroutines = {known: self._runnable(awaitable) for known, awaitable in distinct.items()}
        tasks = {known: self._add_branch(coroutine) for known, coroutine in coroutines.items()}
        waited = tuple(tasks[id(awaitable)] for awaitable in intention.awaitables)
        self._wait_branches(branch, i.WaitBranches(waited, intention.mode, intention.names))

    def _wait_branches(self, branch: Branch, intention: i.WaitBranches) -> None:
        if branch.task is not None and any(task is branch.task for task in intention.tasks):
            raise RuntimeError("a task cannot await itself")
        self._begin(branch, intention, "branches")
        self._register(branch, intention.tasks)
        self._evaluate(branch, None)

    def _register(self, branch: Branch, tasks: Iterable[Task[Any]]) -> None:
        """The branch hears of the end of these tasks, once, and no longer than it lives."""
        table = self.branches.table
        for task in tasks:
            if not task._ended:
                known = [number for number in task._waiters if number in table and number != branch.number]
                task._waiters = [*known, branch.number]

    def _evaluate(self, branch: Branch, just: Task[Any] | None) -> None:
        """A task that a branch waits for has ended (or the wait begins): is the wait over?"""
        wait = branch.intention
        if isinstance(wait, i.LeaveGroup):
            self._evaluate_group(branch, wait)
            return
        if not isinstance(wait, i.WaitBranches):
            return
        if just is not None and not any(task is just for task in wait.tasks):
            return  # it was waited for once; this wait is another
        ended = [task for task in wait.tasks if task._ended]
        over = len(ended) == len(wait.tasks)
        if branch.must_cancel:
            if over or not wait.cancel:
                branch.must_cancel = False
                self._over(branch, self._cancellation())
            return
        match wait.mode:
            case "one" | "all":
                failed = just if just is not None and just._error is not None else None
                failed = failed or next((task for task in ended if task._error is not None), None)
                if failed is not None and failed._error is not None:
                    self._over(branch, failed._error)
                elif over:
                    values = [task._value for task in wait.tasks]
                    self._over(branch, None, values[0] if wait.mode == "one" else values)
            case "outcomes" if over:
                self._over(branch, None, [task._error or task._value for task in wait.tasks])
            case "ended" if over:
                self._over(branch, None)
            case "first" if ended or over:
                self._over(branch, None)
            case "race" if ended:
                self._race(branch, wait, ended[0], over)

    def _race(self, branch: Branch, wait: i.WaitBranches, first: Task[Any], over: bool) -> None:
        winner = wait.winner
        if winner is None:
            winner = wait.tasks.index(first)
            branch.intention = i.WaitBranches(wait.tasks, "race", wait.names, winner)
            for task in wait.tasks:
                if not task._ended:
                    self.cancel_task(task, "another branch of the race ended first")
            over = all(task._ended for task in wait.tasks)
        if over:
            won = wait.tasks[winner]
            self._over(branch, won._error, (wait.names[winner], won._value))

    def _over(self, branch: Branch, error: BaseException | None, value: Any = None) -> None:
        self.draft.settle(branch.op)
        if error is None:
            self.resume(branch, value)
        else:
            self.fail(branch, error)

    def enter_group(self, group: TaskGroup) -> None:
        """A branch enters a task group's block."""
        if group.owner is not None:
            raise RuntimeError("this TaskGroup was entered before; make a new one for each block")
        assert self._current is not None, "only called from a running branch"
        group.owner = self._current.number

    def _group_lost(self, group: TaskGroup, error: BaseException | None) -> None:
        """A task of a group ended; a failure cancels the others and the block."""
        if error is None or isinstance(error, Cancelled):
            return
        group.errors.append(error)
        if group.aborting:
            return
        self._abort(group, "another task of the group failed")
        owner = self.branches.table.get(group.owner) if group.owner is not None else None
        if owner is not None and not (
            isinstance(owner.intention, i.LeaveGroup) and owner.intention.group is group
        ):
            group.interrupted = True
            self.cancel(owner, Cancelled("a task of the group failed"))

    def _abort(self, group: TaskGroup, reason: str) -> None:
        group.aborting = True
        for task in list(group.tasks):
            if not task._ended:
                self.cancel_task(task, reason)

    def _leave_group(self, branch: Branch, intention: i.LeaveGroup) -> None:
        group = intention.group
        branch.intention, branch.op = intention, self.draft.take_op()
        self.draft.wait(Wait(branch=branch.number, op=branch.op, kind="branches"))
        self._register(branch, group.tasks)
        if intention.error is not None and not group.aborting:
            self._abort(group, "the block of the group failed")
        self._evaluate_group(branch, intention)

    def _evaluate_group(self, branch: Branch, intention: i.LeaveGroup) -> None:
        group, body = intention.group, intention.error
        if not all(task._ended for task in group.tasks):
            return
        was_cancelled = branch.must_cancel
        branch.must_cancel = False
        group.owner = group.LEFT
        if isinstance(body, Cancelled) and group.interrupted:
            branch.cancels = max(0, branch.cancels - 1)
            body = None
        errors = [*group.errors, *([body] if body is not None and not isinstance(body, Cancelled) else [])]
        if errors:
            self._over(branch, BaseExceptionGroup("unhandled errors in a TaskGroup", errors))
        elif was_cancelled:
            self._over(branch, self._cancellation())
        else:
            self._over(branch, None, group.interrupted)

    def _enter_timeout(self, branch: Branch, intention: i.EnterTimeout) -> None:
        scope = intention.scope
        if scope.op:
            raise RuntimeError("this timeout was entered before; make a new one for each block")
        op = self.draft.take_op()
        if scope.seconds is not None:
            until = self.draft.now + scope.seconds
            self.draft.wait(Wait(branch=branch.number, op=op, kind="timeout", timer=op, until=until))
        scope.op = op
        scope._cancels = branch.cancels
        branch.scopes.append(scope)
        self._ready.appendleft((branch, scope, None))

    def _leave_timeout(self, branch: Branch, intention: i.LeaveTimeout) -> None:
        scope = intention.scope
        branch.scopes = [other for other in branch.scopes if other is not scope]
        self.draft.settle(scope.op)
        if scope.fired:
            branch.cancels = max(0, branch.cancels - 1)
            branch.must_cancel = branch.must_cancel and branch.cancels > 0
        late = scope.fired and intention.cancelled and branch.cancels <= scope._cancels
        self._ready.appendleft((branch, None, TimeoutError()) if late else (branch, False, None))

    def _park(self, branch: Branch, intention: i.Park) -> None:
        self._begin(branch, intention, "branches")

    def wake(self, park: i.Park) -> None:
        """Give a waiter of a semaphore its place."""
        for branch in self.branches:
            if branch.intention is park:
                self._over(branch, None, True)
                return
        park.semaphore.release()

    # cancelling

    def cancel_task(self, task: Task[Any], reason: str) -> bool:
        """Cancel the branch of a task; False when it has ended."""
        branch = self.branches.table.get(task.branch)
        if task._ended or branch is None:
            return False
        self.cancel(branch, Cancelled(reason))
        return True

    def cancel(self, branch: Branch, error: Cancelled) -> None:
        """Raise `Cancelled` at a branch's await, once what it waits for inside this actor has ended."""
        branch.cancels += 1
        wait = branch.intention
        if wait is None:
            branch.must_cancel = True
            return
        if isinstance(wait, i.LeaveGroup) or (isinstance(wait, i.WaitBranches) and wait.cancel):
            branch.must_cancel = True
            if branch.number in self._spreading:
                return
            self._spreading.add(branch.number)
            tasks = wait.group.tasks if isinstance(wait, i.LeaveGroup) else wait.tasks
            for task in list(tasks):
                self.cancel_task(task, error.reason)
            self._spreading.discard(branch.number)
            return
        if isinstance(wait, i.Park):
            wait.semaphore.withdraw(wait)
        self._over(branch, error)

    def _end_deadlock(self) -> None:
        """When all that is left waits for branches of this actor, no event will ever end any of it: tell one of them."""
        waits = self.draft.waits.values()
        if not self.branches.table or any(wait.kind != "branches" for wait in waits):
            return
        stuck = [branch for branch in self.branches if branch.intention is not None]
        if not stuck:
            return
        branch = max(stuck, key=_in_the_circle)
        if isinstance(branch.intention, i.Park):
            branch.intention.semaphore.withdraw(branch.intention)
        if branch.must_cancel:
            branch.must_cancel = False
            self._over(branch, self._cancellation())
        else:
            places = (_where(other.coroutine) for other in stuck[:8])
            self._over(branch, Deadlock([f"{at[-1].function} line {at[-1].line}" for at in places if at]))

    # what the workflow says of itself

    def set_stage(self, label: object) -> None:
        """See `verbs.stage`."""
        if not isinstance(label, str) or len(label) > 200 or not _is_text(label):
            raise ValueError(
                f"stage(): expected text of at most 200 characters, received {type(label).__name__}"
            )
        self.draft.stage = str(label)

    def add_tags(self, labels: tuple[object, ...]) -> None:
        """See `verbs.tag`."""
        known = dict.fromkeys(self.draft.tags)
        for label in labels:
            if not isinstance(label, str) or not 0 < len(label) <= 200 or not _is_text(label):
                raise ValueError("tag(): expected text of 1 to 200 characters for each label")
            known[str(label)] = None
        self.draft.tags = tuple(known)[:64]

    def publish_state(self, encoded: bytes) -> None:
        """See `verbs.publish_state`."""
        self._within_payload(encoded)
        self.draft.state = msgspec.Raw(encoded)


def _dispose(intention: i.Intention) -> None:
    """Close coroutines that a refused fork will never run, so that they do not warn."""
    if isinstance(intention, i.Fork):
        for awaitable in intention.awaitables:
            close = getattr(awaitable, "close", None)
            if callable(close):
                close()


def _child_id(actor: str, run: str, op: int) -> str:
    """The id of a child that was given none: unique per parent, run and operation, and short enough for a subject."""
    return f"{actor[:96]}-{run[:8]}-{op}"


def _where(coroutine: Any) -> tuple[SourceLine, ...]:
    """Where a branch stands; nothing for one that runs a bare intention (no code of the user's is in it)."""
    if not hasattr(coroutine, "cr_code"):
        return ()
    return frames.where(coroutine)


def _awaited_twice(coroutine: object) -> RuntimeError:
    name = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
    return RuntimeError(
        f"{name} is awaited elsewhere, or was before; call the function again for another run"
    )


def _is_text(label: str) -> bool:
    """Whether it has UTF-8: lone surrogates have none, and could not be stored."""
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_the_circle(branch: Branch) -> tuple[bool, bool, int]:
    """How likely a branch stands in a circle of waits itself, and does not only wait for those that do."""
    wait = branch.intention
    return isinstance(wait, i.Park), isinstance(wait, i.WaitBranches), branch.op


_HANDLERS: dict[type[i.Intention], Callable[[Driver, Branch, Any], None]] = {
    i.Sleep: Driver._sleep,
    i.Call: Driver._call,
    i.Receive: Driver._receive,
    i.Spawn: Driver._spawn,
    i.Join: Driver._join,
    i.Send: Driver._send,
    i.CancelChild: Driver._cancel_child,
    i.Checkpoint: Driver._checkpoint,
    i.Fork: Driver._fork,
    i.WaitBranches: Driver._wait_branches,
    i.LeaveGroup: Driver._leave_group,
    i.EnterTimeout: Driver._enter_timeout,
    i.LeaveTimeout: Driver._leave_timeout,
    i.Park: Driver._park,
}
"""How each intention begins its wait."""
