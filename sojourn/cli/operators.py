"""Commands about the whole cluster: its nodes, its topology, and whether nothing can be stuck for ever."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .connection import Connection, connection_options, reported
from .failures import Exit
from .keys import key_option, keyring
from .output import Output, age

if TYPE_CHECKING:
    from sojourn.cluster.ownership import View


@click.command()
@connection_options
@reported
async def nodes(output: Output, connection: Connection) -> Exit | None:
    """List the nodes, what they run, and how many partitions each owns.

    Exit code 1 when partitions have no living owner.
    """
    from sojourn.cluster.directory import Directory

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        view = await Directory(broker, subjects).poll(subjects.partitions)
    owned = Counter(holder.node for p in range(view.partitions) if (holder := view.holder(p)))
    ownerless = [p for p in range(view.partitions) if view.holder(p) is None]
    if output.json:
        output.document(
            {"nodes": _documents(view, owned), "partitions": view.partitions, "ownerless": ownerless}
        )
    else:
        now = time.time()
        output.table(
            ("node", "state", "deployment", "partitions", "up for", "host", "pid", "health"),
            (
                (m.node, m.state, m.deployment, owned[m.node], age(now - m.started), m.host, m.pid, m.health)
                for m in sorted(view.members.values(), key=lambda member: member.node)
            ),
        )
        if ownerless:
            output.say(f"{len(ownerless)} of {view.partitions} partitions have no owner", "yellow")
    return Exit.FAILED if ownerless else None


def _documents(view: View, owned: Counter[str]) -> list[dict[str, Any]]:
    return [
        {
            "node": member.node,
            "lease": member.lease,
            "state": member.state,
            "deployment": member.deployment,
            "capacity": member.capacity,
            "partitions": owned[member.node],
            "started": member.started,
            "host": member.host,
            "pid": member.pid,
            "health": member.health,
        }
        for member in sorted(view.members.values(), key=lambda member: member.node)
    ]


@click.command()
@click.argument("app", required=False)
@key_option
@connection_options
@reported
async def check(
    output: Output, connection: Connection, key_file: Path | None, app: str | None
) -> Exit | None:
    """Check code before it runs, or the records of a cluster. Exit code 1 with the findings, if there are any.

    With APP (a module, `module:attribute`, or a file): the awaits across which a socket, a file, a lock, a
    connection or a large value is alive, in all code that its workflows lead to. It asks no broker.

    Without: verify over all records that nothing can be stuck for ever: each actor that has not ended has an event, a
    timer or a message that will bring its owner to it (invariant I11). It opens the records, so it needs the key; it
    unpickles nothing.
    """
    if app is not None:
        from .check_code import check_code

        return check_code(output, app)
    from sojourn.cluster.views import check as check_records

    keys = keyring(key_file)
    async with connection.broker() as broker:
        found = await check_records(broker, await connection.subjects(broker), keys)
    if output.json:
        output.document(
            {
                "records": found.records,
                "ended": found.ended,
                "waiting": dict(found.waiting),
                "findings": [{"actor": f.actor, "problem": f.problem} for f in found.findings],
            }
        )
    else:
        output.table(
            ("actors", "will be woken by"), ((count, wake) for wake, count in sorted(found.waiting.items()))
        )
        if found.findings:
            output.table(("actor", "problem"), ((f.actor, f.problem) for f in found.findings))
        output.say(
            f"{found.records} records, {found.ended} of them ended, {len(found.findings)} that nothing will wake",
            "red" if found.findings else "green",
        )
    return Exit.FAILED if found.findings else None


@click.group()
def topology() -> None:
    """Streams and buckets at the broker: create, change, compare."""


@topology.command()
@click.option("--app", default="app", show_default=True, help="Name of the app this namespace belongs to.")
@click.option(
    "--partitions", type=click.IntRange(1, 256), default=32, show_default=True, help="Can never change."
)
@click.option(
    "--replicas",
    type=click.Choice(["1", "3", "5"]),
    default="1",
    show_default=True,
    help="Copies of each stream.",
)
@click.option(
    "--history",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Revisions kept of each record.",
)
@connection_options
@reported
async def apply(
    output: Output, connection: Connection, app: str, partitions: int, replicas: str, history: int
) -> None:
    """Create the namespace's streams and buckets, or change them to what this version needs.

    Needs the rights of an admin. `sojourn dev` and `sojourn demo` do it themselves.
    """
    from sojourn.broker import topology as applied

    wanted = applied.Topology(
        namespace=connection.namespace,
        app=app,
        partitions=partitions,
        replicas=int(replicas),
        history=history,
    )
    async with connection.broker() as broker:
        touched = await applied.apply(broker, wanted)
    if output.json:
        output.document({"namespace": connection.namespace, "touched": list(touched)})
        return
    for stream in touched:
        output.say(f"created or changed {stream}")
    output.say(f"namespace {connection.namespace}: the topology is as it should be", "green")


@topology.command("check")
@connection_options
@reported
async def check_topology(output: Output, connection: Connection) -> Exit | None:
    """Compare what the broker has with what this version needs. Exit code 1 when they differ."""
    from sojourn.broker.errors import Difference, TopologyDrift
    from sojourn.broker.topology import check_drift

    differences: tuple[Difference, ...] = ()
    async with connection.broker() as broker:
        try:
            await check_drift(broker, connection.namespace)
        except TopologyDrift as drift:
            differences = drift.differences
    if output.json:
        output.document([difference._asdict() for difference in differences])
    elif differences:
        output.table(("where", "field", "expected", "received"), differences)
        output.note("`sojourn topology apply` changes them.")
    else:
        output.say(f"namespace {connection.namespace}: no drift", "green")
    return Exit.FAILED if differences else None
