"""Carries a plan out, and writes down what was really done."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn.cli.app import COMMANDS

from .fleet import NAMESPACE, Fleet, Slot
from .plan import Fault
from .servers import Servers

COMMAND_SECONDS: Final = 30.0


def unavailable() -> tuple[str, ...]:
    """Kinds that this version of Sojourn has no commands for."""
    return () if "versions" in COMMANDS else ("deploy", "roll-back")


@dataclass
class Injector:
    """Runs the faults of a plan at their times, side by side where the plan has them so."""

    servers: Servers
    fleet: Fleet
    done: Counter[str] = field(default_factory=Counter)
    """Faults by kind, as they were carried out."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Those whose target was down at the time."""
    trouble: list[str] = field(default_factory=list)
    """What went wrong in the harness itself."""
    log: list[tuple[float, str]] = field(default_factory=list)
    """Begin of each, Unix seconds, in words."""

    async def run(self, plan: Sequence[Fault], *, verbose: bool = False) -> None:
        """Return when the last fault is over and everything is healed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        running: list[asyncio.Task[None]] = []
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
            if verbose:
                print(f"  {loop.time() - began:6.1f} s  {fault}", flush=True)
            self.log.append((time.time(), str(fault)))
            running.append(asyncio.create_task(self._guarded(fault), name=str(fault)))
        await asyncio.gather(*running)
        await self.heal()

    async def heal(self) -> None:
        """No fault is in force any more."""
        self.fleet.heal()
        try:
            await self.servers.heal()
        except Exception as error:  # the run is judged all the same, and says so
            self.trouble.append(f"healing: {type(error).__name__}: {error}")

    async def _guarded(self, fault: Fault) -> None:
        try:
            happened = await self._inject(fault)
        except Exception as error:
            self.trouble.append(f"{fault}: {type(error).__name__}: {error}")
            return
        (self.done if happened else self.skipped)[fault.kind] += 1

    async def _inject(self, fault: Fault) -> bool:
        kind, lasts = fault.kind, fault.lasts
        match kind:
            case "slow-server":
                await self.servers.slow(fault.target, seconds=lasts)
            case "server-kill":
                await self.servers.kill(fault.target, down=lasts)
            case "server-restart":
                await self.servers.restart(fault.target, down=lasts)
            case "full-disk":
                return await self.servers.fill(fault.target, seconds=lasts)
            case "deploy" | "roll-back":
                await self._deploy("two" if kind == "deploy" else "one", lasts)
            case _:
                slots = self.fleet.workers if kind.startswith("worker-") else self.fleet.slots
                slot = slots[fault.target]
                if slot.life is None:
                    return False
                await self._on_node(fault, slot)
        return True

    async def _on_node(self, fault: Fault, slot: Slot) -> None:
        lasts = fault.lasts
        slot.down = lasts
        kind = fault.kind.removeprefix("worker-")
        match kind:
            case "kill":
                self.fleet.kill(slot)
            case "crash-point":
                slot.fault = fault.point
                self.fleet.kill(slot)
            case "drain":
                self.fleet.drain(slot)
            case "pause" | "freeze":
                await self.fleet.freeze(slot, lasts)
            case "late-writes":
                held = min(1.0, lasts / 2)
                await asyncio.gather(*(proxy.abandon(held, lasts - held) for proxy in slot.proxies))
            case _:
                await self._on_wire(kind, slot, lasts)

    async def _on_wire(self, kind: str, slot: Slot, lasts: float) -> None:
        for proxy in slot.proxies:
            match kind:
                case "cut" | "partition":
                    proxy.cut(refuse=lasts > 2)
                case "cut-engine" | "cut-guard":
                    proxy.cut((kind.removeprefix("cut-"),), refuse=True)
                case "hold-up" | "hold-down":
                    proxy.hold(kind.removeprefix("hold-"))
                case _:
                    raise AssertionError(f"no such fault: {kind}")
        await asyncio.sleep(lasts)
        for proxy in slot.proxies:
            proxy.heal()

    async def _deploy(self, version: str, lasts: float) -> None:
        """Half of the nodes run each version, one after another is replaced; then new actors start on `version`."""
        half = len(self.fleet.slots) // 2
        for slot in self.fleet.slots[half:]:
            if slot.version != "two":
                slot.version = "two"
                self.fleet.drain(slot)
                await asyncio.sleep(lasts)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMAND_SECONDS
        while True:
            try:
                return await self._command("versions", "set-current", version)
            except (
                RuntimeError
            ):  # not registered yet: its first node starts; or the broker is disturbed just now
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(1.0)

    async def _command(self, *words: str) -> None:
        server = ",".join(self.servers.urls)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sojourn.cli", *words, "--server", server, "--namespace", NAMESPACE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise RuntimeError(f"sojourn {' '.join(words)}: {said.decode(errors='replace')[-400:]}")
