"""A connection to NATS that comes back by itself, and says when it was away.

nats-py reconnects after a lost connection; after some errors of the server (authentication expired, too
many connections) it gives up for good, and this module connects anew with the same subscriptions. Whoever
waits for an answer when the connection is cut is told at once. An outage is logged twice: when it begins,
and, with how long it took, when it is over; what each attempt met meanwhile, at DEBUG.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.errors import Error as NatsError
from nats.errors import StaleConnectionError
from sojourn.broker.errors import BrokerClosed, ConnectFailed, OutcomeUnknown, without_credentials
from sojourn.broker.nats_client import TolerantClient
from sojourn.broker.nats_options import NatsOptions
from sojourn.broker.nats_requests import Requests
from sojourn.broker.seam import Subscription

log = logging.getLogger("sojourn.broker")

SUBSCRIPTION_PENDING = 4096
"""Plain messages waiting for their handler, per subscription; beyond it they are dropped (they are hints)."""


class NatsConnection:
    """One connection. Made by `await NatsConnection.open(options)`."""

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.client = TolerantClient()
        self.requests = Requests(self.client, options.inbox_prefix, options.max_in_flight)
        self.closed = False
        self._subscriptions: set[_NatsSubscription] = set()
        self._on_cut: list[Callable[[], None]] = []
        self.on_denied: Callable[[str], bool] = lambda text: False
        """Told of a denied publish that was no request; whether it knew whose it was."""
        self._revival: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[bool], None]] = []
        self._last_error = ""
        self._up = False
        self._down_since = 0.0
        """Loop time at which the present outage began; 0: there is none."""
        self.failed_attempts = 0
        """Errors of the connection since it was last up."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self.connected else "disconnected"
        return f"<NatsConnection {self.options.name} {state} subscriptions={len(self._subscriptions)}>"

    @classmethod
    async def open(cls, options: NatsOptions) -> NatsConnection:
        """Connect within `options.connect_timeout`. Raises `ConnectFailed`."""
        connection = cls(options)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await connection._connect()
        except (TimeoutError, NatsError, OSError) as error:
            reason = connection._last_error or repr(error)
            await connection.close()
            raise ConnectFailed(options.addresses, options.connect_timeout, reason) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self) -> None:
        options = self.options
        await self.client.connect(
            servers=list(options.addresses),
            name=options.name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_closed,
            connect_timeout=options.connect_timeout,  # type: ignore[arg-type]  # int there, passed to wait_for
            reconnect_time_wait=options.reconnect_wait,  # type: ignore[arg-type]  # int there, passed to sleep
            ping_interval=options.ping_interval,  # type: ignore[arg-type]  # int there, passed to sleep
            max_reconnect_attempts=-1,
            pending_size=0,
            flusher_queue_size=1024,
            inbox_prefix=options.inbox_prefix,
            user=options.user,
            password=options.password,
            token=options.token,
            user_credentials=options.credentials,
            nkeys_seed=options.nkeys_seed,
            tls=options.tls,
            skip_subject_validation=True,  # subjects are built from checked types only
        )
        await self.requests.start()
        self._up = True

    @property
    def connected(self) -> bool:
        """Whether the connection is up at this moment."""
        return self.client.is_connected

    def on_connection(self, listener: Callable[[bool], None]) -> None:
        """Call `listener(True)` after each reconnect, `listener(False)` at each disconnect, on the loop."""
        self._listeners.append(listener)

    def on_cut(self, act: Callable[[], None]) -> None:
        """Call this when the connection is cut, before the listeners hear of it."""
        self._on_cut.append(act)

    async def close(self) -> None:
        """Flush what is buffered and close. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        if self._revival is not None:
            self._revival.cancel()
        self.requests.close()
        # Without a queue an address was refused before any was tried: there is nothing to close, and nats-py would fail.
        if self.client._flush_queue is not None:
            await self.client.close()

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or repr(error)
        self.failed_attempts += 1
        if "permissions violation" in text and (self.requests.deny(text) or self.on_denied(text)):
            return
        # What the wire meets is told with the outage; while that lasts, each server says the same five times a second.
        told = self._up and isinstance(error, NatsError) and text != self._last_error
        level = logging.WARNING if told and not isinstance(error, StaleConnectionError) else logging.DEBUG
        log.log(level, "%s: connection to the broker: %s", self.options.name, text)
        self._last_error = text

    async def _on_disconnect(self) -> None:
        # What nats-py has buffered and not sent goes out after the reconnect, long after its sender was told
        # that the outcome is unknown. Subscriptions are replayed from a list of their own.
        self.client._pending = []
        self.client._pending_data_size = 0
        self.requests.fail_all("the connection was cut")
        self._went_down("the connection to the broker is lost")
        for act in self._on_cut:
            act()
        self._tell(False)

    def _went_down(self, what: str) -> None:
        self._up = False
        if self.closed or self._down_since:
            return
        self._down_since = asyncio.get_running_loop().time()
        why = f" ({self._last_error})" if self._last_error else ""
        servers = " and ".join(map(without_credentials, self.options.addresses))
        log.warning("%s: %s%s; trying %s again", self.options.name, what, why, servers)

    async def _on_reconnect(self) -> None:
        if self._down_since:
            away = asyncio.get_running_loop().time() - self._down_since
            tries = f", {self.failed_attempts} attempts failed" if self.failed_attempts else ""
            log.warning("%s: connected again after %.1f s%s", self.options.name, away, tries)
        self._up, self._down_since = True, 0.0
        self._last_error = ""
        self.failed_attempts = 0
        self._tell(True)

    async def _on_closed(self) -> None:
        """nats-py gives up for good after some errors of the server (authentication expired, too many
        connections).

        A node must come back by itself: connect anew, with the same subscriptions.
        """
        if self.closed or self._revival is not None:
            return
        self._went_down("the broker ended the connection")
        self.requests.fail_all("the broker ended the connection")
        self._revival = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        while not self.closed:
            await asyncio.sleep(self.options.reconnect_wait)
            self.client = TolerantClient()
            self.requests.use(self.client)
            try:
                async with asyncio.timeout(self.options.connect_timeout):
                    await self._connect()
                    for subscription in list(self._subscriptions):
                        await subscription.begin(self.client)
            except (TimeoutError, NatsError, OSError) as error:
                self._last_error = self._last_error or repr(error)
                await self.client.close()
                continue
            self._revival = None
            await self._on_reconnect()
            return

    def _tell(self, up: bool) -> None:
        if not self.closed:
            for listener in self._listeners:
                listener(up)

    def send(self, operation: str, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> None:
        """Publish without an answer. Raises `OutcomeUnknown`, `Refused` (too large), `BrokerClosed`."""
        self.requests.send(operation, subject, payload, headers)

    async def subscribe(self, subject: str, deliver: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """A plain subscription that outlives reconnects of either kind."""
        if self.closed:
            raise BrokerClosed("subscribe")
        subscription = _NatsSubscription(subject, deliver, self._subscriptions)
        try:
            await subscription.begin(self.client)
        except NatsError as error:
            raise OutcomeUnknown("subscribe", subject, repr(error)) from error
        return subscription


class _NatsSubscription:
    """A plain subscription, begun again on a new connection."""

    def __init__(
        self,
        subject: str,
        deliver: Callable[[Msg], Awaitable[None]],
        register: set[_NatsSubscription],
    ) -> None:
        self._subject = subject
        self._deliver = deliver
        self._register = register
        self._inner: NatsSubscription | None = None

    async def begin(self, client: TolerantClient) -> None:
        self._inner = await client.subscribe(
            self._subject, cb=self._call, pending_msgs_limit=SUBSCRIPTION_PENDING
        )
        self._register.add(self)

    async def stop(self) -> None:
        """Unsubscribe. Stopping twice is fine."""
        self._register.discard(self)
        inner, self._inner = self._inner, None
        if inner is not None:
            with suppress(NatsError):  # the connection is going down: so is the subscription
                await inner.unsubscribe()

    async def _call(self, message: Msg) -> None:  # nats-py wants a coroutine function, not any awaitable
        await self._deliver(message)
