"""Values from outside that are stored before anybody decodes them: a record that holds one must be readable wherever it is read."""

from __future__ import annotations

import msgspec
import pytest
from sojourn.actors.engine import Engine
from sojourn.actors.events import Event, Facts
from sojourn.actors.registry import Registry
from sojourn.actors.task import Result, parse_result
from sojourn.actors.turns import EventRefused
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Origin

KEYS = Keyring.ephemeral(lambda n: b"k" * n)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def result(value: bytes) -> object:
    mark = KEYS.mac("step result", "a", "r", "1", "1", "t")
    told = Result("r", 1, 1, "t", mark, msgspec.Raw(b'{"kind":"value","value":' + value + b"}"))
    return parse_result(msgspec.json.encode(told), actor="a", op="1", keyring=KEYS)


@pytest.mark.parametrize("levels", [200, 900, 990, 3_000, 100_000])
def test_a_workers_result_that_is_nested_too_deep_is_none(levels: int) -> None:
    assert result(nested(levels)) in ("outcome", "shape")
    assert isinstance(result(nested(64)), dict)


def admitted(args: bytes) -> None:
    body = {"workflow": "elsewhere", "args": args, "request": "r"}
    event = Event("start", "a", Origin("ctl", 1, 1), 1.0, body=body)
    facts = Facts(epoch=1, node="n/l", deployment="here", commit="c")
    Engine(Registry(), ids=lambda: "run").admit(None, event, 1.0, facts, deployment="there")


@pytest.mark.parametrize(
    "args", [b"[[" + nested(200) + b"],{}]", b'[["' + b"x" * 300_000 + b'"],{}]'], ids=["deep", "large"]
)
def test_arguments_for_another_deployment_are_bounded_before_they_are_stored(args: bytes) -> None:
    admitted(b"[[1],{}]")
    with pytest.raises(EventRefused, match="bad arguments"):
        admitted(args)
