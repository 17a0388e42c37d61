"""`sojourn queues`: the queues of steps, what waits in each, and whether anybody takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from .connection import Connection, connection_options, reported
from .output import Output

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects

_PREFIX: Final = "queue-"
"""Of the consumers that workers share (`Subjects.step_consumer`)."""


@click.command()
@connection_options
@reported
async def queues(output: Output, connection: Connection) -> None:
    """Show each queue of steps: tasks that wait, tasks in workers' hands, and free places of workers that wait for one.

    A queue whose tasks wait while no place is free has too few workers, or none.
    """
    async with connection.broker() as broker:
        found = await _look(broker, await connection.subjects(broker))
    if output.json:
        output.document({"queues": found})
        return
    output.table(
        ("queue", "waiting", "taken", "free places"),
        ((one["queue"], one["waiting"], one["taken"], one["free_places"]) for one in found),
    )
    if any(one["waiting"] and not one["free_places"] for one in found):
        output.note("Tasks that wait without a free place: start workers, `sojourn worker APP --queue NAME`.")


async def _look(broker: Broker, subjects: Subjects) -> list[dict[str, Any]]:
    """One entry for each queue that some node's app has named, by name."""
    stream = subjects.steps_stream
    found = []
    for name in sorted(await broker.consumers(stream)):
        state = await broker.consumer_state(stream, name) if name.startswith(_PREFIX) else None
        if state is not None:
            found.append(
                {
                    "queue": name.removeprefix(_PREFIX),
                    "waiting": state.waiting,
                    "taken": state.unacknowledged,
                    "free_places": state.requests,
                }
            )
    return found
