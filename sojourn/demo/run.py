"""One run of the demo: a server, three nodes, 200 onboardings, one kill, one drain, a verdict.

    start 120 onboardings ── checks run ── SIGKILL node-2 ── its partitions are taken over
    start  80 onboardings ── checks run ── SIGTERM node-3 ── it drains and leaves
    approvals as raw messages ── some withdrawn (cancelled with their child) ── results ── judge

Every wait is bounded by the deadline of the whole run; whatever happens, nodes and server are ended.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nats
import orjson
from rich.console import Console

from sojourn.actors.client import Client
from sojourn.actors.errors import Rejected, ResultTimeout, WorkflowCancelled
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Broker
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id, channel_name
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.codecs.errors import SojournError
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.seal import read_index
from sojourn.processes import NodeProcess

from . import journal
from .screen import Screen
from .verdict import Kill, Outcome, Run, Verdict, judge
from .watch import Watch, waiting_for_approval

APP: Final = "sojourn.examples.onboard"
NAMESPACE: Final = "demo"
TOGETHER: Final = 32
"""Requests of the demo's client in flight."""
POLL_SECONDS: Final = 0.05
SETTLED_SECONDS: Final = 6.0
"""A node ends a silent peer's lease only when it has itself been connected for 5 seconds (PROTOCOL 3)."""
ENOUGH: Final = 3
"""Checks that must be running on a node when it is killed or drained."""
SHARE_OF_FIRST_WAVE: Final = 0.6


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is to be onboarded and how each must end."""

    onboardings: int = 200
    nodes: int = 3
    seconds: float = 120.0
    """Deadline of the whole run."""

    def users(self) -> list[str]:
        """Ids, in order: the digit in front of the last says how it ends."""
        return [f"user-{number:03d}" for number in range(self.onboardings)]

    def ends(self, user: str) -> str:
        """One in ten is rejected by a person, one in ten withdraws and is cancelled with its child."""
        digit = int(user.rpartition("-")[2]) % 10
        return {3: "rejected", 7: "cancelled"}.get(digit, "completed")


@dataclass
class Seen:
    """What was measured on the way."""

    kill: Kill = field(default_factory=lambda: Kill(0, 0.0))
    takeovers: list[float] = field(default_factory=list)
    frame_bytes: list[int] = field(default_factory=list)


class DemoFailed(SojournError):
    """The run could not be carried out as planned: what it waited for did not come in time."""


@dataclass
class Stage:
    """Everything the acts of the demo share."""

    plan: Plan
    nodes: Sequence[NodeProcess]
    broker: Broker
    subjects: Subjects
    client: Client
    watch: Watch
    screen: Screen
    journal: Path
    url: str
    seen: Seen = field(default_factory=Seen)

    def checks_running(self, on: NodeProcess) -> int:
        """Background checks that run on a node now, by the journal."""
        now = time.time()
        return sum(
            1
            for e in journal.read(self.journal)
            if e.step == "run_checks" and e.pid == on.pid and e.running_at(now)
        )


async def run(plan: Plan, *, console: Console | None = None, folder: Path | None = None) -> Verdict:
    """Carry it out, telling its story on the console; the verdict, which was printed too. Raises `DemoFailed`, `SojournError`."""
    async with AsyncExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-demo-")))
        server = await stack.enter_async_context(EmbeddedServer(place / "jetstream"))
        async with asyncio.timeout(plan.seconds):
            stage = await stack.enter_async_context(_prepared(plan, server.url, place, console))
            await _nodes_ready(stage)
            users = plan.users()
            first = users[: round(len(users) * SHARE_OF_FIRST_WAVE)]
            await _start(stage, first)
            await _kill_one(stage, stage.nodes[1])
            await _start(stage, users[len(first) :])
            await _drain_one(stage, stage.nodes[2])
            await _decide(stage, users)
            outcomes = await _results(stage, users)
            return await _judge(stage, outcomes)


@asynccontextmanager
async def _prepared(plan: Plan, url: str, place: Path, console: Console | None) -> AsyncIterator[Stage]:
    key, book = place / "key", place / "journal"
    Keyring.generate(key)
    topology = Topology(namespace=NAMESPACE, app="onboard")
    broker = await NatsBroker.connect(NatsOptions(servers=url, name="sojourn demo"))
    nodes = [_node(number, url, key, book, place) for number in range(1, plan.nodes + 1)]
    try:
        await apply(broker, topology)
        for node in nodes:
            await node.start()
        async with (
            Watch(broker, topology.subjects) as watch,
            _client(broker, topology.subjects) as client,
            Screen(plan.onboardings, watch.stages, console=console) as screen,
        ):
            screen.tell(f"nats-server at {url}, {plan.nodes} nodes starting")
            yield Stage(plan, nodes, broker, topology.subjects, client, watch, screen, book, url)
    finally:
        await asyncio.gather(*(node.stop(seconds=10.0) for node in nodes))
        await broker.close()


@asynccontextmanager
async def _client(broker: Broker, subjects: Subjects) -> AsyncIterator[Client]:
    client = Client(broker, subjects, by="demo")
    try:
        yield client
    finally:
        await client.close()


def _node(number: int, url: str, key: Path, book: Path, place: Path) -> NodeProcess:
    name = f"node-{number}"
    arguments = [APP, "--server", url, "--namespace", NAMESPACE, "--node-id", name, "--key-file", str(key)]
    return NodeProcess(name, arguments, log=place / f"{name}.log", environment={"ONBOARD_JOURNAL": str(book)})


async def _nodes_ready(stage: Stage) -> None:
    """Until every node owns its share, and so has work that it can lose, and is connected long enough to judge its peers."""
    directory = Directory(stage.broker, stage.subjects)
    fair = stage.subjects.partitions // (len(stage.nodes) + 1)
    while True:
        dead = [node for node in stage.nodes if not node.running]
        if dead:
            raise DemoFailed(f"{dead[0].name} ended while starting:\n{dead[0].last_words()}")
        view = await directory.poll(stage.subjects.partitions)
        owned = [holder.node for p in range(view.partitions) if (holder := view.holder(p))]
        shared = len(owned) == view.partitions and all(owned.count(node.name) >= fair for node in stage.nodes)
        if shared and all(time.time() - member.started > SETTLED_SECONDS for member in view.members.values()):
            break
        await asyncio.sleep(POLL_SECONDS)
    shares = ", ".join(f"{node.name} {owned.count(node.name)}" for node in stage.nodes)
    stage.screen.tell(f"all {view.partitions} partitions are owned: {shares}")


async def _start(stage: Stage, users: Sequence[str]) -> None:
    gate = asyncio.Semaphore(TOGETHER)

    async def start(user: str) -> None:
        async with gate:
            watched = stage.plan.ends(user) == "cancelled"
            await stage.client.start("onboard", args=[user], kwargs={"watched": watched}, id=user)

    stage.screen.tell(f"starting {len(users)} onboardings")
    # Not awaited all the way: the interesting moment is while their checks run.
    await asyncio.gather(*(start(user) for user in users))


async def _until(condition: bool, what: str) -> None:
    if not condition:
        raise DemoFailed(f"waited in vain until {what}")


async def _kill_one(stage: Stage, victim: NodeProcess) -> None:
    while (running := stage.checks_running(victim)) < ENOUGH:  # noqa: ASYNC110  # the journal is a file
        await asyncio.sleep(POLL_SECONDS)
    directory = Directory(stage.broker, stage.subjects)
    before = await directory.poll(stage.subjects.partitions)
    lost = {
        p for p in range(before.partitions) if (holder := before.holder(p)) and holder.node == victim.name
    }
    stage.seen.kill = Kill(victim.pid, time.time())
    victim.kill()
    stage.screen.tell(
        f"SIGKILL {victim.name}: {running} checks were running there, {len(lost)} partitions", "bold red"
    )
    while lost:
        view = await directory.poll(stage.subjects.partitions)
        now = time.time()
        taken = {p for p in lost if (holder := view.holder(p)) and holder.node != victim.name}
        if taken:
            stage.seen.takeovers.extend([now - stage.seen.kill.at] * len(taken))
            lost -= taken
        await asyncio.sleep(POLL_SECONDS)
    stage.screen.tell(
        f"all its partitions have other owners, {max(stage.seen.takeovers):.1f} s after the kill"
    )


async def _drain_one(stage: Stage, leaver: NodeProcess) -> None:
    while (running := stage.checks_running(leaver)) < ENOUGH:  # noqa: ASYNC110  # the journal is a file
        await asyncio.sleep(POLL_SECONDS)
    stage.screen.tell(f"SIGTERM {leaver.name}: it drains with {running} checks running", "bold yellow")
    leaver.terminate()
    code = await leaver.wait()
    if code != 0:
        raise DemoFailed(f"{leaver.name} drained with exit code {code}:\n{leaver.last_words()}")
    stage.screen.tell(f"{leaver.name} has left in good order")


async def _decide(stage: Stage, users: Sequence[str]) -> None:
    """Approvals as raw messages on the mailbox's subject: any NATS client can do this."""
    everyone = set(users)
    waiting = await stage.watch.until(
        lambda facts: waiting_for_approval(facts, everyone) == everyone, stage.plan.seconds
    )
    await _until(waiting, "all onboardings wait for approval")
    stage.seen.frame_bytes = await _frame_bytes(stage)
    stage.screen.tell(f"all {len(users)} wait for approval; answering by raw messages, withdrawing some")
    raw = await nats.connect(stage.url)
    channel = channel_name("approval")
    try:
        for user in users:
            ends = stage.plan.ends(user)
            if ends == "cancelled":
                await stage.client.handle(user).cancel(reason="withdrawn")
                continue
            answer = {"ok": ends == "completed", "reason": "" if ends == "completed" else "too young"}
            await raw.request(stage.subjects.mail(actor_id(user), channel), orjson.dumps(answer), timeout=5)
    finally:
        await raw.close()


