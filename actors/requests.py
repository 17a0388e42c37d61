"""How a client talks to the owner of an actor: stored requests that are answered to an inbox, and plain
questions.

A request (start, cancel, ...) is stored in the control stream, so it is carried out even if the client or the
owner dies; its answer is one plain message and may be lost. It therefore carries a request id, and is sent
again when no answer came: the owner that has carried it out answers again without doing anything (PROTOCOL
6). Storing is repeated under one message id for as long as its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import orjson
from sojourn.broker.errors import NoResponders, OutcomeUnknown
from sojourn.broker.frames import FrameStore
from sojourn.broker.index_headers import IndexFacts, parse_index_headers
from sojourn.broker.seam import Ack, Broker, Publish, Received, Subscription
from sojourn.broker.subjects import ActorId, Subjects, token
from sojourn.codecs.data import UNDECODABLE
from sojourn.codecs.errors import RecordError
from sojourn.codecs.record import Index
from sojourn.codecs.seal import read_index

from .answers import NOT_OWNED, Answer, Question, encode, parse_answer
from .errors import NoAnswer

LOOK_AGAIN: Final = 5.0
"""Seconds after which whoever waits looks again, whatever it was told or not told (PROTOCOL 6)."""

SEND_AGAIN: Final = (5.0, 20.0)
"""Seconds until an unanswered request is sent again: the first time, and at most."""

STORE_AGAIN: Final = (0.1, 2.0)
"""Seconds between tries to store a message whose outcome is unknown: the first time, and at most."""

QUESTION_TIMEOUT: Final = 2.0


class Requests:
    """Requests and questions of one client over one connection."""

    def __init__(
        self,
        broker: Broker,
        subjects: Subjects,
        *,
        ids: Callable[[], str],
        random: Callable[[], float],
        inbox_prefix: str = "_INBOX",
    ) -> None:
        """`ids` makes unguessable ids, `random` draws from [0, 1)."""
        self.broker = broker
        self.subjects = subjects
        self.ids = ids
        self._random = random
        self._frames = FrameStore(broker, subjects)
        self._inbox = f"{inbox_prefix}.{ids()}"
        self._inbox_open: asyncio.Lock = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._hints: set[asyncio.Event] = set()
        broker.on_connection(self._reconnected)

    async def close(self) -> None:
        """Stop listening for answers. Twice is fine."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()

    async def ask(self, actor: ActorId, verb: str, body: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Store a control message and return its owner's answer, `{"ok": ...}`.

        `body["request"]` is the request id. Raises `NoAnswer` after `seconds`: the message may be stored
        then, and be carried out later.
        """
        await self._open_inbox()
        request, sending = str(body["request"]), self.ids()
        subject = self.subjects.ctl(actor, token(verb))
        with self._answer() as (inbox, answer):
            payload = orjson.dumps({**body, "reply": inbox})
            try:
                async with asyncio.timeout(seconds):
                    for number, pause in enumerate(self.growing(SEND_AGAIN)):
                        await self.store(Publish(subject, payload, msg_id=f"{sending}-{number}"))
                        done, _ = await asyncio.wait((answer,), timeout=pause)
                        if done:
                            return answer.result()
            except TimeoutError:
                hint = "what was stored will be carried out when a node serves its partition"
                raise NoAnswer(actor, request=request, seconds=seconds, hint=hint) from None
        raise AssertionError("unreachable: the growing pauses do not end")

    async def store(self, message: Publish) -> Ack:
        """Store a message; repeated under its message id while the outcome is unknown. Raises what certainly
        was not stored.
        """
        for pause in self.growing(STORE_AGAIN):
            try:
                return await self.broker.publish(message)
            except OutcomeUnknown:
                await asyncio.sleep(pause)
        raise AssertionError("unreachable: the growing pauses do not end")

    async def question(self, question: Question) -> Answer | None:
        """What the owner answers; None when nobody does just now."""
        actor = ActorId(question.actor)
        subject = self.subjects.query(self.subjects.partition_of(actor))
        try:
            received = await self.broker.request(subject, encode(question), timeout=QUESTION_TIMEOUT)
        except (NoResponders, OutcomeUnknown):
            return None
        answer = parse_answer(received.payload)
        return None if answer is None or answer.error == NOT_OWNED else answer

    async def index(self, actor: ActorId) -> Index | None:
        """The public facts of an actor, from the leader; None when there is no record. Raises
        `OutcomeUnknown`.
        """
        record = await self._frames.read(actor)
        if record is None or not record.data:
            return None
        try:
            return read_index(record.data)
        except RecordError:
            return None

    def indexes(self) -> AsyncIterator[Index]:
        """The public facts of every actor, each once, from any replica."""
        return self._frames.newest_indexes()

    @asynccontextmanager
    async def changes(
        self, actor: ActorId, *, matters: Callable[[IndexFacts], bool] = lambda _: True
    ) -> AsyncIterator[Changes]:
        """Hints that an actor may have changed, for as long as the block lasts. Headers tell which matter."""
        hint = asyncio.Event()

        async def changed(message: Received) -> None:
            facts = parse_index_headers(message.headers)
            if facts is None or matters(facts):
                hint.set()

        self._hints.add(hint)
        try:
            subscription = await self._subscribe(self.subjects.changed(actor), changed)
            try:
                yield Changes(hint, self._random)
            finally:
                await subscription.stop()
        finally:
            self._hints.discard(hint)

    async def _subscribe(self, subject: str, on_message: Any) -> Subscription:
        for pause in self.growing(STORE_AGAIN):
            try:
                return await self.broker.subscribe(subject, on_message)
            except OutcomeUnknown:
                await asyncio.sleep(pause)
        raise AssertionError("unreachable: the growing pauses do not end")

    async def _open_inbox(self) -> None:
        async with self._inbox_open:
            if self._subscription is None:
                self._subscription = await self._subscribe(f"{self._inbox}.*", self._answered)

    @contextmanager
    def _answer(self) -> Iterator[tuple[str, asyncio.Future[dict[str, Any]]]]:
        inbox = f"{self._inbox}.{next(self._numbers)}"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[inbox] = answer
        try:
            yield inbox, answer
        finally:
            del self._waiting[inbox]

    async def _answered(self, message: Received) -> None:
        answer = self._waiting.get(message.subject)
        try:
            body = orjson.loads(message.payload)
        except UNDECODABLE:
            return
        if answer is not None and not answer.done() and isinstance(body, dict):
            answer.set_result(body)

    def _reconnected(self, connected: bool) -> None:
        if connected:
            for hint in self._hints:
                hint.set()

    def growing(self, bounds: tuple[float, float]) -> Iterator[float]:
        """Pauses that double up to a bound, each with up to a quarter taken off at random."""
        pause, most = bounds
        while True:
            yield pause * (1 - self._random() / 4)
            pause = min(2 * pause, most)


class Changes:
    """Hints that an actor may have changed. They may be lost, so waiting ends after a while in any case."""

    def __init__(self, hint: asyncio.Event, random: Callable[[], float]) -> None:
        self._hint = hint
        self._random = random

    async def wait(self, most: float = LOOK_AGAIN) -> None:
        """Return at the next hint, at a reconnect, or after `most` seconds, more or less a quarter."""
        try:
            async with asyncio.timeout(most * (0.75 + self._random() / 2)):
                await self._hint.wait()
        except TimeoutError:
            return
        finally:
            self._hint.clear()
