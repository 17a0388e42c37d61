"""What can go wrong at the broker, told apart by what the caller must do next.

- `SojournError`
  - `BrokerError`: anything from this layer
    - `BrokerClosed`: this side closed the connection; a bug of the caller, or shutdown
    - `ConnectFailed`: no connection could be made in the time given; check address, credentials, network
    - `OutcomeUnknown`: a request was sent (or may have been) and its answer is missing; read before going
      on (PROTOCOL 4.6)
    - `Refused`: certainly not done, the broker says why
      - `WrongLastSequence`: somebody else wrote first
      - `MailboxFull`: a bound of the stream is reached
    - `NoResponders`: nobody listens on the subject of a request
    - `StreamNotFound`: the topology was not applied, or not to this account
    - `TopologyDrift`: what the broker has is not what this version needs
    - `FencedOff`: a later owner of the partition has been here; step down
    - `InvalidName`: a name outside the alphabet, from a user or from a message's subject

All carry their facts as attributes and survive pickling: `args` are exactly the constructor's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from sojourn.codecs.errors import SojournError

__all__ = [
    "BrokerClosed",
    "BrokerError",
    "ConnectFailed",
    "Difference",
    "FencedOff",
    "InvalidName",
    "MailboxFull",
    "MoveUnsettled",
    "NoResponders",
    "OutcomeUnknown",
    "Refused",
    "StreamNotFound",
    "TopologyDrift",
    "TopologyRefused",
    "WrongLastSequence",
]


class BrokerError(SojournError):
    """Base of everything the broker layer raises."""


class BrokerClosed(BrokerError):
    """The connection was closed by this process; open a new one."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation

    def __str__(self) -> str:
        return f"{self.operation}: this connection to the broker was closed here; connect again to go on"


def without_credentials(address: str) -> str:
    """A server's address, or text with several, as it may be shown: `nats://user:secret@host` says `nats://***@host`.

    Up to the last `@` of each, since a password that was not quoted may hold one.
    """
    return _USERINFO.sub(r"\1***@", address)


_USERINFO: Final = re.compile(r"(?s)(^|://)(?:(?!://).)*@")


class ConnectFailed(BrokerError):
    """No connection to any of the servers within the time given. `servers` are without credentials."""

    def __init__(self, servers: tuple[str, ...], seconds: float, reason: str) -> None:
        servers = tuple(map(without_credentials, servers))
        super().__init__(servers, seconds, reason)
        self.servers = servers
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"expected a NATS server with JetStream at {', '.join(self.servers)}; no connection within "
            f"{self.seconds:g} s ({self.reason}). Check the address, the credentials, and that it runs"
        )


class OutcomeUnknown(BrokerError):
    """The operation was done, was not done, or will be done later: read, then decide (PROTOCOL 4.6).

    Raised when the answer is missing (time-out, cut connection), when the request could not be sent
    because the connection is down, and when the broker cannot say (no leader, store not ready).
    """

    def __init__(self, operation: str, subject: str, reason: str) -> None:
        super().__init__(operation, subject, reason)
        self.operation = operation
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.operation} on `{self.subject}` has no known outcome: {self.reason}. "
            "Read what is stored before trying again"
        )


PERMISSION_DENIED: Final = 403
"""Our code for a publish that the server's permissions do not allow; HTTP's, as JetStream's others are."""


class Refused(BrokerError):
    """The broker answered no; nothing was changed. `code` is JetStream's error code (0: none was given)."""

    def __init__(self, code: int, description: str, subject: str = "") -> None:
        super().__init__(code, description, subject)
        self.code = code
        self.description = description
        self.subject = subject

    @property
    def is_denied(self) -> bool:
        """Whether this user has no right to ask, whatever the answer would be."""
        return self.code == PERMISSION_DENIED

    def __str__(self) -> str:
        where = f" on `{self.subject}`" if self.subject else ""
        return f"the broker refused{where}: {self.description} (code {self.code})"


