"""The pure part: what an event means to a record (`decide`), and what the record becomes (`turn`).

As actors/decide.py, turns.py, ending.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .rules import Config
from .states import HOME, LANE, NONE, OUTSIDE, Child, Msg, Out, Rec

CONSUME, CONSUMED, NOTHING, ORPHAN, REFUSED, WAIT, DEAD, DEAD_REFUSED = range(8)
FINAL = frozenset((NOTHING, ORPHAN, REFUSED, DEAD, DEAD_REFUSED))
"""Decided on a leader read: the record in memory must be the newest."""
LIVE = frozenset("RFLQBWE")
UNCLEAN = frozenset("RFL")
QUEUE = -2
"""The target of tasks: they go out in any order with what goes to actors."""
ATTEMPTS = 2
"""Of a queued step."""
MARKED = ("mail", "start", "cancel", "terminate")


class Facts(NamedTuple):
    """What the owner knows: its epoch, number (+ 1), entries known flushed, origins gone for good, whether it is a lane node, and where
    the streams end.
    """

    epoch: int
    runner: int
    flushed: frozenset
    gone: frozenset
    sent: frozenset
    lease_free: bool
    role: int
    ends: tuple


def consumed(cfg: Config, rec: Rec, m: Msg) -> bool:
    if cfg.rules["consumed"] == "set":
        return m.origin in rec.cset
    return any(o[0] == m.origin[0] and m.origin[1] <= o[1] for o in rec.cset)


def seen(cfg: Config, rec: Rec, m: Msg) -> bool:
    if m.src == OUTSIDE or m.kind not in MARKED or not cfg.rules["seen"]:
        return False
    key = (m.src, m.run, m.kind, m.ch)
    return any(k == key and m.op <= op for k, op in rec.seen)


def waits_for(cfg: Config, a: int, rec: Rec, m: Msg) -> bool:
    if rec.st != "W":
        return False
    at = cfg.programs[a][rec.pc]
    return at[0] in ("recv", "recvt") and at[1] == m.ch


def decide(cfg: Config, a: int, rec: Rec, m: Msg) -> int:
    """The verdict on an event."""
    if not cfg.rules["set_before_seen"] and seen(cfg, rec, m):
        return NOTHING
    if consumed(cfg, rec, m):
        return CONSUMED
    if seen(cfg, rec, m):
        return NOTHING
    kind, st = m.kind, rec.st
    if kind == "mail":
        if st in "TS":
            return DEAD
        if rec.ends and m.origin[1] < rec.ends[m.origin[0]]:
            return DEAD  # sent to an earlier run
        return CONSUME if waits_for(cfg, a, rec, m) else WAIT
    if st == "N":
        return _unknown(cfg, a, m)
    if kind == "start":
        return _start_again(cfg, rec, m)
    if kind == "childdone":
        child = _child(rec, m)
        if st in "TS" or child is None or child.state == "e":
            return ORPHAN if cfg.rules["orphan_seal"] else NOTHING
        return CONSUME
    if kind == "refused":
        child = _child(rec, m)
        return CONSUME if st in LIVE and child is not None and child.state != "e" else NOTHING
    if kind == "seal":
        return CONSUME if st == "T" and m.arg == rec.run else NOTHING
    if st in "TS":
        return NOTHING
    if kind == "cancel":
        return NOTHING if rec.canc or st == "E" else CONSUME
    if kind == "terminate":
        return CONSUME
    if kind == "timer":
        return CONSUME if m.run == rec.run and m.arg in (rec.timer, rec.grace) else NOTHING
    if kind == "done":
        pending = st in "LQB" and m.run == rec.run and (rec.call == m.arg or not cfg.rules["done_matches_op"])
        return CONSUME if pending and _counts(rec, m) else NOTHING
    if kind == "nudge":
        return NOTHING
    raise AssertionError(kind)


def _counts(rec: Rec, m: Msg) -> bool:
    """An older attempt's result counts while the operation is pending, its failure does not."""
    attempt, good = m.ch or (0, True)
    return good or attempt == rec.attempt


def _unknown(cfg: Config, a: int, m: Msg) -> int:
    if m.kind == "start":
        return CONSUME if cfg.programs[a] else DEAD_REFUSED
    if m.kind in ("cancel", "terminate") and m.src != OUTSIDE and cfg.rules["cancel_unknown"]:
        return CONSUME
    return ORPHAN if m.kind == "childdone" else NOTHING


