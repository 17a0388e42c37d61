# ruff: noqa: N803, N806 - S and T are states, N a node, as is usual for transition systems
"""The broker: one operation is one atomic step. An operation is a tuple, so that it can stay on the wire (`State.late`)."""

from __future__ import annotations

from typing import Any

from .rules import Config
from .states import CTL, MAIL, OUTSIDE, WAKE, Msg, Out, State, put

STREAM_OF = {
    "mail": CTL,  # between actors: `send`
    "start": CTL,
    "cancel": CTL,
    "terminate": CTL,
    "refused": CTL,
    "done": CTL,
    "childdone": WAKE,
    "seal": WAKE,
    "timer": WAKE,
    "nudge": WAKE,
}


def append(
    S: State, stream: int, actor: int, kind: str, ch: Any, src: int, op: int, run: int = 0, arg: Any = None
) -> State:
    m = Msg((stream, S.nseq[stream]), actor, kind, ch, src, op, run, arg)
    return S._replace(
        streams=put(S.streams, stream, (*S.streams[stream], m)), nseq=put(S.nseq, stream, S.nseq[stream] + 1)
    )


def from_client(S: State, kind: str, actor: int, ch: Any, number: int) -> State:
    return append(S, MAIL if kind == "mail" else CTL, actor, kind, ch, OUTSIDE, number)


def fire(S: State, timer: tuple[int, int, int]) -> State:
    a, op, run = timer
    return append(S._replace(sched=S.sched - {timer}), WAKE, a, "timer", None, a, op, run, op)


def publish(S: State, a: int, e: Out) -> State:
    """What an outbox entry (or an answer to an event) brings about."""
    if e.kind == "arm":
        return S._replace(sched=S.sched | {(a, e.arg, e.run)})
    if e.kind == "disarm":
        return S._replace(sched=frozenset(t for t in S.sched if t[:2] != (a, e.arg)))
    if e.kind == "task":
        return S._replace(tasks=(*S.tasks, (a, e.run, e.arg, e.ch)))
    run, arg = e.run, e.arg
    if e.kind in ("childdone", "refused"):
        arg, run = e.arg  # the operation and run of the parent that spawned
    return append(S, STREAM_OF[e.kind], e.target, e.kind, e.ch, a, e.op, run, arg)


def apply(S: State, cfg: Config, op: tuple) -> tuple[State, bool]:
    """The state after an operation, and whether the broker accepted it."""
    return _APPLY[op[0]](S, cfg, *op[1:])


def _put(S: State, cfg: Config, a: int, expect: int, new: Any) -> tuple[State, bool]:
    cur = S.recs[a]
    if cur.rev != expect and cfg.rules["cas"]:
        return S, cur == new  # an unknown outcome is settled by reading: our own commit is there
    if cfg.rules["judge_stale_put"]:
        if new.epoch < cur.epoch:
            S = S._replace(bad=f"P3 a put of epoch {new.epoch} accepted over epoch {cur.epoch}")
        elif cur.lane and new.lane and new.epoch == cur.epoch and new.lepoch < cur.lepoch:
            S = S._replace(bad=f"P3 a put of lane epoch {new.lepoch} accepted over lane epoch {cur.lepoch}")
    return S._replace(recs=put(S.recs, a, new)), True


def _pub(S: State, cfg: Config, a: int, e: Out) -> tuple[State, bool]:
    return publish(S._replace(published=S.published | {(a, e.op)}), a, e), True


def _answer(S: State, cfg: Config, a: int, e: Out) -> tuple[State, bool]:
    return publish(S, a, e), True


def _done(
    S: State, cfg: Config, a: int, run: int, call: int, how: tuple[int, bool] | None = None
) -> tuple[State, bool]:
    """The outcome of a step; from a worker, of which attempt, and whether it is a result or a failure."""
    return append(S, CTL, a, "done", how, a, call, run, call), True


def _ack(S: State, cfg: Config, origin: tuple, epoch: int) -> tuple[State, bool]:
    s = origin[0]
    if S.cons[s][0] != epoch and cfg.rules["attach"] == "recreate":
        return S, False
    return S._replace(streams=put(S.streams, s, tuple(m for m in S.streams[s] if m.origin != origin))), True


def _hold(S: State, cfg: Config, batch: tuple, epoch: int, expect: int) -> tuple[State, bool]:
    """An atomic batch: its events, then a fence. `expect`: the sequence that comes next, as far as the writer knows."""
    if cfg.rules["fence"] and expect != S.hnext:
        return S, S.fence == (epoch, (batch, expect))  # our own batch is there: its fence says so
    held, seq = S.held, S.hnext
    for m in batch:
        held = (*held, (seq, m))
        seq += 1
    return S._replace(held=held, hnext=seq + 1, fence=(epoch, (batch, expect))), True


def _hdel(S: State, cfg: Config, seq: int) -> tuple[State, bool]:
    return S._replace(held=tuple(h for h in S.held if h[0] != seq)), True


def _dead(S: State, cfg: Config, m: Msg) -> tuple[State, bool]:
    return S._replace(dead=S.dead | {m}), True  # one subject per origin, expected last sequence 0: once


def _again(S: State, cfg: Config, m: Msg, epoch: int) -> tuple[State, bool]:
    """A message comes out of the owner's buffer once more. What it knows to be gone is no event; on a lane it may not know."""
    for i, N in enumerate(S.nodes[:2]):
        if N.epoch == epoch and N.phase == 6:
            stored = any(x.origin == m.origin for x in S.streams[m.origin[0]])
            if stored or S.recs[m.actor].lane:
                nodes = put(S.nodes, i, N._replace(mem=N.mem | {m}))
                return S._replace(nodes=nodes), True
    return S, False


def _task_ack(S: State, cfg: Config, task: tuple) -> tuple[State, bool]:
    tasks = list(S.tasks)
    if task in tasks:
        tasks.remove(task)
    return S._replace(tasks=tuple(tasks)), True


_APPLY = {
    "put": _put,
    "pub": _pub,
    "answer": _answer,
    "done": _done,
    "ack": _ack,
    "hold": _hold,
    "hdel": _hdel,
    "dead": _dead,
    "tack": _task_ack,
    "again": _again,
}
