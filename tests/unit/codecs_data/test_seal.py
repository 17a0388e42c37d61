"""The record under its seal: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import base64
import contextlib
import pickle
import random
import struct
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn.codecs import seal as seal_module
from sojourn.codecs.errors import (
    RecordError,
    RecordMalformed,
    RecordTooLarge,
    RecordTruncated,
    RecordVersion,
    SealBroken,
    UnknownKey,
    WrongActor,
)
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import (
    Child,
    Envelope,
    ErrorInfo,
    Index,
    Move,
    Operation,
    Origin,
    OutboxEntry,
    Outcome,
    PendingCall,
    Record,
    Seen,
    SourceLine,
    Status,
    Wait,
)
from sojourn.codecs.seal import open_record, read_index, reseal_record, seal_record

RING = Keyring.ephemeral(random.Random(1).randbytes)
NAMES = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_=-", min_size=1, max_size=128)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.floats(0, 4e9)
ORIGINS = st.builds(
    Origin, st.sampled_from(("mail", "ctl", "wake")), st.integers(0, 2**62), st.integers(1, 2**62)
)
LINES = st.builds(SourceLine, TEXT, TEXT, st.integers(1, 99_999))

INDEXES = st.builds(
    Index,
    actor=NAMES,
    run=NAMES,
    workflow=TEXT,
    status=st.sampled_from(Status),
    transition=st.integers(0, 2**63),
    created=TIMES,
    updated=TIMES,
    stage=TEXT,
    stacks=st.lists(st.lists(LINES, max_size=3).map(tuple), max_size=2).map(tuple),
    pin=st.lists(TEXT, max_size=3).map(tuple),
    itinerary=st.lists(st.builds(Move, st.integers(0, 9), TEXT, TIMES), max_size=3).map(tuple),
    operations=st.lists(
        st.builds(
            Operation, st.integers(0, 9), TEXT, TEXT, st.integers(1, 5), TEXT, TIMES, st.none() | TIMES
        ),
        max_size=3,
    ).map(tuple),
)
ENVELOPES = st.builds(
    Envelope,
    commit=TEXT,
    previous=TEXT,
    epoch=st.integers(0, 2**40),
    waits=st.lists(
        st.builds(Wait, st.integers(0, 9), st.integers(0, 9), st.just("receive"), TEXT), max_size=2
    ).map(tuple),
    consumed=st.frozensets(ORIGINS, max_size=5),
    seen=st.dictionaries(TEXT, st.builds(Seen, st.integers(0, 9), TIMES), max_size=3),
    lease=st.none() | ORIGINS,
    children=st.dictionaries(NAMES, st.builds(Child, NAMES, st.integers(0, 9), TEXT), max_size=2),
    now=TIMES,
)
RECORDS = st.builds(Record, INDEXES, ENVELOPES, st.binary(max_size=400))


def record(frame: bytes = b"frame", **changes: object) -> Record:
    index = Index("order-42", "r1", "onboard", Status.SUSPENDED, 7, 1.0, 2.0, stage="approval")
    return Record(msgspec.structs.replace(index, **changes), Envelope("c2", "c1", 3), frame)


def sealed(frame: bytes = b"frame", **changes: object) -> bytes:
    return seal_record(record(frame, **changes), RING, namespace="default")


def opened(data: bytes, ring: Keyring = RING, namespace: str = "default", actor: str = "order-42") -> Record:
    return open_record(data, ring, namespace=namespace, actor=actor)


def in_order(envelope: Envelope) -> bytes:
    """Comparable bytes: raw values have no equality, sets no order."""
    return msgspec.json.encode(envelope, order="deterministic")


@given(RECORDS)
def test_what_was_sealed_is_opened_with_its_sizes_and_key_filled_in(original: Record) -> None:
    data = seal_record(original, RING, namespace="default")
    back = opened(data, actor=original.index.actor)
    assert back.frame == original.frame
    assert in_order(back.envelope) == in_order(original.envelope)
    assert back.index == msgspec.structs.replace(
        original.index,
        key_id=RING.newest_id,
        frame_bytes=len(original.frame),
        envelope_bytes=len(msgspec.json.encode(original.envelope)),
    )
    assert read_index(data) == back.index


def test_raw_values_of_calls_results_and_outbox_come_back_byte_for_byte() -> None:
    raw = msgspec.Raw(b'[["\xc3\xa9",1.0],{"k":null}]')
    error = ErrorInfo("app:Declined", "no", data=raw, notes=("n",))
    envelope = Envelope(
        "c2",
        "c1",
        3,
        calls=(PendingCall(4, "charge", raw, last_error=error),),
        results={5: Outcome("value", raw), 6: Outcome("error", error=error)},
        outbox=(OutboxEntry(7, "send", "order-7", body=raw),),
        outcome=Outcome("value", raw),
    )
    back = opened(seal_record(Record(record().index, envelope), RING, namespace="default")).envelope
    assert bytes(back.calls[0].args) == bytes(raw)
    assert bytes(back.results[5].value) == bytes(raw)
    assert bytes(back.outbox[0].body) == bytes(raw)
    assert back.results[6].error is not None
    assert bytes(back.results[6].error.data) == bytes(raw)


@given(RECORDS, st.data())
def test_no_changed_byte_is_accepted(original: Record, draw: st.DataObject) -> None:
    data = bytearray(seal_record(original, RING, namespace="default"))
    position = draw.draw(st.integers(0, len(data) - 1))
    data[position] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        opened(bytes(data), actor=original.index.actor)


def test_no_flipped_bit_of_a_record_is_accepted_anywhere() -> None:
    """Every bit, not a sample."""
    data = sealed()
    for position in range(len(data)):
        for bit in range(8):
            mutated = bytearray(data)
            mutated[position] ^= 1 << bit
            with pytest.raises(RecordError):
                opened(bytes(mutated))


def test_no_flipped_byte_of_a_compressed_record_is_accepted_anywhere() -> None:
    data = sealed(b"frame " * 1000)
    assert data[4] == 1
    for position in range(len(data)):
        mutated = bytearray(data)
        mutated[position] ^= 0xFF
        with pytest.raises(RecordError):
            opened(bytes(mutated))


@given(st.data())
def test_no_cut_insertion_swap_or_splice_is_accepted(draw: st.DataObject) -> None:
    data, other = sealed(b"one" * 20), sealed(b"two" * 20, transition=8)
    cut = draw.draw(st.integers(0, len(data)))
    length = draw.draw(st.integers(1, 40))
    junk = draw.draw(st.binary(min_size=1, max_size=40))
    for mutated in (
        data[:cut] + data[cut + length :],
        data[:cut] + junk + data[cut:],
        data[:cut] + other[cut:],
        junk,
    ):
        if mutated not in (data, other):
            with pytest.raises(RecordError):
                opened(mutated)


def test_every_prefix_is_truncated_and_never_more_than_that() -> None:
    data = sealed()
    for size in range(len(data)):
        with pytest.raises(RecordTruncated) as cut:
            opened(data[:size])
        assert cut.value.size == size
    with pytest.raises(RecordTruncated):
        opened(data + b"\0")


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_are_refused_by_opening_and_by_reading_the_index(data: bytes, ours: bool) -> None:
    candidate = (b"SJR\x01\x00" + data) if ours else data
    with pytest.raises(RecordError):
        opened(candidate)
    with pytest.raises(RecordError):
        read_index(candidate)


@given(st.data())
def test_reading_the_index_of_mutated_bytes_gives_an_index_or_a_record_error(draw: st.DataObject) -> None:
    data = bytearray(sealed())
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(RecordError):
        assert isinstance(read_index(bytes(data)), Index)


def test_a_record_is_not_accepted_for_another_actor_namespace_or_key() -> None:
    data = sealed()
    with pytest.raises(WrongActor) as wrong:
        opened(data, actor="order-43")
    assert (wrong.value.expected, wrong.value.received) == ("order-43", "order-42")
    with pytest.raises(SealBroken):
        opened(data, namespace="other")
    with pytest.raises(UnknownKey):
        opened(data, Keyring.ephemeral(random.Random(2).randbytes))


def test_a_record_renamed_to_another_actor_of_the_same_length_is_refused() -> None:
    with pytest.raises(SealBroken):
        opened(sealed().replace(b"order-42", b"order-43"), actor="order-43")


def test_the_tag_of_one_transition_or_run_does_not_fit_another() -> None:
    seven, eight, run = sealed(), sealed(transition=8), sealed(run="r2")
    for other in (eight, run):
        with pytest.raises(SealBroken, match="transition 7"):
            opened(seven[:-32] + other[-32:])


def test_a_record_of_a_newer_version_or_codec_asks_for_an_upgrade_before_anything_else() -> None:
    data = sealed()
    for position, what in ((3, "version"), (4, "codec")):
        newer = data[:position] + b"\x02" + data[position + 1 :]
        with pytest.raises(RecordVersion, match="upgrade") as refused:
            opened(newer)
        assert refused.value.what == what
        with pytest.raises(RecordVersion):
            read_index(newer)


def test_a_header_that_promises_more_than_the_limits_is_refused_before_anything_is_read() -> None:
    data = bytearray(sealed())
    for offset, section in ((16, "index"), (20, "body"), (24, "body"), (28, "body")):
        huge = bytearray(data)
        struct.pack_into(">I", huge, offset, 0xFFFF_FFFF)
        with pytest.raises(RecordTooLarge) as refused:
            opened(bytes(huge))
        assert refused.value.section == section


def test_large_bodies_are_compressed_and_come_back() -> None:
    frame = b"the same words again and again " * 1000
    data = sealed(frame)
    assert len(data) < len(frame) // 10
    assert opened(data).frame == frame
    assert read_index(data).frame_bytes == len(frame)


def test_bodies_that_do_not_shrink_are_left_alone() -> None:
    frame = random.Random(3).randbytes(10_000)
    data = sealed(frame)
    assert data[4] == 0
    assert opened(data).frame == frame


def test_a_bomb_sealed_by_a_key_holder_inflates_no_further_than_its_header_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even a right tag does not let a body grow: the envelope's promise is what is decompressed, and then it
    is refused.
    """
    bomb = zlib.compress(bytes(50_000_000), 9)
    monkeypatch.setattr(seal_module, "_pack", lambda body: (1, bomb))
    data = sealed()
    with pytest.raises(RecordMalformed, match="envelope"):
        opened(data)


