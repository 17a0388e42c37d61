"""`sojourn node`: one process that runs workflows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal

import click

from .app_code import importable, load
from .connection import Connection, connection_options
from .failures import told_in_words
from .keys import key_option, keyring
from .logs import log_to_stderr
from .output import Output, clean
from .process import process_options
from .values import DurationValue


def _label(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A version's usual name has dots, which subjects cannot have: say so with one that fits."""
    if value is None or re.fullmatch(r"[A-Za-z0-9_=-]{1,128}", value):
        return value
    fitting = re.sub(r"[^A-Za-z0-9_=-]+", "-", value)[:128] or "v1"
    raise click.BadParameter(
        f"expected letters, digits, `_`, `=` and `-`, received {clean(value)!r}; write {fitting}"
    )


@click.command()
@click.argument("app")
@click.option("--node-id", help="Name of this node; one living process may have it.  [default: drawn]")
@click.option(
    "--deployment",
    callback=_label,
    help="Label of this version of your code, such as 1-4-2.  [default: drawn from the code]",
)
@key_option
@click.option(
    "--capacity",
    type=click.FloatRange(min=0, min_open=True, max=1_000_000),
    default=1.0,
    show_default=True,
    help="Share of the work.",
)
@click.option(
    "--drain", type=DurationValue(), default="30s", show_default=True, help="How long SIGTERM may take."
)
@click.option(
    "--steps",
    type=click.Choice(("thread", "inline")),
    default="thread",
    show_default=True,
    help="Where async steps run: on a loop of their own, or on the engine's (less CPU; a step that blocks blocks the node).",
)
@process_options
@connection_options
def node(
    connection: Connection,
    app: str,
    node_id: str | None,
    deployment: str | None,
    key_file: Path | None,
    capacity: float,
    drain: float,
    health_host: str,
    health_port: int,
    no_health: bool,
    steps: Literal["thread", "inline"],
    level: str,
) -> None:
    """Run APP's workflows and steps: a module (`shop.workflows`), `module:attribute`, or a file (`app.py`).

    SIGTERM drains: what runs is finished or handed over, nothing is cancelled, no step is repeated. A second one leaves at once.
    """
    log_to_stderr(level)
    with told_in_words(Output.standard(json=False)):
        from sojourn.cluster.node import NodeOptions, run_node

        keys = keyring(key_file, connection)
        name = importable(app)
        options = NodeOptions(
            app=name,
            registry=load(name),
            nats=connection.options("sojourn node"),
            keyring=keys,
            namespace=connection.namespace,
            node_id=node_id,
            deployment=deployment,
            capacity=capacity,
            drain_seconds=drain,
            health_host=health_host,
            health_port=None if no_health else health_port,
            steps=steps,
        )
        code = run_node(options)
    sys.exit(code)
