"""Where an actor can be run: the one place in which pins are resolved (DESIGN 5, 7, PROTOCOL 8).

A frame is resumed by a node that has every identity in its pin, whatever its label; a frame pinned to a deployment
(`@workflow(pin="deployment")`) by that deployment only; and a run that has not begun by the deployment that was chosen
for it, as long as that one has living nodes. Where several could run it, an actor stays with the deployment that ran it
last while new actors begin there: else half of them would call into code that the policy keeps them from (ADR 0039).
Whoever owns the actor's partition and may not run it looks here for the deployment that may, and the lane node that
runs the actor looks here whether the owner could do it itself.

Other ways to satisfy a pin (code fetched from storage, a frame moved to newer code) belong here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.actors.engine import Engine
    from sojourn.actors.events import Event
    from sojourn.codecs.record import Record

    from .deployment import Deployment
    from .versions import Versions

REFUSED_BY: Final = "lane "
"""Begin of `Hold.by` when the nodes of a lane could not resume the frame after all; the label follows."""


class Pins(Protocol):
    """What a served partition or lane asks. All answers come from memory."""

    def refuses(self, record: Record) -> str:
        """Why this process may not run the actor although it might have its code; empty when it may."""

    def missing(self, record: Record) -> tuple[str, ...]:
        """Why this process cannot run the actor; empty when it can."""

    def elsewhere(self, record: Record) -> str:
        """A deployment with living nodes that can run the actor; empty when there is none."""

    def has_nodes(self, label: str) -> bool:
        """Whether living nodes run this deployment and take work."""

    def home_can(self, p: int, record: Record) -> bool:
        """Whether the owner of the partition is known to be able to run the actor."""

    def for_start(self, event: Event) -> str:
        """The deployment on which this start begins, decided once; this process's own when there is no choice."""


class LonePins:
    """There is one deployment: what is not here is nowhere."""

    def __init__(self, engine: Engine, own: str) -> None:
        """`own`: label of this process's code."""
        self._engine = engine
        self._own = own

    def __repr__(self) -> str:
        """Whose."""
        return f"<LonePins {self._own}>"

    def refuses(self, record: Record) -> str:
        """See `Pins`."""
        return _label_refuses(record, self._own)

    def missing(self, record: Record) -> tuple[str, ...]:
        """See `Pins`."""
        refused = self.refuses(record)
        return (refused,) if refused else tuple(one.reason for one in self._engine.missing(record))

    def elsewhere(self, record: Record) -> str:
        """See `Pins`."""
        return ""

    def has_nodes(self, label: str) -> bool:
        """See `Pins`."""
        return label == self._own

    def home_can(self, p: int, record: Record) -> bool:
        """See `Pins`."""
        return False

    def for_start(self, event: Event) -> str:
        """See `Pins`."""
        return self._own


class ClusterPins:
    """Resolves against every deployment that is registered and has living nodes."""

    def __init__(self, engine: Engine, versions: Versions) -> None:
        """`versions`: the node's picture of them."""
        self._engine = engine
        self._versions = versions
        self._unsure: set[str] = set()
        """Deployments whose nodes could not resume a frame of their own label: nobody stays with those."""

    def __repr__(self) -> str:
        """Over what."""
        return f"<ClusterPins {self._versions!r}>"

    def refuses(self, record: Record) -> str:
        """See `Pins`."""
        own = self._versions.own
        refused = _label_refuses(record, own.label)
        if refused:
            return refused
        chosen = record.index.deployment
        if not not_begun(record):
            stays = record.index.lane != own.label and self._stays_with(record, other_than=own)
            return (
                f"it goes on with deployment {chosen} while new ones begin there, this is {own.label}"
                if stays
                else ""
            )
        if chosen != own.label and self._versions.has_nodes(chosen):
            return f"it begins on deployment {chosen}, this is {own.label}"
        if record.index.workflow not in own.workflows:
            return f"workflow {record.index.workflow} is not in deployment {own.label}"
        return ""

    def missing(self, record: Record) -> tuple[str, ...]:
        """See `Pins`."""
        refused = self.refuses(record)
        return (refused,) if refused else tuple(one.reason for one in self._engine.missing(record))

    def elsewhere(self, record: Record) -> str:
        """The deployment that ran the actor last comes first: it has what the frame stands in."""
        refused_by = _refused_by(record)
        living = self._versions.living()
        first: Iterable[str] = (record.index.deployment,) if record.index.deployment in living else ()
        for label in dict.fromkeys((*first, *living)):
            if label not in (refused_by, self._versions.own.label) and self._can(living[label], record):
                return label
        return ""

    def _can(self, deployment: Deployment, record: Record) -> bool:
        return satisfies(deployment, record, self._versions.known(record.index.deployment))

    def has_nodes(self, label: str) -> bool:
        """See `Pins`."""
        return self._versions.has_nodes(label)

    def home_can(self, p: int, record: Record) -> bool:
        """See `Pins`."""
        home = self._versions.home(p)
        if home is None or not_begun(record) or self._stays_with(record, other_than=home):
            return False
        return self._can(home, record)

    def _stays_with(self, record: Record, *, other_than: Deployment) -> bool:
        """Whether the actor goes on with the deployment that ran it last, although another might have its code too."""
        if refused_by := _refused_by(record):
            self._unsure.add(refused_by)
        last = record.index.deployment
        return last != other_than.label and last not in self._unsure and self._versions.receives(last)

    def for_start(self, event: Event) -> str:
        """See `Pins`."""
        about = f"{event.actor}/{event.origin.created}/{event.origin.seq}"
        return self._versions.for_start(str(event.body.get("workflow")), about)


def not_begun(record: Record) -> bool:
    """Whether the run's code has not run yet: it waits for its start."""
    return any(wait.kind == "start" for wait in record.envelope.waits)


def satisfies(deployment: Deployment, record: Record, ran_by: Deployment | None) -> bool:
    """Whether a deployment, by what it registered, can run the actor. `ran_by`: the one that ran it last, if known."""
    if record.index.pinned_to:
        return record.index.pinned_to == deployment.label
    if not_begun(record):
        return record.index.workflow in deployment.workflows
    if deployment.label == record.index.deployment:
        return True  # it stored the frame
    return not deployment.lacks(record.index.pin, ran_by)


def _refused_by(record: Record) -> str:
    """The deployment whose lane node held the actor because it could not resume it; empty: none."""
    hold = record.envelope.hold
    lane = hold is not None and hold.kind == "pin" and hold.by.startswith(REFUSED_BY)
    return hold.by.removeprefix(REFUSED_BY) if hold is not None and lane else ""


def _label_refuses(record: Record, own: str) -> str:
    label = record.index.pinned_to
    return f"it is pinned to deployment {label}, this is {own}" if label not in ("", own) else ""