class WrongLastSequence(Refused):
    """The subject's last sequence is not the expected one.

    `actual` is None when the broker did not say (code 10164).
    """

    def __init__(self, actual: int | None, expected: int | None = None, subject: str = "") -> None:
        super().__init__(10071 if actual is not None else 10164, "wrong last sequence", subject)
        self.args = (actual, expected, subject)
        self.actual = actual
        self.expected = expected

    def __str__(self) -> str:
        found = "another write in flight" if self.actual is None else str(self.actual)
        return f"expected last sequence {self.expected} on `{self.subject}`, found {found}; read it again"


class MailboxFull(Refused):
    """The stream or the subject holds as many messages or bytes as it may."""

    def __init__(self, subject: str, description: str) -> None:
        super().__init__(10077, description, subject)
        self.args = (subject, description)

    def __str__(self) -> str:
        return (
            f"`{self.subject}` takes no more: {self.description}. "
            "Let the receiver consume, or raise the limit with `sojourn topology apply`"
        )


class NoResponders(BrokerError):
    """Nobody listens on this subject at the moment."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"nobody answers on `{self.subject}`"


class StreamNotFound(BrokerError):
    """The stream does not exist in this account."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"expected stream `{self.name}` at the broker, found none; run `sojourn topology apply` "
            "(or check the namespace, and that the credentials belong to the right account)"
        )


class Difference(NamedTuple):
    """One field that is not as it should be. `where` is a stream's name or `topology`."""

    where: str
    field: str
    expected: str
    received: str

    def __str__(self) -> str:
        return f"{self.where}.{self.field}: expected {self.expected}, received {self.received}"


class TopologyDrift(BrokerError):
    """Streams at the broker differ from what this version of Sojourn needs."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        super().__init__(tuple(differences))
        self.differences = tuple(differences)

    def __str__(self) -> str:
        lines = "\n".join(f"  {difference}" for difference in self.differences)
        return f"the broker's topology has drifted; run `sojourn topology apply` as its admin:\n{lines}"


class FencedOff(BrokerError):
    """Another owner's fence is on the partition: this node must leave it (PROTOCOL 3)."""

    def __init__(self, partition: int, own_epoch: int, found_epoch: int) -> None:
        super().__init__(partition, own_epoch, found_epoch)
        self.partition = partition
        self.own_epoch = own_epoch
        self.found_epoch = found_epoch

    def __str__(self) -> str:
        return (
            f"partition {self.partition} carries the fence of epoch {self.found_epoch}, "
            f"ours is {self.own_epoch}; leave it"
        )


class InvalidName(BrokerError, ValueError):
    """A name outside `[A-Za-z0-9_=-]{1,128}`."""

    def __init__(self, kind: str, value: str) -> None:
        super().__init__(kind, value)
        self.kind = kind
        self.value = value

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= 60 else f"{self.value[:57]}..."
        return (
            f"expected {self.kind} of 1 to 128 characters out of A-Z a-z 0-9 _ = -, received {shown!a} "
            f"({len(self.value)} characters); put other data into the payload"
        )


class TopologyRefused(BrokerError):
    """The wanted topology contradicts what is fixed or allowed; nothing was changed."""

    def __init__(self, field: str, expected: str, received: str, remedy: str) -> None:
        super().__init__(field, expected, received, remedy)
        self.field = field
        self.expected = expected
        self.received = received
        self.remedy = remedy

    def __str__(self) -> str:
        return f"topology {self.field}: expected {self.expected}, received {self.received}; {self.remedy}"


class MoveUnsettled(BrokerError):
    """A move to HELD has no known outcome yet: repeat it (`HeldStore.move` with the same events) before
    anything else.
    """

    def __init__(self, partition: int, reason: str) -> None:
        super().__init__(partition, reason)
        self.partition = partition
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the move of held events of partition {self.partition} has no known outcome ({self.reason}); "
            "repeat it before anything else of that partition is moved, acknowledged or dead-lettered"
        )
