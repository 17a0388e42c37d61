"""The guard: a thread with its own loop and its own connection, which speaks for the node while its engine is
busy.

The engine's loop runs user code between two awaits; a loop that is stuck there can neither renew a lease nor
say that it is stuck. The guard renews the lease (while the engine gives signs of life, `lease.Vitals`),
probes the ring neighbours, answers `/livez`, `/readyz` and `/metrics`, and names the line at which the engine
is stuck. It never touches actors.

What crosses between the threads: `Vitals` and the gate's one float are plain attributes, written by one side;
requests to the guard go through `run_coroutine_threadsafe`; its reports come back as calls on the engine's
loop. The thread is a daemon: a guard that hangs in a connection does not keep the process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from types import FrameType
from typing import Any, Literal, Protocol, TypeVar

from sojourn.broker.errors import BrokerError
from sojourn.broker.seam import Broker, Received
from sojourn.broker.subjects import Subjects, Token
from sojourn.codecs.traceback_text import is_machinery

from .directory import Directory
from .gate import Gate, boot_seconds
from .lease import (
    Lease,
    LeaseLost,
    LeaseTerms,
    NodeIdInUse,
    Ring,
    Vitals,
    is_silent,
)
from .ownership import Member

log = logging.getLogger("sojourn.cluster")

STUCK_SECONDS = 5.0
"""Code that runs this long without an await is reported with its line (DESIGN 8)."""
WATCH_SECONDS = 0.25
STOOD_STILL_SECONDS = 2.0
STOP_SECONDS = 3.0
"""How long leaving waits for the guard's thread before it is left behind."""

T = TypeVar("T")


class Reports(Protocol):
    """What the guard tells the node; called on the engine's loop."""

    def lease_lost(self, reason: str) -> None:
        """The lease has ended: everything in memory is stale."""

    def member_ended(self, member: Member) -> None:
        """This node ended the lease of a dead peer: its partitions can be attached."""

    def guard_connection(self, up: bool) -> None:
        """The guard's connection was cut (False), or is back (True)."""

    def guard_failed(self, error: Exception) -> None:
        """The guard's thread has ended on a bug of ours: nobody renews the lease any more."""


class Face(Protocol):
    """What answers HTTP on the guard's loop (`health.HealthServer`)."""

    async def start(self) -> None:
        """Begin to listen."""

    async def stop(self) -> None:
        """Stop listening."""


@dataclass(frozen=True)
class Stall:
    """The engine's loop does not run."""

    seconds: float
    where: str
    """`file:line in function`, of the innermost frame."""


