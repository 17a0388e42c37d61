"""What a durable step costs a node, beside the bare compare-and-swap puts that it is made of.

The work is that of the comparison with other engines, so that figures can stand side by side:

    W1 steps      500 workflows of 10 steps one after another, 50 in flight
    W2 signal     200 workflows that wait for a signal: from sending it to seeing the result, one at a time
    W3 start      300 times: start a workflow of one step, see its result
    W5 history    one signal to an actor with 10,000 past steps, and to one with 10: resuming does not know the past

One node process, one nats-server, both with their defaults; this process drives. CPU is user and system time of each
process tree; wall-clock figures mean little on a machine that does other things, which `elsewhere` tells. The bare puts
go over the same client, in the same run, with headers and bodies of the size that W1 stored: `share` is what a put
costs the client, divided by what a step costs the node, in CPU. The budget (docs: budgets) is a half; a step also runs
user code twice (the step, the workflow up to its next await), captures its frame, seals it.

    python benchmarks/steps_bench.py [--w1 500] [--steps 10] [--inflight 50] [--mode thread|inline] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sojourn.actors.client import Client
from sojourn.broker.frames import FrameStore
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, actor_id
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.lives import new_event_loop
from sojourn.codecs.keyring import Keyring

from sojourn.processes import NodeProcess

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from processes import Cpu, cpu_of  # noqa: E402  # a sibling of this script

NAMESPACE = "bench"
PARTITIONS = 8
CAP_SECONDS = 90.0
"""No part of a run may take longer."""
PAST_SECONDS = 240.0
"""But for W5's long past: one actor makes at most 200 transitions a second."""


@dataclass
class Bench:
    """A server, a node in a process of its own, and a client here."""

    server: EmbeddedServer
    broker: NatsBroker
    subjects: Subjects
    client: Client
    node: NodeProcess

    def cpu(self) -> Cpu:
        return cpu_of(self.node.pid, self.server.pid or 0)


@asynccontextmanager
async def bench(mode: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sojourn-bench-")))
        server = await stack.enter_async_context(EmbeddedServer(place / "jetstream"))
        Keyring.generate(place / "key")
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, name="bench"))
        stack.push_async_callback(broker.close)
        topology = Topology(namespace=NAMESPACE, app="bench", partitions=PARTITIONS)
        await apply(broker, topology)
        client = Client(broker, topology.subjects, by="bench")
        stack.push_async_callback(client.close)
        node = NodeProcess(
            "bench",
            [
                "steps_app", "--server", server.url, "--namespace", NAMESPACE, "--node-id", "bench",
                "--key-file", str(place / "key"), "--log", "warning", "--no-health", "--steps", mode,
            ],
            log=place / "node.log",
            environment={"PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))},
        )  # fmt: skip
        await node.start()
        stack.push_async_callback(node.stop, 10.0)
        made = Bench(server, broker, topology.subjects, client, node)
        try:
            async with asyncio.timeout(CAP_SECONDS):
                await many(made, range(20), 10, lambda n: chained(made, f"warm{n}", 3))
            yield made
        except BaseException:
            print(node.last_words(), file=sys.stderr)
            raise


async def chained(made: Bench, actor: str, steps: int) -> None:
    handle = await made.client.start("chain", args=[steps], id=actor, timeout=30)
    result = await handle.result(timeout=CAP_SECONDS)
    assert result == steps, f"{actor} returned {result}"


async def many(
    made: Bench, numbers: Sequence[int], in_flight: int, one: Callable[[int], Awaitable[Any]]
) -> None:
    """All of them, so many at a time: a new one begins when one has ended."""
    waiting = iter(numbers)

    async def line() -> None:
        for number in waiting:
            await one(number)

    async with asyncio.timeout(CAP_SECONDS):
        await asyncio.gather(*(line() for _ in range(in_flight)))


@dataclass(frozen=True)
class Throughput:
    """`count` things in `seconds`; CPU of those who did them."""

    count: int
    seconds: float
    cpu: Cpu

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    def microseconds(self, seconds: float) -> float:
        """Of one thing."""
        return seconds / self.count * 1e6


async def w1_steps(
    made: Bench, workflows: int, steps: int, in_flight: int, prefix: str = "w1-"
) -> Throughput:
    before, began = made.cpu(), time.perf_counter()
    await many(made, range(workflows), in_flight, lambda n: chained(made, f"{prefix}{n}", steps))
    seconds = time.perf_counter() - began
    return Throughput(workflows * steps, seconds, made.cpu() - before)


async def bare_puts(made: Bench, count: int, in_flight: int, prefix: str) -> tuple[Throughput, int]:
    """Compare-and-swap puts of a record as W1 stored it, over this process's client; with the record's size."""
    frames = FrameStore(made.broker, made.subjects)
    stored = await frames.read(actor_id("w1-0"))
    assert stored is not None
    body, headers = _as_in_the_middle(stored.data), stored.headers
    revisions = [0] * in_flight

    async def put(number: int) -> None:
        line = number % in_flight
        revisions[line] = await frames.put(
            actor_id(f"{prefix}{line}"), body, expect=revisions[line], headers=headers
        )

    async def line(first: int) -> None:
        for number in range(first, count, in_flight):
            await put(number)

    before, began = made.cpu(), time.perf_counter()
    async with asyncio.timeout(CAP_SECONDS):
        await asyncio.gather(*(line(first) for first in range(in_flight)))
    seconds = time.perf_counter() - began
    return Throughput(count, seconds, made.cpu() - before), len(body)


def _as_in_the_middle(ended: bytes) -> bytes:
    """The record of an actor that has ended has no frame any more: about 300 bytes are added for it."""
    return ended + os.urandom(300)


@dataclass(frozen=True)
class Latency:
    milliseconds: tuple[float, ...]
    cpu: Cpu

    def quantile(self, at: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * at))]

    def __str__(self) -> str:
        n = len(self.milliseconds)
        return (
            f"p50 {self.quantile(0.5):6.2f} ms  p99 {self.quantile(0.99):6.2f} ms  n={n}  "
            f"node CPU {self.cpu.node / n * 1e3:.2f} ms"
        )


