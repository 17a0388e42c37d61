"""Records as bytes: index, envelope and frame under one seal (PROTOCOL 2).

    magic "SJR" | version | codec | key id length | actor length | run length
    transition (8) | index bytes (4) | body bytes (4) | envelope bytes (4) | frame bytes (4)
    key id | actor | run | index (JSON) | body = envelope (JSON) + frame, perhaps compressed | tag (32)

All numbers are big-endian. The tag is HMAC-SHA256 over everything before it and the namespace, under a key
derived for this (namespace, actor, run); actor, run and transition stand in the header, so they are covered
and are known before anything is decoded.

Order on reading: size, tag, (decryption: its place is between tag and decompression, its mark a codec byte),
bounded decompression, decoding. The frame stays bytes: unpickling is for whoever satisfies its pin. Until the
tag holds, nothing is interpreted but the header.

`read_index` alone needs no key: it is for views, and nothing may be decided on what it returns.

Codec byte: 0 plain, 1 zlib. 2 and 3 are reserved for the same two, encrypted (AES-256-GCM; compressing before
encrypting is safe here only as long as no outsider can both choose parts of a frame and see its size; that
decision belongs to encryption's own record).
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import msgspec
from sojourn.codecs.errors import (
    RecordMalformed,
    RecordTooLarge,
    RecordTruncated,
    RecordVersion,
    SealBroken,
    WrongActor,
)
from sojourn.codecs.keyring import TAG_BYTES, length_prefixed
from sojourn.codecs.keyring import Keyring as Keyring
from sojourn.codecs.record import Envelope, Index, Record

MAX_INDEX: Final = 256 * 1024
"""Bytes of an index. 64 moves, 64 operations and 1,000 branches' stacks fit."""
MAX_BODY: Final = 32 * 1024 * 1024
"""Bytes of envelope and frame before compression: far above what a broker takes in one message, and a bound
for decompression.
"""

_MAGIC: Final = b"SJR"
_VERSION: Final = 1
_PLAIN: Final = 0
_ZLIB: Final = 1
_HEADER: Final = struct.Struct(">3sBBBBBQIIII")
_COMPRESS_FROM: Final = 4096
"""Smaller bodies are left alone: zlib costs 30 us at least and saves nothing that a broker's message header
does not outweigh.
"""

_T = TypeVar("_T")

_encode: Final = msgspec.json.Encoder().encode
_decode_index: Final = msgspec.json.Decoder(Index).decode
_read_through: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


class _Layout(NamedTuple):
    """A parsed header: where the sections lie, and what it claims. Checked against the size of the data, not
    against the tag.
    """

    codec: int
    key_id: str
    actor: str
    run: str
    transition: int
    index_at: int
    body_at: int
    tag_at: int
    envelope_size: int
    frame_size: int

    @property
    def claimed(self) -> str:
        return f"actor {self.actor!r} at transition {self.transition}"


def seal_record(record: Record, keyring: Keyring, *, namespace: str) -> bytes:
    """Return `record` as sealed bytes, under the newest key.

    What the index says about the record itself (`key_id`, `frame_bytes`, `envelope_bytes`) is filled in here,
    whatever it was before. Raises `RecordTooLarge`, and `RecordMalformed` when a raw value in the envelope is
    not JSON, since such a record could never be read.
    """
    key_id, frame = keyring.newest_id, record.frame
    envelope = _encoded(record.envelope)
    filled = msgspec.structs.replace(
        record.index, key_id=key_id, frame_bytes=len(frame), envelope_bytes=len(envelope)
    )
    index = _encoded_index(filled)
    _bounded("index", len(index), MAX_INDEX)
    _bounded("body", len(envelope) + len(frame), MAX_BODY)
    codec, body = _pack(envelope + frame)
    header = _header(codec, filled, len(index), len(body), len(envelope), len(frame))
    sealed = b"".join((header, index, body))
    key = keyring.derived(key_id, "record", namespace, filled.actor, filled.run)
    return sealed + key.tag(_prefix(namespace), sealed)


def read_index(data: bytes) -> Index:
    """Return the index of sealed bytes without a key and *without authentication*: for views, never for
    decisions.

    Raises a `RecordError` when there is none to read.
    """
    layout = _layout(data)
    return _decoded(_decode_index, data[layout.index_at : layout.body_at], "index")


def open_record(data: bytes, keyring: Keyring, *, namespace: str, actor: str) -> Record:
    """Return the record that was sealed for this namespace and actor.

    Raises a `RecordError`: `RecordTruncated`, `RecordTooLarge`, `RecordMalformed`, `RecordVersion`,
    `WrongActor`, `UnknownKey`, `SealBroken`. The frame in the result is what was sealed, still pickled.
    """
    layout = _layout(data)
    if layout.actor != actor:
        raise WrongActor(actor, layout.actor)
    key = keyring.derived(layout.key_id, "record", namespace, actor, layout.run)
    expected = key.tag(_prefix(namespace), memoryview(data)[: layout.tag_at])
    if not hmac.compare_digest(expected, data[layout.tag_at :]):
        raise SealBroken(layout.claimed, layout.key_id)
    # Decryption belongs here: after the tag, before anything is decompressed.
    body = _unpack(data[layout.body_at : layout.tag_at], layout)
    index = _decoded(_decode_index, data[layout.index_at : layout.body_at], "index")
    if (index.actor, index.run, index.transition) != (actor, layout.run, layout.transition):
        raise RecordMalformed("index", "its actor, run and transition are not those of the header")
    envelope = _decoded(_decode_envelope, body[: layout.envelope_size], "envelope")
    return Record(index, envelope, body[layout.envelope_size :])


