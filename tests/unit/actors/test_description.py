"""`describe` says in one sentence why an actor is not running."""

from __future__ import annotations

import pytest
from sojourn.actors.answers import (
    Answer,
    Details,
    Question,
    Running,
    Unread,
    encode,
    parse_answer,
    parse_question,
)
from sojourn.actors.description import Description
from sojourn.codecs.record import Index, Move, Origin, SourceLine, Status


def index(status: Status = Status.SUSPENDED, **more: object) -> Index:
    return Index("o1", "r1", "order", status, 4, created=0.0, updated=3_600.0, **more)  # type: ignore[arg-type]  # fields of Index


CHARGING = Running(
    "charge", 3, 2, 5, seconds=4.2, heartbeat={"n": 1}, heartbeat_age=1.0, last_error="OSError: disk"
)
LATER = Running("charge", 3, 3, 5, next_retry=7_200.0, last_error="OSError: disk")
QUEUED = Running("charge", 3, 2, 5, queue="gpu", since=3_600.0, at_work=3, free=0, waiting=14)
UNSERVED = Running("charge", 3, 1, 5, queue="gpu", since=3_600.0, waiting=1)
STUCK = Running("charge", 3, 1, 5, seconds=90, stuck=True, where="shop.py:3 in charge")


@pytest.mark.parametrize(
    ("facts", "details", "sentence"),
    [
        (index(Status.COMPLETED), Details(), "o1 (order) completed at 1970-01-01 01:00:00Z."),
        (index(Status.REJECTED), None, "o1 (order) ended with a rejection at 1970-01-01 01:00:00Z."),
        (index(wait="receive approval"), Details(), "o1 (order) waits: receive approval."),
        (index(wait="step charge in queue gpu"), None, "o1 (order) waits: step charge in queue gpu. No node answers for it now; it goes on when one does."),  # noqa: E501  # the text as users see it
        (index(), Details(running=(QUEUED,)), "o1 (order) waits for queued step charge, attempt 2 of 5, queue gpu, since 1970-01-01 01:00:00Z: 3 tasks at work, 14 tasks waiting, free places: 0."),  # noqa: E501  # the text as users see it
        (index(), Details(running=(UNSERVED, QUEUED)), "o1 (order) waits for queued step charge, attempt 1 of 5, queue gpu, since 1970-01-01 01:00:00Z: no worker takes from the queue, 1 task waiting and 1 more."),  # noqa: E501  # the text as users see it
        (index(wait="receive approval"), None, "o1 (order) waits: receive approval. No node answers for it now; it goes on when one does."),
        (index(wait="receive a"), Details(unread=(Unread("b", 3, 0.0),)), "o1 (order) waits: receive a (unread mail: 3 on b)."),
        (index(wait="receive a"), Details(missing=("shop:order has changed",)), "o1 (order) waits: receive a. No living node has the code it is suspended in (shop:order has changed)."),  # noqa: E501  # the text as users see it
        (index(wait="receive a"), Details(missing=("shop:order has changed",), elsewhere=("v1",)), "o1 (order) waits: receive a."),
        (index(Status.CANCELLING, wait="sleep"), Details(), "o1 (order) is being cancelled and waits: sleep."),
        (index(Status.RUNNABLE), Details(), "o1 (order) is about to go on."),
        (index(Status.RUNNING), Details(running=(CHARGING,)), "o1 (order) runs step charge, attempt 2 of 5, for 4s, last heartbeat 1s ago, last error: OSError: disk."),  # noqa: E501  # the text as users see it
        (index(Status.RUNNING), Details(running=(STUCK, CHARGING)), "o1 (order) runs step charge, attempt 1 of 5, for 1m30s, stuck at shop.py:3 in charge and 1 more."),  # noqa: E501  # the text as users see it
        (index(), Details(running=(LATER,)), "o1 (order) waits to try again: step charge, attempt 3 of 5, next at 1970-01-01 02:00:00Z, last error: OSError: disk."),  # noqa: E501  # the text as users see it
        (index(hold="paused", hold_reason="audit"), Details(), "o1 (order) is paused: audit; `sojourn resume o1` lets it go on."),
        (index(hold="quarantined", hold_reason="KeyError: 'x'"), Details(), "o1 (order) is quarantined: KeyError: 'x'; `sojourn release o1` tries again from its last good record."),  # noqa: E501  # the text as users see it
        (index(hold="pin"), Details(missing=("shop:order has changed",)), "o1 (order) waits for a node that has the code it was suspended in (shop:order has changed)."),  # noqa: E501  # the text as users see it
        (index(hold="pin", deployment="v1"), Details(missing=("shop:order has changed",)), "o1 (order) waits for a node that has the code it was suspended in, such as one of deployment v1 (shop:order has changed)."),  # noqa: E501  # the text as users see it
        (index(wait="receive a", deployment="v1"), Details(missing=("shop:order has changed",)), "o1 (order) waits: receive a. No living node has the code it is suspended in (shop:order has changed). It ran on deployment v1."),  # noqa: E501  # the text as users see it
    ],
)  # fmt: skip
def test_the_sentence_says_why(facts: Index, details: Details | None, sentence: str) -> None:
    assert Description(facts, details).sentence == sentence


def test_an_owner_that_cannot_open_the_record_is_not_taken_for_none() -> None:
    described = Description(index(wait="receive a"), None, "sealed with key 'a', this node has b")
    assert (
        described.sentence
        == "o1 (order) waits: receive a. Its node cannot open its record: sealed with key 'a', this node has b."
    )


def test_the_facts_are_those_that_people_ask_for_first() -> None:
    facts = index(
        wait="receive approval",
        stacks=((SourceLine("shop", "order", 3), SourceLine("shop", "ask", 9)),),
        itinerary=(Move(1, "n1", 0.0),),
        frame_bytes=412,
    )
    shown = dict(Description(facts, Details(hot=True, running=(CHARGING,), variables={"order.x": 9})).facts())
    assert list(shown)[:4] == ["id", "run", "workflow", "status"]
    assert shown["at"] == ["shop:ask line 9"]
    assert shown["frame"] == "412 bytes"
    assert shown["largest variables"] == ["order.x: 9 bytes"]
    assert shown["moves"] == ["n1 at 1970-01-01 00:00:00Z"]


def test_the_document_is_json_values_and_tells_whether_an_owner_answered() -> None:
    answered = Description(index(), Details(running=(CHARGING,))).document()
    assert answered["answered"] is True
    assert answered["details"]["running"][0]["heartbeat"] == {"n": 1}
    assert Description(index(), None).document()["details"] is None


def test_questions_and_answers_cross_and_what_is_neither_is_nothing() -> None:
    question = Question("o1", "consumed", Origin("mail", 1, 2))
    answer = Answer(index=index(), details=Details(running=(LATER,), unread=(Unread("a", 1, 2.0),)))
    assert parse_question(encode(question)) == question
    assert parse_answer(encode(answer)) == answer
    assert parse_question(b'{"actor":"o1","what":"secrets"}') is None
    assert parse_question(b"nonsense") is None
    assert parse_answer(b"[]") is None
