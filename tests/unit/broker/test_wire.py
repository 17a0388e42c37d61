"""The wire format: headers, answers, times, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.broker import nats_wire as wire
from sojourn.broker.errors import MailboxFull, OutcomeUnknown, Refused, WrongLastSequence
from sojourn.broker.seam import Publish, StreamConfig


def test_a_plain_publish_has_no_headers() -> None:
    assert wire.publish_headers(Publish("a")) is None


def test_every_option_becomes_its_header() -> None:
    message = Publish(
        "a",
        b"",
        {"Sj-X": "1"},
        expect_last=7,
        expect_filter="a.>",
        ttl=5,
        rollup=True,
        msg_id="m",
        schedule_at=1795983600.25,
        schedule_target="b",
        cancel_schedule="c",
    )

    assert wire.publish_headers(message) == {
        "Sj-X": "1",
        "Nats-Expected-Last-Subject-Sequence": "7",
        "Nats-Expected-Last-Subject-Sequence-Subject": "a.>",
        "Nats-TTL": "5s",
        "Nats-Rollup": "sub",
        "Nats-Msg-Id": "m",
        "Nats-Schedule": "@at 2026-11-29T20:20:00.250000Z",
        "Nats-Schedule-Target": "b",
        "Nats-Schedule-Next": "purge",
        "Nats-Scheduler": "c",
    }


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ('{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}', WrongLastSequence),
        ('{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"}}', WrongLastSequence),
        (
            '{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"}}',
            MailboxFull,
        ),
        ('{"error":{"code":503,"err_code":10077,"description":"stream is closed"}}', OutcomeUnknown),
        ('{"error":{"code":503,"err_code":10008,"description":"temporarily unavailable"}}', OutcomeUnknown),
        ('{"error":{"code":429,"err_code":10210,"description":"too many batches"}}', OutcomeUnknown),
        ('{"error":{"code":409,"err_code":10158,"description":"duplicate is in process"}}', OutcomeUnknown),
        ('{"error":{"code":400,"err_code":10054,"description":"message size exceeds"}}', Refused),
        ("not json", OutcomeUnknown),
        ("[]", OutcomeUnknown),
    ],
)
def test_a_refusal_is_told_apart_from_an_unknown_outcome(answer: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        wire.parse_ack(answer.encode(), Publish("a", expect_last=3))


def test_a_wrong_sequence_carries_what_was_found() -> None:
    with pytest.raises(WrongLastSequence) as caught:
        wire.parse_ack(
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}',
            Publish("a", expect_last=3),
        )

    assert (caught.value.actual, caught.value.expected, caught.value.subject) == (7, 3, "a")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-29T20:18:19.130891364Z", 1795983499130891364),
        ("2026-11-29T20:18:19.13Z", 1795983499130000000),
        ("2026-11-29T21:18:19.13+01:00", 1795983499130000000),
        ("2026-11-29T20:18:19-01:00", 1795987099000000000),
    ],
)
def test_server_times_are_read_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert wire.unix_nanoseconds(text) == nanoseconds


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_come_back_as_they_went(microseconds: int) -> None:
    assert wire.unix_nanoseconds(wire.rfc3339(microseconds / 1e6)) == pytest.approx(
        microseconds * 1000, abs=1000
    )


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.S.k.2.7.9.1795983499130891364.5",
        "$JS.ACK.domain.hash.S.k.2.7.9.1795983499130891364.5.random",
        "$JS.ACK._.hash.S.k.2.7.9.1795983499130891364.5",
    ],
)
def test_a_delivery_is_read_from_either_form_of_its_ack_subject(reply: str) -> None:
    assert wire.parse_delivery(reply) == ("S", 2, 7, 9, 1795983499130891364)


def test_stored_headers_are_read_and_broken_lines_skipped() -> None:
    raw = b"NATS/1.0\r\nA: b\r\nC:d:e\r\nbroken\r\n\r\n"

    assert wire.parse_headers(raw) == {"A": "b", "C": "d:e"}


@given(
    st.builds(
        StreamConfig,
        name=st.just("S"),
        subjects=st.just(("a.>",)),
        retention=st.sampled_from(["limits", "workqueue"]),
        discard=st.sampled_from(["old", "new"]),
        max_msgs_per_subject=st.integers(-1, 100),
        max_bytes=st.integers(-1, 2**40),
        max_age=st.integers(0, 10**6).map(float),
        duplicate_window=st.integers(0, 10**4).map(float),
        transform=st.none() | st.just(("a.*", "b.{{wildcard(1)}}")),
        republish=st.none() | st.just(("a.>", "c.>")),
        allow_ttl=st.booleans(),
        allow_atomic=st.booleans(),
        marker_ttl=st.none() | st.integers(1, 1000).map(float),
    )
)
def test_stream_configurations_come_back_as_they_went(config: StreamConfig) -> None:
    assert wire.stream_from_json(wire.stream_to_json(config)) == config
