"""Requests over one inbox subscription: answers matched by a number, time-outs told as `OutcomeUnknown`.

Written over nats-py's `publish` and `subscribe` instead of its own `request`, because

- every waiting request fails at once when the connection is cut, not at its time-out;
- a denied publish fails the request it belongs to, not only an error callback;
- several answers to one request (direct get in batches) use the same subscription;
- it costs less: no `wait_for`, no token from a random source per request.

Every commit is a request, so the way there and back is short: the frame is written in one piece (nats-py matches each
header by a regular expression), and an answer is taken where it is parsed (there it would go through a queue to a task).
Both touch what nats-py calls private, hence the upper bound on its version; tests/integration/broker notices.
What is written in one turn of the loop goes to the socket together, in the order in which it was written, and one timer
looks after the time-outs of all requests: a queue to a flusher task, and a timer for each request, cost more than a request.

The inbox is unguessable (64 random bits per connection), so a number is enough per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache

from nats.aio.client import Client
from nats.aio.msg import Msg
from sojourn.broker.errors import PERMISSION_DENIED, BrokerClosed, OutcomeUnknown, Refused
from sojourn.broker.seam import HEADER_NAME

_LINE_ENDS = str.maketrans("\r\n", "  ")
MESSAGE_TOO_LARGE = 10054
LATE_SECONDS = 0.02
"""How much later than its time-out a request may be told of it."""


def _too_large(size: int, limit: int, subject: str) -> Refused:
    """Refused here, since the server would end the whole connection for it: its limit covers headers and payload.

    nats-py compares the payload alone.
    """
    text = f"{size} bytes with headers, the server takes {limit} (max_payload)"
    return Refused(MESSAGE_TOO_LARGE, text, subject)


@lru_cache(maxsize=256)
def _are_names(names: tuple[str, ...]) -> bool:
    return all(map(HEADER_NAME.fullmatch, names))


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they are on the wire; line ends in a value become spaces. Raises `ValueError` for what is no name."""
    if not _are_names(tuple(headers)):
        raise ValueError(f"headers {sorted(headers)}: expected names of printable ASCII without colons")
    block = "NATS/1.0\r\n"
    for name, value in headers.items():
        block += f"{name}: {value}\r\n"
    block += "\r\n"
    ends = len(headers) + 2
    if block.count("\n") != ends or block.count("\r") != ends:
        return header_block({name: value.translate(_LINE_ENDS) for name, value in headers.items()})
    return block.encode()


class _Direct(asyncio.Queue[Msg]):
    """In place of a subscription's queue: hands each message over at once, within the parser's turn."""

    def __init__(self, take: Callable[[Msg], None]) -> None:
        super().__init__()
        self._take = take

    def put_nowait(self, item: Msg) -> None:
        """Hand it over."""
        self._take(item)


class _Waiting:
    """One request: its answers so far, and whoever waits for the next one."""

    __slots__ = ("answers", "deadline", "error", "future", "operation", "subject", "timeout")

    def __init__(self, operation: str, subject: str, timeout: float) -> None:
        self.operation = operation
        self.subject = subject
        self.timeout = timeout
        self.deadline = 0.0
        """Loop time at which the next answer is given up."""
        self.answers: deque[Msg] = deque()
        self.error: Exception | None = None
        self.future: asyncio.Future[Msg] | None = None

    def answer(self, message: Msg) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(message)
        else:
            self.answers.append(message)

    def fail(self, error: Exception) -> None:
        self.error = error
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        reason = f"no answer within {self.timeout:g} s"
        self.fail(OutcomeUnknown(self.operation, self.subject, reason))