def test_a_body_that_does_not_decompress_is_malformed_even_under_a_right_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seal_module, "_pack", lambda body: (1, b"no zlib"))
    with pytest.raises(RecordMalformed, match="decompress"):
        opened(sealed())


def test_opening_unpickles_nothing() -> None:
    class Boom:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("unpickled",))

    frame = pickle.dumps(Boom())
    assert opened(sealed(frame)).frame == frame


def test_a_record_that_could_not_be_read_back_is_never_written() -> None:
    broken = Envelope("c2", "c1", 3, args=msgspec.Raw(b"{oops"))
    with pytest.raises(RecordMalformed, match="envelope"):
        seal_record(Record(record().index, broken), RING, namespace="default")
    with pytest.raises(RecordMalformed, match="index"):
        sealed(created=float("nan"))
    with pytest.raises(RecordMalformed, match="surrogate"):
        sealed(stage="\ud800")
    with pytest.raises(RecordMalformed, match="transition"):
        sealed(transition=-1)


def test_a_record_over_its_limits_is_never_written() -> None:
    with pytest.raises(RecordTooLarge, match="index"):
        sealed(stage="x" * 300_000)
    with pytest.raises(RecordTooLarge, match="run"):
        sealed(run="r" * 256)
    with pytest.raises(RecordTooLarge, match="body"):
        sealed(bytes(33 * 1024 * 1024))


