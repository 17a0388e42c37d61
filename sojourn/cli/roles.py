"""`sojourn roles`: NATS users with the least rights of each role, as the server's configuration wants them."""

from __future__ import annotations

import secrets

import click

from .connection import ROLES
from .output import Output

PASSWORD_BYTES = 24


@click.group()
def roles() -> None:
    """NATS users with the least rights: what a server's configuration must say."""


@roles.command()
@click.option("-n", "--namespace", envvar="SOJOURN_NAMESPACE", default="default", show_default=True)
@click.option(
    "--role", "wanted", multiple=True, type=click.Choice(ROLES), help="Only these roles.  [default: all]"
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Add a user `worker-NAME` for the workers of this queue of steps (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Configuration and users as one JSON document.")
def config(namespace: str, wanted: tuple[str, ...], queues: tuple[str, ...], as_json: bool) -> None:
    """Print the `accounts` block of a nats-server configuration: one user per role, named like it, with a fresh password.

    Workers of queued steps have a user per queue (`--queue`), in an account of its own: it takes that queue's tasks alone.

    The block is for the server alone: it holds the passwords. Permissions without these accounts do not do: a server answers
    every message it stores with its own authority, so whoever may send mail in the account of the streams can do more than that.
    """
    from sojourn.broker.roles import Role, User, server_config
    from sojourn.broker.subjects import Subjects, token

    if "worker" in wanted and not queues:
        raise click.UsageError("--role worker: say which queue its user serves, with --queue NAME")
    for queue in queues:
        token(queue, "a queue's name")
    others = [name for name in wanted or ROLES if name != "worker"]
    users = [User(name, secrets.token_hex(PASSWORD_BYTES), Role(name)) for name in others]
    users += [
        User(f"worker-{queue}", secrets.token_hex(PASSWORD_BYTES), Role.WORKER, queues=(queue,))
        for queue in queues
    ]
    text = server_config(users, Subjects(namespace, 1))
    output = Output.standard(json=as_json)
    if as_json:
        found = [{"role": str(one.role), "user": one.name, "password": one.password} for one in users]
        output.document({"config": text, "users": found})
    else:
        click.echo(text)