def reseal_record(data: bytes, keyring: Keyring, *, namespace: str, actor: str) -> bytes:
    """Return the same record under the newest key, for rotation: nothing is unpickled. Raises as
    `open_record` does.
    """
    return seal_record(
        open_record(data, keyring, namespace=namespace, actor=actor), keyring, namespace=namespace
    )


def _layout(data: bytes) -> _Layout:
    if len(data) < _HEADER.size + TAG_BYTES:
        raise RecordTruncated(len(data), _HEADER.size + TAG_BYTES)
    magic, version, codec, key_id, actor, run, transition, index, body, envelope, frame = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC:
        raise RecordMalformed("header", "it does not start as a record does")
    if version != _VERSION:
        raise RecordVersion("version", version, _VERSION)
    if codec not in (_PLAIN, _ZLIB):
        raise RecordVersion("codec", codec, _ZLIB)
    _bounded("index", index, MAX_INDEX)
    _bounded("body", body, MAX_BODY)
    _bounded("body", envelope + frame, MAX_BODY)
    actor_at = _HEADER.size + key_id
    run_at = actor_at + actor
    index_at = run_at + run
    body_at = index_at + index
    tag_at = body_at + body
    if len(data) != tag_at + TAG_BYTES:
        raise RecordTruncated(len(data), tag_at + TAG_BYTES)
    try:
        names = (
            data[_HEADER.size : actor_at].decode(),
            data[actor_at:run_at].decode(),
            data[run_at:index_at].decode(),
        )
    except UnicodeDecodeError as error:
        raise RecordMalformed("header", "a name is not UTF-8") from error
    return _Layout(codec, *names, transition, index_at, body_at, tag_at, envelope, frame)


@lru_cache(maxsize=64)
def _prefix(namespace: str) -> bytes:
    return length_prefixed((namespace,))


def _header(codec: int, index: Index, index_size: int, body: int, envelope: int, frame: int) -> bytes:
    names = key_id, actor, run = index.key_id.encode(), index.actor.encode(), index.run.encode()
    if len(key_id) > 255 or len(actor) > 255 or len(run) > 255:
        for section, name in zip(("key id", "actor", "run"), names, strict=True):
            _bounded(section, len(name), 255)
    if not 0 <= index.transition < 1 << 64:
        raise RecordMalformed("index", f"expected a transition from 0 on, received {index.transition}")
    sizes = (index_size, body, envelope, frame)
    lengths = len(key_id), len(actor), len(run)
    packed = _HEADER.pack(_MAGIC, _VERSION, codec, *lengths, index.transition, *sizes)
    return b"".join((packed, key_id, actor, run))


def _pack(body: bytes) -> tuple[int, bytes]:
    if len(body) >= _COMPRESS_FROM:
        compressed = zlib.compress(body, 1)
        if len(compressed) < len(body):
            return _ZLIB, compressed
    return _PLAIN, body


def _unpack(stored: bytes, layout: _Layout) -> bytes:
    """Decompress at most what the (authenticated) header promises, which is at most `MAX_BODY`."""
    size = layout.envelope_size + layout.frame_size
    if layout.codec == _ZLIB:
        inflate = zlib.decompressobj()
        try:
            stored = inflate.decompress(stored, size)
        except zlib.error as error:
            raise RecordMalformed("body", "it does not decompress") from error
    if len(stored) != size:
        raise RecordMalformed("body", f"expected {size:,} bytes, received {len(stored):,}")
    return stored


def _bounded(section: str, size: int, limit: int) -> None:
    if size > limit:
        raise RecordTooLarge(section, size, limit)


def _encoded(envelope: Envelope) -> bytes:
    """Encode, and read through it as JSON: one that cannot be read back, for a raw value in it that is no JSON, is
    never written. (Decoding it whole takes as long as all the rest of sealing, with many children three times that.)
    """
    try:
        data = _encode(envelope)
    except UnicodeEncodeError as error:
        raise RecordMalformed("envelope", "it holds text with a lone surrogate") from error
    _decoded(_read_through, data, "envelope")
    return data


def _encoded_index(index: Index) -> bytes:
    """Encode an index so that it can be read back, as `_encoded`, but without decoding it each time (64 operations
    take 30 us): of all it holds only a number that is none (NaN, written as null) could not be read.
    """
    try:
        data = _encode(index)
    except UnicodeEncodeError as error:
        raise RecordMalformed("index", "it holds text with a lone surrogate") from error
    if data.count(b"null") != sum([operation.ended is None for operation in index.operations]):
        _decoded(_decode_index, data, "index")
    return data


def _decoded(decode: Callable[[bytes], _T], data: bytes, section: str) -> _T:
    try:
        return decode(data)
    except _UNDECODABLE as error:
        raise RecordMalformed(section, "it is not the JSON of this version") from error
