"""`sojourn dev`: a server and one node for the code you are writing, reloaded when you save."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .changed import changed_actors
from .connection import operator, reported
from .dev_worker import dev_worker
from .devfile import FOLDER, DevFile, process_lives
from .failures import CommandFailed, Exit
from .output import Output, clean, counted, waits

if TYPE_CHECKING:
    from sojourn.broker.nats import NatsBroker
    from sojourn.broker.subjects import Subjects
    from sojourn.processes import NodeProcess

DRAIN_SECONDS: Final = 5.0
"""How long the node may finish running steps before a reload hands them over to the next."""
READY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.05
CRASHES: Final = 5
"""How often in a row a node that was killed is replaced by itself; the count begins anew after ..."""
CALM_SECONDS: Final = 60.0
"""... one that lived so long."""
SHOWN: Final = 20
"""Actors that are listed by name when their code changed; the rest are counted."""


@dataclass(frozen=True, slots=True)
class _Session:
    """What one run of `sojourn dev` works with."""

    app: str
    server: str
    namespace: str
    key: Path
    level: str
    broker: NatsBroker
    subjects: Subjects
    output: Output
    hurry: asyncio.Event
    """Set when the node is to leave at once."""


@click.command()
@click.argument("app")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the NATS server.  [default: a free one]",
)
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option(
    "--reload/--no-reload",
    default=True,
    help="Reload when a Python file beside APP changes.  [default: reload]",
)
@click.option(
    "--log",
    "level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="warning",
    show_default=True,
)
@reported
async def dev(output: Output, app: str, port: int, namespace: str, reload: bool, level: str) -> None:
    """Run APP (a file such as `app.py`, or a module) on a server of its own, and reload it when it changes.

    Everything is kept in ./.sojourn: the streams, and the key that seals records. Other commands in this
    folder find the server by themselves. After a reload, workflows that sleep inside a function you changed
    are listed; they wait, unharmed, for the code they were suspended in.
    """
    here = Path.cwd()
    folder = _watched_folder(app)
    running = DevFile.read(here)
    if running is not None:
        raise CommandFailed(
            Exit.REFUSED,
            f"`sojourn dev` runs in this folder already (process {running.pid}, {running.server})",
            "Use that one: the other commands find it from here. Or run this one in another folder.",
        )
    _check_port(port)
    stop, hurry = _stopped_by_signals(output)
    crashes = 0
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(_session(output, here, app, port, namespace, level, hurry))
        output.say(f"server     {session.server}", "bold")
        output.say(f"namespace  {namespace}, kept in ./{FOLDER}")
        saved = await stack.enter_async_context(_changes(folder)) if reload else asyncio.Event()
        while not stop.is_set():
            began = time.monotonic()
            async with _node(session, stop) as process:
                await _first(stop.wait(), saved.wait(), process.wait())
                if not (process.running or stop.is_set() or saved.is_set()):
                    crashes = crashes + 1 if time.monotonic() - began < CALM_SECONDS else 1
                    if process.killed and crashes <= CRASHES:
                        output.say(f"the node was killed ({process.killed}); starting another", "yellow")
                        continue
                    how = (
                        f"was killed ({process.killed})"
                        if process.killed
                        else f"has ended with code {process.code}"
                    )
                    output.say(f"the node {how}; save a file to start it again", "yellow")
                    await _first(stop.wait(), saved.wait())
            if saved.is_set():
                saved.clear()
                output.say("changed; reloading", "bold")


@asynccontextmanager
async def _session(
    output: Output, here: Path, app: str, port: int, namespace: str, level: str, hurry: asyncio.Event
) -> AsyncIterator[_Session]:
    """Server, topology, key and connection; the address is left for other commands."""
    from sojourn.broker.nats import NatsBroker, NatsOptions
    from sojourn.broker.server import EmbeddedServer
    from sojourn.broker.topology import Topology, apply
    from sojourn.codecs.keyring import Keyring

    place = here / FOLDER
    key = place / "key"
    try:
        place.mkdir(exist_ok=True)
        if not key.exists():
            Keyring.generate(key)
    except OSError as error:
        raise CommandFailed(
            Exit.REFUSED,
            f"cannot write to {place}: {error.strerror}",
            "`sojourn dev` keeps its server's data there: run it in a folder that you may write to, on a disk with room.",
        ) from None
    async with EmbeddedServer(place / "jetstream", port=port) as server:
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, name="sojourn dev"))
        try:
            topology = Topology(namespace=namespace, app="dev")
            await apply(broker, topology)
            DevFile(server.url, namespace, os.getpid()).write(here)
            yield _Session(app, server.url, namespace, key, level, broker, topology.subjects, output, hurry)
        finally:
            DevFile.remove(here)
            await broker.close()


async def _end_leases_of_the_dead(broker: NatsBroker, subjects: Subjects) -> None:
    """A node that was killed, or that a `sojourn dev` that was killed took with it, leaves its lease: end it now rather than wait
    for it.
    """
    from sojourn.broker.errors import BrokerError
    from sojourn.cluster.tenure.directory import Directory

    directory = Directory(broker, subjects)
    for member in (await directory.poll(subjects.partitions)).members.values():
        if member.host == socket.gethostname() and not process_lives(member.pid):
            with suppress(BrokerError):  # it ended by itself meanwhile; else it will, in 30 s
                await directory.end_member(member.node, expect=(await directory.member(member.node)).revision)


@asynccontextmanager
async def _node(session: _Session, stop: asyncio.Event) -> AsyncIterator[NodeProcess]:
    """One life of the node: started, said to be ready, drained on leaving."""
    from sojourn.processes import NodeProcess

    name = f"dev-{secrets.token_hex(3)}"
    arguments = [session.app, "--server", session.server, "--namespace", session.namespace, "--node-id", name]
    arguments += ["--key-file", str(session.key), "--drain", f"{DRAIN_SECONDS:g}s", "--log", session.level]
    process = NodeProcess(name, arguments)
    await _end_leases_of_the_dead(session.broker, session.subjects)
    await process.start()
    try:
        ready = asyncio.create_task(_say_ready(session, process), name="say ready")
        await _first(asyncio.wait((ready,)), stop.wait())
        if ready.done():
            ready.result()
        else:
            ready.cancel()
        async with dev_worker(
            session.broker,
            session.subjects,
            session.app,
            session.server,
            session.level,
            session.output,
            session.hurry,
        ):
            yield process
    finally:
        stopping = asyncio.create_task(process.stop(DRAIN_SECONDS + 10.0), name="stop the node")
        await _first(asyncio.wait((stopping,)), session.hurry.wait())
        if not stopping.done():
            process.terminate()  # a second time: it leaves at once, losing nothing
            await stopping
            session.output.say(
                "the node has left at once; the steps it ran run again when it is back", "yellow"
            )
        await stopping


async def _say_ready(session: _Session, process: NodeProcess) -> None:
    """Wait until the node serves, then say what it runs and who cannot go on with it. Silent when it ended instead."""
    from sojourn.broker.cluster_keys import ClusterKeys
    from sojourn.cluster.deployments.deployment import read
    from sojourn.cluster.deployments.versions import Policy, change_policy
    from sojourn.cluster.hosting.views import list_indexes
    from sojourn.cluster.tenure.directory import Directory

    directory = Directory(session.broker, session.subjects)
    member = None
    try:
        async with asyncio.timeout(READY_SECONDS):
            while process.running:
                member = (await directory.member(process.name)).value
                if member is not None and member.state == "ready" and await _serves_all(session):
                    break
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        session.output.say(
            f"the node does not serve yet after {READY_SECONDS:g} s; it goes on trying, `--log info` says at what",
            "yellow",
        )
    if not process.running or member is None:
        return
    keys = ClusterKeys(session.broker, session.subjects)
    deployment = await read(keys, member.deployment)
    if deployment is None:
        return
    policy = Policy(current=deployment.label, by=operator(), at=time.time())
    await change_policy(keys, lambda found: found if found.current == deployment.label else policy)
    session.output.say(
        f"node       {process.name} runs {', '.join(sorted(deployment.workflows)) or 'no workflows'}", "green"
    )
    changed = await changed_actors(list_indexes(session.broker, session.subjects), deployment)
    if changed:
        session.output.say(
            f"sleeping in code that has changed: {counted(len(changed), 'workflow')}", "yellow"
        )
        session.output.table(
            ("id", "workflow", "waits for", "changed"),
            (
                (
                    one.index.actor,
                    one.index.workflow,
                    waits(one.index.wait, time.time()),
                    ", ".join(one.functions),
                )
                for one in changed[:SHOWN]
            ),
        )
        session.output.note(
            "Undo the change to let them go on, or end them with `sojourn terminate ID...`. New ones run the new code."
        )


async def _serves_all(session: _Session) -> bool:
    """Whether every partition has an owner that answers for it."""
    from sojourn.broker.errors import NoResponders, OutcomeUnknown

    async def answers(partition: int) -> bool:
        try:
            await session.broker.request(session.subjects.query(partition), b"", timeout=ANSWER_SECONDS)
        except (NoResponders, OutcomeUnknown):
            return False
        return True

    return all(await asyncio.gather(*map(answers, range(session.subjects.partitions))))


def _watched_folder(app: str) -> Path:
    """Where to look for changes: the folder of a file, else the current one. Raises a usage error for a file that is not there."""
    path = app.partition(":")[0]
    if not path.endswith(".py"):
        return Path.cwd()
    if not Path(path).is_file():
        raise click.BadParameter(f"no such file: {clean(path)}", param_hint="APP")
    return Path(path).resolve().parent


def _stopped_by_signals(output: Output) -> tuple[asyncio.Event, asyncio.Event]:
    """What the first Ctrl-C (or SIGTERM) sets, and what the second does."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            hurry.set()
            return
        stop.set()
        output.say("ending: the node hands over what it runs; Ctrl-C again leaves at once", "bold")

    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, signalled)
    return stop, hurry


def _check_port(port: int) -> None:
    """Raises `CommandFailed` when another process listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandFailed(
                Exit.REFUSED,
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
                "Choose another with --port, or leave it out for a free one.",
            ) from None


@asynccontextmanager
async def _changes(folder: Path) -> AsyncIterator[asyncio.Event]:
    """An event that is set when Python files change."""
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        raise CommandFailed(
            Exit.USAGE,
            "reloading needs the package watchfiles",
            "pip install 'sojourn[dev]', or use --no-reload",
        ) from None
    saved, stop = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        async for _ in awatch(folder, watch_filter=PythonFilter(), stop_event=stop):
            saved.set()

    task = asyncio.create_task(watch(), name="watch files")
    try:
        yield saved
    finally:
        stop.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Return when the first has ended; the others are cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
