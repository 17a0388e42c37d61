"""nats-py's client, with a reader that no message can stop.

The server stores and delivers what was published as it came: a subject of any bytes but spaces and line feeds, a header block of any
bytes. nats-py's reader ends at some of it (tried on 2.16.0), and with it the connection's life, in silence: a subject or a header block
that is no UTF-8 or is too short raises in its task, a form feed in a subject fits none of its patterns. One stored message of a signaller
then stops each owner of its partition, one after another, since it is delivered again to the next. Here

- a line is split at its spaces, as the server writes it, and nowhere else;
- what is no UTF-8 in a subject becomes U+FFFD, which no name has: its subject does not parse, so the message is dead-lettered;
- a header block that cannot be read is none.

`Parser` and the two methods are private to nats-py, hence the upper bound on its version; tests/integration/broker notices.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

log = logging.getLogger("sojourn.broker")

MAX_LINE: Final = 1024 * 1024
"""Bytes of one line of the protocol; the longest is INFO, which names every server of a cluster."""
_END: Final = b"\r\n"


class TolerantClient(Client):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LineParser(self)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        try:
            return await super()._process_headers(headers)
        except Exception as broken:
            log.debug("a header block of %d bytes cannot be read: %r", len(headers), broken)
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            _client=self,
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _sid=sid,
        )


class LineParser(Parser):
    """From bytes to messages and what else the server says. Raises `ProtocolError`, at which nats-py connects anew."""

    def reset(self) -> None:
        """Forget what was half read: a connection begins."""
        super().reset()
        self._message: tuple[int, bytes, bytes, int, int] | None = None
        """Subscription, subject, reply, bytes of headers, bytes in all: its head was read, and its body is awaited."""

    async def parse(self, data: bytes = b"") -> None:
        """Take what came from the socket."""
        self.buf += data
        while buffer := self.buf:  # a reset, while a callback is awaited, is another one
            if self._message is not None:
                sid, subject, reply, head, size = self._message
                if len(buffer) < size + len(_END):
                    return
                headers, payload = bytes(buffer[:head]), bytes(buffer[head:size])
                del buffer[: size + len(_END)]
                self._message = None
                await self.nc._process_msg(sid, subject, reply, payload, headers)
                continue
            end = buffer.find(_END)
            if end < 0:
                if len(buffer) > MAX_LINE:
                    raise ProtocolError
                return
            line = bytes(buffer[:end])
            del buffer[: end + len(_END)]
            if line.startswith((b"MSG ", b"HMSG ")):
                self._message = _head(line)
            elif line:
                await self._said(line)

    async def _said(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb.upper():
            case b"PING":
                await self.nc._process_ping()
            case b"PONG":
                await self.nc._process_pong()
            case b"+OK":
                return
            case b"-ERR":
                await self.nc._process_err(rest.strip(b"' ").decode(errors="replace").lower())
            case b"INFO":
                await self.nc._process_info(_info(rest))
            case _:
                raise ProtocolError


def _head(line: bytes) -> tuple[int, bytes, bytes, int, int]:
    """Of `MSG subject sid [reply] size` or `HMSG subject sid [reply] header-size size`."""
    verb, *words = line.split(b" ")
    try:
        *sizes, size = (int(word) for word in words[-1 - len(verb) + len(b"MSG") :])
        subject, sid, *reply = words[: -1 - len(sizes)]
        (to,) = reply or (b"",)
        return int(sid), subject, to, sizes[0] if sizes else 0, size
    except ValueError as wrong:
        raise ProtocolError from wrong


def _info(text: bytes) -> dict[str, Any]:
    try:
        said: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError as wrong:
        raise ProtocolError from wrong
    return said
