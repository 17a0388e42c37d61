"""Very many parked workflows on one broker: what each costs, and what stays as quick as with few.

Starts `--workflows` actors that wait for a signal (or sleep, `--workflow sleeps`), then measures with all of them parked:

    starts      per second, and CPU per start of nodes, server and this process (which feeds the starts)
    broker      memory and disk per workflow; time until a restarted server, and one that was killed, is healthy
    nodes       memory; time from the start of the process until every partition is owned and one parked actor has answered,
                after a drain and after a kill
    commands    `sojourn versions list`, `census`, `list`, `list --quick`, `describe`, as an operator runs them: seconds, CPU, memory
    wake-up     from sending a signal to the result, of single actors amid all others

Starts are stored as any NATS client may store them, without waiting for each answer (`--answers`: through the client library).
One nats-server with its defaults and `--nodes` node processes, all on this machine's cores with whatever else runs there, so
seconds say less than ratios between two sizes.

    python benchmarks/scale.py --workflows 20000 --nodes 1 [--place /var/tmp] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from sojourn.actors.client import Client
from sojourn.broker.errors import BrokerError
from sojourn.broker.nats import NatsBroker, NatsOptions
from sojourn.broker.seam import Publish
from sojourn.broker.server import EmbeddedServer
from sojourn.broker.subjects import Subjects, Token, actor_id
from sojourn.broker.topology import Topology, apply
from sojourn.cluster.lives import new_event_loop
from sojourn.cluster.tenure.directory import Directory
from sojourn.codecs.keyring import Keyring

from sojourn.processes import NodeProcess

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from processes import cpu_seconds, machine_seconds, rss_bytes  # noqa: E402  # a sibling of this script

NAMESPACE = "scale"
MIB = 1024 * 1024
IN_FLIGHT = 256
BACKLOG = 20_000
"""Starts stored and not taken yet beyond which no more are fed."""
READY_SECONDS = 300.0
COMMAND_SECONDS = 900.0


@dataclass
class Scale:
    """What a run holds open."""

    place: Path
    server: EmbeddedServer
    broker: NatsBroker
    subjects: Subjects
    client: Client
    nodes: list[NodeProcess] = field(default_factory=list)
    lives: int = 0

    async def add_node(self) -> NodeProcess:
        self.lives += 1
        name = f"n{self.lives}"
        node = NodeProcess(
            name,
            [
                "scale_app", "--server", self.server.url, "--namespace", NAMESPACE, "--node-id", name,
                "--key-file", str(self.place / "key"), "--log", "warning", "--no-health",
            ],
            log=self.place / f"{name}.log",
            environment={"PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))},
        )  # fmt: skip
        await node.start()
        self.nodes.append(node)
        return node

    async def until_owned(self) -> None:
        """Every partition has a living owner that is ready, and no two nodes differ by more than a partition."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with suppress(BrokerError):
                    view = await Directory(self.broker, self.subjects).poll(self.subjects.partitions)
                    holders = [view.holder(p) for p in range(view.partitions)]
                    living = {node.name for node in self.nodes if node.running}
                    owned = [holder.node for holder in holders if holder is not None]
                    if (
                        len(owned) == view.partitions
                        and set(owned) == living
                        and all(holder.state == "ready" for holder in holders if holder is not None)
                    ):
                        return
                await asyncio.sleep(0.02)

    def cpu(self) -> tuple[float, float, float, float]:
        """Of nodes, server, this process, and all of the machine, so far."""
        own = os.times()
        nodes = sum(cpu_seconds(node.pid) for node in self.nodes if node.running)
        return nodes, cpu_seconds(self.server.pid or 0), own.user + own.system, machine_seconds()

    def disk(self) -> int:
        total = 0
        for folder, _, names in os.walk(self.place / "jetstream"):
            for name in names:
                with suppress(FileNotFoundError):  # the server is at work
                    total += (Path(folder) / name).stat().st_blocks * 512
        return total


@asynccontextmanager
async def opened(options: argparse.Namespace) -> AsyncIterator[Scale]:
    async with AsyncExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="sojourn-scale-", dir=options.place))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        server = await stack.enter_async_context(EmbeddedServer(place / "jetstream"))
        Keyring.generate(place / "key")
        broker = await NatsBroker.connect(NatsOptions(servers=server.url, name="scale"))
        stack.push_async_callback(broker.close)
        topology = Topology(namespace=NAMESPACE, app="scale", partitions=options.partitions)
        await apply(broker, topology)
        client = Client(broker, topology.subjects, by="scale")
        stack.push_async_callback(client.close)
        made = Scale(place, server, broker, topology.subjects, client)

        async def stop_nodes() -> None:
            await asyncio.gather(*(node.stop(15.0) for node in made.nodes))

        stack.push_async_callback(stop_nodes)
        try:
            for _ in range(options.nodes):
                await made.add_node()
            await made.until_owned()
            yield made
        except BaseException:
            for node in made.nodes:
                print(node.name, node.last_words(), file=sys.stderr)
            raise


