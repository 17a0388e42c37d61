"""One run from the first process to the verdict. Everything in it is bounded in time, and every process ends with it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sojourn.actors.client import Client
from sojourn.broker.errors import BrokerError, OutcomeUnknown, Refused
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.subjects import ActorId
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.codecs.keyring import Keyring

from .evidence import Death, Evidence, read_journal
from .faults import Injector, unavailable
from .fleet import NAMESPACE, WORKERS, Fleet
from .judge import ENDED, judge
from .operator import Operator
from .plan import CRASH_POINTS, KINDS, draw
from .report import counts, verdict
from .servers import HEALTHY_SECONDS, LIMITS, Servers, store_bytes
from .watch import HISTORY, Watch
from .workload import Drive, stories

NO_SUITABLE_PEERS: Final = 10005
READY_SECONDS: Final = 60.0
LEASE_AND_TAKEOVER: Final = 45.0
"""After the last fault, how long a partition may still wait for the lease of its dead owner, and for its events."""
CHECK_SECONDS: Final = 120.0
QUIET_SECONDS: Final = 60.0
"""After the last workflow ended, how long acknowledgements, seals and moves may still take."""
DEFECTS: Final = ("Traceback", "a defect in Sojourn", "CRITICAL")
"""What must not stand in a node's log."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is run."""

    seed: int
    seconds: float = 600.0
    replicas: int = 3
    nodes: int = 4
    workflows: int = 5_000
    partitions: int = 16
    settle: float | None = None
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    points: tuple[str, ...] = CRASH_POINTS
    keep: Path | None = None
    verbose: bool = False

    @property
    def settle_seconds(self) -> float:
        """Most seconds until every workflow has ended after the last fault."""
        return self.settle if self.settle is not None else LEASE_AND_TAKEOVER + 60 + self.workflows / 40

    @property
    def replay(self) -> str:
        """The command line of this run."""
        parts = [f"--{name} {getattr(self, name):g}" for name in ("seed", "seconds")]
        parts += [
            f"--{name} {getattr(self, name)}" for name in ("replicas", "nodes", "workflows", "partitions")
        ]
        if self.without:
            parts.append(f"--without {','.join(self.without)}")
        if self.only:
            parts.append(f"--only {','.join(self.only)}")
        if self.points != CRASH_POINTS:
            parts.append(f"--points {','.join(self.points)}")
        return f"python -m tests.chaos {' '.join(parts)}"


@dataclass
class World:
    """What a run holds open."""

    place: Path
    servers: Servers
    fleet: Fleet
    broker: NatsBroker
    topology: Topology
    client: Client
    watch: Watch


