"""Keys: where they come from, what is derived from them, and the small seals that need nothing but a key.

A keyring holds one or more 32-byte keys. The newest seals, all open, so that keys rotate without a moment in
which something cannot be read. A key is never used itself: per purpose and context (namespace, actor, run)
one is derived with HKDF-SHA256 (RFC 5869), so a tag made for one actor proves nothing about another, and a
derived key that leaks opens one run only.

A key file has one key per line, the newest last; empty lines and lines that start with `#` do not count:

    hmac-sha256 <id> <base64 of 32 bytes>

The id is derived from the key, so two files cannot mean different keys by one id. Another first word is a
kind that this version does not know (encryption will add one, `aes-256-gcm`) and is refused by name.

Tags are HMAC-SHA256 (RFC 2104), computed from two prepared hash states per derived key: 0.9 us for 600 bytes,
against 1.8 us for `hmac.digest`, which sets up OpenSSL's MAC on each call.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, final

from sojourn.codecs.errors import (
    KeyringError,
    RecordMalformed,
    RecordTruncated,
    RecordVersion,
    SealBroken,
    UnknownKey,
)

KEY_BYTES: Final = 32
TAG_BYTES: Final = 32
_KIND: Final = "hmac-sha256"
_SALT: Final = b"sojourn keys 1"
_MAX_KEYS: Final = 64
_MAX_FILE: Final = 64 * 1024
_DERIVED_CACHE: Final = 1024
"""Derived keys in memory: one per actor and run at work, one per purpose. About 800 bytes each; deriving one
takes 9 us.
"""

_SMALL_MAGIC: Final = b"SJS"
_SMALL_VERSION: Final = 1

RandomBytes = Callable[[int], bytes]

_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
"""What HMAC does to each byte of its key (RFC 2104); one is derived for each run of an actor."""


@final
class MacKey:
    """A derived key, ready to compute tags."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        """`key` has at most 64 bytes, SHA-256's block."""
        padded = key.ljust(64, b"\0")
        self._inner = hashlib.sha256(padded.translate(_INNER))
        self._outer = hashlib.sha256(padded.translate(_OUTER))

    def tag(self, *parts: bytes | memoryview) -> bytes:
        """Return HMAC-SHA256 over the concatenation of `parts`: whoever calls this makes their lengths
        unambiguous.
        """
        inner = self._inner.copy()
        for part in parts:
            inner.update(part)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


class KeyringStatistics(NamedTuple):
    """What a keyring holds in memory."""

    keys: int
    derived_keys: int


class _Key(NamedTuple):
    id: str
    secret: bytes
    extracted: bytes
    """HKDF's pseudo-random key, the input of every expansion."""

    @classmethod
    def of(cls, secret: bytes) -> _Key:
        extracted = hmac.digest(_SALT, secret, "sha256")
        return cls(_expand(extracted, b"id").hex()[:16], secret, extracted)


def _expand(extracted: bytes, info: bytes) -> bytes:
    """HKDF-Expand for one block, which is all a 32-byte key needs."""
    return hmac.digest(extracted, info + b"\x01", "sha256")


