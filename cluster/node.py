"""One process that runs actors and is a member of the cluster.

`Node.run` is the life of the process: connect, check the topology for drift, take the broker's time, register
the deployment, open the resources of steps, start the guard, join; then serve until told to leave, and leave
in order. Everything opened is closed in reverse, each within a bound, so leaving always completes.

`run_node` adds what only a process's main thread can do: signals (`signals`). The first SIGTERM or SIGINT drains; the
second leaves at once (nothing is lost by that: what was not committed is done again elsewhere).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sojourn.actors.execution import StepRunner
from sojourn.actors.lifespan import Resources
from sojourn.actors.limits import Limits
from sojourn.actors.registry import Registry
from sojourn.broker.absence import PATIENCE_SECONDS
from sojourn.broker.clock import BrokerClock
from sojourn.broker.cluster_keys import ClusterKeys
from sojourn.broker.errors import BrokerError
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Received
from sojourn.broker.subjects import token
from sojourn.broker.topology import check_drift
from sojourn.codecs.errors import SojournError
from sojourn.codecs.keyring import Keyring

from .deployments import deployment as deployments
from .deployments.versions import Versions, first_is_current
from .faults import fault_from
from .garbage import settle
from .health import HealthServer, Verdict
from .hosting.partition import Partition
from .hosting.services import Fault, PartitionFactory
from .key_check import check_keys
from .lives import Lives, new_event_loop
from .membership import Membership
from .metrics import Metrics
from .signals import run_until_told
from .steps.queues import Queues
from .steps.steps_loop import StepsLoop
from .tenure.gate import Gate
from .tenure.guard import Guard
from .tenure.lease import LeaseTerms, Vitals
from .tenure.ownership import Member

DRAIN_SECONDS: Final = 30.0


class OtherApp(SojournError):
    """The namespace belongs to another app (PROTOCOL 1)."""

    def __init__(self, namespace: str, expected: str, received: str) -> None:
        """`expected`: the app the namespace belongs to; `received`: the one this node would serve."""
        super().__init__(namespace, expected, received)
        self.namespace = namespace
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        """What belongs where."""
        return (
            f"namespace {self.namespace!r} belongs to app {self.expected!r}, this node would serve "
            f"{self.received!r}; use another --namespace, or the app's own code"
        )


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How a node runs. Times are seconds."""

    app: str
    """"module" or "module:attribute", as for `Registry.for_app`."""
    nats: NatsOptions
    """The engine's connection; the guard's is made from the same."""
    keyring: Keyring
    """Without a key a node does not start."""
    namespace: str = "default"
    app_name: str | None = None
    """The app's name, compared with the namespace's; None: not compared."""
    node_id: str | None = None
    """One per living process; None: drawn."""
    deployment: str | None = None
    """Label of this version of the code; None: drawn from the code."""
    capacity: float = 1.0
    """Share of the partitions, relative to the other nodes."""
    drain_seconds: float = DRAIN_SECONDS
    health_host: str = "127.0.0.1"
    health_port: int | None = 0
    """0: a free one; None: no health pages."""
    limits: Limits = field(default_factory=Limits)
    reply_prefix: str = "_INBOX"
    """Replies go only to subjects under this prefix."""
    steps: Literal["thread", "inline"] = "thread"
    """Where async steps run: on a loop of their own, or on the engine's (less latency, no protection)."""
    terms: LeaseTerms = field(default_factory=LeaseTerms)
    announce: bool = False
    """Print "node <id> ready" on stdout when it serves."""
    registry: Registry | None = None
    """Instead of importing `app`."""
    partition_factory: PartitionFactory = Partition
    fault: Fault | None = None
    """None: as the environment asks (`faults.VARIABLE`), which is nothing in production."""


