"""Limits of DESIGN 8: the host stays responsible for what it runs. One immutable value, given to the engine
and the node.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one node allows. Sizes are bytes, times are seconds; each field says what happens at the bound."""

    frame_bytes: int = 512 * KIB
    """Pickled frame of one actor. Over it: `FrameTooLarge` at the await, with bytes by variable."""
    frame_warn_bytes: int = 64 * KIB
    """A frame larger than this is logged as a finding."""
    payload_bytes: int = 256 * KIB
    """Arguments or result of one step, start, spawn or send, and one mail. Over it: `PayloadTooLarge` at the
    call; mail is dead-lettered.
    """
    payload_depth: int = 64
    """Nesting of one payload. Over it: `PayloadTooDeep`."""
    sleep_seconds: float = 3653 * DAY
    """Longest sleep, timeout or delay (10 years). Over it: `LimitExceeded` at the await."""
    branches: int = 1_000
    """Coroutines of one actor at a time. Over it: `LimitExceeded` at the await."""
    children: int = 10_000
    """Children of one actor that have not ended. Over it: `LimitExceeded` at the await."""
    mailbox_messages: int = 10_000
    """Unread messages per channel. Over it: the sender is told `mailbox full`."""
    transitions_per_second: float = 200.0
    """Commits of one actor. Over it: the actor is slowed down to the limit, and it is a finding."""
    code_seconds: float = 5.0
    """Workflow code without an await. Over it: the guard reports the line."""
    stuck_seconds: float = 30.0
    """Workflow code without an await that the node survives: over it, the node's lease ends."""
    hot_actors: int = 10_000
    """Live coroutines kept in memory by one node; the least recently used are parked."""
    hot_bytes: int = 256 * MIB
    """Bytes of frames kept hot by one node."""
    step_threads: int = 32
    """Sync steps running at a time on one node; further ones queue."""
    running_steps: int = 1_000
    """Steps running at a time on one node, async ones included; further ones queue."""
    traceback_bytes: int = 8 * KIB
    """Text of one traceback kept in a record; cut in the middle."""
    retention_seconds: float = 7 * DAY
    """How long the record of an ended actor is kept."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"limit {field.name}: expected a positive number, received {value!r}")
        if self.frame_warn_bytes > self.frame_bytes:
            raise ValueError(
                f"limit frame_warn_bytes ({self.frame_warn_bytes}) is over frame_bytes "
                f"({self.frame_bytes}): it would never warn"
            )
