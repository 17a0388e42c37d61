"""How branches of one actor wait for each other: tasks, groups, time limits, places of a semaphore.

Each function gets the driver and the branch; those in the table also the intention that the branch yielded. What one of those raises is
raised at the await, and what it had begun is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from sojourn.codecs.record import Wait

from . import intentions as i
from .branches import Branch, Task
from .errors import Cancelled
from .scopes import TaskGroup

if TYPE_CHECKING:
    from .drive import Driver

_ALL: Final = frozenset(("all", "outcomes", "ended"))
"""Modes of a wait that the good end of one task ends only if all have ended."""


def fork(driver: Driver, branch: Branch, intention: i.Fork) -> None:
    """All or none: what is wrong with one awaitable is told before any other has begun. One that is there twice
    runs once, as in asyncio."""
    distinct = {id(awaitable): awaitable for awaitable in intention.awaitables}
    driver.room_for(len(distinct))
    coroutines = {known: driver.runnable(awaitable) for known, awaitable in distinct.items()}
    tasks = {known: driver.add_branch(coroutine) for known, coroutine in coroutines.items()}
    waited = tuple(tasks[id(awaitable)] for awaitable in intention.awaitables)
    wait_branches(driver, branch, i.WaitBranches(waited, intention.mode, intention.names))


def wait_branches(driver: Driver, branch: Branch, intention: i.WaitBranches) -> None:
    """For tasks that run already."""
    if branch.task is not None and any(task is branch.task for task in intention.tasks):
        raise RuntimeError("a task cannot await itself")
    driver.begin(branch, intention, "branches")
    _register(driver, branch, intention.tasks)
    evaluate(driver, branch, None)


def _register(driver: Driver, branch: Branch, tasks: Iterable[Task[Any]]) -> None:
    """The branch hears of the end of these tasks, once, and no longer than it lives."""
    table = driver.branches.table
    for task in tasks:
        if not task._ended:
            known = [number for number in task._waiters if number in table and number != branch.number]
            task._waiters = [*known, branch.number]
        else:
            task._waiters = []  # it is asked how it ended


def evaluate(driver: Driver, branch: Branch, just: Task[Any] | None) -> None:
    """A task that a branch waits for has ended (or the wait begins): is the wait over?"""
    wait = branch.intention
    if isinstance(wait, i.Map):
        _go_on_with_map(driver, branch, wait)
        return
    if isinstance(wait, i.LeaveGroup):
        _evaluate_group(driver, branch, wait)
        return
    if not isinstance(wait, i.WaitBranches):
        return
    if just is not None and _leaves_others(wait, just) and not branch.must_cancel:
        return
    if just is not None and not any(task is just for task in wait.tasks):
        return  # it was waited for once; this wait is another
    ended = [task for task in wait.tasks if task._ended]
    over = len(ended) == len(wait.tasks)
    if branch.must_cancel:
        if over or not wait.cancel:
            branch.must_cancel = False
            driver.over(branch, driver.cancellation())
        return
    match wait.mode:
        case "one" | "all":
            failed = just if just is not None and just._error is not None else None
            failed = failed or next((task for task in ended if task._error is not None), None)
            if failed is not None and failed._error is not None:
                driver.over(branch, failed._error)
            elif over:
                values = [task._value for task in wait.tasks]
                driver.over(branch, None, values[0] if wait.mode == "one" else values)
        case "outcomes" if over:
            driver.over(branch, None, [task._error or task._value for task in wait.tasks])
        case "ended" if over:
            driver.over(branch, None)
        case "first" if ended or over:
            driver.over(branch, None)
        case "race" if ended:
            _race(driver, branch, wait, ended[0], over)


def _leaves_others(wait: i.WaitBranches, just: Task[Any]) -> bool:
    """Whether a wait for all surely goes on: usually told by two of them, so that the ends of n tasks do not cost n * n looks."""
    return (
        just._error is None
        and wait.mode in _ALL
        and bool(wait.tasks)
        and not (wait.tasks[0]._ended and wait.tasks[-1]._ended)
    )


def _race(driver: Driver, branch: Branch, wait: i.WaitBranches, first: Task[Any], over: bool) -> None:
    winner = wait.winner
    if winner is None:
        winner = wait.tasks.index(first)
        branch.intention = i.WaitBranches(wait.tasks, "race", wait.names, winner)
        for task in wait.tasks:
            if not task._ended:
                driver.cancel_task(task, "another branch of the race ended first")
        over = all(task._ended for task in wait.tasks)
    if over:
        won = wait.tasks[winner]
        driver.over(branch, won._error, (wait.names[winner], won._value))


def map_items(driver: Driver, branch: Branch, intention: i.Map) -> None:
    """For a step's results, one for each item."""
    driver.room_for(1)
    driver.begin(branch, intention, "branches")
    _go_on_with_map(driver, branch, intention)