class Node:
    """One node. `run` once; `drain` and `leave` from the same loop."""

    def __init__(self, options: NodeOptions) -> None:
        """Nothing is connected yet."""
        self._options = options
        self._id = token(options.node_id or f"n-{secrets.token_hex(5)}", "a node id")
        self._log = logging.getLogger("sojourn.cluster")
        self._gate = Gate()
        self._vitals = Vitals()
        self._ready = asyncio.Event()
        self._draining = asyncio.Event()
        self._leaving = asyncio.Event()
        self._broker: NatsBroker | None = None
        self._membership: Membership | None = None
        self._guard: Guard | None = None
        self._health: HealthServer | None = None

    def __repr__(self) -> str:
        """Its id and where in its life it is."""
        return f"<Node {self._id} {self._membership.state if self._membership else 'not started'}>"

    @property
    def id(self) -> str:
        """The node's id."""
        return self._id

    @property
    def health_address(self) -> str:
        """Where the health pages are; empty when there are none."""
        return self._health.address if self._health is not None else ""

    @property
    def membership(self) -> Membership | None:
        """The node as a member; None before it joined."""
        return self._membership

    async def wait_ready(self) -> None:
        """Return when the node serves: it has joined, and what it found to attach is attached."""
        await self._ready.wait()

    def drain(self) -> None:
        """Hand everything over and end `run`."""
        self._draining.set()

    def leave(self) -> None:
        """End `run` at once: drop everything, end the lease."""
        self._draining.set()
        self._leaving.set()

    async def run(self) -> None:
        """Serve until told to leave. Raises `SojournError` when it cannot start or cannot go on."""
        async with AsyncExitStack() as stack:
            membership = await self._start(stack)
            await _first(membership.wait_failed(), self._draining.wait(), self._serve(membership))
            self._log.info("draining", extra={"node": self._id})
            await _first(
                membership.wait_failed(),
                self._leaving.wait(),
                membership.drain(self._options.drain_seconds),
            )
        self._log.info("left", extra={"node": self._id})

    async def _serve(self, membership: Membership) -> None:
        """Say when it serves; then wait to be told to leave."""
        await membership.wait_settled()
        self._ready.set()
        served = membership.facts()["partitions"]
        self._log.info(
            "ready: serves %d partitions",
            len(served) if isinstance(served, list) else 0,
            extra={"node": self._id},
        )
        if self._options.announce:
            print(f"node {self._id} ready", flush=True)
        await self._draining.wait()

    async def _start(self, stack: AsyncExitStack) -> Membership:
        options = self._options
        registry = options.registry or Registry.for_app(options.app)
        broker = self._broker = await self._connect("engine")
        stack.push_async_callback(broker.close)
        topology = await check_drift(broker, options.namespace)
        if options.app_name is not None and topology.app != options.app_name:
            raise OtherApp(options.namespace, topology.app, options.app_name)
        subjects = topology.subjects
        await check_keys(broker, subjects, options.keyring)
        clock = BrokerClock(broker, subjects.wake_stream)
        await clock.sync()
        deployment = deployments.describe(registry, app=options.app, label=options.deployment)
        keys = ClusterKeys(broker, subjects)
        await deployments.register(keys, deployment)
        await first_is_current(keys, deployment.label, by=self._id, at=time.time())
        metrics = Metrics({"node": self._id, "deployment": deployment.label})
        queues = Queues(broker, subjects, registry.queues, metrics)
        stack.push_async_callback(queues.stop)
        await queues.prepare()
        lives = Lives(
            broker=broker,
            subjects=subjects,
            clock=clock,
            gate=self._gate,
            metrics=metrics,
            keyring=options.keyring,
            registry=registry,
            step_runner=await self._start_steps(stack, registry, clock),
            limits=options.limits,
            node_id=self._id,
            versions=Versions(keys, deployment),
            reply_prefix=options.reply_prefix,
            fault=options.fault or fault_from(os.environ),
            factory=options.partition_factory,
            patience=PATIENCE_SECONDS if topology.replicas > 1 else 0.0,
        )
        membership = Membership(
            broker,
            subjects,
            clock,
            self._gate,
            self._vitals,
            metrics,
            lives.make,
            lambda: self._member(deployment.label),
            terms=options.terms,
        )
        self._health = self._make_health(metrics)
        self._guard = guard = Guard(
            lambda: self._connect("guard"),
            subjects,
            self._id,
            self._vitals,
            self._gate,
            membership,
            face=self._health,
            terms=options.terms,
            stuck_seconds=options.limits.code_seconds,
        )
        stack.push_async_callback(guard.stop)
        await guard.start()
        self._membership = membership
        stack.push_async_callback(membership.leave)
        await membership.start(guard)
        await broker.subscribe(subjects.drain(self._id), self._on_drain)
        return membership

    async def _on_drain(self, request: Received) -> None:
        """`sojourn drain`: as SIGTERM, with an answer."""
        broker = self._broker
        if request.reply and broker is not None:
            with suppress(BrokerError):
                await broker.reply(request, b"{}")
        self._log.info("asked to drain", extra={"node": self._id})
        self.drain()

    async def _connect(self, connection: Literal["engine", "guard"]) -> NatsBroker:
        name = f"sojourn-{self._id}-{connection}"
        return await NatsBroker.connect(dataclasses.replace(self._options.nats, name=name))

    async def _start_steps(self, stack: AsyncExitStack, registry: Registry, clock: BrokerClock) -> StepRunner:
        """The runner of local steps, with the app's resources open."""
        loop: asyncio.AbstractEventLoop | None = None
        if self._options.steps == "thread":
            steps_loop = StepsLoop(registry.lifespans, new_event_loop)
            stack.push_async_callback(steps_loop.stop)
            resources = await steps_loop.start()
            loop = steps_loop.loop
        else:
            resources = await stack.enter_async_context(Resources.open(registry.lifespans))
        runner = StepRunner(
            registry, clock=clock.now, limits=self._options.limits, resources=resources, loop=loop
        )
        stack.push_async_callback(runner.close)
        return runner

    def _member(self, deployment: str) -> Member:
        return Member(
            node=self._id,
            lease=secrets.token_hex(8),
            state="joining",
            deployment=deployment,
            capacity=self._options.capacity,
            started=time.time(),
            host=socket.gethostname(),
            pid=os.getpid(),
            health=self.health_address,
        )

    # asked by the health pages, on the guard's thread: only whole values are read
    def _make_health(self, metrics: Metrics) -> HealthServer | None:
        options = self._options
        if options.health_port is None:
            return None

        def text() -> str:
            stall = self._guard.stall if self._guard is not None else None
            metrics.gauge("stalled_seconds", stall.seconds if stall is not None else 0.0)
            return metrics.text()

        return HealthServer(
            options.health_host, options.health_port, live=self._live, ready=self._is_ready, metrics=text
        )

    def _live(self) -> Verdict:
        stall = self._guard.stall if self._guard is not None else None
        if stall is not None and stall.seconds >= self._options.limits.stuck_seconds:
            return Verdict(False, f"the engine's loop is stuck for {stall.seconds:.0f} s at {stall.where}")
        return Verdict(
            True, "alive" if stall is None else f"stuck for {stall.seconds:.0f} s at {stall.where}"
        )

    def _is_ready(self) -> Verdict:
        if self._membership is None:
            return Verdict(False, "starting")
        facts = self._membership.facts()
        words = ", ".join(f"{name}: {value}" for name, value in facts.items() if value not in ("", []))
        serves = facts["state"] == "joined" and bool(facts["settled"])
        return Verdict(serves and not facts["gate"] and not facts["went_back"], words)


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Return when the first of them does (or raise what it raises); the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_node(options: NodeOptions) -> int:
    """Run a node in this process until a signal ends it; the exit code: 0 drained, 128 + signal left at once.

    Call it in the main thread. Raises `SojournError` when the node cannot start or cannot go on.
    """
    settle()
    return run_until_told(lambda: Node(options), drain_seconds=options.drain_seconds)
