"""How every command finds its broker, and the decorator that makes a command out of an async function.

The address is, in this order: `--server`, the environment's SOJOURN_SERVER, the server of a `sojourn dev`
running in this folder (it leaves its address in `.sojourn/dev.json`), and nats://127.0.0.1:4222.

`--role` says which of `broker.roles` the user has: each role has an inbox and a way to the JetStream API of its own.
"""

from __future__ import annotations

import asyncio
import functools
import getpass
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from .devfile import DevFile
from .failures import CommandFailed, Exit, report
from .output import Output

if TYPE_CHECKING:
    from sojourn.actors.client import Client
    from sojourn.broker.nats import NatsBroker, NatsOptions
    from sojourn.broker.seam import Broker
    from sojourn.broker.subjects import Subjects

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
CONNECT_SECONDS: Final = 3.0
ROLES: Final = ("admin", "node", "starter", "signaller", "reader", "operator", "worker")
"""`broker.roles.Role`, named here so that a help page loads no broker; a test compares them."""
SYSTEM_TLS: Final = "system"
PIPE_CLOSED: Final = 141
"""Exit code when the reader of a pipe has gone, as of any program that SIGPIPE ends."""

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def operator() -> str:
    """Who asks, as records keep it: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the broker is and who asks. Opening one is cheap; commands open it once."""

    server: str
    namespace: str
    credentials: Path | None = None
    user: str = ""
    password: str = ""
    role: str | None = None
    """None: a user that may do everything in its account."""
    tls_ca: str | None = None
    """File with the authorities that the server's certificate is checked against, or `SYSTEM_TLS`."""

    @property
    def inbox_prefix(self) -> str:
        """Where this user may receive replies."""
        from sojourn.broker.roles import Role, inbox_prefix

        return inbox_prefix(Role(self.role)) if self.role else "_INBOX"

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[NatsBroker]:
        """A connection to the broker, closed on leaving. Raises `ConnectFailed`."""
        from sojourn.broker.nats import NatsBroker

        connected = await NatsBroker.connect(self.options("sojourn command line"))
        try:
            yield connected
        finally:
            await connected.close()

    def options(self, name: str) -> NatsOptions:
        """Options of a connection, under a name that operators see on the server."""
        from sojourn.broker.nats import NatsOptions
        from sojourn.broker.roles import Role, api_prefix

        return NatsOptions(
            servers=tuple(self.server.split(",")),
            name=name,
            credentials=str(self.credentials) if self.credentials else None,
            user=self.user or None,
            password=self.password or None,
            inbox_prefix=self.inbox_prefix,
            api_prefix=api_prefix(Role(self.role)) if self.role else "$JS.API",
            tls=self._tls(),
            connect_timeout=CONNECT_SECONDS,
        )

    def _tls(self) -> ssl.SSLContext | None:
        if self.tls_ca is None:
            return None
        return ssl.create_default_context(cafile=None if self.tls_ca == SYSTEM_TLS else self.tls_ca)

    async def subjects(self, broker: Broker) -> Subjects:
        """The names of this namespace, with the number of partitions that was applied. Raises `CommandFailed` when it is not there."""
        from sojourn.broker.errors import OutcomeUnknown, Refused, without_credentials
        from sojourn.broker.subjects import Subjects
        from sojourn.broker.topology import read_topology

        names = Subjects(self.namespace, 1)
        if self.role == "signaller":  # it may not read what was applied; mail is addressed without partitions
            return names
        where = f"namespace {self.namespace!r} at {without_credentials(self.server)}"
        try:
            topology = await read_topology(broker, names)
        except OutcomeUnknown:  # without its role's inbox prefix a user is not even told that it may not
            message = f"the server is there, and does not answer for {where}"
            raise CommandFailed(
                Exit.UNREACHABLE, message, self._whose("the streams have no leader just now")
            ) from None
        except Refused as refused:
            if not refused.is_denied:
                raise
            message = f"this user may not look at {where} ({refused})"
            raise CommandFailed(
                Exit.REFUSED, message, self._whose("--namespace is not the one that it is for")
            ) from None
        if topology is None:
            raise CommandFailed(
                Exit.UNREACHABLE,
                f"there is no {where}",
                f"`sojourn topology apply --namespace {self.namespace}` sets it up; or check --namespace and --server, and that the "
                "credentials belong to the account of its streams.",
            )
        return topology.subjects

    def _whose(self, otherwise: str) -> str:
        """What to look at when the broker and this user do not get along from the start."""
        given = f"It says {self.role or 'none'}" + (f", for user {self.user}" if self.user else "")
        return (
            f"Does --role (SOJOURN_ROLE) say the role that this user has? {given}. If it does, {otherwise}."
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of this namespace."""
        from sojourn.actors.client import Client

        async with self.broker() as broker:
            client = Client(
                broker, await self.subjects(broker), by=operator(), inbox_prefix=self.inbox_prefix
            )
            try:
                yield client
            finally:
                await client.close()


def connection_options(function: F) -> F:
    """Add --server, --namespace and credentials to a command; it receives one `connection`."""

    @functools.wraps(function)
    def with_connection(
        *args: Any,
        server: str | None,
        namespace: str | None,
        creds: Path | None,
        user: str | None,
        password: str | None,
        user_file: Path | None,
        password_file: Path | None,
        role: str | None,
        tls_ca: str | None,
        **kwargs: Any,
    ) -> Any:
        running = DevFile.read(Path.cwd()) if server is None else None
        connection = Connection(
            server=server or (running.server if running else DEFAULT_SERVER),
            namespace=namespace or (running.namespace if running else "default"),
            credentials=creds,
            user=_first_line(user_file) if user_file else user or "",
            password=_first_line(password_file) if password_file else password or "",
            role=role,
            tls_ca=tls_ca,
        )
        return function(*args, connection=connection, **kwargs)

    for option in (
        click.option(
            "--tls-ca",
            envvar="SOJOURN_TLS_CA",
            help=f"Encrypt; check the server against the authorities in this file, or `{SYSTEM_TLS}`.",
        ),
        click.option(
            "--role",
            envvar="SOJOURN_ROLE",
            type=click.Choice(ROLES),
            help="The user's role (`sojourn roles`).",
        ),
        click.option(
            "--password-file", envvar="SOJOURN_PASSWORD_FILE", type=_FILE, help="File with the password."
        ),
        click.option(
            "--user-file", envvar="SOJOURN_USER_FILE", type=_FILE, help="File with the user's name."
        ),
        click.option(
            "--password", envvar="SOJOURN_PASSWORD", help="Password of --user; better in SOJOURN_PASSWORD."
        ),
        click.option("--user", envvar="SOJOURN_USER", help="NATS user."),
        click.option(
            "--creds",
            envvar="SOJOURN_CREDS",
            type=_FILE,
            help="NATS credentials file.",
        ),
        click.option("-n", "--namespace", envvar="SOJOURN_NAMESPACE", help="Namespace.  [default: default]"),
        click.option(
            "-s",
            "--server",
            envvar="SOJOURN_SERVER",
            help=f"NATS server(s).  [default: `sojourn dev` here, or {DEFAULT_SERVER}]",
        ),
    ):
        with_connection = option(with_connection)
    return with_connection  # type: ignore[return-value]  # click's options change the parameters behind the type's back


def _first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0].strip()


def reported(function: Callable[Concatenate[Output, P], Awaitable[Exit | None]]) -> Callable[P, None]:
    """Add --json, run the async function, and end the process with its exit code or its failure's."""

    @click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="One JSON document on standard output; errors as JSON on standard error.",
    )
    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        output = Output.standard(json=bool(kwargs.pop("as_json")))
        logging.getLogger("sojourn").addHandler(
            logging.NullHandler()
        )  # a command says itself what went wrong
        try:
            code = asyncio.run(_run(function, output, *args, **kwargs))
        except click.ClickException:
            raise
        except BrokenPipeError:  # whoever read the answer has seen enough (`| head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        except (
            BaseException
        ) as error:  # every failure becomes an exit code and a sentence; defects keep their traceback
            if isinstance(error, SystemExit):
                raise
            code = report(error, output)
        sys.exit(code)

    return command


async def _run(
    function: Callable[Concatenate[Output, P], Awaitable[Exit | None]],
    output: Output,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Exit:
    return await function(output, *args, **kwargs) or Exit.DONE
