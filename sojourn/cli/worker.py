"""`sojourn worker`: one process that runs queued steps."""

from __future__ import annotations

import sys

import click

from .app_code import importable, load
from .connection import Connection, connection_options
from .failures import told_in_words
from .logs import log_to_stderr
from .output import Output
from .process import process_options
from .values import DurationValue


@click.command()
@click.argument("app")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Queue to take steps from; repeat it for several.  [default: every queue that APP's steps name]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="Steps at a time, for each queue.",
)
@click.option("--worker-id", help="Name of this worker, for logs and metrics.  [default: drawn]")
@click.option(
    "--drain",
    type=DurationValue(),
    default="30s",
    show_default=True,
    help="How long running steps may go on after SIGTERM.",
)
@process_options
@connection_options
def worker(
    connection: Connection,
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    worker_id: str | None,
    drain: float,
    health_host: str,
    health_port: int,
    no_health: bool,
    level: str,
) -> None:
    """Run APP's queued steps: those with `@step(queue="NAME")`. It runs no workflow, and needs no key.

    SIGTERM: it takes no more, finishes what runs within --drain, and leaves; what is not finished another worker runs again. A
    second one leaves at once.
    """
    log_to_stderr(level)
    with told_in_words(Output.standard(json=False)):
        from sojourn.cluster.worker import WorkerOptions, run_worker

        name = importable(app)
        registry = load(name)
        options = WorkerOptions(
            app=app,
            registry=registry,
            queues=queues or tuple(sorted(registry.queues)),
            nats=connection.options("sojourn worker"),
            concurrency=concurrency,
            namespace=connection.namespace,
            worker_id=worker_id,
            grace_seconds=drain,
            health_host=health_host,
            health_port=None if no_health else health_port,
        )
        code = run_worker(options)
    sys.exit(code)
