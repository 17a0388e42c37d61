"""`current`: what the running code can know of itself. `current.actor` in workflows and steps, `current.step`
in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, final

import msgspec
from sojourn.codecs.data import Type
from sojourn.codecs.errors import SojournError

from .errors import Cancelled
from .inside import current_driver

_JSON = Type(Any)


def operation_id(actor: str, run: str, op: int) -> str:
    """The id of an operation (PROTOCOL 2): never used for another."""
    return f"{actor}/{run}/{op}"


class NoCurrent(SojournError, LookupError):
    """`current.actor` was asked for outside of workflows and steps, or `current.step` outside of steps."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)
        self.what = what
        self.where = where

    def __str__(self) -> str:
        return f"current.{self.what} is there in {self.where} only, while a node runs them"


@dataclass(frozen=True, slots=True)
class CurrentActor:
    """The actor whose code runs."""

    id: str
    run: str
    """Its present life; a restart is another run."""
    workflow: str
    deployment: str
    time: float
    """The broker's clock at this turn (in a step: at the start of the attempt), Unix seconds; never goes back
    for one actor.
    """

    @property
    def now(self) -> datetime:
        """`time` as a `datetime` in UTC."""
        return datetime.fromtimestamp(self.time, UTC)


@final
class CurrentStep:
    """One attempt of a step, as its own code sees it. Safe to use from any thread."""

    __slots__ = ("_beat", "_cancelled", "attempt", "deadline", "key", "last_heartbeat", "name")

    def __init__(
        self,
        *,
        key: str,
        name: str,
        attempt: int,
        deadline: float,
        last_heartbeat: Any = None,
        beat: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.key = key
        """The operation id, "<actor>/<run>/<n>": the same in all attempts. Made for idempotency keys of other
        systems.
        """
        self.name = name
        self.attempt = attempt
        """1 for the first."""
        self.deadline = deadline
        """When this attempt times out, Unix seconds by the broker's clock."""
        self.last_heartbeat = last_heartbeat
        """What an earlier attempt on this node said last with `heartbeat(details)`, or None."""
        self._beat = beat
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more: the workflow was cancelled or has ended, or the
        attempt timed out.
        """
        return self._cancelled

    def heartbeat(self, details: Any = None) -> None:
        """Say that the step lives, with a JSON value of how far it is; shown by `describe`, and given to the
        next attempt on this node.

        Raises `Cancelled` if nobody waits for the step any more, `PayloadError` if `details` is no JSON
        value.
        """
        self._beat(_JSON.encode(details))
        if self._cancelled:
            raise Cancelled("nobody waits for this step any more")

    def __repr__(self) -> str:
        return (
            f"<step {self.name} {self.key}, attempt {self.attempt}{', cancelled' if self.cancelled else ''}>"
        )


def cancel(step: CurrentStep) -> None:
    """Tell a running step that nobody waits for it (for the runner)."""
    step._cancelled = True


def decoded(details: bytes | None) -> Any:
    """Heartbeat details as a value."""
    return None if details is None else msgspec.json.decode(details)


step_variable: ContextVar[CurrentStep] = ContextVar("sojourn_step")
actor_variable: ContextVar[CurrentActor] = ContextVar("sojourn_actor")


@final
class Current:
    """What the running code can know of itself; there is one, `sojourn.current`."""

    __slots__ = ()

    @property
    def actor(self) -> CurrentActor:
        """The actor this workflow or step belongs to: its `id`, `run`, `workflow`, `deployment`, `time` (the broker's, Unix
        seconds) and `now` (the same as a `datetime`). Raises `NoCurrent` elsewhere."""
        driver = current_driver()
        if driver is not None:
            draft = driver.draft
            index = draft.base.index
            return CurrentActor(index.actor, index.run, index.workflow, draft.facts.deployment, draft.now)
        try:
            return actor_variable.get()
        except LookupError:
            raise NoCurrent("actor", "workflows and steps") from None

    @property
    def step(self) -> CurrentStep:
        """This attempt of the step: its `key` (the same in every attempt), `name`, `attempt` (from 1), `deadline`, `cancelled`,
        `heartbeat(details)` and `last_heartbeat`. Raises `NoCurrent` elsewhere, in workflow code too."""
        found = step_variable.get(None)
        if found is None or current_driver() is not None:
            raise NoCurrent("step", "steps")
        return found

    def __repr__(self) -> str:
        return "<sojourn.current>"


current = Current()