async def timed(made: Bench, count: int, one: Callable[[int], Awaitable[None]]) -> Latency:
    found, before = [], made.cpu()
    async with asyncio.timeout(CAP_SECONDS):
        for number in range(count):
            began = time.perf_counter()
            await one(number)
            found.append((time.perf_counter() - began) * 1e3)
    return Latency(tuple(found), made.cpu() - before)


async def w2_signal(made: Bench, count: int) -> Latency:
    handles = {}

    async def start(number: int) -> None:
        handles[number] = await made.client.start("answer", args=[], id=f"w2-{number}", timeout=30)

    await many(made, range(count), 20, start)

    async def one(number: int) -> None:
        await handles[number].signal("word", "yes")
        await handles[number].result(timeout=30)

    return await timed(made, count, one)


async def w3_start(made: Bench, count: int) -> Latency:
    return await timed(made, count, lambda n: chained(made, f"w3-{n}", 1))


async def w5_history(made: Bench, past: int, count: int) -> tuple[Latency, Latency]:
    """Signals to an actor with a short and one with a long past, in turn: (10 steps, `past` steps)."""
    handles = []
    for name, steps in (("w5-short", 10), ("w5-long", past)):
        handles.append(await made.client.start("relay", args=[steps], id=name, timeout=30))
    for handle in handles:
        async with asyncio.timeout(PAST_SECONDS):
            while (await handle.describe()).index.wait != "receive go":  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.2)

    def to(handle: Any) -> Callable[[int], Awaitable[None]]:
        async def one(number: int) -> None:
            await handle.signal("go", number, wait="consumed")

        return one

    rounds = [
        (await timed(made, 20, to(handles[0])), await timed(made, 20, to(handles[1])))
        for _ in range(count // 20)
    ]
    return tuple(_joined([each[which] for each in rounds]) for which in (0, 1))  # type: ignore[return-value]  # two


def _joined(parts: Sequence[Latency]) -> Latency:
    cpu = Cpu(
        *(sum(getattr(part.cpu, name) for part in parts) for name in ("node", "server", "driver", "machine"))
    )
    return Latency(tuple(value for part in parts for value in part.milliseconds), cpu)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole run; the figures by name."""
    found: dict[str, Any] = {"mode": options.mode, "cores": os.cpu_count(), "python": sys.version.split()[0]}
    async with bench(options.mode) as made:
        steps, puts = [], []
        size = 0
        for repeat in range(options.repeats):  # in turn, so that noise of the machine meets both
            prefix = "w1-" if not repeat else f"w1r{repeat}-"
            steps.append(await w1_steps(made, options.w1, options.steps, options.inflight, prefix))
            put, size = await bare_puts(made, options.puts, options.inflight, f"bare{repeat}-")
            puts.append(put)
        best, bare = (
            min(each, key=lambda t: t.microseconds(t.cpu.node + t.cpu.driver)) for each in (steps, puts)
        )
        found["W1"] = {
            "steps_per_second": [round(each.per_second) for each in steps],
            "node_us": [round(each.microseconds(each.cpu.node)) for each in steps],
            "server_us": [round(each.microseconds(each.cpu.server)) for each in steps],
            "driver_us": [round(each.microseconds(each.cpu.driver)) for each in steps],
            "cores_elsewhere": [round(each.cpu.elsewhere / each.seconds, 2) for each in steps],
        }
        found["bare"] = {
            "puts_per_second": [round(each.per_second) for each in puts],
            "client_us": [round(each.microseconds(each.cpu.driver)) for each in puts],
            "server_us": [round(each.microseconds(each.cpu.server)) for each in puts],
            "bytes": size,
        }
        found["share"] = round(bare.microseconds(bare.cpu.driver) / best.microseconds(best.cpu.node), 3)
        if options.w2:
            found["W2"] = str(await w2_signal(made, options.w2))
        if options.w3:
            found["W3"] = str(await w3_start(made, options.w3))
        if options.w5:
            short, long = await w5_history(made, options.w5, 60)
            found["W5"] = {
                "10 steps": str(short),
                f"{options.w5} steps": str(long),
                "ratio of medians": round(
                    statistics.median(long.milliseconds) / statistics.median(short.milliseconds), 2
                ),
            }
    return found


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--w1", type=int, default=500, help="workflows")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--inflight", type=int, default=50)
    parser.add_argument("--puts", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--w2", type=int, default=200)
    parser.add_argument("--w3", type=int, default=300)
    parser.add_argument("--w5", type=int, default=10_000)
    parser.add_argument("--mode", choices=("thread", "inline"), default="thread")
    return parser.parse_args(given)


def measured(given: Sequence[str]) -> dict[str, Any]:
    """On the kind of loop that nodes use."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(arguments(given)))


def report(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2)


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_the_cost_of_a_step_beside_bare_puts() -> None:
    print("\n" + report(measured([])))


if __name__ == "__main__":
    print(report(measured(sys.argv[1:])))
