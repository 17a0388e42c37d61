"""What commands print: tables and sentences for people, or one JSON document with `--json`.

Whatever comes from outside (ids, stages, tags, reasons, error texts) is escaped and cut before it reaches a
terminal: an actor's id or a rejected message's text must not be able to move the cursor or imitate our own
words.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sojourn.codecs.durations import format_duration

LONGEST: Final = 400
"""Characters of one text from outside that are shown; more is cut, and says so."""

UNFOLDED: Final = 10_000
"""Columns of an output that is no terminal."""

WHOLE: Final = 12
"""Characters up to which a cell is not folded, however narrow the terminal; states, counts and ages are shorter."""
GAP: Final = 2
"""Blanks between two columns."""
NARROW: Final = 100
"""Columns below which a terminal is narrow."""

PATIENCE: Final = 2.0
"""Seconds after which a command says what it is doing."""
REDRAW: Final = 0.2
"""Seconds between two counts on a terminal."""

_UNTIL: Final = re.compile(r"until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\+00:00|Z))")

_SAYS_NOTHING: Final = re.compile(
    r"\bbuiltins:|\bsojourn:(?:Cancelled|Terminated): |: sojourn:(?:Cancelled|Terminated)(?=\.?$)"
)

_INVISIBLE: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "rejected": "yellow",
    "failed": "red",
    "terminated": "red",
    "quarantined": "bold red",
    "paused": "yellow",
    "pin": "yellow",
    "cancelled": "magenta",
    "cancelling": "magenta",
    "suspended": "cyan",
    "running": "bold cyan",
    "runnable": "bold cyan",
}
"""Colour of each state of an actor."""


def clean(text: str, longest: int = LONGEST) -> str:
    """Text from outside with everything that a terminal would act on made visible, and cut to `longest`
    characters.
    """
    shown = "".join(
        character
        if character == "\n" or unicodedata.category(character) not in _INVISIBLE
        else _escaped(character)
        for character in text[: longest + 1]
    )
    return shown if len(text) <= longest else f"{shown[:longest]}... ({len(text)} characters)"


def line(text: str, longest: int = LONGEST) -> str:
    """As `clean`, on one line: among sentences and rows of ours, text from outside must not begin one."""
    return clean(text, longest).replace("\n", "\\n")


def terminal_safe(document: str) -> str:
    """The same JSON document with what a terminal may act on as escapes. Outside of its texts there is nothing of it."""
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in _INVISIBLE
        else json.dumps(character)[1:-1]
        for character in document
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def age(seconds: float) -> str:
    """A span of time in words, coarse enough to be read at a glance: `3s`, `12m`, `4h`, `9d`."""
    if seconds < 1:
        return "now"
    for name, unit in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)}{name}"
    return format_duration(float(int(seconds)))


def waits(words: str, now: float) -> str:
    """What an actor waits for, its points in time as people read them: `sleep until 2026-12-29 23:50Z (in 29d)`."""

    def moment_of(found: re.Match[str]) -> str:
        at = datetime.fromisoformat(found[1]).timestamp()
        left = at - now
        # What has just begun to wait for three days waits "in 3d": a hundredth more makes up for the moment since.
        near = f"in {age(1.01 * left)}" if left >= 1 else f"{age(-left)} ago" if left <= -1 else "now"
        return f"until {datetime.fromtimestamp(at, tz=UTC):%Y-%m-%d %H:%MZ} ({near})"

    return _UNTIL.sub(moment_of, words)


def plain(words: str) -> str:
    """Without the module of a builtin exception and without the class of an end that the sentence names, which say nothing."""
    return _SAYS_NOTHING.sub("", words)


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(unix: float) -> str:
    """A point in time, UTC, to the second; one that no calendar has is shown as the number that it is."""
    try:
        return datetime.fromtimestamp(unix, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{unix:g}"


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's answer goes. `json` prints one document on standard output and nothing else there."""

    json: bool
    stdout: TextIO
    stderr: TextIO

    @classmethod
    def standard(cls, *, json: bool) -> Output:
        """Output on the process's own streams."""
        return cls(json, sys.stdout, sys.stderr)

    @property
    def console(self) -> Console:
        """Standard output as a rich console; no table is folded on its way to a file or a pipe."""
        return Console(file=self.stdout, highlight=False, width=None if self.stdout.isatty() else UNFOLDED)

    @property
    def is_narrow(self) -> bool:
        """Whether a table of many columns has to leave the least of them out."""
        return self.console.width < NARROW

    @property
    def errors(self) -> Console:
        """Standard error as a rich console; sentences are folded by the terminal, so that they can be copied."""
        return Console(file=self.stderr, highlight=False, soft_wrap=True)

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        encoded = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str)
        self.stdout.write(terminal_safe(encoded.decode()) + "\n")
        self.stdout.flush()

    def say(self, sentence: str, style: str = "") -> None:
        """Print one sentence for people; nothing with `--json`."""
        if not self.json:
            self.console.print(Text(sentence, style=style), soft_wrap=True)

    def verbatim(self, text: str, longest: int) -> None:
        """Print text from outside as it is: cleaned, cut at `longest` characters, never folded."""
        self.console.print(Text(clean(text, longest)), soft_wrap=True)

    def lines(self, texts: Iterable[str]) -> None:
        """Print one text a line and nothing else, for other commands to read."""
        self.stdout.writelines(f"{text}\n" for text in texts)
        self.stdout.flush()

    def note(self, sentence: str) -> None:
        """Print a remark beside the answer, on standard error; nothing with `--json`."""
        if not self.json:
            self.errors.print(Text(sentence, style="dim"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
        """Print a table for people. Cells are cleaned; a state is coloured."""
        table = Table(
            title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        listed = [tuple(row) for row in rows]
        longest = [
            max(len(str(text)) for text in (column, *(row[number] for row in listed)))
            for number, column in enumerate(columns)
        ]
        fits = sum(min(most, WHOLE) + GAP for most in longest) - GAP <= self.console.width
        for number, column in enumerate(columns):
            values = [row[number] for row in listed if row[number] != ""]
            figures = bool(values) and all(isinstance(value, int) for value in values)
            table.add_column(
                column,
                overflow="fold",
                justify="right" if figures else "left",
                no_wrap=fits and longest[number] <= WHOLE,
                min_width=min(longest[number], WHOLE) if fits else None,
            )
        for row in listed:
            table.add_row(*(cell(value, one_line=True) for value in row))
        self._print(table)

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print name and value pairs, leaving out what is empty."""
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs:
            if value not in ("", None, (), [], {}):
                table.add_row(name, cell(value))
        self._print(table)

    def _print(self, table: Table) -> None:
        """Print a table; in a pipe without the blanks that fill its last column."""
        console = self.console
        if console.is_terminal:
            console.print(table)
            return
        with console.capture() as captured:
            console.print(table)
        self.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
        self.stdout.flush()  # who reads the pipe of a command that goes on sees it now

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int], None]]:
        """Show on a terminal how far a scan is, once it takes over two seconds. Call what it gives with each number of things."""
        began = shown = time.monotonic()
        seen, wiped = 0, True

        def count(number: int = 1) -> None:
            nonlocal seen, shown, wiped
            seen += number
            now = time.monotonic()
            if now - began >= PATIENCE and now - shown >= REDRAW and self.stderr.isatty() and not self.json:
                self.stderr.write(f"\r{what}: {seen:,}")
                self.stderr.flush()
                shown, wiped = now, False

        try:
            yield count
        finally:
            if not wiped:
                self.stderr.write("\r\x1b[K")
                self.stderr.flush()

    @asynccontextmanager
    async def waiting(self, sentence: str | Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
        """Say what is being waited for, once, when that takes over two seconds."""

        async def say() -> None:
            await asyncio.sleep(PATIENCE)
            self.note(sentence if isinstance(sentence, str) else await sentence())

        task = asyncio.create_task(say(), name="say what is waited for")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def cell(value: object, *, one_line: bool = False) -> Text:
    """One cell of a table. `one_line`: a row is told from the next one by its line."""
    if isinstance(value, Text):
        return value
    if isinstance(value, list | tuple):
        value = ", ".join(str(part) for part in value)
    text = line(str(value)) if one_line else clean(str(value))
    return Text(text, style=STYLES.get(text, ""))
