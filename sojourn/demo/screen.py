"""The demo's live output: what happens, line by line, and under it how many onboardings are where.

On a terminal the counts are drawn in place; elsewhere (a pipe, a log) only the lines are printed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

REFRESH_SECONDS: Final = 0.2
_WIDTH: Final = 40
ORDER: Final = (
    "starting",
    "checking",
    "waiting for approval",
    "provisioning",
    "completed",
    "rejected",
    "cancelled",
    "failed",
)
COLOURS: Final = {
    "completed": "green",
    "rejected": "yellow",
    "cancelled": "magenta",
    "failed": "red",
    "waiting for approval": "cyan",
}


class Screen:
    """Prints the story of one run, with the seconds since it began."""

    def __init__(
        self, total: int, stages: Callable[[], Counter[str]], *, console: Console | None = None
    ) -> None:
        self._total = total
        self._stages = stages
        self._console = console or Console(highlight=False)
        self._began = time.monotonic()
        self._live: Live | None = None
        self._drawing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._drawing = asyncio.create_task(self._draw(self._live), name="demo screen")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_drawing()

    async def _stop_drawing(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            with suppress(asyncio.CancelledError):
                await self._drawing
        if self._live is not None:
            self._live.stop()
        self._live = self._drawing = None

    def tell(self, sentence: str, style: str = "") -> None:
        """One line of the story."""
        seconds = time.monotonic() - self._began
        self._console.print(
            Text(f"{seconds:5.1f} s  ", style="dim") + Text(sentence, style=style), soft_wrap=True
        )

    async def verdict(self, rows: Sequence[tuple[str, str]], problems: Sequence[str]) -> None:
        """The table at the end, and what is wrong with it; the counts give way to it."""
        await self._stop_drawing()
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in rows:
            table.add_row(Text(name), Text(value, style="bold"))
        self._console.print()
        self._console.print(table)
        self._console.print()
        for problem in problems:
            self._console.print(Text(f"  {problem}", style="red"))
        if problems:
            self._console.print(Text(f"{len(problems)} problems", style="bold red"))
        else:
            self._console.print(
                Text(
                    "Nothing was lost, nothing was done twice; only what the kill cut off ran again.",
                    style="bold green",
                )
            )

    async def _draw(self, live: Live) -> None:
        while True:
            live.update(self._bars(), refresh=True)
            await asyncio.sleep(REFRESH_SECONDS)

    def _bars(self) -> Table:
        stages = self._stages()
        known = [stage for stage in ORDER if stages[stage]] + sorted(set(stages) - set(ORDER))
        table = Table(show_header=False, box=None, padding=(0, 2))
        for stage in known:
            length = max(1, round(stages[stage] / self._total * _WIDTH))
            table.add_row(stage, str(stages[stage]), Text("━" * length, style=COLOURS.get(stage, "blue")))
        return table
