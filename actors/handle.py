"""`Handle`: one actor as seen from outside. Cheap, holds no state of the actor, can be made anew from its id
at any time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, final, overload

import msgspec
from sojourn.broker.dead import DeadLetters
from sojourn.broker.errors import MailboxFull as StreamFull
from sojourn.broker.errors import OutcomeUnknown
from sojourn.broker.held import ORIGIN
from sojourn.broker.index_headers import IndexFacts
from sojourn.broker.seam import Ack, Publish
from sojourn.broker.subjects import ActorId, channel_name
from sojourn.codecs.data import Type
from sojourn.codecs.durations import Duration, duration
from sojourn.codecs.exceptions_data import rebuild_exception
from sojourn.codecs.record import Index, Origin, Outcome

from .answers import NO_SUCH_ACTOR, UNREADABLE, Answer, Question, What
from .channel import Channel, encode_mail
from .description import Description as Description  # of the public face, beside Handle
from .errors import (
    DeadLettered,
    MailboxFull,
    NoAnswer,
    NoSuchActor,
    NoSuchChannel,
    Refused,
    ResultTimeout,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowQuarantined,
    WorkflowTerminated,
)
from .outcomes import rejected
from .requests import LOOK_AGAIN, Requests

if TYPE_CHECKING:
    from .workflow import Workflow

T = TypeVar("T")
R = TypeVar("R")

_JSON = Type(Any)
CONTROL_TIMEOUT = 30.0
"""Seconds a control message is waited for, unless told otherwise."""


@final
class Handle(Generic[R]):
    """One actor from outside: send it mail, wait for its result, ask about it, end it.

    Made by `client.start` (then `run` is set, and it speaks of that run only) and by `client.handle(id)`.
    """

    __slots__ = ("_by", "_requests", "id", "run", "workflow")

    def __init__(
        self,
        requests: Requests,
        id: ActorId,
        *,
        run: str = "",
        workflow: Workflow[..., R] | None = None,
        by: str = "",
    ) -> None:
        """Use `client.handle(id)`."""
        self._requests = requests
        self._by = by
        self.id = id
        self.run = run
        """The life of the actor this speaks of; "": whichever is there."""
        self.workflow = workflow
        """Its definition, when this process knows it: results come back in its types."""

    # mail

    @overload
    async def signal(
        self,
        channel: Channel[T],
        payload: T,
        *,
        wait: Literal["stored", "consumed"] = "stored",
        timeout: Duration = 30.0,
    ) -> None: ...
    @overload
    async def signal(
        self,
        channel: str,
        payload: Any = None,
        *,
        wait: Literal["stored", "consumed"] = "stored",
        timeout: Duration = 30.0,
    ) -> None: ...
    async def signal(
        self,
        channel: Channel[Any] | str,
        payload: Any = None,
        *,
        wait: Literal["stored", "consumed"] = "stored",
        timeout: Duration = 30.0,
    ) -> None:
        """Send mail to a channel of the actor. Returns when it is stored, or with `wait="consumed"` when the
        actor has taken it.

        Raises `PayloadError` if the payload does not fit the channel, `NoSuchChannel` if the workflow is
        known here and has no such channel, `MailboxFull`, `NoAnswer` if neither storing nor taking was
        confirmed within `timeout`, and `DeadLettered` if the actor could not take it (only found out with
        `wait="consumed"`).
        """
        if wait not in ("stored", "consumed"):
            raise ValueError(f'wait={wait!r}: expected "stored" or "consumed"')
        name = channel.name if isinstance(channel, Channel) else channel_name(channel)
        encoded = encode_mail(self._channel_type(channel, name), name, payload)
        message = Publish(self._requests.subjects.mail(self.id, name), encoded, msg_id=self._requests.ids())
        seconds = duration(timeout)
        try:
            async with asyncio.timeout(seconds):
                stored = await self._requests.store(message)
                if wait == "consumed":
                    await self._until_consumed(stored, name)
        except StreamFull:
            raise MailboxFull(self.id, name) from None
        except TimeoutError:
            hint = f"the mail on {name!r} was not {'confirmed as ' if wait == 'stored' else ''}{wait} in time, and may be later"
            raise NoAnswer(self.id, request=str(message.msg_id), seconds=seconds, hint=hint) from None

    def _channel_type(self, channel: Channel[Any] | str, name: str) -> Type:
        known = self.workflow.channels if self.workflow is not None else None
        if known is not None and name not in known:
            raise NoSuchChannel(name, known, where=f"workflow {self.workflow.name}" if self.workflow else "")
        if isinstance(channel, Channel):
            return channel.type
        return (known or {}).get(name) or _JSON

    async def _until_consumed(self, stored: Ack, channel: str) -> None:
        """Wait until the owner says so, or no trace of the mail is left: not in its stream, not held, no dead
        letter.
        """
        subjects = self._requests.subjects
        broker = self._requests.broker
        origin = Origin("mail", (await broker.stream_info(subjects.mail_stream)).created, stored.seq)
        question = Question(self.id, "consumed", origin)
        pauses = self._requests.growing(
            (0.1, LOOK_AGAIN)
        )  # a dead letter changes no record, so nobody hints at it
        async with self._requests.changes(self.id) as changes:
            while True:
                answer = await self._requests.question(question)
                if answer is not None and answer.consumed:
                    return
                if await broker.read(subjects.mail_stream, stored.seq) is None and not await self._is_held(
                    origin
                ):
                    dead = await DeadLetters(broker, subjects).read(origin)
                    if dead is not None:
                        raise DeadLettered(self.id, channel, reason=dead.reason, detail=dead.detail)
                    return
                await changes.wait(next(pauses))

    async def _is_held(self, origin: Origin) -> bool:
        subjects, broker = self._requests.subjects, self._requests.broker
        named, at = f"{origin.stream}.{origin.created}.{origin.seq}", 1
        while (
            held := await broker.read_next(subjects.held_stream, subjects.held_of(self.id), at)
        ) is not None:
            if held.headers.get(ORIGIN) == named:
                return True
            at = held.seq + 1
        return False

    # the end

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the workflow ends and return what it returned, in its type if `workflow` is known, else
        as JSON values.

        Raises `Rejected` as the workflow raised it, `WorkflowFailed` (its cause is the exception itself, if
        its class may cross), `WorkflowCancelled`, `WorkflowTerminated`, `WorkflowQuarantined` as soon as it
        is held, `NoSuchActor`, and `ResultTimeout` after `timeout`; the workflow goes on then.
        """
        seconds = None if timeout is None else duration(timeout)
        seen = [""]
        try:
            async with asyncio.timeout(seconds):
                return await self._result(seen)
        except TimeoutError as error:
            if isinstance(error, ResultTimeout) or seconds is None or type(error) is not TimeoutError:
                raise
            raise ResultTimeout(self.id, seconds=seconds, status=seen[0]) from None

    async def _result(self, seen: list[str]) -> R:
        async with self._requests.changes(self.id, matters=_concerns_the_end) as changes:
            while True:
                answer = await self._requests.question(Question(self.id, "result"))
                index = answer.index if answer is not None else await self._index()
                if answer is not None and answer.error:
                    raise self._refused(answer)
                if index is not None:
                    seen[0] = str(index.status)
                    self._check_run(index)
                if answer is not None and answer.outcome is not None:
                    return self._value(answer.outcome, answer.index)
                if answer is not None and index is not None and index.hold == "quarantined":
                    raise WorkflowQuarantined(
                        self.id,
                        workflow=index.workflow,
                        run=index.run,
                        message=index.hold_reason,
                        traceback=answer.traceback,
                    )
                await changes.wait()

    async def _index(self) -> Index | None:
        """The record's public facts, when no owner answers. Raises `NoSuchActor` if the leader says that
        there is none.
        """
        try:
            found = await self._requests.index(self.id)
        except OutcomeUnknown:
            return None
        if found is None:
            raise NoSuchActor(self.id)
        return found

    def _check_run(self, index: Index) -> None:
        if self.run and index.run != self.run:
            raise WorkflowTerminated(
                self.id,
                workflow=index.workflow,
                run=self.run,
                message=f"its id was started again, as run {index.run}; client.handle(id) speaks of that one",
            )

    def _value(self, outcome: Outcome, index: Index | None) -> R:
        workflow = index.workflow if index is not None else ""
        run = index.run if index is not None else self.run
        if outcome.kind == "value":
            data = bytes(outcome.value)
            if self.workflow is not None and self.workflow.name == workflow:
                return cast("R", self.workflow.signature.decode_result(data))
            return cast("R", msgspec.json.decode(data))
        if outcome.kind == "rejected":
            raise rejected(outcome)
        kind = {"cancelled": WorkflowCancelled, "terminated": WorkflowTerminated}.get(
            outcome.kind, WorkflowFailed
        )
        info = outcome.error
        if info is None:
            raise kind(self.id, workflow=workflow, run=run)
        ended = kind(
            self.id,
            workflow=workflow,
            run=run,
            type=info.type,
            message=info.message,
            traceback=info.traceback,
            data=msgspec.json.decode(info.data),
        )
        raise ended from rebuild_exception(
            info, declared=self.workflow.raises if self.workflow is not None else ()
        )

    # questions

    async def describe(self) -> Description:
        """Why the actor is not running, in a sentence, and the facts behind it. Works without any node, then
        with fewer facts.

        Raises `NoSuchActor`.
        """
        answer = await self._requests.question(Question(self.id, "describe"))
        if answer is not None and answer.index is not None:
            return Description(answer.index, answer.details)
        if answer is not None and answer.error == NO_SUCH_ACTOR:
            raise NoSuchActor(self.id)
        index = await self._requests.index(self.id)
        if index is None:
            raise NoSuchActor(self.id)
        unreadable = answer is not None and answer.error == UNREADABLE
        return Description(index, None, answer.message if answer is not None and unreadable else "")

    async def state(self, timeout: Duration = 10.0) -> Any:
        """What the workflow published last with `publish_state` (None: nothing yet). Raises `NoSuchActor`,
        `NoAnswer`.
        """
        return msgspec.json.decode((await self._ask_owner("state", duration(timeout))).state)

    async def _ask_owner(self, what: What, seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds), self._requests.changes(self.id) as changes:
                while True:
                    answer = await self._requests.question(Question(self.id, what))
                    if answer is not None and answer.error:
                        raise self._refused(answer)
                    if answer is not None:
                        return answer
                    await self._index()
                    await changes.wait(1.0)
        except TimeoutError:
            raise NoAnswer(
                self.id, request="", seconds=seconds, hint="no node serves its partition"
            ) from None

    def _refused(self, answer: Answer) -> NoSuchActor | Refused:
        if answer.error == NO_SUCH_ACTOR:
            return NoSuchActor(self.id)
        return Refused(self.id, code=answer.error, message=answer.message)

    # control

    async def cancel(
        self,
        *,
        reason: str = "",
        grace: Duration | None = None,
        by: str | None = None,
        timeout: Duration = CONTROL_TIMEOUT,
    ) -> bool:
        """Ask the workflow to end: `Cancelled` is raised where it waits, its cleanup runs within `grace`
        (default: the workflow's own), its children are cancelled too. Returns when its owner has recorded the
        request (or keeps it, because no living node has its code: `describe` says so); False: it had ended already.

        Raises `NoSuchActor`, `NoAnswer`.
        """
        extra = {} if grace is None else {"grace": duration(grace)}
        return await self._end("cancel", reason, by, timeout, extra)

    async def terminate(
        self, *, reason: str = "", by: str | None = None, timeout: Duration = CONTROL_TIMEOUT
    ) -> bool:
        """End the actor at once, without its cleanup; needs none of its code. False: it had ended already.
        Raises `NoSuchActor`, `NoAnswer`.
        """
        return await self._end("terminate", reason, by, timeout, {})

    async def pause(
        self, *, reason: str = "", by: str | None = None, timeout: Duration = CONTROL_TIMEOUT
    ) -> None:
        """Hold the actor where it is: its mail is kept, its code does not run until `resume`. Raises
        `NoSuchActor`, `Refused`, `NoAnswer`.
        """
        await self._control("pause", reason, by, timeout, {})

    async def resume(
        self, *, reason: str = "", by: str | None = None, timeout: Duration = CONTROL_TIMEOUT
    ) -> None:
        """Let a paused actor go on. Raises `NoSuchActor`, `Refused` if it is not held, `NoAnswer`."""
        await self._control("resume", reason, by, timeout, {})

    async def release(
        self, *, reason: str = "", by: str | None = None, timeout: Duration = CONTROL_TIMEOUT
    ) -> None:
        """Try a quarantined actor again, from its last good record. Raises `NoSuchActor`, `Refused` if it is
        not held, `NoAnswer`.
        """
        await self._control("release", reason, by, timeout, {})

    async def _end(
        self, verb: str, reason: str, by: str | None, timeout: Duration, extra: dict[str, Any]
    ) -> bool:
        try:
            await self._control(verb, reason, by, timeout, extra)
        except Refused as refused:
            if refused.code not in ("ended", "another run"):
                raise
            return False
        return True

    async def _control(
        self, verb: str, reason: str, by: str | None, timeout: Duration, extra: dict[str, Any]
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "request": self._requests.ids(),
            "reason": reason,
            "by": self._by if by is None else by,
            **extra,
        }
        if self.run:
            body["run"] = self.run
        answer = await self._requests.ask(self.id, verb, body, seconds=duration(timeout))
        if answer.get("ok"):
            return answer
        code = str(answer.get("error", ""))
        if code == NO_SUCH_ACTOR:
            raise NoSuchActor(self.id)
        raise Refused(self.id, code=code, message=str(answer.get("message", "")))

    def __repr__(self) -> str:
        name = f" of {self.workflow.name}" if self.workflow is not None else ""
        return f"<Handle {self.id}{name}{f', run {self.run}' if self.run else ''}>"


def _concerns_the_end(facts: IndexFacts) -> bool:
    return bool(facts.hold) or facts.status not in ("running", "suspended", "runnable", "cancelling")
