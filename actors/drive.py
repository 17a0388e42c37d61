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
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import msgspec
from sojourn.codecs import frames
from sojourn.codecs.errors import PayloadTooLarge
from sojourn.codecs.record import SourceLine, Wait
from sojourn.codecs.traceback_text import raised_at

from . import intentions as i
from .branch_waits import INSIDE, evaluate, group_lost
from .branches import Branch, Branches, Task, driveable, is_fresh
from .current import CurrentActor
from .draft import Draft
from .dropped_generators import CloseDropped, is_cleanup
from .errors import Cancelled, Deadlock, LimitExceeded, UnknownIntention
from .events import Warn
from .inside import counterpart, entered, name_of_yield
from .outside_waits import OUTSIDE
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
        self.identity = f"{index.actor}/{index.run}"
        """Of the actor, among all that run in this process."""
        self.close_dropped = CloseDropped(self.identity)
        self.actor = CurrentActor(index.actor, index.run, index.workflow, draft.facts.deployment, draft.now)
        """What `current.actor` says in this turn."""
        self.registry = registry
        self.workflow = workflow
        self.ready: deque[tuple[Branch, Any, BaseException | None]] = deque()
        self.current: Branch | None = None
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
        self.ready.append((self.branches.add(coroutine, task=False), None, None))

    def resume(self, branch: Branch, value: Any = None) -> None:
        """End a branch's wait with a value."""
        branch.intention = None
        self.ready.append((branch, value, None))

    def fail(self, branch: Branch, error: BaseException) -> None:
        """End a branch's wait with an exception."""
        branch.intention = None
        self.ready.append((branch, None, error))

    def waiting(self, op: int) -> Branch | None:
        """The branch whose present wait is this operation."""
        for branch in self.branches:
            if branch.op == op and branch.intention is not None:
                return branch
        return None

    def cancel_all(self, error: Cancelled) -> None:
        """Cancel every branch: those the workflow function does not wait for are left when it has ended."""
        for branch in list(self.branches):
            if not is_cleanup(branch.coroutine):
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

    def cancellation(self) -> Cancelled:
        """What a branch gets that could not be cancelled at once: with the reason, if the whole workflow is cancelled."""
        asked = self.draft.cancelling
        return Cancelled(asked.reason, by=asked.by) if asked is not None else Cancelled()

    # running

    def run(self) -> None:
        """Run until every branch is suspended or ended. Raises `EndlessTurn` when that never comes."""
        if not self.ready:
            return
        self.draft.ran = True
        with entered(self, self.close_dropped):
            while self.ready:
                branch, value, error = self.ready.popleft()
                if self.branches.table.get(branch.number) is branch:
                    self._step(branch, value, error)
                del branch, value, error  # the last reference to a task is to go in here (`Task.__del__`)
                if not self.ready:
                    self._end_deadlock()
        self.current = None
        for number in self._touched:
            self._locate(number)
        self._touched.clear()

    def _step(self, branch: Branch, value: Any, error: BaseException | None) -> None:
        self.current = branch
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
                error = self.cancellation()
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
            below = traceback.tb_next if traceback is not None else None
            del traceback  # it holds this very frame, and so the branch, until the garbage collector comes
            self._ended(branch, None, BaseException.with_traceback(raised, below))
            # From 3.12 the frames of a traceback know their callers: this one must not keep what has ended (`Task.__del__`).
            del branch, coroutine, go_on, below
        else:
            self._suspended(branch, yielded)
        finally:
            del error  # the frames of its traceback know this one

    def _suspended(self, branch: Branch, yielded: Any) -> None:
        """Begin the wait that a branch asked for; what is wrong with it is raised at the await."""
        handler = _HANDLERS.get(type(yielded))
        if handler is None:
            self.fail(branch, self._unknown(branch, yielded))
            return
        if branch.must_cancel and not isinstance(yielded, i.LeaveTimeout | i.LeaveGroup):
            branch.must_cancel = False
            _dispose(yielded)
            self.fail(branch, self.cancellation())
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
        in_group = task._group
        if task._group is not None:
            task._group.tasks.remove(task)  # a group that lives long must not make every frame larger
            group_lost(self, task._group, error)
        waiters, task._waiters = task._waiters, []
        if error is not None and not waiters and in_group is None and not isinstance(error, Cancelled):
            task._waiters = [self.identity]
        for number in waiters:
            waiter = self.branches.table.get(number)
            if waiter is not None and waiter.intention is not None:
                evaluate(self, waiter, task)
        self.current = None  # so that nothing here keeps a task that the code has no name for

    def never_seen(self, task: Task[Any]) -> None:
        """A task has failed, and nothing is left that could ask how it ended: note it, and have it logged."""
        error = task._error
        assert error is not None, "only a task that failed is noted"
        what = f"{type(error).__qualname__} at {raised_at(error)}"
        op = self.draft.take_op()
        self.draft.begin(op, "task", what)
        self.draft.note(op, outcome="error")
        self.draft.effects.append(Warn(f"a task failed and nobody awaited it: {what}"))

    def _locate(self, number: int) -> None:
        """Store with a branch's wait where in the user's code it stands."""
        branch = self.branches.table.get(number)
        if branch is None or branch.intention is None:
            return
        wait = self.draft.waits.get(branch.op)
        if wait is not None and not wait.stack:
            self.draft.waits[branch.op] = msgspec.structs.replace(wait, stack=_where(branch.coroutine))

    # waits on the world

    def begin(self, branch: Branch, intention: i.Intention, kind: Any, **facts: Any) -> int:
        """A branch waits from now on; the number of the operation."""
        op = self.draft.take_op()
        branch.intention, branch.op = intention, op
        self.draft.wait(Wait(branch=branch.number, op=op, kind=kind, **facts))
        return op

    def within_payload(self, payload: bytes) -> None:
        """Raises `PayloadTooLarge`."""
        allowed = self.draft.limits.payload_bytes
        if len(payload) > allowed:
            raise PayloadTooLarge(len(payload), allowed)

    # waits on branches of this actor

    def create_task(self, awaitable: Awaitable[T], group: TaskGroup | None = None) -> Task[T]:
        """Run an awaitable as a further branch; it becomes ready behind those that are. Raises `LimitExceeded`,
        `TypeError`."""
        self.room_for(1)
        return self.add_branch(self.runnable(awaitable), group)

    def room_for(self, more: int) -> None:
        """Raises `LimitExceeded` when so many more branches are not allowed."""
        if more and len(self.branches.table) + more > self.draft.limits.branches:
            raise self.no_room(more)

    def no_room(self, more: int) -> LimitExceeded:
        """The error for so many more branches."""
        allowed, wanted = self.draft.limits.branches, len(self.branches.table) + more
        return LimitExceeded(
            "branches", value=wanted, allowed=allowed, remedy="use children (spawn) or fewer at a time"
        )

    def runnable(self, awaitable: Awaitable[Any]) -> Any:
        """What runs an awaitable, if nothing else does. Raises `RuntimeError`, `TypeError`."""
        coroutine = driveable(awaitable)
        if not is_fresh(coroutine) or any(other.coroutine is coroutine for other in self.branches):
            raise _awaited_twice(coroutine)
        return coroutine

    def add_branch(self, coroutine: Any, group: TaskGroup | None = None) -> Task[Any]:
        """Run a coroutine that nothing else runs as a further branch."""
        branch = self.branches.add(coroutine, task=True)
        assert branch.task is not None, "just made with one"
        if group is not None:
            branch.task._group = group
            group.tasks.append(branch.task)
        self._new.add(branch.number)
        self.ready.append((branch, None, None))
        return branch.task

    def over(self, branch: Branch, error: BaseException | None, value: Any = None) -> None:
        """End a branch's wait for something inside this actor."""
        self.draft.settle(branch.op)
        if error is None:
            self.resume(branch, value)
        else:
            self.fail(branch, error)

    def enter_group(self, group: TaskGroup) -> None:
        """A branch enters a task group's block."""
        if group.owner is not None:
            raise RuntimeError("this TaskGroup was entered before; make a new one for each block")
        assert self.current is not None, "only called from a running branch"
        group.owner = self.current.number

    def wake(self, park: i.Park) -> None:
        """Give a waiter of a semaphore its place."""
        for branch in self.branches:
            if branch.intention is park:
                self.over(branch, None, True)
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
        tasks = _awaited_inside(wait)
        if tasks is not None:
            branch.must_cancel = True
            if branch.number in self._spreading:
                return
            self._spreading.add(branch.number)
            for task in tasks:
                self.cancel_task(task, error.reason)
            self._spreading.discard(branch.number)
            return
        if isinstance(wait, i.Park):
            wait.semaphore.withdraw(wait)
        self.over(branch, error)

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
            self.over(branch, self.cancellation())
        else:
            places = (_where(other.coroutine) for other in stuck[:8])
            self.over(branch, Deadlock([f"{at[-1].function} line {at[-1].line}" for at in places if at]))

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
        self.within_payload(encoded)
        self.draft.state = msgspec.Raw(encoded)


