"""`sojourn restore accept`: go on with storage that is older than what was acknowledged (I8)."""

from __future__ import annotations

import click

from .connection import Connection, connection_options, reported
from .output import Output, counted, moment


@click.group()
def restore() -> None:
    """After a restore of the broker's data from a backup."""


@restore.command()
@click.option(
    "--partition", "chosen", multiple=True, type=click.IntRange(0), help="Only these.  [default: all]"
)
@connection_options
@reported
async def accept(output: Output, connection: Connection, chosen: tuple[int, ...]) -> None:
    """Serve the partitions whose storage went back: what was acknowledged after the backup is lost, and steps may run again.

    Nodes refuse such partitions until then (`sojourn nodes` shows them without an owner, `/readyz` says why). They look again within
    ten seconds. Needs the rights of an admin.
    """
    import msgspec

    from sojourn.broker.cluster_keys import ClusterKeys
    from sojourn.cluster.holding.marks import Mark

    forgotten = []
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        keys = ClusterKeys(broker, subjects)
        for p in chosen or range(subjects.partitions):
            entry = await keys.get("mark", p)
            if entry is None:
                continue
            mark = msgspec.json.decode(entry.value, type=Mark)
            await keys.delete("mark", p, expect=entry.revision)
            forgotten.append({"partition": p, "actor": mark.actor, "at": mark.at, "node": mark.node})
    if output.json:
        output.document({"accepted": forgotten})
        return
    if forgotten:
        newest = max(forgotten, key=lambda one: float(str(one["at"])))
        output.note(
            f"The newest thing that was seen: a commit of {newest['actor']} at {moment(float(str(newest['at'])))}."
        )
    output.say(
        f"{counted(len(forgotten), 'partition')} forgot what was seen before; nodes serve what is there now",
        "green",
    )
