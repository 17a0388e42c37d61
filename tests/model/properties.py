# ruff: noqa: N803 - S and T are states, N a node, as is usual for transition systems
"""What must hold: in every state (`check_state`), and where nothing can happen any more (`check_end`). "" or what is broken.

P1 mail is consumed once or dead-lettered, never both, never neither; P2 an outbox entry has effect once, a call runs at most once
more than nodes died; P3 no put of an epoch is accepted over a higher one; P4 everything ends: every actor sealed, streams, HELD,
schedules and tasks empty; P5 order per sender and channel; P6 pending local work or an unpublished outbox entry implies that the lease
is still stored.
"""

from __future__ import annotations

from .engine import UNCLEAN
from .rules import Config
from .states import INGRESS, OUTSIDE, STREAM_NAMES, State, copies


def check_state(S: State, cfg: Config) -> str:
    if S.bad:
        return S.bad
    left, given = S.bud, cfg.budget
    deaths = (given.crash - left.crash) + (given.stale - left.stale)
    for a, _, call, attempt, times in S.execs:
        # A task may be stored twice by an owner that does not know, or hands over before it knows.
        allowed = 1 + deaths + ((given.late - left.late + given.move - left.move) if attempt else 0)
        if times > allowed:
            return f"P2 operation {call} of actor {a} ran {times} times with {deaths} deaths"
    for a, rec in enumerate(S.recs):
        consumed = set(rec.log)
        if len(consumed) != len(rec.log):
            return f"P1/P2 actor {a} consumed a mail twice: {rec.log}"
        last: dict[tuple, int] = {}
        for src, ch, op in rec.log:
            if last.get((src, ch), -1) > op:
                return f"P5 actor {a} consumed out of order: {rec.log}"
            last[(src, ch)] = op
        for m in S.dead:
            if m.actor == a and m.kind == "mail" and (m.src, m.ch, m.op) in consumed:
                return f"P1 actor {a}: {m.ch} {m.origin} is consumed and dead-lettered"
        owes = rec.st in UNCLEAN or any((a, e.op) not in S.published for e in rec.outbox)
        if owes and (rec.lease is None or not any(copies(S, rec.lease))):
            return f"P6 actor {a} has pending work or an unflushed outbox, and its lease is gone"
    return ""


def check_end(S: State, cfg: Config) -> str:
    if S.ext < len(cfg.scenario.clients):
        return ""
    for a, rec in enumerate(S.recs):
        if rec.st == "N" and cfg.programs[a]:
            return f"P4 actor {a} was never started"
        if rec.st not in "NTS":
            return f"P4 actor {a} is {rec.st} at {rec.pc} and nothing will wake it"
    for s in INGRESS:
        if S.streams[s]:
            return f"P4 messages left in {STREAM_NAMES[s]}: {S.streams[s]}"
    if S.held:
        return f"P4 held events left: {S.held}"
    if S.sched:
        return f"P4 a timer is left: {sorted(S.sched)}"
    if S.tasks:
        return f"P4 tasks left: {S.tasks}"
    if any(rec.st == "T" for rec in S.recs):
        return "P4 an ended actor is never sealed"
    for number, (kind, a, ch) in enumerate(cfg.scenario.clients):
        if kind != "mail" or (OUTSIDE, ch, number) in S.recs[a].log:
            continue
        if not any((m.src, m.op) == (OUTSIDE, number) for m in S.dead):
            return f"P1 mail {number} neither consumed nor dead-lettered"
    return ""