def _dispose(intention: i.Intention) -> None:
    """Close coroutines that a refused fork will never run, so that they do not warn."""
    if isinstance(intention, i.Fork):
        for awaitable in intention.awaitables:
            close = getattr(awaitable, "close", None)
            if callable(close):
                close()


def _where(coroutine: Any) -> tuple[SourceLine, ...]:
    """Where a branch stands; nothing for one that runs a bare intention (no code of the user's is in it)."""
    if not hasattr(coroutine, "cr_code") and not is_cleanup(coroutine):
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


def _awaited_inside(wait: i.Intention) -> list[Task[Any]] | None:
    """The tasks that a cancelled wait cancels first; None for one that ends at once."""
    match wait:
        case i.LeaveGroup():
            return list(wait.group.tasks)
        case i.WaitBranches() if wait.cancel:
            return list(wait.tasks)
        case i.Map():
            return [task for _, task in wait.run.running]
        case _:
            return None


def _in_the_circle(branch: Branch) -> tuple[bool, bool, int]:
    """How likely a branch stands in a circle of waits itself, and does not only wait for those that do."""
    wait = branch.intention
    return isinstance(wait, i.Park), isinstance(wait, i.WaitBranches), branch.op


_HANDLERS: Final = {**OUTSIDE, **INSIDE}
"""How each intention begins its wait."""