def length_prefixed(parts: Iterable[str]) -> bytes:
    """Return `parts` as bytes that no other list of parts shares: ("a", "bc") and ("ab", "c") differ."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


@final
class Keyring:
    """Keys with ids. The last of `secrets` is the newest: it seals; every one opens."""

    def __init__(self, secrets: Sequence[bytes], *, source: str = "memory") -> None:
        """Raise `KeyringError` for no key, too many, or one that has not exactly 32 bytes. `source` is for
        messages.
        """
        if not 1 <= len(secrets) <= _MAX_KEYS:
            raise KeyringError(source, f"expected 1 to {_MAX_KEYS} keys, received {len(secrets)}")
        if any(len(secret) != KEY_BYTES for secret in secrets):
            raise KeyringError(source, f"expected keys of {KEY_BYTES} bytes")
        if len(set(secrets)) != len(secrets):
            raise KeyringError(source, "expected different keys, received one twice")
        self._source = source
        self._keys = {key.id: key for key in map(_Key.of, secrets)}
        self._newest = _Key.of(secrets[-1])
        # Bound per instance, not per class: keys of a dropped keyring go with it.
        self._derived = lru_cache(maxsize=_DERIVED_CACHE)(self._derive)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keyring:
        """Read a key file. Raises `KeyringError` when it is missing, malformed, or open to users other than
        owner and group.
        """
        source = str(path)
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MAX_FILE + 1)
        except OSError as error:
            raise KeyringError(
                source, f"cannot be read ({error.strerror}); `sojourn keys generate` makes one"
            ) from error
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise KeyringError(
                source, f"mode {stat.S_IMODE(mode):04o} lets others read or change them: chmod 600 it"
            )
        if len(text) > _MAX_FILE:
            raise KeyringError(source, f"larger than {_MAX_FILE:,} bytes")
        return cls(_parse(text.decode("utf-8", "replace").splitlines(), source), source=source)

    @classmethod
    def from_env(cls, name: str) -> Keyring:
        """Read the lines of a key file from the environment variable `name`; `;` may stand for a line's end.
        Raises `KeyringError`.
        """
        text = os.environ.get(name, "")
        source = f"environment variable {name}"
        if not text.strip():
            raise KeyringError(source, "not set or empty")
        return cls(_parse(text.replace(";", "\n").splitlines(), source), source=source)

    @classmethod
    def generate(cls, path: str | os.PathLike[str], *, random: RandomBytes = os.urandom) -> Keyring:
        """Write a new key file with one key, mode 0600, and return its keyring. Raises `KeyringError` when
        `path` exists already.
        """
        keyring = cls([random(KEY_BYTES)], source=str(path))
        keyring._write(Path(path), replace=False)
        return keyring

    @classmethod
    def ephemeral(cls, random: RandomBytes) -> Keyring:
        """Return a keyring with one key that is nowhere stored: for tests and the kit."""
        return cls([random(KEY_BYTES)], source="ephemeral")

    def add_key(self, path: str | os.PathLike[str], *, random: RandomBytes = os.urandom) -> Keyring:
        """Return a keyring with one more key, the newest, after writing it to `path` in place of what is
        there (mode 0600).

        Give it to every node before one of them seals with it: a node without it answers `UnknownKey`.
        """
        grown = Keyring([*(key.secret for key in self._keys.values()), random(KEY_BYTES)], source=str(path))
        grown._write(Path(path), replace=True)
        return grown

    def _write(self, path: Path, *, replace: bool) -> None:
        """Write whole or not at all: a reader never sees half a file, and of two writers of a new one the
        second is refused.
        """
        lines = (f"{_KIND} {key.id} {base64.b64encode(key.secret).decode()}\n" for key in self._keys.values())
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(
                        "# Sojourn keys, the newest last. Whoever has one can write records that nodes run.\n"
                    )
                    file.writelines(lines)
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    os.replace(partial, path)
                else:
                    os.link(partial, path)
            finally:
                partial.unlink(missing_ok=True)
        except FileExistsError as error:
            raise KeyringError(str(path), "exists already; it was left as it is") from error
        except OSError as error:
            raise KeyringError(str(path), f"cannot be written ({error.strerror})") from error

    @property
    def newest_id(self) -> str:
        """Id of the key that seals."""
        return self._newest.id

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all keys, the newest last."""
        return tuple(self._keys)

    def derived(self, key_id: str, *context: str) -> MacKey:
        """Return the key derived from `key_id` for `context`, from a bounded cache. Raises `UnknownKey`."""
        return self._derived(key_id, context)

    def _derive(self, key_id: str, context: tuple[str, ...]) -> MacKey:
        key = self._keys.get(key_id)
        if key is None:
            raise UnknownKey(key_id, self.ids)
        return MacKey(_expand(key.extracted, length_prefixed(context)))

    def statistics(self) -> KeyringStatistics:
        """Return how many keys there are and how many derived ones are in memory."""
        return KeyringStatistics(keys=len(self._keys), derived_keys=self._derived.cache_info().currsize)

    def mac(self, purpose: str, *parts: str) -> str:
        """Return 32 hex digits that only holders of the newest key can make, always the same for the same
        parts.

        For `Nats-Msg-Id` and marks: nobody outside can guess or occupy them. `purpose` keeps the uses apart.
        """
        return self._mac(self._newest.id, purpose, parts)

    def verify_mac(self, mac: str, purpose: str, *parts: str) -> bool:
        """Whether any key of the ring, so also one before a rotation, made `mac` of these parts."""
        received = mac.encode("utf-8", "replace")
        # All keys are tried whatever the first says: the time taken tells nothing about which one it was.
        matches = [
            hmac.compare_digest(self._mac(key, purpose, parts).encode(), received) for key in self._keys
        ]
        return any(matches)

    def _mac(self, key_id: str, purpose: str, parts: tuple[str, ...]) -> str:
        return self.derived(key_id, "mac", purpose).tag(length_prefixed(parts)).hex()[:32]

    def seal_bytes(self, purpose: str, context: tuple[str, ...], data: bytes) -> bytes:
        """Return `data` under a seal that holds for this purpose and context alone. For outcomes and marks
        that travel by themselves.

        Layout: `SJS`, version, codec (0 is plain; encryption will add 2), length of the key id, key id, data,
        tag.
        """
        key_id = self._newest.id
        head = _SMALL_MAGIC + bytes((_SMALL_VERSION, 0, len(key_id))) + key_id.encode() + data
        return head + self._small_tag(key_id, purpose, context, head)

    def open_bytes(self, purpose: str, context: tuple[str, ...], data: bytes) -> bytes:
        """Return what `seal_bytes` was given. Raises a `RecordError`: truncated, malformed, of another
        version, or its seal is broken.
        """
        start = len(_SMALL_MAGIC) + 3
        smallest = start + 1 + TAG_BYTES
        if len(data) < smallest:
            raise RecordTruncated(len(data), smallest)
        version, codec, id_length = data[start - 3 : start]
        if data[: len(_SMALL_MAGIC)] != _SMALL_MAGIC:
            raise RecordMalformed("header", "it does not start as sealed bytes do")
        if version != _SMALL_VERSION:
            raise RecordVersion("version", version, _SMALL_VERSION)
        if codec != 0:
            raise RecordVersion("codec", codec, 0)
        body = start + id_length
        if len(data) < body + TAG_BYTES:
            raise RecordTruncated(len(data), body + TAG_BYTES)
        key_id = data[start:body].decode("ascii", "replace")
        expected = self._small_tag(key_id, purpose, context, data[:-TAG_BYTES])
        if not hmac.compare_digest(expected, data[-TAG_BYTES:]):
            raise SealBroken(purpose, key_id)
        return data[body:-TAG_BYTES]

    def _small_tag(self, key_id: str, purpose: str, context: tuple[str, ...], head: bytes) -> bytes:
        where = length_prefixed(context)
        return self.derived(key_id, "bytes", purpose).tag(len(where).to_bytes(4, "big"), where, head)

    def __repr__(self) -> str:
        """Ids, never keys."""
        return f"<Keyring {', '.join(self.ids)} from {self._source}>"

    def __reduce__(self) -> NoReturn:
        """Refuse: a keyring in a frame, a message or a copy would be a leak."""
        raise TypeError("a Keyring cannot be pickled or copied: open it where it is needed")


def _parse(lines: Iterable[str], source: str) -> list[bytes]:
    secrets = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] != _KIND:
            raise KeyringError(
                source, f"line {number}: expected a key of kind {_KIND}, received another kind"
            )
        if len(words) != 3:
            raise KeyringError(
                source, f"line {number}: expected `{_KIND} <id> <base64>`, received {len(words)} words"
            )
        try:
            secret = base64.b64decode(words[2], validate=True)
        except binascii.Error as error:
            raise KeyringError(source, f"line {number}: the key is not base64") from error
        if len(secret) != KEY_BYTES:
            raise KeyringError(source, f"line {number}: expected {KEY_BYTES} bytes, received {len(secret)}")
        if _Key.of(secret).id != words[1]:
            raise KeyringError(
                source, f"line {number}: the id does not belong to the key; one of them was changed"
            )
        secrets.append(secret)
    return secrets
