"""What the engine says of every event of one actor in one pass of its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.actors.events import Decision, Event, Reply, Verdict
from sojourn.actors.joining import AT_ONCE
from sojourn.cluster.mail.mailbox import UNKNOWN_EVENTS, UNKNOWN_SECONDS, Mailbox
from sojourn.cluster.mail.mailroom import Item

from .hot_cache import Hot

if TYPE_CHECKING:
    from .serving import Serving


class Verdicts:
    """The events of a pass by what is to become of them."""

    __slots__ = ("consumed", "first", "more", "promised", "refused", "waiting")

    def __init__(self) -> None:
        self.first: tuple[Item, Decision] | None = None
        """The one to consume now."""
        self.more: list[Item] = []
        """Those that could be consumed after it, as the record stands."""
        self.consumed: list[Item] = []
        self.refused: list[tuple[Item, Decision]] = []
        self.waiting: list[Item] = []
        self.promised: list[tuple[Item, Reply]] = []
        """Of those that wait: whoever asked is to be told that it is kept."""


def verdicts(serving: Serving, hot: Hot, mailbox: Mailbox) -> Verdicts:
    """The verdict on every event in memory, in order."""
    decided = Verdicts()
    if not len(mailbox):
        return decided
    engine, now = serving.services.engine, serving.services.clock.now()
    for event in engine.order(mailbox.events()):
        item = mailbox.get(event.origin)
        decision = engine.decide(hot.record, event)
        match decision.verdict:
            case Verdict.CONSUME:
                if decided.first is None:
                    decided.first = (item, decision)
                elif len(decided.more) < AT_ONCE:
                    decided.more.append(item)
                else:
                    break  # these are taken first; the others are looked at when that has changed the record
            case Verdict.CONSUMED:
                decided.consumed.append(item)
            case Verdict.WAIT if item.homeless:
                decided.refused.append((item, Decision(Verdict.DEAD, "mailbox full")))
            case Verdict.WAIT if _is_hopeless(serving, hot, event, now):
                decided.refused.append((item, Decision(Verdict.DEAD, "no such actor")))
            case Verdict.WAIT:
                decided.waiting.append(item)
                if decision.reply is not None and not item.answered:
                    decided.promised.append((item, decision.reply))
            case _:
                decided.refused.append((item, decision))
    return decided


def _is_hopeless(serving: Serving, hot: Hot, event: Event, now: float) -> bool:
    """Mail for an actor without record is kept for an hour, and no more than the partition's bound (4.3)."""
    if hot.record is not None:
        return False
    if now - event.time >= UNKNOWN_SECONDS:
        return True
    return not event.held and serving.unknown_events >= UNKNOWN_EVENTS
