"""The demo's judge finds what it is there to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from sojourn.demo.journal import Execution, executions
from sojourn.demo.verdict import Kill, Outcome, Run, judge

VICTIM, OTHER = 11, 22
KILL = Kill(VICTIM, at=100.0)


def execution(
    step: str, user: str, *, key: str = "", pid: int = OTHER, began: float = 90.0, ended: float | None = 91.0
) -> Execution:
    account = f"acc-{user}" if step == "provision" and ended is not None else ""
    return Execution(step, key or f"{user}/{step}", user, pid, began, ended, account)


def good_run() -> Run:
    return Run(
        expected={"ada": "completed", "bob": "rejected", "cleo": "cancelled", "watch-cleo": "cancelled"},
        outcomes={
            "ada": Outcome("completed", "acc-ada"),
            "bob": Outcome("rejected"),
            "cleo": Outcome("cancelled"),
            "watch-cleo": Outcome("cancelled"),
        },
        executions=(
            execution("run_checks", "ada", pid=VICTIM, began=99.0, ended=None),
            execution("run_checks", "ada", began=102.5, ended=104.5),
            execution("run_checks", "bob"),
            execution("provision", "ada", began=105.0, ended=105.1),
            execution("close_case", "cleo"),
        ),
        kill=KILL,
        itineraries={"ada": ["a", "b"], "bob": ["b", "b"]},
        frame_bytes=[300, 400, 500],
        takeovers=[1.5, 2.5],
    )


def test_a_run_in_which_all_went_well_has_no_problems() -> None:
    verdict = judge(good_run())
    assert verdict.problems == []
    assert dict(verdict.rows) == {
        "completed": "1",
        "rejected": "1",
        "cancelled": "1, with 1 child",
        "resumed on another node": "1",
        "step executions": "5",
        "of them repeated": "1 (1 were running at the kill)",
        "frame bytes": "median 400, max 500",
        "kill to first takeover": "1.50 s",
        "kill to last takeover": "2.50 s (2 partitions)",
        "kill to cut-off steps running again": "2.50 s to 2.50 s",
    }


def _broken_runs() -> Iterator[tuple[str, Run]]:
    good = good_run()
    without_ada = {actor: outcome for actor, outcome in good.outcomes.items() if actor != "ada"}
    yield "ada: expected completed, but it is no answer", replace(good, outcomes=without_ada)
    yield (
        "ada: expected completed, but it is failed",
        replace(good, outcomes={**good.outcomes, "ada": Outcome("failed")}),
    )
    yield (
        "ada: completed twice",
        replace(good, executions=(*good.executions, execution("provision", "ada", key="another operation"))),
    )
    yield (
        "bob: provisioned, but it should be rejected",
        replace(good, executions=(*good.executions, execution("provision", "bob"))),
    )
    yield (
        "which no step opened",
        replace(good, outcomes={**good.outcomes, "ada": Outcome("completed", "acc-invented")}),
    )
    yield (
        "watch-cleo: cancelled, but its cleanup did not run",
        replace(good, executions=tuple(e for e in good.executions if e.step != "close_case")),
    )
    yield (
        "bob: run_checks ran again although its first run was not cut off",
        replace(good, executions=(*good.executions, execution("run_checks", "bob", began=110.0))),
    )


@pytest.mark.parametrize(("problem", "run"), list(_broken_runs()))
def test_each_kind_of_loss_or_doubling_is_found(problem: str, run: Run) -> None:
    assert any(problem in found for found in judge(run).problems), judge(run).problems


def test_a_torn_line_of_the_journal_leaves_its_step_unended() -> None:
    begin = {"event": "begin", "step": "provision", "key": "k", "user": "ada", "pid": 1, "at": 1.0}
    end = {**begin, "event": "end", "at": 2.0, "account": "acc"}
    whole = [orjson.dumps(begin), orjson.dumps(end)]
    assert executions(whole) == [Execution("provision", "k", "ada", 1, 1.0, 2.0, "acc")]
    assert executions([whole[0], whole[1][:20]]) == [Execution("provision", "k", "ada", 1, 1.0)]
