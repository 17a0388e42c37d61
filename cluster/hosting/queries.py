"""Answers to clients' questions about actors of this partition, on `sj.<ns>.q.<p>` (`actors.answers`).

A question never changes anything and never runs user code. It is answered from the hot cache, else from a leader read; at most a bounded
number at a time, so that a flood of them does not stand in the way of the actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from sojourn.actors import answers
from sojourn.actors.answers import Answer, Details, Question
from sojourn.broker.errors import BrokerError, InvalidName
from sojourn.broker.seam import Received, Subscription
from sojourn.broker.subjects import actor_id, token
from sojourn.cluster.steps.queues import state_of
from sojourn.codecs.record import Index, Origin, Record

from .commits import read_record
from .views import details

if TYPE_CHECKING:
    from sojourn.cluster.mail.mailbox import Mailbox

    from .serving import Serving

MAX_QUEUES: Final = 8
"""Queues of one actor's steps that an answer tells about."""
AT_ONCE: Final = 64
"""Questions of one partition that are answered at a time; further ones wait in their order."""


class Queries:
    """The answering side of one partition. Used on the engine's loop only."""

    def __init__(self, serving: Serving, mailbox_of: Callable[[str], Mailbox | None]) -> None:
        """`mailbox_of(actor)`: its events in memory, or None."""
        self._serving = serving
        self._mailbox_of = mailbox_of
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to answer."""
        services = self._serving.services
        subject = services.subjects.query(self._serving.p)
        self._subscription = await services.broker.subscribe(subject, self._receive)

    async def stop(self) -> None:
        """Answer no more: the next owner does."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()

    async def _receive(self, message: Received) -> None:
        async with self._slots:
            answer = await self._answer(message.payload)
            try:
                await self._serving.services.broker.reply(message, answers.encode(answer))
            except BrokerError as error:
                self._serving.services.log.info("an answer was not sent: %s", error)

    async def _answer(self, payload: bytes) -> Answer:
        question = answers.parse_question(payload)
        if question is None:
            return Answer("malformed", "expected a question about one actor")
        try:
            actor = actor_id(question.actor)
        except InvalidName as wrong:
            return Answer("invalid id", str(wrong))
        subjects = self._serving.services.subjects
        if self._serving.over or subjects.partition_of(actor) != self._serving.p:
            return Answer(answers.NOT_OWNED, "ask again: the partition has moved")
        try:
            return await self._about(question)
        except BrokerError as error:
            return Answer(answers.NOT_OWNED, f"the broker did not answer: {error}")
        except Exception as error:
            # Whoever asks gets an answer, and the log the place; the subscription's own handler would tell neither.
            services = self._serving.services
            services.log.exception("%s: a question could not be answered", question.actor)
            return Answer(answers.NOT_OWNED, f"a defect in Sojourn: {type(error).__name__}: {error}")

    async def _about(self, question: Question) -> Answer:
        services = self._serving.services
        hot = services.hot_cache.get(question.actor)
        record = hot.record if hot is not None else None
        if record is None:
            found = await read_record(services, question.actor)
            if found.unreadable is not None:
                return Answer(answers.UNREADABLE, str(found.unreadable.error))
            record = found.record
        if record is None:
            return Answer(answers.NO_SUCH_ACTOR, f"{question.actor}: never started, or past its retention")
        match question.what:
            case "result":
                return _result(record)
            case "state":
                return Answer(index=_brief(record), state=record.envelope.state)
            case "consumed":
                return Answer(index=_brief(record), consumed=await self._consumed(record, question.origin))
            case "describe":
                return Answer(index=record.index, details=await self._details(record))

    async def _details(self, record: Record) -> Details:
        services, actor = self._serving.services, record.index.actor
        names = dict.fromkeys(call.queue for call in record.index.queued)
        queues = {
            name: await state_of(services.broker, services.subjects, token(name))
            for name in tuple(names)[:MAX_QUEUES]
        }
        hot = self._serving.services.hot_cache.get(actor)
        mailbox = self._mailbox_of(actor)
        held = self._serving.held.of(actor)
        live = hot.live if hot is not None else None
        return details(services, record, live, tuple(mailbox or ()), held, queues)

    async def _consumed(self, record: Record, origin: Origin | None) -> bool:
        """Whether this mail was taken: it is in the set, or was and is gone from everywhere."""
        if origin is None:
            return False
        if origin in record.envelope.consumed:
            return True
        actor = record.index.actor
        mailbox = self._mailbox_of(actor)
        if (mailbox is not None and mailbox.has(origin)) or self._serving.held.has(actor, origin):
            return False
        if not await self._serving.floors.was_there(origin):
            return False
        return await self._serving.services.dead.read(origin) is None


def _result(record: Record) -> Answer:
    """How it ended; for one that is held, what holds it: whoever waits is told at once."""
    hold = record.envelope.hold
    if hold is not None and hold.kind == "quarantined":
        return Answer(index=_brief(record), message=hold.reason, traceback=hold.traceback)
    return Answer(index=_brief(record), outcome=record.envelope.outcome)


def _brief(record: Record) -> Index:
    """The index without what only `describe` shows: the last operations are the largest part of it."""
    return msgspec.structs.replace(record.index, operations=(), itinerary=())
