"""Threads for sync steps. Daemon threads, started when needed and kept while idle: a thread that never
returns must not keep the node from leaving, as the threads of `concurrent.futures` do at exit.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

IDLE_THREADS = 32
"""Idle threads kept; one more that becomes idle ends."""


Work = Callable[[], Callable[[], None]]
"""What a thread does, and what it does then, once it is free for other work: tell the outcome. In that order,
so that whoever is told and has more work finds the thread idle.
"""


class StepThreads:
    """Runs functions in threads, at once: whoever calls bounds how many."""

    def __init__(self, name: str = "sojourn-step") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._count = 0
        self._closed = False

    def run(self, work: Work) -> int:
        """Run `work` in a thread of its own, now; neither it nor what it returns may raise. Returns the
        thread's identifier.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads for sync steps are closed: the node is leaving")
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                self._count += 1
                worker = _Worker(f"{self._name}-{self._count}", self._came_back)
        return worker.take(work)

    def close(self) -> None:
        """End idle threads, and busy ones when they come back. Twice is fine."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.leave()

    def _came_back(self, worker: _Worker) -> bool:
        """Whether the worker, idle now, is to stay."""
        with self._lock:
            if self._closed or len(self._idle) >= IDLE_THREADS:
                return False
            self._idle.append(worker)
            return True


class _Worker:
    """One thread and the box it takes its work from."""

    def __init__(self, name: str, came_back: Callable[[_Worker], bool]) -> None:
        self._box: SimpleQueue[Work | None] = SimpleQueue()
        self._came_back = came_back
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def take(self, work: Work) -> int:
        self._box.put(work)
        return self._thread.ident or 0

    def leave(self) -> None:
        self._box.put(None)

    def _loop(self) -> None:
        while (work := self._box.get()) is not None:
            tell = work()
            stays = self._came_back(self)
            tell()
            del work, tell  # hold nothing of the step while idle
            if not stays:
                return


def where(thread: int) -> str:
    """The line a thread is at now, as "file:line in function"; "" when it has ended."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
