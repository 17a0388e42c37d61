"""Where keys come from, what they derive, and the small seals."""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import pickle
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn.codecs.errors import (
    KeyringError,
    RecordError,
    RecordTruncated,
    RecordVersion,
    SealBroken,
    UnknownKey,
)
from sojourn.codecs.keyring import Keyring, MacKey, length_prefixed


def keyring(seed: int = 1) -> Keyring:
    return Keyring.ephemeral(random.Random(seed).randbytes)


def test_a_generated_key_file_is_for_its_owner_alone_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made = Keyring.generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keyring.from_file(path).mac("id", "a") == made.mac("id", "a")
    assert list(tmp_path.iterdir()) == [path]


def test_generating_never_replaces_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    before = Keyring.generate(path)
    with pytest.raises(KeyringError, match="exists already"):
        Keyring.generate(path)
    assert Keyring.from_file(path).ids == before.ids


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o666, 0o777])
def test_a_key_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    Keyring.generate(path)
    path.chmod(mode)
    with pytest.raises(KeyringError, match="chmod 600"):
        Keyring.from_file(path)


def test_a_key_file_may_be_readable_by_its_group_as_mounted_secrets_are(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    Keyring.generate(path)
    path.chmod(0o440)
    assert len(Keyring.from_file(path).ids) == 1


def test_keys_from_the_environment_are_the_lines_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    made = Keyring.generate(path).add_key(path)
    monkeypatch.setenv("SOJOURN_TEST_KEYS", path.read_text().replace("\n", ";"))
    assert Keyring.from_env("SOJOURN_TEST_KEYS").ids == made.ids
    monkeypatch.delenv("SOJOURN_TEST_KEYS")
    with pytest.raises(KeyringError, match="SOJOURN_TEST_KEYS: not set"):
        Keyring.from_env("SOJOURN_TEST_KEYS")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "1 to 64 keys, received 0"),
        ("# only words\n", "received 0"),
        ("hmac-sha256 abc\n", "line 1: expected `hmac-sha256"),
        ("hmac-sha256 abc !!!\n", "not base64"),
        ("hmac-sha256 abc YWJj\n", "expected 32 bytes, received 3"),
        ("hmac-sha256 abc " + "A" * 43 + "=\n", "does not belong to the key"),
        ("aes-256-gcm abc " + "A" * 43 + "=\n", "another kind"),
        ("# " + "x" * 70_000, "larger than"),
    ],
)
def test_a_malformed_key_file_says_what_is_wrong_without_quoting_it(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyringError) as refused:
        Keyring.from_file(path)
    assert why in str(refused.value)
    assert "AAAA" not in str(refused.value)


def test_a_missing_key_file_is_a_keyring_error(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match="cannot be read"):
        Keyring.from_file(tmp_path / "none")


