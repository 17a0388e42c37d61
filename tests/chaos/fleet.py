"""The nodes and workers of a run: one slot each, in which one process after another lives behind the slot's own proxies.

Whoever dies is replaced, as a supervisor would do it, under a new node id. Only the plan's faults may end a
process: one that ends by itself is written down with its last words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sojourn.processes import NodeProcess

from .proxy import Proxy

NAMESPACE: Final = "chaos"
HERE: Final = Path(__file__).parent
VERSIONS: Final = ("one", "two")
EXPECTED_CODES: Final = frozenset((0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM))
"""The last two: it was told to drain before it had begun, or once more while it drained, or did not drain in time."""
NO_BROKER: Final = frozenset((3, 5))
"""The broker did not answer, or not in time (`sojourn --help`)."""
WORKERS: Final = 2
CONCURRENCY: Final = 8
"""Of one worker."""


@dataclass
class Life:
    """One process."""

    node: str
    version: str
    process: NodeProcess
    began: float
    """Unix seconds."""
    ended: float | None = None
    code: int | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def joined(self) -> bool:
        """Whether it came so far as to be a member. One that ends before, for want of a broker, is tried again without a word."""
        log = self.process.log
        return log is not None and log.exists() and "INFO    joined" in log.read_text(errors="replace")


@dataclass
class Slot:
    """Where one node after another lives."""

    name: str
    proxies: Sequence[Proxy]
    command: Literal["node", "worker"] = "node"
    version: str = "one"
    lives: list[Life] = field(default_factory=list)
    fault: str = ""
    """What the next process gets as SOJOURN_FAULT."""
    down: float = 1.0
    """Seconds from the end of a process to the start of the next one."""
    task: asyncio.Task[None] | None = None

    @property
    def life(self) -> Life | None:
        """The present process, when it lives."""
        return self.lives[-1] if self.lives and self.lives[-1].process.running else None


class Fleet:
    """See the module."""

    def __init__(
        self, place: Path, ports: Sequence[int], nodes: int, environment: Mapping[str, str], sabotage: str
    ) -> None:
        """`ports`: of the servers; `environment`: added to each node's."""
        self._place = place
        self._over = False
        self._environment = dict(environment)
        if sabotage:
            self._environment["SOJOURN_CHAOS_SABOTAGE"] = sabotage
        self.slots = [Slot(f"n{n}", [Proxy(port) for port in ports]) for n in range(1, nodes + 1)]
        self.workers = [
            Slot(f"w{n}", [Proxy(port) for port in ports], "worker") for n in range(1, WORKERS + 1)
        ]
        self.unexpected: list[str] = []

    async def start(self) -> None:
        """Listen, lay out the code's versions, and keep every slot alive from now on."""
        (self._place / "logs").mkdir()
        code = (HERE / "app" / "chaos_app.py").read_text()
        for version in VERSIONS:
            folder = self._place / f"version-{version}"
            folder.mkdir()
            (folder / "chaos_app.py").write_text(code.replace('"one"', f'"{version}"'))
        for slot in self.everyone:
            for proxy in slot.proxies:
                await proxy.listen()
            slot.task = asyncio.create_task(self._keep_alive(slot), name=f"slot {slot.name}")

    async def _keep_alive(self, slot: Slot) -> None:
        while not self._over:
            life = await self._start(slot)
            life.code = await life.process.wait()
            life.ended = time.time()
            expected = life.code in EXPECTED_CODES or (life.code in NO_BROKER and not life.joined())
            if not expected and not self._over:
                self.unexpected.append(
                    f"{life.node} ended by itself with code {life.code}: {life.process.last_words(600)}"
                )
            if not self._over:
                await asyncio.sleep(slot.down)

    async def _start(self, slot: Slot) -> Life:
        node = f"{slot.name}-{len(slot.lives) + 1}"
        path = [str(HERE / "sabotage"), str(self._place / f"version-{slot.version}")]
        path += filter(None, (os.environ.get("PYTHONPATH"),))
        environment = {**self._environment, "PYTHONPATH": os.pathsep.join(path), "CHAOS_NODE": node}
        if slot.fault:
            environment["SOJOURN_FAULT"], slot.fault = slot.fault, ""
        process = NodeProcess(
            node,
            [
                "chaos_app",
                "--server", ",".join(proxy.url for proxy in slot.proxies),
                "--namespace", NAMESPACE,
                "--log", "info",
                *self._own_options(slot, node),
            ],
            log=self._place / "logs" / f"{node}.log",
            environment=environment,
            command=slot.command,
        )  # fmt: skip
        life = Life(node, slot.version, process, time.time())
        slot.lives.append(life)
        await process.start()
        return life

    def _own_options(self, slot: Slot, name: str) -> list[str]:
        if slot.command == "worker":
            return ["--worker-id", name, "--concurrency", str(CONCURRENCY)]
        return ["--node-id", name, "--deployment", slot.version, "--key-file", str(self._place / "key")]

    @property
    def everyone(self) -> list[Slot]:
        """Nodes and workers."""
        return [*self.slots, *self.workers]

    @property
    def lives(self) -> list[Life]:
        """Every process there was."""
        return [life for slot in self.everyone for life in slot.lives]

    # faults

    def kill(self, slot: Slot) -> None:
        """SIGKILL."""
        if slot.life is not None:
            slot.life.process.kill()

    def drain(self, slot: Slot) -> None:
        """SIGTERM: it hands everything over and ends; a new one follows."""
        if slot.life is not None:
            slot.life.process.terminate()

    async def freeze(self, slot: Slot, seconds: float) -> None:
        """SIGSTOP for a while."""
        life = slot.life
        if life is None:
            return
        self._signal(life, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._signal(life, signal.SIGCONT)

    def _signal(self, life: Life, which: signal.Signals) -> None:
        if life.process.running:
            with suppress(ProcessLookupError):
                os.kill(life.pid, which)

    def heal(self) -> None:
        """Nothing is frozen, cut or held; nothing is going to kill itself but who was told so before."""
        for slot in self.everyone:
            slot.down = 1.0
            for proxy in slot.proxies:
                proxy.heal()
            if slot.life is not None:
                self._signal(slot.life, signal.SIGCONT)

    async def close(self) -> None:
        """End every process, in order if they can, within a bound."""
        self._over = True
        self.heal()
        await asyncio.gather(*(life.process.stop(seconds=5.0) for life in self.lives))
        for slot in self.everyone:
            if slot.task is not None:
                slot.task.cancel()
        await asyncio.gather(
            *(slot.task for slot in self.everyone if slot.task is not None), return_exceptions=True
        )
        for slot in self.everyone:
            for proxy in slot.proxies:
                await proxy.close()

    def logs(self) -> dict[str, str]:
        """Every process's log."""
        return {
            life.node: life.process.log.read_text(errors="replace")
            for life in self.lives
            if life.process.log is not None and life.process.log.exists()
        }
