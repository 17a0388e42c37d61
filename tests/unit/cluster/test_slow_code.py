"""Lines of workflow code that slow code follows."""

from __future__ import annotations

from sojourn.cluster.hosting.slow_code import LINES, SlowCode
from sojourn.codecs.record import Envelope, Index, Record, SourceLine, Status, Wait


def _record(line: int) -> Record:
    index = Index("a", "r", "w", Status.RUNNING, 1, 0.0, 0.0)
    wait = Wait(branch=0, op=1, kind="call", stack=(SourceLine("m", "outer", 1), SourceLine("m", "f", line)))
    return Record(index, Envelope("c", "", 1, waits=(wait,)))


def test_a_line_is_slow_when_the_code_after_it_last_took_over_50_ms() -> None:
    slow = SlowCode()
    assert not slow.follows(_record(3), 1)
    slow.took(_record(3), 1, 0.06)
    assert slow.follows(_record(3), 1)
    assert not slow.follows(_record(4), 1)
    assert not slow.follows(_record(3), 2)
    slow.took(_record(3), 1, 0.01)
    assert not slow.follows(_record(3), 1)


def test_the_oldest_finding_is_forgotten_at_the_bound() -> None:
    slow = SlowCode()
    for line in range(LINES + 1):
        slow.took(_record(line), 1, 1.0)
    assert not slow.follows(_record(0), 1)
    assert slow.follows(_record(1), 1)