def _start_again(cfg: Config, rec: Rec, m: Msg) -> int:
    if m.src != OUTSIDE:
        return NOTHING if rec.parent == (m.src, m.run, m.op) else REFUSED
    if m.ch != "restart":
        return NOTHING
    if rec.st == "T":
        return WAIT if cfg.rules["restart_waits_for_seal"] else CONSUME
    return CONSUME


def _child(rec: Rec, m: Msg) -> Child | None:
    for child in rec.kids:
        if child.actor == m.src and child.op == m.arg and child.run == m.run:
            return child
    return None


def needs_code(cfg: Config, a: int, rec: Rec, m: Msg) -> bool:
    """Whether consuming the event lets the actor's code run: then the frame's pin must be satisfied."""
    if m.kind in ("terminate", "seal", "start") or (m.kind == "timer" and m.arg == rec.grace):
        return False
    if m.kind in ("childdone", "refused"):
        return rec.st == "W" and cfg.programs[a][rec.pc] == ("join", m.src)
    return rec.st != "N"


def lacks(cfg: Config, a: int, pc: int, role: int) -> bool:
    """Whether nodes of this role lack the code at that place. Nodes of the other deployment have all of it."""
    return role == HOME and pc in cfg.away[a]


class _Turn:
    """A record in the making."""

    def __init__(self, cfg: Config, a: int, rec: Rec, facts: Facts) -> None:
        self.cfg, self.a, self.rec, self.facts = cfg, a, rec, facts
        self.new: dict[str, Any] = {
            f: getattr(rec, f)
            for f in (
                "run",
                "pc",
                "st",
                "op",
                "call",
                "attempt",
                "timer",
                "grace",
                "canc",
                "runner",
                "parent",
                "lane",
                "ends",
            )
        }
        self.kids = {child.actor: child for child in rec.kids}
        self.out: list[Out] = []
        self.cset, self.lease, self.seen, self.log = rec.cset - facts.gone, rec.lease, rec.seen, rec.log
        self.carries = bool(cfg.rules["carry"])
        self.dropped = False

    def take(self) -> int:
        op: int = self.new["op"]
        self.new["op"] = op + 1
        return op

    def send(self, kind: str, target: int, ch: Any = None, arg: Any = None, op: int = 0) -> None:
        self.out.append(Out(kind, target, ch, op or self.take(), self.new["run"], arg))

    def consume(self, m: Msg) -> None:
        rules, facts = self.cfg.rules, self.facts
        if rules["prune"] == "never asked":
            self.cset = NONE
        self.cset = self.cset | {m.origin}
        if (
            rules["lease"] == "newest"
            or self.lease is None
            or self.lease in facts.gone
            or (rules["lease_unsent"] and self.lease in facts.sent)
            or facts.lease_free
        ):
            self.lease = m.origin
        if m.src != OUTSIDE and m.kind in MARKED:
            key = (m.src, m.run, m.kind, m.ch)
            self.seen = frozenset(x for x in self.seen if x[0] != key) | {(key, m.op)}

    # the code

    def advance(self) -> None:
        """Run to the next suspension."""
        new, program = self.new, self.cfg.programs[self.a]
        while True:
            at = program[new["pc"]]
            what = at[0]
            if what == "local":
                new["st"], new["call"] = "L", self.take()
            elif what == "queued":
                self.queue(1)
            elif what in ("recv", "recvt"):
                new["st"] = "W"
                if what == "recvt":
                    self.arm()
            elif what == "spawn":
                self.spawn(at[1])
            elif what == "send":
                new["call"] = new["op"]
                self.send("mail", at[1], at[2])
                new["pc"] += 1
                new["st"] = "F"
            elif what == "join":
                child = self.kids.get(at[1])
                if child is not None and child.state == "e":
                    new["pc"] += 1
                    continue
                new["st"] = "W"
            elif what == "become":
                new["pc"] += 1
                self.become()
            else:
                assert what == "end", what
                self.end()
            return

    def arm(self) -> None:
        self.new["timer"] = timer = self.take()
        self.send("arm", self.a, op=timer, arg=timer)

    def disarm(self, name: str = "timer") -> None:
        timer = self.new[name]
        if timer:
            self.new[name] = 0
            self.send("disarm", self.a, arg=timer)

    def queue(self, attempt: int) -> None:
        new = self.new
        new["st"], new["attempt"] = "Q", attempt
        if attempt == 1:
            new["call"] = self.take()
        self.send("task", QUEUE, ch=attempt, arg=new["call"])
        self.arm()

    def back_off(self) -> None:
        """The attempt is over without a result: the next one begins when a timer has fired."""
        new = self.new
        self.disarm()
        self.drop_tasks()
        new["st"], new["attempt"] = "B", new["attempt"] + 1
        self.arm()

    def drop_tasks(self) -> None:
        """A task that is not known to be out is wanted no more."""
        self.dropped = True

    def spawn(self, child: int) -> None:
        new = self.new
        op = new["op"]
        self.send("start", child)
        self.kids[child] = Child(child, op, new["run"], "r")
        new["pc"] += 1
        new["st"] = "R"

    def become(self) -> None:
        new = self.new
        new["run"] += 1
        new["st"] = "R"
        if not self.cfg.rules["become_keeps_children"]:
            self.kids = {}

    # the end

    def end(self) -> None:
        """The code is over: children are cancelled and waited for, then the terminal commit."""
        self.drop_tasks()
        self.new["call"] = self.new["attempt"] = 0
        self.disarm()
        self.tell("cancel")
        if any(child.state != "e" for child in self.kids.values()):
            if self.cfg.grace and not self.new["grace"]:
                self.new["grace"] = timer = self.take()
                self.send("arm", self.a, op=timer, arg=timer)
            self.new["st"] = "E"
        else:
            self.terminal()

    def tell(self, verb: str) -> None:
        for child in sorted(self.kids.values()):
            if child.state == "r":
                self.send(verb, child.actor, arg=(child.op, child.run))
                self.kids[child.actor] = child._replace(state="c")

    def terminal(self) -> None:
        new = self.new
        self.drop_tasks()
        new["call"] = new["attempt"] = new["canc"] = 0
        self.disarm()
        self.disarm("grace")
        new["st"], new["lane"] = "T", 0
        if new["parent"] is not None:
            target, run, op = new["parent"]
            self.send("childdone", target, ch=new["run"], arg=(op, run))

    def seal(self) -> None:
        if not self.cfg.rules["seal_keeps_set"]:
            self.cset = NONE
        self.new["st"] = "S"

    def child_over(self, child: Child) -> None:
        self.kids[child.actor] = child._replace(state="e")
        if self.new["st"] == "E":
            if all(c.state == "e" for c in self.kids.values()):
                self.terminal()
        elif self.new["st"] == "W" and self.cfg.programs[self.a][self.new["pc"]][0] == "join":
            self.advance()

    def finish(self) -> Rec:
        rules, rec, facts = self.cfg.rules, self.rec, self.facts
        carried: tuple = ()
        if self.carries:
            carried = tuple(
                e for e in rec.outbox if e.op not in facts.flushed and not (self.dropped and e.kind == "task")
            )
            if not rules["become_keeps_sender"]:
                carried = tuple(e._replace(run=self.new["run"]) for e in carried)
        if self.new["st"] == "L" and (rec.st, rec.call) != ("L", self.new["call"]):
            self.new["runner"] = facts.runner
        on_lane = facts.role == LANE and self.new["lane"] and self.new["st"] != "L"
        if on_lane and not lacks(self.cfg, self.a, self.new["pc"], HOME):
            self.new["lane"] = 0  # given back: the owner can run what it has become
        if rules["consumed"] == "cursor":
            streams = {o[0] for o in self.cset}
            self.cset = frozenset(max(o for o in self.cset if o[0] == s) for s in streams)
        outbox = carried + tuple(self.out)
        owes = outbox or self.new["parent"] is not None or facts.role == LANE
        if self.new["st"] == "T" and not owes and rules["terminal_seals"]:
            self.seal()
        return rec._replace(
            rev=rec.rev + 1,
            epoch=rec.epoch if facts.role == LANE else facts.epoch,
            lepoch=facts.epoch if facts.role == LANE else rec.lepoch,
            outbox=outbox,
            cset=self.cset,
            lease=self.lease,
            seen=self.seen,
            log=self.log,
            kids=frozenset(self.kids.values()),
            **self.new,
        )


