"""Messages that no client library writes, over a bare connection: the server stores them as they come, and their owner goes on (I6)."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from sojourn.actors.registry import Registry
from sojourn.actors.verbs import sleep
from sojourn.actors.workflow import workflow
from sojourn.broker.server import EmbeddedServer

from .conftest import MakeOwner, Owner, completed

pytestmark = pytest.mark.integration

REGISTRY = Registry()


@workflow(registry=REGISTRY)
async def one() -> int:
    await sleep(0.01)
    return 1


async def publish_raw(server: EmbeddedServer, subject: bytes, block: bytes, payload: bytes = b"1") -> None:
    """HPUB, with these bytes as its headers, and wait until the server has read it."""
    place = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        sizes = f" {len(block)} {len(block) + len(payload)}\r\n" if block else f" {len(payload)}\r\n"
        writer.write(
            (b"HPUB " if block else b"PUB ") + subject + sizes.encode() + block + payload + b"\r\nPING\r\n"
        )
        async with asyncio.timeout(10):
            while (line := await reader.readline()) != b"PONG\r\n":
                assert line, "the server hung up"
                assert not line.startswith(b"-ERR"), line
    finally:
        writer.close()
        await writer.wait_closed()


BLOCKS = {
    "status of no text": b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    "description of no text": b"NATS/1.0 503 \xff\xff\r\n\r\n",
    "description of no text, with headers": b"NATS/1.0 503 \xff\xff\r\na: b\r\n\r\n",
    "status": b"NATS/1.0 503 No Responders\r\n\r\n",
    "consumer deleted": b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    "heartbeat": b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 99999\r\n\r\n",
    "short": b"\r\n",
    "shorter": b"x",
    "version alone": b"NATS/1.0",
    "superscript": "NATS/1.0 ²\r\n\r\n".encode(),
    "no version": b"hello: world\r\n\r\n",
    "name of no text": b"NATS/1.0\r\n\xff\xfe: 1\r\n\r\n",
    "name with a space": b"NATS/1.0\r\nmy name: 1\r\n\r\n",
    "no name": b"NATS/1.0\r\n: 1\r\n\r\n",
    "name with a control character": b"NATS/1.0\r\na\x00b: 1\r\nc\x1bd: 1\r\n\r\n",
    "value of no text": b"NATS/1.0\r\na: \xff\xfe\r\n\r\n",
    "value with line ends": b"NATS/1.0\r\na: x\ny\rz\x00\x1b[2J\r\n\r\n",
    "surrogates": b"NATS/1.0\r\na: \xed\xa0\x80\r\n\r\n",
    "no end": b"NATS/1.0\r\na: b",
    "line ends only": b"NATS/1.0\r\n\r\n\r\n\r\n",
    "our own": b"NATS/1.0\r\nSj-Reason: x\r\nSj-Origin: mail.1.1\r\nsj-origin-time: x\r\nSj-Time: x\r\nStatus: 404\r\n\r\n",
    "many": b"NATS/1.0\r\n" + b"".join(b"h%d: 1\r\n" % n for n in range(3_000)) + b"\r\n",
}
TOKENS = {
    "no text": b"\xff\xfe",
    "half a character": b"\xc3",
    "a control character of latin-1": b"\x85",
    "vertical tab": b"a\x0bb",
    "form feed": b"a\x0cb",
    "carriage return": b"a\rb",
    "zero": b"a\0b",
    "information separator": b"a\x1cb",
    "a space that is none": "\u2003".encode(),
    "a terminal's control sequence": b"\x1b[2J",
    "text that goes left": "\u202eabc".encode(),
    "longer than a control line": b"x" * 3_900,
}


async def goes_on(owner: Owner) -> None:
    """The partition starts and ends an actor, and was not in doubt about itself."""
    await owner.start("after", "one")
    assert completed(await owner.until_ended("after")) == 1
    assert owner.lost == []


async def test_mail_with_any_bytes_for_headers_is_moved_as_any_other(
    owners: MakeOwner, nats_server: EmbeddedServer
) -> None:
    owner = await owners()
    for number, block in enumerate(BLOCKS.values()):
        name = f"sj.{owner.subjects.namespace}.mail.nobody.c{number}"
        await publish_raw(nats_server, name.encode(), block)
    await goes_on(owner)
    await owner.until_messages("held", len(BLOCKS))
    await owner.until_quiet()
    assert owner.lost == []


async def test_control_with_any_bytes_for_headers_is_a_dead_letter(
    owners: MakeOwner, nats_server: EmbeddedServer
) -> None:
    owner = await owners()
    for number, block in enumerate(BLOCKS.values()):
        name = f"sj.{owner.subjects.namespace}.ctl.nobody{number}.start"
        await publish_raw(nats_server, name.encode(), block)
    await goes_on(owner)
    await owner.until_quiet()
    assert len(await owner.dead_reasons()) == len(BLOCKS)


async def test_a_question_with_any_bytes_for_headers_is_answered_or_not_and_stops_nobody(
    owners: MakeOwner, nats_server: EmbeddedServer
) -> None:
    owner = await owners()
    for block in BLOCKS.values():
        await publish_raw(nats_server, owner.subjects.query(0).encode(), block)
    await goes_on(owner)


async def test_a_subject_of_any_bytes_is_a_dead_letter(
    owners: MakeOwner, nats_server: EmbeddedServer
) -> None:
    owner = await owners()
    root = f"sj.{owner.subjects.namespace}".encode()
    for token in TOKENS.values():
        for block in (b"", b"NATS/1.0\r\na: b\r\n\r\n"):
            await publish_raw(nats_server, root + b".mail." + token + b".go", block)
            await publish_raw(nats_server, root + b".ctl.somebody." + token, block)
    await goes_on(owner)
    await owner.until_quiet()
    assert await owner.dead_reasons() == ["malformed subject"] * 4 * len(TOKENS)
