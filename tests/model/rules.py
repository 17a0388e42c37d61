"""The rules that can be switched off one by one, and a scenario with its choice of them.

`RULES` is the protocol as it is implemented. Each key names one rule of docs/reference/protocol.md; another value is a protocol that is
known to be wrong, and `scenarios.VARIANTS` says in which scenario the search shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .states import Budget

RULES: dict[str, Any] = {
    # 4.6, I1: commits
    "cas": True,  # a commit is compare-and-swap
    "epoch_in_record": True,  # whoever reads a record of a higher epoch stops
    "judge_stale_put": True,  # a property, not a rule: False looks for what a stale put leads to
    # 4.7, 4.8: outbox, lease, acknowledgements
    "carry": True,  # entries not known flushed are carried into the next commit
    "flush_in_order": True,  # one after another per target
    "known_flushed": True,  # on a cold load: flushed if no copy of the lease is stored; False: always believed
    "lease": "newest",  # a consuming commit names its own event; "first": the first of the chain is kept
    "lease_unsent": True,  # (with "first") an event whose acknowledgement was sent is never named
    "lease_gone": "both",  # both copies of the lease; "source": only its ingress stream is read
    "restart_lease": True,  # the commit that ends a run for its restart names the start as the lease, without consuming it
    "ack_early": False,  # acknowledge on delivery, before any commit
    "ack": "clean",  # consumed events stay unacknowledged until the record is clean; "committed": until the commit is acknowledged
    # 4.4, I3: what was consumed
    "consumed": "set",  # exact origins; "cursor": sequence <= the highest seen
    "prune": "both",  # source read as gone and no held copy; "one": either is enough; "never asked": at the next commit
    "fence_after_floor": True,  # the fence in HELD is read after the sources: another owner may have moved what is gone
    "seen": True,  # receivers keep the highest operation per (sender, run, channel)
    "set_before_seen": True,  # the exact set is asked first
    # 3: ownership
    "attach": "recreate",  # delete and create consumers; "reset": the old pull stays alive
    "reattach": True,  # the same owner attaches anew after a cut
    "look_after_load": True,  # held events are read after the record
    "held_gone_reloads": True,  # a held event that the record waits for and that is gone says that the record is an old one
    "look_after_overtaken": True,  # also when the load follows a commit that turned out to be another's
    "moved_read_again": True,  # also what was delivered beside its held copy, and is being acknowledged
    "release_running": True,  # a release waits until every pending call really runs
    "runner": "commit",  # who takes a call over commits itself as its runner first; "none": not
    # 4.2: moving to HELD
    "fence": True,  # a batch expects the last sequence under held.<p>.>; False: no expectation at all
    "fence_at_attach": True,  # an attach writes a fence, which uses up a sequence
    "move_settled": True,  # a move of unknown outcome is repeated until settled; until then its actors consume no mail
    "move_in_order": True,  # all mail that nobody waits for, in order, in one batch; False: one at a time, any
    # 4.3: dead letters
    "dead_check": "after",  # only if still stored, read after the record; "before": not looked at
    # 6: endings, children
    "terminal_seals": True,  # a terminal commit that owes nothing, of an actor without a parent, is its seal
    "seal_message": True,  # the parent tells the child to seal
    "orphan_seal": True,  # a child-done that nobody waits for is answered with seal
    "seal_keeps_set": True,  # sealing keeps the unconfirmed consumed set
    "seal_before_ack": True,  # the lease of an actor without a parent is acknowledged after its seal
    "cancel_unknown": True,  # a parent's cancel that finds no record leaves a cancelled one
    "restart_waits_for_seal": True,  # a new run begins on a sealed record only
    "restart_ends": True,  # mail that was stored before a run began that is not the first is not that run's
    # 8: lanes
    "lane_source_check": True,  # the owner moves an event to HELD only if its source is still stored
    "lane_prune": "sources first",  # copies are looked at after the sources; "copies first"
    "lane_lease": "source first",  # the held copy of the lease is looked for after its source; "copy first": before
    "lane_look": True,  # the owner reads HELD after the record came back
    # 7: queued steps
    "worker_reads": True,  # a worker looks whether the operation is pending with this attempt
    "done_matches_op": True,  # an outcome counts only for the operation that is pending
    # become
    "become_keeps_children": True,  # a child is known by the run and operation that spawned it, not by the present run
    "become_keeps_sender": True,  # carried outbox entries name the run that made them
}


class Scenario:
    """Programs, what the clients publish, faults, and the rules to be searched."""

    def __init__(
        self,
        name: str,
        programs: Sequence[Sequence[tuple[Any, ...]]],
        clients: Sequence[tuple[str, int, Any]],
        *,
        lanes: int = 0,
        away: Sequence[frozenset[int]] = (),
        grace: bool = False,
        workers: bool = False,
    ) -> None:
        """`lanes`: nodes of the other deployment; `away`: per actor, the places whose code only they have; `grace`: cancelling arms a timer
        that ends the grace period.
        """
        self.name = name
        self.programs = tuple(tuple(program) for program in programs)
        self.clients = tuple(clients)
        self.lanes = lanes
        self.away = tuple(away) or (frozenset(),) * len(self.programs)
        self.grace = grace
        self.workers = workers
        self.actors = len(self.programs)


class Config:
    """One search: a scenario, a budget of faults, rules, and how coarse deliveries are."""

    def __init__(self, scenario: Scenario, budget: Budget, *, eager: bool = False, **rules: Any) -> None:
        """`eager`: while one node of a role is idle and nothing is on the wire, deliveries happen as soon as they can."""
        unknown = set(rules) - set(RULES)
        if unknown:
            raise ValueError(f"no such rule: {sorted(unknown)}")
        self.scenario, self.budget, self.eager = scenario, budget, eager
        self.programs, self.actors = scenario.programs, scenario.actors
        self.rules = {**RULES, **rules}
        self.away, self.grace = scenario.away, scenario.grace

    @property
    def name(self) -> str:
        """Scenario and budget, for a line of output."""
        return f"{self.scenario.name} {','.join(map(str, self.budget))}{' eager' if self.eager else ''}"
