"""What happened to a node's partitions, in one line per change."""

from __future__ import annotations

import logging

import pytest
from sojourn.cluster.holding.tally import Tally

LOG = logging.getLogger("sojourn.test.tally")


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.fixture
def tally(caplog: pytest.LogCaptureFixture) -> Tally:
    caplog.set_level(logging.DEBUG, LOG.name)
    return Tally(LOG, {"node": "a"})


def test_many_partitions_are_one_line_and_each_is_one_at_debug(
    tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    tally.begin(10.0)
    for p in range(32):
        tally.begin(10.1)
        tally.note(p, "attached" if p < 30 else "taken over")
    tally.tell(10.8, 32)
    assert lines(caplog) == ["attached 30, taken over 2 in 0.8 s; serving 32 partitions"]
    assert len(lines(caplog, logging.DEBUG)) == 33
    assert vars(caplog.records[-1])["node"] == "a"


def test_reasons_are_named_up_to_three(tally: Tally, caplog: pytest.LogCaptureFixture) -> None:
    tally.begin(0.0)
    for p, reason in enumerate("aabcde"):
        tally.note(p, "attached anew", reason)
    tally.tell(1.0, 1)
    assert lines(caplog) == ["attached anew 6 (a; b; c and 2 other reasons) in 1.0 s; serving 1 partition"]


def test_what_was_not_planned_is_a_warning(tally: Tally, caplog: pytest.LogCaptureFixture) -> None:
    tally.note(3, "lost", "held by b/L2", worried=True)
    tally.tell(0.0, 0)
    assert lines(caplog, logging.WARNING) == ["lost 1 (held by b/L2); serving 0 partitions"]


def test_nothing_is_said_of_nothing_and_nothing_twice(tally: Tally, caplog: pytest.LogCaptureFixture) -> None:
    tally.note(1, "handed over")
    tally.tell(1.0, 0)
    tally.begin(2.0)
    tally.tell(3.0, 0)
    assert len(lines(caplog)) == 1
