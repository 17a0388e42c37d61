"""Faults of the in-memory twin: what a network, a crash or a slow disk does to one operation.

A fault is decided before an operation is carried out, by an injected one (`Faults.inject`, first in, first
used) or by `Faults.decide`, a function for seeded simulations. Both see the operation's name and the
messages it would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sojourn.broker.seam import Publish


class Fault(Enum):
    """What happens to one operation. In all but `NONE` the caller gets `OutcomeUnknown`."""

    NONE = "none"
    DROP = "drop"
    """It never arrives. For `deliver`: the message is sent into a dead connection, and the pull sees the gap.
    """
    LOSE_REPLY = "lose reply"
    """It is done, the answer is lost."""
    DELAY = "delay"
    """It arrives later, when `MemoryServer.release_delayed` is called: after its sender gave up."""


Decide: TypeAlias = Callable[[str, Sequence[Publish]], Fault]
When: TypeAlias = Callable[[str, Sequence[Publish]], bool]


@dataclass(slots=True)
class _Injected:
    fault: Fault
    left: int
    when: When


class Faults:
    """Faults of one server. Operations are named as the seam's methods, deliveries `deliver`."""

    def __init__(self) -> None:
        self._injected: list[_Injected] = []
        self.decide: Decide = lambda operation, messages: Fault.NONE
        """Asked when no injected fault applies."""

    def __repr__(self) -> str:
        return f"<Faults injected={sum(entry.left for entry in self._injected)}>"

    def inject(self, fault: Fault, *, times: int = 1, when: When | None = None) -> None:
        """Apply this fault to the next `times` operations for which `when` holds (default: publishes)."""
        self._injected.append(_Injected(fault, times, when or _is_publish))

    def take(self, operation: str, messages: Sequence[Publish]) -> Fault:
        """The fault for this operation."""
        for entry in self._injected:
            if entry.when(operation, messages):
                entry.left -= 1
                if entry.left <= 0:
                    self._injected.remove(entry)
                return entry.fault
        return self.decide(operation, messages)


def _is_publish(operation: str, messages: Sequence[Publish]) -> bool:
    return operation in ("publish", "publish_batch")
