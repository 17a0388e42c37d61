"""How to reach NATS, as one value."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from sojourn.broker.errors import without_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """How to connect. Credentials: at most one of user and password, token, `credentials`, `nkeys_seed`.

    `inbox_prefix` is what the user's permissions allow for replies (one per role). `max_in_flight` bounds
    requests waiting for an answer; more wait for room. Times are seconds.
    """

    servers: str | tuple[str, ...]
    name: str = "sojourn"
    inbox_prefix: str = "_INBOX"
    user: str | None = None
    password: str | None = None
    token: str | None = None
    credentials: str | None = None
    """Path of a `.creds` file (JWT and seed)."""
    nkeys_seed: str | None = None
    """Path of an nkey seed file."""
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    reconnect_wait: float = 0.2
    ping_interval: float = 10.0
    api_prefix: str = "$JS.API"
    """Where the JetStream API is reached; roles outside the streams' account reach a part of it under another
    prefix.
    """
    max_in_flight: int = 1024
    heartbeat: float = 5.0
    """Idle heartbeats of pulls."""

    def __repr__(self) -> str:  # never the secrets
        servers = ", ".join(map(without_credentials, self.addresses))
        return f"<NatsOptions {servers} name={self.name} inbox_prefix={self.inbox_prefix}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers' addresses."""
        return (self.servers,) if isinstance(self.servers, str) else self.servers
