"""Whatever bytes somebody may send: what reads them says that they are none, and never raises."""

from __future__ import annotations

import os

import pytest
from sojourn.actors.answers import parse_answer, parse_question
from sojourn.actors.wire import Malformed, parse_event
from sojourn.broker.subjects import Ctl, Send, Token, Wake, actor_id, channel_name
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Origin

DEEP = 100_000
JUNK = {
    "empty list": b"[]",
    "deep list": b"[" * DEEP,
    "deep object": b'{"a":' * DEEP,
    "deep member": b'{"what":"state","actor":"a","x":' + b"[" * DEEP,
    "no text": b'{"actor":"\xff\xfe","by":"\xff"}',
    "surrogate": b'{"actor":"\\ud800","reply":"\\ud800"}',
    "infinite": b'{"delay":1e999}',
    "pickle": b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
}
KEYRING = Keyring.ephemeral(os.urandom)


@pytest.mark.parametrize("payload", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize(
    "parsed",
    [
        Ctl(0, actor_id("a"), Token("start")),
        Send(0, actor_id("a"), channel_name("x")),
        Wake(0, actor_id("a"), Token("child-done")),
    ],
    ids=["ctl", "send", "wake"],
)
def test_a_message_that_is_no_event_is_malformed(parsed: Ctl | Send | Wake, payload: bytes) -> None:
    event = parse_event(
        parsed,
        Origin("ctl", 1, 1),
        time=0.0,
        headers={},
        payload=payload,
        keyring=KEYRING,
        inbox_prefix="_INBOX",
    )
    assert isinstance(event, Malformed)


@pytest.mark.parametrize("payload", JUNK.values(), ids=JUNK)
def test_a_question_that_is_none_is_none(payload: bytes) -> None:
    assert parse_question(payload) is None


@pytest.mark.parametrize("payload", JUNK.values(), ids=JUNK)
def test_an_answer_that_is_none_says_nothing(payload: bytes) -> None:
    answer = parse_answer(payload)
    assert answer is None or (answer.index, answer.outcome, answer.details) == (None, None, None)
