"""Workflows that hold, across an await, what cannot be stored. Each says what the error must name."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import csv
import dataclasses
import functools
import io
import re
import socket
import sqlite3
import sys
import tempfile
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from frame_programs import tick

STUCK: dict[str, tuple[Callable[[], Awaitable[Any]], str, str, str, str]] = {}
"""By name: the function, the variable, the path inside it, the type, and a word of the remedy."""


def stuck(variable: str, path: str, type_name: str, remedy: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        STUCK[function.__name__] = (function, variable, path, type_name, remedy)
        return function

    return register


@stuck("conn", "", "socket.socket", "inside a step or after the await")
async def a_socket() -> None:
    with socket.socket() as conn:
        await tick()
        conn.fileno()


@stuck("file", "", "_io.TextIOWrapper", "read what you need before the await")
async def a_file() -> None:
    with Path(__file__).open() as file:  # noqa: ASYNC230  # what must not be done
        await tick()
        file.read()


@stuck("lock", "", "_thread.lock", "a workflow has none")
async def a_lock() -> None:
    lock = threading.Lock()
    await tick()
    lock.acquire()


@stuck("thread", "", "threading.Thread", "threads and their locks cannot move")
async def a_thread() -> None:
    thread = threading.Thread(target=print)
    await tick()
    thread.name = "late"


@stuck("pool", "", "concurrent.futures.thread.ThreadPoolExecutor", "inside a step")
async def a_pool() -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        await tick()
        pool.submit(print)


@stuck("event", "", "asyncio.locks.Event", "Sojourn's counterpart")
async def an_event_of_asyncio() -> None:
    event = asyncio.Event()
    await tick()
    event.set()


@stuck("loop", "", "asyncio.unix_events._UnixSelectorEventLoop", "Sojourn's counterpart")
async def an_event_loop() -> None:
    loop = asyncio.SelectorEventLoop()
    try:
        await tick()
    finally:
        loop.close()


@stuck("future", "", "_asyncio.Future", "Sojourn's counterpart")
async def a_future() -> None:
    loop = LOOP
    future = loop.create_future()
    del loop
    await tick()
    future.cancel()


LOOP = asyncio.SelectorEventLoop()


@stuck("task", "", "_asyncio.Task", "Sojourn's counterpart")
async def a_task() -> None:
    task = LOOP.create_task(asyncio.sleep(0))
    LOOP.run_until_complete(task)
    await tick()
    task.cancel()


@stuck("database", "", "sqlite3.Connection", "inside a step")
async def a_database() -> None:
    database = sqlite3.connect(":memory:")
    try:
        await tick()
    finally:
        database.close()


class Client:
    def __init__(self) -> None:
        self.session = Session()

    async def call(self) -> None:
        await tick()
        self.session.close()


@dataclasses.dataclass
class Session:
    pool: list[Any] = dataclasses.field(default_factory=lambda: [{"transport": socket.socket()}])

    def close(self) -> None:
        self.pool[0]["transport"].close()


CLIENT = Client()


@stuck("self", ".session.pool[0]['transport']", "socket.socket", "inside a step or after the await")
async def a_client_reached_through_self() -> None:
    await CLIENT.call()


@stuck("", "[0]['transport']", "socket.socket", "inside a step or after the await")
async def a_temporary() -> None:
    str((CLIENT.session.pool, await tick()))


@stuck("match", "", "re.Match", "take the groups")
async def a_match() -> None:
    match = re.match("a", "abc")
    await tick()
    str(match)


@stuck("token", "", "_contextvars.Token", "reset the context variable")
async def a_token() -> None:
    token = VARIABLE.set(1)
    await tick()
    VARIABLE.reset(token)


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE")


@stuck("reference", "", "weakref.ReferenceType", "hold the object itself")
async def a_weak_reference() -> None:
    reference = weakref.ref(Client)
    await tick()
    reference()


@stuck("names", "['__loader__']", "_frozen_importlib_external.SourceFileLoader", "a module's dictionary")
async def a_module_dictionary() -> None:
    names = globals()
    await tick()
    str(len(names))


@stuck("code", "", "code", "keep the function instead")
async def a_code_object() -> None:
    code = a_file.__code__
    await tick()
    str(code)


@stuck("frame", "", "frame", "keep what you need of it")
async def a_frame() -> None:
    frame = sys._getframe()
    await tick()
    str(frame)


@stuck("later", "<conn>", "socket.socket", "inside a step or after the await")
async def a_closure() -> None:
    conn = socket.socket()

    def later() -> None:
        conn.close()

    await tick()
    later()


@stuck("buffer", "", "memoryview", "")
async def a_view() -> None:
    buffer = memoryview(bytearray(3))
    await tick()
    buffer.release()


@stuck("scan", "", "posix.ScandirIterator", "")
async def a_generator_of_c_code() -> None:
    import os

    with os.scandir(tempfile.gettempdir()) as scan:
        await tick()
        str(scan)


@stuck("directory", "", "tempfile.TemporaryDirectory", "make it inside a step")
async def a_temporary_directory() -> None:
    """Moved, it would be removed with the copy that stays behind."""
    directory = tempfile.TemporaryDirectory()
    await tick()
    directory.cleanup()


@stuck("cleaning", "", "weakref.finalize", "clean up in a `finally`")
async def a_finalizer() -> None:
    cleaning = weakref.finalize(tick, print)
    await tick()
    cleaning.detach()


def counting() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


NUMBERS = counting()


@stuck("numbers", "", "generator", "a module holds it as `NUMBERS`")
async def a_generator_of_a_module() -> None:
    numbers = NUMBERS
    next(numbers)
    await tick()
    next(numbers)


@stuck("exec_made", "", "function", "importable module")
async def a_function_of_no_module() -> None:
    space: dict[str, Any] = {}
    exec("def exec_made(): pass", space)
    exec_made = space.pop("exec_made")
    del space
    await tick()
    exec_made()


@stuck("kept", "", "a_data_class_of_a_function.<locals>.Kept", "define the class at module level")
async def a_data_class_of_a_function() -> None:
    @dataclasses.dataclass
    class Kept:
        number: int

    kept = Kept(1)
    await tick()
    kept.number = 2


@stuck("row", "", "a_named_tuple_of_a_function.<locals>.Row", "define the class at module level")
async def a_named_tuple_of_a_function() -> None:
    class Row(NamedTuple):
        number: int

    row = Row(1)
    await tick()
    str(row)


class Tagging(type):
    def __new__(cls, name: str, bases: Any, space: Any, tag: str) -> Any:
        return super().__new__(cls, name, bases, {**space, "tag": tag})

    def __init__(cls, *_: Any, **__: Any) -> None:
        pass


@stuck(
    "kept",
    "",
    "a_class_whose_metaclass_was_given_arguments.<locals>.Kept",
    "define the class at module level",
)
async def a_class_whose_metaclass_was_given_arguments() -> None:
    class Kept(metaclass=Tagging, tag="kept"):
        pass

    kept = Kept()
    await tick()
    str(kept)


@stuck("view", "", "memoryview", "keep the bytes that it shows")
async def a_view_of_bytes() -> None:
    view = memoryview(b"bytes")
    await tick()
    bytes(view)


@stuck("rows", "", "_csv.reader", "into a list before the await")
async def a_reader() -> None:
    rows = csv.reader(["a,b"])
    await tick()
    list(rows)


@stuck("cached", "", "functools._lru_cache_wrapper", "at module level")
async def a_cache_of_a_function() -> None:
    @functools.lru_cache
    def cached(number: int) -> int:
        return number * 2

    cached(1)
    await tick()
    cached(1)


@stuck("held", ".args[0]", "socket.socket", "inside a step or after the await")
async def an_exception_with_a_socket() -> None:
    held = OSError(socket.socket())
    try:
        await tick()
    finally:
        held.args[0].close()


@stuck("text", ".buffer", "_io.BufferedReader", "read what you need")
async def a_subclass_of_a_file() -> None:
    with Wrapped(Path(__file__).open("rb")) as text:  # closed by the wrapper  # noqa: ASYNC230
        await tick()
        text.read()


class Wrapped(io.TextIOWrapper):
    pass