# ---- starts


async def park(made: Scale, options: argparse.Namespace, first: int, count: int) -> dict[str, Any]:
    """Start so many, and wait until each is suspended."""
    began, before = time.perf_counter(), made.cpu()
    numbers = iter(range(first, first + count))
    arguments = [86_400.0] if options.workflow == "sleeps" else []
    room = asyncio.Event()
    room.set()

    async def line() -> None:
        for number in numbers:
            actor = f"w{number}"
            if options.answers:
                await made.client.start(options.workflow, args=arguments, id=actor, timeout=120)
                continue
            await room.wait()
            body = {"request": f"r{number}", "workflow": options.workflow, "args": [arguments, {}]}
            message = Publish(made.subjects.ctl(actor_id(actor), Token("start")), orjson.dumps(body))
            while True:
                try:
                    await made.broker.publish(message, timeout=30.0)
                    break
                except BrokerError:
                    await asyncio.sleep(0.5)  # the same request again starts nothing twice

    async def hold_back() -> None:
        while True:
            with suppress(BrokerError):
                behind = (await made.broker.stream_info(made.subjects.ctl_stream)).messages
                (room.set if behind < BACKLOG else room.clear)()
            await asyncio.sleep(0.1)

    holding = asyncio.create_task(hold_back())
    try:
        await asyncio.gather(*(line() for _ in range(IN_FLIGHT)))
    finally:
        holding.cancel()
    while (await made.broker.stream_info(made.subjects.ctl_stream)).messages:  # noqa: ASYNC110  # of other processes
        await asyncio.sleep(0.2)
    seconds, after = time.perf_counter() - began, made.cpu()
    nodes, server, driver, machine = (now - then for now, then in zip(after, before, strict=True))
    return {
        "count": count,
        "per_second": round(count / seconds),
        "seconds": round(seconds, 1),
        "node_us": round(nodes / count * 1e6),
        "server_us": round(server / count * 1e6),
        "driver_us": round(driver / count * 1e6),
        "cores_elsewhere": round(max(0.0, machine - nodes - server - driver) / seconds, 2),
    }


# ---- what it takes to look at them


async def command(made: Scale, *words: str) -> dict[str, Any]:
    """One command as an operator types it: wall seconds, CPU seconds, peak memory, bytes printed."""
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/env", "python3", "-c", _MEASURE, sys.executable, "-m", "sojourn.cli", *words,
        "--server", made.server.url, "--namespace", NAMESPACE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            said, complained = await process.communicate()
    except TimeoutError:
        process.terminate()
        await process.wait()
        return {"failed": f"not within {COMMAND_SECONDS:.0f} s"}
    found: dict[str, Any] = json.loads(complained.splitlines()[-1])
    found["printed"] = len(said)
    if found.pop("code"):
        found["failed"] = complained.decode(errors="replace")[-300:]
    return found


_MEASURE = """
import json, os, resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": round(time.perf_counter() - began, 2), "cpu": round(used.ru_utime + used.ru_stime, 2),
                  "mib": used.ru_maxrss // 1024, "code": code}), file=sys.stderr)
"""


async def wake_ups(made: Scale, chosen: Sequence[int]) -> dict[str, Any]:
    """Signal to result, one after another."""
    found = []
    for number in chosen:
        handle = made.client.handle(f"w{number}")
        began = time.perf_counter()
        await handle.signal("word", "up")
        await handle.result(timeout=60)
        found.append((time.perf_counter() - began) * 1e3)
    found.sort()
    return {
        "n": len(found),
        "p50_ms": round(statistics.median(found), 1),
        "p90_ms": round(found[int(len(found) * 0.9)], 1),
        "max_ms": round(found[-1], 1),
    }


async def describe_all(made: Scale, chosen: Sequence[int]) -> dict[str, Any]:
    """`describe` through the client: the owner answers."""
    found = []
    for number in chosen:
        began = time.perf_counter()
        described = await made.client.handle(f"w{number}").describe()
        assert described.index.actor == f"w{number}"
        found.append((time.perf_counter() - began) * 1e3)
    found.sort()
    return {"n": len(found), "p50_ms": round(statistics.median(found), 1), "max_ms": round(found[-1], 1)}