def test_resealing_moves_a_record_to_the_newest_key_and_changes_nothing_else() -> None:
    first, second = random.Random(4).randbytes(32), random.Random(5).randbytes(32)
    old, both, new = Keyring([first]), Keyring([first, second]), Keyring([second])
    data = seal_record(record(), old, namespace="default")
    moved = reseal_record(data, both, namespace="default", actor="order-42")
    before, after = opened(data, old), opened(moved, new)
    assert after.index.key_id == new.newest_id
    assert msgspec.structs.replace(after.index, key_id="") == msgspec.structs.replace(before.index, key_id="")
    assert after.frame == before.frame
    with pytest.raises(UnknownKey):
        opened(moved, old)


def test_a_record_of_version_1_written_by_the_first_release_still_opens() -> None:
    """Records outlive releases: these bytes must open in every later version that reads version 1."""
    ring = Keyring([bytes(range(32))])
    back = opened(base64.b64decode(VERSION_1), ring)
    assert back.frame == b"F"
    assert (back.index.actor, back.index.run, back.index.transition) == ("order-42", "r1", 7)
    assert (back.index.stage, back.index.status, back.envelope.commit) == ("approval", Status.SUSPENDED, "c2")


def test_the_header_is_as_its_theory_says() -> None:
    ring = Keyring([bytes(range(32))])
    data = seal_record(record(b"F"), ring, namespace="default")
    index, envelope = read_index(data), opened(data, ring).envelope
    sizes = (len(msgspec.json.encode(index)), len(msgspec.json.encode(envelope)))
    header = struct.pack(">3sBBBBBQIIII", b"SJR", 1, 0, 16, 8, 2, 7, sizes[0], sizes[1] + 1, sizes[1], 1)
    assert data[:32] == header
    assert data[32:58] == ring.newest_id.encode() + b"order-42r1"
    assert len(data) == 58 + sizes[0] + sizes[1] + 1 + 32


VERSION_1 = (
    "U0pSAQAQCAIAAAAAAAAABwAAAMcAAAAqAAAAKQAAAAE2NmI4YjI3YzE5NmY3MGI4b3JkZXItNDJyMXsiYWN0b3IiOi"
    "JvcmRlci00MiIsInJ1biI6InIxIiwid29ya2Zsb3ciOiJvbmJvYXJkIiwic3RhdHVzIjoic3VzcGVuZGVkIiwidHJh"
    "bnNpdGlvbiI6NywiY3JlYXRlZCI6MS4wLCJ1cGRhdGVkIjoyLjAsInN0YWdlIjoiYXBwcm92YWwiLCJmcmFtZV9ieX"
    "RlcyI6MSwiZW52ZWxvcGVfYnl0ZXMiOjQxLCJrZXlfaWQiOiI2NmI4YjI3YzE5NmY3MGI4In17ImNvbW1pdCI6ImMy"
    "IiwicHJldmlvdXMiOiJjMSIsImVwb2NoIjozfUa1wMLGL/4cXZ85egZfEiwGAHNMlF7KjfXn/hA3sQCY/g=="
)
