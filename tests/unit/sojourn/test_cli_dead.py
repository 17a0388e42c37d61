"""What operators read of dead letters."""

from __future__ import annotations

import pytest
from sojourn.broker.dead import DeadLetter
from sojourn.broker.subjects import Subjects
from sojourn.codecs.record import Origin

from sojourn.cli.dead import addressee

SUBJECTS = Subjects("default", 32)


def letter(subject: str) -> DeadLetter:
    return DeadLetter(1, Origin("mail", 5, 1), "payload", "", subject, 0.0, b"{}", {}, 0.0)


@pytest.mark.parametrize(
    ("subject", "to"),
    [
        ("sj.default.in.7.mail.order-42.payment", ("order-42", "payment")),
        ("sj.default.mail.order-42.payment", ("order-42", "payment")),
        ("sj.default.send.order-42.payment", ("order-42", "payment")),
        ("sj.default.done.order-42.7", ("order-42", "7")),
        ("sj.default.ctl.order-42.start", ("order-42", "start")),
        ("sj.default.wake.7.order-42.timer", ("order-42", "timer")),
        ("sj.default.mail.not an id.payment", ("", "")),
        ("", ("", "")),
    ],
)
def test_a_letter_names_its_actor_whether_the_event_was_held_before_or_not(
    subject: str, to: tuple[str, str]
) -> None:
    """The subject of one that was held is as its sender wrote it, without a partition."""
    assert addressee(SUBJECTS, letter(subject)) == to