def _go_on_with_map(driver: Driver, branch: Branch, intention: i.Map) -> None:
    """Begin what there is room for; end the wait when all have ended, or those that ran when one failed."""
    run = intention.run
    run.collect()
    if run.failed is not None or branch.must_cancel:
        run.calls.clear()
        for _, task in tuple(run.running):
            driver.cancel_task(task, "another item of the map failed")
    room = driver.draft.limits.branches - len(driver.branches.table)
    for _ in range(min(run.limit - len(run.running), room, len(run.calls))):
        number, call = run.calls.popleft()
        task = driver.add_branch(driver.runnable(call))
        task._waiters = [branch.number]
        run.running.append((number, task))
    if run.running:
        return
    if branch.must_cancel:
        branch.must_cancel = False
        driver.over(branch, driver.cancellation())
    elif run.calls:  # other branches have taken all the room since
        driver.over(branch, driver.no_room(1))
    else:
        driver.over(branch, run.failed, run.results)


def group_lost(driver: Driver, group: TaskGroup, error: BaseException | None) -> None:
    """A task of a group ended; a failure cancels the others and the block."""
    if error is None or isinstance(error, Cancelled):
        return
    group.errors.append(error)
    if group.aborting:
        return
    _abort(driver, group, "another task of the group failed")
    owner = driver.branches.table.get(group.owner) if group.owner is not None else None
    if owner is not None and not (
        isinstance(owner.intention, i.LeaveGroup) and owner.intention.group is group
    ):
        group.interrupted = True
        driver.cancel(owner, Cancelled("a task of the group failed"))


def _abort(driver: Driver, group: TaskGroup, reason: str) -> None:
    group.aborting = True
    for task in list(group.tasks):
        if not task._ended:
            driver.cancel_task(task, reason)


def leave_group(driver: Driver, branch: Branch, intention: i.LeaveGroup) -> None:
    """For every task of a group, at the end of its block."""
    group = intention.group
    branch.intention, branch.op = intention, driver.draft.take_op()
    driver.draft.wait(Wait(branch=branch.number, op=branch.op, kind="branches"))
    _register(driver, branch, group.tasks)
    if intention.error is not None and not group.aborting:
        _abort(driver, group, "the block of the group failed")
    _evaluate_group(driver, branch, intention)


def _evaluate_group(driver: Driver, branch: Branch, intention: i.LeaveGroup) -> None:
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
        driver.over(branch, BaseExceptionGroup("unhandled errors in a TaskGroup", errors))
    elif was_cancelled:
        driver.over(branch, driver.cancellation())
    else:
        driver.over(branch, None, group.interrupted)


def enter_timeout(driver: Driver, branch: Branch, intention: i.EnterTimeout) -> None:
    """A block with a time limit begins."""
    scope = intention.scope
    if scope.op:
        raise RuntimeError("this timeout was entered before; make a new one for each block")
    op = driver.draft.take_op()
    if scope.seconds is not None:
        until = driver.draft.now + scope.seconds
        driver.draft.wait(Wait(branch=branch.number, op=op, kind="timeout", timer=op, until=until))
    scope.op = op
    scope._cancels = branch.cancels
    branch.scopes.append(scope)
    driver.ready.appendleft((branch, scope, None))


def leave_timeout(driver: Driver, branch: Branch, intention: i.LeaveTimeout) -> None:
    """Such a block ends: whether its limit was what ended it."""
    scope = intention.scope
    branch.scopes = [other for other in branch.scopes if other is not scope]
    driver.draft.settle(scope.op)
    if scope.fired:
        branch.cancels = max(0, branch.cancels - 1)
        branch.must_cancel = branch.must_cancel and branch.cancels > 0
    late = scope.fired and intention.cancelled and branch.cancels <= scope._cancels
    driver.ready.appendleft((branch, None, TimeoutError()) if late else (branch, False, None))


def park(driver: Driver, branch: Branch, intention: i.Park) -> None:
    """For a semaphore's place."""
    driver.begin(branch, intention, "branches")


INSIDE: Final[dict[type[i.Intention], Callable[[Driver, Branch, Any], None]]] = {
    i.Fork: fork,
    i.WaitBranches: wait_branches,
    i.Map: map_items,
    i.LeaveGroup: leave_group,
    i.EnterTimeout: enter_timeout,
    i.LeaveTimeout: leave_timeout,
    i.Park: park,
}
"""How each of these intentions begins its wait."""