def turn(cfg: Config, a: int, rec: Rec, m: Msg | None, facts: Facts) -> Rec:
    """The record after consuming `m`; None: a local result, or going on by itself."""
    t = _Turn(cfg, a, rec, facts)
    new = t.new
    if m is None:
        if rec.st == "L":
            new["pc"] += 1
        new["call"] = 0
        t.advance()
        return t.finish()
    if m.kind == "start":
        return _start(cfg, a, rec, m, facts, t)
    if rec.st == "N":  # a parent's cancel that finds no record
        t.consume(m)
        new["run"], new["parent"] = 1, (m.src, m.arg[1], m.arg[0])
        t.terminal()
        return t.finish()
    t.consume(m)
    if m.kind == "mail":
        t.log = (*t.log, (m.src, m.ch, m.op))
        new["pc"] += 1
        t.disarm()
        t.advance()
    elif m.kind == "timer":
        _timer(t, m)
    elif m.kind == "done" and not (m.ch or (0, True))[1] and new["attempt"] < ATTEMPTS:
        t.back_off()
    elif m.kind == "done":
        t.drop_tasks()
        new["call"] = new["attempt"] = 0
        new["pc"] += 1
        t.disarm()
        t.advance()
    elif m.kind in ("childdone", "refused"):
        child = _child(rec, m)
        assert child is not None, "decide() found it"
        t.child_over(child)
        if m.kind == "childdone" and cfg.rules["seal_message"]:
            t.send("seal", m.src, arg=m.ch)
    elif m.kind == "cancel":
        new["canc"] = 1
        t.end()
    elif m.kind == "terminate":
        t.tell("cancel")
        t.terminal()
    elif m.kind == "seal":
        new["st"] = "S"
    else:
        raise AssertionError(m.kind)
    return t.finish()