class Guard:
    """See the module. `start` and everything after it are called on the engine's loop."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Broker]],
        subjects: Subjects,
        node: str,
        vitals: Vitals,
        gate: Gate,
        reports: Reports,
        *,
        face: Face | None = None,
        now: Callable[[], float] = boot_seconds,
        terms: LeaseTerms = LeaseTerms(),  # noqa: B008 - immutable
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        """`connect` makes the guard's own connection; it is called on the guard's loop."""
        self._connect = connect
        self._subjects = subjects
        self._node = node
        self._vitals = vitals
        self._gate = gate
        self._reports = reports
        self._face = face
        self._now = now
        self._terms = terms
        self._stuck_seconds = stuck_seconds
        self._lease: Lease | None = None
        self._lease_lock = asyncio.Lock()
        self._replaceable: set[str] = set()
        self._connected_since = float("inf")
        self._stall: Stall | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._engine_loop: asyncio.AbstractEventLoop | None = None
        self._engine_thread = 0
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None

    def __repr__(self) -> str:
        """The lease, and the stall if there is one."""
        return f"<Guard of {self._node} lease={self._lease!r} stall={self._stall}>"

    @property
    def stall(self) -> Stall | None:
        """The engine's loop is stuck here; None while it runs. Safe from any thread."""
        return self._stall

    async def start(self) -> None:
        """Start the thread; returns when its connection is up and its probe answers. Raises
        `ConnectFailed`.
        """
        self._engine_loop = asyncio.get_running_loop()
        self._engine_thread = threading.get_ident()
        ready: asyncio.Future[None] = self._engine_loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"sojourn-guard-{self._node}", daemon=True
        )
        self._thread.start()
        await ready

    async def join(self, member: Member) -> None:
        """Take a new lease; the gate's time is set, the gate stays shut.

        Raises `NodeIdInUse` when another living process has it; `OutcomeUnknown`, `LeaseLost`: try again.
        """
        await self._call(self._join(member))

    async def become(self, state: Literal["ready", "draining"]) -> None:
        """Renew now with another state. Raises `LeaseLost`, `OutcomeUnknown` (the next renewal carries
        it).
        """
        await self._call(self._renew(state))

    async def leave(self) -> None:
        """End the lease, so that others need not wait for it. Raises `BrokerError`."""
        await self._call(self._leave())

    async def stop(self) -> None:
        """Close the connection and end the thread, within `STOP_SECONDS`. Stopping twice is fine."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        with suppress(RuntimeError):  # its loop is closed already
            loop.call_soon_threadsafe(stopping.set)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, STOP_SECONDS)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the guard was not started")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # from here on: the guard's thread
    def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            asyncio.run(self._main(ready))
        except Exception as error:
            self._on_engine(self._failed, ready, error)

    def _failed(self, ready: asyncio.Future[None], error: Exception) -> None:
        if ready.done():
            self._reports.guard_failed(error)
        else:
            ready.set_exception(error)

    async def _main(self, ready: asyncio.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._broker = broker = await self._connect()
        tasks: list[asyncio.Task[None]] = []
        try:
            broker.on_connection(self._on_connection)
            self._connected_since = self._now()
            directory = Directory(broker, self._subjects)
            await self._check_id_is_free(broker, directory)
            await broker.subscribe(self._subjects.probe(Token(self._node), Token("guard")), self._answer)
            if self._face is not None:
                await self._face.start()
            ring = Ring(broker, directory, self._subjects, self._node, self._terms, now=self._now)
            tasks = [
                asyncio.create_task(work, name=f"guard-{name}")
                for name, work in (
                    ("renew", self._keep_renewing()),
                    ("probe", self._keep_probing(ring)),
                    ("watch", self._keep_watching()),
                )
            ]
            tasks.append(asyncio.create_task(self._wait_stopping(), name="guard-stop"))
            self._on_engine(_succeed, ready)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._face is not None:
                await self._face.stop()
            with suppress(TimeoutError, BrokerError):
                async with asyncio.timeout(1.0):
                    await broker.close()

    def _on_engine(self, call: Callable[..., object], *args: object) -> bool:
        """Call on the engine's loop; False when that loop is over."""
        assert self._engine_loop is not None
        try:
            self._engine_loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return False
        return True

    def _on_connection(self, up: bool) -> None:
        self._connected_since = self._now() if up else float("inf")
        self._on_engine(self._reports.guard_connection, up)

    async def _answer(self, request: Received) -> None:
        if self._broker is not None and request.reply:
            await self._broker.reply(request, b"{}")

    async def _wait_stopping(self) -> None:
        assert self._stopping is not None
        await self._stopping.wait()

    async def _check_id_is_free(self, broker: Broker, directory: Directory) -> None:
        """Before our own probe answers: a lease of this id may be replaced when its process is gone."""
        other = (await directory.member(self._node)).value
        if other is None:
            return
        if not await is_silent(broker, self._subjects, self._node):
            raise NodeIdInUse(other.node, other.host, other.pid)
        self._replaceable.add(other.lease)

    async def _join(self, member: Member) -> None:
        assert self._broker is not None
        directory = Directory(self._broker, self._subjects)
        async with self._lease_lock:
            found = await directory.member(member.node)
            other = found.value
            if other is not None and other.lease not in self._replaceable:
                raise NodeIdInUse(other.node, other.host, other.pid)
            self._replaceable.add(member.lease)
            lease = Lease(directory, member, now=self._now, ttl=self._terms.ttl)
            self._gate.extend(await lease.acquire(found.revision))
            self._lease = lease

    async def _leave(self) -> None:
        async with self._lease_lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                await lease.end()

    async def _renew(self, state: Literal["ready", "draining"] | None = None) -> None:
        async with self._lease_lock:
            if self._lease is not None:
                self._gate.extend(await self._lease.renew(state, self._vitals))
            elif state is not None:
                raise LeaseLost(self._node, "", "it was found ended before")

    async def _keep_renewing(self) -> None:
        refused = ""
        failing = False
        while True:
            await asyncio.sleep(self._terms.renew)
            why = self._vitals.why_not_renew(self._now(), self._terms)
            if why and self._lease is not None and why[:20] != refused[:20]:
                log.error("lease not renewed: %s", why, extra={"node": self._node})
            refused = why
            if why:
                continue
            try:
                await self._renew()
                failing = False
            except LeaseLost as lost:
                self._lease = None
                log.error("%s", lost, extra={"node": lost.node, "lease": lost.lease})
                self._on_engine(self._reports.lease_lost, lost.reason)
            except BrokerError as error:
                level = logging.DEBUG if failing else logging.WARNING  # once, until it is renewed again
                log.log(level, "lease not renewed, trying again: %s", error, extra={"node": self._node})
                failing = True

    async def _keep_probing(self, ring: Ring) -> None:
        while True:
            await asyncio.sleep(self._terms.probe)
            if self._lease is None:
                continue
            for member in await ring.look(self._vitals.members, self._connected_since):
                log.warning(
                    "ended the lease of a node that is gone",
                    extra={"node": self._node, "peer": member.node, "lease": member.lease},
                )
                self._on_engine(self._reports.member_ended, member)

    async def _keep_watching(self) -> None:
        while True:
            slept = self._now()
            await asyncio.sleep(WATCH_SECONDS)
            stood_still = self._now() - slept - WATCH_SECONDS
            if stood_still > STOOD_STILL_SECONDS:
                # Not the engine alone: the whole process was stopped, or the machine slept.
                log.warning("this process stood still for %.1f s", stood_still, extra={"node": self._node})
                await asyncio.sleep(WATCH_SECONDS)
            behind = self._now() - self._vitals.tick
            if behind < self._stuck_seconds:
                if self._stall is not None:
                    log.warning("the engine's loop runs again", extra={"node": self._node})
                self._stall = None
                continue
            where = _line_of(self._engine_thread)
            if self._stall is None or self._stall.where != where:
                log.error(
                    "the engine's loop is stuck for %.1f s at %s: code without an await holds up every actor "
                    "of this node; put it into a step",
                    behind,
                    where,
                    extra={"node": self._node},
                )
            self._stall = Stall(behind, where)


def _line_of(thread: int) -> str:
    """Where a thread is now: the innermost frame and its caller; of the user's code, if there is any of it. What called the engine
    (a command line) is not theirs.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "unknown (its thread is gone)"
    stack = list(traceback.walk_stack(frame))
    inner = dropwhile(_is_machinery, stack)
    theirs = list(takewhile(lambda one: not _is_machinery(one), inner))
    return " called from ".join(
        f"{at.f_code.co_filename}:{line} in {at.f_code.co_name}" for at, line in (theirs or stack)[:2]
    )


def _is_machinery(one: tuple[FrameType, int]) -> bool:
    return is_machinery(one[0].f_globals.get("__name__", ""))


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
