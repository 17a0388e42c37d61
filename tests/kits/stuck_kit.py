"""Workflows that hold, across an await, what cannot move. Each returns the text of the error it is told with there.

`STUCK` has each workflow with that text: one, wherever the frame was to be stored.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.actors.registry import Registry
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import Workflow, workflow
from sojourn.codecs.errors import CannotSuspend

REGISTRY = Registry()
STUCK: dict[str, tuple[Workflow[..., Any], str]] = {}

_STEP = "open it inside a step or after the await"
_FILE = "open the file inside a step, or read what you need before the await and close it"
_LOCK = "locks guard threads, and a workflow has none; drop it, or keep it inside a step"
_THREAD = "threads and their locks cannot move; keep them inside a step"
_DATABASE = "open the connection inside a step, with `resource` or by hand"
_SCAN = f"{_STEP} (TypeError: cannot pickle 'posix.ScandirIterator' object)"
_LOOP_REMEDY = "it belongs to an event loop; use Sojourn's counterpart, or keep it inside a step"


def stuck(
    variable: str, kind: str, remedy: str, *, path: str = "", method: Any = None
) -> Callable[[Any], Workflow[..., Any]]:
    def register(fn: Any) -> Workflow[..., Any]:
        holder = method or fn
        lines, first = inspect.getsourcelines(holder)
        line = first + next(index for index, text in enumerate(lines) if "await sleep" in text)
        held = f"`{path}`, reached through local `{variable}`," if path else f"local `{variable}`"
        where = f"in `{holder.__qualname__}` line {line} is alive across an await and cannot be stored"
        made = workflow(registry=REGISTRY)(fn)
        STUCK[fn.__name__] = made, f"{held} (`{kind}`) {where}; {remedy}"
        return made

    return register


class Service:
    """A client that a module makes once, with a connection inside."""

    def __init__(self) -> None:
        self.pool = [socket.socket()]

    async def call(self) -> str:
        try:
            await sleep(1)
        except CannotSuspend as told:
            return str(told)
        return f"stored with {self.pool}"

    def close(self) -> None:
        self.pool[0].close()


SERVICE = Service()
LOOP = asyncio.SelectorEventLoop()


async def _nothing() -> None:
    return


TASK: Any = LOOP.create_task(_nothing())
LOOP.run_until_complete(TASK)


@stuck("conn", "socket.socket", _STEP)
async def holds_a_socket() -> str:
    with socket.socket() as conn:
        try:
            await sleep(1)
        except CannotSuspend as told:
            return str(told)
        return f"stored with {conn}"


@stuck("file", "_io.TextIOWrapper", _FILE)
async def holds_a_file() -> str:
    with Path(__file__).open() as file:  # noqa: ASYNC230 - what must not be done
        try:
            await sleep(1)
        except CannotSuspend as told:
            return str(told)
        return f"stored with {file}"


@stuck("lock", "_thread.lock", _LOCK)
async def holds_a_lock() -> str:
    lock = threading.Lock()
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    return f"stored with {lock}"


@stuck("thread", "threading.Thread", _THREAD)
async def holds_a_thread() -> str:
    thread = threading.Thread(target=print)
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    return f"stored with {thread}"


@stuck("task", "_asyncio.Task", _LOOP_REMEDY)
async def holds_a_task() -> str:
    task = TASK
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    return f"stored with {task}"


@stuck("future", "_asyncio.Future", _LOOP_REMEDY)
async def holds_a_future() -> str:
    future: Any = asyncio.Future(loop=LOOP)
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    return f"stored with {future}"


@stuck("database", "sqlite3.Connection", _DATABASE)
async def holds_a_database_connection() -> str:
    database = sqlite3.connect(":memory:")
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    finally:
        database.close()
    return "stored"


@stuck("entries", "posix.ScandirIterator", _SCAN)
async def holds_a_generator_of_c_code() -> str:
    with os.scandir(tempfile.gettempdir()) as entries:
        try:
            await sleep(1)
        except CannotSuspend as told:
            return str(told)
        return f"stored with {entries}"


@stuck("loop", "asyncio.unix_events._UnixSelectorEventLoop", _LOOP_REMEDY)
async def holds_an_event_loop() -> str:
    loop = LOOP
    try:
        await sleep(1)
    except CannotSuspend as told:
        return str(told)
    return f"stored with {loop}"


@stuck("self", "socket.socket", _STEP, path="self.pool[0]", method=Service.call)
async def reaches_a_client_of_its_module() -> str:
    return await SERVICE.call()
