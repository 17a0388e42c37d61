# ruff: noqa: N803, N806 - S and T are states, N a node, as is usual for transition systems
"""Breadth-first search, exact: states are compressed component by component, never hashed away.

The first violation has the shortest trace.
"""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from .properties import check_end, check_state
from .rules import Config
from .states import State, canonical, initial
from .system import successors

_FAULTY = 0.04
"""How often a walk takes a fault where one is left."""
_NODES = State._fields.index("nodes")


@dataclass
class Result:
    """What a search found."""

    name: str
    states: int = 0
    edges: int = 0
    ends: int = 0
    """States in which nothing but a fault can happen."""
    depth: int = 0
    complete: bool = False
    """Every state was looked at (never when something is wrong)."""
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        verdict = self.violation or ("complete, nothing found" if self.complete else "stopped, nothing found")
        return (
            f"{self.name:<32} {self.states:>9,} states {self.edges:>10,} edges {self.ends:>6,} ends "
            f"depth {self.depth:>3} {self.seconds:6.1f} s  {verdict}"
        )


class _Store:
    """States as bytes: each component is kept once and has a number."""

    def __init__(self, nodes: int) -> None:
        self._ids: dict[object, int] = {}
        self._values: list[tuple] = []
        self._format = struct.Struct(f"{len(State._fields) - 1 + nodes}I")
        self._places = [j for j in range(len(State._fields)) if j != _NODES]

    def _number(self, value: tuple) -> int:
        number = self._ids.get(value)
        if number is None:
            number = self._ids[value] = len(self._values)
            self._values.append(value)
        return number

    def pack(self, S: State) -> bytes:
        number = self._number
        numbers = [number((j, S[j])) for j in self._places]
        numbers += [number(("n", node)) for node in S.nodes]
        return self._format.pack(*numbers)

    def unpack(self, packed: bytes) -> State:
        values = [self._values[k][1] for k in self._format.unpack(packed)]
        parts, nodes = values[: len(self._places)], tuple(values[len(self._places) :])
        return State(*parts[:_NODES], nodes, *parts[_NODES:])


def explore(cfg: Config, *, max_states: int = 3_000_000, seconds: float = 600.0) -> Result:
    """Search until everything was seen, something is wrong, or a bound is reached."""
    began = time.monotonic()
    result = Result(cfg.name)
    start = canonical(initial(cfg.actors, cfg.scenario.lanes, cfg.budget))
    store = _Store(len(start.nodes))
    first = store.pack(start)
    parent: dict[bytes, bytes | None] = {first: None}
    queue = deque([first])
    level_end, wrong = first, None
    while queue:
        packed = queue.popleft()
        S = store.unpack(packed)
        goes_on = False
        for _, is_fault, T in successors(S, cfg):
            T = canonical(T)
            result.edges += 1
            goes_on = goes_on or not is_fault
            key = store.pack(T)
            if key in parent:
                continue
            parent[key] = packed
            queue.append(key)
            result.violation = check_state(T, cfg)
            if result.violation:
                wrong = key
                break
        if not result.violation and not goes_on:
            result.ends += 1
            result.violation = check_end(S, cfg)
            wrong = packed if result.violation else None
        if result.violation:
            break
        if packed == level_end and queue:
            result.depth += 1
            level_end = queue[-1]
        if len(parent) > max_states or time.monotonic() - began > seconds:
            break
    else:
        result.complete = True
    result.states = len(parent)
    if wrong is not None:
        result.trace = _trace(cfg, store, parent, wrong)
    result.seconds = time.monotonic() - began
    return result


def _trace(cfg: Config, store: _Store, parent: dict[bytes, bytes | None], last: bytes) -> list[str]:
    path = [last]
    while (before := parent[path[-1]]) is not None:
        path.append(before)
    path.reverse()
    lines = []
    for here, there in zip(path, path[1:]):  # noqa: B905, RUF007 (PyPy is 3.9: neither strict nor pairwise)
        for label, is_fault, T in successors(store.unpack(here), cfg):
            if store.pack(canonical(T)) == there:
                lines.append(("* " if is_fault else "  ") + label)
                break
    return lines


def walk(cfg: Config, *, seed: int, walks: int = 1_000, steps: int = 200, seconds: float = 600.0) -> Result:
    """Random walks, each to a state in which nothing can happen any more: as deep as a scenario goes, where the search stays shallow.

    The same seed takes the same walks. What it finds is true, its trace is not the shortest, and nothing found says little.
    """
    began, choose = time.monotonic(), random.Random(seed)
    result = Result(f"{cfg.name} walks")
    start = canonical(initial(cfg.actors, cfg.scenario.lanes, cfg.budget))
    for _ in range(walks):
        S, trace = start, []
        for _ in range(steps):
            following = successors(S, cfg)
            ordinary = [x for x in following if not x[1]]
            faults = [x for x in following if x[1]]
            if not ordinary:
                result.ends += 1
                result.violation = check_end(S, cfg)
                break
            label, is_fault, S = choose.choice(faults if faults and choose.random() < _FAULTY else ordinary)
            S = canonical(S)
            trace.append(("* " if is_fault else "  ") + label)
            result.edges += 1
            result.violation = check_state(S, cfg)
            if result.violation:
                break
        result.states += len(trace)
        result.depth = max(result.depth, len(trace))
        if result.violation:
            result.trace = trace
            break
        if time.monotonic() - began > seconds:
            break
    result.seconds = time.monotonic() - began
    return result
