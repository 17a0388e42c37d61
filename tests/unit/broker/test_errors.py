"""Errors: they survive pickling, carry their facts, and tell what to do."""

from __future__ import annotations

import pickle

import pytest
from sojourn.broker import errors
from sojourn.broker.errors import BrokerError, Difference
from sojourn.broker.nats_options import NatsOptions
from sojourn.broker.server import ServerFailed, ServerNotFound

EXAMPLES: list[BrokerError] = [
    errors.BrokerClosed("publish"),
    errors.ConnectFailed(("nats://127.0.0.1:4222",), 5.0, "refused"),
    errors.OutcomeUnknown("publish", "a.b", "no answer within 2 s"),
    errors.Refused(10100, "filtered consumer not unique", "k"),
    errors.WrongLastSequence(7, 3, "a.b"),
    errors.WrongLastSequence(None, 3, "a.b"),
    errors.MailboxFull("a.b", "maximum messages per subject exceeded"),
    errors.NoResponders("a.b"),
    errors.StreamNotFound("S"),
    errors.TopologyDrift([Difference("S", "max_bytes", "-1", "5")]),
    errors.TopologyRefused("app", "a", "b", "use another namespace"),
    errors.FencedOff(3, 1, 2),
    errors.MoveUnsettled(3, "no answer"),
    errors.InvalidName("an actor id", "a.b"),
    ServerNotFound(["PATH"]),
    ServerFailed("ended with code 1", "log"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: BrokerError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_one_of_ours_and_says_more_than_its_name(error: BrokerError) -> None:
    assert isinstance(error, BrokerError)
    assert len(str(error)) > 20


def test_every_error_has_an_example() -> None:
    named = {getattr(errors, name) for name in errors.__all__} - {BrokerError, Difference}

    assert named <= {type(error) for error in EXAMPLES}


@pytest.mark.parametrize(
    "address",
    [
        "nats://user:s3cret@host:4222",
        "nats://s3cret@host:4222",
        "user:s3cret@host:4222",
        "nats://user:s3cret/@,s3cret@host:4222",
        "nats://user:s3cret@host:4222,tls://other:s3cret@host:4222",
    ],
)
def test_no_credentials_of_an_address_are_shown(address: str) -> None:
    error = errors.ConnectFailed((address, "nats://plain:4222"), 5.0, "refused")
    options = NatsOptions(servers=(address, "nats://plain:4222"))
    for shown in (str(error), repr(error), repr(error.args), repr(error.servers), repr(options)):
        assert "s3cret" not in shown
        assert "@host:4222" in shown
        assert "nats://plain:4222" in shown
