"""Scenarios, budgets of faults, and the variants that are known to be wrong.

A scenario is one program per actor and what the clients publish, in this order; it is written so that every actor can end.
Actor 0 is started by a client, the others by `spawn`. An empty program is one whose start is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .rules import Scenario
from .states import Budget

START, RESTART = ("start", 0, None), ("start", 0, "restart")
CANCEL = ("cancel", 0, None)
END = ("end",)


def _mail(ch: str, actor: int = 0) -> tuple[str, int, str]:
    return ("mail", actor, ch)


def _recv(ch: str) -> tuple[str, str]:
    return ("recv", ch)


def _recvt(ch: str) -> tuple[str, str]:
    return ("recvt", ch)


LOCAL, QUEUED, BECOME = ("local",), ("queued",), ("become",)
SPAWN, JOIN = ("spawn", 1), ("join", 1)
X, Y, Z = "x", "y", "z"


def _away(*places: int) -> frozenset[int]:
    return frozenset(places)


CORE = (
    Scenario("mail", [[_recv(X), LOCAL, _recv(Y), END]], [START, _mail(Y), _mail(X)]),
    Scenario("same", [[_recv(X), _recv(X), END]], [START, _mail(X), _mail(X)]),
    Scenario("early", [[_recv(X), END]], [_mail(X), START]),
    Scenario("three", [[_recv(X), _recv(X), _recv(X), END]], [START, _mail(X), _mail(X), _mail(X)]),
    Scenario("again", [[_recv(X), LOCAL, _recvt(X), END]], [_mail(X), START]),
    Scenario("heldtwo", [[_recv(X), _recv(Y), _recvt(X), END]], [_mail(X), _mail(Y), START]),
    Scenario(
        "heldlease", [[_recv(X), _recv(Y), _recv(Z), LOCAL, END]], [START, _mail(Y), _mail(X), _mail(Z)]
    ),
    Scenario("heldspawn", [[_recv(X), _recv(Y), SPAWN, JOIN, END], [END]], [START, _mail(Y), _mail(X)]),
    Scenario("locals", [[LOCAL, LOCAL, _recv(X), END]], [START, _mail(X)]),
    Scenario("dead", [[_recv(X), END]], [START, _mail(Y), _mail(X)]),
    Scenario("timer", [[_recvt(X), END]], [START, _mail(X)]),
    Scenario("timer2", [[_recvt(X), _recv(X), END]], [START, _mail(X), _mail(X)]),
    Scenario("spawn", [[SPAWN, JOIN, END], [LOCAL, END]], [START]),
    Scenario("send", [[SPAWN, ("send", 1, "go"), JOIN, END], [_recv("go"), END]], [START]),
    Scenario(
        "send2",
        [[SPAWN, ("send", 1, "b"), ("send", 1, "a"), JOIN, END], [_recv("a"), _recv("b"), END]],
        [START],
    ),
    Scenario(
        "talk",
        [[SPAWN, _recv("re"), ("send", 1, "go"), JOIN, END], [("send", 0, "re"), _recv("go"), END]],
        [START],
    ),
    Scenario("cancel", [[SPAWN, JOIN, END], [_recv(Z), END]], [START, CANCEL]),
    Scenario("mailspawn", [[_recv(X), SPAWN, JOIN, END], [END]], [START, _mail(X)]),
)
LIVES = (
    Scenario("restart", [[_recvt(X), END]], [START, _mail(X), RESTART]),
    Scenario("restartchild", [[SPAWN, _recvt(X), END], [_recv(Z), END]], [START, RESTART]),
    Scenario("restartend", [[SPAWN, END], [_recv(Z), END]], [START, RESTART]),
    Scenario("refused", [[SPAWN, JOIN, END], []], [START]),
    Scenario("refusedcancel", [[SPAWN, _recvt(X), JOIN, END], []], [START, CANCEL]),
    Scenario("grace", [[SPAWN, JOIN, END], [_recv(Z), END]], [START, CANCEL], grace=True),
)
LANES = (
    Scenario(
        "lane", [[_recv(X), _recv(Y), END]], [START, _mail(Y), _mail(X)], lanes=1, away=[_away(0, 1, 2)]
    ),
    Scenario("lanethere", [[_recv(X), _recv(Y), END]], [START, _mail(X), _mail(Y)], lanes=1, away=[_away(1)]),
    Scenario("laneback", [[_recv(X), _recvt(X), END]], [START, _mail(X), _mail(X)], lanes=1, away=[_away(0)]),
    Scenario(
        "lanereturn",
        [[_recv(X), _recv(Y), _recvt(X), END]],
        [START, _mail(X), _mail(Y)],
        lanes=1,
        away=[_away(0, 1)],
    ),
    Scenario(
        "lanelong",
        [[_recv(X), _recv(Y), _recvt(X), END]],
        [START, _mail(X), _mail(Y)],
        lanes=1,
        away=[_away(0, 1, 2)],
    ),
    Scenario(
        "lanestep",
        [[_recv(X), LOCAL, _recv(Y), END]],
        [START, _mail(X), _mail(Y)],
        lanes=1,
        away=[_away(0, 1)],
    ),
    Scenario(
        "laneowes",
        [[SPAWN, _recv(X), JOIN, END], [END]],
        [START, _mail(X)],
        lanes=1,
        away=[_away(1, 2, 3), _away()],
    ),
    Scenario("lanespawn", [[SPAWN, JOIN, END], [END]], [START], lanes=1, away=[_away(0), _away()]),
    Scenario(
        "lanes2", [[_recv(X), _recvt(X), END]], [START, _mail(X), _mail(X)], lanes=2, away=[_away(0, 1)]
    ),
)
QUEUED_STEPS = (
    Scenario("queued", [[QUEUED, END]], [START], workers=True),
    Scenario("queued2", [[QUEUED, QUEUED, END]], [START], workers=True),
    Scenario("queuedcancel", [[QUEUED, END]], [START, CANCEL], workers=True),
    Scenario("queuedrestart", [[QUEUED, END]], [START, RESTART], workers=True),
    Scenario("queuedmail", [[_recv(X), QUEUED, _recv(Y), END]], [START, _mail(X), _mail(Y)], workers=True),
    Scenario(
        "queuedlane", [[QUEUED, _recv(X), END]], [START, _mail(X)], workers=True, lanes=1, away=[_away(0)]
    ),
)
BECOMING = (
    Scenario("become", [[_recv(X), BECOME, _recvt(Y), END]], [START, _mail(Y), _mail(X)]),
    Scenario("becomechild", [[SPAWN, BECOME, JOIN, END], [END]], [START]),
    Scenario("becomesend", [[SPAWN, ("send", 1, "go"), BECOME, JOIN, END], [_recv("go"), END]], [START]),
)
GROUPS = {"core": CORE, "lives": LIVES, "lanes": LANES, "queued": QUEUED_STEPS, "become": BECOMING}
SCENARIOS = {scenario.name: scenario for group in GROUPS.values() for scenario in group}

SINGLE = (
    Budget(),
    Budget(crash=1),
    Budget(stale=1),
    Budget(cut=1),
    Budget(late=1),
    Budget(move=1),
)
SEVERAL = (
    Budget(crash=2),
    Budget(crash=1, stale=1),
    Budget(crash=1, late=1),
    Budget(stale=1, late=1),
    Budget(crash=1, move=1),
    Budget(crash=1, cut=1),
    Budget(stale=1, cut=1),
    Budget(crash=2, stale=1),
    Budget(crash=2, stale=1, cut=1, late=1),
    Budget(crash=1, stale=1, move=1),
)


class Variant(NamedTuple):
    """One rule taken away: the search must find a counterexample."""

    name: str
    rules: dict[str, Any]
    scenario: str
    budget: Budget
    eager: bool = False
    quick: bool = False
    """Found within a second or two: part of the suite."""
    walks: int = 0
    """Too deep for the search: found by at most so many random walks."""


VARIANTS = (
    Variant("acknowledge before commit", {"ack_early": True}, "mail", Budget(), quick=True),
    Variant("acknowledge when committed", {"ack": "committed"}, "mail", Budget(), quick=True),
    Variant("no compare-and-swap", {"cas": False}, "mail", Budget(stale=1), quick=True),
    Variant("outbox not carried over", {"carry": False}, "spawn", Budget(), quick=True),
    Variant("seq <= cursor instead of the exact set", {"consumed": "cursor"}, "mail", Budget(), quick=True),
    Variant("reset instead of delete and create", {"attach": "reset"}, "mail", Budget(stale=1)),
    Variant("prune without asking", {"prune": "never asked"}, "mail", Budget(), quick=True),
    Variant("no re-attach after a cut", {"reattach": False}, "same", Budget(cut=1), quick=True),
    Variant("no seen marks", {"seen": False}, "send", Budget(crash=1), eager=True),
    Variant(
        "a cold load believes all is flushed", {"known_flushed": False}, "spawn", Budget(crash=1), quick=True
    ),
    Variant(
        "no epoch in the record", {"epoch_in_record": False}, "three", Budget(stale=1), eager=True, quick=True
    ),
    Variant(
        "no epoch in the record, what follows",
        {"epoch_in_record": False, "judge_stale_put": False},
        "three",
        Budget(stale=1),
        eager=True,
    ),
    Variant(
        "held events not looked at after the load",
        {"look_after_load": False},
        "three",
        Budget(stale=1),
        eager=True,
    ),
    Variant(
        "held events not looked at after a commit of another's",
        {"look_after_overtaken": False},
        "heldtwo",
        Budget(stale=1),
        eager=True,
    ),
    Variant(
        "a held event that is gone says nothing of the record",
        {"held_gone_reloads": False},
        "dead",
        Budget(stale=1),
    ),
    Variant("no fence in HELD", {"fence": False}, "mail", Budget(stale=1), eager=True),
    Variant("no expectation, what is late", {"fence": False}, "mail", Budget(late=1)),
    Variant("no fence at the attach", {"fence_at_attach": False}, "mail", Budget(stale=1), eager=True),
    Variant("unknown move outcome not settled", {"move_settled": False}, "mail", Budget(late=1)),
    Variant("moved in any order", {"move_in_order": False}, "same", Budget(crash=1)),
    Variant("pruned when one copy is gone", {"prune": "one"}, "mail", Budget(crash=1), quick=True),
    Variant(
        "pruned without a look at the fence",
        {"fence_after_floor": False},
        "again",
        Budget(stale=1),
        eager=True,
    ),
    Variant(
        "seen marks before the exact set", {"set_before_seen": False}, "send", Budget(stale=1), eager=True
    ),
    Variant("lease = first of the chain", {"lease": "first"}, "heldlease", Budget(stale=1), eager=True),
    Variant(
        "lease may name an event whose ack was sent",
        {"lease": "first", "lease_unsent": False},
        "mail",
        Budget(late=1),
        quick=True,
    ),
    Variant(
        "lease gone: source stream only", {"lease_gone": "source"}, "heldspawn", Budget(crash=1), eager=True
    ),
    Variant("nobody tells the child to seal", {"seal_message": False}, "spawn", Budget(), quick=True),
    Variant("seal clears the consumed set", {"seal_keeps_set": False}, "mail", Budget(crash=1)),
    Variant("last lease acknowledged before the seal", {"seal_before_ack": False}, "timer2", Budget(crash=1)),
    Variant("release before the call runs", {"release_running": False}, "locals", Budget(move=1), quick=True),
    Variant("new runner not named", {"runner": "none"}, "locals", Budget(crash=1, move=1), eager=True),
    Variant("restart without a lease", {"restart_lease": False}, "restartchild", Budget(crash=1), quick=True),
    Variant("restart before the seal", {"restart_waits_for_seal": False}, "restartend", Budget()),
    Variant(
        "restart takes what was sent to the run before", {"restart_ends": False}, "restart", Budget(crash=1)
    ),
    Variant("orphans are not told to seal", {"orphan_seal": False}, "restartend", Budget(), walks=1_000),
    Variant(
        "a cancel overtakes its start, and finds no record",
        {"flush_in_order": False, "cancel_unknown": False},
        "cancel",
        Budget(),
    ),
    Variant(
        "lane: moved without a look at the source",
        {"lane_source_check": False},
        "lanelong",
        Budget(late=1),
        walks=20_000,
    ),
    Variant(
        "lane: copies looked at before the sources",
        {"lane_prune": "copies first"},
        "lanereturn",
        Budget(crash=1),
        walks=20_000,
    ),
    Variant(
        "lane: what is being acknowledged not read again",
        {"moved_read_again": False},
        "lanereturn",
        Budget(late=1),
        walks=20_000,
    ),
    Variant(
        "lane: the lease's copy looked for before its source",
        {"lane_lease": "copy first"},
        "laneowes",
        Budget(),
    ),
    Variant("lane: HELD not read after the return", {"lane_look": False}, "lanereturn", Budget()),
    Variant("queued: the worker does not read first", {"worker_reads": False}, "queued", Budget(crash=1)),
    Variant("queued: any outcome will do", {"done_matches_op": False}, "queued2", Budget(), quick=True),
    Variant(
        "become forgets its children", {"become_keeps_children": False}, "becomechild", Budget(), quick=True
    ),
    Variant(
        "become: carried entries under the new run",
        {"become_keeps_sender": False},
        "becomechild",
        Budget(),
        quick=True,
    ),
)
