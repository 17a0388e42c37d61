"""What the clients of a run do: start workflows of all kinds, send them mail, cancel some, ask for results; and note what they were told.

Each kind is drawn from the run's seed with its arguments, its mail and their times. A client that gets no answer keeps to the rules of the
client library: a start is asked again under its request id; mail of unknown outcome is never sent again, the next number follows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn.actors.client import Client
from sojourn.actors.errors import (
    NoAnswer,
    NoSuchActor,
    Refused,
    Rejected,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowQuarantined,
    WorkflowTerminated,
)
from sojourn.broker.errors import BrokerError

from .evidence import Answer, Promise, Sent

KINDS: Final = (
    "steps", "mail", "timers", "family", "cancel", "race", "reject", "gather", "relay", "sleep", "queued",
)  # fmt: skip
ANSWER_SECONDS: Final = 20.0
ASKED_FOR_RESULT: Final = 0.15
"""Share of the workflows whose result a client waits for, as users do; all others are read from their records."""
AT_A_TIME: Final = 400
"""Starts under way at a time."""
OVER: Final = -1
"""Number of the mail that ends a line."""


@dataclass
class Story:
    """One workflow and what its client does with it after its start."""

    promise: Promise
    at: float
    """Start, seconds from the beginning."""
    then: Callable[[Drive, Promise, random.Random], Awaitable[None]] | None = None


def stories(seed: int, count: int, seconds: float) -> list[Story]:
    """The workflows of a run, in the order of their start, spread over `seconds`."""
    random_ = random.Random(f"workload {seed}")
    made: list[Story] = []
    for n in range(count):
        kind = KINDS[n % len(KINDS)]
        at = seconds * n / max(count, 1)
        made.extend(Story(promise, at, then) for promise, then in _MAKERS[kind](f"{kind}{n}", random_))
    return made


_Made = list[tuple[Promise, Callable[["Drive", Promise, random.Random], Awaitable[None]] | None]]


def _steps(actor: str, random_: random.Random) -> _Made:
    args = (random_.randint(2, 8), round(random_.uniform(0.0, 0.4), 3), random_.choice((0, 0, 1, 2)))
    return [(Promise(actor, "steps", "steps", args), None)]


def _mail(actor: str, random_: random.Random) -> _Made:
    return [(Promise(actor, "mail", "mail", (4,)), _two_senders)]


def _timers(actor: str, random_: random.Random) -> _Made:
    return [
        (
            Promise(actor, "timers", "timers", (random_.randint(2, 5), round(random_.uniform(0.2, 2.0), 2))),
            None,
        )
    ]


def _family(actor: str, random_: random.Random) -> _Made:
    width = random_.randint(1, 5)
    children = tuple(f"{actor}-c{n}" for n in range(width))
    return [(Promise(actor, "family", "family", (actor, width), children), _tell_children)]


def _cancel(actor: str, random_: random.Random) -> _Made:
    with_child = random_.random() < 0.5
    children = (f"{actor}-c0",) if with_child else ()
    then = _terminate_later if random_.random() < 0.25 else _cancel_later
    return [(Promise(actor, "cancel", "cancelled", (actor, with_child), children), then)]


def _race(actor: str, random_: random.Random) -> _Made:
    return [(Promise(actor, "race", "racing", (round(random_.uniform(0.5, 3.0), 2),)), _one_mail)]


def _reject(actor: str, random_: random.Random) -> _Made:
    return [(Promise(actor, "reject", "rejects", (random_.random() < 0.4,)), None)]


def _gather(actor: str, random_: random.Random) -> _Made:
    args = (random_.randint(2, 7), round(random_.uniform(0.0, 0.3), 3))
    return [(Promise(actor, "gather", "gathers", args), None)]


def _relay(actor: str, random_: random.Random) -> _Made:
    count, target = random_.randint(3, 20), f"{actor}-to"
    return [
        (Promise(target, "relay", "takes_relay", (count,)), None),
        (Promise(actor, "relay", "relay", (target, count)), None),
    ]


def _sleep(actor: str, random_: random.Random) -> _Made:
    seconds = random_.choice((3_600, 86_400, 10 * 365 * 86_400 - 86_400))
    return [(Promise(actor, "sleep", "sleeper", (actor, seconds)), _wake_at_the_end)]


def _queued(actor: str, random_: random.Random) -> _Made:
    args = (random_.randint(1, 4), round(random_.uniform(0.0, 0.4), 3), random_.choice((0, 0, 1, 2)))
    return [(Promise(actor, "queued", "queued", args), None)]


_MAKERS: Final[dict[str, Callable[[str, random.Random], _Made]]] = {
    "steps": _steps,
    "mail": _mail,
    "timers": _timers,
    "family": _family,
    "cancel": _cancel,
    "race": _race,
    "reject": _reject,
    "gather": _gather,
    "relay": _relay,
    "sleep": _sleep,
    "queued": _queued,
}


# ---- what clients do


async def _two_senders(drive: Drive, promise: Promise, random_: random.Random) -> None:
    """Two senders, each on both channels, so four lines of mail."""
    numbers = random_.randint(3, 12)
    pauses = [random_.uniform(0.0, 1.0) for _ in range(numbers)]

    async def sender(name: str) -> None:
        for n in range(numbers):
            await asyncio.sleep(pauses[n])
            for channel in ("left", "right"):
                await drive.mail(promise, promise.actor, channel, f"{name}-{channel}", n)
        for channel in ("left", "right"):
            await drive.mail_until_acked(promise, promise.actor, channel, f"{name}-{channel}")

    await asyncio.gather(sender("a"), sender("b"))


async def _tell_children(drive: Drive, promise: Promise, random_: random.Random) -> None:
    await asyncio.sleep(random_.uniform(0.0, 4.0))
    for n, child in enumerate(promise.children):
        if n % 3 == 1:
            await drive.mail_until_acked(promise, child, "go", "go")


async def _one_mail(drive: Drive, promise: Promise, random_: random.Random) -> None:
    await asyncio.sleep(random_.uniform(0.0, 2 * promise.args[0]))
    await drive.mail(promise, promise.actor, "go", "go", 7)


async def _cancel_later(drive: Drive, promise: Promise, random_: random.Random) -> None:
    await asyncio.sleep(random_.choice((0.0, random_.uniform(0.0, 1.0), random_.uniform(0.0, 10.0))))
    await drive.end(promise, "cancel")


async def _terminate_later(drive: Drive, promise: Promise, random_: random.Random) -> None:
    await asyncio.sleep(random_.uniform(0.0, 6.0))
    await drive.end(promise, "terminate")


async def _wake_at_the_end(drive: Drive, promise: Promise, random_: random.Random) -> None:
    await drive.faults_over.wait()
    await asyncio.sleep(random_.uniform(0.0, 2.0))
    await drive.end(promise, "cancel")


@dataclass
class Drive:
    """The clients of a run."""

    client: Client
    stories: Sequence[Story]
    seed: int
    faults_over: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    trouble: list[str] = field(default_factory=list)

    @property
    def promises(self) -> list[Promise]:
        """All of them."""
        return [story.promise for story in self.stories]

    async def run(self) -> None:
        """Return when every client has done what it had to do."""
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._tell(story, began) for story in self.stories))

    async def _tell(self, story: Story, began: float) -> None:
        promise = story.promise
        await asyncio.sleep(max(0.0, began + story.at - asyncio.get_running_loop().time()))
        random_ = random.Random(f"{self.seed} {promise.actor}")
        asks = random_.random() < ASKED_FOR_RESULT
        try:
            async with self.gate:
                await self._start(promise)
            if promise.started != "acked":
                return
            if story.then is not None:
                await story.then(self, promise, random_)
            if asks:
                await self._result(promise)
        except Exception as error:
            self.trouble.append(f"the client of {promise.actor}: {type(error).__name__}: {error}")

    async def _start(self, promise: Promise) -> None:
        """Ask until there is an answer: the same request is one start."""
        while True:  # as long as the run lasts: whoever has no answer does not know that it is started
            try:
                handle = await self.client.start(
                    promise.workflow,
                    id=promise.actor,
                    args=promise.args,
                    request=f"request-{promise.actor}",
                    timeout=ANSWER_SECONDS,
                )
            except NoAnswer:
                continue
            except BrokerError:  # a full disk: not stored
                await asyncio.sleep(1.0)
                continue
            promise.started, promise.run = "acked", handle.run
            return

    async def mail(self, promise: Promise, actor: str, channel: str, line: str, n: int) -> Answer:
        """Send one mail, once, unless it is certain that it was not stored."""
        sent = Sent(actor, channel, line, n, "unknown")
        promise.mails.append(sent)
        for _ in range(60):
            try:
                await self.client.handle(actor).signal(
                    channel, {"line": line, "n": n}, timeout=ANSWER_SECONDS
                )
            except NoAnswer:
                return sent.answer
            except BrokerError:
                await asyncio.sleep(1.0)
                continue
            sent.answer = "acked"
            return sent.answer
        sent.answer = "refused"
        return sent.answer

    async def mail_until_acked(self, promise: Promise, actor: str, channel: str, line: str) -> None:
        """Send the mail that ends a line until one was acknowledged; more than one does no harm."""
        while True:
            if await self.mail(promise, actor, channel, line, OVER) == "acked":
                return

    async def end(self, promise: Promise, verb: str) -> None:
        """Cancel or terminate, until there is an answer."""
        promise.verb, promise.verb_at, promise.verb_answer = verb, time.time(), "unknown"
        handle = self.client.handle(promise.actor)
        while True:
            try:
                if verb == "cancel":
                    await handle.cancel(reason="chaos", grace=600, timeout=ANSWER_SECONDS)
                else:
                    await handle.terminate(reason="chaos", timeout=ANSWER_SECONDS)
            except NoAnswer:
                continue
            except (BrokerError, Refused):
                await asyncio.sleep(1.0)
                continue
            promise.verb_answer = "acked"
            return

    async def _result(self, promise: Promise) -> None:
        handle = self.client.handle(promise.actor)
        try:
            promise.told = "completed", await handle.result(timeout=3600)
        except Rejected as rejected:
            promise.told = "rejected", str(rejected)
        except WorkflowFailed:
            promise.told = "failed", None
        except WorkflowCancelled:
            promise.told = "cancelled", None
        except WorkflowTerminated:
            promise.told = "terminated", None
        except WorkflowQuarantined as held:
            promise.told = "quarantined", str(held)
        except NoSuchActor:
            promise.told = "no such actor", None
