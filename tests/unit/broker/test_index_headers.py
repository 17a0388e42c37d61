"""Index facts in a header: percent-encoded, bounded, and never a reason to fail."""

from __future__ import annotations

import string

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from sojourn.broker.index_headers import INDEX, MAX_HEADER, MAX_TEXT, index_headers, parse_index_headers
from sojourn.codecs.record import Index, Status

BASE = Index("order-42", "r1", "onboard", Status.SUSPENDED, 7, 100.5, 200.25)


@given(
    stage=st.text(max_size=300),
    wait=st.text(max_size=300),
    tags=st.lists(st.text(min_size=1, max_size=50), max_size=5).map(tuple),
)
def test_facts_come_back_as_they_went(stage: str, wait: str, tags: tuple[str, ...]) -> None:
    try:
        stage.encode()
        wait.encode()
        "".join(tags).encode()
    except UnicodeEncodeError:
        return
    index = msgspec.structs.replace(BASE, stage=stage, wait=wait)
    facts = parse_index_headers(index_headers(index))

    assert facts is not None
    assert (facts.actor, facts.transition, facts.created, facts.updated) == ("order-42", 7, 100.5, 200.25)
    assert (facts.status, facts.stage, facts.wait) == ("suspended", stage[:MAX_TEXT], wait[:MAX_TEXT])
    tagged = parse_index_headers(index_headers(msgspec.structs.replace(BASE, tags=tags)))
    assert tagged is not None
    assert tagged.tags == tags


@given(st.text(max_size=500))
def test_a_header_is_printable_ascii_without_line_breaks(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    header = index_headers(msgspec.structs.replace(BASE, stage=text, tags=(text,)))[INDEX]

    assert set(header) <= set(string.ascii_letters + string.digits + string.punctuation)


def test_a_header_has_a_bound() -> None:
    index = msgspec.structs.replace(
        BASE, stage="ä" * 200, wait="ü" * 200, tags=tuple("ö" * 100 for _ in range(50))
    )

    header = index_headers(index)[INDEX]

    assert len(header) <= MAX_HEADER
    facts = parse_index_headers({INDEX: header})
    assert facts is not None
    assert (facts.actor, facts.stage) == ("order-42", "ä" * 200)


@given(st.text(max_size=200))
def test_any_header_is_read_or_ignored(text: str) -> None:
    parse_index_headers({INDEX: text})


def test_no_header_is_no_facts() -> None:
    assert parse_index_headers({}) is None
