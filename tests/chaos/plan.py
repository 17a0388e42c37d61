"""Which fault, when, on whom, for how long: drawn from a seed, before anything runs. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 30.0
"""TTL of a lease (PROTOCOL 3); a freeze has to be longer to make its holder stale."""
CRASH_POINTS: Final = (
    "before_commit", "before_user_commit", "after_commit", "before_flush", "between_flushes", "after_flush",
    "before_ack", "after_ack", "after_terminal_commit", "before_seal", "after_seal", "in_step", "step_result",
    "attempt_committed", "takeover_committed", "orphan_outcome", "before_move", "move_stored",
    "attach_owner", "attach_delete", "attach_create", "attach_fence", "attach_list", "attach_verify",
)  # fmt: skip
"""Points of `sojourn.cluster.faults` at which a node may be told to kill itself."""


WORKER_POINTS: Final = ("worker_before_run", "worker_before_publish", "worker_after_publish")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    weight: int
    lasts: tuple[float, float]
    """Shortest and longest, seconds."""
    on: str
    """"node", "worker", "server" or "cluster": faults on the same thing do not overlap, and there is one of a server or the cluster at a
    time.
    """
    least: float = 0.0
    """Runs shorter than this many seconds have no room for it."""


KINDS: Final[dict[str, Kind]] = {
    "kill": Kind(10, (0.5, 3.0), "node"),
    "crash-point": Kind(12, (0.5, 2.0), "node"),
    "pause": Kind(4, (1.0, 8.0), "node"),
    "freeze": Kind(4, (LEASE_SECONDS + 2, LEASE_SECONDS + 12), "node", least=120),
    "drain": Kind(6, (0.5, 2.0), "node"),
    "cut": Kind(5, (0.5, 6.0), "node"),
    "cut-engine": Kind(4, (1.0, 14.0), "node"),
    "cut-guard": Kind(4, (1.0, 14.0), "node"),
    "partition": Kind(2, (LEASE_SECONDS + 2, LEASE_SECONDS + 10), "node", least=120),
    "hold-up": Kind(4, (1.0, 9.0), "node"),
    "hold-down": Kind(4, (1.0, 9.0), "node"),
    "late-writes": Kind(8, (0.5, 6.0), "node"),
    "slow-server": Kind(3, (2.0, 6.0), "server"),
    "server-kill": Kind(3, (0.3, 3.0), "server"),
    "server-restart": Kind(2, (0.3, 3.0), "server"),
    "full-disk": Kind(2, (2.0, 5.0), "server"),
    "deploy": Kind(3, (0.5, 2.0), "cluster"),
    "roll-back": Kind(3, (0.5, 2.0), "cluster"),
    "worker-kill": Kind(4, (0.5, 3.0), "worker"),
    "worker-crash-point": Kind(4, (0.5, 2.0), "worker"),
    "worker-pause": Kind(2, (1.0, 8.0), "worker"),
    "worker-drain": Kind(3, (0.5, 2.0), "worker"),
    "worker-cut": Kind(3, (0.5, 6.0), "worker"),
}
"""Every kind there is."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan. Times are seconds from the beginning of the run."""

    at: float
    kind: str
    target: int
    """Number of the node or the server."""
    lasts: float
    point: str = ""
    """For a crash point: what SOJOURN_FAULT is set to."""

    def __str__(self) -> str:
        what = f"{self.kind} {self.point}".strip()
        return f"{self.at:6.1f} s  {what} on {self.target + 1} for {self.lasts:.1f} s"


def draw(
    seed: int,
    *,
    seconds: float,
    nodes: int,
    servers: int,
    workers: int = 2,
    without: Sequence[str] = (),
    points: Sequence[str] = CRASH_POINTS,
) -> tuple[Fault, ...]:
    """The faults of a run. The same arguments, the same plan; `without` leaves kinds out and changes it, `points` are those to die at."""
    random_ = random.Random(seed)
    kinds = {name: kind for name, kind in KINDS.items() if name not in without and seconds >= kind.least}
    names, weights = list(kinds), [kind.weight for kind in kinds.values()]
    busy: dict[tuple[str, int], float] = {}
    faults: list[Fault] = []
    at = 3.0
    last = seconds - 4.0
    while at < last:
        name = random_.choices(names, weights)[0]
        kind = kinds[name]
        target = random_.randrange(
            {"node": nodes, "worker": workers, "server": servers, "cluster": 1}[kind.on]
        )
        lasts = random_.uniform(*kind.lasts)
        point = f"{random_.choice(points)}:{random_.choice((1, 1, 2, 5, 20))}"
        if name == "worker-crash-point":
            point = f"{random_.choice(WORKER_POINTS)}:{random_.choice((1, 1, 2, 5, 20))}"
        one_of_many = kind.on in ("node", "worker")
        place = (kind.on, target if one_of_many else 0)
        # All but one node at a time may be disturbed, so that the run makes progress and takeovers happen.
        others = sum(
            1 for (on, which), until in busy.items() if on == "node" and which != target and until > at
        )
        if busy.get(place, 0.0) <= at and (kind.on != "node" or others < nodes - 1) and at + lasts < seconds:
            busy[place] = at + lasts + (1.0 if one_of_many else 3.0)
            faults.append(Fault(at, name, target, lasts, point if name.endswith("crash-point") else ""))
        at += random_.expovariate(1 / 2.0)
    return tuple(faults)
