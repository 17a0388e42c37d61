"""What a request looks like on the wire."""

from __future__ import annotations

import pytest
from sojourn.broker.nats_requests import header_block


def test_headers_are_a_line_each_between_the_version_and_an_empty_line() -> None:
    block = header_block({"Sj-Index": "actor=a&wait=step%20x", "Nats-TTL": "5s"})
    assert block == b"NATS/1.0\r\nSj-Index: actor=a&wait=step%20x\r\nNats-TTL: 5s\r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nPUB x 0", "a\nNats-Rollup: sub", "a\rb", "\r\n"])
def test_no_value_breaks_out_of_its_line(value: str) -> None:
    block = header_block({"Sj-Detail": value, "Nats-TTL": "5s"})
    lines = block.split(b"\r\n")
    assert lines[0] == b"NATS/1.0"
    assert lines[1].startswith(b"Sj-Detail: ")
    assert lines[2:] == [b"Nats-TTL: 5s", b"", b""]
    assert block.count(b"\n") == block.count(b"\r") == 4


def test_text_that_is_not_ascii_is_utf8() -> None:
    assert "é".encode() in header_block({"Sj-Detail": "é"})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected names"):
        header_block({name: "x"})
