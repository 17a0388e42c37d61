"""CPU of process trees, read from /proc as the peers' benchmarks do (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree, reaped children included."""
    total = 0
    for each in tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def machine_seconds() -> float:
    """CPU used by everything on this machine since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[at]) for at in (0, 1, 2, 5, 6)) / _TICKS


@dataclass(frozen=True)
class Cpu:
    """CPU seconds that passed in each of the processes that are looked at, and elsewhere."""

    node: float
    server: float
    driver: float
    machine: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(
            self.node - other.node,
            self.server - other.server,
            self.driver - other.driver,
            self.machine - other.machine,
        )

    @property
    def elsewhere(self) -> float:
        return max(0.0, self.machine - self.node - self.server - self.driver)


def cpu_of(node: int, server: int) -> Cpu:
    """Now. `node` 0: none."""
    driver = os.times()
    return Cpu(
        cpu_seconds(node) if node else 0.0,
        cpu_seconds(server),
        driver.user + driver.system,
        machine_seconds(),
    )