def _timer(t: _Turn, m: Msg) -> None:
    new = t.new
    if m.arg == new["grace"]:
        new["grace"] = 0
        for child in sorted(t.kids.values()):
            if child.state != "e":
                t.send("terminate", child.actor, arg=(child.op, child.run))
        t.terminal()
        return
    new["timer"] = 0
    if new["st"] == "B":
        t.queue(new["attempt"])
        return
    if new["st"] == "Q" and new["attempt"] < ATTEMPTS:
        t.back_off()
        return
    t.drop_tasks()
    new["call"] = new["attempt"] = 0
    new["pc"] += 1
    t.advance()


def _start(cfg: Config, a: int, rec: Rec, m: Msg, facts: Facts, t: _Turn) -> Rec:
    if rec.st in LIVE:  # restart: this run ends first, the start waits for its seal
        if cfg.rules["restart_lease"]:
            t.lease = m.origin
        t.tell("cancel")
        t.terminal()
        return t.finish()
    t.consume(m)
    t.kids, t.carries = {}, False  # a new record: what the old run owed is flushed, or lost
    t.new.update(run=rec.run + 1, pc=0, call=0, attempt=0, timer=0, grace=0, canc=0, runner=0)
    t.new["ends"] = facts.ends if rec.st == "S" and cfg.rules["restart_ends"] else ()
    t.new["parent"] = None if m.src == OUTSIDE else (m.src, m.run, m.op)
    if lacks(cfg, a, 0, facts.role):
        t.new["st"], t.new["lane"] = "R", 1  # admitted, and goes on its lane at once
    else:
        t.advance()
    return t.finish()


def sealed(cfg: Config, a: int, rec: Rec, facts: Facts) -> Rec:
    """An actor without a parent, ended and flushed, is closed by its owner."""
    t = _Turn(cfg, a, rec, facts)
    t.seal()
    return t.finish()


def rewritten(cfg: Config, a: int, rec: Rec, facts: Facts, **fields: Any) -> Rec:
    """A commit that runs no code: a new runner, a lane begun or ended."""
    t = _Turn(cfg, a, rec, facts)
    t.new.update(fields)
    new = t.finish()
    return new._replace(**fields)


def is_clean(cfg: Config, rec: Rec, flushed: frozenset) -> bool:
    """Whether what the record consumed may be acknowledged (4.8, the stricter form)."""
    if any(e.op not in flushed for e in rec.outbox):
        return False
    if rec.st == "T":
        return rec.parent is not None or not cfg.rules["seal_before_ack"]
    return rec.st not in UNCLEAN
