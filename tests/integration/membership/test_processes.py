"""Nodes as processes: killed, told to leave, told twice, frozen, stuck."""

from __future__ import annotations

import asyncio
import signal
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sojourn.broker.nats import NatsBroker
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.tenure.directory import Directory
from sojourn.cluster.tenure.ownership import View

pytestmark = [pytest.mark.integration, pytest.mark.acceptance]

PROGRAM = Path(__file__).with_name("node_process.py")


class Processes:
    """Node processes of one namespace, and what the bucket says of them."""

    def __init__(self, url: str, namespace: str, directory: Directory, logs: Path) -> None:
        self._url = url
        self._namespace = namespace
        self._logs = logs
        self.directory = directory
        self.nodes: dict[str, Process] = {}

    async def start(self, *names: str, stuck: bool = False) -> None:
        for name in names:
            command = [sys.executable, str(PROGRAM), self._url, self._namespace, name]
            with (self._logs / f"{name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *command, *(["stuck"] if stuck else []), stdin=PIPE, stdout=PIPE, stderr=log
                )
            self.nodes[name] = process
            assert process.stdout is not None
            async with asyncio.timeout(20):
                assert await process.stdout.readline() == f"node {name} ready\n".encode(), self.log(name)

    def log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text()

    def send(self, name: str, number: signal.Signals) -> None:
        self.nodes[name].send_signal(number)

    async def ended(self, name: str) -> int:
        async with asyncio.timeout(20):
            return await self.nodes.pop(name).wait()

    async def seen(self, condition: Callable[[View], bool], seconds: float = 20.0) -> View:
        """The first polled view for which the condition holds."""
        async with asyncio.timeout(seconds):
            while True:
                view = await self.directory.poll(32)
                if condition(view):
                    return view
                await asyncio.sleep(0.02)

    async def shared_by(self, *names: str) -> View:
        return await self.seen(lambda view: holders(view) == set(names))

    async def stop(self) -> None:
        for process in self.nodes.values():
            process.kill()
        for process in self.nodes.values():
            await process.wait()


def holders(view: View) -> set[str]:
    """Who holds partitions; "" when one is without an owner."""
    return {member.node if (member := view.holder(p)) else "" for p in range(32)}


@pytest.fixture
async def processes(
    nats_server: EmbeddedServer,
    namespace: str,
    connect: Callable[[], Awaitable[NatsBroker]],
    tmp_path: Path,
) -> AsyncIterator[Processes]:
    topology = Topology(namespace=namespace, app="tests")
    broker = await connect()
    await apply(broker, topology)
    made = Processes(nats_server.url, namespace, Directory(broker, topology.subjects), tmp_path)
    yield made
    await made.stop()


async def test_the_partitions_of_a_killed_node_are_taken_over_long_before_its_lease_would_end(
    nats_server: EmbeddedServer, processes: Processes
) -> None:
    await processes.start("a", "b", "c")
    view = await processes.shared_by("a", "b", "c")
    lost = {p for p in range(32) if (holder := view.holder(p)) and holder.node == "b"}
    processes.send("b", signal.SIGKILL)
    await processes.ended("b")
    view = await processes.shared_by("a", "c")
    assert {view.owners[p].owner.epoch for p in lost} != {1}
    assert "ended the lease of a node that is gone" in processes.log("a") + processes.log("c")


async def test_a_node_told_to_leave_hands_over_and_exits_with_zero(processes: Processes) -> None:
    await processes.start("a", "b")
    await processes.shared_by("a", "b")
    processes.send("a", signal.SIGTERM)
    assert await processes.ended("a") == 0
    view = await processes.shared_by("b")
    assert "a" not in view.members
    assert "takeover" not in processes.log("b"), "every move was planned"


async def test_a_second_signal_ends_a_node_whose_loop_is_stuck(processes: Processes) -> None:
    await processes.start("a", stuck=True)
    stdin = processes.nodes["a"].stdin
    assert stdin is not None
    stdin.write(b"\n")
    await processes.seen(lambda _: "stuck" in processes.log("a"))
    processes.send("a", signal.SIGTERM)
    await asyncio.sleep(0.2)  # two signals at the same moment would be one
    processes.send("a", signal.SIGTERM)
    assert await processes.ended("a") == 128 + signal.SIGTERM


async def test_a_stuck_loop_is_named_by_its_line_and_costs_the_lease_in_the_end(processes: Processes) -> None:
    await processes.start("a", stuck=True)
    await processes.start("b")
    view = await processes.shared_by("a", "b")
    health = view.members["a"].health
    assert await status(f"{health}/livez") == (200, "alive\n")
    stdin = processes.nodes["a"].stdin
    assert stdin is not None
    stdin.write(b"\n")
    await processes.shared_by("b")
    assert "in held_up" in processes.log("a")
    code, text = await status(f"{health}/livez")
    assert code == 503
    assert "in held_up" in text


async def test_a_node_frozen_past_its_lease_drops_everything_and_joins_anew(processes: Processes) -> None:
    await processes.start("a", "b")
    before = await processes.shared_by("a", "b")
    processes.send("a", signal.SIGSTOP)
    await processes.shared_by("b")
    processes.send("a", signal.SIGCONT)
    after = await processes.shared_by("a", "b")
    assert after.members["a"].lease != before.members["a"].lease
    assert "Traceback" not in processes.log("a")


async def status(url: str) -> tuple[int, str]:
    """Status and body of a page."""

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def test_health_pages_tell_what_the_node_does(processes: Any) -> None:
    await processes.start("a")
    view = await processes.shared_by("a")
    health = view.members["a"].health
    code, text = await status(f"{health}/readyz")
    assert (code, text.partition(",")[0]) == (200, "state: joined")
    code, text = await status(f"{health}/metrics")
    assert code == 200
    assert 'sojourn_attaches_total{node="a",deployment="d-' in text
    assert await status(f"{health}/nothing") == (404, "expected /livez, /readyz or /metrics\n")