def test_rotation_seals_with_the_newest_and_opens_all(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    old = Keyring.generate(path)
    sealed, mark = old.seal_bytes("outcome", ("a",), b"1"), old.mac("mark", "a")
    new = old.add_key(path)
    assert Keyring.from_file(path).ids == new.ids == (*old.ids, new.newest_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert new.open_bytes("outcome", ("a",), sealed) == b"1"
    assert new.verify_mac(mark, "mark", "a")
    assert new.mac("mark", "a") != mark
    with pytest.raises(UnknownKey) as unknown:
        old.open_bytes("outcome", ("a",), new.seal_bytes("outcome", ("a",), b"1"))
    assert unknown.value.key_id == new.newest_id


def test_one_key_twice_or_of_another_size_is_refused() -> None:
    with pytest.raises(KeyringError, match="one twice"):
        Keyring([b"k" * 32, b"k" * 32])
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring([b"short"])


def test_a_keyring_shows_ids_and_cannot_leave_the_process() -> None:
    secret = b"S" * 32
    ring = Keyring([secret])
    assert "SSS" not in repr(ring)
    assert ring.newest_id in repr(ring)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            leak(ring)


@given(st.binary(min_size=1, max_size=64), st.lists(st.binary(max_size=200), max_size=4))
def test_tags_are_hmac_sha256(key: bytes, parts: list[bytes]) -> None:
    assert MacKey(key).tag(*parts) == hmac.digest(key, b"".join(parts), "sha256")


def test_derived_keys_are_hkdf_sha256_of_rfc_5869() -> None:
    secret = bytes(range(32))
    ring = Keyring([secret])
    extracted = hmac.new(b"sojourn keys 1", secret, hashlib.sha256).digest()
    expanded = hmac.new(
        extracted, length_prefixed(("record", "ns", "a", "r")) + b"\x01", hashlib.sha256
    ).digest()
    expected = hmac.new(expanded, b"data", hashlib.sha256).digest()
    assert ring.derived(ring.newest_id, "record", "ns", "a", "r").tag(b"data") == expected


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_no_two_lists_of_parts_share_a_mac(one: list[str], other: list[str]) -> None:
    ring = keyring()
    assert (ring.mac("id", *one) == ring.mac("id", *other)) is (one == other)


def test_macs_are_32_hex_digits_and_differ_by_purpose_and_key() -> None:
    ring = keyring()
    mac = ring.mac("id", "order-42", "7")
    assert len(mac) == 32
    assert int(mac, 16) >= 0
    assert mac != ring.mac("mark", "order-42", "7")
    assert mac != keyring(2).mac("id", "order-42", "7")
    assert ring.verify_mac(mac, "id", "order-42", "7")
    assert not ring.verify_mac(mac, "id", "order-42", "8")
    assert not ring.verify_mac("é", "id", "order-42", "7")
    assert not ring.verify_mac("\ud800", "id", "order-42", "7")


@given(st.binary(max_size=300), st.tuples(st.text(), st.text()))
def test_sealed_bytes_open_only_for_their_purpose_and_context(data: bytes, context: tuple[str, str]) -> None:
    ring = keyring()
    sealed = ring.seal_bytes("outcome", context, data)
    assert ring.open_bytes("outcome", context, sealed) == data
    for purpose, elsewhere in (
        ("mark", context),
        ("outcome", (*context, "")),
        ("outcome", (context[0] + context[1],)),
    ):
        with pytest.raises(SealBroken):
            ring.open_bytes(purpose, elsewhere, sealed)


@given(st.binary(max_size=40), st.data())
def test_no_mutation_of_sealed_bytes_is_accepted(data: bytes, draw: st.DataObject) -> None:
    ring = keyring()
    sealed = ring.seal_bytes("outcome", ("a",), data)
    position = draw.draw(st.integers(0, len(sealed) - 1))
    change = draw.draw(st.integers(1, 255))
    mutated = sealed[:position] + bytes((sealed[position] ^ change,)) + sealed[position + 1 :]
    with pytest.raises(RecordError):
        ring.open_bytes("outcome", ("a",), mutated)


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_never_sealed_bytes(data: bytes) -> None:
    for candidate in (data, b"SJS\x01\x00" + data):
        with pytest.raises(RecordError):
            keyring().open_bytes("outcome", (), candidate)


def test_sealed_bytes_of_another_version_or_codec_ask_for_an_upgrade() -> None:
    ring = keyring()
    sealed = ring.seal_bytes("outcome", (), b"1")
    with pytest.raises(RecordVersion, match="version"):
        ring.open_bytes("outcome", (), sealed[:3] + b"\x02" + sealed[4:])
    with pytest.raises(RecordVersion, match="codec"):
        ring.open_bytes("outcome", (), sealed[:4] + b"\x02" + sealed[5:])
    with pytest.raises(RecordTruncated):
        ring.open_bytes("outcome", (), sealed[:20])


def test_the_cache_of_derived_keys_is_bounded() -> None:
    ring = keyring()
    for number in range(5_000):
        ring.derived(ring.newest_id, "record", str(number))
    assert ring.statistics().derived_keys == 1024


def test_a_file_that_cannot_be_written_is_a_keyring_error(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match="cannot be written"):
        Keyring.generate(tmp_path / "no" / "such" / "place")
    assert os.listdir(tmp_path) == []
