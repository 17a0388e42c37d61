"""`sojourn node`: one process that runs workflows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from .connection import Connection, connection_options
from .failures import CommandFailed, Exit, report
from .keys import key_option, keyring
from .logs import log_to_stderr
from .output import Output, clean
from .values import DurationValue

if TYPE_CHECKING:
    from sojourn.actors.registry import Registry

LEVELS: Final = ("debug", "info", "warning", "error")


@click.command()
@click.argument("app")
@click.option("--node-id", help="Name of this node; one living process may have it.  [default: drawn]")
@click.option("--deployment", help="Label of this version of your code.  [default: drawn from the code]")
@key_option
@click.option(
    "--capacity",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the work.",
)
@click.option(
    "--drain", type=DurationValue(), default="30s", show_default=True, help="How long SIGTERM may take."
)
@click.option(
    "--health-host", default="127.0.0.1", show_default=True, help="Address of /livez, /readyz, /metrics."
)
@click.option(
    "--health-port", type=click.IntRange(0, 65_535), default=0, help="Their port.  [default: a free one]"
)
@click.option("--no-health", is_flag=True, help="Serve no health pages.")
@click.option(
    "--steps",
    type=click.Choice(("thread", "inline")),
    default="thread",
    show_default=True,
    help="Where async steps run: on a loop of their own, or on the engine's (less CPU; a step that blocks blocks the node).",
)
@click.option("--log", "level", type=click.Choice(LEVELS), default="info", show_default=True)
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
    try:
        from sojourn.cluster.node import NodeOptions, run_node

        keys = keyring(key_file)
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
    except (
        BaseException
    ) as error:  # every failure becomes an exit code and a sentence; defects keep their traceback
        if isinstance(error, SystemExit | click.ClickException):
            raise
        sys.exit(report(error, Output.standard(json=False)))
    sys.exit(code)


def load(app: str) -> Registry:
    """Import the app. Raises `CommandFailed` when there is no such module; what its own code raises goes on with its traceback."""
    from sojourn.actors.registry import Registry

    module = app.partition(":")[0]
    try:
        return Registry.for_app(app)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        hint = "Name a module that can be imported from here, or a file such as app.py."
        raise CommandFailed(Exit.USAGE, f"no module named {clean(module)!r}", hint) from None


def importable(app: str) -> str:
    """APP as a module name: a file's folder is put on the path first, else the current folder, as `python -m` does."""
    path, colon, attribute = app.partition(":")
    if path.endswith(".py"):
        file = Path(path).resolve()
        if not file.is_file():
            raise click.BadParameter(f"no such file: {path}", param_hint="APP")
        sys.path.insert(0, str(file.parent))
        return f"{file.stem}{colon}{attribute}"
    sys.path.insert(0, os.getcwd())
    return app
