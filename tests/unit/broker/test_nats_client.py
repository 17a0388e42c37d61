"""The reader of the broker's connection: what the server writes, in pieces of any size, and what no client library would send."""

from __future__ import annotations

from typing import Any

import pytest
from nats.errors import ProtocolError
from sojourn.broker.nats_client import MAX_LINE, LineParser, TolerantClient

STREAM = (
    b'INFO {"server_id":"a"} \r\n+OK\r\n'
    b"MSG a.b 1 2\r\nhi\r\n"
    b"MSG a.b 12 to.me 0\r\n\r\n"
    b"PING\r\n"
    b"HMSG a\x0b\rb\xff 3 to.me 12 15\r\nNATS/1.0\r\n\r\n\r\n\0\r\n"
    b"HMSG a 3 4 4\r\nNATS\r\n"
    b"-ERR 'Permissions Violation for Publish to \"x\"'\r\nPONG\r\n"
)
HEARD = [
    ("info", {"server_id": "a"}),
    (1, b"a.b", b"", b"hi", b""),
    (12, b"a.b", b"to.me", b"", b""),
    "ping",
    (3, b"a\x0b\rb\xff", b"to.me", b"\r\n\0", b"NATS/1.0\r\n\r\n"),
    (3, b"a", b"", b"", b"NATS"),
    ("err", 'permissions violation for publish to "x"'),
    "pong",
]


class Listener:
    """What a client is to its parser."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.heard.append((sid, subject, reply, data, headers))

    async def _process_ping(self) -> None:
        self.heard.append("ping")

    async def _process_pong(self) -> None:
        self.heard.append("pong")

    async def _process_err(self, text: str) -> None:
        self.heard.append(("err", text))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.heard.append(("info", info))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_pieces_of_any_size_say_the_same(size: int) -> None:
    listener = Listener()
    parser = LineParser(listener)
    for start in range(0, len(STREAM), size):
        await parser.parse(STREAM[start : start + size])
    assert listener.heard == HEARD


@pytest.mark.parametrize(
    "line",
    [b"HELLO\r\n", b"MSG a\r\n", b"MSG a 1 2 3 4\r\n", b"MSG a x 1\r\n", b"HMSG a 1 2\r\n", b"INFO x\r\n", b"x" * (MAX_LINE + 1)],
    ids=lambda line: repr(line[:12]),
)  # fmt: skip
async def test_what_no_server_says_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        await LineParser(Listener()).parse(line)


@pytest.mark.parametrize("block", [b"x", b"NATS/1.0", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"\r\n"])
async def test_headers_that_cannot_be_read_are_none(block: bytes) -> None:
    assert not await TolerantClient()._process_headers(block)