async def run(options: Options) -> int:
    """Run, print, and return the exit code: 0 for no finding, 1 for findings."""
    place = options.keep or Path(tempfile.mkdtemp(prefix="sojourn-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    sabotage = os.environ.get("SOJOURN_CHAOS_SABOTAGE", "")
    print(f"chaos      {options.replay}" + (f"   [sabotage: {sabotage}]" if sabotage else ""), flush=True)
    began = time.monotonic()
    evidence, injector = await _evidence(options, place, sabotage)
    findings = judge(evidence)
    lines = [
        *counts(evidence, injector.done, injector.skipped),
        f"servers    {injector.servers.mended} restarted after a full disk",
        f"time       {time.monotonic() - began:.0f} s",
        *verdict(findings, options.replay, str(place)),
    ]
    print("\n".join(lines), flush=True)
    if not findings and options.keep is None:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if findings else 0


async def _evidence(options: Options, place: Path, sabotage: str) -> tuple[Evidence, Injector]:
    async with _world(options, place, sabotage) as world:
        injector = Injector(world.servers, world.fleet)
        watching = asyncio.create_task(world.watch.run())
        drive = Drive(
            world.client, stories(options.seed, options.workflows, options.seconds * 0.7), options.seed
        )
        driving = asyncio.create_task(drive.run())
        operator = Operator(world.client, world.watch, world.fleet)
        operating = asyncio.create_task(operator.run())
        left_out = _left_out(options)
        plan = draw(
            options.seed,
            seconds=options.seconds,
            nodes=options.nodes,
            servers=options.replicas,
            workers=WORKERS,
            without=left_out,
            points=options.points,
        )
        try:
            faults = asyncio.create_task(injector.run(plan, verbose=options.verbose))
            await asyncio.sleep(options.seconds)
            async with asyncio.timeout(120):
                await faults
            drive.faults_over.set()
            trouble = await _settle(options, world, drive, driving)
        finally:
            for task in (watching, driving, operating):
                task.cancel()
            await asyncio.gather(watching, driving, operating, return_exceptions=True)
        check = [] if trouble else await _check(world)
        evidence = await _gather(
            world,
            drive,
            injector,
            [*trouble, *injector.trouble, *drive.trouble, *world.watch.defects[:5]],
            check,
            operator.released,
        )
        _write_down(place, injector)
        return evidence, injector


def _left_out(options: Options) -> tuple[str, ...]:
    chosen = set(KINDS) - set(options.only) if options.only else set()
    return tuple(kind for kind in KINDS if kind in {*options.without, *unavailable(), *chosen})


async def _apply(broker: NatsBroker, topology: Topology) -> None:
    """A fresh cluster is healthy a moment before it can place streams."""
    async with asyncio.timeout(HEALTHY_SECONDS):
        while True:
            try:
                await apply(broker, topology)
            except OutcomeUnknown:
                await asyncio.sleep(0.2)
            except Refused as refused:
                if refused.code != NO_SUITABLE_PEERS:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


@asynccontextmanager
async def _world(options: Options, place: Path, sabotage: str) -> AsyncIterator[World]:
    servers = Servers(place, options.replicas, store_bytes(options.workflows))
    keyring = Keyring.generate(place / "key")
    fleet: Fleet | None = None
    broker: NatsBroker | None = None
    try:
        await servers.start()
        broker = await NatsBroker.connect(NatsOptions(servers=servers.urls, name="chaos"))
        topology = Topology(
            namespace=NAMESPACE,
            app="chaos",
            partitions=options.partitions,
            replicas=options.replicas,
            history=HISTORY,
            limits=LIMITS,
        )
        await _apply(broker, topology)
        client = Client(broker, topology.subjects, by="chaos")
        environment = {"CHAOS_JOURNAL": str(place / "journal")}
        fleet = Fleet(place, [server.port for server in servers.all], options.nodes, environment, sabotage)
        await fleet.start()
        watch = Watch(broker, topology.subjects, keyring, servers.urls)
        await _ready(broker, topology, options.nodes)
        yield World(place, servers, fleet, broker, topology, client, watch)
        await client.close()
    finally:
        if fleet is not None:
            await fleet.close()
        if broker is not None:
            await broker.close()
        await servers.close()


async def _ready(broker: NatsBroker, topology: Topology, nodes: int) -> None:
    """Wait until every node is a member and every partition has an owner."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with suppress(BrokerError):
                view = await Directory(broker, topology.subjects).poll(topology.partitions)
                owned = all(view.holder(p) is not None for p in range(topology.partitions))
                if owned and len(view.members) >= nodes:
                    return
            await asyncio.sleep(0.2)


async def _settle(options: Options, world: World, drive: Drive, driving: asyncio.Task[None]) -> list[str]:
    """Wait until every client is done, every record is sealed and every stream is empty, or the time for it is over."""
    trouble: list[str] = []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.settle_seconds
    done, _ = await asyncio.wait((driving,), timeout=options.settle_seconds)
    if not done:
        waiting = [p.actor for p in drive.promises if p.started == "unknown" or p.verb_answer == "unknown"]
        late = [p.actor for p in drive.promises if p.told is None]
        trouble.append(
            f"clients still wait {options.settle_seconds:.0f} s after the last fault, for the start or the end of "
            f"{waiting[:8] or 'none'}, or for the result of some of {late[:8]}"
        )
    while loop.time() < deadline and not _all_ended(world, drive):  # noqa: ASYNC110 - records tell nobody
        await asyncio.sleep(0.5)
    quiet = loop.time() + min(QUIET_SECONDS, options.settle_seconds)
    while not await _is_quiet(world):
        if loop.time() > quiet:
            if not await world.watch.caught_up():
                trouble.append("the witness of commits has not seen every record")
            break
        await asyncio.sleep(0.5)
    return trouble


def _all_ended(world: World, drive: Drive) -> bool:
    newest = world.watch.newest
    acked = (promise.actor for promise in drive.promises if promise.started == "acked")
    return all(actor in newest for actor in acked) and all(r.status in ENDED for r in newest.values())


async def _is_quiet(world: World) -> bool:
    if not all(record.sealed for record in world.watch.newest.values()):
        return False
    with suppress(BrokerError):
        return await world.watch.caught_up() and not await world.watch.leftovers()
    return False


async def _check(world: World) -> list[str]:
    """What `sojourn check` finds, as an operator runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sojourn.cli", "check", "--json",
        "--server", ",".join(world.servers.urls), "--namespace", NAMESPACE,
        "--key-file", str(world.place / "key"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return [f"it did not end within {CHECK_SECONDS:.0f} s"]
    try:
        found = json.loads(said)["findings"]
    except (ValueError, KeyError):
        return [f"exit code {process.returncode}: {complained.decode(errors='replace')[-300:]}"]
    return [f"{finding['actor']}: {finding['problem']}" for finding in found]


async def _gather(
    world: World, drive: Drive, injector: Injector, trouble: list[str], check: list[str], released: list[str]
) -> Evidence:
    """Everything that is known, once nothing moves any more."""
    watch, subjects = world.watch, world.topology.subjects
    executions, plains = read_journal(world.place / "journal")
    left, dead = await watch.leftovers(), await watch.dead_letters()
    deaths = [
        Death(life.pid, life.node, life.began, life.ended)
        for life in world.fleet.lives
        if life.ended is not None
    ]
    return Evidence(
        promises=drive.promises,
        executions=executions,
        plains=plains,
        commits=watch.commits,
        unseen=watch.witness.unseen(),
        records=watch.newest,
        leases=watch.all_leases(),
        deaths=deaths,
        partition_of={actor: subjects.partition_of(ActorId(actor)) for actor in watch.newest},
        left=left,
        dead=dead,
        check=check,
        released=released,
        full_disks=injector.done["full-disk"],
        workers=frozenset(life.node for slot in world.fleet.workers for life in slot.lives),
        server_ends=[at for at, what in injector.log if "server-" in what and "slow" not in what],
        logs=[*watch.unreadable, *world.fleet.unexpected, *_defects(world.fleet.logs())],
        trouble=trouble,
    )


def _defects(logs: dict[str, str]) -> list[str]:
    found = []
    for node, text in logs.items():
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if any(word in line for word in DEFECTS):
                found.append(f"{node} logged: {' | '.join(lines[max(0, number - 1) : number + 12])[:900]}")
                break
    return found


def _write_down(place: Path, injector: Injector) -> None:
    lines = [f"{at:.3f} {what}" for at, what in injector.log]
    (place / "faults.txt").write_text("\n".join(lines) + "\n")
