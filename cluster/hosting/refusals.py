"""Ending events of one actor that change nothing: their answers, their dead letters, their acknowledgements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sojourn.actors.events import Decision, Event, Message
from sojourn.actors.wire import undelivered
from sojourn.broker.errors import Refused
from sojourn.cluster.mail.mailbox import Mailbox
from sojourn.cluster.mail.mailroom import Item

from .hot_cache import Hot
from .known_record import KnownRecord
from .outbox import answer, send_reply
from .turner import Turner

if TYPE_CHECKING:
    from .serving import Serving

AGAIN_SECONDS: Final = 1.0
"""Between two looks for a record that is not there yet."""
AT_ONCE: Final = 64
"""Dead letters and answers of one actor on the wire at a time."""


class Refusals:
    """Of one actor. Used by its host's loop only."""

    def __init__(self, serving: Serving, mailbox: Mailbox, known: KnownRecord, turner: Turner) -> None:
        self._serving = serving
        self._mailbox = mailbox
        self._known = known
        self._turner = turner

    async def refuse(self, hot: Hot, refused: list[tuple[Item, Decision]]) -> bool:
        """Decided on a leader read: the record in memory has to be the newest one before an event is given up."""
        if not await self._known.is_newest(hot):
            self._known.forget()
            return True
        if any(_may_be_of_a_later_run(hot, item.event) for item, _ in refused) and await self._comes_yet(hot):
            self._known.forget()
            return True
        for item, _ in refused:
            if _names_the_future(hot, item.event):
                # Told on a leader read: the record, not the message, is what went back (I8).
                await self._turner.quarantine(
                    f"storage went back: a {item.event.kind} names what the record has yet to do"
                )
                return True
        for start in range(0, len(refused), AT_ONCE):
            part = refused[start : start + AT_ONCE]
            await asyncio.gather(*(self._refuse_one(item, decision) for item, decision in part))
        return True

    async def _comes_yet(self, hot: Hot) -> bool:
        """Whether the leader of the records was behind, and has come on: it is given as much time as for what else it says is not there
        (`broker.absence`).
        """
        left = self._serving.services.patience
        while left > 0:
            await asyncio.sleep(AGAIN_SECONDS)
            left -= AGAIN_SECONDS
            if not await self._known.is_newest(hot):
                return True
        return False

    async def _refuse_one(self, item: Item, decision: Decision) -> None:
        services = self._serving.services
        for message in decision.answers:
            await answer(services, message)
        notice = undelivered(item.event, decision.reason)
        tell = None if notice is None else lambda: self._tell_sender(notice)
        await self._mailbox.refuse(item, decision, tell)
        if decision.reply is not None:
            await send_reply(services, decision.reply)

    async def _tell_sender(self, notice: Message) -> None:
        """Mail of an actor is dead: it is told (4.2). When it can take no more messages it is not: two that are full must not
        wait for each other.
        """
        try:
            await answer(self._serving.services, notice)
        except Refused:
            self._serving.services.meter.count("senders_not_told")


def _may_be_of_a_later_run(hot: Hot, event: Event) -> bool:
    """Whether an internal message may have been caused by a record that is newer than the one that was read: there is none, or it is of
    another run and older than the message. (Within a run the numbers of operations tell.)
    """
    record, run = hot.record, event.body.get("run")
    if event.kind not in ("timer", "done", "child-done", "refused", "undelivered") or not isinstance(
        run, str
    ):
        return False
    return record is None or (run != record.index.run and event.time >= record.index.updated)


def _names_the_future(hot: Hot, event: Event) -> bool:
    """Whether an internal message names an operation of this run that its record has not begun."""
    record, number = hot.record, event.body.get("n" if event.kind == "timer" else "op")
    return (
        record is not None
        and not record.index.status.ended
        and record.envelope.hold is None
        and event.kind in ("timer", "done", "child-done", "refused")
        and event.body.get("run") == record.index.run
        and isinstance(number, int)
        and number >= record.envelope.next_op
    )
