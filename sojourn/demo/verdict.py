"""Judging a run of the demo: what was promised, what the clients were told, and what the journal says happened.

Pure: everything it knows is in its arguments, so that a test can show it a run in which something was lost.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .journal import Execution, by_key

CHILD = "watch-"
"""What the id of an onboarding's child begins with: it is counted beside the onboardings."""
UNRECORDED_SECONDS = 1.0
"""A result that came so shortly before a kill may not have been recorded: its step may run again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a workflow ended, as its client was told: a terminal state, or why there is none. `account` of a receipt."""

    status: str
    account: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """The process that was killed, and when (Unix seconds)."""

    pid: int
    at: float


@dataclass(frozen=True)
class Run:
    """Everything that is known about one run of the demo."""

    expected: Mapping[str, str]
    """Actor id to the state it must end in. Onboardings are named by their user."""
    outcomes: Mapping[str, Outcome]
    executions: Sequence[Execution]
    kill: Kill
    itineraries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Nodes each actor ran on, in order."""
    frame_bytes: Sequence[int] = ()
    takeovers: Sequence[float] = ()
    """Seconds from the kill until each partition of the killed node had another owner."""


@dataclass(frozen=True)
class Verdict:
    """What the table shows; `problems` is empty when nothing was lost and nothing done twice."""

    rows: Sequence[tuple[str, str]]
    problems: Sequence[str]


def judge(run: Run) -> Verdict:
    """Compare what was promised with what happened."""
    repeats, unexplained = _repeats(run)
    return Verdict(_rows(run, repeats), [*_lost(run), *_twice(run), *unexplained])


def _lost(run: Run) -> list[str]:
    """Whoever did not end as promised."""
    missing = Outcome("no answer")
    return [
        f"{actor}: expected {expected}, but it is {run.outcomes.get(actor, missing).status}"
        for actor, expected in run.expected.items()
        if run.outcomes.get(actor, missing).status != expected
    ]


def _twice(run: Run) -> list[str]:
    """Accounts opened for whom there should be none, by two different operations, or not the one in the receipt."""
    problems = []
    opened = [e for e in run.executions if e.step == "provision"]
    keys: dict[str, set[str]] = {}
    accounts: dict[str, set[str]] = {}
    for execution in opened:
        keys.setdefault(execution.user, set()).add(execution.key)
        accounts.setdefault(execution.user, set()).add(execution.account)
    for user, operations in keys.items():
        if run.expected.get(user) != "completed":
            problems.append(f"{user}: provisioned, but it should be {run.expected.get(user, 'nobody')}")
        elif len(operations) > 1:
            problems.append(f"{user}: completed twice, provisioned by {len(operations)} operations")
    for user, outcome in run.outcomes.items():
        if outcome.status == "completed" and outcome.account not in accounts.get(user, ()):
            problems.append(
                f"{user}: its receipt names account {outcome.account or 'none'}, which no step opened"
            )
    closed = {e.user for e in run.executions if e.step == "close_case" and e.ended is not None}
    problems.extend(
        f"{actor}: cancelled, but its cleanup did not run"
        for actor, outcome in run.outcomes.items()
        if actor.startswith(CHILD)
        and outcome.status == "cancelled"
        and actor.removeprefix(CHILD) not in closed
    )
    return problems


def _repeats(run: Run) -> tuple[list[Execution], list[str]]:
    """Executions beyond the first of their call, and those of them that no kill explains."""
    repeats: list[Execution] = []
    unexplained: list[str] = []
    for of_one_call in by_key(run.executions).values():
        for former, again in pairwise(of_one_call):
            repeats.append(again)
            if not (former.pid == run.kill.pid and _may_repeat(former, run.kill)):
                unexplained.append(
                    f"{again.user}: {again.step} ran again although its first run was not cut off by the kill"
                )
    return repeats, unexplained


def _may_repeat(execution: Execution, kill: Kill) -> bool:
    return execution.ended is None or execution.ended > kill.at - UNRECORDED_SECONDS


def _with_children(count: str, children: int) -> str:
    if not children:
        return count
    return f"{count}, with {children} {'child' if children == 1 else 'children'}"


def _rows(run: Run, repeats: Sequence[Execution]) -> list[tuple[str, str]]:
    ended = Counter(one.status for actor, one in run.outcomes.items() if not actor.startswith(CHILD))
    children = Counter(one.status for actor, one in run.outcomes.items() if actor.startswith(CHILD))
    moved = sum(1 for nodes in run.itineraries.values() if len(set(nodes)) > 1)
    sizes = run.frame_bytes
    running = sum(1 for e in run.executions if e.pid == run.kill.pid and e.running_at(run.kill.at))
    rows = [(status, str(ended.pop(status, 0))) for status in ("completed", "rejected", "cancelled")]
    rows += [(status, str(count)) for status, count in sorted(ended.items())]
    rows = [(status, _with_children(count, children.pop(status, 0))) for status, count in rows]
    rows += [(status, _with_children("0", count)) for status, count in sorted(children.items())]
    rows += [
        ("resumed on another node", str(moved)),
        ("step executions", str(len(run.executions))),
        ("of them repeated", f"{len(repeats)} ({running} were running at the kill)"),
        ("frame bytes", f"median {statistics.median(sizes):.0f}, max {max(sizes)}" if sizes else "none seen"),
    ]
    if run.takeovers:
        rows.append(("kill to first takeover", f"{min(run.takeovers):.2f} s"))
        rows.append(
            ("kill to last takeover", f"{max(run.takeovers):.2f} s ({len(run.takeovers)} partitions)")
        )
    resumed = [again.began - run.kill.at for again in repeats]
    if resumed:
        rows.append(("kill to cut-off steps running again", f"{min(resumed):.2f} s to {max(resumed):.2f} s"))
    return rows
