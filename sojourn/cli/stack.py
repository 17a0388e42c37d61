"""`sojourn stack`: the source lines at which an actor sleeps, from what its deployment registered.

The places stand in the record's public index, the text in `deployment.<label>`: nothing is unpickled, and no node with that
code has to live.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit
from .output import Output, clean, waits

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.cluster.deployments.deployment import Deployment
    from sojourn.codecs.record import Index, SourceLine


@click.command()
@click.argument("actor")
@connection_options
@reported
async def stack(output: Output, connection: Connection, actor: str) -> None:
    """Show the source lines at which ACTOR sleeps: every branch, its whole chain of awaits.

    The lines come from what its deployment registered: no such code has to run anywhere, and nothing is unpickled.
    """
    from sojourn.broker.cluster_keys import ClusterKeys
    from sojourn.cluster.deployments.deployment import read

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        index = await read_index_of(broker, subjects, actor)
        deployment = await read(ClusterKeys(broker, subjects), index.deployment) if index.deployment else None
    if output.json:
        output.document(_document(index, deployment))
        return
    state = f"held ({index.hold})" if index.hold else str(index.status)
    output.say(
        f"{clean(index.actor)} ({clean(index.workflow)}) is {state}"
        + (f": {waits(clean(index.wait), time.time())}" if index.wait else ""),
        "bold",
    )
    for number, chain in enumerate(index.stacks):
        if len(index.stacks) > 1:
            output.say(f"branch {number}", "dim")
        for text in _lines(chain, deployment):
            output.console.print(text, soft_wrap=True)
    if not index.stacks:
        output.note("It stands at no line: it has not run yet, or has ended.")
    elif deployment is None:
        output.note(
            f"Deployment {index.deployment or 'unknown'} is not registered here: places without their text."
        )


async def read_index_of(broker: Broker, subjects: Subjects, actor: str) -> Index:
    """The public facts of an actor, from the stream's leader. Raises `CommandFailed`, `InvalidName`, `BrokerError`."""
    from sojourn.broker.frames import FrameStore
    from sojourn.broker.subjects import actor_id
    from sojourn.codecs.seal import read_index

    record = await FrameStore(broker, subjects).read(actor_id(actor))
    if record is None or not record.data:
        raise CommandFailed(Exit.NOT_FOUND, f"no actor {actor!r}", "`sojourn list` shows those that exist.")
    return read_index(record.data)


def _lines(chain: tuple[SourceLine, ...], deployment: Deployment | None) -> Iterator[Text]:
    """Two lines for each place, outermost first, as a traceback has them."""
    for place in chain:
        yield Text(f"  {clean(place.module)}, line {place.line}, in {clean(place.function)}")
        source = _source(place, deployment)
        if source:
            yield Text(f"    {clean(source)}", style="bold cyan")


def _source(place: SourceLine, deployment: Deployment | None) -> str | None:
    return deployment.source_line(place.module, place.line) if deployment is not None else None


def _document(index: Index, deployment: Deployment | None) -> Mapping[str, Any]:
    return {
        "id": index.actor,
        "workflow": index.workflow,
        "status": str(index.status),
        "hold": index.hold,
        "wait": index.wait,
        "deployment": index.deployment,
        "branches": [
            [
                {
                    "module": place.module,
                    "function": place.function,
                    "line": place.line,
                    "source": _source(place, deployment),
                }
                for place in chain
            ]
            for chain in index.stacks
        ],
    }
