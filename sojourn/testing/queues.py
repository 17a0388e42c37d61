"""Queued steps in a `World`: tasks lie in their queue until a worker of the world takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sojourn.actors.registry import Registry
from sojourn.actors.task import Task, parse_task
from sojourn.broker.seam import Publish


@dataclass(frozen=True, slots=True)
class Queued:
    """One task that waits for a worker."""

    queue: str
    actor: str
    step: str
    attempt: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class WorldQueues:
    """All queues of one world, in the order in which tasks came."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tasks: deque[tuple[str, Task]] = deque()

    def __iter__(self) -> Iterator[Queued]:
        for queue, task in self._tasks:
            args, kwargs = self._registry.step(task.step).signature.decode_args(bytes(task.args))
            yield Queued(queue, task.actor, task.step, task.attempt, tuple(args), dict(kwargs))

    def put(self, queue: str, message: Publish) -> None:
        """A task as its owner published it."""
        task = parse_task(message.payload)
        assert task is not None, "owners publish tasks"
        self._tasks.append((queue, task))

    def take(self, queue: str | None = None) -> Task | None:
        """The first task of a queue, or of any."""
        for number, (name, task) in enumerate(self._tasks):
            if queue is None or name == queue:
                del self._tasks[number]
                return task
        return None
