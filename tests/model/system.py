# ruff: noqa: N803, N806 - S and T are states, N a node, as is usual for transition systems
"""The whole system: environment, nodes, workers, faults. `successors` yields (label, is it a fault, state)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .broker import apply, fire, from_client
from .nodes import LOCAL, actions, executed, is_stale, reset
from .rules import Config
from .states import HOME, NONE, State, with_node

Step = tuple[str, Any, State]


def successors(S: State, cfg: Config) -> list[tuple[str, bool, State]]:
    """All that may happen next.

    Where only one node is active and nothing is on the wire, a step that only this node can see (attach, load, look, forget) is
    taken first: it commutes with everything but faults, and those are still offered before and after it.
    """
    every = list(_every(S, cfg))
    active = sum(1 for n in S.nodes if n.phase or n.orphan is not None)
    if S.late is None and active <= 1:
        first = [x for x in every if x[1] == LOCAL][:1]
        if not first and cfg.eager:
            first = [x for x in every if "deliver " in x[0]][:1]
        if first:
            every = first + [x for x in every if x[1] == "fault"]
    return [(label, kind == "fault", T) for label, kind, T in every if T != S]


def _every(S: State, cfg: Config) -> Iterator[Step]:
    yield from _environment(S, cfg)
    if cfg.scenario.workers:
        yield from _worker(S, cfg)
    for i in range(len(S.nodes)):
        yield from _node(S, cfg, i)


def _environment(S: State, cfg: Config) -> Iterator[Step]:
    clients = cfg.scenario.clients
    if S.ext < len(clients):
        kind, actor, ch = clients[S.ext]
        T = from_client(S, kind, actor, ch, S.ext)._replace(ext=S.ext + 1)
        yield f"client: {kind} {ch or ''}", "step", T
    for timer in sorted(S.sched):
        yield f"timer {timer[0]}/{timer[1]} fires", "step", fire(S, timer)
    if S.late is not None:
        T, _ = apply(S._replace(late=None), cfg, S.late)
        yield f"late {S.late[0]} arrives", "step", T
        yield f"late {S.late[0]} is lost", "step", S._replace(late=None)


def _worker(S: State, cfg: Config) -> Iterator[Step]:
    """One worker of queued steps: read, run, store the outcome, acknowledge the task."""
    bud = S.bud
    if S.worker is None:
        for task in sorted(set(S.tasks)):
            a, run, call, attempt = task
            rec = S.recs[a]
            pending = rec.st == "Q" and (rec.run, rec.call, rec.attempt) == (run, call, attempt)
            if pending or not cfg.rules["worker_reads"]:
                for good in (True, False) if attempt == 1 else (True,):
                    T = executed(S, task)._replace(worker=(task, 1, good))
                    if not pending:
                        T = T._replace(bad=f"P2 the queued step {task} runs although its operation is over")
                    yield f"worker runs {task}" + ("" if good else " and fails"), "step", T
            else:
                yield f"worker acks {task} unrun", "step", apply(S, cfg, ("tack", task))[0]
        return
    task, phase, good = S.worker
    op = ("done", *task[:3], (task[3], good)) if phase == 1 else ("tack", task)
    after: Any = (task, 2, good) if phase == 1 else None
    label = f"worker {'stores the outcome of' if phase == 1 else 'acks'} {task}"
    yield label, "step", apply(S, cfg, op)[0]._replace(worker=after)
    if bud.late and S.late is None:
        yield (
            f"{label} (sent, stays on the wire)",
            "fault",
            S._replace(late=op, bud=bud._replace(late=bud.late - 1)),
        )
    if bud.crash:
        yield "worker crashes", "fault", S._replace(worker=None, bud=bud._replace(crash=bud.crash - 1))


def _node(S: State, cfg: Config, i: int) -> Iterator[Step]:
    N = S.nodes[i]
    name = "owner" if N.role == HOME else "lane node"
    who = f"{name} e{N.epoch} " if N.phase else f"idle {name} "
    if N.phase == 0:
        yield from _take(S, i, who)
    stale = is_stale(S, i)
    if stale:
        yield who + "notices that its lease ended", "step", reset(S, cfg, i)
    for label, op, f in actions(S, cfg, i):
        if op is None or op == LOCAL:
            yield who + label, op or "step", f(S)
            continue
        T, ok = apply(S, cfg, op)
        yield who + label + ("" if ok else " (refused)"), "step", f(T, ok)
        if S.bud.late and S.late is None:
            yield who + label + " (sent, stays on the wire)", "fault", _late(S, cfg, i, op)
    if N.orphan is not None and not N.orphan[3]:
        a, run, call, _ = N.orphan
        T, _ = apply(S, cfg, ("done", a, run, call))
        yield (
            who + "stores the outcome of a moved call",
            "step",
            with_node(T, i, N._replace(orphan=(a, run, call, True))),
        )
    if cfg.scenario.lanes and N.role == HOME and N.phase == 6 and S.bud.late and S.late is None:
        for m in sorted(N.mem):
            yield (
                who + f"has {m.origin} in its buffer a second time",
                "fault",
                S._replace(late=("again", m, N.epoch), bud=S.bud._replace(late=S.bud.late - 1)),
            )
    yield from _faults(S, cfg, i, who, stale)


def _take(S: State, i: int, who: str) -> Iterator[Step]:
    N = S.nodes[i]
    if N.role == HOME and S.ended:
        epoch = S.owner[1] + 1
        T = S._replace(owner=(i, epoch), ended=False)
        yield (
            who + f"takes the partition, epoch {epoch}",
            "step",
            with_node(T, i, N._replace(phase=1, epoch=epoch)),
        )
    elif N.role != HOME and S.lane_ended and any(rec.lane for rec in S.recs):
        epoch = S.lane_owner[1] + 1
        T = S._replace(lane_owner=(i, epoch), lane_ended=False)
        yield (
            who + f"takes the lane, epoch {epoch}",
            "step",
            with_node(T, i, N._replace(phase=4, epoch=epoch)),
        )


def _late(S: State, cfg: Config, i: int, op: tuple) -> State:
    """The operation stays on the wire; its sender knows nothing, and will try again."""
    T, N = S._replace(late=op, bud=S.bud._replace(late=S.bud.late - 1)), S.nodes[i]
    if op[0] == "hold":
        if cfg.rules["move_settled"]:
            T = with_node(T, i, N._replace(pend=(op[1], op[3])))
    elif op[0] == "ack":
        T = with_node(T, i, N._replace(sent=N.sent | {op[1]}))
    return T


def _ended(S: State, i: int) -> State:
    """Its lease is over, or what it owned is free."""
    if S.nodes[i].role == HOME:
        return S._replace(ended=True) if S.owner == (i, S.nodes[i].epoch) else S
    return S._replace(lane_ended=True) if S.lane_owner == (i, S.nodes[i].epoch) else S


def _faults(S: State, cfg: Config, i: int, who: str, stale: bool) -> Iterator[Step]:
    N, bud = S.nodes[i], S.bud
    serving = N.phase == 6
    if bud.move and serving and not stale and N.pend is None and _may_release(cfg, N, i):
        T = _ended(S._replace(bud=bud._replace(move=bud.move - 1)), i)
        orphan = None
        for a, rec in enumerate(N.cache):
            if rec is not None and rec.st == "L" and N.ran[a] == (rec.run, rec.call):
                orphan = (a, rec.run, rec.call, False)
        yield who + "releases what it owns", "fault", reset(T, cfg, i, orphan, same_life=True)
    if bud.crash and (N.phase or N.orphan):
        T = _ended(S._replace(bud=bud._replace(crash=bud.crash - 1)), i)
        yield who + "crashes", "fault", reset(T, cfg, i)
    if bud.stale and N.phase and not stale:
        yield (
            who + "loses its lease unaware",
            "fault",
            _ended(S._replace(bud=bud._replace(stale=bud.stale - 1)), i),
        )
    if bud.cut and serving:
        T = S._replace(bud=bud._replace(cut=bud.cut - 1))
        if not cfg.rules["reattach"]:
            for m in sorted(N.mem):
                yield (
                    who + f"loses {m.origin} on the wire",
                    "fault",
                    with_node(T, i, N._replace(mem=N.mem - {m})),
                )
        elif stale:
            yield who + "loses its connection, and what it owned", "fault", reset(T, cfg, i)
        else:
            epoch = N.epoch + 1
            blank = N._replace(
                phase=1 if N.role == HOME else 4,
                epoch=epoch,
                mem=NONE,
                held=NONE,
                gone=NONE,
                answered=NONE,
                pend=None,
                looked=(0,) * cfg.actors,
            )
            T = T._replace(owner=(i, epoch)) if N.role == HOME else T._replace(lane_owner=(i, epoch))
            yield who + "loses its connection", "fault", with_node(T, i, blank)


def _may_release(cfg: Config, N: Any, i: int) -> bool:
    """Each pending call really runs."""
    if not cfg.rules["release_running"]:
        return True
    return all(
        rec is None or rec.st != "L" or rec.runner != i + 1 or N.ran[a] == (rec.run, rec.call)
        for a, rec in enumerate(N.cache)
    )
