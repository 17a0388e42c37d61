"""Breaks a node on purpose, to show that the harness notices. Python imports this at the start of every node of a chaos run.

SOJOURN_CHAOS_SABOTAGE chooses what is broken; without it nothing is. Nothing of this is in the product:

- `no-compare-and-swap`: a record is stored whatever was stored before it;
- `ack-before-commit`: an event is acknowledged when it arrives, not when a commit has consumed it;
- `outbox-not-resent`: whoever loads a record takes its outbox for flushed;
- `task-acked-first`: a worker acknowledges a task before its result is stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def _no_compare_and_swap() -> None:
    from sojourn.broker.frames import FrameStore
    from sojourn.broker.seam import Publish

    async def put(self: Any, actor: Any, data: bytes, *, expect: int, **more: Any) -> int:
        subject = self._subjects.frame(actor)
        seconds = more.pop("timeout", 2.0)
        ttl, rollup = more.get("ttl"), more.get("rollup", False)
        message = Publish(subject, data, more.get("headers") or {}, ttl=ttl, rollup=rollup)
        acknowledged = await self._broker.publish(message, timeout=seconds)
        return int(acknowledged.seq)

    FrameStore.put = put  # type: ignore[method-assign]  # the sabotage


def _ack_before_commit() -> None:
    from sojourn.cluster.mail.mailbox import Mailbox

    deliver = Mailbox.deliver

    def acknowledged_at_once(self: Any, event: Any, parsed: Any, delivery: Any) -> None:
        deliver(self, event, parsed, delivery)
        self._serving.acks.acknowledge(delivery, lambda: None)

    Mailbox.deliver = acknowledged_at_once  # type: ignore[method-assign]  # the sabotage


def _outbox_not_resent() -> None:
    from sojourn.cluster.hosting.known_record import KnownRecord

    async def never(self: Any, lease: Any) -> bool:
        return False

    KnownRecord._lease_stored = never  # type: ignore[method-assign]  # the sabotage


def _task_acked_first() -> None:
    from sojourn.cluster.task_run import TaskRun

    execute = TaskRun._execute

    async def acknowledged_first(self: Any, task: Any) -> Any:
        done = await execute(self, task)
        await self._ack()
        return done

    TaskRun._execute = acknowledged_first  # type: ignore[method-assign]  # the sabotage


SABOTAGES: dict[str, Callable[[], None]] = {
    "no-compare-and-swap": _no_compare_and_swap,
    "ack-before-commit": _ack_before_commit,
    "outbox-not-resent": _outbox_not_resent,
    "task-acked-first": _task_acked_first,
}

if _chosen := os.environ.get("SOJOURN_CHAOS_SABOTAGE", ""):
    SABOTAGES[_chosen]()
