"""Where all workflows stand, in one table: a row for each workflow, stage or wait, a column for each state that occurs."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .actors import STATE_ORDER, state_of
from .connection import Connection
from .output import Output, age, plain

if TYPE_CHECKING:
    from sojourn.codecs.record import Index

ROWS: Final = 60
"""Rows shown; `--json` has all."""
_ONE_OF_ITS_KIND: Final = re.compile(
    r" until [^,]*?(?=,|$| and )|(?<=child) [^\s,]+|(?<=spawn) [^\s,]+|(?<=send) [^\s,]+"
)
"""What differs between two workflows that wait for the same kind of thing."""
_LAST_NODE: Final = re.compile(r" \(last: [^()]*\)$")
"""Which node an actor that kills its nodes ended last."""
_AGAIN: Final = re.compile(r"\(attempt \d+\)")
"""In which attempt a step is, beyond the first."""


@dataclass(slots=True)
class Row:
    """Actors of one group by state, and how long the one has been there that lives and was committed the longest ago."""

    states: Counter[str] = field(default_factory=Counter)
    oldest: float | None = None

    def add(self, index: Index) -> None:
        """Count one."""
        self.states[state_of(index)] += 1
        if not index.status.ended:
            self.oldest = index.updated if self.oldest is None else min(self.oldest, index.updated)


def group_of(index: Index, by: str) -> tuple[str, ...]:
    """The row an actor is counted in. Of those that have ended, stage and wait are no longer of interest; of those held it is why."""
    match by:
        case "stage":
            return index.workflow, "" if index.status.ended else index.stage
        case "wait":
            wait = _AGAIN.sub("(retried)", _ONE_OF_ITS_KIND.sub("", index.wait))
            return index.workflow, _LAST_NODE.sub("", plain(index.hold_reason)) or wait
        case _:
            return (index.workflow,)


async def print_standing(
    output: Output, connection: Connection, by: str, *, label: str | None, workflow: str | None
) -> None:
    """Print the table, the fullest rows first."""
    from sojourn.cluster.hosting.views import list_indexes

    rows: dict[tuple[str, ...], Row] = {}
    async with connection.broker() as broker:
        subjects = await connection.subjects(broker)
        with output.counting("records read") as count:
            async for index in list_indexes(broker, subjects):
                count(1)
                if (label is None or index.deployment == label) and workflow in (None, index.workflow):
                    rows.setdefault(group_of(index, by), Row()).add(index)
    now = time.time()
    names = ("workflow",) if by == "workflow" else ("workflow", by)
    listed = sorted(rows.items(), key=lambda one: (-one[1].states.total(), one[0]))
    if output.json:
        output.document(
            [
                {
                    **dict(zip(names, key, strict=True)),
                    "actors": row.states.total(),
                    "states": row.states,
                    "oldest": row.oldest,
                }
                for key, row in listed
            ]
        )
        return
    if not listed:
        output.say("No such actors.")
        return
    total = sum((row.states for row in rows.values()), Counter[str]())
    states = [state for state in STATE_ORDER if total[state]]
    output.table(
        (*names, "actors", *states, "oldest alive"),
        [
            (
                *key,
                row.states.total(),
                *(row.states[state] or "" for state in states),
                "" if row.oldest is None else age(now - row.oldest),
            )
            for key, row in listed[:ROWS]
        ]
        + [
            (
                *("all" if not n else "" for n in range(len(names))),
                total.total(),
                *(total[state] for state in states),
                "",
            )
        ],
    )
    if len(listed) > ROWS:
        output.note(f"{len(listed) - ROWS} more rows; --workflow and --deployment choose, --json has all.")
