"""One workflow in a `World`, as a test sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from sojourn.actors.channel import Channel, encode_mail
from sojourn.actors.errors import (
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowQuarantined,
    WorkflowTerminated,
)
from sojourn.actors.outcomes import rejected
from sojourn.codecs.data import rebuild_exception
from sojourn.codecs.durations import Duration, duration
from sojourn.codecs.record import Outcome, Record

if TYPE_CHECKING:
    from .world import World

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Executed:
    """One attempt of a step that ran."""

    step: str
    attempt: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outcome: str
    """"ok", "error", "rejected", "timeout" or "cancelled"."""


class Rehearsal(Generic[R]):
    """A workflow in a world. What it shows is what its stored record says. `executed`: attempts of its steps, in order; `dead`: why mail
    to it went to the dead letters; `warnings`: what a node would log of its code.
    """

    def __init__(self, world: World, id: str) -> None:
        self._world = world
        self.id = id
        self.executed: list[Executed] = []
        """Attempts of its steps, in order."""
        self.dead: list[str] = []
        """Why messages to it went to the dead letters."""
        self.warnings: list[str] = []
        """What a node would log of its code: tasks that failed and that nobody awaited."""

    def __repr__(self) -> str:
        record = self._world.record(self.id)
        seen = f"{record.index.status}, {record.index.wait or 'no wait'}" if record else "not started"
        return f"<Rehearsal {self.id}: {seen}>"

    @property
    def record(self) -> Record:
        """What is stored of it. Raises `LookupError` before its start was taken."""
        record = self._world.record(self.id)
        if record is None:
            raise LookupError(f"{self.id} has no record: its start was refused ({self.dead})")
        return record

    @property
    def status(self) -> str:
        """`suspended`, `completed`, ..."""
        return str(self.record.index.status)

    @property
    def hold(self) -> str:
        """ "paused", "quarantined" or ""."""
        return self.record.index.hold

    @property
    def wait(self) -> str:
        """What it waits for, in words: `receive approval`, `sleep until ...`, `child c1`."""
        return self.record.index.wait

    @property
    def stage(self) -> str:
        """The label it set last."""
        return self.record.index.stage

    @property
    def frame_bytes(self) -> int:
        """Size of its stored frame."""
        return self.record.index.frame_bytes

    @property
    def children(self) -> list[Rehearsal[Any]]:
        """Its children, in the order of their start."""
        children = sorted(self.record.envelope.children.values(), key=lambda child: child.op)
        return [self._world.rehearsal(child.id) for child in children]

    def state(self) -> Any:
        """What it published last."""
        return msgspec.json.decode(self.record.envelope.state)

    def result(self) -> R:
        """What it returned; raises as `Handle.result` does. Raises `RuntimeError` while it has not ended."""
        index, envelope = self.record.index, self.record.envelope
        if index.hold == "quarantined" and envelope.hold is not None:
            hold = envelope.hold
            held = WorkflowQuarantined(
                self.id,
                workflow=index.workflow,
                run=index.run,
                message=hold.reason,
                traceback=hold.traceback,
            )
            held.add_note(hold.traceback)  # so that the test's report shows the line
            raise held
        if envelope.outcome is None:
            raise RuntimeError(f"{self.id} has not ended: it is {index.status} ({index.wait or 'no wait'})")
        return self._value(envelope.outcome)

    def _value(self, outcome: Outcome) -> R:
        index = self.record.index
        workflow = self._world.registry.workflows.get(index.workflow)
        if outcome.kind == "value" and workflow is not None:
            value: R = workflow.signature.decode_result(bytes(outcome.value))
            return value
        if outcome.kind == "rejected":
            raise rejected(outcome)
        info = outcome.error
        kind = {"cancelled": WorkflowCancelled, "terminated": WorkflowTerminated}.get(
            outcome.kind, WorkflowFailed
        )
        if info is None:
            raise kind(self.id, workflow=index.workflow, run=index.run)
        error = kind(
            self.id,
            workflow=index.workflow,
            run=index.run,
            type=info.type,
            message=info.message,
            traceback=info.traceback,
        )
        raise error from rebuild_exception(info, declared=workflow.raises if workflow is not None else ())

    # what one does to it

    async def signal(self, channel: Channel[Any] | str, value: Any = None) -> None:
        """Send mail to it, as any client would; JSON by the channel's type."""
        known = channel if isinstance(channel, Channel) else Channel(channel)
        await self._world.mail(self.id, known.name, encode_mail(known.type, known.name, value))

    async def cancel(self, reason: str = "", *, grace: Duration | None = None) -> None:
        """Ask it to end; its cleanup runs."""
        body = {"reason": reason, "by": "test"}
        await self._world.control(self.id, "cancel", body | ({"grace": duration(grace)} if grace else {}))

    async def terminate(self, reason: str = "") -> None:
        """End it without cleanup."""
        await self._world.control(self.id, "terminate", {"reason": reason, "by": "test"})

    async def release(self) -> None:
        """Let it try again after a quarantine (once the test has mended what was wrong)."""
        await self._world.control(self.id, "release", {"by": "test"})
