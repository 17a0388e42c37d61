"""Running steps: one attempt at a time, with its time limit, its cancellation and what it can know of itself.

An attempt always ends in a `StepDone`, whatever the step raised. Async steps are tasks of the loop that the
runner is given (None: the caller's own); sync ones run in threads. Waiting for a free place does not count
against the time limit.

A step usually finds a place at once and is one task, the user's own: beginning and ending it are plain calls. (A
task around it, and a future for its outcome, cost as much as the rest of a short step.)

*Stuck*: code that goes on after its time was up and it was cancelled: a thread (nobody can stop one) or a
coroutine that swallows its cancellation. The attempt is over as `timeout`; the code is shown with its line,
and the next attempt of the same operation waits for it, for as long as its own time limit, so that the two
never run side by side. If the late code returns a value after all, that is the next attempt's result: to run
it again would only double its effects. The same holds of an attempt that began under a lease which is over, and
goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sojourn.codecs.record import PendingCall

from . import outcomes
from .attempts import Attempt, Ended, RunningStep, StepStatistics, not_awaited, step_done
from .current import (
    CurrentActor,
    CurrentStep,
    actor_variable,
    decoded,
    operation_id,
    step_variable,
)
from .errors import Cancelled, StepStuck
from .events import StepDone
from .hop import Hop
from .lifespan import Resources, resources_variable
from .limits import Limits
from .registry import Registry
from .step import Step
from .step_threads import StepThreads, where

CANCEL_GRACE: Final = 5.0
"""Seconds an async step has to end after it was cancelled, before it counts as stuck."""

MAX_HEARTBEATS: Final = 10_000
"""Operations whose last heartbeat is remembered; the oldest is forgotten."""

HEARTBEAT_BYTES: Final = 16 * 1024 * 1024
"""Of their details together; over it the oldest are forgotten, too, down to the one that was just told."""

Tell = Callable[[StepDone | Exception], None]
"""Told how an attempt ended; an exception instead is a defect outside of the step. Called on the engine's loop."""


class _Work(NamedTuple):
    """An attempt that is about to begin."""

    key: str
    call: PendingCall
    step: Step[..., Any]
    actor: CurrentActor
    args: Any
    kwargs: Any
    tell: Tell
    still: Callable[[], bool]
    not_begun: Callable[[], None]


@dataclass(frozen=True)
class _Queued:
    """An attempt that waits for a place, or for the code of an earlier one."""

    work: _Work
    task: asyncio.Task[None]


