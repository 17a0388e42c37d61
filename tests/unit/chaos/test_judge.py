"""The judge of a chaos run finds what it is shown: evidence in which nothing is wrong, then with one thing wrong each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.evidence import (
    Commit,
    Death,
    Ended,
    Evidence,
    Execution,
    LeaseLife,
    Plain,
    Promise,
    Sent,
    read_journal,
)
from tests.chaos.judge import Excuses, judge, repeated
from tests.chaos.plan import KINDS, draw


def _commit(revision: int, transition: int, **more: Any) -> Commit:
    given: dict[str, Any] = {
        "at": 10.0,
        "actor": "mail1",
        "run": "r",
        "epoch": 3,
        "commit": f"c{transition}",
        "previous": f"c{transition - 1}" if transition > 1 else "",
        "node": "n1-1/lease",
        "status": "suspended",
        "sealed": False,
        "hold": "",
    }
    return Commit(revision, transition=transition, **{**given, **more})


def _ended(workflow: str, status: str, value: Any = None, **more: Any) -> Ended:
    given = {"run": "r", "sealed": True, "hold": "", "reason": "", "parent": "", "wait": ""}
    return Ended(workflow=workflow, status=status, value=value, **{**given, **more})


def _good() -> Evidence:
    """One actor that takes mail, one that is cancelled; a step that ran twice because its node died."""
    mails = [Sent("mail1", "left", "a-left", n, "acked") for n in range(3)]
    taken = Promise("mail1", "mail", "mail", (1,), started="acked", run="r", mails=mails)
    stopped = Promise(
        "cancel2",
        "cancel",
        "cancelled",
        ("cancel2", False),
        started="acked",
        run="r",
        verb="cancel",
        verb_at=50.0,
    )
    value = {"began": "one", "ended": "one", "taken": [["a-left", n] for n in range(3)]}
    return Evidence(
        promises=[taken, stopped],
        executions=[
            Execution("mail1/r/2", "m-a-left-0", 1, 100, "n1-1", 20.0, None),
            Execution("mail1/r/2", "m-a-left-0", 1, 200, "n2-1", 30.0, 30.1),
            Execution("cancel2/r/1", "entered", 1, 200, "n2-1", 40.0, 40.1),
            Execution("cancel2/r/4", "cleanup", 1, 200, "n2-1", 51.0, 51.1),
        ],
        plains=[Plain("cancel2", 200, 50.5)],
        commits=[
            _commit(1, 1),
            _commit(2, 2),
            _commit(5, 3, epoch=4, node="n2-1/lease", status="completed"),
            _commit(6, 4, epoch=4, node="n2-1/lease", status="completed", sealed=True),
        ],
        records={"mail1": _ended("mail", "completed", value), "cancel2": _ended("cancelled", "cancelled")},
        leases=[LeaseLife("n1-1", "l1", 100, 1.0, 26.0), LeaseLife("n2-1", "l2", 200, 1.0, None)],
        deaths=[Death(100, "n1-1", 0.0, 25.0)],
        partition_of={"mail1": 0, "cancel2": 1},
        dead=[("mail1", "left", "the actor has ended", json.dumps({"line": "a-left", "n": -1}).encode())],
    )


def _with_record(evidence: Evidence, actor: str, **changed: Any) -> Evidence:
    records = dict(evidence.records)
    records[actor] = records[actor]._replace(**changed)
    return replace(evidence, records=records)


def _took(*numbers: int) -> Callable[[Evidence], Evidence]:
    value = {"began": "one", "ended": "one", "taken": [["a-left", n] for n in numbers]}
    return lambda evidence: _with_record(evidence, "mail1", value=value)


WRONG: dict[str, tuple[str, str, Callable[[Evidence], Evidence]]] = {
    "a start was lost": (
        "ends",
        "no record of it",
        lambda e: replace(e, records={"mail1": e.records["mail1"]}),
    ),
    "an actor never ended": ("ends", "has not ended", lambda e: _with_record(e, "mail1", status="suspended")),
    "an actor is not sealed": ("ends", "not sealed", lambda e: _with_record(e, "mail1", sealed=False)),
    "an actor failed": (
        "ends",
        "expected to end completed",
        lambda e: _with_record(e, "mail1", status="failed"),
    ),
    "another version's code ran": (
        "ends",
        "began under version",
        lambda e: _with_record(e, "mail1", value={"began": "one", "ended": "two", "taken": []}),
    ),
    "somebody started it a second time": (
        "ends",
        "its record is of run",
        lambda e: _with_record(e, "mail1", run="s"),
    ),
    "mail was lost": ("mail", "acknowledged and never taken", _took(0, 2)),
    "mail was taken twice": ("mail", "2 times", _took(0, 1, 1, 2)),
    "mail was out of order": ("mail", "out of order", _took(1, 0, 2)),
    "mail was invented": ("mail", "which nobody sent", _took(0, 1, 2, 3)),
    "mail was buried": (
        "mail",
        "its receiver was waiting",
        lambda e: replace(e, dead=[("mail1", "left", "x", b'{"line": "a-left", "n": 1}')]),
    ),
    "an effect never happened": (
        "effects",
        "never happened",
        lambda e: replace(e, executions=e.executions[2:]),
    ),
    "an effect ran again though nobody died": (
        "effects",
        "neither died nor lost its lease",
        lambda e: replace(e, deaths=[], leases=e.leases[1:]),
    ),
    "an effect ran as two operations": (
        "effects",
        "2 operations",
        lambda e: replace(
            e, executions=[*e.executions, e.executions[1]._replace(key="mail1/r/9", began=60.0)]
        ),
    ),
    "a cleanup did not run": (
        "cleanups",
        "as 0 operations",
        lambda e: replace(e, executions=e.executions[:-1]),
    ),
    "a cleanup ran too early": (
        "cleanups",
        "before it was asked to end",
        lambda e: replace(e, plains=[Plain("cancel2", 200, 45.0)]),
    ),
    "a cleanup ran for somebody else": (
        "cleanups",
        "nobody had asked",
        lambda e: replace(e, plains=[Plain("mail1", 200, 60.0)]),
    ),
    "a commit was overwritten": (
        "commits",
        "does not follow",
        lambda e: replace(
            e, commits=[*e.commits[:2], _commit(3, 2, commit="other", node="n3-1/l"), *e.commits[2:]]
        ),
    ),
    "an epoch went back": (
        "commits",
        "lower epoch",
        lambda e: replace(e, commits=[*e.commits[:2], e.commits[2]._replace(epoch=2)]),
    ),
    "two nodes committed under one epoch": (
        "commits",
        "which is n1-1/lease's",
        lambda e: replace(e, commits=[e.commits[0], e.commits[1]._replace(node="n9-1/lease")]),
    ),
    "something followed the seal": (
        "commits",
        "after the seal",
        lambda e: replace(
            e, commits=[*e.commits, _commit(9, 5, epoch=4, node="n2-1/lease", status="completed")]
        ),
    ),
    "a message was left": (
        "orphans",
        "1 messages are left",
        lambda e: replace(e, left={"MAIL: Mail of x": 1}),
    ),
    "sojourn check found something": (
        "orphans",
        "sojourn check",
        lambda e: replace(e, check=["mail1: stuck"]),
    ),
}


def test_a_run_in_which_nothing_is_wrong_has_no_findings() -> None:
    assert judge(_good()) == {}
    assert repeated(_good()) == 1


@pytest.mark.parametrize("wrong", WRONG)
def test_the_judge_finds_that(wrong: str) -> None:
    rule, words, change = WRONG[wrong]
    found = judge(change(_good()))
    assert any(words in finding for finding in found.get(rule, ())), found


def test_a_gap_in_what_the_witness_saw_accuses_nobody_but_hides_no_lower_epoch() -> None:
    good = _good()
    gap = replace(good, commits=[good.commits[0], *good.commits[2:]], unseen=[2])
    assert judge(gap) == {}
    lower = replace(gap, commits=[good.commits[0]._replace(epoch=9), *good.commits[2:]])
    assert "commits" in judge(lower)


def test_a_lane_has_epochs_and_owners_of_its_own() -> None:
    good = _good()
    on_lane = [
        _commit(1, 1),
        _commit(2, 2, lane="two"),
        _commit(3, 3, lane="two", lane_epoch=1, node="n3-1/l"),
        _commit(4, 4, lane_epoch=1, node="n3-1/l"),
        _commit(5, 5),
    ]
    assert "commits" not in judge(replace(good, commits=on_lane))
    other = [*on_lane[:3], on_lane[3]._replace(node="n4-1/l")]
    assert "commits" in judge(replace(good, commits=other))


def test_a_task_may_run_again_where_a_worker_died_or_a_server_ended() -> None:
    former, again = (
        Execution("a/r/1", "q0", 1, pid, node, began, began + 0.1)
        for pid, node, began in ((1, "w1-1", 10.0), (2, "w2-1", 20.0))
    )
    nothing = replace(_good(), executions=(former, again), deaths=(), workers=frozenset(("w1-1", "w2-1")))

    assert not Excuses(nothing).may_repeat(former, again)
    assert Excuses(replace(nothing, server_ends=(15.0,))).may_repeat(former, again)
    assert not Excuses(replace(nothing, server_ends=(25.0,))).may_repeat(former, again)
    assert not Excuses(replace(nothing, server_ends=(15.0,), workers=frozenset())).may_repeat(former, again)
    died = (Death(1, "w1-1", 5.0, 15.0),)
    assert Excuses(replace(nothing, deaths=died)).may_repeat(former, again)


def test_the_same_seed_draws_the_same_plan() -> None:
    plans = [draw(7, seconds=600, nodes=4, servers=3) for _ in range(2)]
    assert plans[0] == plans[1]
    assert {fault.kind for fault in plans[0]} == set(KINDS)
    assert draw(8, seconds=600, nodes=4, servers=3) != plans[0]


def test_no_plan_disturbs_all_nodes_at_a_time_or_outlasts_the_run() -> None:
    for seed in range(50):
        plan = draw(seed, seconds=300, nodes=4, servers=3)
        for fault in plan:
            assert fault.at + fault.lasts < 300
            meanwhile = {
                other.target
                for other in plan
                if KINDS[other.kind].on == "node" and other.at <= fault.at < other.at + other.lasts
            }
            assert len(meanwhile) < 4


def test_a_journal_pairs_each_begin_with_its_end(tmp_path: Any) -> None:
    def line(what: str, pid: int, at: float) -> str:
        entry = {"what": what, "key": "a/r/1", "name": "s", "attempt": 1, "pid": pid, "node": "n", "at": at}
        return json.dumps(entry) + "\n"

    journal = tmp_path / "journal"
    journal.write_text(line("begin", 1, 1.0) + line("begin", 2, 2.0) + line("end", 2, 3.0))
    executions, _ = read_journal(journal)
    assert [(e.pid, e.ended) for e in executions] == [(1, None), (2, 3.0)]
