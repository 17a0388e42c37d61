"""For the static check: each line marked as a finding awaits while that variable is alive; no other line does."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from pathlib import Path

from frame_programs import tick


async def uses_a_socket() -> None:
    await tick("before it is opened")
    conn = socket.socket()
    await tick()  # finding: conn
    conn.close()
    await tick("after its last use")


async def uses_a_file(path: Path) -> str:
    with open(path) as file:  # noqa: ASYNC230, F841  # held is enough
        await tick()  # finding: file
        text = "x"
    await tick("closed")
    return text


async def closes_before() -> bytes:
    with socket.socket() as conn:
        data = conn.recv(1)
    await tick("closed")
    return data


async def in_a_loop() -> None:
    lock = None
    for _ in range(2):
        await tick()  # finding: lock
        if lock:
            lock.acquire()
        lock = threading.Lock()


async def imports_locally() -> None:
    from sqlite3 import connect

    database = connect(":memory:")
    await tick()  # finding: database
    database.close()


async def large(path: Path) -> int:
    content = path.read_bytes()  # noqa: ASYNC240
    size = len(content)
    await tick("content is dead here")
    blank = b"\0" * 1_000_000
    await tick()  # finding: blank
    return size + len(blank)


class Worker:
    async def method(self) -> None:
        event = asyncio.Event()
        await tick()  # finding: event
        event.set()


async def nested() -> None:
    async def inner() -> None:
        database = sqlite3.connect(":memory:")
        await tick()  # finding: database
        database.close()

    await inner()


async def fine() -> None:
    try:
        values = [1, 2, 3]
        await tick()
        values.append(4)
    except asyncio.TimeoutError:  # noqa: UP041
        await tick()