class Requests:
    """The waiting requests of one connection; at most `limit` at a time, more wait for room in order."""

    def __init__(self, client: Client, inbox_prefix: str, limit: int) -> None:
        self._client = client
        self._prefix = f"{inbox_prefix}.{secrets.token_hex(8)}."
        self._waiting: dict[str, _Waiting] = {}
        self._room = asyncio.Semaphore(limit)
        self._next = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        """What is pending goes out in the next turn of the loop."""
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self.sent = 0
        """Requests sent in the life of this connection: round trips, for tests and figures."""

    def use(self, client: Client) -> None:
        """Go on over another client; `start` follows when it is connected."""
        self._client = client

    async def start(self) -> None:
        """Subscribe to the inbox; nats-py keeps the subscription over reconnects."""
        subscription = await self._client.subscribe(
            self._prefix + "*", cb=_never, pending_msgs_limit=0, pending_bytes_limit=0
        )
        subscription._pending_queue = _Direct(self._on_answer)

    async def request(
        self,
        operation: str,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None,
        timeout: float,
    ) -> Msg:
        """One request, one answer. Raises `OutcomeUnknown`, `Refused` (permissions), `BrokerClosed`."""
        await self._room.acquire()
        try:
            number, waiting = self._open(operation, subject, timeout)
            try:
                self._send(number, waiting, payload, headers)
                return await self._next_answer(waiting)
            finally:
                del self._waiting[number]
        finally:
            self._room.release()

    async def request_many(self, operation: str, subject: str, payload: bytes, timeout: float) -> list[Msg]:
        """One request, answers up to and including the first that carries a status.

        `timeout` holds per answer.
        """
        async with self._room:
            number, waiting = self._open(operation, subject, timeout)
            try:
                self._send(number, waiting, payload, None)
                answers = [await self._next_answer(waiting)]
                while not (answers[-1].headers and "Status" in answers[-1].headers):
                    answers.append(await self._next_answer(waiting))
                return answers
            finally:
                del self._waiting[number]

    def fail_all(self, reason: str) -> None:
        """The connection is cut: nobody will answer what was sent before."""
        for waiting in list(self._waiting.values()):
            waiting.fail(OutcomeUnknown(waiting.operation, waiting.subject, reason))

    def deny(self, text: str) -> bool:
        """A permission error from the server (lower-cased by nats-py) fails the requests to its subject."""
        denied = [w for w in self._waiting.values() if f'"{w.subject.lower()}"' in text]
        for waiting in denied:
            waiting.fail(Refused(PERMISSION_DENIED, "permission denied", waiting.subject))
        return bool(denied)

    def close(self) -> None:
        """No more requests; those that wait fail."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        self.fail_all("the connection was closed here")

    def _check(self, operation: str, subject: str) -> None:
        if self._closed:
            raise BrokerClosed(operation)
        if not self._client.is_connected:
            raise OutcomeUnknown(operation, subject, "not connected (nothing was sent)")

    def _open(self, operation: str, subject: str, timeout: float) -> tuple[str, _Waiting]:
        self._check(operation, subject)
        self._next += 1
        number = str(self._next)
        waiting = self._waiting[number] = _Waiting(operation, subject, timeout)
        return number, waiting

    def _send(
        self, number: str, waiting: _Waiting, payload: bytes, headers: Mapping[str, str] | None
    ) -> None:
        self.sent += 1
        self._write(waiting.subject, f" {self._prefix}{number}", payload, headers)

    def send(self, operation: str, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> None:
        """Publish without an answer, in order with the requests. Raises `OutcomeUnknown`, `Refused` (too large),
        `BrokerClosed`.
        """
        self._check(operation, subject)
        self._write(subject, "", payload, headers)

    def _write(self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None) -> None:
        """Have it written in the next turn of the loop, with all that is written until then."""
        client, block = self._client, header_block(headers) if headers else b""
        size = len(block) + len(payload)
        if size > client.max_payload:
            raise _too_large(size, client.max_payload, subject)
        verb, sizes = ("HPUB", f"{len(block)} {size}") if block else ("PUB", f"{size}")
        head = f"{verb} {subject}{reply} {sizes}\r\n".encode()
        client._pending += (head, block, payload, b"\r\n")
        client._pending_data_size += len(head) + size + 2
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        client = self._client
        if client._pending and client._transport is not None and client.is_connected:
            pending, client._pending, client._pending_data_size = client._pending, [], 0
            with contextlib.suppress(OSError, RuntimeError):  # it is cut, and everyone is about to be told
                client._transport.write(b"".join(pending))

    async def _next_answer(self, waiting: _Waiting) -> Msg:
        if waiting.answers:
            return waiting.answers.popleft()
        if waiting.error is not None:
            raise waiting.error
        loop = self._loop
        future: asyncio.Future[Msg] = loop.create_future()
        waiting.future = future
        waiting.deadline = loop.time() + waiting.timeout
        if self._watch is None or waiting.deadline < self._watch_at:
            self._watch_until(waiting.deadline)
        try:
            return await future
        finally:
            waiting.future = None

    def _watch_until(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at = deadline
        self._watch = self._loop.call_at(deadline + LATE_SECONDS, self._expire)

    def _expire(self) -> None:
        """Give up the requests whose time is over; look again when the next one's is."""
        self._watch = None
        now = self._loop.time()
        pending = [waiting for waiting in self._waiting.values() if waiting.future is not None]
        for waiting in pending:
            if waiting.deadline <= now:
                waiting.expire()
        if later := [waiting.deadline for waiting in pending if waiting.deadline > now]:
            self._watch_until(min(later))

    def _on_answer(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject[len(self._prefix) :])
        if waiting is not None:
            waiting.answer(message)


async def _never(_: Msg) -> None:
    """The callback that nats-py asks for; `_Direct` comes before it."""