async def restart_nodes(
    made: Scale, options: argparse.Namespace, probe: int, *, kill: bool
) -> dict[str, Any]:
    """End all nodes, start as many: seconds until they own everything, and until a parked actor has answered."""
    for node in made.nodes:
        if kill:
            node.kill()
    await asyncio.gather(*(node.stop(30.0) for node in made.nodes))
    made.nodes.clear()
    began = time.perf_counter()
    for _ in range(options.nodes):
        await made.add_node()
    handle = made.client.handle(f"w{probe}")

    async def answered() -> float:
        if options.workflow == "waits":
            await handle.signal("word", "up", timeout=READY_SECONDS)
            await handle.result(timeout=READY_SECONDS)
        return time.perf_counter() - began

    first = asyncio.create_task(answered())
    await made.until_owned()
    owned = time.perf_counter() - began
    return {
        "owned_s": round(owned, 2),
        "first_answer_s": round(await first, 2),
        "node_cpu_s": round(made.cpu()[0], 2),
        "node_mib": [round(rss_bytes(node.pid) / MIB) for node in made.nodes],
    }


async def restart_server(made: Scale, *, kill: bool) -> dict[str, Any]:
    await (made.server.kill() if kill else made.server.stop())
    began = time.perf_counter()
    await made.server.start(wait_healthy=False)
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with suppress(BrokerError, TimeoutError):
                await made.server.wait_healthy()
                break
    healthy = time.perf_counter() - began
    await made.until_owned()
    return {
        "healthy_s": round(healthy, 2),
        "owned_s": round(time.perf_counter() - began, 2),
        "server_mib": round(rss_bytes(made.server.pid or 0) / MIB),
    }


def say(options: argparse.Namespace, name: str, found: Any) -> None:
    if not options.json:
        print(f"{name:34} {json.dumps(found)}", flush=True)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole run; the figures by name."""
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        found[name] = value
        say(options, name, value)

    note("run", {"workflows": options.workflows, "workflow": options.workflow, "nodes": options.nodes,
                 "partitions": options.partitions, "cores": os.cpu_count(), "python": sys.version.split()[0]})  # fmt: skip
    draws = random.Random(1)
    async with opened(options) as made:
        note("node fresh, MiB", [round(rss_bytes(node.pid) / MIB) for node in made.nodes])
        server, disk = rss_bytes(made.server.pid or 0), made.disk()
        parked, deadline = 0, time.perf_counter() + options.start_seconds
        while parked < options.workflows and time.perf_counter() < deadline:
            part = min(options.part, options.workflows - parked)
            note(f"starts {parked}..{parked + part}", await park(made, options, parked, part))
            parked += part
        found["run"]["parked"] = parked
        grown, written = rss_bytes(made.server.pid or 0) - server, made.disk() - disk
        note("parked", {
            "workflows": parked,
            "server_mib": round(rss_bytes(made.server.pid or 0) / MIB),
            "server_bytes_each": round(grown / parked),
            "disk_bytes_each": round(written / parked),
            "node_mib": [round(rss_bytes(node.pid) / MIB) for node in made.nodes],
        })  # fmt: skip
        chosen = draws.sample(range(parked), min(parked, 150))
        if options.workflow == "waits":
            note("wake-up", await wake_ups(made, chosen[:50]))
        note("describe", await describe_all(made, chosen[50:100]))
        for words in (("versions", "list"), ("census",), ("list",), ("list", "--quick"),
                      ("describe", f"w{chosen[100]}"), ("nodes",)):  # fmt: skip
            if not options.skip_commands:
                note(f"sojourn {' '.join(words[:2])}", await command(made, *words))
        if options.check:
            note("sojourn check", await command(made, "check", "--key-file", str(made.place / "key")))
        note("nodes drained and started", await restart_nodes(made, options, chosen[101], kill=False))
        note("nodes killed and started", await restart_nodes(made, options, chosen[102], kill=True))
        note("server stopped and started", await restart_server(made, kill=False))
        note("server killed and started", await restart_server(made, kill=True))
        if options.workflow == "waits":
            note("wake-up afterwards", await wake_ups(made, chosen[103:123]))
    return found


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workflows", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--workflow", choices=("waits", "sleeps"), default="waits")
    parser.add_argument("--answers", action="store_true", help="start through the client library")
    parser.add_argument("--part", type=int, default=50_000, help="starts per line of figures")
    parser.add_argument(
        "--start-seconds", type=float, default=3600.0, help="begin no further part after this time"
    )
    parser.add_argument("--skip-commands", action="store_true")
    parser.add_argument("--check", action="store_true", help="run `sojourn check` too")
    parser.add_argument("--place", type=Path, default=None, help="folder for the streams; removed at the end")
    parser.add_argument("--json", action="store_true", help="one document at the end")
    return parser.parse_args(given)


if __name__ == "__main__":
    chosen_options = arguments(sys.argv[1:])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        figures = runner.run(run(chosen_options))
    if chosen_options.json:
        print(json.dumps(figures, indent=2))
