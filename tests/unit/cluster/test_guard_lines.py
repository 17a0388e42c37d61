"""Where the guard says that the engine's loop is stuck."""

from __future__ import annotations

import asyncio
import threading

from sojourn.cluster.tenure.guard import _line_of


def test_the_line_is_the_users_and_what_called_the_engine_is_not_named() -> None:
    called, blocked = threading.Event(), threading.Lock()

    async def blocks() -> None:
        asyncio.get_running_loop().call_soon(called.set)
        await asyncio.sleep(0)
        blocked.acquire()

    with blocked:
        thread = threading.Thread(target=lambda: asyncio.run(blocks()))
        thread.start()
        assert called.wait(10)
        assert thread.ident is not None
        while " in blocks" not in (line := _line_of(thread.ident)):
            pass  # between the two, its thread is in asyncio
    thread.join(10)
    assert line.startswith(f"{__file__}:")
    assert " called from " not in line
