"""Coroutines on another loop, with everything that can happen to them on the way."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest
from sojourn.actors.hop import Hop

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture
def there() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_outcomes_come_back_to_whom_they_belong(there: asyncio.AbstractEventLoop) -> None:
    hop = Hop(there)

    async def work(n: int) -> int:
        assert asyncio.get_running_loop() is there
        if n % 7 == 0:
            await asyncio.sleep(0)
        if n % 10 == 3:
            raise ValueError(n)
        return n + variable.get()

    async def one(n: int) -> int:
        variable.set(1000 * n)
        return await hop.run(lambda: work(n))

    outcomes = await asyncio.gather(*(one(n) for n in range(1000)), return_exceptions=True)
    for n, outcome in enumerate(outcomes):
        if n % 10 == 3:
            assert isinstance(outcome, ValueError)
            assert outcome.args == (n,)
        else:
            assert outcome == 1001 * n


async def test_cancelling_here_cancels_there(there: asyncio.AbstractEventLoop) -> None:
    hop = Hop(there)
    entered, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(hop.run(work))
    await asyncio.to_thread(entered.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(cancelled.wait, 20)


async def test_cancelling_before_it_began_there_leaves_nothing_running(
    there: asyncio.AbstractEventLoop,
) -> None:
    hop = Hop(there)
    ran = threading.Event()

    async def work() -> None:
        ran.set()
        await asyncio.Event().wait()

    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(20)

    there.call_soon_threadsafe(block)
    await asyncio.to_thread(blocked.wait, 20)
    running = asyncio.create_task(hop.run(work))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    assert await hop.run(_tasks) == 1  # itself
    assert not ran.is_set()


async def _tasks() -> int:
    await asyncio.sleep(0)
    return len(asyncio.all_tasks())


async def test_a_coroutine_that_cancels_itself_is_cancelled_here(there: asyncio.AbstractEventLoop) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Hop(there).run(work)


async def test_a_closed_loop_is_told_each_time(there: asyncio.AbstractEventLoop) -> None:
    hop = Hop(there)
    assert await hop.run(_tasks) == 1
    there.call_soon_threadsafe(there.stop)
    while there.is_running():  # noqa: ASYNC110  # a loop has no event for its end
        await asyncio.sleep(0)
    there.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            await hop.run(_tasks)
