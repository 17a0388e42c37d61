"""Durations are read one way only, and what is shown reads back."""

from __future__ import annotations

import contextlib
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.codecs.durations import Backoff, duration, format_duration
from sojourn.codecs.errors import DurationError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("24h", 86_400.0),
        ("1h30m", 5_400.0),
        ("1h 30m", 5_400.0),
        (" 250ms ", 0.25),
        ("1.5h", 5_400.0),
        ("3d", 259_200.0),
        ("1w", 604_800.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("0s", 0.0),
        (0, 0.0),
        (90, 90.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_text_with_units(written: object, seconds: float) -> None:
    assert duration(written) == pytest.approx(seconds)  # type: ignore[arg-type]  # a union by hand


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("", 'such as "30s"'),
        ("30", '"30s" for seconds'),
        ("-5s", "negative"),
        (-1, "negative"),
        (timedelta(seconds=-1), "negative"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (10**400, "finite"),
        (True, "expected seconds"),
        (None, "expected seconds"),
        (b"1h", "expected seconds"),
        ("1h 1h", "largest first"),
        ("30m1h", "largest first"),
        ("5 minutes", 'write "5m"'),
        ("2H", 'write "2h"'),
        ("1y", "unknown unit"),
        ("1M", 'write "1m"'),
        ("\u0661h", "cannot read"),
        ("h", "cannot read"),
        ("1..5s", "1 of what?"),
        ("1e3s", "unknown unit"),
        ("1" * 400 + "s", "at most 64"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_to_write(written: object, hint: str) -> None:
    with pytest.raises(DurationError) as refused:
        duration(written)  # type: ignore[arg-type]  # wrong on purpose
    assert hint in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000))
def test_a_shown_duration_reads_back_to_the_millisecond(seconds: float) -> None:
    assert duration(format_duration(seconds)) == pytest.approx(seconds, abs=0.0005)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(DurationError):
        assert duration(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (5400, "1h30m"), (0.25, "250ms"), (86_400, "1d"), (61.5, "1m1s500ms")]
)
def test_durations_are_shown_with_the_largest_units_first(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_backoff_doubles_from_the_first_wait_up_to_the_most() -> None:
    waits = Backoff.parse("1s..1m")
    assert [waits.delay(attempt) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waits.delay(10_000) == 60
    assert str(waits) == "1s..1m"
    assert Backoff.parse(waits) is waits


def test_a_single_duration_is_a_constant_backoff() -> None:
    assert Backoff.parse("5s") == Backoff(5, 5) == Backoff.parse(5)
    assert Backoff.parse("5s").delay(7) == 5
    assert str(Backoff.parse("5s")) == "5s"


def test_spread_takes_at_most_a_quarter_off() -> None:
    assert Backoff(8, 8).delay(1, spread=0.0) == 8
    assert Backoff(8, 8).delay(1, spread=0.5) == 7
    assert Backoff(8, 8).delay(1, spread=0.999) > 6


@pytest.mark.parametrize("written", ["1m..1s", "..", "1s..", "1s..2", "1s...2s", True])
def test_a_backoff_that_shrinks_or_cannot_be_read_is_refused(written: str) -> None:
    with pytest.raises(DurationError):
        Backoff.parse(written)


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="from 1 on"):
        Backoff(1, 2).delay(0)
