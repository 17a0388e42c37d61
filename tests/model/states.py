# ruff: noqa: N803, N806 - S and T are states, N a node, as is usual for transition systems
"""What a state of the model consists of: immutable values, compared and numbered by the search.

One partition. Nodes 0 and 1 may own it (*homes*); nodes 2 and 3, when a scenario has them, may own its lane. A node's *life* is
its lease; `Rec.runner` names one as the node's number + 1, and 0 for a life that is over, so that states which differ only in how many
lives there were are the same state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAIL, CTL, WAKE = 0, 1, 2
INGRESS = (MAIL, CTL, WAKE)
STREAM_NAMES = ("MAIL", "CTL", "WAKE")
OUTSIDE = -7
"""Sender of mail and control from outside."""
HOME, LANE = 0, 1
NONE: frozenset[Any] = frozenset()

Origin = tuple  # (stream, sequence); kept when the message is moved


class Msg(NamedTuple):
    """An event. `run`: of the sender, or the actor's own for timers and outcomes; `arg`: what it answers to."""

    origin: Origin
    actor: int
    kind: str
    ch: Any
    src: int
    op: int
    run: int
    arg: Any


class Out(NamedTuple):
    """An outbox entry. `run` is the run that made it, which a become does not change."""

    kind: str
    target: int
    ch: Any
    op: int
    run: int
    arg: Any


class Child(NamedTuple):
    """What a parent keeps of a child. `state`: r running, c told to cancel, e ended."""

    actor: int
    op: int
    run: int
    state: str


class Rec(NamedTuple):
    """A record. `st`: N none, R goes on after its commit, F goes on once an entry is flushed, L local step pending, Q queued step pending,
    B the next attempt of one waits for a timer, W waits, E waits for cancelled children, T ended, S sealed. `log` is a ghost: every mail
    that was ever consumed.
    """

    rev: int = 0
    epoch: int = 0
    lepoch: int = 0
    run: int = 0
    pc: int = 0
    st: str = "N"
    op: int = 1
    call: int = 0
    attempt: int = 0
    outbox: tuple = ()
    cset: frozenset = NONE
    lease: Origin | None = None
    seen: frozenset = NONE
    log: tuple = ()
    kids: frozenset = NONE
    timer: int = 0
    grace: int = 0
    canc: int = 0
    runner: int = 0
    parent: tuple | None = None
    lane: int = 0
    ends: tuple = ()


class Node(NamedTuple):
    """One node, as far as it serves the partition or its lane.

    `phase`: 0 not an owner; 1, 2, 3 cutting MAIL, CTL, WAKE; 4 taking HELD's fence and listing it; 6 serving.
    `mem`: events delivered and not acknowledged; `held`: (sequence, event) of the index of HELD. Per actor: `cache` its record,
    `flushed` entries known flushed, `looked` whether held events were read after the record, `ran` the call whose outcome is here,
    `judging` (on a lane) how far it is with the lease of a record that it loaded: 1 its source is not read, 2 it was read as gone.
    `gone`: origins whose source was read as gone; `sent`: acknowledgements of unknown outcome; `answered`: events whose answer or
    dead letter is stored; `orphan`: a call that runs on after a move; `pend`: a move of unknown outcome; `expect`: HELD's next sequence.
    """

    role: int
    phase: int
    epoch: int
    mem: frozenset
    held: frozenset
    cache: tuple
    flushed: tuple
    looked: tuple
    ran: tuple
    judging: tuple
    gone: frozenset
    sent: frozenset
    answered: frozenset
    orphan: tuple | None
    pend: tuple | None
    expect: int


class Budget(NamedTuple):
    """How often each fault may still happen."""

    crash: int = 0
    stale: int = 0
    cut: int = 0
    late: int = 0
    move: int = 0


class State(NamedTuple):
    """Everything. `owner`, `lane_owner`: (node, epoch); `ended`, `lane_ended`: that lease is over, or it is free.

    Ghosts: `execs` how often each call ran, `published` which outbox entries were ever stored, `bad` what an action found to be wrong.
    """

    streams: tuple
    nseq: tuple
    cons: tuple
    held: tuple
    hnext: int
    fence: tuple
    sched: frozenset
    dead: frozenset
    owner: tuple
    ended: bool
    lane_owner: tuple
    lane_ended: bool
    recs: tuple
    late: Any
    nodes: tuple
    bud: Budget
    ext: int
    execs: frozenset
    published: frozenset
    tasks: tuple
    worker: Any
    bad: str


def fresh_node(role: int, actors: int, orphan: tuple | None = None) -> Node:
    nothing = (0,) * actors
    return Node(
        role,
        0,
        0,
        NONE,
        NONE,
        (None,) * actors,
        (NONE,) * actors,
        nothing,
        (None,) * actors,
        nothing,
        NONE,
        NONE,
        NONE,
        orphan,
        None,
        0,
    )


def initial(actors: int, lanes: int, budget: Budget) -> State:
    nodes = tuple(fresh_node(HOME, actors) for _ in range(2)) + tuple(
        fresh_node(LANE, actors) for _ in range(lanes)
    )
    return State(
        streams=((), (), ()),
        nseq=(1, 1, 1),
        cons=((0, 0), (0, 0), (0, 0)),
        held=(),
        hnext=1,
        fence=(0, None),
        sched=NONE,
        dead=NONE,
        owner=(0, 0),
        ended=True,
        lane_owner=(2, 0),
        lane_ended=True,
        recs=(Rec(),) * actors,
        late=None,
        nodes=nodes,
        bud=budget,
        ext=0,
        execs=NONE,
        published=NONE,
        tasks=(),
        worker=None,
        bad="",
    )


def put(values: tuple, at: int, value: Any) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


def with_node(S: State, i: int, node: Node) -> State:
    return S._replace(nodes=put(S.nodes, i, node))


def copies(S: State, origin: Origin) -> tuple[bool, bool]:
    """Whether the source, and a held copy, of an event is stored."""
    source = any(m.origin == origin for m in S.streams[origin[0]])
    return source, any(h[1].origin == origin for h in S.held)


def relabel(S: State, lives: dict[int, int]) -> State:
    """Rename lives wherever a record names its runner."""

    def of(rec: Rec | None) -> Rec | None:
        if rec is None or rec.runner not in lives:
            return rec
        return rec._replace(runner=lives[rec.runner])

    late = S.late
    if late is not None and late[0] == "put":
        late = (late[0], late[1], late[2], of(late[3]))
    nodes = tuple(n._replace(cache=tuple(of(r) for r in n.cache)) for n in S.nodes)
    return S._replace(recs=tuple(of(r) for r in S.recs), late=late, nodes=nodes)


def canonical(S: State) -> State:
    """Nodes of one role are interchangeable: the one that owns is the first."""
    if S.owner[0] == 1:
        nodes = (S.nodes[1], S.nodes[0], *S.nodes[2:])
        S = relabel(S._replace(owner=(0, S.owner[1]), nodes=nodes), {1: 2, 2: 1})
    if S.lane_owner[0] == 3:
        nodes = (*S.nodes[:2], S.nodes[3], S.nodes[2])
        S = relabel(S._replace(lane_owner=(2, S.lane_owner[1]), nodes=nodes), {3: 4, 4: 3})
    return S
