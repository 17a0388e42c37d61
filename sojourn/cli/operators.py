"""Commands about the whole cluster: its nodes, its topology, and whether nothing can be stuck for ever."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .connection import Connection, connection_options, reported
from .failures import Exit
from .keys import key_option, keyring
from .output import Output, age, counted

if TYPE_CHECKING:
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects
    from sojourn.cluster.tenure.ownership import View


ANSWER_SECONDS: Final = 2.0
"""How long a node may take to answer before it is called silent."""
ASKED: Final = 3
"""Partitions that each node is asked about: one of them may be on its way to it."""


@click.command()
@connection_options
@reported
async def nodes(output: Output, connection: Connection) -> Exit | None:
    """List the nodes, what they run, how many partitions each owns, and how busy it is: actors hot in memory, local
    steps running, share of a core, as of a few seconds ago. One that does not answer is `silent`.

    Exit code 1 when partitions have no living owner.
    """
    from sojourn.cluster.tenure.directory import Directory

    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        view = await Directory(broker, subjects).poll(subjects.partitions)
        silent = await silent_nodes(broker, subjects, view)
    owned = Counter(holder.node for p in range(view.partitions) if (holder := view.holder(p)))
    ownerless = [p for p in range(view.partitions) if view.holder(p) is None]
    if output.json:
        output.document(
            {"nodes": _documents(view, owned, silent), "partitions": view.partitions, "ownerless": ownerless}
        )
    else:
        now = time.time()
        output.table(
            (
                "node",
                "state",
                "deployment",
                "partitions",
                "hot",
                "steps",
                "load",
                "up for",
                "host",
                "pid",
                "health",
            ),
            (
                (
                    m.node,
                    "silent" if m.node in silent else m.state,
                    m.deployment,
                    owned[m.node],
                    m.hot,
                    m.steps,
                    f"{m.load:.0%}",
                    age(now - m.started),
                    m.host,
                    m.pid,
                    m.health,
                )
                for m in sorted(view.members.values(), key=lambda member: member.node)
            ),
        )
        if silent:
            output.say(
                f"{counted(len(silent), 'node')} did not answer: a node that is gone loses its partitions to others, "
                "at the latest when its lease ends (30 s)",
                "yellow",
            )
        if ownerless:
            output.say(f"{len(ownerless)} of {view.partitions} partitions have no owner", "yellow")
    return Exit.FAILED if ownerless else None


async def silent_nodes(broker: Broker, subjects: Subjects, view: View) -> frozenset[str]:
    """Nodes that own partitions and do not answer for them: killed, cut off, or stuck. Each is asked about a few."""
    from sojourn.broker.errors import NoResponders, OutcomeUnknown

    async def is_silent(partition: int) -> bool:
        try:
            await broker.request(subjects.query(partition), b"", timeout=ANSWER_SECONDS)
        except (NoResponders, OutcomeUnknown):
            return True
        return False

    asked: dict[str, list[int]] = {}
    for p in range(view.partitions):
        holder = view.holder(p)
        if holder is not None and holder.state == "ready" and len(asked.setdefault(holder.node, [])) < ASKED:
            asked[holder.node].append(p)
    found = {node: await asyncio.gather(*map(is_silent, partitions)) for node, partitions in asked.items()}
    return frozenset(node for node, silences in found.items() if all(silences))


def _documents(view: View, owned: Counter[str], silent: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {
            "node": member.node,
            "lease": member.lease,
            "state": member.state,
            "answers": member.node not in silent,
            "deployment": member.deployment,
            "capacity": member.capacity,
            "partitions": owned[member.node],
            "hot": member.hot,
            "steps": member.steps,
            "load": member.load,
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
    connection or a large value is alive, and awaits of what needs an event loop (`asyncio.sleep`), in all code that
    its workflows lead to. It asks no broker.

    Without: verify over all records that nothing can be stuck for ever: each actor that has not ended has an event, a
    timer or a message that will bring its owner to it (invariant I11). It opens the records and looks into every
    stream, so it needs the key and the rights of a node or an admin; it unpickles nothing.
    """
    if app is not None:
        from .check_code import check_code

        return check_code(output, app)
    from sojourn.cluster.hosting.views import check as check_records

    keys = keyring(key_file, connection)
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting("records checked") as count:
            found = await check_records(broker, subjects, keys, count)
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
    """Compare what the broker has with what this version needs, as far as the user's role may. Exit code 1 when they differ."""
    from sojourn.broker.errors import Difference, TopologyDrift
    from sojourn.broker.topology import look_for_drift

    differences: tuple[Difference, ...] = ()
    hidden: tuple[str, ...] = ()
    async with connection.broker() as broker:
        try:
            hidden = (await look_for_drift(broker, connection.namespace)).hidden
        except TopologyDrift as drift:
            differences = drift.differences
    if output.json:
        output.document([difference._asdict() for difference in differences])
    elif differences:
        output.table(("where", "field", "expected", "received"), differences)
        output.note("`sojourn topology apply` changes them.")
    elif hidden:
        output.say(f"namespace {connection.namespace}: no drift in what this role may see", "green")
        output.note(f"It may not ask about {', '.join(hidden)}.")
    else:
        output.say(f"namespace {connection.namespace}: no drift", "green")
    return Exit.FAILED if differences else None
