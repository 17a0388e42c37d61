# ruff: noqa: N803, N806 - S and T are states, N a node, as is usual for transition systems
"""What a node may do while it believes to own the partition (*home*) or its lane.

As cluster/: attach, actor_host, turner, mailbox, moves, away.

`actions(S, cfg, i)` yields (label, operation or None or LOCAL, f). With an operation, f(state after it,
accepted) is the next state; without, f(S).
A `LOCAL` step is one that nobody else sees; the search takes it first where that commutes with everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .broker import publish
from .engine import (
    CONSUME,
    CONSUMED,
    DEAD,
    DEAD_REFUSED,
    FINAL,
    ORPHAN,
    REFUSED,
    WAIT,
    Facts,
    decide,
    is_clean,
    lacks,
    needs_code,
    rewritten,
    sealed,
    turn,
)
from .rules import Config
from .states import (
    HOME,
    INGRESS,
    LANE,
    NONE,
    STREAM_NAMES,
    Msg,
    Node,
    Out,
    Rec,
    State,
    copies,
    fresh_node,
    put,
    relabel,
    with_node,
)

LOCAL = "local"
Action = tuple[str, Any, Callable[..., State]]


def is_stale(S: State, i: int) -> bool:
    """Whether the node believes to own what it does not, or not any more."""
    N = S.nodes[i]
    if not N.phase:
        return False
    if N.role == HOME:
        return S.owner != (i, N.epoch) or S.ended
    return S.lane_owner != (i, N.epoch) or S.lane_ended


def lives(S: State, runner: int) -> bool:
    return runner > 0 and not is_stale(S, runner - 1)


def reset(S: State, cfg: Config, i: int, orphan: Any = None, *, same_life: bool = False) -> State:
    """The node forgets everything; under a new lease unless `same_life`."""
    if not same_life:
        S = relabel(S, {i + 1: 0})
    return with_node(S, i, fresh_node(S.nodes[i].role, cfg.actors, orphan))


def forget(N: Node, a: int, *, overtaken: bool = False, cfg: Config | None = None) -> Node:
    """Drop what is hot of one actor."""
    looked = N.looked[a] if overtaken and cfg is not None and not cfg.rules["look_after_overtaken"] else 0
    return N._replace(
        cache=put(N.cache, a, None),
        flushed=put(N.flushed, a, NONE),
        looked=put(N.looked, a, looked),
        judging=put(N.judging, a, 0),
    )


def _all_flushed(N: Node, a: int, rec: Rec) -> Node:
    """The outbox of a record that was loaded is known to be flushed."""
    known = frozenset(e.op for e in rec.outbox)
    return N._replace(flushed=put(N.flushed, a, known), judging=put(N.judging, a, 0))


def actions(S: State, cfg: Config, i: int) -> Iterator[Action]:
    N = S.nodes[i]
    if N.phase in (1, 2, 3, 4):
        yield _attach_step(S, cfg, i)
    elif N.phase == 6:
        if N.role == HOME:
            yield from _deliveries(S, cfg, i)
            if N.pend is not None:
                yield _move(cfg, i, N, *N.pend, "settles a move")
        for a in range(cfg.actors):
            yield from _ActorActions(S, cfg, i, a).all()


# ---- attaching


def _attach_step(S: State, cfg: Config, i: int) -> Action:
    N = S.nodes[i]
    if N.role == LANE:

        def look(S: State) -> State:
            return with_node(S, i, S.nodes[i]._replace(phase=6, held=frozenset(S.held)))

        return "attach: list HELD", LOCAL, look
    if N.phase < 4:

        def cut(S: State) -> State:
            N, s = S.nodes[i], S.nodes[i].phase - 1
            epoch, following = S.cons[s]
            if epoch > N.epoch:  # only consumers of lower epochs are deleted
                return reset(S, cfg, i)
            keep = following if cfg.rules["attach"] == "reset" and epoch else 0
            return with_node(
                S._replace(cons=put(S.cons, s, (N.epoch, keep))), i, N._replace(phase=N.phase + 1)
            )

        return f"attach: cut {STREAM_NAMES[N.phase - 1]}", LOCAL, cut

    def fence(S: State) -> State:
        N = S.nodes[i]
        if S.fence[0] > N.epoch:
            return reset(S, cfg, i)
        if cfg.rules["fence"] and cfg.rules["fence_at_attach"]:
            S = S._replace(fence=(N.epoch, None), hnext=S.hnext + 1)
        return with_node(S, i, N._replace(phase=6, held=frozenset(S.held), expect=S.hnext, pend=None))

    return "attach: fence, list HELD", LOCAL, fence


# ---- deliveries


def _deliveries(S: State, cfg: Config, i: int) -> Iterator[Action]:
    N, shared = S.nodes[i], cfg.rules["attach"] == "reset"
    for s in INGRESS:
        epoch, following = S.cons[s]
        if epoch != N.epoch and not shared:
            continue
        for m in S.streams[s]:
            if m.origin[1] >= following:

                def deliver(S: State, m: Msg = m, s: int = s) -> State:
                    S = S._replace(cons=put(S.cons, s, (S.cons[s][0], m.origin[1] + 1)))
                    return with_node(S, i, S.nodes[i]._replace(mem=S.nodes[i].mem | {m}))

                yield f"deliver {m.kind} {m.origin}", None, deliver
                break
            if m not in N.mem and not (shared and any(m in n.mem for n in S.nodes)):

                def redeliver(S: State, m: Msg = m) -> State:
                    return with_node(S, i, S.nodes[i]._replace(mem=S.nodes[i].mem | {m}))

                yield f"redeliver {m.kind} {m.origin}", None, redeliver


# ---- moving to HELD


def _move(cfg: Config, i: int, N: Node, batch: tuple, expect: int, word: str) -> Action:
    def moved(S: State, ok: bool) -> State:
        N = S.nodes[i]._replace(pend=None)
        if not ok:
            if S.fence[0] > N.epoch:
                return reset(S, cfg, i)
            return with_node(S, i, N._replace(held=frozenset(S.held), expect=S.hnext))
        base = expect if cfg.rules["fence"] else S.hnext - 1 - len(batch)
        refs = frozenset((base + k, m) for k, m in enumerate(batch))
        return with_node(S, i, N._replace(held=N.held | refs, expect=base + len(batch) + 1))

    names = " ".join(str(m.origin) for m in batch)
    return f"{word} {names}", ("hold", batch, N.epoch, expect), moved


# ---- one actor


class _ActorActions:
    def __init__(self, S: State, cfg: Config, i: int, a: int) -> None:
        self.S, self.cfg, self.i, self.a = S, cfg, i, a
        self.N = N = S.nodes[i]
        self.rec: Rec | None = N.cache[a]
        self.mem = sorted(m for m in N.mem if m.actor == a)
        self.held = sorted(h for h in N.held if h[1].actor == a)
        self.moving = frozenset(m.origin for m in N.pend[0]) if N.pend else NONE
        self.role = N.role

    def all(self) -> Iterator[Action]:
        N, a, rules = self.N, self.a, self.cfg.rules
        if self.rec is None:
            yield from self._load()
            return
        rec = self.rec
        if self.N.judging[a]:
            yield self._judge_lease(rec)
            return
        if self.role == LANE:
            yield from self._news(rec)
        if rec.lane != self.role:
            if self.role == HOME:
                yield from self._away(rec)
            return
        yield from self._floors(rec)
        if (
            self.held
            and not N.looked[a]
            and rules["look_after_load"]
            and (rules["lane_look"] or not rec.lepoch)
        ):
            yield f"look at held {a}", LOCAL, self._look
            return
        self._judge(rec)
        yield from self._turns(rec)
        yield from self._own(rec)
        yield from self._flush(rec)
        if rec.st == "T" and self.role == HOME and rec.parent is None and self.flushed_all:
            yield f"seal {a}", *self._commit(rec, sealed(self.cfg, a, rec, self.facts))
        yield from self._endings(rec)
        if self.role == HOME and N.pend is None:
            yield from self._batches(
                [m for m in self.mem if self.verdict.get(m.origin) == WAIT and m.origin not in self.index]
            )

    # loading

    def _load(self) -> Iterator[Action]:
        S, cfg, i, a = self.S, self.cfg, self.i, self.a
        if self.role == LANE:
            if not self.held and not (S.recs[a].lane and any(h[1].actor == a for h in S.held)):
                return
        elif not self.mem and not self.held:
            return

        def load(S: State) -> State:
            N, cur = S.nodes[i], S.recs[a]
            if N.role == LANE:
                if not cur.lane:
                    return with_node(S, i, self._without_held(N))
                N = N._replace(held=N.held | frozenset(h for h in S.held if h[1].actor == a))
                if cfg.rules["epoch_in_record"] and cur.lepoch > N.epoch:
                    return reset(S, cfg, i)
            elif cfg.rules["epoch_in_record"] and cur.epoch > N.epoch:
                return reset(S, cfg, i)
            if cfg.rules["moved_read_again"]:
                index = {h[1].origin for h in N.held if h[1].actor == a}
                N = N._replace(mem=frozenset(m for m in N.mem if m.origin not in index))
            N = N._replace(cache=put(N.cache, a, cur))
            if N.role == LANE and cur.lease is not None and cur.outbox:
                if not any(h[1].origin == cur.lease for h in N.held):
                    N = N._replace(judging=put(N.judging, a, 1))
                return with_node(S, i, N)
            gone = True
            if cur.lease is not None:
                source, held = copies(S, cur.lease)
                gone = not source and (cfg.rules["lease_gone"] == "source" or not held)
            if gone or not cfg.rules["known_flushed"]:
                N = _all_flushed(N, a, cur)
            return with_node(S, i, N)

        yield f"load {a}", LOCAL, load

    def _judge_lease(self, rec: Rec) -> Action:
        """A lane node reads whether the lease's source is stored and then, since it may have been moved meanwhile, whether it is held."""
        cfg, i, a, lease = self.cfg, self.i, self.a, rec.lease
        assert lease is not None

        def read_source(S: State) -> State:
            N = S.nodes[i]
            if copies(S, lease)[0]:
                return with_node(S, i, N._replace(judging=put(N.judging, a, 0)))
            if cfg.rules["lane_lease"] == "copy first":  # it was not among those that were listed at the load
                return with_node(S, i, _all_flushed(N, a, rec))
            return with_node(S, i, N._replace(judging=put(N.judging, a, 2)))

        def list_held(S: State) -> State:
            N = S.nodes[i]
            N = N._replace(held=N.held | frozenset(h for h in S.held if h[1].actor == a))
            if copies(S, lease)[1]:
                return with_node(S, i, N._replace(judging=put(N.judging, a, 0)))
            return with_node(S, i, _all_flushed(N, a, rec))

        if self.N.judging[a] == 1:
            return f"reads the source of the lease of {a}", None, read_source
        return f"lists held {a} for its lease", None, list_held

    def _without_held(self, N: Node) -> Node:
        return N._replace(held=frozenset(h for h in N.held if h[1].actor != self.a))

    def _look(self, S: State) -> State:
        N, a, rec = S.nodes[self.i], self.a, self.rec
        assert rec is not None
        held = frozenset(h for h in N.held if h[1].actor != a or h in S.held)
        taken = any(decide(self.cfg, a, rec, h[1]) == CONSUME for h in N.held - held)
        N = N._replace(held=held, looked=put(N.looked, a, 1))
        if taken and self.cfg.rules["held_gone_reloads"]:
            N = forget(N, a)  # by somebody else: the record that was read is not the newest
        return with_node(S, self.i, N)

    def _forget(self, S: State) -> State:
        return with_node(S, self.i, forget(S.nodes[self.i], self.a))

    def _news(self, rec: Rec) -> Iterator[Action]:
        """A lane node is nudged: it lists the actor's held events, or finds that it no longer knows the record."""
        S, i, a = self.S, self.i, self.a
        if S.recs[a].rev != rec.rev:
            yield f"is nudged, reads a newer record of {a}", None, self._forget
        if any(h[1].actor == a and h not in self.N.held for h in S.held):

            def look(S: State) -> State:
                N = S.nodes[i]
                return with_node(
                    S, i, N._replace(held=N.held | frozenset(h for h in S.held if h[1].actor == a))
                )

            yield f"is nudged, lists held {a}", None, look

    # what is gone

    def _floors(self, rec: Rec) -> Iterator[Action]:
        S, cfg, i, N = self.S, self.cfg, self.i, self.N
        unread = [o for o in rec.cset if o not in N.gone]
        found = [o for o in unread if not copies(S, o)[0]]
        if self.role == LANE and cfg.rules["lane_prune"] == "sources first":
            found = [o for o in found if not copies(S, o)[1]]
        if not found or (self.role == HOME and cfg.rules["fence_after_floor"] and S.fence[0] > N.epoch):
            return  # a later owner has been here: what is gone may have been moved

        def read(S: State) -> State:
            N = S.nodes[i]
            return with_node(S, i, N._replace(gone=N.gone | frozenset(found)))

        yield "reads what is gone", (LOCAL if cfg.eager else None), read

    def _facts(self, rec: Rec) -> Facts:
        N, a, prune = self.N, self.a, self.cfg.rules["prune"]
        index = frozenset(h[1].origin for h in N.held)
        gone = N.gone if prune == "one" else N.gone - index
        if prune == "one":
            gone = gone | frozenset(
                o for o in rec.cset if not any(copies(self.S, o)) or not copies(self.S, o)[0]
            )
        lease_free = (
            self.cfg.rules["lease"] == "first"
            and is_clean(self.cfg, rec, N.flushed[a])
            and not any(m.origin == rec.lease for m in self.mem)
            and rec.lease not in index
        )
        return Facts(
            N.epoch, self.i + 1, N.flushed[a], gone & rec.cset, N.sent, lease_free, self.role, self.S.nseq
        )

    # commits

    def _commit(self, old: Rec, new: Rec, m: Msg | None = None) -> tuple[Any, Callable[..., State]]:
        cfg, i, a = self.cfg, self.i, self.a

        def committed(S: State, ok: bool) -> State:
            N = S.nodes[i]
            if not ok:  # another's commit: what is hot is dropped, the events meet a fresh load
                return with_node(S, i, forget(N, a, overtaken=True, cfg=cfg))
            left = old.cset - new.cset
            N = N._replace(
                cache=put(N.cache, a, new),
                flushed=put(N.flushed, a, NONE),
                sent=N.sent & new.cset,
                gone=N.gone - left,
                mem=frozenset(x for x in N.mem if x.origin not in left or x.actor != a) if left else N.mem,
            )
            if N.role == LANE and not new.lane:  # given back, or ended
                N = forget(self._without_held(N), a)
            elif N.role == HOME and new.lane:
                N = N._replace(looked=put(N.looked, a, 0))
            if m is not None and m.kind == "done" and m.arg != old.call:
                S = S._replace(
                    bad=f"P2 actor {a}: the outcome of operation {m.arg} was taken for operation {old.call}"
                )
            return with_node(S, i, N)

        return ("put", a, old.rev, new), committed

    def _judge(self, rec: Rec) -> None:
        """The verdict on every event that is known and not being moved."""
        cfg, a, N = self.cfg, self.a, self.N
        self.facts = self._facts(rec)
        self.flushed_all = all(e.op in N.flushed[a] for e in rec.outbox)
        self.clean = is_clean(cfg, rec, N.flushed[a])
        if cfg.rules["ack"] == "committed":
            self.clean = True
        index = {h[1].origin for h in self.held}
        events = {m.origin: m for m in self.mem}
        events.update((h[1].origin, h[1]) for h in self.held)
        self.events = {o: m for o, m in events.items() if o not in self.moving}
        self.index = index
        self.verdict = {o: decide(cfg, a, rec, m) for o, m in self.events.items()}
        moving = any(m.actor == a for m in N.pend[0]) if N.pend and cfg.rules["move_settled"] else False
        self.applies = [
            o
            for o, verdict in self.verdict.items()
            if verdict == CONSUME and o not in N.answered and not (moving and self.events[o].kind == "mail")
        ]

    def _turns(self, rec: Rec) -> Iterator[Action]:
        """Per stream the earliest event that applies; of mail the earliest by origin, held or not."""
        cfg, a, first = self.cfg, self.a, {}
        for origin in self.applies:
            m = self.events[origin]
            key = (origin[0], m.kind == "mail")
            if key not in first or origin < first[key].origin:
                first[key] = m
        for key in sorted(first):
            m = first[key]
            if needs_code(cfg, a, rec, m) and lacks(cfg, a, rec.pc, self.role):
                yield self._lane(rec)
                return
            new = turn(cfg, a, rec, m, self.facts)
            yield f"commit {a} <- {m.kind} {m.origin}", *self._commit(rec, new, m)

    def _lane(self, rec: Rec) -> Action:
        new = rewritten(self.cfg, self.a, rec, self.facts, lane=1)
        return f"commit {self.a} lane", *self._commit(rec, new)

    def _own(self, rec: Rec) -> Iterator[Action]:
        """Local steps, and going on."""
        S, cfg, i, a, N = self.S, self.cfg, self.i, self.a, self.N
        if rec.st == "L":
            call = (rec.run, rec.call)
            foreign = rec.runner != i + 1
            if N.ran[a] == call:
                yield f"commit {a} result", *self._commit(rec, turn(cfg, a, rec, None, self.facts))
            elif foreign and lives(S, rec.runner):
                pass
            elif N.orphan is not None and N.orphan[:3] == (a, *call):
                pass  # its outcome is on its way
            elif lacks(cfg, a, rec.pc, self.role):
                yield self._lane(rec)
            elif foreign and cfg.rules["runner"] == "commit":
                new = rewritten(cfg, a, rec, self.facts, runner=i + 1)
                yield f"commit {a} runner", *self._commit(rec, new)
            else:

                def execute(S: State) -> State:
                    S = executed(S, (a, *call, 0))
                    return with_node(S, i, S.nodes[i]._replace(ran=put(S.nodes[i].ran, a, call)))

                yield f"run local step {a}", None, execute
        pending = {e.op for e in rec.outbox} - N.flushed[a]
        if rec.st == "R" or (rec.st == "F" and rec.call not in pending):
            if lacks(cfg, a, rec.pc, self.role):
                yield self._lane(rec)
            else:
                yield f"commit {a} goes on", *self._commit(rec, turn(cfg, a, rec, None, self.facts))

    def _flush(self, rec: Rec) -> Iterator[Action]:
        i, a = self.i, self.a
        targets = set()
        for e in rec.outbox:
            if e.op in self.N.flushed[a] or e.target in targets:
                continue
            if self.cfg.rules["flush_in_order"]:
                targets.add(e.target)

            def flushed(S: State, ok: bool, e: Out = e) -> State:
                N = S.nodes[i]
                if N.cache[a] is None or e not in N.cache[a].outbox:
                    return S
                return with_node(S, i, N._replace(flushed=put(N.flushed, a, N.flushed[a] | {e.op})))

            yield f"flush {a} {e.kind}->{e.target}", ("pub", a, e), flushed

    # ---- events that leave without a commit

    def _endings(self, rec: Rec) -> Iterator[Action]:
        S, cfg, a, N = self.S, self.cfg, self.a, self.N
        newest = S.recs[a].rev == rec.rev
        reread = False
        for origin, m in sorted(self.events.items()):
            verdict, in_mem, in_held = self.verdict[origin], m in N.mem, origin in self.index
            why = ""
            if origin in N.answered:
                why = "no effect"  # decided for good
            elif verdict == CONSUMED:
                why = "consumed" if self.clean else ""
            elif verdict in FINAL:
                if self.applies:
                    continue  # first what can be consumed (4.1)
                if not newest:
                    reread = True
                    continue
                if verdict not in (ORPHAN, REFUSED, DEAD, DEAD_REFUSED):
                    why = "no effect"
                elif verdict in (ORPHAN, REFUSED):
                    yield self._answer(m, verdict)
                elif cfg.rules["dead_check"] == "after" and not any(copies(S, origin)):
                    yield f"forget {origin}", LOCAL, self._drop(m)
                    continue
                else:
                    yield (
                        f"dead letter {origin}",
                        ("dead", m),
                        self._answered(m, also=verdict == DEAD_REFUSED),
                    )
            if not why and cfg.rules["ack_early"]:
                why = "early"
            if in_mem and (why or in_held):
                yield from self._ack(m, why or "moved")
            if in_held and why and why != "early":
                for seq, held in self.held:
                    if held.origin == origin:
                        yield f"delete held {why} {origin}", ("hdel", seq), self._deleted(seq, held)
        if reread:
            yield f"reads a newer record of {a}", None, self._forget

    def _ack(self, m: Msg, why: str) -> Iterator[Action]:
        S, cfg, i, N = self.S, self.cfg, self.i, self.N
        if S.cons[m.origin[0]][0] != N.epoch and cfg.rules["attach"] == "recreate":
            return  # refused: the consumer is gone
        if why == "early" and not any(x.origin == m.origin for x in S.streams[m.origin[0]]):
            return

        def acked(S: State, ok: bool) -> State:
            N = S.nodes[i]
            if not ok:
                return S
            N = N._replace(sent=N.sent - {m.origin})
            return with_node(S, i, N if why == "early" else N._replace(mem=N.mem - {m}))

        yield f"ack {why} {m.origin}", ("ack", m.origin, N.epoch), acked

    def _deleted(self, seq: int, m: Msg) -> Callable[..., State]:
        i = self.i

        def deleted(S: State, ok: bool) -> State:
            N = S.nodes[i]
            return with_node(S, i, N._replace(held=N.held - {(seq, m)}))

        return deleted

    def _drop(self, m: Msg) -> Callable[[State], State]:
        i = self.i

        def drop(S: State) -> State:
            N = S.nodes[i]
            return with_node(
                S, i, N._replace(mem=N.mem - {m}, held=frozenset(h for h in N.held if h[1] != m))
            )

        return drop

    def _answer(self, m: Msg, verdict: int) -> Action:
        kind, arg = ("seal", m.ch) if verdict == ORPHAN else ("refused", (m.op, m.run))
        e = Out(kind, m.src, None, 0, 0, arg)
        return f"answer {e.kind}->{e.target}", ("answer", self.a, e), self._answered(m)

    def _answered(self, m: Msg, *, also: bool = False) -> Callable[..., State]:
        i, a = self.i, self.a

        def answered(S: State, ok: bool) -> State:
            if also and m.src >= 0:  # a start that could not be taken is answered before its dead letter
                S = publish(S, a, Out("refused", m.src, None, 0, 0, (m.op, m.run)))
            N = S.nodes[i]
            return with_node(S, i, N._replace(answered=N.answered | {m.origin}))

        return answered

    # ---- moves

    def _batches(self, loose: list[Msg]) -> Iterator[Action]:
        if not loose:
            return
        batches = [tuple(loose)] if self.cfg.rules["move_in_order"] else [(m,) for m in loose]
        for batch in batches:
            yield _move(self.cfg, self.i, self.N, batch, self.N.expect, "move")

    # ---- the owner of an actor that is on a lane

    def _away(self, rec: Rec) -> Iterator[Action]:
        S, cfg, i, a, N = self.S, self.cfg, self.i, self.a, self.N
        if S.recs[a].rev != rec.rev:
            yield f"reads a newer record of {a}", None, self._forget
        if any(h not in S.held for h in self.held):

            def listed(S: State) -> State:
                N = S.nodes[i]
                return with_node(
                    S, i, N._replace(held=frozenset(h for h in N.held if h[1].actor != a or h in S.held))
                )

            yield f"finds what the lane has taken of {a}", None, listed
        self._judge(rec)
        loose = []
        for m in self.mem:
            if m.origin in self.moving:
                continue
            if m.origin in self.index:
                yield from self._ack(m, "moved")
            elif m.kind == "terminate" or (m.kind == "timer" and m.arg == rec.grace):
                if S.recs[a].rev != rec.rev:
                    continue
                if self.verdict[m.origin] == CONSUME:
                    yield (
                        f"commit {a} <- {m.kind} {m.origin}",
                        *self._commit(rec, turn(cfg, a, rec, m, self.facts), m),
                    )
                else:
                    yield from self._ack(m, "no effect")
            else:
                loose.append(m)
        if N.pend is not None or not loose:
            return
        if cfg.rules["lane_source_check"]:
            gone = [m for m in loose if not copies(S, m.origin)[0]]
            if gone:

                def drop(S: State) -> State:
                    N = S.nodes[i]
                    return with_node(S, i, N._replace(mem=N.mem - frozenset(gone)))

                yield f"forget {gone[0].origin}", None, drop
                loose = [m for m in loose if m not in gone]
        yield from self._batches(loose)


def executed(S: State, key: tuple) -> State:
    """A call ran (once more)."""
    before = [e for e in S.execs if e[:4] == key]
    times = before[0][4] + 1 if before else 1
    return S._replace(execs=(S.execs - frozenset(before)) | {(*key, times)})
