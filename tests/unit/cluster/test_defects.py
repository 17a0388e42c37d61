"""What a node's log says of quarantines: enough to find the line, not one line for each of thousands, nothing of the user's data."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sojourn.cluster.hosting.defects import AGAIN_SECONDS, DefectLog
from sojourn.codecs.record import Envelope, Hold, Index, Record, Status

LOG = logging.getLogger("sojourn.test.defects")
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/flows.py", line 12, in order\n    return price(plan)\n'
    '  File "/srv/shop/prices.py", line 78, in price\n    return plan["secret"]\nKeyError: \'secret\'\n'
)


def quarantined(
    actor: str, reason: str = "builtins:KeyError: 'secret'", traceback: str = TRACEBACK
) -> Record:
    index = Index(actor, "r", "order", Status.SUSPENDED, 1, 0.0, 0.0, hold="quarantined", hold_reason=reason)
    envelope: Any = Envelope("c", "b", 1, hold=Hold("quarantined", reason, "", 0.0, traceback))
    return Record(index, envelope)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_quarantine_is_a_warning_with_class_and_place_and_without_the_users_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    DefectLog().say(LOG, 0.0, quarantined("o-1"))
    assert said(caplog) == [
        "o-1 (order) is in quarantine: KeyError at prices.py:78 in price; `sojourn describe o-1` has the whole story"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_thousands_with_one_defect_are_a_line_now_and_then_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    defects = DefectLog()
    for n in range(1_000):
        defects.say(LOG, n / 1_000, quarantined(f"o-{n}"))
    assert len(said(caplog)) == 1
    defects.say(LOG, AGAIN_SECONDS, quarantined("late"))
    assert "late (order)" in said(caplog)[1]
    assert "and 999 more like it since the last line" in said(caplog)[1]


def test_another_defect_is_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    defects = DefectLog()
    defects.say(LOG, 0.0, quarantined("a"))
    defects.say(LOG, 0.0, quarantined("b", "its last 4 each ended their node", ""))
    assert "its last 4 each ended their node" in said(caplog)[1]