class StepRunner:
    """Runs the local steps of one node. `run`, `cancel` and the questions may be called from the engine's
    loop; the rest happens on the steps' loop.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Callable[[], float],
        limits: Limits | None = None,
        resources: Resources | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        cancel_grace: float = CANCEL_GRACE,
        on_beat: Callable[[str], None] | None = None,
    ) -> None:
        """`clock` is the broker's, Unix seconds (for the deadlines that steps see). `loop` runs async steps;
        None: the caller's loop. `on_beat` is called with the operation's id at each heartbeat, on any thread.
        """
        self._registry = registry
        self._clock = clock
        self._limits = limits or Limits()
        self._resources = resources or Resources()
        self._loop = loop
        self._hop: Hop | None = None
        self._cancel_grace = cancel_grace
        self._on_beat = on_beat
        self._threads = StepThreads()
        self._places = asyncio.Semaphore(self._limits.running_steps)
        self._thread_places = asyncio.Semaphore(self._limits.step_threads)
        self._running: dict[str, Attempt] = {}
        self._stuck: dict[str, Attempt] = {}
        self._queued: dict[str, _Queued] = {}
        self._heartbeats: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._heartbeat_bytes = 0
        self._heartbeats_lock = threading.Lock()
        self._finished = 0

    # called from the engine's loop

    async def run(self, call: PendingCall, actor: CurrentActor) -> StepDone:
        """Run one attempt and say how it ended. Never raises for anything the step does.

        If the waiting task is cancelled, the step is told, and nobody learns its outcome. Raises
        `RuntimeError` if an attempt of the same operation runs already: the caller lost count.
        """
        outcome: asyncio.Future[StepDone] = asyncio.get_running_loop().create_future()

        def tell(ended: StepDone | Exception) -> None:
            if outcome.done():
                return
            if isinstance(ended, Exception):
                outcome.set_exception(ended)
            else:
                outcome.set_result(ended)

        self.start(call, actor, tell)
        try:
            return await outcome
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the steps' loop is closed, and with it the step
                self.cancel(operation_id(actor.id, actor.run, call.op))
            raise

    def start(
        self,
        call: PendingCall,
        actor: CurrentActor,
        tell: Tell,
        *,
        still: Callable[[], bool] = lambda: True,
        not_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin one attempt; `tell` is called once, as `run` would return or raise, perhaps before this returns.

        `still` is asked on the steps' loop, just before the code begins: the process may have been frozen on the way there, or the attempt
        have waited for a place. When it says no, nothing runs, and `not_begun` is called instead of `tell`. Raises `RuntimeError` when
        the steps' loop is closed.
        """
        if self._loop is None:
            self._start(call, actor, tell, still, not_begun)
            return
        hop = self._away()

        def tell_home(ended: StepDone | Exception) -> None:
            hop.home(lambda: tell(ended))

        def begin() -> None:
            if still():
                self._start(call, actor, tell_home, still, lambda: hop.home(not_begun))
            else:
                hop.home(not_begun)

        hop.there(begin)

    def cancel(self, key: str) -> None:
        """Tell a running step that nobody waits for it: async code gets `CancelledError`, all code sees
        `current.step.cancelled`.
        """
        if self._loop is None:
            self._cancel(key)
        else:
            self._loop.call_soon_threadsafe(self._cancel, key)

    def is_running(self, key: str) -> bool:
        """Whether an attempt of this operation runs here, or is about to."""
        return key in self._running or key in self._queued

    def attempt(self, key: str) -> RunningStep | None:
        """The attempt of one operation whose code still runs, stuck or not."""
        found = self._running.get(key) or self._stuck.get(key)
        return None if found is None else self._shown(found)

    def attempts(self) -> tuple[RunningStep, ...]:
        """Every attempt whose code still runs, stuck or not."""
        return tuple(self._shown(attempt) for attempt in (*self._running.values(), *self._stuck.values()))

    def statistics(self) -> StepStatistics:
        """Counts, for metrics."""
        return StepStatistics(len(self._running), len(self._queued), len(self._stuck), self._finished)

    async def close(self) -> None:
        """Cancel what runs and wait for it as long as a cancelled step may take; stuck threads are left
        behind. Twice is fine.
        """
        if self._loop is None:
            await self._close()
        else:
            await self._away().run(self._close)

    def _away(self) -> Hop:
        """The way to the steps' loop."""
        if self._hop is None:
            assert self._loop is not None
            self._hop = Hop(self._loop)
        return self._hop

    # on the steps' loop

    def _start(
        self,
        call: PendingCall,
        actor: CurrentActor,
        tell: Tell,
        still: Callable[[], bool],
        not_begun: Callable[[], None],
    ) -> None:
        key = operation_id(actor.id, actor.run, call.op)
        running, queued = self._running.get(key), self._queued.get(key)
        before = max(running.call.attempt if running else 0, queued.work.call.attempt if queued else 0)
        if before >= call.attempt:
            tell(RuntimeError(f"an attempt of operation {key} runs here already"))
            return
        if queued is not None:
            self._forget_queued(key)
        try:
            step = self._registry.step(call.step)
            args, kwargs = step.signature.decode_args(bytes(call.args))
        except Exception as error:  # an unpickled or validated argument may raise anything
            tell(StepDone(call.op, call.attempt, outcomes.of_exception(error), retryable=False))
            return
        work = _Work(key, call, step, actor, args, kwargs, tell, still, not_begun)
        places = self._places if step.is_async else self._thread_places
        if running is None and key not in self._stuck and not places.locked() and _take(places):
            self._begin(work, places)
        else:
            task = asyncio.get_running_loop().create_task(self._begin_later(work, places))
            self._queued[key] = _Queued(work, task)

    async def _begin_later(self, work: _Work, places: asyncio.Semaphore) -> None:
        done: StepDone | Exception | None
        try:
            done = await self._late_result(work.key, work.call, work.step)
            if done is None:
                await places.acquire()
        except Exception as error:
            done = error
        del self._queued[work.key]
        if done is not None:
            work.tell(done)
        elif work.still():
            self._begin(work, places)
        else:
            places.release()
            work.not_begun()

    async def _late_result(self, key: str, call: PendingCall, step: Step[..., Any]) -> StepDone | None:
        """Wait for the code of an earlier attempt, which is stuck, or goes on although its lease is over. None: it is gone, and
        this attempt may begin.
        """
        earlier = self._stuck.get(key) or self._running.get(key)
        if earlier is None:
            return None
        loop = asyncio.get_running_loop()
        seconds = call.timeout or step.timeout
        if earlier.late is None:
            earlier.late = loop.create_future()
        await asyncio.wait((earlier.late,), timeout=seconds)
        if not earlier.late.done():
            stuck = StepStuck(step.name, seconds=loop.time() - earlier.started, where=where(earlier.thread))
            return StepDone(call.op, call.attempt, outcomes.of_exception(stuck), seconds)
        ended = earlier.late.result()
        return (
            None
            if ended.error is not None
            else self._done(key, call, step, ended, loop.time() - earlier.started)
        )

    def _begin(self, work: _Work, places: asyncio.Semaphore) -> None:
        """Begin an attempt that has a place."""
        call, step = work.call, work.step
        seconds = call.timeout or step.timeout
        heartbeat = self._heartbeats.get(work.key)
        seen = CurrentStep(
            key=work.key,
            name=step.name,
            attempt=call.attempt,
            deadline=self._clock() + seconds,
            last_heartbeat=decoded(heartbeat[0]) if heartbeat else None,
            beat=lambda details: self._beat(work.key, details),
        )
        loop = asyncio.get_running_loop()

        def settled(attempt: Attempt, ended: Ended) -> None:
            timer.cancel()
            self._release(places, attempt)
            self._finished += 1
            try:
                done = self._done(work.key, call, step, ended, loop.time() - attempt.started, attempt)
            except Exception as error:
                work.tell(error)
            else:
                work.tell(done)

        attempt = self._running[work.key] = Attempt(call, step, seen, loop, settled)
        timer = loop.call_later(seconds, self._time_is_up, attempt)
        context = contextvars.copy_context()
        context.run(self._enter, seen, work.actor)
        try:
            if step.is_async:
                running = self._as_task(attempt, step.fn(*work.args, **work.kwargs))
                attempt.task = loop.create_task(running, context=context)
            else:
                attempt.thread = self._threads.run(
                    lambda: context.run(self._in_thread, attempt, work.args, work.kwargs, loop)
                )
        except Exception as error:  # it was closed meanwhile
            timer.cancel()
            del self._running[work.key]
            places.release()
            work.tell(error)

    def _enter(self, seen: CurrentStep, actor: CurrentActor) -> None:
        step_variable.set(seen)
        actor_variable.set(actor)
        resources_variable.set(self._resources)

    async def _as_task(self, attempt: Attempt, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            ended = Ended(await coroutine)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a step must not end the node
            ended = Ended(error=error)
        self._ended(attempt, ended)
        del ended  # an error's traceback holds this frame: it must not hold the error, or both wait for the garbage collector

    def _in_thread(
        self, attempt: Attempt, args: Any, kwargs: Any, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], None]:
        return self._telling(attempt, _called(attempt.step, args, kwargs), loop)

    def _telling(self, attempt: Attempt, ended: Ended, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has left, and nobody asks
                loop.call_soon_threadsafe(self._ended, attempt, ended)

        return tell

    def _ended(self, attempt: Attempt, ended: Ended) -> None:
        """The code of an attempt has ended. Called again it does nothing."""
        if self._running.get(attempt.key) is attempt:
            del self._running[attempt.key]
        if self._stuck.get(attempt.key) is attempt:
            del self._stuck[attempt.key]
            attempt.stuck = False
            if attempt.holds_place:
                self._thread_places.release()
        if attempt.late is not None and not attempt.late.done():
            attempt.late.set_result(ended)
        attempt.end(ended)

    def _time_is_up(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        attempt.timed_out = True
        attempt.cancel()
        if attempt.task is None:
            self._give_up(attempt)
        else:
            attempt.loop.call_later(self._cancel_grace, self._give_up, attempt)

    def _give_up(self, attempt: Attempt) -> None:
        """The code goes on although it should not: the attempt is over without it."""
        if attempt.over:
            return
        self._running.pop(attempt.key, None)
        self._stuck[attempt.key] = attempt
        attempt.stuck = True
        attempt.end(Ended(error=asyncio.CancelledError()))

    def _release(self, places: asyncio.Semaphore, attempt: Attempt) -> None:
        """Give the place back. A stuck thread keeps it once as many are stuck as may run: there are never
        more threads than twice that.
        """
        stuck_threads = sum(bool(other.thread) for other in self._stuck.values())
        if attempt.stuck and attempt.thread and stuck_threads > self._limits.step_threads:
            attempt.holds_place = True
        else:
            places.release()

    def _done(
        self,
        key: str,
        call: PendingCall,
        step: Step[..., Any],
        ended: Ended,
        seconds: float,
        attempt: Attempt | None = None,
    ) -> StepDone:
        done = step_done(call, step, ended, seconds, attempt)
        if done.outcome.kind == "value" or not done.retryable:
            with self._heartbeats_lock:
                self._forget_heartbeat(key)
        return done

    def _cancel(self, key: str) -> None:
        attempt = self._running.get(key)
        if attempt is not None:
            attempt.cancel()
        self._forget_queued(key)

    def _forget_queued(self, key: str) -> None:
        """An attempt that has not begun never does."""
        queued = self._queued.pop(key, None)
        if queued is not None:
            queued.task.cancel()
            call, outcome = queued.work.call, outcomes.of_exception(Cancelled("before it began"))
            queued.work.tell(StepDone(call.op, call.attempt, outcome, retryable=False))

    def _beat(self, key: str, details: bytes) -> None:
        with self._heartbeats_lock:
            self._forget_heartbeat(key)
            self._heartbeats[key] = (details, self._clock())
            self._heartbeat_bytes += len(details)
            while len(self._heartbeats) > MAX_HEARTBEATS or (
                self._heartbeat_bytes > HEARTBEAT_BYTES and len(self._heartbeats) > 1
            ):
                self._forget_heartbeat(next(iter(self._heartbeats)))
        if self._on_beat is not None:
            self._on_beat(key)

    def _forget_heartbeat(self, key: str) -> None:
        """With the lock."""
        details, _ = self._heartbeats.pop(key, (b"", 0.0))
        self._heartbeat_bytes -= len(details)

    def _shown(self, attempt: Attempt) -> RunningStep:
        beat = self._heartbeats.get(attempt.key)
        return RunningStep(
            key=attempt.key,
            step=attempt.step.name,
            attempt=attempt.call.attempt,
            seconds=attempt.loop.time() - attempt.started,
            stuck=attempt.stuck,
            where=where(attempt.thread) if attempt.stuck and attempt.thread else "",
            heartbeat=decoded(beat[0]) if beat else None,
            heartbeat_age=max(0.0, self._clock() - beat[1]) if beat else None,
        )

    async def _close(self) -> None:
        self._threads.close()
        running = [attempt.task for attempt in self._running.values() if attempt.task is not None]
        for attempt in self._running.values():
            attempt.cancel()
        if running:
            await asyncio.wait(running, timeout=self._cancel_grace)


def _called(step: Step[..., Any], args: Any, kwargs: Any) -> Ended:
    """Call a sync step. No variable of this frame holds its error: the error's traceback holds the frame."""
    try:
        value = step.fn(*args, **kwargs)
        return Ended(error=not_awaited(value, step)) if inspect.isawaitable(value) else Ended(value)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too, as above
        return Ended(error=error)


def _take(places: asyncio.Semaphore) -> bool:
    """Take a place of a semaphore that is not locked, without a loop: True, since it then never waits."""
    try:
        places.acquire().send(None)
    except StopIteration:
        return True
    raise AssertionError("a semaphore that is not locked does not wait")
