"""The journal of effects: what the steps of the demo's app say about themselves, outside of Sojourn.

Each line is one JSON object, appended in one write. A line that a crash tore is the last one of its process and is
skipped; that step then counts as begun and not ended, which is the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one attempt of a step. Times are Unix seconds of the machine's clock."""

    step: str
    key: str
    """Operation id: the same in all executions of one call."""
    user: str
    pid: int
    began: float
    ended: float | None = None
    account: str = ""

    def running_at(self, moment: float) -> bool:
        """Whether it had begun and not ended then."""
        return self.began <= moment and (self.ended is None or self.ended > moment)


def read(path: Path) -> list[Execution]:
    """All executions, in the order they began."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return executions(lines)


def executions(lines: Iterable[bytes]) -> list[Execution]:
    """Executions out of a journal's lines. An end belongs to the newest begin of its key in the same process."""
    found: list[Execution] = []
    open_ones: dict[tuple[str, int], int] = {}
    for line in lines:
        try:
            entry = orjson.loads(line)
        except ValueError:
            continue
        place = (entry["key"], entry["pid"])
        if entry["event"] == "begin":
            open_ones[place] = len(found)
            found.append(Execution(entry["step"], entry["key"], entry["user"], entry["pid"], entry["at"]))
        elif place in open_ones:
            at = open_ones.pop(place)
            found[at] = replace(found[at], ended=entry["at"], account=entry.get("account", ""))
    return found


def by_key(found: Iterable[Execution]) -> Mapping[str, list[Execution]]:
    """Executions of each call, in the order they began."""
    grouped: dict[str, list[Execution]] = defaultdict(list)
    for execution in found:
        grouped[execution.key].append(execution)
    return grouped