async def _frame_bytes(stage: Stage) -> list[int]:
    frames = FrameStore(stage.broker, stage.subjects)
    sizes = [read_index(record.data).frame_bytes async for _, record in frames.scan()]
    return [size for size in sizes if size]


async def _results(stage: Stage, users: Sequence[str]) -> dict[str, Outcome]:
    children = [f"watch-{user}" for user in users if stage.plan.ends(user) == "cancelled"]
    actors = [*users, *children]
    outcomes = await asyncio.gather(*(_outcome(stage, actor) for actor in actors))
    return dict(zip(actors, outcomes, strict=True))


async def _outcome(stage: Stage, actor: str) -> Outcome:
    try:
        receipt = await stage.client.handle(actor).result(timeout=stage.plan.seconds / 2)
    except Rejected:
        return Outcome("rejected")
    except WorkflowCancelled:
        return Outcome("cancelled")
    except ResultTimeout as late:
        return Outcome(f"lost ({late.status or 'unknown'})")
    except SojournError as error:
        return Outcome(type(error).__name__)
    return Outcome("completed", (receipt or {}).get("account", ""))


async def _judge(stage: Stage, outcomes: dict[str, Outcome]) -> Verdict:
    expected = {actor: stage.plan.ends(actor) for actor in outcomes}
    itineraries: dict[str, list[str]] = {}
    async for actor, record in FrameStore(stage.broker, stage.subjects).scan():
        itineraries[actor] = [move.node.partition("/")[0] for move in read_index(record.data).itinerary]
    verdict = judge(
        Run(
            expected=expected,
            outcomes=outcomes,
            executions=journal.read(stage.journal),
            kill=stage.seen.kill,
            itineraries=itineraries,
            frame_bytes=stage.seen.frame_bytes,
            takeovers=stage.seen.takeovers,
        )
    )
    await stage.screen.verdict(verdict.rows, verdict.problems)
    return verdict
