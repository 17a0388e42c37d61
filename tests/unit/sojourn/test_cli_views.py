"""What people read who must see where many workflows stand: order, columns, points in time, patience."""

from __future__ import annotations

import asyncio
import io
import re
from typing import Any

import msgspec
import pytest
from sojourn.codecs.record import Index, Status

from sojourn.cli import output as output_module
from sojourn.cli.actors import STATE_ORDER, STATES, _urgency
from sojourn.cli.output import Output, plain, waits
from sojourn.cli.standing import Row, group_of

INDEX = Index("a", "r", "onboard", Status.SUSPENDED, 1, 0.0, 100.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def index(**changes: Any) -> Index:
    return msgspec.structs.replace(INDEX, **changes)


@pytest.fixture
def piped() -> Output:
    return Output(False, io.StringIO(), io.StringIO())


def said(output: Output) -> str:
    assert isinstance(output.stdout, io.StringIO)
    return output.stdout.getvalue()


def test_every_state_has_a_place_in_the_order() -> None:
    assert sorted(STATE_ORDER) == sorted(STATES)


def test_what_needs_somebody_comes_first_then_the_longest_waits_then_what_ended_last() -> None:
    found = [
        index(actor="old-end", status=Status.COMPLETED, updated=1.0),
        index(actor="new-end", status=Status.COMPLETED, updated=90.0),
        index(actor="young", updated=80.0),
        index(actor="old", updated=2.0),
        index(actor="held", hold="quarantined", updated=99.0),
    ]
    assert [one.actor for one in sorted(found, key=_urgency)] == [
        "held",
        "old",
        "young",
        "new-end",
        "old-end",
    ]


@pytest.mark.parametrize(
    ("wait", "group"),
    [
        ("receive approval until 2026-01-01T00:00:00+00:00", "receive approval"),
        (
            "receive a or b until 2026-01-01T00:00:00+00:00, sleep until 2026-01-01T00:00:00+00:00",
            "receive a or b, sleep",
        ),
        ("sleep until 2026-01-01T00:00:00+00:00 and 4 more", "sleep and 4 more"),
        ("step charge", "step charge"),
        ("step charge (attempt 3), step ship (attempt 12)", "step charge (retried), step ship (retried)"),
        ("child order-42-x, child order-42-y", "child, child"),
    ],
)
def test_waits_for_the_same_kind_of_thing_are_one_row(wait: str, group: str) -> None:
    assert group_of(index(wait=wait), "wait") == ("onboard", group)


@pytest.mark.parametrize(
    ("hold", "reason", "group"),
    [
        ("quarantined", "builtins:KeyError: 'b'", "KeyError: 'b'"),
        ("quarantined", "its last 4 ended their node (last: n-1/a2)", "its last 4 ended their node"),
        ("paused", "", "receive approval"),
    ],
)
def test_those_that_are_held_for_the_same_reason_are_one_row(hold: str, reason: str, group: str) -> None:
    held = index(hold=hold, hold_reason=reason, wait="receive approval until 2026-01-01T00:00:00+00:00")
    assert group_of(held, "wait") == ("onboard", group)


def test_a_row_knows_the_oldest_that_lives() -> None:
    row = Row()
    row.add(index(updated=50.0))
    row.add(index(updated=20.0, hold="paused"))
    row.add(index(updated=1.0, status=Status.FAILED))
    assert row.oldest == 20.0
    assert row.states == {"suspended": 1, "paused": 1, "failed": 1}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("failed: builtins:KeyError: 'b'", "failed: KeyError: 'b'"),
        ("was cancelled: sojourn:Cancelled: withdrew (ada@shop)", "was cancelled: withdrew (ada@shop)"),
        ("sojourn:Terminated: no more", "no more"),
        ("o1 was cancelled at 12:00Z: sojourn:Cancelled.", "o1 was cancelled at 12:00Z."),
        ("shop:CardDeclined: 51", "shop:CardDeclined: 51"),
    ],
)
def test_classes_that_say_nothing_are_left_out(words: str, shown: str) -> None:
    assert plain(words) == shown


def test_a_point_in_time_says_how_far_away_it_is() -> None:
    words = "receive a until 2026-01-04T00:00:00+00:00"
    at = 1767484800.0
    assert waits(words, at - 3 * 86_400) == "receive a until 2026-01-04 00:00Z (in 3d)"
    assert (
        waits(words, at - 3 * 86_400 + 5.0) == "receive a until 2026-01-04 00:00Z (in 3d)"
    )  # three days, begun just now
    assert waits(words, at - 71 * 3_600) == "receive a until 2026-01-04 00:00Z (in 2d)"
    assert waits(words, at + 90.0) == "receive a until 2026-01-04 00:00Z (1m30s ago)"
    assert waits("child order-42", at) == "child order-42"


def test_figures_stand_to_the_right_and_lines_in_a_pipe_end_with_their_last_word(piped: Output) -> None:
    piped.table(("what", "count", "why"), [("a", 5, "x"), ("bb", 1234, "")])
    assert said(piped) == "what  count  why\na         5  x\nbb     1234\n"


def test_a_pipe_gets_no_colours_and_no_counting(piped: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "PATIENCE", 0.0)
    with piped.counting("records") as count:
        count(1)
    piped.table(("state",), [("quarantined",)])
    piped.say("done", "green")
    assert "\x1b" not in said(piped)
    assert isinstance(piped.stderr, io.StringIO)
    assert piped.stderr.getvalue() == ""


def test_no_colour_is_shown_on_a_terminal_that_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    output = Output(False, Terminal(), Terminal())
    output.table(("state",), [("quarantined",)])
    assert not re.search(r"\x1b\[[\d;]*3\dm", said(output))


def test_a_terminal_sees_a_long_scan_count_and_then_forget_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "PATIENCE", 0.0)
    monkeypatch.setattr(output_module, "REDRAW", 0.0)
    shown = Terminal()
    with Output(False, io.StringIO(), shown).counting("records read") as count:
        count(1_500)
    assert shown.getvalue() == "\rrecords read: 1,500\r\x1b[K"


async def test_what_takes_long_is_said_once(piped: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "PATIENCE", 0.0)
    asked = asyncio.Event()

    async def sentence() -> str:
        asked.set()
        return "it waits for you"

    async with piped.waiting(sentence):
        await asked.wait()
        await asyncio.sleep(0)
    async with piped.waiting("never said"):
        pass
    assert isinstance(piped.stderr, io.StringIO)
    assert piped.stderr.getvalue() == "it waits for you\n"


@pytest.mark.parametrize("columns", [6, 12])
def test_a_narrow_terminal_folds_what_is_long_and_loses_no_column(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States and counts stay whole where there is room for that; else every column is folded, and none is left out."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    output = Output(False, Terminal(), io.StringIO())
    names = [f"{number:02}column" for number in range(columns)]
    cells = [
        "quarantined",
        "words that are folded " * 5,
        *(f"{number:02}cell" for number in range(2, columns)),
    ]
    output.table(names, [cells])
    text = re.sub(r"\x1b\[[0-9;]*m", "", said(output))
    assert all(name[:3] in text for name in names)
    assert all(cell[:3] in text for cell in cells)
    assert ("quarantined" in text) == (columns == 6)
