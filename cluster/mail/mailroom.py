"""Events of a partition in its owner's memory: what was delivered and not acknowledged, and what lies in HELD.

One event has one identity, its origin, whatever copies of it exist. An `Item` is an event that is loaded: its source may be in hand
(a delivery that waits for its acknowledgement), or a copy in HELD, or both for a moment while it moves. A `HeldRef` is all that is kept for
an event in HELD whose actor is not at work: about 200 bytes, without the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from sojourn.actors.events import Event
from sojourn.broker.seam import Delivery, Stored
from sojourn.broker.subjects import Ctl, Done, Mail, Send, Wake
from sojourn.codecs.record import Origin

Arrival: TypeAlias = Mail | Ctl | Done | Send | Wake


class Phase(Enum):
    """Where an item stands."""

    WAITING = "waiting"
    """Not consumed, or consumed by a commit whose record is not clean yet."""
    MOVING = "moving"
    """Given to the mover; whether it is in HELD is not known. Its actor consumes no mail meanwhile."""
    SETTLING = "settling"
    """Decided for good; acknowledgement or deletion is under way."""


@dataclass(slots=True, eq=False)
class Item:
    """One event with the copies of it that this owner knows."""

    event: Event
    parsed: Arrival
    """What its subject said."""
    stored: Stored
    """The message as read or delivered, for moves and dead letters."""
    arrived: float
    """Local monotonic seconds."""
    delivery: Delivery | None = None
    held_seq: int | None = None
    phase: Phase = Phase.WAITING
    homeless: bool = False
    """HELD refused it as full."""
    not_before: float = 0.0
    """Local monotonic seconds before which it is not decided on again."""
    answered: bool = False
    """Whoever asked was told that it waits."""
    seen_stored: bool = False
    """Its source was stored when that was read, after the record."""

    @property
    def origin(self) -> Origin:
        """The event's identity."""
        return self.event.origin


@dataclass(frozen=True, slots=True)
class HeldRef:
    """An event in HELD."""

    seq: int
    kind: str
    """"mail", "send", "ctl", "done", or the kind of a wake-up."""
    name: str
    """Channel, verb or operation."""
    time: float
    """When the event was first stored (broker time)."""

    @property
    def is_mail(self) -> bool:
        """Whether a workflow receives it, from outside or from another actor."""
        return self.kind in ("mail", "send")


class HeldOf:
    """The held events of one actor. Mail of one channel is moved in order of origin, so it is found here in that order."""

    __slots__ = ("mail", "others")

    def __init__(self) -> None:
        self.mail: dict[str, dict[Origin, HeldRef]] = {}
        """Per channel, the earliest first."""
        self.others: dict[Origin, HeldRef] = {}
        """What is no mail."""

    def __bool__(self) -> bool:
        return bool(self.others or self.mail)

    def __len__(self) -> int:
        return len(self.others) + sum(len(refs) for refs in self.mail.values())

    def __iter__(self) -> Iterator[tuple[Origin, HeldRef]]:
        yield from self.others.items()
        for refs in self.mail.values():
            yield from refs.items()

    def get(self, origin: Origin) -> HeldRef | None:
        """Where this event is held."""
        found = self.others.get(origin)
        if found is not None:
            return found
        for refs in self.mail.values():
            if origin in refs:
                return refs[origin]
        return None

    def add(self, origin: Origin, ref: HeldRef) -> None:
        """The event is held."""
        (self.mail.setdefault(ref.name, {}) if ref.is_mail else self.others)[origin] = ref

    def remove(self, origin: Origin) -> None:
        """Its held copy is gone."""
        if self.others.pop(origin, None) is None:
            for channel, refs in self.mail.items():
                if refs.pop(origin, None) is not None:
                    if not refs:
                        del self.mail[channel]
                    return


_NOTHING = HeldOf()


class HeldIndex:
    """Every event in HELD of one partition, by actor and origin."""

    def __init__(self) -> None:
        self._actors: dict[str, HeldOf] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._actors.values())

    def __repr__(self) -> str:
        return f"<HeldIndex {len(self)} events of {len(self._actors)} actors>"

    def actors(self) -> Iterator[str]:
        """Actors that have held events."""
        return iter(tuple(self._actors))

    def of(self, actor: str) -> HeldOf:
        """The held events of one actor; not to be changed."""
        return self._actors.get(actor, _NOTHING)

    def get(self, actor: str, origin: Origin) -> HeldRef | None:
        """Where this event of an actor is held, or None."""
        held = self._actors.get(actor)
        return held.get(origin) if held is not None else None

    def has(self, actor: str, origin: Origin) -> bool:
        """Whether a held copy of this event exists."""
        return self.get(actor, origin) is not None

    def add(self, actor: str, origin: Origin, ref: HeldRef) -> None:
        """An event is in HELD."""
        self._actors.setdefault(actor, HeldOf()).add(origin, ref)

    def remove(self, actor: str, origin: Origin) -> None:
        """Its held copy is gone. Nothing happens when none was known."""
        held = self._actors.get(actor)
        if held is not None:
            held.remove(origin)
            if not held.others and not held.mail:
                del self._actors[actor]

    def forget(self, actor: str) -> None:
        """The actor's held events are another's to read."""
        self._actors.pop(actor, None)

    def replace(self, listed: Iterable[tuple[str, Origin, HeldRef]]) -> None:
        """Start again from a list of the stream, in its order."""
        self._actors.clear()
        for actor, origin, ref in listed:
            self.add(actor, origin, ref)
